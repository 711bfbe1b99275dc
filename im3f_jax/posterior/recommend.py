"""The best items for users, from kept draws, without a matrix of users by items.

Blocks of users meet blocks of items; of each only the best are carried on. Under the
Gaussian likelihood a draw's prediction is an inner product (`inference.features`), so
that the sum of it over draws is one long product of the draws' vectors, end to end.
"""

from collections.abc import Iterable, Iterator
from functools import partial
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jax import Array, lax

from im3f_jax.data.ratings import timestamp_array
from im3f_jax.data.times import TimeColumns
from im3f_jax.errors import InputError
from im3f_jax.inference.run import Draws
from im3f_jax.model.likelihood import Ordinal
from im3f_jax.model.reciprocal import is_reciprocal
from im3f_jax.model.spec import ModelSpec
from im3f_jax.model.time_effects import reads_times
from im3f_jax.posterior import predict

if TYPE_CHECKING:
    from im3f_jax.posterior.posterior import Posterior

__all__ = ["recommend"]

# Pairs of a block: 64 MB of float32 for inner products; mixtures over topics take up
# to 64 numbers a pair. And users (items too, of mixtures) of a block at most.
PAIRS, USERS = 1 << 24, 4096
PAIRS_OF_MIXTURES, USERS_OF_MIXTURES, ITEMS_OF_MIXTURES = 1 << 16, 64, 4096
# Blocks are compared in float32. So many more than n are carried on, and put in order
# by what `predict` says of them.
MARGIN = 8

_SIGNS = {"mean": 0.0, "lower": -1.0, "upper": 1.0}


def recommend(
    posterior: "Posterior",
    users: Iterable | Any | None,
    n: int,
    *,
    items: Iterable | None,
    exclude_seen: bool,
    rank_by: str,
    level: float,
    unknown: str,
    times: Any | None,
) -> Iterator[pd.DataFrame]:
    """Frames of the best items of blocks of users; see `Posterior.recommend`.

    What cannot be used is refused here, before the first block.
    """
    if posterior.draws is None:
        raise InputError(
            "This fit kept no draws (store='summary'), and predicts only the pairs "
            "that it was given: fit with store='factors' to get recommendations."
        )
    whole = isinstance(n, int | np.integer) and not isinstance(n, bool)
    if not whole or n < 1:
        raise InputError(f"n is {n!r}, but must be a whole number of at least 1.")
    if rank_by not in _SIGNS:
        raise InputError(
            f"rank_by is {rank_by!r}, but must be 'mean', 'lower' or 'upper'."
        )
    number = isinstance(level, int | float | np.number) and not isinstance(level, bool)
    if not number or not 0.5 <= level < 1:
        raise InputError(
            f"level is {level!r}, but must be a probability of at least 0.5, below 1."
        )
    if unknown not in ("raise", "prior"):
        raise InputError(f"unknown is {unknown!r}, but must be 'raise' or 'prior'.")
    if exclude_seen and posterior.seen is None:
        raise InputError(
            "This posterior was saved by an older version, which did not keep who "
            "rated what: fit again, or set exclude_seen=False."
        )
    ids, codes = _asked(posterior, users, unknown)
    candidates = _candidates(posterior, items)
    columns = _time_columns(posterior, times, codes)
    factor = _SIGNS[rank_by] * NormalDist().inv_cdf(float(level))
    return _frames(
        posterior, ids, codes, candidates, columns, n, exclude_seen, rank_by, factor
    )


def _asked(
    posterior: "Posterior", users: Iterable | Any | None, unknown: str
) -> tuple[pd.Series, np.ndarray]:
    """Ids and codes of the users asked for, in their order."""
    index = posterior.users
    if users is None:
        codes = np.arange(len(index))
        return index.column(codes), codes
    if pd.api.types.is_scalar(users):
        users = [users]
    elif not hasattr(users, "__array__"):
        users = list(users)
    codes = index.lookup(users, "raise" if unknown == "raise" else "mark")
    if (codes >= 0).all():
        return index.column(codes), codes
    given = pd.Series(np.fromiter(users, dtype=object)).infer_objects()
    return given, codes


def _candidates(posterior: "Posterior", items: Iterable | None) -> np.ndarray:
    """Codes of the items to choose from, ascending, each once."""
    if items is None:
        rows = posterior.item_row[: len(posterior.items)]
        return np.flatnonzero(rows < posterior._num_items)
    return np.unique(posterior.items.lookup(items))


def _time_columns(
    posterior: "Posterior", times: Any | None, codes: np.ndarray
) -> TimeColumns | None:
    if times is None:
        return None
    if not reads_times(posterior.spec):
        raise InputError("This model reads no times: leave `times` out.")
    one = pd.api.types.is_scalar(times)
    times = timestamp_array([times] if one else times, "times")
    if one:
        times = np.repeat(times, len(codes))
    if len(times) != len(codes):
        raise InputError(
            f"recommend takes one time, or one for each user, but there are "
            f"{len(codes)} users and {len(times)} times."
        )
    return posterior.time_scale.columns(
        times, posterior._rows(codes, posterior.user_row)
    )


def _frames(
    posterior, ids, codes, candidates, columns, n, exclude_seen, rank_by, factor
) -> Iterator[pd.DataFrame]:
    ordinal = isinstance(posterior.spec.likelihood, Ordinal)
    pairs, most = (PAIRS_OF_MIXTURES, USERS_OF_MIXTURES) if ordinal else (PAIRS, USERS)
    carried = min(int(n) + MARGIN, max(len(candidates), 1))
    most = max(1, min(most, pairs // carried))
    size = min(_power(len(codes)), 1 << (most.bit_length() - 1))
    width = min(_power(len(candidates)), max(pairs // size, 1))
    if ordinal:
        width = min(width, ITEMS_OF_MIXTURES)
    place_of_item = np.full(len(posterior.items), -1)
    place_of_item[candidates] = np.arange(len(candidates))
    for start in range(0, max(len(codes), 1), size):
        block = slice(start, min(start + size, len(codes)))
        users = codes[block]
        part = None if columns is None else TimeColumns(*(x[block] for x in columns))
        hidden = _hidden(posterior, users, place_of_item, exclude_seen)
        user, place = _best_of_block(
            posterior, users, candidates, part, hidden, (size, width), carried, factor
        )
        user_code, item_code = posterior._in_order(users[user], candidates[place])
        mean, deviation = _mean_and_deviation(
            posterior.draws,
            posterior.spec,
            posterior._rows(user_code, posterior.user_row),
            posterior._rows(item_code, posterior.item_row),
            None if part is None else TimeColumns(*(x[user] for x in part)),
        )
        key = mean + factor * deviation
        order = np.lexsort((place, -key, user))
        user, place, key = user[order], place[order], key[order]
        rank = np.arange(len(user)) - np.searchsorted(user, user) + 1
        kept = rank <= n
        order, user, place, rank, key = (
            x[kept] for x in (order, user, place, rank, key)
        )
        frame = pd.DataFrame(
            {
                "user": ids.iloc[block].iloc[user].reset_index(drop=True),
                "rank": rank,
                "item": posterior.items.column(candidates[place]),
                "mean": mean[order],
                "std_of_mean": deviation[order],
            }
        )
        yield frame if rank_by == "mean" else frame.assign(**{rank_by: key})


def _hidden(
    posterior: "Posterior",
    users: np.ndarray,
    place_of_item: np.ndarray,
    exclude_seen: bool,
) -> tuple[np.ndarray, np.ndarray]:
    """Pairs that are not to be recommended: place in the block, place of the item."""
    user, item = np.zeros((2, 0), np.int64)
    if exclude_seen:
        user, item = posterior.seen.pairs(users)
    if is_reciprocal(posterior.spec):  # nobody to themselves
        known = np.flatnonzero(users >= 0)
        user, item = np.append(user, known), np.append(item, users[known])
    place = place_of_item[item]
    return user[place >= 0], place[place >= 0]


def _best_of_block(
    posterior: "Posterior",
    users: np.ndarray,
    candidates: np.ndarray,
    times: TimeColumns | None,
    hidden: tuple[np.ndarray, np.ndarray],
    shape: tuple[int, int],
    carried: int,
    factor: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Best items of a block's users: place in the block, and in `candidates`.

    `shape` is that of the blocks; the last of each side are filled up, since every new
    shape is compiled anew.
    """
    draws, (size, width) = posterior.draws, shape
    user_row = np.resize(posterior._rows(users, posterior.user_row), size)
    if times is not None:
        times = TimeColumns(*(np.resize(x, size) for x in times))
    ordinal = isinstance(posterior.spec.likelihood, Ordinal)
    score = partial(_mixture_scores, posterior.spec) if ordinal else _product_scores
    best = jnp.full((size, carried), -jnp.inf), jnp.zeros((size, carried), jnp.int32)
    rows = posterior._rows(candidates, posterior.item_row)
    for start in range(0, len(candidates), width):
        count = min(width, len(candidates) - start)
        item_row = np.resize(rows[start : start + count], width)
        scores = score(draws, user_row, item_row, times, factor)
        here = (start <= hidden[1]) & (hidden[1] < start + count)
        places = np.full((2, _power(here.sum(), 64)), size, np.int32)
        places[:, : here.sum()] = hidden[0][here], hidden[1][here] - start
        best = _merge(best, scores, start, count, places)
    value, place = (np.asarray(x)[: len(users)] for x in best)
    user, at = np.nonzero(value > -np.inf)
    return user, place[user, at].astype(np.int64)


@jax.jit
def _merge(best, scores, start, count, hidden):
    """Put a block's best after those before it: of equals the first item stays first.

    `hidden` are the pairs to leave out, int32, (2, m); rows beyond the block are none.
    """
    value, place = best
    number = scores.shape[1]
    scores = scores.at[hidden[0], hidden[1]].set(-jnp.inf, mode="drop")
    valid = jnp.arange(number, dtype=jnp.int32)[None] < count
    scores = jnp.where(valid, scores, -jnp.inf)
    new, where = lax.top_k(scores, min(value.shape[1], number))
    value = jnp.concatenate([value, new], axis=1)
    place = jnp.concatenate([place, where + start], axis=1)
    value, at = lax.top_k(value, best[0].shape[1])
    return value, jnp.take_along_axis(place, at, axis=1)


def _product_scores(
    draws: Draws,
    user_row: np.ndarray,
    item_row: np.ndarray,
    times: TimeColumns | None,
    factor: float,
) -> Array:
    """Mean over draws, plus `factor` standard deviations, (users, items), float32."""
    draws = Draws(*(None if x is None else _in_a_row(x) for x in draws))
    number, _, features = draws.user_features.shape
    step = max(1, PAIRS // (max(len(user_row), len(item_row)) * features))
    parts = [slice(s, s + step) for s in range(0, number, step)]

    def vectors(part):
        return _vectors(draws, part, user_row, item_row, times)

    mean = jnp.zeros((len(user_row), len(item_row)), jnp.float32)
    for part in parts:
        mean = _add_products(mean, *vectors(part))
    mean = mean / number
    if not factor:
        return mean
    # A second time over the draws: squares about 0 would lose the digits.
    squares = jnp.zeros_like(mean)
    for part in parts:
        squares = _add_squares(squares, mean, *vectors(part))
    return mean + np.float32(factor) * jnp.sqrt(squares / number)


def _in_a_row(values: np.ndarray) -> np.ndarray:
    """Draws of all chains, one after the other."""
    return values.reshape(values.shape[0] * values.shape[1], *values.shape[2:])


def _vectors(
    draws: Draws,
    part: slice,
    user_row: np.ndarray,
    item_row: np.ndarray,
    times: TimeColumns | None,
) -> tuple[np.ndarray, np.ndarray]:
    """Vectors whose inner products are predictions, (draws, users or items, F').

    To those of the draws come chi_0 + f_u x beside 1, and the bin's place beside e_j.
    """
    user = draws.user_features[part, user_row]
    item = draws.item_features[part, item_row]
    level = np.repeat(draws.global_bias[part, None], len(user_row), axis=1)
    users, items = [user], [item]
    if times is not None and draws.user_drift is not None:
        level = level + draws.user_drift[part, user_row] * times.drift
    if times is not None and draws.item_time is not None:
        of_item = draws.item_time[part, item_row]
        place = times.bin[:, None] == np.arange(of_item.shape[-1])
        users.append(np.broadcast_to(place, (len(user), *place.shape)))
        items.append(of_item)
    users.append(level[..., None])
    items.append(np.ones_like(item[..., :1]))
    return (
        np.concatenate(users, axis=-1, dtype=np.float32, casting="unsafe"),
        np.concatenate(items, axis=-1, dtype=np.float32, casting="unsafe"),
    )


@jax.jit
def _add_products(total: Array, users: Array, items: Array) -> Array:
    products = jnp.einsum("suf,sif->ui", users, items, precision=lax.Precision.HIGHEST)
    return total + products


@jax.jit
def _add_squares(total: Array, mean: Array, users: Array, items: Array) -> Array:
    def add(total, vectors):
        user, item = vectors
        product = jnp.matmul(user, item.T, precision=lax.Precision.HIGHEST)
        return total + (product - mean) ** 2, None

    return lax.scan(add, total, (users, items))[0]


def _mixture_scores(
    spec: ModelSpec,
    draws: Draws,
    user_row: np.ndarray,
    item_row: np.ndarray,
    times: TimeColumns | None,
    factor: float,
) -> Array:
    """As `_product_scores`, pair by pair: an ordinal rating's mean is no product."""
    shape = len(user_row), len(item_row)
    if times is not None:
        times = TimeColumns(*(np.repeat(x, shape[1]) for x in times))
    user, item = np.repeat(user_row, shape[1]), np.tile(item_row, shape[0])
    mean, deviation = _mean_and_deviation(draws, spec, user, item, times)
    score = mean + factor * deviation
    return jnp.asarray(score.reshape(shape), jnp.float32)


def _mean_and_deviation(
    draws: Draws,
    spec: ModelSpec,
    user_row: np.ndarray,
    item_row: np.ndarray,
    times: TimeColumns | None,
) -> tuple[np.ndarray, np.ndarray]:
    """Mean over kept draws of each pair's rating, and its deviation, shape (n,)."""
    if isinstance(spec.likelihood, Ordinal):  # topics are sorted in the rows of a call
        draws, user_row, item_row = _of_rows(draws, user_row, item_row)
    mean, squares = np.zeros((2, len(user_row)))
    number = 0
    for value in predict.each_draw(draws, spec, user_row, item_row, times):
        number += 1
        away = value - mean
        mean += away / number
        squares += away * (value - mean)
    return mean, np.sqrt(squares / number)


def _of_rows(
    draws: Draws, user_row: np.ndarray, item_row: np.ndarray
) -> tuple[Draws, np.ndarray, np.ndarray]:
    """Draws of the rows in use, filled up to few shapes, and the places of these."""
    users, user_row = np.unique(user_row, return_inverse=True)
    items, item_row = np.unique(item_row, return_inverse=True)

    def select(values, rows):
        rows = np.resize(rows, _power(len(rows), 64))
        return None if values is None else values[:, :, rows]

    draws = draws._replace(
        user_features=select(draws.user_features, users),
        item_features=select(draws.item_features, items),
        item_time=select(draws.item_time, items),
        user_drift=select(draws.user_drift, users),
    )
    return draws, user_row, item_row


def _power(number: int, least: int = 1) -> int:
    """Give the power of two that is not below a number."""
    return max(least, 1 << (max(int(number), 1) - 1).bit_length())
