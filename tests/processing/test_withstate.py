"""`map_with_state`, `update_state_by_key`, and states that start from a table."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

import penstock as pen
from penstock.errors import PlanError
from processing.hands import Feed

pytestmark = pytest.mark.usefixtures("backend")


@dataclass
class In:
    k: str | None
    n: int | None


@dataclass
class Visit:
    pages: int
    last: int


def visit(row: In | None, state: pen.ValueState[Any]) -> str | None:
    if row is None:
        return f"gone {state.get()} {state.timing_out}"
    if row.n == 0:
        state.clear()
        return None
    before = state.get() or Visit(0, 0)
    state.set(Visit(before.pages + 1, row.n or 0))
    return f"{row.k} {state.get().pages} {state.timing_out}"


def mapped(**options: Any) -> Callable[[pen.KeyedStream], pen.Stream]:
    return lambda keyed: keyed.map_with_state(visit, state=Visit, name="it", **options)


def test_a_function_of_a_row_and_its_state() -> None:
    feed = Feed(mapped()).rows(("a", 1, 0), ("b", 1, 0), ("a", 2, 0))
    assert feed.sent() == ["a 1 False", "b 1 False", "a 2 False"]
    assert feed.restore(2).rows(("a", 3, 0), ("a", 0, 0), ("a", 4, 0)).sent() == ["a 3 False", "a 1 False"]
    assert feed.end().sent() == [], "without a timeout nothing times out"


def test_a_silent_key_gets_a_last_call_and_is_forgotten() -> None:
    feed = Feed(mapped(timeout="30s")).rows(("a", 1, 0), ("b", 1, 0), ("b", 0, 5), ("a", 2, 10))
    feed.sent()
    assert feed.watermark(39).sent() == []
    assert feed.restore().watermark(40).sent() == ["gone Visit(pages=2, last=2) True"]
    assert feed.rows(("a", 5, 50)).sent() == ["a 1 False"]


def test_the_timeout_may_be_of_the_clock() -> None:
    feed = Feed(mapped(timeout="30s"), timed=False).tick(100).rows(("a", 1, 0))
    feed.sent()
    assert feed.tick(129).sent() == []
    assert feed.tick(130).sent() == ["gone Visit(pages=1, last=1) True"]


INITIAL = [{"k": "a", "pages": 7, "last": 1}, {"k": "z", "pages": 9, "last": 2}]


@pytest.mark.parametrize("timed", [True, False], ids=["event", "processing"])
def test_keys_with_initial_values_time_out_too(timed: bool) -> None:
    feed = Feed(mapped(timeout="30s", initial=INITIAL), timed=timed, parallelism=2)
    (feed.watermark if timed else feed.tick)(10)
    assert feed.rows(("a", 3, 20)).sent() == ["a 8 False"]
    move = feed.restore().watermark if timed else feed.restore().tick
    assert move(39).sent() == []
    row, initial = "gone Visit(pages=8, last=3) True", "gone Visit(pages=9, last=2) True"
    assert sorted(move(41).sent()) == ([initial] if timed else [row, initial])
    assert move(50).sent() == ([row] if timed else [])


def test_at_the_end_all_that_have_a_timeout_time_out() -> None:
    assert sorted(Feed(mapped(timeout="30s", initial=INITIAL)).end().sent()) == [
        "gone Visit(pages=7, last=1) True",
        "gone Visit(pages=9, last=2) True",
    ]


def test_what_the_function_returns_must_be_known() -> None:
    with pytest.raises(PlanError, match="cannot tell what <lambda> returns"):
        Feed(lambda keyed: keyed.map_with_state(lambda row, state: 1, state=int, name="it"))
    with pytest.raises(PlanError, match="is given a row or rows and a state, and takes 1 arguments"):
        Feed(lambda keyed: keyed.map_with_state(lambda row: 1, state=int, schema=int, name="it"))
    feed = Feed(lambda keyed: keyed.map_with_state(lambda row, state: row.n, state=int, schema=int, name="it"))
    assert feed.rows(("a", 1, 0)).sent() == [1]


def totals(rows: list[In], old: int | None) -> int | None:
    assert all(isinstance(row, In) for row in rows)
    if any(row.n == -1 for row in rows):
        return None
    return (old or 0) + sum(row.n or 0 for row in rows)


def updated(**options: Any) -> Callable[[pen.KeyedStream], pen.Stream]:
    return lambda keyed: keyed.update_state_by_key(totals, state=int, every="10s", name="it", **options)


def latest(feed: Feed) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for key, value, change in feed.sent():
        if change > 0:
            found[key] = value
        else:
            found.pop(key, None)
    return found


@pytest.mark.parametrize("timed", [True, False])
def test_every_so_often_each_key_that_has_a_state_is_updated(timed: bool) -> None:
    feed = Feed(updated(), timed=timed).tick(1).rows(("a", 1, 0), ("b", 2, 0), ("a", 3, 0))
    assert feed.tick(9).sent() == []
    assert sorted(feed.tick(10).sent()) == [("a", 4, 1), ("b", 2, 1)]
    feed.restore(2).rows(("a", 1, 0), ("c", 9, 0))
    assert sorted(feed.tick(20).sent()) == [("a", 5, 1), ("b", 2, 1), ("c", 9, 1)]
    assert sorted(feed.rows(("b", -1, 0)).tick(34).sent()) == [("a", 5, 1), ("b", 2, -1), ("c", 9, 1)]
    assert sorted(feed.tick(40).sent()) == [("a", 5, 1), ("c", 9, 1)]
    assert sorted(feed.rows(("c", 1, 0)).end().sent()) == [("a", 5, 1), ("c", 10, 1)]


def test_keys_with_initial_values_are_updated_from_the_start() -> None:
    feed = Feed(updated(initial=[{"k": "x", "value": 5}]), parallelism=2).tick(3)
    assert latest(feed) == {"x": 5}
    assert latest(feed.rows(("x", 1, 0)).tick(10)) == {"x": 6}


# --- where initial values come from -----------------------------------------------------------------------------------


class Count(pen.ProcessFunction):
    n = pen.ValueState(int)
    names = pen.ListState(str)
    limits = pen.MapState(str, float)
    fresh = pen.ValueState(int, ttl="10s")

    def on_row(self, row: pen.Row, ctx: pen.Context) -> str:
        self.n.set((self.n.get() or 0) + 1)
        return f"{ctx.key} {self.n.get()}"


TABLE = pa.table({"k": ["007", "b", None], "value": [10, 20, 30]})
EXPECTED = ["007 11", "None 31", "b 21", "c 1"]


def folder(tmp_path: Path) -> Path:
    pyarrow.parquet.write_table(TABLE.slice(0, 1), tmp_path / "one.parquet")
    pyarrow.parquet.write_table(TABLE.slice(1), tmp_path / "two.parquet")
    return tmp_path


def parquet(tmp_path: Path) -> str:
    pyarrow.parquet.write_table(TABLE, tmp_path / "t.parquet")
    return f"file://{tmp_path}/t.parquet"


def csv(tmp_path: Path) -> Path:
    (tmp_path / "t.csv").write_text("k,value\n007,10\nb,20\n")
    return tmp_path / "t.csv"


def jsonl(tmp_path: Path) -> Path:
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in TABLE.to_pylist()))
    return tmp_path / "t.jsonl"


SOURCES: dict[str, Callable[[Path], Any]] = {
    "table": lambda path: TABLE,
    "batch": lambda path: TABLE.combine_chunks().to_batches()[0],
    "list": lambda path: TABLE.to_pylist(),
    "pandas": lambda path: TABLE.to_pandas(),
    "parquet": parquet,
    "folder": folder,
    "csv": csv,
    "jsonl": jsonl,
}


@pytest.mark.parametrize("kind", SOURCES)
def test_a_state_starts_from_a_table_once(kind: str, tmp_path: Path) -> None:
    feed = Feed(Count(), parallelism=2, initial={"n": SOURCES[kind](tmp_path)})
    rows = [("007", 1, 0), (None, 1, 0), ("b", 1, 0), ("c", 1, 0)]
    expected = [row.replace("None 31", "None 1") for row in EXPECTED] if kind == "csv" else EXPECTED
    assert sorted(feed.rows(*rows).sent()) == expected
    feed.restore(3)
    assert sorted(feed.rows(("007", 1, 0), ("b", 1, 0)).sent()) == ["007 12", "b 22"], "a snapshot knows better"


def test_other_states_start_from_tables_too() -> None:
    class Told(Count):
        def on_row(self, row: pen.Row, ctx: pen.Context) -> str:
            return f"{self.names.get()} {dict(self.limits.items())} {self.fresh.get()}"

    initial = {
        "names": [{"k": "a", "value": ["x", "y"]}],
        "limits": [{"k": "a", "value": {"z": 1, "y": 2}}],
        "fresh": pa.table({"k": ["a"], "value": [1]}),
    }
    feed = Feed(Told(), initial=initial).rows(("a", 1, 0), ("b", 1, 0))
    assert feed.sent() == ["['x', 'y'] {'z': 1.0, 'y': 2.0} 1", "[] {} None"]


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ([{"k": "a", "value": "x"}], "the initial values of state 'n' do not fit: n: expected bigint, and found str 'x'"),
        ([{"value": 1}], "initial= takes rows as dicts with k and a value, and got {'value': 1}"),
        (pa.table({"k": ["a"]}), "the initial values of state 'n' have no column 'value'. Columns: k"),
        (pa.table({"key": ["a"], "value": [1]}), "the initial values of state 'n' have no column 'k'. Columns: key, value"),
        (pa.table({"k": ["a"], "value": ["x"]}), "the initial values of state 'n' do not fit: Failed to parse string"),
        (
            pa.table({"k": ["a"], "value": pa.array([None], pa.int64())}),
            "the initial values of state 'n' have a null, and it holds none",
        ),
        ("/nowhere/at/all", "there is nothing to read in /nowhere/at/all. Files end in .parquet, .csv, .jsonl, .json"),
        (7, "initial= takes a table (Arrow, pandas, a list of dicts), a path or pen.from_savepoint(…), and got int"),
    ],
)
def test_what_does_not_fit_is_refused(source: Any, text: str) -> None:
    with pytest.raises(PlanError) as raised:
        Feed(Count(), initial={"n": source})
    assert text in str(raised.value)


def test_an_aggregate_starts_from_nothing() -> None:
    class Summed(Count):
        total = pen.AggregatingState(pen.col("value").sum(), int)

    with pytest.raises(PlanError, match=r"state 'total': an AggregatingState cannot start from a table\n  Use a ValueState"):
        Feed(Summed(), initial={"total": TABLE})
