"""Concentrations: exact against the log joint of counts, and draws that stay.

The conditionals hold auxiliary variables. For any value of those,
p(gamma | m) is proportional to p(gamma | w, m) / p(w | gamma), which needs no integral.
"""

import jax
import numpy as np
import pytest
from scipy import special, stats

from im3f_jax.gibbs import concentrations
from im3f_jax.model.log_joint import log_joint_of_counts
from im3f_jax.model.scalars import Gamma
from tests import tiny
from tests.gof import assert_ks, assert_ks_2samp
from tests.quick import quick_jit
from tests.stirling import log_stirling

joint_of_counts = quick_jit(log_joint_of_counts)
of_table = quick_jit(concentrations.conditional_table_concentration)
of_weak_limit = quick_jit(concentrations.conditional_dish_concentration_of_weak_limit)
of_sticks = quick_jit(concentrations.conditional_dish_concentration_of_sticks)

WEAK_FIRST = tiny.make_spec()
STICKS_FIRST = tiny.make_spec("stick_breaking", "weak_limit")
VALUES = np.array([0.2, 0.7, 1.5, 4.0, 9.0])
BIG = 6


class Case:
    """A side with the construction asked for, its counts and its tables."""

    def __init__(self, side, precision, construction):
        weak = construction == "weak_limit"
        spec = WEAK_FIRST if weak == (side.name == "user") else STICKS_FIRST
        _, data, state = tiny.make(precision, spec)
        self.prior = side.of(spec, "topic_prior")
        assert self.prior.construction == construction
        self.weights = side.of(state, "topic_weights")
        counts = tiny.topic_counts(side, state, data)[: side.number(data)]
        extra = np.random.default_rng(1).integers(0, 3, counts.shape, np.int32)
        self.counts = counts + extra
        self.counts[-1] = 0  # a row without ratings
        self.tables = np.ceil(self.counts / 2).astype(np.int32)
        self.of_row, self.of_dish = self.counts.sum(1), self.tables.sum(0)
        self.stirling = log_stirling(BIG).astype(precision.dtype)
        self.dtype = precision.dtype

    def joint(self, *, beta=None, gamma=None, log_pi=None):
        weights = self.weights
        given = (
            weights.log_global_weights if log_pi is None else log_pi,
            weights.dish_concentration if beta is None else beta,
            weights.table_concentration if gamma is None else gamma,
        )
        given = [np.asarray(x, self.dtype) for x in given]
        return float(
            joint_of_counts(self.prior, self.counts, self.tables, *given, self.stirling)
        )


def log_density(parameters, x):
    return tiny.log_gamma_density(x, *parameters)


def check_table(side, precision, construction, conditional=of_table):
    case = Case(side, precision, construction)
    rows = case.of_row > 0
    for seed in range(3):
        w = np.random.default_rng(seed).uniform(0.05, 0.95, size=len(rows))
        log_w = np.where(rows, np.log(w), 0).astype(precision.dtype)
        parameters = conditional(
            case.prior.table_concentration, case.tables.sum(dtype=np.int32), log_w
        )
        assert all(x.dtype == precision.dtype for x in parameters)
        auxiliary = [
            stats.beta.logpdf(w[rows], gamma, case.of_row[rows]).sum()
            for gamma in VALUES
        ]
        tiny.assert_same_differences(
            log_density(parameters, VALUES) - auxiliary,
            [case.joint(gamma=gamma) for gamma in VALUES],
            precision,
        )


def log_dirichlet(log_pi, concentration):
    """Log density of a Dirichlet with respect to log pi."""
    return (
        special.gammaln(concentration.sum())
        - special.gammaln(concentration).sum()
        + np.sum(concentration * log_pi)
    )


def log_tables_pmf(number, customers, a):
    """Log probability of a number of tables of one restaurant."""
    weights = log_stirling(40)[customers, : customers + 1]
    weights = weights + np.arange(customers + 1) * np.log(a)
    return weights[number] - special.logsumexp(weights)


def check_weak_limit(side, precision, conditional=of_weak_limit):
    """pi is summed out: divided by its conditional, which is exact by its own test."""
    case = Case(side, precision, "weak_limit")
    dishes, total = len(case.of_dish), case.of_dish.sum()
    log_pi = case.weights.log_global_weights
    joints = [
        case.joint(beta=beta)
        - log_dirichlet(np.float64(log_pi), beta / dishes + case.of_dish)
        for beta in VALUES
    ]
    for seed in range(3):
        rng = np.random.default_rng(seed)
        eta = rng.uniform(0.05, 0.95)
        drawn = np.array([rng.integers(1, m + 1) if m else 0 for m in case.of_dish])
        parameters = conditional(
            case.prior.dish_concentration,
            drawn.sum(dtype=np.int32),
            np.asarray(np.log(eta), precision.dtype),
        )
        assert all(x.dtype == precision.dtype for x in parameters)
        auxiliary = [
            stats.beta.logpdf(eta, beta, total)
            + sum(
                log_tables_pmf(number, m, beta / dishes)
                for number, m in zip(drawn, case.of_dish, strict=True)
            )
            for beta in VALUES
        ]
        tiny.assert_same_differences(
            log_density(parameters, VALUES) - auxiliary, joints, precision
        )


def check_sticks(side, precision, conditional=of_sticks):
    case = Case(side, precision, "stick_breaking")
    parameters = conditional(
        case.prior.dish_concentration, case.weights.log_global_weights
    )
    assert all(x.dtype == precision.dtype for x in parameters)
    tiny.assert_same_differences(
        log_density(parameters, VALUES),
        [case.joint(beta=beta) for beta in VALUES],
        precision,
    )


@pytest.mark.parametrize("construction", ["weak_limit", "stick_breaking"])
def test_table_concentration_is_exact(construction, side, precision):
    check_table(side, precision, construction)


def test_dish_concentration_of_the_weak_limit_is_exact(side, precision):
    check_weak_limit(side, precision)


def test_dish_concentration_of_sticks_is_exact(side, precision):
    check_sticks(side, precision)


def one_table_less(prior, number, log_w):
    return of_table(prior, number - np.int32(1), log_w)


def auxiliary_of_the_wrong_sign(prior, number, log_w):
    return of_table(prior, number, -log_w)


def a_row_missing(prior, number, log_w):
    return of_table(prior, number, np.where(np.arange(len(log_w)) == 1, 0, log_w))


def escobar_and_west(prior, number, log_eta):
    # Their rule counts occupied dishes: right for the untruncated process only.
    return of_weak_limit(prior, np.int32(3), log_eta)


def eta_missing(prior, number, log_eta):
    return of_weak_limit(prior, number, np.zeros_like(log_eta))


def all_sticks_counted(prior, log_pi):
    shape, rate = of_sticks(prior, log_pi)
    return shape + 1, rate


def first_weight_for_last(prior, log_pi):
    return of_sticks(prior, log_pi[::-1])


@pytest.mark.parametrize(
    "mutant", [one_table_less, auxiliary_of_the_wrong_sign, a_row_missing]
)
def test_a_mutant_of_the_table_concentration_is_found(mutant, side, float64):
    with tiny.found():
        check_table(side, float64, "weak_limit", mutant)


@pytest.mark.parametrize("mutant", [escobar_and_west, eta_missing])
def test_a_mutant_of_the_weak_limit_is_found(mutant, side, float64):
    with tiny.found():
        check_weak_limit(side, float64, mutant)


@pytest.mark.parametrize("mutant", [all_sticks_counted, first_weight_for_last])
def test_a_mutant_of_sticks_is_found(mutant, side, float64):
    with tiny.found():
        check_sticks(side, float64, mutant)


# Draws: from the target the next draw is again from the target, which is known on a
# grid; and from one value the draws are those of the auxiliary scheme in numpy.

GRID = np.exp(np.linspace(-9, 6, 40_001))
COUNTS = np.int32([[9, 3, 0, 1], [0, 0, 0, 0], [4, 0, 1, 0], [1, 0, 0, 0]])
TABLES = np.int32([3, 1, 0, 1])
DRAWS = 8_000


def distribution(log_density):
    """Quantiles and distribution function of a density on the grid."""
    weights = np.exp(log_density - log_density.max()) * GRID  # in log x
    upper = np.concatenate([[0], np.cumsum(0.5 * (weights[1:] + weights[:-1]))])
    upper /= upper[-1]
    return lambda p: np.interp(p, upper, GRID), lambda x: np.interp(x, GRID, upper)


def log_table_target(prior):
    of_row = COUNTS.sum(1)
    target = tiny.log_gamma_density(GRID, prior.shape, prior.rate)
    target = target + TABLES.sum() * np.log(GRID)
    for n in of_row[of_row > 0]:
        target = target + special.gammaln(GRID) - special.gammaln(GRID + n)
    return target


def log_dish_target(prior, tables):
    target = tiny.log_gamma_density(GRID, prior.shape, prior.rate)
    target = target + special.gammaln(GRID) - special.gammaln(GRID + tables.sum())
    for m in tables:
        share = GRID / len(tables)
        target = target + special.gammaln(share + m) - special.gammaln(share)
    return target


PRIOR = Gamma(2.0, 0.5)
table_kernel = quick_jit(
    jax.vmap(concentrations.resample_table_concentration, (0, None, 0, None, None))
)
dish_kernel = quick_jit(
    jax.vmap(
        concentrations.resample_dish_concentration_of_weak_limit,
        (0, None, 0, None, None),
    ),
    static_argnums=4,
)


def stays(kernel, target, seed):
    """Start draws at the target, apply the kernel once, and compare."""
    quantile, cdf = distribution(target)
    rng = np.random.default_rng(seed)
    start = quantile(rng.random(DRAWS)).astype(np.float32)
    assert_ks(start, cdf)
    keys = jax.random.split(jax.random.key(seed), DRAWS)
    after = np.float64(kernel(keys, start))
    assert_ks(after, cdf)
    assert abs(stats.spearmanr(start, after).statistic) < 0.9


def test_draws_of_the_table_concentration_stay():
    stays(
        lambda keys, start: table_kernel(keys, PRIOR, start, COUNTS, TABLES[None]),
        log_table_target(PRIOR),
        0,
    )


@pytest.mark.parametrize("tables", [TABLES, 0 * TABLES], ids=["tables", "none"])
def test_draws_of_the_dish_concentration_stay(tables):
    stays(
        lambda keys, start: dish_kernel(keys, PRIOR, start, tables, 16),
        log_dish_target(PRIOR, tables),
        1,
    )


def test_draws_of_the_table_concentration_from_one_value():
    rng = np.random.default_rng(2)
    of_row = COUNTS.sum(1)
    w = rng.beta(1.3, of_row[of_row > 0], size=(DRAWS, 3))
    expected = rng.gamma(2 + TABLES.sum(), 1 / (0.5 - np.log(w).sum(1)))
    start = np.full(DRAWS, 1.3, np.float32)
    keys = jax.random.split(jax.random.key(2), DRAWS)
    drawn = table_kernel(keys, PRIOR, start, COUNTS, TABLES[None])
    assert_ks_2samp(drawn, expected)


def test_draws_of_the_dish_concentration_from_one_value():
    rng = np.random.default_rng(3)
    a = 1.3 / 4
    drawn = np.zeros(DRAWS)
    for m in TABLES:
        chances = a / (a + np.arange(m))
        drawn += (rng.random((DRAWS, m)) < chances).sum(1)
    eta = rng.beta(1.3, TABLES.sum(), size=DRAWS)
    expected = rng.gamma(2 + drawn, 1 / (0.5 - np.log(eta)))
    start = np.full(DRAWS, 1.3, np.float32)
    keys = jax.random.split(jax.random.key(3), DRAWS)
    assert_ks_2samp(dish_kernel(keys, PRIOR, start, TABLES, 16), expected)


def test_draws_of_the_dish_concentration_of_sticks():
    log_pi = np.log(np.float32([0.5, 0.3, 0.15, 0.05]))
    kernel = quick_jit(
        jax.vmap(concentrations.resample_dish_concentration_of_sticks, (0, None, None))
    )
    drawn = kernel(jax.random.split(jax.random.key(4), DRAWS), PRIOR, log_pi)
    rate = 0.5 - np.log(0.05)
    assert_ks(drawn, stats.gamma(2 + 3, scale=1 / rate).cdf)
