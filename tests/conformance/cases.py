"""The conformance pipelines: written once, run by every runner. `oracle` has the expected answer of each, computed without Penstock."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

import penstock as pen
from conformance import contract, data
from conformance.source import Gated
from penstock import col, sinks, triggers

DELAY = f"{data.DELAY_S}s"
END = datetime(2100, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Latest:
    """Saves each committed epoch of an update stream as one file, whole or not at all: for `sinks.foreach_batch`."""

    folder: str

    def __call__(self, rows: pa.RecordBatchReader, epoch: pen.Epoch) -> None:
        folder = Path(self.folder)
        folder.mkdir(parents=True, exist_ok=True)
        lines = [json.dumps(row, default=str) for row in rows.read_all().to_pylist()]
        temporary = folder / f".{epoch.number:010d}-{os.getpid()}"
        temporary.write_text("\n".join(lines) + "\n")
        temporary.rename(folder / f"update-{epoch.number:010d}.json")


@dataclass(frozen=True)
class Case:
    """One pipeline: its inputs by name, how it is built, and what of it is stateful."""

    name: str
    inputs: dict[str, dict[str, list[data.Row]]]
    build: Callable[[pen.Pipeline, dict[str, pen.Stream], Path], None]
    on_error: str = "fail"
    stateful: bool = True
    timers: bool = True

    def pipeline(self, out: Path, folder: Path, *, stops: int) -> tuple[pen.Pipeline, list[Gated]]:
        """A new pipeline that writes under `out`, and its sources behind the gate in `folder`, which opens in so many steps."""
        p = pen.Pipeline(self.name, on_error=self.on_error)
        gated = [Gated(name, rows, str(folder), stops) for name, rows in self.inputs.items()]
        self.build(p, {source.name: p.read(source) for source in gated}, out)
        return p, gated


def timed(stream: pen.Stream) -> pen.Stream:
    return stream.with_watermark("at", delay=DELAY)


def windows(p: pen.Pipeline, inputs: dict[str, pen.Stream], out: Path) -> None:
    (
        timed(inputs["events"])
        .key_by("k")
        .window(pen.tumbling("5s"))
        .aggregate(n=pen.count(), total=col("v").sum(), low=col("v").min(), high="max(v)", mean=col("x").mean(), name="stats")
        .write(sinks.files(out / "main", format="json"))
    )


def late(p: pen.Pipeline, inputs: dict[str, pen.Stream], out: Path) -> None:
    counts = timed(inputs["events"]).key_by("k").window(pen.tumbling("5s")).aggregate(n=pen.count(), name="counts")
    counts.write(sinks.files(out / "main", format="json"), name="main")
    counts.late.select("id", "k").write(sinks.files(out / "late", format="json"), name="late")


def two_inputs(p: pen.Pipeline, inputs: dict[str, pen.Stream], out: Path) -> None:
    left = timed(inputs["left"]).select("k", "v", side="'left'")
    right = timed(inputs["right"]).filter(col("flag")).select("k", "v", side=pen.lit("right"))
    both = (
        left.union(right).key_by("k", "side").window(pen.tumbling("10s")).aggregate(n=pen.count(), total="sum(v)", name="sides")
    )
    both.write(sinks.files(out / "main", format="json"))


def two_sinks(p: pen.Pipeline, inputs: dict[str, pen.Stream], out: Path) -> None:
    events = timed(inputs["events"])
    events.filter("v > 400").select("id", "v").write(sinks.files(out / "raw", format="json"), name="raw")
    per_key = events.key_by("k").window(pen.tumbling("5s")).aggregate(n=pen.count(), name="per-key")
    per_key.write(sinks.files(out / "main", format="json"), name="main")
    events.key_by("small").window(pen.tumbling("20s")).aggregate(n=pen.count(), name="per-small").write(
        sinks.files(out / "small", format="json"), name="small"
    )


def running(p: pen.Pipeline, inputs: dict[str, pen.Stream], out: Path) -> None:
    (
        inputs["events"]
        .key_by("k")
        .aggregate(n=pen.count(), total="sum(v)", low="min(text)", flags=pen.count(where=col("flag")), name="totals")
        .write(sinks.foreach_batch(Latest(str(out / "main")), idempotent=True), name="latest")
    )


def newest(left: pen.Row, right: pen.Row) -> pen.Row:
    """The row with the greater id wins; texts are joined by length."""
    return left if (left.x, left.id) >= (right.x, right.id) else right


def reduced(p: pen.Pipeline, inputs: dict[str, pen.Stream], out: Path) -> None:
    rows = timed(inputs["events"]).select("k", "id", "x")
    rows.key_by("k").window(pen.tumbling("5s")).reduce(newest, name="best").write(
        sinks.files(out / "main", format="json"), name="main"
    )
    rows.key_by("k").reduce(newest, name="best-ever").write(
        sinks.foreach_batch(Latest(str(out / "ever")), idempotent=True), name="ever"
    )


def words(line: str) -> Iterator[str]:
    yield from line.split()


@dataclass
class Said:
    k: str
    text: str


@dataclass
class Word:
    k: str
    word: str


def said_words(said: Said) -> Iterator[Word]:
    for word in words(said.text):
        yield Word(said.k, word)


def word_count(p: pen.Pipeline, inputs: dict[str, pen.Stream], out: Path) -> None:
    (
        timed(inputs["events"])
        .flat_map(said_words)
        .key_by("k", "word")
        .window(pen.tumbling("20s"))
        .aggregate(n=pen.count(), name="words")
        .write(sinks.files(out / "main", format="json"))
    )


def split(p: pen.Pipeline, inputs: dict[str, pen.Stream], out: Path) -> None:
    parts = timed(inputs["events"]).split({"high": "v > 250", "low": col("v") < -250})
    for tag, part in (("high", parts["high"]), ("low", parts["low"]), ("rest", parts.rest)):
        part.key_by("k").window(pen.tumbling("5s")).aggregate(n=pen.count(), total="sum(v)", name=tag).write(
            sinks.files(out / tag, format="json"), name=tag
        )


def chained(p: pen.Pipeline, inputs: dict[str, pen.Stream], out: Path) -> None:
    fine = timed(inputs["events"]).key_by("k", "small").window(pen.tumbling("5s")).aggregate(n=pen.count(), name="fine")
    fine.write(sinks.files(out / "main", format="json"), name="main")
    coarse = (
        fine.select("k", "n")
        .key_by("k")
        .window(pen.tumbling("30s"))
        .aggregate(total=col("n").sum(), parts=pen.count(), name="coarse")
    )
    coarse.write(sinks.files(out / "coarse", format="json"), name="coarse")


def half(row: pen.Row) -> int:
    if row.small == 3 and row.flag:
        raise ValueError(f"cannot halve {row.id}")
    return int(row.small)


def dead_letters(p: pen.Pipeline, inputs: dict[str, pen.Stream], out: Path) -> None:
    checked = timed(inputs["events"]).with_columns(ratio="v / small").select("id", "k", "small", "flag")
    checked.map(half, schema=int).key_by("value").window(pen.tumbling("5s")).aggregate(n=pen.count(), name="halves").write(
        sinks.files(out / "main", format="json"), name="main"
    )
    p.dead_letters.write(sinks.files(out / "dead", format="json"), name="dead")


def all_rows(p: pen.Pipeline, inputs: dict[str, pen.Stream], out: Path) -> None:
    timed(inputs["events"]).window(pen.tumbling("1s")).aggregate(n=pen.count(), total="sum(v)", name="all").write(
        sinks.files(out / "main", format="json")
    )


def typed_keys(p: pen.Pipeline, inputs: dict[str, pen.Stream], out: Path) -> None:
    (
        timed(inputs["events"])
        .with_columns(cents="cast(price as decimal(12, 2))", minute=col("at").dt.truncate("1m"))
        .with_columns(big="cents > 500")
        .key_by("small", "flag", "maybe", "big", "minute")
        .window(pen.tumbling("10s"))
        .aggregate(n=pen.count(), spent=col("cents").sum(), most="max(cents)", name="typed")
        .write(sinks.files(out / "main", format="json"))
    )


def changes_to(out: Path, name: str) -> dict[str, Any]:
    """A file sink that takes rows that replace or withdraw others."""
    return {"sink": sinks.files(out / name, format="json", change="change"), "name": name}


def sliding(p: pen.Pipeline, inputs: dict[str, pen.Stream], out: Path) -> None:
    stats = (
        timed(inputs["events"])
        .key_by("k")
        .window(pen.sliding("10s", every="4s"))
        .aggregate(
            n=pen.count(),
            total=col("v").sum(),
            spread=col("v").variance(),
            kinds=col("small").count_distinct(),
            best=col("v").top_k(3),
            first=col("id").first(),
            last=col("id").last(),
            name="sliding",
        )
    )
    stats.write(sinks.files(out / "main", format="json"))


def sessions(p: pen.Pipeline, inputs: dict[str, pen.Stream], out: Path) -> None:
    keyed = timed(inputs["events"]).key_by("k")
    once = keyed.window(pen.session("700ms")).aggregate(n=pen.count(), total="sum(v)", name="once")
    once.write(sinks.files(out / "main", format="json"), name="main")
    early = triggers.after_watermark(early=2)
    for emit in ("update", "retract"):
        window = keyed.window(pen.session("700ms"), lateness="2s", trigger=early, emit=emit)
        window.aggregate(n=pen.count(), total="sum(v)", name=emit).write(**changes_to(out, emit))


def panes(p: pen.Pipeline, inputs: dict[str, pen.Stream], out: Path) -> None:
    keyed = timed(inputs["events"]).key_by("k")
    for name, options in {
        "update": {"trigger": triggers.after_watermark(early=3), "lateness": "4s", "emit": "update"},
        "retract": {"trigger": triggers.after_watermark(early="50ms"), "lateness": "4s", "emit": "retract"},
        "delta": {
            "trigger": triggers.repeatedly(triggers.after_any(triggers.after_count(3), triggers.after_time("1h"))),
            "emit": "delta",
        },
    }.items():
        window = keyed.window(pen.tumbling("5s"), **options)  # type: ignore[arg-type]
        window.aggregate(n=pen.count(), total=col("v").sum(), name=name).write(**changes_to(out, name))


def withdrawn(p: pen.Pipeline, inputs: dict[str, pen.Stream], out: Path) -> None:
    """Per user the last of something, then counts of these: right only if each correction withdraws what it corrects."""
    per_key = (
        timed(inputs["events"])
        .key_by("k", "small")
        .window(pen.running(), emit="retract")
        .aggregate(text=col("text").last(), revenue=col("v").sum(), name="per-key")
    )
    per_text = (
        per_key.key_by("text")
        .window(pen.running(), emit="retract")
        .aggregate(keys=pen.count(), revenue=col("revenue").sum(), most=col("revenue").max(), name="per-text")
    )
    per_text.write(**changes_to(out, "main"))
    per_text.filter("keys > 1").key_by("keys").aggregate(texts=pen.count(), name="per-count").write(**changes_to(out, "counts"))


def counted(p: pen.Pipeline, inputs: dict[str, pen.Stream], out: Path) -> None:
    keyed = inputs["events"].key_by("k")
    keyed.window(pen.tumbling(rows=7)).aggregate(n=pen.count(), ids=col("id").collect(), name="seven").write(
        sinks.files(out / "main", format="json"), name="main"
    )
    keyed.window(pen.sliding(rows=6, every=4)).aggregate(n=pen.count(), ids=col("id").collect(), name="six").write(
        sinks.files(out / "sliding", format="json"), name="sliding"
    )


def joins(p: pen.Pipeline, inputs: dict[str, pen.Stream], out: Path) -> None:
    left, right = timed(inputs["left"]), timed(inputs["right"])
    near = left.join(right, on="k", within=("-1s", "2s"), how="full", name="near")
    near.select("id", "id_right").write(sinks.files(out / "near", format="json"), name="near")
    windows = left.join(right, on=["k", "small"], window=pen.tumbling("5s"), how="left", name="windows")
    windows.select("id", "id_right", "window_start").write(sinks.files(out / "windows", format="json"), name="windows")
    priced = left.join_asof(right, on="k", tolerance="3s", name="priced")
    priced.select("id", "id_right").write(sinks.files(out / "priced", format="json"), name="priced")
    left.drop_duplicates("k", "text", name="seen").select("k", "text").write(
        sinks.files(out / "seen", format="json"), name="seen"
    )
    labels = p.table(pa.table({"small": [0, 1, 2], "label": ["none", "one", "two"]}), key="small")
    left.lookup(labels, on="small", how="left").select("id", "label").write(
        sinks.files(out / "labels", format="json"), name="labels"
    )
    best = left.window(pen.tumbling("5s")).top(3, by="x", name="best")
    best.select("id", "rank").write(sinks.files(out / "best", format="json"), name="best")


def view(p: pen.Pipeline, inputs: dict[str, pen.Stream], out: Path) -> None:
    """Two streams of counts, whose rows change, joined for ever."""
    sides = []
    for name in ("left", "right"):
        keyed = inputs[name].filter("small > 0").key_by("k").window(pen.running(), emit="retract")
        sides.append(keyed.aggregate(n=pen.count(), total="sum(v)", name=f"{name}-counts").filter("n % 5 <> 0"))
    sides[0].join(sides[1], on="k", within="forever", how="full", name="view").write(**changes_to(out, "main"))


@dataclass
class Asked:
    id: str
    k: str
    small: int
    flag: bool


@dataclass
class Answered:
    id: str
    k: str
    answer: int


async def answered(row: Asked) -> Answered:
    """Takes its time; for some rows there is no answer."""
    await asyncio.sleep(0.0004 * row.small)
    if row.small == 3 and row.flag:
        raise ConnectionError(f"no answer for {row.id}")
    return Answered(row.id, row.k, row.small * 2)


def calls(p: pen.Pipeline, inputs: dict[str, pen.Stream], out: Path) -> None:
    rows = timed(inputs["events"])
    policy = pen.retry(2, then="dead-letter", delay="1ms")
    for name, ordered in (("main", True), ("any", False)):
        answers = rows.map_async(answered, capacity=30, ordered=ordered, on_error=policy, name=f"{name}-answers")
        answers.write(sinks.files(out / name, format="json"), name=name)
        answers.key_by("k").window(pen.tumbling("5s")).aggregate(n=pen.count(), total="sum(answer)", name=f"{name}-counts").write(
            sinks.files(out / f"{name}-counts", format="json"), name=f"{name}-counts"
        )
    p.dead_letters.write(sinks.files(out / "dead", format="json"), name="dead")


@dataclass
class Event:
    id: str
    k: str
    v: int | None
    small: int
    flag: bool
    text: str
    at: datetime


@dataclass
class Burst:
    k: str
    first: str
    last: str
    ids: list[str]
    words: int
    most: str | None
    total: int | None


@dataclass
class Silence:
    k: str
    since: datetime


class Bursts(pen.ProcessFunction):
    """Rows of a key up to a silence of 900 ms or a flagged row of kind 3; the words said; and, beside it, long silences."""

    first = pen.ValueState(Event)
    ids = pen.ListState(str)
    words = pen.MapState(str, int)
    highest = pen.ReducingState(max, int)
    total = pen.AggregatingState(col("value").sum(), int)
    silences = pen.Output(Silence)

    def on_row(self, row: Event, ctx: pen.Context) -> Iterator[Burst]:
        if self.first.get() is None:
            self.first.set(row)
        self.ids.append(row.id)
        for word in row.text.split():
            self.words.set(word, self.words.get(word, 0) + 1)
        if row.v is not None:
            self.highest.add(row.v)
            self.total.add(row.v)
        ctx.set_timer("quiet", after="900ms")
        ctx.set_timer("silent", at=row.at + timedelta(seconds=2))
        if row.small == 3 and row.flag:
            ctx.clear_timer("quiet")
            yield self.done()

    def done(self) -> Burst:
        first, ids, words = self.first.get(), self.ids.get(), dict(self.words.items())
        most = max(words, key=lambda word: (words[word], word), default=None)
        burst = Burst(first.k, first.id, ids[-1], ids, sum(words.values()), most, self.total.get())
        for state in (self.first, self.ids, self.words, self.highest, self.total):
            state.clear()
        return burst

    def on_timer(self, timer: pen.Timer, ctx: pen.Context) -> Burst | None:
        if timer.name == "quiet":
            return self.done()
        ctx.emit(Silence(ctx.key, timer.at - timedelta(seconds=2)), to=self.silences)
        return None


@dataclass
class Part:
    id: str
    number: int


@dataclass
class Ever:
    k: str
    n: int
    said: list[str]


class Everything(pen.ProcessFunction):
    """Each row of a key four times over, told when the input ends: lists that do not stay in the row of their key."""

    said = pen.ListState(Part)

    def on_row(self, row: Event, ctx: pen.Context) -> None:
        self.said.append(Part(row.id, 0))
        self.said.extend(Part(row.id, number) for number in range(1, 4))
        ctx.set_timer("end", at=END)

    def on_timer(self, timer: pen.Timer, ctx: pen.Context) -> Ever:
        return Ever(ctx.key, len(self.said), [f"{said.id} {said.number}" for said in self.said])


def process(p: pen.Pipeline, inputs: dict[str, pen.Stream], out: Path) -> None:
    keyed = timed(inputs["events"]).key_by("k")
    bursts = keyed.process(Bursts(), name="bursts", order="event-time")
    bursts.write(sinks.files(out / "main", format="json"), name="main")
    bursts.side("silences").write(sinks.files(out / "silences", format="json"), name="silences")
    ever = keyed.process(Everything(), name="ever", order="event-time")
    ever.write(sinks.files(out / "ever", format="json"), name="ever")


@dataclass
class Bid:
    id: str
    k: str
    x: float
    at: datetime


@dataclass
class Ask:
    id: str
    k: str
    x: float
    flag: bool


@dataclass
class Match:
    bid: str
    ask: str | None
    open: int


class Book(pen.ProcessFunction):
    """Each ask takes the best bid of the last three seconds; a bid that nobody took is told too."""

    bids = pen.MapState(str, float)
    left = pen.Output(Match)

    def on_left(self, bid: Bid, ctx: pen.Context) -> None:
        self.bids.set(bid.id, bid.x)
        ctx.set_timer(bid.id, after="3s")

    def on_right(self, ask: Ask, ctx: pen.Context) -> Match | None:
        fitting = [(x, id) for id, x in self.bids.items() if x >= ask.x]
        if not ask.flag or not fitting:
            return None
        _, best = max(fitting)
        self.bids.remove(best)
        ctx.clear_timer(best)
        return Match(best, ask.id, len(self.bids))

    def on_timer(self, timer: pen.Timer, ctx: pen.Context) -> None:
        self.bids.remove(timer.name)
        ctx.emit(Match(timer.name, None, len(self.bids)), to=self.left)


@dataclass
class Rule:
    k: str
    v: int | None


class Ruled(pen.ProcessFunction):
    """Counts rows and rules, and tells at the end: when a rule comes depends on the run, that each task gets each once does not."""

    rules = pen.BroadcastState(str, int)
    seen = pen.ValueState(int, default=0)

    def on_row(self, row: Ask, ctx: pen.Context) -> None:
        self.seen.set(self.seen.get() + 1)
        ctx.set_timer("end", at=END)

    def on_broadcast(self, rule: Rule, ctx: pen.Context) -> None:
        self.rules.set(rule.k, self.rules.get(rule.k, 0) + (rule.v or 0))

    def on_timer(self, timer: pen.Timer, ctx: pen.Context) -> Iterator[RuledKey]:
        yield RuledKey(ctx.key, self.seen.get(), len(self.rules), sum(n for _, n in self.rules.items()))


@dataclass
class RuledKey:
    k: str
    seen: int
    rules: int
    total: int


def connected(p: pen.Pipeline, inputs: dict[str, pen.Stream], out: Path) -> None:
    left, right = timed(inputs["left"]), timed(inputs["right"])
    book = left.key_by("k").connect(right.key_by("k")).process(Book(), name="book", order="event-time")
    book.write(sinks.files(out / "main", format="json"), name="main")
    book.side("left").write(sinks.files(out / "left", format="json"), name="left")
    ruled = left.key_by("k").connect(right.broadcast()).process(Ruled(), name="ruled")
    ruled.write(sinks.files(out / "ruled", format="json"), name="ruled")


CASES = [
    Case("windows", {"events": data.make(1)}, windows),
    Case("late", {"events": data.make(2, late_every=25)}, late),
    Case("two-inputs", {"left": data.make(3, splits=2), "right": data.make(4, splits=2)}, two_inputs),
    Case("two-sinks", {"events": data.make(5)}, two_sinks),
    Case("running", {"events": data.make(6)}, running, timers=False),
    Case("reduced", {"events": data.make(7)}, reduced),
    Case("word-count", {"events": data.make(8)}, word_count),
    Case("split", {"events": data.make(9)}, split),
    Case("chained", {"events": data.make(10)}, chained),
    Case("dead-letters", {"events": data.make(11)}, dead_letters, on_error="dead-letter"),
    Case("all-rows", {"events": data.make(12)}, all_rows),
    Case("typed-keys", {"events": data.make(13)}, typed_keys),
    Case("sliding", {"events": data.make(14)}, sliding),
    Case("sessions", {"events": data.make(15, rows=1000)}, sessions),
    Case("panes", {"events": data.make(16, rows=700)}, panes),
    Case("withdrawn", {"events": data.make(17, rows=600)}, withdrawn, timers=False),
    Case("joins", {"left": data.make(21, splits=2, rows=600), "right": data.make(22, splits=2, rows=600)}, joins),
    Case("view", {"left": data.make(23, splits=2, rows=600), "right": data.make(24, splits=2, rows=600)}, view, timers=False),
    Case("counted", {"events": data.make(18)}, counted, timers=False),
    Case("async", {"events": data.make(25, rows=400)}, calls),
    Case("process", {"events": data.make(25, rows=700)}, process),
    Case("connected", {"left": data.make(26, splits=2, rows=500), "right": data.make(27, splits=2, rows=500)}, connected),
    Case(
        "states",
        {"events": data.make(28, splits=2, rows=200), "rules": data.make(29, splits=1, rows=200)},
        contract.build,
        on_error="dead-letter",
    ),
]
