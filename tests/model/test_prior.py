"""Draws from the prior: their moments, and the user's face of them."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

import im3f_jax as im3f
from im3f_jax.errors import InputError
from im3f_jax.model.likelihood import Gaussian
from im3f_jax.model.prior import _categorical, draw_prior, prior_rows
from im3f_jax.model.scalars import InverseGamma
from im3f_jax.model.topic_prior import NoTopics
from im3f_jax.numerics.random import log_gamma
from tests import fits, gof, tiny
from tests.quick import quick_jit

DRAWS = 4000
SPEC = tiny.make_spec()
ROWS = (tiny.USER, tiny.ITEM, tiny.NUM_USERS, tiny.NUM_ITEMS)


@quick_jit
def draw_many(keys, spec):
    return jax.lax.map(
        lambda key: draw_prior(key, spec, *ROWS, log_gamma=log_gamma, times=tiny.TIMES),
        keys,
    )


def draws_of(seed, spec=SPEC):
    draws = draw_many(jax.random.split(jax.random.key(seed), DRAWS), spec)
    return {k: np.asarray(v, np.float64) for k, v in draws.items()}


@pytest.fixture(scope="module")
def draws():
    # The fixture that makes JAX strict comes after this one.
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        return draws_of(0)


@pytest.mark.thorough
def test_numbers_have_their_priors(draws):
    likelihood = SPEC.likelihood
    cases = {
        "user_bias_variance": SPEC.user_bias_prior.variance,
        "item_topic_mean_variance": SPEC.item_bias_prior.topic_mean_variance,
        "user_dish_concentration": SPEC.user_topic_prior.dish_concentration,
        "item_table_concentration": SPEC.item_topic_prior.table_concentration,
    }
    for name, prior in cases.items():
        if isinstance(prior, InverseGamma):
            law = stats.invgamma(prior.shape, scale=prior.scale)
        else:
            law = stats.gamma(prior.shape, scale=1 / prior.rate)
        gof.assert_ks(draws[name], law.cdf, share=5)
    law = stats.invgamma(likelihood.variance.shape, scale=likelihood.variance.scale)
    floor = likelihood.variance_floor
    assert draws["rating_variance"].min() >= floor
    gof.assert_ks(
        draws["rating_variance"], lambda x: 1 - law.sf(x) / law.sf(floor), share=5
    )


def test_factors_have_their_normal_wishart(draws):
    # Lambda_00 / W_0 is chi-squared; the standardised mean and factors are normal.
    prior = SPEC.factor_prior
    precision = draws["item_factor_precision"]
    law = stats.chi2(prior.degrees_of_freedom)
    gof.assert_ks(precision[:, 0, 0] / prior.scale, law.cdf, share=5)
    ratio = np.linalg.det(precision) / prior.scale**2 / precision[:, 0, 0]
    law = stats.chi2(prior.degrees_of_freedom - 1)
    gof.assert_ks(ratio * prior.scale, law.cdf, share=5)
    root = np.linalg.cholesky(precision)
    offset = draws["item_factor_mean"] - prior.mean
    normal = np.sqrt(prior.mean_precision) * np.einsum("sd,sde->se", offset, root)
    gof.assert_ks(normal, stats.norm.cdf, share=5)
    offset = draws["item_factors"][:, 1] - draws["item_factor_mean"]
    gof.assert_ks(np.einsum("sd,sde->se", offset, root), stats.norm.cdf, share=5)
    # Rows are independent given the prior.
    again = draws["item_factors"][:, 2] - draws["item_factor_mean"]
    both = np.einsum("sd,sde->se", offset, root) * np.einsum("sd,sde->se", again, root)
    gof.assert_mean(both[:, 0], 0)


def test_weights_biases_topics_and_ratings_follow(draws):
    log_pi, log_theta = (
        draws["log_item_global_weights"],
        draws["log_item_row_weights"],
    )
    for log_weights in (log_pi, log_theta, draws["log_user_row_weights"]):
        np.testing.assert_allclose(np.exp(log_weights).sum(-1), 1, rtol=1e-4)
    # E theta = pi; and topics given theta; sticks: -beta log(1 - v_1) is exponential.
    gof.assert_mean(np.exp(log_theta[:, 2]) - np.exp(log_pi), np.zeros(4))
    topic = draws["item_topic_of_rating"].astype(int)
    hot = topic[:, 4][:, None] == np.arange(4)
    gof.assert_mean(hot - np.exp(log_theta[:, tiny.ITEM[4]]), np.zeros(4))
    rest = -special.logsumexp(log_pi[:, 1:], axis=1)
    decay = rest * draws["item_dish_concentration"]
    gof.assert_ks(decay, stats.expon.cdf, share=4)
    # The variance of a Dirichlet: pi (1 - pi) / (gamma + 1).
    pi, gamma = np.exp(log_pi[:, 0]), draws["item_table_concentration"]
    square = (np.exp(log_theta[:, 0, 0]) - pi) ** 2
    gof.assert_mean(square - pi * (1 - pi) / (gamma + 1), 0)

    # The user's bias belongs to ITEM topics.
    for side in ("user", "item"):
        prior = getattr(SPEC, f"{side}_bias_prior")
        centre = draws[f"{side}_topic_mean"]
        spread = np.sqrt(draws[f"{side}_topic_mean_variance"])[:, None]
        gof.assert_ks((centre - prior.topic_mean) / spread, stats.norm.cdf, share=4)
        offset = draws[f"{side}_bias"] - centre[:, None]
        spread = np.sqrt(draws[f"{side}_bias_variance"])[:, None]
        gof.assert_ks(offset[:, 0] / spread, stats.norm.cdf, share=4)
    draw, row = np.arange(DRAWS)[:, None], np.arange(tiny.NUM_RATINGS)
    mean = SPEC.global_bias + np.sum(
        draws["user_factors"][:, tiny.USER] * draws["item_factors"][:, tiny.ITEM], -1
    )
    mean += draws["user_bias"][draw, tiny.USER, topic]
    user_topic = draws["user_topic_of_rating"].astype(int)
    mean += draws["item_bias"][draw, tiny.ITEM, user_topic]
    np.testing.assert_allclose(draws["mean"], mean, rtol=2e-4, atol=1e-3)
    noise = draws["ratings"] - draws["mean"]
    noise /= np.sqrt(draws["rating_variance"])[:, None]
    gof.assert_ks(noise[:, row[:3]], stats.norm.cdf, share=4, grain=1e-3)


@pytest.mark.thorough
def test_rows_share_a_part_of_their_biases():
    spec = dataclasses.replace(tiny.share(SPEC, 0.7), item_topic_prior=NoTopics())
    draws = draws_of(2, dataclasses.replace(spec, user_bias_prior=SPEC.user_bias_prior))
    prior = spec.item_bias_prior.shared_variance
    law = stats.invgamma(prior.shape, scale=prior.scale)
    gof.assert_ks(draws["item_shared_bias_variance"], law.cdf, share=4)
    shared = draws["item_shared_bias"]
    part = shared / np.sqrt(draws["item_shared_bias_variance"])[:, None]
    gof.assert_ks(part[:, 1], stats.norm.cdf, share=4)
    gof.assert_mean(part[:, 0] * part[:, 1], 0)
    own = draws["item_bias"] - draws["item_topic_mean"][:, None] - shared[:, :, None]
    own /= np.sqrt(draws["item_bias_variance"])[:, None, None]
    gof.assert_ks(own[:, 1], stats.norm.cdf, share=4, grain=1e-3)
    gof.assert_mean(own[:, 1, 0] * own[:, 1, 1], 0)
    gof.assert_mean(own[:, 1, 0] * part[:, 1], 0)


@pytest.mark.thorough
def test_noise_has_its_precisions():
    spec = tiny.noisy(tiny.make_spec("none", "none"))
    draws = draws_of(6, spec)
    for side, prior in (("user", spec.user_noise), ("item", spec.item_noise)):
        shape = draws[f"{side}_noise_shape"]
        law = stats.gamma(prior.shape.shape, scale=1 / prior.shape.rate)
        gof.assert_ks(shape, law.cdf, share=6)
        # By its own distribution function each is uniform, and independent.
        upto = [
            stats.gamma.cdf(draws[f"{side}_precision"][:, n], shape, scale=1 / shape)
            for n in (0, 2)
        ]
        gof.assert_ks(upto[0], stats.uniform.cdf, share=6, grain=1e-5)
        gof.assert_mean((upto[0] - 0.5) * (upto[1] - 0.5), 0)
    shape = spec.rating_noise.shape
    assert np.unique(draws["rating_noise_shape"]) == np.float32(shape)
    law = stats.gamma(shape, scale=1 / shape)
    gof.assert_ks(draws["rating_precision"][:, 3], law.cdf, share=6, grain=1e-5)
    root = np.sqrt(
        draws["user_precision"][:, tiny.USER]
        * draws["item_precision"][:, tiny.ITEM]
        * draws["rating_precision"]
        / draws["rating_variance"][:, None]
    )
    noise = (draws["ratings"] - draws["mean"]) * root
    gof.assert_ks(noise[:, :3], stats.norm.cdf, share=6, grain=1e-3)


@pytest.mark.thorough
def test_items_and_users_depend_on_time():
    spec = tiny.timed(tiny.make_spec("none", "none"))
    draws = draws_of(7, spec)
    means = spec.global_bias + np.einsum(
        "tnd,tnd->tn",
        draws["user_factors"][:, tiny.USER],
        draws["item_factors"][:, tiny.ITEM],
    )
    for side, name in (("item", "item_time_bias"), ("user", "user_drift")):
        prior = getattr(spec, f"{side}_time").variance
        variance = draws[f"{side}_time_variance"]
        law = stats.invgamma(prior.shape, scale=prior.scale)
        gof.assert_ks(variance, law.cdf, share=4)
        effect = draws[name].reshape(DRAWS, -1)
        scaled = effect[:, :4] / np.sqrt(variance)[:, None]
        gof.assert_ks(scaled[:, 0], stats.norm.cdf, share=4, grain=1e-4)
        gof.assert_mean(scaled[:, 0] * scaled[:, 3], 0)
    means += draws["item_time_bias"][:, tiny.ITEM, tiny.TIMES.bin]
    means += draws["user_drift"][:, tiny.USER] * tiny.TIMES.drift
    np.testing.assert_allclose(draws["mean"], means, rtol=2e-4, atol=1e-3)


def test_a_categorical_draw():
    weights = np.array([[0.2, 0.0, 0.5, 0.3, 0.0], [0.0, 0.0, 0.0, 0.0, 1.0]])
    with np.errstate(divide="ignore"):
        log_weights = jnp.asarray(np.log(weights), jnp.float32)
    row = jnp.asarray(np.repeat([0, 1], 20_000), jnp.int32)
    topic = np.asarray(quick_jit(_categorical)(jax.random.key(3), log_weights, row))
    counts = np.bincount(topic[:20_000], minlength=5)
    gof.assert_frequencies(counts, weights[0])
    assert np.all(topic[20_000:] == 4)


def test_factors_are_finite_at_the_fewest_degrees_of_freedom():
    spec = dataclasses.replace(im3f.BPMF(10), global_bias=3.0)
    spec = dataclasses.replace(
        prior_rows(spec, fits.data()[0]).spec, likelihood=Gaussian(0.5, 0.1)
    )
    keys = jax.random.split(jax.random.key(4), 2000)
    draws = quick_jit(
        lambda keys, spec: jax.lax.map(lambda k: draw_prior(k, spec, *ROWS), keys)
    )(keys, spec)
    assert np.all(np.isfinite(draws["user_factors"]))
    assert np.all(np.isfinite(draws["ratings"]))


# --- the user's face --------------------------------------------------------------


@pytest.mark.relaxed
def test_open_numbers_are_resolved_and_rows_numbered_as_by_fit():
    train, _ = fits.data()
    rows = prior_rows(fits.MODELS["IM3F"], train)
    posterior = fits.posterior("IM3F")
    assert jax.tree.leaves(rows.spec) == jax.tree.leaves(posterior.spec)
    np.testing.assert_array_equal(rows.user, posterior.user_row[train.user])
    np.testing.assert_array_equal(rows.item, posterior.item_row[train.item])
    assert (rows.num_users, rows.num_items) == (59, 39)  # one cold a side


def test_sample_prior():
    train, _ = fits.data()
    model = im3f.M3F(
        2,
        3,
        2,
        rating_variance=0.5,
        user_bias_variance=0.2,
        item_bias_variance=0.1,
        factor_prior=im3f.IsotropicNormal(),
    )
    one = im3f.sample_prior(jax.random.key(5), model, train)
    many = im3f.sample_prior(jax.random.key(5), model, train, num_draws=2)
    assert one["ratings"].shape == (len(train),)
    assert one["user_bias"].shape == (59, 3) and one["item_bias"].shape == (39, 2)
    assert float(one["rating_variance"]) == 0.5
    assert {k: v.shape for k, v in many.items()} == {
        k: (2, *v.shape) for k, v in one.items()
    }
    assert not np.array_equal(many["ratings"][0], many["ratings"][1])
    again = im3f.sample_prior(jax.random.key(5), model, train)
    np.testing.assert_array_equal(one["ratings"], again["ratings"])


@pytest.mark.parametrize(
    "model, settings, message",
    [
        (im3f.BPMF(2), {"num_draws": 0}, "num_draws is 0"),
        (im3f.IM3F(2, topics=im3f.CRF()), {}, "no finite weights"),
        (
            im3f.BPMF(2, rating_variance=InverseGamma(100.0, 0.1)),
            {},
            "lies above its floor",
        ),
    ],
)
def test_what_cannot_be_drawn_is_refused(model, settings, message):
    with pytest.raises(InputError, match=message):
        im3f.sample_prior(jax.random.key(0), model, fits.data()[0], **settings)
