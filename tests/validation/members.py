"""The members of the family on a tiny problem, and their states drawn from the prior.

Five users, three items, sixteen ratings. One user has no rating, some pairs are rated
twice (so that a cell of a restaurant holds several ratings), and every size and every
number of a prior differs between the two sides, so that a mix-up of sides cannot pass.
All moments that the statistics need exist: nu_0 >= D + 4, shapes well above 2.

PMF has no member here: it is one point (MAP), not a posterior.
"""

import dataclasses
from functools import cache
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from im3f_jax.data import layout
from im3f_jax.data.layout import BlockSizes
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
from im3f_jax.model.noise import GammaNoise
from im3f_jax.model.prior import draw_prior
from im3f_jax.model.reciprocal import NotReciprocal, Reciprocal, is_unordered
from im3f_jax.model.scalars import Gamma, InverseGamma
from im3f_jax.model.spec import ModelSpec
from im3f_jax.model.time_effects import TimeBins, TimeDrift
from im3f_jax.model.topic_factors import TopicFactors
from im3f_jax.model.topic_prior import CRF, HDP, FiniteDirichlet, NoTopics

NUM_USERS, NUM_ITEMS = 5, 3
LATENT_DIM, USER_TOPICS, ITEM_TOPICS = 2, 3, 4
# Sorted by user, then item: the order of the layout. User 3 has no rating.
USER = np.array([0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 4, 4, 4, 4])
ITEM = np.array([0, 0, 0, 1, 1, 2, 0, 0, 1, 1, 0, 1, 0, 0, 0, 2])
NUM_RATINGS = len(USER)
# Of persons, in the same order: 3 has no rating. Ratings 0 and 6 are of one pair, in
# both orders.
FIRST = np.array([0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 4, 4, 4, 4])
SECOND = np.array([1, 1, 1, 2, 2, 4, 0, 0, 2, 2, 1, 4, 0, 0, 1, 2])
NUM_PERSONS = 5
# Read by the members of time only. Item 2 has no rating in the first bin.
TIMES = TimeColumns(
    np.array([0, 1, 1, 0, 1, 1, 0, 1, 0, 0, 1, 0, 0, 1, 1, 1]),
    np.array(
        [-1.2, 0.3, 1.5, -0.8, 0.6, 1.1, -1.4, 0.9]
        + [-0.5, -0.7, 1.3, -1.0, -0.4, 0.2, 1.6, 0.8]
    ),
)

LIKELIHOOD = Gaussian(InverseGamma(5.0, 2.5), 0.4)  # the floor cuts off a third
FACTORS = NormalWishart(0.4, LATENT_DIM + 4.5, 0.5, 1.5)
SAMPLED = (
    TopicNormal(InverseGamma(5.0, 2.0), InverseGamma(5.5, 3.0), -0.8),
    TopicNormal(InverseGamma(6.0, 1.5), InverseGamma(6.5, 5.0), 0.6),
)
MEANS_FIXED = tuple(dataclasses.replace(b, topic_mean_variance=0.0) for b in SAMPLED)
# Means so far apart that a rating tells of which dish it is, for mutants to show; from
# its own start such a chain takes long, and only Geweke's test is asked of it.
APART = tuple(
    dataclasses.replace(b, topic_mean_variance=InverseGamma(5.5, scale))
    for b, scale in zip(SAMPLED, (15.0, 20.0), strict=True)
)
ALL_EQUAL_MEANS = tuple(dataclasses.replace(b, variance=0.0) for b in SAMPLED)
SHARED = tuple(
    SharedNormal(b.variance, b.topic_mean_variance, b.topic_mean, shared)
    for b, shared in zip(
        SAMPLED, (InverseGamma(4.5, 2.5), InverseGamma(5.5, 4.0)), strict=True
    )
)
USER_DISH, USER_TABLE = Gamma(4.0, 2.0), Gamma(5.0, 2.5)
ITEM_DISH, ITEM_TABLE = Gamma(5.0, 4.0), Gamma(4.0, 1.2)


def make_spec(user_topics, item_topics, biases=SAMPLED, **others):
    """Make a member from its topic priors."""
    usual = {
        "latent_dim": LATENT_DIM,
        "likelihood": LIKELIHOOD,
        "factor_prior": FACTORS,
        "global_bias": 1.3,
    }
    return ModelSpec(
        user_bias_prior=biases[0],
        item_bias_prior=biases[1],
        user_topic_prior=user_topics,
        item_topic_prior=item_topics,
        **usual | others,
    )


def _hdp(user, item):
    return (
        HDP(USER_TOPICS, user, USER_DISH, USER_TABLE),
        HDP(ITEM_TOPICS, item, ITEM_DISH, ITEM_TABLE),
    )


def _franchise(likelihood):
    return (
        CRF(likelihood, USER_DISH, USER_TABLE, NUM_RATINGS + 2, 10),
        CRF(likelihood, ITEM_DISH, ITEM_TABLE, NUM_RATINGS + 2, 10),
    )


# Four levels for sixteen ratings: often one of them has none.
ORDINAL = {"likelihood": Ordinal((1.0, 2.0, 3.5, 4.0), 1.5), "global_bias": 0.0}
# Shapes about 3: precisions that differ by a factor of two and more.
USER_NOISE, ITEM_NOISE = GammaNoise(Gamma(6.0, 2.0)), GammaNoise(Gamma(7.0, 2.5))
TIME = {
    "item_time": TimeBins(InverseGamma(5.0, 3.0), 2),
    "user_time": TimeDrift(InverseGamma(4.5, 2.5)),
}
# The same under all topics, as in M3F-TIF: the topics select vectors instead.
STATIC = tuple(
    SharedNormal(0.0, 0.0, 0.0, InverseGamma(shape, scale))
    for shape, scale in ((4.5, 2.5), (5.5, 4.0))
)
TOPIC_FACTORS = TopicFactors(2, NormalWishart(0.8, 7.5, 0.6, 2.0))
ONE_FRANCHISE = (HDP(USER_TOPICS, "weak_limit", USER_DISH, USER_TABLE),) * 2
FINITE = FiniteDirichlet(USER_TOPICS, 1.5), FiniteDirichlet(ITEM_TOPICS, 3.0)
FIXED_HDP = (
    HDP(USER_TOPICS, "weak_limit", 1.2, 2.0),
    HDP(ITEM_TOPICS, "stick_breaking", 2.0, 3.0),
)

# Most of six topics are empty, and get little weight.
SIX = (
    HDP(6, "weak_limit", Gamma(4.0, 4.0), USER_TABLE),
    HDP(6, "stick_breaking", Gamma(5.0, 8.0), ITEM_TABLE),
)

MEMBERS = {
    "BPMF": make_spec(NoTopics(), NoTopics()),
    "M3F": make_spec(*FINITE, MEANS_FIXED),
    "M3F, biases equal to means": make_spec(*FINITE, ALL_EQUAL_MEANS),
    "iM3F weak limit": make_spec(*_hdp("weak_limit", "weak_limit")),
    "iM3F sticks": make_spec(*_hdp("stick_breaking", "stick_breaking")),
    "iM3F both": make_spec(*_hdp("weak_limit", "stick_breaking")),
    "iM3F as run": make_spec(*FIXED_HDP, ALL_EQUAL_MEANS),
    "iM3F in little room": make_spec(*SIX),
    # Room for one dish and one table a rating: it never runs out.
    "CRF conditional": make_spec(*_franchise("conditional")),
    "CRF apart": make_spec(*_franchise("conditional"), APART),
    "CRF marginal": make_spec(*_franchise("marginal"), ALL_EQUAL_MEANS),
    # One topic on one side, isotropic factors.
    "mixed sides": make_spec(
        FiniteDirichlet(1, 2.0),
        _hdp("weak_limit", "weak_limit")[1],
        factor_prior=IsotropicNormal(1.7),
    ),
    # No topics on one side, hence no biases on the other.
    "user topics only": make_spec(_hdp("stick_breaking", "weak_limit")[0], NoTopics()),
    "BPMF ordinal": make_spec(NoTopics(), NoTopics(), **ORDINAL),
    "iM3F ordinal": make_spec(*_hdp("weak_limit", "stick_breaking"), **ORDINAL),
    "iM3F shared biases": make_spec(*_hdp("weak_limit", "stick_breaking"), SHARED),
    "CRF shared biases": make_spec(*_franchise("conditional"), SHARED),
    "BPMF noise": make_spec(
        NoTopics(), NoTopics(), user_noise=USER_NOISE, item_noise=ITEM_NOISE
    ),
    "iM3F ordinal noise": make_spec(
        *_hdp("weak_limit", "stick_breaking"),
        **ORDINAL,
        user_noise=USER_NOISE,
        rating_noise=GammaNoise(2.5),  # Student's t of 5 degrees of freedom
    ),
    # Three columns: the one in the middle has others before and after it.
    "BPMF shrinkage": make_spec(
        NoTopics(),
        NoTopics(),
        latent_dim=3,
        factor_prior=MultiplicativeGamma(6.0, 4.0, 3.0, 1.5),
    ),
    "BPMF time": make_spec(NoTopics(), NoTopics(), user_noise=USER_NOISE, **TIME),
    "M3F ordinal time": make_spec(*FINITE, MEANS_FIXED, **ORDINAL, **TIME),
    "CRF ordinal": make_spec(*_franchise("conditional"), **ORDINAL),
    "M3F topic factors": make_spec(*FINITE, STATIC, topic_factors=TOPIC_FACTORS),
    "separate": make_spec(*FINITE, MEANS_FIXED, own_topics=True),
    "iM3F directed": make_spec(*ONE_FRANCHISE, reciprocal=Reciprocal(True)),
    "iM3F unordered": make_spec(
        *ONE_FRANCHISE, SAMPLED[:1] * 2, reciprocal=Reciprocal(False)
    ),
    "iM3F in shards": make_spec(*_hdp("weak_limit", "stick_breaking")),
    "M3F ordinal shared in shards": make_spec(*FINITE, SHARED, **ORDINAL),
    "iM3F in little room in shards": make_spec(*SIX),
}


def rows_of(spec):
    """Rows of the pairs, and the numbers of rows of users and of items."""
    if isinstance(spec.reciprocal, Reciprocal):
        return FIRST, SECOND, NUM_PERSONS, NUM_PERSONS
    return USER, ITEM, NUM_USERS, NUM_ITEMS


def data_of(name):
    """Lay the pairs of a member out, see `make_data`."""
    return make_data(MEMBERS[name].reciprocal)


@cache
def make_data(reciprocal=NotReciprocal()):  # noqa: B008
    """Lay the pairs out with little padding; the ratings are put in by each chain.

    The layout's own buckets would make a tiny problem mostly padding.
    """

    def bucket(size, minimum=0):
        return -(-size // 4) * 4

    sizes = BlockSizes(block=2, group=4, rows=4, chunk=4)
    spec = dataclasses.replace(MEMBERS["BPMF"], reciprocal=reciprocal)
    user, item, *numbers = rows_of(spec)
    with mock.patch.object(layout, "bucket", bucket):
        data, order = layout.lay_out(
            user,
            item,
            np.zeros(NUM_RATINGS),
            *numbers,
            sizes,
            times=TIMES,
            unordered=is_unordered(spec),
        )
    assert np.all(order == np.arange(NUM_RATINGS))
    return data


def without_ratings(data):
    """Make all of the data padding."""

    def empty(blocks):
        return dataclasses.replace(
            blocks,
            batch_start=np.zeros_like(blocks.batch_start),
            row=np.full_like(blocks.row, blocks.row.max() + blocks.rows),
        )

    return dataclasses.replace(
        data,
        num_ratings=np.int32(0),
        user_blocks=empty(data.user_blocks),
        item_blocks=empty(data.item_blocks),
        pairs=data.pairs
        and dataclasses.replace(data.pairs, blocks=empty(data.pairs.blocks)),
    )


def rate(state, spec, latent):
    """Put normal draws on the scale of the ratings."""
    if not isinstance(spec.likelihood, Ordinal):
        return latent
    levels = jnp.asarray(spec.likelihood.levels, latent.dtype)
    return levels[jnp.searchsorted(state.cut_points, latent)]


def prior_state(key, spec, data):
    """Draw a state and the ratings (shape (N,), padding 0) jointly from the prior."""
    dtype = data.rating.dtype
    draw = draw_prior(key, spec, *rows_of(spec), dtype, times=TIMES)
    (slots,) = data.rating.shape

    def padded(values, rows, fill=0):
        widths = [(0, rows - values.shape[0])] + [(0, 0)] * (values.ndim - 1)
        return jnp.pad(values, widths, constant_values=fill)

    fields = {}
    sides = (("user", "item", data.user_rows), ("item", "user", data.item_rows))
    for side, other, rows in sides:
        prior = getattr(spec, f"{side}_topic_prior")
        own, others = (getattr(spec, f"num_{s}_topics") for s in (side, other))
        fixed = getattr(spec, f"{side}_bias_prior")
        scalar = {
            name: draw.get(f"{side}_{name}", jnp.ones((), dtype))
            for name in ("dish_concentration", "table_concentration")
        }
        if isinstance(prior, FiniteDirichlet):
            scalar["table_concentration"] = jnp.asarray(prior.concentration, dtype)
        uniform = jnp.full(own, -np.log(max(own, 1)), dtype)
        weights = draw.get(f"log_{side}_row_weights", jnp.zeros((rows, 0), dtype))
        # The other side's rows under own_topics.
        weight_rows = getattr(data, f"{other if spec.own_topics else side}_rows")
        topic = draw.get(f"{side}_topic_of_rating", jnp.zeros(slots, jnp.int32))
        fields |= {
            f"{side}_factors": padded(draw[f"{side}_factors"], rows),
            f"{side}_factor_prior": FactorPriorState(
                draw[f"{side}_factor_mean"], draw[f"{side}_factor_precision"]
            ),
            f"{side}_bias": padded(
                draw.get(f"{side}_bias", jnp.zeros((rows, others), dtype)), rows
            ),
            f"{side}_bias_prior": BiasPriorState(
                *(
                    draw.get(f"{side}_{name}", jnp.asarray(default, dtype))
                    for name, default in (
                        ("topic_mean", jnp.full(others, fixed.topic_mean, dtype)),
                        ("bias_variance", 1.0),
                        ("topic_mean_variance", 1.0),
                    )
                )
            ),
            f"{side}_topic_of_rating": padded(topic, slots),
            f"{side}_topic_weights": TopicWeights(
                padded(weights, weight_rows, -np.log(max(own, 1))),
                draw.get(f"log_{side}_global_weights", uniform),
                scalar["dish_concentration"],
                scalar["table_concentration"],
            ),
        }
        if isinstance(fixed, SharedNormal):
            name = f"{side}_bias_prior"
            fields[name] = fields[name]._replace(
                shared=padded(draw[f"{side}_shared_bias"], rows),
                shared_variance=draw[f"{side}_shared_bias_variance"],
            )
    noise = NoiseState(
        **{
            kind: padded(draw[f"{kind}_precision"], rows, 1)
            for kind, rows in (
                ("user", data.user_rows),
                ("item", data.item_rows),
                ("rating", slots),
            )
            if f"{kind}_precision" in draw
        },
        user_shape=draw.get("user_noise_shape"),
        item_shape=draw.get("item_noise_shape"),
    )
    time = {
        kind: padded(draw[name], rows)
        for kind, name, rows in (
            ("user", "user_drift", data.user_rows),
            ("item", "item_time_bias", data.item_rows),
        )
        if name in draw
    }
    time |= {f"{kind}_variance": draw[f"{kind}_time_variance"] for kind in time}
    if isinstance(spec.topic_factors, TopicFactors):
        fields["topic_factors"] = TopicFactorState(
            *(
                padded(draw[f"{side}_topic_factors"], rows)
                for side, rows in (("user", data.user_rows), ("item", data.item_rows))
            ),
            *(
                FactorPriorState(
                    draw[f"{side}_topic_factor_mean"],
                    draw[f"{side}_topic_factor_precision"],
                )
                for side in ("user", "item")
            ),
        )
    state = State(
        **fields,
        noise=noise,
        time=TimeState(**time),
        rating_variance=draw["rating_variance"],
        global_bias=jnp.asarray(spec.global_bias, dtype),
        cut_points=draw.get("cut_points", jnp.zeros(0, dtype)),
        column_increments=draw.get("column_increments"),
    )
    return jax.tree.map(lambda x: x + jnp.zeros((), x.dtype), state), padded(
        draw["ratings"], slots
    )
