"""Block: the weights of a side's rows over its topics."""

import jax.numpy as jnp
from jax import Array

from im3f_jax.numerics.random import log_dirichlet

__all__ = ["conditional_row_weights", "resample_row_weights"]


def conditional_row_weights(concentration: Array, counts: Array) -> Array:
    """theta_row ~ Dirichlet(gamma pi + n_row): the concentrations, shape (rows, K).

    Where counts have fewer columns, the empty topics beyond them come together in one
    more column at the end.

    Parameters
    ----------
    concentration
        gamma pi, shape (K,).
    counts
        Ratings in each cell, int32, shape (rows, K), or fewer columns.
    """
    stored = counts.shape[1]
    if stored < concentration.shape[0]:
        rest = jnp.sum(concentration[stored:], keepdims=True)
        concentration = jnp.concatenate([concentration[:stored], rest])
        counts = jnp.pad(counts, ((0, 0), (0, 1)))
    return concentration[None] + counts.astype(concentration.dtype)


def resample_row_weights(key: Array, concentration: Array, counts: Array) -> Array:
    """Draw log theta, in the shape of `counts`."""
    parameters = conditional_row_weights(concentration, counts)
    return log_dirichlet(key, parameters)[:, : counts.shape[1]]
