"""Block: the variance of a rating given its mean."""

from typing import NamedTuple

from jax import Array

from im3f_jax.model.likelihood import Gaussian, Ordinal
from im3f_jax.model.scalars import InverseGamma
from im3f_jax.numerics.random import truncated_inverse_gamma

__all__ = [
    "TruncatedInverseGamma",
    "conditional_rating_variance",
    "resample_rating_variance",
]


class TruncatedInverseGamma(NamedTuple):
    """Density proportional to x^(-shape-1) exp(-scale/x) on x >= floor."""

    shape: Array
    scale: Array
    floor: Array


def conditional_rating_variance(
    likelihood: Gaussian, squared_error: Array, num_ratings: Array
) -> TruncatedInverseGamma:
    """sigma^2: inverse gamma(a + N/2, b + sum of squared residuals / 2) above a floor.

    Parameters
    ----------
    likelihood
        Resolved, with an `InverseGamma` for its variance.
    squared_error
        Sum of squared residuals, squared rating scale, scalar.
    num_ratings
        N, scalar of any type.
    """
    prior = likelihood.variance
    return TruncatedInverseGamma(
        shape=prior.shape + 0.5 * num_ratings.astype(squared_error.dtype),
        scale=prior.scale + 0.5 * squared_error,
        floor=likelihood.variance_floor,
    )


def resample_rating_variance(
    key: Array,
    likelihood: Gaussian | Ordinal,
    current: Array,
    squared_error: Array,
    num_ratings: Array,
) -> Array:
    """Draw sigma^2, scalar; a fixed number stays as it is."""
    if not isinstance(likelihood.variance, InverseGamma):
        return current
    return truncated_inverse_gamma(
        key, *conditional_rating_variance(likelihood, squared_error, num_ratings)
    )
