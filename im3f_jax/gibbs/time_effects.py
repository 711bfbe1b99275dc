"""Block: what items and users add to the mean of a rating by its time.

An effect is a table of cells (row, column); a rating's mean gains its cell's number
times a covariate of the rating. Items have a column for each bin of time, and the
covariate 1; users one column, and their drift's covariate x_n.

The variance is drawn given the cells that the ratings tell something of, the others
summed out, then all cells given the variance: together one draw of variance and
uninformed cells, and one of the cells.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from im3f_jax.model.scalars import InverseGamma
from im3f_jax.numerics.parameters import InverseGammaParameters, NormalParameters
from im3f_jax.numerics.random import log_gamma, standard_normal
from im3f_jax.numerics.reductions import sum_by_cell

__all__ = [
    "EffectStatistics",
    "conditional_effect_variance",
    "conditional_effects",
    "effect_statistics",
    "resample_effects",
]


class EffectStatistics(NamedTuple):
    """Sums over the ratings of each cell, w their relative precisions."""

    information: Array  # sum of w x^2, shape (rows, columns)
    total: Array  # sum of w x (residual without this effect), same shape


def effect_statistics(
    residual: Array,
    valid: Array,
    row: Array,
    column: Array,
    shape: tuple[int, int],
    covariate: Array | None = None,
    precision: Array | None = None,
) -> EffectStatistics:
    """Sum up the ratings of each cell.

    Parameters
    ----------
    residual
        Ratings less all parts of their means but this effect, shape (N,).
    valid
        False for padding, bool, shape (N,).
    row, column
        Cell of each rating, int32, shape (N,).
    shape
        (rows, columns).
    covariate
        x, shape (N,); None where all are 1.
    precision
        w, shape (N,); None where all are 1.
    """
    pull = jnp.ones_like(residual) if covariate is None else covariate
    information = pull if covariate is None else pull * covariate
    if precision is not None:
        pull, information = precision * pull, precision * information
    return EffectStatistics(
        information=sum_by_cell(jnp.where(valid, information, 0), row, column, shape),
        total=sum_by_cell(jnp.where(valid, pull * residual, 0), row, column, shape),
    )


def conditional_effect_variance(
    prior: InverseGamma, effect: Array, statistics: EffectStatistics
) -> InverseGammaParameters:
    """omega^2 given the effects of informed cells, those of the others summed out.

    Inverse gamma with shape a + (cells with information) / 2 and scale
    b + sum e^2 / 2 over the same cells; rows of padding have no information.
    """
    informed = statistics.information > 0
    count = jnp.sum(informed, dtype=jnp.int32).astype(effect.dtype)
    squares = jnp.sum(jnp.where(informed, effect**2, 0))
    return InverseGammaParameters(
        shape=prior.shape + 0.5 * count, scale=prior.scale + 0.5 * squares
    )


def conditional_effects(
    statistics: EffectStatistics, variance: Array, rating_variance: Array
) -> NormalParameters:
    """Effects given their variance, shape (rows, columns).

    Mean omega^2 T / (sigma^2 + omega^2 I) and variance
    omega^2 sigma^2 / (sigma^2 + omega^2 I), with I = sum w x^2 and T = sum w x r: the
    prior, Normal(0, omega^2), where I = 0.
    """
    spread = rating_variance + variance * statistics.information
    return NormalParameters(
        mean=variance * statistics.total / spread,
        variance=variance * rating_variance / spread,
    )


def resample_effects(
    key: Array,
    prior: "float | InverseGamma",
    effect: Array,
    variance: Array,
    statistics: EffectStatistics,
    rating_variance: Array,
    number: Array,
) -> tuple[Array, Array]:
    """Draw the variance, where it is sampled, and the effects.

    Parameters
    ----------
    key
        A typed key.
    prior
        Of the variance; a number is fixed.
    effect, variance
        Current values, (rows, columns) and scalar.
    statistics
        Of the residuals without this effect.
    rating_variance
        sigma^2, scalar.
    number
        Rows that are no padding, int32 scalar: the others are 0, as is expected of a
        new row.

    Returns
    -------
    tuple of Array
        The new effects and their variance.
    """
    variance_key, effect_key = jax.random.split(key)
    if isinstance(prior, InverseGamma):
        shape, scale = conditional_effect_variance(prior, effect, statistics)
        variance = scale * jnp.exp(-log_gamma(variance_key, shape))
    given = conditional_effects(statistics, variance, rating_variance)
    noise = standard_normal(effect_key, effect.shape, effect.dtype)
    drawn = given.mean + jnp.sqrt(given.variance) * noise
    real = jnp.arange(effect.shape[0], dtype=jnp.int32) < number
    return jnp.where(real[:, None], drawn, 0), variance
