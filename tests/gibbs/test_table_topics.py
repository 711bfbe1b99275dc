"""Topics of tables: exact over every topic; the seats, and the block as a whole.

The topics of five ratings in two rows are few enough to be listed, with the weights
summed out: draws from that list must come out of the block as they went in.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from im3f_jax.gibbs.state import TopicWeights
from im3f_jax.gibbs.table_topics import (
    conditional_table_topics,
    resample_table_topics,
    table_room,
)
from im3f_jax.numerics import random
from im3f_jax.numerics.random import chinese_restaurant_seating
from tests import tiny
from tests.gof import assert_frequencies
from tests.quick import quick_jit

WEIGHTS = np.array([0.5, 0.3, 0.2])
GAMMA = 1.7
# Five ratings in two rows, and three of padding.
ROW = np.array([0, 0, 0, 1, 1, 2, 2, 2], np.int32)
OTHER = np.array([0, 1, 2, 1, 1, 0, 0, 0], np.int32)
NUMBER, SLOTS = 5, 8
BIAS = np.array([[0.4, -0.8, 0.1], [-0.5, 0.9, 0.0], [1.0, 0.2, -0.7]], np.float32)
RESIDUAL = np.array([0.3, -0.6, 0.8, 1.1, -0.2, np.nan, 0, 0], np.float32)
VARIANCE = np.float32(0.4)
PRECISION = np.array([0.3, 4.0, 1.5, 0.8, 2.5, np.nan, 1, 1], np.float32)


def normal_densities(residual, bias, variance):
    """Log density of each rating under each topic, (n, K)."""
    return stats.norm.logpdf(residual[:, None], bias, np.sqrt(variance))


def check(conditional, precision):
    rng = np.random.default_rng(5)
    sizes = [1, 2, 5, 9]
    table = np.repeat(np.arange(4), sizes)
    bias = rng.normal(size=(len(table), 3))
    residual = rng.normal(size=len(table))
    variance = 0.7
    log_pi = np.log(WEIGHTS)
    fit = np.zeros((4, 3))
    np.add.at(fit, table, residual[:, None] ** 2 - (residual[:, None] - bias) ** 2)
    given = (np.asarray(x, precision.dtype) for x in (fit, log_pi, variance))
    logits = np.float64(conditional(*given))
    expected = np.tile(log_pi, (4, 1))
    np.add.at(expected, table, normal_densities(residual, bias, variance))
    for found, right in zip(logits, expected, strict=True):
        tiny.assert_same_differences(found, right, precision)


def test_conditional_is_prior_times_likelihood(precision):
    check(quick_jit(conditional_table_topics), precision)


@pytest.mark.parametrize(
    "mutant",
    [
        lambda fit, log_pi, v: conditional_table_topics(fit, 0 * log_pi, v),
        lambda fit, log_pi, v: conditional_table_topics(-fit, log_pi, v),
        lambda fit, log_pi, v: conditional_table_topics(2 * fit, log_pi, v),
        lambda fit, log_pi, v: conditional_table_topics(fit, log_pi, v * v),
    ],
)
def test_a_mutant_is_found(mutant, precision):
    with tiny.found():
        check(mutant, precision)


# The seats.


def set_partitions(number):
    """All partitions of 0 .. number - 1, as the first member of each one's part."""
    for labels in itertools.product(range(number), repeat=number):
        if all(k <= n and labels[k] == k for n, k in enumerate(labels)):
            yield labels


# Many rows are sorted by two numbers, few by one.
@pytest.mark.parametrize("rows", [10, 2**30])
@pytest.mark.parametrize("a", [0.3, 2.0])
def test_seats_have_the_probability_of_the_restaurant(a, rows):
    number, draws = 4, 20_000
    row = np.array([5, 3, 5, 5, 3, 5, 9], np.int32)  # the restaurant in question: 5
    column = np.array([1, 1, 1, 1, 0, 1, 1], np.int32)
    places = np.array([0, 2, 3, 5])
    valid = np.arange(7) < 6
    concentration = jnp.array([4.0, a], jnp.float32)

    def seat(key):
        return chinese_restaurant_seating(key, row, column, rows, concentration, valid)

    keys = jax.random.split(jax.random.key(3), draws)
    founders, order = map(np.asarray, quick_jit(jax.vmap(seat))(keys))
    assert np.all(order == [4, 1, 0, 2, 3, 5, 6])
    assert np.all(founders[:, [1, 4, 6]] == [1, 4, 6])  # alone in their cells
    assert np.all(np.isin(founders[:, places], places))
    labels = np.searchsorted(places, founders[:, places])
    codes = labels @ number ** np.arange(number)
    partitions = list(set_partitions(number))
    assert len(partitions) == 15
    expected = []
    for partition in partitions:
        sizes = np.bincount(partition)
        sizes = sizes[sizes > 0]
        expected.append(
            a ** len(sizes)
            * np.prod(special.factorial(sizes - 1))
            / np.prod(a + np.arange(number))
        )
    np.testing.assert_allclose(np.sum(expected), 1)
    counts = [np.sum(codes == np.dot(p, number ** np.arange(number)))
              for p in partitions]  # fmt: skip
    assert np.sum(counts) == draws
    assert_frequencies(counts, expected)


def test_a_concentration_of_nothing_seats_a_row_at_one_table():
    row = np.zeros(3_000, np.int32)
    concentration = jnp.array([1e-30], jnp.float32)
    founder, _ = chinese_restaurant_seating(
        jax.random.key(0), row, row, 1, concentration, np.ones(3_000, bool)
    )
    assert np.all(np.asarray(founder) == 0)


# The block.


def log_probabilities(precision=None):
    """Unnormalised log probability of all 3^5 topics, row weights summed out."""
    every = np.array(list(itertools.product(range(3), repeat=NUMBER)))
    variance = VARIANCE
    if precision is not None:
        variance = (VARIANCE / precision[:NUMBER])[:, None]
    fit = normal_densities(RESIDUAL[:NUMBER], BIAS[OTHER[:NUMBER]], variance)
    value = fit[np.arange(NUMBER), every].sum(axis=1)
    alpha = GAMMA * WEIGHTS
    for row in (0, 1):
        counts = (every[:, ROW[:NUMBER] == row, None] == np.arange(3)).sum(axis=1)
        value += np.sum(special.gammaln(alpha + counts), axis=1)
    return every, value


def run_block(room, draws=40_000, chunk=4, residual=RESIDUAL, precision=None):
    every, value = log_probabilities(precision)
    chance = special.softmax(value)
    rng = np.random.default_rng(8)
    chosen = rng.choice(len(every), size=draws, p=chance)
    start = np.zeros((draws, SLOTS), np.int32)
    start[:, :NUMBER] = every[chosen]
    weights = TopicWeights(
        jnp.full((3, 3), jnp.nan),  # not read
        jnp.log(jnp.asarray(WEIGHTS, jnp.float32)),
        jnp.float32(jnp.nan),
        jnp.float32(GAMMA),
    )

    def move(key, topic):
        return resample_table_topics(
            key, *map(jnp.asarray, (residual, ROW, OTHER)), topic, weights,
            jnp.asarray(BIAS), VARIANCE, jnp.int32(NUMBER), chunk, room,
            None if precision is None else jnp.asarray(precision),
        )  # fmt: skip

    keys = jax.random.split(jax.random.key(2), draws)
    end = np.asarray(quick_jit(jax.vmap(move))(keys, start))
    assert np.all(end[:, NUMBER:] == 0)
    return start[:, :NUMBER], end[:, :NUMBER], every, chance


def counts_of(topics):
    codes = topics @ 3 ** np.arange(NUMBER)[::-1]
    return np.bincount(codes, minlength=3**NUMBER)


@pytest.mark.parametrize("room", [8, 2])
def test_the_block_leaves_the_distribution_as_it_is(room):
    start, end, _, chance = run_block(room)
    assert_frequencies(counts_of(start), chance)
    assert_frequencies(counts_of(end), chance)
    moved = np.mean(start != end, axis=0)
    assert np.all(moved > 0.05), "a rating that never moves"


def test_the_block_with_noise_that_differs():
    _, end, _, chance = run_block(8, precision=PRECISION)
    assert_frequencies(counts_of(end), chance)
    # Told apart from the block that knows nothing of it, and from another's precision.
    for wrong in (np.ones_like(PRECISION), np.roll(PRECISION, 1)):
        with pytest.raises(AssertionError, match="chi-squared"):
            assert_frequencies(
                counts_of(end), special.softmax(log_probabilities(wrong)[1])
            )


def test_tables_beyond_the_room_stay():
    start, end, _, _ = run_block(1)
    # All that changes is one table, of one topic.
    for before, after in zip(start[:2_000], end[:2_000], strict=True):
        changed = before != after
        assert len(set(before[changed])) <= 1
        assert len(set(after[changed])) <= 1


@pytest.mark.parametrize("mistake", ["weights left out", "fit of the wrong sign"])
def test_a_wrong_block_is_found(mistake, monkeypatch):
    right = conditional_table_topics

    def wrong(fit, log_pi, variance):
        if mistake == "weights left out":
            return right(fit, jnp.zeros_like(log_pi), variance)
        return right(-fit, log_pi, variance)

    monkeypatch.setattr("im3f_jax.gibbs.table_topics.conditional_table_topics", wrong)
    _, end, _, chance = run_block(8)
    with pytest.raises(AssertionError, match="chi-squared"):
        assert_frequencies(counts_of(end), chance)


def test_room_is_all_of_little_data_and_a_part_of_much():
    assert table_room(16) == 16
    assert table_room(20_000) == 4_096
    assert table_room(1_000_000) == 62_500


def test_the_first_category_needs_its_weight():
    # The smallest uniform must not pick a category of no weight.
    log_weights = np.array([[-np.inf, 0.0, 0.0]], np.float32)
    assert random.invert_weights(log_weights, np.zeros(1, np.float32)) == 1
