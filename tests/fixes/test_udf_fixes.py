"""The fixes of functions in expressions, and of aggregates that users write: the types are said where the text says."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import penstock as pen
from fixes.applying import argument, code_of, evaluate, shown
from penstock import col, sinks, sources
from penstock.schema import type_name

ROWS = [{"shop": "a", "x": 1.0, "s": "ab"}, {"shop": "a", "x": 3.0, "s": "c"}]


def values(expr: Any) -> list[Any]:
    """What the expression is for each row, when it runs."""
    out = sinks.memory("udf-fixes")
    out.clear()
    pen.Pipeline("udf-fixes").read(sources.memory(ROWS)).select(v=expr).write(out).run(pen.Local())
    return [row["v"] for row in out.rows()]


def result(aggregate: Any) -> Any:
    """What the aggregate is of all rows."""
    out = sinks.memory("udaf-fixes")
    out.clear()
    rows = pen.Pipeline("udaf-fixes").read(sources.memory(ROWS))
    rows.key_by("shop").aggregate(v=aggregate, name="result").write(out).run(pen.Local())
    return out.rows()[-1]["v"]


def decorated(text: str, function: Any) -> Any:
    (code,) = code_of(text)
    assert code.startswith("@")
    return evaluate(code[1:])(function)


Price = float


def test_classes_that_annotations_mention_stand_at_the_top() -> None:
    def lost(x: Nowhere) -> float:  # type: ignore[name-defined]  # noqa: F821
        return 1.0

    def told(x: float) -> Price:
        return x + 1

    class Lost(Sum):
        def create(self) -> Nowhere:  # type: ignore[name-defined]  # noqa: F821
            return 0.0

    class Told(Sum):
        def create(self) -> Price:
            return 0.0

    assert "at the top level of a module" in shown("udf.hints", lambda: pen.udf(lost))
    assert values(pen.udf(told)(col("x"))) == [2.0, 4.0]
    shown("udf.hints", lambda: Lost()(col("x")))
    assert result(Told()(col("x"))) == 4.0


def test_what_a_function_returns_is_annotated_or_said() -> None:
    def silent(s: str):  # type: ignore[no-untyped-def]
        return s.upper()

    def annotated(s: str) -> str:
        return s.upper()

    text = shown("udf.returns", lambda: pen.udf(silent))
    assert "-> str" in text
    assert values(pen.udf(annotated)(col("s"))) == ["AB", "C"]
    assert values(decorated(text, silent)(col("s"))) == ["AB", "C"]


def test_what_arrays_hold_is_said() -> None:
    def doubled(s: pa.Array) -> pa.Array:
        return pa.array([each * 2 for each in s.to_pylist()])

    text = shown("udf.arrays", lambda: pen.udf(doubled))
    assert values(decorated(text, doubled)(col("s"))) == ["abab", "cc"]


class Sum(pen.Aggregate):
    def create(self) -> float:
        return 0.0

    def add(self, acc: float, x: float) -> float:
        return acc + x

    def merge(self, a: float, b: float) -> float:
        return a + b

    def result(self, acc: float) -> float:
        return acc


class NoAccumulator(Sum):
    def create(self):  # type: ignore[no-untyped-def]
        return 0.0


class NoResult(Sum):
    def result(self, acc):  # type: ignore[no-untyped-def]
        return acc


class OddAccumulator(Sum):
    def create(self) -> complex:  # type: ignore[override]
        return 0.0


@pytest.mark.parametrize(
    ("kind", "method", "attribute"),
    [(NoAccumulator, "create", "state"), (NoResult, "result", "returns"), (OddAccumulator, "create", "state")],
)
def test_the_types_of_an_aggregate_are_annotated_or_said(kind: type[Sum], method: str, attribute: str) -> None:
    text = shown("user-aggregate.type", lambda: kind()(col("x")))
    written = text.partition("Annotate it, ")[2].partition(", or")[0]
    made: dict[str, Any] = {}
    exec(f"{written}: return {'0.0' if method == 'create' else 'acc'}", made)
    assert result(type("Annotated", (kind,), {method: made[method]})()(col("x"))) == 4.0
    name, _, said = text.partition("Write: ")[2].partition(" = ")
    assert name == attribute
    assert result(type("Said", (kind,), {name: evaluate(said)})()(col("x"))) == 4.0


class Texts(Sum):
    state = "bigint"

    def create(self) -> Any:
        return ""

    def add(self, acc: Any, s: str) -> Any:  # type: ignore[override]
        return acc + s

    def result(self, acc: Any) -> str:  # type: ignore[override]
        return "".join(sorted(acc))


class Annotates(Texts):
    state = None  # type: ignore[assignment]

    def create(self) -> str:  # type: ignore[override]
        return ""


class Odd(Sum):
    def create(self) -> float:
        return object()  # type: ignore[return-value]


def test_an_accumulator_is_of_the_type_that_was_said() -> None:
    text = shown("user-aggregate.accumulator", lambda: Texts()(col("s")))
    (said,) = argument(text)
    assert result(type("Said", (Texts,), {"state": said})()(col("s"))) == "abc"
    assert "Annotate Texts.create" in text
    assert type_name(pa.string()) == said
    assert result(Annotates()(col("s"))) == "abc"
    assert "Return a value of the type" in shown("user-aggregate.accumulator", lambda: Odd()(col("x")))
    assert result(Sum()(col("x"))) == 4.0
