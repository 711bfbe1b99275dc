"""Matrices of users by items: what is stored counts, and the way round is told."""

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from im3f_jax.data.ratings import Ratings
from im3f_jax.errors import InputError

FORMATS = [
    getattr(sparse, f"{name}_{kind}")
    for name in ("coo", "csr", "csc")
    for kind in ("matrix", "array")
]
USERS, ITEMS = ["ann", "bob", "cy"], [7, 3952]


def triples(ratings):
    columns = ratings.user_ids, ratings.item_ids, ratings.rating
    return sorted(zip(*(column.tolist() for column in columns), strict=True))


@pytest.mark.parametrize("make", FORMATS)
def test_a_stored_zero_is_an_observation(make):
    matrix = make(sparse.coo_array(([4.0, 0.0, 1.5], ([0, 2, 2], [1, 0, 1]))))
    assert matrix.nnz == 3
    assert triples(Ratings.from_sparse(matrix)) == [(0, 1, 4), (2, 0, 0), (2, 1, 1.5)]
    ratings = Ratings.from_sparse(matrix, user_ids=USERS, item_ids=np.array(ITEMS))
    assert triples(ratings) == [("ann", 3952, 4), ("cy", 7, 0), ("cy", 3952, 1.5)]
    # bob has no entry: no empty user comes of his row
    assert (ratings.num_users, ratings.num_items) == (2, 2)
    assert ratings.user.dtype == ratings.item.dtype == np.int32
    assert ratings.rating.dtype == np.float64


def repeated(make):
    """4 and 5 at one place, in a format that holds them so."""
    if make in (sparse.coo_matrix, sparse.coo_array):
        return make(([4.0, 5.0, 2.0], ([1, 1, 0], [1, 1, 0])), shape=(3, 2))
    pointers = [0, 1, 3, 3][: 4 if "csr" in make.__name__ else 3]
    return make(([2.0, 4.0, 5.0], [0, 1, 1], pointers), shape=(3, 2))


@pytest.mark.parametrize("make", FORMATS)
def test_what_is_stored_twice_is_never_summed(make):
    matrix = repeated(make)
    with pytest.raises(InputError, match="user 'bob' and item 3952 .* entry .* entry"):
        Ratings.from_sparse(matrix, user_ids=USERS, item_ids=ITEMS)
    mean = Ratings.from_sparse(matrix, "mean", user_ids=USERS, item_ids=ITEMS)
    assert triples(mean) == [("ann", 7, 2), ("bob", 3952, 4.5)]
    assert triples(Ratings.from_sparse(matrix, "last")) == [(0, 0, 2), (1, 1, 5)]
    assert len(Ratings.from_sparse(matrix, "keep")) == 3
    # the caller's matrix still holds both
    assert sorted(matrix.data.tolist()) == [2.0, 4.0, 5.0]


@pytest.mark.parametrize("make", FORMATS)
def test_the_matrix_is_left_alone(make):
    matrix = make(sparse.coo_array(([1, 0, 3], ([2, 0, 1], [1, 1, 0]))))
    names = ("data", "row", "col", "indices", "indptr")
    arrays = {name: getattr(matrix, name) for name in names if hasattr(matrix, name)}
    before = {name: array.copy() for name, array in arrays.items()}
    Ratings.from_sparse(matrix).rating[:] = 9  # a copy of one's own
    for name, array in arrays.items():
        assert getattr(matrix, name) is array
        np.testing.assert_array_equal(array, before[name])


def from_sparse(shape, **ids):
    return Ratings.from_sparse(sparse.coo_array(np.ones(shape)), **ids)


def from_dense(shape, **ids):
    return Ratings.from_dense(np.ones(shape), **ids)


@pytest.mark.parametrize("make", [from_sparse, from_dense])
@pytest.mark.parametrize(
    ("ids", "words"),
    [
        (
            {"user_ids": USERS, "item_ids": ITEMS},
            "2 rows and 3 columns.* 3 user_ids and 2 item_ids.*matrix.T, would fit",
        ),
        ({"user_ids": USERS}, "rows are users.* 3 user_ids; .*would fit"),
        ({"item_ids": ITEMS}, "columns are items.* 2 item_ids; .*would fit"),
        ({"user_ids": range(4)}, "there are 4 user_ids$"),
        ({"user_ids": ["a", "a"]}, "user_ids: 'a' is there twice, again in row 1"),
        ({"item_ids": [1, None, 3]}, "item_ids: .* row 1 .*missing"),
        ({"item_ids": iter([1, 2, 3])}, "no column of ids"),
    ],
)
def test_the_way_round_is_told_by_the_ids(make, ids, words):
    with pytest.raises(InputError, match=words):
        make((2, 3), **ids)


@pytest.mark.parametrize(
    ("matrix", "words"),
    [
        (np.ones((2, 3)), "COO, CSR or CSC is needed, not ndarray"),
        (sparse.dia_array(np.ones((2, 3))), "not dia"),
        (sparse.bsr_array(np.ones((2, 3))), "not bsr"),  # its blocks hold fillers
        (sparse.coo_array(np.ones(3)), r"not of shape \(3,\)"),
        (sparse.coo_array((2, 3)), "no ratings"),
        (sparse.coo_array([[0, np.nan]]), "row 0, column 1 .*missing"),
        (sparse.coo_array([[0, 0], [np.inf, 0]]), "row 1, column 0 .*not finite"),
        (sparse.coo_array([[0, 1j]]), "row 0, column 1 .*complex"),
    ],
)
def test_what_is_no_sparse_table_of_ratings_is_refused(matrix, words):
    with pytest.raises(InputError, match=words):
        Ratings.from_sparse(matrix)


def test_in_a_full_matrix_nan_is_missing_and_0_is_not():
    nan = np.nan
    matrix = np.array([[4.0, nan], [nan, nan], [0.0, 1.5]])
    before = matrix.copy()
    assert triples(Ratings.from_dense(matrix)) == [(0, 0, 4), (2, 0, 0), (2, 1, 1.5)]
    np.testing.assert_array_equal(matrix, before)
    expected = [("ann", 7, 4), ("cy", 7, 0), ("cy", 3952, 1.5)]
    ratings = Ratings.from_dense(matrix, user_ids=USERS, item_ids=ITEMS)
    assert triples(ratings) == expected
    assert (ratings.num_users, ratings.num_items) == (2, 2)
    # a wide frame brings its ids along, masks are missing, and so are None and NA
    frame = pd.DataFrame(matrix, index=USERS, columns=ITEMS)
    for wide in (frame, frame.astype("Float64"), frame.astype(object)):
        assert triples(Ratings.from_dense(wide)) == expected
    masked = np.ma.masked_array(np.nan_to_num(matrix, nan=3.0), np.isnan(matrix))
    assert triples(Ratings.from_dense(masked, user_ids=USERS)) == [
        ("ann", 0, 4),
        ("cy", 0, 0),
        ("cy", 1, 1.5),
    ]


@pytest.mark.parametrize(
    ("matrix", "words"),
    [
        ([1, 2], r"not of shape \(2,\)"),
        ([[1, 2], [3]], "the matrix is none"),
        ([[np.nan, np.nan]], "no ratings"),
        ([[1, np.inf]], "row 0, column 1 .*not finite"),
        ([["1", "2"]], "'1'.* row 0, column 0 .*not a number"),
        (sparse.coo_array(np.ones((2, 2))), r"not of shape \(\)"),
    ],
)
def test_what_is_no_full_table_of_ratings_is_refused(matrix, words):
    with pytest.raises(InputError, match=words):
        Ratings.from_dense(matrix)
