"""The continuous runner: all tasks run all the time, in the tasks of one Spark barrier stage.

Spark starts the processes, gives them the code, and cleans up after them. The rest is ours: rows go from worker to worker,
barriers flow among them, and this process keeps the checkpoints.

1. One attempt is one Spark job of one barrier stage, which Spark never retries: when a task is lost the whole job ends, and the
   coordinator begins the next attempt from the last checkpoint.
2. Each attempt has its own server, port, token and stamp. What is left of an earlier one can reach nothing.
3. An attempt ends by telling workers to exit, which takes milliseconds. Only where that does not work Spark is asked to cancel
   the job, which takes seconds.
4. A new attempt waits until Spark has the slots again.
5. However the Spark job ends, the attempt hears of it: in words if there are any, and if its thread or the server's should end without
   a word, from `step`, which looks after them. That Java is gone is said as such, and ends the job.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import secrets
import threading
import time
from dataclasses import dataclass
from typing import Any

from penstock.errors import PenstockError, RunnerError
from penstock.passing import text_of
from penstock.plan.physical import PhysicalPlan
from penstock.protocol import coordinator as c
from penstock.protocol.messages import Aborted, Completed, Stamp
from penstock.runners import faults
from penstock.runners.conductor import Conductor
from penstock.runners.continuous.channel import CHANNEL_BYTES
from penstock.runners.continuous.control import ControlServer
from penstock.runners.continuous.greeting import Credentials
from penstock.runners.continuous.link import STUCK_S
from penstock.runners.continuous.worker import WorkerSpec, run_partition
from penstock.runners.cut import StartPoint
from penstock.runners.options import Options
from penstock.runners.runner import Runner
from penstock.runners.spark.java import java_death, naming_java_death
from penstock.runners.spark.session import (
    active_session,
    get_session,
    is_local,
    require_pyspark,
    settled_slots,
    slots_of,
    too_few_slots,
    wait_for_slots,
)
from penstock.runners.spark.ship import job_error, ship, worker_trouble
from penstock.runners.spark.sign import Sign

log = logging.getLogger("penstock")

EXIT_S = 2.0  # for workers to follow the order to exit
CANCEL_S = 10.0  # for Spark to cancel
NOTICE_S = 1.0
EARLIER_MAX = 8


class Continuous(Runner):
    """Run continuously on Spark: `pipeline.run(pen.Continuous(parallelism=4, storage="checkpoints"))`.

    Rows move as soon as they are there; a snapshot every `snapshot_every` makes the output of the time since the last one
    visible, exactly once.

    Args:
        spark: a classic Spark session. Left out: the active one, or a new one on this machine.
        parallelism: tasks per stage, and the number of Spark slots held while the job runs. Left out: all slots (on this machine
        at most one per core). latency: the longest wait to fill a batch. watermark_every: how often event time moves on, at
        most. state: "columnar", "rocksdb" or pen.RocksDB(...).
        unaligned_after: how long a snapshot may wait behind rows before it is taken with the rows in flight; "never": as long
        as it takes. finish: False: stop when the sources have nothing more now, close no window, and go on at the next start.
    """

    name = "continuous"

    def __init__(
        self,
        spark: Any = None,
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
        self._spark = spark

    def conductor(self, plan: PhysicalPlan, options: Options, restore: Any) -> Conductor:
        """The conductor of a run. Spark is found and checked first: what is wrong with it is said before anything is touched."""
        require_pyspark()
        self._spark = get_session(self._spark, slots=options.parallelism or 1)
        return super().conductor(plan, options, restore)

    def parallelism(self, options: Options) -> int:
        """Tasks per stage."""
        if options.parallelism:
            return options.parallelism
        spark = self._spark or active_session()
        slots = settled_slots(spark)
        return max(1, min(slots, os.cpu_count() or 1) if is_local(spark) else slots)

    def attempts(self, conductor: Conductor) -> ContinuousAttempts:
        """Attempts as Spark jobs."""
        return ContinuousAttempts(conductor, self._spark)


class ContinuousAttempts:
    """One attempt after another, each a barrier stage. Called in the conductor's thread."""

    def __init__(self, conductor: Conductor, spark: Any) -> None:
        self._conductor, self._spark = conductor, spark
        self._server: ControlServer | None = None
        self._job: threading.Thread | None = None
        self._sign: Sign | None = None
        self._group = ""
        self._earlier: list[str] = []  # groups of earlier attempts, whose tasks may still hold slots
        self._read: dict[int, dict[int, int]] = {}  # epoch -> worker -> rows read before it
        self._published: dict[int, int] = {}  # the same, of the newest checkpoint

    def begin(self, stamp: Stamp, start: StartPoint) -> None:
        """Start a server, and a Spark job whose tasks connect to it."""
        with naming_java_death(self._spark):
            self._begin(stamp, start)

    def _begin(self, stamp: Stamp, start: StartPoint) -> None:
        from pyspark import InheritableThread

        conductor = self._conductor
        self._read, self._published = {}, {}
        credentials = Credentials(secrets.token_hex(32), stamp)
        server = ControlServer(credentials, conductor.parallelism, ship(self._spark), post=self._post, hear=self._hear)
        sign = Sign(conductor.job_dir, stamp, conductor.world.fresh_id(), conductor.options.storage is not None)
        sign.put_up()
        spec = WorkerSpec(
            plan=conductor.plan,
            parallelism=conductor.parallelism,
            start=start,
            job_dir=conductor.job_dir,
            driver=server.address,
            credentials=credentials,
            sign=sign,
            by_content=not is_local(self._spark),
            channel_bytes=int(os.environ.get("PENSTOCK_CHANNEL_BYTES", CHANNEL_BYTES)),
            latency=conductor.options.latency,
            watermark_every=conductor.options.watermark_every,
            unaligned_after=conductor.options.unaligned_after,
            finish=conductor.options.finish,
            backend=conductor.options.state,
            stuck_s=float(os.environ.get("PENSTOCK_STUCK_S", STUCK_S)),
            fault_file=faults.planned(),
            time_file=faults.time_file(),
        )
        self._earlier = [*self._earlier, self._group][-EARLIER_MAX:] if self._group else []
        self._group = f"penstock-{conductor.plan.name}-{stamp.term}-{stamp.attempt}-{secrets.token_hex(4)}"
        self._server, self._sign = server, sign
        server.start()
        self._job = InheritableThread(target=self._run_job, args=(server, spec, self._group))
        self._job.daemon = True
        self._job.start()

    def end(self, stamp: Stamp) -> None:
        """Tell workers to exit; if they do not, have Spark end them."""
        server, job = self._server, self._job
        if server is None or job is None:
            return
        failed, came = server.failed, server.complete  # once they are told to exit, workers leave
        server.dismiss()
        if came or failed:
            job.join(EXIT_S)
        if job.is_alive():
            with contextlib.suppress(Exception):
                self._spark.sparkContext.cancelJobGroup(self._group)
            job.join(CANCEL_S)
        if job.is_alive():
            log.warning("the Spark job %s is still there %.0f s after it was cancelled", self._group, CANCEL_S)
        if failed:
            server.wait_until_gone(0.2)
            # What was read after the last checkpoint will be read again.
            self._conductor.replayed += sum(
                max(0, beat["read"] - self._published.get(worker, 0)) for worker, beat in server.beats.items()
            )
        server.close()
        if self._sign is not None:
            self._sign.take_down()
        self._server = self._job = self._sign = None

    @property
    def server(self) -> ControlServer | None:
        """Of the attempt under way; for tests."""
        return self._server

    def trigger(self, stamp: Stamp, epoch: int, finish: bool, aligned: bool) -> None:
        """Tell all workers."""
        if self._server is not None:
            self._server.tell("trigger", epoch=epoch, finish=finish, aligned=aligned)

    def tell(self, stamp: Stamp, event: Completed | Aborted) -> None:
        """Tell all tasks."""
        if self._server is None:
            return
        if isinstance(event, Completed):
            self._published = self._read.pop(event.epoch, self._published)
            self._server.tell("completed", epoch=event.epoch)
        else:
            self._server.tell("aborted", epoch=event.epoch)

    def step(self, now: int) -> bool:
        """Nothing is done in this thread. Those who do it must be there, or have said why not."""
        server, job = self._server, self._job
        if server is not None and job is not None and not server.failed and not (server.is_alive() and job.is_alive()):
            died = java_death(self._spark)  # PySpark asks it for something before our part of the thread begins
            who = "its Spark job" if server.is_alive() else "the line to its workers"
            server.fail(str(died) if died is not None else f"{who} ended without a word", fatal=died is not None)
        return False

    def due_at(self, now: int) -> int | None:
        """Nothing is done in this thread until somebody answers."""
        return None

    def wants_epoch(self) -> bool:
        """Always: a snapshot without news is cheap, and shows that the job is alive."""
        return True

    def close(self) -> None:
        """Drop what is left."""
        server = self._server
        if server is not None:
            self.end(server.stamp)

    # The server's thread.

    def _post(self, event: c.Event) -> None:
        if isinstance(event, c.Acked):
            read = sum(count for key, count in event.ack.counters.items() if key.startswith("source ") and key.endswith(".read"))
            worker = int(event.task.rpartition(" ")[2])
            known = self._read.setdefault(event.epoch, {})
            known[worker] = known.get(worker, 0) + read
        self._conductor.post(event)

    def _hear(self, worker: int, beat: dict[str, Any]) -> None:
        self._conductor.times = {**self._conductor.times, **beat.get("times", {})}
        self._conductor.counters.update(beat.get("counters", {}))

    # The job's thread.

    def _run_job(self, server: ControlServer, spec: WorkerSpec, group: str) -> None:
        try:
            self._run_stage(server, spec, group)
        except Exception as error:
            try:
                reason = self._why(server, spec, error)
            except Exception as worse:  # Spark is asked for more, and may be gone
                log.debug("what ended the Spark job could not be found out: %s", text_of(worse))
                reason = Reason(f"the Spark job failed: {text_of(error)}")
            if reason is not None:
                server.fail(reason.text, fatal=reason.fatal)

    def _run_stage(self, server: ControlServer, spec: WorkerSpec, group: str) -> None:
        context = self._spark.sparkContext
        wait_for_slots(self._spark, spec.parallelism, earlier=self._earlier)
        if server.closing:
            return
        context.setJobGroup(group, f"penstock {spec.plan.name}", interruptOnCancel=True)
        seats = context.parallelize(range(spec.parallelism), spec.parallelism).barrier()
        seats.mapPartitions(functools.partial(run_partition, spec)).collect()
        server.fail("all workers are gone, and nobody asked them to")

    def _why(self, server: ControlServer, spec: WorkerSpec, error: Exception) -> Reason | None:
        """Why the job ended; None if that was said, or is no news."""
        died = java_death(self._spark, error)
        if died is not None:
            return Reason(str(died), fatal=True)
        if isinstance(error, RunnerError):
            # There were enough slots when the job was started. On a cluster an executor was lost, and another may come.
            return Reason(str(error), fatal=is_local(self._spark))
        text = text_of(error)
        if isinstance(error, PenstockError):
            return Reason(text)
        if type(error).__name__ == "PicklingError":
            return Reason(f"this pipeline cannot be sent to workers: {error}", fatal=True)
        if "SPARK-24819" in text or "BarrierJobSlotsNumberCheckFailed" in text:
            return Reason(str(too_few_slots(self._spark, spec.parallelism, slots_of(self._spark))), fatal=True)
        until = time.monotonic() + NOTICE_S
        while time.monotonic() < until:  # a worker that was lost is noticed by its line too, in better words
            if server.failed or server.ending or server.closing:
                return None
            time.sleep(0.05)
        trouble = worker_trouble(text, self._spark)
        return Reason(f"the Spark job failed: {job_error(error)}" if trouble is None else str(trouble), fatal=trouble is not None)


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a Spark job ended. `fatal`: another would end so, too."""

    text: str
    fatal: bool = False
