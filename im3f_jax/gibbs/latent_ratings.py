"""Block: the latent ratings of the ordinal likelihood."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from im3f_jax.model.likelihood import bounds_of_levels
from im3f_jax.numerics.random import truncated_normal

__all__ = [
    "TruncatedNormal",
    "conditional_latent_ratings",
    "resample_latent_ratings",
]


class TruncatedNormal(NamedTuple):
    """Normal(mean, 1) on (mean + low, mean + high)."""

    mean: Array
    low: Array
    high: Array


def conditional_latent_ratings(
    level: Array, mean: Array, cut_points: Array
) -> TruncatedNormal:
    """z_n ~ Normal(mean_n, 1) on (g_{l-1}, g_l], l the level of the rating.

    Albert and Chib (1993).

    Parameters
    ----------
    level
        Of each rating, from 0, int32, shape (N,).
    mean
        chi_0 + a_u . b_j + c_u[zM_n] + d_j[zU_n], latent scale, shape (N,).
    cut_points
        Shape (L - 1,).
    """
    return TruncatedNormal(mean, *bounds_of_levels(level, mean, cut_points))


def resample_latent_ratings(
    key: Array, level: Array, mean: Array, cut_points: Array
) -> Array:
    """Draw the latent ratings, shape (N,), each strictly between its cut points."""
    mean, low, high = conditional_latent_ratings(level, mean, cut_points)
    latent = mean + truncated_normal(key, low, high)
    # The sum may round to a cut point, or beyond it where the mean is far off.
    last = cut_points.shape[0] - 1
    below = jnp.nextafter(cut_points, jnp.full_like(cut_points, -jnp.inf))
    above = jnp.nextafter(cut_points, jnp.full_like(cut_points, jnp.inf))
    least = above[jnp.maximum(level - 1, 0)]
    most = below[jnp.minimum(level, last)]
    latent = jnp.where(level > 0, jnp.maximum(latent, least), latent)
    return jnp.where(level <= last, jnp.minimum(latent, most), latent)
