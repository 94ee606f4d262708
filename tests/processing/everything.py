"""A process function that does what its rows say, with every kind of state and timer; and how to run a script through it."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

import penstock as pen
from penstock import col
from penstock.protocol.messages import TimeReached
from processing.model import BRIEF, END, TIMERS, TTL, Model, S
from runtime.rig import Collect, Hand, Rig, table

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SCHEMA = pa.schema([("k", pa.string()), ("ops", pa.string()), ("at", pa.timestamp("us", tz="UTC"))])


def micros(time: datetime | None) -> int | None:
    if time is None:
        return None
    return END if time.year == 9999 else (time - EPOCH) // timedelta(microseconds=1)


@dataclass
class Told:
    k: str | None
    text: str
    drawn: float


class Everything(pen.ProcessFunction):
    value = pen.ValueState(int, default=0)
    items = pen.ListState(int)
    names = pen.MapState(str, int)
    best = pen.ReducingState(max, int)
    total = pen.AggregatingState(col("value").sum(), int)
    fresh = pen.ValueState(int, ttl=f"{TTL}us")
    brief = pen.ValueState(int, ttl=f"{BRIEF}us", clock="processing")
    side = pen.Output(Told)

    def on_row(self, row: pen.Row, ctx: pen.Context) -> Iterator[Told]:
        yield from self.obey("row", json.loads(row.ops), ctx)

    def on_timer(self, timer: pen.Timer, ctx: pen.Context) -> Iterator[Told]:
        yield from self.obey(f"{timer.clock} {timer.name} {micros(timer.at)}", TIMERS[timer.name], ctx)

    def obey(self, what: str, commands: list[list[Any]], ctx: pen.Context) -> Iterator[Told]:
        drawn = -1.0
        for command in commands:
            match command:
                case ["set", n]:
                    self.value.set(n)
                case ["clear"]:
                    self.value.clear()
                case ["push", n]:
                    self.items.append(n)
                case ["unpush"]:
                    self.items.set(self.items.get()[:-1])
                case ["put", name, n]:
                    self.names.set(name, n)
                case ["drop", name]:
                    self.names.remove(name)
                case ["best", n]:
                    self.best.add(n)
                case ["add", n]:
                    self.total.add(n)
                case ["fresh", n]:
                    self.fresh.set(n)
                case ["brief", n]:
                    self.brief.set(n)
                case ["timer", clock, name, n]:
                    ctx.set_timer(name, after=f"{n}us", clock=clock)
                case ["timer_at", clock, name, n]:
                    ctx.set_timer(name, at=EPOCH + timedelta(microseconds=n), clock=clock)
                case ["cancel", clock, name]:
                    ctx.clear_timer(name, clock=clock)
                case ["tell"]:
                    yield Told(ctx.key, self.text(what, ctx), drawn)
                case ["emit"]:
                    ctx.emit(Told(ctx.key, self.text(what, ctx), drawn))
                case ["side"]:
                    ctx.emit(Told(ctx.key, self.text(what, ctx), drawn), to=self.side)
                case ["draw"]:
                    drawn = ctx.random.random()
                case ["raise"]:
                    raise ValueError("as told")
                case ["misfit"]:
                    ctx.emit(Told(ctx.key, "fits", 0.0), to=self.side)
                    yield Told(ctx.key, 7, 0.0)  # type: ignore[arg-type]

    def text(self, what: str, ctx: pen.Context) -> str:
        told = [
            self.value.get(),
            self.items.get(),
            list(self.names.items()),
            self.best.get(),
            self.total.get(),
            self.fresh.get(),
            self.brief.get(),
        ]
        return f"{what} {told} time={micros(ctx.event_time)} watermark={micros(ctx.watermark)} now={micros(ctx.now)}"


# --- scripts ----------------------------------------------------------------------------------------------------------

Step = tuple[str, Any]  # ("row", {…}), ("watermark", time), ("tick", now), ("barrier", None)

SMALL = st.integers(-3, 3)
NAMES = st.sampled_from(sorted(TIMERS))
CLOCK = st.sampled_from(["event", "event", "processing"])
COMMANDS = st.one_of(
    *(st.tuples(st.just(what), SMALL) for what in ("set", "push", "best", "add", "fresh", "brief")),
    *(st.just((what,)) for what in ("clear", "unpush", "tell", "tell", "emit", "side", "draw")),
    st.tuples(st.just("put"), st.sampled_from("cxy"), SMALL),
    st.tuples(st.just("drop"), st.sampled_from("cxy")),
    *([st.tuples(st.just("timer"), CLOCK, NAMES, st.integers(-2, 9).map(lambda n: n * S))] * 4),
    st.tuples(st.just("timer_at"), CLOCK, NAMES, st.integers(-4, 40).map(lambda n: n * S)),
    st.tuples(st.just("cancel"), CLOCK, NAMES),
    st.sampled_from([("raise",), ("misfit",), ("tell",)]),
)


@st.composite
def scripts(draw: st.DrawFn, size: int = 14) -> list[Step]:
    """Rows with commands, and two clocks that only grow; in the end every key tells."""
    steps: list[Step] = [("tick", 0)]
    watermark, now = -6 * S, 0
    for _ in range(draw(st.integers(1, size))):
        ops = draw(st.lists(COMMANDS, min_size=1, max_size=4))
        at = draw(st.integers(-4, 24)) * S
        steps.append(("row", {"k": draw(st.sampled_from([None, "a", "b", "c"])), "ops": json.dumps(ops), "at": at}))
        what = draw(st.integers(0, 9))
        if what <= 2:
            watermark += draw(st.sampled_from([1, S // 2, S, 4 * S, 9 * S]))
            steps.append(("watermark", watermark))
        elif what == 3:
            now += draw(st.sampled_from([1, S, 3 * S, 20 * S]))
            steps.append(("tick", now))
        elif what == 4:
            steps.append(("barrier", None))
    last = json.dumps([["tell"]])
    return [*steps, *(("row", {"k": k, "ops": last, "at": 30 * S}) for k in (None, "a", "b", "c"))]


@dataclass
class Ran:
    """What came out: by key in order (output, text, time) and what was drawn; dead letters; late rows."""

    sent: dict[Any, dict[str, list[tuple[str, int]]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))
    drawn: dict[Any, dict[str, list[float]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))
    dead: Counter[Any] = field(default_factory=Counter)
    late: list[Any] = field(default_factory=list)
    kept: int = 0


def run(script: list[Step], cuts: list[int], parallelisms: tuple[int, ...] = (1,), order: str | None = None) -> Ran:
    """One run. `cuts`: numbers that say how rows are batched and where more barriers are; none: as large as can be."""
    p = pen.Pipeline("test", on_error="dead-letter")
    told = p.read(Hand(schema=SCHEMA)).with_watermark("at", delay="0s").key_by("k").process(Everything(), name="all", order=order)
    sinks = {name: Collect(name) for name in ("main", "side", "dead", "late")}
    told.with_columns(t=pen.event_time()).write(sinks["main"])
    told.side("side").with_columns(t=pen.event_time()).write(sinks["side"])
    p.dead_letters.write(sinks["dead"])
    if order is not None:
        told.late.write(sinks["late"])
    plan = p.plan()
    rig = Rig(plan, parallelisms[0], own_time=True)
    legs, epoch, position, used, waiting = list(parallelisms[1:]), 0, 0, 0, list[dict[str, Any]]()
    turns = {len(script) * (n + 1) // len(parallelisms) for n in range(len(legs))}

    def cut() -> int:
        nonlocal used
        used += 1
        return cuts[used % len(cuts)] if cuts else 100

    def flush() -> None:
        nonlocal position
        while waiting:
            size = (1, 1, 2, 3, 100)[min(cut(), 4)]
            position += min(size, len(waiting))
            rig.feed(table(waiting[:size], SCHEMA), position)
            del waiting[:size]

    def barrier() -> Any:
        nonlocal epoch
        flush()
        epoch += 1
        return rig.barrier(epoch)

    for number, (what, value) in enumerate(script):
        if number in turns and legs:
            rig = Rig(plan, legs.pop(0), cut=barrier(), files=rig.files, own_time=True)
        if what == "row":
            waiting.append(value)
            if cuts and cut() == 0:
                barrier()
            continue
        flush()
        if what == "watermark":
            rig.watermark(value)
        elif what == "tick":
            for task in rig.tasks.values():
                if task.clocked:
                    rig.tell(task, TimeReached(value))
        elif cuts:
            barrier()
    flush()
    rig.end()
    barrier()
    return collected(sinks, rig)


def collected(sinks: dict[str, Collect], rig: Rig) -> Ran:
    ran = Ran()
    for name in ("main", "side"):
        for row in sinks[name].rows:
            ran.sent[row["k"]][name].append((row["text"], micros(row["t"]) or 0))
            ran.drawn[row["k"]][name].append(row["drawn"])
    for letter in sinks["dead"].rows:
        key = re.search(r"'k': (None|'(.*?)')", letter["record"])[2]  # type: ignore[index]
        timer = letter["error"].startswith("on_timer: ")
        ran.dead[key, letter["error"].removeprefix("on_timer: ").partition(":")[0], timer] += 1
    ran.late = [(row["k"], micros(row["at"])) for row in sinks["late"].rows]
    tables = [
        state
        for task in rig.tasks.values()
        for op in task._ops.values()
        for name, state in op.states.items()
        if hasattr(state, "scan") and ("timers" in name or "order" in name)
    ]
    ran.kept = sum(batch.num_rows for each in tables for batch in each.scan())
    return ran


def expected(script: list[Step], *, ordered: bool) -> Model:
    model = Model(ordered)
    for what, value in script:
        if what == "row":
            model.row(value["k"], value["at"], json.loads(value["ops"]))
        elif what == "watermark":
            model.advance(value)
        elif what == "tick":
            model.tick(value)
    model.end()
    return model
