"""Priors of the biases of a side, one for each topic of the other side."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array

from im3f_jax.model.scalars import InverseGamma, log_prior

__all__ = ["SharedNormal", "TopicNormal", "bias_of_ratings"]


def bias_of_ratings(bias: Array, row: Array, topic: Array) -> Array:
    """Select the bias of each rating, by its row and the topic of the other side.

    Parameters
    ----------
    bias
        c_u[k] or d_j[k], rating scale, shape (rows, K); K may be 0.
    row, topic
        u_n or j_n, and zM_n or zU_n, int32, shape (N,).

    Returns
    -------
    Array
        Shape (N,), 0 where a side has no biases.
    """
    if not bias.shape[1]:
        return jnp.zeros(row.shape, bias.dtype)
    return bias[row, topic]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TopicNormal:
    """c_u[k] ~ Normal(mu_k, sigma_0^2), mu_k ~ Normal(c_0, tau^2).

    Attributes
    ----------
    variance
        sigma_0^2: a number, an `InverseGamma`, or None (the default, sampled). With 0
        every bias equals its topic's mean.
    topic_mean_variance
        tau^2: a number, an `InverseGamma`, or None (a tenth of the variance of the
        training ratings). With 0 the topic means are c_0, as in the paper.
    topic_mean
        c_0, rating scale.
    """

    variance: "float | InverseGamma | None" = None
    topic_mean_variance: "float | InverseGamma | None" = None
    topic_mean: float = 0.0

    def log_density(
        self,
        bias: Array,
        valid: Array,
        topic_mean: Array,
        variance: Array,
        topic_mean_variance: Array,
        used: Array | None = None,
    ) -> Array:
        """Log density of biases, topic means and their variances, in nats.

        Parameters
        ----------
        bias
            Shape (rows, K).
        valid
            False for rows of padding, bool, shape (rows,).
        topic_mean
            Shape (K,).
        variance, topic_mean_variance
            Scalars. Where one is 0 its term has no density and is left out.
        used
            Topics to count, bool, shape (K,); None for all.

        Returns
        -------
        Array
            Nats, scalar.
        """
        rows = jnp.where(valid[:, None], _log_normal(bias, topic_mean, variance), 0)
        means = _log_normal(topic_mean, self.topic_mean, topic_mean_variance)
        if used is not None:
            rows = jnp.where(used[None], rows, 0)
            means = jnp.where(used, means, 0)
        return (
            jnp.sum(rows)
            + jnp.sum(means)
            + log_prior(self.variance, variance)
            + log_prior(self.topic_mean_variance, topic_mean_variance)
        )


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SharedNormal(TopicNormal):
    """c_u[k] = mu_k + s_u + e_u[k]: a row's biases have a part in common.

    s_u ~ Normal(0, omega^2) is common to all topics, e_u[k] ~ Normal(0, sigma_0^2) is
    the topic's own, mu_k ~ Normal(c_0, tau^2). With omega^2 = 0 it is the paper's
    prior, `TopicNormal`; with sigma_0^2 = 0 (and tau^2 = 0) a row has one bias, that of
    M3F with one topic. A departure from the paper, in the manner of a random effect of
    rows and one of cells within rows (Gelman and Hill 2007, chapter 12).

    Attributes
    ----------
    variance
        sigma_0^2, of the parts by topic, as in `TopicNormal`.
    topic_mean_variance, topic_mean
        tau^2 and c_0, as in `TopicNormal`.
    shared_variance
        omega^2: a number, an `InverseGamma`, or None (the default, sampled).
    """

    shared_variance: "float | InverseGamma | None" = None

    def log_density_of_shared(
        self, shared: Array, valid: Array, shared_variance: Array
    ) -> Array:
        """Log density of the shared parts and of their variance, in nats.

        What is left of the biases, c_u[k] - s_u, has `log_density`.

        Parameters
        ----------
        shared
            s, shape (rows,).
        valid
            False for rows of padding, bool, shape (rows,).
        shared_variance
            omega^2, scalar. Where it is 0 its term has no density and is left out.

        Returns
        -------
        Array
            Nats, scalar.
        """
        rows = jnp.where(valid, _log_normal(shared, 0.0, shared_variance), 0)
        return jnp.sum(rows) + log_prior(self.shared_variance, shared_variance)


def _log_normal(value: Array, mean: Array, variance: Array) -> Array:
    safe = jnp.where(variance > 0, variance, 1)
    if jnp.ndim(mean):
        mean = jnp.broadcast_to(mean, value.shape)
    density = -0.5 * (jnp.log(2 * jnp.pi * safe) + (value - mean) ** 2 / safe)
    return jnp.where(variance > 0, density, 0)
