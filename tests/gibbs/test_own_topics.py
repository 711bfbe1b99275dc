"""Topics of each row's own: whose weights the blocks are given, and predictions."""

from functools import partial

import jax
import numpy as np
import pytest

from im3f_jax.gibbs import sweep
from im3f_jax.gibbs.init import init_state
from im3f_jax.gibbs.topics import conditional_topics
from im3f_jax.inference.features import (
    expected_ratings,
    feature_width,
    largest_weights,
    mixture_of_pairs,
    prediction_features,
)
from tests import tiny
from tests.quick import quick_jit

SPEC = tiny.own(tiny.make_spec("finite", "finite"))
NOISY = tiny.noisy(SPEC)
REAL = slice(tiny.NUM_RATINGS)


@pytest.mark.parametrize("side", tiny.SIDES.values(), ids=tiny.SIDES)
@pytest.mark.parametrize("name", tiny.PRECISIONS)
def test_the_conditional_of_the_topics_is_exact(name, side):
    with tiny.in_precision(name) as precision:
        spec, data, state = tiny.make(precision, NOISY)
        other = side.other  # whose biases the side's topics select, and whose weights
        x = tiny.residual(state, data, without=(f"{other.name}_bias",))
        found = quick_jit(conditional_topics)(
            x.astype(precision.dtype),
            other.rows(data),
            other.rows(data),
            side.of(state, "topic_weights").log_row_weights,
            other.of(state, "bias"),
            state.rating_variance,
            tiny.precision_of(state, data),
        )
        for n in (0, 3, 7):
            values = []
            for k in range(side.of(spec, "topic_prior").num_topics):
                topic = side.of(state, "topic_of_rating").copy()
                topic[n] = k
                values.append(side.put(state, topic_of_rating=topic))
            tiny.assert_same_differences(
                found[n], [tiny.joint(v, spec, data) for v in values], precision
            )


@pytest.mark.thorough
def test_a_sweep_reads_and_draws_weights_of_the_right_rows(monkeypatch):
    spec, data, state = tiny.make(tiny.PRECISIONS["float32"], SPEC)
    given = {}
    for name in ("resample_topics", "resample_table_topics", "count_by_cell"):
        right = getattr(sweep, name)

        def note(*args, name=name, right=right, **others):
            value = right(*args, **others)
            given.setdefault(name, []).append((args, value))
            return value

        monkeypatch.setattr(sweep, name, note)

    def run(key, state, data):
        after, _ = sweep.gibbs_sweep.__wrapped__(key, state, spec, data)
        return after, given

    after, seen = quick_jit(run)(jax.random.key(0), state, data)
    for name, rows in (
        ("resample_topics", ("user", "item")),
        ("resample_table_topics", ("user", "item")),
    ):
        for (args, _), row in zip(seen[name], rows, strict=True):
            assert np.array_equal(args[2], getattr(data, row))
            assert np.array_equal(args[3], getattr(data, row))
    for (_, counts), topic, row in zip(
        seen["count_by_cell"],
        (after.user_topic_of_rating, after.item_topic_of_rating),
        (data.item, data.user),
        strict=True,
    ):
        expected = np.zeros(counts.shape, int)
        np.add.at(expected, (row[REAL], topic[REAL]), 1)
        assert np.array_equal(counts, expected)
    assert after.user_topic_weights.log_row_weights.shape == (
        data.item_rows,
        spec.num_user_topics,
    )


def test_a_chain_starts_with_weights_of_the_right_rows():
    spec, data, _ = tiny.make(tiny.PRECISIONS["float32"], SPEC)
    given = [], []
    for seed in range(200):  # one topic a side: the first one's weight tells the row
        state = init_state(jax.random.key(seed), spec, data)
        for found, weights in zip(
            given, (state.user_topic_weights, state.item_topic_weights), strict=True
        ):
            found.append(np.exp(weights.log_row_weights[:, 0]))
    for found, row, number, prior in (
        (given[0], data.item, tiny.NUM_ITEMS, spec.user_topic_prior),
        (given[1], data.user, tiny.NUM_USERS, spec.item_topic_prior),
    ):
        counts = np.bincount(row[REAL], minlength=number)[:number]
        alpha = prior.concentration
        mean = (alpha / prior.num_topics + counts) / (alpha + counts)
        spread = np.sqrt(mean * (1 - mean) / (alpha + counts + 1) / 200)
        distance = (np.mean(found, axis=0)[:number] - mean) / spread
        assert np.all(np.abs(distance) < 5), distance


@pytest.mark.parametrize("spec", [SPEC, NOISY], ids=["Gaussian", "noise"])
def test_predictions_sum_over_each_rows_own_topics(spec):
    _, data, state = tiny.make(tiny.PRECISIONS["float32"], spec)
    features = partial(prediction_features, own_topics=True)
    users, items = quick_jit(features)(state, data)
    assert users.shape[1] == items.shape[1] == feature_width(spec)
    user = np.array([0, 4, 3, tiny.NUM_USERS])
    item = np.array([2, 1, tiny.NUM_ITEMS, 0])
    expected, tables, weights = [], [], []
    for u, j in zip(user, item, strict=True):
        a, c, theta = {}, {}, {}
        for side, row in (("user", u), ("item", j)):
            side = tiny.SIDES[side]
            new = row == side.number(data)
            of = side.other.of(state, "topic_weights")
            prior = side.of(state, "factor_prior"), side.of(state, "bias_prior")
            a[side.name] = prior[0].mean if new else side.of(state, "factors")[row]
            c[side.name] = prior[1].topic_mean if new else side.of(state, "bias")[row]
            log = of.log_global_weights if new else of.log_row_weights[row]
            theta[side.name] = np.exp(log)
        table = state.global_bias + a["user"] @ a["item"]
        table = table + c["user"][:, None] + c["item"][None]
        tables.append(table)
        weights.append(np.outer(theta["user"], theta["item"]))
        expected.append(np.sum(weights[-1] * table))
    width = users.shape[1] - (2 if spec is NOISY else 0)
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
    np.testing.assert_allclose(weight, weights, rtol=1e-4, atol=1e-6)


def test_ordinal_predictions_are_mixtures_of_the_rows_own_topics():
    spec = tiny.own(tiny.make_ordinal_spec("finite", "finite"))
    _, data, state = tiny.make(tiny.PRECISIONS["float32"], spec)
    user, item = np.array([0, 1, 4]), np.array([2, 3, 1])
    features = quick_jit(partial(prediction_features, own_topics=True))(state, data)
    found = expected_ratings(
        features, spec, state.global_bias, state.cut_points, user, item, chunk=3
    )
    for n, (u, j) in enumerate(zip(user, item, strict=True)):
        dot = state.user_factors[u] @ state.item_factors[j]
        mean = dot + state.user_bias[u][:, None] + state.item_bias[j][None]
        weight = np.exp(state.item_topic_weights.log_row_weights[u])[:, None]
        weight = weight * np.exp(state.user_topic_weights.log_row_weights[j])
        rating = spec.likelihood.expected_rating(mean, state.cut_points)
        expected = np.sum(weight * rating) / np.sum(weight)
        np.testing.assert_allclose(found[n], expected, rtol=1e-4)
