"""The local runner: every task in one thread of this process. The reference, without Spark and without a server."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from penstock.checkpoints.repository import state_path
from penstock.checkpoints.storage import Store as FileStore
from penstock.connectors.connector import Reader, SourceContext
from penstock.errors import CorruptError, PenstockError
from penstock.passing import Fate, fate_of
from penstock.plan.physical import Stage
from penstock.protocol import coordinator as c
from penstock.protocol.messages import Aborted, Ack, Completed, Decline, SplitsAssigned, Stamp, Store, Stored, StoreFailed
from penstock.runners.align import Alignment
from penstock.runners.conductor import Conductor, source_of
from penstock.runners.cut import StartPoint
from penstock.runners.faults import reach
from penstock.runners.inflight import read_rows, write_rows
from penstock.runners.loop import SLICE_S, Loop, Seat, open_readers
from penstock.runners.memory import keep_memory
from penstock.runners.pace import Pace
from penstock.runners.queues import Outlet, Queue
from penstock.runners.reading import JOIN_S
from penstock.runners.runner import Runner
from penstock.runners.world import random_id
from penstock.runtime.assemble import Site
from penstock.runtime.task import Task
from penstock.runtime.wiring import task_name
from penstock.state.history import store as store_frozen
from penstock.state.runfile import Files, Handle, forget_validated
from penstock.tracebacks import describe

ROUNDS = 50  # of the loop, before the coordinator gets a turn


class Local(Runner):
    """Run in this process: `pipeline.run(pen.Local())`. For tests, notebooks and small jobs.

    Args:
        latency: the longest wait to fill a batch.
        watermark_every: how often event time moves on, at most.
        finish: False: stop when the sources have nothing more now, close no window, and go on from there at the next start.
    """

    name = "local"

    def __init__(
        self,
        *,
        parallelism: int | None = None,
        storage: Any = None,
        keep: int | None = None,
        snapshot_every: Any = None,
        state: Any = None,
        restarts: int | None = None,
        backoff: Any = None,
        latency: Any = None,
        watermark_every: Any = None,
        unaligned_after: Any = None,
        finish: bool | None = None,
    ) -> None:
        super().__init__(
            parallelism=parallelism,
            storage=storage,
            keep=keep,
            snapshot_every=snapshot_every,
            state=state,
            restarts=restarts,
            backoff=backoff,
            latency=latency,
            watermark_every=watermark_every,
            unaligned_after=unaligned_after,
            finish=finish,
        )

    def attempts(self, conductor: Conductor) -> LocalAttempts:
        """Attempts in the conductor's own thread."""
        return LocalAttempts(conductor)


class LocalAttempts:
    """One attempt after another, as seats of one loop."""

    def __init__(self, conductor: Conductor) -> None:
        self._conductor = conductor
        self._files: FileStore = conductor.world.open_store(conductor.job_dir)
        self._stamp: Stamp | None = None
        self._loop: Loop | None = None
        self._pace = self.pace()
        self._input_ended = self._drained = False

    def pace(self) -> Pace:
        """How often splits are read."""
        options = self._conductor.options
        return Pace(options.latency, options.watermark_every)

    def join_s(self) -> float:
        """For how long small pieces are gathered."""
        return min(self._conductor.options.latency / 1e6, JOIN_S)

    def begin(self, stamp: Stamp, start: StartPoint) -> None:
        """Make all tasks and join them by queues."""
        conductor = self._conductor
        reach("restore.before", start.epoch)
        forget_validated()
        keep_memory()
        self._stamp, self._input_ended, self._drained = stamp, False, False
        self._pace = self.pace()
        seats = make_seats(conductor, stamp, start, self._files, self._pace, self.join_s(), self._answer, self._store)
        self._loop = Loop(seats)
        conductor.post(c.Running(stamp))

    def end(self, stamp: Stamp) -> None:
        """Drop them all."""
        if self._loop is not None:
            self._loop.close()
        self._loop = None

    def trigger(self, stamp: Stamp, epoch: int, finish: bool, aligned: bool) -> None:
        """Tell the source tasks, and all others when the epoch will be overdue."""
        patience = None if aligned else self._conductor.options.unaligned_after
        overdue_at = None if patience is None else self._conductor.clock() + patience
        for seat in self._loop.seats if self._loop else ():
            seat.trigger(epoch, finish=finish, overdue_at=overdue_at)

    def tell(self, stamp: Stamp, event: Completed | Aborted) -> None:
        """Tell all tasks."""
        for seat in self._loop.seats if self._loop else ():
            seat.post(event)

    def step(self, now: int) -> bool:
        """Some rounds of the loop."""
        loop, stamp = self._loop, self._stamp
        if loop is None or stamp is None:
            return False
        progress = False
        self._pace.look(now)
        try:
            until = time.monotonic() + SLICE_S
            for _ in range(ROUNDS):
                if not loop.step(now, until):
                    break
                progress = True
                if time.monotonic() > until:
                    break
        except Exception as error:
            self._fail(stamp, error)
            return True
        self._report(stamp)
        if not progress:
            self._look_if_drained(stamp)
        return progress

    def _look_if_drained(self, stamp: Stamp) -> None:
        """Nothing is under way: whether that is since no source has more."""
        seats = self._loop.seats if self._loop else []
        if self._drained or self._conductor.options.finish or not all(seat.drained for seat in seats):
            return
        self._drained = True
        self._conductor.post(c.Drained(stamp, 1 + max(seat.epoch for seat in seats)))

    def _fail(self, stamp: Stamp, error: Exception) -> None:
        """A task raised: the attempt is over."""
        fate = fate_of(error)
        self._conductor.post(c.AttemptFailed(stamp, describe(error), fate is Fate.FINAL, fate.tries))
        self.end(stamp)

    def _report(self, stamp: Stamp) -> None:
        """How far time is, and whether all input has ended."""
        seats = self._loop.seats if self._loop else []
        self._conductor.times = {seat.task.name: seat.task.watermark() for seat in seats}
        if not self._input_ended and all(seat.task.ended for seat in seats):
            self._input_ended = True
            self._conductor.post(c.InputEnded(stamp))

    def due_at(self, now: int) -> int | None:
        """When a split is to be read, or a task goes by the clock."""
        return None if self._loop is None else self._loop.due_at(now, self._conductor.options.latency)

    def wants_epoch(self) -> bool:
        """Always: a snapshot costs little here."""
        return True

    def close(self) -> None:
        """Drop what is left."""
        if self._loop is not None:
            self._loop.close()
            self._loop = None

    def _answer(self, task: Task, action: Ack | Decline) -> None:
        assert self._stamp is not None
        if isinstance(action, Ack):
            self._conductor.post(c.Acked(self._stamp, action.epoch, task.name, action.ack))
        else:
            self._conductor.post(c.Declined(self._stamp, action.epoch, task.name, action.reason))

    def _store(self, seat: Seat, action: Store) -> None:
        assert self._stamp is not None
        seat.post(store_states(action, self._files, self._stamp, self._conductor.world.fresh_id))


def make_seats(
    conductor: Conductor, stamp: Stamp, start: StartPoint, files: Files, pace: Pace, join_s: float, answer: Any, store: Any
) -> list[Seat]:
    """All tasks of an attempt in one process, joined by queues."""
    plan, parallelism, backend = conductor.plan, conductor.parallelism, conductor.options.state
    uids = {task_name(stage.id, i): conductor.world.fresh_id() for stage in plan.stages for i in range(parallelism)}

    def site(stage: Stage, i: int) -> Site:
        uid = uids[task_name(stage.id, i)]
        return Site(plan, parallelism, i, stamp.lineage, uid, conductor.job_dir, files, start.restored, backend=backend)

    tasks = [Task(stage, site(stage, i)) for stage in plan.stages for i in range(parallelism)]
    queues: dict[tuple[int, int, int], Queue] = {}  # (exchange, from, to)
    for task in tasks:
        for channel in task.channels:
            queues[channel.exchange, channel.source, task.site.index] = Queue()
            exchange = next(e for e in task.stage.incoming if e.id == channel.exchange)
            upstream = task_name(exchange.source_stage, channel.source)
            task.consumed[upstream] = uids[upstream]
    seats = []
    alignment = Alignment()
    for task in tasks:
        index = task.site.index
        outlets: dict[tuple[int, int], Outlet] = {
            (e.id, target): queues[e.id, index, target]
            for e in task.stage.outgoing
            for target in ([index] if e.keys is None else range(parallelism))
        }
        inputs = [queues[channel.exchange, channel.source, index] for channel in task.channels]
        seat = Seat(
            task,
            inputs=inputs,
            outlets=outlets,
            answer=answer,
            store=store,
            pace=pace,
            join_s=join_s,
            alignment=alignment,
            wake=conductor.wake,
            keep_open=not conductor.options.finish,
        )
        seat.replay(read_rows(task))
        assign_splits(seat, conductor, start)
        seats.append(seat)
    return seats


def assign_splits(seat: Seat, conductor: Conductor, start: StartPoint) -> None:
    """Give a source task its splits, and open them."""
    task = seat.task
    if not seat.has_sources:
        return
    splits = [s for op in task.stage.sources for s in start.assigned(op, task.site.index, conductor.parallelism)]
    ops = {op.name: op for op in task.stage.sources}

    def open_reader(source: str, split: str, position: Any) -> Reader:
        op = ops[source]
        context = SourceContext(source, conductor.job_dir, op.columns, bounds=op.bounds)
        return source_of(conductor.plan, source).open(split, position, context)

    open_readers(seat, splits, open_reader, conductor.clock(), start.silence)
    seat.post(SplitsAssigned(splits))


def store_states(action: Store, files: Files, stamp: Stamp, fresh_id: Callable[[], str] = random_id) -> Stored | StoreFailed:
    """Write frozen states under names nobody else writes; only pyarrow and file calls, so any thread may do it."""
    reach("store.before", action.epoch)
    try:
        handles: dict[str, list[Handle]] = {}
        for key, frozen in action.frozen.items():
            if handles:
                reach("store.between", action.epoch)
            handles[key] = store_frozen(
                frozen,
                files,
                lambda: state_path(stamp.term, stamp.attempt, action.epoch, fresh_id()),
                lambda: reach("compact.merged", action.epoch),
            )
        in_flight: dict[int, Any] = {}
        for edge, batches in action.in_flight.items():
            if handles or in_flight:
                reach("store.between", action.epoch)
            in_flight[edge] = write_rows(batches, state_path(stamp.term, stamp.attempt, action.epoch, fresh_id()), files)
    except CorruptError:
        raise  # what it was to be merged with is damaged, and will be next time
    except (PenstockError, OSError) as error:
        return StoreFailed(action.epoch, str(error))
    reach("store.after", action.epoch)
    return Stored(action.epoch, handles, in_flight)
