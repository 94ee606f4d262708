"""Casts of records, lists and maps, and functions that take them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest

import penstock as pen
from penstock.errors import PlanError
from penstock.expr import col, evaluate
from penstock.schema import to_schema, type_name, type_of

ROWS: list[dict[str, Any]] = [
    {"words": ["a", "b"], "bid": {"price": 1, "at": "x"}, "counts": [("a", 1)], "bids": [{"price": 1, "at": "x"}]},
    {"words": ["a", None], "bid": {"price": None, "at": "x"}, "counts": [("a", None)], "bids": [{"price": 2, "at": None}]},
    {"words": None, "bid": None, "counts": None, "bids": None},
    {"words": [], "bid": {"price": 2, "at": None}, "counts": [], "bids": [None]},
]
SCHEMA = to_schema(
    "words array<string>, bid struct<price: bigint, at: string>, counts map<string, bigint>, "
    "bids array<struct<price: bigint, at: string>>"
)
BATCH = pa.RecordBatch.from_pylist(ROWS, schema=SCHEMA)


def bad_rows(found: Any) -> list[int]:
    return [] if found.errors is None else [row for row, bad in enumerate(found.errors.to_pylist()) if bad]


@pytest.mark.parametrize(
    ("column", "kind", "bad"),
    [
        ("words", "array<string not null>", [1]),
        ("words", "array<bigint>", [0, 1]),
        ("bid", "struct<price: bigint not null>", [1]),
        ("bid", "struct<at: string, price: string>", []),
        ("counts", "map<string, bigint not null>", [1]),
        ("counts", "map<string, string>", []),
        ("bids", "array<struct<price: bigint not null> not null>", [3]),
        ("bids", "array<struct<at: string not null>>", [1]),
        ("bids", "array<struct<at: bigint>>", [0]),
    ],
)
def test_what_is_inside_is_cast_and_a_row_that_cannot_be_is_bad(column: str, kind: str, bad: list[int]) -> None:
    for rows in (BATCH, BATCH.slice(1)):
        found = evaluate(col(column).cast(kind), rows)
        offset = len(BATCH) - len(rows)
        assert [row + offset for row in bad_rows(found)] == [row for row in bad if row >= offset]
        assert found.values.type == type_of(kind)
        found.values.validate(full=True)
        for row, value in enumerate(found.values.to_pylist()):
            given = ROWS[row + offset][column]
            assert (value is None) == (row + offset in bad or given is None)


def test_a_type_says_what_may_be_null_inside_and_is_read_again() -> None:
    for text in ("array<string not null>", "map<string, bigint not null>", "array<array<int not null> not null>"):
        assert type_name(type_of(text)) == text
    assert type_of("array<string not null>") == pa.list_(pa.field("item", pa.string(), nullable=False))


@dataclass
class Bid:
    price: int


def test_a_function_takes_lists_and_records_in_which_nothing_is_null() -> None:
    def count(words: list[str]) -> int:
        return len(words)

    def price(bid: Bid) -> int:
        assert isinstance(bid, Bid)
        return bid.price

    def total(bids: list[Bid] | None) -> int:
        return sum(bid.price for bid in bids or [])

    for function, column, expected, bad in (
        (count, "words", [2, None, None, 0], [1]),
        (price, "bid", [1, None, None, 2], [1]),
        (total, "bids", [1, 2, 0, None], [3]),
    ):
        found = evaluate(pen.udf(function)(col(column)), BATCH)
        assert found.values.to_pylist() == expected
        assert bad_rows(found) == bad


def test_a_column_of_another_type_is_refused_with_what_matters_about_both() -> None:
    def count(numbers: list[int]) -> int:
        return len(numbers)

    with pytest.raises(PlanError, match=r"takes array<bigint not null> as 'numbers', and found array<string> \(words\)"):
        evaluate(pen.udf(count)(col("words")), BATCH)
    with pytest.raises(PlanError, match="takes array<bigint not null>") as refused:
        evaluate(pen.udf(count)(col("bid")), BATCH)
    assert refused.value.fix is None
