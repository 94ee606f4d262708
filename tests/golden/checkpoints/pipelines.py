"""The pipelines of the golden checkpoints. They are frozen: what older commits wrote must restore into them as they stand here.

Whoever wants another pipeline adds one, with files that the newest commit wrote, and leaves these alone. A key comes from one
split only, so the order of its rows, and with it every answer, is the same in all runners. `answers` computes the answers without
Penstock.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

import penstock as pen
from conformance.source import Gated
from penstock import col, sinks, sources, triggers

DELAY = "3s"
END = datetime(2100, 1, 1, tzinfo=UTC)
PER_FILE, STOPS = 12, 4
Streams = dict[str, pen.Stream]
Rows = dict[str, dict[str, list[Any]]]


@dataclass(frozen=True)
class Golden:
    """One pipeline and the names of its sources; `files`: they are files in a folder."""

    name: str
    sources: tuple[str, ...]
    build: Callable[[pen.Pipeline, Streams, Path], None]
    files: bool = False

    def pipeline(self, rows: Rows, out: Path, folder: Path) -> pen.Pipeline:
        """A pipeline over these rows (source to split to rows), with its input, or the gate before it, in `folder`."""
        p = pen.Pipeline(self.name, max_parallelism=16)
        inputs = {name: p.read(self.source(name, rows[name], folder)) for name in self.sources}
        if not self.files:
            inputs = {name: stream.with_watermark("at", delay=DELAY) for name, stream in inputs.items()}
        self.build(p, inputs, out)
        return p

    def source(self, name: str, rows: dict[str, list[Any]], folder: Path) -> pen.Source:
        if not self.files:
            return Gated(name, rows, str(folder), STOPS)
        (folder / name).mkdir(exist_ok=True)
        for split, members in rows.items():
            for first in range(0, len(members), PER_FILE):
                lines = [json.dumps(row) for row in members[first : first + PER_FILE]]
                (folder / name / f"{split}-{first:02d}.json").write_text("\n".join(lines) + "\n")
        return sources.files(folder / name, schema="id string, k string, v bigint", splits=2, name=name)


def write(stream: pen.Stream, out: Path, name: str) -> None:
    """Each result into a folder of its own; the column `change` says what a row does to earlier ones."""
    stream.write(sinks.files(out / name, format="json", change="change"), name=name)


# --- aggregates


class Spread(pen.Aggregate):
    """The difference between the greatest and the least value."""

    state = "struct<low: double, high: double, n: bigint>"

    def create(self) -> Any:
        return {"low": 0.0, "high": 0.0, "n": 0}

    def add(self, acc: Any, x: float) -> Any:
        return self.merge(acc, {"low": x, "high": x, "n": 1})

    def merge(self, a: Any, b: Any) -> Any:
        if not a["n"] or not b["n"]:
            return a if a["n"] else b
        return {"low": min(a["low"], b["low"]), "high": max(a["high"], b["high"]), "n": a["n"] + b["n"]}

    def result(self, acc: Any) -> float | None:
        return acc["high"] - acc["low"] if acc["n"] else None


def every_aggregate() -> dict[str, Any]:
    return {
        "n": pen.count(),
        "flags": pen.count(where=col("flag")),
        "known": col("v").count(),
        "total": col("v").sum(),
        "spent": col("cents").sum(),
        "share": col("x").sum(),
        "mean": col("v").mean(),
        "low": col("v").min(),
        "high": col("text").max(),
        "variance": col("v").variance(),
        "stddev": col("x").stddev(ddof=0),
        "first": col("v").first(),
        "last": col("id").last(),
        "best": col("v").top_k(3),
        "ids": col("id").collect(),
        "kinds": col("small").count_distinct(),
        "texts": col("text").count_distinct(),
        "near": col("text").count_distinct(approx=True),
        "half": col("v").quantile(0.5, approx=False),
        "about": col("v").quantile([0.25, 0.5], approx=True),
        "range": Spread()(col("x")),
    }


def aggregates(p: pen.Pipeline, inputs: Streams, out: Path) -> None:
    keyed = inputs["events"].with_columns(cents="cast(price as decimal(12, 2))").key_by("k")
    write(keyed.window(pen.tumbling("10s")).aggregate(**every_aggregate(), name="windowed"), out, "windowed")
    write(keyed.aggregate(**every_aggregate(), name="running"), out, "running")
    write(keyed.window(pen.sliding("10s", every="4s")).aggregate(**every_aggregate(), name="sliding"), out, "sliding")
    inverse = keyed.window(pen.sliding("20s", every="2s")).aggregate(n=pen.count(), total=col("v").sum(), name="inverse")
    write(inverse, out, "inverse")
    write(keyed.window(pen.session("2s")).aggregate(**every_aggregate(), name="sessions"), out, "sessions")
    firing = triggers.after_watermark(early=3)
    panes = keyed.window(pen.tumbling("10s"), trigger=firing, lateness="2s", emit="update")
    write(panes.aggregate(**every_aggregate(), name="panes"), out, "panes")


# --- windows


@dataclass(frozen=True)
class Overlapping(pen.WindowShape):
    """Two windows for each row: of six seconds, and of so many."""

    seconds: int

    def assign(self, at: datetime) -> list[tuple[datetime, datetime]]:
        start = at.replace(second=at.second // 6 * 6, microsecond=0)
        return [(start, start + timedelta(seconds=6)), (start, start + timedelta(seconds=self.seconds))]


def newest(left: pen.Row, right: pen.Row) -> pen.Row:
    return left if (left.x, left.id) >= (right.x, right.id) else right


def windows(p: pen.Pipeline, inputs: Streams, out: Path) -> None:
    events = inputs["events"]
    keyed = events.key_by("k")
    both: dict[str, Any] = {"n": pen.count(), "total": col("v").sum()}
    shapes: dict[str, Any] = {
        "tumbling": pen.tumbling("10s"),
        "days": pen.tumbling("1d", timezone="Europe/Berlin"),
        "sliding": pen.sliding("10s", every="4s"),
        "session": pen.session("2s"),
        "custom": Overlapping(18),
    }
    for name, shape in shapes.items():
        write(keyed.window(shape).aggregate(**both, name=name), out, name)
    write(events.window(pen.tumbling("10s")).aggregate(**both, name="all"), out, "all")
    write(keyed.window(pen.tumbling("1h", clock="processing")).aggregate(n=pen.count(), name="clocked"), out, "clocked")
    fired: dict[str, dict[str, Any]] = {
        "update": {"trigger": triggers.after_watermark(early=3), "lateness": "4s", "emit": "update"},
        "retract": {"trigger": triggers.after_watermark(early=2, late=1), "lateness": "4s", "emit": "retract"},
        "delta": {
            "trigger": triggers.repeatedly(triggers.after_any(triggers.after_count(3), triggers.after_time("1h"))),
            "emit": "delta",
        },
        "late": {"lateness": "4s", "emit": "append"},
    }
    for name, options in fired.items():
        write(keyed.window(pen.tumbling("10s"), **options).aggregate(**both, name=name), out, name)
    early = keyed.window(pen.session("2s"), trigger=triggers.after_watermark(early=2), lateness="2s", emit="retract")
    write(early.aggregate(**both, name="early-sessions"), out, "early-sessions")
    per_kind = events.key_by("k", "small").window(pen.running(), emit="retract").aggregate(total=col("v").sum(), name="per-kind")
    per_key = per_kind.key_by("k").window(pen.running(), emit="retract")
    write(per_key.aggregate(kinds=pen.count(), most=col("total").max(), name="of-kinds"), out, "of-kinds")
    counted = {"n": pen.count(), "ids": col("id").collect()}
    write(keyed.window(pen.tumbling(rows=7)).aggregate(**counted, name="sevens"), out, "sevens")
    write(keyed.window(pen.sliding(rows=6, every=2)).aggregate(**counted, name="sixes"), out, "sixes")
    write(keyed.window(pen.sliding(rows=6, every=4)).aggregate(**counted, name="gaps"), out, "gaps")
    rows = events.select("k", "id", "x").key_by("k")
    write(rows.window(pen.tumbling("10s")).reduce(newest, name="best"), out, "best")
    write(rows.reduce(newest, name="best-ever"), out, "best-ever")
    write(keyed.window(pen.tumbling("10s")).top(2, by="x", name="top"), out, "top")
    write(keyed.top(2, by="x", name="top-ever"), out, "top-ever")


# --- joins


def joins(p: pen.Pipeline, inputs: Streams, out: Path) -> None:
    left, right = inputs["left"], inputs["right"]
    write(left.join(right, on="k", within=("-6s", "4s"), how="full", name="near").select("id", "id_right"), out, "near")
    both = left.join(right, on=["k", "small"], window=pen.tumbling("10s"), how="left", name="windows")
    write(both.select("id", "id_right", "window_start"), out, "windows")
    write(left.join_asof(right, on="k", tolerance="5s", name="priced").select("id", "id_right"), out, "priced")
    write(left.drop_duplicates("k", "text", name="seen").select("k", "id"), out, "seen")
    write(left.drop_duplicates("k", "small", within="1h", name="seen-lately").select("k", "id"), out, "seen-lately")
    labels = p.table(pa.table({"small": [0, 1, 2], "label": ["none", "one", "two"]}), key="small")
    write(left.lookup(labels, on="small", how="left").select("id", "label"), out, "labels")
    sides = []
    for name in ("left", "right"):
        keyed = inputs[name].key_by("k", "small").window(pen.running(), emit="retract")
        sides.append(keyed.aggregate(n=pen.count(), total="sum(v)", name=f"{name}-counts").filter("n % 5 <> 0"))
    view = sides[0].join(sides[1], on=["k", "small"], within="forever", how="full", name="view")
    write(view.select("k", "small", "n", "n_right", "total", "total_right"), out, "view")


# --- process functions


@dataclass
class Event:
    id: str
    k: str
    v: int | None
    x: float
    small: int
    flag: bool
    price: str
    text: str
    at: datetime


@dataclass
class Place:
    country: str
    visits: list[int]


@dataclass
class Profile:
    first: str
    since: datetime
    spent: Decimal
    place: Place | None


@dataclass
class Told:
    id: str
    k: str
    seen: int
    near: int
    recent: list[str]
    words: list[str]
    highest: int | None
    total: int | None
    texts: int
    spent: Decimal
    visits: list[int] | None


@dataclass
class Alarm:
    k: str
    at: datetime
    recent: list[str]


class Everything(pen.ProcessFunction):
    """Every kind of state, and timers by event time, in order of event time."""

    seen = pen.ValueState(int, default=0)
    profile = pen.ValueState(Profile)
    recent = pen.ListState(str)
    words = pen.MapState(str, int)
    highest = pen.ReducingState(max, int)
    total = pen.AggregatingState(col("value").sum(), int)
    texts = pen.AggregatingState(col("value").count_distinct(), str)
    near = pen.ValueState(int, default=0, ttl="4s")
    alarms = pen.Output(Alarm)

    def on_row(self, row: Event, ctx: pen.Context) -> Told:
        self.seen.set(self.seen.get() + 1)
        self.near.set(self.near.get() + 1)
        profile = self.profile.get() or Profile(row.id, row.at, Decimal(0), None)
        if row.flag:
            profile.place = profile.place or Place(row.k, [])
            profile.place.visits.append(row.small)
        profile.spent += Decimal(row.price)
        self.profile.set(profile)
        self.recent.append(row.id)
        for word in row.text.split():
            self.words.set(word, self.words.get(word, 0) + 1)
        if row.v is not None:
            self.highest.add(row.v)
            self.total.add(row.v)
        self.texts.add(row.text)
        ctx.set_timer("quiet", after="2500ms")
        ctx.set_timer("end", at=END)
        if row.small == 2:
            ctx.clear_timer("quiet")
        words = [f"{word} {n}" for word, n in self.words.items()]
        counts, place = (self.seen.get(), self.near.get()), profile.place
        told = (self.recent.get(), words, self.highest.get(), self.total.get(), self.texts.get(), profile.spent)
        return Told(row.id, row.k, *counts, *told, place and place.visits)

    def on_timer(self, timer: pen.Timer, ctx: pen.Context) -> None:
        ctx.emit(Alarm(ctx.key, timer.at, self.recent.get()), to=self.alarms)
        if timer.name == "quiet":
            self.recent.clear()
            self.words.clear()


@dataclass
class Today:
    id: str
    k: str
    today: int
    ever: int


@dataclass
class Tick:
    k: str
    name: str


class Clocked(pen.ProcessFunction):
    """What goes by the time of day: it stands still before the cut, and is decades later after it."""

    today = pen.ValueState(int, default=0, ttl="1h", clock="processing")
    kept = pen.ValueState(int, default=0, ttl="40000d", clock="processing")
    ticks = pen.Output(Tick)

    def on_row(self, row: Event, ctx: pen.Context) -> Today:
        self.today.set(self.today.get() + 1)
        self.kept.set(self.kept.get() + 1)
        ctx.random.random()
        if self.kept.get() == 1:
            ctx.set_timer("soon", after="1h", clock="processing")
        return Today(row.id, row.k, self.today.get(), self.kept.get())

    def on_timer(self, timer: pen.Timer, ctx: pen.Context) -> None:
        ctx.emit(Tick(ctx.key, timer.name), to=self.ticks)


@dataclass
class Rule:
    id: str
    v: int | None


@dataclass
class Ruled:
    k: str
    seen: int
    rules: int
    total: int


class ByRules(pen.ProcessFunction):
    """A state that all keys share, told at the end of time."""

    rules = pen.BroadcastState(str, int)
    seen = pen.ValueState(int, default=0)

    def on_row(self, row: Event, ctx: pen.Context) -> None:
        self.seen.set(self.seen.get() + 1)
        ctx.set_timer("end", at=END)

    def on_broadcast(self, rule: Rule, ctx: pen.Context) -> None:
        self.rules.set(rule.id, rule.v or 0)

    def on_timer(self, timer: pen.Timer, ctx: pen.Context) -> Iterator[Ruled]:
        yield Ruled(ctx.key, self.seen.get(), len(self.rules), sum(n for _, n in self.rules.items()))


class Batches(pen.ProcessFunction):
    """The vectorised form."""

    last = pen.ValueState(str)
    ids = pen.ListState(str)
    highest = pen.ReducingState(max, int)
    total = pen.AggregatingState(col("value").sum(), int)

    def on_batch(self, keys: Any, batch: pa.RecordBatch, ctx: pen.Context) -> pa.RecordBatch:
        numbers = batch.column("v").fill_null(0)
        self.last.set_many(keys, batch.column("id"))
        self.ids.append_many(keys, batch.column("id"))
        self.highest.add_many(keys, numbers)
        self.total.add_many(keys, numbers)
        made = [batch.column("k"), pa.compute.list_value_length(self.ids.get_many(keys)), self.last.get_many(keys)]
        made += [self.highest.get_many(keys), self.total.get_many(keys)]
        return pa.RecordBatch.from_arrays(made, names=["k", "n", "last", "highest", "total"])


def visits(row: pen.Row | None, state: pen.ValueState) -> str | None:
    if row is None:
        return f"{state.get()}"
    state.set(f"{state.get() or ''} {row.id}")
    return None


@dataclass
class Offer:
    id: str
    k: str
    x: float
    at: datetime


@dataclass
class Match:
    id: str
    bids: list[str]


class Book(pen.ProcessFunction):
    """Two inputs by key: each row from the right has the rows from the left of the last three seconds."""

    bids = pen.MapState(str, float)

    def on_left(self, bid: Offer, ctx: pen.Context) -> None:
        self.bids.set(bid.id, bid.x)
        ctx.set_timer(bid.id, after="3s")

    def on_right(self, ask: Offer, ctx: pen.Context) -> Match:
        return Match(ask.id, list(self.bids.keys()))

    def on_timer(self, timer: pen.Timer, ctx: pen.Context) -> None:
        self.bids.remove(timer.name)


def process(p: pen.Pipeline, inputs: Streams, out: Path) -> None:
    events, rules = inputs["left"], inputs["right"]
    told = events.key_by("k").process(Everything(), name="everything", order="event-time")
    write(told, out, "told")
    write(told.side("alarms"), out, "alarms")
    today = events.key_by("k").process(Clocked(), name="clocked")
    write(today, out, "today")
    write(today.side("ticks"), out, "ticks")
    write(events.key_by("k").connect(rules.broadcast()).process(ByRules(), name="by-rules"), out, "ruled")
    schema = "k string, n bigint, last string, highest bigint, total bigint"
    write(events.key_by("k").process(Batches(), schema=schema, name="batches"), out, "batches")
    write(events.key_by("k").map_with_state(visits, state=str, timeout="1h", name="visits"), out, "visits")
    for name, every in (("counts", "1s"), ("slow-counts", "1h")):  # of these, state and rows that wait are held at the cut
        counts = events.key_by("k").update_state_by_key(
            lambda rows, old: (old or 0) + len(rows), state=int, every=every, name=name
        )
        write(counts, out, name)
    book = events.key_by("k").connect(rules.key_by("k")).process(Book(), name="book", order="event-time")
    write(book, out, "book")


# --- calls, pending output, rows in flight

HOLDS = False
"""While a checkpoint is written some calls get no answer, so that they are in flight when the job stops."""


@dataclass
class Asked:
    id: str
    k: str
    small: int


@dataclass
class Answered:
    id: str
    k: str
    answer: int


async def answered(row: Asked) -> Answered:
    if HOLDS and row.small == 3:
        await asyncio.sleep(3600)
    return Answered(row.id, row.k, row.small * 2)


def calls(p: pen.Pipeline, inputs: Streams, out: Path) -> None:
    for name, ordered in (("ordered", True), ("unordered", False)):
        answers = inputs["events"].map_async(answered, capacity=200, timeout="2h", ordered=ordered, name=f"{name}-calls")
        write(answers, out, name)
        write(
            answers.key_by("k").window(pen.tumbling("10s")).aggregate(n=pen.count(), name=f"{name}-counts"), out, f"{name}-counts"
        )


def totals(p: pen.Pipeline, inputs: Streams, out: Path) -> None:
    """What is enough for output that waits to be committed, and for rows on their way."""
    events = inputs["events"]
    write(events.select("id", "v"), out, "rows")
    write(events.key_by("k").aggregate(n=pen.count(), ids=col("id").collect(), name="totals"), out, "totals")
    firsts = events.drop_duplicates("k", "text", name="firsts")
    write(firsts.key_by("small").window(pen.tumbling("10s")).aggregate(n=pen.count(), name="per-kind"), out, "per-kind")


def lines(p: pen.Pipeline, inputs: Streams, out: Path) -> None:
    """Files, some read, one in the middle, some not begun. In which order they are read is not said."""
    events = inputs["events"]
    write(events.select("id", "v"), out, "rows")
    write(events.key_by("k").aggregate(n=pen.count(), total=col("v").sum(), name="totals"), out, "totals")


GOLDEN = {
    golden.name: golden
    for golden in (
        Golden("aggregates", ("events",), aggregates),
        Golden("windows", ("events",), windows),
        Golden("joins", ("left", "right"), joins),
        Golden("process", ("left", "right"), process),
        Golden("calls", ("events",), calls),
        Golden("pending", ("events",), totals),
        Golden("in-flight", ("events",), totals),
        Golden("files", ("events",), lines, files=True),
    )
}
