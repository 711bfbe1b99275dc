"""Likelihoods: how a rating arises from its mean."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import Array

from im3f_jax.model.scalars import InverseGamma, log_prior
from im3f_jax.numerics.special import log_normal_interval

__all__ = ["OPEN_END", "Gaussian", "Ordinal", "bounds_of_levels"]

# Stands for infinity as the outer bound of the outermost levels: its square is finite
# in float32, and no normal gets there.
OPEN_END = 1e4


def _normal_cdf(x: Array) -> Array:
    return 0.5 + 0.5 * jax.lax.erf(math.sqrt(0.5) * x)


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

        sum_n log Normal(r_n; mean_n, sigma^2) + log p(sigma^2). The constant is the
        prior's mass above the floor, which the floor fixes.

        Parameters
        ----------
        squared_error
            sum_n (r_n - mean_n)^2, squared rating scale, scalar.
        num_ratings
            N, int32, scalar.
        variance
            sigma^2, squared rating scale, scalar.

        Returns
        -------
        Array
            Nats, scalar.
        """
        count = num_ratings.astype(variance.dtype)
        return (
            -0.5 * count * jnp.log(2 * jnp.pi * variance)
            - 0.5 * squared_error / variance
            + log_prior(self.variance, variance)
        )


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Ordinal:
    """Ordered probit: r_n is level l where the latent z_n ~ Normal(mean_n, 1) falls.

    z_n in (g_{l-1}, g_l], between cut points g_1 < ... < g_{L-1} with open ends (Albert
    and Chib 1993). The scale and the place of z are fixed by its noise variance, 1, and
    by the global bias, 0; so all L - 1 cut points are free, with a prior proportional
    to prod_l Normal(g_l; 0, cut_scale^2) on increasing g: a draw is the sort of L - 1
    independent normals. Factors and biases live on the scale of z.

    Attributes
    ----------
    levels
        The scale's levels, increasing, at least two, static; None: the distinct ratings
        given to `fit`, training and test. A level without a training rating keeps its
        prior.
    cut_scale
        Prior standard deviation of a cut point, in units of the noise's.
    """

    levels: tuple[float, ...] | None = field(default=None, metadata={"static": True})
    cut_scale: float = 3.0

    # Of the latent ratings; fixed.
    variance: ClassVar[float] = 1.0
    variance_floor: ClassVar[float] = 0.0

    def __post_init__(self):
        """Make a hashable tuple of numbers of whatever sequence was given."""
        if self.levels is not None and not isinstance(self.levels, str):
            levels = tuple(x.item() if hasattr(x, "item") else x for x in self.levels)
            object.__setattr__(self, "levels", levels)

    def level_of(self, rating: Array) -> Array:
        """Level of each rating, from 0: the nearest one.

        Parameters
        ----------
        rating
            Rating scale, shape (N,).

        Returns
        -------
        Array
            int32, shape (N,).
        """
        level = jnp.zeros(rating.shape, jnp.int32)
        for low, high in zip(self.levels, self.levels[1:], strict=False):
            level = level + (rating > 0.5 * (low + high)).astype(jnp.int32)
        return level

    def expected_rating(
        self,
        mean: Array,
        cut_points: Array,
        root: Array | None = None,
        cdf: Callable[[Array], Array] = _normal_cdf,
    ) -> Array:
        """Mean of ratings whose latents have these means.

        r_1 + sum_l (r_{l+1} - r_l) F(mean - g_l): the sum of levels times their
        probabilities, by parts.

        Parameters
        ----------
        mean
            Of the latents, any shape.
        cut_points
            g, shape (L - 1,).
        root
            Square root of the relative precision, which broadcasts with the means;
            None: all 1.
        cdf
            F, the distribution function of the noise, in units of 1 / root.

        Returns
        -------
        Array
            Rating scale, the shape of the means.
        """
        total = jnp.full_like(mean, self.levels[0])
        pairs = zip(self.levels, self.levels[1:], strict=False)
        for k, (low, high) in enumerate(pairs):
            beyond = mean - cut_points[k]
            reached = cdf(beyond if root is None else beyond * root)
            total = total + (high - low) * reached
        return total

    def log_prior(self, cut_points: Array) -> Array:
        """Log density of the cut points, -inf unless they increase.

        Parameters
        ----------
        cut_points
            g, shape (L - 1,).

        Returns
        -------
        Array
            Nats, scalar.
        """
        each = jnp.log(2 * jnp.pi * self.cut_scale**2) + (
            (cut_points / self.cut_scale) ** 2
        )
        density = math.lgamma(len(self.levels)) - 0.5 * jnp.sum(each)
        increase = jnp.all(cut_points[1:] > cut_points[:-1])
        return jnp.where(increase, density, -jnp.inf)

    def log_density(
        self,
        rating: Array,
        mean: Array,
        valid: Array,
        cut_points: Array,
        root: Array | None = None,
    ) -> Array:
        """Log density of all ratings and of the cut points, the latents summed out.

        sum_n log(Phi(g_l - mean_n) - Phi(g_{l-1} - mean_n)) + log p(g), in nats.

        Parameters
        ----------
        rating
            Rating scale, shape (N,).
        mean
            Of the latents, shape (N,).
        valid
            False for padding, bool, shape (N,).
        cut_points
            Shape (L - 1,).
        root
            Square root of each rating's relative precision, shape (N,); None: all 1.

        Returns
        -------
        Array
            Nats, scalar.
        """
        bounds = bounds_of_levels(self.level_of(rating), mean, cut_points, root)
        each = jnp.where(valid, log_normal_interval(*bounds), 0)
        return jnp.sum(each) + self.log_prior(cut_points)


def bounds_of_levels(
    level: Array, mean: Array, cut_points: Array, root: Array | None = None
) -> tuple[Array, Array]:
    """Bounds of each rating's latent less its mean, in units of its noise.

    Open ends at OPEN_END.

    Parameters
    ----------
    level
        From 0, int32, shape (N,).
    mean
        Shape (N,).
    cut_points
        Shape (L - 1,).
    root
        Square root of each rating's relative precision, shape (N,); None: all 1.

    Returns
    -------
    tuple of Array
        g_{l-1} - mean and g_l - mean, times the root, shape (N,).
    """
    last = cut_points.shape[0] - 1
    low = cut_points[jnp.maximum(level - 1, 0)] - mean
    high = cut_points[jnp.minimum(level, last)] - mean
    if root is not None:
        low, high = low * root, high * root
    return (
        jnp.where(level == 0, -OPEN_END, low),
        jnp.where(level > last, OPEN_END, high),
    )
