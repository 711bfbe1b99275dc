"""Priors of topics: what a row's weights over topics have in common.

Every member gives theta_row ~ Dirichlet(concentration x global weights); they differ
in where the global weights come from.
"""

from dataclasses import dataclass, field
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import Array

from im3f_jax.model.scalars import Gamma, log_prior
from im3f_jax.numerics.special import log_gamma_function

__all__ = [
    "CONCENTRATION_FLOOR",
    "HDP",
    "FiniteDirichlet",
    "NoTopics",
    "log_density_of_rows",
    "log_density_of_topics",
    "row_concentration",
]

# The one place where a concentration is kept from underflowing to 0 in float32. It
# feeds rows x topics x 1e-30 imaginary ratings to the topics: nothing.
CONCENTRATION_FLOOR = 1e-30


def row_concentration(table_concentration: Array, log_global_weights: Array) -> Array:
    """Concentration of a row's weights: gamma pi, shape (K,), at least the floor."""
    product = table_concentration * jnp.exp(log_global_weights)
    return jnp.maximum(product, CONCENTRATION_FLOOR)


def log_density_of_rows(
    log_weights: Array, valid: Array, log_global_weights: Array, concentration: Array
) -> Array:
    """Log density of theta_row ~ Dirichlet(gamma pi) for all rows, in nats.

    With respect to log theta (the log-ratio coordinates of the simplex): the density
    with respect to theta itself grows without bound as an unused weight falls to 0.
    `log_weights` (rows, K); `valid` (rows,) is False for padding.
    """
    alpha = row_concentration(concentration, log_global_weights)
    constant = log_gamma_function(jnp.sum(alpha)) - jnp.sum(log_gamma_function(alpha))
    rows = jnp.sum(alpha[None] * log_weights, axis=-1)
    return jnp.sum(jnp.where(valid, constant + rows, 0))


def log_density_of_topics(
    counts: Array, log_global_weights: Array, concentration: Array
) -> Array:
    """Log probability of a side's topics with theta summed out, in nats.

    Dirichlet-multinomial: a sum over rows of log Gamma(gamma) - log Gamma(gamma + n_r)
    + sum_k log Gamma(gamma pi_k + n_rk) - log Gamma(gamma pi_k); empty cells add 0.
    `counts` is int32, shape (rows, K).
    """
    alpha = row_concentration(concentration, log_global_weights)
    total = jnp.sum(alpha)
    of_row = jnp.sum(counts, axis=1, dtype=jnp.int32).astype(alpha.dtype)
    filled = counts.astype(alpha.dtype)
    cells = jnp.where(
        counts > 0,
        log_gamma_function(alpha[None] + filled) - log_gamma_function(alpha)[None],
        0,
    )
    rows = jnp.where(
        of_row > 0, log_gamma_function(total) - log_gamma_function(total + of_row), 0
    )
    return jnp.sum(cells) + jnp.sum(rows)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class NoTopics:
    """No topics on this side: the other side has no biases."""

    num_topics: ClassVar[int] = 0


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class FiniteDirichlet:
    """theta_row ~ Dirichlet(alpha / K, ..., alpha / K): a fixed number of topics.

    Attributes
    ----------
    num_topics
        K, static.
    concentration
        alpha, of all topics together; 10,000 makes the weights nearly uniform.
    """

    num_topics: int = field(metadata={"static": True})
    concentration: float = 10000.0

    def log_density(
        self, log_global_weights: Array, dish: Array, table: Array
    ) -> Array:
        """Nothing global is drawn: 0."""
        return jnp.zeros((), log_global_weights.dtype)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class HDP:
    """A truncated hierarchical Dirichlet process (Teh et al. 2006).

    Global weights pi come from the weak limit, Dirichlet(beta / K), or from sticks,
    pi_k = v_k prod_{l<k} (1 - v_l) with v_k ~ Beta(1, beta) and v_K = 1; then
    theta_row ~ Dirichlet(gamma pi).

    Attributes
    ----------
    num_topics
        The truncation K, static. It is part of the model and never changes.
    construction
        "weak_limit" or "stick_breaking", static.
    dish_concentration
        beta (Teh's gamma): a number, or a `Gamma` prior.
    table_concentration
        gamma (Teh's alpha_0): a number, or a `Gamma` prior.
    """

    num_topics: int = field(metadata={"static": True})
    construction: str = field(default="weak_limit", metadata={"static": True})
    dish_concentration: "float | Gamma" = 1.0
    table_concentration: "float | Gamma" = 1.0

    def log_density(
        self, log_global_weights: Array, dish: Array, table: Array
    ) -> Array:
        """Log density of the global weights and both concentrations, in nats.

        Under the weak limit with respect to log pi; under stick-breaking with respect
        to the sticks v_1 .. v_{K-1}.
        """
        count = self.num_topics
        if self.construction == "weak_limit":
            share = dish / count
            weights = (
                log_gamma_function(dish)
                - count * log_gamma_function(share)
                + share * jnp.sum(log_global_weights)
            )
        else:
            # prod (1 - v_k) over k < K is pi_K, since v_K = 1.
            weights = (count - 1) * jnp.log(dish) + (dish - 1) * log_global_weights[-1]
        return (
            weights
            + log_prior(self.dish_concentration, dish)
            + log_prior(self.table_concentration, table)
        )
