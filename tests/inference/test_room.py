"""A fit stores the topics that it needs, whatever the truncation."""

import logging

import numpy as np
import pytest

import im3f_jax as im3f
from im3f_jax.gibbs import topic_room
from im3f_jax.inference import run
from tests import fits

pytestmark = pytest.mark.relaxed

OTHERS = "vectorized", "sequential"
NOISE = dict.fromkeys(("user_noise_shape", "item_noise_shape"))


@pytest.mark.thorough
@pytest.mark.parametrize(
    "chain_method",
    ["parallel", *(pytest.param(m, marks=pytest.mark.slow) for m in OTHERS)],
)
def test_a_fit_finds_the_room_that_it_needs(
    chain_method, monkeypatch, caplog, tmp_path
):
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(topic_room, "LEAST_ROOM", 6)
    model = im3f.IM3F(2, max_user_topics=12, max_item_topics=12, **NOISE)
    found = fits.fit(
        model,
        num_warmup=0,
        num_samples=24,
        thinning=1,
        num_chains=2,
        chain_method=chain_method,
        store="all",
    )
    stored = [
        p.stored for p in (found.spec.user_topic_prior, found.spec.item_topic_prior)
    ]
    grown = {m for m in caplog.messages if m.startswith("room for 12")}
    assert grown and sum(stored) == 12 + 6 * len(grown)
    assert found.spec.user_topic_prior.num_topics == 12
    assert found.draws.user_features.shape[-1] == 4 + sum(stored)
    assert found.trace["test_rmse"].shape == (2, 24)
    assert found.num_user_topics.max() <= stored[0]
    # Draws that were kept in less room give the predictions that were summed in it.
    _, test = fits.data()
    np.testing.assert_allclose(
        found.predict(test.user_ids, test.item_ids), found.test_predictions, rtol=1e-4
    )
    train, _ = fits.data()
    topics = found.draws.item_topic
    assert topics.shape == (2, 24, len(train)) and not np.array_equal(*topics)
    residual = fits.residual_rmse(found, train)
    np.testing.assert_allclose(residual, found.trace["residual_rmse"], rtol=1e-5)
    assert np.isfinite(found.evaluate(test)["log_score"])
    found.save(tmp_path / "fit.npz")
    assert im3f.load(tmp_path / "fit.npz").spec == found.spec


@pytest.mark.thorough
@pytest.mark.parametrize(
    "method", ["parallel", pytest.param("vectorized", marks=pytest.mark.slow)]
)
def test_how_chains_at_once_are_cut_changes_no_draw_where_they_grow(
    method, monkeypatch
):
    monkeypatch.setattr(topic_room, "LEAST_ROOM", 6)
    model = im3f.IM3F(2, max_user_topics=12, max_item_topics=12, **NOISE)
    settings = {"num_warmup": 23, "num_samples": 1, "thinning": 1, "num_chains": 2}
    found = []
    for seconds in (0.0, 100.0):
        monkeypatch.setattr(run, "CHUNK_SECONDS", seconds)
        found.append(fits.fit(model, **settings, chain_method=method))
    assert 12 in (
        found[0].spec.user_topic_prior.stored,
        found[0].spec.item_topic_prior.stored,
    )
    fits.same(*found)
