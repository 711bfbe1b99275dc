"""Relative precisions and their shapes: exact, draws by their laws, far starts.

Precisions of three kinds share one block: the exact checks look at each of them.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from im3f_jax.gibbs import noise as source
from im3f_jax.gibbs.noise import (
    ShapeStatistics,
    conditional_precisions,
    conditional_shape,
    resample_precisions,
    resample_shape,
    shape_statistics,
)
from im3f_jax.model.log_joint import log_joint
from im3f_jax.model.noise import LEAST_PRECISION, GammaNoise
from im3f_jax.model.scalars import Gamma
from tests import tiny
from tests.gof import assert_ks
from tests.quick import quick_jit

SPEC = tiny.noisy(tiny.make_spec())
KINDS = "user", "item", "rating"
NUMBERS = {"user": 5, "item": 4, "rating": tiny.NUM_RATINGS}
conditional = quick_jit(conditional_precisions)


# --- precisions -------------------------------------------------------------------


def arguments(kind, spec, state, data):
    """Arguments of the conditional of a kind of precisions, counted by the test."""
    others = state._replace(noise=state.noise._replace(**{kind: None}))
    weight = tiny.precision_of(others, data)
    squares = weight * tiny.residual(state, data, without=()) ** 2
    valid = np.arange(len(squares)) < tiny.NUM_RATINGS
    size = len(getattr(state.noise, kind))
    row = np.arange(size) if kind == "rating" else getattr(data, kind)
    if kind == "rating":
        shape = np.asarray(spec.rating_noise.shape, data.rating.dtype)
    else:
        shape = getattr(state.noise, f"{kind}_shape")
    return (
        shape,
        np.bincount(row, valid, size).astype(np.int32),
        np.bincount(row, np.where(valid, squares, 0), size).astype(data.rating.dtype),
        state.rating_variance,
    )


def check(kind, precision, conditional=conditional, seed=0, spec=SPEC):
    spec, data, state = tiny.make(precision, spec, seed)
    shape, rate = conditional(*arguments(kind, spec, state, data))
    assert shape.dtype == rate.dtype == precision.dtype
    number, rng = NUMBERS[kind], np.random.default_rng(seed + 100)
    current = getattr(state.noise, kind)
    # All rows at once, then each row alone; one user has no rating.
    for rows in [slice(0, number), *range(number)]:
        values = []
        for _ in range(4):
            value = current.copy()
            value[rows] = rng.gamma(2.0, 0.5, size=value[rows].shape) + 0.05
            values.append(value)
        joints = [
            tiny.joint(
                state._replace(noise=state.noise._replace(**{kind: value})), spec, data
            )
            for value in values
        ]
        a, b = np.float64(shape)[:number], np.float64(rate)[:number]
        tiny.assert_same_differences(
            [
                stats.gamma.logpdf(np.float64(v[:number]), a, scale=1 / b).sum()
                for v in values
            ],
            joints,
            precision,
        )


@pytest.mark.parametrize("kind", KINDS)
def test_conditional_precisions_are_exact(kind, precision):
    check(kind, precision)


def count_not_halved(shape, count, *rest):
    return conditional(shape, 2 * count, *rest)


def squares_not_halved(shape, count, squares, variance):
    return conditional(shape, count, 2 * squares, variance)


def variance_missing(shape, count, squares, variance):
    return conditional(shape, count, squares, np.ones_like(variance))


def rate_of_the_prior_missing(shape, *rest):
    found = conditional(shape, *rest)
    return found._replace(rate=found.rate - shape + 1)


def prior_missing(shape, *rest):
    found = conditional(shape, *rest)
    return found._replace(shape=found.shape - shape)


def padding_counted(shape, count, *rest):
    return conditional(shape, count + 1, *rest)


@pytest.mark.parametrize(
    "mutant",
    [
        count_not_halved,
        squares_not_halved,
        variance_missing,
        rate_of_the_prior_missing,
        prior_missing,
        padding_counted,
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_a_mutant_is_found(kind, mutant, precision):
    with tiny.found():
        check(kind, precision, mutant)


@pytest.mark.parametrize("kind", KINDS)
def test_other_precisions_forgotten_are_found(kind, float64):
    spec, data, state = tiny.make(float64, SPEC)
    ones = {k: np.ones_like(getattr(state.noise, k)) for k in KINDS if k != kind}
    bare = state._replace(noise=state.noise._replace(**ones))
    given = arguments(kind, spec, bare, data)
    with tiny.found():
        check(kind, float64, lambda *_: conditional(*given))


def test_draws_of_precisions():
    # Rows without a rating, with few and with many; a shape below 1.
    count = np.repeat(np.int32([0, 1, 12, 4000]), 10_000)
    squares = np.float32(0.9) * count
    shape, variance = np.float32(0.7), np.float32(1.3)
    drawn = quick_jit(resample_precisions)(
        jax.random.key(0), shape, count, squares, variance
    )
    drawn = np.float64(drawn).reshape(4, -1)
    for n, values in zip((0, 1, 12, 4000), drawn, strict=True):
        law = stats.gamma(0.7 + n / 2, scale=1 / (0.7 + 0.9 * n / (2 * 1.3)))
        assert_ks(values, law.cdf, grain=1e-6, share=4)
    assert np.max(np.abs(np.corrcoef(drawn)[0, 1:])) < 0.05


@pytest.mark.parametrize("shape", [1e-30, 0.01, 100.0])
def test_precisions_stay_within_float32(shape):
    count = np.repeat(np.int32([0, 1, 50]), 5_000)
    squares = np.repeat(np.float32([0, 1e-3, 1e6]), 5_000)
    drawn = quick_jit(resample_precisions)(
        jax.random.key(1), np.float32(shape), count, squares, np.float32(0.5)
    )
    product = np.float32(drawn) ** 3
    assert np.all(drawn >= np.float32(LEAST_PRECISION))
    assert np.all(product > 0) and np.all(np.isfinite(1 / product))
    found = shape_statistics(jnp.asarray(drawn), np.full(15_000, True))
    assert np.isfinite(found.excess) and found.count == 15_000


def test_statistics_of_the_shape():
    p = np.float32([1e-10, 0.2, 1, 1 + 1e-3, 1.4999, 1.5001, 40, 7])
    found = shape_statistics(jnp.asarray(p), np.arange(8) < 7)
    wide = np.float64(p[:7])
    assert found.count == 7
    assert float(found.excess) == pytest.approx(
        np.sum(wide - 1 - np.log(wide)), rel=1e-6
    )
    # Near 1 nothing cancels.
    near = np.float32(1 + 1e-3 * np.linspace(-1, 1, 1001))
    found = shape_statistics(jnp.asarray(near), np.full(1001, True))
    wide = np.float64(near)
    assert float(found.excess) == pytest.approx(
        np.sum(wide - 1 - np.log(wide)), rel=2e-4
    )


# --- shapes: derivatives ------------------------------------------------------------


SHAPES = 0.3, 1.0, 4.0, 30.0


@functools.cache
def derivatives(side, name):
    """Prior and statistics of a side, and derivatives of the log joint at SHAPES."""
    with tiny.in_precision(name) as precision:
        spec, data, state = tiny.make(precision, SPEC)
        each = np.float64(getattr(state.noise, side)[: NUMBERS[side]])
        statistics = ShapeStatistics(
            *(precision.dtype(x) for x in (len(each), np.sum(each - 1 - np.log(each))))
        )

        def of_shape(shape):
            noise = state.noise._replace(**{f"{side}_shape": shape})
            return log_joint(state._replace(noise=noise), spec, data)

        slope = jax.grad(of_shape)
        both = quick_jit(lambda shape: (slope(shape), jax.grad(slope)(shape)))
        prior = getattr(spec, f"{side}_noise").shape
        return prior, statistics, [both(precision.dtype(x)) for x in SHAPES]


def check_shape(side, name, conditional=conditional_shape):
    """Compare both derivatives with those of the log joint, at several shapes."""
    prior, statistics, expected = derivatives(side, name)
    with tiny.in_precision(name) as precision:
        found = [
            conditional(prior, jnp.asarray(precision.dtype(x)), statistics)
            for x in SHAPES
        ]
        assert all(x.dtype == precision.dtype for pair in found for x in pair)
    # In float32 differences of the log joint's terms round.
    tolerance = 1e-8 if name == "float64" else 2e-3
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name, side", [("float64", "user"), ("float32", "item")])
def test_derivatives_are_those_of_the_log_joint(side, name):
    check_shape(side, name)


@pytest.mark.parametrize(
    "mutant",
    [
        lambda prior, a, s: conditional_shape(prior, a, s._replace(count=s.count + 1)),
        lambda prior, a, s: conditional_shape(prior, a, s._replace(excess=-s.excess)),
        lambda prior, a, s: conditional_shape(Gamma(prior.shape, 0.0), a, s),
        lambda prior, a, s: conditional_shape(Gamma(1.0, prior.rate), a, s),
        lambda prior, a, s: (conditional_shape(prior, a, s)[0],) * 2,
    ],
)
@pytest.mark.parametrize("name, side", [("float64", "user"), ("float32", "item")])
def test_wrong_derivatives_are_found(mutant, side, name):
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        check_shape(side, name, mutant)


# --- shapes: draws ------------------------------------------------------------------

PRIOR = Gamma(2.0, 0.2)
# name: precisions, and the shape that they are drawn with
CASES = {
    "none": (0, 1.0),
    "one": (1, 0.5),
    "five": (5, 3.0),
    "a thousand": (1000, 2.0),
    "a thousand, nearly constant": (1000, 60.0),
    "a million": (1_000_000, 5.0),
}
CHAINS, STEPS = 4_000, 25


def statistics_of(case):
    number, shape = CASES[case]
    rng = np.random.default_rng(6)
    p = rng.gamma(shape, 1 / shape, number)
    return ShapeStatistics(np.float32(number), np.float32(np.sum(p - 1 - np.log(p))))


def law_of(case, prior=PRIOR):
    """Distribution function of the shape by a grid in its logarithm."""
    number, excess = map(float, statistics_of(case))

    def log_density(t):
        a = np.exp(t)
        of_precisions = number * (a * t - a - special.gammaln(a)) - a * excess
        return of_precisions + prior.shape * t - prior.rate * a

    wide = np.linspace(-20, 8, 20_001)
    value = log_density(wide)
    inside = wide[value > value.max() - 50]
    grid = np.linspace(inside[0], inside[-1], 20_001)
    density = np.exp(log_density(grid) - log_density(grid).max())
    upto = np.concatenate([[0], np.cumsum((density[1:] + density[:-1]) / 2)])
    upto /= upto[-1]
    return lambda a: np.interp(np.log(a), grid, upto)


@quick_jit
def run(key, prior, statistics, start):
    def chain(key):
        def step(shape, t):
            new = resample_shape(jax.random.fold_in(key, t), prior, shape, statistics)
            return new, new != shape

        return jax.lax.scan(step, start, jnp.arange(STEPS))

    return jax.vmap(chain)(jax.random.split(key, CHAINS))


@pytest.mark.parametrize("start", [0.01, 1e3])
@pytest.mark.parametrize("case", CASES)
def test_shapes_have_their_density_wherever_they_start(case, start):
    shapes, moved = run(
        jax.random.key(2), PRIOR, statistics_of(case), np.float32(start)
    )
    grain = 1e-3 if case == "a million" else 1e-4  # float32 of a narrow law
    assert_ks(shapes, law_of(case), grain=grain, share=len(CASES) * 2)
    # After the first steps, of a chain that is where it belongs.
    assert moved[:, 5:].mean() > 0.75


@pytest.mark.parametrize("function", ["_accept", "_log_t"])
def test_a_wrong_ratio_is_found(function, monkeypatch):
    right = getattr(source, function)
    wrong = {
        "_accept": lambda *given: jnp.full_like(right(*given), True),
        "_log_t": lambda *given: 0 * right(*given),
    }
    monkeypatch.setattr(source, function, wrong[function])
    again = quick_jit(lambda *given: run.__wrapped__(*given))
    given = PRIOR, statistics_of("five"), np.float32(2.0)
    with pytest.raises(AssertionError, match="distance"):
        shapes, _ = again(jax.random.key(2), *given)
        assert_ks(shapes, law_of("five"))


def test_another_prior_is_told_apart():
    shapes, _ = run(jax.random.key(2), PRIOR, statistics_of("five"), np.float32(2.0))
    for prior in (Gamma(2.0, 0.5), Gamma(1.0, 0.2)):
        with pytest.raises(AssertionError, match="distance"):
            assert_ks(shapes, law_of("five", prior))


@pytest.mark.parametrize(
    "prior, start", [(Gamma(0.5, 1e-6), 1e-6), (Gamma(50.0, 100.0), 1e6)]
)
def test_wild_numbers_do_no_harm(start, prior):
    for count, excess in ((0, 0), (3, 1e-8), (1e6, 1e-2), (1e6, 1e8)):
        statistics = ShapeStatistics(np.float32(count), np.float32(excess))
        shapes, _ = run(jax.random.key(4), prior, statistics, np.float32(start))
        assert np.all(np.isfinite(shapes)) and np.all(np.asarray(shapes) > 0)
        assert np.mean(np.asarray(shapes) == start) < 0.05


def test_a_fixed_shape_has_no_prior():
    p, counted = jnp.float32([0.5, 2.0, 9.0]), np.array([True, True, False])
    found = GammaNoise(1.7).log_density(p, counted, jnp.float32(1.7))
    expected = stats.gamma.logpdf([0.5, 2.0], 1.7, scale=1 / 1.7).sum()
    assert float(found) == pytest.approx(expected, rel=1e-5)
    prior = dataclasses.replace(GammaNoise(), shape=Gamma(2.0, 0.5))
    more = prior.log_density(p, counted, jnp.float32(1.7))
    assert float(more - found) == pytest.approx(
        stats.gamma.logpdf(1.7, 2.0, scale=2.0), rel=1e-5
    )
