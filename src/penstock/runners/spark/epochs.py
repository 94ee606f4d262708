"""The driver's side of epochs that are Spark jobs: what MicroBatch and Batch share.

The coordinator decides that an epoch begins; a **feed** (a Structured Streaming query, or a thread) takes the order, runs the
one job of `levels`, and hands back what the tasks report. No task outlives its epoch: each one starts from the newest published
checkpoint. So an epoch that was aborted leaves nothing behind; the next one reads the same rows again.

1. Only the conductor's thread touches the state here. The feed's thread takes orders from a queue and hands reports over by
   `Conductor.call`.
2. An epoch begins only if somebody has something to say: a split with rows, a split that has just become idle, a user who
   waits. Looking costs the driver a reader per split (`Probes`).
3. How many rows an epoch may read follows from how long the last ones took (`Budget`).
4. Epochs are the only time in which tasks work. So the first begins at once, and while rows are left over from one the next does too,
   unless the user said how many rows there are to be in each; otherwise they begin `every` so often.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, Protocol

from penstock.connectors.connector import Began
from penstock.errors import Fix, RunnerError
from penstock.passing import Fate, text_of
from penstock.plan.logical import AssignTime
from penstock.plan.physical import Op, PhysicalPlan
from penstock.protocol import coordinator as c
from penstock.protocol.messages import Aborted, Completed, SplitAssigned, Stamp, TaskAck
from penstock.runners.align import Alignment, Slowest, groups_of
from penstock.runners.conductor import Conductor
from penstock.runners.cut import StartPoint, start_from
from penstock.runners.faults import reach, time_of_day
from penstock.runners.spark import session as sessions
from penstock.runners.spark.java import java_death, naming_java_death
from penstock.runners.spark.levels import run_epoch
from penstock.runners.spark.orders import EpochOrder, Facts, Report, SplitOrder
from penstock.runners.spark.probes import Probes
from penstock.runners.spark.ship import check_workers, job_error
from penstock.runners.spark.sign import Sign
from penstock.runtime.wiring import below, task_name

__all__ = ["EPOCH_TIMEOUT", "Budget", "EpochAttempts", "Feed", "own_session", "parallelism_of", "quiet_session", "task_rows"]

log = logging.getLogger("penstock")

EPOCH_TIMEOUT = 600_000_000
"""Spark notices lost processes itself; this is for jobs that hang."""

BATCH_WAIT_US = 1_000_000
"""For a reader that has nothing when all there is now shall be read."""
FATES = (Fate.FINAL, Fate.THREE_TRIES, Fate.PASSING)  # which of several reports matters most

Serve = Callable[[Any], bool]


class Feed(Protocol):
    """Who calls `serve` with one row per task, again and again, each time in the same thread of its own."""

    def start(self, serve: Serve) -> None:
        """Begin."""

    def cancel(self) -> None:
        """Give up the Spark job that is running, if one is."""

    def stop(self) -> None:
        """End, and leave nothing behind; `serve` has been told to return."""

    def failure(self) -> str | None:
        """Why it has ended by itself, if it has."""


class Budget:
    """How many rows each task may read in an epoch, so that it takes about `target_us`."""

    START, LEAST, MOST = 200_000, 1_000, 64_000_000
    FALL, RISE = 0.25, 16.0
    """At most, from one epoch to the next. Many rows too many do no harm: a task that has read for so long reads no more."""

    def __init__(self, target_us: int, fixed: int | None = None) -> None:
        self.target_us, self.fixed = target_us, fixed
        self.rows = fixed or self.START

    @property
    def read_us_max(self) -> int | None:
        """How long a task may go on reading: the first epochs of slow functions would take for ever otherwise."""
        return None if self.fixed else self.target_us

    def learn(self, took_us: int, work_us: int, *, used_up: bool) -> None:
        """An epoch took so long, and its tasks were at work for `work_us` of that; `used_up`: and would have read more.

        What is not work is Spark's, and does not grow with the rows. Where it is most of an epoch, longer epochs are the better
        bargain.
        """
        if self.fixed or (took_us <= self.target_us and not used_up):
            return
        aim_us = max(self.target_us - max(took_us - work_us, 0), self.target_us // 2)
        factor = min(max(aim_us / max(work_us, 1), self.FALL), self.RISE)
        if not 0.8 < factor < 1.25:
            self.rows = int(min(max(self.rows * factor, self.LEAST), self.MOST))


class Attempt:
    """One attempt: where it is, what was heard of its last epoch, and its feed."""

    def __init__(
        self,
        conductor: Conductor,
        stamp: Stamp,
        start: StartPoint,
        feed: Feed,
        budget: Budget,
        facts: Any,
        drained: Callable[[Stamp, int], None] | None,
        spark: Any,
    ) -> None:
        self._spark = spark
        self.stamp, self.start, self.feed, self.budget, self.facts, self._drained = stamp, start, feed, budget, facts, drained
        self.ended = False
        self.began_at = conductor.clock()
        self.more = False
        self.due_at = 0  # no epoch begins before
        self.wake_at: int | None = None
        self.counted: dict[str, Counter[str]] = {}  # rows of the published epochs of this attempt, by task
        self.heard: dict[str, Counter[str]] = {}  # the same with the epoch in flight
        self.over: set[tuple[str, str]] = set()  # splits that have said that they have ended, in published epochs of this attempt
        self.heard_over: set[tuple[str, str]] = set()  # and in the epoch in flight
        self.active_at: dict[tuple[str, str], int] = {}
        self.clocks = {op.name: clock_of(conductor.plan, op) for op in conductor.plan.reads}
        self.began: dict[tuple[str, str], Any] = {}
        self._aligned = groups_of(conductor.plan)
        self._conductor = conductor
        self._orders: queue.SimpleQueue[tuple[EpochOrder, threading.Event] | None] = queue.SimpleQueue()
        self._settled = threading.Event()

    # The feed's thread.

    def serve(self, ticks: Any) -> bool:
        """Wait for an order and run it; back once its epoch is published or given up. False: there will be no more."""
        order = self._orders.get()
        if order is None:
            self._orders.put(None)  # for whoever asks again
            return False
        epoch, settled = order
        began = time.monotonic()
        plan, tasks = self._conductor.plan, self._conductor.parallelism
        try:
            reports = run_epoch(ticks, self.facts, epoch, levels=plan.levels, parallelism=tasks)
        except Exception as error:  # whatever Spark, Py4J or a lost worker raises
            died = java_death(self._spark, error)
            reason = str(died) if died is not None else f"epoch {epoch.epoch}: {spark_error(error)}"
            self._conductor.call(lambda: self._job_failed(settled, reason, fatal=died is not None))
        else:
            took_us = int((time.monotonic() - began) * 1e6)
            self._conductor.call(lambda: self._job_done(epoch, reports, took_us))
        settled.wait()
        return not self.ended

    # The conductor's thread.

    def order(self, epoch: EpochOrder) -> None:
        """Let the feed run an epoch."""
        self._settled = threading.Event()
        self._orders.put((epoch, self._settled))

    def settle(self) -> None:
        """The epoch under way is published, or will never be."""
        self._settled.set()

    def end(self) -> None:
        """Stop the feed."""
        self.ended = True
        self._orders.put(None)
        self._settled.set()
        self.give_up()
        self.feed.stop()

    def give_up(self) -> None:
        """Cancel the job under way, if Spark still listens."""
        try:
            self.feed.cancel()
        except Exception as error:
            log.debug("a job could not be cancelled: %s", spark_error(error))

    def splits(self) -> list[list[SplitOrder]]:
        """What each task has to read."""
        plan, tasks = self._conductor.plan, self._conductor.parallelism
        return [[self._split(split) for op in plan.reads for split in self.start.assigned(op, i, tasks)] for i in range(tasks)]

    def _split(self, split: SplitAssigned) -> SplitOrder:
        key = (split.source, split.split)
        position = self.began.setdefault(key, split.position)
        active_at = self.active_at.setdefault(key, self.began_at - self.start.silence(*key))
        return SplitOrder(split, active_at, Began(self.began_at, position), over=key in self.over)

    def slowest(self) -> dict[str, Slowest]:
        """How far each source task's splits were at the last checkpoint, by group."""
        plan, tasks = self._conductor.plan, self._conductor.parallelism
        told: dict[str, Slowest] = {}
        for stage in plan.stages if self._aligned else ():
            for index in range(tasks) if stage.sources else ():
                mine = [split for op in stage.sources for split in self.start.assigned(op, index, tasks)]
                told[task_name(stage.id, index)] = self._groups(mine).own(self._aligned)
        return told

    def waiting(self, splits: Iterable[SplitAssigned]) -> set[tuple[str, str]]:
        """Those of all splits that are too far ahead of others of their group, as things stood at the last checkpoint."""
        every = list(splits) if self._aligned else []
        groups = self._groups(every)
        timed = [(split, clock) for split in every if (clock := self.clocks[split.source]) is not None]
        return {
            (split.source, split.split)
            for split, clock in timed
            if clock.align is not None and clock.drift is not None and groups.ahead(clock.align, split.time, clock.drift)
        }

    def _groups(self, splits: Iterable[SplitAssigned]) -> Alignment:
        groups = Alignment()
        for split in splits:
            clock = self.clocks[split.source]
            if clock is not None and clock.align is not None and not split.idle and not split.ended:
                groups.hear(clock.align, (split.source, split.split), split.time)
        return groups

    def _dated(self, ack: TaskAck) -> TaskAck:
        """With when each split was last active: whoever goes on from here counts its silence on."""
        splits = {
            source: {split: {**state, "last_active_us": self.active_at.get((source, split))} for split, state in found.items()}
            for source, found in ack.splits.items()
        }
        return replace(ack, splits=splits)

    def _job_failed(self, settled: threading.Event, reason: str, *, fatal: bool) -> None:
        if not self.ended and not settled.is_set():  # of an epoch that was given up this is no news
            self._conductor.post(c.AttemptFailed(self.stamp, reason, fatal))

    def _job_done(self, epoch: EpochOrder, reports: list[Report], took_us: int) -> None:
        if self.ended:
            return
        failed = [report for report in reports if report.say == "failed"]
        if failed:
            log.debug("%s failed:\n%s", failed[0].task, failed[0].trace)
            # A task that failed for good is the reason, whatever others met.
            worst = min(failed, key=lambda report: FATES.index(Fate(report.fate)))
            fate = Fate(worst.fate)
            self._conductor.post(c.AttemptFailed(self.stamp, worst.error, fate is Fate.FINAL, fate.tries))
            return
        slowest: dict[str, int] = {}  # stage -> its slowest task
        for report in reports:
            stage = report.task.partition(" task ")[0]
            slowest[stage] = max(slowest.get(stage, 0), report.took_us)
        self.budget.learn(took_us, sum(slowest.values()), used_up=any(report.more for report in reports))
        self.more = any(report.more for report in reports)
        if self.more and not self.budget.fixed:
            self.due_at = 0
        self.wake_at = min((r.ack.wake_at for r in reports if r.ack and r.ack.wake_at is not None), default=None)
        for report in reports:
            self.active_at.update(dict.fromkeys(((source, split) for source, split in report.active), epoch.now))
        self.heard_over = {(source, split) for report in reports for source, split in report.over}
        self._conductor.times = {report.task: report.watermark for report in reports}
        if self._drained is not None and not self.more:
            self._drained(self.stamp, epoch.epoch)
        self.heard = {}
        for report in reports:
            if report.ack is None:
                self._conductor.post(c.Declined(self.stamp, epoch.epoch, report.task, report.error))
                continue
            counted = self.counted.get(report.task, Counter()) + Counter(report.ack.counters)
            self.heard[report.task] = counted
            ack = replace(self._dated(report.ack), counters=dict(counted))
            self._conductor.post(c.Acked(self.stamp, epoch.epoch, report.task, ack))


class EpochAttempts:
    """Attempts whose epochs are Spark jobs (the conductor's `Attempts`).

    Args:
        every: from the beginning of an epoch to the next, in µs, unless rows are waiting.
        until_drained: with it, epochs follow each other until no split has more rows now, and the job stops.
        finish: and closes its windows then. Otherwise a split that says it has ended may have more rows in a later run.
    """

    def __init__(
        self,
        conductor: Conductor,
        spark: Any,
        make_feed: Callable[[Stamp], Feed],
        budget: Budget,
        *,
        every: int = 0,
        until_drained: bool = False,
        finish: bool = True,
    ) -> None:
        self._conductor, self._spark, self._make_feed, self._budget = conductor, spark, make_feed, budget
        self._every, self._keep_open = every, until_drained and not finish
        self._drained: Callable[[Stamp, int], None] | None = None
        if until_drained:
            self._drained = lambda stamp, epoch: conductor.post(c.Drained(stamp, epoch, finish))
        self._attempt: Attempt | None = None
        self._broadcast: Any = None
        self._sign: Sign | None = None
        self._probes = Probes(conductor)
        self._look_at = 0.0
        check_workers(spark)
        check_hosts(spark, conductor)  # after a job, when there are executors; tasks look for themselves, too (`spark.sign`)

    def begin(self, stamp: Stamp, start: StartPoint) -> None:
        """Start a feed; tasks are made anew in every epoch."""
        with naming_java_death(self._spark):
            self._begin(stamp, start)

    def _begin(self, stamp: Stamp, start: StartPoint) -> None:
        from pyspark.serializers import CloudPickleSerializer

        conductor = self._conductor
        reach("restore.before", start.epoch)
        given = conductor.options.storage is not None
        self._sign = Sign(conductor.job_dir, stamp, conductor.world.fresh_id(), given)
        self._sign.put_up()
        facts = Facts(
            conductor.plan, conductor.parallelism, stamp, conductor.job_dir, self._sign, conductor.options.watermark_every
        )
        self._broadcast = self._spark.sparkContext.broadcast((conductor.world.fresh_id(), CloudPickleSerializer().dumps(facts)))
        attempt = Attempt(
            conductor, stamp, start, self._make_feed(stamp), self._budget, self._broadcast, self._drained, self._spark
        )
        attempt.more = holds_rows_in_flight(conductor.plan, start)
        self._attempt = attempt
        try:
            attempt.feed.start(attempt.serve)
        except Exception as error:
            died = java_death(self._spark, error)
            reason = str(died) if died is not None else f"Spark could not start: {spark_error(error)}"
            conductor.post(c.AttemptFailed(stamp, reason, died is not None))
            return
        conductor.post(c.Running(stamp))

    def end(self, stamp: Stamp) -> None:
        """Stop the feed. A task that still runs somewhere can write files nobody refers to, and no more."""
        if self._attempt is not None:
            self._attempt.end()
            self._attempt = None
        if self._sign is not None:
            self._sign.take_down()
            self._sign = None
        if self._broadcast is not None:
            try:
                self._broadcast.destroy()
            except Exception as error:
                log.debug("a broadcast could not be removed: %s", text_of(error))
            self._broadcast = None

    def trigger(self, stamp: Stamp, epoch: int, finish: bool, aligned: bool) -> None:
        """Order an epoch. It is always aligned: its tasks end with their barriers."""
        attempt = self._attempt
        assert attempt is not None, f"epoch {epoch} without an attempt"
        budget, now = attempt.budget, self._conductor.clock()
        attempt.due_at = now + self._every
        restored, splits = attempt.start.restored, [[self._expected(split) for split in splits] for splits in attempt.splits()]
        rows, limit = budget.rows, budget.read_us_max
        slowest = attempt.slowest() if self._drained is None else None  # who reads all there is does not wait
        drains = self._drained is not None
        order = EpochOrder(epoch, now, finish, rows, limit, restored, splits, self._keep_open, time_of_day(now), slowest, drains)
        attempt.order(order)

    def _expected(self, split: SplitOrder) -> SplitOrder:
        """With how long the task may wait for its rows."""
        if self._drained is None:
            return replace(split, wait_us=self._probes.wait_us(split.key))
        # There was no look: what a split has now is what it has within this time.
        return replace(split, wait_us=BATCH_WAIT_US)

    def tell(self, stamp: Stamp, event: Completed | Aborted) -> None:
        """Go on from the new checkpoint, or once more from the old one."""
        attempt = self._attempt
        if attempt is None:
            return
        if isinstance(event, Completed):
            attempt.start = start_from(self._conductor.manifest)
            attempt.counted = attempt.heard
            attempt.over |= attempt.heard_over
        else:
            attempt.more, attempt.due_at = True, self._conductor.clock() + self._every
            attempt.give_up()
        attempt.settle()

    def step(self, now: int) -> bool:
        """Notice a feed that has ended by itself."""
        attempt = self._attempt
        if attempt is not None and not attempt.ended and time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + 1.0
            try:
                failure = attempt.feed.failure()
            except Exception as error:
                failure = f"Spark does not say whether it is at work: {spark_error(error)}"
            if failure is not None:
                died = java_death(self._spark)
                self._conductor.post(c.AttemptFailed(attempt.stamp, failure if died is None else str(died), died is not None))
        return False

    def due_at(self, now: int) -> int | None:
        """Nothing is done in this thread until somebody answers."""
        return None

    def wants_epoch(self) -> bool:
        """Whether there are rows to read, a deadline has passed, or the input is over."""
        attempt, now = self._attempt, self._conductor.clock()
        if attempt is not None and now < attempt.due_at:
            return False
        if (
            attempt is None
            or self._drained is not None
            or attempt.more
            or (attempt.wake_at is not None and time_of_day(now) >= attempt.wake_at)
        ):
            return True
        splits = [split for splits in attempt.splits() for split in splits]
        waiting = attempt.waiting(split.assigned for split in splits)
        return all(split.assigned.ended for split in splits) or any(
            self._wants(attempt, split, now) for split in splits if not split.assigned.ended and split.key not in waiting
        )

    def _wants(self, attempt: Attempt, split: SplitOrder, now: int) -> bool:
        try:
            if self._probes.has_rows(split.assigned, split.began):
                return True
        except Exception as error:  # the task that reads it will meet the same error, and its attempt fails in the usual way
            log.debug("%s of %s cannot be looked at: %s", split.assigned.split, split.assigned.source, error)
            return True
        clock = attempt.clocks[split.assigned.source]
        idle_after = None if clock is None else clock.idle_after
        return idle_after is not None and not split.assigned.idle and now - split.active_at >= idle_after

    def close(self) -> None:
        """The job is over."""
        if self._attempt is not None:
            self.end(self._attempt.stamp)
        self._probes.close()


def holds_rows_in_flight(plan: PhysicalPlan, start: StartPoint) -> bool:
    """Whether another runner left calls under way, or rows on theirs: an epoch is wanted although there may be no new rows."""
    calling = [op for op in plan.stateful if op.kind == "async_map"]
    return bool(start.restored.in_flight) or any(
        int(handle["rows"]) for op in calling for handle in start.restored.states.get(f"{op.name}/rows", ())
    )


def clock_of(plan: PhysicalPlan, op: Op) -> AssignTime | None:
    """How the splits of a source tell the time, if they do."""
    stage = next(stage for stage in plan.stages if op in stage.ops)
    reached = below(stage, op.id)
    return next((o.node for o in stage.ops if o.id in reached and isinstance(o.node, AssignTime)), None)


# --- sessions -----------------------------------------------------------------------------------------------------------------


def own_session(spark: Any, parallelism: int | None, runner: str) -> Any:
    """The user's session, the active one, or a new one on this machine. Tasks may come in turns, so slots are not counted."""
    spark = spark or sessions.active_session()
    if spark is None:
        return sessions.make_session(parallelism or os.cpu_count() or 2)
    sessions.check_classic(spark, runner, "the coordinator lives in the driver process")
    return spark


def parallelism_of(spark: Any) -> int:
    """Tasks per stage if nobody says: what can run at the same time."""
    if sessions.is_dynamic(spark):
        raise RunnerError(
            "this Spark gives and takes executors (dynamic allocation is on), so how many tasks a stage shall have cannot be counted",
            fix=Fix("slots.dynamic", "Write: parallelism=4"),
        )
    slots = sessions.settled_slots(spark)
    return max(1, min(slots, os.cpu_count() or 2) if sessions.is_local(spark) else slots)


def check_hosts(spark: Any, conductor: Conductor) -> None:
    """State and staged rows are files: without storage that all machines share there can be only one."""
    strangers = sorted(sessions.hosts_of(spark) - sessions.own_hosts(spark))
    if strangers and conductor.options.storage is None:
        raise RunnerError(
            f"this Spark has executors on {', '.join(strangers)}, and without storage= the job's files are in a temporary folder here",
            fix=Fix("cluster.no_storage", 'Give a folder that all of them mount. Write: storage="/mnt/shared"'),
        )


def task_rows(session: Any, tasks: int) -> Any:
    """One row per task, its number, in a partition of its own: what the first level is applied to."""
    return session.range(0, tasks, 1, tasks).selectExpr("cast(id as int) as task")


def quiet_session(spark: Any) -> Any:
    """A session of our own in the same Spark: the user's settings stay as they are, and do not matter here."""
    session = spark.newSession()
    for key, value in SETTINGS.items():
        session.conf.set(key, value)
    return session


SETTINGS = {
    "spark.sql.adaptive.enabled": "false",  # an epoch's plan is always the same line; planning it anew costs more than it saves
    "spark.sql.streaming.stopTimeout": "20s",
    # Faster by 100 ms a batch; what it writes is scratch, so that it was never tested against crashes does not matter.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.sql.streaming.numRecentProgressUpdates": "2",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
}


def spark_error(error: BaseException) -> str:
    """What was wrong, in a line: Spark's own text runs over pages."""
    text = job_error(error)
    for line in lines_of(text_of(error)):
        if "Python worker exited unexpectedly" in line or "worker crashed" in line:
            return "a Python worker of Spark has died"
    return text[:500]


def lines_of(text: str) -> Iterator[str]:
    """The lines of a text, without looking at more than matter."""
    yield from (line.strip() for line in text[:100_000].splitlines())
