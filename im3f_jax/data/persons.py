"""Ratings of persons by persons: one index for both sides, and pairs without order."""

from dataclasses import replace

import numpy as np
import pandas as pd

from im3f_jax.data.ratings import Ratings
from im3f_jax.errors import InputError

__all__ = ["check_pairs", "in_order", "of_persons"]


def of_persons(unordered: bool, *tables: Ratings) -> list[Ratings]:
    """Give users and items of tables that share their indices one index, persons.

    Parameters
    ----------
    unordered
        Put the person that comes first in the index first in each pair.
    tables
        A split of one table, or one table alone.

    Returns
    -------
    list of Ratings
        With the rows and columns of the tables; `users` and `items` are one object.

    Raises
    ------
    InputError
        Where the ids of users and of items are of different kinds.
    """
    first = tables[0]
    if first.users is first.items:
        persons, codes = first.users, (slice(None), slice(None))
        found = list(tables)
    else:
        persons, *codes = first.users.union(first.items, "person")
        found = [
            replace(
                table,
                user=codes[0][table.user].astype(np.int32),
                item=codes[1][table.item].astype(np.int32),
                users=persons,
                items=persons,
            )
            for table in tables
        ]
    if not unordered:
        return found
    orders = [in_order(table.user, table.item) for table in found]
    return [
        replace(table, user=user, item=item)
        for table, (user, item) in zip(found, orders, strict=True)
    ]


def in_order(user: np.ndarray, item: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Put the lower code of each pair first."""
    return np.minimum(user, item), np.maximum(user, item)


def check_pairs(train: Ratings, test: Ratings | None, unordered: bool) -> None:
    """Refuse pairs that tell a reciprocal model of themselves, or of held-out ones.

    Parameters
    ----------
    train, test
        As `of_persons` gives them.
    unordered
        Whether (p, q) and (q, p) are one pair.

    Raises
    ------
    InputError
        For a person's rating of themselves; where pairs have no order, for a pair that
        stands twice in `train`, or in `train` and in `test`, in whichever order.
    """
    size = np.int64(len(train.users))
    keys = []
    for name, table in (("train", train), ("test", test)):
        if table is None:
            continue
        alone = np.flatnonzero(table.user == table.item)
        if len(alone):
            (person,) = table.user_ids[alone[:1]].tolist()
            raise InputError(
                f"Person {person!r} is paired with themselves in row {alone[0]} (from "
                f"0) of {name}: a reciprocal model needs two persons."
            )
        keys.append(table.user * size + table.item)
    if not unordered:
        return
    again = np.flatnonzero(pd.Series(keys[0]).duplicated())
    if len(again):
        raise InputError(
            f"Persons {_named(train, again[0])} are one pair of train in rows "
            f"{int(np.argmax(keys[0] == keys[0][again[0]]))} and {again[0]} (from 0), "
            "in whichever order: keep one of the rows."
        )
    held_out = [] if test is None else np.flatnonzero(np.isin(keys[1], keys[0]))
    if len(held_out):
        raise InputError(
            f"Persons {_named(test, held_out[0])} are a pair of test, in row "
            f"{held_out[0]} (from 0), and of train, in whichever order: hold the pair "
            "out of train."
        )


def _named(table: Ratings, row: int) -> str:
    first, second = table.user_ids[[row]].tolist(), table.item_ids[[row]].tolist()
    return f"{first[0]!r} and {second[0]!r}"
