"""Row functions: what they get, what they return, and whose fault an error is."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypedDict

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import PlanError, RowError
from penstock.functions import Applied, Row, RowFunction, encoder_for
from penstock.schema import to_values, type_of

INPUT = pa.schema(
    [
        pa.field("user", pa.string(), False),
        pa.field("price", pa.float64()),
        pa.field("__time", pa.timestamp("us", tz="UTC")),
    ]
)
BATCH = pa.record_batch(
    [
        pa.array(["ann", "bob", "cy"]),
        pa.array([1.0, None, 3.0]),
        pa.array([1, 2, 3], pa.timestamp("us", tz="UTC")),
    ],
    schema=INPUT,
)
WORDS = pa.schema({"value": pa.string()})


@dataclass
class Order:
    user: str
    price: float | None


@dataclass
class Strict:
    price: float


@dataclass
class Priced:
    user: str
    cents: int
    orders: list[Order]


class Named(NamedTuple):
    user: str


class Turned(NamedTuple):
    price: float | None
    user: str


class Straight(NamedTuple):
    user: str
    price: float | None


class Dicted(TypedDict):
    user: str


@dataclass
class Positive:
    price: float | None

    def __post_init__(self) -> None:
        if self.price == 1.0:
            raise ValueError("too cheap")


@dataclass
class Typo:
    usr: str


def run(fn: Any, kind: str = "map", input: pa.Schema = INPUT, batch: pa.RecordBatch = BATCH, schema: Any = None) -> Applied:
    return RowFunction.of(fn, kind, input, schema).apply(batch)


def words(rows: list[str | None]) -> pa.RecordBatch:
    return pa.record_batch([pa.array(rows, pa.string())], schema=WORDS)


def test_a_row_is_read_only_and_knows_its_columns() -> None:
    row = Row(user="ann", price=1)
    assert (row.user, row["price"], row.to_dict()) == ("ann", 1, {"user": "ann", "price": 1})
    assert row.replace(price=2) == Row(user="ann", price=2) != row
    assert repr(row) == "Row(user='ann', price=1)"
    assert pickle.loads(pickle.dumps(row)) == row
    assert hash(row) == hash(Row(user="ann", price=1))
    with pytest.raises(AttributeError, match="read-only"):
        row.user = "bob"
    with pytest.raises(AttributeError, match="Did you mean 'price'"):
        _ = row.prize
    with pytest.raises(KeyError, match="Columns: user, price"):
        row.replace(x=1)


def test_an_unannotated_function_gets_a_row_without_hidden_columns() -> None:
    found = run(lambda row: ",".join(row.to_dict()), schema=str)
    assert found.rows.to_pydict() == {"value": ["user,price"] * 3}
    assert found.origin.tolist() == [0, 1, 2]


def test_a_class_gets_an_instance_and_reads_only_its_fields() -> None:
    def cents(order: Order) -> Priced:
        return Priced(order.user, int((order.price or 0) * 100), [order])

    function = RowFunction.of(cents, "map", INPUT)
    assert function.columns == ("user", "price")
    assert function.apply(BATCH).rows.column("cents").to_pylist() == [100, 0, 300]
    assert function.apply(BATCH).rows.column("orders").to_pylist()[0] == [{"user": "ann", "price": 1.0}]


def test_named_tuples_and_typed_dicts_can_be_asked_for() -> None:
    def upper(row: Named) -> Dicted:
        return {"user": row.user.upper()}

    def lower(row: Dicted) -> Named:
        return Named(row["user"].lower())

    assert RowFunction.of(upper, "map", INPUT).columns == ("user",)
    assert run(upper).rows.to_pydict() == {"user": ["ANN", "BOB", "CY"]}
    assert run(lower).rows.to_pydict() == {"user": ["ann", "bob", "cy"]}


def test_nested_values_come_as_instances_and_maps_as_dicts() -> None:
    @dataclass
    class Basket:
        orders: list[Order]
        tags: dict[str, int]

    Basket.__annotations__ = {"orders": list[Order], "tags": dict[str, int]}

    def total(basket):  # type: ignore[no-untyped-def]
        return sum(order.price for order in basket.orders) + basket.tags["x"]

    total.__annotations__ = {"basket": Basket, "return": float}
    schema = pa.schema(
        {
            "orders": pa.list_(pa.struct([("user", pa.string()), ("price", pa.float64())])),
            "tags": pa.map_(pa.string(), pa.int64()),
        }
    )
    batch = pa.record_batch(
        [
            pa.array([[{"user": "a", "price": 1.0}, {"user": "b", "price": 2.0}]], schema.types[0]),
            pa.array([{"x": 4}], schema.types[1]),
        ],
        schema=schema,
    )
    assert run(total, input=schema, batch=batch).rows.to_pydict() == {"value": [7.0]}


def test_maps_within_records_and_lists_go_through_a_function_as_they_are() -> None:
    schema = pa.schema({"r": type_of("struct<m: map<string, bigint>>"), "l": type_of("array<map<string, bigint>>")})
    batch = pa.RecordBatch.from_pylist([{"r": {"m": {"x": 1}}, "l": [{"y": 2}]}, {"r": None, "l": []}], schema=schema)

    def same(row):  # type: ignore[no-untyped-def]
        assert row.r is None or row.r["m"]["x"] == row.l[0]["y"] - 1
        return {"r": row.r, "l": row.l}

    found = RowFunction.of(same, "map", schema, schema=schema).apply(batch)
    assert (found.rows, found.errors) == (batch, [])


def test_a_primitive_gets_the_value_of_the_only_column() -> None:
    def split(line: str) -> Iterator[str]:
        yield from line.split()

    found = run(split, "flat_map", WORDS, words(["a b", "", "c"]))
    assert found.rows.to_pydict() == {"value": ["a", "b", "c"]}
    assert found.origin.tolist() == [0, 0, 2]
    assert found.origin.dtype == np.int64


def test_null_for_a_parameter_that_takes_none_is_an_error_of_that_row() -> None:
    def length(line: str) -> int:
        return len(line)

    def length_or_zero(line: str | None) -> int:
        return len(line or "")

    found = run(length, input=WORDS, batch=words(["ab", None]))
    assert (found.rows.to_pydict(), [index for index, _ in found.errors]) == ({"value": [2]}, [1])
    assert run(length_or_zero, input=WORDS, batch=words(["ab", None])).rows.to_pydict() == {"value": [2, 0]}

    def price(order: Strict) -> float:
        return order.price

    assert [index for index, _ in run(price).errors] == [1]


def test_returning_a_row_keeps_the_columns() -> None:
    def double(row: Row) -> Row:
        return row.replace(price=(row.price or 0) * 2)

    function = RowFunction.of(double, "map", INPUT)
    assert function.output.names == ["user", "price"]
    assert function.apply(BATCH).rows.column("price").to_pylist() == [2.0, 0.0, 6.0]


def test_a_class_that_refuses_a_value_makes_an_error_of_that_row() -> None:
    def price(row: Positive) -> float:
        return row.price or 0.0

    found = run(price)
    assert (found.rows.to_pydict(), [str(error) for _, error in found.errors]) == (
        {"value": [0.0, 3.0]},
        ["too cheap"],
    )


def test_times_and_integers_come_exactly() -> None:
    at = [datetime(2026, 1, 1, 0, 0, 0, 1, tzinfo=UTC), None, datetime(1969, 12, 31, 23, tzinfo=UTC)]
    batch = pa.record_batch({"at": pa.array(at, pa.timestamp("us", tz="UTC")), "n": pa.array([2**62 + 1, 1, -1])})
    found = run(lambda row: {"at": row.at, "n": row.n}, input=batch.schema, batch=batch, schema=batch.schema)
    assert found.rows.equals(batch)


def test_filter_keeps_the_rows_and_says_where_they_were() -> None:
    found = run(lambda row: row.price is None or row.price > 2, "filter")
    assert found.rows.to_pydict() == {"user": ["bob", "cy"], "price": [None, 3.0]}
    assert found.origin.tolist() == [1, 2]


def test_filter_refuses_what_is_neither_true_nor_false() -> None:
    found = run(lambda row: row.price, "filter")
    assert [index for index, _ in found.errors] == [0, 1, 2]


def test_an_exception_is_an_error_of_its_row_only() -> None:
    found = run(lambda row: 1 / (row.price - 1), schema=float)
    assert found.rows.to_pydict() == {"value": [0.5]}
    assert [(index, type(error)) for index, error in found.errors] == [(0, ZeroDivisionError), (1, TypeError)]


class Whole(NamedTuple):
    n: int


@dataclass
class WholeToo:
    n: int


FAULTS: dict[str, type[Exception]] = {"value": ValueError, "stop": StopIteration, "row": RowError}


@pytest.mark.parametrize("kind", [Whole, WholeToo])
@given(st.lists(st.sampled_from(["", *FAULTS]), max_size=9))
def test_a_function_of_an_instance_goes_on_behind_each_row_that_fails(kind: Any, faults: list[str]) -> None:
    def double(one: Any) -> int:
        if faults[one.n]:
            raise FAULTS[faults[one.n]]
        return int(one.n) * 2

    double.__annotations__["one"] = kind
    batch = pa.record_batch({"n": pa.array(range(len(faults)), pa.int64())})
    found = RowFunction.of(double, "map", batch.schema).apply(batch)
    good = [row for row, fault in enumerate(faults) if not fault]
    assert found.rows.column("value").to_pylist() == [2 * row for row in good]
    assert found.origin.tolist() == good
    wanted = [(row, RuntimeError if fault == "stop" else FAULTS[fault]) for row, fault in enumerate(faults) if fault]
    assert [(row, type(error)) for row, error in found.errors] == wanted


def test_texts_that_come_as_a_dictionary_are_texts_to_a_function() -> None:
    words = pa.array(["b", None, "a", "b"]).dictionary_encode().slice(1)
    assert to_values(words) == [None, "a", "b"]


def test_a_flat_map_that_fails_halfway_sends_nothing_for_that_row() -> None:
    def count(n: int) -> Iterator[int]:
        for i in range(n):
            if i == 2:
                raise ValueError("two")
            yield i

    schema = pa.schema({"n": pa.int64()})
    found = run(count, "flat_map", schema, pa.record_batch({"n": [1, 5, 2]}))
    assert (found.rows.to_pydict()["value"], found.origin.tolist()) == ([0, 0, 1], [0, 2, 2])
    assert [index for index, _ in found.errors] == [1]


def test_a_value_that_does_not_fit_is_an_error_of_its_row_only() -> None:
    found = run(lambda row: row.price, schema="value double")
    assert len(found.errors) == 3  # A number is no row: with DDL, a row is expected.
    found = run(lambda row: {"user": row.user, "n": 1 if row.price else "x"}, schema="user string, n bigint")
    assert found.rows.to_pydict() == {"user": ["ann", "cy"], "n": [1, 1]}
    assert [(index, type(error)) for index, error in found.errors] == [(1, RowError)]
    assert found.origin.tolist() == [0, 2]


def test_unknown_and_missing_fields_do_not_fit() -> None:
    assert len(run(lambda row: {"user": "a", "nope": 1}, schema="user string").errors) == 3
    assert len(run(lambda row: {}, schema="user string not null").errors) == 3
    assert run(lambda row: {}, schema="user string").rows.to_pydict() == {"user": [None] * 3}


def test_a_naive_datetime_does_not_fit() -> None:
    assert len(run(lambda row: datetime(2026, 1, 1), schema=datetime).errors) == 3
    assert not run(lambda row: datetime(2026, 1, 1, tzinfo=UTC), schema=datetime).errors


def test_a_lambda_without_schema_says_what_to_write() -> None:
    with pytest.raises(PlanError) as caught:
        RowFunction.of(lambda row: 1, "map", INPUT)
    assert str(caught.value) == (
        "cannot tell what <lambda> returns\n"
        "  Use a function with a return annotation (-> float, or a class with fields), or say it: .map(…, schema=float)"
    )


def test_mistakes_in_annotations_are_plan_errors() -> None:
    def typo(row: Typo) -> str: ...  # type: ignore[empty-body]
    def one_of_two(value: str) -> str: ...  # type: ignore[empty-body]
    def text(value: str) -> bool: ...  # type: ignore[empty-body]
    def not_several(row: Row) -> str: ...  # type: ignore[empty-body]
    def not_bool(row: Row) -> str: ...  # type: ignore[empty-body]
    def maybe(row: Row) -> Order | None: ...

    with pytest.raises(PlanError, match=r"no column 'usr' here\. Columns: user, price\. Did you mean 'user'"):
        RowFunction.of(typo, "map", INPUT)
    with pytest.raises(PlanError, match="must have one column"):
        RowFunction.of(one_of_two, "map", INPUT)
    with pytest.raises(PlanError, match=r"takes string as 'value', and column 'n' is bigint"):
        RowFunction.of(text, "map", pa.schema({"n": pa.int64()}))
    with pytest.raises(PlanError, match=r"-> Iterator\[str\]"):
        RowFunction.of(not_several, "flat_map", INPUT)
    with pytest.raises(PlanError, match="returns bool"):
        RowFunction.of(not_bool, "filter", INPUT)
    with pytest.raises(PlanError, match="flat_map"):
        RowFunction.of(maybe, "map", INPUT)


def test_rows_are_the_same_whatever_stands_for_them() -> None:
    _, encode = encoder_for("user string, price double", INPUT)
    rows: list[tuple[str, float | None]] = [("ann", 1.0), ("bob", None)]
    kinds: list[Any] = [
        Straight._make,
        lambda row: Turned(user=row[0], price=row[1]),
        lambda row: Order(*row),
        lambda row: {"price": row[1], "user": row[0]},
        lambda row: Row(user=row[0], price=row[1]),
        tuple,
    ]
    for first in kinds:
        for second in kinds:
            assert encode([first(rows[0]), second(rows[1])]) == [["ann", "bob"], [1.0, None]]
    with pytest.raises(RowError, match="expected a row with user, price"):
        encode([("ann", 1.0, 2.0), ("bob", None, 2.0)])


def test_one_row_can_be_decoded_and_encoded_by_itself() -> None:
    function = RowFunction.of(lambda row: row, "map", INPUT, schema="user string, price double")
    (row,) = function.decode([["ann"], [1.0]], 1)
    assert row == Row(user="ann", price=1.0)
    assert function.encode(row) == ["ann", 1.0]


@given(st.lists(st.one_of(st.none(), st.integers(-3, 3))), st.integers(0, 10))
def test_splitting_a_batch_changes_neither_rows_nor_errors(values: list[int | None], cut: int) -> None:
    def parts(n: int) -> Iterator[float]:
        yield float(n)
        if n % 2:
            yield 1 / (n + 3)

    schema = pa.schema({"n": pa.int64()})
    function = RowFunction.of(parts, "flat_map", schema)
    batch = pa.record_batch([pa.array(values, pa.int64())], schema=schema)
    whole = function.apply(batch)
    cut = min(cut, len(values))
    pieces = [function.apply(batch.slice(0, cut)), function.apply(batch.slice(cut))]
    assert whole.rows.to_pylist() == pieces[0].rows.to_pylist() + pieces[1].rows.to_pylist()
    assert whole.origin.tolist() == pieces[0].origin.tolist() + [cut + i for i in pieces[1].origin.tolist()]
    assert [i for i, _ in whole.errors] == [i for i, _ in pieces[0].errors] + [cut + i for i, _ in pieces[1].errors]
