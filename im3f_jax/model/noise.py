"""Priors of relative precisions: noise that differs between users, items or ratings.

The noise of a rating has variance sigma^2 / (p_u q_j w_n). Each factor is a gamma of
mean 1, so that sigma^2 keeps its meaning; a factor that is constant costs nothing.
Precisions by row make the robust factorisation of Lakshminarayanan, Bouchard and
Archambeau (2011); those by rating make Student's t.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array

from im3f_jax.model.scalars import Gamma, log_prior
from im3f_jax.numerics.special import log_gamma_function

__all__ = ["LEAST_PRECISION", "ConstantNoise", "GammaNoise", "precision_of_ratings"]

# Draws of precisions are not let below this, so that a product of three, its square
# root and its inverse stay within float32. Where residuals are of the size of the
# noise, a row with a rating has a draw below it once in 1e5 at the least shape, and
# once in 1e10 from shape 1/2 on.
LEAST_PRECISION = 1e-10


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class ConstantNoise:
    """Relative precision 1 for all: the noise of the paper."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class GammaNoise:
    """Relative precisions p ~ Gamma(shape, rate=shape): mean 1, variance 1 / shape.

    Attributes
    ----------
    shape
        A number is fixed, a `Gamma` is sampled, None is the default (sampled, with the
        prior `NOISE_SHAPE` of model/spec.py). Of single ratings, where it is half the
        degrees of freedom of Student's t, a number only.
    """

    shape: "float | Gamma | None" = None

    def log_density(self, precision: Array, counted: Array, shape: Array) -> Array:
        """Log density of the precisions that are counted and of their shape, in nats.

        Parameters
        ----------
        precision
            Positive, shape (rows,).
        counted
            False for padding, bool, shape (rows,).
        shape
            Scalar.

        Returns
        -------
        Array
            Nats, scalar.
        """
        each = (
            shape * jnp.log(shape)
            - log_gamma_function(shape)
            + (shape - 1) * jnp.log(precision)
            - shape * precision
        )
        return jnp.sum(jnp.where(counted, each, 0)) + log_prior(self.shape, shape)


def precision_of_ratings(noise, user: Array, item: Array) -> Array | None:
    """Relative precision of each rating, p_u q_j w_n, shape (N,); None where all are 1.

    Parameters
    ----------
    noise
        A `gibbs.state.NoiseState`.
    user, item
        Rows, int32, shape (N,).
    """
    parts = [
        None if noise.user is None else noise.user[user],
        None if noise.item is None else noise.item[item],
        noise.rating,
    ]
    precision = None
    for part in parts:
        if part is not None:
            precision = part if precision is None else precision * part
    return precision
