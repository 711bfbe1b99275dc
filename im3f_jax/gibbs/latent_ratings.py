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
    """Normal(mean, 1 / root^2) on (mean + low / root, mean + high / root)."""

    mean: Array
    low: Array
    high: Array
    root: Array | None = None  # all 1


def conditional_latent_ratings(
    level: Array, mean: Array, cut_points: Array, root: Array | None = None
) -> TruncatedNormal:
    """z_n ~ Normal(mean_n, 1) on (g_{l-1}, g_l], l the level of the rating.

    Albert and Chib (1993). With relative precisions the variance is their inverse.

    Parameters
    ----------
    level
        Of each rating, from 0, int32, shape (N,).
    mean
        chi_0 + a_u . b_j + c_u[zM_n] + d_j[zU_n], latent scale, shape (N,).
    cut_points
        Shape (L - 1,).
    root
        Square root of each rating's relative precision, shape (N,); None: all 1.
    """
    bounds = bounds_of_levels(level, mean, cut_points, root)
    return TruncatedNormal(mean, *bounds, root)


def resample_latent_ratings(
    key: Array,
    level: Array,
    mean: Array,
    cut_points: Array,
    root: Array | None = None,
) -> Array:
    """Draw the latent ratings, shape (N,), each strictly between its cut points."""
    given = conditional_latent_ratings(level, mean, cut_points, root)
    noise = truncated_normal(key, given.low, given.high)
    latent = given.mean + (noise if root is None else noise / root)
    # The sum may round to a cut point, or beyond it where the mean is far off.
    last = cut_points.shape[0] - 1
    below = jnp.nextafter(cut_points, jnp.full_like(cut_points, -jnp.inf))
    above = jnp.nextafter(cut_points, jnp.full_like(cut_points, jnp.inf))
    least = above[jnp.maximum(level - 1, 0)]
    most = below[jnp.minimum(level, last)]
    latent = jnp.where(level > 0, jnp.maximum(latent, least), latent)
    return jnp.where(level <= last, jnp.minimum(latent, most), latent)
