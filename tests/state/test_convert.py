"""Rows of older columns in the columns of now: what fits, what is filled, and what is told as a difference."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from penstock.state.convert import Conversion, Wanted, converted, differences, paths

INT, TEXT = pa.int64(), pa.string()
NOTHING = Conversion()


def struct(**fields: pa.DataType) -> pa.StructType:
    return pa.struct([pa.field(name, kind) for name, kind in fields.items()])


def convert(
    values: list[Any], old: pa.DataType, new: pa.DataType, conversion: Conversion = NOTHING, **defaults: Any
) -> list[Any]:
    tree = {name: (None if value is None else pa.scalar(value), {}) for name, value in defaults.items()}
    wanted = Wanted(pa.schema([pa.field("value", new)]), defaults={"value": tree})
    batch = pa.record_batch({"k": pa.array(range(len(values)), INT), "value": pa.array(values, old)})
    made = converted(batch, pa.schema([pa.field("k", INT), pa.field("value", new)]), wanted, conversion)
    made.validate(full=True)
    return made.column("value").to_pylist()


def differs(old: pa.Field, new: pa.Field) -> list[tuple[str, tuple[str, ...]]]:
    found = differences(pa.schema([old]), Wanted(pa.schema([new])), NOTHING)
    return [(each.what, each.path) for each in found]


@pytest.mark.parametrize("around", [lambda x: x, lambda x: [x, x], lambda x: [("a", x), ("b", x)]])
def test_fields_are_found_by_name_wherever_they_stand(around: Any) -> None:
    def type_of(inner: pa.DataType) -> pa.DataType:
        found = around(0)
        return inner if found == 0 else pa.list_(inner) if found == [0, 0] else pa.map_(TEXT, inner)

    old, new = struct(a=pa.int32(), b=TEXT), struct(c=INT, b=TEXT, a=INT)
    values = [around({"a": 1, "b": "x"}), None, around({"a": None, "b": "y"})]
    expected = [around({"c": 7, "b": "x", "a": 1}), None, around({"c": 7, "b": "y", "a": None})]
    assert convert(values, type_of(old), type_of(new), c=7) == expected


def test_an_array_that_is_a_slice_is_converted_from_where_it_begins() -> None:
    old, new = pa.list_(struct(a=INT)), pa.list_(struct(a=INT, b=TEXT))
    column = pa.array([[{"a": 0}], None, [{"a": 1}, {"a": 2}], []], old).slice(1)
    wanted = Wanted(pa.schema([pa.field("value", new)]))
    made = converted(pa.record_batch({"value": column}), wanted.values, wanted, NOTHING).column(0)
    assert made.to_pylist() == [None, [{"a": 1, "b": None}, {"a": 2, "b": None}], []]


def test_a_field_that_is_dropped_and_there_again_begins_with_its_default() -> None:
    same = struct(a=INT, b=INT)
    gone = Conversion(dropped=frozenset([("value", "b")]))
    assert convert([{"a": 1, "b": 2}], same, same, gone, b=9) == [{"a": 1, "b": 9}]


def test_a_field_that_was_renamed_gives_its_name_away() -> None:
    old, new = struct(a=INT, b=INT), struct(b=INT, c=INT)
    swapped = Conversion(renamed={("value", "b"): ("value", "a"), ("value", "c"): ("value", "b")})
    assert convert([{"a": 1, "b": 2}], old, new, swapped) == [{"b": 1, "c": 2}]


@pytest.mark.parametrize(
    ("old", "new", "fits"),
    [
        (pa.int32(), INT, True),
        (INT, pa.int32(), False),
        (pa.float32(), pa.float64(), True),
        (INT, pa.float64(), False),
        (pa.list_(pa.int16()), pa.list_(pa.int32()), True),
        (pa.list_(pa.field("item", INT, False)), pa.list_(INT), True),
        (pa.list_(INT), pa.list_(pa.field("item", INT, False)), False),
        (pa.map_(TEXT, pa.int32()), pa.map_(TEXT, INT), True),
        (pa.map_(TEXT, INT), pa.map_(INT, INT), False),
        (INT, pa.list_(INT), False),
    ],
)
def test_a_type_may_only_become_one_that_holds_all_of_its_values(old: pa.DataType, new: pa.DataType, fits: bool) -> None:
    assert differs(pa.field("value", old), pa.field("value", new)) == ([] if fits else [("changed", ("value",))])


def test_null_may_come_and_may_not_go() -> None:
    may, never = pa.field("value", INT), pa.field("value", INT, nullable=False)
    assert differs(never, may) == []
    assert differs(may, never) == [("changed", ("value",))]


def test_fields_are_told_by_their_paths() -> None:
    old = pa.field("value", struct(place=struct(a=INT, b=INT)))
    new = pa.field("value", pa.struct([pa.field("place", pa.struct([pa.field("a", INT), pa.field("c", INT, nullable=False)]))]))
    assert differs(old, new) == [("added", ("value", "place", "c")), ("removed", ("value", "place", "b"))]
    assert list(paths([pa.field("m", pa.map_(TEXT, struct(a=INT)))])) == [("m",), ("m", "a")]
