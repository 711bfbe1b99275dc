"""Block: the topics of all ratings on one side, given those on the other."""

import jax.numpy as jnp
from jax import Array, lax

from im3f_jax.numerics.random import standard_uniform

__all__ = ["conditional_topics", "resample_topics"]

# Topics are summed in groups of this many before one is picked within its group.
GROUP = 16


def conditional_topics(
    residual: Array,
    weight_row: Array,
    bias_row: Array,
    log_row_weights: Array,
    bias: Array,
    rating_variance: Array,
) -> Array:
    """Full conditional of the topics of ratings on one side, unnormalised.

    For item topics: log theta_M[j, k] - (x_n - c_u[k])^2 / (2 sigma^2), with the
    residual x_n = r_n - chi_0 - a_u . b_j - d_j[zU_n]; for user topics the sides
    change places.

    Parameters
    ----------
    residual
        Residual without the bias that this topic selects, rating scale, shape (n,).
    weight_row, bias_row
        Row of the weights and row of the biases of each rating, int32, shape (n,).
        (The item's weights, the user's biases for item topics.)
    log_row_weights
        log theta, shape (rows, K).
    bias
        Rating scale, shape (other rows, K).
    rating_variance
        sigma^2, scalar.

    Returns
    -------
    Array
        Log probabilities up to a constant a rating, shape (n, K).
    """
    misfit = residual[:, None] - bias[bias_row]
    return log_row_weights[weight_row] - 0.5 / rating_variance * misfit**2


def resample_topics(
    key: Array,
    residual: Array,
    weight_row: Array,
    bias_row: Array,
    log_row_weights: Array,
    bias: Array,
    rating_variance: Array,
    chunk: int,
) -> Array:
    """Draw topics from `conditional_topics`, int32, shape (N,).

    Ratings are taken `chunk` at a time (a divisor of N), so that N x K numbers are
    never held at once; each costs one uniform.
    """
    num_topics = bias.shape[1]
    # The middles of the steps of `jax.random.uniform`: its 0, once in 2^23 draws, would
    # pick the first topic however small its weight.
    uniform = standard_uniform(key, residual.shape, residual.dtype)
    uniform = uniform + 0.5 * jnp.finfo(residual.dtype).eps

    def draw(part):
        residual, weight_row, bias_row, uniform = part
        log_weights = lax.optimization_barrier(
            conditional_topics(
                residual, weight_row, bias_row, log_row_weights, bias, rating_variance
            )
        )
        largest = jnp.max(log_weights, axis=-1, keepdims=True)
        weights = lax.optimization_barrier(jnp.exp(log_weights - largest))
        return _invert(weights, uniform)

    parts = tuple(
        x.reshape(-1, chunk) for x in (residual, weight_row, bias_row, uniform)
    )
    topic = lax.map(draw, parts).reshape(-1)
    return jnp.minimum(topic, num_topics - 1)


def _invert(weights: Array, uniform: Array) -> Array:
    """Invert the cumulative weights of each row in two levels, int32, shape (n,).

    First the group of GROUP topics, then the topic in it. A topic of weight 0 is never
    drawn: the target is kept strictly below the running total that it is compared to.
    """
    num_topics = weights.shape[1]
    if num_topics <= GROUP:
        return _pick(weights, uniform * _running(weights)[-1])[0]
    padded = jnp.pad(weights, ((0, 0), (0, -num_topics % GROUP)))
    groups = padded.reshape(weights.shape[0], -1, GROUP)
    # Summed in the order in which `_pick` sums, so that both totals agree.
    totals = jnp.sum(groups, axis=-1)
    group, rest = _pick(totals, uniform * _running(totals)[-1])
    within = lax.optimization_barrier(
        jnp.take_along_axis(groups, group[:, None, None], axis=1)[:, 0]
    )
    topic, _ = _pick(within, rest)
    return group * GROUP + topic


def _running(weights: Array) -> list[Array]:
    totals = [weights[:, 0]]
    for k in range(1, weights.shape[1]):
        totals.append(totals[-1] + weights[:, k])
    return totals


def _pick(weights: Array, target: Array) -> tuple[Array, Array]:
    """First column whose running total exceeds the target, and the target within it."""
    totals = _running(weights)
    last = totals[-1]
    target = jnp.minimum(target, jnp.nextafter(last, jnp.zeros_like(last)))
    index = jnp.zeros(target.shape, jnp.int32)
    before = jnp.zeros_like(target)
    for total in totals[:-1]:
        passed = target >= total
        index = index + passed.astype(jnp.int32)
        before = jnp.where(passed, total, before)
    return index, target - before
