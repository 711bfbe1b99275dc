"""One Gibbs sweep of a reciprocal model: persons on both sides of a rating."""

import jax
import jax.numpy as jnp
from jax import Array

from im3f_jax.data.layout import RatingLayout
from im3f_jax.gibbs.biases import bias_statistics, resample_biases
from im3f_jax.gibbs.factor_prior import resample_factor_prior
from im3f_jax.gibbs.factors import resample_factors, resample_pair_factors
from im3f_jax.gibbs.halves import resample_halves
from im3f_jax.gibbs.rating_variance import resample_rating_variance
from im3f_jax.gibbs.response import resample_response
from im3f_jax.gibbs.state import BiasPriorState, State, SweepInfo
from im3f_jax.gibbs.sweep_info import describe_sweep
from im3f_jax.gibbs.table_topics import resample_table_topics, table_room
from im3f_jax.gibbs.topic_weights import resample_topic_weights
from im3f_jax.gibbs.topics import resample_topics
from im3f_jax.model.bias_prior import bias_of_ratings
from im3f_jax.model.reciprocal import is_unordered
from im3f_jax.model.spec import ModelSpec
from im3f_jax.numerics.linalg import dots_of_pairs
from im3f_jax.numerics.reductions import count_by_cell

__all__ = ["both_roles", "counts_of_persons", "reciprocal_sweep", "resample_one_table"]


def reciprocal_sweep(
    key: Array, state: State, spec: ModelSpec, data: RatingLayout
) -> tuple[State, SweepInfo]:
    """Draw every block once from its full conditional.

    As `gibbs_sweep`, which calls it, in the same order. What the sides share is drawn
    once, from the ratings of both roles; item topics and user topics read one table of
    weights, and tables hold ratings of both roles. Blocks that need ratings with one
    bias each read their halves (`gibbs.halves`): whole tables, and the biases of
    unordered pairs.
    """
    keys = iter(jax.random.split(key, 12))
    valid = jnp.arange(data.rating.shape[0], dtype=jnp.int32) < data.num_ratings
    unordered = is_unordered(spec)
    item_topic, user_topic = state.item_topic_of_rating, state.user_topic_of_rating

    # Ratings, or what stands for them, given all else.
    user_part = bias_of_ratings(state.user_bias, data.user, item_topic)
    item_part = bias_of_ratings(state.item_bias, data.item, user_topic)
    rating, cut_points, accepted = resample_response(
        spec.likelihood, next(keys), state, data, valid, user_part + item_part, None
    )
    response = rating - state.global_bias

    # Factors, given topics and biases.
    x = jnp.where(valid, response - user_part - item_part, 0)
    factor_key = next(keys)
    factors = (_one_table if unordered else _two_tables)(
        factor_key, spec, state, data, x
    )
    state = state._replace(**factors)

    # Topics, given factors and biases; then their weights.
    x = response - dots_of_pairs(
        state.user_factors, state.item_factors, data.user, data.item, data.chunk
    )
    weights = state.user_topic_weights
    item_key, user_key, half_key, table_key = (next(keys) for _ in range(4))
    if state.user_bias.shape[1] > 1:
        item_topic = resample_topics(
            item_key,
            x - item_part,
            data.item,
            data.user,
            weights.log_row_weights,
            state.user_bias,
            state.rating_variance,
            data.chunk,
        )
        user_part = bias_of_ratings(state.user_bias, data.user, item_topic)
        user_topic = resample_topics(
            user_key,
            x - user_part,
            data.user,
            data.item,
            weights.log_row_weights,
            state.item_bias,
            state.rating_variance,
            data.chunk,
        )
        item_part = bias_of_ratings(state.item_bias, data.item, user_topic)
        user_half, item_half = resample_halves(
            half_key, x, user_part, item_part, state.rating_variance
        )
        bias, offset = state.user_bias, 0
        if not unordered:
            bias = jnp.concatenate([state.item_bias, state.user_bias])
            offset = state.item_bias.shape[0]
        topics = resample_table_topics(
            table_key,
            both_roles(item_half, user_half),
            both_roles(data.user, data.item),
            both_roles(data.item, data.user + offset),
            both_roles(user_topic, item_topic),
            weights,
            bias,
            0.5 * state.rating_variance,
            2 * data.num_ratings,
            data.chunk,
            table_room(2 * valid.shape[0]),
        )
        user_topic, item_topic = topics.reshape(-1, 2).T
        user_part = bias_of_ratings(state.user_bias, data.user, item_topic)
        item_part = bias_of_ratings(state.item_bias, data.item, user_topic)
    counts = counts_of_persons(
        valid, data, user_topic, item_topic, weights.log_row_weights.shape
    )
    weights = resample_topic_weights(
        spec.user_topic_prior, next(keys), weights, counts, 2 * valid.shape[0]
    )

    # Biases, given factors and topics.
    user_key, item_key = next(keys), next(keys)
    biases = {}
    if unordered and state.user_bias.shape[1]:
        bias, prior = resample_one_table(
            user_key,
            spec.user_bias_prior,
            state.user_bias_prior,
            state.user_bias,
            x,
            (user_topic, item_topic),
            data,
            state.rating_variance,
        )
        biases = {f"{side}_bias": bias for side in ("user", "item")}
        biases |= {f"{side}_bias_prior": prior for side in ("user", "item")}
    elif state.user_bias.shape[1]:
        shape = state.user_bias.shape
        user_bias, user_prior = resample_biases(
            user_key,
            spec.user_bias_prior,
            state.user_bias_prior,
            state.user_bias,
            bias_statistics(x - item_part, valid, data.user, item_topic, shape),
            state.rating_variance,
        )
        user_part = bias_of_ratings(user_bias, data.user, item_topic)
        item_bias, item_prior = resample_biases(
            item_key,
            spec.item_bias_prior,
            state.item_bias_prior,
            state.item_bias,
            bias_statistics(x - user_part, valid, data.item, user_topic, shape),
            state.rating_variance,
        )
        biases = {"user_bias": user_bias, "item_bias": item_bias}
        biases |= {"user_bias_prior": user_prior, "item_bias_prior": item_prior}
    state = state._replace(**biases)
    user_part = bias_of_ratings(state.user_bias, data.user, item_topic)
    item_part = bias_of_ratings(state.item_bias, data.item, user_topic)

    residual = jnp.where(valid, x - user_part - item_part, 0)
    squares = residual**2
    state = state._replace(
        user_topic_of_rating=user_topic,
        item_topic_of_rating=item_topic,
        user_topic_weights=weights,
        item_topic_weights=weights,
        rating_variance=resample_rating_variance(
            next(keys),
            spec.likelihood,
            state.rating_variance,
            jnp.sum(squares),
            data.num_ratings,
        ),
        cut_points=cut_points,
    )
    info = describe_sweep(
        state, spec, data, rating - residual, squares, counts, counts, accepted
    )
    return state, info


def both_roles(first: Array, second: Array) -> Array:
    """Interleave what the ratings have of two roles, so that padding stays at the end.

    Two of shape (N,) make one of shape (2N,).
    """
    return jnp.stack([first, second], axis=1).reshape(-1)


def counts_of_persons(
    valid: Array,
    data: RatingLayout,
    user_topic: Array,
    item_topic: Array,
    shape: tuple[int, int],
) -> Array:
    """Count the ratings of each (person, topic) cell, in both roles: int32, (P, K)."""
    return count_by_cell(valid, data.user, user_topic, shape) + count_by_cell(
        valid, data.item, item_topic, shape
    )


def resample_one_table(
    key: Array,
    prior,
    state: BiasPriorState,
    bias: Array,
    residual: Array,
    topics: tuple[Array, Array],
    data: RatingLayout,
    rating_variance: Array,
) -> tuple[Array, BiasPriorState]:
    """Draw the biases of persons in unordered pairs, from the halves of their ratings.

    Parameters
    ----------
    key
        A typed key.
    prior, state, bias
        As in `resample_biases`; bias has shape (P, K).
    residual
        x_n without either bias, rating scale, shape (N,).
    topics
        User topics and item topics of the ratings, int32, shape (N,) each.
    data
        Whose pairs they are.
    rating_variance
        sigma^2, scalar.
    """
    half_key, key = jax.random.split(key)
    user_topic, item_topic = topics
    valid = jnp.arange(residual.shape[0], dtype=jnp.int32) < data.num_ratings
    user_half, item_half = resample_halves(
        half_key,
        residual,
        bias[data.user, item_topic],
        bias[data.item, user_topic],
        rating_variance,
    )
    statistics = bias_statistics(
        both_roles(user_half, item_half),
        both_roles(valid, valid),
        both_roles(data.user, data.item),
        both_roles(item_topic, user_topic),
        bias.shape,
    )
    return resample_biases(key, prior, state, bias, statistics, 0.5 * rating_variance)


def _one_table(key: Array, spec, state: State, data, residual: Array) -> dict:
    """Draw the factors of persons, and their prior; by field of both sides."""
    prior_key, key = jax.random.split(key)
    prior = resample_factor_prior(
        spec.factor_prior, prior_key, state.user_factors, data.num_users
    )
    factors = resample_pair_factors(
        key, prior, residual, state.user_factors, state.rating_variance, data.pairs
    )
    drawn = {f"{side}_factors": factors for side in ("user", "item")}
    return drawn | {f"{side}_factor_prior": prior for side in ("user", "item")}


def _two_tables(key: Array, spec, state: State, data, residual: Array) -> dict:
    """Draw the factors of each role, and their priors; by field."""
    keys = jax.random.split(key, 4)
    user_prior = resample_factor_prior(
        spec.factor_prior, keys[0], state.user_factors, data.num_users
    )
    item_prior = resample_factor_prior(
        spec.factor_prior, keys[1], state.item_factors, data.num_items
    )
    user_factors = resample_factors(
        keys[2],
        user_prior,
        residual,
        state.item_factors,
        state.rating_variance,
        data.user_blocks,
        data.num_users,
    )
    item_factors = resample_factors(
        keys[3],
        item_prior,
        residual,
        user_factors,
        state.rating_variance,
        data.item_blocks,
        data.num_items,
    )
    return {
        "user_factors": user_factors,
        "item_factors": item_factors,
        "user_factor_prior": user_prior,
        "item_factor_prior": item_prior,
    }
