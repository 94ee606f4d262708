"""The batch runner: what is there now, as few epochs as memory allows, without Structured Streaming.

The same jobs, state and log as `MicroBatch`; only that a thread of the driver asks for one epoch after the other, and that the
run is over when no split has more. So a batch can go on from a savepoint of a stream, and a stream from a batch.
"""

from __future__ import annotations

import threading
import uuid
from typing import Any

from penstock.plan.physical import PhysicalPlan
from penstock.runners.conductor import Conductor
from penstock.runners.microbatch import checked_rows
from penstock.runners.options import Options
from penstock.runners.runner import Runner
from penstock.runners.spark.epochs import (
    EPOCH_TIMEOUT,
    Budget,
    EpochAttempts,
    Serve,
    own_session,
    parallelism_of,
    quiet_session,
    task_rows,
)

EPOCH_US = 5_000_000


class Batch(Runner):
    """Run over what is there now, then end: `pipeline.run(pen.Batch())`.

    Args:
        finish: also close every window: the input is over for good; so it is if this is left out. False: stop where the rows end, to be
        resumed.
        rows_per_epoch: how many rows each task reads in an epoch, at most. Left out, it follows from how long epochs take.
    """

    name = "batch"
    task_outlives_epoch = False

    def __init__(
        self,
        spark: Any = None,
        *,
        parallelism: int | None = None,
        storage: Any = None,
        state: Any = None,
        finish: bool | None = None,
        rows_per_epoch: int | None = None,
    ) -> None:
        # One epoch right after the other.
        super().__init__(parallelism=parallelism, storage=storage, state=state, snapshot_every="1ms", finish=finish)
        self._spark, self._rows_per_epoch = spark, checked_rows(rows_per_epoch)

    def conductor(self, plan: PhysicalPlan, options: Options, restore: Any) -> Conductor:
        """The conductor of a run, once Spark is there."""
        spark = own_session(self._spark, options.parallelism, "Batch")

        def attempts(conductor: Conductor) -> EpochAttempts:
            budget = Budget(EPOCH_US, self._rows_per_epoch)
            return EpochAttempts(
                conductor,
                spark,
                lambda stamp: JobThread(spark, conductor),
                budget,
                until_drained=True,
                finish=options.finish,
            )

        return Conductor(
            plan,
            options,
            runner=self.name,
            parallelism=options.parallelism or parallelism_of(spark),
            restore=restore,
            make_attempts=attempts,
            epoch_timeout=EPOCH_TIMEOUT,
            interval=0,
        )


class JobThread:
    """A thread that runs one job after the other (a `Feed`)."""

    def __init__(self, spark: Any, conductor: Conductor) -> None:
        self._spark, self._name, self._tasks = spark, conductor.plan.name, conductor.parallelism
        self._group = f"penstock-{uuid.uuid4()}"
        self._thread: threading.Thread | None = None

    def start(self, serve: Serve) -> None:
        """Start the thread."""
        rows = task_rows(quiet_session(self._spark), self._tasks)

        def run() -> None:
            self._spark.sparkContext.setJobGroup(self._group, f"penstock {self._name}")
            while serve(rows):
                pass

        self._thread = threading.Thread(target=run, name=f"penstock-{self._name}-jobs", daemon=True)
        self._thread.start()

    def cancel(self) -> None:
        """Cancel the job under way."""
        self._spark.sparkContext.cancelJobGroup(self._group)

    def stop(self) -> None:
        """Wait for the thread, but not for ever."""
        if self._thread is not None:
            self._thread.join(20.0)

    def failure(self) -> str | None:
        """A thread that died without being told to."""
        return None if self._thread is None or self._thread.is_alive() else "the thread that runs jobs has died"
