"""A fit stores the topics that it needs, whatever the truncation."""

import numpy as np
import pytest

import im3f_jax as im3f
from im3f_jax.gibbs import topic_room
from tests import fits

pytestmark = pytest.mark.relaxed


def test_a_fit_finds_the_room_that_it_needs(monkeypatch):
    noise = dict.fromkeys(("user_noise_shape", "item_noise_shape"))
    model = im3f.IM3F(2, max_user_topics=12, max_item_topics=12, **noise)
    settings = {"num_warmup": 5, "num_samples": 15, "start_topics": 1}
    with monkeypatch.context() as patch:
        patch.setattr(topic_room, "LEAST_ROOM", 2)
        for chains in ({}, {"num_chains": 2, "chain_method": "vectorized"}):
            found = fits.fit(model, **settings, **chains)
            stored = found.spec.user_topic_prior.stored
            assert stored in (4, 8, 12)  # grown from 2
            assert found.spec.user_topic_prior.num_topics == 12
            width = 4 + found.spec.num_user_topics + found.spec.num_item_topics
            assert found.draws.user_features.shape[-1] == width
            assert found.trace["test_rmse"].shape[1] == 20
            assert np.all(np.isfinite(found.trace["rating_variance"]))
            assert found.num_user_topics.max() <= stored
            train, test = fits.data()
            assert np.isfinite(found.evaluate(test)["log_score"])
            # Predictions of the draws that were kept in less room are theirs.
            np.testing.assert_allclose(
                found.predict(test.user_ids, test.item_ids),
                found.test_predictions,
                rtol=1e-4,
            )
    assert fits.fit(model, **settings).spec.user_topic_prior.stored == 12


def test_the_room_is_saved_with_a_fit(tmp_path, monkeypatch):
    monkeypatch.setattr(topic_room, "LEAST_ROOM", 4)
    found = fits.fit(im3f.IM3F(2, max_user_topics=40, max_item_topics=40))
    found.save(tmp_path / "fit.npz")
    assert im3f.load(tmp_path / "fit.npz").spec == found.spec
