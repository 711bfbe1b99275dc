"""Priors of single positive numbers: variances and concentrations.

In a spec a plain number is fixed and never changed; a prior is sampled. Their numbers
are array leaves, so that changing them compiles nothing.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array

from im3f_jax.numerics.special import log_gamma_function

__all__ = ["Gamma", "InverseGamma", "log_prior", "start_value"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class InverseGamma:
    """Density proportional to x^(-shape-1) exp(-scale/x); mean scale / (shape - 1).

    Attributes
    ----------
    shape
        Positive.
    scale
        Positive, in the units of x: of a variance, squared rating scale.
    """

    shape: float
    scale: float


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Gamma:
    """Density proportional to x^(shape-1) exp(-rate x); mean shape / rate.

    Attributes
    ----------
    shape
        Positive.
    rate
        Positive, in units of 1 / x.
    """

    shape: float
    rate: float


def log_prior(prior: "float | InverseGamma | Gamma", value: Array) -> Array:
    """Log density of a number under its prior, in nats; 0 for a fixed number."""
    match prior:
        case InverseGamma(shape, scale):
            return (
                shape * jnp.log(scale)
                - log_gamma_function(shape)
                - (shape + 1) * jnp.log(value)
                - scale / value
            )
        case Gamma(shape, rate):
            return (
                shape * jnp.log(rate)
                - log_gamma_function(shape)
                + (shape - 1) * jnp.log(value)
                - rate * value
            )
        case _:
            return jnp.zeros_like(value)


def start_value(prior: "float | InverseGamma | Gamma") -> Array:
    """Where a chain starts: the number itself, or the prior's typical value."""
    match prior:
        case InverseGamma(shape, scale):
            return scale / (shape + 1)
        case Gamma(shape, rate):
            return shape / rate
        case _:
            return prior
