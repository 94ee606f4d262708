"""The fixes of functions that users give to `map` and the like."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

import penstock as pen
from fixes.applying import code_of, shown
from fixes.streams import Streams, applied
from penstock.api.stream import Stream


@dataclass
class Line:
    user: str


@pytest.fixture
def prices() -> Stream:
    return Streams().left.select("price")


def test_a_function_is_given_a_row(prices: Stream) -> None:
    assert shown("function.argument", lambda: prices.map(lambda: 1, schema=int)) == "Let it take one: def f(row)"  # type: ignore[misc]

    def f(row):  # type: ignore[no-untyped-def]
        return 1

    prices.map(f, schema=int)


def test_classes_of_annotations_stand_at_the_top(prices: Stream) -> None:
    def priced(row: Nowhere) -> int:  # type: ignore[name-defined]  # noqa: F821
        return 1

    def known(row: Line) -> int:
        return 1

    assert "at the top level of a module" in shown("function.hints", lambda: prices.map(priced))
    Streams().left.map(known)


@pytest.mark.parametrize("kind", ["map", "flat_map"])
def test_what_a_function_returns_is_said_in_two_ways(prices: Stream, kind: str) -> None:
    several = kind == "flat_map"

    def silent(price: int):  # type: ignore[no-untyped-def]
        return price

    def annotated(price: int) -> float:
        return price

    def annotated_several(price: int) -> list[float]:
        return [price]

    text = shown("function.returns", lambda: getattr(prices, kind)(silent))
    assert f".{kind}(silent, schema=float)" in text
    assert "-> float" in text
    applied(prices, f".{kind}(silent, schema=float)", silent=silent)
    getattr(prices, kind)(annotated_several if several else annotated)


def test_a_function_that_may_give_nothing_gives_a_list_or_is_filtered() -> None:
    def maybe(row: Line) -> Line | None:
        return None

    def several(row: Line) -> list[Line]:
        return []

    def always(row: Line) -> Line:
        return row

    rows = Streams().left
    assert "flat_map" in shown("function.none", lambda: rows.map(maybe))
    rows.flat_map(several)
    rows.filter("user is not null").map(always)


def test_a_function_of_several_rows_yields_or_is_mapped() -> None:
    def one(row: Line) -> Line:
        return row

    def some(row: Line) -> Iterator[Line]:
        yield row

    rows = Streams().left
    text = shown("function.several", lambda: rows.flat_map(one))
    assert "-> Iterator[Line]" in text
    rows.flat_map(some)
    rows.map(one)


def test_a_function_of_several_columns_takes_a_class_or_a_row() -> None:
    def of_text(user: str) -> int:
        return 1

    def of_class(line: Line) -> int:
        return 1

    def of_row(row: pen.Row) -> int:
        return 1

    rows = Streams().left
    text = shown("function.one-column", lambda: rows.map(of_text))
    assert "a pen.Row" in text
    rows.map(of_class)
    rows.map(of_row)


@pytest.mark.parametrize("column", ["price", "at"])
def test_a_column_of_another_type_is_cast(column: str) -> None:
    def of_text(value: str) -> int:
        return 1

    rows: Any = Streams().left.select(column)
    (code,) = code_of(shown("function.type", lambda: rows.map(of_text)))
    applied(rows, code, col=pen.col).map(of_text)
