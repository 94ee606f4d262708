"""Nulls that nobody sees are taken away, and those that are seen are refused, at every depth."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.exact import exactly, nullable, seen_nulls

LEAF = pa.struct([pa.field("n", pa.int64(), nullable=False), pa.field("word", pa.string(), nullable=False)])
RECORD = pa.struct(
    [
        pa.field("n", pa.int64(), nullable=False),
        pa.field("inner", LEAF, nullable=False),
        pa.field("maybe", LEAF),
        pa.field("words", pa.list_(pa.field("item", pa.string(), nullable=False)), nullable=False),
        pa.field("leaves", pa.list_(LEAF)),
        pa.field("counts", pa.map_(pa.string(), pa.field("value", pa.int64(), nullable=False)), nullable=False),
    ]
)
KINDS = [LEAF, RECORD, pa.list_(RECORD), pa.list_(pa.field("item", RECORD, nullable=False)), pa.map_(pa.string(), RECORD)]


def values(kind: pa.DataType, nulls: bool) -> st.SearchStrategy[Any]:
    """Python values of a type, with nulls where it allows them."""

    def of(field: pa.Field) -> st.SearchStrategy[Any]:
        found = values(field.type, nulls)
        return st.none() | found if field.nullable or nulls else found

    if pa.types.is_struct(kind):
        return st.fixed_dictionaries({field.name: of(field) for field in kind})
    if pa.types.is_list(kind):
        return st.lists(of(kind.value_field), max_size=3)
    if pa.types.is_map(kind):
        return st.lists(st.tuples(st.sampled_from("ab"), of(kind.item_field)), max_size=2)
    return st.integers(0, 9) if pa.types.is_integer(kind) else st.text("xy", max_size=2)


def holds_null(value: Any, field: pa.Field) -> bool:
    """Whether there is a null where none may be."""
    if value is None:
        return not field.nullable
    kind = field.type
    if pa.types.is_struct(kind):
        return any(holds_null(value[inner.name], inner) for inner in kind)
    if pa.types.is_list(kind):
        return any(holds_null(item, kind.value_field) for item in value)
    if pa.types.is_map(kind):
        return any(holds_null(item, kind.item_field) for _, item in value)
    return False


@given(data=st.data(), kind=st.sampled_from(KINDS))
@settings(max_examples=150, deadline=None)
def test_what_arrows_functions_leave_can_be_cast_and_written(data: st.DataObject, kind: pa.DataType) -> None:
    made = pa.array(data.draw(st.lists(st.none() | values(kind, nulls=False), max_size=5)), kind)
    places = data.draw(st.lists(st.none() | st.integers(0, max(len(made) - 1, 0)), max_size=5)) if len(made) else []
    array = pa.concat_arrays([made, made.take(pa.array(places, pa.int64())), pa.nulls(1, kind)])
    array = array.slice(data.draw(st.integers(0, 2)))
    found = exactly(array, kind)
    assert found.type == kind
    assert found.to_pylist() == array.to_pylist()
    found.validate(full=True)
    assert found.cast(kind) == found
    file = io.BytesIO()
    pq.write_table(pa.table([found], schema=pa.schema([pa.field("x", kind)])), file)
    assert pq.read_table(file)["x"].to_pylist() == array.to_pylist()


@given(data=st.data(), kind=st.sampled_from(KINDS))
@settings(max_examples=150, deadline=None)
def test_a_null_that_is_seen_is_refused_and_its_row_named(data: st.DataObject, kind: pa.DataType) -> None:
    rows = data.draw(st.lists(st.none() | values(kind, nulls=True), max_size=5))
    array = pa.array([None, *rows], nullable(kind)).slice(1)
    expected = [holds_null(row, pa.field("x", kind)) for row in rows]
    found = seen_nulls(array, pa.field("x", kind))
    assert (np.zeros(len(rows), bool) if found is None else found).tolist() == expected
    if any(expected):
        with pytest.raises(pa.ArrowInvalid, match=f"row {expected.index(True)} has a null inside"):
            exactly(array, kind)
    else:
        assert exactly(array, kind).to_pylist() == rows
