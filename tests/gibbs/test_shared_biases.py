"""Biases whose rows have a part in common: conditionals, limits, draws, the franchise.

What a conditional sums out is integrated out of the log joint, as in test_biases.py.
"""

import dataclasses
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from im3f_jax.gibbs import biases, crf
from im3f_jax.gibbs.biases import BiasStatistics
from im3f_jax.gibbs.crf import resample_franchise
from im3f_jax.gibbs.init import init_state
from im3f_jax.gibbs.state import BiasPriorState, Seating
from im3f_jax.gibbs.sweep import gibbs_sweep
from im3f_jax.model.bias_prior import SharedNormal
from im3f_jax.model.scalars import InverseGamma
from im3f_jax.model.topic_prior import CRF, HDP
from tests import tiny
from tests.gibbs.test_biases import (
    log_cdf,
    log_integral,
    log_normal,
    prior_of,
    real_cells,
    statistics,
    with_prior,
)
from tests.gof import assert_ks, assert_mean
from tests.quick import quick_jit

SPEC = tiny.share(tiny.make_spec())
NOISY = tiny.noisy(SPEC)
VALUES = np.array([0.07, 0.3, 0.9, 2.5])

source = SimpleNamespace(
    variance=quick_jit(biases.conditional_bias_variance),
    shared_variance=quick_jit(biases.conditional_shared_variance),
    topic_means=quick_jit(biases.conditional_shared_topic_means, static_argnums=6),
    shared=quick_jit(biases.conditional_shared, static_argnums=5),
    biases=quick_jit(biases.conditional_biases),
    plain_means=quick_jit(biases.conditional_topic_means),
)


def mutate(**replaced):
    return SimpleNamespace(**{**vars(source), **replaced})


def real_rows(side, state, data):
    return np.arange(len(side.of(state, "bias"))) < side.number(data)


def less_shared(sums, shared):
    """Sums of the residuals without the shared part."""
    weight = sums.count if sums.precision is None else sums.precision
    total = sums.total - weight * shared[:, None]
    return sums._replace(total=total.astype(sums.total.dtype))


# --- exact ------------------------------------------------------------------------


def check_variance(side, precision, ways=source, seed=0, spec=SPEC):
    """sigma_0^2: the biases of empty cells are integrated out."""
    spec, data, state = tiny.make(precision, spec, seed)
    prior, sums = side.of(state, "bias_prior"), statistics(side, state, data)
    own = side.of(state, "bias") - prior.shared[:, None]
    shape, scale = ways.variance(
        prior_of(side, spec).variance, own, prior.topic_mean, sums
    )
    empty = real_cells(side, state, data) & (sums.count == 0)
    nothing = np.zeros(empty.shape[1], bool)
    tiny.assert_same_differences(
        tiny.log_inverse_gamma(VALUES, shape, scale),
        [
            log_integral(
                side, with_prior(side, state, variance=v), spec, data, empty, nothing
            )
            for v in VALUES
        ],
        precision,
    )


def check_shared_variance(side, precision, ways=source, seed=0, spec=SPEC):
    """omega^2: all of rows without a rating is integrated out."""
    spec, data, state = tiny.make(precision, spec, seed)
    prior, sums = side.of(state, "bias_prior"), statistics(side, state, data)
    shape, scale = ways.shared_variance(
        prior_of(side, spec).shared_variance, prior.shared, sums
    )
    rows = real_rows(side, state, data) & ~sums.count.any(axis=1)
    assert rows.sum() == (1 if side.name == "user" else 0)
    cells = np.broadcast_to(rows[:, None], sums.count.shape)
    nothing = np.zeros(cells.shape[1], bool)
    tiny.assert_same_differences(
        tiny.log_inverse_gamma(VALUES, shape, scale),
        [
            log_integral(
                side,
                with_prior(side, state, shared_variance=v),
                spec,
                data,
                cells,
                nothing,
                rows,
            )
            for v in VALUES
        ],
        precision,
    )


def topic_means(ways, side, spec, data, state, *more):
    prior = side.of(state, "bias_prior")
    return ways.topic_means(
        statistics(side, state, data),
        prior.variance,
        prior.shared_variance,
        prior.topic_mean_variance,
        prior_of(side, spec).topic_mean,
        state.rating_variance,
        *more,
    )


def moments(parameters, tau2, center):
    """Mean and covariance of the topic means."""
    covariance = np.linalg.inv(np.float64(parameters.precision))
    mean = covariance @ np.float64(parameters.linear)
    return center + np.sqrt(tau2) * mean, tau2 * covariance


def check_topic_means(side, precision, ways=source, seed=0, spec=SPEC):
    """mu: all biases and all shared parts of the side are integrated out."""
    spec, data, state = tiny.make(precision, spec, seed)
    parameters = topic_means(ways, side, spec, data, state)
    assert all(x.dtype == precision.dtype for x in parameters)
    tau2 = side.of(state, "bias_prior").topic_mean_variance
    law = stats.multivariate_normal(
        *moments(parameters, tau2, prior_of(side, spec).topic_mean)
    )
    cells, rows = real_cells(side, state, data), real_rows(side, state, data)
    nothing = np.zeros(cells.shape[1], bool)
    rng = np.random.default_rng(seed + 100)
    values = rng.normal(size=(6, cells.shape[1])).astype(precision.dtype)
    tiny.assert_same_differences(
        law.logpdf(values),
        [
            log_integral(
                side,
                with_prior(side, state, topic_mean=value),
                spec,
                data,
                cells,
                nothing,
                rows,
            )
            for value in values
        ],
        precision,
    )


def shared_parts(ways, side, data, state, *more):
    prior = side.of(state, "bias_prior")
    return ways.shared(
        statistics(side, state, data),
        prior.topic_mean,
        prior.variance,
        prior.shared_variance,
        state.rating_variance,
        *more,
    )


def check_shared(side, precision, ways=source, seed=0, spec=SPEC):
    """s: all biases of the side are integrated out."""
    spec, data, state = tiny.make(precision, spec, seed)
    parameters = shared_parts(ways, side, data, state)
    assert all(x.dtype == precision.dtype for x in parameters)
    number = side.number(data)
    parameters = [x[:number] for x in parameters]
    cells = real_cells(side, state, data)
    nothing = np.zeros(cells.shape[1], bool)
    rng = np.random.default_rng(seed + 100)
    values = []
    for _ in range(4):
        value = side.of(state, "bias_prior").shared.copy()
        value[:number] = rng.normal(size=number)
        values.append(value)
    tiny.assert_same_differences(
        [log_normal(parameters, value[:number]) for value in values],
        [
            log_integral(
                side, with_prior(side, state, shared=v), spec, data, cells, nothing
            )
            for v in values
        ],
        precision,
    )


def check_biases(side, precision, ways=source, seed=0, spec=SPEC):
    """c: the full conditional, of what is left of the biases."""
    spec, data, state = tiny.make(precision, spec, seed)
    prior, number = side.of(state, "bias_prior"), side.number(data)
    parameters = ways.biases(
        less_shared(statistics(side, state, data), prior.shared),
        prior.topic_mean,
        prior.variance,
        state.rating_variance,
    )
    parameters = [x[:number] for x in parameters]
    rng = np.random.default_rng(seed + 100)
    values = []
    for _ in range(4):
        value = side.of(state, "bias").copy()
        value[:number] = rng.normal(size=value[:number].shape)
        values.append(value)
    tiny.assert_same_differences(
        [
            log_normal(parameters, (value - prior.shared[:, None])[:number])
            for value in values
        ],
        [tiny.joint(side.put(state, bias=value), spec, data) for value in values],
        precision,
    )


CHECKS = {
    "variance": check_variance,
    "shared_variance": check_shared_variance,
    "topic_means": check_topic_means,
    "shared": check_shared,
    "biases": check_biases,
}


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("seed", [0, 1])
def test_conditional_is_exact(check, side, float64, seed):
    CHECKS[check](side, float64, seed=seed)


@pytest.mark.slow  # the draws see the same
@pytest.mark.parametrize("check", ["topic_means", "shared"])  # biases: test_biases.py
def test_conditional_is_exact_where_the_noise_differs(check, side, float64):
    CHECKS[check](side, float64, spec=NOISY)


@pytest.mark.parametrize("spec", [SPEC, NOISY], ids=["constant", "noise that differs"])
def test_biases_are_exact_in_float32(side, spec):
    check_biases(side, tiny.PRECISIONS["float32"], spec=spec)


def test_float32_gives_what_float64_gives(side):
    results = []
    for precision in tiny.PRECISIONS:
        with tiny.in_precision(precision) as p:
            spec, data, state = tiny.make(p, SPEC)
            prior = side.of(state, "bias_prior")
            found = [
                source.shared_variance(
                    prior_of(side, spec).shared_variance,
                    prior.shared,
                    statistics(side, state, data),
                ),
                topic_means(source, side, spec, data, state),
                shared_parts(source, side, data, state),
            ]
            assert all(x.dtype == p.dtype for x in jax.tree.leaves(found))
            results.append(found)
    for wide, narrow in zip(*map(jax.tree.leaves, results), strict=True):
        np.testing.assert_allclose(narrow, wide, rtol=3e-5, atol=3e-6)


def test_topic_means_equal_a_dense_gaussian_posterior(side, float64):
    # x ~ Normal(Z mu, sigma^2 I + sigma_0^2 S + omega^2 R), S and R 1 where two ratings
    # share a cell and a row: written out over the twelve ratings.
    spec, data, state = tiny.make(float64, SPEC)
    prior, number = side.of(state, "bias_prior"), tiny.NUM_RATINGS
    x = tiny.residual(state, data, without=(f"{side.name}_bias",))[:number]
    topic = side.other.of(state, "topic_of_rating")[:number]
    row = side.rows(data)[:number]
    design = np.eye(len(prior.topic_mean))[topic]
    same_row = row[:, None] == row
    same_cell = same_row & (topic[:, None] == topic)
    noise = state.rating_variance * np.eye(number)
    noise += prior.variance * same_cell + prior.shared_variance * same_row
    tau2, center = prior.topic_mean_variance, prior_of(side, spec).topic_mean
    information = design.T @ np.linalg.inv(noise)
    covariance = np.linalg.inv(np.eye(design.shape[1]) / tau2 + information @ design)
    mean = covariance @ (center / tau2 + information @ x)
    found = moments(topic_means(source, side, spec, data, state), tau2, center)
    np.testing.assert_allclose(found[0], mean, rtol=1e-11)
    np.testing.assert_allclose(found[1], covariance, atol=1e-13)


@pytest.mark.parametrize("num_topics", [1, 3])
def test_rows_that_are_sure_in_float32(num_topics):
    # Thousands of ratings a row, no part by topic, a wide shared part: the subtraction
    # in w - omega^2 w^2 / (1 + omega^2 w) would leave two digits of one topic.
    rng = np.random.default_rng(4)
    count = rng.integers(0, 3000, size=(40, num_topics)).astype(np.int32)
    total = count * rng.normal(size=count.shape)
    results = []
    for name in tiny.PRECISIONS:
        with tiny.in_precision(name) as p:
            sums = BiasStatistics(count, total.astype(p.dtype))
            given = [p.dtype(x) for x in (0.0, 50.0, 0.3, -0.2, 0.5)]
            results.append(moments(source.topic_means(sums, *given), 0.3, -0.2))
    (mean, covariance), (narrow_mean, narrow_covariance) = results
    # In posterior standard deviations.
    root = np.linalg.cholesky(covariance)
    error = np.linalg.solve(root, narrow_mean - mean)
    ratio = np.linalg.solve(root, np.linalg.solve(root, narrow_covariance).T)
    limit = 1e-5 if num_topics == 1 else 2e-3
    np.testing.assert_allclose(error, 0, atol=limit)
    np.testing.assert_allclose(ratio, np.eye(num_topics), atol=limit)


# --- topic by topic ----------------------------------------------------------------


def test_topic_by_topic_is_the_same(side, float64):
    spec, data, state = tiny.make(float64, SPEC)
    for way, of in ((topic_means, (side, spec)), (shared_parts, (side,))):
        plain = way(source, *of, data, state)
        ordered = way(source, *of, data, state, True)
        for a, b in zip(plain, ordered, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14)


@pytest.mark.slow
def test_free_topics_at_the_end_change_no_bit():
    # The promise of the Chinese restaurant franchise: draws do not depend on room.
    rng = np.random.default_rng(6)
    rows, used = 50, 9
    count = rng.poisson(2.0, size=(rows, used)).astype(np.int32)
    count[:, 4] = 0
    total = np.float32(rng.normal(size=count.shape) * count)
    bias, mean = (np.float32(rng.normal(size=s)) for s in (count.shape, used))
    prior = SharedNormal(
        InverseGamma(3.0, 0.4), InverseGamma(2.2, 0.3), -0.3, InverseGamma(3.0, 0.5)
    )
    shared = np.float32(rng.normal(size=rows))
    drawn = []
    for size in (used, used + 1, 2 * used + 3):

        def wider(x, size=size):
            return np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, size - used)])

        state = BiasPriorState(
            wider(mean), np.float32(0.3), np.float32(0.2), shared, np.float32(0.4)
        )
        found, after = jax.jit(biases.resample_biases, static_argnums=6)(
            jax.random.key(0),
            prior,
            state,
            wider(bias),
            BiasStatistics(wider(count), wider(total)),
            np.float32(0.6),
            True,
        )
        after = after._replace(topic_mean=after.topic_mean[:used])
        drawn.append(jax.tree.leaves((found[:, :used], after)))
    for a, b, c in zip(*drawn, strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(a, c)


# --- limits -----------------------------------------------------------------------


def test_without_shared_variance_it_is_the_prior_of_the_paper(side, float64):
    spec, data, state = tiny.make(float64, SPEC)
    state = with_prior(side, state, shared_variance=np.zeros(()))
    prior, center = side.of(state, "bias_prior"), prior_of(side, spec).topic_mean
    plain = source.plain_means(
        statistics(side, state, data),
        prior.variance,
        prior.topic_mean_variance,
        center,
        state.rating_variance,
    )
    mean, covariance = moments(
        topic_means(source, side, spec, data, state), prior.topic_mean_variance, center
    )
    np.testing.assert_allclose(mean, plain.mean, rtol=1e-12)
    np.testing.assert_allclose(covariance, np.diag(plain.variance), atol=1e-15)
    parts = shared_parts(source, side, data, state)
    assert not np.any(parts.mean) and not np.any(parts.variance)


def test_without_a_variance_by_topic_a_row_has_one_bias(side, float64):
    # That of M3F with one topic on the other side: its mean and variance, too.
    spec, data, state = tiny.make(float64, SPEC)
    zero, mean = (
        np.zeros(()),
        np.full_like(side.of(state, "bias_prior").topic_mean, 0.7),
    )
    state = with_prior(side, state, variance=zero, topic_mean=mean)
    prior, sums = side.of(state, "bias_prior"), statistics(side, state, data)
    parts = shared_parts(source, side, data, state)
    one = jax.tree.map(lambda x: x.sum(1, keepdims=True, dtype=x.dtype), sums)
    single = source.biases(one, mean[:1], prior.shared_variance, state.rating_variance)
    np.testing.assert_allclose(parts.mean + 0.7, single.mean[:, 0], rtol=1e-12)
    np.testing.assert_allclose(parts.variance, single.variance[:, 0], rtol=1e-12)
    drawn = source.biases(
        less_shared(sums, prior.shared), mean, zero, state.rating_variance
    )
    np.testing.assert_allclose(drawn.mean, 0.7, rtol=1e-15)
    assert not np.any(drawn.variance)


def test_without_topic_mean_variance_means_are_their_prior_mean(side, float64):
    spec, data, state = tiny.make(float64, SPEC)
    state = with_prior(side, state, topic_mean_variance=np.zeros(()))
    parameters = topic_means(source, side, spec, data, state)
    np.testing.assert_array_equal(parameters.precision, np.eye(len(parameters.linear)))
    np.testing.assert_array_equal(parameters.linear, 0)


def test_rows_without_ratings_have_their_prior(side, float64):
    _, data, state = tiny.make(float64, SPEC)
    parts = shared_parts(source, side, data, state)
    empty = ~statistics(side, state, data).count.any(axis=1)
    assert empty.any()  # padding too
    assert not np.any(parts.mean[empty])
    assert np.all(parts.variance[empty] == side.of(state, "bias_prior").shared_variance)


# --- mutants: what each check must find --------------------------------------------


def shared_left_in(prior, own, topic_mean, sums):
    return source.variance(prior, own + 0.3, topic_mean, sums)


def all_rows_counted(prior, shared, sums):
    count = np.zeros_like(sums.count)
    count[:6] = 1
    return source.shared_variance(prior, shared, sums._replace(count=count))


def cells_counted(prior, shared, sums):
    shape, scale = source.shared_variance(prior, shared, sums)
    cells, rows = np.sum(sums.count > 0), np.sum(sums.count.any(axis=1))
    return shape + 0.5 * (cells - rows), scale


def squares_not_halved(prior, shared, sums):
    shape, scale = source.shared_variance(prior, shared, sums)
    return shape, 2 * scale - prior.scale


def shared_not_summed_out(sums, variance, shared_variance, *rest):
    return source.topic_means(sums, variance, np.zeros_like(variance), *rest)


def biases_not_summed_out(sums, variance, *rest):
    return source.topic_means(sums, np.zeros_like(variance), *rest)


def sign_of_the_sums(sums, *rest):
    return source.topic_means(sums._replace(total=-sums.total), *rest)


def rows_independent_by_topic(sums, *rest):
    # The shared part as if each cell had its own.
    found = source.topic_means(sums, *rest)
    return found._replace(precision=np.diag(np.diag(found.precision)))


def mean_left_in(sums, topic_mean, *rest):
    return source.shared(sums, np.zeros_like(topic_mean), *rest)


def parts_by_topic_not_summed_out(sums, topic_mean, variance, *rest):
    return source.shared(sums, topic_mean, np.zeros_like(variance), *rest)


def sign_of_the_residuals(sums, *rest):
    return source.shared(sums._replace(total=-sums.total), *rest)


def variance_of_the_prior(sums, mean, variance, shared_variance, rating_variance):
    found = source.shared(sums, mean, variance, shared_variance, rating_variance)
    return found._replace(variance=np.full(found.mean.shape, shared_variance))


def shared_part_not_taken_off(sums, *rest):
    return source.biases(sums._replace(total=sums.total + 0.4 * sums.count), *rest)


MUTANTS = {
    "variance": [shared_left_in],
    "shared_variance": [all_rows_counted, cells_counted, squares_not_halved],
    "topic_means": [
        shared_not_summed_out,
        biases_not_summed_out,
        sign_of_the_sums,
        rows_independent_by_topic,
    ],
    "shared": [
        mean_left_in,
        parts_by_topic_not_summed_out,
        sign_of_the_residuals,
        variance_of_the_prior,
    ],
    "biases": [shared_part_not_taken_off],
}


@pytest.mark.parametrize(
    "name, mutant",
    [(name, mutant) for name, mutants in MUTANTS.items() for mutant in mutants],
)
def test_a_mutant_is_found(name, mutant, side, float64):
    with tiny.found():
        CHECKS[name](side, float64, mutate(**{name: mutant}))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["topic_means", "shared", "biases"])
def test_a_mutant_of_the_noise_is_found(name, side, float64):
    def counts_for_precisions(sums, *rest):
        return getattr(source, name)(sums._replace(precision=None), *rest)

    with tiny.found():
        ways = mutate(**{name: counts_for_precisions})
        CHECKS[name](side, float64, ways, spec=NOISY)


# --- draws ------------------------------------------------------------------------


def dense_posterior(side, spec, data, state, sums, drawn):
    """Precision and linear term of the joint normal of (mu, s, c) of the real rows."""
    number, num_topics = side.number(data), sums.count.shape[1]
    size = num_topics + number * (1 + num_topics)
    p, h = np.zeros((size, size)), np.zeros(size)
    noise = float(state.rating_variance)
    weight = sums.count if sums.precision is None else np.float64(sums.precision)
    variance, tau2, omega2 = drawn
    p[:num_topics, :num_topics] = np.eye(num_topics) / tau2
    h[:num_topics] = prior_of(side, spec).topic_mean / tau2
    for u in range(number):
        s = num_topics + u
        p[s, s] += 1 / omega2
        for k in range(num_topics):
            c = num_topics + number + u * num_topics + k
            # (c - s - mu_k)^2 / variance
            term = np.zeros(size)
            term[[c, s, k]] = 1, -1, -1
            p += np.outer(term, term) / variance
            p[c, c] += weight[u, k] / noise
            h[c] += sums.total[u, k] / noise
    return p, h


resample = quick_jit(jax.vmap(biases.resample_biases, (0, *[None] * 5)))


@pytest.mark.parametrize("spec", [SPEC, NOISY], ids=["constant", "noise that differs"])
def test_draws(spec):
    side = tiny.SIDES["item"]
    spec, data, state = tiny.make(tiny.PRECISIONS["float32"], spec)
    sums, prior = statistics(side, state, data), prior_of(side, spec)
    of, bias = side.of(state, "bias_prior"), side.of(state, "bias")
    keys = jax.random.split(jax.random.key(1), 3_000)
    drawn, new = resample(keys, prior, of, bias, sums, state.rating_variance)
    drawn, new = np.float64(drawn), jax.tree.map(np.float64, new)
    own = bias - of.shared[:, None]
    shape, scale = source.variance(prior.variance, own, of.topic_mean, sums)
    assert_ks(new.variance, lambda x: np.exp(log_cdf(x, shape, scale)), share=2)
    shape, scale = source.shared_variance(prior.shared_variance, of.shared, sums)
    assert_ks(new.shared_variance, lambda x: np.exp(log_cdf(x, shape, scale)), share=2)
    # Given the variances of a draw, means, shared parts and biases are jointly normal.
    number = side.number(data)
    values = np.concatenate(
        [
            new.topic_mean,
            new.shared[:, :number],
            drawn[:, :number].reshape(3_000, -1),
        ],
        axis=1,
    )
    z = np.empty_like(values)
    for n, value in enumerate(values):
        variances = new.variance[n], new.topic_mean_variance[n], new.shared_variance[n]
        p, h = dense_posterior(side, spec, data, state, sums, variances)
        z[n] = np.linalg.cholesky(p).T @ (value - np.linalg.solve(p, h))
    assert_ks(z, stats.norm.cdf)
    assert_mean(z[:, :, None] * z[:, None, :], np.eye(z.shape[1]))


def test_zeros_make_the_model_of_the_paper():
    side = tiny.SIDES["item"]
    _, data, state = tiny.make(tiny.PRECISIONS["float32"], SPEC)
    sums, bias = statistics(side, state, data), side.of(state, "bias")
    zero = np.zeros((), np.float32)
    of = BiasPriorState(
        np.ones(bias.shape[1], np.float32), zero, zero, np.zeros(len(bias), "f"), zero
    )
    keys = jax.random.split(jax.random.key(2), 3)
    given = of, bias, sums, state.rating_variance
    drawn, new = resample(keys, SharedNormal(0.0, 0.0, -0.3, 0.0), *given)
    assert not any(np.any(x) for x in new[1:])
    np.testing.assert_allclose(drawn, -0.3, rtol=3e-7)
    # One bias a row: all that is left is the shared part.
    given = of._replace(shared_variance=np.float32(0.5)), *given[1:]
    drawn, new = resample(keys, SharedNormal(0.0, 0.0, -0.3, 0.5), *given)
    expected = np.broadcast_to(new.shared[:, :, None] - np.float32(0.3), drawn.shape)
    np.testing.assert_allclose(drawn, expected, atol=3e-7)
    assert np.std(new.shared) > 0.1


# --- the sweep, and the franchise ---------------------------------------------------


@pytest.mark.slow
def test_a_second_sweep_and_new_numbers_compile_nothing():
    # One side has no topics, concentrations are fixed: half the time to compile.
    spec = dataclasses.replace(
        tiny.share(tiny.make_spec("weak_limit", "none")),
        user_topic_prior=HDP(tiny.USER_TOPICS, "weak_limit", 1.0, 2.0),
    )
    spec = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), spec)
    data = jax.tree.map(jnp.asarray, tiny.make_data(np.float32))
    key = jax.random.key(0)
    state = init_state(key, spec, data)
    state, _ = gibbs_sweep(key, state, spec, data)
    compiled = gibbs_sweep._cache_size()
    more = jax.tree.map(lambda x: 1.5 * x, spec)
    for t in range(30):
        given = spec if t % 2 else more
        state, info = gibbs_sweep(jax.random.fold_in(key, t), state, given, data)
    assert gibbs_sweep._cache_size() == compiled
    one = jnp.ones(())  # in the place of infinity, said of noise that is constant
    info = info._replace(user_noise_shape=one, item_noise_shape=one)
    for leaf in jax.tree.leaves((state, info)):
        assert leaf.dtype in (np.float32, np.int32) and np.all(np.isfinite(leaf))
    assert info.item_shared_bias_variance == state.item_bias_prior.shared_variance > 0
    assert np.ptp(state.item_bias_prior.shared) > 0


@pytest.mark.parametrize("likelihood", ["conditional", "marginal"])
def test_a_franchise_is_given_the_shared_parts(likelihood, monkeypatch):
    # Given s, the franchise of x with biases c is that of x - s with biases c - s: a
    # new dish's are Normal(mu_k + s_u, sigma_0^2).
    monkeypatch.setattr(crf, "TABLES", 8)
    rng = np.random.default_rng(3)
    row = np.sort(rng.integers(0, 6, 40)).astype(np.int32)
    other = rng.integers(0, 4, 40).astype(np.int32)
    x = np.float32(rng.normal(size=40))
    seats = np.full((6, 5), -1, np.int32)
    seats[np.unique(row), 0] = 0
    seating = Seating(*map(jnp.asarray, (np.zeros(40, np.int32), seats, np.int32(0))))
    prior = CRF(likelihood, 1.0, 1.0, 6, 5)
    variance = np.float32(0.0 if likelihood == "marginal" else 0.2)
    mean, shared = np.float32(rng.normal(size=6)), np.float32(rng.normal(size=4))
    bias = mean + np.sqrt(variance) * np.float32(rng.normal(size=(4, 6)))
    row, other = jnp.asarray(row), jnp.asarray(other)
    run = quick_jit(
        lambda key, x, bias, of: resample_franchise(
            key, prior, seating, bias, of, np.float32(-0.1), (np.float32(2),) * 2,
            x, row, other, np.int32(40), np.float32(0.3), 40,
        )
    )  # fmt: skip
    of = BiasPriorState(mean, variance, np.float32(0.5))
    given = of._replace(shared=shared, shared_variance=np.float32(0.7))
    for seed in range(3):
        key = jax.random.key(seed)
        topic, seating_after, expected, _ = run(key, x - shared[other], bias, of)
        found = run(key, x, bias + shared[:, None], given)
        np.testing.assert_array_equal(found[0], topic)
        jax.tree.map(np.testing.assert_array_equal, found[1], seating_after)
        np.testing.assert_allclose(found[2], expected + shared[:, None], atol=1e-5)
        assert found[3].shared is not None
        assert len(set(np.asarray(topic).tolist())) > 1
