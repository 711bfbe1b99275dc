"""A draw's predictions as inner products of a user's and an item's vector."""

import numpy as np
import pytest

from im3f_jax.inference.features import prediction_features
from tests import tiny


@pytest.mark.parametrize(
    "topics", [("weak_limit", "stick_breaking"), ("none", "finite"), ("none", "none")]
)
def test_inner_products_are_the_means_over_topics(topics):
    with tiny.in_precision("float64") as precision:
        spec, data, state = tiny.make(precision, tiny.make_spec(*topics))
        users, items = map(np.asarray, prediction_features(state, data))
        found = users @ items.T
        user_weights = np.exp(np.asarray(state.user_topic_weights.log_row_weights))
        item_weights = np.exp(np.asarray(state.item_topic_weights.log_row_weights))
    for u in range(tiny.NUM_USERS):
        for j in range(tiny.NUM_ITEMS):
            mean = np.dot(state.user_factors[u], state.item_factors[j])
            for k in range(spec.num_item_topics):
                mean += item_weights[j, k] * state.user_bias[u, k]
            for i in range(spec.num_user_topics):
                mean += user_weights[u, i] * state.item_bias[j, i]
            np.testing.assert_allclose(found[u, j], mean, rtol=1e-12)


def test_the_row_after_the_last_is_what_the_prior_expects():
    with tiny.in_precision("float64") as precision:
        _, data, state = tiny.make(precision)
        users, items = map(np.asarray, prediction_features(state, data))
    # mu, then the means of the item topics, then pi of the user topics
    user = [
        state.user_factor_prior.mean,
        state.user_bias_prior.topic_mean,
        np.exp(state.user_topic_weights.log_global_weights),
    ]
    item = [
        state.item_factor_prior.mean,
        np.exp(state.item_topic_weights.log_global_weights),
        state.item_bias_prior.topic_mean,
    ]
    np.testing.assert_allclose(users[tiny.NUM_USERS], np.concatenate(user))
    np.testing.assert_allclose(items[tiny.NUM_ITEMS], np.concatenate(item))
