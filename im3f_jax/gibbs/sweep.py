"""One Gibbs sweep, as the paper lists it."""

import jax
import jax.numpy as jnp
from jax import Array, lax

from im3f_jax.data.layout import RatingLayout
from im3f_jax.gibbs.biases import bias_statistics, resample_biases
from im3f_jax.gibbs.column_precisions import resample_column_precisions
from im3f_jax.gibbs.crf import resample_franchise
from im3f_jax.gibbs.factor_prior import resample_factor_prior
from im3f_jax.gibbs.factors import resample_factors
from im3f_jax.gibbs.noise import (
    resample_precisions,
    resample_shape,
    shape_statistics,
)
from im3f_jax.gibbs.rating_variance import resample_rating_variance
from im3f_jax.gibbs.reciprocal import reciprocal_sweep
from im3f_jax.gibbs.response import resample_response
from im3f_jax.gibbs.state import (
    NoiseState,
    State,
    SweepInfo,
    TimeState,
    TopicFactorState,
)
from im3f_jax.gibbs.sweep_info import describe_sweep
from im3f_jax.gibbs.table_topics import resample_table_topics, table_room
from im3f_jax.gibbs.time_effects import effect_statistics, resample_effects
from im3f_jax.gibbs.topic_room import (
    reachable,
    stay,
    with_topics_as,
    within_reach,
)
from im3f_jax.gibbs.topic_weights import resample_topic_weights
from im3f_jax.gibbs.topics import SelectingFactors, resample_topics
from im3f_jax.model.bias_prior import bias_of_ratings
from im3f_jax.model.noise import GammaNoise, precision_of_ratings
from im3f_jax.model.reciprocal import is_reciprocal
from im3f_jax.model.scalars import Gamma
from im3f_jax.model.spec import ModelSpec, weight_sides
from im3f_jax.model.time_effects import NoTime, reads_times, time_of_ratings
from im3f_jax.model.topic_factors import topic_factors_of_ratings
from im3f_jax.model.topic_prior import (
    CRF,
)
from im3f_jax.numerics.collectives import num_shards, own_key, sum_across
from im3f_jax.numerics.linalg import dots_of_pairs
from im3f_jax.numerics.reductions import count_by_cell, sum_by_cell

__all__ = ["gibbs_sweep"]


@jax.jit
def gibbs_sweep(
    key: Array, state: State, spec: ModelSpec, data: RatingLayout
) -> tuple[State, SweepInfo]:
    """Draw every block once from its full conditional.

    Under the ordinal likelihood first cut points, the latent ratings summed out, and
    latent ratings, which the other blocks read in the place of the ratings. Factor
    priors, user factors, item factors; the factors that topics index; item topics, user
    topics (rating by rating, then table by table) and both sides' weights; user biases,
    item biases; what depends on time, of items, of users; rating variance; relative
    precisions of the noise. The factors' inner products are computed once, after the
    factors. A side without topics, or with one, skips the blocks that have nothing to
    draw; with topic factors no tables move. A reciprocal model has a sweep of its own.

    Where devices share the ratings (`data.axis`), each draws its own users and the
    topics of its own ratings; items, weights and variances are drawn from sums over all
    shards, and are the same on all of them.

    Parameters
    ----------
    key
        A typed key, consumed.
    state
        The state before.
    spec
        A resolved spec.
    data
        Training ratings.

    Returns
    -------
    tuple
        The state after, and its label-free scalars.
    """
    if is_reciprocal(spec):
        return reciprocal_sweep(key, state, spec, data)
    stored_as = state.user_topic_of_rating.dtype
    state = with_topics_as(state, jnp.int32)
    *keys, response_key, noise_key = jax.random.split(key, 15)
    keys = iter(keys)
    timed = reads_times(spec)
    if timed:
        noise_key, time_key = jax.random.split(noise_key)
    topic_factors, product = state.topic_factors, None
    if topic_factors is not None:
        response_key, topic_factor_key = jax.random.split(response_key)
    room = table_room(data.rating.shape[0])
    valid = jnp.arange(data.rating.shape[0], dtype=jnp.int32) < data.num_ratings
    axis, shards = data.axis, num_shards(data.axis)
    users, items = state.user_bias.shape, state.item_bias.shape
    # Whose weights the topics are drawn from.
    row_of_user_topic, row_of_item_topic = weight_sides(spec, data.user, data.item)

    precision = precision_of_ratings(state.noise, data.user, data.item)

    # Ratings, or what stands for them, given all else.
    user_part = bias_of_ratings(state.user_bias, data.user, state.item_topic_of_rating)
    item_part = bias_of_ratings(state.item_bias, data.item, state.user_topic_of_rating)
    time_part = time_of_ratings(state.time, data.user, data.item, data.times)
    parts = user_part + item_part + time_part if timed else user_part + item_part
    if topic_factors is not None:
        topics = state.user_topic_of_rating, state.item_topic_of_rating
        product = topic_factors_of_ratings(topic_factors, data.user, data.item, topics)
        parts = parts + product
    rating, cut_points, accepted = resample_response(
        spec.likelihood,
        response_key,
        state,
        data,
        valid,
        parts,
        None if precision is None else jnp.sqrt(precision),
    )
    response = rating - state.global_bias
    if timed:
        response = response - time_part

    # Factors, given topics and biases.
    user_key, item_key = next(keys), next(keys)
    increments = state.column_increments
    if increments is None:
        user_prior = resample_factor_prior(
            spec.factor_prior, user_key, state.user_factors, data.num_users, axis=axis
        )
        item_prior = resample_factor_prior(
            spec.factor_prior, item_key, state.item_factors, data.num_items
        )
    else:
        increments, user_prior, item_prior = resample_column_precisions(
            user_key,
            spec.factor_prior,
            increments,
            state.user_factors,
            state.item_factors,
            data.num_users,
            data.num_items,
        )
    x = response if product is None else response - product
    x = jnp.where(valid, x - user_part - item_part, 0)
    user_factors = resample_factors(
        own_key(next(keys), axis),
        user_prior,
        x,
        state.item_factors,
        state.rating_variance,
        data.user_blocks,
        data.num_users,
        precision,
    )
    item_factors = resample_factors(
        next(keys),
        item_prior,
        x,
        user_factors,
        state.rating_variance,
        data.item_blocks,
        data.num_items,
        precision,
        axis=axis,
    )

    # Topics, given factors and biases; then their weights.
    x = response - dots_of_pairs(
        user_factors, item_factors, data.user, data.item, data.chunk
    )
    item_topic, user_topic = state.item_topic_of_rating, state.user_topic_of_rating
    if topic_factors is not None:
        topic_factors = _resample_topic_factors(
            spec,
            topic_factor_key,
            topic_factors,
            data,
            jnp.where(valid, x - user_part - item_part, 0),
            (user_topic, item_topic),
            state.rating_variance,
            valid.astype(x.dtype)
            if precision is None
            else jnp.where(valid, precision, 0),
        )
    item_weights, user_weights = state.item_topic_weights, state.user_topic_weights
    user_bias, user_bias_prior = state.user_bias, state.user_bias_prior
    item_bias, item_bias_prior = state.item_bias, state.item_bias_prior
    item_key, user_key = next(keys), next(keys)
    if isinstance(spec.item_topic_prior, CRF):
        item_topic, seating, user_bias, user_bias_prior = resample_franchise(
            item_key,
            spec.item_topic_prior,
            item_weights.seating,
            user_bias,
            user_bias_prior,
            spec.user_bias_prior.topic_mean,
            (item_weights.dish_concentration, item_weights.table_concentration),
            x - item_part,
            data.item,
            data.user,
            data.num_ratings,
            state.rating_variance,
            data.chunk,
        )
        item_weights = item_weights._replace(seating=seating)
        user_part = bias_of_ratings(user_bias, data.user, item_topic)
    elif users[1] > 1:
        reach = reachable(spec.item_topic_prior, item_weights)
        near = within_reach(item_weights, reach)
        drawn = resample_topics(
            own_key(item_key, axis),
            x - item_part,
            row_of_item_topic,
            data.user,
            near.log_row_weights,
            state.user_bias,
            state.rating_variance,
            data.chunk,
            precision,
            None
            if topic_factors is None
            else SelectingFactors(topic_factors.user, topic_factors.item, user_topic),
        )
        item_topic = stay(drawn, item_topic, reach)
        if topic_factors is None:
            drawn = resample_table_topics(
                next(keys),
                x - item_part,
                row_of_item_topic,
                data.user,
                item_topic,
                near,
                state.user_bias,
                state.rating_variance,
                data.num_ratings,
                data.chunk,
                room,
                precision,
                axis=axis,
            )
            item_topic = stay(drawn, item_topic, reach)
        user_part = bias_of_ratings(state.user_bias, data.user, item_topic)
    if isinstance(spec.user_topic_prior, CRF):
        user_topic, seating, item_bias, item_bias_prior = resample_franchise(
            user_key,
            spec.user_topic_prior,
            user_weights.seating,
            item_bias,
            item_bias_prior,
            spec.item_bias_prior.topic_mean,
            (user_weights.dish_concentration, user_weights.table_concentration),
            x - user_part,
            data.user,
            data.item,
            data.num_ratings,
            state.rating_variance,
            data.chunk,
        )
        user_weights = user_weights._replace(seating=seating)
        item_part = bias_of_ratings(item_bias, data.item, user_topic)
    elif items[1] > 1:
        reach = reachable(spec.user_topic_prior, user_weights, shards)
        near = within_reach(user_weights, reach)
        drawn = resample_topics(
            own_key(user_key, axis),
            x - user_part,
            row_of_user_topic,
            data.item,
            near.log_row_weights,
            state.item_bias,
            state.rating_variance,
            data.chunk,
            precision,
            None
            if topic_factors is None
            else SelectingFactors(topic_factors.item, topic_factors.user, item_topic),
        )
        user_topic = stay(drawn, user_topic, reach)
        if topic_factors is None:
            drawn = resample_table_topics(
                own_key(next(keys), axis),
                x - user_part,
                row_of_user_topic,
                data.item,
                user_topic,
                near,
                state.item_bias,
                state.rating_variance,
                data.num_ratings,
                data.chunk,
                room,
                precision,
            )
            user_topic = stay(drawn, user_topic, reach)
        item_part = bias_of_ratings(state.item_bias, data.item, user_topic)
    user_counts = count_by_cell(
        valid, row_of_user_topic, user_topic, user_weights.log_row_weights.shape
    )
    item_counts = count_by_cell(
        valid, row_of_item_topic, item_topic, item_weights.log_row_weights.shape
    )
    user_weights = resample_topic_weights(
        spec.user_topic_prior,
        next(keys),
        user_weights,
        user_counts,
        valid.shape[0],
        axis=axis,
    )
    item_weights = resample_topic_weights(
        spec.item_topic_prior,
        next(keys),
        item_weights,
        item_counts,
        valid.shape[0],
        axis=axis,
        shared=True,
    )

    if topic_factors is not None:
        topics = user_topic, item_topic
        x = x - topic_factors_of_ratings(topic_factors, data.user, data.item, topics)

    # Biases, given factors and topics.
    user_key, item_key = next(keys), next(keys)
    if users[1]:
        statistics = bias_statistics(
            x - item_part, valid, data.user, item_topic, users, precision
        )
        user_bias, user_bias_prior = resample_biases(
            user_key,
            spec.user_bias_prior,
            user_bias_prior,
            user_bias,
            statistics,
            state.rating_variance,
            by_topic=isinstance(spec.item_topic_prior, CRF),
            axis=axis,
        )
        user_part = bias_of_ratings(user_bias, data.user, item_topic)
    if items[1]:
        statistics = bias_statistics(
            x - user_part, valid, data.item, user_topic, items, precision
        )
        item_bias, item_bias_prior = resample_biases(
            item_key,
            spec.item_bias_prior,
            item_bias_prior,
            item_bias,
            sum_across(statistics, axis),
            state.rating_variance,
            by_topic=isinstance(spec.user_topic_prior, CRF),
        )
        item_part = bias_of_ratings(item_bias, data.item, user_topic)

    residual, time = jnp.where(valid, x - user_part - item_part, 0), state.time
    if timed:
        residual, time = _resample_time(
            spec, time_key, time, data, residual, state.rating_variance, precision
        )
    squares = residual**2
    weighted = squares if precision is None else precision * squares
    rating_variance = resample_rating_variance(
        next(keys),
        spec.likelihood,
        state.rating_variance,
        sum_across(jnp.sum(weighted), axis),
        sum_across(data.num_ratings.astype(weighted.dtype), axis),
    )
    noise = _resample_noise(
        spec, noise_key, state.noise, data, squares, rating_variance
    )

    state = State(
        user_factors=user_factors,
        item_factors=item_factors,
        user_factor_prior=user_prior,
        item_factor_prior=item_prior,
        user_bias=user_bias,
        item_bias=item_bias,
        user_bias_prior=user_bias_prior,
        item_bias_prior=item_bias_prior,
        user_topic_of_rating=user_topic,
        item_topic_of_rating=item_topic,
        user_topic_weights=user_weights,
        item_topic_weights=item_weights,
        rating_variance=rating_variance,
        global_bias=state.global_bias,
        cut_points=cut_points,
        noise=noise,
        column_increments=increments,
        time=time,
        topic_factors=topic_factors,
    )
    info = describe_sweep(
        state,
        spec,
        data,
        rating - residual,
        squares,
        user_counts,
        item_counts,
        accepted,
    )
    return with_topics_as(state, stored_as), info


def _resample_topic_factors(
    spec: ModelSpec,
    key: Array,
    state: TopicFactorState,
    data: RatingLayout,
    residual: Array,
    topics: tuple[Array, Array],
    rating_variance: Array,
    precision: Array,
) -> TopicFactorState:
    """Draw the factors that topics index, of users, then of items, and their priors.

    The vectors of a side under one topic are a side's factors, to which only the
    ratings of that topic belong; each rating reads the vector that its other topic
    selects. `residual` and `precision` are 0 in padding.
    """
    user_topic, item_topic = topics
    prior = spec.topic_factors.prior

    def draw(key, own, other, topic, other_row, other_topic, blocks, num_rows):
        prior_key, *keys = jax.random.split(key, 1 + own.shape[1])
        rows, number, dim = own.shape
        drawn = resample_factor_prior(
            prior, prior_key, own.reshape(-1, dim), num_rows * number
        )
        vectors = other.reshape(-1, dim)
        at = other_row * other.shape[1] + other_topic

        def of_topic(given):
            key, k = given
            return resample_factors(
                key,
                drawn,
                residual,
                vectors,
                rating_variance,
                blocks,
                num_rows,
                jnp.where(topic == k, precision, 0),
                at,
            )

        given = jnp.stack(keys), jnp.arange(number, dtype=topic.dtype)
        return jnp.swapaxes(lax.map(of_topic, given), 0, 1), drawn

    user_key, item_key = jax.random.split(key)
    user, user_prior = draw(
        user_key,
        state.user,
        state.item,
        item_topic,
        data.item,
        user_topic,
        data.user_blocks,
        data.num_users,
    )
    item, item_prior = draw(
        item_key,
        state.item,
        user,
        user_topic,
        data.user,
        item_topic,
        data.item_blocks,
        data.num_items,
    )
    return TopicFactorState(user, item, user_prior, item_prior)


def _resample_time(
    spec: ModelSpec,
    key: Array,
    time: TimeState,
    data: RatingLayout,
    residual: Array,
    rating_variance: Array,
    precision: Array | None,
) -> tuple[Array, TimeState]:
    """Draw what depends on time, of items, then of users, where there is such a part.

    `residual`, shape (N,), 0 in padding, is without all parts of the means; so is what
    is returned, with the new ones.
    """
    valid = jnp.arange(data.rating.shape[0], dtype=jnp.int32) < data.num_ratings
    whole = jnp.zeros_like(data.user)
    sides = (
        ("item", spec.item_time, data.item, data.times.bin, None, data.num_items),
        ("user", spec.user_time, data.user, whole, data.times.drift, data.num_users),
    )
    for side_key, side in zip(jax.random.split(key), sides, strict=True):
        name, prior, row, column, covariate, number = side
        if isinstance(prior, NoTime):
            continue
        old, variance = getattr(time, name), getattr(time, f"{name}_variance")
        table = old if old.ndim == 2 else old[:, None]

        def part(table, row=row, column=column, covariate=covariate):
            each = table[row, column]
            return each if covariate is None else covariate * each

        x = residual + part(table)
        statistics = effect_statistics(
            x, valid, row, column, table.shape, covariate, precision
        )
        table, variance = resample_effects(
            side_key,
            prior.variance,
            table,
            variance,
            statistics,
            rating_variance,
            number,
        )
        residual = jnp.where(valid, x - part(table), 0)
        drawn = {name: table.reshape(old.shape), f"{name}_variance": variance}
        time = time._replace(**drawn)
    return residual, time


def _resample_noise(
    spec: ModelSpec,
    key: Array,
    noise: NoiseState,
    data: RatingLayout,
    squares: Array,
    rating_variance: Array,
) -> NoiseState:
    """Draw the relative precisions that are not constant, one kind after another.

    `squares` are squared residuals, 0 in padding, shape (N,).
    """
    valid = jnp.arange(data.rating.shape[0], dtype=jnp.int32) < data.num_ratings
    keys = iter(jax.random.split(key, 5))
    sides = (
        ("user", spec.user_noise, data.user, data.user_rows, data.num_users),
        ("item", spec.item_noise, data.item, data.item_rows, data.num_items),
    )
    for side, prior, row, rows, number in sides:
        draw_key, shape_key = next(keys), next(keys)
        if not isinstance(prior, GammaNoise):
            continue
        others = precision_of_ratings(
            noise._replace(**{side: None}), data.user, data.item
        )
        error = squares if others is None else others * squares
        column, cells = jnp.zeros_like(row), (rows, 1)
        shape = getattr(noise, f"{side}_shape")
        drawn = resample_precisions(
            draw_key,
            shape,
            count_by_cell(valid, row, column, cells)[:, 0],
            sum_by_cell(error, row, column, cells)[:, 0],
            rating_variance,
        )
        if isinstance(prior.shape, Gamma):
            real = jnp.arange(rows, dtype=jnp.int32) < number
            statistics = shape_statistics(drawn, real)
            shape = resample_shape(shape_key, prior.shape, shape, statistics)
        noise = noise._replace(**{side: drawn, f"{side}_shape": shape})
    if isinstance(spec.rating_noise, GammaNoise):
        others = precision_of_ratings(noise._replace(rating=None), data.user, data.item)
        drawn = resample_precisions(
            next(keys),
            spec.rating_noise.shape,
            valid.astype(jnp.int32),
            squares if others is None else others * squares,
            rating_variance,
        )
        noise = noise._replace(rating=drawn)
    return noise
