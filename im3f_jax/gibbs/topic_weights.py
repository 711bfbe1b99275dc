"""The weights of a side's topics and their concentrations, block after block."""

from functools import singledispatch

import jax
import jax.numpy as jnp
from jax import Array

from im3f_jax.gibbs.concentrations import (
    resample_dish_concentration_of_franchise,
    resample_dish_concentration_of_sticks,
    resample_dish_concentration_of_weak_limit,
    resample_table_concentration,
)
from im3f_jax.gibbs.crf import expected_weights
from im3f_jax.gibbs.global_weights import resample_global_weights
from im3f_jax.gibbs.row_weights import resample_row_weights
from im3f_jax.gibbs.state import TopicWeights
from im3f_jax.gibbs.table_counts import resample_table_counts
from im3f_jax.gibbs.topic_room import largest_empty_first, needs_room
from im3f_jax.model.scalars import Gamma
from im3f_jax.model.topic_prior import (
    CRF,
    HDP,
    FiniteDirichlet,
    row_concentration,
    stored_topics,
    tables_of_dishes,
)
from im3f_jax.numerics.collectives import (
    all_rows,
    num_shards,
    own_key,
    own_rows,
    sum_across,
    sums_before,
)

__all__ = ["resample_topic_weights"]


@singledispatch
def resample_topic_weights(
    prior,
    key: Array,
    weights: TopicWeights,
    counts: Array,
    num_ratings: int,
    axis: str | None = None,
    shared: bool = False,
) -> TopicWeights:
    """Draw a side's global weights, concentrations and row weights, given its topics.

    Parameters
    ----------
    prior
        The side's topic prior; there is a method for each. Without topics nothing is
        drawn.
    key
        A typed key.
    weights
        Current values.
    counts
        Ratings in each (row, topic) cell, int32, shape (rows, K).
    num_ratings
        At least the sum of `counts`, static.
    axis
        Of shards, each with `counts` of its own ratings.
    shared
        All shards have the same rows; else each has rows of its own. Static.
    """
    return weights


@resample_topic_weights.register
def _(
    prior: FiniteDirichlet, key, weights, counts, num_ratings, axis=None, shared=False
):
    if prior.num_topics == 1:
        return weights
    concentration = row_concentration(
        weights.table_concentration, weights.log_global_weights
    )
    if shared:
        counts = sum_across(counts, axis)
    return weights._replace(
        log_row_weights=_row_weights(key, concentration, counts, axis, shared)
    )


@resample_topic_weights.register
def _(prior: HDP, key, weights, counts, num_ratings, axis=None, shared=False):
    # Nothing between the table counts and the row weights reads the row weights.
    keys = iter(jax.random.split(key, 6))
    log_pi, beta, gamma = (
        weights.log_global_weights,
        weights.dish_concentration,
        weights.table_concentration,
    )
    stored = stored_topics(prior)
    rows, before = counts.shape[0], None
    if shared and axis is not None:
        before = sums_before(counts, axis)
    own_tables = resample_table_counts(
        own_key(next(keys), axis),
        counts,
        row_concentration(gamma, log_pi)[:stored],
        num_ratings,
        before=before,
    )
    own_tables = jnp.pad(own_tables, (0, prior.num_topics - stored))
    tables = sum_across(own_tables, axis)
    if shared:
        counts = sum_across(counts, axis)
    else:
        rows *= num_shards(axis)
    table_key, dish_key, sticks_key = next(keys), next(keys), next(keys)
    if isinstance(prior.table_concentration, Gamma):
        gamma = resample_table_concentration(
            table_key,
            prior.table_concentration,
            gamma,
            counts,
            tables[None],
            axis=None if shared else axis,
        )
    sampled = isinstance(prior.dish_concentration, Gamma)
    if sampled and prior.construction == "weak_limit":
        beta = resample_dish_concentration_of_weak_limit(
            dish_key, prior.dish_concentration, beta, own_tables, num_ratings, axis=axis
        )
    log_pi = resample_global_weights(next(keys), prior.construction, tables, beta)
    if sampled and prior.construction == "stick_breaking":
        beta = resample_dish_concentration_of_sticks(
            sticks_key, prior.dish_concentration, log_pi
        )
    overflow = None
    if prior.stored is not None:
        if prior.construction == "weak_limit":
            log_pi = largest_empty_first(log_pi, tables)
        overflow = needs_room(prior, log_pi, rows)
    log_theta = _row_weights(
        next(keys), row_concentration(gamma, log_pi), counts, axis, shared
    )
    return TopicWeights(log_theta, log_pi, beta, gamma, overflow=overflow)


@resample_topic_weights.register
def _(prior: CRF, key, weights, counts, num_ratings, axis=None, shared=False):
    assert axis is None
    table_key, dish_key = jax.random.split(key)
    seats = weights.seating.dish_of_table
    beta, gamma = weights.dish_concentration, weights.table_concentration
    tables = tables_of_dishes(seats, prior.num_topics)
    if isinstance(prior.table_concentration, Gamma):
        gamma = resample_table_concentration(
            table_key, prior.table_concentration, gamma, counts, tables[None]
        )
    if isinstance(prior.dish_concentration, Gamma):
        beta = resample_dish_concentration_of_franchise(
            dish_key, prior.dish_concentration, beta, tables
        )
    log_theta, log_pi = expected_weights(seats, counts, beta, gamma)
    return TopicWeights(log_theta, log_pi, beta, gamma, weights.seating)


def _row_weights(
    key: Array, concentration: Array, counts: Array, axis: str | None, shared: bool
) -> Array:
    """Draw log theta, of rows that all shards have each of them a part."""
    key = own_key(key, axis)
    if not shared:
        return resample_row_weights(key, concentration, counts)
    drawn = resample_row_weights(key, concentration, own_rows(counts, axis))
    return all_rows(drawn, axis)
