"""The kernel that draws categories, interpreted, against the form that XLA compiles."""

import contextlib
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from im3f_jax.numerics import categories
from im3f_jax.numerics.random import invert_weights
from tests.quick import quick_jit

draw = quick_jit(categories.draw_categories, static_argnames="tile")


def log_weights_of(value, scale, weight_row, center_row, log_weights, centers):
    misfit = value[:, None] - centers[center_row]
    return log_weights[weight_row] - scale[:, None] * misfit**2


@quick_jit
def draw_by_xla(uniform, *given):
    return invert_weights(log_weights_of(*given), uniform)


def make(number, columns, dtype=np.float32, seed=0):
    """Arguments of the kernel; about half of the weights are 0 or as good as that."""
    rng = np.random.default_rng(seed)
    weights = rng.gamma(0.5, size=(9, columns))
    weights[rng.random(weights.shape) < 0.3] = 0
    weights[np.arange(9), rng.integers(columns, size=9)] = 1
    with np.errstate(divide="ignore"):
        log_weights = np.maximum(np.log(weights), -1e30)
    return (
        rng.random(number).astype(dtype),
        rng.normal(size=number).astype(dtype),
        rng.gamma(2.0, size=number).astype(dtype),
        rng.integers(9, size=number).astype(np.int32),
        rng.integers(7, size=number).astype(np.int32),
        log_weights.astype(dtype),
        rng.normal(size=(7, columns)).astype(dtype),
    )


def assert_same_draws(found, expected, uniform, *given):
    """Hold draws against others: they differ within rounding of a total only."""
    assert found.dtype == np.int32
    found, expected = np.asarray(found), np.asarray(expected)
    logs = log_weights_of(*(np.float64(x) if x.dtype.kind == "f" else x for x in given))
    weights = np.exp(logs - logs.max(1, keepdims=True))
    running = np.cumsum(weights, axis=1)
    target = np.float64(uniform) * running[:, -1]
    near = np.min(np.abs(running - target[:, None]), axis=1) < 1e-5 * running[:, -1]
    np.testing.assert_array_equal(found[~near], expected[~near])
    assert np.mean(near) < 0.01
    assert np.mean(found != expected) < 1e-3
    assert np.all(weights[np.arange(len(found)), found] > 0)


# Powers of two and others, one category, more than a block of threads holds; numbers of
# draws that fill no block, and fewer draws than a block.
@pytest.mark.parametrize(
    "number, columns, tile",
    [
        (3_000, 1, 2048),
        (3_001, 16, 2048),
        (3_000, 100, 2048),
        (999, 65, 64),
        (5, 3, 64),
    ],
)
def test_draws_are_those_of_xla(number, columns, tile):
    given = make(number, columns)
    assert_same_draws(draw(*given, tile=tile), draw_by_xla(*given), *given)


def test_draws_are_those_of_xla_in_double_precision():
    with jax.enable_x64(True):
        given = make(2_000, 33, np.float64)
        assert_same_draws(draw(*given), draw_by_xla(*given), *given)


def test_nothing_is_drawn_of_nothing():
    assert draw(*make(0, 4)).shape == (0,)


def test_no_array_of_draws_by_categories_is_stored():
    given = make(2**16, 512)
    taken = jax.jit(categories.draw_categories).lower(*given).compile()
    assert taken.memory_analysis().temp_size_in_bytes < 2**16 * 512


def unsteady(cumsum):
    """Running totals that may fall, and end below their sum, as taken in parallel."""

    def running(x, axis):
        totals = cumsum(x, axis=axis)
        place = jnp.arange(totals.shape[axis], dtype=jnp.int32)[None]
        return totals * (1 - 3e-7 * (place % 3).astype(totals.dtype))

    return running


@pytest.mark.parametrize("columns", [2, 17, 64])
@pytest.mark.parametrize("sums", ["of the interpreter", "that are unsteady"])
def test_a_category_of_weight_zero_is_never_drawn(columns, sums, monkeypatch):
    if sums == "that are unsteady":
        monkeypatch.setattr(categories.jnp, "cumsum", unsteady(jnp.cumsum))
    rng = np.random.default_rng(columns)
    step = np.finfo(np.float32).eps
    inner = np.linspace(0, 1, 500, endpoint=False)
    uniform = np.concatenate([[0, step / 2, 1 - step, 1 - step / 2], inner])
    weights = rng.gamma(0.3, size=(40, columns)).astype(np.float32)
    weights[rng.random(weights.shape) < 0.6] = 0
    weights[0, :-1], weights[1, 1:] = 0, 0
    weights[0, -1] = weights[1, 0] = 1
    weights[np.arange(2, 40), rng.integers(columns, size=38)] = 1
    with np.errstate(divide="ignore"):
        logs = np.maximum(np.log(weights), np.float32(-1e30))
    row = np.repeat(np.arange(40, dtype=np.int32), len(uniform))
    zeros = np.zeros(len(row), np.float32)
    # A function of its own, so that the sums are not those traced before.
    drawn = quick_jit(lambda *given: categories.draw_categories(*given))(
        np.tile(uniform, 40).astype(np.float32),
        zeros,
        zeros,
        row,
        np.zeros_like(row),
        logs,
        np.zeros((1, columns), np.float32),
    )
    assert np.all(weights[row, drawn] > 0)


def test_a_row_that_is_not_a_number_gives_a_category_all_the_same():
    # The check of the state stops the run; an index beyond the table must not.
    uniform, value, *rest = make(64, 20)
    drawn = np.asarray(draw(uniform, np.full_like(value, np.nan), *rest))
    assert np.all((drawn >= 0) & (drawn < 20))


def a_gpu_that_is_not_there():
    """Let Pallas compile for a GPU where there is none; before jax 0.10 it asks not."""
    sharding = jax.sharding
    try:
        device = sharding.AbstractDevice("NVIDIA H100 80GB HBM3", None, platform="gpu")
        mesh = sharding.AbstractMesh((), (), abstract_device=device)
    except (AttributeError, TypeError):
        return contextlib.nullcontext()
    return sharding.use_abstract_mesh(mesh)


@pytest.mark.parametrize("number, columns", [(1_000, 16), (999, 100)])
def test_the_kernel_is_lowered_for_cuda(number, columns):
    given = make(number, columns)
    with warnings.catch_warnings(), a_gpu_that_is_not_there():
        warnings.filterwarnings("ignore", "The Pallas Triton backend is deprecated")
        try:
            lowered = (
                jax.jit(categories.draw_categories)
                .trace(*given)
                .lower(lowering_platforms=("cuda",))
            )
        except (ImportError, RuntimeError) as error:
            pytest.skip(f"this jax cannot lower for a GPU that is not there: {error}")
    text = lowered.as_text()
    assert "triton" in text and "draw_categories" in text
    assert f"tensor<{number}x{columns}xf32>" not in text  # no N x K array


@pytest.mark.gpu
@pytest.mark.parametrize("number, columns", [(1 << 20, 128), (99_999, 100), (999, 7)])
def test_the_compiled_kernel_draws_what_xla_draws(number, columns):
    given = make(number, columns)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The Pallas Triton backend is deprecated")
        drawn = jax.jit(categories.draw_categories)(*given)
    assert_same_draws(drawn, draw_by_xla(*given), *given)
