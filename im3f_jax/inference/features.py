"""A draw's predictions as inner products.

The mean of a rating over its topics, chi_0 + a_u . b_j + sum_k theta_M[j, k] c_u[k] +
sum_i theta_U[u, i] d_j[i], is chi_0 plus the inner product of a vector of the user,
[a_u, c_u, theta_U[u]], with a vector of the item, [b_j, theta_M[j], d_j].
"""

import jax.numpy as jnp
from jax import Array

from im3f_jax.data.layout import RatingLayout
from im3f_jax.gibbs.state import State

__all__ = ["prediction_features"]


def prediction_features(state: State, data: RatingLayout) -> tuple[Array, Array]:
    """User and item vectors of a draw.

    The first row of padding holds what the prior expects of a new row: mu for the
    factors, the topic means for the biases, pi for the weights.

    Returns
    -------
    tuple of Array
        Shapes (user rows, F) and (item rows, F), F = latent_dim + item topics + user
        topics.
    """
    user_weights, item_weights = state.user_topic_weights, state.item_topic_weights
    new_user = jnp.concatenate(
        [
            state.user_factor_prior.mean,
            state.user_bias_prior.topic_mean,
            jnp.exp(user_weights.log_global_weights),
        ]
    )
    new_item = jnp.concatenate(
        [
            state.item_factor_prior.mean,
            jnp.exp(item_weights.log_global_weights),
            state.item_bias_prior.topic_mean,
        ]
    )
    user = jnp.concatenate(
        [state.user_factors, state.user_bias, jnp.exp(user_weights.log_row_weights)],
        axis=1,
    )
    item = jnp.concatenate(
        [state.item_factors, jnp.exp(item_weights.log_row_weights), state.item_bias],
        axis=1,
    )
    return user.at[data.num_users].set(new_user), item.at[data.num_items].set(new_item)
