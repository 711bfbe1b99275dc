"""Specs: what is refused, what None becomes, and what a compilation depends on."""

import dataclasses
import math

import jax
import numpy as np
import pytest

from im3f_jax.errors import InputError
from im3f_jax.model.bias_prior import SharedNormal, TopicNormal
from im3f_jax.model.factor_prior import (
    IsotropicNormal,
    MultiplicativeGamma,
    NormalWishart,
)
from im3f_jax.model.likelihood import Gaussian
from im3f_jax.model.noise import ConstantNoise, GammaNoise
from im3f_jax.model.scalars import Gamma, InverseGamma, log_prior, start_value
from im3f_jax.model.spec import NOISE_SHAPE, ModelSpec, resolve, validate
from im3f_jax.model.topic_prior import HDP, FiniteDirichlet, NoTopics

GOOD = ModelSpec(
    latent_dim=4,
    user_topic_prior=HDP(8),
    item_topic_prior=FiniteDirichlet(2),
)


def change(spec, path, value):
    """Replace a number deep in a spec: "likelihood.variance"."""
    head, _, rest = path.partition(".")
    if rest:
        value = change(getattr(spec, head), rest, value)
    return dataclasses.replace(spec, **{head: value})


NAN, INF = math.nan, math.inf
REFUSED = [
    ("latent_dim", 0, "latent_dim"),
    ("latent_dim", 2.5, "latent_dim"),
    ("latent_dim", True, "latent_dim"),
    ("global_bias", NAN, "global_bias"),
    ("global_bias", "3", "global_bias"),
    ("likelihood.variance", 0, "rating_variance"),
    ("likelihood.variance", -1.0, "rating_variance"),
    ("likelihood.variance", INF, "rating_variance"),
    ("likelihood.variance", Gamma(1.0, 1.0), "InverseGamma"),
    ("likelihood.variance", InverseGamma(0.5, 1.0), "rating_variance"),
    ("likelihood.variance", InverseGamma(2.0, 0.0), "rating_variance"),
    ("likelihood.variance_floor", -0.1, "rating_variance_floor"),
    ("factor_prior.scale", 0.0, "Wishart"),
    ("factor_prior.mean_precision", -1.0, "lambda_0"),
    ("factor_prior.degrees_of_freedom", 3.9, "nu_0"),
    ("factor_prior.degrees_of_freedom", NAN, "nu_0"),
    ("factor_prior", IsotropicNormal(0.0), "factor_precision"),
    ("factor_prior", MultiplicativeGamma(first_shape=0.0), "first_shape of the"),
    ("factor_prior", MultiplicativeGamma(first_shape=None), "first_shape of the"),
    ("factor_prior", MultiplicativeGamma(shape=NAN), "^shape of the"),
    ("factor_prior", MultiplicativeGamma(shape=Gamma(2.0, 1.0)), "not sampled"),
    ("factor_prior", MultiplicativeGamma(rate=-1.0), "rate of the"),
    ("factor_prior", MultiplicativeGamma(mean_precision=0.0), "^mean_precision of"),
    ("factor_prior", MultiplicativeGamma(mean_precision=None), "^mean_precision of"),
    ("factor_prior", MultiplicativeGamma(shape=1e12), "too many columns"),
    ("factor_prior", None, "or a MultiplicativeGamma"),
    ("user_bias_prior.variance", -0.1, "user_bias_variance"),
    ("item_bias_prior.variance", NAN, "item_bias_variance"),
    (
        "user_bias_prior",
        SharedNormal(shared_variance=-1.0),
        "user_shared_bias_variance",
    ),
    ("item_bias_prior", SharedNormal(-1.0), "item_bias_variance"),
    (
        "item_bias_prior",
        SharedNormal(shared_variance=Gamma(1.0, 1.0)),
        "item_shared_bias_variance",
    ),
    # The means of user biases are those of ITEM topics, and the reverse.
    ("user_bias_prior.topic_mean_variance", -1.0, "item_topic_mean_variance"),
    ("item_bias_prior.topic_mean_variance", -1.0, "user_topic_mean_variance"),
    ("user_topic_prior.num_topics", 1, "max_user_topics"),
    ("user_topic_prior.dish_concentration", 0.0, "user_dish_concentration"),
    ("user_topic_prior.table_concentration", -2.0, "user_table_concentration"),
    ("user_topic_prior.dish_concentration", InverseGamma(2.0, 1.0), "Gamma"),
    ("user_topic_prior.construction", "crp", "stick_breaking"),
    ("item_topic_prior.num_topics", 0, "item_topics"),
    ("item_topic_prior.concentration", 0.0, "item_topic_concentration"),
]


@pytest.mark.parametrize("path, value, message", REFUSED)
def test_a_setting_without_meaning_is_refused_by_name(path, value, message):
    with pytest.raises(InputError, match=message):
        validate(change(GOOD, path, value))


ACCEPTED = [
    ("latent_dim", 1),
    ("global_bias", -3),
    ("likelihood.variance", 0.7),
    ("likelihood.variance", InverseGamma(1.0, 0.1)),
    ("likelihood.variance_floor", 0.0),
    ("factor_prior.degrees_of_freedom", 4),
    ("factor_prior", IsotropicNormal()),
    ("factor_prior", MultiplicativeGamma()),
    ("factor_prior", MultiplicativeGamma(2, 1, 0.1)),
    ("user_bias_prior.variance", 0),
    ("item_bias_prior.topic_mean_variance", 0.0),
    ("item_bias_prior", SharedNormal(0.0, 0.0, 0.0, 0)),
    ("item_bias_prior", SharedNormal(shared_variance=InverseGamma(2.0, 0.1))),
    ("user_topic_prior.dish_concentration", Gamma(0.3, 2.0)),
    ("user_topic_prior.construction", "stick_breaking"),
    ("item_topic_prior", NoTopics()),
]


@pytest.mark.parametrize("path, value", ACCEPTED)
def test_a_setting_with_meaning_passes(path, value):
    validate(change(GOOD, path, value))


def numbers(spec):
    return jax.tree.leaves(spec, is_leaf=lambda x: x is None)


def test_resolve_leaves_no_none():
    spec = resolve(GOOD, mean=3.5, variance=1.2, step=0.5)
    assert None in numbers(GOOD) and None not in numbers(spec)
    validate(spec)
    assert spec.global_bias == 3.5
    assert spec.likelihood.variance_floor == pytest.approx(0.25 / 12)
    assert isinstance(spec.likelihood.variance, InverseGamma)
    assert spec.factor_prior.degrees_of_freedom == 4
    for prior in (spec.user_bias_prior, spec.item_bias_prior):
        assert isinstance(prior.variance, InverseGamma)
        assert prior.topic_mean_variance == pytest.approx(0.12)
    assert resolve(spec, mean=0.0, variance=9.0, step=9.0) == spec


def test_priors_of_variances_scale_with_the_training_variance():
    one, four = (resolve(GOOD, 0.0, variance, 0.1) for variance in (1.0, 4.0))
    for path in ("likelihood", "user_bias_prior", "item_bias_prior"):
        a, b = getattr(one, path).variance, getattr(four, path).variance
        assert a.shape == b.shape and 4 * a.scale == pytest.approx(b.scale)


def test_a_shrinkage_prior_gives_the_product_a_tenth_of_the_variance():
    spec = ModelSpec(latent_dim=10, factor_prior=MultiplicativeGamma())
    prior = resolve(spec, 3.5, 1.2, 1.0).factor_prior
    # E[1 / tau_h^2], a product of moments of inverse gammas; ten columns, not all.
    first = prior.rate**2 / ((prior.first_shape - 1) * (prior.first_shape - 2))
    ratio = 1 / ((prior.shape - 1) * (prior.shape - 2))
    product = sum(first * ratio**h for h in range(10))
    assert product == pytest.approx(0.12, rel=2e-3)
    given = dataclasses.replace(spec, factor_prior=MultiplicativeGamma(2.0, 4.0, 0.3))
    assert resolve(given, 3.5, 1.2, 1.0).factor_prior == MultiplicativeGamma(2, 4, 0.3)


def test_as_many_columns_as_float32_has_room_for():
    spec = ModelSpec(latent_dim=72, factor_prior=MultiplicativeGamma())
    validate(spec)
    with pytest.raises(InputError, match="latent_dim is 73, too many"):
        validate(dataclasses.replace(spec, latent_dim=73))


def test_resolve_gives_a_shared_part_its_prior():
    shares = dataclasses.replace(GOOD, user_bias_prior=SharedNormal(topic_mean=0.2))
    one, four = (resolve(shares, 0.0, v, 0.1).user_bias_prior for v in (1.0, 4.0))
    assert one.topic_mean == 0.2 and isinstance(one, SharedNormal)
    assert 4 * one.shared_variance.scale == pytest.approx(four.shared_variance.scale)
    plain = resolve(GOOD, 0.0, 1.0, 0.1).user_bias_prior
    assert (one.variance, one.topic_mean_variance) == (
        plain.variance,
        plain.topic_mean_variance,
    )
    fixed = dataclasses.replace(
        shares, user_bias_prior=SharedNormal(0.1, 0.2, 0.0, 0.3)
    )
    assert resolve(fixed, 0.0, 1.0, 0.1).user_bias_prior == fixed.user_bias_prior


def test_resolve_gives_shapes_their_prior():
    noisy = dataclasses.replace(GOOD, user_noise=GammaNoise(), item_noise=GammaNoise(3))
    one, four = (resolve(noisy, 0.0, v, 0.1) for v in (1.0, 4.0))
    assert one.user_noise == four.user_noise == GammaNoise(NOISE_SHAPE)
    assert one.item_noise == GammaNoise(3) and one.rating_noise == ConstantNoise()
    plain = jax.tree.structure(resolve(GOOD, 0.0, 1.0, 0.1))
    assert jax.tree.structure(one) != plain
    other = dataclasses.replace(one, item_noise=GammaNoise(4.5))
    assert jax.tree.structure(other) == jax.tree.structure(one)


def test_resolve_keeps_what_is_given():
    given = ModelSpec(
        latent_dim=4,
        likelihood=Gaussian(0.7, 0.0),
        factor_prior=NormalWishart(2.0, 9.0, 0.1, 3.0),
        user_bias_prior=TopicNormal(0.0, 0.0, -0.5),
        item_bias_prior=TopicNormal(0.2, InverseGamma(3.0, 1.0), 0.5),
        user_topic_prior=HDP(8, "stick_breaking", Gamma(1.0, 2.0), 3.0),
        item_topic_prior=FiniteDirichlet(3, 7.0),
        global_bias=0.0,
        estimate="map",
    )
    assert resolve(given, mean=3.5, variance=1.2, step=0.5) == given


def test_the_default_precision_of_pmf_gives_a_tenth_of_the_variance():
    spec = ModelSpec(latent_dim=10, factor_prior=IsotropicNormal())
    precision = resolve(spec, 3.5, 1.2, 1.0).factor_prior.precision
    # Variance of a . b: D products of independent normals of variance 1 / precision.
    assert 10 / precision**2 == pytest.approx(0.12)


def test_constant_ratings_still_give_proper_priors():
    validate(resolve(GOOD, mean=3.0, variance=0.0, step=0.0))


def test_numbers_are_leaves_and_sizes_are_not():
    spec = resolve(GOOD, 3.5, 1.2, 0.5)
    structure = jax.tree.structure(spec)
    assert all(isinstance(x, float) for x in numbers(spec))
    for path, value in [
        ("global_bias", 1.0),
        ("likelihood.variance_floor", 0.2),
        ("factor_prior.scale", 2.0),
        ("user_bias_prior.topic_mean", 0.3),
        ("user_topic_prior.dish_concentration", 4.0),
        ("item_topic_prior.concentration", 3.0),
    ]:
        assert jax.tree.structure(change(spec, path, value)) == structure
    for path, value in [
        ("latent_dim", 5),
        ("user_topic_prior.num_topics", 9),
        ("user_topic_prior.construction", "stick_breaking"),
        ("user_topic_prior.dish_concentration", Gamma(1.0, 1.0)),
        ("item_topic_prior", NoTopics()),
        ("estimate", "map"),
    ]:
        assert jax.tree.structure(change(spec, path, value)) != structure


def test_numbers_of_topics():
    assert GOOD.num_user_topics == 8 and GOOD.num_item_topics == 2
    bare = ModelSpec(latent_dim=2)
    assert bare.num_user_topics == bare.num_item_topics == 0


def test_a_spec_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        GOOD.latent_dim = 5


def test_single_numbers():
    value = np.float32(0.7)
    assert log_prior(3.0, value) == 0
    assert start_value(3.0) == 3.0
    assert start_value(InverseGamma(3.0, 2.0)) == pytest.approx(0.5)  # the mode
    assert start_value(Gamma(3.0, 2.0)) == pytest.approx(1.5)  # the mean
