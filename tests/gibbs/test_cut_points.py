"""Cut points: their density is the log joint's, and the moves leave it as it is."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from im3f_jax.gibbs import cut_points as source
from im3f_jax.gibbs.cut_points import conditional_cut_points, resample_cut_points
from im3f_jax.model.likelihood import Ordinal
from im3f_jax.model.log_joint import mean_of_ratings
from tests import tiny
from tests.gof import assert_ks
from tests.quick import quick_jit

conditional = quick_jit(conditional_cut_points)
LEVELS = len(tiny.make_ordinal_spec().likelihood.levels)


NOISY = tiny.noisy(tiny.make_ordinal_spec())


def make(precision, seed=0, spec=None):
    spec = tiny.make_ordinal_spec() if spec is None else spec
    spec, data, state = tiny.make(precision, spec, seed)
    level = spec.likelihood.level_of(jnp.asarray(data.rating))
    valid = np.arange(len(data.rating)) < tiny.NUM_RATINGS
    root = tiny.precision_of(state, data)
    root = None if root is None else np.sqrt(root)
    return spec, data, state, (level, mean_of_ratings(state, data), valid, root)


def check(precision, conditional=conditional, seed=0, spec=None):
    spec, data, state, given = make(precision, seed, spec)
    rng = np.random.default_rng(seed)
    values = [state.cut_points] + [
        np.sort(rng.normal(size=LEVELS - 1)).astype(precision.dtype) for _ in range(4)
    ]
    found = [conditional(spec.likelihood, g, *given) for g in values]
    assert all(x.dtype == precision.dtype for x in found[0])
    tiny.assert_same_differences(
        [float(x.log_mass.sum() + x.log_prior) for x in found],
        [tiny.joint(state._replace(cut_points=g), spec, data) for g in values],
        precision,
    )


@pytest.mark.parametrize("seed", [0, 1])
def test_conditional_is_exact(precision, seed):
    check(precision, seed=seed)


def test_conditional_is_exact_where_the_noise_differs(precision):
    check(precision, spec=NOISY)


@pytest.mark.parametrize(
    "wrong",
    [lambda r: None, lambda r: r**2, lambda r: 1 / r],
    ids=["missing", "the precision", "the deviation"],
)
def test_a_mutant_of_the_noise_is_found(wrong, float64):
    def mutant(*given):
        return conditional(*given[:-1], wrong(given[-1]))

    with tiny.found():
        check(float64, mutant, spec=NOISY)


def prior_missing(likelihood, cut_points, *given):
    wide = dataclasses.replace(likelihood, cut_scale=1e3)
    return conditional(wide, cut_points, *given)


def sign_of_the_mean(likelihood, cut_points, level, mean, *rest):
    return conditional(likelihood, cut_points, level, -mean, *rest)


def levels_off_by_one(likelihood, cut_points, level, *rest):
    return conditional(likelihood, cut_points, jnp.maximum(level - 1, 0), *rest)


def padding_counted(likelihood, cut_points, level, mean, valid, root):
    every = np.full_like(valid, True)
    return conditional(likelihood, cut_points, level, mean, every, root)


@pytest.mark.parametrize(
    "mutant", [prior_missing, sign_of_the_mean, levels_off_by_one, padding_counted]
)
def test_a_mutant_is_found(mutant, precision):
    with tiny.found():
        check(precision, mutant)


@pytest.mark.parametrize("noise", ["constant", "that differs"])
def test_derivatives_are_those_of_the_density(noise, float64):
    spec = None if noise == "constant" else NOISY
    spec, _, state, given = make(float64, spec=spec)

    @quick_jit
    def both(cut_points, given):
        def density(g):
            found = conditional_cut_points(spec.likelihood, g, *given)
            return jnp.sum(found.log_mass) + found.log_prior

        found = conditional_cut_points(spec.likelihood, cut_points, *given)
        return found, jax.grad(density)(cut_points), jax.hessian(density)(cut_points)

    found, gradient, hessian = both(jnp.asarray(state.cut_points), given)
    np.testing.assert_allclose(found.gradient, gradient, rtol=1e-8)
    np.testing.assert_allclose(found.diagonal, -np.diag(hessian), rtol=1e-7)
    np.testing.assert_allclose(
        found.off_diagonal, -np.diag(hessian, 1), rtol=1e-7, atol=1e-9
    )
    # No other cut points touch.
    assert np.all(np.triu(hessian, 2) == 0)


# Two cut points on a grid: the whole distribution, by brute force.

CASES = {
    # name: number of ratings of each level
    "few": (3, 2, 4),
    "an empty level between": (5, 0, 6),
    "no rating": (0, 0, 0),
    "many": (15, 30, 20),
}
EXACT = Ordinal((1.0, 2.0, 3.0), 1.5)
CHAINS, STEPS = 2_000, 20


def ratings_of(case):
    level = np.repeat(np.arange(3, dtype=np.int32), CASES[case])
    level = np.concatenate([level, np.zeros(8, np.int32)])  # padding
    mean = np.random.default_rng(3).normal(0.2, 0.8, len(level)).astype(np.float32)
    return level, mean, np.arange(len(level)) < sum(CASES[case])


def marginals(case):
    """Give the distribution functions of both cut points and of their gap."""
    level, mean, valid = ratings_of(case)
    level, mean = level[valid], np.float64(mean[valid])
    grid = np.linspace(-6, 6, 601)
    first, second = np.meshgrid(grid, grid, indexing="ij")
    log_density = stats.norm.logpdf(first, 0, 1.5) + stats.norm.logpdf(second, 0, 1.5)
    with np.errstate(divide="ignore", invalid="ignore"):
        for n in range(len(level)):
            low, high = special.ndtr(first - mean[n]), special.ndtr(second - mean[n])
            mass = (low, high - low, special.ndtr(mean[n] - second))[level[n]]
            log_density += np.log(mass)
    log_density = np.where(second > first, log_density, -np.inf)
    density = np.exp(log_density - np.nanmax(log_density))
    density /= density.sum()

    def law(values, weights):
        order = np.argsort(values, kind="stable")
        values, total = values[order], np.cumsum(weights[order])
        return lambda x: np.interp(x, values, total - 0.5 * weights[order])

    return [
        law(grid + 0.0, density.sum(axis=1)),
        law(grid + 0.0, density.sum(axis=0)),
    ]


@quick_jit
def run(key, level, mean, valid, start):
    def chain(key):
        def step(g, t):
            key_of = jax.random.fold_in(key, t)
            g, accepted = resample_cut_points(key_of, EXACT, g, level, mean, valid)
            return g, accepted

        return jax.lax.scan(step, start, jnp.arange(STEPS))

    return jax.vmap(chain)(jax.random.split(key, CHAINS))


def check_draws(case, run=run):
    cuts, accepted = run(
        jax.random.key(5), *ratings_of(case), np.array([-0.1, 0.3], np.float32)
    )
    cuts = np.asarray(cuts)
    assert np.all(cuts[:, 1] > cuts[:, 0])
    for k, law in enumerate(marginals(case)):
        assert_ks(cuts[:, k], law, grain=1e-3, share=2 * len(CASES))
    return float(accepted[:, STEPS // 2 :].mean())


@pytest.mark.thorough
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=pytest.mark.slow)
        if case in ("many", "no rating")
        else case
        for case in CASES
    ],
)
def test_moves_leave_the_density_as_it_is(case):
    accepted = check_draws(case)
    if case == "many":
        assert accepted > 0.8


@pytest.mark.thorough
@pytest.mark.parametrize(
    "function", ["_log_t", pytest.param("_accept", marks=pytest.mark.slow)]
)
def test_a_wrong_ratio_is_found(function, monkeypatch):
    right = getattr(source, function)
    wrong = {
        "_log_t": lambda *given: 0 * right(*given),
        "_accept": lambda *given: jnp.full_like(right(*given), True),
    }
    monkeypatch.setattr(source, function, wrong[function])
    with pytest.raises(AssertionError, match="distance"):
        check_draws("few", quick_jit(lambda *given: run.__wrapped__(*given)))


@pytest.mark.slow
def test_chains_come_back_from_far_out():
    # A million ratings pin the cut points to thousandths.
    rng = np.random.default_rng(0)
    mean = rng.normal(0, 0.7, 1 << 18).astype(np.float32)
    truth = np.array([-1.5, -0.5, 0.4, 1.6], np.float32)
    latent = mean + rng.normal(size=len(mean)).astype(np.float32)
    level = np.searchsorted(truth, latent).astype(np.int32)
    likelihood = Ordinal((1.0, 2, 3, 4, 5))

    @quick_jit
    def run(key, start):
        def step(g, t):
            key_of = jax.random.fold_in(key, t)
            given = level, mean, np.full(len(mean), True)
            return resample_cut_points(key_of, likelihood, g, *given)

        return jax.lax.scan(step, start, jnp.arange(30))

    for start in ([-3.0, -1, 0, 1], [-0.1, 0.0, 0.1, 0.2], [0.0, 1, 2, 3]):
        cuts, accepted = run(jax.random.key(0), np.array(start, np.float32))
        np.testing.assert_allclose(cuts, truth, atol=0.02)
        assert accepted[-20:].mean() > 0.6


@pytest.mark.parametrize("mean", [0.0, 30.0, -30.0, 1e3])
def test_wild_means_do_no_harm(mean):
    likelihood = Ordinal((1.0, 2, 3, 4, 5))
    level = np.arange(16, dtype=np.int32) % 5
    given = level, np.full(16, mean, np.float32), np.full(16, True)
    start = np.array([-1.0, -0.5, 0.5, 1.0], np.float32)
    move = quick_jit(resample_cut_points)
    for t in range(5):
        key = jax.random.fold_in(jax.random.key(0), t)
        start, _ = move(key, likelihood, start, *given)
    assert np.all(np.isfinite(start)) and np.all(np.diff(start) > 0)
