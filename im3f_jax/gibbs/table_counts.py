"""Block: how many tables serve each dish, rows summed."""

import jax.numpy as jnp
from jax import Array

from im3f_jax.numerics.random import chinese_restaurant_tables

__all__ = ["conditional_table_counts", "resample_table_counts"]


def conditional_table_counts(concentration: Array, max_customers: int) -> Array:
    """Chance that customer i = 0 .. n - 1 of a cell opened a table: a / (a + i).

    The tables of a cell with n customers are the sum of such independent Bernoulli
    variables, with a = gamma pi_k: their number m has probability proportional to
    s(n, m) a^m, s the unsigned Stirling numbers (Antoniak 1974, Teh et al. 2006).

    Parameters
    ----------
    concentration
        gamma pi, shape (K,).
    max_customers
        n, static.

    Returns
    -------
    Array
        Shape (n, K).
    """
    rank = jnp.arange(max_customers).astype(concentration.dtype)[:, None]
    return concentration[None] / (concentration[None] + rank)


def resample_table_counts(
    key: Array,
    counts: Array,
    concentration: Array,
    num_ratings: int,
    before: Array | None = None,
) -> Array:
    """Draw the number of tables of each topic, summed over rows: int32, shape (K,).

    `counts` are the ratings in each cell, int32, shape (rows, K); `concentration` is
    gamma pi, shape (K,); `num_ratings`, static, is at least the sum of the counts.
    Where other shards have ratings of the same rows, those of the shards before are
    `before`, in the shape of `counts`, and their tables are not counted.
    """
    return chinese_restaurant_tables(key, counts, concentration, num_ratings, before)
