"""Draws from batches of Gaussians against numpy in float64, and inner products."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from im3f_jax.numerics import linalg
from tests.quick import quick_jit

WAYS = {
    "across_rows": linalg.draw_gaussians_across_rows,
    "by_library": linalg.draw_gaussians_by_library,
    "by_platform": linalg.draw_gaussians,
}
# One dimension; below, at and above the width of a panel; not a multiple of it; many.
# Rows: not a multiple of a chunk, prime to it, fewer than it, and several of it.
SIZES = [(1, 96), (4, 65), (5, 128), (9, 96), (13, 3), (40, 256), (64, 64)]
jitted = {name: quick_jit(way) for name, way in WAYS.items()}


def systems(dim, rows, seed=0):
    """Make well conditioned precisions, linear terms and noise, in float64."""
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(rows, dim, dim + 3))
    precision = root @ root.transpose(0, 2, 1) / dim + 0.5 * np.eye(dim)
    return precision, rng.normal(size=(rows, dim)), rng.normal(size=(rows, dim))


def by_numpy(precision, linear, noise):
    upper = np.linalg.cholesky(precision).transpose(0, 2, 1)
    mean = np.linalg.solve(precision, linear[..., None])
    return (mean + np.linalg.solve(upper, noise[..., None]))[..., 0]


CASES = [(way, *size) for way in ("across_rows", "by_library") for size in SIZES]


@pytest.mark.parametrize("way, dim, rows", [*CASES, ("by_platform", 9, 96)])
def test_draws_equal_numpys(way, dim, rows):
    arrays = systems(dim, rows)
    draws = jitted[way](*(x.astype(np.float32) for x in arrays))
    assert draws.dtype == np.float32
    np.testing.assert_allclose(draws, by_numpy(*arrays), atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("way", ["across_rows", "by_library"])
def test_draws_in_float64(way):
    arrays = systems(9, 96)
    with jax.enable_x64(True):
        draws = jitted[way](*arrays)
        assert draws.dtype == np.float64
    np.testing.assert_allclose(draws, by_numpy(*arrays), atol=1e-12)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("pivot", [0, 8])
def test_a_row_that_is_not_positive_definite_is_nan_and_no_other(way, pivot):
    arrays = systems(9, 96)
    arrays[0][17, pivot, pivot] = -0.5
    draws = np.asarray(jitted[way](*(x.astype(np.float32) for x in arrays)))
    assert np.all(np.isnan(draws[17]))
    rest = np.arange(96) != 17
    expected = by_numpy(*(x[rest] for x in arrays))
    np.testing.assert_allclose(draws[rest], expected, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("dim", [1, 2, 9, 40])
def test_one_draw_in_order_equals_numpys(dim):
    arrays = systems(dim, 1)
    draw = quick_jit(linalg.draw_gaussian_in_order)
    found = draw(*(x[0].astype(np.float32) for x in arrays))
    np.testing.assert_allclose(found, by_numpy(*arrays)[0], atol=2e-5, rtol=2e-5)
    if dim > 1:
        arrays[0][0, 1, 1] = -0.5
        assert np.all(np.isnan(draw(*(x[0].astype(np.float32) for x in arrays))))


@pytest.mark.parametrize("more", [1, 7, 30])
def test_dimensions_apart_leave_a_draw_in_order_as_it_is(more):
    precision, *vectors = (x[0].astype(np.float32) for x in systems(9, 1))
    draw = jax.jit(linalg.draw_gaussian_in_order)
    wider = np.eye(9 + more, dtype=np.float32)
    wider[:9, :9] = precision
    longer = (np.append(x, np.float32(np.arange(more) - 1.3)) for x in vectors)
    found = draw(wider, *longer)
    np.testing.assert_array_equal(found[:9], draw(precision, *vectors))


def test_only_the_lower_triangle_is_read():
    # Both ways may read one triangle; a sum of products is symmetric to the last bit.
    arrays = [x.astype(np.float32) for x in systems(9, 96)]
    upper = arrays[0] + np.triu(np.full((9, 9), np.float32(7.0)), 1)
    for way in ("across_rows", "by_library"):
        np.testing.assert_array_equal(
            jitted[way](upper, *arrays[1:]), jitted[way](*arrays)
        )


@pytest.mark.parametrize("dim, chunk", [(1, 8), (5, 24), (5, 1)])
def test_dots_of_pairs(dim, chunk):
    rng = np.random.default_rng(1)
    left, right = rng.normal(size=(6, dim)), rng.normal(size=(4, dim))
    left_row = rng.integers(6, size=24).astype(np.int32)
    right_row = rng.integers(4, size=24).astype(np.int32)
    dots = quick_jit(linalg.dots_of_pairs, static_argnums=4)(
        jnp.asarray(left, jnp.float32),
        jnp.asarray(right, jnp.float32),
        left_row,
        right_row,
        chunk,
    )
    expected = np.sum(left[left_row] * right[right_row], axis=1)
    np.testing.assert_allclose(dots, expected, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("dim", [1, linalg.TURNED, linalg.TURNED + 1])
def test_moments_equal_numpys(dim):
    rng = np.random.default_rng(1)
    vectors, weights = rng.normal(size=(3, 5, dim)), rng.normal(size=(3, 5))
    with jax.enable_x64(True):
        gram, linear = quick_jit(linalg.weighted_moments)(vectors, weights)
    np.testing.assert_allclose(
        gram, np.einsum("tnd,tne->tde", vectors, vectors), atol=1e-12
    )
    np.testing.assert_allclose(
        linear, np.einsum("tnd,tn->td", vectors, weights), atol=1e-12
    )


@pytest.mark.parametrize("dim", [1, 3, 10, 23, 40])
@pytest.mark.parametrize("lanes", [1, 8])
def test_moments_in_lanes_equal_numpys_and_draw_the_same(dim, lanes):
    rng = np.random.default_rng(1)
    sets = 6
    rows = sets * lanes
    set_of_step = np.array([0, 0, 0, 2, 5, 5, sets])  # the last is padding
    row = (set_of_step[:, None] * lanes + np.arange(lanes)).reshape(-1)
    vectors, weights = (
        rng.normal(size=(len(row), 3, dim)),
        rng.normal(size=(len(row), 3)),
    )
    gram, linear = np.zeros((rows, dim, dim)), np.zeros((rows, dim))
    real = row < rows
    gram += np.eye(dim)
    np.add.at(gram, row[real], np.einsum("tnd,tne->tde", vectors, vectors)[real])
    np.add.at(linear, row[real], np.einsum("tnd,tn->td", vectors, weights)[real])
    row[1::lanes] = row[1::lanes] if lanes == 1 else rows  # the first alone is read
    with jax.enable_x64(True):
        found = quick_jit(linalg.add_moments_in_lanes)(
            np.broadcast_to(np.eye(dim)[None, :, :, None], (sets, dim, dim, lanes)),
            np.zeros((sets, dim, lanes)),
            row.astype(np.int32),
            vectors,
            weights,
        )
        noise = rng.normal(size=(sets, dim, lanes))
        drawn = quick_jit(linalg.draw_gaussians_in_lanes)(*found, noise)
    by_row = np.moveaxis(found[0], -1, 1).reshape(rows, dim, dim)
    np.testing.assert_allclose(np.triu(by_row), np.triu(gram), atol=1e-12)
    np.testing.assert_allclose(
        np.moveaxis(found[1], -1, 1).reshape(rows, dim), linear, atol=1e-12
    )
    noise = np.moveaxis(noise, -1, 1).reshape(rows, dim)
    with jax.enable_x64(True):
        expected = jitted["across_rows"](gram, linear, noise)
    np.testing.assert_allclose(drawn, expected, atol=1e-10)
