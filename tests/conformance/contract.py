"""A process function that uses every kind of state and timer at once, and one that takes whole batches: the case `states`.

What goes by the time of day differs from run to run. So it is made such that something can be said all the same: a timer of the
clock fires at or after its time, and after the last row of a key once more; what is forgotten after a day is there; what is
forgotten at once is there or not. `contract_oracle` says the rest exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

import penstock as pen
from conformance import data
from penstock import col, sinks

END = datetime(2100, 1, 1, tzinfo=UTC)


@dataclass
class Event:
    id: str
    k: str
    v: int | None
    small: int
    flag: bool
    text: str


@dataclass
class Told:
    id: str
    k: str
    seen: int
    today: int
    near: int
    recent: list[str]
    words: list[str]
    highest: int | None
    total: int | None


@dataclass
class Alarm:
    k: str
    at: datetime
    seen: int
    recent: list[str]


@dataclass
class Tick:
    k: str
    name: str
    early: bool
    seen: int
    blink: int


@dataclass
class Ruled:
    k: str
    seen: int
    rules: int
    total: int


@dataclass
class Rule:
    k: str
    v: int | None


class Contract(pen.ProcessFunction):
    """Every row changes every state. Some rows fail after that, and so do some timers: they must leave no trace."""

    seen = pen.ValueState(int, default=0)
    recent = pen.ListState(str)
    words = pen.MapState(str, int)
    highest = pen.ReducingState(max, int)
    total = pen.AggregatingState(col("value").sum(), int)
    near = pen.ValueState(int, default=0, ttl="1500ms")
    today = pen.ValueState(int, default=0, ttl="1d", clock="processing")
    blink = pen.ValueState(int, default=0, ttl="1ms", clock="processing")
    rules = pen.BroadcastState(str, int)
    alarms = pen.Output(Alarm)
    ticks = pen.Output(Tick)
    ruled = pen.Output(Ruled)

    def on_row(self, row: Event, ctx: pen.Context) -> Told:
        for count in (self.seen, self.near, self.today, self.blink):
            count.set(count.get() + 1)
        self.recent.append(row.id)
        for word in row.text.split():
            self.words.set(word, self.words.get(word, 0) + 1)
        if row.v is not None:
            self.highest.add(row.v)
            self.total.add(row.v)
        ctx.set_timer("quiet", after="900ms")
        ctx.set_timer("soon", after="5ms", clock="processing")
        ctx.set_timer("later", after="10d", clock="processing")
        ctx.set_timer("rules", at=END)
        if row.small == 1 and row.flag:
            ctx.set_timer("bad", at=END)
        if row.small == 2 and row.flag:
            ctx.clear_timer("quiet")
        if row.small == 3 and row.flag:
            ctx.emit(Tick(row.k, "never sent", False, 0, 0), to=self.ticks)
            raise ValueError(f"not {row.id}")
        words = [f"{word} {n}" for word, n in self.words.items()]
        counts = self.seen.get(), self.today.get(), self.near.get()
        return Told(row.id, row.k, *counts, self.recent.get(), words, self.highest.get(), self.total.get())

    def on_broadcast(self, rule: Rule, ctx: pen.Context) -> None:
        self.rules.set(rule.k, self.rules.get(rule.k, 0) + (rule.v or 0))

    def on_timer(self, timer: pen.Timer, ctx: pen.Context) -> None:
        match timer.name:
            case "quiet":
                ctx.emit(Alarm(ctx.key, timer.at, self.seen.get(), self.recent.get()), to=self.alarms)
                self.recent.clear()
                self.words.clear()
            case "bad":
                self.seen.set(-1)
                raise ValueError(f"not {ctx.key}")
            case "rules":
                total = sum(n for _, n in self.rules.items())
                ctx.emit(Ruled(ctx.key, self.seen.get(), len(self.rules), total), to=self.ruled)
            case name:
                early = name == "soon" and ctx.now < timer.at
                ctx.emit(Tick(ctx.key, name, early, self.seen.get(), self.blink.get()), to=self.ticks)


class Batches(pen.ProcessFunction):
    """The vectorised form: what is known of a key once its batch is done."""

    last = pen.ValueState(str)
    ids = pen.ListState(str)
    kinds = pen.MapState(str, str)
    highest = pen.ReducingState(max, int)
    total = pen.AggregatingState(col("value").sum(), int)

    def on_batch(self, keys: Any, batch: pa.RecordBatch, ctx: pen.Context) -> pa.RecordBatch:
        numbers, kind = batch.column("v").fill_null(0), batch.column("small").cast(pa.string())
        self.last.set_many(keys, batch.column("id"))
        self.ids.append_many(keys, batch.column("id"))
        self.kinds.set_many(keys, kind, kind)
        self.highest.add_many(keys, numbers)
        self.total.add_many(keys, numbers)
        ids = self.ids.get_many(keys)
        made = [batch.column("k"), pa.compute.list_value_length(ids), self.last.get_many(keys)]
        made += [self.highest.get_many(keys), self.total.get_many(keys), self.kinds.get_many(keys, kind)]
        return pa.RecordBatch.from_arrays(made, names=["k", "n", "last", "highest", "total", "kind"])


SCHEMA = "k string, n bigint, last string, highest bigint, total bigint, kind string"


def build(p: pen.Pipeline, inputs: dict[str, pen.Stream], out: Path) -> None:
    def write(stream: pen.Stream, name: str) -> None:
        stream.write(sinks.files(out / name, format="json"), name=name)

    events, rules = (inputs[name].with_watermark("at", delay=f"{data.DELAY_S}s") for name in ("events", "rules"))
    # Rules have event time, so that the end of time waits for the last of them.
    told = events.key_by("k").connect(rules.broadcast()).process(Contract(), name="contract", order="event-time")
    write(told, "main")
    for side in ("alarms", "ticks", "ruled"):
        write(told.side(side), side)
    write(inputs["events"].key_by("k").process(Batches(), schema=SCHEMA, name="batches"), "batches")
    write(p.dead_letters, "dead")
