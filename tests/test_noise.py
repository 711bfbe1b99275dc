"""Whole fits whose noise differs, what they predict, and what is said about them."""

import dataclasses
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from scipy import stats

import im3f_jax as im3f
from im3f_jax.gibbs.sweep import gibbs_sweep
from im3f_jax.inference.features import expected_ratings, feature_width
from im3f_jax.inference.memory import estimate_draw_bytes
from im3f_jax.inference.run import run_chunk
from im3f_jax.model.noise import ConstantNoise, GammaNoise
from im3f_jax.model.spec import validate
from im3f_jax.posterior.score import level_probabilities, log_score, midpoints
from tests import fits
from tests.posterior.test_score import ITEM, LEVELS, USER, random_draws

pytestmark = pytest.mark.relaxed  # fits start by optax

SETTINGS = {
    "by user and item": {"user_noise_shape": None, "item_noise_shape": 4.0},
    "Student's t": {"degrees_of_freedom": 3.0},
    "by item, and t": {"item_noise_shape": None, "degrees_of_freedom": 5.0},
    "a nearly normal t": {"degrees_of_freedom": 12.0},
}
MODELS = {
    "BPMF": im3f.BPMF(
        2, user_noise_shape=None, item_noise_shape=4.0, degrees_of_freedom=5.0
    ),
    "M3F ordinal": im3f.M3F(3, 2, 2, likelihood="ordinal", user_noise_shape=None),
}
_fitted = {}


def posterior(name="BPMF"):
    if name not in _fitted:
        _fitted[name] = fits.fit(MODELS[name])
    return _fitted[name]


def refused(match, call):
    with pytest.raises(im3f.InputError, match=match) as error:
        call()
    message = str(error.value)
    assert message.endswith(".") and "\n" not in message and ". " not in message


# --- predictions by hand ------------------------------------------------------------


def noisy_draws(settings, likelihood):
    """Draws at random with precisions by user and item, where the noise has them."""
    draws, _ = random_draws(3, 2)
    spec = im3f.M3F(3, 2, 2, likelihood=likelihood, **settings)
    shape = *draws.global_bias.shape, 4
    rng = np.random.default_rng(11)
    p, q = np.ones(shape), np.ones((*shape[:2], 3))
    if isinstance(spec.user_noise, GammaNoise):
        p = rng.gamma(2.0, 0.5, p.shape) + 0.1
    if isinstance(spec.item_noise, GammaNoise):
        q = rng.gamma(2.0, 0.5, q.shape) + 0.1
    if "user_noise_shape" in settings or "item_noise_shape" in settings:
        users = [draws.user_features, p[..., None], 0 * p[..., None]]
        items = [draws.item_features, 0 * q[..., None], q[..., None]]
        draws = draws._replace(
            user_features=np.concatenate(users, -1).astype(np.float32),
            item_features=np.concatenate(items, -1).astype(np.float32),
        )
    assert draws.user_features.shape[-1] == feature_width(spec)
    if isinstance(spec.likelihood, im3f.Ordinal):
        draws = draws._replace(
            rating_variance=np.ones(shape[:2]),
            global_bias=np.zeros(shape[:2]),
            cut_points=np.sort(rng.normal(size=(*shape[:2], 4)), axis=-1),
        )
    return draws, spec, p, q


def mixtures(draws, p, q, user, item):
    """Yield each draw's place, and means, weights and deviation of a pair's mixture."""
    for place in np.ndindex(draws.global_bias.shape):
        u = np.float64(draws.user_features[place][user])[:7]
        j = np.float64(draws.item_features[place][item])[:7]
        a, user_bias, user_weight = np.split(u, [2, 4])
        b, item_weight, item_bias = np.split(j, [2, 4])
        mean = draws.global_bias[place] + a @ b + user_bias[:, None] + item_bias
        variance = draws.rating_variance[place] / (p[place][user] * q[place][item])
        yield place, mean, item_weight[:, None] * user_weight, np.sqrt(variance)


@pytest.mark.parametrize(
    "name, likelihood",
    [
        ("by user and item", "gaussian"),
        ("by item, and t", "ordinal"),
        pytest.param("by user and item", "ordinal", marks=pytest.mark.slow),
        pytest.param("Student's t", "gaussian", marks=pytest.mark.slow),
        pytest.param("Student's t", "ordinal", marks=pytest.mark.slow),
        pytest.param("a nearly normal t", "gaussian", marks=pytest.mark.slow),
    ],
)
def test_probabilities_and_scores_by_hand(name, likelihood):
    degrees = SETTINGS[name].get("degrees_of_freedom", np.inf)
    law = stats.t(degrees)
    levels = LEVELS
    given = im3f.Ordinal(tuple(LEVELS)) if likelihood == "ordinal" else likelihood
    draws, spec, p, q = noisy_draws(SETTINGS[name], given)
    edges = (levels[1:] + levels[:-1]) / 2
    expected, densities, means = [], [], []
    for n, (user, item) in enumerate(zip(USER, ITEM, strict=True)):
        each, density = [], []
        for place, mean, weight, spread in mixtures(draws, p, q, user, item):
            if likelihood == "ordinal":
                edges = draws.cut_points[place]
            upto = law.cdf((edges[:, None, None] - mean) / spread)
            upto = np.sum(weight * upto, axis=(1, 2))
            each.append(np.diff(np.concatenate([[0], upto, [1]])))
            value = law.pdf((levels[n] - mean) / spread) / spread
            density.append(np.sum(weight * value))
        means.append([e @ levels for e in each])
        expected.append(np.mean(each, axis=0))
        densities.append(np.mean(density))
    found = level_probabilities(draws, spec, USER, ITEM, levels)
    np.testing.assert_allclose(found.probability, expected, atol=2e-6)
    np.testing.assert_allclose(found.probability.sum(1), 1, atol=1e-6)
    score = log_score(draws, spec, USER, ITEM, levels, levels)
    np.testing.assert_allclose(
        score.log_score, np.log(np.diagonal(expected)), atol=5e-5
    )
    if likelihood == "gaussian":
        score = log_score(draws, spec, USER, ITEM, levels, None)
        np.testing.assert_allclose(score.log_score, np.log(densities), atol=2e-5)
        return
    # What a sweep predicts of a draw.
    features = draws.user_features[1, 0], draws.item_features[1, 0]
    rows = jnp.asarray(USER, jnp.int32), jnp.asarray(ITEM, jnp.int32)
    mean = jax.jit(expected_ratings, static_argnums=6)(
        features, spec, np.float32(0), np.float32(draws.cut_points[1, 0]), *rows, 5
    )
    np.testing.assert_allclose(mean, np.array(means)[:, 2], atol=5e-6)


@pytest.mark.slow
def test_bounds_of_levels_are_open():
    # Far from all levels the outermost holds everything, without a NaN.
    draws, spec, *_ = noisy_draws(SETTINGS["Student's t"], "gaussian")
    low, high = midpoints(LEVELS, LEVELS)
    assert np.isinf(low[0]) and np.isinf(high[-1])
    draws.global_bias[:] = 1e6
    found = level_probabilities(draws, spec, USER, ITEM, LEVELS).probability
    np.testing.assert_allclose(found, np.tile([0, 0, 0, 0, 1], (5, 1)), atol=1e-6)


# --- what a fit gives ---------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["BPMF", pytest.param("M3F ordinal", marks=pytest.mark.slow)]
)
def test_a_fit_predicts_and_is_scored(name, tmp_path):
    fitted = posterior(name)
    train, test = fits.data()
    users, items = test.user_ids, test.item_ids
    proba = fitted.predict_proba(users, items)
    assert np.all(proba >= 0)
    np.testing.assert_allclose(proba.sum(1), 1, atol=1e-6)
    predicted = fitted.predict(users, items)
    np.testing.assert_allclose(fitted.test_predictions, predicted, atol=1e-5)
    of_rating = proba[np.arange(len(test)), test.rating.astype(int) - 1]
    scores = fitted.evaluate(test)
    assert scores["log_score"] == pytest.approx(np.log(of_rating).mean(), abs=1e-4)
    if name == "M3F ordinal":
        np.testing.assert_allclose(predicted, proba @ fitted.levels, atol=1e-5)
    else:  # precisions add nothing to the mean
        user = fitted.draws.user_features[..., fitted.user_row[test.user], :-2]
        item = fitted.draws.item_features[..., fitted.item_row[test.item], :-2]
        mean = np.einsum("csnf,csnf->csn", np.float64(user), np.float64(item))
        mean += fitted.draws.global_bias[..., None]
        np.testing.assert_allclose(predicted, mean.mean((0, 1)), atol=1e-5)
    fitted.save(tmp_path / "fit.npz")
    loaded = im3f.load(tmp_path / "fit.npz")
    assert loaded.spec == fitted.spec
    fits.same(loaded, fitted)
    pairs = fits.grid(train)
    np.testing.assert_array_equal(
        loaded.predict_proba(*pairs), fitted.predict_proba(*pairs)
    )
    pd.testing.assert_series_equal(loaded.user_precision, fitted.user_precision)
    if name == "M3F ordinal":
        refused("between items", lambda: fitted.item_precision)


def test_shapes_are_sampled_or_stay():
    fitted = posterior()
    assert fitted.spec.user_noise == GammaNoise(im3f.Gamma(2.0, 0.2))
    assert fitted.spec.item_noise == GammaNoise(4.0)
    assert fitted.spec.rating_noise == GammaNoise(2.5)
    sampled = fitted.trace["user_noise_shape"]
    assert np.all(sampled > 0) and len(np.unique(sampled)) > 10
    assert np.unique(fitted.trace["item_noise_shape"]) == 4
    assert np.all(np.isinf(fits.posterior("BPMF").trace["user_noise_shape"]))
    assert fits.held(fitted) == 3 * estimate_draw_bytes(fitted.spec, 59, 39)
    assert np.all(np.isfinite(fitted.trace["log_joint"]))


@pytest.mark.parametrize("side", ["user", "item"])
def test_precisions_by_id(side):
    fitted = posterior()
    train, _ = fits.data()
    found = getattr(fitted, f"{side}_precision")
    index = getattr(train, f"{side}s")
    assert isinstance(found, pd.Series) and found.name == f"{side}_precision"
    assert found.index.tolist() == index.ids.tolist() and found.index.name == side
    cold = {"user": fits.COLD_USER, "item": fits.COLD_ITEM}[side]
    assert np.flatnonzero(found.isna()).tolist() == [cold]
    features = getattr(fitted.draws, f"{side}_features")
    each = np.float64(features[..., -2 if side == "user" else -1])
    # A new row has precision 1, and is like the mean of its prior.
    assert np.all(each[..., -1] == 1)
    row = getattr(fitted, f"{side}_row")
    known = [n for n in range(len(index)) if n != cold]
    np.testing.assert_allclose(
        found.to_numpy()[known], each.mean((0, 1))[row[known]], rtol=1e-12
    )
    assert 0.5 < np.nanmean(found) < 1.5 and np.nanstd(found) > 0.02


def test_precisions_that_are_not_there_are_said_so():
    plain = fits.posterior("BPMF")
    refused("between users.*user_noise_shape", lambda: plain.user_precision)
    refused("between items.*item_noise_shape", lambda: plain.item_precision)
    bare = dataclasses.replace(posterior(), draws=None)
    refused("kept no draws", lambda: bare.item_precision)


def test_users_whose_ratings_are_noise_are_found():
    # Every third user answers by throwing a die; the others as before.
    train, test = fits.data()
    rng = np.random.default_rng(2)
    wild = train.user % 3 == 0
    values = np.where(wild, rng.integers(1, 6, len(train)), train.rating)
    wild_train = fits.with_ratings(train, values)
    fitted = fits.fit(MODELS["BPMF"], wild_train, test, num_warmup=60)
    found = fitted.user_precision.to_numpy()
    is_wild = np.arange(60) % 3 == 0
    assert np.nanmedian(found[is_wild]) < 0.8 * np.nanmedian(found[~is_wild])


def test_a_file_from_before_is_read(tmp_path):
    """A file of version 1 from before there was noise that differs."""
    old = Path(__file__).parent / "posterior" / "formats" / "version_1.npz"
    saved, path = im3f.load(old), tmp_path / "fit.npz"
    with np.load(old) as file:
        arrays = dict(file)
    header = json.loads(str(arrays["header"]))
    for name in ("user_noise", "item_noise", "rating_noise"):
        assert header["spec"].pop(name)["type"] == "ConstantNoise"
    for name in ("trace.user_noise_shape", "trace.item_noise_shape"):
        del arrays[name]
    arrays["header"] = np.array(json.dumps(header))
    np.savez(path, **arrays)
    loaded = im3f.load(path)
    assert loaded.spec == saved.spec
    assert isinstance(loaded.spec.user_noise, ConstantNoise)
    pairs = saved.users.ids[:3], saved.items.ids[:3]
    np.testing.assert_array_equal(loaded.predict(*pairs), saved.predict(*pairs))


# --- settings -----------------------------------------------------------------------


def test_words_and_components_say_the_same():
    plain = im3f.BPMF(2, user_noise_shape=np.inf, degrees_of_freedom=float("inf"))
    assert plain == im3f.BPMF(2)
    given = im3f.IM3F(2, item_noise_shape=im3f.Gamma(3.0, 1.0), degrees_of_freedom=5)
    assert given.item_noise == GammaNoise(im3f.Gamma(3.0, 1.0))
    assert given.rating_noise == GammaNoise(2.5)
    assert given.user_noise == ConstantNoise()


BAD = [0, -1.0, np.nan, True, "x", im3f.InverseGamma(2.0, 1.0), -np.inf, 1e39]
BAD += [im3f.Gamma(0.0, 1.0), im3f.Gamma(2.0, None)]


@pytest.mark.parametrize("value", BAD, ids=str)
def test_a_shape_without_meaning_is_refused(value):
    for name in ("user_noise_shape", "item_noise_shape"):
        for preset in (im3f.BPMF, im3f.M3F, im3f.IM3F):
            refused(name, lambda preset=preset, name=name: preset(**{name: value}))


@pytest.mark.parametrize("value", [*BAD, None, im3f.Gamma(2.0, 1.0)], ids=str)
def test_degrees_of_freedom_without_meaning_are_refused(value):
    refused("degrees_of_freedom", lambda: im3f.BPMF(degrees_of_freedom=value))


@pytest.mark.parametrize(
    "settings",
    [{"user_noise_shape": None}, {"item_noise_shape": 3.0}, {"degrees_of_freedom": 5}],
)
def test_a_franchise_and_pmf_take_constant_noise_only(settings):
    refused("CRF", lambda: im3f.IM3F(2, topics=im3f.CRF(), **settings))
    with pytest.raises(TypeError):
        im3f.PMF(2, **settings)
    noisy = im3f.BPMF(2, **settings)
    noise = {k: getattr(noisy, k) for k in ("user_noise", "item_noise", "rating_noise")}
    refused("PMF", lambda: validate(dataclasses.replace(im3f.PMF(2), **noise)))


def test_a_noise_that_is_no_component_is_refused():
    model = dataclasses.replace(im3f.BPMF(2), item_noise=4.0)
    refused("item_noise is 4.0", lambda: validate(model))
    model = dataclasses.replace(im3f.BPMF(2), rating_noise=GammaNoise())
    refused("degrees_of_freedom is None", lambda: validate(model))


# --- engineering --------------------------------------------------------------------


def test_another_shape_and_other_degrees_compile_nothing():
    posterior()
    sizes = run_chunk._cache_size(), gibbs_sweep._cache_size()
    model = im3f.BPMF(
        2,
        user_noise_shape=im3f.Gamma(3.0, 1.0),
        item_noise_shape=0.5,
        degrees_of_freedom=30.0,
    )
    again = fits.fit(model, num_samples=20, thinning=2, seed=4)
    assert (run_chunk._cache_size(), gibbs_sweep._cache_size()) == sizes
    assert np.unique(again.trace["item_noise_shape"]) == np.float32(0.5)


def test_shapes_of_nearly_nothing_stay_finite():
    # Most of the prior's mass lies below the least number of float32.
    model = im3f.BPMF(
        2,
        user_noise_shape=im3f.Gamma(1.0, 100.0),
        item_noise_shape=0.01,
        degrees_of_freedom=0.02,
    )
    fitted = fits.fit(model)
    assert all(np.all(np.isfinite(x)) for x in jax.tree.leaves(fitted.draws))
    assert np.all(np.isfinite(fitted.trace["log_joint"]))
    _, test = fits.data()
    assert np.isfinite(fitted.evaluate(test)["log_score"])


@pytest.mark.slow
def test_the_prior_can_be_looked_at():
    train, _ = fits.data()
    draws = im3f.sample_prior(jax.random.key(0), MODELS["BPMF"], train)
    assert draws["user_precision"].shape == (59,)
    assert draws["rating_precision"].shape == (len(train),)
    assert float(draws["rating_noise_shape"]) == 2.5


@pytest.mark.slow
def test_chains_at_once_are_chains_one_after_another():
    settings = {"num_chains": 2, "num_samples": 3, "thinning": 1, "num_warmup": 2}
    apart = fits.fit(MODELS["BPMF"], **settings, chain_method="sequential")
    at_once = fits.fit(MODELS["BPMF"], **settings, chain_method="vectorized")
    for name in ("user_noise_shape", "rating_variance", "log_joint"):
        a, b = apart.trace[name], at_once.trace[name]
        assert a.shape == b.shape == (2, 5)
        np.testing.assert_allclose(a, b, rtol=2e-2)
    each = at_once.draws.user_features[..., :-1, -2]  # without the new row
    assert np.all(each[0] != each[1])
    np.testing.assert_allclose(at_once.user_precision, apart.user_precision, rtol=0.1)
