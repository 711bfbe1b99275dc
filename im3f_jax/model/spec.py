"""The model as one frozen spec, made of components.

PMF, BPMF, M3F and iM3F are settings of one model: the presets of `im3f_jax.api` name
them. A spec's numbers are array leaves (changing them compiles nothing), its sizes
are static.
"""

import copy
import dataclasses
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real

import jax

from im3f_jax.errors import InputError
from im3f_jax.model.bias_prior import SharedNormal, TopicNormal
from im3f_jax.model.factor_prior import (
    IsotropicNormal,
    MultiplicativeGamma,
    NormalWishart,
)
from im3f_jax.model.likelihood import Gaussian, Ordinal
from im3f_jax.model.noise import ConstantNoise, GammaNoise
from im3f_jax.model.reciprocal import (
    NotReciprocal,
    Reciprocal,
    is_reciprocal,
    is_unordered,
)
from im3f_jax.model.scalars import Gamma, InverseGamma
from im3f_jax.model.time_effects import NoTime, TimeBins, TimeDrift, TimeEffect
from im3f_jax.model.topic_factors import NoTopicFactors, TopicFactors
from im3f_jax.model.topic_prior import (
    CRF,
    HDP,
    FiniteDirichlet,
    NoTopics,
    stored_topics,
)

__all__ = [
    "ModelSpec",
    "check_levels",
    "has_franchise",
    "resolve",
    "validate",
    "weight_sides",
    "with_room_of",
]


@jax.tree_util.register_dataclass
@dataclass(frozen=True, repr=False)
class ModelSpec:
    """A member of the family.

    r_n ~ Normal(chi_0 + a_u . b_j + c_u[zM_n] + d_j[zU_n], sigma^2): the user's bias
    c_u is indexed by the rating's item topic, the item's bias d_j by its user topic.

    Attributes
    ----------
    latent_dim
        D, the length of a_u and b_j; static.
    likelihood
        How a rating arises from its mean.
    factor_prior
        Prior of the rows of user_factors and of item_factors.
    user_bias_prior
        Prior of user_bias, (num_users, item topics), and of the means of item topics.
    item_bias_prior
        Prior of item_bias, (num_items, user topics), and of the means of user topics.
    user_topic_prior, item_topic_prior
        Priors of the topics (moods of users, contexts of items).
    user_noise, item_noise, rating_noise
        Priors of the relative precisions of the noise; constant in the paper.
    item_time, user_time
        Priors of what an item adds in each bin of time, and of a user's drift; both
        absent in the paper.
    topic_factors
        Factors that topics index, in M3F's topic-indexed-factor form; absent in the
        paper.
    own_topics
        False, the paper's model: the item topics, which select a user's biases, are
        drawn from the item's weights, and user topics, which select an item's, from
        the user's. True: item topics from the user's weights and user topics from the
        item's, so that each row mixes biases of its own; static.
    reciprocal
        Whether both sides are persons of one index, who share topics; not in the paper.
    global_bias
        chi_0, rating scale; None is the mean of the training ratings. 0 under the
        ordinal likelihood, where "rating scale" is that of the latent ratings.
    estimate
        "posterior" (Gibbs) or "map" (one point, by Adam); static.
    """

    latent_dim: int = field(metadata={"static": True})
    likelihood: Gaussian | Ordinal = Gaussian()
    factor_prior: NormalWishart | IsotropicNormal | MultiplicativeGamma = (
        NormalWishart()
    )
    user_bias_prior: TopicNormal = TopicNormal()
    item_bias_prior: TopicNormal = TopicNormal()
    user_topic_prior: NoTopics | FiniteDirichlet | HDP | CRF = NoTopics()
    item_topic_prior: NoTopics | FiniteDirichlet | HDP | CRF = NoTopics()
    user_noise: ConstantNoise | GammaNoise = ConstantNoise()
    item_noise: ConstantNoise | GammaNoise = ConstantNoise()
    rating_noise: ConstantNoise | GammaNoise = ConstantNoise()
    item_time: NoTime | TimeBins = NoTime()
    user_time: NoTime | TimeDrift = NoTime()
    topic_factors: NoTopicFactors | TopicFactors = NoTopicFactors()
    own_topics: bool = field(default=False, metadata={"static": True})
    reciprocal: NotReciprocal | Reciprocal = NotReciprocal()
    global_bias: float | None = None
    estimate: str = field(default="posterior", metadata={"static": True})

    def __repr__(self) -> str:
        shown = []
        for each in dataclasses.fields(self):
            value = repr(getattr(self, each.name))
            if value != repr(each.default):
                shown.append(f"{each.name}={value}")
        return f"{type(self).__name__}({', '.join(shown)})"

    def get_params(self, deep: bool = True) -> dict:
        """Give the settings by name, as scikit-learn's estimators do.

        There is no `set_params`: a spec never changes. `dataclasses.replace` makes
        another, with other settings.

        Parameters
        ----------
        deep
            Give the settings of the components too, as "likelihood__variance".

        Returns
        -------
        dict
            Name of the setting -> its value.
        """
        return _settings(self, deep)

    def __sklearn_clone__(self) -> "ModelSpec":
        return copy.copy(self)

    @property
    def num_user_topics(self) -> int:
        """Number of user topics that the arrays have columns for; 0 without."""
        return stored_topics(self.user_topic_prior)

    @property
    def num_item_topics(self) -> int:
        """Number of item topics that the arrays have columns for; 0 without."""
        return stored_topics(self.item_topic_prior)


def _settings(spec, deep: bool) -> dict:
    """Fields of a spec or a component, as they are; those of its components too."""
    found = {}
    for each in dataclasses.fields(spec):
        found[each.name] = value = getattr(spec, each.name)
        if deep and dataclasses.is_dataclass(value):
            inner = _settings(value, deep).items()
            found |= {f"{each.name}__{name}": one for name, one in inner}
    return found


def has_franchise(spec: ModelSpec) -> bool:
    """Tell whether a side's topics are a Chinese restaurant franchise."""
    return isinstance(spec.user_topic_prior, CRF) or isinstance(
        spec.item_topic_prior, CRF
    )


def weight_sides(spec: ModelSpec, of_user, of_item) -> tuple:
    """Give what belongs to the weights of user topics, and to those of item topics.

    Of users and of items, as they come; the other way round under `own_topics`.
    """
    return (of_item, of_user) if spec.own_topics else (of_user, of_item)


def with_room_of(spec: ModelSpec, other: ModelSpec) -> ModelSpec:
    """Give the topic priors the sizes of those of another spec of the same model."""
    for name in ("user_topic_prior", "item_topic_prior"):
        prior, like = getattr(spec, name), getattr(other, name)
        if isinstance(prior, CRF):
            prior = dataclasses.replace(
                prior, num_topics=like.num_topics, max_tables=like.max_tables
            )
            spec = dataclasses.replace(spec, **{name: prior})
        elif isinstance(prior, HDP):
            prior = dataclasses.replace(prior, stored=like.stored)
            spec = dataclasses.replace(spec, **{name: prior})
    return spec


def validate(spec: ModelSpec) -> None:
    """Refuse a spec that has no meaning.

    Raises
    ------
    InputError
        One sentence that names the setting.
    """
    _whole("latent_dim", spec.latent_dim, 1)
    _optional("global_bias", spec.global_bias, positive=False)
    if isinstance(spec.likelihood, Ordinal):
        _ordinal(spec)
    # The mode is found for a fixed variance.
    sampled = InverseGamma if spec.estimate == "posterior" else None
    _optional("rating_variance", spec.likelihood.variance, prior=sampled)
    _optional("rating_variance_floor", spec.likelihood.variance_floor, zero=True)
    prior = spec.factor_prior
    if isinstance(prior, NormalWishart):
        _normal_wishart(prior, "latent_dim", spec.latent_dim)
    elif isinstance(prior, IsotropicNormal):
        _optional("factor_precision", prior.precision)
    elif isinstance(prior, MultiplicativeGamma):
        _shrinkage(prior, spec.latent_dim)
    else:
        raise InputError(
            f"factor_prior is {prior!r}, but must be a NormalWishart, an "
            "IsotropicNormal or a MultiplicativeGamma."
        )
    for field_name, name, sampled in (
        ("user_noise", "user_noise_shape", Gamma),
        ("item_noise", "item_noise_shape", Gamma),
        ("rating_noise", "half of degrees_of_freedom", None),
    ):
        noise = getattr(spec, field_name)
        if isinstance(noise, ConstantNoise):
            continue
        if not isinstance(noise, GammaNoise):
            raise InputError(
                f"{field_name} is {noise!r}, but must be a ConstantNoise or a "
                "GammaNoise."
            )
        _optional(name, noise.shape, prior=sampled)
        if noise.shape is None and sampled is None:
            raise InputError(f"{name} is None, but must be a number.")
        if has_franchise(spec):
            raise InputError(
                "A CRF takes ratings of one noise variance: leave user_noise_shape, "
                "item_noise_shape and degrees_of_freedom as they are, or use topics="
                "'weak_limit'."
            )
        if spec.estimate == "map":
            raise InputError("PMF takes ratings of one noise variance: use BPMF.")
    _time(spec)
    _topic_factors(spec)
    _own_topics(spec)
    _reciprocal(spec)
    # A side's bias is indexed by the other side's topics, and mu_i of a USER topic is
    # the mean of ITEM biases.
    sides = (
        ("user", spec.user_bias_prior, "item"),
        ("item", spec.item_bias_prior, "user"),
    )
    whose = "{}_" if not is_reciprocal(spec) else ""  # a preset names no side then
    for side, bias, other in sides:
        for name, value in (
            (f"{whose.format(side)}bias_variance", bias.variance),
            (f"{whose.format(other)}topic_mean_variance", bias.topic_mean_variance),
        ):
            _optional(name, value, zero=True, prior=InverseGamma)
        if isinstance(bias, SharedNormal):
            name, value = f"{side}_shared_bias_variance", bias.shared_variance
            _optional(name, value, zero=True, prior=InverseGamma)
        _optional(f"the mean of the {side} biases", bias.topic_mean, positive=False)
    # USER topics index ITEM biases.
    topics = (
        ("user", spec.user_topic_prior, "item", spec.item_bias_prior),
        ("item", spec.item_topic_prior, "user", spec.user_bias_prior),
    )
    for side, topic, other, bias in topics:
        if isinstance(topic, FiniteDirichlet):
            _whole(f"{side}_topics", topic.num_topics, 1)
            _optional(f"{side}_topic_concentration", topic.concentration)
        elif isinstance(topic, HDP | CRF):
            own = whose.format(side)
            for name, value in (
                (f"{own}dish_concentration", topic.dish_concentration),
                (f"{own}table_concentration", topic.table_concentration),
            ):
                _optional(name, value, prior=Gamma)
            if isinstance(topic, CRF):
                _franchise(topic, f"{other}_bias_variance", bias.variance)
                continue
            _whole(f"max_{own}topics", topic.num_topics, 2)
            if topic.construction not in ("weak_limit", "stick_breaking"):
                raise InputError(
                    f"topics is {topic.construction!r}, but must be 'weak_limit', "
                    "'stick_breaking' or a CRF."
                )


def _time(spec: ModelSpec) -> None:
    for field_name, kind, name in (
        ("item_time", TimeBins, "item_time_variance"),
        ("user_time", TimeDrift, "user_drift_variance"),
    ):
        part = getattr(spec, field_name)
        if isinstance(part, NoTime):
            continue
        if type(part) is not kind:
            raise InputError(
                f"{field_name} is {part!r}, but must be a NoTime or a {kind.__name__}."
            )
        _optional(name, part.variance, prior=InverseGamma)
        if kind is TimeBins:
            _whole("item_time_bins", part.num_bins, 1)
        if spec.estimate == "map":
            raise InputError("PMF has no part that depends on time: use BPMF.")


def _normal_wishart(prior: NormalWishart, name: str, dim: int) -> None:
    _optional("the scale of the Wishart prior", prior.scale)
    _optional("the mean of the factor prior", prior.mean, positive=False)
    _optional("mean_precision (lambda_0)", prior.mean_precision)
    _optional("degrees_of_freedom (nu_0)", prior.degrees_of_freedom)
    nu = prior.degrees_of_freedom
    if nu is not None and nu < dim:
        raise InputError(
            f"degrees_of_freedom (nu_0) is {nu}, but must be at least {name}, {dim}."
        )


def _topic_factors(spec: ModelSpec) -> None:
    part = spec.topic_factors
    if isinstance(part, NoTopicFactors):
        return
    if not isinstance(part, TopicFactors):
        raise InputError(
            f"topic_factors is {part!r}, but must be a NoTopicFactors or a "
            "TopicFactors."
        )
    _whole("topic_factor_dim", part.dim, 1)
    if not isinstance(part.prior, NormalWishart):
        raise InputError(
            f"The prior of topic factors is {part.prior!r}, but must be a "
            "NormalWishart."
        )
    _normal_wishart(part.prior, "topic_factor_dim", part.dim)
    if spec.estimate == "map":
        raise InputError("PMF has no topic factors: use M3F.")
    if has_franchise(spec):
        raise InputError(
            "A CRF has no topic factors: leave topic_factor_dim at 0, or use topics="
            "'weak_limit'."
        )
    if not spec.num_user_topics or not spec.num_item_topics:
        raise InputError(
            "Topic factors need topics on both sides, one at least: "
            f"there are {spec.num_user_topics} user topics and {spec.num_item_topics} "
            "item topics."
        )


def _own_topics(spec: ModelSpec) -> None:
    priors = spec.user_topic_prior, spec.item_topic_prior
    if not spec.own_topics:
        return
    if not isinstance(spec.topic_factors, NoTopicFactors):
        raise InputError("Topic factors do not go with topics of each row's own.")
    if not all(isinstance(prior, FiniteDirichlet) for prior in priors):
        raise InputError(
            "Topics of each row's own are finite on both sides: their priors must be "
            "FiniteDirichlet, not " + " and ".join(type(p).__name__ for p in priors)
        )


def _reciprocal(spec: ModelSpec) -> None:
    part = spec.reciprocal
    if not isinstance(part, NotReciprocal | Reciprocal):
        raise InputError(
            f"reciprocal is {part!r}, but must be a NotReciprocal or a Reciprocal."
        )
    if not is_reciprocal(spec):
        return
    if not isinstance(part.directed, bool):
        raise InputError(f"directed is {part.directed!r}, but must be True or False.")
    noises = spec.user_noise, spec.item_noise, spec.rating_noise
    biases = spec.user_bias_prior, spec.item_bias_prior
    for there, name in (
        (has_franchise(spec), "topics=CRF()"),
        (any(isinstance(x, GammaNoise) for x in noises), "noise that differs"),
        (any(isinstance(x, SharedNormal) for x in biases), "biases that share a part"),
        (isinstance(spec.factor_prior, MultiplicativeGamma), "shrinkage of factors"),
        (isinstance(spec.topic_factors, TopicFactors), "factors that topics select"),
        (spec.own_topics, "topics of each row's own"),
        (isinstance(spec.item_time, TimeBins), "parts that depend on time"),
        (isinstance(spec.user_time, TimeDrift), "parts that depend on time"),
        (spec.estimate == "map", "a MAP estimate"),
    ):
        if there:
            raise InputError(f"A reciprocal model does not go with {name}.")
    if spec.user_topic_prior != spec.item_topic_prior:
        raise InputError(
            "A reciprocal model has one franchise of topics: user_topic_prior and "
            "item_topic_prior must be equal."
        )
    if is_unordered(spec) and spec.user_bias_prior != spec.item_bias_prior:
        raise InputError(
            "Unordered pairs share one table of biases: user_bias_prior and "
            "item_bias_prior must be equal."
        )


def _ordinal(spec: ModelSpec) -> None:
    levels, scale = spec.likelihood.levels, spec.likelihood.cut_scale
    if spec.estimate == "map":
        raise InputError("PMF has no ordinal likelihood: use BPMF.")
    if spec.global_bias not in (None, 0):
        raise InputError(
            f"global_bias is {spec.global_bias!r}, but must be 0 under the ordinal "
            "likelihood, whose cut points take its part."
        )
    if scale is None:
        raise InputError("cut_scale is None, but must be a positive number.")
    _optional("cut_scale", scale)
    if levels is None:
        return
    fits = isinstance(levels, tuple) and len(levels) >= 2
    fits = fits and all(
        isinstance(x, Real) and not isinstance(x, bool) and abs(x) < 3e38
        for x in levels
    )
    if not fits or any(b <= a for a, b in zip(levels, levels[1:], strict=False)):
        raise InputError(
            f"levels are {levels!r}, but must be at least two finite numbers that "
            "increase."
        )


def _shrinkage(prior: MultiplicativeGamma, latent_dim: int) -> None:
    for name in ("first_shape", "shape", "mean_precision"):
        value = getattr(prior, name)
        name = f"{name} of the MultiplicativeGamma"
        if value is None:
            raise InputError(f"{name} is None, but must be a positive number.")
        _optional(name, value)
    _optional("rate of the MultiplicativeGamma", prior.rate)
    if (latent_dim - 1) * math.log10(max(prior.shape, 1)) > MOST_DIGITS:
        raise InputError(
            f"latent_dim is {latent_dim}, too many columns for a MultiplicativeGamma "
            f"of shape {prior.shape:g}, which expects precisions up to "
            f"{prior.shape:g}^{latent_dim - 1}: lower the shape, or latent_dim."
        )


def _franchise(topic: CRF, name: str, variance: object) -> None:
    _whole("num_topics of a CRF", topic.num_topics, 2)
    _whole("max_tables of a CRF", topic.max_tables, 1)
    known = ("conditional", "marginal", "map")
    if topic.likelihood not in known:
        raise InputError(
            f"likelihood is {topic.likelihood!r}, but must be one of {known}."
        )
    if topic.likelihood == "marginal" and variance != 0:
        raise InputError(
            f"{name} is {variance!r}, but must be 0 under CRF(likelihood='marginal'), "
            "which sums the topic means out and is exact only where every bias equals "
            "its topic's mean; likelihood='conditional' serves any."
        )


def _whole(name: str, value: object, least: int) -> None:
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    if not whole or value < least:
        raise InputError(
            f"{name} is {value!r}, but must be a whole number of at least {least}."
        )


def _optional(
    name: str,
    value: object,
    *,
    positive: bool = True,
    zero: bool = False,
    prior: type | None = None,
) -> None:
    """Refuse what is neither None, nor a number that fits, nor of the type `prior`."""
    if value is None:
        return
    if isinstance(value, InverseGamma | Gamma):
        if prior is None:
            raise InputError(f"{name} must be a number: it is not sampled.")
        if not isinstance(value, prior):
            raise InputError(f"The prior of {name} must be of type {prior.__name__}.")
        for part in dataclasses.astuple(value):
            if part is None:
                raise InputError(f"The prior of {name} lacks a number.")
            _optional(f"a number of the prior of {name}", part)
        if prior is InverseGamma and value.shape < 1:
            raise InputError(
                f"The inverse gamma prior of {name} has shape {value.shape}, but must "
                "have at least 1."
            )
        return
    number = isinstance(value, Real) and not isinstance(value, bool)
    fits = number and abs(value) < 3e38  # finite in float32 too; NaN is refused
    if fits and positive:
        fits = value >= 0 if zero else value > 0
    if not fits:
        kind = "finite" if not positive else "0 or positive" if zero else "positive"
        raise InputError(f"{name} is {value!r}, but must be a {kind} number.")


def resolve(
    spec: ModelSpec,
    mean: float,
    variance: float,
    step: float,
    levels: Sequence[float] = (),
) -> ModelSpec:
    """Replace every None by its documented default.

    Parameters
    ----------
    spec
        As the user gave it.
    mean, variance, step
        Mean, variance and smallest step between distinct levels of the training
        ratings (rating scale). Under the ordinal likelihood those of its latent
        ratings stand for them: mean 0, and the variance of the noise, 1.
    levels
        Distinct ratings, ascending: the levels of an ordinal likelihood without any.

    Returns
    -------
    ModelSpec
        A spec of which each number is fixed or has a prior with numbers.

    Raises
    ------
    InputError
        If an ordinal likelihood is left with fewer than two levels.
    """
    likelihood = spec.likelihood
    if isinstance(likelihood, Ordinal):
        mean, variance = 0.0, likelihood.variance
        if likelihood.levels is None:
            likelihood = dataclasses.replace(likelihood, levels=tuple(levels))
            if len(levels) < 2:
                raise InputError(
                    "The ordinal likelihood needs at least two levels, but the ratings "
                    f"hold {len(levels)}: name the levels, by Ordinal(levels=...)."
                )
    variance = variance if variance > 0 else max(step, 0.1) ** 2

    def default(value, fallback):
        return fallback if value is None else value

    def bias(prior: TopicNormal) -> TopicNormal:
        more = {}
        if isinstance(prior, SharedNormal):
            shared = InverseGamma(BIAS_VARIANCE_SHAPE, SHARED_VARIANCE_SCALE * variance)
            more["shared_variance"] = default(prior.shared_variance, shared)
        return dataclasses.replace(
            prior,
            **more,
            variance=default(
                prior.variance,
                InverseGamma(BIAS_VARIANCE_SHAPE, BIAS_VARIANCE_SCALE * variance),
            ),
            topic_mean_variance=default(prior.topic_mean_variance, 0.1 * variance),
        )

    def noise(prior: ConstantNoise | GammaNoise) -> ConstantNoise | GammaNoise:
        if isinstance(prior, ConstantNoise):
            return prior
        return GammaNoise(default(prior.shape, NOISE_SHAPE))

    def time(prior: NoTime | TimeEffect) -> NoTime | TimeEffect:
        if isinstance(prior, NoTime):
            return prior
        scale = TIME_VARIANCE_SCALE * variance
        value = default(prior.variance, InverseGamma(BIAS_VARIANCE_SHAPE, scale))
        return dataclasses.replace(prior, variance=value)

    def freedom(prior: NormalWishart, dim: int) -> NormalWishart:
        return dataclasses.replace(
            prior, degrees_of_freedom=default(prior.degrees_of_freedom, float(dim))
        )

    def topics(prior):
        # A posterior's spec says how many topics that fit stored.
        if isinstance(prior, HDP):
            return dataclasses.replace(prior, stored=None)
        return prior

    topic_factors = spec.topic_factors
    if isinstance(topic_factors, TopicFactors):
        topic_factors = dataclasses.replace(
            topic_factors, prior=freedom(topic_factors.prior, topic_factors.dim)
        )
    if isinstance(spec.factor_prior, NormalWishart):
        factors = freedom(spec.factor_prior, spec.latent_dim)
    elif isinstance(spec.factor_prior, MultiplicativeGamma):
        # With both shapes 3, E[1 / tau_h^2] = rate^2 / 2^h, which sums to rate^2.
        factors = dataclasses.replace(
            spec.factor_prior,
            rate=default(spec.factor_prior.rate, math.sqrt(0.1 * variance)),
        )
    else:
        product = math.sqrt(0.1 * variance / spec.latent_dim)
        factors = IsotropicNormal(default(spec.factor_prior.precision, 1 / product))
    if isinstance(likelihood, Gaussian):
        likelihood = Gaussian(
            default(
                likelihood.variance,
                InverseGamma(2.0, variance)
                if spec.estimate == "posterior"
                else 0.7 * variance,
            ),
            default(likelihood.variance_floor, step**2 / 12),
        )
    return ModelSpec(
        latent_dim=spec.latent_dim,
        likelihood=likelihood,
        factor_prior=factors,
        user_bias_prior=bias(spec.user_bias_prior),
        item_bias_prior=bias(spec.item_bias_prior),
        user_topic_prior=topics(spec.user_topic_prior),
        item_topic_prior=topics(spec.item_topic_prior),
        user_noise=noise(spec.user_noise),
        item_noise=noise(spec.item_noise),
        rating_noise=spec.rating_noise,
        item_time=time(spec.item_time),
        user_time=time(spec.user_time),
        topic_factors=topic_factors,
        own_topics=spec.own_topics,
        reciprocal=spec.reciprocal,
        global_bias=default(spec.global_bias, mean),
        estimate=spec.estimate,
    )


def check_levels(likelihood: Ordinal, ratings: Iterable[float]) -> None:
    """Refuse ratings that are no levels of an ordinal likelihood.

    Raises
    ------
    InputError
        Names the first such rating.
    """
    for rating in ratings:
        if rating not in likelihood.levels:
            shown = ", ".join(f"{x:g}" for x in likelihood.levels)
            raise InputError(
                f"The rating {rating:g} is no level of the ordinal likelihood, whose "
                f"levels are {shown}: name all of them, by Ordinal(levels=...)."
            )


# The default prior of a bias variance, in units of the training variance: chosen on
# ML-100K random90_1 (bench/results/settings_ml-100k_d10.json).
BIAS_VARIANCE_SHAPE = 3.0
BIAS_VARIANCE_SCALE = 0.1
# Precisions of columns that are expected beyond this power of ten are refused: float32
# ends at 38, and a draw may lie a few above what is expected.
MOST_DIGITS = 34
# That of the part of a row's biases common to all topics: twice as large.
SHARED_VARIANCE_SCALE = 0.2
# What depends on time, as the biases themselves: a first guess.
TIME_VARIANCE_SCALE = 0.1
# The default prior of the shape of relative precisions: mean 10, that is precisions
# that differ by a third, with room for 1 and for 30.
NOISE_SHAPE = Gamma(2.0, 0.2)
