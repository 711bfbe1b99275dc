"""A Dirichlet process a row: the preset, whole fits, and what it refuses."""

import dataclasses
from functools import cache

import numpy as np
import pytest

import im3f_jax as im3f
from im3f_jax.inference.memory import estimate_draw_bytes
from im3f_jax.model.spec import validate
from tests import fits
from tests.posterior.test_explain import check_parts

pytestmark = pytest.mark.relaxed

MODEL = im3f.SeparateDP(2, max_user_topics=3, max_item_topics=4)


@cache
def posterior(noise=False):
    model = MODEL
    if noise:
        model = im3f.SeparateDP(
            2, max_user_topics=3, max_item_topics=4, user_noise_shape=None
        )
    return fits.fit(model, *fits.data(), init="prior")


def test_its_biases_have_no_common_means():
    assert MODEL.own_topics
    assert MODEL.user_topic_prior.num_topics == 3
    assert MODEL.item_topic_prior.num_topics == 4
    assert MODEL.item_topic_prior.concentration == 1.0
    for prior in (MODEL.user_bias_prior, MODEL.item_bias_prior):
        assert prior.topic_mean_variance == 0 and prior.variance is None


@pytest.mark.thorough
def test_the_running_error_is_that_of_the_predictions():
    (train, test), found = fits.data(), posterior()
    for part, predictions in (
        (train, found.train_predictions),
        (test, found.test_predictions),
    ):
        again = found.predict(part.user_ids, part.item_ids)
        np.testing.assert_allclose(again, predictions, rtol=1e-5)
    scores = found.evaluate(test)
    assert scores["num_cold"] > 0 and np.isfinite(scores["log_score"])
    proba = found.predict_proba(test.user_ids, test.item_ids)
    np.testing.assert_allclose(proba.sum(axis=1), 1, rtol=1e-5)
    each = estimate_draw_bytes(found.spec, 59, 39)
    assert fits.held(found) == each * found.num_kept


@pytest.mark.thorough
def test_a_saved_fit_is_the_same(tmp_path):
    posterior().save(tmp_path / "fit.npz")
    again = im3f.load(tmp_path / "fit.npz")
    fits.same(posterior(), again)
    assert again.spec.own_topics


@pytest.mark.thorough
@pytest.mark.parametrize("noise", [False, True])
def test_parts_of_a_prediction_sum_to_it(noise):
    names = ["global bias", "factors", "user bias", "item bias"]
    check_parts(posterior(noise), [(0, 0), (30, 7), (fits.COLD_USER, 8)], names)


@pytest.mark.thorough
def test_precisions_are_read_off_the_right_columns():
    found = posterior(noise=True)
    trained = found.user_precision.dropna()
    assert len(trained) == 59 and (trained > 0).all()
    assert abs(np.log(trained).mean()) < 1  # they vary about 1, as the biases do not


def test_what_has_no_meaning_is_refused():
    for change, words in (
        ({"user_topic_prior": im3f.IM3F().user_topic_prior}, "FiniteDirichlet, not"),
        ({"item_topic_prior": im3f.BPMF().item_topic_prior}, "FiniteDirichlet, not"),
        ({"topic_factors": im3f.TopicFactors(2)}, "Topic factors do not go with"),
        ({"reciprocal": im3f.ReciprocalIM3F().reciprocal}, "topics of each row's own"),
    ):
        with pytest.raises(im3f.InputError, match=words):
            validate(dataclasses.replace(MODEL, **change))
