"""One epoch as one Spark job: what runs inside `mapInArrow`, in MicroBatch and in Batch.

    ticks -> mapInArrow(level 0) -> [repartitionById(tasks, target) -> mapInArrow(level k)]* -> collect

Stages are sorted into levels by how many exchanges lie before them. Partition i of level k runs task i of every stage of that
level, from the newest checkpoint to the epoch's barrier, and is then gone. A line of levels, never a tree: Spark would run a
stage twice for two readers. What travels between levels is frames, whatever the pipeline's rows look like:

    target int | channel int | seq long | payload binary

1. A channel is `exchange x tasks + sending task`. Its frames are numbered: first the sender's uid, then messages, the last of
   them the barrier. Spark promises no order, so frames are sorted; a missing, repeated or damaged one is a `DecodeError`.
2. In an epoch each channel carries `[batches..., Watermark or Idle, (End), Barrier]`: of several watermarks only the last is
   sent, after all rows. Channels are played one after the other, so time moves once, when the last channel's watermark is
   there: rows of epoch n meet the time of epoch n - 1, and timers fire in the epoch in which they became due.
3. Frames for deeper levels pass through. So do reports (acknowledgements): they reach the driver only if every task on their
   way succeeded.
4. Spark may run a task again, and others may have read its first output. Each run draws a uid and names the uids it read; the
   coordinator refuses a mixture.
5. Calls of a task (`map_async`) are done before its barrier: the task waits for them, since nobody would hear their answers later.
6. An error in a task is a report as well, sent to every partition: deeper levels then do nothing. Spark's own retries are for
   lost processes; what failed by itself would fail again.
"""

from __future__ import annotations

import gc
import time
import traceback
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.checkpoints.storage import Store as FileStore
from penstock.checkpoints.storage import open_store
from penstock.connectors.connector import Began, Reader, SourceContext
from penstock.errors import DecodeError, RowError
from penstock.plan.logical import Read as ReadNode
from penstock.plan.physical import Exchange, PhysicalPlan, Stage
from penstock.protocol.messages import (
    Ack,
    Arrived,
    Barrier,
    Batch,
    Call,
    CallsDone,
    Decline,
    Emit,
    End,
    Event,
    Idle,
    Message,
    Read,
    SourcesEnded,
    SplitAssigned,
    SplitEnded,
    SplitIdle,
    SplitsAssigned,
    Stamp,
    Store,
    TaskAck,
    TimeReached,
    Trigger,
    Watermark,
)
from penstock.runners import align
from penstock.runners.calls import LoopCalls
from penstock.runners.faults import reach
from penstock.runners.inflight import read_rows
from penstock.runners.local import describe, store_states
from penstock.runners.loop import ROWS_MAX
from penstock.runners.memory import keep_memory
from penstock.runners.reading import JOIN_S, Gatherer
from penstock.runners.spark import frames
from penstock.runners.world import random_id
from penstock.runtime.assemble import Restored, Site
from penstock.runtime.task import Task, task_name

__all__ = ["EpochOrder", "Facts", "Report", "SplitOrder", "run_epoch"]

FRAME_ROWS = "target int, channel int, seq long, payload binary"
SCHEMA = pa.schema([("target", pa.int32()), ("channel", pa.int32()), ("seq", pa.int64()), ("payload", pa.binary())])

REPORTS = -1  # the channel of what tasks tell the driver
FAILURES = -2  # reports that end the epoch: sent to every partition
OUTBOX_BYTES = 4 * 1024 * 1024  # handed to Spark at a time
READ_BYTES_MAX = 1 << 30  # decoded rows of one task in one epoch: sinks may hold what they write until it ends
SENT_BYTES_MAX = 256 << 20  # and of what it sends on: deeper levels hold an epoch's input in memory


@dataclass(frozen=True, slots=True)
class Facts:
    """What stays the same for an attempt: broadcast once, then cached in each Python worker."""

    plan: PhysicalPlan
    parallelism: int
    stamp: Stamp
    job_dir: Path


@dataclass(frozen=True, slots=True)
class SplitOrder:
    """A split to read, since when it has been silent, and where and when the attempt began with it."""

    assigned: SplitAssigned
    active_at: int
    began: Began

    @property
    def key(self) -> tuple[str, str]:
        """Its name among all splits."""
        return self.assigned.source, self.assigned.split


@dataclass(frozen=True, slots=True)
class EpochOrder:
    """What an epoch starts from and how far it may go. `now` is stamped once, by the driver, for all tasks."""

    epoch: int
    now: int
    finish: bool
    rows_max: int  # per task
    read_us_max: int | None
    restored: Restored
    splits: Sequence[Sequence[SplitOrder]]  # by task
    keep_open: bool = False  # splits that say they have ended have only nothing more now
    time_of_day: int | None = None  # what operators are told, if a test says so
    slowest: Mapping[str, align.Slowest] | None = None  # of each source task, at the last checkpoint; None: splits do not wait


@dataclass(frozen=True, slots=True)
class Report:
    """What one task told the driver."""

    task: str
    say: str  # "ack", "decline" or "failed"
    ack: TaskAck | None = None
    error: str = ""
    fatal: bool = False
    trace: str = ""
    rows: int = 0  # that were read
    more: bool = False  # whether the budget was used up before the splits were
    active: Sequence[Sequence[str]] = ()  # (source, split) that had rows, or that there was no time for
    watermark: int = 0
    took_us: int = 0  # by the clock, from the task's making to its answer

    def to_json(self) -> dict[str, Any]:
        """As a control frame."""
        value = {f.name: getattr(self, f.name) for f in fields(self)}
        value["ack"] = self.ack and {f.name: getattr(self.ack, f.name) for f in fields(TaskAck)}
        return value

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Report:
        """Back."""
        return Report(**{**value, "ack": value["ack"] and TaskAck(**value["ack"])})


def run_epoch(ticks: Any, facts: Any, order: EpochOrder, *, levels: int, parallelism: int) -> list[Report]:
    """In the driver: run the job and hear what all tasks report.

    Args:
        ticks: a DataFrame with one row per task, its number, in a partition of its own.
        facts: a broadcast of a token that nobody else uses, and `Facts`, pickled.
    """
    rows = ticks
    for level in range(levels):
        if level:
            rows = rows.repartitionById(parallelism, "target")
        rows = rows.mapInArrow(Level(facts, order if level == 0 else replace(order, splits=()), level), FRAME_ROWS)
    reports = []
    for row in rows.select("payload").collect():
        (frame,) = frames.Decoder().feed(bytes(row[0]))
        reports.append(Report.from_json(frames.control_of(frame)))
    return reports


# --- in a Python worker -------------------------------------------------------------------------------------------------------

_facts: dict[str, Facts] = {}
_stores: dict[Path, FileStore] = {}


def facts_of(broadcast: Any) -> Facts:
    """The attempt's facts, unpickled once per worker."""
    token, data = broadcast.value
    if token not in _facts:
        if len(_facts) >= 4:  # several jobs may share a worker
            del _facts[next(iter(_facts))]
        from pyspark.serializers import CloudPickleSerializer  # user functions travel by Spark's own means, and only so

        _facts[token] = CloudPickleSerializer().loads(data)
        # Spark collects garbage after every task, while the next one waits. What is there now stays, and need not be looked at again.
        gc.unfreeze()
        gc.collect()
        gc.freeze()
    return _facts[token]


def store_of(job_dir: Path) -> FileStore:
    """Where state lives, opened once per worker."""
    if job_dir not in _stores:
        _stores[job_dir] = open_store(job_dir)
    return _stores[job_dir]


class Level:
    """The function of one `mapInArrow`."""

    def __init__(self, facts: Any, order: EpochOrder, level: int) -> None:
        self._facts, self._order, self._level = facts, order, level

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        keep_memory()
        facts = facts_of(self._facts)
        outbox = Outbox()
        if self._level == 0:
            (index,) = [task for batch in batches for task in batch.column(0).to_pylist()]
            inbox = Inbox(facts, 0)
        else:
            inbox = Inbox(facts, self._level)
            yield from inbox.take_in(batches)
            index = inbox.target
        if not inbox.failed:
            stages = [stage for stage in facts.plan.stages if stage.level == self._level]
            for stage in stages:
                yield from self._run(facts, stage, index, inbox, outbox)
        yield from outbox.flush()

    def _run(self, facts: Facts, stage: Stage, index: int, inbox: Inbox, outbox: Outbox) -> Iterator[pa.RecordBatch]:
        seat: EpochTask | None = None
        try:
            seat = EpochTask(facts, self._order, stage, index, outbox)
            yield from seat.play(inbox)
        except Exception as error:
            failure = Report(
                task_name(stage.id, index),
                "failed",
                error=describe(error),
                fatal=isinstance(error, RowError),
                trace=traceback.format_exc(),
            )
            for target in range(facts.parallelism):
                outbox.report(target, FAILURES, stage.id, failure)
        finally:
            if seat is not None:
                seat.close()


class Inbox:
    """The frames that came for one partition of a level."""

    def __init__(self, facts: Facts, level: int) -> None:
        incoming = [e for stage in facts.plan.stages if stage.level == level for e in stage.incoming]
        self._mine = pa.array([channel_of(e, source, facts) for e in incoming for source in range(facts.parallelism)], pa.int32())
        self._frames: dict[int, list[tuple[int, pa.Buffer]]] = defaultdict(list)
        self.target = -1
        self.failed = False

    def take_in(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Keep what is for this level, and give back what goes further."""
        for batch in batches:
            if not batch.num_rows:
                continue
            self.target = batch.column(0)[0].as_py()
            mine = pc.is_in(batch.column(1), self._mine)
            for row in pc.indices_nonzero(mine).to_pylist():
                payload = batch.column(3)[row].as_buffer()
                self._frames[batch.column(1)[row].as_py()].append((batch.column(2)[row].as_py(), payload))
            others = batch.filter(pc.invert(mine))
            if others.num_rows:
                self.failed = self.failed or FAILURES in others.column(1).to_pylist()
                yield pa.RecordBatch.from_arrays(others.columns, schema=SCHEMA)

    def frames(self, channel: int) -> Iterator[frames.Frame]:
        """The frames of a channel in order, without a gap."""
        decoder = frames.Decoder()
        for _, payload in sorted(self._frames.pop(channel, ()), key=lambda numbered: numbered[0]):
            yield from decoder.feed(memoryview(payload).cast("B"))
        decoder.finish()


class Outbox:
    """Frames on their way to Spark."""

    def __init__(self) -> None:
        self._rows: list[tuple[int, int, int, bytes]] = []
        self._bytes = 0
        self.sent = 0  # bytes, in all

    def put(self, target: int, channel: int, seq: int, payload: bytes) -> None:
        """Add a frame."""
        self._rows.append((target, channel, seq, payload))
        self._bytes += len(payload)
        self.sent += len(payload)

    def report(self, target: int, channel: int, seq: int, report: Report) -> None:
        """Add what a task tells the driver."""
        self.put(target, channel, seq, frames.encode_control(report.to_json(), 0))

    @property
    def full(self) -> bool:
        """Whether it is time to hand them over."""
        return self._bytes >= OUTBOX_BYTES

    def flush(self) -> Iterator[pa.RecordBatch]:
        """Hand them over."""
        if self._rows:
            columns = [pa.array(column, field.type) for column, field in zip(zip(*self._rows), SCHEMA)]
            self._rows, self._bytes = [], 0
            yield pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


class Outlet:
    """One outgoing channel of a task. Time is told once, after the rows and before what ends the epoch."""

    def __init__(self, outbox: Outbox, channel: int, target: int, uid: str) -> None:
        self._outbox, self._channel, self._target = outbox, channel, target
        self._seq = 1
        self._time: Watermark | None = None
        self._idle = False
        outbox.put(target, channel, 0, frames.encode_control({"say": "uid", "uid": uid}, 0))

    def push(self, message: Message) -> None:
        """Send it, now or before the barrier."""
        match message:
            case Watermark():
                self._time, self._idle = message, False
            case Idle():
                self._idle = True
            case Batch():
                self._idle = False  # rows wake a channel
                self._send(message)
            case End():
                self._time, self._idle = None, False  # the end of all time
                self._send(message)
            case Barrier():
                if self._time is not None:
                    self._send(self._time)
                if self._idle:
                    self._send(Idle())
                self._send(message)

    def _send(self, message: Message) -> None:
        self._outbox.put(self._target, self._channel, self._seq, b"".join(frames.encode(message, self._seq)))
        self._seq += 1


@dataclass(slots=True, eq=False)
class OpenSplit:
    """A split while it is read in this epoch."""

    order: SplitOrder
    reader: Reader
    gatherer: Gatherer
    active: bool = False
    ended: bool = False
    group: str | None = None  # whose pace it keeps
    drift: int = 0


class EpochTask:
    """A task for the length of one epoch, and what surrounds it."""

    def __init__(self, facts: Facts, order: EpochOrder, stage: Stage, index: int, outbox: Outbox) -> None:
        self._facts, self._order, self._outbox, self._index = facts, order, outbox, index
        self._files = store_of(facts.job_dir)
        self._splits: list[OpenSplit] = []
        self._rows, self._more, self._since = 0, False, time.monotonic()
        uid = random_id()
        lineage = facts.stamp.lineage
        site = Site(facts.plan, facts.parallelism, index, lineage, uid, facts.job_dir, self._files, order.restored, drains=True)
        self._task = Task(stage, site)
        self._calls = LoopCalls()
        self._alignment = align.Alignment(task for task in order.slowest or () if task != self._task.name)
        self._alignment.announced(order.slowest or {})
        self._outlets = {
            (e.id, target): Outlet(outbox, channel_of(e, index, facts), target, uid)
            for e in stage.outgoing
            for target in ([index] if e.keys is None else range(facts.parallelism))
        }

    def play(self, inbox: Inbox) -> Iterator[pa.RecordBatch]:
        """The whole epoch. Yields when enough frames are there."""
        yield from self._tell(TimeReached(self._order.now if self._order.time_of_day is None else self._order.time_of_day))
        if self._task.calling:
            yield from self._tell(CallsDone(()))
        for number, rows in read_rows(self._task):
            yield from self._tell_rows(Arrived(number, rows))
        if self._task.stage.sources:
            yield from self._read()
        for channel in self._task.channels:
            yield from self._receive(channel.number, channel.exchange, channel.source, inbox)
        while self._task.calling:  # until then the barrier waits
            yield from self._tell(CallsDone(self._calls.wait()))

    def close(self) -> None:
        """Let go of readers and writers."""
        for split in self._splits:
            split.reader.close()
        self._calls.close()
        self._task.close()

    def _tell(self, event: Event) -> Iterator[pa.RecordBatch]:
        events = deque([event])
        while events:
            for action in self._task.handle(events.popleft()):
                match action:
                    case Emit(edge, target, message):
                        self._outlets[edge, target].push(message)
                    case Store():
                        reach("barrier.aligned", action.epoch)
                        events.append(store_states(action, self._files, self._facts.stamp))
                    case Ack() | Decline():
                        self._answer(action)
                    case Call():
                        self._calls.begin(action)
                if self._outbox.full:
                    yield from self._outbox.flush()

    def _tell_rows(self, event: Read | Arrived) -> Iterator[pa.RecordBatch]:
        """Give the task what may be rows, then answers until it can take more."""
        yield from self._tell(event)
        while not self._task.ready:
            yield from self._tell(CallsDone(self._calls.wait()))

    def _answer(self, action: Ack | Decline) -> None:
        assert action.epoch == self._order.epoch, f"an answer for epoch {action.epoch} in epoch {self._order.epoch}"
        reach("ack.before", action.epoch)
        report = Report(
            self._task.name,
            "ack",
            rows=self._rows,
            more=self._more,
            active=[(s.order.assigned.source, s.order.assigned.split) for s in self._splits if s.active],
            watermark=self._task.watermark(),
            took_us=int((time.monotonic() - self._since) * 1e6),
        )
        if isinstance(action, Ack):
            report = replace(report, ack=action.ack)
        else:
            report = replace(report, say="decline", error=action.reason)
        self._outbox.report(self._index, REPORTS, self._task.stage.id, report)

    # From other tasks.

    def _receive(self, number: int, exchange: int, source: int, inbox: Inbox) -> Iterator[pa.RecordBatch]:
        edge = next(e for e in self._task.stage.incoming if e.id == exchange)
        upstream = task_name(edge.source_stage, source)
        message: Message | None = None
        for frame in inbox.frames(channel_of(edge, source, self._facts)):
            if frame.kind == frames.CONTROL:
                self._task.consumed[upstream] = frames.control_of(frame)["uid"]
                continue
            message = frames.message_of(frame, edge.schema)
            yield from self._tell_rows(Arrived(number, message))
        if message != Barrier(self._order.epoch):
            wanted = f"the barrier of epoch {self._order.epoch}"
            raise DecodeError(f"what {upstream} sent to {self._task.name} ends with {message!r} instead of {wanted}")

    # From splits.

    def _read(self) -> Iterator[pa.RecordBatch]:
        order = self._order
        mine = {op.name: op for op in self._task.stage.sources}
        orders = [split for split in order.splits[self._index] if split.assigned.source in mine]
        yield from self._tell(SplitsAssigned([split.assigned for split in orders]))
        if not order.finish:
            for split in orders:
                op = mine[split.assigned.source]
                assert isinstance(op.node, ReadNode)
                if not split.assigned.ended:
                    began = replace(split.began, now_us=order.now)
                    context = SourceContext(op.name, self._facts.job_dir, op.columns, began, op.bounds)
                    reader = op.node.source.open(split.assigned.split, split.assigned.position, context)
                    self._splits.append(self._open(split, reader))
            yield from self._poll_all()
            if all(split.ended for split in self._splits) and self._bounded(orders) and not order.keep_open:
                yield from self._tell(SourcesEnded())
        yield from self._tell(Trigger(order.epoch, order.finish))

    def _open(self, order: SplitOrder, reader: Reader) -> OpenSplit:
        clock = self._task.clock_of(order.assigned.source)
        split = OpenSplit(order, reader, Gatherer(reader, JOIN_S if self._task.joins(order.assigned.source) else 0.0))
        if clock is not None and clock.align is not None and self._order.slowest is not None:
            assert clock.drift is not None, "the plan asks for both"
            split.group, split.drift = clock.align, clock.drift
            if not order.assigned.idle:
                self._alignment.hear(clock.align, order.key, order.assigned.time)
        return split

    def _waits(self, split: OpenSplit) -> bool:
        """Whether a split is too far ahead of others of its group."""
        if split.group is None:
            return False
        return self._alignment.ahead(split.group, self._task.split_time(*split.order.key), split.drift)

    def _keep_pace(self, split: OpenSplit) -> None:
        """Let the group know how far a split has come."""
        if split.group is not None and split.ended:
            self._alignment.leave(split.group, split.order.key)
        elif split.group is not None:
            self._alignment.hear(split.group, split.order.key, self._task.split_time(*split.order.key))

    def _bounded(self, orders: Sequence[SplitOrder]) -> bool:
        """A task without splits of a source has ended only if that source ever ends."""
        having = {split.assigned.source for split in orders}
        return all(op.name in having or op.node.source.bounded for op in self._task.stage.sources)  # type: ignore[attr-defined]

    def _poll_all(self) -> Iterator[pa.RecordBatch]:
        """Read the splits in turn until they have nothing now, are too far ahead of others, or the budget is used up."""
        order = self._order
        until = None if order.read_us_max is None else time.monotonic() + order.read_us_max / 1e6
        turns, before = deque(self._splits), self._outbox.sent
        nbytes = waiting = 0  # `waiting`: for others, that many at the end of `turns`
        while (
            len(turns) > waiting
            and self._rows < order.rows_max
            and nbytes < READ_BYTES_MAX
            and self._outbox.sent - before < SENT_BYTES_MAX
            and (until is None or time.monotonic() < until)
        ):
            split = turns.popleft()
            if self._waits(split):
                turns.append(split)
                waiting += 1
                continue
            rows_max = min(ROWS_MAX if split.group is None else align.ROWS_MAX, self._task.rows_max or ROWS_MAX)
            chunk = split.gatherer.read(min(rows_max, order.rows_max - self._rows))
            if chunk is None or (chunk.batch is None and not chunk.bad and not chunk.ended):
                continue
            reach("source.read", order.epoch)
            source, name = split.order.assigned.source, split.order.assigned.split
            split.active = split.active or chunk.batch is not None or bool(chunk.bad)
            self._rows += (chunk.batch.num_rows if chunk.batch is not None else 0) + len(chunk.bad)
            nbytes += chunk.batch.nbytes if chunk.batch is not None else 0
            yield from self._tell_rows(Read(source, name, chunk.batch, chunk.position, chunk.bad))
            waiting = 0  # whoever waits may have waited for this
            if chunk.ended and order.keep_open:
                continue
            if chunk.ended:
                split.ended = True
                yield from self._tell(SplitEnded(source, name))
            else:
                turns.append(split)
            self._keep_pace(split)
        # Those that wait cause no epoch: whoever they wait for does, by its rows or by becoming idle.
        self._more = len(turns) > waiting
        for split in turns:
            split.active = True  # who was not asked is not silent
        for split in self._splits:
            if not split.active and not split.ended:
                yield from self._rest(split)

    def _rest(self, split: OpenSplit) -> Iterator[pa.RecordBatch]:
        """A split that has been silent for long enough holds back nobody."""
        assigned = split.order.assigned
        idle_after = self._task.idle_after(assigned.source)
        if idle_after is None or assigned.idle or self._order.now - split.order.active_at < idle_after or split.reader.backlog():
            return
        yield from self._tell(SplitIdle(assigned.source, assigned.split))


def channel_of(exchange: Exchange, source: int, facts: Facts) -> int:
    """The number of a channel in the frames of an epoch."""
    return exchange.id * facts.parallelism + source
