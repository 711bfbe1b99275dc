"""How the times of ratings become what the model reads: bins, and a user's drift.

Both are fixed once, from the training ratings, on the host and in float64, and kept
with the fit, so that a prediction at another time is read on the same scale.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

__all__ = ["DRIFT_POWER", "TimeColumns", "TimeScale"]

# Of Koren (2009), Collaborative filtering with temporal dynamics.
DRIFT_POWER = 0.4

Array = Any  # numpy on the host, jax on a device


class TimeColumns(NamedTuple):
    """What the model reads of the times of N ratings."""

    bin: Array  # int32, shape (N,)
    drift: Array  # x, of mean square 1 over the training ratings, shape (N,)


@dataclass(frozen=True, eq=False)
class TimeScale:
    """Bins and users' mean times, as the training ratings set them.

    Parameters
    ----------
    edges : ndarray of float64, shape (bins - 1,)
        Ascending; a time belongs to the bin of so many edges as are not above it. Times
        before and after those of training are so of the first and the last bin.
    user_mean : ndarray of float64, shape (num_users + 1,)
        Mean time of each row's training ratings; the last row is that of users without
        any, NaN.
    scale : float
        What `drift` is divided by; infinite where all of it is 0.
    """

    edges: np.ndarray
    user_mean: np.ndarray
    scale: float

    @classmethod
    def of(
        cls, times: np.ndarray, user: np.ndarray, num_users: int, num_bins: int
    ) -> "TimeScale":
        """Set the scale from training ratings.

        Bins hold equal numbers of them, up to ratings of one and the same time, which
        are not parted.

        Parameters
        ----------
        times
            Shape (N,), N at least 1.
        user
            Row of each rating's user, below num_users, shape (N,).
        num_users
            Each of them with a rating.
        num_bins
            At least 1.
        """
        times = np.asarray(times, np.float64)
        ordered, number = np.sort(times), len(times)
        first = [-(-number * k // num_bins) for k in range(1, num_bins)]
        edges = ordered[np.minimum(np.array(first, np.int64), number - 1)]
        # Times are large beside their differences: sums are taken from the least.
        since = times - ordered[0]
        count = np.bincount(user, minlength=num_users)
        mean = np.bincount(user, since, minlength=num_users) / count
        scale = cls(edges, np.append(ordered[0] + mean, np.nan), 1.0)
        size = float(np.sqrt(np.mean(scale.drift(times, user) ** 2)))
        # Where nobody's times differ, no rating tells of a drift: x is 0 everywhere.
        return cls(scale.edges, scale.user_mean, size if size > 0 else np.inf)

    def bins(self, times: np.ndarray) -> np.ndarray:
        """Bin of each time, int32, the shape of `times`."""
        return np.searchsorted(self.edges, times, side="right").astype(np.int32)

    def drift(self, times: np.ndarray, user: np.ndarray) -> np.ndarray:
        """Give x = sign(t - tbar_u) |t - tbar_u|^0.4 / scale, shape (n,).

        0 for users without a training rating. `user` are rows, shape (n,).
        """
        away = np.asarray(times, np.float64) - self.user_mean[user]
        away = np.where(np.isnan(away), 0.0, away)
        return np.sign(away) * np.abs(away) ** DRIFT_POWER / self.scale

    def columns(self, times: np.ndarray, user: np.ndarray) -> TimeColumns:
        """Both; `user` are rows, shape (n,)."""
        return TimeColumns(self.bins(times), self.drift(times, user))
