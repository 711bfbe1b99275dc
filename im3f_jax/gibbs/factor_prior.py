"""Block: mean and precision of a side's factors."""

from functools import singledispatch
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from im3f_jax.gibbs.state import FactorPriorState
from im3f_jax.model.factor_prior import IsotropicNormal, NormalWishart
from im3f_jax.numerics.collectives import sum_across
from im3f_jax.numerics.random import normal_wishart

__all__ = [
    "NormalWishartParameters",
    "conditional_factor_prior",
    "resample_factor_prior",
]


class NormalWishartParameters(NamedTuple):
    """Lambda ~ Wishart(W, nu), mu ~ Normal(mean, (mean_precision Lambda)^-1)."""

    mean: Array  # shape (D,)
    mean_precision: Array  # scalar
    degrees_of_freedom: Array  # scalar
    inverse_scale: Array  # W^-1, shape (D, D)


def conditional_factor_prior(
    prior: NormalWishart, factors: Array, num_rows: Array, axis: str | None = None
) -> NormalWishartParameters:
    """Full conditional of (mu, Lambda) given a side's factors.

    With the mean m of the n rows and S = sum (a - m)(a - m)':
    W^-1 = W_0^-1 + S + lambda_0 n / (lambda_0 + n) (mu_0 - m)(mu_0 - m)',
    nu = nu_0 + n, mean = (lambda_0 mu_0 + n m) / (lambda_0 + n),
    mean_precision = lambda_0 + n (the paper's conditionals of Lambda and mu, with its
    misprinted (1/U) sum_j b_j read as (1/M) sum_j b_j).

    Parameters
    ----------
    prior
        Resolved prior.
    factors
        Shape (rows, D), 0 in rows of padding.
    num_rows
        n, the number of rows that are not padding.
    axis
        Of shards that each hold some of the rows.
    """
    dim = factors.shape[1]
    dtype = factors.dtype
    count = sum_across(num_rows.astype(dtype), axis)
    valid = (jnp.arange(factors.shape[0], dtype=jnp.int32) < num_rows).astype(dtype)
    mean = sum_across(jnp.sum(factors, axis=0), axis) / count
    centred = (factors - mean[None]) * valid[:, None]
    scatter = jnp.matmul(centred.T, centred, precision="highest")
    scatter = sum_across(scatter, axis)
    shift = prior.mean - mean
    shrink = prior.mean_precision * count / (prior.mean_precision + count)
    return NormalWishartParameters(
        mean=(prior.mean_precision * prior.mean + count * mean)
        / (prior.mean_precision + count),
        mean_precision=prior.mean_precision + count,
        degrees_of_freedom=prior.degrees_of_freedom + count,
        inverse_scale=jnp.eye(dim, dtype=dtype) / prior.scale
        + scatter
        + shrink * shift[:, None] * shift[None],
    )


@singledispatch
def resample_factor_prior(
    prior, key: Array, factors: Array, num_rows: Array, axis: str | None = None
) -> FactorPriorState:
    """Draw mean and precision of a side's factors; a method for each prior."""
    raise TypeError(f"no factor prior: {prior!r}")


@resample_factor_prior.register
def _(prior: NormalWishart, key, factors, num_rows, axis=None):
    given = conditional_factor_prior(prior, factors, num_rows, axis=axis)
    return FactorPriorState(*normal_wishart(key, *given))


@resample_factor_prior.register
def _(prior: IsotropicNormal, key, factors, num_rows, axis=None):
    dim = factors.shape[1]
    return FactorPriorState(
        mean=jnp.zeros(dim, factors.dtype),
        precision=prior.precision * jnp.eye(dim, dtype=factors.dtype),
    )
