"""The fixes of `penstock.schema`: columns and their types."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import make_dataclass
from typing import Annotated, Any

import pyarrow as pa
import pytest

from fixes.applying import argument, shown
from penstock import sources
from penstock.schema import to_schema


def record(**fields: Any) -> type:
    return make_dataclass("Record", list(fields.items()))


def test_a_column_has_one_type_that_may_be_missing() -> None:
    assert "T | None" in shown("type.one", lambda: to_schema(record(n=int | str)))
    assert to_schema(record(n=int)).field("n").nullable is False
    assert to_schema(record(n=int | None)).field("n").nullable is True


def test_a_class_of_a_field_stands_at_the_top() -> None:
    unknown = record(n="Nowhere")
    assert "before Record is used" in shown("type.fields", lambda: to_schema(unknown))
    globals()["Nowhere"] = int
    known = record(n="Nowhere")
    known.__module__ = __name__
    assert to_schema(known).names == ["n"]
    del globals()["Nowhere"]


def test_any_type_of_arrow_can_be_said() -> None:
    text = shown("type.known", lambda: to_schema(record(n=complex)))
    found = eval(text.partition(": ")[2], {"Annotated": Annotated, "pa": pa})
    assert to_schema(record(n=found)).field("n").type == pa.int32()


@pytest.mark.parametrize(
    ("id", "broken", "working"),
    [
        ("schema.reserved", lambda: to_schema("__n bigint"), "{} bigint"),
        ("schema.twice", lambda: to_schema("n bigint, n string"), "n bigint, {} string"),
    ],
)
def test_a_column_gets_another_name(id: str, broken: Callable[[], object], working: str) -> None:
    text = shown("schema.reserved", broken) if id == "schema.reserved" else shown("schema.twice", broken)
    to_schema(working.format(text.rpartition(" ")[2]))


def test_a_schema_has_columns() -> None:
    (schema,) = argument(shown("schema.empty", lambda: to_schema(pa.schema([]))))
    assert sources.memory([], schema=schema).schema.names == ["user", "price"]
