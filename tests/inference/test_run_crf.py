"""Runs of the Chinese restaurant franchise: more room where a sweep runs out of it."""

import dataclasses

import jax
import numpy as np
import pytest

import im3f_jax as im3f
from im3f_jax.gibbs import crf
from im3f_jax.gibbs.state import Seating
from im3f_jax.inference import run
from im3f_jax.inference.memory import estimate_memory
from im3f_jax.model.spec import resolve, with_room_of
from im3f_jax.model.topic_prior import CRF, NoTopics
from tests import fits

pytestmark = pytest.mark.relaxed

# One side only, which compiles in half the time.
MODEL = dataclasses.replace(
    im3f.IM3F(2, topics=CRF(num_topics=32, max_tables=16)), item_topic_prior=NoTopics()
)


def with_room(num_topics, max_tables, **more):
    prior = MODEL.user_topic_prior
    prior = dataclasses.replace(
        prior, num_topics=num_topics, max_tables=max_tables, **more
    )
    return dataclasses.replace(MODEL, user_topic_prior=prior)


@pytest.mark.slow
def test_draws_do_not_depend_on_room(monkeypatch):
    """A sweep that overflows is discarded, and run again in more room."""
    settings = {"init": "prior", "num_warmup": 4, "num_samples": 36}
    expected = fits.fit(MODEL, **settings)
    more, grown, stops = run._more_room, [], []

    def at_once(spec, state):
        """Grow to the room of `expected`, which has compiled already."""
        found = more(spec, state)
        if found is spec:
            return spec
        grown.append((found.num_user_topics, len(stops)))
        return with_room_of(spec, MODEL)

    monkeypatch.setattr(run, "_more_room", at_once)
    found = fits.fit(
        with_room(9, 16),
        callback=lambda sweep, elapsed, metrics: stops.append(sweep),
        **settings,
    )
    # Some draws were kept before there was more room, and some after.
    ((doubled, after),) = grown
    assert doubled == 18 and 8 <= after < 36
    assert stops == list(range(1, 41))
    assert found.spec.user_topic_prior == expected.spec.user_topic_prior
    for name in ("num_user_topics", "rating_variance", "item_bias_variance"):
        np.testing.assert_array_equal(found.trace[name], expected.trace[name], name)
    # Sums over topics of other widths are rounded in another way.
    for name, values in expected.trace.items():
        np.testing.assert_allclose(found.trace[name], values, rtol=1e-5, err_msg=name)
    assert found.draws.user_features.shape == expected.draws.user_features.shape
    dim = MODEL.latent_dim
    for a, b in zip(found.draws[:2], expected.draws[:2], strict=True):
        np.testing.assert_array_equal(a[..., :dim], b[..., :dim])
    users, items = fits.grid(fits.data()[0])
    np.testing.assert_allclose(
        found.predict(users, items), expected.predict(users, items), rtol=1e-5
    )
    # The concentrations given are not changed, and nothing else warns or is lost.
    assert found.spec.user_topic_prior.table_concentration == 1.0
    assert np.isfinite(found.evaluate(fits.data()[1])["log_score"])


@pytest.mark.slow
def test_a_franchise_is_saved_and_loaded(tmp_path):
    found = fits.fit(MODEL, init="prior", num_warmup=4, num_samples=36)
    found.save(tmp_path / "fit.npz")
    assert im3f.load(tmp_path / "fit.npz").spec == found.spec


@pytest.mark.parametrize(
    "overflow, num_topics, max_tables",
    [(0, 4, 8), (crf.NO_DISH_FREE, 8, 8), (crf.NO_TABLE_FREE, 4, 16), (3, 8, 16)],
)
def test_what_ran_out_is_doubled(overflow, num_topics, max_tables):
    class Weights:
        seating = Seating(None, None, np.int32(overflow))

    class Without:
        seating = None

    class State:
        user_topic_weights, item_topic_weights = Weights, Without

    before = with_room(4, 8)
    after = run._more_room(before, State)
    prior = after.user_topic_prior
    assert (prior.num_topics, prior.max_tables) == (num_topics, max_tables)
    assert (after is before) == (overflow == 0)


def test_there_is_room_for_the_start():
    prior = run._start_room(with_room(4, 2), 6).user_topic_prior
    assert (prior.num_topics, prior.max_tables) == (7, 6)
    prior = run._start_room(with_room(40, 20), 6).user_topic_prior
    assert (prior.num_topics, prior.max_tables) == (40, 20)


def test_kept_draws_are_widened_part_by_part():
    both = dataclasses.replace(
        MODEL, user_topic_prior=CRF(num_topics=2), item_topic_prior=CRF(num_topics=3)
    )
    wide = dataclasses.replace(both, item_topic_prior=CRF(num_topics=5))
    values = np.arange(1, 8.0).reshape(1, 1, 1, 7)
    draws = run.Draws(values, values, *np.zeros((3, 1, 1)))
    found = run._widen(draws, both, wide, 0, (1, 1))
    expected = [1, 2, 3, 4, 5, 0, 0, 6, 7]
    np.testing.assert_array_equal(found.user_features[0, 0, 0], expected)
    np.testing.assert_array_equal(found.item_features[0, 0, 0], expected)
    assert run._widen(None, both, wide, 0, (1, 1)) is None


@pytest.mark.parametrize(
    "make, sentence",
    [
        (lambda: im3f.IM3F(topics=CRF("joint")), "likelihood is 'joint'"),
        (lambda: im3f.IM3F(topics=CRF("marginal")), "bias_variance is None, but must"),
        (lambda: im3f.IM3F(topics=CRF(), max_user_topics=9), "a CRF has none"),
        (lambda: im3f.IM3F(topics=CRF(num_topics=1)), "num_topics of a CRF is 1"),
        (lambda: im3f.IM3F(topics=CRF(max_tables=0)), "max_tables of a CRF is 0"),
        (lambda: im3f.IM3F(topics=CRF("map", 2.0)), "Give the concentrations to IM3F"),
        (
            lambda: im3f.IM3F(topics=CRF(), user_dish_concentration=-1.0),
            "user_dish_concentration is -1.0",
        ),
        (
            lambda: fits.fit(MODEL, chain_method="vectorized", num_chains=2),
            "run 'sequential'",
        ),
    ],
)
def test_settings_without_meaning_are_refused(make, sentence):
    with pytest.raises(im3f.InputError, match=sentence):
        make()


def test_the_marginal_franchise_needs_bias_variance_0():
    model = im3f.IM3F(
        topics=CRF("marginal"), user_bias_variance=0, item_bias_variance=0
    )
    assert model.user_topic_prior.likelihood == "marginal"
    assert resolve(model, 3.0, 1.0, 1.0).user_topic_prior == model.user_topic_prior


def test_memory_counts_the_seats():
    from im3f_jax.data.layout import lay_out

    rng = np.random.default_rng(0)
    user, item = rng.integers(50, size=400), rng.integers(40, size=400)
    layout, _ = lay_out(user, item, np.ones(400), 50, 40)
    small, large = (
        estimate_memory(with_room(8, tables), layout)["user franchise"]
        for tables in (8, 80)
    )
    assert large - small >= 24 * layout.user_rows * 72
    assert "item franchise" not in estimate_memory(MODEL, layout)
    assert "user franchise" not in estimate_memory(im3f.IM3F(), layout)
    assert jax.tree.leaves(MODEL)  # a spec of numbers, as the others
