"""The peer Structured Streaming in the load sweep: `count` and `files`, as one writes them in PySpark.

1. No Python touches a row. Rows come from Spark's `rate` source, which hands out whole seconds of them, or from its JSON source. Counts
   are kept in update mode, and each batch hands those that changed to the driver.
2. A batch begins each second, as often as Penstock takes snapshots. A result is there when the driver has it, and committed when the
   batch has ended and Spark says so.
3. Row i of the `rate` source has the time `start + i / rate`, so the time of any row tells the start of the schedule. That start is
   a whole second before its first rows: the source gives out a second when it is over.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import load, loadfeed
from benchmarks.load import PARALLELISM, Point
from benchmarks.loadjobs import KEYS, LOADS, Written
from benchmarks.loadsource import SPLITS, US, Schedule, started
from benchmarks.recovery import wait_for

TRIGGER = "1 second"


class Batches:
    """What the batches of a query said: updates, and when each batch was there and committed, in microseconds since 1970."""

    def __init__(self) -> None:
        self.start_us: int | None = None
        self.step_us: float | None = None  # from one row to the next, where rows have times
        self.noted: list[tuple[int, int, int, int]] = []  # key, count, when it was written, batch
        self.last: dict[int, int] = {}
        self.committed: dict[int, int] = {}  # batches
        self.inputs: dict[int, int] = {}  # how many rows a batch has read, by what Spark says

    def take(self, changed: Any, batch: int) -> None:
        """The sink: the counts that a batch has changed."""
        rows = changed.collect()
        now = time.time_ns() // 1000
        for row in rows:
            self.noted.append((row["key"], row["n"], now, batch))
            self.last[row["key"]] = row["n"]
        if rows and self.start_us is None and self.step_us is not None:
            number = (rows[0]["n"] - 1) * KEYS + rows[0]["key"]
            self.start_us = round(rows[0]["newest"] - number * self.step_us)

    @property
    def rows(self) -> int:
        """How many rows were counted so far."""
        return sum(list(self.last.values()))

    @property
    def settled(self) -> bool:
        """Whether all that was counted is committed."""
        return not self.noted or self.noted[-1][3] in self.committed

    def updates(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """As those of Penstock's sinks: key, count, when it was written, when it was committed."""
        found = [(key, n, at, self.committed[batch]) for key, n, at, batch in self.noted if batch in self.committed]
        rows = np.array(found, np.int64).reshape(-1, 4)
        return rows[np.lexsort((rows[:, 1], rows[:, 0]))]


def run(points: Sequence[Point], warm_s: float, seconds: float) -> list[dict[str, Any]]:
    """All points in one Spark session."""
    from benchmarks.systems import USUAL_JAVA, session

    spark = session(java=USUAL_JAVA)
    found = []
    for number, point in enumerate(load.warmed(points)):
        schedule = point.schedule(warm_s, seconds if number else 1.0)
        with tempfile.TemporaryDirectory(prefix="penstock-bench-", ignore_cleanup_errors=True) as scratch:
            measured = one(spark, point.pipeline, schedule, Path(scratch))
        found.append({"pipeline": point.pipeline, "rate": point.rate, **measured})
    return found[1:]


def one(spark: Any, pipeline: str, schedule: Schedule, folder: Path) -> dict[str, Any]:
    """One query."""
    from pyspark.sql import functions as F

    batches = Batches()
    assert schedule.rate is not None, "there is no flood"
    fed = LOADS[pipeline].fed
    if fed:
        (folder / "in").mkdir()
        keys = spark.readStream.schema("key long").json(str(folder / "in"))
        counts = keys.groupBy("key").agg(F.count("*").alias("n"))
    else:
        batches.step_us = US / schedule.rate
        source = spark.readStream.format("rate").option("rowsPerSecond", int(schedule.rate)).option("numPartitions", SPLITS)
        keys = source.load().select((F.col("value") % KEYS).alias("key"), F.unix_micros("timestamp").alias("at"))
        counts = keys.groupBy("key").agg(F.count("*").alias("n"), F.max("at").alias("newest"))
    spark.conf.set("spark.sql.shuffle.partitions", str(PARALLELISM))
    listener = listening(batches)
    spark.streams.addListener(listener)
    try:
        writer = counts.writeStream.outputMode("update").option("checkpointLocation", str(folder / "checkpoint"))
        query = writer.foreachBatch(batches.take).trigger(processingTime=TRIGGER).start()
        with contextlib.ExitStack() as stack:
            stack.callback(query.stop)
            feeder = {stack.enter_context(loadfeed.feeding(folder, schedule))} if fed else set()
            wait_for(lambda: (started(folder) if fed else batches.start_us) is not None or not query.isActive, "the first row")
            start_us = started(folder) if fed else batches.start_us
            assert start_us is not None, f"the query ended before it began: {query.exception()}"
            samples = []
            for offset_s in (schedule.warm_s, schedule.warm_s + schedule.seconds / 2, schedule.whole_s):
                time.sleep(max(0.0, start_us / US + offset_s - time.time()))
                samples.append(load.sample(len(batches.committed), batches.rows, feeder))
            ended = time.time_ns() // 1000
            if fed:
                lines = loadfeed.fed(folder)
                wait_for(lambda: batches.rows >= lines and batches.settled, f"{lines} lines")
            else:
                wait_for(lambda: max(batches.committed.values(), default=0) > ended, "the batch under way")
            wait_for(
                lambda: not query.status["isTriggerActive"], "a moment between two batches"
            )  # a batch that is stopped complains
    finally:
        spark.streams.removeListener(listener)
    updates = batches.updates()  # of batches that were committed; the last one may have been stopped
    last = np.zeros(KEYS, np.int64)
    last[updates[:, 0]] = updates[:, 1]
    rows = sum(batches.inputs[batch] for batch in {each[3] for each in batches.noted} & batches.committed.keys())
    read = {"lines": [lines]} if fed else {"rows": of_splits(rows)}
    note = LOADS[pipeline].wrong(schedule, Written({"counts": last.tolist()}, {}), read)
    found = {**load.summary(samples, schedule, start_us), "note": note.strip("; "), "verified": not note}
    return {**found, **load.lateness(updates, schedule, start_us)}


def of_splits(rows: int) -> list[int]:
    """How many of so many rows are of each split."""
    return [(rows - split + SPLITS - 1) // SPLITS for split in range(SPLITS)]


def listening(batches: Batches) -> Any:
    """Notes when a batch has ended."""
    from pyspark.sql.streaming.listener import StreamingQueryListener

    class Ended(StreamingQueryListener):  # type: ignore[misc]
        def onQueryStarted(self, event: Any) -> None: ...

        def onQueryProgress(self, event: Any) -> None:
            batches.inputs[event.progress.batchId] = event.progress.numInputRows
            batches.committed[event.progress.batchId] = time.time_ns() // 1000

        def onQueryIdle(self, event: Any) -> None: ...

        def onQueryTerminated(self, event: Any) -> None: ...

    return Ended()
