"""Tiny data and random states, and the model's sums once more, in plain numpy.

Five users, four items, twelve ratings; one user has none, one pair is rated twice. The
two sides differ in every size, so that a mix-up of sides cannot pass. Padding is filled
with numbers that must not matter.
"""

import contextlib
from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import numpy as np
import pytest
from scipy import stats

from im3f_jax.data.layout import BlockSizes, lay_out
from im3f_jax.data.times import TimeColumns
from im3f_jax.gibbs.state import (
    BiasPriorState,
    FactorPriorState,
    NoiseState,
    State,
    TimeState,
    TopicFactorState,
    TopicWeights,
)
from im3f_jax.model.bias_prior import SharedNormal, TopicNormal
from im3f_jax.model.factor_prior import (
    IsotropicNormal,
    MultiplicativeGamma,
    NormalWishart,
)
from im3f_jax.model.likelihood import Gaussian, Ordinal
from im3f_jax.model.log_joint import log_joint
from im3f_jax.model.noise import GammaNoise
from im3f_jax.model.reciprocal import Reciprocal, is_reciprocal, is_unordered
from im3f_jax.model.scalars import Gamma, InverseGamma
from im3f_jax.model.spec import ModelSpec
from im3f_jax.model.time_effects import TimeBins, TimeDrift, TimeEffect
from im3f_jax.model.topic_factors import TopicFactors
from im3f_jax.model.topic_prior import HDP, FiniteDirichlet, NoTopics
from tests.quick import quick_jit

NUM_USERS, NUM_ITEMS, NUM_RATINGS = 5, 4, 12
LATENT_DIM, USER_TOPICS, ITEM_TOPICS = 2, 3, 4

# In no order; user 3 has no rating, user 4 rated item 1 twice.
USER = np.array([4, 0, 1, 2, 0, 4, 0, 1, 2, 4, 0, 1])
ITEM = np.array([1, 2, 0, 1, 0, 2, 3, 2, 0, 1, 1, 1])
RATING = np.array([3.0, 4, 1, 5, 2, 3, 4, 5, 2, 1, 3, 4])

# Item 3 has no rating in two of the bins; user 2 no drift.
TIME_BINS = 3
TIMES = TimeColumns(
    np.array([0, 2, 1, 1, 0, 2, 2, 0, 1, 2, 0, 1]),
    np.array([0.4, -1.5, 2.0, 0, 0.7, -0.3, -0.9, 0.2, 0, 1.1, 0.5, -2.1]),
)

# Of persons, of whom 3 has no rating: 4 and 1 are paired in both orders, 0 and 4 twice.
PERSONS = 5
FIRST = np.array([4, 0, 1, 2, 0, 4, 0, 1, 2, 4, 0, 1])
SECOND = np.array([1, 2, 0, 1, 1, 2, 4, 4, 0, 2, 4, 2])

SIZES = BlockSizes(block=4, group=8, rows=64, chunk=16)


class Precision(NamedTuple):
    """A float type, and how closely differences of log densities (nats) then agree."""

    dtype: type
    atol: float
    rtol: float


# The log joint of the tiny data is some hundreds of nats: float32 gives it in steps of
# 3e-5, and it is a sum of a hundred terms.
PRECISIONS = {
    "float64": Precision(np.float64, 1e-9, 1e-9),
    "float32": Precision(np.float32, 2e-3, 2e-4),
}


@contextlib.contextmanager
def in_precision(name):
    """Run JAX in a precision of PRECISIONS."""
    with jax.enable_x64(name == "float64"):
        yield PRECISIONS[name]


@dataclass(frozen=True)
class Side:
    """Where a side's things are. Its biases are indexed by the other side's topics."""

    name: str
    other_name: str

    @property
    def other(self):
        return SIDES[self.other_name]

    def of(self, owner, what):
        """Get an attribute such as user_factors or user_blocks."""
        return getattr(owner, f"{self.name}_{what}")

    def put(self, state, **values):
        """Replace fields of a state, named without the side."""
        return state._replace(**{f"{self.name}_{k}": v for k, v in values.items()})

    def rows(self, data):
        """Row of each rating."""
        return getattr(data, self.name)

    def number(self, data):
        """Number of rows that are not padding."""
        return int(getattr(data, f"num_{self.name}s"))


SIDES = {"user": Side("user", "item"), "item": Side("item", "user")}


def rows_of(spec):
    """Rows of the twelve ratings as they are given, and the numbers of rows."""
    if is_reciprocal(spec):
        return FIRST, SECOND, PERSONS, PERSONS
    return USER, ITEM, NUM_USERS, NUM_ITEMS


def make_data(dtype, sizes=SIZES, spec=None):
    """Lay the twelve ratings out, their times too, which most specs do not read."""
    if spec is not None and is_reciprocal(spec):
        first, second, *numbers = rows_of(spec)
        given = first, second, RATING, *numbers, sizes, dtype
        return lay_out(*given, unordered=is_unordered(spec))[0]
    return lay_out(USER, ITEM, RATING, NUM_USERS, NUM_ITEMS, sizes, dtype, TIMES)[0]


def make_spec(user_topics="weak_limit", item_topics="stick_breaking"):
    """Make a spec of which everything is sampled and no two numbers are equal.

    A construction for each side, or "finite" or "none".
    """

    def topics(kind, number, extra):
        match kind:
            case "none":
                return NoTopics()
            case "finite":
                return FiniteDirichlet(number, 3.0 + extra)
            case _:
                return HDP(
                    number, kind, Gamma(2.0 + extra, 1.5), Gamma(3.0 + extra, 0.8)
                )

    return ModelSpec(
        latent_dim=LATENT_DIM,
        likelihood=Gaussian(InverseGamma(2.5, 0.8), 0.083),
        factor_prior=NormalWishart(0.7, 4.5, 0.2, 3.0),
        user_bias_prior=TopicNormal(
            InverseGamma(3.0, 0.4), InverseGamma(2.2, 0.3), -0.3
        ),
        item_bias_prior=TopicNormal(
            InverseGamma(3.5, 0.6), InverseGamma(2.7, 0.5), 0.4
        ),
        user_topic_prior=topics(user_topics, USER_TOPICS, 0.25),
        item_topic_prior=topics(item_topics, ITEM_TOPICS, 0.5),
        global_bias=2.9,
    )


def share(spec, user_variance=None, item_variance=None):
    """Give the biases of both sides a part that a row's topics share."""
    defaults = InverseGamma(3.2, 0.7), InverseGamma(2.6, 0.35)
    for side, given, default in zip(
        SIDES.values(), (user_variance, item_variance), defaults, strict=True
    ):
        prior = side.of(spec, "bias_prior")
        prior = SharedNormal(
            prior.variance,
            prior.topic_mean_variance,
            prior.topic_mean,
            default if given is None else given,
        )
        spec = replace(spec, **{f"{side.name}_bias_prior": prior})
    return spec


USER_SHAPE, ITEM_SHAPE = Gamma(2.5, 0.9), Gamma(3.5, 1.4)


def noisy(spec, user=USER_SHAPE, item=ITEM_SHAPE, rating=2.3):
    """Give the noise precisions by user, by item and by rating; None leaves one out."""
    for side, shape in (("user", user), ("item", item), ("rating", rating)):
        if shape is not None:
            spec = replace(spec, **{f"{side}_noise": GammaNoise(shape)})
    return spec


ITEM_TIME, USER_TIME = InverseGamma(3.3, 0.9), InverseGamma(2.4, 0.45)


def timed(spec, item=ITEM_TIME, user=USER_TIME):
    """Let items and users depend on time, by variances; None leaves one out."""
    if item is not None:
        spec = replace(spec, item_time=TimeBins(item, TIME_BINS))
    return spec if user is None else replace(spec, user_time=TimeDrift(user))


# Of another length than the factors.
TOPIC_FACTORS = TopicFactors(3, NormalWishart(0.6, 5.5, -0.1, 2.0))


def select(spec):
    """Let topics select factors."""
    return replace(spec, topic_factors=TOPIC_FACTORS)


def own(spec):
    """Let each row mix biases of its own."""
    return replace(spec, own_topics=True)


def weights_of(side, spec):
    """The side in whose rows the weights of a side's topics are."""
    return side.other if spec.own_topics else side


def reciprocate(spec, directed):
    """Let both sides be persons: all that they share has the users' priors."""
    spec = replace(
        spec, reciprocal=Reciprocal(directed), item_topic_prior=spec.user_topic_prior
    )
    return spec if directed else replace(spec, item_bias_prior=spec.user_bias_prior)


def tie(state, spec):
    """Give both sides of a state what they share: the users'."""
    if not is_reciprocal(spec):
        return state
    state = state._replace(item_topic_weights=state.user_topic_weights)
    if not is_unordered(spec):
        return state
    names = ("factors", "factor_prior", "bias", "bias_prior")
    return state._replace(
        **{f"item_{name}": getattr(state, f"user_{name}") for name in names}
    )


def make_fixed_spec(variance=0.0, topic_mean_variance=0.0):
    """Make M3F: finite topics, one on the items' side, and nothing global sampled."""
    return ModelSpec(
        latent_dim=LATENT_DIM,
        likelihood=Gaussian(0.7, 0.083),
        factor_prior=IsotropicNormal(1.7),
        user_bias_prior=TopicNormal(variance, topic_mean_variance, -0.3),
        item_bias_prior=TopicNormal(variance, topic_mean_variance, 0.4),
        user_topic_prior=FiniteDirichlet(2, 3.0),
        item_topic_prior=FiniteDirichlet(1, 5.0),
        global_bias=2.9,
    )


def make_ordinal_spec(*topics):
    """Make an ordinal spec; no rating has the level 3.5."""
    levels = (1.0, 2, 3, 3.5, 4, 5)
    spec = make_spec(*topics)
    return replace(spec, likelihood=Ordinal(levels, 1.7), global_bias=0.0)


def shrink(spec):
    """Shrink the columns of the factors, of which there are three."""
    prior = MultiplicativeGamma(2.5, 3.4, 1.7, 2.5)
    return replace(spec, latent_dim=3, factor_prior=prior)


def put_increments(state, increments):
    """Put delta and the precisions that it gives both sides; their means stay."""
    dtype = state.rating_variance.dtype
    precision = [np.prod(increments[: h + 1]) for h in range(len(increments))]
    precision = np.diag(precision).astype(dtype)
    return state._replace(
        user_factor_prior=state.user_factor_prior._replace(precision=precision),
        item_factor_prior=state.item_factor_prior._replace(precision=precision),
        column_increments=np.asarray(increments, dtype),
    )


def positive_definite(rng, dim=LATENT_DIM):
    root = rng.normal(size=(dim, dim + 2))
    return root @ root.T / dim + 0.3 * np.eye(dim)


def make_state(spec, data, seed=0):
    """Make a state at random, without the library's samplers.

    One topic of each side that has several holds no rating.
    """
    rng = np.random.default_rng(seed)
    dtype = data.rating.dtype
    (num_slots,) = data.rating.shape

    def factors(rows, number):
        values = rng.normal(size=(rows, spec.latent_dim))
        values[number:] = 0
        return values

    def factor_prior():
        return FactorPriorState(
            rng.normal(size=spec.latent_dim), positive_definite(rng, spec.latent_dim)
        )

    def bias_prior(num_topics, prior, rows):
        made = BiasPriorState(
            rng.normal(size=num_topics), rng.uniform(0.2, 1), rng.uniform(0.2, 1)
        )
        if isinstance(prior, SharedNormal):
            made = made._replace(
                shared=rng.normal(size=rows), shared_variance=rng.uniform(0.2, 1)
            )
        return made

    def weights(rows, num_topics):
        if not num_topics:
            empty = np.zeros((rows, 0))
            return TopicWeights(empty, empty[0], np.ones(()), np.ones(()))
        theta = rng.dirichlet(np.full(num_topics, 1.3), size=rows)
        pi = rng.dirichlet(np.full(num_topics, 2.0))
        return TopicWeights(
            np.log(theta), np.log(pi), rng.uniform(0.5, 2), rng.uniform(1, 4)
        )

    def topics(num_topics):
        used = num_topics - 1 if num_topics > 1 else num_topics
        values = rng.integers(max(used, 1), size=num_slots)
        # The empty topic is neither the first nor the last.
        return np.where(values >= 1, values + (num_topics > 1), values)

    def noise():
        # A stream of its own: the other numbers do not depend on it.
        rng, fields = np.random.default_rng(seed + 1000), {}
        for side, size in (
            ("user", data.user_rows),
            ("item", data.item_rows),
            ("rating", num_slots),
        ):
            prior = getattr(spec, f"{side}_noise")
            if isinstance(prior, GammaNoise):
                fields[side] = rng.gamma(2.0, 0.5, size) + 0.1
                if side != "rating":
                    sampled = isinstance(prior.shape, Gamma)
                    shape = rng.uniform(1, 4) if sampled else prior.shape
                    fields[f"{side}_shape"] = shape
        return NoiseState(**fields)

    def time():
        # A stream of its own, too; numbers that must not matter in padding.
        rng, fields = np.random.default_rng(seed + 2000), {}
        for side, shape in (
            ("item", (data.item_rows, TIME_BINS)),
            ("user", (data.user_rows,)),
        ):
            prior = getattr(spec, f"{side}_time")
            if isinstance(prior, TimeEffect):
                sampled = isinstance(prior.variance, InverseGamma)
                variance = rng.uniform(0.2, 1) if sampled else prior.variance
                fields |= {side: rng.normal(size=shape), f"{side}_variance": variance}
        return TimeState(**fields)

    def topic_factors():
        if not isinstance(spec.topic_factors, TopicFactors):
            return None
        rng, dim = np.random.default_rng(seed + 3000), spec.topic_factors.dim
        prior = [
            FactorPriorState(rng.normal(size=dim), positive_definite(rng, dim))
            for _ in range(2)
        ]
        user = rng.normal(size=(data.user_rows, spec.num_item_topics, dim))
        item = rng.normal(size=(data.item_rows, spec.num_user_topics, dim))
        user[NUM_USERS:], item[NUM_ITEMS:] = 0, 0
        return TopicFactorState(user, item, *prior)

    users, items = spec.num_user_topics, spec.num_item_topics

    def cut_points():
        levels = getattr(spec.likelihood, "levels", (0.0,))
        return np.sort(rng.normal(size=len(levels) - 1))

    state = State(
        user_factors=factors(data.user_rows, int(data.num_users)),
        item_factors=factors(data.item_rows, int(data.num_items)),
        user_factor_prior=factor_prior(),
        item_factor_prior=factor_prior(),
        user_bias=rng.normal(size=(data.user_rows, items)),
        item_bias=rng.normal(size=(data.item_rows, users)),
        user_bias_prior=bias_prior(items, spec.user_bias_prior, data.user_rows),
        item_bias_prior=bias_prior(users, spec.item_bias_prior, data.item_rows),
        user_topic_of_rating=topics(users).astype(np.int32),
        item_topic_of_rating=topics(items).astype(np.int32),
        **{
            f"{side.name}_topic_weights": weights(
                getattr(data, f"{weights_of(side, spec).name}_rows"),
                side.of(spec, "topic_prior").num_topics,
            )
            for side in SIDES.values()
        },
        rating_variance=rng.uniform(0.3, 1.5),
        global_bias=2.9,
        cut_points=cut_points(),
        noise=noise(),
        time=time(),
        topic_factors=topic_factors(),
    )
    if isinstance(spec.likelihood, Ordinal):
        state = state._replace(rating_variance=1.0, global_bias=0.0)
    state = jax.tree.map(
        lambda x: x if np.asarray(x).dtype == np.int32 else np.asarray(x, dtype), state
    )
    if isinstance(spec.factor_prior, MultiplicativeGamma):
        state = put_increments(state, rng.uniform(0.4, 2.5, size=spec.latent_dim))
    return tie(state, spec)


def make(precision, spec=None, seed=0, sizes=SIZES):
    """Make a spec, data and a random state."""
    spec = make_spec() if spec is None else spec
    data = make_data(precision.dtype, sizes, spec)
    return spec, data, make_state(spec, data, seed)


def transplant(state, data, seed=50):
    """Carry a state over to another layout of the same ratings, with other padding."""
    spec = make_spec()
    rows = {"user": NUM_USERS, "item": NUM_ITEMS}
    result = make_state(spec, data, seed)
    assert not jax.tree.leaves((state.noise, state.time, state.topic_factors))

    def take(new, old, number):
        new = new.copy()
        new[:number] = old[:number]
        return new

    for side in SIDES.values():
        number = rows[side.name]
        weights = side.of(state, "topic_weights")
        theta = side.of(result, "topic_weights").log_row_weights
        theta = take(theta, weights.log_row_weights, number)
        topic = side.of(result, "topic_of_rating")
        result = side.put(
            result,
            factors=take(side.of(result, "factors"), side.of(state, "factors"), number),
            bias=take(side.of(result, "bias"), side.of(state, "bias"), number),
            factor_prior=side.of(state, "factor_prior"),
            bias_prior=side.of(state, "bias_prior"),
            topic_weights=weights._replace(log_row_weights=theta),
            topic_of_rating=take(topic, side.of(state, "topic_of_rating"), NUM_RATINGS),
        )
    return result._replace(
        rating_variance=state.rating_variance,
        global_bias=state.global_bias,
        cut_points=state.cut_points,
    )


_joint = quick_jit(log_joint)


def joint(state, spec, data, **given):
    """Log joint of a state, as a number."""
    return float(_joint(state, spec, data, **given))


def assert_same_differences(conditional, joint, precision):
    """Log densities at several values differ by the same, whichever way."""
    conditional, joint = np.float64(conditional), np.float64(joint)
    assert conditional.shape == joint.shape and len(joint) > 1
    assert np.ptp(joint) > 0.05, "the values are too alike to tell anything"
    np.testing.assert_allclose(
        conditional - conditional[0],
        joint - joint[0],
        atol=precision.atol,
        rtol=precision.rtol,
    )


# The model's sums once more, over the ratings one by one.


def residual(state, data, *, without):
    """Ratings less chi_0 and less all parts of their means but those left out.

    `without` holds names among factors, user_bias, item_bias, user_time, item_time and
    topic_factors; float64, 0 in padding.
    """
    result = np.zeros(len(data.rating))
    for n in range(NUM_RATINGS):
        u, j = data.user[n], data.item[n]
        mean = float(state.global_bias)
        if "factors" not in without:
            mean += np.dot(
                np.float64(state.user_factors[u]), np.float64(state.item_factors[j])
            )
        if "user_bias" not in without and state.user_bias.shape[1]:
            mean += float(state.user_bias[u, state.item_topic_of_rating[n]])
        if "item_bias" not in without and state.item_bias.shape[1]:
            mean += float(state.item_bias[j, state.user_topic_of_rating[n]])
        if "item_time" not in without and state.time.item is not None:
            mean += float(state.time.item[j, data.times.bin[n]])
        if "user_time" not in without and state.time.user is not None:
            mean += float(state.time.user[u]) * float(data.times.drift[n])
        extra = state.topic_factors
        if "topic_factors" not in without and extra is not None:
            v = extra.user[u, state.item_topic_of_rating[n]]
            w = extra.item[j, state.user_topic_of_rating[n]]
            mean += np.dot(np.float64(v), np.float64(w))
        result[n] = float(data.rating[n]) - mean
    return result


def precision_of(state, data):
    """Relative precision of each rating, or None where the noise is constant.

    In the dtype of the data; numbers that must not matter in padding.
    """
    if not jax.tree.leaves(state.noise):
        return None
    result = np.random.default_rng(7).uniform(1, 9, len(data.rating))
    for n in range(NUM_RATINGS):
        result[n] = 1.0
        if state.noise.user is not None:
            result[n] *= state.noise.user[data.user[n]]
        if state.noise.item is not None:
            result[n] *= state.noise.item[data.item[n]]
        if state.noise.rating is not None:
            result[n] *= state.noise.rating[n]
    return result.astype(data.rating.dtype)


def squared_error(state, data):
    """Sum of squared residuals times their relative precisions."""
    precision = precision_of(state, data)
    squares = residual(state, data, without=()) ** 2
    return float(np.sum(squares if precision is None else precision * squares))


def topic_counts(side, state, data):
    """Ratings in each (row, topic) cell of a side's own topics, int32."""
    topic = side.of(state, "topic_of_rating")
    counts = np.zeros(side.of(state, "topic_weights").log_row_weights.shape, np.int32)
    for n in range(NUM_RATINGS if counts.shape[1] else 0):
        counts[side.rows(data)[n], topic[n]] += 1
    return counts


def bias_sums(side, state, data):
    """Count, sum of residuals and of precisions in each cell of a side's biases.

    Residuals are weighted by the precisions; their sum is None where all are 1.
    """
    x = residual(state, data, without=(f"{side.name}_bias",))
    precision = precision_of(state, data)
    weight = np.ones(len(x)) if precision is None else precision
    topic = side.other.of(state, "topic_of_rating")
    shape = side.of(state, "bias").shape
    count, total, weights = np.zeros(shape, np.int32), np.zeros(shape), np.zeros(shape)
    for n in range(NUM_RATINGS):
        cell = side.rows(data)[n], topic[n]
        count[cell] += 1
        total[cell] += weight[n] * x[n]
        weights[cell] += weight[n]
    return count, total, None if precision is None else weights


def log_inverse_gamma(x, shape, scale):
    return stats.invgamma.logpdf(x, float(shape), scale=float(scale))


def log_gamma_density(x, shape, rate):
    return stats.gamma.logpdf(x, float(shape), scale=1 / float(rate))


def found():
    """Expect that a mutant's differences are not those of the log joint."""
    return pytest.raises(AssertionError, match="Not equal to tolerance")
