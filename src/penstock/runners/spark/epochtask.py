"""One task for the length of one epoch, inside a Python worker of Spark: from the newest checkpoint to the epoch's barrier.

1. First what waits from before (calls, rows of unaligned snapshots), then splits, then what other tasks sent, channel by channel.
2. Splits are read in turn until they have nothing now, or the epoch's budget of rows, bytes and time is used up.
3. Calls (`map_async`) are done before the barrier: the task waits for them, since nobody would hear their answers later.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from penstock.checkpoints.storage import Store as FileStore
from penstock.checkpoints.storage import open_store
from penstock.connectors.connector import Began, Json, Reader, SourceContext
from penstock.errors import DecodeError
from penstock.plan.logical import Read as ReadNode
from penstock.plan.physical import Stage
from penstock.protocol.messages import (
    Ack,
    Arrived,
    Barrier,
    Call,
    CallsDone,
    Decline,
    Emit,
    Event,
    Message,
    Read,
    SourcesEnded,
    SplitEnded,
    SplitIdle,
    SplitsAssigned,
    Store,
    TimeGathered,
    TimeReached,
    Trigger,
)
from penstock.runners import align
from penstock.runners.calls import LoopCalls
from penstock.runners.faults import reach
from penstock.runners.inflight import read_rows
from penstock.runners.local import store_states
from penstock.runners.loop import ROWS_MAX
from penstock.runners.reading import JOIN_S, Gatherer
from penstock.runners.spark import frames
from penstock.runners.spark.kept import KEPT
from penstock.runners.spark.mail import REPORTS, Inbox, Outbox, Outlet, channel_of
from penstock.runners.spark.orders import EpochOrder, Facts, Report, SplitOrder
from penstock.runners.world import random_id
from penstock.runtime.assemble import Site
from penstock.runtime.task import Task
from penstock.runtime.wiring import task_name
from penstock.tracebacks import Within

__all__ = ["EpochTask"]

READ_BYTES_MAX = 1 << 30  # decoded rows of one task in one epoch: sinks may hold what they write until it ends
SENT_BYTES_MAX = 256 << 20  # and of what it sends on: deeper levels hold an epoch's input in memory

LATE_S = 0.005  # between two looks at readers that are waited for
ANSWERS_S = 5.0  # for how long an epoch waits for one answer after the other; then the next one does

_stores: dict[Path, FileStore] = {}


def store_of(job_dir: Path) -> FileStore:
    """Where state lives, opened once per worker."""
    if job_dir not in _stores:
        _stores[job_dir] = open_store(job_dir)
    return _stores[job_dir]


@dataclass(slots=True, eq=False)
class OpenSplit:
    """A split while it is read in this epoch."""

    order: SplitOrder
    reader: Reader
    began: Began
    gatherer: Gatherer
    position: Json  # behind what was read
    late_at: float  # until then an answer is waited for
    active: bool = False
    ended: bool = False
    over: bool = False  # it said that it has ended, whether or not that counts
    group: str | None = None  # whose pace it keeps
    drift: int = 0


class EpochTask:
    """A task for the length of one epoch, and what surrounds it."""

    def __init__(self, facts: Facts, order: EpochOrder, stage: Stage, index: int, outbox: Outbox) -> None:
        self._facts, self._order, self._outbox, self._index = facts, order, outbox, index
        self._files = store_of(facts.job_dir)
        self._splits: list[OpenSplit] = []
        self._within = {op.name: Within(op.who) for op in stage.sources}
        self._rows, self._more, self._since = 0, False, time.monotonic()
        uid = random_id()
        lineage = facts.stamp.lineage
        site = Site(facts.plan, facts.parallelism, index, lineage, uid, facts.job_dir, self._files, order.restored, drains=True)
        self._task = Task(stage, site)
        self._task.gathers = True
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

        self._keep_readers()

    def close(self) -> None:
        """Let go of readers that are not kept, and of writers."""
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
            active=[s.order.key for s in self._splits if s.active],
            over=[s.order.key for s in self._splits if s.over],
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
                if not split.assigned.ended and not split.over:
                    kept = KEPT.take(self._facts.stamp, *split.key, split.assigned.position)
                    if kept is None:
                        began = replace(split.began, now_us=order.now)
                        context = SourceContext(op.name, self._facts.job_dir, op.columns, began, op.bounds)
                        with self._within[op.name]:
                            reader = op.node.source.open(split.assigned.split, split.assigned.position, context)
                    else:
                        reader, began = kept
                        began.now_us = order.now
                    self._splits.append(self._open(split, reader, began))
            yield from self._poll_all()
            if all(split.ended for split in self._splits) and self._bounded(orders) and not order.keep_open:
                yield from self._tell(SourcesEnded())
        if self._task.gathering and not order.finish:
            yield from self._tell(TimeGathered())
        yield from self._tell(Trigger(order.epoch, order.finish))

    def _open(self, order: SplitOrder, reader: Reader, began: Began) -> OpenSplit:
        clock = self._task.clock_of(order.assigned.source)
        gatherer = Gatherer(reader, JOIN_S if self._task.joins(order.assigned.source) else 0.0)
        split = OpenSplit(order, reader, began, gatherer, order.assigned.position, self._late_at(reader, order))
        if clock is not None and clock.align is not None and self._order.slowest is not None:
            assert clock.drift is not None, "the plan asks for both"
            split.group, split.drift = clock.align, clock.drift
            if not order.assigned.idle:
                self._alignment.hear(clock.align, order.key, order.assigned.time)
        return split

    @staticmethod
    def _late_at(reader: Reader, order: SplitOrder) -> float:
        return 0.0 if reader.prompt else time.monotonic() + order.wait_us / 1e6

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
        """Read the splits in turn until they have nothing now, are too far ahead of others, or the budget is used up.

        Those that are expected to have rows and have none yet (`late`) are waited for, when there is nothing else to read: for their
        first answer, and where all there is shall be read for each answer.
        """
        order = self._order
        until = None if order.read_us_max is None else time.monotonic() + order.read_us_max / 1e6
        turns, before, began = deque(self._splits), self._outbox.sent, time.monotonic()
        tell_at = began + self._facts.watermark_every / 1e6
        nbytes = waiting = 0  # `waiting`: for others, that many at the end of `turns`
        late: list[OpenSplit] = []
        while (
            (len(turns) > waiting or late)
            and self._rows < order.rows_max
            and nbytes < READ_BYTES_MAX
            and self._outbox.sent - before < SENT_BYTES_MAX
            and (until is None or time.monotonic() < until)
        ):
            if len(turns) == waiting:
                if order.drains and time.monotonic() > began + ANSWERS_S:
                    break
                time.sleep(LATE_S)
                until = None if until is None else until + LATE_S  # it is reading that takes no longer
                turns.extendleft(late)
                late = []
            split = turns.popleft()
            if self._waits(split):
                turns.append(split)
                waiting += 1
                continue
            rows_max = min(ROWS_MAX if split.group is None else align.ROWS_MAX, self._task.rows_max or ROWS_MAX)
            with self._within[split.order.assigned.source]:
                chunk = split.gatherer.read(min(rows_max, order.rows_max - self._rows))
            if chunk is None or (chunk.batch is None and not chunk.bad and not chunk.ended):
                if (order.drains or not split.active) and time.monotonic() < split.late_at:
                    late.append(split)
                continue
            reach("source.read", order.epoch)
            source, name = split.order.assigned.source, split.order.assigned.split
            split.active = split.active or chunk.batch is not None or bool(chunk.bad)
            self._rows += (chunk.batch.num_rows if chunk.batch is not None else 0) + len(chunk.bad)
            nbytes += chunk.batch.nbytes if chunk.batch is not None else 0
            yield from self._tell_rows(Read(source, name, chunk.batch, chunk.position, chunk.bad))
            if time.monotonic() >= tell_at:
                tell_at = time.monotonic() + self._facts.watermark_every / 1e6
                yield from self._tell(TimeGathered())
            split.position, split.over = chunk.position, chunk.ended
            split.late_at = self._late_at(split.reader, split.order)
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
        owed = order.drains and any(self._is_owed(split) for split in self._splits)
        self._more = len(turns) > waiting or bool(late) or owed
        for split in turns:
            split.active = True  # who was not asked is not silent
        for split in self._splits:
            if not split.active and not split.ended:
                yield from self._rest(split)

    def _is_owed(self, split: OpenSplit) -> bool:
        """Whether a split will have rows, though it had none in time: its source ends, and it has not."""
        op = next(op for op in self._task.stage.sources if op.name == split.order.assigned.source)
        assert isinstance(op.node, ReadNode)
        return op.node.source.bounded and not split.reader.prompt and not split.over

    def _keep_readers(self) -> None:
        """The epoch went well: readers that may have asked for more wait for the next one."""
        facts = self._facts
        closing = []
        for split in self._splits:
            if split.reader.prompt or split.over:
                closing.append(split)
            else:
                KEPT.keep(facts.stamp, *split.order.key, split.position, split.reader, split.began, facts.sign.is_up)
        self._splits = closing

    def _rest(self, split: OpenSplit) -> Iterator[pa.RecordBatch]:
        """A split that has been silent for long enough holds back nobody."""
        assigned = split.order.assigned
        idle_after = self._task.idle_after(assigned.source)
        if idle_after is None or assigned.idle or self._order.now - split.order.active_at < idle_after:
            return
        with self._within[assigned.source]:
            if split.reader.backlog():
                return
        yield from self._tell(SplitIdle(assigned.source, assigned.split))
