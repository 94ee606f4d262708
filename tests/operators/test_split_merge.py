"""How rows are cut into batches never changes the result: for every kind of operator there is.

The same rows go through two runs of one plan. The first gets them in batches as large as the markers allow; the second in
whatever pieces: empty, of one row, slices of larger batches, strings encoded as dictionaries, with more barriers, and with new
tasks (at another parallelism) restored in the middle. Equal means: the same rows as a multiset for streams that append; the last
row per key at each barrier for streams that update; and the same counts of late and dead rows.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import penstock as pen
from penstock import col, shapes, triggers
from penstock.expr import quickgroups
from penstock.operators import groups, operator
from penstock.operators import panes as panes_module
from penstock.runtime import dealing
from penstock.runtime.assemble import BUILDERS
from penstock.state import columns, index, keygroups, overlay, texts, twins
from penstock.state.table import KeyedTable
from runtime.rig import Collect, Cut, Rig, hand, table

S = 1_000_000
EXAMPLES = 40
IGNORED = ("in", "out", "read")


@dataclass(frozen=True)
class Kind:
    """A plan that has operators of some kind. `update`: the sinks whose rows replace earlier ones, with their key; `retract`: those
    whose rows are withdrawn."""

    build: Callable[[pen.Pipeline, pen.Stream, Callable[[str], Collect]], None]
    update: dict[str, tuple[str, ...]] = field(default_factory=dict)
    retract: tuple[str, ...] = ()
    examples: int = EXAMPLES
    timed: bool = False


def source(p: pen.Pipeline, s: pen.Stream, to: Callable[[str], Collect]) -> None:
    s.write(to("out"))


def union(p: pen.Pipeline, s: pen.Stream, to: Callable[[str], Collect]) -> None:
    s.filter("i > 0").union(s.select("k", "i", "j", "s", "x", "b", "at"), s.filter("i is null")).write(to("out"))
    counts = s.key_by("k").aggregate(n=pen.count(), name="counts").select("k", "n")
    counts.write(to("counts"))


def project(p: pen.Pipeline, s: pen.Stream, to: Callable[[str], Collect]) -> None:
    s.select("s", "at", half="i / 2", ratio="10 / j", n="cast(s as bigint)", long=pen.concat(col("k"), "-", col("s"))).write(
        to("out")
    )
    s.with_columns(up=col("s").str.upper(), size=col("s").str.length()).drop("at").rename({"i": "number"}).write(to("other"))


def filter_(p: pen.Pipeline, s: pen.Stream, to: Callable[[str], Collect]) -> None:
    s.filter((col("i") > 0) | col("s").is_null()).write(to("out"))
    s.filter("10 / j > 2 and k <> ''").write(to("other"))


def split(p: pen.Pipeline, s: pen.Stream, to: Callable[[str], Collect]) -> None:
    parts = s.split({"high": "i > 2", "empty": col("s") == "", "fails": "100 / j = 25"})
    for tag in ("high", "empty", "fails"):
        parts[tag].write(to(tag))
    parts.rest.write(to("rest"))


def letters(row: pen.Row) -> Iterator[str]:
    if row.j == 3:
        raise ValueError("three")
    yield from row.s or ("none",)


def number(row: pen.Row) -> int:
    return 10 // row.j


def rows(p: pen.Pipeline, s: pen.Stream, to: Callable[[str], Collect]) -> None:
    s.flat_map(letters).write(to("out"))
    s.map(number).write(to("numbers"))
    s.filter(lambda row: row.i is not None and row.i > 0).write(to("kept"))


def doubled(batch: pa.RecordBatch) -> pa.RecordBatch:
    upper = pc.utf8_upper(batch.column("s").cast(pa.string()))
    return pa.RecordBatch.from_arrays([pc.multiply(batch.column("x"), 2.0), upper], names=["twice", "up"])


def batches(p: pen.Pipeline, s: pen.Stream, to: Callable[[str], Collect]) -> None:
    s.map_batches(doubled, schema="twice double, up string").write(to("out"))


async def divided(row: pen.Row) -> int:
    return 10 // row.j


def async_map(p: pen.Pipeline, s: pen.Stream, to: Callable[[str], Collect]) -> None:
    s.map_async(divided, capacity=3).write(to("out"))
    counts = s.with_watermark("at", delay="2s").map_async(divided, capacity=2, ordered=False, name="any")
    counts.key_by("value").window(pen.tumbling("10s")).aggregate(n=pen.count(), name="counts").write(to("counts"))


def time(p: pen.Pipeline, s: pen.Stream, to: Callable[[str], Collect]) -> None:
    s.with_watermark("at", delay="2s").select("s", when=pen.event_time()).write(to("out"))


AGGREGATES: dict[str, Any] = {
    "n": pen.count(),
    "texts": pen.count(where=col("s") != ""),
    "total": col("i").sum(),
    "dyadic": "sum(x)",
    "low": col("s").min(),
    "high": "max(j)",
    "mean": col("x").mean(),
    "newest": col("at").max(),
    "any": "max(b)",
}


def aggregate(p: pen.Pipeline, s: pen.Stream, to: Callable[[str], Collect]) -> None:
    s.key_by("k", "j").aggregate(**AGGREGATES, bad="sum(12 / j)", name="stats").write(to("out"))


def window_aggregate(p: pen.Pipeline, s: pen.Stream, to: Callable[[str], Collect]) -> None:
    timed = s.with_watermark("at", delay="0s")
    stats = timed.key_by("k").window(pen.tumbling("10s")).aggregate(**AGGREGATES, name="stats")
    stats.write(to("out"))
    stats.select("k", "n").key_by("k").window(pen.tumbling("1m")).aggregate(
        total="sum(n)", parts=pen.count(), name="coarse"
    ).write(to("coarse"))
    read = timed.key_by("s", "b").window(pen.tumbling("7s", offset="3s")).aggregate(n=pen.count(), bad="sum(12 / j)", name="read")
    read.write(to("read"))
    read.late.write(to("late"))
    everything = timed.window(pen.tumbling("10s")).aggregate(n=pen.count(), name="all")
    everything.write(to("all"))
    everything.late.select("s").write(to("all-late"))


def join_texts(left: pen.Row, right: pen.Row) -> pen.Row:
    """Depends on the order of the rows of a key, which is kept; fails now and then."""
    if right.j == 3:
        raise ValueError("three")
    return left.replace(s=f"{left.s}+{right.s}", i=(left.i or 0) + (right.i or 0))


def reduce(p: pen.Pipeline, s: pen.Stream, to: Callable[[str], Collect]) -> None:
    s.select("k", "i", "j", "s").key_by("k").reduce(join_texts, name="joined").write(to("out"))


def window_reduce(p: pen.Pipeline, s: pen.Stream, to: Callable[[str], Collect]) -> None:
    timed = s.with_watermark("at", delay="0s").select("k", "i", "j", "s")
    joined = timed.key_by("k").window(pen.tumbling("10s")).reduce(join_texts, name="joined")
    joined.write(to("out"))
    joined.late.write(to("late"))
    timed.window(pen.tumbling("1m")).reduce(join_texts, name="all").write(to("all"))


KINDS: dict[str, Kind] = {
    "source": Kind(source),
    "union": Kind(union, {"counts": ("k",)}),
    "project": Kind(project),
    "filter": Kind(filter_),
    "split": Kind(split),
    "rows": Kind(rows),
    "batches": Kind(batches),
    "time": Kind(time, timed=True),
    "partial": Kind(aggregate, {"out": ("k", "j")}),
    "aggregate": Kind(aggregate, {"out": ("k", "j")}),
    "window_aggregate": Kind(window_aggregate, timed=True),
    "reduce": Kind(reduce, {"out": ("k",)}),
    "window_reduce": Kind(window_reduce, timed=True),
    "write": Kind(source),
}


def as_rows(p: pen.Pipeline, s: pen.Stream, to: Callable[[str], Collect]) -> None:
    s.key_by("k").window(pen.running(), emit="retract").aggregate(n=pen.count(), name="n").select("k").as_rows().filter(
        "op = 'nothing'"
    ).write(to("out"))


def sliding_aggregate(p: pen.Pipeline, s: pen.Stream, to: Callable[[str], Collect]) -> None:
    timed = s.with_watermark("at", delay="0s")
    stats = timed.key_by("k").window(pen.sliding("10s", every="4s")).aggregate(**AGGREGATES, name="stats")
    stats.write(to("out"))
    read = timed.key_by("s").window(pen.sliding("12s", every="3s", offset="1s"), lateness="5s", emit="append")
    counts = read.aggregate(n=pen.count(), bad="sum(12 / j)", name="read")
    counts.write(to("read"))
    counts.late.write(to("late"))


def plus(left: pen.Row, right: pen.Row) -> pen.Row:
    return left.replace(i=(left.i or 0) + (right.i or 0), s=max(left.s or "", right.s or ""))


def minus(left: pen.Row, right: pen.Row) -> pen.Row:
    return left.replace(i=(left.i or 0) - (right.i or 0))


def inverse_aggregate(p: pen.Pipeline, s: pen.Stream, to: Callable[[str], Collect]) -> None:
    timed = s.with_watermark("at", delay="0s").with_columns(s=pen.lit("")).select("k", "i", "s")
    sums = timed.key_by("k").reduce_by_window(plus, "12s", every="4s", inverse=minus, name="sums")
    sums.select("k", "window_start", "i").write(to("out"))


def count_aggregate(p: pen.Pipeline, s: pen.Stream, to: Callable[[str], Collect]) -> None:
    s.key_by("k").window(pen.tumbling(rows=3)).aggregate(**AGGREGATES, bad="sum(12 / j)", name="three").write(to("out"))
    s.key_by("k").window(pen.sliding(rows=3, every=2)).aggregate(n=pen.count(), t=col("i").sum(), name="two").write(to("sliding"))


W = ("k", "window_start")


def panes(p: pen.Pipeline, s: pen.Stream, to: Callable[[str], Collect]) -> None:
    keyed = s.with_watermark("at", delay="0s").key_by("k")
    t = pen.tumbling("10s")
    few = {"n": pen.count(), "total": col("i").sum(), "low": col("s").min(), "bad": "sum(12 / j)"}
    for name, options in {
        "late": {"lateness": "7s", "emit": "update"},
        "threes": {"trigger": 3, "emit": "update"},
        "retract": {"trigger": triggers.after_watermark(early=2), "lateness": "7s", "emit": "retract"},
        "delta": {"trigger": triggers.after_watermark(early=2, late=2), "lateness": "7s", "emit": "delta"},
        "each": {
            "trigger": triggers.after_each(triggers.after_count(1), triggers.after_count(3)),
            "lateness": "1h",
            "emit": "delta",
        },
    }.items():
        window = keyed.window(t, **options)  # type: ignore[arg-type]
        result = window.aggregate(**few, name=name)  # type: ignore[arg-type]
        result.with_columns(timing=pen.pane("timing")).write(to(name))
        result.late.write(to(f"{name}-late"))
    keyed.window(pen.sliding("10s", every="5s"), lateness="3s", emit="retract").aggregate(n=pen.count(), name="slide").write(
        to("slide")
    )
    keyed.window(pen.running(), emit="retract").aggregate(n=pen.count(), m=col("i").max(), name="ever").write(to("ever"))


def sessions(p: pen.Pipeline, s: pen.Stream, to: Callable[[str], Collect]) -> None:
    keyed = s.with_watermark("at", delay="0s").key_by("k")
    for name, options in {
        "once": {},
        "late": {"lateness": "20s", "emit": "append"},
        "update": {"lateness": "20s", "emit": "update"},
        "retract": {"lateness": "20s", "emit": "retract", "trigger": triggers.after_watermark(early=2)},
        "delta": {"trigger": 2, "emit": "delta"},
    }.items():
        result = keyed.window(pen.session("6s"), **options).aggregate(  # type: ignore[arg-type]
            n=pen.count(), total=col("i").sum(), bad="sum(12 / j)", name=name
        )
        result.write(to(name))
        result.late.write(to(f"{name}-late"))


def retractions(p: pen.Pipeline, s: pen.Stream, to: Callable[[str], Collect]) -> None:
    per_key = s.key_by("k", "s").window(pen.running(), emit="retract").aggregate(n=pen.count(), i=col("i").last(), name="per-key")
    again = per_key.filter("n > 1").key_by("n").window(pen.running(), emit="retract")
    per_count = again.aggregate(keys=pen.count(), low=col("i").min(), top=col("s").max(), total=col("i").sum(), name="per-count")
    per_count.write(to("retract"))
    per_count.select("keys").key_by("keys").aggregate(m=pen.count(), name="thrice").write(to("update"))
    s.key_by("k").aggregate(n=pen.count(), name="counts").filter("n % 2 = 0").write(to("even"))


def two_sides(s: pen.Stream) -> tuple[pen.Stream, pen.Stream]:
    timed = s.with_watermark("at", delay="0s")
    return timed.filter("i is null or i % 2 = 0"), timed.filter("i % 2 <> 0").select("k", "j", "x", "at")


def interval_join(p: pen.Pipeline, s: pen.Stream, to: Callable[[str], Collect]) -> None:
    left, right = two_sides(s)
    for how in ("inner", "left", "right", "full", "semi", "anti"):
        both = left.join(right, on="k", within=("-3s", "8s"), how=how, name=how)
        both.write(to(how))
        both.late.write(to(f"{how}-late"))
        both.late_right.write(to(f"{how}-late-right"))


def window_join(p: pen.Pipeline, s: pen.Stream, to: Callable[[str], Collect]) -> None:
    left, right = two_sides(s)
    for how in ("inner", "left", "right", "full", "semi", "anti"):
        both = left.join(right, on=["k", "j"], window=pen.sliding("10s", every="4s"), how=how, name=how)
        both.write(to(how))
        both.late.write(to(f"{how}-late"))
    left.join(right, on="k", window=pen.tumbling("10s"), how="full", name="tumbling").write(to("tumbling"))


def asof_join(p: pen.Pipeline, s: pen.Stream, to: Callable[[str], Collect]) -> None:
    left, right = two_sides(s)
    left.join_asof(right, on="k", tolerance="6s", name="priced").write(to("out"))


def forever_join(p: pen.Pipeline, s: pen.Stream, to: Callable[[str], Collect]) -> None:
    left, right = s.filter("i is null or i % 2 = 0"), s.filter("i % 2 <> 0").select("k", "j", "x")
    left.join(right, on="k", within="forever", name="inner").write(to("inner"))
    left.join(right, on="k", within="forever", how="full", name="full").write(to("full"))
    counts = s.key_by("k", "s").window(pen.running(), emit="retract").aggregate(n=pen.count(), name="n").select("k", "n")
    counts.join(right, on="k", within="forever", how="left", name="counts").write(to("counts"))


def drop_duplicates(p: pen.Pipeline, s: pen.Stream, to: Callable[[str], Collect]) -> None:
    s.drop_duplicates("k", "j", name="ever").write(to("ever"))
    first = s.with_watermark("at", delay="0s").drop_duplicates("s", within="9s", name="seen")
    first.write(to("out"))
    first.late.write(to("late"))


TEXT_TABLE = pa.table({"s": ["a", "b", "7", None], "size": [1, 2, 3, 4], "k": ["w", "x", "y", "z"]})


def lookup(p: pen.Pipeline, s: pen.Stream, to: Callable[[str], Collect]) -> None:
    s.lookup(p.table(TEXT_TABLE, key="s"), on="s").write(to("out"))
    s.lookup(p.table(TEXT_TABLE.select(["k", "size"]), key="k"), on={"s": "k"}, how="left").write(to("left"))


def top(p: pen.Pipeline, s: pen.Stream, to: Callable[[str], Collect]) -> None:
    s.key_by("k").top(2, by="12 / j", name="out").select("k", "rank", "s", "x").write(to("out"))
    s.key_by("k", "b").top(1, by="x", ascending=True, name="least").write(to("least"))


def window_top(p: pen.Pipeline, s: pen.Stream, to: Callable[[str], Collect]) -> None:
    timed = s.with_watermark("at", delay="0s")
    timed.window(pen.tumbling("10s")).top(3, by="12 / j", name="out").write(to("out"))
    best = timed.key_by("k").window(pen.sliding("10s", every="5s")).top(2, by="s", name="best")
    best.write(to("best"))
    best.late.write(to("late"))


class Account(pen.ProcessFunction):
    """Depends on the order of the rows of a key, which is kept; fails now and then, after it has changed something."""

    last = pen.ValueState(str | None, ttl="30s")
    texts = pen.ListState(str)
    smalls = pen.MapState(str, int)
    odd = pen.Output("k string, x double")

    def on_row(self, row: pen.Row, ctx: pen.Context) -> Iterator[dict[str, Any]]:
        before = self.last.get()
        self.last.set(row.s)
        self.texts.append(row.s or "none")
        self.smalls.set(str(row.j), self.smalls.get(str(row.j), 0) + 1)
        if row.i is not None and row.i % 2:
            ctx.emit({"k": row.k, "x": ctx.random.random()}, to="odd")
        ctx.set_timer("quiet", after="7s")
        yield {"k": row.k, "s": before, "n": 12 // row.j if row.j is not None else 2**70 if row.b else 0}

    def on_timer(self, timer: pen.Timer, ctx: pen.Context) -> dict[str, Any]:
        told = {"k": ctx.key, "s": " ".join(self.texts.get()), "n": len(self.smalls)}
        self.texts.clear()
        return told


class Sides(pen.ProcessFunction):
    left = pen.ListState(int)
    right = pen.ReducingState(max, int)

    def on_left(self, row: pen.Row, ctx: pen.Context) -> None:
        self.left.append(row.i or 0)

    def on_right(self, row: pen.Row, ctx: pen.Context) -> dict[str, Any]:
        self.right.add(row.j)
        return {"k": ctx.key, "s": str(self.left.get()), "n": self.right.get()}


def process(p: pen.Pipeline, s: pen.Stream, to: Callable[[str], Collect]) -> None:
    made = "k string, s string, n bigint"
    timed = s.with_watermark("at", delay="0s")
    keyed = timed.key_by("k")
    for name, order in (("out", None), ("ordered", "event-time")):
        account = keyed.process(Account(), schema=made, order=order, name=name)
        account.with_columns(t=pen.event_time()).write(to(name))
        account.side("odd").write(to(f"{name}-odd"))
    account.late.write(to("late"))
    left, right = timed.filter("i is null or i % 2 = 0"), timed.filter("i % 2 <> 0 and j is not null").select("k", "j", "x", "at")
    both = left.key_by("k").connect(right.key_by("k")).process(Sides(), schema=made, order="event-time", name="sides")
    both.write(to("sides"))
    both.late_right.write(to("late-right"))


KINDS |= {
    "process": Kind(process, timed=True, examples=24),
    "interval_join": Kind(interval_join, timed=True),
    "window_join": Kind(window_join, timed=True),
    "asof_join": Kind(asof_join, timed=True),
    "forever_join": Kind(forever_join, {}, ("full", "counts")),
    "drop_duplicates": Kind(drop_duplicates, timed=True),
    "lookup": Kind(lookup),
    "async_map": Kind(async_map, timed=True),
    "top": Kind(top, {"out": ("k", "rank"), "least": ("k", "b", "rank")}),
    "window_top": Kind(window_top, timed=True),
}


KINDS |= {
    "as_rows": Kind(as_rows),
    "sliding_aggregate": Kind(sliding_aggregate, timed=True),
    "inverse_aggregate": Kind(inverse_aggregate, timed=True),
    "count_aggregate": Kind(count_aggregate),
    "pane_aggregate": Kind(panes, {"late": W, "threes": W}, ("retract", "slide", "ever"), timed=True, examples=16),
    "pane_aggregate sessions": Kind(sessions, {"update": W}, ("retract",), timed=True, examples=16),
    "pane_aggregate retractions": Kind(retractions, {"update": ("keys",), "even": ("k",)}, ("retract",), examples=20),
}


# --- rows, markers and ways to cut them -------------------------------------------------------------------------------

TEXTS = st.sampled_from([None, "", "a", "b", "7", "-12", "ümlaut", "x" * 40])
DYADIC = st.integers(-64, 64).map(lambda n: n / 8)
NEAR = st.integers(-40, 40).map(lambda n: n * S + (n % 3) * 333_333)
FAR = st.sampled_from([-62_135_596_800 * S, -S, -1, 0, 1, 10 * S - 1, 10 * S, 253_370_764_800 * S])


def rows_of(timed: bool) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {
            "k": st.sampled_from([None, "", "a", "b", "c"]),
            "i": st.none() | st.integers(-5, 5) | st.sampled_from([-(2**40), 2**40]),
            "j": st.none() | st.integers(-1, 4),
            "s": TEXTS,
            "x": st.none() | DYADIC,
            "b": st.none() | st.booleans(),
            "at": (st.none() if not timed else st.nothing()) | NEAR | NEAR | FAR,
        }
    )


Step = tuple[str, Any]


@st.composite
def scripts(draw: st.DrawFn, timed: bool) -> list[Step]:
    """Rows, barriers and watermarks (which only grow)."""
    steps: list[Step] = []
    time_now = -60 * S
    nullable = draw(st.booleans()) if timed else True
    for row in draw(st.lists(rows_of(timed and not nullable), max_size=16)):
        steps.append(("row", row))
        if draw(st.integers(0, 4)) == 0:
            time_now += draw(st.sampled_from([1, 4 * S, 10 * S, 9 * S + 999_999, 25 * S]))
            steps.append(("watermark", draw(st.sampled_from([time_now, time_now // (10 * S) * 10 * S - 1]))))
            time_now = max(time_now, steps[-1][1])
        if draw(st.integers(0, 7)) == 0:
            steps.append(("barrier", None))
    return [*steps, ("barrier", None)]


@dataclass
class Cutting:
    """How the second run differs: decided by one list of small numbers, used up in order."""

    numbers: list[int]
    used: int = 0

    def next(self, below: int) -> int:
        self.used += 1
        return self.numbers[self.used % len(self.numbers)] % below if self.numbers else 0


def encoded(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Strings as dictionaries, as Parquet files give them."""
    arrays = [c.dictionary_encode() if pa.types.is_string(c.type) else c for c in batch.columns]
    return pa.RecordBatch.from_arrays(arrays, names=batch.schema.names)


def sliced(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The same rows as a slice from the middle of a larger batch."""
    padding = table([{"k": "zz", "i": 9, "s": "padding", "at": 0}, {}])
    return pa.concat_batches([padding, batch, padding]).slice(2, batch.num_rows)


def pieces(rows: list[dict[str, Any]], cutting: Cutting | None) -> Iterator[pa.RecordBatch]:
    """The rows as batches."""
    if cutting is None:
        if rows:
            yield table(rows)
        return
    forms: list[Callable[[pa.RecordBatch], pa.RecordBatch]] = [lambda b: b, sliced, encoded, lambda b: encoded(sliced(b))]
    while rows:
        size = min(len(rows), (1, 1, 2, 3, 100)[cutting.next(5)])
        yield forms[cutting.next(4)](table(rows[:size]))
        if cutting.next(4) == 0:
            yield table([])
        rows = rows[size:]


# --- runs -------------------------------------------------------------------------------------------------------------


@dataclass
class Result:
    """What came out: rows by sink, how many there were at each barrier of the script, counters, and what the splits said."""

    sinks: dict[str, Collect]
    marks: list[dict[str, int]]
    counters: Counter[str]
    splits: list[Any]


def run(kind: Kind, script: list[Step], cutting: Cutting | None = None, parallelisms: tuple[int, ...] = (1,)) -> Result:
    """One run. With several parallelisms: new tasks at each, restored from a snapshot, at even distances."""
    sinks: dict[str, Collect] = {}
    p = pen.Pipeline("test", on_error="dead-letter")
    kind.build(p, hand(p), lambda name: sinks.setdefault(name, Collect(name)))
    p.dead_letters.write(sinks.setdefault("dead", Collect("dead")))
    plan = p.plan()
    result = Result(sinks, [], Counter(), [])
    rig = Rig(plan, parallelisms[0], own_time=True)
    epoch, position, waiting = 0, 0, []
    legs = list(parallelisms[1:])
    turns = {len(script) * (n + 1) // len(parallelisms) for n in range(len(legs))}

    def flush() -> None:
        nonlocal waiting, position
        start = position - len(waiting)
        for batch in pieces(waiting, cutting):
            start += batch.num_rows
            rig.feed(batch, start)
        waiting = []

    def barrier() -> Cut:
        nonlocal epoch
        flush()
        epoch += 1
        return rig.barrier(epoch)

    for number, (what, value) in enumerate(script):
        if number in turns and legs:
            cut = barrier()
            result.counters.update(rig.counters())
            rig = Rig(plan, legs.pop(0), cut=cut, files=rig.files, own_time=True)
        if what == "row":
            waiting.append(value)
            position += 1
            if cutting is not None and cutting.next(9) == 0:
                barrier()
        elif what == "watermark":
            flush()
            rig.watermark(value)
        else:
            cut = barrier()
            result.marks.append({name: len(sink.rows) for name, sink in sinks.items()})
            result.splits.append(cut.splits)
    rig.end()
    epoch += 1
    result.splits.append(rig.barrier(epoch).splits)
    result.marks.append({name: len(sink.rows) for name, sink in sinks.items()})
    result.counters.update(rig.counters())
    assert all(ack.ended for ack in rig.acks[epoch].values())
    assert open_windows(rig) == 0, "a window that has fired leaves no state behind"
    return result


def open_windows(rig: Rig) -> int:
    """Rows of state of steps with windows."""
    operators = [op for task in rig.tasks.values() for op in task._ops.values() if "timers" in op.states]
    operators = [op for op in operators if not getattr(op, "_forever", False)]
    tables = [state for op in operators for state in op.states.values() if isinstance(state, KeyedTable)]
    return sum(batch.num_rows for table in tables for batch in table.scan())


def plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else repr(value)


def frozen(row: dict[str, Any], leave_out: tuple[str, ...] = ()) -> tuple[Any, ...]:
    return tuple((name, plain(value)) for name, value in row.items() if name not in leave_out)


def latest(rows: list[dict[str, Any]], keys: tuple[str, ...]) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for row in rows:
        key = tuple(plain(row[name]) for name in keys)
        if row.get("change", 1) < 0:
            found.pop(key, None)
        else:
            found[key] = frozen(row)
    return found


def net(rows: list[dict[str, Any]]) -> dict[Any, int]:
    total: Counter[Any] = Counter()
    for row in rows:
        total[frozen(row, ("change", "timing"))] += row["change"]
    return {row: n for row, n in total.items() if n}


def compare(kind: Kind, found: Result, expected: Result) -> None:
    for name, sink in expected.sinks.items():
        if name in kind.update:
            keys = kind.update[name]
            for ours, theirs in zip(found.marks, expected.marks, strict=True):
                assert latest(found.sinks[name].rows[: ours[name]], keys) == latest(sink.rows[: theirs[name]], keys), name
            continue
        if name in kind.retract:
            for ours, theirs in zip(found.marks, expected.marks, strict=True):
                assert net(found.sinks[name].rows[: ours[name]]) == net(sink.rows[: theirs[name]]), name
            continue
        # The position of a dead letter is that of its batch: how far the split was read.
        leave_out = ("position",) if name == "dead" else ()
        ours, theirs = (Counter(frozen(row, leave_out) for row in run.rows) for run in (found.sinks[name], sink))
        assert ours == theirs, name
    assert found.splits == expected.splits
    assert told(found.counters) == told(expected.counters)


def told(counters: Counter[str]) -> dict[str, int]:
    """Counts of rows that do not depend on how partial rows and updates were put together."""
    kept = {key: n for key, n in counters.items() if n and key.rpartition(".")[2] not in IGNORED}
    return kept | {key: n for key, n in counters.items() if key.startswith("source ")}


def test_every_kind_of_operator_has_a_plan_here() -> None:
    assert {name.partition(" ")[0] for name in KINDS} == set(BUILDERS)
    for name, kind in KINDS.items():
        p = pen.Pipeline("test")
        kind.build(p, hand(p), Collect)
        kinds = {op.kind for stage in p.plan().stages for op in stage.ops}
        assert name.partition(" ")[0] in kinds, f"the plan for {name!r} has no such operator"


@pytest.mark.parametrize("name", [name for name in KINDS if name not in ("partial", "write")])
def test_cutting_rows_into_other_batches_changes_nothing(name: str) -> None:
    kind = KINDS[name]

    @settings(max_examples=kind.examples, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(scripts(kind.timed), st.lists(st.integers(0, 59), min_size=1, max_size=40))
    def check(script: list[Step], numbers: list[int]) -> None:
        compare(kind, run(kind, script, Cutting(numbers)), run(kind, script))

    check()


WAYS_OF_FEW = [
    *((module, "SPAN_FEW") for module in (columns, operator, panes_module, index)),
    *((module, "_FEW") for module in (keygroups, twins, texts, shapes)),
    *((module, "FEW") for module in (groups, overlay)),
    *((module, "FEW_ROWS") for module in (quickgroups, dealing)),
]
"""Where few rows are worked on in another way than many."""


@pytest.mark.parametrize("name", [name for name in KINDS if name not in ("partial", "write")])
def test_few_rows_give_what_they_would_if_they_were_worked_on_as_many_are(name: str) -> None:
    kind = KINDS[name]

    @settings(max_examples=max(kind.examples // 5, 1), deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(scripts(kind.timed), st.lists(st.integers(0, 59), min_size=1, max_size=40))
    def check(script: list[Step], numbers: list[int]) -> None:
        with contextlib.ExitStack() as stack:
            for module, constant in WAYS_OF_FEW:
                stack.enter_context(mock.patch.object(module, constant, -1))
            as_many = run(kind, script, Cutting(numbers))
        compare(kind, as_many, run(kind, script, Cutting(numbers)))

    check()


@pytest.mark.parametrize("name", [name for name in KINDS if name not in ("partial", "write")])
def test_a_snapshot_and_a_rescale_in_the_middle_change_nothing(name: str) -> None:
    kind = KINDS[name]

    @settings(max_examples=kind.examples // 2, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(
        scripts(kind.timed),
        st.lists(st.integers(0, 59), min_size=1, max_size=40),
        st.sampled_from([(1, 1), (1, 2, 1), (2, 1), (2, 3, 2)]),
    )
    def check(script: list[Step], numbers: list[int], parallelisms: tuple[int, ...]) -> None:
        compare(kind, run(kind, script, Cutting(numbers), parallelisms), run(kind, script))

    check()
