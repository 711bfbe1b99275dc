"""Block: relative precisions of the noise, by user, by item or by rating, and shapes."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.scipy.special import polygamma

from im3f_jax.model.scalars import Gamma
from im3f_jax.numerics.random import log_gamma
from im3f_jax.numerics.special import log_less_digamma

__all__ = [
    "GammaParameters",
    "ShapeStatistics",
    "conditional_precisions",
    "conditional_shape",
    "resample_precisions",
    "resample_shape",
]

NEWTON_STEPS = 12
# Nodes and weights of Gauss and Legendre on (-1, 1).
NODES, WEIGHTS = np.polynomial.legendre.leggauss(12)


class GammaParameters(NamedTuple):
    """Independent gammas."""

    shape: Array
    rate: Array


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
    return jnp.exp(log_gamma(key, given.shape)) / given.rate


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
    bend = count * (1 / shape - polygamma(1, shape))
    rest = (prior.shape - 1) / shape
    return slope + rest, bend - rest / shape


def resample_shape(
    key: Array, prior: Gamma, current: Array, statistics: ShapeStatistics
) -> Array:
    """Move the shape by a Metropolis step that leaves its conditional as it is.

    The proposal is a gamma with the first two derivatives of the log density where it
    stands (Miller 2019, Fast and accurate approximation of the full conditional for
    gamma shape parameters), whatever the current value; nearly all are accepted. The
    ratio of the densities is the integral of the difference of their slopes, which does
    not round as the difference of two large sums would.
    """
    draw_key, accept_key = jax.random.split(key)

    def approach(_, shape):
        proposal = _gamma_like(conditional_shape(prior, shape, statistics), shape)
        return proposal.shape / proposal.rate

    start = (prior.shape + 0.5 * statistics.count) / (prior.rate + statistics.excess)
    centre = lax.fori_loop(0, NEWTON_STEPS, approach, start)
    proposal = _gamma_like(conditional_shape(prior, centre, statistics), centre)
    drawn = jnp.exp(log_gamma(draw_key, proposal.shape)) / proposal.rate
    # The integral to log a.
    low, high = jnp.log(current), jnp.log(drawn)
    nodes, weights = (jnp.asarray(x, current.dtype) for x in (NODES, WEIGHTS))
    at = jnp.exp(0.5 * (high + low) + 0.5 * (high - low) * nodes)
    ours = at * conditional_shape(prior, at, statistics)[0]
    theirs = proposal.shape - 1 - proposal.rate * at
    log_ratio = 0.5 * (high - low) * jnp.sum(weights * (ours - theirs))
    uniform = jax.random.uniform(accept_key, (), current.dtype)
    return jnp.where(jnp.log(uniform) < log_ratio, drawn, current)


def _gamma_like(derivatives: tuple[Array, Array], at: Array) -> GammaParameters:
    """Gamma whose log density has these two derivatives at a point."""
    slope, bend = derivatives
    shape = 1 - at**2 * bend
    return GammaParameters(shape, (shape - 1) / at - slope)
