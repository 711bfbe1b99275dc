"""Room for topics: arrays as wide as the topics in use, whatever the truncation.

The truncation K belongs to the model; a sweep reads and draws the global weights of all
K topics, but stores rows and biases of the first few only. It may, because it moves
ratings and tables only among the topics with log pi_k above `log_reach`. A Gibbs step
on a set of values that depends on pi, which these steps hold fixed, leaves the
posterior as it is whatever the set; a rating whose topic lies outside stays where it is
until pi is drawn again. Of a topic beyond the columns nothing is read then: it has no
rating, its biases and the rows' weights on it are summed out, and its share of
predictions is below that limit. Which topic an empty one is does not matter under the
weak limit, and their weights are sorted; sticks come in order.

The law of a chain so does not depend on the columns that there are. A sweep that needs
more says so, and is run again in more room (`inference.run`). That it does follows from
draws of this sweep that are the same in any room: to discard it favours nothing.
"""

import logging
import math
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
from jax import Array

from im3f_jax.gibbs.state import BiasPriorState, State, TopicWeights
from im3f_jax.model.reciprocal import is_reciprocal
from im3f_jax.model.spec import ModelSpec, has_franchise
from im3f_jax.model.topic_factors import TopicFactors
from im3f_jax.model.topic_prior import CRF, HDP, NoTopics, stored_topics

__all__ = [
    "LEAST_ROOM",
    "can_grow",
    "double_room",
    "enlarge",
    "finds_room",
    "kept_topic_dtypes",
    "largest_empty_first",
    "log_reach",
    "needs_room",
    "overflow_of",
    "reachable",
    "start_room",
    "stay",
    "topic_dtype",
    "with_topics_as",
    "within_reach",
]

logger = logging.getLogger(__name__)

# Columns to begin with; doubled as they are needed: a few are better too many than
# compiled for twice.
LEAST_ROOM = 32
LOG_NOTHING = -1e30  # less than any misfit of a table


def log_reach(rows: int) -> float:
    """Least log pi_k of a topic that ratings and tables move to: pi_k = 0.01 / rows.

    The weight of an empty topic is about Gamma(beta / K) / tables, and every row has a
    table or more: of the mass that new topics are born from some hundredths are left
    out, and of the empty topics most, all but about 4 beta whatever K.
    """
    return math.log(0.01 / rows)


def topic_dtype(spec: ModelSpec) -> jnp.dtype:
    """Integers that hold the topics of ratings from sweep to sweep: 16 bits if enough.

    A sweep itself works with 32. The sweeps of a franchise and of a reciprocal model
    keep these.
    """
    most = max(spec.num_user_topics, spec.num_item_topics)
    wide = is_reciprocal(spec) or has_franchise(spec) or most > jnp.iinfo("int16").max
    return jnp.dtype("int32" if wide else "int16")


def kept_topic_dtypes(spec: ModelSpec) -> dict[str, np.dtype]:
    """Integers that hold kept topics of ratings, of each side that has topics.

    The least that counts up to the truncation; a `CRF` has none.
    """
    found = {}
    for side in ("user", "item"):
        prior = getattr(spec, f"{side}_topic_prior")
        if not isinstance(prior, NoTopics):
            most = 2**31 if isinstance(prior, CRF) else prior.num_topics
            fits = (t for t in ("int8", "int16") if most <= np.iinfo(t).max + 1)
            found[side] = np.dtype(next(fits, "int32"))
    return found


def with_topics_as(state: State, dtype) -> State:
    """Hold the topics of ratings in another type of integer."""
    return state._replace(
        user_topic_of_rating=state.user_topic_of_rating.astype(dtype),
        item_topic_of_rating=state.item_topic_of_rating.astype(dtype),
    )


def reachable(prior, weights: TopicWeights, shards: int = 1) -> Array | None:
    """Topics that ratings and tables move to: bool, shape (stored,); None for all.

    `weights` are those of the rows of one of so many `shards`.
    """
    if not isinstance(prior, HDP) or prior.stored is None:
        return None
    rows = shards * weights.log_row_weights.shape[0]
    return weights.log_global_weights[: prior.stored] > log_reach(rows)


def within_reach(weights: TopicWeights, reach: Array | None) -> TopicWeights:
    """Weights of the stored topics, next to nothing out of reach."""
    if reach is None:
        return weights
    log_pi = weights.log_global_weights[: reach.shape[0]]
    return weights._replace(
        log_row_weights=jnp.where(reach, weights.log_row_weights, LOG_NOTHING),
        log_global_weights=jnp.where(reach, log_pi, LOG_NOTHING),
    )


def stay(drawn: Array, topic: Array, reach: Array | None) -> Array:
    """Keep the topic of each rating that is out of reach: int32, shape (N,)."""
    return drawn if reach is None else jnp.where(reach[topic], drawn, topic)


def needs_room(prior: HDP, log_global_weights: Array, rows: int) -> Array:
    """Tell whether a topic beyond the columns is in reach: bool scalar."""
    return jnp.any(log_global_weights[prior.stored :] > log_reach(rows))


def largest_empty_first(log_global_weights: Array, table_counts: Array) -> Array:
    """Sort the weights of topics without tables among these, the largest first.

    Both have shape (K,). Nothing tells empty topics of the weak limit apart.
    """
    empty = table_counts == 0
    falling = -jnp.sort(jnp.where(empty, -log_global_weights, jnp.inf))
    rank = jnp.cumsum(empty, dtype=jnp.int32) - 1
    return jnp.where(empty, falling[rank], log_global_weights)


def start_room(spec: ModelSpec, start_topics: int) -> ModelSpec:
    """Give every HDP columns for the topics that a chain starts with, and some more.

    But not of a reciprocal model, whose sweep moves both roles' topics at once, nor
    beside a restaurant franchise, whose room grows in a way of its own, nor where rows
    have topics of their own or topics select factors.
    """
    selects = isinstance(spec.topic_factors, TopicFactors)
    if is_reciprocal(spec) or has_franchise(spec) or spec.own_topics or selects:
        return spec
    for name in ("user_topic_prior", "item_topic_prior"):
        prior = getattr(spec, name)
        if isinstance(prior, HDP):
            stored = max(LEAST_ROOM, 2 * start_topics)
            prior = replace(prior, stored=min(prior.num_topics, stored))
            spec = replace(spec, **{name: prior})
    return spec


def finds_room(spec: ModelSpec) -> bool:
    """Tell whether a chain stores the topics that it needs, now or in less room."""
    priors = spec.user_topic_prior, spec.item_topic_prior
    return any(getattr(prior, "stored", None) is not None for prior in priors)


def can_grow(spec: ModelSpec) -> bool:
    """Tell whether a sweep can run out of room for the topics of an HDP."""
    return any(
        isinstance(prior, HDP) and stored_topics(prior) < prior.num_topics
        for prior in (spec.user_topic_prior, spec.item_topic_prior)
    )


def overflow_of(state: State) -> Array:
    """Whether user topics and item topics need more room: bool, shape (2,)."""
    weights = state.user_topic_weights, state.item_topic_weights
    no = jnp.zeros((), bool)
    return jnp.stack([no if w.overflow is None else w.overflow for w in weights])


def double_room(spec: ModelSpec, side: str) -> ModelSpec:
    """Store twice as many topics of a side ("user" or "item"), at most all."""
    name = f"{side}_topic_prior"
    prior = getattr(spec, name)
    stored = min(2 * prior.stored, prior.num_topics)
    logger.info("room for %d %s topics", stored, side)
    return replace(spec, **{name: replace(prior, stored=stored)})


def enlarge(state: State, spec: ModelSpec) -> State:
    """Carry a state over to a spec with more room for topics, and for tables.

    What the new columns hold is not read. The topics that they belong to were empty:
    a new dish of a franchise brings its mean and biases; every sweep draws the biases
    of empty topics, and the row weights of an HDP, anew. Arrays may have an axis of
    chains before their own.
    """

    def columns(values: Array, size: int, fill: float = 0.0) -> Array:
        more = [(0, 0)] * (values.ndim - 1) + [(0, size - values.shape[-1])]
        return jnp.pad(values, more, constant_values=fill)

    def side(prior, weights: TopicWeights, bias: Array, bias_prior: BiasPriorState):
        franchise = isinstance(prior, CRF)
        if not franchise and getattr(prior, "stored", None) is None:
            return weights, bias, bias_prior
        size = stored_topics(prior)
        weights = weights._replace(
            log_row_weights=columns(weights.log_row_weights, size, LOG_NOTHING)
        )
        if franchise:  # of an HDP there are always all global weights
            tables = weights.seating.dish_of_table
            weights = weights._replace(
                log_global_weights=columns(
                    weights.log_global_weights, size, LOG_NOTHING
                ),
                seating=weights.seating._replace(
                    dish_of_table=columns(tables, prior.max_tables, -1)
                ),
            )
        topic_mean = columns(bias_prior.topic_mean, size)
        return weights, columns(bias, size), bias_prior._replace(topic_mean=topic_mean)

    user_weights, item_bias, item_bias_prior = side(
        spec.user_topic_prior,
        state.user_topic_weights,
        state.item_bias,
        state.item_bias_prior,
    )
    item_weights, user_bias, user_bias_prior = side(
        spec.item_topic_prior,
        state.item_topic_weights,
        state.user_bias,
        state.user_bias_prior,
    )
    return state._replace(
        user_bias=user_bias,
        item_bias=item_bias,
        user_bias_prior=user_bias_prior,
        item_bias_prior=item_bias_prior,
        user_topic_weights=user_weights,
        item_topic_weights=item_weights,
    )
