"""The fixes of names of columns, and of values that do not fit their column."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

import penstock as pen
from fixes.applying import code_of, evaluate, shown
from penstock import sinks, sources
from penstock.expr import parse


@dataclass
class Record:
    a: int


@dataclass
class Row:
    n: Record


@pytest.mark.parametrize("name", [None, "", 3, "\ud800"])
def test_a_column_gets_a_name(name: Any) -> None:
    stream = pen.Pipeline("p").read(sources.memory([{"n": 1}]))
    (code,) = code_of(shown("column.name", lambda: stream.select(pen.col("n").alias(name))))
    assert stream.select(evaluate(code)).schema.names == ["total"]
    for broken in (
        lambda: stream.rename({"n": name}),
        lambda: sources.memory([{name: 1}]),
        lambda: stream.key_by("n").aggregate(pen.count().alias(name), name="x"),
    ):
        shown("column.name", broken)


@pytest.mark.parametrize("name", ["", "\ud800"])
def test_a_column_that_is_named_by_a_keyword_gets_a_name(name: str) -> None:
    stream = pen.Pipeline("p").read(sources.memory([{"n": 1}]))
    for broken in (
        lambda: stream.with_columns(**{name: "n"}),
        lambda: stream.select(**{name: "n"}),
        lambda: stream.key_by("n").aggregate(name="x", **{name: pen.count()}),
    ):
        shown("column.name", broken)


@pytest.mark.parametrize("name", ["", None, "\ud800"])
def test_the_column_of_changes_gets_a_name(name: Any) -> None:
    stream = pen.Pipeline("p").read(sources.memory([{"n": 1}]))
    (code,) = code_of(shown("as_rows.op", lambda: stream.as_rows(op=name)))
    assert evaluate(f"stream{code}").schema.names == ["n", "op"]


def test_half_of_a_character_in_an_expression_becomes_another() -> None:
    text, s = "a\ud800", pen.col("s")
    for broken in (
        lambda: pen.lit(text),
        lambda: pen.col(text),
        lambda: s == text,
        lambda: s.str.contains(text),
        lambda: pen.struct(**{text: s}),
        lambda: parse(f"s = '{text}'"),
    ):
        (code,) = code_of(shown("text.half", broken))
    assert evaluate(code) == "a?"


@pytest.mark.parametrize(
    ("schema", "value", "parameter"),
    [
        ("n string", "1", int),
        ("n array<string>", ["1"], list[int]),
        ("n struct<a: string, b: int>", {"a": "1", "b": 2}, Record),
        ("n map<string, string>", {"a": "1"}, dict[str, int]),
    ],
)
def test_the_cast_before_a_function_can_be_copied(schema: str, value: Any, parameter: Any) -> None:
    def whole(n: Any) -> str:
        return repr(n)

    whole.__annotations__["n"] = parameter
    source = sources.memory([{"n": value}], schema=schema)
    stream = pen.Pipeline("p").read(source)
    (code,) = code_of(shown("udf.argument", lambda: stream.select(x=pen.udf(whole)(pen.col("n"))).schema))
    out = sinks.memory("udf-fixes")
    out.clear()
    stream.select(x=pen.udf(whole)(evaluate(code))).write(out).run(pen.Local())
    assert "1" in out.rows()[0]["x"]
    assert "'1'" not in out.rows()[0]["x"]
    (code,) = code_of(shown("udf.argument", lambda: stream.select(x=pen.udf(whole)(pen.coalesce(pen.col("n")))).schema))
    stream.select(x=pen.udf(whole)(evaluate(f'pen.coalesce(pen.col("n")){code}')))

    if parameter is Record:
        whole.__annotations__["n"] = Row
    (code,) = code_of(shown("function.type", lambda: stream.map(whole)))
    assert evaluate(f"stream{code}", stream=stream).map(whole).schema.names == ["value"]
