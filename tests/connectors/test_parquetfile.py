"""Row groups of a Parquet file: those outside the bounds are not read, and all rows within them are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock import sources
from penstock.connectors.connector import Bound
from penstock.connectors.parquetfile import COMPARISONS, ParquetReader
from penstock.schema import to_schema

from .reading import read

SCHEMA = to_schema("n bigint, word string")
NUMBERS = st.none() | st.integers(-3, 12)
WORDS = st.none() | st.sampled_from(["", "a", "b", "é", "zz"])
BOUNDS = st.builds(Bound, st.just("n"), st.sampled_from(list(COMPARISONS)), st.integers(-4, 13)) | st.builds(
    Bound, st.just("word"), st.sampled_from(list(COMPARISONS)), st.sampled_from(["", "a", "b", "é", "zz", "~"])
)


def file_of(folder: Path, rows: list[dict[str, Any]], group: int) -> Path:
    path = folder / "a.parquet"
    pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), path, row_group_size=group)
    return path


def rows_of(reader: ParquetReader, rows_max: int = 1000) -> list[tuple[list[int], list[dict[str, Any]]]]:
    """The rows of each piece, and the offset behind it."""
    found = []
    while (piece := reader.read(rows_max)) is not None:
        assert piece.batch is not None
        found.append((reader.offset, piece.batch.to_pylist()))
    assert reader.finished
    return found


def meets(row: dict[str, Any], bound: Bound) -> bool:
    value = row[bound.column]
    if isinstance(value, str):
        return bool(COMPARISONS[bound.comparison](value.encode(), bound.value.encode()))
    return value is not None and bool(COMPARISONS[bound.comparison](value, bound.value))


@given(st.lists(st.tuples(NUMBERS, WORDS), max_size=30), st.integers(1, 6), st.lists(BOUNDS, max_size=3), st.integers(1, 5))
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_row_within_the_bounds_is_read(
    tmp_path: Path, values: list[tuple[int | None, str | None]], group: int, bounds: list[Bound], rows_max: int
) -> None:
    rows = [{"n": n, "word": word} for n, word in values]
    path = file_of(tmp_path, rows, group)
    within = [row for row in rows if all(meets(row, bound) for bound in bounds)]
    pieces = rows_of(ParquetReader(path, "a", None, SCHEMA, tuple(bounds)), rows_max)
    everything = [row for _, piece in pieces for row in piece]
    assert [row for row in everything if all(meets(row, bound) for bound in bounds)] == within
    for number, (offset, _) in enumerate(pieces):  # and from any position on, the rows behind it
        rest = rows_of(ParquetReader(path, "a", offset, SCHEMA, tuple(bounds)))
        assert [row for _, piece in rest for row in piece] == [row for _, piece in pieces[number + 1 :] for row in piece]


def test_groups_outside_the_bounds_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = file_of(tmp_path, [{"n": n, "word": "x"} for n in range(100)], 10)
    read: list[int] = []
    whole = ParquetReader._read_group

    def noted(reader: ParquetReader) -> pa.RecordBatch:
        read.append(reader._group)
        return whole(reader)

    monkeypatch.setattr(ParquetReader, "_read_group", noted)
    rows_of(ParquetReader(path, "a", None, SCHEMA, (Bound("n", ">=", 42), Bound("n", "<", 50))))
    assert read == [4]
    rows_of(ParquetReader(path, "a", None, SCHEMA, (Bound("word", "=", "y"),)))
    assert read == [4]


def test_values_that_are_converted_on_reading_have_no_bounds(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"n": pa.array([1, 2, 3], pa.int32()), "word": ["a", "b", "c"]}), path, row_group_size=1)
    pieces = rows_of(ParquetReader(path, "a", None, SCHEMA, (Bound("n", ">", 2),)))
    assert [row["n"] for _, piece in pieces for row in piece] == [1, 2, 3]


def test_a_position_within_a_group_that_is_of_no_use_any_more_goes_on_behind_it(tmp_path: Path) -> None:
    path = file_of(tmp_path, [{"n": n, "word": "x"} for n in range(20)], 10)
    pieces = rows_of(ParquetReader(path, "a", [0, 5], SCHEMA, (Bound("n", ">", 15),)))
    assert [row["n"] for _, piece in pieces for row in piece] == list(range(10, 20))


def test_a_null_inside_a_record_where_the_schema_has_none_makes_a_bad_record(tmp_path: Path) -> None:
    rows = [{"bid": {"price": 1}}, {"bid": None}, {"bid": {"price": None}}, {"bid": {"price": 2}}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    seen = read(sources.files(tmp_path / "a.parquet", schema="bid struct<price: bigint not null>"))
    assert seen.rows == [rows[0], rows[1], rows[3]]
    assert [(bad.position["offset"], bad.error) for bad in seen.bad] == [
        ([0, 2], "null in a column, or in a field inside it, that is not null")
    ]
