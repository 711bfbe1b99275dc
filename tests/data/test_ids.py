"""Ids are keys: compared exactly, never merged, never lost, never invented."""

from datetime import date

import numpy as np
import pandas as pd
import pytest

from im3f_jax.data.ids import IdIndex
from im3f_jax.errors import InputError

COLUMNS = {
    "int64": np.array([5, 1, 5, 10_000_000]),
    "int8": np.array([5, -1, 5], dtype=np.int8),
    "uint64": np.array([2**64 - 1, 2, 2**64 - 1], dtype=np.uint64),
    "bool": np.array([True, False, True]),
    "integral floats": np.array([5.0, 1.0, 2.0**53 - 1]),
    "floats": np.array([0.5, 0.25, 0.5], dtype=np.float32),
    "numpy text": np.array(["b", "a", "b"]),
    "bytes": np.array([b"b", b"a", b"b"]),
    "dates": np.array(["2026-01-02", "2026-01-01"], dtype="datetime64[ns]"),
    "list of int": [5, 1, 5],
    "list of int beyond 64 bits": [2**70, 1, 2**70],
    "list of text": ["b", "NA", "b", "007", "nan", "", "b\0"],
    "object of int": np.array([5, 1, 5], dtype=object),
    "pandas text": pd.Series(["b", "a", "b"], index=[7, 7, 0]),
    "pandas object": pd.Series(["b", "a", "b"], dtype=object),
    "pandas string": pd.Series(["b", "a", "b"], dtype="string"),
    "nullable": pd.Series([5, 1, 5], dtype="Int64"),
    "categories": pd.Series(pd.Categorical(["b", "a", "b"], list("zba"))),
    "categories of int": pd.Series([5, 1, 5], dtype="category"),
    "time zone": pd.Series(pd.to_datetime(["2026-01-02", "2026-01-01"], utc=True)),
    "mixed": [1, True, 1.0, "1", b"1", (1, 2), (True, 2), 1],
}


def typed(values):
    """Values that compare equal only where their types do, inside tuples as well."""
    return [(type(value), repr(value)) for value in values]


@pytest.mark.parametrize("values", COLUMNS.values(), ids=COLUMNS)
def test_ids_come_back_and_are_found_again(values):
    index, codes = IdIndex.from_values(values)
    rows = pd.Series(values).tolist()
    assert typed(pd.Series(index.ids, dtype=object)[codes]) == typed(rows)
    assert len(index) == len(set(typed(rows)))
    assert codes.dtype == np.int64
    np.testing.assert_array_equal(index.lookup(values), codes)
    np.testing.assert_array_equal(index.lookup(rows), codes)


@pytest.mark.parametrize("name", [n for n in COLUMNS if n != "mixed"])
def test_ids_are_sorted(name):
    ids = IdIndex.from_values(COLUMNS[name])[0].ids.tolist()
    assert ids == sorted(ids)


def test_ids_without_a_common_order_keep_that_of_appearance():
    assert IdIndex.from_values(["b", 2, "a", 1, 2])[0].ids.tolist() == ["b", 2, "a", 1]


@pytest.mark.parametrize(
    "name", [n for n in COLUMNS if isinstance(COLUMNS[n], np.ndarray | pd.Series)]
)
def test_dtype_of_the_caller_comes_back(name):
    values = COLUMNS[name]
    index, codes = IdIndex.from_values(values)
    if isinstance(values, np.ndarray):
        assert index.ids.dtype == values.dtype
    else:
        column = index.column(codes)
        pd.testing.assert_series_equal(column, values.reset_index(drop=True))


def test_types_are_never_merged():
    values = np.array([1, True, 1.0, "1"], dtype=object)
    index, codes = IdIndex.from_values(values)
    assert codes.tolist() == [0, 1, 2, 3]
    assert index.lookup(np.array([1])).tolist() == [0]
    assert index.lookup(np.array([True])).tolist() == [1]
    assert index.lookup(np.array([1.0])).tolist() == [2]
    assert index.lookup(np.array(["1"])).tolist() == [3]


def test_numpy_scalars_are_the_python_values_they_hold():
    values = [np.int64(1), 1, np.str_("a"), "a", np.float32(0.5), 0.5, np.True_, True]
    assert IdIndex.from_values(values)[1].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


def test_integers_of_any_width_are_one_kind():
    index, _ = IdIndex.from_values(np.array([1, 44], dtype=np.int8))
    assert index.lookup(np.array([44, 300, 1]), unknown="mark").tolist() == [1, -1, 0]
    assert index.lookup(np.array([2**64 - 1, 1], np.uint64), "mark").tolist() == [-1, 0]
    # neighbours that float64 cannot tell apart
    index, _ = IdIndex.from_values(np.array([2**53, 2**53 + 1]))
    assert index.lookup(np.array([2**53 + 1], dtype=np.uint64)).tolist() == [1]


def test_categories_that_no_row_uses_are_no_ids():
    assert IdIndex.from_values(COLUMNS["categories"])[0].ids.tolist() == ["a", "b"]


@pytest.mark.parametrize(
    "values",
    [
        [1, 2, None, 4],
        ["a", "b", None, "c"],
        ["a", "b", float("nan"), "c"],
        [1.0, 2.0, np.nan, 4.0],
        np.array([1.0, 2.0, np.nan]),
        np.array([1, 2, None], dtype=object),
        np.array(["2026-01-01", "2026-01-02", "NaT"], dtype="datetime64[D]"),
        pd.Series([1, 2, pd.NA, 4], dtype="Int64"),
        pd.Series(["a", "b", None], index=[2, 1, 0]),
        pd.Series([1, "a", pd.NaT], dtype=object),
        pd.Categorical(["a", "b", None]),
        pd.Index([1.0, 2.0, np.nan]),
    ],
)
def test_missing_ids_are_refused_with_row_and_column(values):
    with pytest.raises(InputError, match="column 'who'.* row 2 .*missing"):
        IdIndex.from_values(values, "user", "column 'who'")
    index, _ = IdIndex.from_values([1, 2])
    with pytest.raises(InputError, match="row 2 .*missing"):
        index.lookup(values, unknown="mark")


@pytest.mark.parametrize(
    "values",
    [
        np.array([1.0, 2.0**53]),
        np.array([1.0, -(2.0**53)]),
        np.array([1.0, 2.0**24], dtype=np.float32),
        [1.0, 2.0**53],
        ["a", 2.0**60],
        np.array([1.0, np.inf]),
        ["a", float("inf")],
    ],
)
def test_ids_that_lost_precision_are_refused_with_their_row(values):
    with pytest.raises(InputError, match="row 1 .*neighbouring integers"):
        IdIndex.from_values(values)


@pytest.mark.skipif(np.dtype("longdouble").itemsize == 8, reason="a double here")
def test_longer_floats_than_doubles_are_refused():
    # As doubles these two would be one id.
    values = 1 + np.arange(2, dtype="longdouble") * np.finfo("longdouble").eps
    with pytest.raises(InputError, match="more than 64 bits"):
        IdIndex.from_values(values)


def test_unhashable_ids_are_refused_with_their_row():
    with pytest.raises(InputError, match="row 1 .*list"):
        IdIndex.from_values([1, [2]])


def test_a_table_is_no_column_of_ids():
    with pytest.raises(InputError, match="one dimension"):
        IdIndex.from_values(np.ones((3, 2), dtype=int))


@pytest.mark.parametrize(
    ("known", "asked", "words"),
    [
        ([1, 2], ["1"], "'1' (str) is known as 1 (int)"),
        ([1, 2], [1.0], "1.0 (float) is known as 1 (int)"),
        ([1, 2], [True], "True (bool) is known as 1 (int)"),
        ([1, 2], [b"2"], "b'2' (bytes) is known as 2 (int)"),
        (["1", "2"], [2], "2 (int) is known as '2' (str)"),
        (["007"], [7], "7 (int) is known as '007' (str)"),
        ([1.0, 2.0], [2], "2 (int) is known as 2.0 (float)"),
        (["alice"], [" alice "], "' alice ' (str) is known as 'alice' (str)"),
        ([1, 2], pd.Series([1, 2], dtype="string"), "is known as 1 (int)"),
    ],
)
def test_an_unknown_id_names_its_likely_type_mistake(known, asked, words):
    index, _ = IdIndex.from_values(known, "user")
    with pytest.raises(InputError, match="^unknown user: ") as caught:
        index.lookup(asked)
    assert words in str(caught.value)
    assert set(index.lookup(asked, unknown="mark")) == {-1}


def test_only_the_first_few_unknown_ids_are_named():
    index, _ = IdIndex.from_values([1, 2], "item")
    with pytest.raises(InputError) as caught:
        index.lookup([1, 9, 9, 8, 7, 6, 5, 4, 3, 2])
    assert str(caught.value) == "unknown item: 9, 8, 7, 6, 5 and 2 more"


def test_a_mistyped_text_is_held_against_those_that_are_known():
    index, _ = IdIndex.from_values(["anna", "berta", 7], "user")
    for typed in ("Anna", "ana", "annna"):
        with pytest.raises(InputError, match=f"'{typed}'; was 'anna' meant[?]$"):
            index.lookup([typed])
    with pytest.raises(InputError, match="^unknown user: 'zoe'$"):
        index.lookup(["zoe"])


def test_lookup_marks_unknown_ids_and_takes_a_single_one():
    index, _ = IdIndex.from_values(["a", "b"])
    assert index.lookup(["b", "c", "a", 1], unknown="mark").tolist() == [1, -1, 0, -1]
    assert index.lookup("b").tolist() == [1]
    assert index.lookup([]).tolist() == []
    with pytest.raises(InputError, match="unknown must be"):
        index.lookup(["a"], unknown="ignore")


@pytest.mark.parametrize(
    "values",
    [
        [3, 1],
        [0.5, 1.5],
        ["b", "a\0", "\N{SNOWMAN}", "\ud800", ""],
        [1, True, 1.0, "1", 2**70],
        [np.int64(3), "a"],
        np.array(["b", "a"]),
        COLUMNS["dates"],
    ],
)
def test_ids_are_stored_without_pickle(values, tmp_path):
    index, codes = IdIndex.from_values(values, "user")
    np.save(tmp_path / "ids.npy", index.to_array(), allow_pickle=False)
    array = np.load(tmp_path / "ids.npy", allow_pickle=False)
    restored = IdIndex.from_array(array, "user")
    np.testing.assert_array_equal(restored.lookup(values), codes)
    assert restored.ids.dtype == index.ids.dtype
    assert restored.what == "user"


def test_ids_that_no_plain_file_can_hold_are_named():
    index, _ = IdIndex.from_values([date(2026, 1, 1), date(2026, 1, 2)], "user")
    with pytest.raises(InputError, match="user ids of type date cannot be saved"):
        index.to_array()
