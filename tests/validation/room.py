"""A sweep in little room, which is run again in more where it does not suffice.

As `inference.run` does it, but at each sweep anew, so that many chains can run at once:
a state holds all K topics; where it fits, a sweep stores the first `STORED` only, and
the others are drawn from what is summed out there. Labels are then shuffled where they
mean nothing, for the statistics that look at one of them.
"""

import contextlib
import dataclasses
from types import SimpleNamespace
from unittest import mock

import jax
import jax.numpy as jnp

from im3f_jax.gibbs import sweep, topic_room, topic_weights
from im3f_jax.gibbs.row_weights import resample_row_weights
from im3f_jax.model.topic_prior import row_concentration
from im3f_jax.numerics.reductions import count_by_cell

__all__ = ["MEMBER", "little_room", "patch"]

MEMBER = "iM3F in little room"
STORED = 4  # of six
LOG_REACH = -2.5  # so far in that many topics are out of reach
SIDES = ("user", "item"), ("item", "user")  # whose topics, whose biases they select


def _store(spec, number):
    for side, _ in SIDES:
        name = f"{side}_topic_prior"
        prior = dataclasses.replace(getattr(spec, name), stored=number)
        spec = dataclasses.replace(spec, **{name: prior})
    return spec


def _cut(state):
    """Keep the first topics of both sides."""
    for side, other in SIDES:
        weights = getattr(state, f"{side}_topic_weights")
        prior = getattr(state, f"{other}_bias_prior")
        rows = weights.log_row_weights[:, :STORED]
        changed = {
            f"{side}_topic_weights": weights._replace(log_row_weights=rows),
            f"{other}_bias": getattr(state, f"{other}_bias")[:, :STORED],
            f"{other}_bias_prior": prior._replace(topic_mean=prior.topic_mean[:STORED]),
        }
        state = state._replace(**changed)
    return state


def _complete(key, state, spec, data, filled):
    """Draw what was summed out, where a sweep stored the first topics, and shuffle."""
    valid = jnp.arange(data.rating.shape[0], dtype=jnp.int32) < data.num_ratings
    for side_key, (side, other) in zip(jax.random.split(key), SIDES, strict=True):
        mean_key, bias_key, row_key, order_key = jax.random.split(side_key, 4)
        weights = getattr(state, f"{side}_topic_weights")
        bias, own = (
            getattr(state, f"{other}_bias"),
            getattr(state, f"{other}_bias_prior"),
        )
        center = getattr(spec, f"{other}_bias_prior").topic_mean
        topic = getattr(state, f"{side}_topic_of_rating")
        number = bias.shape[1]
        new = filled & (jnp.arange(number) >= STORED)
        noise = jax.random.normal(mean_key, (number,), bias.dtype)
        mean = center + jnp.sqrt(own.topic_mean_variance) * noise
        mean = jnp.where(new, mean, own.topic_mean)
        noise = jax.random.normal(bias_key, bias.shape, bias.dtype)
        bias = jnp.where(new, mean + jnp.sqrt(own.variance) * noise, bias)
        counts = count_by_cell(
            valid, getattr(data, side), topic, weights.log_row_weights.shape
        )
        log_pi = weights.log_global_weights
        concentration = row_concentration(weights.table_concentration, log_pi)
        log_theta = resample_row_weights(row_key, concentration, counts)
        order = jnp.arange(number, dtype=jnp.int32)
        if getattr(spec, f"{side}_topic_prior").construction == "weak_limit":
            order = jax.random.permutation(order_key, order)
        weights = weights._replace(
            log_row_weights=log_theta[:, order],
            log_global_weights=log_pi[order],
            overflow=None,
        )
        changed = {
            f"{side}_topic_weights": weights,
            f"{other}_bias": bias[:, order],
            f"{other}_bias_prior": own._replace(topic_mean=mean[order]),
            f"{side}_topic_of_rating": jnp.argsort(order).astype(jnp.int32)[topic],
        }
        state = state._replace(**changed)
    return state


def _roomy(original, key, state, spec, data):
    sweep_key, key = jax.random.split(key)
    little = _store(spec, STORED)
    all_of_it = _store(spec, spec.user_topic_prior.num_topics)
    valid = jnp.arange(data.rating.shape[0], dtype=jnp.int32) < data.num_ratings
    fits = jnp.ones((), bool)
    for side, _ in SIDES:
        topic = getattr(state, f"{side}_topic_of_rating")
        fits &= ~jnp.any(valid & (topic >= STORED))
        weights = getattr(state, f"{side}_topic_weights")
        prior = getattr(little, f"{side}_topic_prior")
        rows = weights.log_row_weights.shape[0]
        lacks = topic_weights.needs_room(prior, weights.log_global_weights, rows)
        fits &= ~lacks
    narrow, info = original(sweep_key, _cut(state), little, data)
    wide, info_of_wide = original(sweep_key, state, all_of_it, data)
    lacks = jnp.any(topic_room.overflow_of(narrow))
    fits &= ~lacks
    narrow = topic_room.enlarge(narrow, all_of_it)
    choose = lambda a, b: jnp.where(fits, a, b)  # noqa: E731
    state, info = jax.tree.map(choose, (narrow, info), (wide, info_of_wide))
    return _complete(key, state, spec, data, fits), info


@contextlib.contextmanager
def little_room():
    """Run sweeps in little room."""
    original = sweep.gibbs_sweep.__wrapped__

    def roomy(key, state, spec, data):
        return _roomy(original, key, state, spec, data)

    with (
        mock.patch.object(sweep, "gibbs_sweep", SimpleNamespace(__wrapped__=roomy)),
        mock.patch.object(topic_room, "log_reach", lambda rows: LOG_REACH),
    ):
        yield


def patch(active, state):
    """Run sweeps in little room, as `run_chains` wants it said."""
    return little_room()
