"""What the next sweep needs, and what a reader wants to see of a sweep."""

from typing import NamedTuple

from jax import Array

__all__ = [
    "BiasPriorState",
    "FactorPriorState",
    "NoiseState",
    "Seating",
    "State",
    "SweepInfo",
    "TimeState",
    "TopicFactorState",
    "TopicWeights",
]


class FactorPriorState(NamedTuple):
    """Mean and precision of the rows of a side's factors."""

    mean: Array  # mu, shape (D,)
    precision: Array  # Lambda, shape (D, D)


class BiasPriorState(NamedTuple):
    """Means and variance of a side's biases; topics are those of the other side."""

    topic_mean: Array  # mu_k, rating scale, shape (K,)
    variance: Array  # sigma_0^2, squared rating scale, scalar
    topic_mean_variance: Array  # tau^2, squared rating scale, scalar
    # Of a `SharedNormal` only:
    shared: Array | None = None  # s, rating scale, shape (rows,)
    shared_variance: Array | None = None  # omega^2, squared rating scale, scalar


class Seating(NamedTuple):
    """Who sits where in the restaurants (rows) of a side's franchise."""

    table_of_rating: Array  # within its row, int32, shape (N,)
    dish_of_table: Array  # -1 where nobody sits, int32, shape (rows, T)
    overflow: Array  # int32: 0, or bits 1 (no free table) and 2 (no free dish)


class TopicWeights(NamedTuple):
    """Weights of a side's own topics, all in log space.

    Under the Chinese restaurant franchise they are expectations given the seating: the
    mass of a dish that nobody has eaten yet stands in the lowest free slot.
    """

    log_row_weights: Array  # log theta, shape (rows, K), or of the stored topics only
    log_global_weights: Array  # log pi, shape (K,); uniform in finite models
    dish_concentration: Array  # beta, scalar
    table_concentration: Array  # gamma, scalar; alpha in finite models
    seating: Seating | None = None  # of the Chinese restaurant franchise only
    # Where an HDP stores a number of topics that it finds: whether it needs more.
    overflow: Array | None = None  # bool scalar


class NoiseState(NamedTuple):
    """Relative precisions of the ratings' noise; None where they are constant."""

    user: Array | None = None  # p, shape (num_users,)
    item: Array | None = None  # q, shape (num_items,)
    rating: Array | None = None  # w, shape (N,)
    user_shape: Array | None = None  # of the gamma prior of p, scalar
    item_shape: Array | None = None


class TimeState(NamedTuple):
    """What depends on the time of a rating; None where nothing does, 0 in padding."""

    item: Array | None = None  # e, rating scale, shape (num_items, bins)
    user: Array | None = None  # f, rating scale, shape (num_users,)
    item_variance: Array | None = None  # omega_M^2, squared rating scale, scalar
    user_variance: Array | None = None  # omega_U^2, squared rating scale, scalar


class TopicFactorState(NamedTuple):
    """Factors that topics index, and the prior of each side's."""

    user: Array  # v, shape (num_users, item topics, dim); 0 in rows of padding
    item: Array  # w, shape (num_items, user topics, dim); 0 in rows of padding
    user_prior: FactorPriorState  # mu, shape (dim,), and Lambda, shape (dim, dim)
    item_prior: FactorPriorState


class State(NamedTuple):
    """One draw of everything. Rows of padding are carried along and mean nothing.

    Under the ordinal likelihood "rating scale" is that of the latent ratings, which
    every sweep draws anew, and rating_variance is 1.
    """

    user_factors: Array  # a, shape (num_users, D); 0 in rows of padding
    item_factors: Array  # b, shape (num_items, D); 0 in rows of padding
    user_factor_prior: FactorPriorState
    item_factor_prior: FactorPriorState
    user_bias: Array  # c, rating scale, shape (num_users, item topics)
    item_bias: Array  # d, rating scale, shape (num_items, user topics)
    user_bias_prior: BiasPriorState
    item_bias_prior: BiasPriorState
    user_topic_of_rating: Array  # zU, integers (int16 as a fit stores them), (N,)
    item_topic_of_rating: Array  # zM, the same
    user_topic_weights: TopicWeights
    item_topic_weights: TopicWeights
    rating_variance: Array  # sigma^2, squared rating scale, scalar
    global_bias: Array  # chi_0, rating scale, scalar
    cut_points: Array  # of the ordinal likelihood, increasing, (L - 1,); Gaussian: (0,)
    noise: NoiseState = NoiseState()
    # Of a `MultiplicativeGamma` only: both sides' precisions are its running products.
    column_increments: Array | None = None  # delta, shape (D,)
    time: TimeState = TimeState()
    topic_factors: TopicFactorState | None = None  # where the model has them


class SweepInfo(NamedTuple):
    """Label-free scalars of one sweep."""

    log_joint: Array  # row weights summed out, nats, up to a constant
    rating_variance: Array  # squared rating scale
    residual_rmse: Array  # of the training ratings about their expectation given their
    # topics; rating scale, under the ordinal likelihood too
    num_user_topics: Array  # occupied by at least one rating, int32
    num_item_topics: Array
    effective_user_topics: Array  # exp(entropy of the topics' shares of ratings)
    effective_item_topics: Array
    user_bias_variance: Array  # squared rating scale
    item_bias_variance: Array
    user_shared_bias_variance: Array  # 0 where a side's biases share nothing
    item_shared_bias_variance: Array
    user_topic_mean_variance: Array  # of the means of USER topics, about which item
    item_topic_mean_variance: Array  # biases lie; squared rating scale
    user_dish_concentration: Array
    item_dish_concentration: Array
    user_table_concentration: Array
    item_table_concentration: Array
    user_noise_shape: Array  # infinite where all users' ratings are as noisy
    item_noise_shape: Array
    item_time_variance: Array  # squared rating scale; 0 where nothing depends on time
    user_drift_variance: Array
    effective_dimension: Array  # exp(entropy of the columns' shares of a_u . b_j)
    cut_points_accepted: Array  # 1 where the joint move was, else 0; Gaussian: 1
