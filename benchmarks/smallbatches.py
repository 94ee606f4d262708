"""What small batches cost: processor time of each operator for batches of a few rows, and for event time that moves with nothing due.

    python -m benchmarks.smallbatches
    python -m benchmarks.smallbatches --rows 8192 --only tumbling

At the rates that most people have a batch holds 1 to 16 rows, and then a step costs what its calls cost, whatever the rows are. So here
each operator is alone: no Spark, no queues, one thread. A case is a pipeline. Its tasks are made as a runner makes them and are fed;
the operator that is measured notes what it is given instead of working on it. Then it is given that, and its time is taken.

1. **Steady state.** Rows of 64 keys come 10 ms of event time apart. An operator is warm when the clock starts: it knows its keys (of new
   windows it does not, as in life).
2. **The least of several rounds** of 32 batches counts, in processor time of the thread: others make a round slower, never faster.
3. **Units.** Each figure is divided by what a fixed piece of numpy and Arrow work takes on this machine at this moment (`fixed_work`),
   so that a test can hold a budget that means the same on any machine.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

import penstock as pen
from penstock import col, sinks
from penstock.checkpoints.storage import MemoryStore
from penstock.connectors.connector import Reader, Source, SourceContext
from penstock.plan.physical import PhysicalPlan
from penstock.protocol.messages import TIME_MIN, Arrived, Emit, Event, Read, SplitAssigned, SplitsAssigned, Watermark
from penstock.runtime.assemble import Site
from penstock.runtime.dealing import Dealer
from penstock.runtime.task import Task

SIZES = (1, 4, 16)
LARGE = 1_024
"""From so many rows on there are fewer batches, of more keys."""
KEYS = 64
STEP = 10_000
"""From one row to the next, in microseconds of event time."""
BEGIN = 1_700_000_000_000_000
ROUNDS, BATCHES, GROUP = 6, 32, 8
WARM = 32
"""Batches of 16 rows before the clock starts, behind one that has each key."""
SCHEMA = pa.schema(
    [
        pa.field("k", pa.string()),
        pa.field("n", pa.int64()),
        pa.field("x", pa.float64()),
        pa.field("at", pa.timestamp("us", tz="UTC")),
    ]
)

# -- cases
# ----------------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rows(Source):
    """A source whose rows are handed to its task."""

    name: str = "rows"
    schema: pa.Schema = SCHEMA
    bounded = True

    def splits(self) -> tuple[str, ...]:
        return ("all",)

    def open(self, split: str, position: Any, context: SourceContext) -> Reader:
        raise AssertionError("nobody opens it")


class Seen(NamedTuple):
    """What the process function sends."""

    k: str
    n: int


class CountAndWake(pen.ProcessFunction):
    """A count per key, and a timer that each row moves."""

    n = pen.ValueState(int, default=0)

    def on_row(self, row: Any, ctx: pen.Context) -> Iterator[Seen]:
        n = self.n.get() + 1
        self.n.set(n)
        ctx.set_timer("rest", after="1h")
        yield Seen(row.k, n)

    def on_timer(self, timer: Any, ctx: pen.Context) -> None:
        """An hour is not reached."""


class Count(pen.ProcessFunction):
    """A count per key."""

    n = pen.ValueState(int, default=0)

    def on_row(self, row: Any, ctx: pen.Context) -> Iterator[Seen]:
        n = self.n.get() + 1
        self.n.set(n)
        yield Seen(row.k, n)


def _timed(s: pen.Stream) -> pen.Stream:
    return s.with_watermark("at", delay="1s")


def _sides(s: pen.Stream) -> tuple[pen.Stream, pen.Stream]:
    timed = _timed(s)
    return timed.select("k", "n", "at"), timed.select("k", "x", "at")


def _latest(left: pen.Row, right: pen.Row) -> pen.Row:
    return right


AGGREGATES: dict[str, Any] = {"rows": pen.count(), "total": col("n").sum(), "most": col("n").max()}
Build = Callable[[pen.Stream], pen.Stream]


@dataclass(frozen=True)
class Case:
    """A pipeline, and the kind of operator in it that is measured."""

    name: str
    kind: str
    build: Build
    apart: bool = False
    """Whether no key stands twice in a batch."""
    sink: Callable[[Path], Any] = field(default=lambda folder: sinks.discard())


def _joined(**how: Any) -> Build:
    def build(s: pen.Stream) -> pen.Stream:
        left, right = _sides(s)
        return left.join(right, on="k", name="both", **how)

    return build


def _windowed(window: Any, **options: Any) -> Build:
    return lambda s: _timed(s).key_by("k").window(window, **options).aggregate(**AGGREGATES, name="windows")


def _asof(s: pen.Stream) -> pen.Stream:
    left, right = _sides(s)
    return left.join_asof(right, on="k", tolerance="5s", name="asof")


CASES = (
    Case("filter", "filter", lambda s: s.filter("n > 10 and x < 0.9")),
    Case("project", "project", lambda s: s.select("k", "at", twice="n * 2", part="x / 3", big="n > 100")),
    Case("watermark", "time", _timed),
    Case("partial aggregate", "partial", _windowed(pen.tumbling("10s"))),
    Case("running aggregate", "aggregate", lambda s: s.key_by("k").aggregate(**AGGREGATES, name="running")),
    Case("tumbling", "window_aggregate", _windowed(pen.tumbling("10s"))),
    Case("tumbling, a key per row", "window_aggregate", _windowed(pen.tumbling("10s")), apart=True),
    Case("sliding", "sliding_aggregate", _windowed(pen.sliding("10s", every="2s"))),
    Case("sessions", "pane_aggregate", _windowed(pen.session("5s"))),
    Case("panes", "pane_aggregate", _windowed(pen.tumbling("10s"), trigger=3, emit="update")),
    Case("count windows", "count_aggregate", _windowed(pen.tumbling(rows=10))),
    Case("drop_duplicates", "drop_duplicates", lambda s: _timed(s).drop_duplicates("k", within="10s", name="first")),
    Case("drop_duplicates for ever", "drop_duplicates", lambda s: s.drop_duplicates("k", name="first")),
    Case("top", "top", lambda s: s.key_by("k").top(3, by="n", name="top")),
    Case("reduce", "reduce", lambda s: s.key_by("k").reduce(_latest, name="latest")),
    Case("interval join", "interval_join", _joined(within=("-1s", "1s"))),
    Case("as-of join", "asof_join", _asof),
    Case("regular join", "forever_join", lambda s: _regular(s)),
    Case("process", "process", lambda s: s.key_by("k").process(Count(), name="counts", schema=Seen)),
    Case("process with a timer", "process", lambda s: _timed(s).key_by("k").process(CountAndWake(), name="counts", schema=Seen)),
    Case("write to memory", "write", lambda s: s, sink=lambda folder: sinks.memory("small-batches")),
    Case("write to files", "write", lambda s: s, sink=lambda folder: sinks.files(folder / "files")),
)


def _regular(s: pen.Stream) -> pen.Stream:
    """A side that grows, and a side of one row per key: what most such joins are about."""
    names = s.filter("x < 0").select("k", "x")  # they come first: see `_batches`
    return s.filter("x >= 0").select("k", "n").join(names, on="k", within="forever", name="both")


# -- feeding
# ----------------------------------------------------------------------------------------------------------------------------------


class Tasks:
    """The tasks of a plan, one per stage: what one emits the next is told at once."""

    def __init__(self, plan: PhysicalPlan, folder: Path) -> None:
        self.plan = plan
        store = MemoryStore()
        self.tasks = [Task(s, Site(plan, 1, 0, "lineage", f"uid-{s.id}", folder, store)) for s in plan.stages]
        self._of = {stage.id: task for stage, task in zip(plan.stages, self.tasks)}
        self._targets = {e.id: e.target_stage for stage in plan.stages for e in stage.outgoing}
        self.sources = [task for task in self.tasks if task.stage.sources]
        for task in self.sources:
            self.tell(task, SplitsAssigned([SplitAssigned("rows", "all", None, TIME_MIN, False, False)]))

    def tell(self, task: Task, event: Event) -> None:
        """An event, and all that follows from it."""
        for action in task.handle(event):
            if isinstance(action, Emit):
                target = self._of[self._targets[action.edge]]
                channel = next(c.number for c in target.channels if c.exchange == action.edge)
                self.tell(target, Arrived(channel, action.message))

    def read(self, batch: pa.RecordBatch) -> Read:
        """The event of a batch that was read."""
        (op,) = self.plan.reads
        return Read("rows", "all", batch.select(list(op.columns)), 0)

    def feed(self, batch: pa.RecordBatch) -> None:
        """Rows of the source."""
        for task in self.sources:
            self.tell(task, self.read(batch))

    def operator(self, kind: str) -> Any:
        """The operator of this kind."""
        return next(task._ops[op.id] for task in self.tasks for op in task.stage.ops if op.kind == kind)

    def close(self) -> None:
        """Let go of files."""
        for task in self.tasks:
            task.close()


def _batches(rows: int, count: int, *, apart: bool) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Warm-up and `count` batches: when each begins, and its rows."""
    numbers = np.random.default_rng(7)
    keys = np.array([f"key-{number}" for number in range(KEYS if rows < LARGE else 4_096)])
    at = BEGIN

    def batch(size: int, which: np.ndarray[Any, Any], low: float = 0.0) -> pa.RecordBatch:
        arrays = [
            pa.array(keys[which]),
            pa.array(numbers.integers(0, 1_000, size)),
            pa.array(numbers.random(size) + low),
            pa.array(at + STEP * np.arange(size)).cast(SCHEMA.field("at").type),
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)

    yield at, batch(len(keys), np.arange(len(keys)), -2.0)  # each key once, with an `x` below 0
    at += STEP * len(keys)
    for size in [16] * WARM + [rows] * count:
        which = np.arange(size) % len(keys) if apart else numbers.integers(0, len(keys), size)
        yield at, batch(size, which)
        at += STEP * size


@dataclass(frozen=True)
class Given:
    """What an operator was given, and what event time was before."""

    time: int
    input: int
    batch: pa.RecordBatch
    origin: Any


def _recorded(tasks: Tasks, operator: Any, batches: list[tuple[int, pa.RecordBatch]]) -> tuple[list[Given], list[Given]]:
    """What the operator is given while it warms up, and from then on. It works on nothing meanwhile, nor does time move in it."""
    found: list[Given] = []
    now, warm = BEGIN, 0

    def receive(input: int, batch: pa.RecordBatch, origin: Any) -> Iterator[Any]:
        found.append(Given(now - 1_000_000, input, batch, origin))
        yield from ()

    operator.receive, operator.advance = receive, lambda time: iter(())
    for number, (begins, batch) in enumerate(batches):
        now = begins
        if number == 1 + WARM:
            warm = len(found)
        tasks.feed(batch)
    del operator.receive, operator.advance
    return found[:warm], found[warm:]


# -- measuring
# ----------------------------------------------------------------------------------------------------------------------------------

_NUMBERS = np.arange(16)[::-1].copy()


def fixed_work() -> None:
    """The unit: about what a batch of few rows asks of numpy and Arrow, some ten times."""
    for _ in range(10):
        order = np.argsort(_NUMBERS, kind="stable")
        array = pa.array(_NUMBERS[order])
        np.flatnonzero(array.to_numpy() > 7)


def unit() -> float:
    """What `fixed_work` takes now, in nanoseconds."""
    return min(_spent(fixed_work) for _ in range(20))


def _spent(work: Callable[[], Any]) -> float:
    start = time.thread_time_ns()
    work()
    return time.thread_time_ns() - start


@dataclass(frozen=True)
class Cost:
    """Processor time in microseconds, and in units."""

    micros: float
    units: float


def _least(rounds: Iterator[float]) -> Cost:
    """The least of several rounds in nanoseconds, beside the unit of the same moments."""
    found, units = [], [unit()]
    for each in rounds:
        found.append(each)
        units.append(unit())
    return Cost(min(found) / 1_000, min(found) / min(units))


def _sizes(rows: int) -> tuple[int, int]:
    """How many batches a round has, and how many stand between two moves of event time."""
    return (BATCHES, GROUP) if rows < LARGE else (4, 1)


def _exhaust(found: Iterator[Any]) -> None:
    for _ in found:
        pass


def process_cost(case: Case, rows: int, rounds: int = ROUNDS) -> tuple[Cost, Cost]:
    """What `process` takes for a batch of so many rows, and what `advance` takes with nothing due."""
    with tempfile.TemporaryDirectory() as name:
        tasks = _tasks(case, Path(name))
        operator = tasks.operator(case.kind)
        size, group = _sizes(rows)
        warm, given = _recorded(tasks, operator, list(_batches(rows, rounds * size, apart=case.apart)))
        for each in warm:
            _exhaust(operator.advance(each.time))
            _exhaust(operator.receive(each.input, each.batch, each.origin))
        size = len(given) // rounds  # a join is given a batch on each side

        def processing() -> Iterator[float]:
            for begin in range(0, rounds * size, size):
                spent = 0.0
                for at in range(begin, begin + size, group):
                    some = given[at : min(at + group, begin + size)]
                    _exhaust(operator.advance(some[0].time))
                    start = time.thread_time_ns()
                    for one in some:
                        _exhaust(operator.receive(one.input, one.batch, one.origin))
                    spent += time.thread_time_ns() - start
                yield spent / size

        cost = _least(processing())
        advance = _least(_advances(operator, given[-1].time))
        tasks.close()
    return cost, advance


def _advances(operator: Any, now: int) -> Iterator[float]:
    """Rounds of event time that moves by so little that nothing is due."""
    _exhaust(operator.advance(now))
    for begin in range(ROUNDS):
        times = range(now + 1 + begin * BATCHES, now + 1 + (begin + 1) * BATCHES)
        start = time.thread_time_ns()
        for each in times:
            _exhaust(operator.advance(each))
        yield (time.thread_time_ns() - start) / len(times)


def _tasks(case: Case, folder: Path) -> Tasks:
    p = pen.Pipeline("small-batches")
    case.build(p.read(Rows())).write(case.sink(folder))
    return Tasks(p.plan(), folder)


def dealing_cost(rows: int, rounds: int = ROUNDS) -> Cost:
    """What dealing a batch of partial rows to four tasks takes."""
    case = next(case for case in CASES if case.name == "tumbling")
    with tempfile.TemporaryDirectory() as name:
        tasks = _tasks(case, Path(name))
        (exchange,) = (e for stage in tasks.plan.stages for e in stage.outgoing)
        size, _ = _sizes(rows)
        warm, given = _recorded(tasks, tasks.operator(case.kind), list(_batches(rows, rounds * size, apart=False)))
        tasks.close()
    dealer = Dealer(0, 4, tasks.plan.max_parallelism)
    for each in warm:
        _exhaust(dealer.deal(exchange, each.batch))

    def dealing() -> Iterator[float]:
        for begin in range(0, len(given), size):
            start = time.thread_time_ns()
            for one in given[begin : begin + size]:
                _exhaust(dealer.deal(exchange, one.batch))
            yield (time.thread_time_ns() - start) / size

    return _least(dealing())


def task_costs(rows: int, rounds: int = ROUNDS) -> tuple[Cost, Cost]:
    """What a task takes for a read (time, a filter, a partial aggregate, dealing), and for a watermark at which no window ends."""
    build = _windowed(pen.tumbling("10s"))
    case = Case("task", "window_aggregate", lambda s: build(s.filter("n >= 0")))
    with tempfile.TemporaryDirectory() as name:
        tasks = _tasks(case, Path(name))
        size, _ = _sizes(rows)
        batches = list(_batches(rows, rounds * size, apart=False))
        for _, batch in batches[: 1 + WARM]:
            tasks.feed(batch)
        reader, keyed = tasks.tasks
        reads = [tasks.read(batch) for _, batch in batches[1 + WARM :]]

        def reading() -> Iterator[float]:
            for begin in range(0, len(reads), size):
                start = time.thread_time_ns()
                for event in reads[begin : begin + size]:
                    _exhaust(reader.handle(event))
                yield (time.thread_time_ns() - start) / size

        def watermarks() -> Iterator[float]:
            now = batches[1 + WARM][0]
            for begin in range(ROUNDS):
                events = [Arrived(0, Watermark(now + begin * BATCHES + step)) for step in range(BATCHES)]
                start = time.thread_time_ns()
                for event in events:
                    _exhaust(keyed.handle(event))
                yield (time.thread_time_ns() - start) / BATCHES

        costs = _least(reading()), _least(watermarks())
        tasks.close()
    return costs


Table = dict[str, dict[str, Cost]]


def measure(only: str = "", sizes: tuple[int, ...] = SIZES, rounds: int = ROUNDS) -> Table:
    """All costs, by case and by "1", "4", "16" and "advance". `only`: of one case."""
    table: Table = {}
    for case in CASES:
        if only in ("", case.name):
            line = table[case.name] = {}
            for rows in sizes:
                line[str(rows)], advance = process_cost(case, rows, rounds)
            line["advance"] = advance
    if only in ("", "dealing"):
        table["dealing"] = {str(rows): dealing_cost(rows, rounds) for rows in sizes}
    if only in ("", "task: a read"):
        both = {rows: task_costs(rows, rounds) for rows in sizes}
        table["task: a read"] = {str(rows): costs[0] for rows, costs in both.items()}
        if not only:
            table["task: a watermark"] = {"advance": both[sizes[0]][1]}
    return table


def main() -> None:
    """Print them: microseconds, and in brackets units."""
    parser = argparse.ArgumentParser(description="processor time of each operator for small batches, in microseconds")
    parser.add_argument("--only", default="", help="one case, by its name")
    parser.add_argument("--rows", type=int, nargs="*", default=list(SIZES), help="sizes of batches")
    options = parser.parse_args()
    sizes = tuple(options.rows)
    columns = [*map(str, sizes), "advance"]
    print(f"{'microseconds (units)':26}" + "".join(f"{column:>18}" for column in columns))
    for name, line in measure(options.only, sizes).items():
        cells = [f"{line[c].micros:9.1f} ({line[c].units:6.2f})" if c in line else "" for c in columns]
        print(f"{name:26}" + "".join(f"{cell:>18}" for cell in cells), flush=True)


if __name__ == "__main__":
    main()
