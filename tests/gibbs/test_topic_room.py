"""Room for topics: a sweep does the same in little room as in much."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from im3f_jax.gibbs import topic_room
from im3f_jax.gibbs.init import init_state
from im3f_jax.gibbs.row_weights import resample_row_weights
from im3f_jax.gibbs.sweep import gibbs_sweep
from im3f_jax.gibbs.topic_weights import resample_topic_weights
from im3f_jax.model.reciprocal import Reciprocal
from im3f_jax.model.spec import resolve
from im3f_jax.model.topic_prior import CRF, HDP, log_density_of_topics
from tests import tiny
from tests.validation import checks, mutants, room

SIDES = "user", "item"


def roomy(spec, number, truncation=24):
    """Give both sides a truncation, and columns."""
    for side in SIDES:
        name = f"{side}_topic_prior"
        prior = getattr(spec, name)
        prior = dataclasses.replace(prior, num_topics=truncation, stored=number)
        spec = dataclasses.replace(spec, **{name: prior})
    return spec


def start(number):
    """Start a chain for which so many columns are enough."""
    spec = roomy(tiny.make_spec(), number)
    data = tiny.make_data(np.float32)
    for seed in range(100):
        state = init_state(jax.random.key(seed), spec, data, start_topics=3)
        if not np.any(topic_room.overflow_of(state)):
            return spec, data, state
    raise AssertionError("no start has room")


@pytest.mark.thorough
def test_a_sweep_does_the_same_in_more_room():
    spec, data, state = start(8)
    more = roomy(spec, 16)
    wide = topic_room.enlarge(state, more)
    compared = 0
    for seed in range(12):
        key = jax.random.key(seed)
        here, info = gibbs_sweep(key, state, spec, data)
        there, info_there = gibbs_sweep(key, wide, more, data)
        # What a sweep lacks room for is the same in any room, so far as it reaches.
        for side in SIDES:
            a, b = (getattr(s, f"{side}_topic_of_rating") for s in (here, there))
            np.testing.assert_array_equal(a, b)
            a, b = (getattr(s, f"{side}_topic_weights") for s in (here, there))
            np.testing.assert_allclose(
                a.log_global_weights, b.log_global_weights, rtol=1e-5
            )
            reach = topic_room.log_reach(a.log_row_weights.shape[0])
            assert a.overflow == np.any(np.asarray(a.log_global_weights)[8:] > reach)
            assert b.overflow == np.any(np.asarray(b.log_global_weights)[16:] > reach)
        np.testing.assert_allclose(here.user_factors, there.user_factors, rtol=1e-5)
        np.testing.assert_array_equal(info.num_user_topics, info_there.num_user_topics)
        compared += 1
    assert compared == 12


def test_ratings_move_within_reach_and_stay_outside():
    reach = jnp.array([True, False, True])
    topic, drawn = jnp.array([0, 1, 1, 2]), jnp.array([2, 0, 2, 0])
    np.testing.assert_array_equal(topic_room.stay(drawn, topic, reach), [2, 1, 1, 0])
    np.testing.assert_array_equal(topic_room.stay(drawn, topic, None), drawn)
    prior = HDP(5, stored=3)
    log_pi = jnp.log(jnp.array([0.5, 1e-9, 0.2, 0.3, 1e-7]))
    _, _, state = start(8)
    weights = state.user_topic_weights._replace(
        log_row_weights=jnp.zeros((4, 3)), log_global_weights=log_pi
    )
    np.testing.assert_array_equal(topic_room.reachable(prior, weights), reach)
    near = topic_room.within_reach(weights, reach)
    assert near.log_global_weights.shape == (3,)
    assert np.all(np.exp(near.log_row_weights[:, 1]) == 0)
    assert np.all(near.log_row_weights[:, ::2] == 0)
    assert topic_room.needs_room(prior, log_pi, 4)
    assert not topic_room.needs_room(prior, log_pi.at[3].set(-30.0), 4)
    assert topic_room.reachable(HDP(5), weights) is None
    assert topic_room.log_reach(4) == pytest.approx(math.log(0.0025))


def test_the_largest_empty_topics_come_first():
    log_pi = jnp.array([-3.0, -1.0, -5.0, -2.0, -4.0])
    tables = jnp.array([0, 2, 0, 0, 1])
    found = topic_room.largest_empty_first(log_pi, tables)
    np.testing.assert_array_equal(found, [-2.0, -1.0, -3.0, -5.0, -4.0])


def test_row_weights_without_the_empty_topics_have_the_same_law():
    counts = jnp.tile(jnp.array([[3, 0, 1, 0, 0, 0]]), (4000, 1))
    concentration = jnp.array([0.9, 0.6, 1.1, 0.7, 0.3, 0.5])
    whole = resample_row_weights(jax.random.key(0), concentration, counts)
    some = resample_row_weights(jax.random.key(1), concentration, counts[:, :3])
    assert some.shape == (4000, 3)
    for k in range(3):
        assert stats.ks_2samp(whole[:, k], some[:, k]).pvalue > 1e-5
    rest = [np.log1p(-np.exp(x).sum(1)) for x in (whole[:, :3], some)]
    assert stats.ks_2samp(*rest).pvalue > 1e-5


def test_the_density_of_topics_knows_the_empty_ones():
    rng = np.random.default_rng(0)
    counts = np.zeros((5, 7), np.int32)
    counts[:, :3] = rng.integers(0, 4, (5, 3))
    log_pi = np.log(rng.dirichlet(np.ones(7))).astype(np.float32)
    whole = log_density_of_topics(jnp.asarray(counts), log_pi, 2.5)
    some = log_density_of_topics(jnp.asarray(counts[:, :3]), log_pi, 2.5)
    np.testing.assert_allclose(whole, some, rtol=1e-6)


@pytest.mark.parametrize("side", SIDES)
def test_counts_of_the_stored_topics_give_weights_of_all(side):
    spec, data, state = start(8)
    prior = getattr(spec, f"{side}_topic_prior")
    weights = getattr(state, f"{side}_topic_weights")
    counts = jnp.zeros(weights.log_row_weights.shape, jnp.int32).at[:3, :2].set(4)
    drawn = resample_topic_weights(prior, jax.random.key(0), weights, counts, 64)
    assert drawn.log_global_weights.shape == (24,)
    np.testing.assert_allclose(np.exp(drawn.log_global_weights).sum(), 1, rtol=1e-5)
    assert np.all(np.exp(drawn.log_row_weights).sum(1) < 1 + 1e-5)


def test_a_reciprocal_model_stores_all():
    spec = tiny.make_spec("weak_limit", "weak_limit")
    spec = dataclasses.replace(spec, reciprocal=Reciprocal(True))
    assert topic_room.start_room(spec, 1) is spec


@pytest.mark.slow
def test_chains_in_little_room_leave_the_joint_as_it_is():
    outcome = checks.run_test("geweke", room.MEMBER, checks.SHORT)
    assert outcome.least[0] > 1e-4 / len(outcome.chances)


@pytest.mark.slow
@pytest.mark.parametrize("number", mutants.numbers_of(room.MEMBER))
def test_a_mutant_of_the_room_is_caught(number):
    sizes = mutants.sizes_of(mutants.MUTANTS[number - 1])
    patch = mutants.patch_of(room.MEMBER)
    outcome = checks.run_test("geweke", room.MEMBER, sizes, patch, number)
    assert outcome.least[0] < 1e-6


def test_room_belongs_to_a_fit_and_to_truncated_models_alone():
    spec = roomy(tiny.make_spec(), 8)
    for side in SIDES:
        prior = getattr(resolve(spec, 3.0, 1.0, 1.0), f"{side}_topic_prior")
        assert prior.stored is None and prior.num_topics == 24
    mixed = dataclasses.replace(tiny.make_spec(), user_topic_prior=CRF())
    assert topic_room.start_room(mixed, 1) is mixed
