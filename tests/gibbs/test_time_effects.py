"""What depends on time: exact conditionals, draws by their laws.

Items (a cell a bin, covariate 1) and users (one cell, covariate x_n) share one block:
the exact checks look at both, with ratings of unequal precision.
"""

import dataclasses

import jax
import numpy as np
import pytest
from scipy import stats

from im3f_jax.data.layout import lay_out
from im3f_jax.data.times import TimeScale
from im3f_jax.gibbs.init import init_state
from im3f_jax.gibbs.time_effects import (
    EffectStatistics,
    conditional_effect_variance,
    conditional_effects,
    effect_statistics,
    resample_effects,
)
from im3f_jax.model.scalars import InverseGamma
from tests import tiny
from tests.gof import assert_ks, assert_mean
from tests.quick import quick_jit

SPEC = tiny.timed(tiny.noisy(tiny.make_spec("none", "none")))
conditional = quick_jit(conditional_effects)
of_variance = quick_jit(conditional_effect_variance)


def test_chains_start_with_effects_of_the_size_of_their_variance():
    # From 0 the first variance drawn would be 1e-4, and would grow for long.
    rng = np.random.default_rng(0)
    user, item = rng.integers(300, size=(2, 6000))
    user[:300] = item[:300] = np.arange(300)
    given = user, item, rng.normal(3, 1, 6000), 300, 300
    scale = TimeScale.of(rng.uniform(size=6000), user, 300, 5)
    layout, _ = lay_out(*given, times=scale.columns(rng.uniform(size=6000), user))
    spec = tiny.timed(tiny.make_spec("none", "none"))
    bins = dataclasses.replace(spec.item_time, num_bins=5)
    spec = dataclasses.replace(spec, item_time=bins)
    time = quick_jit(init_state.__wrapped__)(jax.random.key(0), spec, layout).time
    for effect, variance in (
        (time.item, time.item_variance),
        (time.user, time.user_variance),
    ):
        effect = np.asarray(effect, float)
        assert np.mean(effect[:300] ** 2) == pytest.approx(float(variance), rel=0.3)
        assert not np.any(effect[300:])


def table(state, name):
    """Effects as a table, real rows only."""
    number = tiny.SIDES[name]
    values = getattr(state.time, name)
    values = values if values.ndim == 2 else values[:, None]
    return values[: {"user": tiny.NUM_USERS, "item": tiny.NUM_ITEMS}[number.name]]


def put(state, name, values):
    """Put a table of effects of the real rows."""
    old = getattr(state.time, name)
    new = old.copy()
    new[: len(values)] = values.reshape(len(values), *old.shape[1:])
    return state._replace(time=state.time._replace(**{name: new}))


def sums(name, state, data):
    """Statistics of a side, summed rating by rating in numpy."""
    x = tiny.residual(state, data, without=(f"{name}_time",))
    weight = tiny.precision_of(state, data)
    weight = np.ones(len(x)) if weight is None else weight
    shape = np.shape(getattr(state.time, name))
    shape = shape if len(shape) == 2 else (*shape, 1)
    information, total = np.zeros(shape), np.zeros(shape)
    for n in range(tiny.NUM_RATINGS):
        item = name == "item"
        cell = getattr(data, name)[n], data.times.bin[n] if item else 0
        covariate = 1.0 if item else data.times.drift[n]
        information[cell] += weight[n] * covariate**2
        total[cell] += weight[n] * covariate * x[n]
    dtype = data.rating.dtype
    return EffectStatistics(information.astype(dtype), total.astype(dtype))


def check(name, precision, conditional=conditional, seed=0):
    spec, data, state = tiny.make(precision, SPEC, seed)
    variance = getattr(state.time, f"{name}_variance")
    given = conditional(sums(name, state, data), variance, state.rating_variance)
    assert all(x.dtype == precision.dtype for x in given)
    current, rng = table(state, name), np.random.default_rng(seed + 100)
    mean, spread = (np.float64(x)[: len(current)] for x in given)
    # All cells at once, then each alone; some have no rating.
    for cells in [..., *np.ndindex(current.shape)]:
        values = []
        for _ in range(4):
            value = current.copy()
            value[cells] = rng.normal(size=np.shape(value[cells]))
            values.append(value)
        tiny.assert_same_differences(
            [
                stats.norm.logpdf(np.float64(v), mean, np.sqrt(spread)).sum()
                for v in values
            ],
            [tiny.joint(put(state, name, v), spec, data) for v in values],
            precision,
        )


@pytest.mark.parametrize("name", tiny.SIDES)
def test_conditional_effects_are_exact(name, precision):
    check(name, precision)


def sign_of_the_residuals(sums, *rest):
    return conditional(sums._replace(total=-sums.total), *rest)


def information_halved(sums, *rest):
    return conditional(sums._replace(information=0.5 * sums.information), *rest)


def prior_variance_missing(sums, variance, rating_variance):
    return conditional(sums, np.ones_like(variance), rating_variance)


def rating_variance_missing(sums, variance, rating_variance):
    return conditional(sums, variance, np.ones_like(rating_variance))


def variances_swapped(sums, variance, rating_variance):
    return conditional(sums, rating_variance, variance)


def informed_only(sums, *rest):
    found = conditional(sums, *rest)
    # Cells without a rating get the variance of a rating for that of the prior.
    spread = np.where(sums.information > 0, found.variance, rest[1])
    return found._replace(variance=spread)


@pytest.mark.parametrize(
    "mutant",
    [
        sign_of_the_residuals,
        information_halved,
        prior_variance_missing,
        rating_variance_missing,
        variances_swapped,
        informed_only,
    ],
)
@pytest.mark.parametrize("name", tiny.SIDES)
def test_a_mutant_is_found(name, mutant, precision):
    with tiny.found():
        check(name, precision, mutant)


def check_variance(name, precision, conditional=of_variance):
    """The joint over the variance, with the cells without information summed out.

    Of these it holds the prior alone: it is divided by that.
    """
    spec, data, state = tiny.make(precision, SPEC)
    informed = sums(name, state, data).information
    prior = getattr(spec, f"{name}_time").variance
    effect = getattr(state.time, name)
    effect = effect if effect.ndim == 2 else effect[:, None]
    given = EffectStatistics(informed, np.full_like(informed, np.nan))
    shape, scale = conditional(prior, effect, given)
    assert shape.dtype == scale.dtype == precision.dtype
    real = table(state, name)
    others = np.float64(real[informed[: len(real)] == 0])
    assert 0 < others.size < real.size
    values = [precision.dtype(x) for x in (0.1, 0.4, 1.0, 2.5)]
    joints = []
    for value in values:
        time = state.time._replace(**{f"{name}_variance": value})
        joint = tiny.joint(state._replace(time=time), spec, data)
        joints.append(joint - stats.norm.logpdf(others, 0, np.sqrt(value)).sum())
    tiny.assert_same_differences(
        [tiny.log_inverse_gamma(float(v), shape, scale) for v in values],
        joints,
        precision,
    )


@pytest.mark.parametrize("name", tiny.SIDES)
def test_conditional_variance_is_exact(name, precision):
    check_variance(name, precision)


@pytest.mark.parametrize(
    "mutant",
    [
        # All cells, those without information too; padding; squares not halved.
        lambda p, e, s: of_variance(
            p, e, s._replace(information=np.ones_like(s.information))
        ),
        lambda p, e, s: of_variance(p, np.sqrt(2, dtype=e.dtype) * e, s),
        lambda p, e, s: of_variance(InverseGamma(p.shape, 0.0), e, s),
        lambda p, e, s: of_variance(InverseGamma(0.0, p.scale), e, s),
        lambda p, e, s: of_variance(p, 0 * e, s),
    ],
)
@pytest.mark.parametrize("name", tiny.SIDES)
def test_a_wrong_variance_is_found(name, mutant, precision):
    with tiny.found():
        check_variance(name, precision, mutant)


@pytest.mark.parametrize("name", tiny.SIDES)
@pytest.mark.parametrize("noisy", [True, False])
def test_statistics(name, noisy, float64):
    spec = SPEC if noisy else tiny.timed(tiny.make_spec("none", "none"))
    _, data, state = tiny.make(float64, spec)
    x = tiny.residual(state, data, without=(f"{name}_time",))
    valid = np.arange(len(x)) < tiny.NUM_RATINGS
    x[~valid] = 1e9  # must not matter
    item = name == "item"
    column = data.times.bin if item else np.zeros_like(data.user)
    covariate = None if item else np.where(valid, data.times.drift, 7.0)
    expected = sums(name, state, data)
    found = quick_jit(effect_statistics, static_argnums=4)(
        x,
        valid,
        getattr(data, name),
        column,
        expected.total.shape,
        covariate,
        tiny.precision_of(state, data),
    )
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-12)


# Rows: without information, with little, with much; and one of padding.
INFORMATION = np.float32([[0, 3], [0.2, 4000], [5, 5]])
TOTAL = np.float32([[0, 2], [-0.3, 900], [7, -4]])
RATING_VARIANCE, NUMBER = np.float32(1.3), np.int32(2)


@quick_jit
def draw(keys, prior, effect, variance):
    sums = EffectStatistics(INFORMATION, TOTAL)
    return jax.vmap(
        lambda key: resample_effects(
            key, prior, effect, variance, sums, RATING_VARIANCE, NUMBER
        )
    )(keys)


def test_draws_of_effects_and_of_their_variance():
    prior = InverseGamma(3.0, 0.5)
    effect = np.float32([[9.0, 0.4], [-0.6, 0.2], [0, 0]])
    keys = jax.random.split(jax.random.key(0), 20_000)
    effects, variance = draw(keys, prior, effect, np.float32(100.0))
    assert not np.any(effects[:, 2])
    # Five cells are informed; the first, of 9, is not, and the padding is 0.
    law = stats.invgamma(3.0 + 2.5, scale=0.5 + (0.16 + 0.36 + 0.04) / 2)
    assert_ks(variance, law.cdf, share=6, grain=1e-5)
    variance = np.float64(variance)[:, None, None]
    spread = RATING_VARIANCE + variance * INFORMATION
    scaled = np.float64(effects) - variance * TOTAL / spread
    scaled /= np.sqrt(variance * RATING_VARIANCE / spread)
    for cell in np.ndindex(2, 2):
        assert_ks(scaled[:, *cell], stats.norm.cdf, share=6, grain=1e-3)
    assert_mean(scaled[:, 0, 0] * scaled[:, 0, 1], 0)
    # A fixed variance stays.
    effects, variance = draw(keys[:2000], 0.7, effect, np.float32(0.7))
    assert np.all(variance == np.float32(0.7))
    assert_ks(effects[:, 0, 0], stats.norm(0, np.sqrt(0.7)).cdf, share=6)
