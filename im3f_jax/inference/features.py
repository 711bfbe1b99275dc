"""A draw's predictions as inner products.

The mean of a rating over its topics, chi_0 + a_u . b_j + sum_k theta_M[j, k] c_u[k] +
sum_i theta_U[u, i] d_j[i], is chi_0 plus the inner product of a vector of the user,
[a_u, c_u, theta_U[u]], with a vector of the item, [b_j, theta_M[j], d_j]. Where the
noise differs between users or items, relative precisions stand at the end, p_u beside a
0 of the item and a 0 of the user beside q_j: they add nothing to the product. Topic
factors add, before these, v_u[k, d] theta_U[u, i] beside theta_M[j, k] w_j[i, d] for
every k, i, d; as weights sum to 1, the sums over i and over k give v and w again.

Where the topics that select a row's biases come from its own weights, the vectors are
[a_u, s_u, 1, c_u, theta_M[u], 0, 0] and [b_j, 1, s_j, 0, 0, d_j, theta_U[j]] instead,
with s_u = sum_k theta_M[u, k] c_u[k] and s_j = sum_i theta_U[j, i] d_j[i].

What depends on the time of a rating is no inner product: it is added to chi_0, pair by
pair.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax
from jax.scipy.special import ndtr

from im3f_jax.data.layout import RatingLayout
from im3f_jax.gibbs.state import State, TopicWeights
from im3f_jax.model.likelihood import Ordinal
from im3f_jax.model.noise import GammaNoise
from im3f_jax.model.spec import ModelSpec, weight_sides
from im3f_jax.model.topic_factors import TopicFactors
from im3f_jax.numerics.special import HALF_LOG_TWO_PI, log_student, student_cdf

__all__ = [
    "TOPICS",
    "RowParts",
    "expected_ratings",
    "feature_width",
    "features_of_rows",
    "largest_weights",
    "mixture_of_pairs",
    "noise_of_pairs",
    "parts_of_product",
    "parts_of_rows",
    "precisions_of_features",
    "prediction_features",
    "topics_of_features",
]

# Topics a side that one rating's mixture holds: those of largest weight in its row.
TOPICS = 8


def feature_width(spec: ModelSpec) -> int:
    """Numbers in the vector of a user or an item."""
    topics = spec.num_item_topics + spec.num_user_topics
    if spec.own_topics:
        topics = 2 + 2 * topics
    products = math.prod(_product_shape(spec))
    return spec.latent_dim + topics + products + 2 * _noise_differs(spec)


def _product_shape(spec: ModelSpec) -> tuple[int, int, int]:
    """Item topics, user topics and dimension of products of topic factors."""
    part = spec.topic_factors
    dim = part.dim if isinstance(part, TopicFactors) else 0
    return spec.num_item_topics, spec.num_user_topics, dim


def _noise_differs(spec: ModelSpec) -> bool:
    """Whether the noise has a scale of each user, or of each item."""
    return any(isinstance(n, GammaNoise) for n in (spec.user_noise, spec.item_noise))


def prediction_features(
    state: State, data: RatingLayout, own_topics: bool = False
) -> tuple[Array, Array]:
    """User and item vectors of a draw.

    The first row of padding holds what the prior expects of a new row: mu for the
    factors, the topic means for the biases, pi for the weights, 1 for the precision.

    Parameters
    ----------
    state, data
        A draw, and the training ratings.
    own_topics
        As in the spec.

    Returns
    -------
    tuple of Array
        Shapes (user rows, F) and (item rows, F), with F = latent_dim + item topics +
        user topics, item topics x user topics x dim more with topic factors, and 2 more
        where the noise differs; `feature_width` of them.
    """
    if own_topics:
        return _with_precisions(*_own_features(state, data), state, data)
    user_weights, item_weights = state.user_topic_weights, state.item_topic_weights
    new_user = jnp.concatenate(
        [
            state.user_factor_prior.mean,
            state.user_bias_prior.topic_mean,
            jnp.exp(_stored(user_weights)),
        ]
    )
    new_item = jnp.concatenate(
        [
            state.item_factor_prior.mean,
            jnp.exp(_stored(item_weights)),
            state.item_bias_prior.topic_mean,
        ]
    )
    user = jnp.concatenate(
        [state.user_factors, state.user_bias, jnp.exp(user_weights.log_row_weights)],
        axis=1,
    )
    item = jnp.concatenate(
        [state.item_factors, jnp.exp(item_weights.log_row_weights), state.item_bias],
        axis=1,
    )
    user = user.at[data.num_users].set(new_user)
    item = item.at[data.num_items].set(new_item)
    extra = state.topic_factors
    if extra is not None:
        dim, width = state.user_factors.shape[1], state.user_bias.shape[1]
        # The weights as they stand above, prior and all; expected of a new row is mu.
        theta_user, theta_item = user[:, dim + width :], item[:, dim : dim + width]
        v = extra.user.at[data.num_users].set(extra.user_prior.mean)
        w = extra.item.at[data.num_items].set(extra.item_prior.mean)
        of_user = v[:, :, None] * theta_user[:, None, :, None]
        of_item = w[:, None] * theta_item[:, :, None, None]
        user = jnp.concatenate([user, of_user.reshape(len(user), -1)], axis=1)
        item = jnp.concatenate([item, of_item.reshape(len(item), -1)], axis=1)
    return _with_precisions(user, item, state, data)


def _stored(weights: TopicWeights) -> Array:
    """Log global weights of the topics that have columns."""
    return weights.log_global_weights[: weights.log_row_weights.shape[1]]


def _own_features(state: State, data: RatingLayout) -> tuple[Array, Array]:
    """Vectors of a draw in which each row has topics of its own."""

    def columns(factors, new_factors, bias, prior, weights, new):
        factors = factors.at[new].set(new_factors)
        bias = bias.at[new].set(prior.topic_mean)
        theta = jnp.exp(weights.log_row_weights.at[new].set(weights.log_global_weights))
        part = jnp.sum(theta * bias, axis=1, keepdims=True)
        return factors, part, jnp.concatenate([bias, theta], axis=1)

    a, s_u, of_user = columns(
        state.user_factors,
        state.user_factor_prior.mean,
        state.user_bias,
        state.user_bias_prior,
        state.item_topic_weights,
        data.num_users,
    )
    b, s_j, of_item = columns(
        state.item_factors,
        state.item_factor_prior.mean,
        state.item_bias,
        state.item_bias_prior,
        state.user_topic_weights,
        data.num_items,
    )
    none_u = jnp.zeros((len(a), of_item.shape[1]), a.dtype)
    none_j = jnp.zeros((len(b), of_user.shape[1]), b.dtype)
    return (
        jnp.concatenate([a, s_u, jnp.ones_like(s_u), of_user, none_u], axis=1),
        jnp.concatenate([b, jnp.ones_like(s_j), s_j, none_j, of_item], axis=1),
    )


def _with_precisions(
    user: Array, item: Array, state: State, data: RatingLayout
) -> tuple[Array, Array]:
    """Put relative precisions at the end, where the noise differs."""
    noise = state.noise
    if noise.user is None and noise.item is None:
        return user, item
    nothing_u, nothing_i = jnp.zeros_like(user[:, :1]), jnp.zeros_like(item[:, :1])
    by_user = nothing_u + 1 if noise.user is None else noise.user[:, None]
    by_item = nothing_i + 1 if noise.item is None else noise.item[:, None]
    return (
        jnp.concatenate([user, by_user.at[data.num_users].set(1), nothing_u], axis=1),
        jnp.concatenate([item, nothing_i, by_item.at[data.num_items].set(1)], axis=1),
    )


class RowParts(NamedTuple):
    """What a user's or an item's vector is made of; one axis, the last, is the parts'.

    Of a user the biases are indexed by item topics, the weights are over user topics;
    of an item the reverse.
    """

    factors: Array
    bias: Array
    weights: Array
    precision: Array | None  # an axis less; None where the noise does not differ


def parts_of_rows(vectors: Array, spec: ModelSpec, side: str) -> RowParts:
    """Take the vectors of users or of items ("user", "item") apart, shape (.., F).

    Not those of topic factors, nor those of rows with topics of their own.
    """
    dim, middle = spec.latent_dim, spec.latent_dim + spec.num_item_topics
    end = middle + spec.num_user_topics
    parts = vectors[..., dim:middle], vectors[..., middle:end]
    bias, weights = parts if side == "user" else parts[::-1]
    precision = None
    if _noise_differs(spec):
        precision = precisions_of_features(vectors, vectors)[side == "item"]
    return RowParts(vectors[..., :dim], bias, weights, precision)


def features_of_rows(parts: RowParts, side: str) -> Array:
    """Put vectors of users or of items together: what `parts_of_rows` takes apart."""
    factors, bias, weights, precision = parts
    topics = (bias, weights) if side == "user" else (weights, bias)
    if precision is None:
        return jnp.concatenate([factors, *topics], axis=-1)
    ends = precision[..., None], jnp.zeros_like(precision)[..., None]
    ends = ends if side == "user" else ends[::-1]
    return jnp.concatenate([factors, *topics, *ends], axis=-1)


def largest_weights(
    users: Array, items: Array, spec: ModelSpec
) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Find the TOPICS largest weights in each row of a draw, and their topics.

    For users, then items, each of shape (rows, topics).
    """

    def largest(weights: Array) -> tuple[Array, Array]:
        number = weights.shape[1]
        if number <= TOPICS:
            index = jnp.arange(number, dtype=jnp.int32)
            return weights, jnp.broadcast_to(index, weights.shape)
        return lax.top_k(weights, TOPICS)

    of_user_topics, of_item_topics = weight_sides(spec, users, items)
    _, (start_u, start_i) = _places(spec)
    return (
        largest(of_user_topics[:, start_u : start_u + spec.num_user_topics]),
        largest(of_item_topics[:, start_i : start_i + spec.num_item_topics]),
    )


def _places(spec: ModelSpec) -> tuple[tuple[int, int], tuple[int, int]]:
    """Where biases and where weights begin: of user topics, of item topics."""
    start, number = spec.latent_dim, spec.num_item_topics
    if not spec.own_topics:
        return (start + number, start), (start + number, start)
    start += 2
    of_user_topics = start + 2 * number
    return (of_user_topics, start), (
        of_user_topics + spec.num_user_topics,
        start + number,
    )


def topics_of_features(users, items, spec: ModelSpec, side: str) -> tuple:
    """Find one side's topics in vectors of draws: their weights, and their biases.

    Parameters
    ----------
    users, items
        Vectors as `prediction_features` gives them, with any axes before the last two.
    spec
        For the sizes.
    side
        "user" for user topics (moods), "item" for item topics (contexts).

    Returns
    -------
    tuple of array
        Weights, shape (..., rows, topics), of users for user topics, of items for item
        topics, the other way round under `own_topics`; and the biases that the topics
        select, of items for user topics, of users for item topics.
    """
    place = 0 if side == "user" else 1
    number = spec.num_user_topics if side == "user" else spec.num_item_topics
    of_bias, of_weights = (starts[place] for starts in _places(spec))
    weights = weight_sides(spec, users, items)[place]
    bias = items if side == "user" else users
    return (
        weights[..., of_weights : of_weights + number],
        bias[..., of_bias : of_bias + number],
    )


def mixture_of_pairs(
    users: Array,
    items: Array,
    largest: tuple[tuple[Array, Array], tuple[Array, Array]],
    spec: ModelSpec,
    global_bias: Array,
    user: Array,
    item: Array,
) -> tuple[Array, Array]:
    """Means of pairs' ratings under their topics of largest weight, and the weights.

    Parameters
    ----------
    users, items
        Vectors of a draw, as `prediction_features` gives them.
    largest
        As `largest_weights` gives them.
    spec
        For the sizes.
    global_bias
        Scalar; or, with what depends on time, of each pair, shape (n,).
    user, item
        Rows, int32, shape (n,).

    Returns
    -------
    tuple of Array
        Means and weights, of shapes that broadcast to (n, item topics, user topics),
        1 for a side without topics. Weights sum to 1 less that of the topics left out.
    """
    dim, num_item_topics = spec.latent_dim, spec.num_item_topics
    (user_weight, user_topic), (item_weight, item_topic) = largest
    row_u, row_i = weight_sides(spec, user, item)
    (start_u, start_i), _ = _places(spec)
    dots = jnp.sum(users[user, :dim] * items[item, :dim], axis=-1)
    mean = (global_bias + dots)[:, None, None]
    weight = jnp.ones_like(mean)
    if num_item_topics:  # axis 1: the item's contexts, indexing the user's biases
        at = start_i + item_topic[row_i]
        mean = mean + users[user[:, None], at][:, :, None]
        weight = weight * item_weight[row_i][:, :, None]
    if spec.num_user_topics:  # axis 2: the user's moods, indexing the item's biases
        at = start_u + user_topic[row_u]
        mean = mean + items[item[:, None], at][:, None]
        weight = weight * user_weight[row_u][:, None]
    shape = _product_shape(spec)
    if shape[2]:
        start = dim + num_item_topics + spec.num_user_topics
        place = slice(start, start + math.prod(shape))
        v = jnp.sum(users[:, place].reshape(-1, *shape), axis=2)  # (rows, K_M, dim)
        w = jnp.sum(items[:, place].reshape(-1, *shape), axis=1)
        v = v[user[:, None], item_topic[item]][:, :, None]
        w = w[item[:, None], user_topic[user]][:, None]
        mean = mean + jnp.sum(v * w, axis=-1)
    return mean, weight


def parts_of_product(user: Array, item: Array, spec: ModelSpec) -> dict[str, Array]:
    """Take the inner product of a pair's vectors apart.

    Parameters
    ----------
    user, item
        Vectors of one pair in draws, shape (..., F).
    spec
        For the places.

    Returns
    -------
    dict
        "factors", a_u . b_j, shape (...). "user_bias" and "item_weight", c_u and
        theta_M[j], shape (..., item topics); "item_bias" and "user_weight", d_j and
        theta_U[u], shape (..., user topics). Where topics are the rows' own, these are
        the weights theta_M[u] and theta_U[j]. With topic factors "topic_factors",
        theta_M[j, k] theta_U[u, i] v_u[k] . w_j[i], shape (..., item topics, user
        topics).
    """
    dim = spec.latent_dim
    contexts, moods = spec.num_item_topics, spec.num_user_topics
    parts = {"factors": (user[..., :dim] * item[..., :dim]).sum(-1)}
    given = user, item, spec
    parts["item_weight"], parts["user_bias"] = topics_of_features(*given, "item")
    parts["user_weight"], parts["item_bias"] = topics_of_features(*given, "user")
    shape = _product_shape(spec)
    if shape[2]:
        start = dim + contexts + moods
        place = slice(start, start + math.prod(shape))
        products = user[..., place] * item[..., place]
        products = products.reshape(*products.shape[:-1], *shape)
        parts["topic_factors"] = products.sum(-1)
    return parts


def precisions_of_features(users: Array, items: Array) -> tuple[Array, Array]:
    """Relative precisions of users and of items in vectors that hold them."""
    return users[..., -2], items[..., -1]


def noise_of_pairs(
    users: Array, items: Array, spec: ModelSpec, user: Array, item: Array
) -> tuple[Array | None, Callable[[Array], Array], Callable[[Array], Array]]:
    """Give what the noise of pairs' ratings is like, in a draw.

    Parameters
    ----------
    users, items, spec, user, item
        As in `mixture_of_pairs`.

    Returns
    -------
    tuple
        The square root of the relative precision that users and items give, shape
        (n, 1, 1), or None where it is 1; the distribution function of the noise in its
        own units; and the log of its density: normal, or Student's t where single
        ratings have precisions (these summed out; twice their shape are its degrees of
        freedom).
    """
    root = None
    if _noise_differs(spec):
        of_user, of_item = precisions_of_features(users, items)
        root = jnp.sqrt(of_user[user] * of_item[item])[:, None, None]
    if not isinstance(spec.rating_noise, GammaNoise):
        return root, ndtr, lambda x: -0.5 * x**2 - HALF_LOG_TWO_PI
    degrees = 2 * spec.rating_noise.shape
    return root, partial(student_cdf, degrees), partial(log_student, degrees)


def expected_ratings(
    features: tuple[Array, Array],
    spec: ModelSpec,
    global_bias: Array,
    cut_points: Array,
    user: Array,
    item: Array,
    chunk: int,
    time_part: Array | None = None,
) -> Array:
    """Mean of each pair's rating in a draw of an ordinal model, shape (n,).

    On the rating scale, over the topics of largest weight: the weight of the others is
    shared out among these. Pairs are taken `chunk` at a time, a divisor of n.
    `time_part`, shape (n,), is what their times add to their means.
    """
    assert isinstance(spec.likelihood, Ordinal)
    largest = largest_weights(*features, spec)

    def one_chunk(given):
        *pair, part = given
        bias = global_bias if part is None else global_bias + part
        mean, weight = mixture_of_pairs(*features, largest, spec, bias, *pair)
        root, cdf, _ = noise_of_pairs(*features, spec, *pair)
        # The normal's there is quicker: this runs in every sweep.
        given = {"cdf": cdf} if isinstance(spec.rating_noise, GammaNoise) else {}
        rating = spec.likelihood.expected_rating(mean, cut_points, root, **given)
        return jnp.sum(weight * rating, axis=(1, 2)) / jnp.sum(weight, axis=(1, 2))

    if time_part is not None:
        time_part = time_part.reshape(-1, chunk)
    given = user.reshape(-1, chunk), item.reshape(-1, chunk), time_part
    return lax.map(one_chunk, given).reshape(-1)
