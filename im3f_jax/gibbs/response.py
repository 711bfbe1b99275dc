"""What the other blocks explain: the ratings, or what is drawn in their place."""

from functools import singledispatch

import jax
import jax.numpy as jnp
from jax import Array

from im3f_jax.data.layout import RatingLayout
from im3f_jax.gibbs.cut_points import resample_cut_points
from im3f_jax.gibbs.latent_ratings import resample_latent_ratings
from im3f_jax.gibbs.state import State
from im3f_jax.model.likelihood import Ordinal
from im3f_jax.numerics.collectives import own_key
from im3f_jax.numerics.linalg import dots_of_pairs

__all__ = ["resample_response"]


@singledispatch
def resample_response(
    likelihood,
    key: Array,
    state: State,
    data: RatingLayout,
    valid: Array,
    parts: Array,
    root: Array | None,
) -> tuple[Array, Array | None, Array]:
    """Give what the other blocks explain, cut points, and whether these moved.

    Parameters
    ----------
    likelihood
        The spec's likelihood; there is a method for each.
    key
        A typed key.
    state
        Current values.
    data
        Training ratings.
    valid
        Which of the N slots hold a rating, shape (N,).
    parts
        Means without global bias and without the factors' products, shape (N,).
    root
        Square roots of the ratings' relative precisions, shape (N,), or None for 1.

    Returns
    -------
    tuple
        The ratings themselves, or under the ordinal likelihood their latents, shape
        (N,); the cut points; 1 if these were moved or are none, 0 if not.
    """
    return data.rating, state.cut_points, jnp.ones((), data.rating.dtype)


@resample_response.register
def _(likelihood: Ordinal, key, state, data, valid, parts, root):
    cut_key, latent_key = jax.random.split(key)
    mean = (state.global_bias + parts) + dots_of_pairs(
        state.user_factors, state.item_factors, data.user, data.item, data.chunk
    )
    level = likelihood.level_of(data.rating)
    cut_points, accepted = resample_cut_points(
        cut_key,
        likelihood,
        state.cut_points,
        level,
        mean,
        valid,
        root,
        axis=data.axis,
    )
    latent_key = own_key(latent_key, data.axis)
    latent = resample_latent_ratings(latent_key, level, mean, cut_points, root)
    return latent, cut_points, accepted
