"""Whole fits under the ordinal likelihood, and what is said about them."""

import dataclasses
import warnings

import jax
import numpy as np
import pytest
from scipy.special import ndtr

import im3f_jax as im3f
from im3f_jax.gibbs.sweep import gibbs_sweep
from im3f_jax.inference.run import run_chunk
from im3f_jax.posterior.score import TOPICS, level_probabilities, log_score
from tests import fits
from tests.posterior.test_explain import check_parts
from tests.posterior.test_recommend import check_against_all_pairs, seen_by_id
from tests.posterior.test_score import ITEM, USER, random_draws

pytestmark = pytest.mark.relaxed  # fits start by optax

LEVELS = (1.0, 2.0, 3.0, 4.0, 5.0)
MODELS = {
    "BPMF": im3f.BPMF(2, likelihood="ordinal"),
    "M3F": im3f.M3F(2, 3, 2, likelihood="ordinal"),
}
_fitted = {}


def posterior(name="M3F"):
    if name not in _fitted:
        _fitted[name] = fits.fit(MODELS[name])
    return _fitted[name]


# --- what a fit gives -------------------------------------------------------------


def test_a_fit_is_resolved_and_keeps_its_cut_points():
    fitted = posterior()
    spec = fitted.spec
    assert spec.likelihood == im3f.Ordinal(LEVELS, 3.0)
    assert spec.global_bias == 0
    # Scaled by the variance of the latent noise, 1.
    assert spec.user_bias_prior.variance.scale == pytest.approx(0.1)
    assert spec.item_bias_prior.topic_mean_variance == 0.0  # M3F's
    cuts = fitted.draws.cut_points
    assert cuts.shape == (1, 3, 4)
    assert np.all(np.diff(cuts) > 0) and len(np.unique(cuts)) == cuts.size
    assert np.all(fitted.rating_variance == 1)
    assert set(np.unique(fitted.trace["cut_points_accepted"])) <= {0, 1}
    np.testing.assert_array_equal(fitted.levels, LEVELS)
    assert fits.posterior("BPMF").draws.cut_points.shape == (1, 3, 0)
    # About the expectation given topics, in stars.
    assert 0.2 < fitted.trace["residual_rmse"][0, -1] < 1.2


@pytest.mark.thorough
@pytest.mark.parametrize("name", MODELS)
def test_predictions_are_the_levels_by_their_probabilities(name):
    fitted = posterior(name)
    train, test = fits.data()
    users, items = test.user_ids, test.item_ids
    proba = fitted.predict_proba(users, items)
    assert proba.shape == (len(test), 5)
    assert np.all(proba >= 0)
    np.testing.assert_allclose(proba.sum(1), 1, atol=1e-6)
    expected = proba @ np.array(LEVELS)
    np.testing.assert_allclose(fitted.predict(users, items), expected, atol=1e-5)
    np.testing.assert_allclose(fitted.test_predictions, expected, atol=1e-5)
    np.testing.assert_allclose(
        fitted.train_predictions,
        fitted.predict(train.user_ids, train.item_ids),
        atol=1e-5,
    )
    each = fitted.predict(users, items, per_draw=True)
    assert each.shape == (1, 3, len(test))
    np.testing.assert_allclose(each.mean((0, 1)), expected, atol=1e-5)
    by_draw = fitted.predict_proba(users, items, per_draw=True)
    np.testing.assert_allclose(by_draw.mean((0, 1)), proba, atol=1e-6)
    # The trace scores the same predictions.
    error = fitted.test_predictions - test.rating
    assert fitted.trace["test_rmse"][0, -1] == pytest.approx(
        np.sqrt(np.mean(error**2)), rel=1e-5
    )
    # Nearer the ratings than the mean is.
    known = fitted.is_known(users, items)
    assert np.std(error[known]) < 0.95 * np.std(test.rating[known])


def test_levels_expected_rank_the_recommendations():
    fitted = posterior()
    few = [0, fits.COLD_USER, 59]
    seen = seen_by_id(fitted)
    check_against_all_pairs(fitted, seen, n=6, users=few)
    check_against_all_pairs(fitted, seen, n=6, users=few, rank_by="upper")


@pytest.mark.parametrize(
    "name", ["M3F", pytest.param("BPMF", marks=pytest.mark.thorough)]
)
def test_parts_are_those_of_the_latent_mean(name):
    parts = ["global bias", "factors", "user bias", "item bias"]
    pairs = [(0, 0), (fits.COLD_USER, 7)]
    check_parts(posterior(name), pairs, parts[: 2 if name == "BPMF" else 4])


def test_evaluate_gives_the_log_probability_of_the_level():
    fitted = posterior()
    _, test = fits.data()
    scores = fitted.evaluate(test)
    assert scores["log_score_kind"] == "log_probability"
    proba = fitted.predict_proba(test.user_ids, test.item_ids)
    of_rating = proba[np.arange(len(test)), test.rating.astype(int) - 1]
    assert scores["log_score"] == pytest.approx(np.log(of_rating).mean(), abs=1e-4)
    assert scores["dropped_weight"] == pytest.approx(0, abs=1e-5)


def test_a_pair_without_training_ratings_is_predicted():
    fitted = posterior()
    train, _ = fits.data()
    cold = train.users.ids[fits.COLD_USER]
    proba = fitted.predict_proba(
        [cold, "nobody"], [train.items.ids[0]] * 2, unknown="prior"
    )
    np.testing.assert_allclose(proba[0], proba[1], atol=1e-6)
    proba = fitted.predict_proba(
        [cold, "nobody"], [train.items.ids[0]] * 2, unknown="nan"
    )
    assert np.all(np.isfinite(proba[0])) and np.all(np.isnan(proba[1]))
    with pytest.raises(im3f.InputError, match="nobody"):
        fitted.predict_proba(["nobody"], [train.items.ids[0]])


def test_a_saved_posterior_predicts_the_same(tmp_path):
    fitted = posterior()
    train, _ = fits.data()
    fitted.save(tmp_path / "fit.npz")
    loaded = im3f.load(tmp_path / "fit.npz")
    assert loaded.spec == fitted.spec
    np.testing.assert_array_equal(loaded.draws.cut_points, fitted.draws.cut_points)
    pairs = fits.grid(train)
    np.testing.assert_array_equal(
        loaded.predict_proba(*pairs), fitted.predict_proba(*pairs)
    )


def test_a_gaussian_gives_levels_what_lies_between_midpoints():
    fitted = fits.posterior("M3F")
    train, test = fits.data()
    proba = fitted.predict_proba(test.user_ids, test.item_ids)
    np.testing.assert_array_equal(fitted.levels, LEVELS)
    of_rating = proba[np.arange(len(test)), test.rating.astype(int) - 1]
    score = fitted.evaluate(test)["log_score"]
    assert score == pytest.approx(np.log(of_rating).mean(), abs=1e-4)
    continuous = dataclasses.replace(fitted, is_discrete=False)
    with pytest.raises(im3f.InputError, match="not on a discrete scale"):
        continuous.predict_proba(test.user_ids, test.item_ids)
    bare = dataclasses.replace(fitted, draws=None)
    with pytest.raises(im3f.InputError, match="kept no draws"):
        bare.predict_proba(test.user_ids, test.item_ids)


def by_hand(draws, spec, user, item, top):
    """Probability of each level, over the `top` largest topics of a row, in numpy."""
    dim, contexts = spec.latent_dim, spec.num_item_topics
    total, count = 0.0, 0
    for place in np.ndindex(draws.global_bias.shape):
        u = np.float64(draws.user_features[place][user])
        j = np.float64(draws.item_features[place][item])
        a, user_bias, user_weight = np.split(u, [dim, dim + contexts])
        b, item_weight, item_bias = np.split(j, [dim, dim + contexts])
        found, kept = 0.0, 0.0
        for k in np.argsort(-item_weight)[:top]:
            for i in np.argsort(-user_weight)[:top]:
                mean = draws.global_bias[place] + a @ b + user_bias[k] + item_bias[i]
                upto = np.concatenate([[0], ndtr(draws.cut_points[place] - mean), [1]])
                found = found + item_weight[k] * user_weight[i] * np.diff(upto)
                kept += item_weight[k] * user_weight[i]
        total, count = total + found / kept, count + 1
    return total / count


def test_probabilities_and_scores_by_hand():
    draws, spec = random_draws(TOPICS + 3, 4)
    rng = np.random.default_rng(7)
    cuts = np.sort(rng.normal(size=(2, 2, 4)), axis=-1)
    draws = draws._replace(
        cut_points=cuts,
        rating_variance=np.ones((2, 2)),
        global_bias=np.zeros((2, 2)),
    )
    likelihood = im3f.Ordinal((1.0, 2.0, 3.5, 4.0, 7.0))
    spec = dataclasses.replace(spec, likelihood=likelihood)
    levels = np.array(likelihood.levels)
    found = level_probabilities(draws, spec, USER, ITEM, levels)
    expected = np.array(
        [by_hand(draws, spec, u, j, TOPICS) for u, j in zip(USER, ITEM, strict=True)]
    )
    np.testing.assert_allclose(found.probability, expected, atol=2e-6)
    assert found.dropped > 0
    rating = levels[[0, 1, 4, 2, 3]]
    score = log_score(draws, spec, USER, ITEM, rating, None)
    # What is left out is not shared out there.
    most = np.log(expected[np.arange(5), [0, 1, 4, 2, 3]])
    assert np.all(score.log_score < most + 1e-5)
    np.testing.assert_allclose(score.log_score, most, atol=0.2)


# --- levels -----------------------------------------------------------------------


def levels_fit(values, model=None, **settings):
    """Fit the tables of `fits`, their five levels replaced by others."""
    train, test = fits.data()
    values = np.asarray(values, float)
    train, test = (
        fits.with_ratings(x, values[x.rating.astype(int) - 1]) for x in (train, test)
    )
    return fits.fit(
        model or im3f.BPMF(2, likelihood="ordinal"), train, test, **settings
    )


@pytest.mark.slow  # each number and set of levels compiles anew
@pytest.mark.parametrize("values", [[0.5, 1, 1.5, 4.5, 5], [1, 2, 5, 10, 100]])
def test_levels_may_have_any_distance(values):
    fitted = levels_fit(values)
    np.testing.assert_array_equal(fitted.levels, values)
    assert fitted.test_predictions.min() > values[0]
    assert fitted.test_predictions.max() < values[-1]
    assert (
        fitted.evaluate(fits.with_ratings(fits.data()[1], np.full(290, values[0])))[
            "log_score_kind"
        ]
        == "log_probability"
    )


@pytest.mark.thorough
def test_a_level_without_a_training_rating_keeps_its_prior():
    model = im3f.BPMF(2, likelihood=im3f.Ordinal((1, 2, 3, 3.5, 4, 5, 6)))
    fitted = levels_fit(LEVELS, model, num_samples=40, thinning=1)
    cuts = fitted.draws.cut_points[0]
    assert cuts.shape == (40, 6) and np.all(np.diff(cuts) > 0)
    # The level 3.5 is squeezed in between, the level 6 lies above all others.
    assert len(np.unique(cuts[:, 5])) > 10
    proba = fitted.predict_proba(*fits.grid(fits.data()[0]))
    assert proba[:, 3].mean() < 0.02 and 0 < proba[:, 6].mean() < 0.02


def refused(match, call):
    with pytest.raises(im3f.InputError, match=match):
        call()


def test_a_rating_that_is_no_level_is_named():
    model = im3f.BPMF(2, likelihood=im3f.Ordinal((1, 2, 3, 4)))
    refused("rating 5 is no level.*1, 2, 3, 4", lambda: fits.fit(model))
    _, test = fits.data()
    odd = fits.with_ratings(test, np.full(len(test), 2.5))
    refused("rating 2.5 is no level", lambda: posterior().evaluate(odd))
    # Levels that only the test ratings hold are levels.
    train, _ = fits.data()
    low = fits.with_ratings(train, np.minimum(train.rating, 4))
    fitted = fits.fit(MODELS["M3F"], low, test)
    np.testing.assert_array_equal(fitted.levels, LEVELS)


def test_one_level_is_refused():
    train, _ = fits.data()
    same = fits.with_ratings(train, np.full(len(train), 3.0))
    refused("at least two levels", lambda: fits.fit(MODELS["BPMF"], same))


@pytest.mark.parametrize(
    "match, settings",
    [
        ("likelihood is 'probit'", {"likelihood": "probit"}),
        ("likelihood is None", {"likelihood": None}),
        ("rating_variance belongs", {"likelihood": "ordinal", "rating_variance": 0.5}),
        (
            "rating_variance_floor belongs",
            {"likelihood": im3f.Ordinal(), "rating_variance_floor": 0.1},
        ),
        ("not to both", {"likelihood": im3f.Gaussian(0.5), "rating_variance": 0.5}),
        ("global_bias is 3.0", {"likelihood": "ordinal", "global_bias": 3.0}),
        ("cut_scale", {"likelihood": im3f.Ordinal(cut_scale=0.0)}),
        ("cut_scale", {"likelihood": im3f.Ordinal(cut_scale=None)}),
        ("levels are", {"likelihood": im3f.Ordinal((1.0,))}),
        ("levels are", {"likelihood": im3f.Ordinal((1, 3, 2))}),
        ("levels are", {"likelihood": im3f.Ordinal((1, 2, np.inf))}),
        ("levels are", {"likelihood": im3f.Ordinal("12")}),
        ("levels are", {"likelihood": im3f.Ordinal(("1", "2"))}),
    ],
)
def test_a_likelihood_without_meaning_is_refused(match, settings):
    refused(match, lambda: im3f.BPMF(2, **settings))


def test_words_and_components_say_the_same():
    assert im3f.BPMF(2, likelihood="ordinal") == im3f.BPMF(2, likelihood=im3f.Ordinal())
    assert im3f.M3F(2, 2, 2, likelihood="gaussian") == im3f.M3F(2, 2, 2)
    given = im3f.IM3F(2, likelihood=im3f.Gaussian(0.5))
    assert given == im3f.IM3F(2, rating_variance=0.5)
    assert im3f.Ordinal(np.array([1, 2])) == im3f.Ordinal((1, 2))
    pmf = dataclasses.replace(im3f.PMF(2), likelihood=im3f.Ordinal())
    refused("use BPMF", lambda: fits.fit(pmf))


# --- engineering ------------------------------------------------------------------


def test_other_numbers_and_lengths_compile_nothing():
    first = posterior()
    sizes = run_chunk._cache_size(), gibbs_sweep._cache_size()
    model = im3f.M3F(2, 3, 2, likelihood=im3f.Ordinal(cut_scale=2.0))
    again = fits.fit(model, num_samples=20, thinning=2, seed=4)
    assert (run_chunk._cache_size(), gibbs_sweep._cache_size()) == sizes
    assert again.draws.cut_points.shape == (1, 10, 4)
    fits.same(first, fits.fit(MODELS["M3F"]))


def test_rows_of_one_level_give_no_nan():
    train, test = fits.data()
    values = np.where(train.user % 2 == 0, 1.0, 5.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        fitted = fits.fit(MODELS["M3F"], fits.with_ratings(train, values), test)
    assert all(np.all(np.isfinite(x)) for x in jax.tree.leaves(fitted.draws))


@pytest.mark.thorough
def test_the_prior_draws_levels():
    train, _ = fits.data()
    check = im3f.prior_check(MODELS["M3F"], train)
    shares = check.table.filter(like="share of", axis=0)
    assert len(shares) == 5
    assert shares["prior mean"].sum() == pytest.approx(1, abs=1e-3)
    assert check.table.loc["share outside the scale", "prior mean"] == 0
