"""Block: a side's bias variance, topic means and biases, in this order.

The variance is drawn from the cells that hold a rating, the topic means with the
side's biases summed out, then the biases given the means. Drawn given all biases
instead, the means of empty topics freeze (lag-1 autocorrelation 0.9998 at 943 rows).

`user_bias` c is indexed by item topics, `item_bias` d by user topics; below, "topic"
is the other side's.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from im3f_jax.gibbs.state import BiasPriorState
from im3f_jax.model.bias_prior import TopicNormal
from im3f_jax.model.scalars import InverseGamma
from im3f_jax.numerics.random import log_gamma, standard_normal
from im3f_jax.numerics.reductions import count_by_cell, sum_by_cell

__all__ = [
    "BiasStatistics",
    "NormalParameters",
    "VarianceParameters",
    "bias_statistics",
    "conditional_bias_variance",
    "conditional_biases",
    "conditional_topic_mean_variance",
    "conditional_topic_means",
    "resample_biases",
]


class BiasStatistics(NamedTuple):
    """Sums over the ratings of each (row, topic) cell."""

    count: Array  # n, int32, shape (rows, K)
    total: Array  # sum of residuals without this side's bias, shape (rows, K)


class VarianceParameters(NamedTuple):
    """An inverse gamma."""

    shape: Array  # scalar
    scale: Array  # scalar


class NormalParameters(NamedTuple):
    """Independent normals."""

    mean: Array
    variance: Array


def bias_statistics(
    residual: Array, valid: Array, row: Array, topic: Array, shape: tuple[int, int]
) -> BiasStatistics:
    """Count and sum the ratings of each cell; the only pass over the ratings."""
    return BiasStatistics(
        count=count_by_cell(valid, row, topic, shape),
        total=sum_by_cell(jnp.where(valid, residual, 0), row, topic, shape),
    )


def conditional_bias_variance(
    prior: InverseGamma,
    bias: Array,
    topic_mean: Array,
    statistics: BiasStatistics,
    by_topic: bool = False,
) -> VarianceParameters:
    """sigma_0^2 given the biases of occupied cells, those of empty ones summed out.

    Inverse gamma with shape a + (cells with n > 0) / 2 and scale
    b + sum (c_u[k] - mu_k)^2 / 2 over the same cells.
    """
    occupied = statistics.count > 0
    return _variance(prior, bias - topic_mean[None], occupied, by_topic)


def conditional_topic_mean_variance(
    prior: InverseGamma,
    topic_mean: Array,
    center: Array,
    occupied: Array,
    by_topic: bool = False,
) -> VarianceParameters:
    """tau^2 given the means of occupied topics, those of empty ones summed out."""
    return _variance(prior, topic_mean - center, occupied, by_topic)


def conditional_topic_means(
    statistics: BiasStatistics,
    variance: Array,
    topic_mean_variance: Array,
    center: Array,
    rating_variance: Array,
) -> NormalParameters:
    """mu_k with this side's biases summed out.

    The mean residual of a cell with n > 0 is Normal(mu_k, sigma_0^2 + sigma^2 / n), so
    mu_k has precision 1 / tau^2 + sum_cells w, w = 1 / (sigma_0^2 + sigma^2 / n).
    Written without 1 / tau^2, so that tau^2 = 0 gives c_0. Shape (K,).
    """
    dtype = statistics.total.dtype
    count = statistics.count.astype(dtype)
    # w = n / (n sigma_0^2 + sigma^2): 0 in an empty cell, and w x mean residual =
    # total / (n sigma_0^2 + sigma^2).
    spread = count * variance + rating_variance
    weight = jnp.sum(count / spread, axis=0)
    pull = jnp.sum(statistics.total / spread, axis=0)
    shrink = 1 + topic_mean_variance * weight
    return NormalParameters(
        mean=(center + topic_mean_variance * pull) / shrink,
        variance=topic_mean_variance / shrink,
    )


def conditional_biases(
    statistics: BiasStatistics,
    topic_mean: Array,
    variance: Array,
    rating_variance: Array,
) -> NormalParameters:
    """c_u[k] given mu_k: shape (rows, K); empty cells have their prior.

    Mean (sigma^2 mu_k + sigma_0^2 sum x) / (sigma^2 + n sigma_0^2), variance
    sigma_0^2 sigma^2 / (sigma^2 + n sigma_0^2): the paper's conditional of c_u^i, with
    prior mean mu_k in place of c_0, written so that sigma_0^2 = 0 gives mu_k.
    """
    spread = (
        statistics.count.astype(statistics.total.dtype) * variance + rating_variance
    )
    return NormalParameters(
        mean=(rating_variance * topic_mean[None] + variance * statistics.total)
        / spread,
        variance=variance * rating_variance / spread,
    )


def resample_biases(
    key: Array,
    prior: TopicNormal,
    state: BiasPriorState,
    bias: Array,
    statistics: BiasStatistics,
    rating_variance: Array,
    by_topic: bool = False,
) -> tuple[Array, BiasPriorState]:
    """Draw variance, topic-mean variance, topic means and biases of a side.

    Parameters
    ----------
    key
        A typed key.
    prior
        Resolved prior.
    state, bias
        Current values; bias has shape (rows, K).
    statistics
        Sums over the ratings of residuals without this side's bias.
    rating_variance
        sigma^2, scalar.
    by_topic
        Draw noise and take sums topic by topic, so that the first topics do not
        depend on how many there are, bit for bit; static.

    Returns
    -------
    tuple
        The new biases, shape (rows, K), and the new state of their prior.
    """
    variance_key, spread_key, mean_key, bias_key = jax.random.split(key, 4)
    dtype = bias.dtype
    variance, spread = state.variance, state.topic_mean_variance
    if isinstance(prior.variance, InverseGamma):
        variance = _draw_variance(
            variance_key,
            conditional_bias_variance(
                prior.variance, bias, state.topic_mean, statistics, by_topic
            ),
        )
    if isinstance(prior.topic_mean_variance, InverseGamma):
        spread = _draw_variance(
            spread_key,
            conditional_topic_mean_variance(
                prior.topic_mean_variance,
                state.topic_mean,
                prior.topic_mean,
                jnp.any(statistics.count > 0, axis=0),
                by_topic,
            ),
        )
    means = conditional_topic_means(
        statistics, variance, spread, prior.topic_mean, rating_variance
    )
    noise = standard_normal(mean_key, means.mean.shape, dtype)
    topic_mean = means.mean + jnp.sqrt(means.variance) * noise
    biases = conditional_biases(statistics, topic_mean, variance, rating_variance)
    if by_topic:
        noise = standard_normal(bias_key, bias.shape[::-1], dtype).T
    else:
        noise = standard_normal(bias_key, bias.shape, dtype)
    return (
        biases.mean + jnp.sqrt(biases.variance) * noise,
        BiasPriorState(topic_mean, variance, spread),
    )


def _variance(
    prior: InverseGamma, deviation: Array, counted: Array, by_topic: bool
) -> VarianceParameters:
    dtype = deviation.dtype
    count = jnp.sum(counted, dtype=jnp.int32).astype(dtype)
    squares = jnp.where(counted, deviation**2, 0)
    if by_topic:  # one topic after another, so that free ones at the end add nothing
        each = jnp.sum(squares, axis=0) if squares.ndim > 1 else squares
        squares = lax.fori_loop(
            0, each.shape[0], lambda k, total: total + each[k], jnp.zeros((), dtype)
        )
    squares = jnp.sum(squares)
    return VarianceParameters(
        shape=prior.shape + 0.5 * count, scale=prior.scale + 0.5 * squares
    )


def _draw_variance(key: Array, parameters: VarianceParameters) -> Array:
    return parameters.scale * jnp.exp(-log_gamma(key, parameters.shape))
