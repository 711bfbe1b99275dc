"""The public face: settings that are refused, small and odd inputs, warnings."""

import dataclasses
import warnings

import jax
import numpy as np
import pandas as pd
import pytest

import im3f_jax as im3f
from im3f_jax import (
    BPMF,
    IM3F,
    M3F,
    PMF,
    Gamma,
    InverseGamma,
    SharedNormal,
    TopicNormal,
)
from im3f_jax.inference.run import run_chunk
from im3f_jax.model.factor_prior import (
    IsotropicNormal,
    MultiplicativeGamma,
    NormalWishart,
)
from tests import fits

pytestmark = pytest.mark.relaxed

NAN, INF = float("nan"), float("inf")


# --- settings ---------------------------------------------------------------------

BAD_MODELS = [
    # what is named, the preset, its settings
    ("latent_dim", BPMF, {"latent_dim": 0}),
    ("latent_dim", IM3F, {"latent_dim": -1}),
    ("latent_dim", PMF, {"latent_dim": 2.0}),
    ("latent_dim", BPMF, {"latent_dim": True}),
    ("latent_dim", BPMF, {"latent_dim": "10"}),
    ("latent_dim", BPMF, {"latent_dim": None}),
    ("max_user_topics", IM3F, {"max_user_topics": 1}),
    ("max_user_topics", IM3F, {"max_user_topics": True}),
    ("max_item_topics", IM3F, {"max_item_topics": 0}),
    ("max_item_topics", IM3F, {"max_item_topics": 8.0}),
    ("user_topics", M3F, {"user_topics": -1}),
    ("user_topics", M3F, {"user_topics": False}),
    ("item_topics", M3F, {"item_topics": 1.5}),
    ("item_topics", M3F, {"item_topics": "2"}),
    ("topics", IM3F, {"topics": "x"}),
    ("topics", IM3F, {"topics": None}),
    ("user_dish_concentration", IM3F, {"user_dish_concentration": 0}),
    ("item_dish_concentration", IM3F, {"item_dish_concentration": -1.0}),
    ("user_table_concentration", IM3F, {"user_table_concentration": NAN}),
    ("item_table_concentration", IM3F, {"item_table_concentration": INF}),
    ("user_topic_concentration", M3F, {"user_topic_concentration": 0.0}),
    ("item_topic_concentration", M3F, {"item_topic_concentration": "1"}),
    ("rating_variance", BPMF, {"rating_variance": 0}),
    ("rating_variance", BPMF, {"rating_variance": -0.5}),
    ("rating_variance", BPMF, {"rating_variance": 1e39}),  # infinite in float32
    ("rating_variance", PMF, {"rating_variance": True}),
    ("rating_variance_floor", BPMF, {"rating_variance_floor": -1e-9}),
    ("user_bias_variance", IM3F, {"user_bias_variance": -1}),
    ("item_bias_variance", M3F, {"item_bias_variance": NAN}),
    ("user_shared_bias_variance", IM3F, {"user_shared_bias_variance": -0.1}),
    ("item_shared_bias_variance", M3F, {"item_shared_bias_variance": False}),
    ("user_shared_bias_variance", M3F, {"user_shared_bias_variance": "sampled"}),
    ("item_shared_bias_variance", IM3F, {"item_shared_bias_variance": Gamma(1, 1)}),
    ("user_topic_mean_variance", IM3F, {"user_topic_mean_variance": -0.1}),
    ("item_topic_mean_variance", M3F, {"item_topic_mean_variance": "0"}),
    ("global_bias", BPMF, {"global_bias": INF}),
    ("global_bias", BPMF, {"global_bias": "3"}),
    ("factor_precision", PMF, {"factor_precision": 0}),
    ("factor_prior", BPMF, {"factor_prior": "wishart"}),
    ("'shrinkage'", IM3F, {"factor_prior": "Shrinkage"}),
    ("rate", M3F, {"factor_prior": MultiplicativeGamma(rate=0)}),
    ("latent_dim", BPMF, {"latent_dim": 99, "factor_prior": "shrinkage"}),
    ("factor_precision", BPMF, {"factor_prior": IsotropicNormal(-1)}),
    ("degrees_of_freedom", BPMF, {"factor_prior": NormalWishart(1.0, 1.0)}),
    ("degrees_of_freedom", BPMF, {"factor_prior": NormalWishart(1.0, NAN)}),
    ("degrees_of_freedom", BPMF, {"factor_prior": NormalWishart(1.0, "5")}),
    ("scale", BPMF, {"factor_prior": NormalWishart(-1.0)}),
    ("mean", BPMF, {"factor_prior": NormalWishart(mean=NAN)}),
    ("mean_precision", BPMF, {"factor_prior": NormalWishart(mean_precision=0)}),
    # priors: of the wrong kind, with wrong numbers, where nothing is sampled
    ("rating_variance", BPMF, {"rating_variance": Gamma(1, 1)}),
    ("rating_variance", BPMF, {"rating_variance": InverseGamma(0, 1)}),
    ("rating_variance", BPMF, {"rating_variance": InverseGamma(0.5, 1)}),
    ("rating_variance", BPMF, {"rating_variance": InverseGamma(2, None)}),
    ("rating_variance", PMF, {"rating_variance": InverseGamma(2, 1)}),
    ("rating_variance_floor", BPMF, {"rating_variance_floor": InverseGamma(2, 1)}),
    ("user_bias_variance", M3F, {"user_bias_variance": Gamma(1, 1)}),
    ("item_bias_variance", M3F, {"item_bias_variance": InverseGamma(2, -1)}),
    ("topic_mean_variance", IM3F, {"user_topic_mean_variance": InverseGamma("2", 1)}),
    ("dish_concentration", IM3F, {"user_dish_concentration": InverseGamma(2, 1)}),
    ("table_concentration", IM3F, {"item_table_concentration": Gamma(0, 1)}),
    ("topic_concentration", M3F, {"user_topic_concentration": Gamma(1, 1)}),
    ("global_bias", BPMF, {"global_bias": Gamma(1, 1)}),
    ("factor_precision", PMF, {"factor_precision": Gamma(1, 1)}),
]


def refused(name, call):
    """Expect one sentence that names the setting."""
    with pytest.raises(im3f.InputError) as error:
        call()
    message = str(error.value)
    assert name in message
    assert message.endswith(".") and "\n" not in message and ". " not in message


@pytest.mark.parametrize("name, preset, settings", BAD_MODELS)
def test_a_model_without_meaning_is_refused(name, preset, settings):
    refused(name, lambda: preset(**settings))


BAD_RUNS = [
    ("num_warmup", -1),
    ("num_warmup", 10.0),
    ("num_samples", 0),
    ("num_samples", True),
    ("num_samples", "400"),
    ("num_chains", 0),
    ("thinning", 0),
    ("thinning", 14),  # more than num_samples
    ("seed", -1),
    ("seed", None),
    ("seed", 0.5),
    ("seed", 2**32),  # would be the same as 0
    ("start_topics", 0),
    ("init", "random"),
    ("init", None),
    ("chain_method", "pmap"),
    ("store", "none"),
    ("device", "tpu"),
    ("memory_limit", -1),
    ("memory_limit", "1GB"),
    ("callback", "print"),
]


@pytest.mark.parametrize("name, value", BAD_RUNS)
def test_a_run_without_meaning_is_refused(name, value):
    refused(name, lambda: fits.fit(fits.MODELS["BPMF"], **{name: value}))


def test_a_gpu_on_a_machine_without_is_refused():
    import jax

    if any(device.platform != "cpu" for device in jax.devices()):
        pytest.skip("there is a GPU")
    with pytest.raises(im3f.InputError, match="device='gpu'.*only: cpu"):
        fits.fit(fits.MODELS["BPMF"], device="gpu")


def test_a_typing_mistake_is_refused():
    with pytest.raises(TypeError, match="num_sample"):
        fits.fit(fits.MODELS["BPMF"], num_sample=10)
    with pytest.raises(TypeError, match="max_topics"):
        IM3F(2, max_topics=3)


def test_a_model_changed_afterwards_is_looked_at_again():
    model = dataclasses.replace(BPMF(2), latent_dim=0)
    refused("latent_dim", lambda: fits.fit(model))


def test_train_and_test_must_be_ratings_of_one_index():
    train, test = fits.data()
    frame, nothing = train.to_dataframe(), train.select(np.arange(0))
    again = im3f.Ratings.from_dataframe(frame)
    for train_given, test_given, words in (
        (frame, None, "train is of type DataFrame"),
        ([(1, 2, 3.0)], None, "train is of type list"),
        (nothing, None, "no training ratings"),
        (train, test.to_dataframe(), "test is of type DataFrame"),
        (train, [1], "test is of type list"),
        (again, test, "test must share the ids of train"),
    ):
        with pytest.raises(im3f.InputError, match=words):
            fits.fit(fits.MODELS["BPMF"], train_given, test_given)


# --- numbers given ----------------------------------------------------------------


@pytest.mark.thorough
def test_a_number_given_is_never_changed():
    given = {
        "user_dish_concentration": 1e-4,
        "item_dish_concentration": 1.0,
        "user_table_concentration": 1.0,
        "item_table_concentration": 1e-4,
        "rating_variance_floor": 0.02,
        "global_bias": 2.75,
        "user_topic_mean_variance": 0.0,
        "item_topic_mean_variance": 0.3,
    }
    posterior = fits.fit(IM3F(2, max_user_topics=4, max_item_topics=5, **given))
    spec = posterior.spec
    assert spec.user_topic_prior.dish_concentration == 1e-4
    assert spec.item_topic_prior.dish_concentration == 1.0
    assert spec.user_topic_prior.table_concentration == 1.0
    assert spec.item_topic_prior.table_concentration == 1e-4
    assert spec.likelihood.variance_floor == 0.02
    assert spec.global_bias == 2.75
    # The mean of a USER topic is that of ITEM biases.
    assert spec.item_bias_prior.topic_mean_variance == 0.0
    assert spec.user_bias_prior.topic_mean_variance == 0.3
    for name in [name for name in given if name.endswith("concentration")]:
        assert np.unique(posterior.trace[name]) == np.float32(given[name])
    assert np.unique(posterior.draws.global_bias) == 2.75


def test_what_was_left_open_has_a_number_before_the_first_sweep():
    train, _ = fits.data()
    variance = np.var(train.rating)
    spec = fits.posterior("IM3F").spec
    assert spec.global_bias == pytest.approx(train.mean)
    prior = spec.likelihood.variance
    assert isinstance(prior, InverseGamma)
    assert (prior.shape, prior.scale) == pytest.approx((2, variance))
    assert spec.likelihood.variance_floor == pytest.approx(1 / 12)
    assert spec.user_bias_prior.topic_mean_variance == pytest.approx(0.1 * variance)
    assert isinstance(spec.item_bias_prior.variance, InverseGamma)
    assert spec.factor_prior.degrees_of_freedom == 2
    # The model itself is as it was: it can be fitted to other ratings.
    assert fits.MODELS["IM3F"].global_bias is None
    # What has a prior is sampled.
    assert len(np.unique(fits.posterior("IM3F").trace["rating_variance"])) == 19


def test_presets_are_settings_of_one_model():
    bpmf, m3f = BPMF(2), M3F(3, 2, 2)
    assert type(bpmf) is type(m3f) is type(IM3F(2)) is type(PMF(2))
    assert (bpmf.num_user_topics, bpmf.num_item_topics) == (0, 0)
    assert (m3f.num_user_topics, m3f.num_item_topics) == (3, 2)
    assert (IM3F(2).num_user_topics, IM3F(2).num_item_topics) == (64, 64)
    assert M3F(0, 0, 2).user_topic_prior == bpmf.user_topic_prior
    assert M3F(0, 2, 2).num_user_topics == 0
    assert m3f.user_bias_prior.topic_mean_variance == 0.0  # as in the paper


def test_biases_share_nothing_unless_asked():
    for preset in (M3F(2, 2, 2), IM3F(2), IM3F(2, user_shared_bias_variance=0)):
        assert type(preset.user_bias_prior) is type(preset.item_bias_prior)
        assert not isinstance(preset.user_bias_prior, SharedNormal)
    for preset in (M3F, IM3F):
        model = preset(
            latent_dim=2,
            user_bias_variance=0.3,
            item_topic_mean_variance=0.2,
            user_shared_bias_variance=None,
            item_shared_bias_variance=InverseGamma(2.0, 0.1),
        )
        assert model.user_bias_prior == SharedNormal(0.3, 0.2)
        assert model.item_bias_prior.shared_variance == InverseGamma(2.0, 0.1)
    assert M3F(user_shared_bias_variance=0.4).item_bias_prior == TopicNormal(None, 0.0)


@pytest.mark.slow
def test_biases_that_share_are_fitted_saved_and_loaded(tmp_path):
    model = IM3F(
        2,
        max_user_topics=4,
        max_item_topics=5,
        user_shared_bias_variance=None,
        item_shared_bias_variance=0.2,
    )
    posterior = fits.fit(model)
    assert_sound(posterior)
    prior = posterior.spec.user_bias_prior.shared_variance
    variance = np.var(fits.data()[0].rating)
    assert (prior.shape, prior.scale) == pytest.approx((3, 0.2 * variance))
    # A number given stays, a prior is sampled; the biases of other fits share nothing.
    assert np.unique(posterior.trace["item_shared_bias_variance"]) == np.float32(0.2)
    sampled = posterior.trace["user_shared_bias_variance"]
    assert len(np.unique(sampled)) == 19 and np.all(sampled > 0)
    assert not np.any(fits.posterior("IM3F").trace["user_shared_bias_variance"])
    posterior.save(tmp_path / "fit.npz")
    loaded = im3f.load(tmp_path / "fit.npz")
    fits.same(posterior, loaded)
    assert loaded.spec == posterior.spec
    # Users and items without a training rating are among them.
    pairs = fits.grid(fits.data()[0])
    assert np.isfinite(loaded.predict(*pairs)).all()
    np.testing.assert_array_equal(loaded.predict(*pairs), posterior.predict(*pairs))


def check_shrunk(model, rate, tmp_path):
    """Fit a model with shrunk columns, and look at it, saved and loaded too."""
    assert model.factor_prior == MultiplicativeGamma()
    posterior = fits.fit(model)
    assert posterior.spec.factor_prior.rate == pytest.approx(rate)
    assert posterior.effective_dimension.shape == (1, 3)
    everywhere = posterior.trace["effective_dimension"]
    assert np.all((1 <= everywhere) & (everywhere <= 2)) and np.ptp(everywhere) > 0
    np.testing.assert_array_equal(
        posterior.trace_frame()["effective_dimension"], everywhere[0]
    )
    # A new row has the prior's mean.
    for features in posterior.draws[:2]:
        assert np.isfinite(features).all() and np.all(features[:, :, -1, :2] != 0)
    posterior.save(tmp_path / "fit.npz")
    loaded = im3f.load(tmp_path / "fit.npz")
    fits.same(posterior, loaded)
    assert loaded.spec == posterior.spec
    np.testing.assert_array_equal(
        loaded.effective_dimension, posterior.effective_dimension
    )
    pairs = fits.grid(fits.data()[0])
    np.testing.assert_array_equal(loaded.predict(*pairs), posterior.predict(*pairs))
    return posterior


def test_columns_that_are_shrunk_are_fitted_saved_and_loaded(tmp_path):
    rate = np.sqrt(0.1 * np.var(fits.data()[0].rating))
    posterior = check_shrunk(BPMF(2, factor_prior="shrinkage"), rate, tmp_path)
    trace = dict(posterior.trace)
    del trace["effective_dimension"]
    old = dataclasses.replace(posterior, trace=trace)
    refused("older version", lambda: old.effective_dimension)
    # Other numbers compile nothing.
    size = run_chunk._cache_size()
    fits.fit(BPMF(2, factor_prior=MultiplicativeGamma(2.0, 4.0, 0.3)))
    assert run_chunk._cache_size() == size > 0


@pytest.mark.slow
def test_columns_are_shrunk_beside_topics_and_ordinal_levels(tmp_path):
    model = IM3F(
        2,
        max_user_topics=4,
        max_item_topics=5,
        factor_prior="shrinkage",
        likelihood="ordinal",
    )
    # The variance of the latent ratings' noise, 1, stands for that of the ratings.
    assert_sound(check_shrunk(model, 0.1**0.5, tmp_path))


# --- small and odd ratings --------------------------------------------------------

# Hardly any concentration, on tables of one bucket of sizes: one compilation.
TINY = IM3F(
    2,
    max_user_topics=4,
    max_item_topics=5,
    user_dish_concentration=1e-3,
    item_dish_concentration=1e-3,
    user_table_concentration=1e-3,
    item_table_concentration=1e-3,
)


def assert_sound(posterior):
    """All numbers are finite, variances positive, weights sum to 1."""
    for name in ("log_joint", "rating_variance", "residual_rmse"):
        assert np.isfinite(posterior.trace[name]).all(), name
    assert (posterior.trace["rating_variance"] > 0).all()
    assert all(np.isfinite(values).all() for values in jax.tree.leaves(posterior.draws))
    moods, contexts = posterior.spec.num_user_topics, posterior.spec.num_item_topics
    user_weights = posterior.draws.user_features[..., 2 + contexts :]
    item_weights = posterior.draws.item_features[..., 2 : 2 + contexts]
    assert user_weights.shape[-1] == moods
    for weights in (user_weights, item_weights):
        assert (weights >= 0).all()
        np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-5)


def test_all_ratings_equal():
    train, test = fits.data()
    train, test = (fits.with_ratings(r, np.full(len(r), 3.0)) for r in (train, test))
    posterior = fits.fit(fits.MODELS["IM3F"], train, test, num_warmup=60)
    assert_sound(posterior)
    predictions = posterior.predict(train.user_ids, train.item_ids)
    np.testing.assert_allclose(predictions, 3, atol=0.1)
    # Cold pairs too, whose spread is the prior's.
    np.testing.assert_allclose(posterior.predict(*fits.grid(train)), 3, atol=0.5)
    scores = posterior.evaluate(test)
    assert scores["rmse"] < 0.1
    assert scores["log_score"] == pytest.approx(0, abs=1e-5)  # there is but one level
    point = fits.fit(PMF(2), train, test)
    np.testing.assert_allclose(point.predict(*fits.grid(train)), 3, atol=0.1)


@pytest.mark.slow
def test_three_ratings_and_hardly_any_concentration():
    train = im3f.Ratings.from_arrays([1, 1, 2], [7, 8, 7], [1.0, 5.0, 4.0])
    posterior = fits.fit(TINY, train, None)
    assert_sound(posterior)
    assert posterior.num_user_topics.max() <= 3
    values = posterior.predict([1, 2, 2], [7, 7, 8])
    assert np.all((-5 < values) & (values < 11))


def test_ids_with_gaps_make_no_rows_and_come_back():
    users = np.repeat([1, 5, 10_000_000], 2)
    items = np.tile([3952, 7], 3)
    train = im3f.Ratings.from_arrays(users, items, [1.0, 4, 5, 2, 3, 3])
    posterior = fits.fit(TINY, train, None)
    assert_sound(posterior)
    assert posterior.draws.user_features.shape[2] == 3 + 1
    assert posterior.draws.item_features.shape[2] == 2 + 1
    assert posterior.users.ids.tolist() == [1, 5, 10_000_000]
    assert posterior.items.ids.tolist() == [7, 3952]
    assert np.isfinite(posterior.predict([10_000_000], [3952])).all()
    with pytest.raises(im3f.InputError, match="unknown user: 9999999"):
        posterior.predict([9_999_999], [7])
    assert posterior.train_predictions.shape == (6,)


def test_a_scale_from_0_to_1_and_the_frame_is_left_alone():
    frame = pd.DataFrame(
        {
            "who": list("aabbccddeeff"),
            "what": ["x", "y"] * 6,
            "score": [0.0, 1, 0.25, 0.5, 1, 0, 0.75, 0.5, 0.25, 0, 1, 1],
        },
        index=[5] * 12,
    )
    before = frame.copy(deep=True)
    train = im3f.Ratings.from_dataframe(frame, "who", "what", "score")
    posterior = fits.fit(TINY, train, None)
    assert_sound(posterior)
    predictions = posterior.predict(frame["who"], frame["what"])
    scores = posterior.evaluate(train)
    pd.testing.assert_frame_equal(frame, before)
    assert train.to_dataframe()["score"].tolist() == before["score"].tolist()
    # The zeros are observations, and the error is on the scale of the ratings.
    assert scores["num_ratings"] == 12
    error = predictions - before["score"].to_numpy()
    assert scores["rmse"] == pytest.approx(np.sqrt(np.mean(error**2)), rel=1e-5)
    assert scores["rmse"] < 0.6
    assert posterior.spec.global_bias == pytest.approx(before["score"].mean())
    np.testing.assert_array_equal(posterior.levels, [0, 0.25, 0.5, 0.75, 1])


def test_a_user_with_one_rating_is_known():
    table = im3f.Ratings.from_arrays(
        ["one", "two", "two", *["more"] * 9],
        [0, 0, 1, *range(9)],
        [5.0, 1, 2, *[3.0] * 9],
    )
    train, test = im3f.leave_one_out(table)
    assert "one" in train.user_ids and "one" not in test.user_ids
    posterior = fits.fit(TINY, train, None)
    assert_sound(posterior)
    assert posterior.is_known(["one"], [0]).tolist() == [True]
    scores = posterior.evaluate(test)
    assert scores["num_ratings"] == 2 and np.isfinite(scores["rmse"])


def test_ratings_without_levels_are_scored_by_density():
    rng = np.random.default_rng(3)
    train, test = (
        fits.with_ratings(r, r.rating + rng.normal(0, 0.1, len(r))) for r in fits.data()
    )
    posterior = fits.fit(fits.MODELS["IM3F"], train, test)
    assert_sound(posterior)
    assert not posterior.is_discrete
    scores = posterior.evaluate(test)
    assert scores["log_score_kind"] == "log_density"
    assert np.isfinite(scores["log_score"])
    assert posterior.spec.likelihood.variance_floor < 1e-6


def test_cold_pairs_may_be_all_there_is_to_test():
    train, test = fits.data()
    cold = test.select((test.user == fits.COLD_USER) & (test.item != fits.COLD_ITEM))
    posterior = fits.fit(fits.MODELS["IM3F"], train, cold)
    scores = posterior.evaluate(cold)
    assert scores["num_cold"] == scores["num_ratings"] == len(cold) > 0
    assert np.isfinite(posterior.test_predictions).all()


# --- warnings ---------------------------------------------------------------------


def fit_and_listen(model):
    """Fit with warnings shown, and list ours."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(*fits.data(), progress=False, **fits.LENGTHS)
    for warning in caught:
        assert issubclass(warning.category, im3f.Im3fWarning), warning.message
        assert warning.filename == __file__  # the caller's line
    return [str(warning.message) for warning in caught]


def test_a_variance_at_its_floor_is_told():
    (message,) = fit_and_listen(BPMF(2, rating_variance_floor=30.0))
    assert "100% of the kept draws" in message and "floor of 30" in message
    assert fit_and_listen(fits.MODELS["BPMF"]) == []


@pytest.mark.thorough
def test_a_truncation_that_is_nearly_full_is_told():
    full = IM3F(
        2,
        max_user_topics=4,
        max_item_topics=5,
        user_dish_concentration=50.0,
        user_table_concentration=50.0,
        item_dish_concentration=1e-6,
        item_table_concentration=1e-6,
        # The structure of `test_a_number_given_is_never_changed`: compiled once.
        user_topic_mean_variance=0.1,
        item_topic_mean_variance=0.1,
    )
    messages = fit_and_listen(full)
    assert len(messages) == 1, messages
    assert "4 user topics" in messages[0] and "max_user_topics" in messages[0]
    # All topics of a model of a given number of them are in use: that is meant.
    assert fit_and_listen(fits.MODELS["M3F"]) == []
