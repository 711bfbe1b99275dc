"""The NumPyro program against the log joint, against plain JAX, and under NUTS."""

import dataclasses
import functools
import itertools
import sys

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.distributions.transforms import biject_to
from numpyro.infer import Predictive
from numpyro.infer.util import log_density
from scipy import special, stats

import im3f_jax as im3f
from im3f_jax.errors import InputError
from im3f_jax.gibbs.state import FactorPriorState
from im3f_jax.gibbs.sweep import gibbs_sweep
from im3f_jax.model import generative
from im3f_jax.model.bias_prior import SharedNormal, TopicNormal
from im3f_jax.model.factor_prior import (
    IsotropicNormal,
    MultiplicativeGamma,
    NormalWishart,
)
from im3f_jax.model.generative import (
    FlooredInverseGamma,
    LogDirichlet,
    NormalByRoot,
    SortedNormals,
    model_of_rows,
)
from im3f_jax.model.likelihood import Gaussian
from im3f_jax.model.log_joint import log_joint
from im3f_jax.model.noise import GammaNoise
from im3f_jax.model.prior import draw_prior
from im3f_jax.model.reciprocal import NotReciprocal, is_reciprocal, is_unordered
from im3f_jax.model.scalars import Gamma, InverseGamma
from im3f_jax.model.time_effects import TimeEffect
from im3f_jax.model.topic_prior import HDP, FiniteDirichlet
from tests import gof, tiny
from tests.quick import quick_jit
from tests.validation.nuts import nuts_against_gibbs, sites_of_state

pytestmark = pytest.mark.relaxed
log_joint_module = sys.modules[log_joint.__module__]

WEAK = tiny.make_spec()
SPECS = {
    "weak limit and sticks": WEAK,
    "sticks and weak limit": tiny.make_spec("stick_breaking", "weak_limit"),
    "fixed concentrations": dataclasses.replace(
        WEAK, user_topic_prior=HDP(3, "weak_limit", 1.7, 2.3)
    ),
    "finite": tiny.make_spec("finite", "finite"),
    "no topics": tiny.make_spec("none", "none"),
    "item topics only": tiny.make_spec("none", "weak_limit"),
    "M3F, all fixed": tiny.make_fixed_spec(0.4, 0.2),
    "M3F, biases equal their means": tiny.make_fixed_spec(0.0, 0.2),
    "M3F, no bias": tiny.make_fixed_spec(0.0, 0.0),
    "M3F, means fixed": tiny.make_fixed_spec(0.4, 0.0),
    "ordinal": tiny.make_ordinal_spec(),
    "ordinal, no topics": tiny.make_ordinal_spec("none", "none"),
    "shared biases": tiny.share(WEAK),
    "shrinkage": tiny.shrink(tiny.make_spec("none", "none")),
    "M3F, one bias a row": tiny.share(tiny.make_fixed_spec(0.0, 0.2), 0.3, 0.0),
    "noise": tiny.noisy(tiny.make_spec("none", "finite")),
    "ordinal noise": tiny.noisy(tiny.make_ordinal_spec("finite", "none"), item=None),
    "topic factors": tiny.select(tiny.make_spec("finite", "weak_limit")),
    "own topics": tiny.own(tiny.make_spec("finite", "finite")),
    "directed": tiny.reciprocate(WEAK, True),
    "unordered": tiny.reciprocate(tiny.make_spec("stick_breaking"), False),
    "unordered ordinal": tiny.reciprocate(tiny.make_ordinal_spec("finite"), False),
    "unordered, no topics": tiny.reciprocate(tiny.make_spec("none"), False),
    "time": tiny.timed(
        tiny.noisy(tiny.make_spec("none", "finite"), item=None, rating=None)
    ),
}
COUNT = tiny.NUM_RATINGS


def conform(state, spec):
    """Give a state the numbers and biases that its spec fixes."""

    def fixed(prior, value):
        is_prior = isinstance(prior, Gamma | InverseGamma)
        return value if is_prior else np.asarray(prior, np.float64)

    state = state._replace(
        rating_variance=fixed(spec.likelihood.variance, state.rating_variance)
    )
    for name in tiny.SIDES:
        prior, field = getattr(spec, f"{name}_noise"), f"{name}_shape"
        if isinstance(prior, GammaNoise):
            shape = fixed(prior.shape, getattr(state.noise, field))
            state = state._replace(noise=state.noise._replace(**{field: shape}))
        prior, field = getattr(spec, f"{name}_time"), f"{name}_variance"
        if isinstance(prior, TimeEffect):
            variance = fixed(prior.variance, getattr(state.time, field))
            state = state._replace(time=state.time._replace(**{field: variance}))
    for side in tiny.SIDES.values():
        prior, bias = side.of(spec, "bias_prior"), side.of(state, "bias")
        weights, topics = side.of(state, "topic_weights"), side.of(spec, "topic_prior")
        of = side.of(state, "bias_prior")
        of = of._replace(
            variance=fixed(prior.variance, of.variance),
            topic_mean_variance=fixed(
                prior.topic_mean_variance, of.topic_mean_variance
            ),
        )
        if of.topic_mean_variance == 0:
            of = of._replace(topic_mean=np.full_like(of.topic_mean, prior.topic_mean))
        centre = np.broadcast_to(of.topic_mean, bias.shape)
        if isinstance(prior, SharedNormal):
            shared_variance = fixed(prior.shared_variance, of.shared_variance)
            shared = of.shared if shared_variance > 0 else np.zeros_like(of.shared)
            of = of._replace(shared=shared, shared_variance=shared_variance)
            centre = centre + shared[:, None]
        if of.variance == 0:
            bias = centre
        if isinstance(topics, FiniteDirichlet):
            count = topics.num_topics
            weights = weights._replace(
                log_global_weights=np.full(count, -np.log(count)),
                table_concentration=np.float64(topics.concentration),
            )
        elif isinstance(topics, HDP):
            weights = weights._replace(
                dish_concentration=fixed(
                    topics.dish_concentration, weights.dish_concentration
                ),
                table_concentration=fixed(
                    topics.table_concentration, weights.table_concentration
                ),
            )
        factor_prior = side.of(state, "factor_prior")
        if isinstance(spec.factor_prior, IsotropicNormal):
            factor_prior = FactorPriorState(
                np.zeros(tiny.LATENT_DIM),
                spec.factor_prior.precision * np.eye(tiny.LATENT_DIM),
            )
        state = side.put(
            state,
            bias=bias,
            bias_prior=of,
            topic_weights=weights,
            factor_prior=factor_prior,
        )
    return state


def make_states(spec, number=5):
    """Data, and random states of a spec, in float64."""
    made = [tiny.make(tiny.PRECISIONS["float64"], spec, seed) for seed in range(number)]
    return made[0][1], [conform(state, spec) for _, _, state in made]


def model_on(spec, data, number=COUNT, **settings):
    """Model the first ratings of the layout, in its order; and their values."""
    model = model_of_rows(
        spec,
        data.user[:number],
        data.item[:number],
        int(data.num_users),
        int(data.num_items),
        jax.tree.map(lambda column: column[:number], data.times),
        **settings,
    )
    return model, data.rating[:number]


def sampled_sites(state, spec, data):
    """Values of the sampled sites, topics included, without what the spec fixes."""
    sites = sites_of_state(state, spec, data)
    for side in tiny.SIDES.values():
        if side.of(spec, "topic_prior").num_topics:
            topic = side.of(state, "topic_of_rating")[:COUNT]
            sites[f"{side.name}_topic_of_rating"] = jnp.asarray(topic)
    model, _ = model_on(spec, data)
    trace = numpyro.handlers.trace(
        numpyro.handlers.substitute(numpyro.handlers.seed(model, 0), sites)
    ).get_trace()
    needed = {k for k, v in trace.items() if v["type"] == "sample"}
    needed -= {"ratings", "level_of_rating"}
    assert needed <= set(sites)
    return {k: jnp.asarray(sites[k]) for k in needed}


def jacobian(state, spec):
    """Log density of the sites less that of log_joint's coordinates, in nats.

    L for Lambda: 2^D prod L_ii^(D - i + 1). Decays for sticks v: prod (1 - v_k).
    """
    total = 0.0
    for side in tiny.SIDES.values():
        first = side.name == "user"
        if isinstance(spec.factor_prior, NormalWishart) and (
            first or not is_unordered(spec)
        ):
            root = np.linalg.cholesky(side.of(state, "factor_prior").precision)
            powers = np.arange(len(root), 0, -1)
            total += len(root) * np.log(2) + powers @ np.log(np.diag(root))
        if state.topic_factors is not None:
            prior = getattr(state.topic_factors, f"{side.name}_prior")
            root = np.linalg.cholesky(prior.precision)
            powers = np.arange(len(root), 0, -1)
            total += len(root) * np.log(2) + powers @ np.log(np.diag(root))
        topics = side.of(spec, "topic_prior")
        if not first and is_reciprocal(spec):
            continue
        if isinstance(topics, HDP) and topics.construction == "stick_breaking":
            pi = np.exp(side.of(state, "topic_weights").log_global_weights)
            sticks = pi / np.cumsum(pi[::-1])[::-1]
            total += np.sum(np.log1p(-sticks[:-1]))
    return total


def numpyro_densities(spec, states, data):
    """Log density of each state by NumPyro, in the coordinates of log_joint."""
    model, rating = model_on(spec, data)
    density = quick_jit(lambda sites: log_density(model, (rating,), {}, sites)[0])
    return [
        float(density(sampled_sites(state, spec, data))) - jacobian(state, spec)
        for state in states
    ]


def joints(spec, states, data):
    """Log joint of each state, compiled anew: a patched module is seen."""
    joint = quick_jit(lambda *arguments: log_joint(*arguments))
    return [float(joint(state, spec, data)) for state in states]


# --- densities --------------------------------------------------------------------


@pytest.mark.parametrize("name", SPECS)
def test_log_joint_is_numpyros_log_density(name):
    spec = SPECS[name]
    with tiny.in_precision("float64") as precision:
        data, states = make_states(spec)
        tiny.assert_same_differences(
            numpyro_densities(spec, states, data), joints(spec, states, data), precision
        )


def wrong_wishart(monkeypatch):
    prior = dataclasses.replace(WEAK.factor_prior, scale=1 / WEAK.factor_prior.scale)
    return dataclasses.replace(WEAK, factor_prior=prior)


def swapped_sides(monkeypatch):
    return dataclasses.replace(
        WEAK,
        user_bias_prior=WEAK.item_bias_prior,
        item_bias_prior=WEAK.user_bias_prior,
    )


def density_of_theta(monkeypatch):
    right = LogDirichlet.log_prob
    monkeypatch.setattr(
        LogDirichlet, "log_prob", lambda self, x: right(self, x) - jnp.sum(x, -1)
    )


def dish_not_shared(monkeypatch):
    right = generative._global_weights
    monkeypatch.setattr(
        generative,
        "_global_weights",
        lambda side, prior, dish: right(side, prior, dish * prior.num_topics),
    )


def row_weights_without_gamma(monkeypatch):
    right = generative._number
    monkeypatch.setattr(
        generative,
        "_number",
        lambda name, prior: (
            right(name, prior) * 0 + 1
            if "table_concentration" in name
            else right(name, prior)
        ),
    )


def mean_without_its_precision(monkeypatch):
    # log_joint is wrong here: mu ~ N(mu_0, I / lambda_0).
    right = NormalWishart.log_density

    def wrong(self, mean, precision):
        offset = mean - self.mean
        at_centre = right(self, mean - offset, precision)
        log_det = jnp.linalg.slogdet(precision)[1]
        return at_centre - 0.5 * log_det - 0.5 * self.mean_precision * offset @ offset

    monkeypatch.setattr(NormalWishart, "log_density", wrong)


def ratings_without_their_variance(monkeypatch):
    # log_joint is wrong here: the normal's constant is left out.
    right = Gaussian.log_density

    def wrong(self, squared_error, num_ratings, variance):
        return right(self, squared_error, num_ratings * 0, variance)

    monkeypatch.setattr(Gaussian, "log_density", wrong)


def means_about_zero(monkeypatch):
    # log_joint is wrong here: c_0 is forgotten.
    right = TopicNormal.log_density

    def wrong(self, *arguments):
        return right(dataclasses.replace(self, topic_mean=0.0), *arguments)

    monkeypatch.setattr(TopicNormal, "log_density", wrong)


MUTANTS = [
    wrong_wishart,
    swapped_sides,
    density_of_theta,
    dish_not_shared,
    row_weights_without_gamma,
    mean_without_its_precision,
    ratings_without_their_variance,
    means_about_zero,
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.__name__)
def test_a_wrong_density_is_found(mutant, monkeypatch):
    with tiny.in_precision("float64") as precision:
        data, states = make_states(WEAK, 3)
        spec = mutant(monkeypatch) or WEAK
        with tiny.found():
            tiny.assert_same_differences(
                numpyro_densities(spec, states, data),
                joints(WEAK, states, data),
                precision,
            )


def test_a_wrong_density_of_shared_parts_is_found(monkeypatch):
    right = SharedNormal.log_density_of_shared

    def wrong(self, shared, *arguments):
        return right(self, 0 * shared, *arguments)

    monkeypatch.setattr(SharedNormal, "log_density_of_shared", wrong)
    spec = SPECS["shared biases"]
    with tiny.in_precision("float64") as precision:
        data, states = make_states(spec, 3)
        with tiny.found():
            tiny.assert_same_differences(
                numpyro_densities(spec, states, data),
                joints(spec, states, data),
                precision,
            )


@functools.cache
def of_time():
    """Data, states and NumPyro's densities of one spec, for the mutants."""
    spec = SPECS["time"]
    data, states = make_states(spec, 3)
    return data, states, numpyro_densities(spec, states, data)


@functools.cache
def of_noise():
    """The same of a spec with noise that differs."""
    spec = SPECS["noise"]
    data, states = make_states(spec, 3)
    return data, states, numpyro_densities(spec, states, data)


@pytest.mark.parametrize("wrong", ["no density", "no drift", "other bins"])
def test_a_wrong_density_of_time_is_found(wrong, monkeypatch):
    spec = SPECS["time"]
    with tiny.in_precision("float64") as precision:
        data, states, expected = of_time()
        times = data.times
        if wrong == "no density":
            right = TimeEffect.log_density
            monkeypatch.setattr(
                TimeEffect, "log_density", lambda self, e, *r: right(self, 0 * e, *r)
            )
            found = joints(spec, states, data)
        else:
            changed = {
                "no drift": times._replace(drift=0 * times.drift),
                "other bins": times._replace(bin=2 - times.bin),
            }
            data = dataclasses.replace(data, times=changed[wrong])
            found = [tiny.joint(state, spec, data) for state in states]
        with tiny.found():
            tiny.assert_same_differences(expected, found, precision)


@pytest.mark.parametrize("wrong", ["variance for precision", "no density", "no root"])
def test_a_wrong_density_of_noise_is_found(wrong, monkeypatch):
    if wrong == "no density":
        right = GammaNoise.log_density
        monkeypatch.setattr(
            GammaNoise,
            "log_density",
            lambda self, p, *rest: right(self, 0 * p + 1, *rest),
        )
    else:  # of the joint: what precisions mean for the ratings
        right = log_joint_module.precision_of_ratings
        power = -1 if wrong == "variance for precision" else 2
        monkeypatch.setattr(
            log_joint_module,
            "precision_of_ratings",
            lambda *given: right(*given) ** power,
        )
    with tiny.in_precision("float64") as precision:
        data, states, densities = of_noise()
        found = joints(SPECS["noise"], states, data)
        with tiny.found():
            tiny.assert_same_differences(densities, found, precision)


@pytest.mark.parametrize(
    "name, settings",
    [
        ("log_density_of_increments", {"rate": 1.0}),
        ("log_density", {"mean_precision": 1.0}),
    ],
)
def test_a_wrong_density_of_columns_is_found(name, settings, monkeypatch):
    right = getattr(MultiplicativeGamma, name)

    def wrong(self, *given):
        return right(dataclasses.replace(self, **settings), *given)

    monkeypatch.setattr(MultiplicativeGamma, name, wrong)
    spec = SPECS["shrinkage"]
    with tiny.in_precision("float64") as precision:
        data, states = make_states(spec, 3)
        with tiny.found():
            tiny.assert_same_differences(
                numpyro_densities(spec, states, data),
                joints(spec, states, data),
                precision,
            )


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name",
    [
        "weak limit and sticks",
        "item topics only",
        "finite",
        "no topics",
        "ordinal",
        "ordinal, no topics",
        pytest.param("noise", marks=pytest.mark.slow),
        pytest.param("ordinal noise", marks=pytest.mark.slow),
        "time",
        "topic factors",
        "own topics",
        "unordered ordinal",
    ],
)
def test_the_marginal_model_is_the_sum_over_topics(name):
    spec, number = SPECS[name], 3
    with tiny.in_precision("float64"):
        data, (state, *_) = make_states(spec, 1)
        sites = sampled_sites(state, spec, data)
        if "rating_precision" in sites:
            sites["rating_precision"] = sites["rating_precision"][:number]
        names = [k for k in sites if k.endswith("topic_of_rating")]
        sizes = [
            getattr(spec, f"num_{k.removesuffix('_topic_of_rating')}_topics")
            for k in names
        ]
        explicit, rating = model_on(spec, data, number)
        every = [
            np.array(list(itertools.product(range(k), repeat=number))) for k in sizes
        ]
        index = np.meshgrid(*(np.arange(len(e)) for e in every), indexing="ij")
        chosen = [e[i.ravel()] for e, i in zip(every, index, strict=True)]

        def density(topics):
            given = sites | dict(zip(names, topics, strict=True))
            return log_density(explicit, (rating,), {}, given)[0]

        if names:
            expected = special.logsumexp(
                np.asarray(quick_jit(jax.vmap(density))(chosen))
            )
        else:
            expected = float(density([]))
        marginal, _ = model_on(spec, data, number, topics="marginal")
        rest = {k: v for k, v in sites.items() if k not in names}
        found = quick_jit(lambda s: log_density(marginal, (rating,), {}, s)[0])(rest)
        assert float(found) == pytest.approx(expected, abs=1e-9)


# --- draws ------------------------------------------------------------------------

# Numbers far from 1, so that a number taken for its inverse is seen.
DRAWN = {
    "iM3F": dataclasses.replace(
        WEAK,
        likelihood=Gaussian(InverseGamma(2.5, 0.8), 0.3),
        factor_prior=NormalWishart(0.4, 4.5, 0.8, 3.0),
    ),
    "M3F": dataclasses.replace(
        tiny.share(tiny.make_fixed_spec(0.4, 0.2), 0.7),
        user_topic_prior=FiniteDirichlet(2, 0.7),
    ),
    "BPMF": tiny.make_spec("none", "none"),
    "BPMF ordinal": tiny.make_ordinal_spec("none", "none"),
    "BPMF noise": tiny.noisy(tiny.make_spec("none", "none")),
    "BPMF time": tiny.timed(tiny.make_spec("none", "none")),
    "BPMF shrinkage": tiny.shrink(tiny.make_spec("none", "none")),
    "M3F topic factors": tiny.select(tiny.make_fixed_spec(0.4, 0.2)),
    "separate": tiny.own(tiny.make_spec("finite", "finite")),
    "directed": tiny.reciprocate(tiny.make_spec(), True),
    "unordered": tiny.reciprocate(tiny.make_spec("stick_breaking"), False),
}
DRAWS = 2000


def statistics(draws):
    """Numbers of each draw: labelled and label-free, of every site."""
    draws = {k: np.asarray(v, np.float64) for k, v in draws.items()}
    found = {}
    for name, value in draws.items():
        flat = value.reshape(len(value), -1)
        if np.ptp(flat) == 0:
            continue  # fixed
        if name.endswith("_of_rating"):
            # Continuous enough for the comparison: ties make it milder.
            found[f"{name}: mean"] = flat.mean(1)
            found[f"{name}: same"] = (flat[:, :1] == flat).mean(1)
            found[f"{name}: occupied"] = [len(set(row)) for row in flat]
            other = draws.get(name.replace("user", "item"))
            if other is not None:
                found[f"{name}: as of the item"] = (flat == other).mean(1)
            continue
        found[f"{name}: first"] = flat[:, 0]
        if flat.shape[1] > 1:
            found[f"{name}: last"] = flat[:, -1]
            found[f"{name}: largest"] = flat.max(1)
            found[f"{name}: spread"] = flat.std(1)
        if name.endswith("factor_precision"):
            found[f"{name}: log det"] = np.linalg.slogdet(value)[1]
    return found


def assert_same_draws(first, second):
    first, second = statistics(first), statistics(second)
    assert first.keys() == second.keys() and len(first) > 10
    for name, values in first.items():
        try:
            gof.assert_ks_2samp(values, second[name], share=len(first))
        except AssertionError as error:
            raise AssertionError(f"{name} differs: {error}") from None


def plain_draws(seed, spec):
    return _plain(jax.random.split(jax.random.key(seed), DRAWS), spec)


@quick_jit
def _plain(keys, spec):
    rows = tiny.rows_of(spec)
    return jax.lax.map(lambda key: draw_prior(key, spec, *rows, times=tiny.TIMES), keys)


def predictive(seed, spec):
    rows = tiny.rows_of(spec)
    prior = Predictive(model_of_rows(spec, *rows, tiny.TIMES), num_samples=DRAWS)
    draws = quick_jit(prior)(jax.random.key(seed))
    extra = ("precision_root", "stick_decay", "level_of_rating")
    return {k: v for k, v in draws.items() if not k.endswith(extra)}


def without_copies(draws, named):
    """Leave out what stands in draws once a side, and is named for users only."""
    copies = draws.keys() - named
    assert copies and all("item" in name for name in copies)
    for name in copies:
        assert np.array_equal(draws[name], draws[name.replace("item", "user")])
    return {name: draws[name] for name in draws.keys() - copies}


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name",
    ["M3F", "BPMF", "BPMF ordinal"]
    + [
        pytest.param(name, marks=pytest.mark.slow)
        for name in (
            "iM3F",
            "BPMF shrinkage",
            "BPMF noise",
            "BPMF time",
            "M3F topic factors",
            "separate",
            "directed",
            "unordered",
        )
    ],
)
def test_numpyros_draws_are_those_of_plain_jax(name):
    ours, theirs = plain_draws(0, DRAWN[name]), predictive(1, DRAWN[name])
    if is_reciprocal(DRAWN[name]):
        ours = without_copies(ours, theirs)
    assert ours.keys() == theirs.keys()
    for key, value in ours.items():
        assert value.shape == theirs[key].shape and value.dtype == theirs[key].dtype
        assert np.all(np.isfinite(value)) and np.all(np.isfinite(theirs[key]))
    assert_same_draws(ours, theirs)
    if name == "BPMF ordinal":
        levels = np.float32(DRAWN[name].likelihood.levels)
        assert set(np.unique(ours["ratings"])) == set(levels)
        narrow = dataclasses.replace(DRAWN[name].likelihood, cut_scale=1.5)
        wrong = dataclasses.replace(DRAWN[name], likelihood=narrow)
        with pytest.raises(AssertionError, match="cut_points"):
            assert_same_draws(plain_draws(0, wrong), theirs)
    if name == "BPMF noise":
        for wrong in (
            dataclasses.replace(DRAWN[name], user_noise=GammaNoise(Gamma(2.5, 1.2))),
            dataclasses.replace(DRAWN[name], rating_noise=GammaNoise(3.0)),
        ):
            with pytest.raises(AssertionError, match="differs"):
                assert_same_draws(plain_draws(0, wrong), theirs)
    if name == "BPMF time":
        for wrong in (
            tiny.timed(DRAWN[name], item=InverseGamma(3.3, 0.6)),
            tiny.timed(DRAWN[name], user=InverseGamma(2.4, 0.7)),
        ):
            with pytest.raises(AssertionError, match="differs"):
                assert_same_draws(plain_draws(0, wrong), theirs)
    if name == "directed":  # two franchises with one prior
        wrong = dataclasses.replace(DRAWN[name], reciprocal=NotReciprocal())
        wrong = plain_draws(0, wrong)
        with pytest.raises(AssertionError, match="differs"):
            assert_same_draws({k: wrong[k] for k in theirs}, theirs)
    if name == "M3F topic factors":
        part = DRAWN[name].topic_factors
        for wrong in (
            dataclasses.replace(part.prior, scale=1 / part.prior.scale),
            dataclasses.replace(part.prior, mean_precision=0.3),
        ):
            wrong = dataclasses.replace(part, prior=wrong)
            wrong = dataclasses.replace(DRAWN[name], topic_factors=wrong)
            with pytest.raises(AssertionError, match="differs"):
                assert_same_draws(plain_draws(0, wrong), theirs)
    if name == "BPMF shrinkage":
        right = DRAWN[name].factor_prior
        for wrong in (
            dataclasses.replace(right, rate=1.0),
            dataclasses.replace(right, shape=right.first_shape),
            dataclasses.replace(right, mean_precision=1.0),
        ):
            wrong = dataclasses.replace(DRAWN[name], factor_prior=wrong)
            with pytest.raises(AssertionError, match="differs"):
                assert_same_draws(plain_draws(0, wrong), theirs)
    if name != "BPMF":
        return
    # Wrong numbers: W_0 for its inverse, lambda_0 likewise, no floor, no c_0.
    spec, prior = DRAWN[name], DRAWN[name].factor_prior
    for wrong in (
        dataclasses.replace(
            spec, factor_prior=dataclasses.replace(prior, scale=1 / prior.scale)
        ),
        dataclasses.replace(
            spec, factor_prior=dataclasses.replace(prior, mean_precision=1 / 3)
        ),
        dataclasses.replace(
            spec, factor_prior=dataclasses.replace(prior, degrees_of_freedom=5.5)
        ),
        dataclasses.replace(spec, global_bias=2.0),
        dataclasses.replace(spec, likelihood=Gaussian(InverseGamma(2.5, 0.8), 0.4)),
    ):
        with pytest.raises(AssertionError, match="differs"):
            assert_same_draws(plain_draws(0, wrong), theirs)


# --- distributions ----------------------------------------------------------------


def test_log_dirichlet_is_the_dirichlet_of_the_weights():
    with tiny.in_precision("float64"):
        alpha = np.array([0.3, 2.0, 1.1])
        weights = np.random.default_rng(0).dirichlet(alpha, size=7)
        ours = LogDirichlet(alpha).log_prob(np.log(weights))
        theirs = dist.Dirichlet(alpha).log_prob(weights)
        # The weights less the last to log ratios: their product is the Jacobian.
        np.testing.assert_allclose(ours, theirs + np.log(weights).sum(1), rtol=1e-9)


def test_log_weights_are_finite_where_weights_underflow():
    draws = LogDirichlet(jnp.full(100, 1e-3)).sample(jax.random.key(0), (50,))
    assert np.all(np.isfinite(draws))
    assert np.mean(np.exp(draws) == 0) > 0.8
    np.testing.assert_allclose(np.exp(draws).sum(1), 1, rtol=1e-5)


def test_the_transform_to_log_weights():
    with tiny.in_precision("float64"):
        transform = biject_to(LogDirichlet(np.ones(4)).support)
        x = np.random.default_rng(1).normal(size=3)
        y = transform(x)
        assert transform.forward_shape((5, 3)) == (5, 4)
        assert transform.inverse_shape((5, 4)) == (5, 3)
        np.testing.assert_allclose(transform.inv(y), x, atol=1e-12)
        assert bool(transform.codomain(y)) and not bool(transform.codomain(y + 1))
        ratios = jax.jacobian(lambda x: transform(x)[:-1] - transform(x)[-1])(x)
        expected = np.linalg.slogdet(ratios)[1]
        assert float(transform.log_abs_det_jacobian(x, y)) == pytest.approx(expected)


def test_normal_by_root_is_scipys():
    with tiny.in_precision("float64"):
        root = np.array([[1.3, 0.0], [-0.4, 0.7]])
        loc, covariance = np.array([0.3, -1.0]), np.linalg.inv(root @ root.T)
        x = np.random.default_rng(2).normal(size=(5, 2))
        expected = stats.multivariate_normal(loc, covariance).logpdf(x)
        np.testing.assert_allclose(NormalByRoot(loc, root).log_prob(x), expected)
        draws = NormalByRoot(loc, root).sample(jax.random.key(3), (20_000,))
    draws = np.asarray(draws)
    gof.assert_mean(draws, loc)
    products = (draws - loc)[:, :, None] * (draws - loc)[:, None, :]
    gof.assert_mean(products, covariance)


def test_floored_inverse_gamma():
    whole = stats.invgamma(2.5, scale=0.8)
    sample = quick_jit(
        lambda key, floor: FlooredInverseGamma(2.5, 0.8, floor).sample(key, (5000,))
    )
    for floor in (0.1, 2.0):
        x = floor * np.array([1.01, 1.5, 7.0])
        expected = whole.logpdf(x) - np.log(whole.sf(floor))
        found = FlooredInverseGamma(2.5, 0.8, floor).log_prob(x)
        np.testing.assert_allclose(found, expected, rtol=1e-4)
        draws = np.asarray(sample(jax.random.key(4), floor), np.float64)
        # A draw may be rounded to below the floor.
        assert draws.min() >= floor * (1 - 1e-6)
        gof.assert_ks(
            draws,
            lambda x, floor=floor: 1 - whole.sf(x) / whole.sf(floor),
            grain=1e-5,
            share=2,
        )


def test_sorted_normals():
    law = SortedNormals(2.0, 3)
    draws = np.asarray(law.sample(jax.random.key(5), (5000,)), np.float64)
    assert np.all(np.diff(draws, axis=1) > 0)
    whole = stats.norm(0, 2.0)
    gof.assert_ks(draws[:, 0], lambda x: 1 - whole.sf(x) ** 3, share=3)
    gof.assert_ks(draws[:, 2], lambda x: whole.cdf(x) ** 3, share=3)
    x = np.array([-1.0, 0.2, 3.0])
    expected = np.log(6) + whole.logpdf(x).sum()
    assert float(law.log_prob(x)) == pytest.approx(expected, rel=1e-5)


# --- the public face --------------------------------------------------------------


def some_ratings():
    users = [f"u{u}" for u in tiny.USER]
    items = [f"i{i}" for i in tiny.ITEM]
    return im3f.Ratings.from_arrays(users, items, tiny.RATING, duplicates="keep")


def test_the_public_model_takes_ratings_and_an_open_spec():
    ratings = some_ratings()
    model = im3f.generative_model(
        im3f.M3F(2, 1, 2, rating_variance=0.5, user_bias_variance=0.2), ratings
    )
    sites = {}

    @quick_jit
    def run(key, rating):
        seeded = numpyro.handlers.seed(model, key)
        sites.update(numpyro.handlers.trace(seeded).get_trace(rating))
        return {k: v["value"] for k, v in sites.items() if v["type"] != "plate"}

    values = run(jax.random.key(0), ratings.rating)
    # User 3 has no rating, so there is no row of theirs.
    assert values["user_factors"].shape == (4, 2)
    assert values["log_user_row_weights"].shape == (4, 2)
    assert values["user_bias"].shape == (4, 1)
    assert sites["ratings"]["is_observed"]
    assert sites["user_topic_of_rating"]["infer"] == {"enumerate": "parallel"}
    plates = {k for k, v in sites.items() if v["type"] == "plate"}
    assert plates == {
        "users",
        "items",
        "user_topics",
        "item_topics",
        "rows_of_ratings",
    }
    assert sites["user_bias_variance"]["type"] == "deterministic"
    user = np.unique(tiny.USER, return_inverse=True)[1]
    expected = ratings.rating.mean() + np.sum(
        values["user_factors"][user] * values["item_factors"][tiny.ITEM], axis=1
    )
    expected += values["user_bias"][user, 0]
    expected += values["item_bias"][tiny.ITEM, values["user_topic_of_rating"]]
    np.testing.assert_allclose(values["mean"], expected, atol=1e-5)


@pytest.mark.parametrize(
    "spec, settings, message",
    [
        (im3f.BPMF(2), {"topics": "summed"}, "'explicit' or 'marginal'"),
        (im3f.IM3F(2, topics=im3f.CRF()), {}, "no finite weights"),
    ],
)
def test_what_cannot_be_written_is_refused(spec, settings, message):
    with pytest.raises(InputError, match=message):
        im3f.generative_model(spec, some_ratings(), **settings)


def test_other_things_than_ratings_are_refused():
    with pytest.raises(InputError, match="make Ratings of it"):
        im3f.generative_model(im3f.BPMF(2), np.ones((3, 3)))


# --- NUTS -------------------------------------------------------------------------


def far_rows(*arguments, **settings):
    rows = nuts_against_gibbs(*arguments, **settings)
    assert len(rows) > 20
    limit = stats.norm.isf(0.5 * gof.FAILURE / len(rows))
    return [row for row in rows if not abs(row.z) < limit]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["iM3F", "M3F", "M3F ordinal"])
def test_nuts_on_the_marginal_model_agrees_with_gibbs(name):
    assert far_rows(name) == []


@pytest.mark.slow
def test_a_wrong_sweep_is_told_from_nuts():
    def wrong(key, state, spec, data):
        spec = dataclasses.replace(spec, user_bias_prior=spec.item_bias_prior)
        return gibbs_sweep(key, state, spec, data)

    names = {row.name for row in far_rows("M3F", sweep=wrong)}
    assert "user_bias_variance" in names and "item_bias_variance" not in names
