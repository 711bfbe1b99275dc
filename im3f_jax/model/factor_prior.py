"""Priors of the latent factors: what the rows of a side have in common."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array

from im3f_jax.model.scalars import Gamma, log_prior

__all__ = ["IsotropicNormal", "MultiplicativeGamma", "NormalWishart"]


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
        """Log density of (mu, Lambda), without the constant log Gamma_D(nu_0 / 2).

        Parameters
        ----------
        mean
            mu, shape (D,).
        precision
            Lambda, shape (D, D).

        Returns
        -------
        Array
            Nats, scalar.
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

    Salakhutdinov and Mnih (2007).

    Attributes
    ----------
    precision
        Of each element, positive. None is the default: the prior variance of a_u . b_j
        is a tenth of the variance of the training ratings (chosen on ML-100K
        random90_1).
    """

    precision: float | None = None

    def log_density(self, mean: Array, precision: Array) -> Array:
        """Log density of what is drawn of the prior: nothing is, so 0.

        Parameters
        ----------
        mean
            mu, shape (D,).
        precision
            Lambda, shape (D, D).

        Returns
        -------
        Array
            0, scalar.
        """
        return jnp.zeros((), mean.dtype)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class MultiplicativeGamma:
    """a_u ~ Normal(m, diag(tau)^-1), b_j likewise: later columns are shrunk towards 0.

    tau_h = delta_1 delta_2 ... delta_h is the precision of column h of both sides,
    delta_1 ~ Gamma(a_1, rate), delta_h ~ Gamma(a_2, 1) for h > 1 (the multiplicative
    gamma process of Bhattacharya and Dunson 2011, without their local precisions). The
    data choose how many columns they need; `latent_dim` is a truncation.

    A departure: there one side has precision 1. Here both sides share tau, so that
    users and items may change places, and a column of a_u . b_j still has its scale
    from one number: with a tau for each side, a column could grow on one side and
    shrink on the other at no cost. And each side's rows have a mean of their own, as
    under the Normal-Wishart, m_h ~ Normal(0, 1 / (mean_precision tau_h)), shrunk with
    its column.

    Attributes
    ----------
    first_shape
        a_1.
    shape
        a_2; the more above 1, the more each column is shrunk against the one before. At
        3, the default, the prior variance of a column of a_u . b_j, E[1 / tau_h^2], is
        half of that of the column before.
    rate
        Of delta_1, in units of the rating scale: 1 / tau_1 scales with it. None is the
        default: the prior variance of a_u . b_j is a tenth of the variance of the
        training ratings (about the means), as for `IsotropicNormal`, where both shapes
        are 3.
    mean_precision
        kappa, in units of that of the rows.
    """

    first_shape: float = 3.0
    shape: float = 3.0
    rate: float | None = None
    mean_precision: float = 10.0

    def parameters(self, dim: int, dtype) -> tuple[Array, Array]:
        """Shapes and rates of the gammas of delta.

        Parameters
        ----------
        dim
            D.
        dtype
            Of the result.

        Returns
        -------
        tuple of Array
            Shapes and rates, shape (D,) each.
        """
        first = jnp.arange(dim, dtype=jnp.int32) == 0
        return (
            jnp.where(first, self.first_shape, self.shape).astype(dtype),
            jnp.where(first, self.rate, 1.0).astype(dtype),
        )

    def log_density(self, mean: Array, precision: Array) -> Array:
        """Log density of a side's m given tau.

        Parameters
        ----------
        mean
            m, shape (D,).
        precision
            diag(tau), shape (D, D).

        Returns
        -------
        Array
            Nats, scalar.
        """
        precision = self.mean_precision * jnp.diagonal(precision)
        return 0.5 * jnp.sum(
            jnp.log(precision / (2 * jnp.pi)) - precision * mean**2, axis=-1
        )

    def log_density_of_increments(self, increments: Array) -> Array:
        """Log density of delta, which gives tau of both sides.

        Parameters
        ----------
        increments
            delta, shape (D,).

        Returns
        -------
        Array
            Nats, scalar.
        """
        shapes, rates = self.parameters(increments.shape[0], increments.dtype)
        return jnp.sum(log_prior(Gamma(shapes, rates), increments))
