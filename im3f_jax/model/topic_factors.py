"""Factors that topics index: the part of M3F's topic-indexed-factor form.

    mean_n += v_u[zM_n] . w_j[zU_n]

Each user has a vector for each item topic, each item one for each user topic; their
inner product takes the place of the biases' sum (Mackey, Weiss and Jordan 2010, Mixed
membership matrix factorization, section 3.2), which they call c_u^k and d_j^i. All
vectors of a side have one normal prior, as those of the factors.
"""

from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
from jax import Array

from im3f_jax.model.factor_prior import NormalWishart

__all__ = ["NoTopicFactors", "TopicFactors", "topic_factors_of_ratings"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class NoTopicFactors:
    """No such factors, as in the paper."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TopicFactors:
    """v_u[k] ~ Normal(mu, Lambda^-1) for every item topic k; w_j[i] likewise.

    Attributes
    ----------
    dim
        Their length; static.
    prior
        Of each side's mu and Lambda.
    """

    dim: int = field(default=2, metadata={"static": True})
    prior: NormalWishart = NormalWishart()


def topic_factors_of_ratings(factors, user: Array, item: Array, topics) -> Array:
    """Part of each rating's mean, v_u[zM] . w_j[zU], shape (N,).

    Parameters
    ----------
    factors
        A `gibbs.state.TopicFactorState`.
    user, item
        Rows, int32, shape (N,).
    topics
        User topics zU and item topics zM of the ratings, int32, shape (N,) each.
    """
    user_topic, item_topic = topics
    return jnp.sum(
        factors.user[user, item_topic] * factors.item[item, user_topic], axis=-1
    )
