"""Likelihoods: how a rating arises from its mean."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array

from im3f_jax.model.scalars import InverseGamma, log_prior

__all__ = ["Gaussian"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Gaussian:
    """r_n ~ Normal(mean_n, sigma^2), in squared units of the rating scale.

    Attributes
    ----------
    variance
        sigma^2: a number is fixed, an `InverseGamma` is sampled, None is the default
        (an inverse gamma scaled by the variance of the training ratings).
    variance_floor
        Least value of a sampled sigma^2. None is step^2 / 12, the variance of rounding
        to the scale's smallest step: without it a Gaussian with topics can put a
        topic on every star and shrink sigma^2 to 0. Give 0 only for a scale that is
        continuous.
    """

    variance: "float | InverseGamma | None" = None
    variance_floor: float | None = None

    def log_density(
        self, squared_error: Array, num_ratings: Array, variance: Array
    ) -> Array:
        """Log density of all ratings and of sigma^2, in nats, up to a constant.

        The constant is the prior's mass above the floor, which the floor fixes.
        """
        count = num_ratings.astype(variance.dtype)
        return (
            -0.5 * count * jnp.log(2 * jnp.pi * variance)
            - 0.5 * squared_error / variance
            + log_prior(self.variance, variance)
        )
