"""The log joint density of a state: what every conditional must agree with."""

from dataclasses import replace

import jax.numpy as jnp
from jax import Array

from im3f_jax.model.bias_prior import bias_of_ratings
from im3f_jax.model.likelihood import Ordinal
from im3f_jax.model.noise import precision_of_ratings
from im3f_jax.model.reciprocal import is_reciprocal, is_unordered
from im3f_jax.model.spec import weight_sides
from im3f_jax.model.time_effects import time_of_ratings
from im3f_jax.model.topic_factors import topic_factors_of_ratings
from im3f_jax.model.topic_prior import (
    CRF,
    log_density_of_rows,
    log_density_of_seating,
    log_density_of_topics,
    row_concentration,
    tables_of_dishes,
)
from im3f_jax.numerics.collectives import any_across, sum_across
from im3f_jax.numerics.reductions import count_by_cell
from im3f_jax.numerics.special import log_gamma_function

__all__ = ["log_joint", "log_joint_of_counts"]


def log_joint(
    state,
    spec,
    data,
    squared_error: Array | None = None,
    topic_counts: tuple[Array, Array] | None = None,
    mean: Array | None = None,
) -> Array:
    """Log joint density of ratings and state, in nats, up to a constant.

    It holds the row weights theta and the global weights pi explicitly, not the
    tables; under the Chinese restaurant franchise the seating, and neither of them,
    and the biases of the dishes in use only (`log_density_of_seating`). Under the
    ordinal likelihood the latent ratings are summed out. Densities are
    with respect to log theta and log pi (the sticks under stick-breaking), which stay
    finite where weights underflow. What the sides of a reciprocal model share counts
    once; so does what shards share (`data.axis`), and all of them get the whole.

    Parameters
    ----------
    state
        A `gibbs.state.State`.
    spec
        A resolved `ModelSpec`.
    data
        A `data.layout.RatingLayout`.
    squared_error
        Sum of squared residuals (times their relative precisions) over the ratings,
        where the caller has it already; of a shard, over its own ratings.
    topic_counts
        Ratings in each (row, topic) cell, of users and of items, int32. Given, the
        row weights are summed out; the weights of unused topics, which carry no
        information but much of the density, then leave no mark. Where an HDP stores
        the topics that it finds, their biases are summed out too. Of a reciprocal model
        the first are those of both roles together, and the second are not read. Of
        a shard the first are those of its own users, the second all.
    mean
        Of the latent ratings, shape (N,), where the caller has it already; read by the
        ordinal likelihood only.

    Returns
    -------
    Array
        Scalar.
    """
    given = squared_error, topic_counts, mean
    used = None
    if topic_counts is not None:
        used = [jnp.any(counts > 0, axis=0) for counts in topic_counts]
        used[0] = any_across(used[0], data.axis)
    total = _log_joint(state, spec, data, *given, used)
    if data.axis is None:
        return total
    # What belongs to no user and to no rating, all shards have: it counts once.
    common = _log_joint(*_without_users(state, spec, data, *given), used)
    return common + sum_across(total - common, data.axis)


def _without_users(state, spec, data, squared_error, topic_counts, mean):
    """Leave the arguments of `_log_joint` without users and their ratings."""
    none = jnp.zeros_like(data.num_ratings)
    prior, weights = state.user_bias_prior, state.user_topic_weights
    shared = None if prior.shared is None else prior.shared[:1]
    state = state._replace(  # one row of padding, and one rating
        user_factors=state.user_factors[:1],
        user_bias=state.user_bias[:1],
        user_bias_prior=prior._replace(shared=shared),
        user_topic_weights=weights._replace(
            log_row_weights=weights.log_row_weights[:1]
        ),
        user_topic_of_rating=state.user_topic_of_rating[:1],
        item_topic_of_rating=state.item_topic_of_rating[:1],
    )
    data = replace(
        data,
        user=data.user[:1],
        item=data.item[:1],
        rating=data.rating[:1],
        num_ratings=none,
        num_users=none,
        user_rows=1,
    )
    if squared_error is not None:
        squared_error = jnp.zeros_like(squared_error)
    if topic_counts is not None:
        topic_counts = jnp.zeros_like(topic_counts[0][:1]), topic_counts[1]
    mean = None if mean is None else mean[:1]
    return state, spec, data, squared_error, topic_counts, mean


def _log_joint(state, spec, data, squared_error, topic_counts, mean, used) -> Array:
    """`log_joint`, of a shard as if there were no others; topics in use are given."""
    valid = jnp.arange(data.rating.shape[0], dtype=jnp.int32) < data.num_ratings
    precision = precision_of_ratings(state.noise, data.user, data.item)
    if isinstance(spec.likelihood, Ordinal):
        mean = mean_of_ratings(state, data) if mean is None else mean
        root = None if precision is None else jnp.sqrt(precision)
        total = spec.likelihood.log_density(
            data.rating, mean, valid, state.cut_points, root
        )
    else:
        if squared_error is None:
            squares = (data.rating - mean_of_ratings(state, data)) ** 2
            if precision is not None:
                squares = precision * squares
            squared_error = jnp.sum(jnp.where(valid, squares, 0))
        total = spec.likelihood.log_density(
            squared_error, data.num_ratings, state.rating_variance
        )
        if precision is not None:
            total += 0.5 * jnp.sum(jnp.where(valid, jnp.log(precision), 0))
    users = jnp.arange(data.user_rows, dtype=jnp.int32) < data.num_users
    items = jnp.arange(data.item_rows, dtype=jnp.int32) < data.num_items
    noise = state.noise
    for each, rows, prior, shape in (
        (noise.user, users, spec.user_noise, noise.user_shape),
        (noise.item, items, spec.item_noise, noise.item_shape),
        (noise.rating, valid, spec.rating_noise, None),
    ):
        if each is not None:
            shape = jnp.asarray(prior.shape, each.dtype) if shape is None else shape
            total += prior.log_density(each, rows, shape)
    time = state.time
    for effect, rows, prior, variance in (
        (time.item, items, spec.item_time, time.item_variance),
        (time.user, users, spec.user_time, time.user_variance),
    ):
        if effect is not None:
            total += prior.log_density(effect, rows, variance)
    num_tables = 1 if is_unordered(spec) else 2  # of factors and of biases
    for factors, rows, prior in (
        (state.user_factors, users, state.user_factor_prior),
        (state.item_factors, items, state.item_factor_prior),
    )[:num_tables]:
        total += spec.factor_prior.log_density(prior.mean, prior.precision)
        total += _log_factors(factors, rows, prior)
    extra = state.topic_factors
    if extra is not None:
        for factors, rows, prior in (
            (extra.user, users, extra.user_prior),
            (extra.item, items, extra.item_prior),
        ):
            total += spec.topic_factors.prior.log_density(prior.mean, prior.precision)
            number, dim = factors.shape[1:]
            total += _log_factors(
                factors.reshape(-1, dim), jnp.repeat(rows, number), prior
            )
    if state.column_increments is not None:
        total += spec.factor_prior.log_density_of_increments(state.column_increments)
    for bias, rows, state_prior, prior, weights, of_topics in (
        (
            state.user_bias,
            users,
            state.user_bias_prior,
            spec.user_bias_prior,
            state.item_topic_weights,
            1,
        ),
        (
            state.item_bias,
            items,
            state.item_bias_prior,
            spec.item_bias_prior,
            state.user_topic_weights,
            0,
        ),
    )[:num_tables]:
        if bias.shape[1]:
            in_use = None
            if weights.seating is not None:
                in_use = (
                    tables_of_dishes(weights.seating.dish_of_table, bias.shape[1]) > 0
                )
            elif weights.overflow is not None and topic_counts is not None:
                in_use = used[of_topics]
            shared = state_prior.shared
            if shared is not None:
                total += prior.log_density_of_shared(
                    shared, rows, state_prior.shared_variance
                )
                bias = bias - shared[:, None]
            total += prior.log_density(
                bias,
                rows,
                state_prior.topic_mean,
                state_prior.variance,
                state_prior.topic_mean_variance,
                in_use,
            )
    of_user_topics, of_item_topics = weight_sides(
        spec, (data.user, users), (data.item, items)
    )
    for side, weights, topic, (row, rows), prior in (
        (
            0,
            state.user_topic_weights,
            state.user_topic_of_rating,
            of_user_topics,
            spec.user_topic_prior,
        ),
        (
            1,
            state.item_topic_weights,
            state.item_topic_of_rating,
            of_item_topics,
            spec.item_topic_prior,
        ),
    ):
        if not prior.num_topics:
            continue
        if topic_counts is None and not isinstance(prior, CRF):
            drawn = weights.log_row_weights[row, topic]
            total += jnp.sum(jnp.where(valid, drawn, 0))
        if side and is_reciprocal(spec):
            continue
        pi, gamma = weights.log_global_weights, weights.table_concentration
        total += prior.log_density(pi, weights.dish_concentration, gamma)
        if isinstance(prior, CRF):
            seating = weights.seating
            customers = count_by_cell(
                valid, row, seating.table_of_rating, seating.dish_of_table.shape
            )
            total += log_density_of_seating(
                customers,
                seating.dish_of_table,
                prior.num_topics,
                weights.dish_concentration,
                gamma,
            )
        elif topic_counts is None:
            total += log_density_of_rows(weights.log_row_weights, rows, pi, gamma)
        else:
            total += log_density_of_topics(topic_counts[side], pi, gamma)
    return total


def mean_of_ratings(state, data) -> Array:
    """Mean of each rating (or latent rating) given everything, shape (N,).

    chi_0 + a_u . b_j + c_u[zM_n] + d_j[zU_n], and where the model has topic factors
    v_u[zM_n] . w_j[zU_n], where it reads times e_j[bin_n] + f_u x_n; plain, for checks
    on small data.
    """
    mean = state.global_bias + jnp.sum(
        state.user_factors[data.user] * state.item_factors[data.item], axis=-1
    )
    mean += bias_of_ratings(state.user_bias, data.user, state.item_topic_of_rating)
    mean += bias_of_ratings(state.item_bias, data.item, state.user_topic_of_rating)
    if state.topic_factors is not None:
        topics = state.user_topic_of_rating, state.item_topic_of_rating
        mean += topic_factors_of_ratings(
            state.topic_factors, data.user, data.item, topics
        )
    part = time_of_ratings(state.time, data.user, data.item, data.times)
    return mean if part is None else mean + part


def _log_factors(factors: Array, rows: Array, prior) -> Array:
    dim = factors.shape[1]
    offset = factors - prior.mean[None]
    log_det = jnp.linalg.slogdet(prior.precision)[1]
    quadratic = jnp.einsum(
        "ud,de,ue->u", offset, prior.precision, offset, precision="highest"
    )
    each = 0.5 * (log_det - dim * jnp.log(2 * jnp.pi) - quadratic)
    return jnp.sum(jnp.where(rows, each, 0))


def log_joint_of_counts(
    prior,
    counts: Array,
    table_counts: Array,
    log_global_weights: Array,
    dish_concentration: Array,
    table_concentration: Array,
    log_stirling: Array,
) -> Array:
    """Log joint of topics, tables and global weights with theta summed out, in nats.

    sum_rows [log Gamma(gamma) - log Gamma(gamma + n_r)] + sum_cells [log s(n, m) +
    m log(gamma pi_k)] + log p(pi, beta, gamma), with s the unsigned Stirling numbers
    of the first kind (Teh et al. 2006, Antoniak 1974). It serves the blocks of table
    counts, global weights and concentrations.

    Parameters
    ----------
    prior
        An `HDP`.
    counts, table_counts
        Ratings and tables in each cell, integers, shape (rows, K).
    log_global_weights
        Shape (K,).
    dish_concentration, table_concentration
        Scalars.
    log_stirling
        log s(n, m), shape (at least max n + 1, at least max m + 1).
    """
    dtype = log_global_weights.dtype
    of_row = jnp.sum(counts, axis=1).astype(dtype)
    rows = log_gamma_function(table_concentration) - log_gamma_function(
        table_concentration + of_row
    )
    alpha = jnp.log(row_concentration(table_concentration, log_global_weights))
    tables = table_counts.astype(dtype)
    cells = log_stirling[counts, table_counts] + jnp.where(
        table_counts > 0, tables * alpha[None], 0
    )
    return (
        jnp.sum(rows)
        + jnp.sum(cells)
        + prior.log_density(log_global_weights, dish_concentration, table_concentration)
    )
