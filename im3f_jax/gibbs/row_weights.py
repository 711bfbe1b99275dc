"""Block: the weights of a side's rows over its topics."""

from jax import Array

from im3f_jax.numerics.random import log_dirichlet

__all__ = ["conditional_row_weights", "resample_row_weights"]


def conditional_row_weights(concentration: Array, counts: Array) -> Array:
    """theta_row ~ Dirichlet(gamma pi + n_row): the concentrations, shape (rows, K).

    Parameters
    ----------
    concentration
        gamma pi, shape (K,).
    counts
        Ratings in each cell, int32, shape (rows, K).
    """
    return concentration[None] + counts.astype(concentration.dtype)


def resample_row_weights(key: Array, concentration: Array, counts: Array) -> Array:
    """Draw log theta, shape (rows, K)."""
    return log_dirichlet(key, conditional_row_weights(concentration, counts))
