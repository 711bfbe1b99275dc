"""Block: the global weights of a side's topics."""

import jax.numpy as jnp
from jax import Array

from im3f_jax.numerics.random import log_beta_pair, log_dirichlet

__all__ = [
    "conditional_sticks",
    "conditional_weak_limit",
    "resample_global_weights",
]


def conditional_weak_limit(table_counts: Array, dish_concentration: Array) -> Array:
    """Pi ~ Dirichlet(beta / K + m): the concentrations, shape (K,)."""
    (num_topics,) = table_counts.shape
    return dish_concentration / num_topics + table_counts.astype(
        dish_concentration.dtype
    )


def conditional_sticks(
    table_counts: Array, dish_concentration: Array
) -> tuple[Array, Array]:
    """v_k ~ Beta(1 + m_k, beta + sum_{l > k} m_l), k < K: both, shape (K - 1,)."""
    dtype = dish_concentration.dtype
    running = jnp.cumsum(table_counts, dtype=jnp.int32)
    later = running[-1] - running
    return (
        1 + table_counts[:-1].astype(dtype),
        dish_concentration + later[:-1].astype(dtype),
    )


def resample_global_weights(
    key: Array, construction: str, table_counts: Array, dish_concentration: Array
) -> Array:
    """Draw log pi, shape (K,), given the tables of each topic, int32, shape (K,)."""
    if construction == "weak_limit":
        return log_dirichlet(
            key, conditional_weak_limit(table_counts, dish_concentration)
        )
    log_stick, log_rest = log_beta_pair(
        key, *conditional_sticks(table_counts, dish_concentration)
    )
    zero = jnp.zeros(1, log_stick.dtype)
    left = jnp.concatenate([zero, jnp.cumsum(log_rest)])
    return left + jnp.concatenate([log_stick, zero])
