"""A posterior as ArviZ reads it: label-free scalars, and log likelihoods on request.

Reached by `Posterior.to_arviz`, which documents the groups.
"""

from datetime import UTC, datetime

import arviz
import numpy as np
import xarray as xr

import im3f_jax
from im3f_jax.data.ids import IdIndex
from im3f_jax.data.ratings import Ratings
from im3f_jax.errors import InputError
from im3f_jax.inference.devices import machine_memory
from im3f_jax.inference.memory import format_bytes
from im3f_jax.model.likelihood import Ordinal
from im3f_jax.model.spec import check_levels
from im3f_jax.model.time_effects import reads_times, times_of
from im3f_jax.posterior.posterior import Posterior
from im3f_jax.posterior.score import log_likelihood as log_likelihood_of_draws

__all__ = ["to_arviz"]

# Of the trace, what tells of the sampler, by ArviZ's name where it has one.
SAMPLE_STATS = {
    "log_joint": "lp",
    "residual_rmse": "residual_rmse",
    "test_rmse_draw": "test_rmse_draw",
    "train_rmse_draw": "train_rmse_draw",
    "cut_points_accepted": "cut_points_accepted",
}
RUNNING = {"test_rmse", "train_rmse"}  # of means over all draws so far: no draws
DRAWS = ("chain", "draw")


def to_arviz(
    posterior: Posterior, log_likelihood: Ratings | None = None, warmup: bool = False
) -> "xr.DataTree | arviz.InferenceData":
    """Make a tree of a posterior; see `Posterior.to_arviz`."""
    trace = posterior.trace
    kept = {name: posterior._kept(name) for name in trace}
    constant = {name for name, values in kept.items() if _is_constant(values)}
    stats = {k: v for k, v in SAMPLE_STATS.items() if k in trace and k not in constant}
    names = trace.keys() - SAMPLE_STATS.keys() - RUNNING
    scalars = {name: name for name in trace if name in names - constant}
    ordinal = isinstance(posterior.spec.likelihood, Ordinal)

    groups = {"posterior": _of_draws(kept, scalars)}
    if ordinal and posterior.draws is not None:
        points = posterior.draws.cut_points
        groups["posterior"]["cut_points"] = (*DRAWS, "cut_point"), points
        below = posterior.levels[:-1]
        groups["posterior"] = groups["posterior"].assign_coords(cut_point=below)
    groups["sample_stats"] = _of_draws(kept, stats)
    fixed = {name: kept[name].flat[0] for name in trace if name in names & constant}
    fixed["global_bias"] = float(posterior.spec.global_bias)
    groups["constant_data"] = xr.Dataset(fixed)
    if warmup:
        before = {name: x[:, : posterior.num_warmup] for name, x in trace.items()}
        # Of the training ratings there are predictions of kept draws only.
        finite = {k: v for k, v in stats.items() if np.isfinite(before[k]).all()}
        groups["warmup_posterior"] = _of_draws(before, scalars)
        groups["warmup_sample_stats"] = _of_draws(before, finite)
    if log_likelihood is not None:
        density = _log_likelihood(posterior, log_likelihood)
        coords = {
            "row": np.arange(len(log_likelihood)),
            "user": ("row", _plain_ids(log_likelihood.users, log_likelihood.user)),
            "item": ("row", _plain_ids(log_likelihood.items, log_likelihood.item)),
        }
        rating = {"rating": ("row", log_likelihood.rating)}
        groups["observed_data"] = xr.Dataset(rating, coords)
        density = {"rating": ((*DRAWS, "row"), density)}
        coords |= _draw_coords(posterior.num_kept, len(kept["rating_variance"]))
        groups["log_likelihood"] = xr.Dataset(density, coords)
    made_by = _made_by(posterior)
    groups = {name: group.assign_attrs(made_by) for name, group in groups.items()}
    tree = xr.DataTree.from_dict(groups, name="im3f_jax")
    tree.attrs = made_by | _settings(posterior)
    # Before 1.0 the functions of ArviZ took InferenceData only; this goes with support
    # for Python 3.11, which has no newer ArviZ.
    if int(arviz.__version__.split(".")[0]) < 1:
        return arviz.from_datatree(tree)
    return tree


def _is_constant(values: np.ndarray) -> bool:
    """Whether draws hold one value, or none: what no diagnostic can be asked of."""
    first = values.flat[0]
    one = bool(np.all(values == first)) and (values.size > 1 or not np.isfinite(first))
    return one or bool(np.isnan(values).any())


def _of_draws(values: dict[str, np.ndarray], names: dict[str, str]) -> xr.Dataset:
    chains, draws = next(iter(values.values())).shape
    found = {new: (DRAWS, values[name]) for name, new in names.items()}
    return xr.Dataset(found, _draw_coords(draws, chains))


def _draw_coords(draws: int, chains: int) -> dict[str, np.ndarray]:
    return {"chain": np.arange(chains), "draw": np.arange(draws)}


def _log_likelihood(posterior: Posterior, ratings: Ratings) -> np.ndarray:
    """Log density of each rating in each kept draw, nats, shape (chain, draw, n)."""
    if not isinstance(ratings, Ratings):
        raise InputError(
            f"log_likelihood is of type {type(ratings).__name__}, but must be Ratings, "
            "such as those given to fit."
        )
    if len(ratings) == 0:
        raise InputError("There are no ratings to give the log likelihood of.")
    if posterior.draws is None:
        raise InputError(
            "This fit kept no draws (store='summary'): fit with store='factors' to get "
            "log likelihoods."
        )
    spec = posterior.spec
    if isinstance(spec.likelihood, Ordinal):
        check_levels(spec.likelihood, ratings.levels)
    each, limit = 4 * posterior.draws.global_bias.size, machine_memory() // 2
    if each * len(ratings) > limit:
        raise InputError(
            f"The log likelihood of {len(ratings)} ratings in every kept draw would "
            f"take {format_bytes(each * len(ratings))}, more than half of this "
            f"machine's memory: give at most {limit // each} ratings, or fit with more "
            "thinning."
        )
    user, item = posterior._codes(ratings)
    user_row = posterior._rows(user, posterior.user_row)
    item_row = posterior._rows(item, posterior.item_row)
    times = times_of(ratings, "log_likelihood") if reads_times(spec) else None
    columns = posterior._time_columns(times, user_row)
    given = posterior.draws, spec, user_row, item_row, ratings.rating, columns
    return log_likelihood_of_draws(*given).log_score


def _plain_ids(index: IdIndex, codes: np.ndarray) -> np.ndarray:
    """Ids that a netCDF file holds: of mixed types what Python writes for them."""
    ids = index.ids
    if ids.dtype == object:
        text = all(isinstance(value, str) for value in ids)
        ids = np.array([value if text else repr(value) for value in ids])
    return ids[codes]


def _made_by(posterior: Posterior) -> dict[str, str]:
    """Attributes by ArviZ's conventions, of every group."""
    return {
        "created_at": datetime.now(UTC).isoformat(),
        "creation_library": "im3f_jax",
        "creation_library_version": im3f_jax.__version__,
        "creation_library_language": "Python",
        "inference_library": "im3f_jax",
        "inference_library_version": posterior.versions.get("im3f-jax", "unknown"),
    }


def _settings(posterior: Posterior) -> dict[str, str | int | float]:
    """How the posterior was made."""
    versions = {f"{name}_version": x for name, x in posterior.versions.items()}
    return {
        **versions,
        "model": repr(posterior.spec),
        "device": posterior.device,
        "seed": posterior.seed,
        "num_warmup": posterior.num_warmup,
        "num_samples": posterior.num_samples,
        "thinning": posterior.thinning,
        "partial": int(posterior.partial),
        "sampling_time": float(posterior.seconds["run"]),  # seconds
    }
