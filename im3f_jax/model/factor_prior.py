"""Priors of the latent factors: what the rows of a side have in common."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array

__all__ = ["IsotropicNormal", "NormalWishart"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class NormalWishart:
    """a_u ~ Normal(mu, Lambda^-1), Lambda ~ Wishart(W_0, nu_0), mu | Lambda normal.

    mu ~ Normal(mu_0, (lambda_0 Lambda)^-1); both sides have their own mu and Lambda
    (Salakhutdinov and Mnih 2008).

    Attributes
    ----------
    scale
        W_0 = scale x I.
    degrees_of_freedom
        nu_0 >= latent_dim; None is latent_dim.
    mean
        mu_0, the same in all dimensions.
    mean_precision
        lambda_0.
    """

    scale: float = 1.0
    degrees_of_freedom: float | None = None
    mean: float = 0.0
    mean_precision: float = 10.0

    def log_density(self, mean: Array, precision: Array) -> Array:
        """Log density of (mu, Lambda), in nats; shapes (D,) and (D, D).

        Without the constant log Gamma_D(nu_0 / 2).
        """
        (dim,) = mean.shape
        nu = self.degrees_of_freedom
        log_det = jnp.linalg.slogdet(precision)[1]
        wishart = (
            0.5 * (nu - dim - 1) * log_det
            - 0.5 * jnp.trace(precision) / self.scale
            - 0.5 * nu * dim * jnp.log(2 * self.scale)
        )
        offset = mean - self.mean
        quadratic = offset @ jnp.matmul(precision, offset, precision="highest")
        normal = 0.5 * (
            dim * jnp.log(self.mean_precision / (2 * jnp.pi))
            + log_det
            - self.mean_precision * quadratic
        )
        return wishart + normal


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class IsotropicNormal:
    """a_u ~ Normal(0, I / precision), fixed: the prior of PMF.

    `precision` None is the default: the prior variance of a_u . b_j is a tenth of the
    variance of the training ratings (chosen on ML-100K random90_1).
    """

    precision: float | None = None

    def log_density(self, mean: Array, precision: Array) -> Array:
        """Nothing is drawn here: 0."""
        return jnp.zeros((), mean.dtype)
