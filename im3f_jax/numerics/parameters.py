"""Parameters of the laws that the full conditionals of several blocks have."""

from typing import NamedTuple

from jax import Array

__all__ = ["GammaParameters", "InverseGammaParameters", "NormalParameters"]


class GammaParameters(NamedTuple):
    """Independent gammas: density proportional to x^(shape-1) exp(-rate x)."""

    shape: Array
    rate: Array


class InverseGammaParameters(NamedTuple):
    """An inverse gamma: density proportional to x^(-shape-1) exp(-scale / x)."""

    shape: Array  # scalar
    scale: Array  # scalar


class NormalParameters(NamedTuple):
    """Independent normals."""

    mean: Array
    variance: Array
