"""Block: a side's bias variance, topic means and biases, in this order.

The variance is drawn from the cells that hold a rating, the topic means with the
side's biases summed out, then the biases given the means. Drawn given all biases
instead, the means of empty topics freeze (lag-1 autocorrelation 0.9998 at 943 rows).

Under a `SharedNormal` the part of a row's biases that its topics share comes between:
the topic means are drawn with both parts of the biases summed out, then the shared
parts given the means, with the parts by topic summed out.

`user_bias` c is indexed by item topics, `item_bias` d by user topics; below, "topic"
is the other side's.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from im3f_jax.gibbs.state import BiasPriorState
from im3f_jax.model.bias_prior import SharedNormal, TopicNormal
from im3f_jax.model.scalars import InverseGamma
from im3f_jax.numerics.collectives import any_across, own_key, sum_across
from im3f_jax.numerics.linalg import draw_gaussian_in_order, draw_gaussians
from im3f_jax.numerics.parameters import InverseGammaParameters, NormalParameters
from im3f_jax.numerics.random import log_gamma, standard_normal
from im3f_jax.numerics.reductions import count_by_cell, sum_by_cell

__all__ = [
    "BiasStatistics",
    "SharedMeanParameters",
    "bias_statistics",
    "conditional_bias_variance",
    "conditional_biases",
    "conditional_shared",
    "conditional_shared_topic_means",
    "conditional_shared_variance",
    "conditional_topic_mean_variance",
    "conditional_topic_means",
    "resample_biases",
    "resample_rows",
]


class BiasStatistics(NamedTuple):
    """Sums over the ratings of each (row, topic) cell."""

    count: Array  # int32, shape (rows, K)
    total: Array  # sum of residuals without this side's bias, shape (rows, K)
    # n, the sum of the relative precisions, which then also weight the residuals, shape
    # (rows, K); None where all are 1 and n is the count.
    precision: Array | None = None


class SharedMeanParameters(NamedTuple):
    """Natural parameters: mu = c_0 + tau z, z ~ Normal(P^-1 h, P^-1)."""

    linear: Array  # h, shape (K,)
    precision: Array  # P, shape (K, K)


def bias_statistics(
    residual: Array,
    valid: Array,
    row: Array,
    topic: Array,
    shape: tuple[int, int],
    precision: Array | None = None,
) -> BiasStatistics:
    """Count and sum the ratings of each cell; the only pass over the ratings."""
    total = residual if precision is None else precision * residual
    return BiasStatistics(
        count=count_by_cell(valid, row, topic, shape),
        total=sum_by_cell(jnp.where(valid, total, 0), row, topic, shape),
        precision=None
        if precision is None
        else sum_by_cell(jnp.where(valid, precision, 0), row, topic, shape),
    )


def conditional_bias_variance(
    prior: InverseGamma,
    bias: Array,
    topic_mean: Array,
    statistics: BiasStatistics,
    by_topic: bool = False,
    axis: str | None = None,
) -> InverseGammaParameters:
    """sigma_0^2 given the biases of occupied cells, those of empty ones summed out.

    Inverse gamma with shape a + (cells with n > 0) / 2 and scale
    b + sum (c_u[k] - mu_k)^2 / 2 over the same cells.
    """
    occupied = statistics.count > 0
    return _variance(prior, bias - topic_mean[None], occupied, by_topic, axis)


def conditional_topic_mean_variance(
    prior: InverseGamma,
    topic_mean: Array,
    center: Array,
    occupied: Array,
    by_topic: bool = False,
) -> InverseGammaParameters:
    """tau^2 given the means of occupied topics, those of empty ones summed out."""
    return _variance(prior, topic_mean - center, occupied, by_topic)


def conditional_topic_means(
    statistics: BiasStatistics,
    variance: Array,
    topic_mean_variance: Array,
    center: Array,
    rating_variance: Array,
    axis: str | None = None,
) -> NormalParameters:
    """mu_k with this side's biases summed out.

    The mean residual of a cell with n > 0 is Normal(mu_k, sigma_0^2 + sigma^2 / n), so
    mu_k has precision 1 / tau^2 + sum_cells w, w = 1 / (sigma_0^2 + sigma^2 / n).
    Written without 1 / tau^2, so that tau^2 = 0 gives c_0. Shape (K,).
    """
    count = _number(statistics)
    # w = n / (n sigma_0^2 + sigma^2): 0 in an empty cell, and w x mean residual =
    # total / (n sigma_0^2 + sigma^2).
    spread = count * variance + rating_variance
    weight = sum_across(jnp.sum(count / spread, axis=0), axis)
    pull = sum_across(jnp.sum(statistics.total / spread, axis=0), axis)
    shrink = 1 + topic_mean_variance * weight
    return NormalParameters(
        mean=(center + topic_mean_variance * pull) / shrink,
        variance=topic_mean_variance / shrink,
    )


def conditional_shared_variance(
    prior: InverseGamma,
    shared: Array,
    statistics: BiasStatistics,
    axis: str | None = None,
) -> InverseGammaParameters:
    """omega^2 given the shared parts of rows with a rating, the others summed out.

    Inverse gamma with shape a + (rows with a rating) / 2 and scale b + sum s_u^2 / 2
    over the same rows; rows of padding have none.
    """
    rated = jnp.any(statistics.count > 0, axis=1)
    return _variance(prior, shared, rated, by_topic=False, axis=axis)


def conditional_shared_topic_means(
    statistics: BiasStatistics,
    variance: Array,
    shared_variance: Array,
    topic_mean_variance: Array,
    center: Array,
    rating_variance: Array,
    by_topic: bool = False,
    axis: str | None = None,
) -> SharedMeanParameters:
    """All mu together, with both parts of this side's biases summed out.

    Given mu, the mean residuals of a row's occupied cells are jointly normal about mu
    with covariance diag(1 / w) + omega^2 1 1', w_k = n_k / (n_k sigma_0^2 + sigma^2).
    With W = sum_k w_k, p_k = sum (x - c_0) / (n_k sigma_0^2 + sigma^2) over the cell's
    ratings and q = sum_k p_k, z = (mu - c_0) / tau has the precision and linear term

        P = I + tau^2 sum_rows [diag(w) - omega^2 w w' / (1 + omega^2 W)]
        h = tau sum_rows [p - omega^2 q w / (1 + omega^2 W)],

    so that tau^2 = 0 gives c_0, and omega^2 = 0 `conditional_topic_means`. Written as
    sums of terms of one sign, diag(w) / (1 + omega^2 W) and what rows share, a
    Laplacian: P is diagonally dominant however it is rounded, and one topic loses
    nothing where omega^2 W is large. rows x K^2 multiplications.
    """
    weight, pull = _weigh(statistics, center, variance, rating_variance)
    row_weight = _sum_over_topics(weight, by_topic)[:, None]
    row_pull = _sum_over_topics(pull, by_topic)[:, None]
    damp = 1 / (1 + shared_variance * row_weight)
    tied = shared_variance * damp * weight
    if by_topic:
        cross = lax.map(lambda column: jnp.sum(column[:, None] * tied, 0), weight.T)
    else:
        cross = jnp.matmul(weight.T, tied, precision="highest")
    diagonal = jnp.eye(weight.shape[1], dtype=bool)
    linear = damp * (pull + shared_variance * (row_weight * pull - row_pull * weight))
    cross, own, linear = sum_across(
        (
            jnp.where(diagonal, 0, cross),
            jnp.sum(damp * weight, axis=0),
            jnp.sum(linear, axis=0),
        ),
        axis,
    )
    alone = own + _sum_over_topics(cross, by_topic)
    return SharedMeanParameters(
        linear=jnp.sqrt(topic_mean_variance) * linear,
        precision=jnp.where(
            diagonal,
            1 + topic_mean_variance * alone[None],
            -topic_mean_variance * cross,
        ),
    )


def conditional_shared(
    statistics: BiasStatistics,
    topic_mean: Array,
    variance: Array,
    shared_variance: Array,
    rating_variance: Array,
    by_topic: bool = False,
) -> NormalParameters:
    """s_u given the topic means, with the parts by topic summed out: shape (rows,).

    Precision 1 / omega^2 + sum_k w_k and mean sum_k w_k (mean residual - mu_k) over it,
    w_k = n_k / (n_k sigma_0^2 + sigma^2); written so that omega^2 = 0 gives 0.
    """
    weight, pull = _weigh(statistics, topic_mean, variance, rating_variance)
    shrink = 1 + shared_variance * _sum_over_topics(weight, by_topic)
    return NormalParameters(
        mean=shared_variance * _sum_over_topics(pull, by_topic) / shrink,
        variance=shared_variance / shrink,
    )


def conditional_biases(
    statistics: BiasStatistics,
    topic_mean: Array,
    variance: Array,
    rating_variance: Array,
) -> NormalParameters:
    """c_u[k] given mu_k: shape (rows, K); empty cells have their prior.

    Under a `SharedNormal` the same of c_u[k] - s_u, given the sums of x - s_u.

    Mean (sigma^2 mu_k + sigma_0^2 sum x) / (sigma^2 + n sigma_0^2), variance
    sigma_0^2 sigma^2 / (sigma^2 + n sigma_0^2): the paper's conditional of c_u^i, with
    prior mean mu_k in place of c_0, written so that sigma_0^2 = 0 gives mu_k.
    """
    spread = _number(statistics) * variance + rating_variance
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
    axis: str | None = None,
) -> tuple[Array, BiasPriorState]:
    """Draw variances, topic means, shared parts and biases of a side.

    Given the variances, what follows is one draw from the joint conditional of topic
    means, shared parts and biases.

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
    axis
        Of shards that each hold some of the rows.

    Returns
    -------
    tuple
        The new biases, shape (rows, K), and the new state of their prior.
    """
    shares = isinstance(prior, SharedNormal)
    variance_key, spread_key, mean_key, bias_key, *more_keys = jax.random.split(
        key, 6 if shares else 4
    )
    dtype = bias.dtype
    shared, shared_variance = state.shared, state.shared_variance
    if shares:
        bias = bias - shared[:, None]
    variance, spread = state.variance, state.topic_mean_variance
    if isinstance(prior.variance, InverseGamma):
        variance = _draw_variance(
            variance_key,
            conditional_bias_variance(
                prior.variance, bias, state.topic_mean, statistics, by_topic, axis=axis
            ),
        )
    if isinstance(prior.topic_mean_variance, InverseGamma):
        spread = _draw_variance(
            spread_key,
            conditional_topic_mean_variance(
                prior.topic_mean_variance,
                state.topic_mean,
                prior.topic_mean,
                any_across(jnp.any(statistics.count > 0, axis=0), axis),
                by_topic,
            ),
        )
    noise = standard_normal(mean_key, state.topic_mean.shape, dtype)
    if shares:
        if isinstance(prior.shared_variance, InverseGamma):
            shared_variance = _draw_variance(
                more_keys[0],
                conditional_shared_variance(
                    prior.shared_variance, shared, statistics, axis=axis
                ),
            )
        means = conditional_shared_topic_means(
            statistics,
            variance,
            shared_variance,
            spread,
            prior.topic_mean,
            rating_variance,
            by_topic,
            axis=axis,
        )
        z = _draw_means(means, noise, by_topic)
        topic_mean = prior.topic_mean + jnp.sqrt(spread) * z
    else:
        means = conditional_topic_means(
            statistics, variance, spread, prior.topic_mean, rating_variance, axis=axis
        )
        topic_mean = means.mean + jnp.sqrt(means.variance) * noise
    state = BiasPriorState(topic_mean, variance, spread, shared, shared_variance)
    bias, shared = resample_rows(
        bias_key,
        more_keys[1] if shares else None,
        state,
        statistics,
        rating_variance,
        by_topic,
        axis,
    )
    return bias, state._replace(shared=shared)


def resample_rows(
    key: Array,
    shared_key: Array | None,
    state: BiasPriorState,
    statistics: BiasStatistics,
    rating_variance: Array,
    by_topic: bool = False,
    axis: str | None = None,
) -> tuple[Array, Array | None]:
    """Draw the biases of a side's rows, given their prior.

    Parameters
    ----------
    key, shared_key
        Typed keys; the second of the shared parts, None where there are none.
    state
        Topic means and variances; its shared parts are not read.
    statistics, rating_variance, by_topic, axis
        As in `resample_biases`.

    Returns
    -------
    tuple
        Biases, shape (rows, K), and shared parts, shape (rows,), or None.
    """
    shared, shape = None, statistics.total.shape
    dtype = statistics.total.dtype
    given = state.topic_mean, state.variance
    if shared_key is not None:
        parts = conditional_shared(
            statistics, *given, state.shared_variance, rating_variance, by_topic
        )
        noise = standard_normal(own_key(shared_key, axis), shape[:1], dtype)
        shared = parts.mean + jnp.sqrt(parts.variance) * noise
        statistics = statistics._replace(
            total=statistics.total - _number(statistics) * shared[:, None]
        )
    biases = conditional_biases(statistics, *given, rating_variance)
    key = own_key(key, axis)
    if by_topic:
        noise = standard_normal(key, shape[::-1], dtype).T
    else:
        noise = standard_normal(key, shape, dtype)
    bias = biases.mean + jnp.sqrt(biases.variance) * noise
    if shared is not None:
        bias = bias + shared[:, None]
    return bias, shared


def _number(statistics: BiasStatistics) -> Array:
    """Ratings of each cell as the noise counts them: n, shape (rows, K)."""
    if statistics.precision is None:
        return statistics.count.astype(statistics.total.dtype)
    return statistics.precision


def _weigh(
    statistics: BiasStatistics, mean: Array, variance: Array, rating_variance: Array
) -> tuple[Array, Array]:
    """Precision of each cell's mean residual about `mean`, and its sum times that.

    n / (n sigma_0^2 + sigma^2) and sum (x - mean) / (n sigma_0^2 + sigma^2), both 0 in
    an empty cell; `mean` is a scalar or has shape (K,).
    """
    count = _number(statistics)
    spread = count * variance + rating_variance
    mean = jnp.broadcast_to(mean, count.shape[1:])[None]
    return count / spread, (statistics.total - count * mean) / spread


def _draw_means(means: SharedMeanParameters, noise: Array, by_topic: bool) -> Array:
    if by_topic:
        return draw_gaussian_in_order(means.precision, means.linear, noise)
    return draw_gaussians(means.precision[None], means.linear[None], noise[None])[0]


def _sum_over_topics(values: Array, by_topic: bool = True) -> Array:
    """Sum the last axis; one topic after another, free ones at the end add nothing."""
    if not by_topic:
        return jnp.sum(values, axis=-1)
    return lax.fori_loop(
        0,
        values.shape[-1],
        lambda k, total: total + values[..., k],
        jnp.zeros(values.shape[:-1], values.dtype),
    )


def _variance(
    prior: InverseGamma,
    deviation: Array,
    counted: Array,
    by_topic: bool,
    axis: str | None = None,
) -> InverseGammaParameters:
    dtype = deviation.dtype
    count = jnp.sum(counted, dtype=jnp.int32).astype(dtype)
    squares = jnp.where(counted, deviation**2, 0)
    if by_topic:
        each = jnp.sum(squares, axis=0) if squares.ndim > 1 else squares
        squares = _sum_over_topics(each)
    count, squares = sum_across((count, jnp.sum(squares)), axis)
    return InverseGammaParameters(
        shape=prior.shape + 0.5 * count, scale=prior.scale + 0.5 * squares
    )


def _draw_variance(key: Array, parameters: InverseGammaParameters) -> Array:
    return parameters.scale * jnp.exp(-log_gamma(key, parameters.shape))
