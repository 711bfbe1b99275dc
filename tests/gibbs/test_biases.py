"""Bias variance, topic means and biases of a side, whose conditionals are collapsed.

What a conditional sums out is integrated out of the log joint here: that is a quadratic
in biases and topic means, of which a Gaussian integral is exact.
"""

import dataclasses
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from scipy import stats

from im3f_jax.gibbs import biases
from im3f_jax.gibbs.biases import BiasStatistics
from im3f_jax.gibbs.state import BiasPriorState
from im3f_jax.model.bias_prior import TopicNormal
from im3f_jax.model.log_joint import log_joint
from tests import tiny
from tests.gof import assert_ks, assert_mean
from tests.quick import quick_jit

source = SimpleNamespace(
    variance=quick_jit(biases.conditional_bias_variance),
    topic_mean_variance=quick_jit(biases.conditional_topic_mean_variance),
    topic_means=quick_jit(biases.conditional_topic_means),
    biases=quick_jit(biases.conditional_biases),
)


NOISY = tiny.noisy(tiny.make_spec())


def mutate(**replaced):
    return SimpleNamespace(**{**vars(source), **replaced})


def statistics(side, state, data):
    """Sums of each cell, counted by the test."""
    count, *sums = tiny.bias_sums(side, state, data)
    dtype = data.rating.dtype
    return BiasStatistics(count, *(x if x is None else x.astype(dtype) for x in sums))


def prior_of(side, spec):
    return side.of(spec, "bias_prior")


def with_prior(side, state, **changed):
    return side.put(state, bias_prior=side.of(state, "bias_prior")._replace(**changed))


# Integrals of exp(log_joint) over biases and topic means.


def _joint_of(values, side_name, state, spec, data):
    side = tiny.SIDES[side_name]
    bias, topic_mean, *shared = values
    more = {"shared": shared[0]} if shared else {}
    state = side.put(with_prior(side, state, topic_mean=topic_mean, **more), bias=bias)
    return log_joint(state, spec, data)


_value_and_slope = quick_jit(jax.value_and_grad(_joint_of), static_argnums=1)


def log_integral(side, state, spec, data, cells, topics, rows=None):
    """Log of the integral of exp(log_joint) over some biases, means and shared parts.

    `cells` (rows, K), `topics` (K,) and `rows` (rows,) tell which. The second
    derivatives are differences of the first, exact for a quadratic.
    """
    prior = side.of(state, "bias_prior")
    values, masks = [side.of(state, "bias"), prior.topic_mean], [cells, topics]
    if rows is not None:
        values, masks = [*values, prior.shared], [*masks, rows]
    ends = np.cumsum([np.count_nonzero(mask) for mask in masks])
    size = ends[-1]

    def evaluate(step):
        moved = [value.copy() for value in values]
        for value, mask, part in zip(
            moved, masks, np.split(step, ends[:-1]), strict=True
        ):
            value[mask] += part
        value, slopes = _value_and_slope(moved, side.name, state, spec, data)
        slope = [np.asarray(s)[mask] for s, mask in zip(slopes, masks, strict=True)]
        return float(value), np.concatenate(slope)

    value, slope = evaluate(np.zeros(size))
    if not size:
        return value
    curvature = np.stack([evaluate(unit)[1] - slope for unit in np.eye(size)])
    np.testing.assert_allclose(curvature, curvature.T, atol=1e-9)
    sign, log_det = np.linalg.slogdet(-curvature)
    assert sign == 1
    gain = -0.5 * slope @ np.linalg.solve(curvature, slope)
    return value + gain + 0.5 * size * np.log(2 * np.pi) - 0.5 * log_det


def real_cells(side, state, data):
    cells = np.zeros(side.of(state, "bias").shape, bool)
    cells[: side.number(data)] = True
    return cells


def check_variance(side, precision, ways=source, seed=0, spec=None):
    """sigma_0^2: the biases of empty cells are integrated out."""
    spec, data, state = tiny.make(precision, spec, seed)
    bias_prior = side.of(state, "bias_prior")
    sums = statistics(side, state, data)
    shape, scale = ways.variance(
        prior_of(side, spec).variance,
        side.of(state, "bias"),
        bias_prior.topic_mean,
        sums,
    )
    empty = real_cells(side, state, data) & (sums.count == 0)
    assert 0 < empty.sum() < side.number(data) * empty.shape[1]
    nothing = np.zeros(empty.shape[1], bool)
    values = np.array([0.07, 0.3, 0.9, 2.5])
    tiny.assert_same_differences(
        tiny.log_inverse_gamma(values, shape, scale),
        [
            log_integral(
                side,
                with_prior(side, state, variance=precision.dtype(value)),
                spec,
                data,
                empty,
                nothing,
            )
            for value in values
        ],
        precision,
    )


def check_topic_mean_variance(side, precision, ways=source, seed=0, spec=None):
    """tau^2: the means and the biases of empty topics are integrated out."""
    spec, data, state = tiny.make(precision, spec, seed)
    prior = prior_of(side, spec)
    occupied = statistics(side, state, data).count.any(axis=0)
    assert 0 < occupied.sum() < len(occupied)
    shape, scale = ways.topic_mean_variance(
        prior.topic_mean_variance,
        side.of(state, "bias_prior").topic_mean,
        prior.topic_mean,
        occupied,
    )
    cells = real_cells(side, state, data) & ~occupied
    values = np.array([0.07, 0.3, 0.9, 2.5])
    tiny.assert_same_differences(
        tiny.log_inverse_gamma(values, shape, scale),
        [
            log_integral(
                side,
                with_prior(side, state, topic_mean_variance=precision.dtype(value)),
                spec,
                data,
                cells,
                ~occupied,
            )
            for value in values
        ],
        precision,
    )


def topic_means(ways, side, spec, data, state):
    bias_prior = side.of(state, "bias_prior")
    return ways.topic_means(
        statistics(side, state, data),
        bias_prior.variance,
        bias_prior.topic_mean_variance,
        prior_of(side, spec).topic_mean,
        state.rating_variance,
    )


def log_normal(parameters, value):
    mean, variance = (np.float64(x) for x in parameters)
    return np.sum(stats.norm.logpdf(value, mean, np.sqrt(variance)))


def check_topic_means(side, precision, ways=source, seed=0, spec=None):
    """mu: all biases of the side are integrated out."""
    spec, data, state = tiny.make(precision, spec, seed)
    parameters = topic_means(ways, side, spec, data, state)
    assert all(x.dtype == precision.dtype for x in parameters)
    cells = real_cells(side, state, data)
    nothing = np.zeros(cells.shape[1], bool)
    rng = np.random.default_rng(seed + 100)
    values = rng.normal(size=(4, cells.shape[1])).astype(precision.dtype)
    tiny.assert_same_differences(
        [log_normal(parameters, value) for value in values],
        [
            log_integral(
                side,
                with_prior(side, state, topic_mean=value),
                spec,
                data,
                cells,
                nothing,
            )
            for value in values
        ],
        precision,
    )


def check_biases(side, precision, ways=source, seed=0, spec=None):
    """c: the full conditional."""
    spec, data, state = tiny.make(precision, spec, seed)
    bias_prior = side.of(state, "bias_prior")
    parameters = ways.biases(
        statistics(side, state, data),
        bias_prior.topic_mean,
        bias_prior.variance,
        state.rating_variance,
    )
    assert all(x.dtype == precision.dtype for x in parameters)
    parameters = [x[: side.number(data)] for x in parameters]
    rng = np.random.default_rng(seed + 100)
    values = []
    for _ in range(4):
        value = side.of(state, "bias").copy()
        value[: side.number(data)] = rng.normal(size=parameters[0].shape)
        values.append(value)
    tiny.assert_same_differences(
        [log_normal(parameters, value[: side.number(data)]) for value in values],
        [tiny.joint(side.put(state, bias=value), spec, data) for value in values],
        precision,
    )


CHECKS = {
    "variance": check_variance,
    "topic_mean_variance": check_topic_mean_variance,
    "topic_means": check_topic_means,
    "biases": check_biases,
}


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("seed", [0, 1])
def test_conditional_is_exact(check, side, float64, seed):
    CHECKS[check](side, float64, seed=seed)


@pytest.mark.parametrize("check", ["topic_means", "biases"])  # those that see it
def test_conditional_is_exact_where_the_noise_differs(check, side, float64):
    CHECKS[check](side, float64, spec=NOISY)


@pytest.mark.parametrize("spec", [None, NOISY], ids=["constant", "noise that differs"])
def test_biases_are_exact_in_float32(side, spec):
    check_biases(side, tiny.PRECISIONS["float32"], spec=spec)


@pytest.mark.parametrize("name", ["variance", "topic_mean_variance", "topic_means"])
def test_float32_gives_what_float64_gives(name, side):
    # Integrals of a float32 log joint are too coarse to compare with.
    results = []
    for precision in tiny.PRECISIONS:
        with tiny.in_precision(precision) as p:
            spec, data, state = tiny.make(p)
            sums, prior = statistics(side, state, data), prior_of(side, spec)
            bias_prior = side.of(state, "bias_prior")
            given = {
                "variance": (
                    prior.variance,
                    side.of(state, "bias"),
                    bias_prior.topic_mean,
                    sums,
                ),
                "topic_mean_variance": (
                    prior.topic_mean_variance,
                    bias_prior.topic_mean,
                    prior.topic_mean,
                    sums.count.any(axis=0),
                ),
                "topic_means": (
                    sums,
                    bias_prior.variance,
                    bias_prior.topic_mean_variance,
                    prior.topic_mean,
                    state.rating_variance,
                ),
            }
            result = getattr(source, name)(*given[name])
            assert all(x.dtype == p.dtype for x in result)
            results.append(result)
    for wide, narrow in zip(*results, strict=True):
        np.testing.assert_allclose(narrow, wide, rtol=3e-5, atol=3e-6)


def test_topic_means_equal_a_dense_gaussian_posterior(side, float64):
    # x ~ Normal(Z mu, sigma^2 I + sigma_0^2 S), S_mn = 1 where ratings m and n share a
    # cell: written out over the twelve ratings.
    spec, data, state = tiny.make(float64)
    bias_prior, number = side.of(state, "bias_prior"), tiny.NUM_RATINGS
    x = tiny.residual(state, data, without=(f"{side.name}_bias",))[:number]
    topic = side.other.of(state, "topic_of_rating")[:number]
    row = side.rows(data)[:number]
    num_topics = len(bias_prior.topic_mean)
    design = np.eye(num_topics)[topic]
    shared = (topic[:, None] == topic) & (row[:, None] == row)
    noise = state.rating_variance * np.eye(number) + bias_prior.variance * shared
    tau2, center = bias_prior.topic_mean_variance, prior_of(side, spec).topic_mean
    information = design.T @ np.linalg.inv(noise)
    covariance = np.linalg.inv(np.eye(num_topics) / tau2 + information @ design)
    mean = covariance @ (center / tau2 + information @ x)
    parameters = topic_means(source, side, spec, data, state)
    np.testing.assert_allclose(parameters.mean, mean, rtol=1e-12)
    np.testing.assert_allclose(np.diag(parameters.variance), covariance, atol=1e-13)


# The limits that the paper's experiments need.


def test_without_bias_variance_biases_are_their_topics_means(side, float64):
    # The log joint then has no bias term: biases follow the topic means.
    spec, data, state = tiny.make(float64)
    state = with_prior(side, state, variance=np.zeros(()))
    parameters = topic_means(source, side, spec, data, state)
    rng = np.random.default_rng(5)
    shape = side.of(state, "bias").shape
    values = rng.normal(size=(4, shape[1]))
    spec = fixed(side, spec, variance=0.0)
    joints = []
    for value in values:
        tied = side.put(state, bias=np.broadcast_to(value, shape).copy())
        joints.append(tiny.joint(with_prior(side, tied, topic_mean=value), spec, data))
    tiny.assert_same_differences(
        [log_normal(parameters, value) for value in values], joints, float64
    )
    drawn = source.biases(
        statistics(side, state, data),
        values[0],
        np.zeros(()),
        state.rating_variance,
    )
    np.testing.assert_allclose(
        drawn.mean, np.broadcast_to(values[0], shape), rtol=1e-15
    )
    assert not np.any(drawn.variance)


def fixed(side, spec, **numbers):
    """Give a side's bias prior plain numbers."""
    prior = dataclasses.replace(prior_of(side, spec), **numbers)
    return dataclasses.replace(spec, **{f"{side.name}_bias_prior": prior})


def test_without_topic_mean_variance_means_are_their_prior_mean(side, float64):
    spec, data, state = tiny.make(float64)
    state = with_prior(side, state, topic_mean_variance=np.zeros(()))
    parameters = topic_means(source, side, spec, data, state)
    assert np.all(parameters.mean == prior_of(side, spec).topic_mean)
    assert not np.any(parameters.variance)


@pytest.mark.parametrize("name", ["variance", "topic_mean_variance"])
def test_zero_is_the_limit_of_small_variances(name, side, float64):
    spec, data, state = tiny.make(float64)
    results = []
    for value in (0.0, 1e-9):
        near = with_prior(side, state, **{name: np.asarray(value)})
        results.append(topic_means(source, side, spec, data, near))
        bias_prior = side.of(near, "bias_prior")
        results.append(
            source.biases(
                statistics(side, near, data),
                bias_prior.topic_mean,
                bias_prior.variance,
                state.rating_variance,
            )
        )
    for limit, close in zip(results[:2], results[2:], strict=True):
        for a, b in zip(limit, close, strict=True):
            np.testing.assert_allclose(a, b, atol=1e-7)


def test_empty_cells_and_topics_have_their_prior(side, float64):
    spec, data, state = tiny.make(float64)
    sums, bias_prior = statistics(side, state, data), side.of(state, "bias_prior")
    empty_topic = ~sums.count.any(axis=0)
    means = topic_means(source, side, spec, data, state)
    assert np.all(means.mean[empty_topic] == prior_of(side, spec).topic_mean)
    assert np.all(means.variance[empty_topic] == bias_prior.topic_mean_variance)
    drawn = source.biases(
        sums, bias_prior.topic_mean, bias_prior.variance, state.rating_variance
    )
    empty = sums.count == 0
    prior_mean = np.broadcast_to(bias_prior.topic_mean, empty.shape)
    np.testing.assert_allclose(drawn.mean[empty], prior_mean[empty], rtol=1e-15)
    np.testing.assert_allclose(drawn.variance[empty], bias_prior.variance, rtol=1e-15)


@pytest.mark.parametrize("spec", [None, NOISY], ids=["constant", "noise that differs"])
def test_statistics_are_those_of_the_valid_ratings(side, spec):
    _, data, state = tiny.make(tiny.PRECISIONS["float32"], spec)
    x = tiny.residual(state, data, without=(f"{side.name}_bias",)).astype(np.float32)
    valid = np.arange(len(x)) < tiny.NUM_RATINGS
    sums = quick_jit(biases.bias_statistics, static_argnums=4)(
        np.where(valid, x, 99).astype(np.float32),
        valid,
        side.rows(data),
        side.other.of(state, "topic_of_rating"),
        side.of(state, "bias").shape,
        tiny.precision_of(state, data),
    )
    count, total, weights = tiny.bias_sums(side, state, data)
    np.testing.assert_array_equal(sums.count, count)
    np.testing.assert_allclose(sums.total, total, atol=1e-5)
    assert (sums.precision is None) == (weights is None) == (spec is None)
    if weights is not None:
        np.testing.assert_allclose(sums.precision, weights, rtol=1e-6)


# Mutants: what each check must find.


def all_cells_counted(prior, bias, topic_mean, sums):
    ones = np.zeros_like(sums.count)
    ones[:4] = 1
    return source.variance(prior, bias, topic_mean, sums._replace(count=ones))


def mean_not_subtracted(prior, bias, topic_mean, sums):
    return source.variance(prior, bias, np.zeros_like(topic_mean), sums)


def half_a_degree_missing(prior, bias, topic_mean, sums):
    shape, scale = source.variance(prior, bias, topic_mean, sums)
    return shape - 0.5, scale


def squares_not_halved(prior, bias, topic_mean, sums):
    shape, scale = source.variance(prior, bias, topic_mean, sums)
    return shape, 2 * scale - prior.scale


def empty_topics_counted(prior, topic_mean, center, occupied):
    return source.topic_mean_variance(prior, topic_mean, center, np.ones_like(occupied))


def center_missing(prior, topic_mean, center, occupied):
    return source.topic_mean_variance(prior, topic_mean, 0.0, occupied)


def sums_of_the_wrong_sign(sums, *rest):
    return source.topic_means(sums._replace(total=-sums.total), *rest)


def biases_not_summed_out(sums, variance, *rest):
    return source.topic_means(sums, np.zeros_like(variance), *rest)


def center_missing_in_means(sums, variance, tau2, center, rating_variance):
    return source.topic_means(sums, variance, tau2, 0.0, rating_variance)


def rating_variance_missing(sums, variance, tau2, center, rating_variance):
    return source.topic_means(sums, variance, tau2, center, np.ones_like(variance))


def bias_sums_of_the_wrong_sign(sums, *rest):
    return source.biases(sums._replace(total=-sums.total), *rest)


def prior_mean_missing(sums, topic_mean, *rest):
    return source.biases(sums, np.zeros_like(topic_mean), *rest)


def variance_of_the_prior(sums, topic_mean, variance, rating_variance):
    mean, spread = source.biases(sums, topic_mean, variance, rating_variance)
    return mean, np.full(spread.shape, variance)


def counts_missing(sums, *rest):
    ones = np.minimum(sums.count, 1)
    return source.biases(sums._replace(count=ones), *rest)


MUTANTS = {
    "variance": [
        all_cells_counted,
        mean_not_subtracted,
        half_a_degree_missing,
        squares_not_halved,
    ],
    "topic_mean_variance": [empty_topics_counted, center_missing],
    "topic_means": [
        sums_of_the_wrong_sign,
        biases_not_summed_out,
        center_missing_in_means,
        rating_variance_missing,
    ],
    "biases": [
        bias_sums_of_the_wrong_sign,
        prior_mean_missing,
        variance_of_the_prior,
        counts_missing,
    ],
}


@pytest.mark.parametrize(
    "name, mutant",
    [(name, mutant) for name, mutants in MUTANTS.items() for mutant in mutants],
)
def test_a_mutant_is_found(name, mutant, side, float64):
    with tiny.found():
        CHECKS[name](side, float64, mutate(**{name: mutant}))


@pytest.mark.parametrize("name", ["topic_means", "biases"])
@pytest.mark.parametrize("wrong", ["counts for precisions", "sums not weighted"])
def test_a_mutant_of_the_noise_is_found(name, wrong, side, float64):
    plain = tiny.make(float64)
    unweighted = statistics(side, plain[2], plain[1]).total

    def mutant(sums, *rest):
        if wrong == "sums not weighted":
            return getattr(source, name)(sums._replace(total=unweighted), *rest)
        return getattr(source, name)(sums._replace(precision=None), *rest)

    with tiny.found():
        CHECKS[name](side, float64, mutate(**{name: mutant}), spec=NOISY)


# Draws.


def dense_posterior(side, spec, data, state, sums, variance, tau2):
    """Precision and linear term of the joint normal of (mu, c) of the real rows."""
    number, num_topics = side.number(data), sums.count.shape[1]
    size = num_topics * (1 + number)
    p, h = np.zeros((size, size)), np.zeros(size)
    noise = float(state.rating_variance)
    for k in range(num_topics):
        p[k, k] += 1 / tau2
        h[k] += prior_of(side, spec).topic_mean / tau2
        for u in range(number):
            c = num_topics * (1 + u) + k
            p[k, k] += 1 / variance
            p[c, c] += 1 / variance + sums.count[u, k] / noise
            p[k, c] -= 1 / variance
            p[c, k] -= 1 / variance
            h[c] += sums.total[u, k] / noise
    return p, h


resample = quick_jit(jax.vmap(biases.resample_biases, (0, *[None] * 5)))


def test_draws():
    side = tiny.SIDES["item"]
    spec, data, state = tiny.make(tiny.PRECISIONS["float32"])
    sums, prior = statistics(side, state, data), prior_of(side, spec)
    bias_prior, bias = side.of(state, "bias_prior"), side.of(state, "bias")
    keys = jax.random.split(jax.random.key(1), 3_000)
    drawn, new = resample(keys, prior, bias_prior, bias, sums, state.rating_variance)
    drawn, new = np.float64(drawn), jax.tree.map(np.float64, new)

    shape, scale = source.variance(prior.variance, bias, bias_prior.topic_mean, sums)
    assert_ks(new.variance, lambda x: np.exp(log_cdf(x, shape, scale)), share=2)
    shape, scale = source.topic_mean_variance(
        prior.topic_mean_variance,
        bias_prior.topic_mean,
        prior.topic_mean,
        sums.count.any(axis=0),
    )
    assert_ks(
        new.topic_mean_variance, lambda x: np.exp(log_cdf(x, shape, scale)), share=2
    )
    # Given both variances of a draw, its means and biases are jointly normal.
    number = side.number(data)
    values = np.concatenate([new.topic_mean, drawn[:, :number].reshape(3_000, -1)], 1)
    z = np.empty_like(values)
    for n, value in enumerate(values):
        p, h = dense_posterior(
            side, spec, data, state, sums, new.variance[n], new.topic_mean_variance[n]
        )
        z[n] = np.linalg.cholesky(p).T @ (value - np.linalg.solve(p, h))
    assert_ks(z, stats.norm.cdf)
    assert_mean(z[:, :, None] * z[:, None, :], np.eye(z.shape[1]))


def log_cdf(x, shape, scale):
    return stats.invgamma.logcdf(x, float(shape), scale=float(scale))


def test_fixed_numbers_stay_and_zeros_make_the_model_of_the_paper():
    side = tiny.SIDES["item"]
    spec, data, state = tiny.make(tiny.PRECISIONS["float32"])
    sums, bias = statistics(side, state, data), side.of(state, "bias")
    num_topics = bias.shape[1]
    zero = np.zeros((), np.float32)
    drawn, new = resample(
        jax.random.split(jax.random.key(2), 3),
        TopicNormal(0.0, 0.0, -0.3),
        BiasPriorState(np.ones(num_topics, np.float32), zero, zero),
        bias,
        sums,
        state.rating_variance,
    )
    assert not np.any(new.variance) and not np.any(new.topic_mean_variance)
    np.testing.assert_array_equal(new.topic_mean, np.float32(-0.3))
    np.testing.assert_allclose(drawn, -0.3, rtol=3e-7)
