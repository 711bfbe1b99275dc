"""Frames of polars, column by column. Left out where polars is not installed."""

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from im3f_jax.data.ids import IdIndex
from im3f_jax.data.ratings import Ratings
from im3f_jax.errors import InputError

pl = pytest.importorskip("polars")

BERLIN = ZoneInfo("Europe/Berlin")
COLUMNS = {
    "Int32": ([5, 1, 5], pl.Int32),
    "UInt64": ([2**64 - 1, 1, 5], pl.UInt64),
    "Int128": ([2**100, 1, 2**100], pl.Int128),
    "Float64": ([0.5, 0.25, 0.5], pl.Float64),
    "Boolean": ([True, False, True], pl.Boolean),
    "String": (["b", "NA", "007", "c\0", "c", ""], pl.String),
    "Categorical": (["b", "a", "b"], pl.Categorical),
    "Enum": (["b", "a", "b"], pl.Enum(["z", "a", "b"])),
    "Binary": ([b"b\0", b"b", b"b\0"], pl.Binary),
    "Decimal": ([Decimal("12345678901234567890.5"), Decimal(1)], pl.Decimal(38, 1)),
    "Date": ([date(2026, 1, 2), date(2026, 1, 1)], pl.Date),
    "Datetime": ([datetime(2026, 1, 2, 3), datetime(2026, 1, 1)], pl.Datetime),
    "zone": ([datetime(2026, 1, 2, 3, tzinfo=BERLIN)], pl.Datetime("us", BERLIN.key)),
    "Time": ([time(1), time(2), time(1)], pl.Time),
    "Duration": ([timedelta(1), timedelta(2)], pl.Duration),
}


@pytest.mark.parametrize(("values", "dtype"), COLUMNS.values(), ids=COLUMNS)
def test_ids_come_back(values, dtype):
    column = pl.Series(values, dtype=dtype)
    index, codes = IdIndex.from_values(column)
    assert index.ids[codes].tolist() == values
    assert len(index) == len(set(values))
    assert index.lookup(column).tolist() == codes.tolist()
    assert index.lookup(values).tolist() == codes.tolist()
    if isinstance(values[0], float) or dtype in (pl.Int32, pl.UInt64):
        assert index.ids.dtype == column.to_numpy().dtype


@pytest.mark.parametrize("name", ["Int32", "String", "Enum", "Date", "Float64"])
def test_a_missing_id_is_refused_with_its_row(name):
    values, dtype = COLUMNS[name]
    with pytest.raises(InputError, match="row 1 .*missing"):
        IdIndex.from_values(pl.Series([values[0], None], dtype=dtype))


@pytest.mark.parametrize("values", [[[1], [2]], [{"a": 1}, {"a": 2}]])
def test_a_nested_column_holds_no_ids(values):
    with pytest.raises(InputError, match="(?s)row 0 .*not hashable"):
        IdIndex.from_values(pl.Series(values))


RATINGS = {
    "Int8": ([3, 0, 1], pl.Int8),
    "UInt8": ([3, 0, 1], pl.UInt8),
    "Int128": ([3, 0, 1], pl.Int128),
    "Float32": ([3.5, 0, 1], pl.Float32),
    "Boolean": ([True, False, True], pl.Boolean),
    "Decimal": ([Decimal("3.5"), Decimal(0), Decimal(1)], pl.Decimal(10, 1)),
}


@pytest.mark.parametrize(("values", "dtype"), RATINGS.values(), ids=RATINGS)
def test_a_frame_is_read_column_by_column(values, dtype):
    stars = pl.Series(values, dtype=dtype)
    frame = pl.DataFrame({"who": ["a", "a", "b"], "what": [1, 2, 1], "stars": stars})
    before = frame.clone()
    ratings = Ratings.from_dataframe(frame, "who", "what", "stars")
    assert ratings.rating.tolist() == [float(value) for value in values]
    assert ratings.to_dataframe().columns.tolist() == ["who", "what", "stars"]
    assert ratings.user_ids.tolist() == ["a", "a", "b"]
    assert ratings.items.ids.dtype == np.int64
    ratings.rating[:] = 9
    assert frame.equals(before)


@pytest.mark.parametrize(
    ("stars", "words"),
    [
        (pl.Series([1, None, 3]), "column 'stars'.* row 1 .*missing"),
        (pl.Series([1.0, float("nan"), 3.0]), "column 'stars'.* row 1 .*missing"),
        (pl.Series(["3,5", "4", "5"]), "column 'stars'.*'3,5' in row 0"),
        (pl.Series([date(2026, 1, 1)] * 3), "column 'stars'.* row 0 .*not a number"),
    ],
)
def test_what_is_no_rating_is_refused(stars, words):
    frame = pl.DataFrame({"user": [1, 2, 3], "item": [1, 2, 3], "stars": stars})
    with pytest.raises(InputError, match=words):
        Ratings.from_dataframe(frame, rating="stars")


def test_a_lazy_frame_is_told_to_be_collected():
    frame = pl.LazyFrame({"user": [1], "item": [1], "rating": [1]})
    with pytest.raises(InputError, match=r"not LazyFrame; call collect\(\)"):
        Ratings.from_dataframe(frame)


@pytest.mark.parametrize(
    "times",
    [
        pl.Series([60, 120]),
        pl.Series([60.0, 120.0]),
        pl.Series([datetime(1970, 1, 1, 0, 1), datetime(1970, 1, 1, 0, 2)]),
        pl.Series(
            [datetime.fromtimestamp(s, UTC) for s in (60, 120)],
            dtype=pl.Datetime("us", "UTC"),
        ).dt.convert_time_zone("Europe/Berlin"),
    ],
)
def test_times(times):
    frame = pl.DataFrame({"user": [1, 2], "item": [1, 2], "rating": [1, 2], "t": times})
    ratings = Ratings.from_dataframe(frame, timestamp="t")
    assert ratings.timestamp.tolist() == [60, 120]
    frame = frame.with_columns(t=pl.Series([times[0], None], dtype=times.dtype))
    with pytest.raises(InputError, match="column 't'.* row 1 .*missing"):
        Ratings.from_dataframe(frame, timestamp="t")
