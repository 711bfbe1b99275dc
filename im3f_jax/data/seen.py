"""Which items each user has rated, in the room of one number a rating."""

from typing import NamedTuple

import numpy as np

__all__ = ["SeenItems"]


class SeenItems(NamedTuple):
    """Item codes of each user, one user after the other, ascending, each once."""

    start: np.ndarray  # where each user's begin, int64, shape (num_users + 1,)
    item: np.ndarray  # int32, shape (pairs,)

    @classmethod
    def of(
        cls,
        user: np.ndarray,
        item: np.ndarray,
        num_users: int,
        num_items: int,
        both_ways: bool = False,
    ) -> "SeenItems":
        """Collect the pairs of ratings.

        Parameters
        ----------
        user, item
            Codes, shape (N,), below num_users and num_items; a pair may stand twice.
        both_ways
            For pairs of persons without order: each has seen the other.
        """
        if both_ways:
            user, item = np.append(user, item), np.append(item, user)
        # On the host, and in 64 bits: U * M may pass 2^31.
        key = np.unique(user.astype(np.int64) * num_items + item)
        user, item = np.divmod(key, max(num_items, 1))
        start = np.searchsorted(user, np.arange(num_users + 1))
        return cls(start.astype(np.int64), item.astype(np.int32))

    def pairs(self, users: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Give what users have rated.

        Parameters
        ----------
        users
            Codes, shape (n,); one that is negative has rated nothing.

        Returns
        -------
        tuple of ndarray
            Place in `users`, and item code, of each pair, shape (pairs,).
        """
        known = np.maximum(users, 0)
        count = np.where(users < 0, 0, self.start[known + 1] - self.start[known])
        place = np.repeat(np.arange(len(users)), count)
        within = np.arange(len(place)) - np.repeat(np.cumsum(count) - count, count)
        return place, self.item[self.start[known][place] + within]
