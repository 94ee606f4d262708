"""A worker: task i of every stage, in one process and one thread, from its start to the driver's order to exit.

It is the function that a Spark barrier task runs. Spark gives it a process, the plan and the user's functions (in its closure),
and no more: messages, orders and answers use our own sockets.

1. Task i of every stage lives in worker i. So what stays within a task number (forward exchanges, and the rows of a keyed
   exchange that stay at home) is a queue in memory.
2. One round: orders, one thing for each seat (`Loop`), whatever the sockets have. Nothing in it waits while there is work.
3. Frozen states are written by one other thread. It touches only what is frozen, and its answer comes back as an event.
4. A failure is told to the driver in words, then the worker waits to be told to exit. It decides nothing: the attempt fails as a
   whole.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import queue
import secrets
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.checkpoints.storage import open_store
from penstock.connectors.connector import Reader, SourceContext
from penstock.errors import ChannelError
from penstock.passing import fate_of
from penstock.plan.physical import PhysicalPlan
from penstock.protocol.messages import Aborted, Ack, Completed, Decline, SplitsAssigned, Stamp, Store, Stored, StoreFailed
from penstock.runners import faults
from penstock.runners.align import Alignment, Slowest, groups_of
from penstock.runners.conductor import source_of
from penstock.runners.continuous.channel import Wires
from penstock.runners.continuous.greeting import Credentials
from penstock.runners.continuous.link import DriverLine, Pulse
from penstock.runners.continuous.wire import ack_json, stamp_json
from penstock.runners.cut import StartPoint
from penstock.runners.inflight import read_rows
from penstock.runners.local import store_states
from penstock.runners.loop import SLICE_S, Loop, Seat, open_readers
from penstock.runners.memory import keep_memory
from penstock.runners.pace import Pace
from penstock.runners.queues import Outlet, Queue
from penstock.runners.reading import JOIN_S
from penstock.runners.spark.ship import identity, place
from penstock.runners.spark.sign import Sign
from penstock.runtime.assemble import Site
from penstock.runtime.task import Task
from penstock.runtime.wiring import task_name
from penstock.state.backend import Backend
from penstock.state.runfile import forget_validated
from penstock.tracebacks import describe

log = logging.getLogger("penstock")

PEERS_S = 120.0  # how long the slowest worker may take to start
LOST_S = 3.0  # how long a peer may be gone before we complain ourselves
SWITCH_S = 0.0005  # threads here do little and often; the default of 5 ms would make each of them wait that long
COLLECT_ROUNDS = 256
COLLECT_IDLE_S = 10.0
ABOUT_S = 0.25
ALIGN_S = 0.05  # how often groups of splits are told about: a split that waits for others waits that much too long
NAP_MAX_S = 0.1
NAP_MIN_S = 0.0001


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """Everything a worker is told. Travels in Spark's closure, which is how the user's functions get there."""

    plan: PhysicalPlan
    parallelism: int
    start: StartPoint
    job_dir: Path
    driver: tuple[str, int]
    credentials: Credentials
    sign: Sign
    by_content: bool  # how identities are compared
    channel_bytes: int
    latency: int  # microseconds
    watermark_every: int  # microseconds
    unaligned_after: int | None
    finish: bool
    backend: Backend
    stuck_s: float
    fault_file: str | None = None
    time_file: str | None = None


def run_partition(spec: WorkerSpec, partition: Iterator[int]) -> Iterator[Any]:
    """What Spark calls. Yields nothing: rows would wait in Spark's buffers."""
    for index in partition:
        work(spec, index)
    return iter(())


def work(spec: WorkerSpec, index: int) -> None:
    """Be worker `index` until told to exit."""
    faults.plan(spec.fault_file, spec.time_file)
    forget_validated()  # by an earlier attempt in this process
    keep_memory()
    switch = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_S)
    try:
        worker = Worker(spec, index)
        try:
            worker.run()
        finally:
            worker.close()
    finally:
        # Spark may use this process again.
        sys.setswitchinterval(switch)
        gc.unfreeze()
        gc.enable()


class Worker:
    """Task `index` of every stage."""

    def __init__(self, spec: WorkerSpec, index: int) -> None:
        self.spec, self.index = spec, index
        self.stamp: Stamp = spec.credentials.stamp
        self.files = open_store(spec.job_dir)
        self.wires = Wires(spec.credentials, bytes_max=spec.channel_bytes)
        self.loop = Loop([])
        self.pulse = Pulse(lambda: sum(seat.rows_read for seat in self.loop.seats))
        self.uid = secrets.token_hex(6)
        hello = spec.credentials.greeting(
            worker=index,
            uid=self.uid,
            pid=os.getpid(),
            address=list(self.wires.address),
            identity=identity(by_content=spec.by_content),
            place=place(),
        )
        self.line = DriverLine(spec.driver, hello, self.pulse, self.wires.wake, stuck_s=spec.stuck_s)
        self.line.start()
        self._exiting = False
        self._told_end = self._told_drained = False
        self._groups = groups_of(spec.plan) if spec.parallelism > 1 else []  # that others must hear of
        self.alignment = Alignment(str(each) for each in range(spec.parallelism) if each != index)
        self.pace = Pace(spec.latency, spec.watermark_every)
        self._told_slowest: Slowest = {}
        self._tell_slowest_at = 0.0
        self._to_store: queue.SimpleQueue[tuple[Seat, Store] | None] = queue.SimpleQueue()
        self._stored: deque[tuple[Seat, Stored | StoreFailed | BaseException]] = deque()
        self._writer = threading.Thread(target=self._write, name="penstock-writer", daemon=True)
        self._writer.start()

    # Life.

    def run(self) -> None:
        """Start, work, and tell the driver what went wrong if something does."""
        try:
            faults.reach("restore.before", self.spec.start.epoch)
            self.spec.sign.check()
            peers = self._await_peers()
            if peers is None:
                return
            self._build(peers)
            self.line.say("ready")
            gc.freeze()  # what is there now stays: no collection looks at it again
            gc.disable()
            self._work()
        except Exception as error:
            self.pulse.working = False
            self.line.say("failed", error=describe(error), trace=traceback.format_exc(), fate=fate_of(error).value)
            self._await_exit()

    def close(self) -> None:
        """Let go of everything."""
        self._tell_about()
        self._to_store.put(None)
        with contextlib.suppress(Exception):
            self.loop.close()
        self._writer.join()
        self.line.hang_up()
        self.wires.close()

    def _await_peers(self) -> list[dict[str, Any]] | None:
        until = time.monotonic() + PEERS_S
        while time.monotonic() < until:
            while self.line.orders:
                order = self.line.orders.popleft()
                if order["say"] == "peers":
                    peers: list[dict[str, Any]] = order["peers"]
                    return peers
                if order["say"] == "exit":
                    return None
            self.wires.turn(0.05)
        raise ChannelError(f"not all workers were there within {PEERS_S:.0f} s")

    def _await_exit(self) -> None:
        while not any(order["say"] == "exit" for order in self.line.orders):
            time.sleep(0.02)  # the line ends this process if the driver is gone

    # The tasks.

    def _build(self, peers: list[dict[str, Any]]) -> None:
        spec, index = self.spec, self.index
        sites = {
            stage.id: Site(
                spec.plan,
                spec.parallelism,
                index,
                self.stamp.lineage,
                task_uid(self.uid, stage.id),
                spec.job_dir,
                self.files,
                spec.start.restored,
                backend=spec.backend,
            )
            for stage in spec.plan.stages
        }
        tasks = [Task(stage, sites[stage.id]) for stage in spec.plan.stages]
        at_home = {e.id: Queue(spec.channel_bytes) for task in tasks for e in task.stage.outgoing}
        self.loop = Loop([self._seat(task, at_home, peers) for task in tasks])
        self.wires.answer()

    def _seat(self, task: Task, at_home: dict[int, Queue], peers: list[dict[str, Any]]) -> Seat:
        spec, index = self.spec, self.index
        exchanges = {e.id: e for e in task.stage.incoming}
        inputs = []
        for channel in task.channels:
            local = channel.source == index
            inputs.append(at_home[channel.exchange] if local else Queue(spec.channel_bytes))
            stage = exchanges[channel.exchange].source_stage
            task.consumed[task_name(stage, channel.source)] = task_uid(peers[channel.source]["uid"], stage)
        outlets: dict[tuple[int, int], Outlet] = {}
        for exchange in task.stage.outgoing:
            for target in [index] if exchange.keys is None else range(spec.parallelism):
                host, port = peers[target]["address"]
                outlets[exchange.id, target] = (
                    at_home[exchange.id]
                    if target == index
                    else self.wires.connect((exchange.id, index, target), (str(host), int(port)))
                )
        seat = Seat(
            task,
            inputs=inputs,
            outlets=outlets,
            answer=self._answer,
            store=self._store,
            pace=self.pace,
            join_s=min(spec.latency / 1e6, JOIN_S),
            alignment=self.alignment,
            wake=self.wires.wake,
            keep_open=not spec.finish,
        )
        seat.replay(read_rows(task))
        for channel, queue_ in zip(task.channels, inputs, strict=True):
            if channel.source != index:
                self.wires.expect(
                    (channel.exchange, channel.source, index),
                    queue_,
                    exchanges[channel.exchange].schema,
                )
        self._assign_splits(seat)
        return seat

    def _assign_splits(self, seat: Seat) -> None:
        if not seat.has_sources:
            return
        spec, stage = self.spec, seat.task.stage
        splits = [s for op in stage.sources for s in spec.start.assigned(op, self.index, spec.parallelism)]
        ops = {op.name: op for op in stage.sources}

        def open_reader(source: str, split: str, position: Any) -> Reader:
            context = SourceContext(source, spec.job_dir, ops[source].columns, bounds=ops[source].bounds)
            return source_of(spec.plan, source).open(split, position, context)

        open_readers(seat, splits, open_reader, now_us(), spec.start.silence)
        seat.post(SplitsAssigned(splits))

    # The loop.

    def _work(self) -> None:
        pulse, loop, wires = self.pulse, self.loop, self.wires
        told_at = collected_at = 0.0
        while True:
            self._take_orders()
            if self._exiting:
                return  # before the nap: nobody would wake us
            pulse.working = True
            now = now_us()
            self.pace.look(now)
            progress = loop.step(now, time.monotonic() + SLICE_S)
            pulse.working = False
            if self._groups:
                self._tell_slowest()
            if progress:
                pulse.rounds += 1
                if pulse.rounds % COLLECT_ROUNDS == 0:
                    gc.collect(1)
            else:
                self._tell_end()  # before the nap: nothing may be left to wake us
            if wires.turn(0.0 if progress else self._nap()):
                loop.wake()
            if not progress or pulse.rounds % 16 == 0:
                clock = time.monotonic()
                if clock - told_at > ABOUT_S:
                    told_at = clock
                    self._tell_about()
                if loop.quiet and clock - collected_at > COLLECT_IDLE_S:
                    collected_at = clock
                    gc.collect()
                if wires.lost_for() > LOST_S:
                    raise ChannelError("a peer is gone, and the driver has not ended the attempt")

    def _nap(self) -> float:
        """How long to wait for something to happen, in seconds."""
        now = now_us()
        due_at = self.loop.due_at(now, self.spec.latency)
        return NAP_MAX_S if due_at is None else min(max((due_at - now) / 1e6, NAP_MIN_S), NAP_MAX_S)

    def _take_orders(self) -> None:
        while self._stored:
            seat, answer = self._stored.popleft()
            if isinstance(answer, BaseException):
                raise answer
            seat.post(answer)
        while self.line.orders:
            order = self.line.orders.popleft()
            match order["say"]:
                case "trigger":
                    patience = None if order["aligned"] else self.spec.unaligned_after
                    overdue_at = None if patience is None else now_us() + patience
                    for seat in self.loop.seats:
                        seat.trigger(order["epoch"], finish=order["finish"], overdue_at=overdue_at)
                case "completed":
                    for seat in self.loop.seats:
                        seat.post(Completed(order["epoch"]))
                case "aborted":
                    for seat in self.loop.seats:
                        seat.post(Aborted(order["epoch"]))
                case "align":
                    self.alignment.announced(order["slowest"])
                case "exit":
                    self._exiting = True

    def _tell_slowest(self) -> None:
        """Let others hear how far our splits are, soon after it changed."""
        slowest, now = self.alignment.own(self._groups), time.monotonic()
        if slowest != self._told_slowest and now >= self._tell_slowest_at:
            self._told_slowest, self._tell_slowest_at = slowest, now + ALIGN_S
            self.line.say("align", slowest=slowest)

    def _tell_about(self) -> None:
        self.pulse.about = {
            "times": {seat.task.name: seat.task.watermark() for seat in self.loop.seats},
            "counters": {seat.task.name: seat.task.counters() for seat in self.loop.seats},
            "refused": self.wires.refused,
            "stalls": self.wires.stalls(),
        }

    def _tell_end(self) -> None:
        if not self._told_drained and not self.spec.finish and all(seat.drained for seat in self.loop.seats):
            self._told_drained = True
            self.line.say("drained", epoch=max(seat.epoch for seat in self.loop.seats))
        if not self._told_end and all(seat.task.ended for seat in self.loop.seats):
            self._told_end = True
            self.line.say("ended")

    # What tasks ask for.

    def _answer(self, task: Task, action: Ack | Decline) -> None:
        whose = {"stamp": stamp_json(self.stamp), "epoch": action.epoch, "task": task.name}
        if isinstance(action, Ack):
            self.line.say("ack", **whose, ack=ack_json(action.ack))
        else:
            self.line.say("decline", **whose, reason=action.reason)

    def _store(self, seat: Seat, action: Store) -> None:
        self._to_store.put((seat, action))

    def _write(self) -> None:
        """The writer's thread."""
        while True:
            item = self._to_store.get()
            if item is None:
                return
            seat, action = item
            try:
                self._stored.append((seat, store_states(action, self.files, self.stamp)))
            except Exception as error:
                self._stored.append((seat, error))
            self.wires.wake()


def task_uid(worker: str, stage: int) -> str:
    """A name for one attempt of one task that nobody else has."""
    return f"{worker}{stage:04x}"


def now_us() -> int:
    """Microseconds since 1970."""
    return time.time_ns() // 1000
