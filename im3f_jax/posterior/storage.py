"""Saving and loading a posterior: one file of arrays and JSON, no pickle."""

import os

import numpy as np

from im3f_jax.data.archive import read_archive, write_archive
from im3f_jax.data.ids import IdIndex
from im3f_jax.data.ratings import Ratings
from im3f_jax.data.seen import SeenItems
from im3f_jax.data.times import TimeScale
from im3f_jax.errors import InputError
from im3f_jax.inference.features import feature_width
from im3f_jax.inference.run import Draws
from im3f_jax.model.likelihood import Ordinal
from im3f_jax.model.plain import plain, spec_from_json, spec_to_json
from im3f_jax.model.spec import ModelSpec
from im3f_jax.model.time_effects import TimeBins, TimeDrift
from im3f_jax.posterior.posterior import Posterior

__all__ = ["FORMAT_VERSION", "load", "save", "spec_from_json", "spec_to_json"]

FORMAT = "im3f_jax posterior"
FORMAT_VERSION = 4
# Version 3 had no checksum, 2 no topic factors; 1 no time either, and no means of
# shrunk columns: they were 0.
READABLE = (FORMAT_VERSION, 3, 2, 1)
NO_MEANS = 1e6  # mean precision, in units of the rows'

# Fields of a posterior that are arrays, and those that are arrays by name. Every one
# may be None, and every field of a group too; a file then lacks it.
_ARRAYS = ("user_row", "item_row", "levels", "test_predictions", "train_predictions")
_GROUPS = {
    "trace": dict,
    "draws": Draws,
    "time_scale": TimeScale,
    "seen": SeenItems,
}
_FACTS = (
    "is_discrete",
    "num_warmup",
    "num_samples",
    "thinning",
    "seed",
    "device",
    "versions",
    "seconds",
    "partial",
)


def save(posterior: Posterior, path: str | os.PathLike) -> None:
    """Write a posterior to one file; a file of that name is replaced at the end.

    Raises
    ------
    InputError
        If ids cannot be written without pickle.
    OSError
        If the file cannot be written, on a full disk too; one of that name stays.
    """
    arrays = {
        "user_ids": posterior.users.to_array(),
        "item_ids": posterior.items.to_array(),
    }
    for name in _ARRAYS:
        arrays[name] = getattr(posterior, name)
    for group in _GROUPS:
        for name, values in _by_name(getattr(posterior, group)).items():
            arrays[f"{group}.{name}"] = values
    if posterior.draws is None:  # then only these pairs can be predicted
        for i, (pairs, predictions) in enumerate(posterior._fitted):
            arrays |= {f"pairs.{i}.user": pairs.user, f"pairs.{i}.item": pairs.item}
            arrays[f"pairs.{i}.timestamp"] = pairs.timestamp
            arrays[f"pairs.{i}.predictions"] = predictions
    facts = {name: plain(getattr(posterior, name)) for name in _FACTS}
    header = {"format": FORMAT, "format_version": FORMAT_VERSION}
    header |= {"spec": spec_to_json(posterior.spec), "facts": facts}
    arrays = {name: np.asarray(v) for name, v in arrays.items() if v is not None}
    write_archive(path, header, arrays)


def _by_name(group) -> dict:
    """Arrays of a dict, a NamedTuple, a dataclass or None, by their names."""
    if group is None or isinstance(group, dict):
        return group or {}
    return group._asdict() if hasattr(group, "_asdict") else vars(group)


def load(path: str | os.PathLike) -> Posterior:
    """Read what `Posterior.save` wrote; the training data are not needed.

    Parameters
    ----------
    path
        Of the file.

    Returns
    -------
    Posterior
        As it was saved: what it predicts is the same.

    Raises
    ------
    InputError
        If the file is no saved posterior, is damaged, or has another format version.
    """
    what = "a saved posterior"
    header, arrays, checksum = read_archive(path, FORMAT, READABLE, what)
    try:
        version = header["format_version"]
        if version > 3 and checksum is None:
            raise ValueError("it has no checksum")
        factors = header["spec"]["factor_prior"]
        if version == 1 and factors["type"] == "MultiplicativeGamma":
            factors["mean_precision"] = NO_MEANS
        posterior = _restore(header, arrays)
        _check(posterior)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise InputError(f"{path} is not {what} ({error}).") from None
    return posterior


def _restore(header: dict, arrays: dict[str, np.ndarray]) -> Posterior:
    def group(prefix: str) -> dict[str, np.ndarray]:
        return {
            name.removeprefix(prefix): values
            for name, values in arrays.items()
            if name.startswith(prefix)
        }

    groups = {name: group(f"{name}.") for name in _GROUPS}
    if draws := groups["draws"]:
        # Files from before the ordinal likelihood hold no cut points.
        none = np.zeros((*draws["global_bias"].shape, 0))
        draws.setdefault("cut_points", none)
    if scale := groups["time_scale"]:
        scale["scale"] = float(scale["scale"])
    users = IdIndex.from_array(arrays["user_ids"], "user")
    items = IdIndex.from_array(arrays["item_ids"], "item")
    fitted, i = [], 0
    while pairs := group(f"pairs.{i}."):
        predictions, i = pairs.pop("predictions"), i + 1
        ratings = np.full(len(predictions), np.nan)
        fitted.append(
            (Ratings(**pairs, rating=ratings, users=users, items=items), predictions)
        )
    return Posterior(
        spec=spec_from_json(header["spec"]),
        users=users,
        items=items,
        **{name: arrays.get(name) for name in _ARRAYS},
        **{
            name: kind(**groups[name]) if groups[name] else None
            for name, kind in _GROUPS.items()
        },
        _fitted=fitted,
        **header["facts"],
    )


def _check(posterior: Posterior) -> None:
    """Hold what was read against itself and against its spec.

    Raises
    ------
    ValueError
        Names the array that does not fit.
    """
    spec, draws = posterior.spec, posterior.draws
    if not isinstance(spec, ModelSpec):
        raise ValueError(f"its spec is a {type(spec).__name__}")
    rows = []
    for side in ("user", "item"):
        ids, row = getattr(posterior, f"{side}s"), getattr(posterior, f"{side}_row")
        _must(f"{side}_row", row, "iu", (None,), 0)
        # Where every id is trained, one row more stands for a new one.
        number = len(ids)
        if len(row) != number + (row.max(initial=0) not in row[:number]):
            raise ValueError(f"{number} {side} ids, but {len(row)} rows of them")
        rows.append(int(row.max(initial=0)) + 1)
    _must("levels", posterior.levels, "fiu", (None,))
    chains, sweeps = posterior.trace["rating_variance"].shape
    for name, values in posterior.trace.items():
        _must(f"trace.{name}", values, "fiub", (chains, sweeps), finite=False)
    for name in ("test_predictions", "train_predictions"):
        if getattr(posterior, name) is not None:
            _must(name, getattr(posterior, name), "f", (None,))
    for i, (pairs, predictions) in enumerate(posterior._fitted):
        number = (len(predictions),)
        _must(f"pairs.{i}.predictions", predictions, "f", number)
        _must(f"pairs.{i}.user", pairs.user, "iu", number, 0, len(posterior.users))
        _must(f"pairs.{i}.item", pairs.item, "iu", number, 0, len(posterior.items))
    if posterior.time_scale is not None:
        # The mean time of those without a rating is NaN.
        mean = posterior.time_scale.user_mean
        _must("time_scale.user_mean", mean, "f", (rows[0],), finite=False)
        _must("time_scale.edges", posterior.time_scale.edges, "f", (None,))
    if posterior.seen is not None:
        start, item = posterior.seen
        _must("seen.start", start, "iu", (len(posterior.users) + 1,), 0, len(item) + 1)
        _must("seen.item", item, "iu", (int(start[-1]),), 0, len(posterior.items))
    if draws is None:
        return
    width, kept = feature_width(spec), (chains, posterior.num_kept)
    ordinal = isinstance(spec.likelihood, Ordinal)
    shapes = {
        "user_features": (rows[0], width),
        "item_features": (rows[1], width),
        "global_bias": (),
        "rating_variance": (),
        "cut_points": (len(posterior.levels) - 1 if ordinal else 0,),
    }
    if isinstance(spec.item_time, TimeBins):
        shapes["item_time"] = (rows[1], spec.item_time.num_bins)
    if isinstance(spec.user_time, TimeDrift):
        shapes["user_drift"] = (rows[0],)
    for name, values in draws._asdict().items():
        if name in shapes or values is not None:
            # Of what is not named above only the first two axes are known.
            kinds = "f" if name in shapes else "fiub"
            _must(f"draws.{name}", values, kinds, kept, rest=shapes.get(name))


def _must(
    name: str,
    values: np.ndarray | None,
    kinds: str,
    shape: tuple,
    least: int | None = None,
    below: int | None = None,
    *,
    rest: tuple | None = (),
    finite: bool = True,
) -> None:
    """Refuse an array of another kind or shape, or with values out of bounds."""
    if values is None:
        raise ValueError(f"there is no {name}")
    found = values.shape
    if rest is None:
        found, rest = found[: len(shape)], ()
    wanted = (*shape, *rest)
    fits = len(found) == len(wanted) and all(
        size is None or size == other for size, other in zip(wanted, found, strict=True)
    )
    if not fits or values.dtype.kind not in kinds:
        raise ValueError(
            f"{name} is of type {values.dtype} and shape {values.shape}, which does "
            "not go with the rest"
        )
    low = least is not None and values.min(initial=least) < least
    high = below is not None and values.size and values.max() >= below
    if low or high or (finite and not np.isfinite(values).all()):
        raise ValueError(f"{name} holds a value that it cannot have")
