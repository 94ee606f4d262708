"""The micro-batch runner: Structured Streaming calls, and each call is an epoch.

A query over a source that always has another batch calls `foreachBatch`; the call waits until the coordinator wants an epoch,
runs it as one Spark job (`spark.levels`) and returns once it is published. What is true is in our own log. Structured
Streaming's checkpoint is scratch: a new folder for each attempt, removed afterwards, and never read.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import uuid
from pathlib import Path
from typing import Any

from penstock.errors import ConfigError
from penstock.plan.physical import PhysicalPlan
from penstock.protocol.messages import Stamp
from penstock.runners.conductor import Conductor
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
    spark_error,
    task_rows,
)

log = logging.getLogger("penstock")

EPOCH_LEAST_US = 300_000  # shorter epochs are all overhead


class MicroBatch(Runner):
    """Run as a series of Spark jobs, one per epoch: `pipeline.run(pen.MicroBatch())`.

    Args:
        spark: a classic session; if left out the active one, or a new one on this machine. Its settings are not changed.
        parallelism: tasks per stage; Spark's slots if left out. May be more than there are slots: tasks take turns.
        rows_per_epoch: how many rows each task reads in an epoch, at most, and so each `snapshot_every`. Left out, it follows from how
        long epochs take, and while rows are waiting one epoch follows the other.
        finish: False: stop when the sources have nothing more now, close no window, and go on at the next start.
    """

    name = "microbatch"
    task_outlives_epoch = False

    def __init__(
        self,
        spark: Any = None,
        *,
        parallelism: int | None = None,
        storage: Any = None,
        snapshot_every: Any = None,
        keep: int | None = None,
        state: Any = None,
        restarts: int | None = None,
        backoff: Any = None,
        rows_per_epoch: int | None = None,
        finish: bool | None = None,
    ) -> None:
        super().__init__(
            parallelism=parallelism,
            storage=storage,
            snapshot_every=snapshot_every,
            keep=keep,
            state=state,
            restarts=restarts,
            backoff=backoff,
            finish=finish,
        )
        self._spark, self._rows_per_epoch = spark, checked_rows(rows_per_epoch)

    def conductor(self, plan: PhysicalPlan, options: Options, restore: Any) -> Conductor:
        """The conductor of a run, once Spark is there."""
        spark = own_session(self._spark, options.parallelism, "MicroBatch")

        def attempts(conductor: Conductor) -> EpochAttempts:
            budget = Budget(max(options.snapshot_every, EPOCH_LEAST_US), self._rows_per_epoch)
            every = options.snapshot_every
            return EpochAttempts(
                conductor,
                spark,
                lambda stamp: TickQuery(spark, conductor, stamp),
                budget,
                every=every,
                until_drained=not options.finish,
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


class TickQuery:
    """The Structured Streaming query of one attempt (a `Feed`)."""

    def __init__(self, spark: Any, conductor: Conductor, stamp: Stamp) -> None:
        self._spark, self._name, self._tasks = spark, conductor.plan.name, conductor.parallelism
        self._parent, self._term = conductor.job_dir / "spark", stamp.term
        self._folder: Path = self._parent / f"{stamp.term}-{uuid.uuid4()}"
        self._query: Any = None
        self._batch = -1

    def start(self, serve: Serve) -> None:
        """Start the query in a session of its own."""
        for left in self._parent.glob("*-*"):  # by a crash, of earlier terms and attempts: never of a successor
            if int(left.name.partition("-")[0]) <= self._term:
                shutil.rmtree(left, ignore_errors=True)
        session = quiet_session(self._spark)
        rows = task_rows(session, self._tasks)

        def each(ticks: Any, batch: int) -> None:
            # A batch that is repeated or left out would mean that Structured Streaming believes something of its own.
            assert batch == self._batch + 1, f"batch {batch} after {self._batch}"
            self._batch = batch
            serve(rows)

        # Spark's own source that always has another batch. The batch says no more than that it is time: nobody reads its row.
        stream = session.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
        writer = stream.writeStream.queryName(self._name).foreachBatch(each).option("checkpointLocation", str(self._folder))
        self._query = writer.start()

    def cancel(self) -> None:
        """Cancel the job under way: it runs in the query's own job group."""
        if self._query is not None:
            self._spark.sparkContext.cancelJobGroup(str(self._query.runId))

    def stop(self) -> None:
        """Stop the query, within its stopTimeout, and remove its folder."""
        try:
            if self._query is not None:
                self._query.stop()
        except Exception as error:  # too slow: its last job is cancelled, and whatever it still does is never read
            log.warning("the query of %s did not stop in time: %s", self._name, spark_error(error))
        shutil.rmtree(self._folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # a successor's is in there, if we slept through our replacement
            self._parent.rmdir()

    def failure(self) -> str | None:
        """What ended the query, if it was not us."""
        if self._query is None or self._query.isActive:
            return None
        error = self._query.exception()
        return f"the streaming query ended: {spark_error(error) if error else 'it was stopped from outside'}"


def checked_rows(rows: int | None) -> int | None:
    """A row budget must be at least one row."""
    if rows is not None and rows < 1:
        raise ConfigError(f"rows_per_epoch={rows}: expected 1 or more")
    return rows
