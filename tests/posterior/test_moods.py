"""Moods in numbers: against plain sums, and the same under any labels."""

import dataclasses

import numpy as np
import pytest

import im3f_jax as im3f
from im3f_jax.errors import InputError
from im3f_jax.inference.features import topics_of_features
from im3f_jax.posterior import moods
from tests import fits

pytestmark = pytest.mark.relaxed  # fits start by optax


def relabelled(posterior):
    """Give every draw other labels: columns of both sides move together."""
    spec, draws = posterior.spec, posterior.draws
    dim, items, users = spec.latent_dim, spec.num_item_topics, spec.num_user_topics
    user, item = draws.user_features.copy(), draws.item_features.copy()
    rng = np.random.default_rng(0)
    for place in np.ndindex(draws.global_bias.shape):
        order = np.concatenate(
            [
                np.arange(dim),
                dim + rng.permutation(items),
                dim + items + rng.permutation(users),
            ]
        )
        user[place], item[place] = user[place][:, order], item[place][:, order]
    draws = draws._replace(user_features=user, item_features=item)
    return dataclasses.replace(posterior, draws=draws)


def test_topics_are_found_in_the_vectors():
    # The prediction of a draw, put together again from what is found.
    posterior, (train, _) = fits.posterior("IM3F"), fits.data()
    draws, dim = posterior.draws, posterior.spec.latent_dim
    features = draws.user_features[0, 1], draws.item_features[0, 1]
    theta_u, d = topics_of_features(*features, posterior.spec, "user")
    theta_m, c = topics_of_features(*features, posterior.spec, "item")
    assert theta_u.shape[1] == d.shape[1] == 4
    assert theta_m.shape[1] == c.shape[1] == 5
    np.testing.assert_allclose(theta_u.sum(axis=1), 1, rtol=1e-4)
    np.testing.assert_allclose(theta_m.sum(axis=1), 1, rtol=1e-4)
    u, j = posterior.user_row[train.user], posterior.item_row[train.item]
    expected = (
        draws.global_bias[0, 1]
        + np.sum(features[0][u, :dim] * features[1][j, :dim], axis=1)
        + np.sum(theta_u[u] * d[j], axis=1)
        + np.sum(theta_m[j] * c[u], axis=1)
    )
    found = posterior.predict(train.user_ids, train.item_ids, per_draw=True)[0, 1]
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_topics_of_each_rows_own_are_found_too():
    # As the module's doc-string says: [a, s_u, 1, c_u, theta_M[u], 0, 0] and so on.
    spec = im3f.SeparateDP(2, max_user_topics=4, max_item_topics=5)
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(6, 2)), rng.normal(size=(7, 2))
    c, theta_m = rng.normal(size=(6, 5)), rng.normal(size=(6, 5))
    d, theta_u = rng.normal(size=(7, 4)), rng.normal(size=(7, 4))
    one, other = np.ones((6, 1)), np.ones((7, 1))
    users = np.concatenate([a, one, one, c, theta_m, np.zeros((6, 8))], axis=1)
    items = np.concatenate([b, other, other, np.zeros((7, 10)), d, theta_u], axis=1)
    for side, expected in (("user", (theta_u, d)), ("item", (theta_m, c))):
        found = topics_of_features(users, items, spec, side)
        for x, y in zip(found, expected, strict=True):
            np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("side, topics", [("item", "user"), ("user", "item")])
def test_spreads_are_plain_sums(side, topics):
    posterior = fits.posterior("IM3F")
    table = moods.bias_spread(posterior, side)
    draws = posterior.draws
    index, row = getattr(posterior, f"{side}s"), getattr(posterior, f"{side}_row")
    cold = {"item": fits.COLD_ITEM, "user": fits.COLD_USER}[side]
    assert set(table.index) == set(index.ids) - {index.ids[cold]}
    label = index.ids[3]
    each = []
    for place in np.ndindex(draws.global_bias.shape):
        weights, bias = topics_of_features(
            draws.user_features[place],
            draws.item_features[place],
            posterior.spec,
            topics,
        )
        number = weights.shape[1]
        weight = [np.mean(weights[:-1, k]) for k in range(number)]
        less = [bias[row[3], k] - np.mean(bias[:-1, k]) for k in range(number)]
        mean = sum(w * x for w, x in zip(weight, less, strict=True))
        each.append(
            sum(w * (x - mean) ** 2 for w, x in zip(weight, less, strict=True)) ** 0.5
        )
    expected = [np.mean(each), *np.quantile(each, [0.05, 0.95])]
    found = table.loc[label, ["mean", "low", "high"]]
    np.testing.assert_allclose(found, expected, rtol=1e-3)


def test_labels_do_not_matter():
    posterior = fits.posterior("IM3F")
    other = relabelled(posterior)
    test = fits.data()[1]
    pairs = test.user_ids[:50], test.item_ids[:50]
    np.testing.assert_allclose(  # the same model
        other.predict(*pairs), posterior.predict(*pairs), atol=1e-5
    )
    for side in ("user", "item"):
        found, again = (moods.bias_spread(p, side) for p in (posterior, other))
        np.testing.assert_allclose(found, again, rtol=1e-5)
        label = getattr(posterior, f"{side}s").ids[2]
        found, again = (
            moods.sorted_weights(p, side, label) for p in (posterior, other)
        )
        np.testing.assert_array_equal(found, again)


def test_weights_are_sorted_in_each_draw():
    posterior = fits.posterior("IM3F")
    label = posterior.items.ids[2]
    found = moods.sorted_weights(posterior, "item", label)
    assert found.shape == (1, 3, 5)
    assert np.all(np.diff(found, axis=-1) <= 0)
    np.testing.assert_allclose(found.sum(axis=-1), 1, rtol=1e-4)
    row = posterior.item_row[2]
    weights = posterior.draws.item_features[0, 2, row, 2 : 2 + 5]
    np.testing.assert_array_equal(found[0, 2], sorted(weights, reverse=True))


def test_topics_of_a_draw():
    posterior = fits.posterior("IM3F")
    table = moods.topic_table(posterior, "user", draw=(0, 2))
    assert table["weight"].is_monotonic_decreasing
    assert table["weight"].sum() == pytest.approx(1)
    bias = posterior.draws.item_features[0, 2, :-1, -4:]
    for topic, row in table.iterrows():
        assert row["mean"] == pytest.approx(bias[:, topic].mean(), abs=1e-5)
        low, high = np.quantile(bias[:, topic], [0.05, 0.95])
        assert (row["low"], row["high"]) == pytest.approx((low, high), abs=1e-5)


def test_what_is_not_there_is_said():
    with pytest.raises(InputError, match="no user topics"):
        moods.bias_spread(
            dataclasses.replace(fits.posterior("IM3F"), spec=im3f.BPMF(2))
        )
    with pytest.raises(InputError, match="side is 'mood'"):
        moods.topic_table(fits.posterior("IM3F"), "mood")
    no_draws = dataclasses.replace(fits.posterior("IM3F"), draws=None)
    for function in (moods.bias_spread, moods.named_draw, moods.topic_table):
        with pytest.raises(InputError, match="kept no draws"):
            function(no_draws)
    for draw in ((1, 0), (0, 3), (0, -1), 5, "ab"):
        with pytest.raises(InputError, match="a chain below 1 and a kept draw below 3"):
            moods.topic_table(fits.posterior("IM3F"), draw=draw)
    with pytest.raises(InputError, match="unknown user: 'nobody'"):
        moods.sorted_weights(fits.posterior("IM3F"), "user", "nobody")
