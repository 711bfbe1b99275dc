"""The log score against sums over all topics and draws in plain numpy."""

import numpy as np
import pytest
from scipy.special import ndtr

import im3f_jax as im3f
from im3f_jax.inference.run import Draws
from im3f_jax.posterior import score
from im3f_jax.posterior.score import TOPICS, log_score, midpoints
from tests import fits

DIM = 2


def random_draws(user_topics, item_topics, chains=2, kept=2, users=4, items=3):
    """Draws at random, with weights of many small topics."""
    rng = np.random.default_rng(5)

    def theta(rows, topics):
        return rng.dirichlet(np.full(topics, 0.5), (chains, kept, rows))

    def normal(rows, columns):
        return rng.normal(size=(chains, kept, rows, columns))

    users_of = (
        normal(users, DIM),
        normal(users, item_topics),
        theta(users, user_topics) if user_topics else normal(users, 0),
    )
    items_of = (
        normal(items, DIM),
        theta(items, item_topics) if item_topics else normal(items, 0),
        normal(items, user_topics),
    )
    draws = Draws(
        np.concatenate(users_of, -1).astype(np.float32),
        np.concatenate(items_of, -1).astype(np.float32),
        rng.normal(3, 0.2, (chains, kept)),
        rng.uniform(0.3, 1.2, (chains, kept)),
        np.zeros((chains, kept, 0)),
    )
    user_topics = im3f.M3F(user_topics, item_topics, DIM)
    return draws, user_topics


def brute_force(draws, spec, user, item, low, high=None, top=None):
    """Log of the mean probability of (low, high), or the density at low; and weights.

    `top` keeps the topics of largest weight in each row only.
    """
    dim, contexts, moods = spec.latent_dim, spec.num_item_topics, spec.num_user_topics
    each, kept = [], []
    chains, number = draws.global_bias.shape
    for c, s in np.ndindex(chains, number):
        u = np.float64(draws.user_features[c, s, user])
        j = np.float64(draws.item_features[c, s, item])
        a, user_bias, user_weight = np.split(u, [dim, dim + contexts])
        b, item_weight, item_bias = np.split(j, [dim, dim + contexts])
        deviation = np.sqrt(draws.rating_variance[c, s])
        mean = draws.global_bias[c, s] + a @ b
        total = weight_kept = 0.0
        for k in _largest(item_weight, top) if contexts else [None]:
            for i in _largest(user_weight, top) if moods else [None]:
                centre, weight = mean, 1.0
                if k is not None:
                    centre, weight = centre + user_bias[k], weight * item_weight[k]
                if i is not None:
                    centre, weight = centre + item_bias[i], weight * user_weight[i]
                if high is None:
                    z = (low - centre) / deviation
                    p = np.exp(-0.5 * z**2) / (deviation * np.sqrt(2 * np.pi))
                else:
                    p = ndtr((high - centre) / deviation)
                    p -= ndtr((low - centre) / deviation)
                total += weight * p
                weight_kept += weight
        each.append(total)
        kept.append(weight_kept)
    return np.log(np.mean(each)), np.mean(kept)


def _largest(weights, top):
    return np.argsort(-weights)[:top]


SIZES = [(0, 0), (3, 0), (0, 2), (4, 5)]
USER, ITEM = np.array([0, 3, 1, 0, 2]), np.array([2, 0, 1, 2, 1])
LEVELS = np.array([0.5, 1, 2, 3, 4.5])


@pytest.mark.parametrize("sizes", SIZES)
def test_probabilities_are_those_of_the_mixture(sizes):
    draws, spec = random_draws(*sizes)
    low, high = midpoints(LEVELS, LEVELS)
    found = log_score(draws, spec, USER, ITEM, LEVELS, LEVELS)
    for n in range(5):
        expected, _ = brute_force(draws, spec, USER[n], ITEM[n], low[n], high[n])
        assert found.log_score[n] == pytest.approx(expected, abs=2e-5)
    assert found.dropped == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("sizes", SIZES)
def test_densities_are_those_of_the_mixture(sizes):
    draws, spec = random_draws(*sizes)
    found = log_score(draws, spec, USER, ITEM, LEVELS, None)
    for n in range(5):
        expected, _ = brute_force(draws, spec, USER[n], ITEM[n], LEVELS[n])
        assert found.log_score[n] == pytest.approx(expected, abs=2e-5)


def test_of_many_topics_the_largest_count_and_the_rest_is_told():
    draws, spec = random_draws(TOPICS + 3, TOPICS + 5)
    low, high = midpoints(LEVELS, LEVELS)
    found = log_score(draws, spec, USER, ITEM, LEVELS, LEVELS)
    kept = []
    for n in range(5):
        pair = USER[n], ITEM[n], low[n], high[n]
        expected, weight = brute_force(draws, spec, *pair, top=TOPICS)
        kept.append(weight)
        assert found.log_score[n] == pytest.approx(expected, abs=2e-5)
        # What is left out can only lower a probability, by at most its weight.
        whole, one = brute_force(draws, spec, *pair)
        assert one == pytest.approx(1, abs=1e-5)
        assert (
            0 <= np.exp(whole) - np.exp(found.log_score[n]) + 1e-6 < 1 - weight + 2e-6
        )
    assert found.dropped == pytest.approx(1 - np.mean(kept), abs=1e-6)
    assert found.dropped > 1e-5, "nothing was left out"


def test_a_density_can_be_asked_of_many_ratings_in_pieces(monkeypatch):
    draws, spec = random_draws(0, 2)
    rng = np.random.default_rng(0)
    user, item = rng.integers(4, size=300), rng.integers(3, size=300)
    rating = rng.normal(3, 1, 300)
    at_once = log_score(draws, spec, user, item, rating, None)
    monkeypatch.setattr(score, "CHUNK", 64)
    in_pieces = log_score(draws, spec, user, item, rating, None)
    np.testing.assert_allclose(in_pieces.log_score, at_once.log_score, rtol=1e-6)
    assert in_pieces.log_score.shape == (300,)


def test_far_away_it_stays_finite_and_keeps_its_digits():
    draws, spec = random_draws(0, 0, chains=1, kept=1)
    draws.rating_variance[:] = 1.0
    mean = draws.global_bias[0, 0] + np.float64(
        draws.user_features[0, 0, 0] @ draws.item_features[0, 0, 0]
    )
    here = np.zeros(1, int)
    for away in (-9.0, 9.0):
        levels = mean + away + np.array([-1.0, 0.0, 1.0])
        found = log_score(draws, spec, here, here, levels[1:2], levels)
        # The probability is that beyond the nearer bound, 1e-17 in the upper tail too.
        expected = np.log(ndtr(0.5 - 9) - ndtr(-0.5 - 9))
        assert found.log_score[0] == pytest.approx(expected, rel=1e-4)
    levels = mean + np.array([0.0, 1000.0, 2000.0])
    found = log_score(draws, spec, here, here, levels[2:], levels)
    assert np.isfinite(found.log_score).all() and found.log_score[0] < -80


@pytest.mark.relaxed
@pytest.mark.parametrize("name", list(fits.MODELS))
def test_the_levels_of_a_fit_sum_to_1_for_each_pair(name):
    posterior, (_, test) = fits.posterior(name), fits.data()
    user, item = posterior.user_row[test.user], posterior.item_row[test.item]
    levels = posterior.levels
    total = np.zeros(len(test))
    for level in levels:
        rating = np.full(len(test), level)
        found = log_score(posterior.draws, posterior.spec, user, item, rating, levels)
        total += np.exp(found.log_score)
    np.testing.assert_allclose(total, 1, atol=1e-5)


@pytest.mark.relaxed
@pytest.mark.parametrize("name", list(fits.MODELS))
def test_evaluate_gives_the_mean_of_what_brute_force_finds(name):
    posterior, (_, test) = fits.posterior(name), fits.data()
    few = test.select(np.arange(0, len(test), 30))  # the cold among them
    edges = np.array([-np.inf, 1.5, 2.5, 3.5, 4.5, np.inf])
    expected = []
    for u, j, rating in zip(few.user, few.item, few.rating, strict=True):
        pair = posterior.user_row[u], posterior.item_row[j]
        bounds = edges[int(rating) - 1], edges[int(rating)]
        expected.append(brute_force(posterior.draws, posterior.spec, *pair, *bounds)[0])
    found = posterior.evaluate(few)
    assert found["log_score"] == pytest.approx(np.mean(expected), abs=1e-5)
    assert found["num_cold"] > 0
    assert found["dropped_weight"] == pytest.approx(0, abs=1e-6)


@pytest.mark.relaxed
def test_a_level_that_training_lacks_is_a_level():
    posterior, (_, test) = fits.posterior("BPMF"), fits.data()
    six = fits.with_ratings(test.select(np.arange(3)), [6.0, 6.0, 5.0])
    scores = posterior.evaluate(six)
    assert np.isfinite(scores["log_score"])
    edges = {6.0: (5.5, np.inf), 5.0: (4.5, 5.5)}
    expected = [
        brute_force(
            posterior.draws,
            posterior.spec,
            posterior.user_row[u],
            posterior.item_row[j],
            *edges[rating],
        )[0]
        for u, j, rating in zip(six.user, six.item, six.rating, strict=True)
    ]
    assert scores["log_score"] == pytest.approx(np.mean(expected), abs=1e-4)


def test_bounds_lie_midway_and_the_outermost_are_open():
    levels = np.array([1.0, 2.0, 4.0])
    low, high = midpoints(levels, np.array([4.0, 1.0, 2.0]))
    np.testing.assert_array_equal(low, [3.0, -np.inf, 1.5])
    np.testing.assert_array_equal(high, [np.inf, 1.5, 3.0])
