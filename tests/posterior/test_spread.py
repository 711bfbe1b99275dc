"""How sure predictions are, held against sums in plain numpy and known worlds."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from scipy.optimize import brentq

import im3f_jax as im3f
from im3f_jax import InputError
from im3f_jax.model.spec import resolve
from im3f_jax.posterior import spread
from tests.gof import FAILURE
from tests.posterior import worlds
from tests.posterior.test_predictions import (
    DIM,
    ITEMS,
    NAMES,
    make_draws,
    make_posterior,
    rating_means,
)

ASKED = [0.05, 0.5, 0.975]


def known(posterior):
    """Pairs of all users and items with training ratings: ids, and rows."""
    users, items = np.divmod(np.arange((len(NAMES) - 1) * ITEMS), ITEMS)
    row = posterior.user_row[posterior.users.lookup(NAMES)][users]
    ids = [NAMES[u] for u in users], list(10 * (1 + items))
    return ids, np.stack([row, items], axis=1)


def make(model, **more):
    draws = make_draws(3, 2)._replace(**more)
    return make_posterior(resolve(model, 3.0, 1.0, 1.0, [1, 2, 3, 4, 5]), draws)


def expected_spread(posterior, pair, cdf=stats.norm.cdf, noise=1.0):
    """Both standard deviations and quantiles of one pair, summed up by hand."""
    means, variances, parts = [], [], []
    for mean, weight, variance in rating_means(posterior.draws, *pair):
        first = np.sum(weight * mean)
        means.append(first)
        variances.append(np.sum(weight * (mean - first) ** 2) + noise * variance)
        parts.append((mean, weight, np.sqrt(variance)))

    def below(x):
        return np.mean([np.sum(w * cdf((x - m) / s)) for m, w, s in parts])

    quantiles = [brentq(lambda x, q=q: below(x) - q, -200, 200) for q in ASKED]
    total = np.mean(variances) + np.var(means)
    return np.mean(means), np.std(means), np.sqrt(total), quantiles


@pytest.mark.parametrize("block", [1, 1 << 22])
def test_spreads_are_those_of_the_mixture(block, monkeypatch):
    monkeypatch.setattr(spread, "HELD", block)  # 8 pairs at once, or all
    posterior = make(im3f.IM3F(DIM, max_user_topics=3, max_item_topics=2))
    ids, rows = known(posterior)
    found = posterior.predict(*ids, return_std=True, quantiles=ASKED)
    np.testing.assert_array_equal(found.mean, posterior.predict(*ids))
    for i, pair in enumerate(rows):
        mean, of_mean, of_rating, quantiles = expected_spread(posterior, pair)
        assert found.mean[i] == pytest.approx(mean, rel=1e-5)
        assert found.std_of_mean[i] == pytest.approx(of_mean, rel=1e-4)
        assert found.std_of_rating[i] == pytest.approx(of_rating, rel=1e-4)
        np.testing.assert_allclose(found.quantiles[i], quantiles, atol=1e-3)


def test_noise_by_user_and_rating_is_counted():
    model = im3f.IM3F(
        DIM,
        max_user_topics=3,
        max_item_topics=2,
        user_noise_shape=2.0,
        degrees_of_freedom=5.0,
    )
    plain = make_draws(3, 2)
    precision = np.random.default_rng(1).gamma(2.0, 0.5, plain.user_features.shape[:3])
    nothing = np.zeros_like(precision), np.zeros(plain.item_features.shape[:3])
    ends = {
        "user_features": np.stack([precision, nothing[0]], axis=-1),
        "item_features": np.stack([nothing[1], nothing[1] + 1], axis=-1),
    }
    features = {
        name: np.concatenate([getattr(plain, name), end], axis=-1).astype(np.float32)
        for name, end in ends.items()
    }
    posterior = make(model, **features)
    user, item = 1, 2
    # The precision divides the variance of that user's ratings; a t of 5 degrees of
    # freedom has variance 5 / 3.
    same = make(model)
    divided = same.draws._replace(
        rating_variance=same.draws.rating_variance / precision[:, :, user]
    )
    same.draws = divided
    given = [NAMES[user]], [10 * (1 + item)]
    row = posterior.user_row[posterior.users.lookup(given[0])[0]]
    assert row == user
    found = posterior.predict(*given, return_std=True, quantiles=ASKED)
    _, of_mean, of_rating, quantiles = expected_spread(
        same, (user, item), stats.t(5).cdf, 5 / 3
    )
    assert found.std_of_mean[0] == pytest.approx(of_mean, rel=1e-4)
    assert found.std_of_rating[0] == pytest.approx(of_rating, rel=1e-4)
    np.testing.assert_allclose(found.quantiles[0], quantiles, atol=2e-3)


def test_ordinal_spreads_are_those_of_the_levels():
    model = im3f.IM3F(DIM, max_user_topics=3, max_item_topics=2, likelihood="ordinal")
    cuts = np.sort(np.random.default_rng(2).normal(3, 1, (2, 3, 4)), axis=-1)
    posterior = make(model, cut_points=cuts, rating_variance=np.ones((2, 3)))
    ids, _ = known(posterior)
    found = posterior.predict(*ids, return_std=True, quantiles=ASKED)
    each = posterior.predict_proba(*ids, per_draw=True).reshape(6, -1, 5)
    levels = posterior.levels
    mean = each @ levels
    probability = each.mean(axis=0)
    total = probability @ levels**2 - (probability @ levels) ** 2
    np.testing.assert_allclose(found.mean, mean.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(found.std_of_mean, mean.std(axis=0), rtol=1e-3)
    np.testing.assert_allclose(found.std_of_rating, np.sqrt(total), rtol=1e-3)
    assert np.isin(found.quantiles, levels).all()
    upto = np.cumsum(probability, axis=1)
    for q, column in zip(ASKED, found.quantiles.T, strict=True):
        place = np.searchsorted(levels, column)
        at = upto[np.arange(len(place)), place]
        below = np.where(place > 0, upto[np.arange(len(place)), place - 1], 0)
        assert (at >= q - 1e-5).all() and (below <= q + 1e-5).all()


def test_new_rows_have_the_spread_of_their_prior():
    world = worlds.make_world(im3f.BPMF(2))
    number = 600
    posterior = worlds.posterior_of(world, number)
    found = posterior.predict(
        ["old", "zoe"], [0, 0], unknown="prior", return_std=True, quantiles=[0.5]
    )
    assert found.std_of_mean[0] == pytest.approx(0, abs=1e-4)
    assert found.std_of_rating[0] == pytest.approx(np.sqrt(world.variance), rel=1e-4)
    b = world.factors[0]
    variance = b @ np.linalg.solve(world.factor_precision, b)
    statistic = number * found.std_of_mean[1] ** 2 / variance
    chance = stats.chi2(number - 1)
    assert FAILURE < chance.cdf(statistic) < 1 - FAILURE
    total = found.std_of_mean[1] ** 2 + world.variance
    assert found.std_of_rating[1] == pytest.approx(np.sqrt(total), rel=1e-4)


@pytest.fixture(scope="module")
def posterior():
    return make(im3f.IM3F(DIM, max_user_topics=3, max_item_topics=2))


def test_what_is_not_asked_for_is_none(posterior):
    both = ["ann", "bob"], [10, 20]
    found = posterior.predict(*both, return_std=True)
    assert found._fields == ("mean", "std_of_mean", "std_of_rating", "quantiles")
    assert found.quantiles is None and found.std_of_mean.shape == (2,)
    found = posterior.predict(*both, quantiles=[0.1])
    assert found.std_of_mean is None and found.std_of_rating is None
    assert found.quantiles.shape == (2, 1)
    assert isinstance(posterior.predict(*both), np.ndarray)
    clipped = posterior.predict(*both, quantiles=[0.01, 0.99], clip=(2.5, 3.5))
    assert clipped.quantiles.min() >= 2.5 and clipped.quantiles.max() <= 3.5
    nothing = posterior.predict([], [], return_std=True, quantiles=[0.1])
    assert nothing.mean.shape == (0,) and nothing.quantiles.shape == (0, 1)


def test_a_frame_says_what_is_known(posterior):
    frame = posterior.predict_frame(
        iter(["ann", "zoe"]), [10, 10], unknown="nan", quantiles=[0.05, 0.95]
    )
    assert list(frame) == [
        "user",
        "item",
        "prediction",
        "std_of_mean",
        "std_of_rating",
        "known",
        "q0.05",
        "q0.95",
    ]
    assert frame["known"].tolist() == [True, False]
    assert frame["user"].tolist() == ["ann", "zoe"]
    numbers = frame[["prediction", "std_of_mean", "std_of_rating", "q0.05", "q0.95"]]
    assert numbers.loc[0].notna().all() and numbers.loc[1].isna().all()
    assert frame["q0.05"][0] < frame["prediction"][0] < frame["q0.95"][0]
    assert len(posterior.predict_frame("ann", 10)) == 1


def test_columns_of_a_frame_stand_by_position(posterior):
    users = pd.Series(["ann", "bob"], index=[5, 6])
    items = pd.Series([10, 20], index=[6, 5])
    frame = posterior.predict_frame(users, items, quantiles=None)
    assert frame["user"].tolist() == ["ann", "bob"]
    assert frame["item"].tolist() == [10, 20]
    np.testing.assert_array_equal(
        frame["prediction"], posterior.predict(["ann", "bob"], [10, 20])
    )


def test_questions_without_meaning_are_refused(posterior):
    pair = ["ann"], [10]
    for quantiles in ([0.0], [1.0], [np.nan], "half", [[0.5]]):
        with pytest.raises(InputError, match="between 0 and 1"):
            posterior.predict(*pair, quantiles=quantiles)
    for more in ({"return_std": True}, {"quantiles": [0.5]}):
        with pytest.raises(InputError, match="ask for one of them"):
            posterior.predict(*pair, per_draw=True, **more)
    # It keeps no precisions.
    with pytest.raises(InputError, match="users without .* older version.*is_known"):
        posterior.predict(["cold"], [10], return_std=True)
