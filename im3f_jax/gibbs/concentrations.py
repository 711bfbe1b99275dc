"""Block: the concentrations of a side, where they are sampled.

The forms are exact for the truncated priors. Escobar and West's rule with the number
of dishes is for the untruncated process only; on a truncated prior it is biased.
"""

import jax
import jax.numpy as jnp
from jax import Array

from im3f_jax.model.scalars import Gamma
from im3f_jax.numerics.collectives import own_key, sum_across, sums_before
from im3f_jax.numerics.parameters import GammaParameters
from im3f_jax.numerics.random import (
    chinese_restaurant_tables,
    log_beta_pair,
    log_gamma,
)

__all__ = [
    "conditional_dish_concentration_of_franchise",
    "conditional_dish_concentration_of_sticks",
    "conditional_dish_concentration_of_weak_limit",
    "conditional_table_concentration",
    "resample_dish_concentration_of_franchise",
    "resample_dish_concentration_of_sticks",
    "resample_dish_concentration_of_weak_limit",
    "resample_table_concentration",
]


def conditional_table_concentration(
    prior: Gamma, num_tables: Array, log_w: Array
) -> GammaParameters:
    """Gamma given w_r ~ Beta(gamma, n_r): Gamma(a + m.., b - sum_r log w_r).

    `num_tables` m.. is a scalar, `log_w` has shape (rows,), 0 for rows without ratings.
    """
    return GammaParameters(
        prior.shape + num_tables.astype(log_w.dtype), prior.rate - jnp.sum(log_w)
    )


def resample_table_concentration(
    key: Array,
    prior: Gamma,
    concentration: Array,
    counts: Array,
    table_counts: Array,
    axis: str | None = None,
) -> Array:
    """Draw gamma, scalar, by way of the auxiliary w of each row with ratings.

    `counts`, shape (rows, K), are those of the rows of a shard where `axis` is given;
    `table_counts`, of any shape, are all.
    """
    w_key, draw_key = jax.random.split(key)
    w_key = own_key(w_key, axis)
    of_row = jnp.sum(counts, axis=1, dtype=jnp.int32)
    b = jnp.maximum(of_row, 1).astype(concentration.dtype)
    log_w, _ = log_beta_pair(w_key, jnp.broadcast_to(concentration, b.shape), b)
    log_w = jnp.where(of_row > 0, log_w, 0)
    if axis is not None:
        log_w = sum_across(jnp.sum(log_w, keepdims=True), axis)
    return _draw(
        draw_key,
        conditional_table_concentration(
            prior, jnp.sum(table_counts, dtype=jnp.int32), log_w
        ),
    )


def conditional_dish_concentration_of_weak_limit(
    prior: Gamma, num_drawn: Array, log_eta: Array
) -> GammaParameters:
    """Beta given eta and l, pi summed out: Gamma(a + sum_k l_k, b - log eta).

    l_k is a sum over i < m_k of Bernoulli((beta / K) / (beta / K + i)), and
    eta ~ Beta(beta, m..).
    """
    return GammaParameters(
        prior.shape + num_drawn.astype(log_eta.dtype), prior.rate - log_eta
    )


def resample_dish_concentration_of_weak_limit(
    key: Array,
    prior: Gamma,
    concentration: Array,
    table_counts: Array,
    num_ratings: int,
    axis: str | None = None,
) -> Array:
    """Draw beta, scalar, before pi; `num_ratings` is static and bounds the tables.

    `table_counts`, shape (K,), are those of a shard where `axis` is given.
    """
    l_key, eta_key, draw_key = jax.random.split(key, 3)
    (num_topics,) = table_counts.shape
    share = jnp.broadcast_to(concentration / num_topics, (num_topics,))
    before = None if axis is None else sums_before(table_counts, axis)[None]
    drawn = chinese_restaurant_tables(
        own_key(l_key, axis), table_counts[None], share, num_ratings, before
    )
    drawn, table_counts = sum_across((drawn, table_counts), axis)
    total = jnp.sum(table_counts, dtype=jnp.int32)
    log_eta, _ = log_beta_pair(
        eta_key, concentration, jnp.maximum(total, 1).astype(concentration.dtype)
    )
    return _draw(
        draw_key,
        conditional_dish_concentration_of_weak_limit(
            prior,
            jnp.sum(drawn, dtype=jnp.int32),
            jnp.where(total > 0, log_eta, 0),
        ),
    )


def conditional_dish_concentration_of_franchise(
    prior: Gamma, num_dishes: Array, log_eta: Array
) -> GammaParameters:
    """Beta given eta ~ Beta(beta, m..) and D dishes: Gamma(a + D, b - log eta).

    Escobar and West (1995) for the untruncated process, with their auxiliary variable:
    the probability of D dishes on m.. tables has beta^D Gamma(beta) / Gamma(beta +
    m..), and the fraction is proportional to the integral of eta^(beta - 1)
    (1 - eta)^(m.. - 1). (They take Beta(beta + 1, m..), and then a mixture of two.)
    """
    return GammaParameters(
        prior.shape + num_dishes.astype(log_eta.dtype), prior.rate - log_eta
    )


def resample_dish_concentration_of_franchise(
    key: Array, prior: Gamma, concentration: Array, table_counts: Array
) -> Array:
    """Draw beta, scalar, given the tables of each dish, int32, shape (K,)."""
    eta_key, draw_key = jax.random.split(key)
    total = jnp.sum(table_counts, dtype=jnp.int32)
    log_eta, _ = log_beta_pair(
        eta_key, concentration, jnp.maximum(total, 1).astype(concentration.dtype)
    )
    return _draw(
        draw_key,
        conditional_dish_concentration_of_franchise(
            prior,
            jnp.sum(table_counts > 0, dtype=jnp.int32),
            jnp.where(total > 0, log_eta, 0),
        ),
    )


def conditional_dish_concentration_of_sticks(
    prior: Gamma, log_global_weights: Array
) -> GammaParameters:
    """Beta given the sticks: Gamma(a + K - 1, b - sum_{k<K} log(1 - v_k)).

    The sum is log pi_K, since v_K = 1.
    """
    (num_topics,) = log_global_weights.shape
    return GammaParameters(
        prior.shape + jnp.asarray(num_topics - 1, log_global_weights.dtype),
        prior.rate - log_global_weights[-1],
    )


def resample_dish_concentration_of_sticks(
    key: Array, prior: Gamma, log_global_weights: Array
) -> Array:
    """Draw beta, scalar, after the sticks."""
    return _draw(
        key, conditional_dish_concentration_of_sticks(prior, log_global_weights)
    )


def _draw(key: Array, parameters: GammaParameters) -> Array:
    return jnp.exp(log_gamma(key, parameters.shape)) / parameters.rate
