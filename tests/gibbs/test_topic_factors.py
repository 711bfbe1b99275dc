"""The factors that topics select: exact against the log joint, and what reads them."""

from functools import partial

import jax
import numpy as np
import pytest

from im3f_jax.gibbs import sweep
from im3f_jax.gibbs.factor_prior import conditional_factor_prior
from im3f_jax.gibbs.factors import conditional_factors
from im3f_jax.gibbs.topics import conditional_topics
from im3f_jax.inference.features import (
    expected_ratings,
    largest_weights,
    mixture_of_pairs,
    prediction_features,
)
from tests import tiny
from tests.quick import quick_jit

SPEC = tiny.select(tiny.make_spec("finite", "finite"))
NOISY = tiny.noisy(SPEC)
SPECS = {
    "Gaussian": SPEC,
    "noise": NOISY,
    "shared": tiny.share(SPEC),
    "HDP": tiny.select(tiny.make_spec()),
}
conditional = quick_jit(conditional_factors)


def topics_of(side, state):
    """A side's vectors are selected by the topics of the other."""
    return side.other.of(state, "topic_of_rating"), side.of(state, "topic_of_rating")


def vectors_of(side, state):
    return getattr(state.topic_factors, side.name)


def put(side, state, vectors):
    extra = state.topic_factors._replace(**{side.name: vectors})
    return state._replace(topic_factors=extra)


def arguments(side, state, data, k):
    """Arguments by which the sweep draws a side's vectors under one topic."""
    topic, other_topic = topics_of(side, state)
    other = vectors_of(side.other, state)
    precision = tiny.precision_of(state, data)
    x = tiny.residual(state, data, without=("topic_factors",))
    real = np.arange(len(data.rating)) < tiny.NUM_RATINGS
    mask = np.where(real & (topic == k), 1 if precision is None else precision, 0)
    row = side.other.rows(data) * other.shape[1] + other_topic
    return (
        getattr(state.topic_factors, f"{side.name}_prior"),
        x.astype(data.rating.dtype),
        other.reshape(-1, other.shape[-1]),
        state.rating_variance,
        side.of(data, "blocks"),
        mask.astype(data.rating.dtype),
        row.astype(np.int32),
    )


@pytest.mark.parametrize("name", SPECS)
def test_the_conditional_of_the_vectors_is_exact(name, side, precision):
    spec, data, state = tiny.make(precision, SPECS[name])
    rng = np.random.default_rng(3)
    number, current = side.number(data), vectors_of(side, state)
    for k in range(current.shape[1]):
        h, p = conditional(*arguments(side, state, data, k))
        h, p = np.float64(h)[:number], np.float64(p)[:number]
        values = []
        for _ in range(4):
            value = current.copy()
            value[:number, k] = rng.normal(size=value[:number, k].shape)
            values.append(value)
        densities = [
            np.sum(h * v) - 0.5 * np.einsum("ud,ude,ue->", v, p, v)
            for v in (np.float64(value[:number, k]) for value in values)
        ]
        tiny.assert_same_differences(
            densities,
            [tiny.joint(put(side, state, v), spec, data) for v in values],
            precision,
        )


def test_the_conditional_of_their_prior_is_exact(side, precision):
    spec, data, state = tiny.make(precision, SPEC)
    vectors = vectors_of(side, state)
    rows, number, dim = vectors.shape
    found = quick_jit(conditional_factor_prior)(
        spec.topic_factors.prior,
        vectors.reshape(-1, dim),
        np.int32(side.number(data) * number),
    )
    rng = np.random.default_rng(4)
    name, values, densities = f"{side.name}_prior", [], []
    for _ in range(4):
        mean, lam = rng.normal(size=dim), tiny.positive_definite(rng, dim)
        prior = getattr(state.topic_factors, name)._replace(
            mean=mean.astype(precision.dtype), precision=lam.astype(precision.dtype)
        )
        extra = state.topic_factors._replace(**{name: prior})
        values.append(state._replace(topic_factors=extra))
        offset = mean - np.float64(found.mean)
        log_det = np.linalg.slogdet(lam)[1]
        densities.append(
            0.5 * (float(found.degrees_of_freedom) - dim) * log_det
            - 0.5 * np.trace(np.float64(found.inverse_scale) @ lam)
            - 0.5 * float(found.mean_precision) * offset @ lam @ offset
        )
    tiny.assert_same_differences(
        densities, [tiny.joint(v, spec, data) for v in values], precision
    )


@pytest.mark.parametrize("name", SPECS)
def test_the_conditional_of_the_topics_is_exact(name, side, precision):
    spec, data, state = tiny.make(precision, SPECS[name])
    other = side.other  # whose biases and vectors the side's topics select
    x = tiny.residual(state, data, without=(f"{other.name}_bias", "topic_factors"))
    own, selected = vectors_of(other, state), vectors_of(side, state)
    other_topic = other.of(state, "topic_of_rating")
    row, other_row = side.rows(data), other.rows(data)
    products = np.einsum(
        "nkd,nd->nk", own[other_row], selected[row, other_topic]
    ).astype(precision.dtype)
    found = quick_jit(conditional_topics)(
        x.astype(precision.dtype),
        row,
        other_row,
        side.of(state, "topic_weights").log_row_weights,
        other.of(state, "bias"),
        state.rating_variance,
        tiny.precision_of(state, data),
        products,
    )
    for n in (0, 3, 7):
        values = []
        for k in range(own.shape[1]):
            topic = side.of(state, "topic_of_rating").copy()
            topic[n] = k
            values.append(side.put(state, topic_of_rating=topic))
        tiny.assert_same_differences(
            found[n], [tiny.joint(v, spec, data) for v in values], precision
        )


@pytest.mark.thorough
def test_a_sweep_gives_each_block_the_residuals_without_the_products(monkeypatch):
    """What the blocks are given, against the model's sums rating by rating."""
    precision = tiny.PRECISIONS["float32"]
    spec, data, state = tiny.make(precision, SPEC)
    given = {}
    for name in ("resample_factors", "resample_topics", "bias_statistics"):
        right = getattr(sweep, name)

        def note(*args, name=name, right=right, **others):
            value = right(*args, **others)
            if name == "resample_factors" and len(args) == 9:  # inside a loop
                return value
            given.setdefault(name, []).append((args, value))
            return value

        monkeypatch.setattr(sweep, name, note)

    def run(key, state, data):
        after, _ = sweep.gibbs_sweep.__wrapped__(key, state, spec, data)
        return after, given

    after, seen = quick_jit(run)(jax.random.key(0), state, data)
    real = slice(tiny.NUM_RATINGS)

    def check(found, expected):
        np.testing.assert_allclose(found[real], expected[real], rtol=1e-4, atol=1e-4)

    def left(state, *without):
        return tiny.residual(state, data, without=without)

    (user, item) = seen["resample_factors"]
    check(user[0][2], left(state, "factors"))
    check(item[0][2], left(state, "factors"))
    now = state._replace(user_factors=user[1], item_factors=item[1])
    (first, second) = seen["resample_topics"]
    check(first[0][1], left(now, "user_bias", "topic_factors"))
    now = now._replace(topic_factors=after.topic_factors, item_topic_of_rating=first[1])
    for call, own, other, topic in (
        (first, "user", "item", state.user_topic_of_rating),
        (second, "item", "user", first[1]),
    ):
        factors = call[0][9]
        assert np.array_equal(factors.own, getattr(after.topic_factors, own))
        assert np.array_equal(factors.other, getattr(after.topic_factors, other))
        assert np.array_equal(factors.other_topic[real], topic[real])
    check(second[0][1], left(now, "item_bias", "topic_factors"))
    now = now._replace(user_topic_of_rating=second[1])
    (first, second) = seen["bias_statistics"]
    check(first[0][0], left(now, "user_bias"))
    now = now._replace(user_bias=after.user_bias)
    check(second[0][0], left(now, "item_bias"))


@pytest.mark.parametrize("name", ["Gaussian", "noise"])
def test_predictions_sum_over_both_topics(name):
    spec, data, state = tiny.make(tiny.PRECISIONS["float32"], SPECS[name])
    users, items = quick_jit(prediction_features)(state, data)
    user, item = (
        np.array([0, 4, 3, tiny.NUM_USERS]),
        np.array([2, 1, tiny.NUM_ITEMS, 0]),
    )
    extra = state.topic_factors
    theta = {
        side.name: np.exp(side.of(state, "topic_weights").log_row_weights)
        for side in tiny.SIDES.values()
    }
    expected, tables = [], []
    for u, j in zip(user, item, strict=True):
        new_user, new_item = u == tiny.NUM_USERS, j == tiny.NUM_ITEMS
        side = {
            "user": (u, new_user, state.user_factor_prior, state.user_bias_prior),
            "item": (j, new_item, state.item_factor_prior, state.item_bias_prior),
        }
        a, c, v, weight = {}, {}, {}, {}
        for key, (row, new, factors, biases) in side.items():
            pi = np.exp(getattr(state, f"{key}_topic_weights").log_global_weights)
            a[key] = factors.mean if new else getattr(state, f"{key}_factors")[row]
            c[key] = biases.topic_mean if new else getattr(state, f"{key}_bias")[row]
            weight[key] = pi if new else theta[key][row]
            mean = getattr(extra, f"{key}_prior").mean
            vectors = getattr(extra, key)
            v[key] = np.broadcast_to(mean, vectors.shape[1:]) if new else vectors[row]
        table = state.global_bias + a["user"] @ a["item"]
        table = table + c["user"][:, None] + c["item"][None] + v["user"] @ v["item"].T
        tables.append(table)
        expected.append(weight["item"] @ table @ weight["user"])
    noise = 2 if name == "noise" else 0
    width = users.shape[1] - noise
    found = state.global_bias + np.sum(
        users[user, :width] * items[item, :width], axis=1
    )
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    mean, weight = quick_jit(partial(mixture_of_pairs, spec=spec))(
        users,
        items,
        largest_weights(users, items, spec),
        global_bias=state.global_bias,
        user=user,
        item=item,
    )
    np.testing.assert_allclose(mean, tables, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(weight.sum(axis=(1, 2)), 1, rtol=1e-5)


def test_ordinal_predictions_read_the_products():
    spec = tiny.select(tiny.make_ordinal_spec("finite", "finite"))
    _, data, state = tiny.make(tiny.PRECISIONS["float32"], spec)
    user, item = np.array([0, 1]), np.array([2, 3])

    def rate(state):
        features = prediction_features(state, data)
        given = state.global_bias, state.cut_points, user, item
        return expected_ratings(features, spec, *given, chunk=2)

    without = state.topic_factors._replace(user=0 * state.topic_factors.user)
    moved = quick_jit(rate)(state) - quick_jit(rate)(
        state._replace(topic_factors=without)
    )
    assert np.all(np.abs(moved) > 1e-3)
