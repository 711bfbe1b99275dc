"""Priors of topics: what a row's weights over topics have in common.

Every member gives theta_row ~ Dirichlet(concentration x global weights); they differ
in where the global weights come from. In the Chinese restaurant franchise both are
summed out.
"""

from dataclasses import dataclass, field
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import Array

from im3f_jax.model.scalars import Gamma, log_prior
from im3f_jax.numerics.reductions import count_by_cell
from im3f_jax.numerics.special import log_gamma_function

__all__ = [
    "CONCENTRATION_FLOOR",
    "CRF",
    "HDP",
    "FiniteDirichlet",
    "NoTopics",
    "log_density_of_rows",
    "log_density_of_seating",
    "log_density_of_topics",
    "row_concentration",
    "stored_topics",
    "tables_of_dishes",
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
    `counts` is int32, shape (rows, K), or fewer columns: the topics beyond them are
    empty.
    """
    alpha = row_concentration(concentration, log_global_weights)
    total = jnp.sum(alpha)
    alpha = alpha[: counts.shape[1]]
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
        """Log density of what is drawn for all rows: nothing is, so 0.

        Parameters
        ----------
        log_global_weights
            log pi, shape (K,).
        dish, table
            Concentrations, scalars.

        Returns
        -------
        Array
            0, scalar.
        """
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
    stored
        Columns of the arrays, static: the topics beyond them have no ratings, and what
        belongs to them is summed out. No part of the model; a fit finds how many it
        needs (`gibbs.topic_room`). None: all K.
    """

    num_topics: int = field(metadata={"static": True})
    construction: str = field(default="weak_limit", metadata={"static": True})
    dish_concentration: "float | Gamma" = 1.0
    table_concentration: "float | Gamma" = 1.0
    stored: int | None = field(default=None, metadata={"static": True})

    def log_density(
        self, log_global_weights: Array, dish: Array, table: Array
    ) -> Array:
        """Log density of the global weights and both concentrations, in nats.

        Under the weak limit with respect to log pi; under stick-breaking with respect
        to the sticks v_1 .. v_{K-1}.

        Parameters
        ----------
        log_global_weights
            log pi, shape (K,).
        dish, table
            beta and gamma, positive, scalars.

        Returns
        -------
        Array
            Nats, scalar.
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


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class CRF:
    """The untruncated hierarchical Dirichlet process, as a restaurant franchise.

    Rows are restaurants, ratings customers, topics dishes (Teh et al. 2006, the paper's
    sampler). A customer sits down at table t of its restaurant with probability
    proportional to the customers there, at a new one to gamma; a new table is served
    dish k with probability proportional to the tables that it has in all restaurants,
    a new dish to beta. For small data: ratings are taken one after another.

    Attributes
    ----------
    likelihood
        Static. "conditional": given the biases of the dishes in use, those of a new
        dish summed out; exact for every member of the family. "marginal": the topic
        means summed out; exact for bias variance 0, which it needs. "map": the mean of
        a dish put in their place, as the paper says its experiments did; an
        approximation, which targets no stated posterior.
    dish_concentration
        beta (Teh's gamma): a number, or a `Gamma` prior.
    table_concentration
        gamma (Teh's alpha_0): a number, or a `Gamma` prior.
    num_topics, max_tables
        Room for dishes, and for tables in a row; static. They are no part of the
        model: draws do not depend on them, and a fit makes more room where it needs it.
    """

    likelihood: str = field(default="conditional", metadata={"static": True})
    dish_concentration: "float | Gamma" = 1.0
    table_concentration: "float | Gamma" = 1.0
    num_topics: int = field(default=32, metadata={"static": True})
    max_tables: int = field(default=32, metadata={"static": True})

    def log_density(
        self, log_global_weights: Array, dish: Array, table: Array
    ) -> Array:
        """Log density of both concentrations; the weights are summed out.

        Parameters
        ----------
        log_global_weights
            Not read: a franchise has tables in their place.
        dish, table
            beta and gamma, positive, scalars.

        Returns
        -------
        Array
            Nats, scalar.
        """
        return log_prior(self.dish_concentration, dish) + log_prior(
            self.table_concentration, table
        )


def log_density_of_seating(
    customers: Array,
    dish_of_table: Array,
    num_topics: int,
    dish_concentration: Array,
    table_concentration: Array,
) -> Array:
    """Log probability of a seating in the Chinese restaurant franchise, in nats.

    With n_rt customers at table t of row r, T_r tables in row r and m_k tables with
    dish k, m.. in all, of D dishes,
    sum_r [log Gamma(gamma) - log Gamma(gamma + n_r) + T_r log gamma
    + sum_t log Gamma(n_rt)] + log Gamma(beta) - log Gamma(beta + m..) + D log beta
    + sum_k log Gamma(m_k): the product of the chances of sitting down, one customer
    after another, which does not depend on their order (Teh et al. 2006).

    Parameters
    ----------
    customers
        n_rt, int32, shape (rows, T).
    dish_of_table
        -1 where nobody sits, int32, shape (rows, T).
    num_topics
        At least one more than the largest dish, static.
    dish_concentration, table_concentration
        beta and gamma, scalars.
    """
    tables = tables_of_dishes(dish_of_table, num_topics)
    return jnp.sum(_log_partition(customers, table_concentration)) + jnp.sum(
        _log_partition(tables[None], dish_concentration)
    )


def stored_topics(prior) -> int:
    """Columns that the arrays of a topic prior have."""
    stored = getattr(prior, "stored", None)
    return prior.num_topics if stored is None else stored


def tables_of_dishes(dish_of_table: Array, num_topics: int) -> Array:
    """Count the tables with each dish, m_k: int32, shape (num_topics,)."""
    dish = dish_of_table.reshape(-1)
    return count_by_cell(dish >= 0, jnp.zeros_like(dish), dish, (1, num_topics))[0]


def _log_partition(sizes: Array, concentration: Array) -> Array:
    """Log probability of each row's partition under a Chinese restaurant process."""
    dtype = concentration.dtype
    total = jnp.sum(sizes, axis=1, dtype=jnp.int32)
    blocks = jnp.sum(sizes > 0, axis=1, dtype=jnp.int32)
    inner = log_gamma_function(jnp.maximum(sizes, 1).astype(dtype))
    inner = jnp.where(sizes > 1, inner, 0)
    start = log_gamma_function(concentration) - log_gamma_function(
        concentration + total.astype(dtype)
    )
    return (
        jnp.where(total > 0, start, 0)
        + blocks.astype(dtype) * jnp.log(concentration)
        + jnp.sum(inner, axis=1)
    )
