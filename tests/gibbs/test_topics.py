"""Topics of ratings: exact over every category, and draws by their frequencies."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from im3f_jax.errors import InputError
from im3f_jax.gibbs.topics import (
    SelectingFactors,
    conditional_topics,
    resample_topics,
)
from im3f_jax.numerics import random
from tests import tiny
from tests.gof import assert_frequencies
from tests.quick import quick_jit

conditional = quick_jit(conditional_topics)
NOISY = tiny.noisy(tiny.make_spec())


def arguments(side, state, data):
    """Arguments of the conditional of a side's own topics.

    Item topics select biases of users, so their residual keeps out those.
    """
    x = tiny.residual(state, data, without=(f"{side.other_name}_bias",))
    return (
        x.astype(data.rating.dtype),
        side.rows(data),
        side.other.rows(data),
        side.of(state, "topic_weights").log_row_weights,
        side.other.of(state, "bias"),
        state.rating_variance,
        tiny.precision_of(state, data),
    )


def check(side, precision, conditional=conditional, seed=0, spec=None):
    spec, data, state = tiny.make(precision, spec, seed)
    logits = conditional(*arguments(side, state, data))
    assert logits.dtype == precision.dtype
    logits = np.float64(logits)
    topic = side.of(state, "topic_of_rating")
    for n in range(tiny.NUM_RATINGS):
        joints = []
        for k in range(logits.shape[1]):
            value = topic.copy()
            value[n] = k
            joints.append(
                tiny.joint(side.put(state, topic_of_rating=value), spec, data)
            )
        tiny.assert_same_differences(logits[n], joints, precision)


@pytest.mark.parametrize("seed", [0, 1])
def test_conditional_is_exact_over_every_topic(side, precision, seed):
    check(side, precision, seed=seed)


def test_conditional_is_exact_where_the_noise_differs(side, precision):
    check(side, precision, spec=NOISY)


def weights_missing(x, weight_row, bias_row, log_weights, bias, variance, *rest):
    return conditional(
        x, weight_row, bias_row, np.zeros_like(log_weights), bias, variance, *rest
    )


def bias_of_the_wrong_sign(x, weight_row, bias_row, log_weights, bias, variance, *rest):
    return conditional(x, weight_row, bias_row, log_weights, -bias, variance, *rest)


def variance_missing(x, weight_row, bias_row, log_weights, bias, variance, *rest):
    return conditional(
        x, weight_row, bias_row, log_weights, bias, np.ones_like(variance), *rest
    )


def square_not_halved(x, weight_row, bias_row, log_weights, bias, variance, *rest):
    half = np.asarray(0.5 * variance, variance.dtype)
    return conditional(x, weight_row, bias_row, log_weights, bias, half, *rest)


def weights_not_logarithms(x, weight_row, bias_row, log_weights, bias, variance, *rest):
    return conditional(
        x, weight_row, bias_row, np.exp(log_weights), bias, variance, *rest
    )


def rows_swapped(x, weight_row, bias_row, log_weights, bias, variance, *rest):
    return conditional(x, bias_row, weight_row, log_weights, bias, variance, *rest)


def one_rating_off(x, *rest):
    return conditional(np.roll(x, 1), *rest)


@pytest.mark.parametrize(
    "mutant",
    [
        weights_missing,
        bias_of_the_wrong_sign,
        variance_missing,
        square_not_halved,
        weights_not_logarithms,
        rows_swapped,
        one_rating_off,
    ],
)
@pytest.mark.parametrize("name", tiny.PRECISIONS)
def test_a_mutant_is_found(side, mutant, name):
    with tiny.in_precision(name) as precision, tiny.found():
        check(side, precision, mutant)


@pytest.mark.parametrize(
    "wrong",
    [lambda w: None, lambda w: 1 / w, np.sqrt, lambda w: np.roll(w, 1)],
    ids=["missing", "a variance", "its root", "of another rating"],
)
def test_a_mutant_of_the_noise_is_found(side, wrong, float64):
    def mutant(*given):
        return conditional(*given[:-1], wrong(given[-1]))

    with tiny.found():
        check(side, float64, mutant, spec=NOISY)


# The draw: an inverse CDF in two levels.

NUM_TOPICS = [2, 16, 17, 64]
invert = quick_jit(random._invert)
draw = quick_jit(resample_topics, static_argnums=7)


def draw_of_one_row(key, log_weights, number, chunk=1024):
    """Draw topics of ratings that have one conditional: its logits are the weights."""
    zeros = np.zeros(number, np.float32)
    rows = np.zeros(number, np.int32)
    log_weights = np.float32(log_weights)[None]
    return draw(
        key,
        zeros,
        rows,
        rows,
        log_weights,
        np.zeros_like(log_weights),
        np.float32(1.0),
        chunk,
    )


@pytest.mark.parametrize("num_topics", NUM_TOPICS)
def test_draws_have_the_frequencies_of_the_softmax(num_topics):
    rng = np.random.default_rng(num_topics)
    log_weights = np.float32(2 * rng.normal(size=num_topics))
    log_weights[rng.permutation(num_topics)[: num_topics // 3]] = -np.inf
    drawn = draw_of_one_row(jax.random.key(num_topics), log_weights, 2**18)
    assert drawn.dtype == np.int32
    counts = np.bincount(drawn, minlength=num_topics)
    assert_frequencies(counts, special.softmax(np.float64(log_weights)))


@pytest.mark.parametrize("side", tiny.SIDES.values(), ids=tiny.SIDES)
@pytest.mark.parametrize("noise", ["constant", "that differs"])
def test_draws_of_ratings_have_their_own_conditionals(side, noise):
    spec = None if noise == "constant" else NOISY
    _, data, state = tiny.make(tiny.PRECISIONS["float32"], spec)
    given = arguments(side, state, data)
    expected = special.softmax(np.float64(conditional(*given)), axis=1)
    many = quick_jit(jax.vmap(resample_topics, (0, *[None] * 8)), static_argnums=7)
    keys = jax.random.split(jax.random.key(3), 20_000)
    drawn = many(keys, *given[:-1], data.chunk, given[-1])
    for n in range(tiny.NUM_RATINGS):
        counts = np.bincount(drawn[:, n], minlength=expected.shape[1])
        assert_frequencies(counts, expected[n])


def edge_uniforms(dtype):
    step = np.finfo(dtype).eps
    inner = np.linspace(0, 1, 1_000, endpoint=False)
    return np.concatenate([[0, step / 2, 1 - step, 1 - step / 2, 1], inner]).astype(
        dtype
    )


@pytest.mark.parametrize("num_topics", [1, 2, 15, 16, 17, 33, 64])
def test_a_topic_of_weight_zero_is_never_drawn(num_topics):
    rng = np.random.default_rng(num_topics)
    uniform = edge_uniforms(np.float32)
    for trial in range(12):
        weights = rng.gamma(0.3, size=num_topics).astype(np.float32)
        weights[rng.random(num_topics) < 0.5] = 0
        if trial == 0:  # the first and the last alone, and whole groups
            weights[:-1] = 0
        if trial == 1:
            weights[1:] = 0
        weights[rng.integers(num_topics)] = 1  # as after subtracting the largest
        drawn = invert(np.tile(weights, (len(uniform), 1)), uniform)
        assert np.all(weights[drawn] > 0), f"trial {trial}"


@pytest.mark.parametrize("num_topics", NUM_TOPICS)
def test_the_two_levels_invert_the_distribution_function(num_topics):
    rng = np.random.default_rng(num_topics)
    weights = rng.gamma(0.5, size=(5_000, num_topics)).astype(np.float32)
    uniform = rng.random(5_000, np.float32)
    drawn = np.asarray(invert(weights, uniform))
    running = np.cumsum(np.float64(weights), axis=1)
    target = uniform * running[:, -1]
    expected = np.sum(running <= target[:, None], axis=1)
    # Only a target within rounding of a boundary may fall on its other side.
    near = np.min(np.abs(running - target[:, None]), axis=1) < 3e-6 * running[:, -1]
    np.testing.assert_array_equal(drawn[~near], expected[~near])
    assert np.mean(near) < 0.01


def zeros(key, shape, dtype):
    return jnp.zeros(shape, dtype)


def test_the_least_uniform_does_not_give_birth_to_a_topic(monkeypatch):
    # jax.random.uniform is 0 once in 2^23 draws. Taken as it is, it picks the first
    # topic whatever its weight: a tenth of a rating a sweep of MovieLens 1M.
    monkeypatch.setattr(jax.random, "uniform", zeros)
    rows = jnp.zeros(8, jnp.int32)
    log_weights = jnp.float32([[np.log(1e-12), 0]])
    drawn = resample_topics(
        jax.random.key(0),
        jnp.zeros(8, jnp.float32),
        rows,
        rows,
        log_weights,
        jnp.zeros_like(log_weights),
        jnp.float32(1.0),
        8,
    )
    assert np.all(np.asarray(drawn) == 1)


def test_draws_do_not_depend_on_the_chunk():
    log_weights = np.random.default_rng(0).normal(size=17)
    first = draw_of_one_row(jax.random.key(5), log_weights, 4_096, 1_024)
    second = draw_of_one_row(jax.random.key(5), log_weights, 4_096, 4_096)
    np.testing.assert_array_equal(first, second)


# The draw by a kernel for GPUs, interpreted; by itself in numerics/test_categories.py.

with_kernel = quick_jit(resample_topics, static_argnums=7, static_argnames="kernel")


@pytest.mark.parametrize("side", tiny.SIDES.values(), ids=tiny.SIDES)
@pytest.mark.parametrize("noise", ["constant", "that differs"])
def test_the_kernel_draws_the_same_topics(side, noise):
    spec = None if noise == "constant" else NOISY
    _, data, state = tiny.make(tiny.PRECISIONS["float32"], spec)
    *given, precision = arguments(side, state, data)
    # Each rating many times over, so that all its topics are drawn.
    copies = 1_024
    given[:3] = (np.tile(x, copies) for x in given[:3])
    precision = None if precision is None else np.tile(precision, copies)
    drawn = [
        with_kernel(jax.random.key(6), *given, data.chunk, precision, kernel=kernel)
        for kernel in ("xla", "pallas")
    ]
    assert drawn[1].dtype == np.int32
    assert len(np.unique(drawn[0])) > 1
    # Of some 10,000 draws one in 10^5 lies within rounding of a running total.
    assert np.mean(np.asarray(drawn[0] != drawn[1])) < 1e-3


def test_what_the_kernel_cannot_draw_is_refused():
    nothing = [jnp.zeros(2), *[jnp.zeros(2, jnp.int32)] * 2, *[jnp.zeros((1, 2))] * 2]
    given = (jax.random.key(0), *nothing, jnp.ones(()), 2)
    with pytest.raises(InputError, match="one of"):
        resample_topics(*given, kernel="triton")
    factors = SelectingFactors(jnp.zeros((1, 2, 3)), jnp.zeros((1, 2, 3)), nothing[1])
    with pytest.raises(InputError, match="select factors"):
        resample_topics(*given, factors=factors, kernel="pallas")
