"""A bench for tests: the tasks of one attempt in this thread, fed by hand, with everything they did on record.

Messages are delivered first in, first out, deepest first, right after each event. Watermarks and idleness that the sources make
can be withheld (`own_time`): then only `watermark()` moves time in the stages behind them, at the very row positions a test
chooses, however rows are cut into batches. Calls are answered when nothing else is under way, or (`answering`) when the test says.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

import penstock as pen
from penstock.checkpoints.storage import MemoryStore
from penstock.connectors.connector import Committer, Reader, Sink, SinkContext, Source, SourceContext, Verdict, Writer
from penstock.plan.physical import PhysicalPlan
from penstock.protocol.messages import (
    TIME_MIN,
    Ack,
    Action,
    Arrived,
    Call,
    CallDone,
    CallsDone,
    Decline,
    Emit,
    Event,
    Hold,
    Idle,
    Message,
    Paused,
    Read,
    Release,
    SourcesEnded,
    SplitAssigned,
    SplitEnded,
    SplitsAssigned,
    Store,
    Stored,
    TaskAck,
    Trigger,
    Watermark,
)
from penstock.runners.calls import run_now
from penstock.runtime.assemble import Restored, Site
from penstock.runtime.task import Task
from penstock.runtime.wiring import task_name
from penstock.state.backend import Backend, Columnar
from penstock.state.history import store
from penstock.state.keygroups import group_range

NAMES = count()
SCHEMA = pa.schema(
    [
        pa.field("k", pa.string()),
        pa.field("i", pa.int64()),
        pa.field("j", pa.int32()),
        pa.field("s", pa.string()),
        pa.field("x", pa.float64()),
        pa.field("b", pa.bool_()),
        pa.field("at", pa.timestamp("us", tz="UTC")),
    ]
)


@dataclass(frozen=True)
class Hand(Source):
    """A source whose rows the test hands to the task itself."""

    name: str = "hand"
    schema: pa.Schema = SCHEMA
    names: tuple[str, ...] = ("s0",)
    bounded = True

    def splits(self) -> tuple[str, ...]:
        return self.names

    def open(self, split: str, position: Any, context: SourceContext) -> Reader:
        raise AssertionError("nobody opens a hand")


@dataclass(frozen=True)
class Collect(Sink):
    """Keeps what tasks wrote, in order, and what they prepared."""

    name: str = "out"
    rows: list[dict[str, Any]] = field(default_factory=list)
    prepared: list[tuple[int, int]] = field(default_factory=list)  # (epoch, rows)
    accepts = frozenset({"append", "update", "retract"})

    def writer(self, context: SinkContext) -> Writer:
        return CollectWriter(self, context)

    def committer(self, context: SinkContext) -> Committer:
        return NoCommitter()


class NoCommitter(Committer):
    def commit(self, epoch: int, committables: Any, attempt: int) -> Verdict:
        return Verdict.DONE


class CollectWriter(Writer):
    def __init__(self, sink: Collect, context: SinkContext) -> None:
        self.sink, self.context, self.fresh = sink, context, 0

    def write(self, batch: pa.RecordBatch) -> None:
        batch.validate(full=True)
        assert batch.schema == self.context.schema
        columns = [[as_python(value) for value in column] for column in batch.columns]
        self.sink.rows.extend(dict(zip(batch.schema.names, row)) for row in zip(*columns))
        self.fresh += batch.num_rows

    def prepare(self, epoch: int) -> list[Any]:
        fresh, self.fresh = self.fresh, 0
        self.sink.prepared.append((epoch, fresh))
        return [{"epoch": epoch, "rows": fresh, "uid": self.context.uid}] if fresh else []


def as_python(value: pa.Scalar) -> Any:
    """A value; a time before year 1, which Python has not, as microseconds."""
    try:
        return value.as_py()
    except OverflowError:
        return value.value


@dataclass(frozen=True)
class Cut:
    """What a barrier left: enough for new tasks, at any parallelism."""

    restored: Restored
    splits: dict[str, dict[str, dict[str, Any]]]
    acks: dict[str, TaskAck]


class Rig:
    """All tasks of a plan."""

    backend: ClassVar[Backend] = Columnar()

    def __init__(
        self,
        plan: PhysicalPlan,
        parallelism: int = 1,
        *,
        cut: Cut | None = None,
        files: MemoryStore | None = None,
        own_time: bool = False,
        answering: bool = True,
    ) -> None:
        self.plan, self.parallelism, self.own_time, self.answering = plan, parallelism, own_time, answering
        self.calls: list[tuple[Task, Call]] = []
        self.files = files or MemoryStore()
        self.log: list[tuple[str, Action]] = []
        self.acks: dict[int, dict[str, TaskAck]] = defaultdict(dict)
        self.declined: list[tuple[str, Decline]] = []
        restored = cut.restored if cut else Restored()
        self.tasks = {
            task_name(stage.id, i): Task(
                stage,
                Site(
                    plan,
                    parallelism,
                    i,
                    "lineage",
                    f"uid-{stage.id}-{i}",
                    Path("unused"),
                    self.files,
                    restored,
                    backend=self.backend,
                ),
            )
            for stage in plan.stages
            for i in range(parallelism)
        }
        self._queues: dict[tuple[int, int, int], deque[Message]] = defaultdict(deque)  # (exchange, from, to)
        self._held: dict[str, set[int]] = defaultdict(set)
        self._later: deque[tuple[Task, Stored]] = deque()
        for task in self.tasks.values():
            for channel in task.channels:
                exchange = next(e for e in task.stage.incoming if e.id == channel.exchange)
                upstream = task_name(exchange.source_stage, channel.source)
                task.consumed[upstream] = self.tasks[upstream].site.uid
        for task in self.tasks.values():
            if task.calling:
                self.tell(task, CallsDone(()))
            if task.stage.sources:
                self.tell(task, SplitsAssigned(self._assigned(task, cut)))

    def _assigned(self, task: Task, cut: Cut | None) -> list[SplitAssigned]:
        found = []
        for op in task.stage.sources:
            known = cut.splits.get(op.name, {}) if cut else {}
            for split in sorted(op.node.source.splits())[task.site.index :: self.parallelism]:
                entry = known.get(split, {"position": None, "watermark": TIME_MIN, "idle": False, "ended": False})
                found.append(SplitAssigned(op.name, split, entry["position"], entry["watermark"], entry["idle"], entry["ended"]))
        return found

    # Events.

    def tell(self, task: Task, event: Event, *, deliver: bool = True) -> list[Action]:
        """One event, its actions carried out, and (unless told not to) all messages that follow from it."""
        actions = []
        for action in task.handle(event):
            self.log.append((task.name, action))
            actions.append(action)
            self._carry_out(task, action)
        if deliver:
            self.deliver()
        return actions

    def _carry_out(self, task: Task, action: Action) -> None:
        match action:
            case Emit(edge, target, message):
                if not (self.own_time and isinstance(message, Watermark | Idle) and task.stage.sources):
                    self._queues[edge, task.site.index, target].append(message)
            case Store(epoch, frozen):
                handles = {key: store(state, self.files, self._name) for key, state in frozen.items()}
                self._later.append((task, Stored(epoch, handles)))
            case Ack(epoch, ack):
                self.acks[epoch][task.name] = ack
            case Decline():
                self.declined.append((task.name, action))
            case Hold(input):
                self._held[task.name].add(input)
            case Release(input):
                self._held[task.name].discard(input)
            case Call():
                self.calls.append((task, action))

    def _name(self) -> str:
        return f"state/{next(NAMES)}.arrow"

    def deliver(self) -> None:
        """Until nothing is under way. Held inputs wait."""
        while True:
            if self._later:
                task, event = self._later.popleft()
                self.tell(task, event, deliver=False)
                continue
            for task in sorted(self.tasks.values(), key=lambda t: -t.stage.level):
                if self._step(task):
                    break
            else:
                if not self.answering or not self.calls:
                    return
                self._answer(range(len(self.calls)))

    def answer(self, *which: int) -> None:
        """End some of the calls under way, in this order."""
        self._answer(which)
        self.deliver()

    def _answer(self, which: Iterable[int]) -> None:
        """Calls of a task that come one after the other are told it together."""
        chosen = [self.calls[i] for i in which]
        self.calls = [entry for entry in self.calls if entry not in chosen]
        answers: list[tuple[Task, list[CallDone]]] = []
        for task, call in chosen:
            if not answers or answers[-1][0] is not task:
                answers.append((task, []))
            answers[-1][1].append(run_now(call))
        for task, done in answers:
            self.tell(task, CallsDone(done), deliver=False)

    def _step(self, task: Task) -> bool:
        for channel in task.channels:
            queue = self._queues[channel.exchange, channel.source, task.site.index]
            if queue and channel.number not in self._held[task.name]:
                self.tell(task, Arrived(channel.number, queue.popleft()), deliver=False)
                return True
        return False

    def reader(self, source: str, split: str) -> Task:
        """The task that has a split."""
        return next(t for t in self.tasks.values() if (source, split) in t._splits)

    def feed(
        self,
        batch: pa.RecordBatch | None,
        position: Any = 0,
        *,
        source: str = "hand",
        split: str = "s0",
        bad: tuple[Any, ...] = (),
    ) -> None:
        """Rows of a split, with the columns the plan reads."""
        op = next(op for op in self.plan.reads if op.name == source)
        self.tell(
            self.reader(source, split),
            Read(source, split, None if batch is None else batch.select(list(op.columns)), position, bad),
        )

    def watermark(self, time: int) -> None:
        """Time in every channel out of a source stage."""
        assert self.own_time, "time is the sources' own"
        for task in self.tasks.values():
            if task.holding:
                self.tell(task, Paused())  # time goes behind the rows read before
        for stage in self.plan.stages:
            for exchange in stage.outgoing if stage.sources else ():
                for task in (t for t in self.tasks.values() if t.stage.id == exchange.target_stage):
                    for channel in task.channels:
                        if channel.exchange == exchange.id:
                            self.tell(task, Arrived(channel.number, Watermark(time)))

    def barrier(self, epoch: int) -> Cut:
        """A snapshot of all tasks, stored and acknowledged."""
        for task in self.tasks.values():
            if task.stage.sources:
                self.tell(task, Trigger(epoch), deliver=False)
        self.deliver()
        acks = self.acks[epoch]
        assert sorted(acks) == sorted(self.tasks), "every task has acknowledged"
        return self.cut_of(acks)

    def cut_of(self, acks: Mapping[str, TaskAck]) -> Cut:
        """As `runners.cut` does it: states and watermarks by key groups, splits by name."""
        states: dict[str, list[Any]] = defaultdict(list)
        floors: dict[str, list[Any]] = defaultdict(list)
        watermarks: dict[str, list[Any]] = defaultdict(list)
        splits: dict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
        for name, task in self.tasks.items():
            ack = acks[name]
            groups = group_range(task.site.index, self.parallelism, self.plan.max_parallelism)
            for key, handles in ack.states.items():
                states[key] += handles
            for key, entries in ack.floors.items():
                floors[key] += entries
            for op, time in ack.watermarks.items():
                watermarks[op].append([groups.start, groups.stop - 1, time])
            for source, found in ack.splits.items():
                splits[source] |= found
        return Cut(Restored(states, floors, watermarks), dict(splits), dict(acks))

    def end(self) -> None:
        """All splits are over."""
        for task in self.tasks.values():
            for source, split in task._splits if task.stage.sources else ():
                self.tell(task, SplitEnded(source, split))
        for task in self.tasks.values():
            if task.stage.sources:
                self.tell(task, SourcesEnded())

    def counters(self) -> dict[str, int]:
        """Over all tasks."""
        total: dict[str, int] = defaultdict(int)
        for task in self.tasks.values():
            for key, n in task.counters().items():
                total[key] += n
        return dict(total)


def table(rows: Iterable[Mapping[str, Any]], schema: pa.Schema = SCHEMA) -> pa.RecordBatch:
    """Rows as a batch; `at` may be given in microseconds."""
    rows = list(rows)
    return pa.RecordBatch.from_arrays([pa.array([row.get(f.name) for row in rows], f.type) for f in schema], schema=schema)


def hand(p: pen.Pipeline, **kwargs: Any) -> pen.Stream:
    """The usual input."""
    return p.read(Hand(**kwargs))


def one_task(plan: PhysicalPlan, stage: int, *, parallelism: int = 1, index: int = 0, restored: Restored | None = None) -> Task:
    """A task alone, for tests of its actions."""
    site = Site(
        plan, parallelism, index, "lineage", f"uid-{stage}-{index}", Path("unused"), MemoryStore(), restored or Restored()
    )
    return Task(plan.stages[stage], site)
