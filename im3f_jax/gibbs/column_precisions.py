"""Block: precisions of the columns of both sides' factors, a cumulative product.

They are drawn with both sides' means summed out, then the means given them: together
one draw of both.
"""

import jax
import jax.numpy as jnp
from jax import Array, lax

from im3f_jax.gibbs.state import FactorPriorState
from im3f_jax.model.factor_prior import MultiplicativeGamma
from im3f_jax.numerics.parameters import GammaParameters, NormalParameters
from im3f_jax.numerics.random import log_gamma, standard_normal

__all__ = [
    "column_squares",
    "conditional_column_means",
    "conditional_increments",
    "resample_column_precisions",
    "spread_increments",
]


def column_squares(
    prior: MultiplicativeGamma, factors: Array, num_rows: Array
) -> Array:
    """Quadratic form of each column of a side, its mean summed out, shape (D,).

    sum_u (a_u - abar)^2 + n kappa / (n + kappa) abar^2: the column is normal with mean
    0 and covariance (I + 1 1' / kappa) / tau.

    Parameters
    ----------
    prior
        Resolved prior.
    factors
        Shape (rows, D); rows of padding are not read.
    num_rows
        n, without padding.
    """
    count = num_rows.astype(factors.dtype)
    valid = jnp.arange(factors.shape[0], dtype=jnp.int32) < num_rows
    total = jnp.sum(jnp.where(valid[:, None], factors, 0), axis=0)
    centre = total / jnp.maximum(count, 1)
    offset = jnp.where(valid[:, None], factors - centre[None], 0)
    shrink = count * prior.mean_precision / (count + prior.mean_precision)
    return jnp.sum(offset**2, axis=0) + shrink * centre**2


def conditional_increments(
    prior: MultiplicativeGamma, increments: Array, squares: Array, num_rows: Array
) -> GammaParameters:
    """Each delta_h given all others and both sides' factors, their means summed out.

    Gamma with shape a_h + n (D - h + 1) / 2 and rate b_h + sum_{l >= h} (tau_l /
    delta_h) S_l / 2, S_l the quadratic forms of column l, h and l from 1 to D: delta_h
    multiplies the precision of its own column and of all later ones (Bhattacharya and
    Dunson 2011, step 5 of their sampler, with the rows of both sides).

    Parameters
    ----------
    prior
        Resolved prior.
    increments
        delta, shape (D,).
    squares
        S, `column_squares` of both sides together, shape (D,).
    num_rows
        n, users and items together, without padding.

    Returns
    -------
    GammaParameters
        Each of shape (D,).
    """
    (dim,) = increments.shape
    dtype = increments.dtype
    shapes, rates = prior.parameters(dim, dtype)
    columns = jnp.arange(dim, 0, -1, dtype=jnp.int32).astype(dtype)
    weighted = jnp.cumprod(increments) * squares
    from_here = jnp.cumsum(weighted[::-1])[::-1]
    return GammaParameters(
        shape=shapes + 0.5 * num_rows.astype(dtype) * columns,
        rate=rates + 0.5 * from_here / increments,
    )


def conditional_column_means(
    prior: MultiplicativeGamma, increments: Array, factors: Array, num_rows: Array
) -> NormalParameters:
    """Means m of a side's columns given delta and the side's factors, shape (D,).

    Normal with mean sum_u a_u / (n + kappa) and variance 1 / ((n + kappa) tau).
    """
    count = num_rows.astype(factors.dtype) + prior.mean_precision
    valid = jnp.arange(factors.shape[0], dtype=jnp.int32) < num_rows
    total = jnp.sum(jnp.where(valid[:, None], factors, 0), axis=0)
    return NormalParameters(
        mean=total / count, variance=1 / (count * jnp.cumprod(increments))
    )


def resample_column_precisions(
    key: Array,
    prior: MultiplicativeGamma,
    increments: Array,
    user_factors: Array,
    item_factors: Array,
    num_users: Array,
    num_items: Array,
) -> tuple[Array, FactorPriorState, FactorPriorState]:
    """Draw delta_1 to delta_D one after another, then both sides' means.

    The shapes of `conditional_increments` do not depend on one another: all gammas are
    drawn at once, and only the rates follow in turn.

    Parameters
    ----------
    key
        A typed key, consumed.
    prior, increments
        As in `conditional_increments`.
    user_factors, item_factors
        Shapes (user rows, D) and (item rows, D).
    num_users, num_items
        Numbers of rows that are not padding.

    Returns
    -------
    tuple
        delta, shape (D,), and the priors of the users' and of the items' rows.
    """
    key, user_key, item_key = jax.random.split(key, 3)
    squares = column_squares(prior, user_factors, num_users)
    squares = squares + column_squares(prior, item_factors, num_items)
    num_rows = num_users + num_items
    shape = conditional_increments(prior, increments, squares, num_rows).shape
    standard = jnp.exp(log_gamma(key, shape))

    def draw(h, increments):
        rate = conditional_increments(prior, increments, squares, num_rows).rate
        return increments.at[h].set(standard[h] / rate[h])

    increments = lax.fori_loop(0, increments.shape[0], draw, increments)

    def of_side(key, factors, number):
        given = conditional_column_means(prior, increments, factors, number)
        noise = standard_normal(key, increments.shape, increments.dtype)
        mean = given.mean + jnp.sqrt(given.variance) * noise
        return spread_increments(increments)._replace(mean=mean)

    return (
        increments,
        of_side(user_key, user_factors, num_users),
        of_side(item_key, item_factors, num_items),
    )


def spread_increments(increments: Array) -> FactorPriorState:
    """Start the prior of a side's rows: mean 0, precision diag(tau), shape (D, D)."""
    return FactorPriorState(
        mean=jnp.zeros_like(increments), precision=jnp.diag(jnp.cumprod(increments))
    )
