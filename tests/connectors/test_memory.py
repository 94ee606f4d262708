"""Rows in memory as a source."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import sources
from penstock.errors import ConfigError, RowError

from .reading import check_resume, context, read, read_all


@dataclass
class Order:
    user: str
    n: int | None


ORDERS: list[dict[str, Any]] = [{"user": "ann", "n": 1}, {"user": "bob", "n": None}, {"user": "ann", "n": 3}]


def test_dicts_dataclasses_values_and_tables_are_rows() -> None:
    table = pa.Table.from_pylist(ORDERS)
    assert read(sources.memory(ORDERS)).rows == ORDERS
    assert read(sources.memory(ORDERS, schema=Order)).rows == ORDERS
    assert read(sources.memory([Order(**row) for row in ORDERS])).rows == ORDERS
    assert read(sources.memory(table)).rows == ORDERS
    assert read(sources.memory(["a", "b"], schema=str)).rows == [{"value": "a"}, {"value": "b"}]


@given(count=st.integers(0, 25), splits=st.integers(1, 4), batch=st.integers(1, 9), rows_max=st.integers(1, 9))
@settings(max_examples=40, deadline=None)
def test_resuming_after_any_chunk_gives_the_same_rows(count: int, splits: int, batch: int, rows_max: int) -> None:
    source = sources.memory(list(range(count)), schema=int, splits=splits, batch=batch)
    assert sorted(row["value"] for row in read_all(source).rows) == list(range(count))
    check_resume(source, rows_max=rows_max, again_max=5)


def test_only_the_columns_in_use_are_given() -> None:
    source = pickle.loads(pickle.dumps(sources.memory(ORDERS)))
    assert read(source, columns=("n",)).rows == [{"n": 1}, {"n": None}, {"n": 3}]
    chunk = source.open("0", None, context(source, columns=())).poll(100)
    assert chunk.batch.num_rows == 3


def test_rows_that_do_not_fit_are_refused_at_once() -> None:
    with pytest.raises(RowError, match="source 'orders', row 2: user: null, and the column is not null"):
        sources.memory([{"user": "ann", "n": 1}, {"user": None, "n": 1}], schema=Order, name="orders")
    with pytest.raises(RowError, match="source 'memory', row 3: n: expected bigint, and found str"):
        sources.memory([{"n": 1}, {"n": None}, {"n": "3"}, {"n": "4"}], schema="n bigint")
    with pytest.raises(RowError, match="source 'memory', row 3: n: Could not convert 'x'"):
        sources.memory([{"n": 1}, {"n": 2}, {"n": "x"}, {"n": "y"}])
    with pytest.raises(ConfigError, match="no column"):
        sources.memory([{"usr": "ann"}], schema=Order)
    with pytest.raises(ConfigError, match="cannot tell the columns"):
        sources.memory([])
    with pytest.raises(ConfigError, match="cannot tell the columns"):
        sources.memory([{"a": 1}, {"b": 2}])
    with pytest.raises(ConfigError, match="without a zone"):
        sources.memory([{"at": datetime(2026, 1, 1)}])


def test_a_value_that_does_not_fit_is_named_with_source_row_and_column() -> None:
    with pytest.raises(RowError) as caught:
        sources.memory([{"n": 1}, {"n": "two"}], schema="n bigint", name="orders")
    assert str(caught.value) == "source 'orders', row 2: n: expected bigint, and found str"


def test_a_table_with_a_null_inside_where_the_schema_has_none_is_refused_by_row_and_column() -> None:
    table = pa.table({"n": [1, 2], "words": [["a"], ["b", None]]})
    assert read(sources.memory(table, schema="n bigint, words array<string>")).rows[1]["words"] == ["b", None]
    with pytest.raises(ConfigError, match="null in row 2, column 'words', which is array<string not null>"):
        sources.memory(table, schema="n bigint, words array<string not null>")
