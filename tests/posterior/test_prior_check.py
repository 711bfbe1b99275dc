"""Prior checks: statistics by numpy, and what they say of good and bad priors."""

import dataclasses

import jax
import numpy as np
import pandas as pd
import pytest

import im3f_jax as im3f
from im3f_jax.errors import InputError
from tests import fits


def factors(scale):
    """Make a factor prior whose inner products are small, the smaller the larger."""
    return im3f.NormalWishart(scale=scale, degrees_of_freedom=12.0)


GOOD = im3f.IM3F(
    2,
    max_user_topics=6,
    max_item_topics=5,
    rating_variance=1.0,
    user_bias_variance=0.2,
    item_bias_variance=0.2,
    user_topic_mean_variance=0.1,
    item_topic_mean_variance=0.1,
    global_bias=3.5,
    factor_prior=factors(0.3),
)


@pytest.fixture(scope="module")
def good():
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        return im3f.prior_check(GOOD, fits.data()[0])


@pytest.mark.thorough
def test_the_datas_column_is_numpys(good):
    train, _ = fits.data()
    data = good.table["data"]
    frame = pd.DataFrame({"u": train.user, "i": train.item, "r": train.rating})
    assert data["mean"] == pytest.approx(train.rating.mean(), rel=1e-5)
    assert data["standard deviation"] == pytest.approx(train.rating.std(), rel=1e-5)
    for side in ("user", "item"):
        means = frame.groupby(side[0])["r"].mean()
        found = data[f"standard deviation of {side} means"]
        assert found == pytest.approx(means.std(ddof=0), rel=1e-4)
    for level in (1, 2, 3, 4, 5):
        share = np.mean(train.rating == level)
        assert data[f"share of {level}"] == pytest.approx(share, rel=1e-5)
    assert data["share outside the scale"] == 0
    assert np.isnan(data["occupied user topics"])


def test_the_priors_columns_are_numpys(good):
    check = good.draws
    assert len(check) == 100
    shares = check[[c for c in check if c.startswith("share of ")]]
    np.testing.assert_allclose(shares.sum(axis=1), 1, rtol=1e-5)
    for column, q in (("prior 5%", 0.05), ("prior median", 0.5), ("prior 95%", 0.95)):
        pd.testing.assert_series_equal(
            good.table[column], check.quantile(q), check_names=False
        )
    assert check["occupied user topics"].between(1, 6).all()
    assert check["occupied item topics"].between(1, 5).all()
    ratio = check["effective user topics"] / check["occupied user topics"]
    assert ratio.between(0.1, 1 + 1e-5).all()


def test_draws_are_those_of_sample_prior(good):
    train, _ = fits.data()
    key = jax.random.split(jax.random.key(0), 100)[0]
    draw = im3f.sample_prior(key, GOOD, train)
    rating = np.asarray(draw["ratings"], np.float64)
    first = good.draws.iloc[0]
    assert first["mean"] == pytest.approx(rating.mean(), rel=1e-4)
    assert first["standard deviation"] == pytest.approx(rating.std(), rel=1e-4)
    means = pd.Series(rating).groupby(train.user).mean()
    found = first["standard deviation of user means"]
    assert found == pytest.approx(means.std(ddof=0), rel=1e-4)
    outside = np.mean((rating < 0.5) | (rating > 5.5))
    assert first["share outside the scale"] == pytest.approx(outside, abs=1e-6)
    share = np.mean((rating > 1.5) & (rating < 2.5))
    assert first["share of 2"] == pytest.approx(share, abs=1e-6)
    assert first["share of 5"] == pytest.approx(np.mean(rating > 4.5), abs=1e-6)
    counts = np.bincount(draw["user_topic_of_rating"])
    counts = counts[counts > 0]
    assert first["occupied user topics"] == len(counts)
    share = counts / counts.sum()
    effective = np.exp(-np.sum(share * np.log(share)))
    assert first["effective user topics"] == pytest.approx(effective, rel=1e-4)


@pytest.mark.thorough
def test_a_fair_prior_is_let_pass():
    # Ratings drawn from the prior itself. Of 15 tail probabilities, one below 3 in 1001
    # comes by chance in fewer than 1 of 30 such tests.
    train, _ = fits.data()
    draw = im3f.sample_prior(jax.random.key(11), GOOD, train)
    ratings = fits.with_ratings(train, draw["ratings"])
    check = im3f.prior_check(GOOD, ratings, num_draws=1000)
    outside = check.table.index == "share outside the scale"
    assert check.table["tail probability"][~outside].min() > 2.5 / 1001


def test_what_is_shown(good):
    shown = repr(dataclasses.replace(good, warnings=[]))
    assert "Nothing in the data is implausible" in shown
    assert "standard deviation of user means" in shown
    assert "- It is wide." in repr(dataclasses.replace(good, warnings=["It is wide."]))


def test_bad_priors_are_told():
    train, _ = fits.data()
    # Numbers only: nothing compiles again.
    wide = dataclasses.replace(GOOD, factor_prior=factors(1e-3))
    said = "\n".join(im3f.prior_check(wide, train).warnings)
    assert "standard deviation of the data" in said and "below" in said
    assert "outside the scale, 1 to 5: the prior is very wide" in said
    away = dataclasses.replace(GOOD, global_bias=30.0)
    check = im3f.prior_check(away, train)
    assert any(s.startswith("The mean of the data") for s in check.warnings)
    assert check.table.loc["mean", "tail probability"] == pytest.approx(2 / 101)
    few = dataclasses.replace(
        GOOD,
        user_topic_prior=dataclasses.replace(
            GOOD.user_topic_prior, dish_concentration=1e-3
        ),
        item_topic_prior=dataclasses.replace(
            GOOD.item_topic_prior, dish_concentration=50.0, table_concentration=50.0
        ),
    )
    said = "\n".join(im3f.prior_check(few, train).warnings)
    assert "expects one user topic only" in said
    assert "close to the truncation of 5: raise max_item_topics" in said


def test_without_topics_and_on_a_continuous_scale():
    train, _ = fits.data()
    rng = np.random.default_rng(0)
    values = train.rating + rng.normal(size=len(train)) / 10
    check = im3f.prior_check(
        im3f.BPMF(2, rating_variance=1.0, factor_prior=factors(0.3)),
        fits.with_ratings(train, values),
    )
    shares = [n for n in check.table.index if n.startswith("share of ")]
    assert len(shares) == 10
    assert check.table.loc[shares, "data"].sum() == pytest.approx(1)
    assert not any("topics" in name for name in check.table.index)
    assert check.num_panels == 2


# matplotlib reads names that its dependencies deprecate.
@pytest.mark.filterwarnings("default::DeprecationWarning")
@pytest.mark.filterwarnings("default::PendingDeprecationWarning")
def test_the_plot(good):
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    axes = good.plot()
    assert len(axes) == good.num_panels == 4
    marks = [line for line in axes[0].lines if line.get_marker() == "D"]
    shares = good.table["data"][[f"share of {x}" for x in (1, 2, 3, 4, 5)]]
    np.testing.assert_allclose(marks[0].get_ydata(), shares)
    for ax in axes:
        # Grey: the red, green and blue of every patch are equal.
        for patch in ax.patches:
            assert len(set(patch.get_facecolor()[:3])) == 1
    axes[0].figure.canvas.draw()
    figure, given = plt.subplots(2, 2)
    assert good.plot(given)[3] is given[1, 1]
    with pytest.raises(InputError, match="axes holds 1 axes, but the plot has 4"):
        good.plot(given[0, 0])
    plt.close("all")


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"num_draws": 10}, "at least 100"),
        ({"num_draws": True}, "at least 100"),
        ({"seed": -1}, "seed is -1"),
    ],
)
def test_settings_without_meaning_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        im3f.prior_check(GOOD, fits.data()[0], **settings)


def test_the_spec_is_checked():
    with pytest.raises(InputError, match="make Ratings of it"):
        im3f.prior_check(GOOD, np.ones(3))
