"""Draws against known distributions: the rates of failure are those of tests.gof."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from im3f_jax.numerics import random
from im3f_jax.numerics.random import truncated_normal
from tests.gof import assert_frequencies, assert_ks, assert_mean
from tests.quick import quick_jit
from tests.stirling import log_stirling

SHAPES = [1e-30, 1e-10, 1e-4, 1e-2, 0.3, 0.999, 1.0, 1.5, 10.0, 1e3, 1e6]


def log_gamma_cdf(log_draw, shape):
    """P(log G <= log_draw), also where exp(log_draw) underflows."""
    near_zero = np.exp(
        np.minimum(shape * log_draw - special.gammaln(shape + 1), 0)
    )  # of x^shape / Gamma(shape + 1), exact to 1 part in 1 / x
    with np.errstate(over="ignore", under="ignore"):
        return np.where(
            log_draw < -30, near_zero, special.gammainc(shape, np.exp(log_draw))
        )


def log_beta_cdf(log_draw, a, b):
    """P(log V <= log_draw) for V ~ Beta(a, b), also where V underflows."""
    near_zero = np.exp(np.minimum(a * log_draw - np.log(a) - special.betaln(a, b), 0))
    with np.errstate(under="ignore"):
        return np.where(
            log_draw < -30, near_zero, stats.beta.cdf(np.exp(log_draw), a, b)
        )


@pytest.fixture(scope="module")
def log_gammas():
    """Draws of every shape by one call, in float32: shape (shapes, draws)."""
    shape = np.broadcast_to(np.float32(SHAPES)[:, None], (len(SHAPES), 20_000))
    return np.asarray(quick_jit(random.log_gamma)(jax.random.key(0), shape))


@pytest.mark.parametrize("index", range(len(SHAPES)), ids=[f"{s:g}" for s in SHAPES])
def test_log_gamma_follows_the_gamma_of_every_shape(log_gammas, index):
    assert log_gammas.dtype == np.float32
    shape = np.float64(np.float32(SHAPES[index]))
    assert_ks(log_gammas[index], lambda x: log_gamma_cdf(x, shape))


def test_log_gamma_in_float64():
    with jax.enable_x64(True):
        shape = np.broadcast_to([[1e-30], [0.5], [1e6]], (3, 5_000))
        draws = quick_jit(random.log_gamma)(jax.random.key(1), shape)
        assert draws.dtype == np.float64
    for index in range(3):
        assert_ks(
            draws[index], lambda x, s=shape[index, 0]: log_gamma_cdf(x, s), share=3
        )


def test_log_gammas_of_small_shapes_have_no_hidden_floor(log_gammas):
    # For a tiny shape, exp(shape x log G) is a uniform U. If 1 - U came in multiples of
    # 2^-23, as from jax.random.uniform, it would be exactly 0 once in 8 million draws,
    # and every shape below 1e-7 would give the births of 1e-7.
    rest = -np.expm1(np.float64(log_gammas[0]) * np.float64(np.float32(SHAPES[0])))
    assert np.all(rest > 0)
    small = rest[rest < 0.002]
    assert len(small) > 10
    steps = small * 2**23
    assert np.mean(np.abs(steps - np.round(steps)) < 0.05) < 0.5


def test_log_gamma_goes_on_where_many_proposals_are_rejected(monkeypatch):
    # Above COMPACT elements, an eighth of them may be proposed again at a time. Here
    # half of the proposals are refused, whatever they are: the distribution is as was.
    propose = random._propose

    def refuse_half(key, d):
        log_v, accept = propose(key, d)
        coin = jax.random.bernoulli(jax.random.fold_in(key, 7), 0.5, d.shape)
        return log_v, accept & coin

    monkeypatch.setattr(random, "_propose", refuse_half)
    shape = np.full(random.COMPACT, 0.7, np.float32)
    draws = quick_jit(lambda key: random.log_gamma(key, shape))(jax.random.key(11))
    assert_ks(draws, lambda x: log_gamma_cdf(x, np.float64(np.float32(0.7))))


def test_fine_uniform_is_open_and_uniform():
    draws = quick_jit(lambda key: random._fine_uniform(key, (100_000,), jnp.float32))(
        jax.random.key(2)
    )
    assert_ks(draws, lambda x: x)
    assert 0 < jnp.min(draws) and jnp.max(draws) < 1


class WordsOf:
    """Stands for `jax.random.bits`: every word is one given number."""

    def __init__(self, word):
        self.word = word

    def __call__(self, key, shape, dtype):
        return jnp.full(shape, self.word, dtype)


@pytest.mark.parametrize("word, expected", [(0, 2.0**-65), (2**32 - 1, 1 - 2.0**-24)])
def test_fine_uniform_at_its_ends(monkeypatch, word, expected):
    monkeypatch.setattr(jax.random, "bits", WordsOf(word))
    draw = random._fine_uniform(jax.random.key(0), (1,), jnp.float32)
    assert draw[0] == expected
    assert np.isfinite(np.log1p(-np.float32(draw[0])))


DIRICHLETS = [
    [1e-3] * 5,
    [2.0, 3.0, 0.5, 1.0, 0.1],
    [1e-30, 1e-30, 1e-30, 1e-20, 1e-10],
    [1e-30, 1e-3, 1.0, 1e3, 1e5],
]


@pytest.fixture(scope="module")
def log_dirichlets():
    concentration = np.repeat(np.float32(DIRICHLETS)[:, None], 20_000, axis=1)
    return np.asarray(quick_jit(random.log_dirichlet)(jax.random.key(3), concentration))


@pytest.mark.parametrize("index", range(len(DIRICHLETS)))
def test_log_dirichlet_has_beta_marginals(log_dirichlets, index):
    concentration = np.float64(np.float32(DIRICHLETS[index]))
    for k, a in enumerate(concentration):
        rest = concentration.sum() - a
        draws = log_dirichlets[index, :, k]
        # Near weight 1 the logarithm is rounded to 0, an atom: compare below.
        assert_ks(
            draws,
            lambda x, a=a, rest=rest: log_beta_cdf(x, a, rest),
            where=lambda x: x < -1e-3,
            share=5,
        )


def test_log_dirichlet_is_normalised_and_never_exactly_zero(log_dirichlets):
    assert np.all(np.isfinite(log_dirichlets))
    total = special.logsumexp(np.float64(log_dirichlets), axis=-1)
    np.testing.assert_allclose(total, 0, atol=2e-6)


def test_log_beta_pair_has_both_tails():
    # V ~ Beta(1e-3, 1e3) is 0 in float32, its complement Beta(1e3, 1e-3) is 1.
    a = np.repeat(np.float32([1e-3, 1e3, 2.0]), 20_000)
    b = np.repeat(np.float32([1e3, 1e-3, 5.0]), 20_000)
    draws = quick_jit(random.log_beta_pair)(jax.random.key(4), a, b)
    log_v, log_rest = (np.float64(x).reshape(3, -1) for x in draws)
    a, b = np.float64(a[::20_000]), np.float64(b[::20_000])
    for row in range(3):
        for draw, first, second in ((log_v, a, b), (log_rest, b, a)):
            assert_ks(
                draw[row],
                lambda x, p=first[row], q=second[row]: log_beta_cdf(x, p, q),
                where=lambda x: x < -1e-3,
                share=6,
            )
    np.testing.assert_allclose(np.logaddexp(log_v, log_rest), 0, atol=2e-6)


# shape, scale, floor
TRUNCATED = {
    "untruncated": (3.0, 2.0, 0.0),
    "untruncated, many ratings": (450_000.0, 400_000.0, 0.0),
    "floor far below": (30.0, 30.0, 0.1),
    "floor at the mode of the precision": (100.0, 99.0, 1.0),
    "floor a little above": (100.0, 93.5, 1.0),
    "floor a little below": (100.0, 95.5, 1.0),
    "all mass below the floor": (450_000.0, 0.05 * 450_000, 0.083),
    "nearly all mass below the floor": (450_000.0, 449_000.0, 1.0),
    "the least shape, low bound": (1.0, 1.0, 2.0),
    "the least shape, high bound": (1.0, 1.0, 0.1),
    "small shape, low bound": (2.5, 0.3, 1.0),
    "small shape, bound at the mode": (19.0, 18.0, 1.0),
    "small shape, bound below its mean": (19.0, 18.7, 1.0),
}


def truncated_inverse_gamma_cdf(shape, scale, floor):
    """Distribution function by the regularised incomplete gamma function, or where
    that underflows by quadrature of the density of q = scale / x below its bound."""
    bound = scale / floor if floor > 0 else np.inf
    mass = special.gammainc(shape, bound)
    if mass > 1e-12:
        return lambda x: 1 - special.gammainc(shape, scale / x) / mass
    slope = (shape - 1) / bound - 1
    q = bound - np.linspace(0, 60 / slope, 200_001)
    density = np.exp((shape - 1) * np.log(q / bound) - (q - bound))
    upper = np.concatenate([[0], np.cumsum(0.5 * (density[1:] + density[:-1]))])
    upper /= upper[-1]
    return lambda x: np.interp(-scale / x, -q, upper)


@quick_jit
def draw_truncated(keys, shape, scale, floor):
    return jax.vmap(random.truncated_inverse_gamma, (0, None, None, None))(
        keys, shape, scale, floor
    )


@pytest.mark.parametrize("case", TRUNCATED)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_truncated_inverse_gamma(case, dtype):
    shape, scale, floor = (float(dtype(x)) for x in TRUNCATED[case])
    with jax.enable_x64(dtype is np.float64):
        keys = jax.random.split(jax.random.key(5), 4_000)
        draws = draw_truncated(keys, dtype(shape), dtype(scale), dtype(floor))
    draws = np.asarray(draws)
    assert draws.dtype == dtype
    assert np.all(draws >= dtype(floor))
    # In float32 the draws close above the floor are few: a step of the format may hold
    # some of the probability.
    typical = np.median(np.float64(draws) - floor)
    grain = np.spacing(np.float32(floor)) / typical if dtype is np.float32 else 0.0
    assert_ks(draws, truncated_inverse_gamma_cdf(shape, scale, floor), grain=grain)


def test_truncated_inverse_gamma_of_one_key_is_that_of_many():
    keys = jax.random.split(jax.random.key(6), 4)
    case = tuple(np.float32(x) for x in TRUNCATED["all mass below the floor"])
    single = quick_jit(random.truncated_inverse_gamma)
    np.testing.assert_array_equal(
        draw_truncated(keys, *case), np.stack([single(key, *case) for key in keys])
    )


NU, LAMBDA, MEAN = 5.5, 2.5, np.array([0.5, -1.0, 2.0])
INVERSE_SCALE = np.array([[2.0, 0.6, -0.3], [0.6, 1.0, 0.2], [-0.3, 0.2, 0.5]])


@pytest.fixture(scope="module")
def normal_wisharts():
    draw = quick_jit(jax.vmap(random.normal_wishart, (0, None, None, None, None)))
    keys = jax.random.split(jax.random.key(7), 20_000)
    f = np.float32
    mean, precision = draw(keys, f(MEAN), f(LAMBDA), f(NU), f(INVERSE_SCALE))
    return np.float64(mean), np.float64(precision)


def test_normal_wishart_moments(normal_wisharts):
    mean, precision = normal_wisharts
    scale = np.linalg.inv(INVERSE_SCALE)
    np.testing.assert_array_equal(precision, np.swapaxes(precision, 1, 2))
    assert_mean(precision, NU * scale)
    diagonal = np.diag(scale)
    variance = NU * (scale**2 + diagonal[:, None] * diagonal)
    assert_mean((precision - NU * scale) ** 2, variance)
    assert_mean(mean, MEAN)
    # E (lambda Lambda)^-1 = W^-1 / (lambda (nu - D - 1)).
    offset = mean - MEAN
    covariance = INVERSE_SCALE / (LAMBDA * (NU - 4))
    assert_mean(offset[:, :, None] * offset[:, None, :], covariance)


def test_normal_wishart_distribution(normal_wisharts):
    # With W^-1 = C C', C' Lambda C = A A', A Bartlett's. And sqrt(lambda) L' (mu - m)
    # is standard normal for Lambda = L L', whatever Lambda is.
    mean, precision = normal_wisharts
    c = np.linalg.cholesky(INVERSE_SCALE)
    bartlett = np.linalg.cholesky(c.T @ precision @ c)
    root = np.linalg.cholesky(precision)
    z = np.sqrt(LAMBDA) * np.einsum("nde,nd->ne", root, mean - MEAN)
    for i in range(3):
        assert_ks(bartlett[:, i, i] ** 2, stats.chi2(NU - i).cdf, share=9)
        assert_ks(z[:, i], stats.norm.cdf, share=9)
    for i, j in ((1, 0), (2, 0), (2, 1)):
        assert_ks(bartlett[:, i, j], stats.norm.cdf, share=9)
    numbers = np.concatenate(
        [z, np.log(bartlett[:, range(3), range(3)]), bartlett[:, [1, 2, 2], [0, 0, 1]]],
        axis=1,
    )
    centred = (numbers - numbers.mean(0)) / numbers.std(0)
    products = centred[:, :, None] * centred[:, None, :]
    assert_mean(products[:, *np.triu_indices(9, 1)], 0)


CUSTOMERS = np.int32([[7, 0, 3], [1, 0, 12], [0, 0, 5]])


@pytest.fixture(scope="module")
def tables():
    def draw(keys, counts, concentration):
        return jax.vmap(
            lambda key: random.chinese_restaurant_tables(key, counts, concentration, 40)
        )(keys)

    return quick_jit(draw)


def test_tables_have_antoniaks_distribution(tables):
    a = np.float32([0.7, 2.0, 1.6])
    keys = jax.random.split(jax.random.key(8), 20_000)
    draws = np.asarray(tables(keys, CUSTOMERS, a))
    assert draws.dtype == np.int32
    assert np.all(draws[:, 1] == 0)
    for column in (0, 2):
        expected = np.ones(1)
        for n in CUSTOMERS[:, column]:
            m = np.arange(n + 1)
            log_weight = log_stirling(12)[n, : n + 1] + m * np.log(a[column])
            pmf = np.exp(log_weight - special.logsumexp(log_weight))
            expected = np.convolve(expected, pmf)
        counts = np.bincount(draws[:, column], minlength=len(expected))
        assert_frequencies(counts, expected)


@pytest.mark.parametrize(
    "a, expected", [(1e-30, (CUSTOMERS > 0).sum(0)), (1e30, CUSTOMERS.sum(0))]
)
def test_tables_at_the_ends(tables, a, expected):
    keys = jax.random.split(jax.random.key(9), 20_000)
    draws = np.asarray(tables(keys, CUSTOMERS, np.full(3, a, np.float32)))
    # A Bernoulli of chance 1e-30 succeeds once in 2^23 draws of a float32 uniform: 25
    # customers x 20,000 draws expect 0.06 tables more.
    assert np.sum(draws != expected) <= 3


def test_tables_of_empty_restaurants(tables):
    keys = jax.random.split(jax.random.key(10), 20_000)
    draws = tables(keys, np.zeros((3, 3), np.int32), np.float32([0.7, 2.0, 1.6]))
    assert not np.any(draws)


@pytest.mark.parametrize("size", [4, random.COMPACT])
def test_a_gamma_of_what_is_no_number_is_none(size):
    # Were NaN rejected, it would be proposed again without end.
    shape = np.ones(size, np.float32)
    shape[:3] = np.nan, np.inf, -2.0
    draws = np.asarray(quick_jit(random.log_gamma)(jax.random.key(11), shape))
    assert np.isnan(draws[[0, 2]]).all() and draws[1] == np.inf
    assert np.isfinite(draws[3:]).all()


def test_a_variance_of_what_is_no_number_is_none():
    draw = quick_jit(random.truncated_inverse_gamma)
    key = jax.random.key(12)
    shape, scale, floor = np.float32(50.0), np.float32(20.0), np.float32(0.1)
    for bad in (np.float32(np.nan), np.float32(np.inf)):
        assert not np.isfinite(draw(key, shape, bad, floor))
    assert np.isnan(draw(key, np.float32(np.nan), scale, floor))
    assert np.isnan(draw(key, shape, scale, np.float32(np.nan)))
    # And where the bound on the precision underflows, the variance is its floor.
    assert draw(key, shape, np.float32(1e-3), np.float32(1e38)) == np.float32(1e38)


@pytest.mark.parametrize(
    "low, high",
    [
        (-1e4, 1e4),
        (-1e4, -3),
        (-0.5, 0.3),
        (5, 1e4),
        (7.9, 8.3),
        (-31, -30),
        (200, 1e4),
    ],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_truncated_normal(low, high, dtype):
    number = 20_000
    with jax.enable_x64(dtype is np.float64):
        bounds = np.full(number, low, dtype), np.full(number, high, dtype)
        draws = quick_jit(truncated_normal)(jax.random.key(11), *bounds)
    assert draws.dtype == dtype
    draws, low, high = np.float64(draws), float(dtype(low)), float(dtype(high))
    assert np.all(np.isfinite(draws))
    assert draws.min() >= low and draws.max() <= high
    if low + high > 0:
        draws, low, high = -draws, -high, -low

    def law(x):  # relative to what lies below the bound that is nearer to 0
        upto = special.log_ndtr(high)
        least = np.exp(special.log_ndtr(low) - upto)
        return (np.exp(special.log_ndtr(x) - upto) - least) / (1 - least)

    # Far out a step of the numbers, 2^-23 of the bound, is a share of their spread.
    grain = high**2 * 2.0**-22 if dtype is np.float32 else 0.0
    assert_ks(draws, law, grain=grain, share=14)
