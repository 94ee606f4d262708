"""The systems that are compared, each behind the same function: run the workload on a source once, and say how it went.

All of them get the same Spark: two slots and the same memory, one Java process per system. Both that work in batches get batches
of the same size.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import penstock as pen
from benchmarks import peer, workload
from benchmarks.measure import Run, Stopwatch, difference
from penstock import sinks
from penstock.runners.spark.session import make_session

PARALLELISM = 2
SNAPSHOT_EVERY = "250ms"
BATCHES = peer.BATCHES
CONF = {
    "spark.master": f"local[{PARALLELISM}]",
    "spark.driver.memory": "4g",
    "spark.sql.shuffle.partitions": str(PARALLELISM),
    "spark.sql.session.timeZone": "UTC",
}

PENSTOCK: dict[str, Callable[[Any, int], pen.Runner]] = {
    "continuous": lambda spark, rows: pen.Continuous(spark, parallelism=PARALLELISM, snapshot_every=SNAPSHOT_EVERY),
    # The rows decide how long an epoch is; without a short interval each would wait for its second to be over. One row more than the
    # peer's, so that the last epoch finds the end of its input and no empty one has to follow.
    "microbatch": lambda spark, rows: pen.MicroBatch(
        spark, parallelism=PARALLELISM, rows_per_epoch=rows // PARALLELISM + 1, snapshot_every="10ms"
    ),
}
SYSTEMS = (*PENSTOCK, "structured-streaming")


def session() -> Any:
    """The Spark that every system gets."""
    return make_session(PARALLELISM, CONF)


def run_generated(system: str, spark: Any, rows: int) -> Run:
    """Count generated events."""
    if system in PENSTOCK:
        return run_penstock(PENSTOCK[system](spark, rows // BATCHES), workload.generated(rows), rows)
    return peer.run_generated(spark, rows)


def run_files(system: str, spark: Any, folder: Path, rows: int) -> Run:
    """Count the events in files."""
    if system in PENSTOCK:
        batch = peer.FILES_PER_BATCH * rows // len(list(folder.iterdir()))
        return run_penstock(PENSTOCK[system](spark, batch), workload.json_files(folder), rows)
    return peer.run_files(spark, folder, rows)


def run_penstock(runner: pen.Runner, source: Any, rows: int) -> Run:
    """Run the pipeline to its end, and watch its checkpoints."""
    sinks.memory(workload.SINK).clear()
    pipeline = workload.ad_counts(source)
    watch = Stopwatch()
    job = pipeline.start(runner)
    seen = None
    while not job.done:
        seen = look(job, watch, seen)
        time.sleep(0.002)
    job.wait()
    look(job, watch, seen)
    problem = difference(workload.committed(), workload.expected(rows))
    if watch.commits[-1][1] != rows:
        problem += f" {watch.commits[-1][1]} rows were read instead of {rows}"
    return Run(rows, watch.commits, not problem, problem)


def look(job: Any, watch: Stopwatch, seen: Any) -> Any:
    """Note a checkpoint that was not seen before."""
    manifest = job.conductor.manifest
    if manifest is not None and manifest is not seen:
        watch.commit(manifest.counters["source events.read"])
    return manifest
