"""Held-out log probability of ratings, from kept draws."""

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from im3f_jax.data.times import TimeColumns
from im3f_jax.inference.features import (
    TOPICS,
    largest_weights,
    mixture_of_pairs,
    noise_of_pairs,
)
from im3f_jax.inference.run import Draws
from im3f_jax.model.likelihood import Ordinal
from im3f_jax.model.spec import ModelSpec

__all__ = [
    "TOPICS",
    "LevelProbabilities",
    "LogScore",
    "level_probabilities",
    "log_below",
    "log_likelihood",
    "log_score",
    "midpoints",
    "pad_pairs",
    "pad_times",
    "probabilities_of_pairs",
    "time_of_pairs",
]

CHUNK = 4096


class LogScore(NamedTuple):
    """Log score of each rating, and the weight of the topics that were left out."""

    log_score: np.ndarray  # nats a rating, shape (n,), or (chain, draw, n)
    dropped: float  # mean over ratings and draws


class LevelProbabilities(NamedTuple):
    """Probability of each level, and the weight of the topics that were left out."""

    probability: np.ndarray  # shape (n, L), or (chain, draw, n, L)
    dropped: float  # mean over pairs and draws


def midpoints(levels: np.ndarray, rating: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Bounds of each rating's level: midway to its neighbours, the outermost open.

    Parameters
    ----------
    levels
        The scale's levels, ascending, shape (L,); `rating` (n,) holds such levels.

    Returns
    -------
    tuple of ndarray
        Lower and upper bounds, rating scale, shape (n,). Over all levels the
        intervals cover the line, so that probabilities sum to 1.
    """
    edges = np.concatenate([[-np.inf], (levels[1:] + levels[:-1]) / 2, [np.inf]])
    index = np.searchsorted(levels, rating)
    return edges[index], edges[index + 1]


def log_score(
    draws: Draws,
    spec: ModelSpec,
    user_row: np.ndarray,
    item_row: np.ndarray,
    rating: np.ndarray,
    levels: np.ndarray | None,
    times: TimeColumns | None = None,
) -> LogScore:
    """Log of the mean over kept draws of a rating's probability (or density).

    In a draw a rating is a mixture over both topics, sum_{k,i} theta_M[j,k]
    theta_U[u,i] Normal(chi_0 + a_u . b_j + c_u[k] + d_j[i], sigma^2). With `levels` it
    is the probability of the rating's level (bounds as in `midpoints`), nats a rating;
    without, the density, comparable only among models of the same continuous scale. An
    ordinal model has its own levels, and its cut points for bounds, with sigma = 1.
    Where the noise differs between users or items, sigma^2 is that of the pair; where
    it differs between ratings, Student's t stands for the normal.

    Parameters
    ----------
    draws
        Kept draws.
    spec
        The model, for the sizes and the likelihood.
    user_row, item_row
        Rows of the draws' vectors, shape (n,).
    rating
        Rating scale, shape (n,).
    levels
        Ascending, shape (L,), or None for a continuous scale.
    times
        Of the ratings, where the model reads them.
    """
    given = draws, spec, user_row, item_row, rating, levels, times
    return _mean_over_draws(_score_draws(*given))


def log_likelihood(
    draws: Draws,
    spec: ModelSpec,
    user_row: np.ndarray,
    item_row: np.ndarray,
    rating: np.ndarray,
    times: TimeColumns | None = None,
) -> LogScore:
    """Log density of each rating in each kept draw, its topics summed out, nats.

    Of the model's own likelihood: the density under the Gaussian, the probability of
    the level under the ordinal one. Over the topics of largest weight, as in
    `log_score`; what the others would add is left out.

    Parameters
    ----------
    draws, spec, user_row, item_row, rating, times
        As in `log_score`.

    Returns
    -------
    LogScore
        Its `log_score` float32, shape (chain, draw, n).
    """
    chains, kept = draws.global_bias.shape
    found, dropped = np.empty((chains * kept, len(rating)), np.float32), 0.0
    given = draws, spec, user_row, item_row, rating, None, times
    for place, (value, lost) in zip(found, _score_draws(*given), strict=True):
        place[:] = value
        dropped += lost
    return LogScore(found.reshape(chains, kept, -1), dropped / len(found))


def log_below(
    draws: Draws,
    spec: ModelSpec,
    user_row: np.ndarray,
    item_row: np.ndarray,
    rating: np.ndarray,
    times: TimeColumns | None = None,
) -> LogScore:
    """Log probability that a Gaussian model gives to less than a rating, nats.

    Parameters as in `log_score`; over the topics of largest weight, as there.
    """
    given = draws, spec, user_row, item_row, rating, None, times
    return _mean_over_draws(_score_draws(*given, below=True))


def _mean_over_draws(scores: Iterator[tuple[np.ndarray, float]]) -> LogScore:
    total, dropped, number = None, 0.0, 0
    for value, lost in scores:
        dropped += lost
        total = value if total is None else np.logaddexp(total, value)
        number += 1
    return LogScore(total - np.log(number), dropped / number)


def _score_draws(
    draws: Draws,
    spec: ModelSpec,
    user_row,
    item_row,
    rating,
    levels,
    times,
    below: bool = False,
) -> Iterator[tuple[np.ndarray, float]]:
    """Log score of the ratings in one draw after the other, and the weight left out.

    With `below` of all that is less than the rating, without levels.
    """
    count = len(rating)
    pairs = pad_pairs(user_row, item_row)

    def cut(values):
        return _padded(values, pairs[0].shape, np.float32)

    ordinal = isinstance(spec.likelihood, Ordinal)
    if ordinal:
        levels = spec.likelihood.levels
        level = np.searchsorted(levels, rating)
    elif levels is None:
        low = high = cut(rating)
        if below:
            low = cut(np.full(count, -np.inf))
    else:
        low, high = map(cut, midpoints(np.asarray(levels), rating))
    for chain in range(draws.global_bias.shape[0]):
        for s in range(draws.global_bias.shape[1]):
            if ordinal:
                edges = np.pad(draws.cut_points[chain, s], 1)
                edges[0], edges[-1] = -np.inf, np.inf
                low, high = cut(edges[level]), cut(edges[level + 1])
            part = time_of_pairs(draws, (chain, s), user_row, item_row, times)
            value, lost = _score_draw(
                draws.user_features[chain, s],
                draws.item_features[chain, s],
                np.float32(draws.global_bias[chain, s]),
                np.float32(draws.rating_variance[chain, s]),
                (*pairs, low, high, pad_times(part, pairs[0].shape)),
                spec,
                density=levels is None and not below,
            )
            value = np.asarray(value, np.float64).reshape(-1)[:count]
            yield value, float(np.mean(np.asarray(lost).reshape(-1)[:count]))


def level_probabilities(
    draws: Draws,
    spec: ModelSpec,
    user_row: np.ndarray,
    item_row: np.ndarray,
    levels: np.ndarray,
    per_draw: bool = False,
    times: TimeColumns | None = None,
) -> LevelProbabilities:
    """Probability of each level of pairs' ratings, a mean over kept draws, or of each.

    Over the topics of largest weight, as in `log_score`; the weight of the others is
    shared out among these, so that a pair's probabilities sum to 1.

    Parameters
    ----------
    draws, spec, user_row, item_row
        As in `log_score`.
    levels
        Ascending, shape (L,).
    per_draw
        Give each draw's probabilities instead of their mean.
    times
        Of the pairs; without them nothing is added for their time.
    """
    pairs = pad_pairs(user_row, item_row)
    shape = draws.global_bias.shape
    size = len(user_row), len(levels)
    found = np.zeros((*shape, *size) if per_draw else size)
    dropped = 0.0
    edges = (levels[1:] + levels[:-1]) / 2
    for place in np.ndindex(shape):
        if isinstance(spec.likelihood, Ordinal):
            edges = draws.cut_points[place]
        part = time_of_pairs(draws, place, user_row, item_row, times)
        value, lost = _probabilities(
            draws.user_features[place],
            draws.item_features[place],
            np.float32(draws.global_bias[place]),
            np.float32(draws.rating_variance[place]),
            np.asarray(edges, np.float32),
            (*pairs, pad_times(part, pairs[0].shape)),
            spec,
        )
        value = np.asarray(value, np.float64).reshape(-1, len(levels))[: size[0]]
        dropped += float(np.mean(np.asarray(lost).reshape(-1)[: size[0]]))
        if per_draw:
            found[place] = value
        else:
            found += value
    number = max(draws.global_bias.size, 1)
    return LevelProbabilities(found if per_draw else found / number, dropped / number)


def pad_pairs(user_row: np.ndarray, item_row: np.ndarray) -> tuple[Array, Array]:
    """Rows of pairs in chunks, padded to few shapes, int32, (chunks, chunk)."""
    count = len(user_row)
    chunk = min(CHUNK, max(64, 1 << (max(count, 1) - 1).bit_length()))
    shape = -(-count // chunk), chunk
    return _padded(user_row, shape, np.int32), _padded(item_row, shape, np.int32)


def time_of_pairs(
    draws: Draws,
    place: tuple[int, int],
    user_row: np.ndarray,
    item_row: np.ndarray,
    times: TimeColumns | None,
) -> np.ndarray | None:
    """Give what the times of pairs add to their means in a draw, shape (n,).

    e_j[bin] + f_u x, float64; None where the model reads no times, and without times:
    the mean of the prior, no bin's effect and no drift.
    """
    if times is None or (draws.item_time is None and draws.user_drift is None):
        return None
    part = np.zeros(len(user_row))
    if draws.item_time is not None:
        part += draws.item_time[place][item_row, times.bin]
    if draws.user_drift is not None:
        part += draws.user_drift[place][user_row] * times.drift
    return part


def pad_times(part: np.ndarray | None, shape: tuple[int, int]) -> Array | None:
    """Put the parts of pairs in chunks, as `pad_pairs` does, float32."""
    return None if part is None else _padded(part, shape, np.float32)


def _padded(values: np.ndarray, shape: tuple[int, int], dtype) -> Array:
    padded = np.zeros(shape[0] * shape[1], dtype)
    padded[: len(values)] = values
    return jnp.asarray(padded.reshape(shape))


@jax.jit
def _probabilities(users, items, global_bias, variance, edges, pairs, spec):
    """Probability of each level, (chunks, chunk, L), and the weight left out."""
    largest = largest_weights(users, items, spec)

    def one_chunk(given):
        *pair, part = given
        bias = global_bias if part is None else global_bias + part
        given = users, items, largest, spec, bias
        return probabilities_of_pairs(*given, *pair, variance, edges)

    return lax.map(one_chunk, pairs)


def probabilities_of_pairs(
    users: Array,
    items: Array,
    largest: tuple[tuple[Array, Array], tuple[Array, Array]],
    spec: ModelSpec,
    bias: Array,
    user: Array,
    item: Array,
    variance: Array,
    edges: Array,
) -> tuple[Array, Array]:
    """Probability of each level in a draw, (n, L), and the weight left out, (n,).

    Parameters
    ----------
    users, items, largest, spec, bias, user, item
        As in `mixture_of_pairs`.
    variance
        sigma^2, scalar.
    edges
        Between the levels, rating scale (or that of an ordinal model's latent ratings),
        shape (L - 1,).
    """
    mean, weight = mixture_of_pairs(users, items, largest, spec, bias, user, item)
    kept = jnp.sum(weight, axis=(1, 2))
    root, cdf, _ = noise_of_pairs(users, items, spec, user, item)
    scale = 1 / jnp.sqrt(variance) if root is None else root / jnp.sqrt(variance)
    upto = [jnp.sum(weight * cdf((edge - mean) * scale), axis=(1, 2)) for edge in edges]
    upto = jnp.stack([jnp.zeros_like(kept), *upto, kept])
    each = jnp.maximum(jnp.diff(upto, axis=0), 0) / kept[None]
    return each.T, jnp.maximum(1 - kept, 0)


@partial(jax.jit, static_argnames="density")
def _score_draw(
    users: Array,
    items: Array,
    global_bias: Array,
    variance: Array,
    pairs: tuple[Array, ...],
    spec: ModelSpec,
    density: bool,
) -> tuple[Array, Array]:
    """Log score of every pair in one draw, and the weight left out, (chunks, chunk)."""
    largest = largest_weights(users, items, spec)
    deviation = jnp.sqrt(variance)

    def score(pair):
        u, j, low, high, part = pair
        bias = global_bias if part is None else global_bias + part
        mean, weight = mixture_of_pairs(users, items, largest, spec, bias, u, j)
        root, cdf, log_density = noise_of_pairs(users, items, spec, u, j)
        scale = 1 / deviation if root is None else root / deviation
        lower = (low[:, None, None] - mean) * scale
        if density:
            log_each = log_density(lower) + jnp.log(scale)
        else:
            upper = (high[:, None, None] - mean) * scale
            # In the lower tail, where differences keep their digits.
            flip = lower > 0
            a, b = jnp.where(flip, -upper, lower), jnp.where(flip, -lower, upper)
            tiny = jnp.finfo(mean.dtype).tiny
            log_each = jnp.log(jnp.maximum(cdf(b) - cdf(a), tiny))
        kept = jnp.sum(weight, axis=(1, 2))
        mixture = jax.nn.logsumexp(log_each, b=weight, axis=(1, 2))
        return mixture, jnp.maximum(1 - kept, 0)

    return lax.map(score, pairs)
