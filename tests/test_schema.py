"""Schemas from what users write, and values that must fit them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Annotated, Any, NamedTuple, NotRequired, TypedDict

import pyarrow as pa
import pytest

from penstock.errors import PlanError, RowError
from penstock.schema import schema_text, to_array, to_schema, to_type, to_values, type_name, type_of, visible

UTC_US = pa.timestamp("us", tz="UTC")


@dataclass
class Address:
    city: str
    zip: str | None


@dataclass
class Everything:
    a: int
    b: float
    c: str
    d: bool
    e: bytes
    f: date
    g: datetime
    h: Decimal
    i: int | None
    j: list[int]
    k: dict[str, float]
    n: Address
    m: Annotated[int, pa.int32()]


class Pair(NamedTuple):
    left: int
    right: str | None


class Click(TypedDict):
    user: str
    page: NotRequired[str]


@dataclass
class Loop:
    again: list[Loop]


def test_a_dataclass_maps_each_python_type_to_one_arrow_type() -> None:
    schema = to_schema(Everything)
    expected = [pa.int64(), pa.float64(), pa.string(), pa.bool_(), pa.binary(), pa.date32(), UTC_US]
    assert schema.types[:7] == expected
    assert schema.field("h").type == pa.decimal128(38, 18)
    assert schema.field("j").type == pa.list_(pa.field("item", pa.int64(), nullable=False))
    assert schema.field("k").type.item_type == pa.float64()
    assert schema.field("n").type.field("zip").nullable
    assert schema.field("m").type == pa.int32()


def test_only_optional_fields_are_nullable() -> None:
    assert [field.name for field in to_schema(Everything) if field.nullable] == ["i"]


def test_named_tuples_and_typed_dicts_are_records_too() -> None:
    assert to_schema(Pair) == pa.schema([pa.field("left", pa.int64(), False), pa.field("right", pa.string())])
    assert to_schema(Click) == pa.schema([pa.field("user", pa.string(), False), pa.field("page", pa.string())])


def test_a_primitive_type_is_one_column_called_value() -> None:
    assert to_schema(str) == pa.schema([pa.field("value", pa.string(), False)])
    assert to_schema(int | None) == pa.schema([pa.field("value", pa.int64())])


def test_ddl_is_read_as_spark_reads_it() -> None:
    schema = to_schema("user string not null, n int, big BIGINT, at timestamp, tags array<string>, `odd name` double")
    assert schema.types == [pa.string(), pa.int32(), pa.int64(), UTC_US, pa.list_(pa.string()), pa.float64()]
    assert not schema.field("user").nullable
    assert schema.names[-1] == "odd name"


def test_ddl_nests() -> None:
    found = type_of("map<string, struct<a: array<int>, b: decimal(10, 2) not null>>")
    assert found.item_type.field("a").type == pa.list_(pa.int32())
    assert found.item_type.field("b").type == pa.decimal128(10, 2)
    assert not found.item_type.field("b").nullable


@pytest.mark.parametrize("text", ["a int, b", "a wat", "a int,, b int", "a array<int", "a decimal(50,2)", "a int not", ""])
def test_bad_ddl_is_refused_with_the_text_in_the_message(text: str) -> None:
    with pytest.raises(PlanError, match="in "):
        to_schema(text)


@pytest.mark.parametrize("spec", ["__time timestamp", pa.schema({"__x": pa.int64()}), "a int, a string", pa.schema([])])
def test_names_must_be_unique_and_not_ours(spec: Any) -> None:
    with pytest.raises(PlanError):
        to_schema(spec)


def test_a_class_that_contains_itself_is_refused() -> None:
    with pytest.raises(PlanError, match="contains itself"):
        to_schema(Loop)


def test_an_unknown_type_is_refused_with_the_known_ones() -> None:
    with pytest.raises(PlanError, match=r"complex is not a type of columns"):
        to_schema(complex)


def test_a_union_of_two_types_is_refused() -> None:
    with pytest.raises(PlanError, match="several types"):
        to_schema(int | str)


def test_schema_text_reads_back_as_the_same_schema() -> None:
    schema = to_schema("u string not null, s struct<x: int not null, y: map<string, array<double>>>, `a b` decimal(9,3)")
    assert to_schema(schema_text(schema)) == schema


def test_hidden_columns_are_not_visible() -> None:
    assert visible(pa.schema({"a": pa.int64(), "__time": UTC_US})).names == ["a"]
    assert schema_text(pa.schema({"a": pa.int64(), "__time": UTC_US})) == "a bigint"


def test_type_names_are_sparks() -> None:
    names = ["bigint", "int", "string", "double", "timestamp", "boolean", "decimal(5,1)"]
    assert [type_name(type_of(name)) for name in names] == names
    assert to_type(int) == to_type("bigint") == to_type(pa.int64())


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (1.5, pa.int64()),
        (True, pa.int64()),
        (True, pa.float64()),
        (2**63, pa.int64()),
        (1, pa.string()),
        (b"x", pa.string()),
        ("x", pa.binary()),
        (1, pa.bool_()),
        (1, UTC_US),
        (datetime(2026, 1, 1), UTC_US),
        (datetime(2026, 1, 1, tzinfo=UTC), pa.date32()),
        (1.5, pa.decimal128(38, 18)),
        ({"a": 1, "z": 2}, pa.struct([("a", pa.int64())])),
        ({}, pa.struct([pa.field("a", pa.int64(), nullable=False)])),
        ([None], pa.list_(pa.field("item", pa.int64(), nullable=False))),
        ({"a": "x"}, pa.map_(pa.string(), pa.int64())),
    ],
)
def test_a_value_that_does_not_fit_is_refused_rather_than_changed(value: Any, found: pa.DataType) -> None:
    with pytest.raises(RowError, match="x"):
        to_array([value], pa.field("x", found))


def test_null_is_refused_where_the_field_is_not_null() -> None:
    with pytest.raises(RowError, match="not null"):
        to_array([1, None], pa.field("x", pa.int64(), nullable=False))
    assert to_array([1, None], pa.field("x", pa.int64())).to_pylist() == [1, None]


def test_values_that_fit_are_kept_exactly() -> None:
    assert to_array([{"a": [1]}], pa.field("x", type_of("map<string, array<bigint>>"))).to_pylist() == [[("a", [1])]]
    assert to_array([1, 2.5], pa.field("x", pa.float64())).to_pylist() == [1.0, 2.5]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("map<string, bigint>", {"x": 1}),
        ("struct<a: bigint, m: map<string, bigint>>", {"a": 1, "m": {"x": 1}}),
        ("struct<r: struct<m: map<string, bigint>>, n: bigint>", {"r": {"m": {}}, "n": None}),
        ("array<map<string, bigint>>", [{"x": 1}, None, {}]),
        ("array<struct<m: map<bigint, string>>>", [{"m": {1: "x", 2: None}}, None, {"m": None}]),
        ("map<string, map<string, bigint>>", {"x": {"y": 1}, "z": None}),
        ("map<string, array<map<string, bigint>>>", {"x": [{"y": 1}], "z": []}),
        ("map<string, struct<m: map<string, bigint>>>", {"x": {"m": {"y": 1}}}),
    ],
)
def test_maps_are_dicts_wherever_they_stand(kind: str, value: Any) -> None:
    field = pa.field("x", type_of(kind))
    column = to_array([value, None, value], field)
    assert to_values(column) == [value, None, value]
    assert to_values(column.slice(1)) == [None, value]
    assert to_array(to_values(column), field).equals(column)
    large = column.cast(pa.large_list(field.type.value_type)) if pa.types.is_list(field.type) else column
    assert to_values(large) == [value, None, value]


def test_a_map_whose_keys_are_records_stays_a_list_of_pairs() -> None:
    kind = type_of("array<map<struct<a: bigint>, bigint>>")
    assert to_values(pa.array([[[({"a": 1}, 2)]]], kind)) == [[[({"a": 1}, 2)]]]
