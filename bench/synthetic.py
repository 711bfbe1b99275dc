"""Ratings for measurements of speed and memory: sizes that have a name, and draws.

What is drawn here has the sparseness of real ratings and no structure beyond effects of
users and items: seconds and bytes of a sweep hardly depend on what else is in them.
"""

import numpy as np

import im3f_jax as im3f
from im3f_jax.errors import InputError

__all__ = ["SIZES", "draw_rows", "parse_size", "plant"]

# users, items, ratings of MovieLens 100K, 1M, 10M and 32M
SIZES = {
    "100k": (943, 1_682, 100_000),
    "1m": (6_040, 3_706, 1_000_000),
    "10m": (69_878, 10_677, 10_000_000),
    "32m": (200_948, 84_432, 32_000_000),
}


def parse_size(name):
    """Return users, items and ratings of a name, or of USERSxITEMSxRATINGS.

    Raises
    ------
    InputError
        For what is neither.
    """
    if name in SIZES:
        return SIZES[name]
    try:
        users, items, ratings = map(int, name.split("x"))
    except ValueError:
        users = items = ratings = 0
    if min(users, items, ratings) < 1:
        raise InputError(
            f"the size is {name!r}, but must be one of {', '.join(SIZES)} or "
            "USERSxITEMSxRATINGS"
        )
    return users, items, ratings


def plant(name):
    """Draw ratings with planted topics: user, item and rating, shape (N,) each."""
    users, items, ratings = parse_size(name)
    drawn = im3f.planted_ratings(
        num_users=users, num_items=items, num_ratings=ratings, seed=0
    ).ratings
    return drawn.user, drawn.item, drawn.rating


def draw_rows(num_users, num_items, num_ratings, seed=0):
    """Draw ratings quickly: 10 million in a second or two, 12 bytes each.

    Activity falls as 1 / (rank + 10 % of the rows), on both sides, independently; every
    user and item has a rating. A pair may stand there more than once.

    Returns
    -------
    user, item : ndarray of int32, shape (num_ratings,)
    rating : ndarray of float32, shape (num_ratings,)
        1 to 5.

    Raises
    ------
    InputError
        Where there are fewer ratings than users or items.
    """
    if num_ratings < max(num_users, num_items):
        raise InputError(
            f"{num_ratings} ratings are too few for {num_users} users and {num_items} "
            "items"
        )
    rng = np.random.default_rng(seed)

    def draw(rows):
        share = 1 / (np.arange(rows) + 0.1 * rows)
        counts = 1 + rng.multinomial(num_ratings - rows, share / share.sum())
        return np.repeat(np.arange(rows, dtype=np.int32), counts)

    user, item = draw(num_users), draw(num_items)
    rng.shuffle(item)
    rating = rng.standard_normal(num_ratings, dtype=np.float32)
    for row, number in ((user, num_users), (item, num_items)):
        rating += rng.normal(0, 0.4, number).astype(np.float32)[row]
    rating += 3.5
    np.rint(rating, out=rating)
    return user, item, np.clip(rating, 1, 5, out=rating)
