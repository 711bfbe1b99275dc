"""Block: the topics of all ratings on one side, given those on the other."""

from jax import Array, lax

from im3f_jax.numerics.random import invert_weights, standard_uniform

__all__ = ["conditional_topics", "resample_topics"]


def conditional_topics(
    residual: Array,
    weight_row: Array,
    bias_row: Array,
    log_row_weights: Array,
    bias: Array,
    rating_variance: Array,
) -> Array:
    """Full conditional of the topics of ratings on one side, unnormalised.

    For item topics: log theta_M[j, k] - (x_n - c_u[k])^2 / (2 sigma^2), with the
    residual x_n = r_n - chi_0 - a_u . b_j - d_j[zU_n]; for user topics the sides
    change places.

    Parameters
    ----------
    residual
        Residual without the bias that this topic selects, rating scale, shape (n,).
    weight_row, bias_row
        Row of the weights and row of the biases of each rating, int32, shape (n,).
        (The item's weights, the user's biases for item topics.)
    log_row_weights
        log theta, shape (rows, K).
    bias
        Rating scale, shape (other rows, K).
    rating_variance
        sigma^2, scalar.

    Returns
    -------
    Array
        Log probabilities up to a constant a rating, shape (n, K).
    """
    misfit = residual[:, None] - bias[bias_row]
    return log_row_weights[weight_row] - 0.5 / rating_variance * misfit**2


def resample_topics(
    key: Array,
    residual: Array,
    weight_row: Array,
    bias_row: Array,
    log_row_weights: Array,
    bias: Array,
    rating_variance: Array,
    chunk: int,
) -> Array:
    """Draw topics from `conditional_topics`, int32, shape (N,).

    Ratings are taken `chunk` at a time (a divisor of N), so that N x K numbers are
    never held at once; each costs one uniform.
    """
    uniform = standard_uniform(key, residual.shape, residual.dtype)

    def draw(part):
        residual, weight_row, bias_row, uniform = part
        log_weights = conditional_topics(
            residual, weight_row, bias_row, log_row_weights, bias, rating_variance
        )
        return invert_weights(log_weights, uniform)

    parts = tuple(
        x.reshape(-1, chunk) for x in (residual, weight_row, bias_row, uniform)
    )
    return lax.map(draw, parts).reshape(-1)
