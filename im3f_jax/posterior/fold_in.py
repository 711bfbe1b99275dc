"""New users or items from their ratings, in every kept draw, without fitting anew."""

import logging
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jax import Array, lax

from im3f_jax.data.ids import IdIndex
from im3f_jax.data.layout import RatingLayout, lay_out
from im3f_jax.data.ratings import Ratings
from im3f_jax.errors import InputError
from im3f_jax.gibbs.factors import conditional_factors
from im3f_jax.gibbs.new_rows import (
    NewRows,
    Others,
    Population,
    start_rows,
    sweep_rows,
)
from im3f_jax.gibbs.state import BiasPriorState, FactorPriorState
from im3f_jax.inference.devices import block_sizes, num_threads, settings_of_thread
from im3f_jax.inference.features import RowParts, features_of_rows, parts_of_rows
from im3f_jax.model.bias_prior import SharedNormal
from im3f_jax.model.likelihood import Ordinal
from im3f_jax.model.noise import GammaNoise
from im3f_jax.model.reciprocal import is_reciprocal
from im3f_jax.model.spec import ModelSpec, check_levels, has_franchise
from im3f_jax.model.time_effects import reads_times
from im3f_jax.model.topic_factors import TopicFactors
from im3f_jax.model.topic_prior import CONCENTRATION_FLOOR
from im3f_jax.numerics.linalg import draw_gaussians

__all__ = ["NUM_SWEEPS", "fold_in", "prior_rows"]

logger = logging.getLogger(__name__)

# From what the prior expects, in each kept draw. By the ranks of 20,000 simulated users
# 5 sweeps are too few, by the size of the factors and of the largest weights; after 10
# hardly anything is seen, after 20 nothing (predicted means are right after 5).
NUM_SWEEPS = 16
# Draws at once: on a CPU one a core, since a program of so little work takes a core to
# itself and JAX runs two at a time only where two threads ask for them; on a GPU one
# that waits for the one before.
ON_A_GPU = 2
SHOWN = 5  # ids named in a message


def fold_in(
    posterior,
    ratings: Any,
    *,
    side: str = "user",
    ids: Iterable | None = None,
    unknown: str = "raise",
    duplicates: str = "error",
    num_sweeps: int = NUM_SWEEPS,
    seed: int = 0,
):
    """Do what `Posterior.fold_in` says."""
    _check(posterior, side, unknown, num_sweeps, seed)
    other_side = "item" if side == "user" else "user"
    new, new_code, other_id, rating = _read(ratings, side, ids, duplicates)
    index: IdIndex = getattr(posterior, f"{side}s")
    old_row = getattr(posterior, f"{side}_row")
    last = int(old_row.max())  # of a new row
    code = index.lookup(new.ids, "mark")
    there = (code >= 0) & (old_row[code] < last)
    if there.any():
        raise InputError(
            f"{_named(side, new.ids[there])} had ratings in the fit, and fold_in takes "
            "new ones: fit again with all ratings, or give all of them under another "
            "id."
        )
    wider, place_of_old, place_of_new = index.union(new, side)
    other_code, other_row, kept = _other_rows(posterior, other_side, other_id, unknown)
    rating, new_code = rating[kept], new_code[kept]
    if isinstance(posterior.spec.likelihood, Ordinal):
        check_levels(posterior.spec.likelihood, np.unique(rating))
    found = _fold(
        posterior, side, new_code, other_row, rating, len(new), num_sweeps, seed
    )

    before = getattr(posterior.draws, f"{side}_features")
    after = np.concatenate([before[:, :, :last], found, before[:, :, last:]], axis=2)
    row = np.full(len(wider), last + len(new))
    row[place_of_old] = np.where(
        old_row[: len(index)] < last, old_row[: len(index)], last + len(new)
    )
    row[place_of_new] = last + np.arange(len(new))
    if row.max() < last + len(new):  # as in a fit: a new one stands behind them all
        row = np.append(row, last + len(new))
    pairs = place_of_new[new_code], other_code
    return replace(
        posterior,
        draws=posterior.draws._replace(**{f"{side}_features": after}),
        # Not what the fit gave its test set: ids of it may have rows by now.
        _fitted=[],
        **{f"{side}s": wider, f"{side}_row": row},
        **_seen(posterior, side, place_of_old, pairs, len(wider)),
    )


def _seen(posterior, side: str, place_of_old, new_pairs, number: int) -> dict:
    """Add the new ratings to who rated what, where a posterior holds that.

    `new_pairs` are codes of this side's `number` ids, and of the other's.
    """
    before = posterior.seen
    if before is None:  # of an older file
        return {}
    other_side = "item" if side == "user" else "user"
    user, item = before.pairs(np.arange(len(posterior.users)))
    code = {"user": user, "item": item}
    size = {"user": len(posterior.users), "item": len(posterior.items), side: number}
    new, other = new_pairs
    code[side] = np.append(place_of_old[code[side]], new)
    code[other_side] = np.append(code[other_side], other)
    return {"seen": before.of(*code.values(), *size.values())}


def prior_rows(posterior, side: str, seed: int = 0) -> np.ndarray:
    """Draw a new user or item from the prior in every kept draw, (chain, draw, F).

    Raises
    ------
    InputError
        As `fold_in`.
    """
    _check(posterior, side, "raise", 1, seed)
    nothing = np.zeros(0, np.int32)
    return _fold(posterior, side, nothing, nothing, np.zeros(0), 1, 1, seed)[:, :, 0]


def _check(posterior, side, unknown, num_sweeps, seed) -> None:
    if side not in ("user", "item"):
        raise InputError(f"side is {side!r}, but must be 'user' or 'item'.")
    if unknown not in ("raise", "drop"):
        raise InputError(f"unknown is {unknown!r}, but must be 'raise' or 'drop'.")
    for name, value, least in (("num_sweeps", num_sweeps, 1), ("seed", seed, 0)):
        whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
        if not whole or not least <= value < 2**32:
            raise InputError(
                f"{name} is {value!r}, but must be a whole number from {least} to "
                "2**32 - 1."
            )
    spec, draws = posterior.spec, posterior.draws
    for has, what in (
        (is_reciprocal(spec), "a reciprocal model"),
        (has_franchise(spec), "the topics of a CRF"),
        (spec.own_topics, "topics of each row's own"),
        (isinstance(spec.topic_factors, TopicFactors), "topic factors"),
        (reads_times(spec), "parts that depend on time"),
    ):
        if has:
            raise InputError(
                f"New rows cannot be drawn under {what}: fit again with their ratings."
            )
    if draws is None:
        raise InputError(
            "This fit kept no draws (store='summary'): fit with store='factors' to "
            "draw new rows."
        )
    if draws.user_factor_precision is None:
        raise InputError(
            "This posterior was saved by an older version, which did not keep the "
            "precision of the factors, from which new rows are drawn: fit again."
        )


def _read(
    ratings, side: str, ids: Iterable | None, duplicates: str
) -> tuple[IdIndex, np.ndarray, Any, np.ndarray]:
    """Read new ids, and of each rating the code of its own, its other id, its value."""
    what = f"new {side}"
    if ratings is not None and not isinstance(ratings, Ratings):
        if not hasattr(ratings, "columns"):
            raise InputError(
                f"ratings are of type {type(ratings).__name__}, but must be Ratings, "
                "or a frame with the columns user, item and rating."
            )
        ratings = (
            Ratings.from_dataframe(ratings, duplicates=duplicates)
            if len(ratings)
            else None
        )
    extra = None
    if ids is not None:
        extra, _ = IdIndex.from_values(ids, what)
        extra = extra if len(extra) else None
    if ratings is None or not len(ratings):
        if extra is None:
            raise InputError("There are no ratings, and no ids: nobody to fold in.")
        none = np.zeros(0)
        return extra, none.astype(np.int64), none.astype(np.int64), none
    used, code = np.unique(getattr(ratings, side), return_inverse=True)
    of_side: IdIndex = getattr(ratings, f"{side}s")
    new = IdIndex(of_side.ids[used], what, of_side.dtype)
    if extra is not None:
        new, place, _ = new.union(extra, what)
        code = place[code]
    other = ratings.item_ids if side == "user" else ratings.user_ids
    return new, code, other, ratings.rating


def _other_rows(
    posterior, side: str, other_id: np.ndarray, unknown: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Find codes and rows of other ids, and which of the ratings are kept."""
    if not len(other_id):
        return np.zeros(0, int), np.zeros(0, np.int32), np.zeros(0, bool)
    index, row = getattr(posterior, f"{side}s"), getattr(posterior, f"{side}_row")
    code = index.lookup(other_id, "raise" if unknown == "raise" else "mark")
    trained = (code >= 0) & (row[code] < row.max())
    if not trained.all():
        bad = other_id[~trained]
        if unknown == "raise":
            raise InputError(
                f"{_named(side, bad)} had no rating in the fit, so that ratings of it "
                "tell nothing: leave them out, or give unknown='drop'."
            )
        logger.warning(
            "left out: %d of %d ratings, whose %s had no rating in the fit",
            len(bad),
            len(other_id),
            side,
        )
    code = code[trained]
    return code, row[code].astype(np.int32), trained


def _named(side: str, ids: np.ndarray) -> str:
    ids = list(dict.fromkeys(pd.Series(ids, dtype=object).tolist()))
    named = ", ".join(map(repr, ids[:SHOWN]))
    more = f" and {len(ids) - SHOWN} more" if len(ids) > SHOWN else ""
    return f"{side} {named}{more}"


def _fold(
    posterior,
    side: str,
    new_row: np.ndarray,
    other_row: np.ndarray,
    rating: np.ndarray,
    num_new: int,
    num_sweeps: int,
    seed: int,
) -> np.ndarray:
    """Vectors of the new rows in every kept draw, shape (chain, draw, num_new, F).

    A few draws at a time, each by itself in one compiled program: nothing but the
    result grows with their number, and how many cores there are changes no draw.
    """
    spec, draws = posterior.spec, posterior.draws
    other_side = "item" if side == "user" else "user"
    others = getattr(draws, f"{other_side}_features")
    num_others = others.shape[2] - 1
    data, _ = lay_out(
        new_row,
        other_row,
        rating,
        num_new,
        num_others,
        block_sizes(jax.local_devices()[0], spec),
    )
    data = replace(jax.device_put(data), item_blocks=None)
    spec = jax.tree.map(lambda x: np.asarray(x, np.float32), spec)
    numbers = _numbers(posterior, side)
    # One of its own for each side, and after rows that were folded in before: new rows
    # of one seed are independent.
    key = jax.random.fold_in(jax.random.key(seed), ("user", "item").index(side))
    key = jax.random.fold_in(key, getattr(draws, f"{side}_features").shape[2])
    found = np.empty(
        (*draws.global_bias.shape, num_new, others.shape[-1]), dtype=np.float32
    )
    settings = settings_of_thread()

    def fold(place: tuple[int, ...]) -> None:
        with settings():
            drawn = _fold_draw(
                jax.random.fold_in(jax.random.fold_in(key, place[0]), place[1]),
                others[place],
                getattr(draws, f"{side}_features")[place][-1],
                getattr(draws, f"{side}_factor_precision")[place],
                {name: np.float32(values[place]) for name, values in numbers.items()},
                draws.cut_points[place].astype(np.float32),
                data,
                spec,
                np.int32(num_sweeps),
                side=side,
            )
        found[place] = np.asarray(drawn)[:num_new]

    first, *places = np.ndindex(draws.global_bias.shape)
    fold(first)  # compiles
    on_cpu = data.rating.devices().pop().platform == "cpu"
    with ThreadPoolExecutor(num_threads() if on_cpu else ON_A_GPU) as pool:
        list(pool.map(fold, places))
    return found


def _numbers(posterior, side: str) -> dict[str, np.ndarray]:
    """Numbers of every kept draw that new rows are drawn from, (chain, draw) each."""
    draws = posterior.draws
    numbers = {
        "global_bias": draws.global_bias,
        "rating_variance": draws.rating_variance,
    }
    for name, kept in (
        ("bias_variance", f"{side}_bias_variance"),
        ("shared_variance", f"{side}_shared_bias_variance"),
        ("table_concentration", f"{side}_table_concentration"),
        ("noise_shape", f"{side}_noise_shape"),
    ):
        if kept in posterior.trace:  # not of a MAP fit, which has none of them
            numbers[name] = posterior._kept(kept)
    return numbers


@partial(jax.jit, static_argnames="side")
def _fold_draw(
    key: Array,
    others: Array,
    new: Array,
    factor_precision: Array,
    numbers: dict[str, Array],
    cut_points: Array,
    data: RatingLayout,
    spec: ModelSpec,
    num_sweeps: Array,
    side: str,
) -> Array:
    """Vectors of the new rows in one draw, shape (rows, F).

    `others` are the other side's vectors, `new` that of a new row of this side.
    """
    other = parts_of_rows(others[:-1], spec, "item" if side == "user" else "user")
    expected = parts_of_rows(new, spec, side)
    tiny = jnp.finfo(others.dtype).tiny

    def pad(values):
        more = [(0, data.item_rows - len(values))] + [(0, 0)] * (values.ndim - 1)
        return jnp.pad(values, more)

    other_rows = Others(
        factors=pad(other.factors),
        bias=pad(other.bias),
        log_weights=jnp.log(jnp.maximum(pad(other.weights), tiny)),
        precision=None if other.precision is None else pad(other.precision),
    )
    population = _population(
        expected, factor_precision, numbers, cut_points, spec, side
    )
    rows = start_rows(population, expected.weights.shape[0], data, spec.rating_noise)
    if spec.estimate == "map":
        rows = rows._replace(factors=_mode(population, other_rows, data))
    else:
        rows = lax.fori_loop(
            0,
            num_sweeps,
            lambda t, rows: sweep_rows(
                jax.random.fold_in(key, t),
                rows,
                other_rows,
                population,
                data,
                spec.likelihood,
                spec.rating_noise,
            ),
            rows,
        )
    return features_of_rows(_parts(rows, other.precision is not None), side)


def _population(
    expected: RowParts,
    factor_precision: Array,
    numbers: dict[str, Array],
    cut_points: Array,
    spec: ModelSpec,
    side: str,
) -> Population:
    """Gather what new rows are drawn from: `expected` is what the prior expects."""
    weights, mean = expected.weights, expected.bias
    none = jnp.zeros((), weights.dtype)
    concentration = weights
    if weights.shape[0]:
        table = numbers["table_concentration"]
        concentration = table * weights
        if weights.shape[0] < getattr(spec, f"{side}_topic_prior").num_topics:
            rest = table * (1 - jnp.sum(weights))
            concentration = jnp.append(concentration, rest)
        concentration = jnp.maximum(concentration, CONCENTRATION_FLOOR)
    shares = isinstance(getattr(spec, f"{side}_bias_prior"), SharedNormal)
    noisy = isinstance(getattr(spec, f"{side}_noise"), GammaNoise)
    return Population(
        factor_prior=FactorPriorState(expected.factors, factor_precision),
        bias_prior=BiasPriorState(
            topic_mean=mean,
            variance=numbers.get("bias_variance", none),
            topic_mean_variance=none,
            shared_variance=numbers["shared_variance"] if shares else None,
        ),
        concentration=concentration,
        noise_shape=numbers["noise_shape"] if noisy else None,
        global_bias=numbers["global_bias"],
        rating_variance=numbers["rating_variance"],
        cut_points=cut_points,
    )


def _mode(population: Population, others: Others, data: RatingLayout) -> Array:
    """Factors at the mode of their conditional, as all of a MAP fit's are."""
    valid = jnp.arange(data.rating.shape[0], dtype=jnp.int32) < data.num_ratings
    given = conditional_factors(
        population.factor_prior,
        jnp.where(valid, data.rating - population.global_bias, 0),
        others.factors,
        population.rating_variance,
        data.user_blocks,
    )
    return draw_gaussians(given.precision, given.linear, jnp.zeros_like(given.linear))


def _parts(rows: NewRows, noise_differs: bool) -> RowParts:
    precision = rows.precision
    if noise_differs and precision is None:
        precision = jnp.ones(rows.factors.shape[0], rows.factors.dtype)
    return RowParts(rows.factors, rows.bias, jnp.exp(rows.log_weights), precision)
