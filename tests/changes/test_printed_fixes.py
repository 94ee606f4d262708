"""What a refused restore prints keeps what can be kept: the rows that come after it are looked at, not only that the job starts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as pen
from fixes.applying import code_of, evaluate
from penstock import col, sinks, sources

Rows = list[dict[str, Any]]
Build = Callable[[pen.Stream], pen.Stream]


@dataclass
class Program:
    """One program in its versions, over so many numbers, a second apart, for two keys."""

    storage: Path
    timed: bool = False
    runs: int = field(default=0)

    def run(self, build: Build, rows: int, restore: Any = "latest", *, finish: bool = False) -> Rows:
        def made(index: Any, seed: int) -> dict[str, Any]:
            at = np.datetime64("2026-01-01", "us") + index * np.timedelta64(1, "s")
            return {"k": index % 2, "v": index, "w": index.astype("int32"), "at": at}

        schema = "k bigint, v bigint, w int, at timestamp"
        stream = pen.Pipeline("p", max_parallelism=16).read(
            sources.generate(made, schema=schema, rate=1_000_000, rows=rows, splits=1, name="numbers")
        )
        self.runs += 1
        out = sinks.memory(f"{self.storage.parent.name}-{self.runs}")
        built = build(stream.with_watermark("at", delay="0s") if self.timed else stream)
        built.write(out, name="out").run(pen.Local(storage=self.storage, finish=finish), restore=restore)
        return out.rows()

    def printed(self, build: Build, rows: int, restore: Any = "latest") -> list[pen.Restore]:
        """What the refusal of this version says to write."""
        with pytest.raises(pen.RestoreError) as error:
            self.run(build, rows, restore)
        assert error.value.fix is not None
        return [evaluate(code) for code in code_of(error.value.fix.text)]


@pytest.fixture
def program(tmp_path: Path) -> Program:
    return Program(tmp_path / "storage")


def windows(shape: Any, **aggregates: Any) -> Build:
    return lambda stream: stream.key_by("k").window(shape).aggregate(**aggregates, name="t")


def of(rows: Rows, *names: str, k: int = 0) -> list[tuple[Any, ...]]:
    return sorted(tuple(row[name] for name in names) for row in rows if row["k"] == k)


@pytest.mark.parametrize(
    ("shape", "name", "counts"),
    [
        (pen.tumbling(rows=30), "counts", [30, 10]),
        (pen.session("30s"), "sessions", [40]),
        (pen.tumbling("50s"), "timers", [25, 15]),
        (pen.tumbling("50s"), "accumulators", [25, 15]),
        (pen.sliding("50s", every="50s"), "totals", [25, 15]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_aggregate_called_like_a_table_of_its_step_is_dropped_alone(
    program: Program, shape: Any, name: str, counts: list[int]
) -> None:
    program.timed = True
    old, new = windows(shape, n=pen.count(), **{name: col("v").sum()}), windows(shape, n=pen.count())
    program.run(old, 45)
    (said,) = program.printed(new, 80)
    assert said.drop == [f"t.{name}"]
    assert [row["n"] for row in program.run(new, 80, said, finish=True) if row["k"] == 0] == counts


@pytest.mark.parametrize("method", ["reduce", "top"])
def test_windows_whose_rows_have_another_column_come_once(program: Program, method: str) -> None:
    program.timed = True

    def build(**more: str) -> Build:
        def made(stream: pen.Stream) -> pen.Stream:
            windowed = stream.select("k", "v", "at", **more).key_by("k").window(pen.tumbling("30s"))
            return windowed.reduce(lambda a, b: b, name="r") if method == "reduce" else windowed.top(1, by="v", name="r")

        return made

    program.run(build(), 35)
    (said,) = program.printed(build(z="v + 1"), 50)
    assert said.drop == ["r"]
    assert of(program.run(build(z="v + 1"), 50, said, finish=True), "v", "z") == [(48, 49)]


def test_rows_that_wait_for_their_turn_are_dropped_with_their_order(program: Program) -> None:
    program.timed = True

    def build(**more: str) -> Build:
        class Counted(pen.ProcessFunction):
            n = pen.ValueState(int, default=0)

            def on_row(self, row: pen.Row, ctx: pen.Context) -> dict[str, int]:
                self.n.set(self.n.get() + 1)
                return {"k": row.k, "v": row.v, "n": self.n.get()}

        def made(stream: pen.Stream) -> pen.Stream:
            keyed = stream.select("k", "v", "at", **more).key_by("k")
            return keyed.process(Counted(), schema="k bigint, v bigint, n bigint", name="r", order="event-time")

        return made

    done = of(program.run(build(), 35), "v", "n")
    (said,) = program.printed(build(z="v + 1"), 50)
    assert said.drop == ["r.order-rows"]
    found = of(program.run(build(z="v + 1"), 50, said, finish=True), "v", "n")
    assert found == [(v, len(done) + number) for number, v in enumerate(range(36, 50, 2), 1)]


def running(name: str, **aggregates: Any) -> Build:
    return lambda stream: stream.key_by("k").aggregate(**aggregates, name=name)


def test_an_aggregate_is_renamed_together_with_its_step(program: Program) -> None:
    program.run(running("a", n=pen.count()), 20)
    renamed, _ = program.printed(running("a2", c=pen.count()), 30)
    assert renamed.rename == {"a": "a2"}
    both, _ = program.printed(running("a2", c=pen.count()), 30, renamed)
    assert both.rename == {"a": "a2", "a.n": "a2.c"}
    assert of(program.run(running("a2", c=pen.count()), 30, both), "c") == [(15,)]


@pytest.mark.parametrize("aggregate", [col("v").sum(), col("v").collect()], ids=["sum", "long lists"])
def test_an_aggregate_with_a_dot_in_its_name_is_renamed(program: Program, aggregate: Any) -> None:
    program.run(running("t", **{"a.b": aggregate, "n": pen.count()}), 400)
    renamed, _ = program.printed(running("t", **{"a.c": aggregate, "n": pen.count()}), 402)
    assert renamed.rename == {"t.a.b": "t.a.c"}
    (row,) = [row for row in program.run(running("t", **{"a.c": aggregate, "n": pen.count()}), 402, renamed) if row["k"] == 0]
    every = list(range(0, 402, 2))
    assert row == {"k": 0, "a.c": every if isinstance(row["a.c"], list) else sum(every), "n": 201}


def test_the_fix_for_a_renamed_aggregate_of_another_kind_does_not_lead_in_a_circle(program: Program) -> None:
    new = running("t", b=col("v").max())
    program.run(running("t", a=col("v").sum()), 10)
    (said,) = program.printed(new, 12, pen.Restore("latest", rename={"t.a": "t.b"}))
    assert of(program.run(new, 12, said), "b") == [(10,)]


def test_the_fix_for_a_renamed_step_that_changed_does_not_lead_in_a_circle(program: Program) -> None:
    new = running("b", n=pen.count())
    program.run(lambda stream: stream.key_by("v").aggregate(n=pen.count(), name="a"), 10)
    (said,) = program.printed(new, 12, pen.Restore("latest", rename={"a": "b"}))
    assert of(program.run(new, 12, said), "n") == [(1,)]


def totals_of_totals(**aggregates: Any) -> Build:
    """How many keys have an even number of rows, and how many an odd one."""

    def made(stream: pen.Stream) -> pen.Stream:
        retract = {"emit": "retract"}
        one = stream.key_by("k").window(pen.running(), **retract).aggregate(n=pen.count(), at=col("at").max(), name="one")
        two = one.with_columns(k="n % 2").key_by("k").window(pen.running(), **retract)
        return two.aggregate(users=pen.count(), **aggregates, name="two")

    return made


LATE = {"count": pen.count(), "sum": col("n").sum(), "mean": col("n").mean()}


@pytest.mark.parametrize("kind", LATE)
def test_an_aggregate_from_which_rows_are_withdrawn_begins_with_the_steps_that_withdraw_them(program: Program, kind: str) -> None:
    new = totals_of_totals(late=LATE[kind])
    program.run(totals_of_totals(), 4)
    (said,) = program.printed(new, 8, pen.Restore("latest", start_empty=["two.late"]))
    assert said.drop == ["one", "two"]
    program.run(new, 7, said)
    program.run(new, 9, said)
    found = program.run(new, 12, said)
    late = {"count": 2, "sum": 8, "mean": 4.0}[kind]
    assert [(row["users"], row["late"]) for row in found if row["k"] == 0][-1] == (2, late)


def test_aggregates_that_keep_their_values_may_begin_where_rows_are_withdrawn(program: Program) -> None:
    program.run(totals_of_totals(), 4)
    new = totals_of_totals(least=col("n").min(), every=col("n").collect())
    (said,) = program.printed(new, 12, pen.Restore("latest", start_empty=["two.least"]))
    row = [row for row in program.run(new, 12, said) if row["k"] == 0][-1]
    assert (row["users"], row["least"], row["every"]) == (2, 6, [6, 6])


OTHERS = {
    "top_k": (col("v").top_k(2), col("v").top_k(5), [400]),
    "collect": (col("v").collect(), col("v").top_k(2), [400]),
    "first": (col("v").first(), col("v").last(), 400),
    "nulls": (col("v").first(), col("v").first(ignore_nulls=True), 400),
    "sketch": (col("v").count_distinct(approx=True), col("v").cast("string").count_distinct(approx=True), 1),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_an_aggregate_that_keeps_something_else_in_like_columns_begins_anew(program: Program, kind: str) -> None:
    old, new, anew = OTHERS[kind]
    program.run(running("t", x=old, n=pen.count()), 400)
    (said,) = program.printed(running("t", x=new, n=pen.count()), 402)
    assert (said.drop, said.start_empty) == (["t.x"], ["t.x"])
    assert of(program.run(running("t", x=new, n=pen.count()), 402, said), "x", "n") == [(anew, 201)]


ALIKE = {
    "sketch": (col("w").count_distinct(approx=True), col("v").count_distinct(approx=True), 21),
    "shares": (col("v").quantile(0.5), col("v").quantile(0.0), 0.0),
    "degrees": (col("v").variance(), col("v").variance(ddof=0), 146.66666666666666),
    "top_k": (col("w").top_k(2), col("v").top_k(2), [40, 38]),
}


@pytest.mark.parametrize("kind", ALIKE)
def test_an_aggregate_that_only_says_more_of_what_it_keeps_goes_on(program: Program, kind: str) -> None:
    old, new, whole = ALIKE[kind]
    program.run(running("t", x=old), 40)
    ((found,),) = of(program.run(running("t", x=new), 42), "x")
    assert found == (pytest.approx(whole) if isinstance(whole, float) else whole)


def test_an_aggregating_state_of_another_aggregate_begins_anew(program: Program) -> None:
    def build(k: int) -> Build:
        class Best(pen.ProcessFunction):
            best = pen.AggregatingState(col("value").top_k(k), int)

            def on_row(self, row: pen.Row, ctx: pen.Context) -> dict[str, Any]:
                self.best.add(row.v)
                return {"k": row.k, "best": self.best.get()}

        return lambda stream: stream.key_by("k").process(Best(), schema="k bigint, best array<bigint>", name="p")

    program.run(build(1), 8)
    (said,) = program.printed(build(2), 12)
    assert said.drop == ["p.best"]
    assert of(program.run(build(2), 12, said), "best", k=1)[-1] == ([11, 9],)


# --- records within the class of a state


@dataclass
class Place:
    city: str = "-"


@dataclass
class Visit:
    place: Place
    n: int = 0


@dataclass
class Spot:
    town: str = "unknown"


@dataclass
class VisitNow:
    spot: Spot | None = None
    n: int = 0


def visits(kind: Any, first: Any = None) -> Build:
    class Visits(pen.ProcessFunction):
        last = pen.ValueState(kind)

        def on_row(self, row: pen.Row, ctx: pen.Context) -> dict[str, Any]:
            if first is not None:
                self.last.set(first)
            return {"k": row.k, "text": repr(self.last.get())}

    return lambda stream: stream.key_by("k").process(Visits(), schema="k bigint, text string", name="p")


def test_a_record_and_a_field_in_it_are_renamed_together(program: Program) -> None:
    program.run(visits(Visit, Visit(Place("Ulm"))), 4)
    record, _ = program.printed(visits(VisitNow), 6, pen.Restore("latest"))
    assert record.rename == {"p.last.place": "p.last.spot"}
    both, _ = program.printed(visits(VisitNow), 6, record)
    assert both.rename == {"p.last.place": "p.last.spot", "p.last.place.city": "p.last.spot.town"}
    assert of(program.run(visits(VisitNow), 6, both), "text") == [("VisitNow(spot=Spot(town='Ulm'), n=0)",)]


def test_a_record_is_renamed_and_a_field_in_it_begins_anew(program: Program) -> None:
    program.run(visits(Visit, Visit(Place("Ulm"))), 4)
    record, _ = program.printed(visits(VisitNow), 6)
    _, dropped = program.printed(visits(VisitNow), 6, record)
    assert of(program.run(visits(VisitNow), 6, dropped), "text") == [("VisitNow(spot=Spot(town='unknown'), n=0)",)]
