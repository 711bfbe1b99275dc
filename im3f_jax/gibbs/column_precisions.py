"""Block: precisions of the columns of both sides' factors, a cumulative product."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from im3f_jax.gibbs.state import FactorPriorState
from im3f_jax.model.factor_prior import MultiplicativeGamma
from im3f_jax.numerics.random import log_gamma

__all__ = [
    "GammaParameters",
    "column_squares",
    "conditional_increments",
    "resample_column_precisions",
    "spread_increments",
]


class GammaParameters(NamedTuple):
    """Density proportional to x^(shape-1) exp(-rate x)."""

    shape: Array
    rate: Array


def column_squares(user_factors: Array, item_factors: Array) -> Array:
    """|a_h|^2 + |b_h|^2 of each column, shape (D,); rows of padding are 0."""
    return jnp.sum(user_factors**2, axis=0) + jnp.sum(item_factors**2, axis=0)


def conditional_increments(
    prior: MultiplicativeGamma, increments: Array, squares: Array, num_rows: Array
) -> GammaParameters:
    """Full conditional of each delta_h given all others, and both sides' factors.

    Gamma with shape a_h + n (D - h + 1) / 2 and rate b_h + sum_{l >= h} (tau_l /
    delta_h) (|a_l|^2 + |b_l|^2) / 2, h and l from 1 to D: delta_h multiplies the
    precision of its own column and of all later ones (Bhattacharya and Dunson 2011,
    step 5 of their sampler, with the rows of both sides).

    Parameters
    ----------
    prior
        Resolved prior.
    increments
        delta, shape (D,).
    squares
        |a_h|^2 + |b_h|^2, shape (D,).
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


def resample_column_precisions(
    key: Array,
    prior: MultiplicativeGamma,
    increments: Array,
    user_factors: Array,
    item_factors: Array,
    num_rows: Array,
) -> tuple[Array, FactorPriorState]:
    """Draw delta_1 to delta_D one after another from `conditional_increments`.

    Their shapes do not depend on one another: all gammas are drawn at once, and only
    the rates follow in turn.

    Parameters
    ----------
    key
        A typed key, consumed.
    prior, increments, num_rows
        As in `conditional_increments`.
    user_factors, item_factors
        Shapes (user rows, D) and (item rows, D), 0 in rows of padding.

    Returns
    -------
    tuple
        delta, shape (D,), and the prior that it gives the rows of either side.
    """
    squares = column_squares(user_factors, item_factors)
    shape = conditional_increments(prior, increments, squares, num_rows).shape
    standard = jnp.exp(log_gamma(key, shape))

    def draw(h, increments):
        rate = conditional_increments(prior, increments, squares, num_rows).rate
        return increments.at[h].set(standard[h] / rate[h])

    increments = lax.fori_loop(0, increments.shape[0], draw, increments)
    return increments, spread_increments(increments)


def spread_increments(increments: Array) -> FactorPriorState:
    """Give the prior of a side's rows: mean 0, precision diag(tau), shape (D, D)."""
    return FactorPriorState(
        mean=jnp.zeros_like(increments), precision=jnp.diag(jnp.cumprod(increments))
    )
