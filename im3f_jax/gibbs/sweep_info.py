"""What a sweep tells: scalars that do not depend on labels."""

import jax.numpy as jnp
from jax import Array

from im3f_jax.data.layout import RatingLayout
from im3f_jax.gibbs.state import BiasPriorState, State, SweepInfo
from im3f_jax.model.likelihood import Ordinal
from im3f_jax.model.log_joint import log_joint
from im3f_jax.model.noise import precision_of_ratings
from im3f_jax.model.spec import ModelSpec
from im3f_jax.numerics.collectives import sum_across

__all__ = ["describe_sweep", "effective_dimension"]


def describe_sweep(
    state: State,
    spec: ModelSpec,
    data: RatingLayout,
    mean: Array,
    squares: Array,
    user_counts: Array,
    item_counts: Array,
    accepted: Array,
) -> SweepInfo:
    """Describe the state after a sweep.

    Parameters
    ----------
    state
        The state after the sweep.
    spec
        A resolved spec.
    data
        Training ratings.
    mean
        Means of the ratings, or of the latent ratings, shape (N,).
    squares
        Squared residuals from `mean`, 0 in padding, shape (N,).
    user_counts, item_counts
        Ratings in each (row, topic) cell, int32, shapes (rows, K); of this shard.
    accepted
        1 if the cut points were moved, 0 if not, scalar.
    """
    dtype, axis = squares.dtype, data.axis
    squared_error = jnp.sum(squares)
    precision = precision_of_ratings(state.noise, data.user, data.item)
    weighted = squared_error if precision is None else jnp.sum(precision * squares)
    log_joint_now = log_joint(
        state,
        spec,
        data,
        weighted,
        (user_counts, sum_across(item_counts, axis)),
        mean,
    )
    if isinstance(spec.likelihood, Ordinal):  # on the scale of the ratings themselves
        root = None if precision is None else jnp.sqrt(precision)
        expected = spec.likelihood.expected_rating(mean, state.cut_points, root)
        valid = jnp.arange(mean.shape[0], dtype=jnp.int32) < data.num_ratings
        squared_error = jnp.sum(jnp.where(valid, (data.rating - expected) ** 2, 0))
    squared_error = sum_across(squared_error, axis)
    num_user_topics, effective_user_topics = _occupied(user_counts, dtype, axis)
    num_item_topics, effective_item_topics = _occupied(item_counts, dtype, axis)
    count = sum_across(data.num_ratings.astype(dtype), axis)
    return SweepInfo(
        log_joint=log_joint_now,
        rating_variance=state.rating_variance,
        residual_rmse=jnp.sqrt(squared_error / count),
        num_user_topics=num_user_topics,
        num_item_topics=num_item_topics,
        effective_user_topics=effective_user_topics,
        effective_item_topics=effective_item_topics,
        user_bias_variance=state.user_bias_prior.variance,
        item_bias_variance=state.item_bias_prior.variance,
        user_shared_bias_variance=_shared_variance(state.user_bias_prior),
        item_shared_bias_variance=_shared_variance(state.item_bias_prior),
        user_topic_mean_variance=state.item_bias_prior.topic_mean_variance,
        item_topic_mean_variance=state.user_bias_prior.topic_mean_variance,
        user_dish_concentration=state.user_topic_weights.dish_concentration,
        item_dish_concentration=state.item_topic_weights.dish_concentration,
        user_table_concentration=state.user_topic_weights.table_concentration,
        item_table_concentration=state.item_topic_weights.table_concentration,
        user_noise_shape=_shape_or_infinite(state.noise.user_shape, dtype),
        item_noise_shape=_shape_or_infinite(state.noise.item_shape, dtype),
        item_time_variance=_variance_or_zero(state.time.item_variance, dtype),
        user_drift_variance=_variance_or_zero(state.time.user_variance, dtype),
        effective_dimension=effective_dimension(
            state.user_factors, state.item_factors, axis
        ),
        cut_points_accepted=accepted,
    )


def effective_dimension(
    user_factors: Array, item_factors: Array, axis: str | None = None
) -> Array:
    """exp(entropy of the columns' shares of the energy of the product), a scalar.

    Column h has the energy |a_h|^2 |b_h|^2, the squared norm of its part of A B'. 1
    where a single column has all of it, D where all columns have the same.

    Parameters
    ----------
    user_factors, item_factors
        Shapes (user rows, D) and (item rows, D), 0 in rows of padding.
    axis
        Of shards that each hold some of the users.
    """
    users, items = (jnp.sum(x**2, axis=0) for x in (user_factors, item_factors))
    energy = sum_across(users, axis) * items
    return _exp_entropy(energy / jnp.sum(energy))


def _shared_variance(prior: BiasPriorState) -> Array:
    if prior.shared_variance is None:
        return jnp.zeros_like(prior.variance)
    return prior.shared_variance


def _variance_or_zero(variance: Array | None, dtype) -> Array:
    return jnp.zeros((), dtype) if variance is None else variance


def _shape_or_infinite(shape: Array | None, dtype) -> Array:
    return jnp.full((), jnp.inf, dtype) if shape is None else shape


def _occupied(counts: Array, dtype, axis: str | None) -> tuple[Array, Array]:
    """Topics with a rating, and exp(entropy of the topics' shares of ratings)."""
    if not counts.shape[1]:
        return jnp.zeros((), jnp.int32), jnp.zeros((), dtype)
    # In all shards there may be more than int32 counts.
    of_topic = jnp.sum(counts, axis=0, dtype=jnp.int32).astype(dtype)
    of_topic = sum_across(of_topic, axis)
    share = of_topic / jnp.sum(of_topic)
    return jnp.sum(of_topic > 0, dtype=jnp.int32), _exp_entropy(share)


def _exp_entropy(share: Array) -> Array:
    return jnp.exp(-jnp.sum(jnp.where(share > 0, share * jnp.log(share), 0)))
