"""Where a chain starts."""

from dataclasses import replace
from functools import singledispatch

import jax
import jax.numpy as jnp
from jax import Array
from jax.scipy.special import ndtri

from im3f_jax.data.layout import RatingLayout
from im3f_jax.gibbs.biases import bias_statistics, resample_biases
from im3f_jax.gibbs.column_precisions import spread_increments
from im3f_jax.gibbs.reciprocal import counts_of_persons, resample_one_table
from im3f_jax.gibbs.state import (
    BiasPriorState,
    FactorPriorState,
    NoiseState,
    Seating,
    State,
    TimeState,
    TopicFactorState,
    TopicWeights,
)
from im3f_jax.gibbs.topic_room import topic_dtype, with_topics_as
from im3f_jax.gibbs.topic_weights import resample_topic_weights
from im3f_jax.model.bias_prior import SharedNormal, TopicNormal
from im3f_jax.model.factor_prior import MultiplicativeGamma, NormalWishart
from im3f_jax.model.likelihood import Ordinal
from im3f_jax.model.noise import GammaNoise
from im3f_jax.model.reciprocal import is_reciprocal, is_unordered
from im3f_jax.model.scalars import start_value
from im3f_jax.model.spec import ModelSpec, weight_sides
from im3f_jax.model.time_effects import NoTime, TimeBins, time_of_ratings
from im3f_jax.model.topic_factors import TopicFactors, topic_factors_of_ratings
from im3f_jax.model.topic_prior import CRF, HDP, FiniteDirichlet, stored_topics
from im3f_jax.numerics.collectives import own_key, sum_across
from im3f_jax.numerics.linalg import dots_of_pairs
from im3f_jax.numerics.reductions import count_by_cell

__all__ = ["START_VARIANCE", "init_state", "start_response"]

# Of the columns' precisions at the start, the largest over the least, at most: they
# are finite where a column of the given factors is 0.
START_RANGE = 1e4

# Variance of the latent ratings that the start supposes: the noise, 1, and as much from
# the means as a Gaussian model explains of the stars of ML-100K.
START_VARIANCE = 1.4


@jax.jit
def init_state(
    key: Array,
    spec: ModelSpec,
    data: RatingLayout,
    user_factors: Array | None = None,
    item_factors: Array | None = None,
    start_topics: Array | int = 1,
) -> State:
    """Start a chain with the ratings of a side in one topic, or scattered over few.

    On ratings of films a chain that starts scattered over all topics keeps every topic
    occupied for hundreds of sweeps. Variances start at the mode of their prior, biases
    and weights at a draw given the rest.

    Parameters
    ----------
    key
        A typed key, consumed.
    spec
        A resolved spec.
    data
        Training ratings.
    user_factors, item_factors
        Shape (rows, latent_dim), from a MAP fit. Without them the factors are drawn
        from a normal with the mean and the precision that their prior expects. Those
        of persons in unordered pairs are the users'.
    start_topics
        Topics a side over which the ratings are scattered at random; at most the
        side's truncation. In the Chinese restaurant franchise each row has a table for
        each, and there are at most num_topics - 1 and max_tables.

    Returns
    -------
    State
        Of one chain, before its first sweep.
    """
    bias_key = jax.random.fold_in(key, 2)
    keys = iter(jax.random.split(key, 6))
    dtype = data.rating.dtype
    (num_ratings,) = data.rating.shape
    num_user_topics, num_item_topics = spec.num_user_topics, spec.num_item_topics
    prior = _factor_prior(spec.factor_prior, spec.latent_dim, dtype)
    increments = None
    if user_factors is None:
        user_key = own_key(next(keys), data.axis)
        user_factors = _factors(user_key, prior, data.user_rows)
    if item_factors is None:
        item_factors = _factors(next(keys), prior, data.item_rows)
    if is_unordered(spec):
        item_factors = user_factors
    if isinstance(spec.factor_prior, MultiplicativeGamma):
        increments = _increments(user_factors, item_factors, data)
        prior = spread_increments(increments)
    users = jnp.arange(data.user_rows, dtype=jnp.int32) < data.num_users
    items = jnp.arange(data.item_rows, dtype=jnp.int32) < data.num_items
    valid = jnp.arange(num_ratings, dtype=jnp.int32) < data.num_ratings

    def scatter(key, num_topics):
        most = jnp.clip(start_topics, 1, max(num_topics, 1)).astype(jnp.int32)
        key = own_key(key, data.axis)
        uniform = jax.random.uniform(key, (num_ratings,), dtype)
        topic = (uniform * most.astype(dtype)).astype(jnp.int32)
        return jnp.minimum(topic, most - 1)

    user_topic = scatter(next(keys), _start_room(spec.user_topic_prior))
    item_topic = scatter(next(keys), _start_room(spec.item_topic_prior))

    user_topic_row, item_topic_row = weight_sides(
        spec, (data.user, data.user_rows), (data.item, data.item_rows)
    )

    def weights(prior, key, row, topic, shared=False):
        row, rows = row
        shape = rows, stored_topics(prior)
        start = _weights(prior, shape, dtype)
        if is_reciprocal(spec):  # both sides' at once
            counts = counts_of_persons(valid, data, user_topic, item_topic, shape)
            return resample_topic_weights(prior, key, start, counts, 2 * num_ratings)
        counts = count_by_cell(valid, row, topic, shape)
        if isinstance(prior, CRF):
            start = start._replace(seating=_seating(prior, valid, row, topic, shape[0]))
        return resample_topic_weights(
            prior, key, start, counts, num_ratings, data.axis, shared
        )

    state = State(
        user_factors=jnp.where(users[:, None], user_factors, 0).astype(dtype),
        item_factors=jnp.where(items[:, None], item_factors, 0).astype(dtype),
        user_factor_prior=prior,
        item_factor_prior=prior,
        user_bias=_biases(spec.user_bias_prior, data.user_rows, num_item_topics, dtype),
        item_bias=_biases(spec.item_bias_prior, data.item_rows, num_user_topics, dtype),
        user_bias_prior=_bias_prior(
            spec.user_bias_prior, data.user_rows, num_item_topics, dtype
        ),
        item_bias_prior=_bias_prior(
            spec.item_bias_prior, data.item_rows, num_user_topics, dtype
        ),
        user_topic_of_rating=user_topic,
        item_topic_of_rating=item_topic,
        user_topic_weights=weights(
            spec.user_topic_prior,
            next(keys),
            user_topic_row,
            user_topic,
        ),
        item_topic_weights=weights(
            spec.item_topic_prior,
            next(keys),
            item_topic_row,
            item_topic,
            shared=True,
        ),
        rating_variance=jnp.maximum(
            jnp.asarray(start_value(spec.likelihood.variance), dtype),
            jnp.asarray(spec.likelihood.variance_floor, dtype),
        )
        if _sampled(spec.likelihood.variance)
        else jnp.asarray(spec.likelihood.variance, dtype),
        global_bias=jnp.asarray(spec.global_bias, dtype),
        cut_points=start_response(spec.likelihood, data)[1],
        noise=_noise(spec, data),
        column_increments=increments,
        time=_time(jax.random.fold_in(key, 1), spec, data),
        topic_factors=_topic_factors(jax.random.fold_in(key, 3), spec, data),
    )
    if is_reciprocal(spec):
        state = state._replace(item_topic_weights=state.user_topic_weights)
    state = _draw_biases(bias_key, spec, state, data, valid)
    return with_topics_as(state, topic_dtype(spec))


def _draw_biases(
    key: Array, spec: ModelSpec, state: State, data: RatingLayout, valid: Array
) -> State:
    """Draw the biases, user's then item's, given the variances that they start with.

    A sweep draws their variances first: from biases of 0 these would be next to
    nothing, and with thousands of sparse rows take thousands of sweeps to grow.
    """
    response = start_response(spec.likelihood, data)[0] - state.global_bias
    response -= dots_of_pairs(
        state.user_factors, state.item_factors, data.user, data.item, data.chunk
    )
    time_part = time_of_ratings(state.time, data.user, data.item, data.times)
    if time_part is not None:
        response -= time_part
    if state.topic_factors is not None:
        topics = state.user_topic_of_rating, state.item_topic_of_rating
        response -= topic_factors_of_ratings(
            state.topic_factors, data.user, data.item, topics
        )
    axis = data.axis
    sides = (
        ("user", data.user, state.item_topic_of_rating, spec.item_topic_prior, axis),
        ("item", data.item, state.user_topic_of_rating, spec.user_topic_prior, None),
    )
    for side_key, side in zip(jax.random.split(key), sides, strict=True):
        name, row, topic, topic_prior, rows_axis = side
        bias = getattr(state, f"{name}_bias")
        if not bias.shape[1]:
            continue
        prior = getattr(spec, f"{name}_bias_prior")
        own = getattr(state, f"{name}_bias_prior")
        fixed = {"variance": 0.0, "topic_mean_variance": 0.0}  # as `own` has them
        if isinstance(prior, SharedNormal):
            fixed["shared_variance"] = 0.0
        if is_unordered(spec):
            topics = state.user_topic_of_rating, state.item_topic_of_rating
            bias, own = resample_one_table(
                side_key,
                replace(prior, **fixed),
                own,
                bias,
                response,
                topics,
                data,
                state.rating_variance,
            )
            return state._replace(
                user_bias=bias,
                item_bias=bias,
                user_bias_prior=own,
                item_bias_prior=own,
            )
        statistics = bias_statistics(response, valid, row, topic, bias.shape)
        if name == "item":
            statistics = sum_across(statistics, axis)
        bias, own = resample_biases(
            side_key,
            replace(prior, **fixed),
            own,
            bias,
            statistics,
            state.rating_variance,
            by_topic=isinstance(topic_prior, CRF),
            axis=rows_axis,
        )
        response -= bias[row, topic]
        state = state._replace(**{f"{name}_bias": bias, f"{name}_bias_prior": own})
    return state


def _noise(spec: ModelSpec, data: RatingLayout) -> NoiseState:
    """Start with relative precisions of 1, and shapes at the mean of their prior."""
    dtype, fields = data.rating.dtype, {}
    for side, rows in (("user", data.user_rows), ("item", data.item_rows)):
        prior = getattr(spec, f"{side}_noise")
        if isinstance(prior, GammaNoise):
            fields[side] = jnp.ones(rows, dtype)
            fields[f"{side}_shape"] = jnp.asarray(start_value(prior.shape), dtype)
    if isinstance(spec.rating_noise, GammaNoise):
        fields["rating"] = jnp.ones(data.rating.shape, dtype)
    return NoiseState(**fields)


def _time(key: Array, spec: ModelSpec, data: RatingLayout) -> TimeState:
    """Start with variances at their prior's mode, and effects drawn with them.

    From effects of 0 the first variance drawn would be next to nothing, and with
    thousands of effects it would take hundreds of sweeps to grow.
    """
    dtype, fields = data.rating.dtype, {}
    bins = spec.item_time.num_bins if isinstance(spec.item_time, TimeBins) else 0
    sides = (
        ("item", spec.item_time, (data.item_rows, bins), data.num_items),
        ("user", spec.user_time, (data.user_rows,), data.num_users),
    )
    for side_key, side in zip(jax.random.split(key), sides, strict=True):
        name, prior, shape, number = side
        if isinstance(prior, NoTime):
            continue
        variance = jnp.asarray(start_value(prior.variance), dtype)
        effect = jnp.sqrt(variance) * jax.random.normal(side_key, shape, dtype)
        rows = jnp.arange(shape[0], dtype=jnp.int32) < number
        rows = rows.reshape(-1, *[1] * (len(shape) - 1))
        fields[name] = jnp.where(rows, effect, 0)
        fields[f"{name}_variance"] = variance
    return TimeState(**fields)


@singledispatch
def start_response(likelihood, data: RatingLayout) -> tuple[Array, Array]:
    """Give what the factors' MAP fit explains, and where the cut points start.

    The ratings, and none. Under the ordinal likelihood, for latents of mean 0 and
    variance START_VARIANCE: the latents' expectations given their levels (normal
    scores), and the quantiles at the cumulative shares of the levels, half a rating
    added to each.

    Returns
    -------
    tuple of Array
        Shapes (N,) and (L - 1,).
    """
    return data.rating, jnp.zeros(0, data.rating.dtype)


@start_response.register
def _(likelihood: Ordinal, data):
    dtype = data.rating.dtype
    valid = jnp.arange(data.rating.shape[0], dtype=jnp.int32) < data.num_ratings
    level = likelihood.level_of(data.rating)
    shape = 1, len(likelihood.levels)
    counts = count_by_cell(valid, jnp.zeros_like(level), level, shape)[0]
    counts = sum_across(counts, data.axis)
    share = counts.astype(dtype) + 0.5
    share = share / jnp.sum(share)
    cut_points = ndtri(jnp.cumsum(share)[:-1])
    density = jnp.exp(-0.5 * cut_points**2) * (2 * jnp.pi) ** -0.5
    density = jnp.pad(density, 1)
    scores = (density[:-1] - density[1:]) / share
    spread = START_VARIANCE**0.5
    return spread * scores[level], spread * cut_points


def _start_room(prior) -> int:
    if isinstance(prior, CRF):
        return min(prior.num_topics - 1, prior.max_tables)
    return stored_topics(prior)


def _seating(prior: CRF, valid: Array, row: Array, topic: Array, rows: int) -> Seating:
    """Seat the ratings of a row with one topic at one table, of that number."""
    shape = rows, prior.max_tables
    slots = jnp.broadcast_to(jnp.arange(shape[1], dtype=jnp.int32), shape)
    return Seating(
        table_of_rating=topic,
        dish_of_table=jnp.where(count_by_cell(valid, row, topic, shape) > 0, slots, -1),
        overflow=jnp.zeros((), jnp.int32),
    )


def _sampled(prior) -> bool:
    return hasattr(prior, "shape") and hasattr(prior, "scale")


def _topic_factors(key: Array, spec: ModelSpec, data) -> TopicFactorState | None:
    """Start with draws a tenth as wide as their prior expects: a small part."""
    part = spec.topic_factors
    if not isinstance(part, TopicFactors):
        return None
    prior = _factor_prior(part.prior, part.dim, data.rating.dtype)
    user_key, item_key = jax.random.split(key)

    def draw(key, rows, num_rows, number):
        wide = _factors(key, prior, rows * number).reshape(rows, number, part.dim)
        valid = jnp.arange(rows, dtype=jnp.int32) < num_rows
        return jnp.where(valid[:, None, None], 0.1 * wide, 0)

    return TopicFactorState(
        user=draw(user_key, data.user_rows, data.num_users, spec.num_item_topics),
        item=draw(item_key, data.item_rows, data.num_items, spec.num_user_topics),
        user_prior=prior,
        item_prior=prior,
    )


def _factor_prior(prior, dim: int, dtype) -> FactorPriorState:
    if isinstance(prior, NormalWishart):
        mean, precision = prior.mean, prior.degrees_of_freedom * prior.scale
    elif isinstance(prior, MultiplicativeGamma):  # no column is shrunk at the start
        mean, precision = 0.0, prior.first_shape / prior.rate
    else:
        mean, precision = 0.0, prior.precision
    return FactorPriorState(
        mean=jnp.full(dim, mean, dtype),
        precision=(precision * jnp.eye(dim, dtype=dtype)).astype(dtype),
    )


def _factors(key: Array, prior: FactorPriorState, rows: int) -> Array:
    noise = jax.random.normal(key, (rows, prior.mean.shape[0]), prior.mean.dtype)
    return prior.mean[None] + noise * jax.lax.rsqrt(prior.precision[0, 0])


def _increments(user_factors: Array, item_factors: Array, data: RatingLayout) -> Array:
    """Find delta for which the columns' precisions are those of the factors."""
    users = jnp.arange(data.user_rows, dtype=jnp.int32) < data.num_users
    items = jnp.arange(data.item_rows, dtype=jnp.int32) < data.num_items
    squares = jnp.sum(jnp.where(users[:, None], user_factors, 0) ** 2, axis=0)
    squares += jnp.sum(jnp.where(items[:, None], item_factors, 0) ** 2, axis=0)
    squares = squares.astype(data.rating.dtype)
    squares = jnp.maximum(squares, jnp.max(squares) / START_RANGE)
    num_rows = (data.num_users + data.num_items).astype(squares.dtype)
    precision = num_rows / squares
    return precision / jnp.append(jnp.ones_like(precision[:1]), precision[:-1])


def _biases(prior: TopicNormal, rows: int, num_topics: int, dtype) -> Array:
    return jnp.full((rows, num_topics), prior.topic_mean, dtype)


def _bias_prior(
    prior: TopicNormal, rows: int, num_topics: int, dtype
) -> BiasPriorState:
    shared = shared_variance = None
    if isinstance(prior, SharedNormal):
        shared = jnp.zeros(rows, dtype)
        shared_variance = jnp.asarray(start_value(prior.shared_variance), dtype)
    return BiasPriorState(
        topic_mean=jnp.full(num_topics, prior.topic_mean, dtype),
        variance=jnp.asarray(start_value(prior.variance), dtype),
        topic_mean_variance=jnp.asarray(start_value(prior.topic_mean_variance), dtype),
        shared=shared,
        shared_variance=shared_variance,
    )


def _weights(prior, shape: tuple[int, int], dtype) -> TopicWeights:
    num_topics = prior.num_topics
    uniform = jnp.full(num_topics, -jnp.log(max(num_topics, 1)), dtype)
    dish = table = 1.0
    if isinstance(prior, HDP | CRF):
        dish = start_value(prior.dish_concentration)
        table = start_value(prior.table_concentration)
    elif isinstance(prior, FiniteDirichlet):
        table = prior.concentration
    return TopicWeights(
        log_row_weights=jnp.broadcast_to(uniform[: shape[1]], shape),
        log_global_weights=uniform,
        dish_concentration=jnp.asarray(dish, dtype),
        table_concentration=jnp.asarray(table, dtype),
        overflow=None
        if getattr(prior, "stored", None) is None
        else jnp.zeros((), bool),
    )
