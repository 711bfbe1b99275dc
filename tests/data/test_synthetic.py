"""Planted ratings follow the model, and their truth is the one that made them."""

import dataclasses

import numpy as np
import pytest

from im3f_jax.data.synthetic import planted_ratings
from im3f_jax.errors import InputError


@pytest.fixture(scope="module")
def planted():
    return planted_ratings(seed=1)


def test_shapes(planted):
    ratings, truth = planted.ratings, planted.truth
    assert (len(ratings), ratings.num_users, ratings.num_items) == (60_000, 800, 400)
    shapes = {
        f.name: np.shape(getattr(truth, f.name)) for f in dataclasses.fields(truth)
    }
    assert shapes == {
        "global_bias": (),
        "rating_variance": (),
        "user_factors": (800, 3),
        "item_factors": (400, 3),
        "user_weights": (800, 4),
        "item_weights": (400, 3),
        "user_bias_mean": (3,),
        "item_bias_mean": (4,),
        "user_bias": (800, 3),
        "item_bias": (400, 4),
        "user_topic_of_rating": (60_000,),
        "item_topic_of_rating": (60_000,),
        "rating_mean": (60_000,),
    }


def test_pairs_are_distinct_and_activity_is_skewed(planted):
    ratings = planted.ratings
    assert len(np.unique(ratings.user.astype(int) * 400 + ratings.item)) == 60_000
    assert ratings.user.min() >= 0 and ratings.user.max() < 800
    assert ratings.item.min() >= 0 and ratings.item.max() < 400
    for counts in (np.bincount(ratings.user), np.bincount(ratings.item)):
        assert 0.4 < counts.std() / counts.mean() < 1.2


def test_ratings_are_normal_about_the_mean_of_the_truth(planted):
    # Standard errors at 60,000 ratings: 0.004 and 0.006; bounds at 5 of them.
    ratings, truth = planted.ratings, planted.truth
    user, item = ratings.user, ratings.item
    mean = truth.global_bias + (
        truth.user_factors[user] * truth.item_factors[item]
    ).sum(1)
    mean += truth.user_bias[user, truth.item_topic_of_rating]
    mean += truth.item_bias[item, truth.user_topic_of_rating]
    np.testing.assert_allclose(truth.rating_mean, mean, rtol=1e-12)
    z = (ratings.rating - mean) / np.sqrt(0.25)
    assert abs(z.mean()) < 0.02
    assert abs((z**2).mean() - 1) < 0.03


def test_topics_follow_the_weights_of_their_row(planted):
    ratings, truth = planted.ratings, planted.truth
    for row, weights, topic in (
        (ratings.user, truth.user_weights, truth.user_topic_of_rating),
        (ratings.item, truth.item_weights, truth.item_topic_of_rating),
    ):
        np.testing.assert_allclose(weights.sum(axis=1), 1.0)
        for k in range(weights.shape[1]):
            p = weights[row, k]
            excess = (topic == k).sum() - p.sum()
            assert abs(excess) < 5 * np.sqrt((p * (1 - p)).sum())
            assert np.corrcoef(topic == k, p)[0, 1] > 0.5


def test_scales_are_those_asked_for():
    truth = planted_ratings(
        num_users=4000,
        num_items=3000,
        num_ratings=100,
        factor_scale=2.0,
        bias_scale=0.5,
        topic_mean_scale=10.0,
        user_topic_concentration=40.0,
    ).truth
    assert truth.user_factors.std() == pytest.approx(2.0, rel=0.05)
    assert truth.item_factors.std() == pytest.approx(2.0, rel=0.05)
    for bias, mean in (
        (truth.user_bias, truth.user_bias_mean),
        (truth.item_bias, truth.item_bias_mean),
    ):
        assert (bias - mean).std() == pytest.approx(0.5, rel=0.05)
        assert np.abs(mean).max() > 2
    # Dirichlet(10, 10, 10, 10): variance (1/4)(3/4)/41
    assert truth.user_weights.var() == pytest.approx(0.75 / 4 / 41, rel=0.1)


def test_the_seed_alone_decides():
    size = {"num_users": 20, "num_items": 10, "num_ratings": 100}
    first = planted_ratings(**size, seed=5).ratings
    np.random.seed(0)
    again = planted_ratings(**size, seed=5).ratings
    other = planted_ratings(**size, seed=6).ratings
    np.testing.assert_array_equal(first.rating, again.rating)
    assert (first.rating != other.rating).any()


@pytest.mark.parametrize("num_ratings", [1, 400, 1900, 2100, 10_000, 20_000])
def test_any_share_of_the_pairs_can_be_rated(num_ratings):
    ratings = planted_ratings(
        num_users=200, num_items=100, num_ratings=num_ratings
    ).ratings
    assert len(np.unique(ratings.user * 100 + ratings.item)) == num_ratings


def test_more_ratings_than_pairs_are_refused():
    with pytest.raises(InputError, match="200 pairs of 20 users and 10 items"):
        planted_ratings(num_users=20, num_items=10, num_ratings=201)


def test_levels_round_to_the_nearest():
    options = {"num_users": 50, "num_items": 40, "num_ratings": 1500}
    exact = planted_ratings(**options).ratings.rating
    rounded = planted_ratings(**options, levels=(1, 2, 3, 4, 5)).ratings
    np.testing.assert_array_equal(rounded.rating, exact.round().clip(1, 5))
    assert rounded.is_discrete


@pytest.mark.parametrize(("user_topics", "item_topics"), [(0, 0), (1, 0), (0, 2)])
def test_a_side_may_have_no_topics(user_topics, item_topics):
    planted = planted_ratings(
        num_users=30,
        num_items=20,
        num_ratings=300,
        user_topics=user_topics,
        item_topics=item_topics,
        rating_variance=1e-12,
    )
    truth, user, item = planted.truth, planted.ratings.user, planted.ratings.item
    assert truth.item_bias.shape == (20, user_topics)
    rest = planted.ratings.rating - 3.5
    rest -= (truth.user_factors[user] * truth.item_factors[item]).sum(1)
    if user_topics:
        rest -= truth.item_bias[item, truth.user_topic_of_rating]
    if item_topics:
        rest -= truth.user_bias[user, truth.item_topic_of_rating]
    np.testing.assert_allclose(rest, 0.0, atol=1e-4)
