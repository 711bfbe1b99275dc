"""M3F with factors that topics select, fitted and in vain."""

import dataclasses
from functools import cache

import jax
import numpy as np
import pytest

import im3f_jax as im3f
from im3f_jax import InputError, InverseGamma, NormalWishart
from im3f_jax.gibbs.init import init_state
from im3f_jax.inference.memory import estimate_draw_bytes
from im3f_jax.model.spec import resolve, validate
from tests import fits, tiny
from tests.posterior.test_explain import check_parts

pytestmark = pytest.mark.relaxed

MODEL = im3f.M3F_TIF(2, 3, 2, topic_factor_dim=2)


@cache
def posterior():
    return fits.fit(MODEL, *fits.data(), init="prior")


@pytest.mark.thorough
def test_the_running_error_is_that_of_the_predictions():
    (train, test), found = fits.data(), posterior()
    for part, predictions in (
        (train, found.train_predictions),
        (test, found.test_predictions),
    ):
        again = found.predict(part.user_ids, part.item_ids)
        np.testing.assert_allclose(again, predictions, rtol=1e-5)
    per_draw = found.predict(test.user_ids, test.item_ids, per_draw=True)
    rmse = np.sqrt(np.mean((per_draw.mean(axis=1) - test.rating) ** 2, axis=-1))
    np.testing.assert_allclose(found.trace["test_rmse"][:, 17], rmse, rtol=1e-5)
    scores = found.evaluate(test)
    assert scores["num_cold"] > 0 and np.isfinite(scores["log_score"])
    proba = found.predict_proba(test.user_ids, test.item_ids)
    np.testing.assert_allclose(proba.sum(axis=1), 1, rtol=1e-5)
    each = estimate_draw_bytes(found.spec, 59, 39)
    assert fits.held(found) == each * found.num_kept


@pytest.mark.thorough
def test_biases_are_the_same_under_every_topic():
    draws = posterior().draws
    user = draws.user_features[..., :-1, 2:5]  # three item topics
    item = draws.item_features[..., :-1, 5:7]
    for bias in (user, item):
        np.testing.assert_allclose(bias, bias[..., :1] + 0 * bias, atol=1e-6)
        assert np.std(bias[..., 0]) > 0.05
    assert np.ptp(posterior().trace["user_shared_bias_variance"]) > 0


@pytest.mark.thorough
def test_parts_of_a_prediction_sum_to_it():
    names = ["global bias", "factors", "user bias", "item bias", "topic factors"]
    check_parts(posterior(), [(0, 0), (30, 7), (fits.COLD_USER, 8)], names)
    found = posterior().explain(30, 7)
    listed = found.topic_factors["contribution"]
    assert listed.index.names == ["context", "mood"] and len(listed) == 3 * 2
    # The product of the weighted vectors, once more from the draw.
    draws, spec = posterior().draws, posterior().spec
    user, item = (x[found.draw] for x in (draws.user_features, draws.item_features))
    user, item = user[posterior().user_row[30]], item[posterior().item_row[7]]
    start = spec.latent_dim + 3 + 2
    for n, value in enumerate(listed):
        place = slice(start + 2 * n, start + 2 * n + 2)
        assert value == pytest.approx(float(user[place] @ item[place]), abs=1e-6)


@pytest.mark.thorough
def test_a_saved_fit_is_the_same(tmp_path):
    posterior().save(tmp_path / "fit.npz")
    fits.same(posterior(), im3f.load(tmp_path / "fit.npz"))


def test_off_the_state_holds_nothing_of_it():
    spec, layout = tiny.make_spec(), tiny.make_data(np.float32)
    state = jax.eval_shape(init_state, jax.random.key(0), spec, layout)
    assert state.topic_factors is None


def test_defaults_are_resolved():
    spec = resolve(MODEL, 3.0, 2.0, 1.0)
    assert spec.topic_factors.prior == NormalWishart(1.0, 2.0, 0.0, 10.0)
    for bias in (spec.user_bias_prior, spec.item_bias_prior):
        assert (bias.variance, bias.topic_mean_variance) == (0, 0)
        assert bias.shared_variance == InverseGamma(3.0, 0.4)
    given = im3f.M3F_TIF(
        topic_factor_prior=NormalWishart(0.5, 7.0), user_bias_variance=0.3
    )
    spec = resolve(given, 3.0, 2.0, 1.0)
    assert spec.topic_factors == im3f.TopicFactors(2, NormalWishart(0.5, 7.0))
    assert spec.user_bias_prior.shared_variance == 0.3


@pytest.mark.parametrize(
    "named, settings",
    [
        ("topic_factor_dim", {"topic_factor_dim": 0}),
        ("topic_factor_dim", {"topic_factor_dim": 1.5}),
        ("nu_0.*at least topic_factor_dim, 3", {"topic_factor_dim": 3}),
        ("topics on both sides", {"item_topics": 0}),
        ("topics on both sides", {"user_topics": 0}),
        ("user_shared_bias_variance", {"user_bias_variance": -1.0}),
        ("must be a NormalWishart", {"topic_factor_prior": im3f.IsotropicNormal()}),
    ],
)
def test_a_setting_without_meaning_is_refused(named, settings):
    settings = {"topic_factor_prior": NormalWishart(1.0, 2.5)} | settings
    with pytest.raises(InputError, match=named) as refused:
        im3f.M3F_TIF(**settings)
    assert "\n" not in str(refused.value)


def test_what_does_not_go_together_is_refused():
    part = {"topic_factors": im3f.TopicFactors(2)}
    for model, message in (
        (im3f.IM3F(topics=im3f.CRF()), "A CRF has no topic factors"),
        (im3f.PMF(2), "PMF has no topic factors"),
        (im3f.BPMF(2), "topics on both sides"),
    ):
        with pytest.raises(InputError, match=message):
            validate(dataclasses.replace(model, **part))
    with pytest.raises(InputError, match="must be a NoTopicFactors"):
        validate(dataclasses.replace(MODEL, topic_factors=3))
