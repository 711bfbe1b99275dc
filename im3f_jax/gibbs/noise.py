"""Block: relative precisions of the noise, by user, item or rating; their shapes."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from im3f_jax.model.noise import LEAST_PRECISION
from im3f_jax.model.scalars import Gamma
from im3f_jax.numerics.parameters import GammaParameters
from im3f_jax.numerics.random import log_gamma, standard_normal
from im3f_jax.numerics.special import log_less_digamma, trigamma_less_inverse

__all__ = [
    "ShapeStatistics",
    "conditional_precisions",
    "conditional_shape",
    "resample_precisions",
    "resample_shape",
    "shape_statistics",
]

NEWTON_STEPS = 8
# Of the t proposal, whose tails are wider than those of the target.
DEGREES = 5
# Nodes and weights of Gauss and Legendre on (-1, 1).
NODES, WEIGHTS = np.polynomial.legendre.leggauss(12)


class ShapeStatistics(NamedTuple):
    """What the precisions tell of their shape."""

    count: Array  # n, scalar
    excess: Array  # sum of p - 1 - log p, scalar, at least 0


def conditional_precisions(
    shape: Array, count: Array, squared_error: Array, rating_variance: Array
) -> GammaParameters:
    """p_u ~ Gamma(a + n_u / 2, a + sum_n q_j w_n e_n^2 / (2 sigma^2)).

    The same for items and, with n = 1, for ratings.

    Parameters
    ----------
    shape
        a, scalar.
    count
        Ratings of each row, int32, shape (rows,).
    squared_error
        Sum over the row's ratings of squared residuals times the other relative
        precisions, squared rating scale, shape (rows,).
    rating_variance
        sigma^2, scalar.
    """
    return GammaParameters(
        shape=shape + 0.5 * count.astype(squared_error.dtype),
        rate=shape + 0.5 * squared_error / rating_variance,
    )


def resample_precisions(
    key: Array,
    shape: Array,
    count: Array,
    squared_error: Array,
    rating_variance: Array,
) -> Array:
    """Draw relative precisions from `conditional_precisions`, shape (rows,)."""
    given = conditional_precisions(shape, count, squared_error, rating_variance)
    drawn = jnp.exp(log_gamma(key, given.shape)) / given.rate
    return jnp.maximum(drawn, LEAST_PRECISION)


def shape_statistics(precision: Array, counted: Array) -> ShapeStatistics:
    """Sum up the precisions that are counted (bool); both of shape (rows,)."""
    # p - 1 - log p, without the cancellation near 1.
    near = jnp.abs(precision - 1) < 0.5
    log = jnp.where(
        near,
        jnp.log1p(jnp.where(near, precision - 1, 0)),
        jnp.log(jnp.where(near, 1, precision)),
    )
    dtype = precision.dtype
    return ShapeStatistics(
        count=jnp.sum(counted, dtype=jnp.int32).astype(dtype),
        excess=jnp.sum(jnp.where(counted, (precision - 1) - log, 0)),
    )


def conditional_shape(
    prior: Gamma, shape: Array, statistics: ShapeStatistics
) -> tuple[Array, Array]:
    """First two derivatives, to a, of the log density of a given n precisions.

    log p(a) = n (a log a - a - log Gamma(a)) - a S + (s - 1) log a - r a, with
    S = sum (p - 1 - log p) and the prior Gamma(s, r); so
    n (log a - digamma(a)) - S - r + (s - 1) / a and
    n (1 / a - trigamma(a)) - (s - 1) / a^2.

    Parameters
    ----------
    prior
        Of the shape.
    shape
        a, where the derivatives are taken, any shape.
    statistics
        Of the precisions.
    """
    count, excess = statistics
    slope = count * log_less_digamma(shape) - excess - prior.rate
    rest = (prior.shape - 1) / shape
    return slope + rest, -count * trigamma_less_inverse(shape) - rest / shape


def resample_shape(
    key: Array, prior: Gamma, current: Array, statistics: ShapeStatistics
) -> Array:
    """Move the shape by a Metropolis step that leaves its conditional as it is.

    The proposal, whatever the current value, is Student's t for log a, about the mode
    and with its curvature. Under a logarithm the density is log-concave, so that the t
    has the wider tails: a chain comes back from wherever it is in a few steps. (The
    gamma of Miller 2019, Fast and accurate approximation of the full conditional for
    gamma shape parameters, fits more closely, but has the narrower tail: from a start
    at five times the mode a chain of a thousand precisions never moved.) The ratio of
    densities is an integral of their slope, which does not round as the difference of
    two large sums would.
    """
    draw_key, accept_key = jax.random.split(key)
    centre, spread = _mode_of_log(prior, statistics)
    noise = standard_normal(draw_key, (1 + DEGREES,), current.dtype)
    t = noise[0] * jnp.sqrt(DEGREES / jnp.sum(noise[1:] ** 2))
    low, high = jnp.log(current), centre + spread * t
    nodes, weights = (jnp.asarray(x, current.dtype) for x in (NODES, WEIGHTS))
    at = jnp.exp(0.5 * (high + low) + 0.5 * (high - low) * nodes)
    slope = at * conditional_shape(prior, at, statistics)[0] + 1
    log_ratio = (
        0.5 * (high - low) * jnp.sum(weights * slope)
        + _log_t((low - centre) / spread)
        - _log_t(t)
    )
    accept = _accept(accept_key, log_ratio)  # False for NaN
    return jnp.where(accept, jnp.exp(high), current)


def _mode_of_log(prior: Gamma, statistics: ShapeStatistics) -> tuple[Array, Array]:
    """Mode of the density of log a, and the inverse root of its curvature there.

    Newton's steps from a point that is off by a factor of 2 at most, since
    a (log a - digamma(a)) lies between 1/2 and 1.
    """
    count, excess = statistics

    def derivatives(shape):
        slope, bend = conditional_shape(prior, shape, statistics)
        return shape * slope + 1, shape * slope + shape**2 * bend

    def approach(_, log_shape):
        slope, bend = derivatives(jnp.exp(log_shape))
        return log_shape - jnp.maximum(slope / bend, -1)

    start = (prior.shape + 0.5 * count) / (prior.rate + excess)
    mode = lax.fori_loop(0, NEWTON_STEPS, approach, jnp.log(start))
    return mode, lax.rsqrt(-derivatives(jnp.exp(mode))[1])


def _log_t(t: Array) -> Array:
    """Log density of the proposal in its own units, up to a constant."""
    return -0.5 * (DEGREES + 1) * jnp.log1p(t**2 / DEGREES)


def _accept(key: Array, log_ratio: Array) -> Array:
    uniform = jax.random.uniform(key, log_ratio.shape, log_ratio.dtype)
    return jnp.log(uniform) < log_ratio
