"""The fixes of aggregates: what is proposed is aggregated, where it matters over rows that are withdrawn again."""

from __future__ import annotations

import importlib.util
import sys
import tomllib
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import penstock as pen
from fixes.applying import argument, code_of, evaluate, shown
from penstock import col, sinks, sources
from penstock.api.stream import Stream

SCHEMA = "user string, n bigint, s string, d decimal(38,36), p struct<city: string, n: bigint>, xs array<bigint>, at timestamp"
ROWS = [
    {
        "user": "ann",
        "n": n,
        "s": str(n),
        "d": Decimal(n) / 10,
        "p": {"city": "Ulm", "n": n},
        "xs": [n, 0],
        "at": datetime(2026, 1, 31, 12, 0, n, tzinfo=UTC),
    }
    for n in (1, 2, 2, 5)
]


def read() -> Stream:
    return pen.Pipeline("aggregate-fixes").read(sources.memory(ROWS, schema=SCHEMA))


def withdrawn(stream: Stream) -> Stream:
    """The newest row of each user, which is withdrawn before the next."""
    newest = {name: col(name).last() for name in ("n", "s", "d")}
    return stream.key_by("user").window(pen.running(), emit="retract").aggregate(**newest, name="newest")


def result(stream: Stream, aggregate: Any) -> Any:
    """What the aggregate is of all rows in the end."""
    out = sinks.memory("aggregate-fixes")
    out.clear()
    stream.key_by("user").aggregate(a=aggregate, name="result").write(out).run(pen.Local())
    return out.rows()[-1]["a"]


def refused(stream: Stream, aggregate: Any) -> Callable[[], object]:
    return lambda: stream.key_by("user").aggregate(a=aggregate, name="refused")


def behind(expr: Any, text: str) -> Any:
    return evaluate(f"expr{text.rpartition('Write: ')[2]}", expr=expr)


def test_top_k_is_of_a_number() -> None:
    text = shown("aggregate.top_k", lambda: col("n").top_k(0))
    assert result(read(), behind(col("n"), text)) == [5, 2, 2]


@pytest.mark.parametrize("share", [1.5, [], "0.5", [0.5, 2]])
def test_a_quantile_is_of_shares(share: Any) -> None:
    one, several = code_of(shown("aggregate.quantile", lambda: col("n").quantile(share)))
    assert result(read(), behind(col("n"), one)) == 5
    assert result(read(), behind(col("n"), several)) == [2, 5]


@pytest.mark.parametrize("kind", ["variance", "stddev"])
def test_the_two_variances(kind: str) -> None:
    made = getattr(col("n"), kind)
    found = [result(read(), made(ddof=ddof)) for ddof in argument(shown("aggregate.ddof", lambda: made(ddof=2)))]
    assert found == sorted(found, reverse=True)


def test_numbers_are_made_of_text() -> None:
    (code,) = code_of(shown("aggregate.numbers", refused(read(), col("s").sum())))
    assert result(read(), evaluate(code).sum()) == 10
    text = shown("aggregate.numbers", refused(read(), col("s").str.trim().mean()))
    assert "behind trim(s)" in text
    assert result(read(), behind(col("s").str.trim(), text).mean()) == 2.5


@pytest.mark.parametrize(("name", "kind", "found"), [("p", "sum", 10), ("p", "max", "Ulm"), ("xs", "max", 5), ("xs", "sum", 10)])
def test_what_is_inside_is_aggregated(name: str, kind: str, found: Any) -> None:
    text = shown("aggregate.inside", refused(read(), getattr(col(name), kind)()))
    assert f"behind {name}." in text
    assert result(read(), getattr(behind(col(name), text), kind)()) == found


def test_nothing_but_null_is_of_some_type() -> None:
    text = shown("aggregate.null", refused(read(), pen.lit(None).max()))
    assert result(read(), behind(pen.lit(None), text).max()) is None


def without_sketches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasketches", None)


SKETCHES = [
    (lambda e, **options: e.count_distinct(**{"approx": True} | options), 3, "count(distinct n)"),
    (lambda e, **options: e.quantile(0.5, **options), 2, "quantile(n, 0.5)"),
    (lambda e, **options: e.quantile([0.5, 1], **options), [2, 5], "quantile(n, array(0.5, 1.0))"),
]


@pytest.mark.parametrize(("sketch", "found", "sql"), SKETCHES)
def test_a_sketch_needs_its_package_or_every_value(
    sketch: Callable[..., Any], found: Any, sql: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_sketches(monkeypatch)
    text = shown("aggregate.sketches", refused(read(), sketch(col("n"))))
    assert result(read(), behind(col("n"), text)) == found
    assert sql in text
    assert result(read(), sql) == found
    package, extra = text.partition('pip install "')[2].partition('"')[0].rstrip("]").split("[")
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert package == project["name"]
    assert any(each.startswith("datasketches") for each in project["optional-dependencies"][extra])
    monkeypatch.undo()
    if importlib.util.find_spec("datasketches") is not None:
        refused(read(), sketch(col("n")))()


@pytest.mark.parametrize(("sketch", "found", "sql"), SKETCHES)
def test_rows_that_are_withdrawn_are_all_kept(sketch: Callable[..., Any], found: Any, sql: str) -> None:
    pytest.importorskip("datasketches")
    text = shown("retract.sketch", refused(withdrawn(read()), sketch(col("n"))))
    last = 1 if found == 3 else [5, 5] if isinstance(found, list) else 5
    assert result(withdrawn(read()), behind(col("n"), text)) == last
    assert sql in text
    assert result(withdrawn(read()), sql) == last


class Total(pen.Aggregate):
    def create(self) -> int:
        return 0

    def add(self, acc: int, n: int) -> int:
        return acc + n

    def merge(self, a: int, b: int) -> int:
        return a + b

    def result(self, acc: int) -> int:
        return acc


class Undone(Total):
    def retract(self, acc: int, n: int) -> int:
        return acc - n


def test_an_aggregate_of_the_users_own_gets_the_inverse_of_add() -> None:
    text = shown("retract.user", refused(withdrawn(read()), Total()(col("n"))))
    assert text.endswith("in Total: def retract(self, acc, n)")
    assert result(withdrawn(read()), Undone()(col("n"))) == 5


def test_first_and_last_of_what_is_withdrawn_go_by_event_time() -> None:
    text = shown("retract.order", refused(withdrawn(read()), col("n").last()))
    timed = read().with_watermark("at", delay="5s").key_by("user")
    window = text.partition("Write: ")[2]
    windowed = evaluate(f"timed{window}", timed=timed).aggregate(n=col("n").max(), name="highest")
    assert result(windowed, col("n").last()) == 5
    assert "min() or max()" in text
    assert result(withdrawn(read()), col("n").max()) == 5


def test_the_variance_of_long_decimals_that_are_withdrawn_is_of_doubles() -> None:
    (code,) = code_of(shown("retract.digits", refused(withdrawn(read()), col("d").variance())))
    assert result(withdrawn(read()), evaluate(code).variance(ddof=0)) == 0
