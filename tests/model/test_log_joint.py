"""The log joint against scipy term by term, and with parts of it summed out."""

import itertools

import jax
import numpy as np
import pytest
from scipy import special, stats

from im3f_jax.data.layout import BlockSizes
from im3f_jax.model.factor_prior import NormalWishart
from im3f_jax.model.likelihood import Ordinal
from im3f_jax.model.log_joint import log_joint, log_joint_of_counts, mean_of_ratings
from im3f_jax.model.scalars import Gamma, InverseGamma
from im3f_jax.model.topic_prior import HDP, log_density_of_topics
from tests import tiny
from tests.quick import quick_jit
from tests.stirling import log_stirling

SPECS = {
    "weak limit and sticks": tiny.make_spec(),
    "sticks and weak limit": tiny.make_spec("stick_breaking", "weak_limit"),
    "finite": tiny.make_spec("finite", "finite"),
    "no topics": tiny.make_spec("none", "none"),
    "item topics only": tiny.make_spec("none", "weak_limit"),
    "fixed numbers": tiny.make_fixed_spec(),
    "ordinal": tiny.make_ordinal_spec(),
    "shared biases": tiny.share(tiny.make_spec()),
    "noise": tiny.noisy(tiny.make_spec()),
    "noise, fixed numbers": tiny.noisy(tiny.make_fixed_spec(), 1.7, None, 0.8),
    "ordinal noise": tiny.noisy(tiny.make_ordinal_spec("none", "none"), rating=None),
    "shrinkage": tiny.shrink(tiny.make_spec()),
    "time": tiny.timed(tiny.noisy(tiny.make_spec("finite", "none"))),
    "topic factors": tiny.select(tiny.make_spec("finite", "finite")),
    "own topics": tiny.own(tiny.make_spec("finite", "finite")),
    "ordinal topic factors": tiny.select(tiny.make_ordinal_spec("finite", "finite")),
    "ordinal time": tiny.timed(tiny.make_ordinal_spec("none", "none"), 0.6),
}
of_topics = quick_jit(log_density_of_topics)
of_counts = quick_jit(log_joint_of_counts)
collapsed = quick_jit(
    lambda state, spec, data, counts: log_joint(state, spec, data, topic_counts=counts)
)


def log_prior(prior, value):
    match prior:
        case InverseGamma(shape, scale):
            return stats.invgamma.logpdf(value, shape, scale=scale)
        case Gamma(shape, rate):
            return stats.gamma.logpdf(value, shape, scale=1 / rate)
    return 0.0


def log_dirichlet(log_weights, concentration):
    """Log density with respect to log weights: the Jacobian is their product."""
    weights = np.exp(log_weights)
    weights = weights / weights.sum()
    return stats.dirichlet.logpdf(weights, concentration) + np.sum(np.log(weights))


def by_scipy(state, spec, data):
    """Write the joint density down, one factor of DESIGN section 2 after another."""
    total = log_prior(spec.likelihood.variance, state.rating_variance)
    precision = tiny.precision_of(state, data)
    precision = np.ones(len(data.rating)) if precision is None else precision
    root = np.sqrt(precision[: tiny.NUM_RATINGS])
    spread = np.sqrt(state.rating_variance) / root
    for name, number in (("user", 5), ("item", 4), ("rating", 12)):
        prior, each = getattr(spec, f"{name}_noise"), getattr(state.noise, name)
        if each is None:
            continue
        shape = getattr(state.noise, f"{name}_shape", prior.shape)
        total += stats.gamma.logpdf(each[:number], shape, scale=1 / shape).sum()
        total += log_prior(prior.shape, shape)
    for name, number in (("user", 5), ("item", 4)):
        effect, prior = getattr(state.time, name), getattr(spec, f"{name}_time")
        if effect is not None:
            variance = getattr(state.time, f"{name}_variance")
            total += stats.norm.logpdf(effect[:number], 0, np.sqrt(variance)).sum()
            total += log_prior(prior.variance, variance)
    residual = tiny.residual(state, data, without=())[: tiny.NUM_RATINGS]
    if isinstance(spec.likelihood, Ordinal):
        levels, scale = spec.likelihood.levels, spec.likelihood.cut_scale
        edges = np.concatenate([[-np.inf], state.cut_points, [np.inf]])
        for rating, rest, scale_of in zip(data.rating, residual, root, strict=False):
            level = levels.index(rating)
            low, high = scale_of * (edges[level : level + 2] - (rating - rest))
            total += np.log(special.ndtr(high) - special.ndtr(low))
        total += stats.norm.logpdf(state.cut_points, 0, scale).sum()
    else:
        total += stats.norm.logpdf(residual, 0, spread).sum()
    if state.column_increments is not None:
        p, delta = spec.factor_prior, state.column_increments
        total += log_prior(Gamma(p.first_shape, p.rate), delta[0])
        total += log_prior(Gamma(p.shape, 1.0), delta[1:]).sum()
        spread = 1 / np.sqrt(p.mean_precision * np.cumprod(delta))
        for prior in (state.user_factor_prior, state.item_factor_prior):
            total += stats.norm.logpdf(prior.mean, 0, spread).sum()
    if state.topic_factors is not None:
        p, dim = spec.topic_factors.prior, spec.topic_factors.dim
        for side in tiny.SIDES.values():
            prior = getattr(state.topic_factors, f"{side.name}_prior")
            covariance = np.linalg.inv(prior.precision)
            vectors = getattr(state.topic_factors, side.name)[: side.number(data)]
            law = stats.multivariate_normal(prior.mean, covariance)
            total += law.logpdf(vectors.reshape(-1, dim)).sum()
            wishart = stats.wishart(p.degrees_of_freedom, p.scale * np.eye(dim))
            total += wishart.logpdf(prior.precision)
            total += stats.multivariate_normal(
                np.full(dim, p.mean), covariance / p.mean_precision
            ).logpdf(prior.mean)
    for side in tiny.SIDES.values():
        number, prior = side.number(data), side.of(state, "factor_prior")
        covariance = np.linalg.inv(prior.precision)
        factors = stats.multivariate_normal(prior.mean, covariance)
        total += factors.logpdf(side.of(state, "factors")[:number]).sum()
        if isinstance(spec.factor_prior, NormalWishart):
            p, dim = spec.factor_prior, tiny.LATENT_DIM
            wishart = stats.wishart(p.degrees_of_freedom, p.scale * np.eye(dim))
            total += wishart.logpdf(prior.precision)
            total += stats.multivariate_normal(
                np.full(dim, p.mean), covariance / p.mean_precision
            ).logpdf(prior.mean)

        bias, prior = side.of(state, "bias")[:number], side.of(state, "bias_prior")
        p = side.of(spec, "bias_prior")
        if bias.shape[1] and prior.shared is not None:
            shared = prior.shared[:number]
            scale = np.sqrt(prior.shared_variance)
            total += log_prior(p.shared_variance, prior.shared_variance)
            total += stats.norm.logpdf(shared, 0, scale).sum()
            bias = bias - shared[:, None]
        if bias.shape[1]:
            total += log_prior(p.variance, prior.variance)
            total += log_prior(p.topic_mean_variance, prior.topic_mean_variance)
            if prior.variance > 0:
                scale = np.sqrt(prior.variance)
                total += stats.norm.logpdf(bias, prior.topic_mean, scale).sum()
            if prior.topic_mean_variance > 0:
                scale = np.sqrt(prior.topic_mean_variance)
                total += stats.norm.logpdf(prior.topic_mean, p.topic_mean, scale).sum()

        prior, weights = side.of(spec, "topic_prior"), side.of(state, "topic_weights")
        if not prior.num_topics:
            continue
        concentration = weights.table_concentration * np.exp(weights.log_global_weights)
        topic = side.of(state, "topic_of_rating")
        whose = tiny.weights_of(side, spec)
        for n in range(tiny.NUM_RATINGS):
            total += weights.log_row_weights[whose.rows(data)[n], topic[n]]
        if prior.num_topics > 1:
            for row in weights.log_row_weights[: whose.number(data)]:
                total += log_dirichlet(row, concentration)
        if isinstance(prior, HDP):
            beta, pi = weights.dish_concentration, np.exp(weights.log_global_weights)
            total += log_prior(prior.dish_concentration, beta)
            total += log_prior(prior.table_concentration, weights.table_concentration)
            if prior.construction == "weak_limit":
                share = np.full(len(pi), beta / len(pi))
                total += log_dirichlet(weights.log_global_weights, share)
            else:
                sticks = pi / np.cumsum(pi[::-1])[::-1]
                total += stats.beta.logpdf(sticks[:-1], 1, beta).sum()
    return total


@pytest.mark.parametrize("name", SPECS)
def test_log_joint_is_scipys(name):
    with tiny.in_precision("float64") as precision:
        made = [tiny.make(precision, SPECS[name], seed) for seed in range(5)]
        joints = [tiny.joint(state, spec, data) for spec, data, state in made]
        expected = [by_scipy(state, spec, data) for spec, data, state in made]
        # Up to a constant: the states differ in everything.
        tiny.assert_same_differences(expected, joints, precision)


def test_terms_of_variances_that_are_zero_are_left_out():
    spec = tiny.make_fixed_spec()
    with tiny.in_precision("float64") as precision:
        joints, expected = [], []
        for seed in range(4):
            _, data, state = tiny.make(precision, spec, seed)
            for side in tiny.SIDES.values():
                prior = side.of(state, "bias_prior")
                prior = prior._replace(
                    variance=np.zeros(()), topic_mean_variance=np.zeros(())
                )
                state = side.put(state, bias_prior=prior)
            joints.append(tiny.joint(state, spec, data))
            expected.append(by_scipy(state, spec, data))
        assert np.all(np.isfinite(joints))
        tiny.assert_same_differences(expected, joints, precision)


def test_log_joint_in_float32_is_that_in_float64():
    spec = SPECS["weak limit and sticks"]
    joints = {}
    for name in tiny.PRECISIONS:
        with tiny.in_precision(name) as precision:
            joints[name] = [
                tiny.joint(tiny.make(precision, spec, seed)[2], spec, data)
                for seed, data in enumerate([tiny.make_data(precision.dtype)] * 3)
            ]
    np.testing.assert_allclose(joints["float32"], joints["float64"], rtol=3e-6)


@pytest.mark.parametrize(
    "name",
    ["weak limit and sticks", "noise", "ordinal noise", "time", "topic factors"]
    + ["own topics"],
)
def test_padding_leaves_no_mark(name):
    with tiny.in_precision("float64") as precision:
        spec, data, state = tiny.make(precision, SPECS[name])
        expected = tiny.joint(state, spec, data)
        rng = np.random.default_rng(9)
        for side in tiny.SIDES.values():
            number = side.number(data)
            weights = side.of(state, "topic_weights")
            bias, theta = side.of(state, "bias").copy(), weights.log_row_weights.copy()
            bias[number:] = 1e6 * rng.normal(size=bias[number:].shape)
            number = tiny.weights_of(side, spec).number(data)
            theta[number:] = -1e6 * rng.random(size=theta[number:].shape)
            topic = side.of(state, "topic_of_rating").copy()
            topic[tiny.NUM_RATINGS :] = 0
            state = side.put(
                state,
                bias=bias,
                topic_weights=weights._replace(log_row_weights=theta),
                topic_of_rating=topic,
            )
        noise = state.noise._asdict()
        for of, number in (("user", 5), ("item", 4), ("rating", 12)):
            if noise[of] is not None:
                noise[of] = noise[of].copy()
                noise[of][number:] = 0  # of which the logarithm is infinite
        state = state._replace(noise=type(state.noise)(**noise))
        time = state.time._asdict()
        for of, number in (("user", 5), ("item", 4)):
            if time[of] is not None:
                time[of] = time[of].copy()
                time[of][number:] = 1e6
        state = state._replace(time=type(state.time)(**time))
        if state.topic_factors is not None:
            user, item = (x.copy() for x in state.topic_factors[:2])
            user[5:], item[4:] = 1e6, -1e6
            extra = state.topic_factors._replace(user=user, item=item)
            state = state._replace(topic_factors=extra)
        assert tiny.joint(state, spec, data) == pytest.approx(expected, abs=1e-9)


def test_the_layout_leaves_no_mark():
    with tiny.in_precision("float64") as precision:
        spec, data, state = tiny.make(precision)
        others = tiny.make_data(precision.dtype, BlockSizes(2, 2, 2, 8))
        assert others.user_rows > data.user_rows
        again = tiny.joint(tiny.transplant(state, others), spec, others)
        assert again == pytest.approx(tiny.joint(state, spec, data), abs=1e-9)


@pytest.mark.parametrize("name", ["weak limit and sticks", "time", "topic factors"])
def test_mean_of_ratings(name):
    with tiny.in_precision("float64") as precision:
        _, data, state = tiny.make(precision, SPECS[name])
        mean = quick_jit(mean_of_ratings)(state, data)[: tiny.NUM_RATINGS]
        residual = tiny.residual(state, data, without=())[: tiny.NUM_RATINGS]
        np.testing.assert_allclose(
            data.rating[: tiny.NUM_RATINGS] - mean, residual, atol=1e-12
        )


@pytest.mark.parametrize("name", ["weak limit and sticks", "noise"])
def test_squared_error_may_be_given(name):
    with tiny.in_precision("float64") as precision:
        spec, data, state = tiny.make(precision, SPECS[name])
        given = quick_jit(log_joint)(
            state, spec, data, np.asarray(tiny.squared_error(state, data))
        )
        assert float(given) == pytest.approx(tiny.joint(state, spec, data), abs=1e-9)


@pytest.mark.parametrize("side", tiny.SIDES.values(), ids=tiny.SIDES)
def test_topics_with_theta_summed_out_are_dirichlet_multinomial(side):
    with tiny.in_precision("float64") as precision:
        _, data, state = tiny.make(precision)
        weights = side.of(state, "topic_weights")
        pi, gamma = weights.log_global_weights, weights.table_concentration
        counts = tiny.topic_counts(side, state, data)
        counts[0] += np.arange(len(pi), dtype=np.int32) * 5
        expected = 0.0
        for row in counts[counts.sum(1) > 0]:
            n = row.sum()
            orders = special.gammaln(n + 1) - special.gammaln(row + 1).sum()
            distribution = stats.dirichlet_multinomial(gamma * np.exp(pi), n)
            # scipy counts the orders in which the topics may come.
            expected += distribution.logpmf(row) - orders
        assert float(of_topics(counts, pi, gamma)) == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize("name", ["weak limit and sticks", "finite"])
def test_summing_theta_out_of_the_log_joint(name):
    # joint / p(theta | everything else) does not depend on theta. Both sides at once.
    with tiny.in_precision("float64") as precision:
        spec, data, state = tiny.make(precision, SPECS[name])
        counts = tuple(
            tiny.topic_counts(side, state, data) for side in tiny.SIDES.values()
        )
        expected = float(collapsed(state, spec, data, counts))
        for seed in (3, 4):
            again, conditional = state, 0.0
            other = tiny.make(precision, SPECS[name], seed)[2]
            for side, n in zip(tiny.SIDES.values(), counts, strict=True):
                weights = side.of(state, "topic_weights")
                theta = side.of(other, "topic_weights").log_row_weights
                again = side.put(
                    again, topic_weights=weights._replace(log_row_weights=theta)
                )
                prior = weights.table_concentration * np.exp(weights.log_global_weights)
                for row in range(side.number(data)):
                    conditional += log_dirichlet(theta[row], prior + n[row])
            value = tiny.joint(again, spec, data) - conditional
            assert value == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("construction", ["weak_limit", "stick_breaking"])
def test_summing_tables_out_of_the_joint_of_counts(construction):
    prior = HDP(3, construction, Gamma(2.0, 1.5), Gamma(3.0, 0.8))
    counts = np.int32([[3, 0, 1], [0, 0, 0], [2, 1, 0]])
    with tiny.in_precision("float64"):
        log_pi = np.log([0.5, 0.2, 0.3])
        beta, gamma = np.asarray(1.3), np.asarray(2.4)
        joints = []
        ranges = [range(min(n, 1), n + 1) for n in counts.ravel()]
        for tables in itertools.product(*ranges):
            tables = np.int32(tables).reshape(counts.shape)
            joints.append(
                of_counts(prior, counts, tables, log_pi, beta, gamma, log_stirling(3))
            )
        expected = float(of_topics(counts, log_pi, gamma)) + float(
            quick_jit(lambda *x: prior.log_density(*x))(log_pi, beta, gamma)
        )
        assert special.logsumexp(joints) == pytest.approx(expected, abs=1e-10)


def test_float32_keeps_its_type_under_x64():
    # Nothing in the log joint widens: the precision is the state's.
    with jax.enable_x64(True):
        spec, data, state = tiny.make(tiny.PRECISIONS["float32"])
        assert jax.eval_shape(log_joint, state, spec, data).dtype == np.float32
