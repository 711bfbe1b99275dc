"""Priors of what depends on the time of a rating: parts of its mean.

    mean_n += e_j[bin(t_n)] + f_u x_n

Both are independent normals of mean 0 with a variance that is sampled: a bias of each
item in each bin of time, and a drift of each user along a fixed covariate x_n, which
grows with the distance from the user's mean time (Koren 2009, Collaborative filtering
with temporal dynamics). Bins and covariate are those of `data.times.TimeScale`.
"""

from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from im3f_jax.data.ratings import Ratings
from im3f_jax.data.times import TimeColumns, TimeScale
from im3f_jax.errors import InputError
from im3f_jax.model.scalars import InverseGamma, log_prior

__all__ = [
    "NoTime",
    "TimeBins",
    "TimeDrift",
    "TimeEffect",
    "read_times",
    "reads_times",
    "time_of_ratings",
    "times_of",
]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class NoTime:
    """No part of time, as in the paper."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TimeEffect:
    """What `TimeBins` and `TimeDrift` have in common: effects ~ Normal(0, omega^2).

    Attributes
    ----------
    variance
        omega^2, a number, an `InverseGamma` or None.
    """

    variance: "float | InverseGamma | None" = None

    def log_density(self, effect: Array, valid: Array, variance: Array) -> Array:
        """Log density of the effects of rows and of their variance, in nats.

        Parameters
        ----------
        effect
            Shape (rows,) or (rows, bins).
        valid
            False for rows of padding, bool, shape (rows,).
        variance
            Positive, scalar.
        """
        each = -0.5 * (jnp.log(2 * jnp.pi * variance) + effect**2 / variance)
        each = jnp.where(valid if effect.ndim == 1 else valid[:, None], each, 0)
        return jnp.sum(each) + log_prior(self.variance, variance)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TimeDrift(TimeEffect):
    """f_u ~ Normal(0, omega^2), a number of each user.

    Attributes
    ----------
    variance
        omega^2, squared rating scale: a positive number is fixed, an `InverseGamma` is
        sampled, None is the default (sampled, scaled by the training variance).
    """


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TimeBins(TimeEffect):
    """e_j[b] ~ Normal(0, omega^2), one of each item in each of `num_bins` bins.

    Attributes
    ----------
    variance
        omega^2, as in `TimeDrift`.
    num_bins
        Bins of time, with equal numbers of training ratings; static.
    """

    num_bins: int = field(default=20, metadata={"static": True})


def reads_times(spec) -> bool:
    """Tell whether a spec has a part that depends on time."""
    parts = spec.item_time, spec.user_time
    return any(isinstance(part, TimeEffect) for part in parts)


def read_times(
    spec, ratings: Ratings, user: np.ndarray, num_users: int
) -> tuple[TimeScale, TimeColumns]:
    """Set the scale of time from training ratings, and read their times on it.

    Parameters
    ----------
    spec
        With a part that depends on time.
    ratings
        Training ratings.
    user
        Row of each rating's user, shape (N,).
    num_users
        Each of them with a rating.

    Raises
    ------
    InputError
        Where the ratings have no timestamps.
    """
    times = times_of(ratings, "training")
    bins = spec.item_time.num_bins if isinstance(spec.item_time, TimeBins) else 1
    scale = TimeScale.of(times, user, num_users, bins)
    return scale, scale.columns(times, user)


def times_of(ratings: Ratings, what: str) -> np.ndarray:
    """Timestamps of ratings, for a model that reads them.

    Raises
    ------
    InputError
        Where there are none.
    """
    if ratings.timestamp is None:
        raise InputError(
            "This model depends on time (item_time_bins, user_drift_variance), but the "
            f"{what} ratings have no timestamps: give them to Ratings.from_dataframe, "
            "to Ratings.from_arrays, or load a file whose column timestamp has a "
            "number in every row."
        )
    return ratings.timestamp


def time_of_ratings(effects, user: Array, item: Array, times) -> Array | None:
    """Part of each rating's mean that depends on its time, (N,); None where none does.

    Parameters
    ----------
    effects
        A `gibbs.state.TimeState`.
    user, item
        Rows, int32, shape (N,).
    times
        A `data.times.TimeColumns` of the ratings.
    """
    total = None
    if effects.item is not None:
        total = effects.item[item, times.bin]
    if effects.user is not None:
        drift = effects.user[user] * times.drift
        total = drift if total is None else total + drift
    return total
