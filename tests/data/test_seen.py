"""What each user has rated, held against sets."""

import numpy as np
import pytest

from im3f_jax.data.seen import SeenItems


@pytest.mark.parametrize("both_ways", [False, True])
def test_pairs_are_those_of_the_ratings_each_once(both_ways):
    rng = np.random.default_rng(0)
    user, item = rng.integers(9, size=(2, 60)).astype(np.int32)
    user[user == 3] = 4  # somebody without a rating
    seen = SeenItems.of(user, item, 9, 9, both_ways)
    assert seen.item.dtype == np.int32 and len(seen.start) == 10
    expected = set(zip(user.tolist(), item.tolist(), strict=True))
    if both_ways:
        expected |= {(j, u) for u, j in expected}
    asked = np.array([8, -1, 3, 0, 8])
    place, found = seen.pairs(asked)
    for n, u in enumerate(asked):
        given = found[place == n].tolist()
        assert given == sorted(j for v, j in expected if v == u)
    assert len(seen.item) == len(expected)


def test_a_product_beyond_31_bits_is_no_trouble():
    user, item = np.array([99_999, 0], np.int32), np.array([0, 79_999], np.int32)
    seen = SeenItems.of(user, item, 100_000, 80_000)
    place, found = seen.pairs(np.array([0, 99_999, 5]))
    assert (place.tolist(), found.tolist()) == ([0, 1], [79_999, 0])


def test_without_ratings_nothing_is_seen():
    none = np.zeros(0, np.int32)
    place, found = SeenItems.of(none, none, 3, 0).pairs(np.arange(3))
    assert len(place) == len(found) == 0
