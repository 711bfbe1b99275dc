"""Held-out log probability of ratings, from kept draws."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.scipy.special import ndtr

from im3f_jax.inference.run import Draws
from im3f_jax.model.spec import ModelSpec

__all__ = ["LogScore", "log_score", "midpoints"]

# Topics a side that one rating's mixture holds: those of largest weight in its row.
TOPICS = 8
CHUNK = 4096


class LogScore(NamedTuple):
    """Log score of each rating, and the weight of the topics that were left out."""

    log_score: np.ndarray  # nats a rating, shape (n,)
    dropped: float  # mean over ratings and draws


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
) -> LogScore:
    """Log of the mean over kept draws of a rating's probability (or density).

    In a draw a rating is a mixture over both topics, sum_{k,i} theta_M[j,k]
    theta_U[u,i] Normal(chi_0 + a_u . b_j + c_u[k] + d_j[i], sigma^2). With `levels` it
    is the probability of the rating's level (bounds as in `midpoints`), nats a rating;
    without, the density, comparable only among models of the same continuous scale.

    Parameters
    ----------
    draws
        Kept draws.
    spec
        The model, for the sizes.
    user_row, item_row
        Rows of the draws' vectors, shape (n,).
    rating
        Rating scale, shape (n,).
    levels
        Ascending, shape (L,), or None for a continuous scale.
    """
    count = len(rating)
    chunk = min(CHUNK, max(64, 1 << (max(count, 1) - 1).bit_length()))
    low, high = (
        (rating, rating) if levels is None else midpoints(np.asarray(levels), rating)
    )

    def cut(values, dtype):
        padded = np.zeros(-(-count // chunk) * chunk, dtype)
        padded[:count] = values
        return jnp.asarray(padded.reshape(-1, chunk))

    pairs = (
        cut(user_row, np.int32),
        cut(item_row, np.int32),
        cut(low, np.float32),
        cut(high, np.float32),
    )
    sizes = (spec.latent_dim, spec.num_item_topics, spec.num_user_topics)
    total, dropped, number = None, 0.0, 0
    for chain in range(draws.global_bias.shape[0]):
        for s in range(draws.global_bias.shape[1]):
            value, lost = _score_draw(
                draws.user_features[chain, s],
                draws.item_features[chain, s],
                np.float32(draws.global_bias[chain, s]),
                np.float32(draws.rating_variance[chain, s]),
                pairs,
                sizes=sizes,
                density=levels is None,
            )
            value = np.asarray(value, np.float64).reshape(-1)[:count]
            dropped += float(np.mean(np.asarray(lost).reshape(-1)[:count]))
            total = value if total is None else np.logaddexp(total, value)
            number += 1
    return LogScore(total - np.log(number), dropped / number)


@partial(jax.jit, static_argnames=("sizes", "density"))
def _score_draw(
    users: Array,
    items: Array,
    global_bias: Array,
    variance: Array,
    pairs: tuple[Array, ...],
    sizes: tuple[int, int, int],
    density: bool,
) -> tuple[Array, Array]:
    """Log score of every pair in one draw, and the weight left out, (chunks, chunk)."""
    dim, num_item_topics, num_user_topics = sizes
    factors, user_bias, user_weights = jnp.split(users, [dim, dim + num_item_topics], 1)
    item_factors, item_weights, item_bias = jnp.split(
        items, [dim, dim + num_item_topics], 1
    )
    # The largest weights of each row, and the biases that they select.
    user_top = _largest(user_weights, min(TOPICS, num_user_topics))
    item_top = _largest(item_weights, min(TOPICS, num_item_topics))
    deviation = jnp.sqrt(variance)

    def score(pair):
        u, j, low, high = pair
        mean = global_bias + jnp.sum(factors[u] * item_factors[j], axis=-1)
        mean = mean[:, None, None]
        weight = jnp.ones_like(mean)
        if num_item_topics:  # axis 1: the item's contexts, indexing the user's biases
            mean = (
                mean + jnp.take_along_axis(user_bias[u], item_top[1][j], 1)[:, :, None]
            )
            weight = weight * item_top[0][j][:, :, None]
        if num_user_topics:  # axis 2: the user's moods, indexing the item's biases
            mean = mean + jnp.take_along_axis(item_bias[j], user_top[1][u], 1)[:, None]
            weight = weight * user_top[0][u][:, None]
        lower = (low[:, None, None] - mean) / deviation
        if density:
            log_each = -0.5 * (lower**2 + jnp.log(2 * jnp.pi * variance))
        else:
            upper = (high[:, None, None] - mean) / deviation
            # In the lower tail, where differences keep their digits.
            flip = lower > 0
            a, b = jnp.where(flip, -upper, lower), jnp.where(flip, -lower, upper)
            tiny = jnp.finfo(mean.dtype).tiny
            log_each = jnp.log(jnp.maximum(ndtr(b) - ndtr(a), tiny))
        kept = jnp.sum(weight, axis=(1, 2))
        mixture = jax.nn.logsumexp(log_each, b=weight, axis=(1, 2))
        return mixture, jnp.maximum(1 - kept, 0)

    return lax.map(score, pairs)


def _largest(weights: Array, number: int) -> tuple[Array, Array]:
    if number == weights.shape[1]:
        index = jnp.broadcast_to(jnp.arange(number), weights.shape)
        return weights, index
    return lax.top_k(weights, number)
