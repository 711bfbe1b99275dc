"""Every strategy of an indexed sum against one slow reference."""

import jax
import numpy as np
import pytest

from im3f_jax.numerics import reductions
from tests.quick import quick_jit

SHAPE = (7, 5)


def by_numpy(values, row, column, shape):
    total = np.zeros((shape[0] + 50, shape[1] + 50), values.dtype)
    np.add.at(total, (row, column), values)
    return total[: shape[0], : shape[1]]


def cells(number, seed=0):
    """Cells with empty ones among them, and some beyond the table, to be dropped."""
    rng = np.random.default_rng(seed)
    row = rng.choice([0, 1, 3, 6, 7, 40], size=number).astype(np.int32)
    column = rng.choice([0, 2, 4, 5, 49], size=number).astype(np.int32)
    return row, column


sum_by_cell = quick_jit(reductions.sum_by_cell, static_argnums=(3, 4))
count_by_cell = quick_jit(reductions.count_by_cell, static_argnums=(3, 4))
ranks_within_bins = quick_jit(reductions.ranks_within_bins, static_argnums=1)


# A prime number of values, a multiple of the chunk of one_hot, and none.
@pytest.mark.parametrize("number", [1_009, 8_192, 0])
@pytest.mark.parametrize("strategy", reductions.STRATEGIES)
def test_sums_of_whole_numbers_are_exact(strategy, number):
    row, column = cells(number)
    values = np.random.default_rng(1).integers(-9, 9, number).astype(np.int32)
    result = sum_by_cell(values, row, column, SHAPE, strategy)
    assert result.dtype == np.int32
    np.testing.assert_array_equal(result, by_numpy(values, row, column, SHAPE))


@pytest.mark.parametrize("strategy", reductions.STRATEGIES)
def test_sums_of_floats(strategy):
    row, column = cells(1_009)
    values = np.random.default_rng(2).normal(size=1_009)
    result = sum_by_cell(values.astype(np.float32), row, column, SHAPE, strategy)
    assert result.dtype == np.float32
    np.testing.assert_allclose(
        result, by_numpy(values, row, column, SHAPE), atol=2e-5, rtol=1e-5
    )


@pytest.mark.parametrize("strategy", reductions.STRATEGIES)
def test_counts_stay_int32_where_sums_would_widen(strategy):
    row, column = cells(1_009)
    valid = np.random.default_rng(3).random(1_009) < 0.7
    with jax.enable_x64(True):
        counts = count_by_cell(valid, row, column, SHAPE, strategy)
        assert counts.dtype == np.int32
    expected = by_numpy(valid.astype(np.int64), row, column, SHAPE)
    np.testing.assert_array_equal(counts, expected)


def test_a_count_does_not_stop_at_two_to_the_24():
    number = 2**24 + 8
    zeros = np.broadcast_to(np.int32(0), number)
    counts = count_by_cell(np.broadcast_to(True, number), zeros, zeros, (1, 1))
    assert counts.dtype == np.int32
    assert counts[0, 0] == 16_777_224
    # The trap: in float32 adding 1 to 2^24 changes nothing.
    assert np.float32(2**24) + np.float32(1) == 2**24


@pytest.mark.parametrize(
    "counts",
    [
        [3, 1, 2],
        [0, 0, 4, 0, 1, 0],
        [0, 5],
        [5, 0],
        [1],
        [0],
        [0, 0, 0],
    ],
)
@pytest.mark.parametrize("spare", [0, 3])
def test_ranks_within_bins(counts, spare):
    total = max(sum(counts) + spare, 1)
    bins, ranks = ranks_within_bins(np.int32(counts), total)
    assert bins.dtype == ranks.dtype == np.int32
    members = [(b, r) for b, count in enumerate(counts) for r in range(count)]
    assert (
        list(zip(bins.tolist(), ranks.tolist(), strict=True))[: sum(counts)] == members
    )
    assert bins.tolist()[sum(counts) :] == [len(counts)] * (total - sum(counts))


@pytest.mark.parametrize("number", [0, 96, 8_192])
def test_sums_by_bin(number):
    rng = np.random.default_rng(2)
    values = rng.normal(size=(3, number)).astype(np.float32)
    index = rng.choice([0, 1, 3, 4, 9], size=number).astype(np.int32)
    found = quick_jit(reductions.sums_by_bin, static_argnums=2)(values, index, 4)
    expected = np.zeros((10, 3))
    np.add.at(expected, index, np.float64(values.T))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected[:4].T, atol=2e-3)


def test_a_flat_index_does_not_exceed_int32():
    given = (np.ones(3, np.int32), *[np.arange(3, dtype=np.int32)] * 2)

    def program(strategy, shape):
        return str(
            jax.make_jaxpr(
                lambda *given: reductions.sum_by_cell(*given, shape, strategy)
            )(*given)
        )

    large, small = (2**16, 2**15), (2**16, 2**15 - 1)
    assert program("flat", large) == program("scatter", large)
    assert program("flat", small) != program("scatter", small)
