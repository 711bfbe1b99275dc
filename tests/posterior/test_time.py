"""Predictions at given times, against numpy, of a posterior whose draws are known."""

import dataclasses

import jax
import numpy as np
import pytest
from scipy.special import ndtr

import im3f_jax as im3f
from im3f_jax import InputError
from im3f_jax.data.times import TimeScale
from im3f_jax.model.spec import resolve
from tests.posterior.test_predictions import (
    CHAINS,
    DIM,
    ITEMS,
    KEPT,
    NAMES,
    USERS,
    make_draws,
    make_posterior,
    rating_means,
)

BINS = 3
# In the first bin, on an edge, between, and after all.
PAIRS = (
    ["ann", "bob", "cold", "eve", "ann"],
    [10, 20, 40, 30, 10],
    np.array([60.0, 100.0, 150.0, 260.0, 170.0]),
)


def make(likelihood="gaussian", **time):
    rng = np.random.default_rng(5)
    time = time or {"item_time_bins": BINS, "user_drift_variance": None}
    spec = im3f.IM3F(
        DIM, max_user_topics=3, max_item_topics=2, likelihood=likelihood, **time
    )
    spec = resolve(spec, 3.0, 1.0, 1.0, [1.0, 2, 3, 4, 5])
    item_time = rng.normal(size=(CHAINS, KEPT, ITEMS + 1, BINS))
    user_drift = rng.normal(size=(CHAINS, KEPT, USERS + 1))
    item_time[:, :, -1] = user_drift[:, :, -1] = 0
    draws = make_draws(3, 2)._replace(
        item_time=item_time.astype(np.float32) if "item_time_bins" in time else None,
        user_drift=user_drift.astype(np.float32)
        if "user_drift_variance" in time
        else None,
    )
    if likelihood == "ordinal":
        cuts = np.sort(rng.normal(3, 1, size=(CHAINS, KEPT, 4)))
        draws = draws._replace(
            cut_points=cuts, rating_variance=np.ones_like(draws.rating_variance)
        )
    mean = np.append(rng.uniform(100, 200, USERS), np.nan)
    scale = TimeScale(np.array([100.0, 160.0]), mean, 2.5)
    return make_posterior(spec, draws, time_scale=scale)


def each_draw(posterior, user, item, time):
    """Give means under each pair of topics, weights and variances, at a time."""
    draws, scale = posterior.draws, posterior.time_scale
    row, column = NAMES.index(user), [10, 20, 30, 40].index(item)
    bin_, x = int(np.sum(scale.edges <= time)), 0.0
    if row < USERS:
        away = time - scale.user_mean[row]
        x = np.sign(away) * abs(away) ** 0.4 / scale.scale
    for n, (mean, weight, variance) in enumerate(rating_means(draws, row, column)):
        place = np.unravel_index(n, (CHAINS, KEPT))
        if draws.item_time is not None:
            mean = mean + draws.item_time[place][column, bin_]
        if draws.user_drift is not None:
            mean = mean + draws.user_drift[place][row] * x
        yield mean, weight, variance, draws.cut_points[place]


def expected_levels(posterior, pair):
    """Probability of each level in each draw, (draws, 5)."""
    found = []
    for mean, weight, variance, cuts in each_draw(posterior, *pair):
        edges = cuts if len(cuts) else np.arange(1.5, 5)
        upto = [np.sum(weight * ndtr((e - mean) / np.sqrt(variance))) for e in edges]
        found.append(np.diff([0, *upto, np.sum(weight)]))
    return np.array(found)


CASES = {
    "both": {},
    "bins": {"item_time_bins": BINS},
    "drift": {"user_drift_variance": 0.3},
}


@pytest.mark.parametrize("time", CASES.values(), ids=CASES)
def test_predictions_of_a_gaussian_at_given_times(time):
    posterior = make(**time)
    users, items, times = PAIRS
    expected = np.array(
        [
            [np.sum(m * w) for m, w, *_ in each_draw(posterior, *pair)]
            for pair in zip(*PAIRS, strict=True)
        ]
    ).T
    each = posterior.predict(users, items, times=times, per_draw=True)
    np.testing.assert_allclose(each.reshape(-1, len(users)), expected, rtol=2e-5)
    found = posterior.predict(users, items, times=times)
    np.testing.assert_allclose(found, expected.mean(axis=0), rtol=2e-5)
    # Another time, another prediction; without a time neither bin nor drift.
    assert found[0] != found[4]
    without = dataclasses.replace(
        posterior, draws=posterior.draws._replace(item_time=None, user_drift=None)
    )
    np.testing.assert_array_equal(
        posterior.predict(users, items), without.predict(users, items)
    )
    assert np.all(np.abs(posterior.predict(users, items) - found)[[0, 1, 3]] > 1e-3)


@pytest.mark.parametrize(
    "likelihood", [pytest.param("gaussian", marks=pytest.mark.slow), "ordinal"]
)
def test_probabilities_and_scores_at_given_times(likelihood):
    posterior = make(likelihood)
    users, items, times = PAIRS
    expected = [expected_levels(posterior, p).mean(0) for p in zip(*PAIRS, strict=True)]
    found = posterior.predict_proba(users, items, times=times)
    np.testing.assert_allclose(found, expected, atol=2e-6)
    assert np.max(np.abs(posterior.predict_proba(users, items) - found)) > 0.01
    if likelihood == "ordinal":
        means = np.array(expected) @ posterior.levels
        given = posterior.predict(users, items, times=times)
        np.testing.assert_allclose(given, means, rtol=1e-5)
    test = im3f.Ratings.from_arrays(
        users, items, [1.0, 2, 3, 4, 5], "keep", timestamps=times
    )
    score = posterior.evaluate(test)
    each = [expected[n][n] for n in range(5)]
    assert score["log_score"] == pytest.approx(np.mean(np.log(each)), rel=1e-4)
    error = posterior.predict(users, items, times=times) - test.rating
    assert score["rmse"] == pytest.approx(np.sqrt(np.mean(error**2)))


def test_times_may_be_datetimes_and_go_with_their_pairs():
    posterior = make()
    users, items, times = PAIRS
    seconds = np.array([0, 100, 150, 400, 170])
    moments = seconds.astype("datetime64[s]")
    np.testing.assert_array_equal(
        posterior.predict(users, items, times=moments),
        posterior.predict(users, items, times=seconds),
    )
    # An unknown user is left out, and the others keep their own times.
    some = posterior.predict(
        ["zoe", *users], [10, *items], times=[0.0, *times], unknown="nan"
    )
    assert np.isnan(some[0])
    np.testing.assert_allclose(some[1:], posterior.predict(users, items, times=times))


def test_times_that_do_not_fit_are_refused():
    posterior = make()
    with pytest.raises(InputError, match="2 pairs and 1 times"):
        posterior.predict(["ann", "bob"], [10, 10], times=[3])
    with pytest.raises(InputError, match="row 1"):
        posterior.predict(["ann", "bob"], [10, 10], times=[3, np.nan])
    test = im3f.Ratings.from_arrays(["ann"], [10], [3.0])
    with pytest.raises(InputError, match="test ratings have no timestamps"):
        posterior.evaluate(test)
    timeless = dataclasses.replace(
        posterior, spec=resolve(im3f.BPMF(DIM), 3.0, 1.0, 1.0)
    )
    for method in (timeless.predict, timeless.predict_proba):
        with pytest.raises(InputError, match="reads no times"):
            method(["ann"], [10], times=[3])
    for name in ("user_drift", "item_time_bias"):
        with pytest.raises(InputError, match="nothing of the"):
            getattr(timeless, name)


def test_effects_by_id():
    posterior = make()
    drift, bias = posterior.user_drift, posterior.item_time_bias
    assert sorted(drift.index) == sorted(NAMES) and np.isnan(drift["cold"])
    mean = posterior.draws.user_drift.mean(axis=(0, 1))
    np.testing.assert_allclose(drift[NAMES[:-1]], mean[:-1], rtol=1e-5)
    assert bias.index.tolist() == [10, 20, 30, 40] and bias.shape == (4, BINS)
    mean = posterior.draws.item_time.mean(axis=(0, 1))
    np.testing.assert_allclose(bias.to_numpy(), mean[:-1], rtol=1e-5)


@pytest.mark.parametrize("time", CASES.values(), ids=CASES)
def test_a_file_keeps_what_times_need(time, tmp_path):
    posterior = make(**time)
    posterior.save(tmp_path / "fit.npz")
    loaded = im3f.load(tmp_path / "fit.npz")
    assert loaded.spec == posterior.spec
    jax.tree.map(np.testing.assert_array_equal, loaded.draws, posterior.draws)
    for name, value in vars(posterior.time_scale).items():
        np.testing.assert_array_equal(getattr(loaded.time_scale, name), value)
    users, items, times = PAIRS
    np.testing.assert_array_equal(
        loaded.predict(users, items, times=times),
        posterior.predict(users, items, times=times),
    )
    loaded.save(tmp_path / "again.npz")
    again = im3f.load(tmp_path / "again.npz")
    assert again.time_scale.scale == posterior.time_scale.scale


def test_a_summary_predicts_its_pairs_at_their_own_times(tmp_path):
    posterior = make()
    train = im3f.Ratings.from_arrays(
        ["ann", "ann", "bob"], [10, 10, 20], [1, 2, 3], "keep", timestamps=[5, 6, 7]
    )
    train = dataclasses.replace(train, users=posterior.users, items=posterior.items)
    summary = dataclasses.replace(
        posterior, draws=None, _fitted=[(train, np.array([1.5, 2.5, 3.5]))]
    )
    summary.save(tmp_path / "fit.npz")
    for one in (summary, im3f.load(tmp_path / "fit.npz")):
        # One pair was rated twice: the time tells which.
        found = one.predict(["ann", "bob", "ann"], [10, 20, 10], times=[6.0, 7, 5])
        np.testing.assert_array_equal(found, [2.5, 3.5, 1.5])
        with pytest.raises(InputError, match="1 of 1 pairs"):
            one.predict(["ann"], [10], times=[7])
        with pytest.raises(InputError, match="give these as `times`"):
            one.predict(["ann"], [10])
