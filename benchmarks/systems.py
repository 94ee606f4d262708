"""The systems that are compared, each behind the same function: warm up, run the workload several times, say how it went.

Penstock and Structured Streaming get the same Spark: two slots and the same memory, one Java process per system. Structured Streaming,
whose rows are in Java, has Java's usual garbage collector. Both that work in batches get batches of the same size. Flink and Bytewax
have processes of their own, see `flinkpeer.py` and `bytewaxpeer.py`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import penstock as pen
from benchmarks import bytewaxpeer, flinkpeer, peer, processes, workload
from benchmarks.measure import Run, Stopwatch, difference
from benchmarks.memorylines import MemoryLines
from benchmarks.workload import Input
from penstock import sinks
from penstock.runners.spark.session import make_session

PARALLELISM = 2
SNAPSHOT_EVERY = "200ms"
BATCHES = peer.BATCHES
USUAL_JAVA = "-XX:+UseG1GC"
LOOK_S = 0.01
"""How often a run is looked at. To look five times as often takes a tenth of a core from those who are measured."""
CONF = {
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
SPARK = (*PENSTOCK, "structured-streaming")
THROUGHPUT = {
    "generated": (*SPARK, *flinkpeer.SYSTEMS),
    "memory": ("continuous", *flinkpeer.SYSTEMS),
    "files": (*SPARK, "flink"),
    "python": ("continuous", "bytewax"),
}
"""Which systems are compared in which case of throughput. Spark reads no lines from memory, Flink's functions are Java, and what two
phases or micro-batches make of lines is told once, of those from memory or of those from files."""


def session(slots: int = PARALLELISM, java: str | None = None) -> Any:
    """The Spark that every system gets. `java`: options for it; None for those that Penstock starts it with."""
    options = {} if java is None else {"spark.driver.extraJavaOptions": java}
    return make_session(slots, {**CONF, **options, "spark.master": f"local[{slots}]"})


def throughput(case: str, system: str, events: Input, warm_up: Input, runs: int) -> list[Run]:
    """Warm up by a smaller input, then run several times."""
    workload.expected(events.rows)  # at hand before anything is measured
    if system in flinkpeer.SYSTEMS:
        return flinkpeer.run(system, case, events, warm_up, runs=runs, snapshot_every=SNAPSHOT_EVERY)
    if system == "bytewax":
        return [bytewaxpeer.run(events) for _ in range(runs)]
    spark = session() if system in PENSTOCK else session(java=USUAL_JAVA)
    once(case, system, spark, warm_up)
    return [once(case, system, spark, events) for _ in range(runs)]


def once(case: str, system: str, spark: Any, events: Input) -> Run:
    """One run on Spark, with the memory of this process, its Java and its workers."""
    with processes.watched(os.getpid()) as used:
        if system in PENSTOCK:
            run = run_penstock(PENSTOCK[system](spark, batch_rows(case, events)), pipeline(case, events), events.rows)
        elif case == "generated":
            run = peer.run_generated(spark, events.rows)
        else:
            run = peer.run_files(spark, events.folder, events.rows)
    return replace(run, memory=used.memory, cpu_s=used.cpu_s)


def pipeline(case: str, events: Input) -> pen.Pipeline:
    """What Penstock runs."""
    match case:
        case "generated":
            return workload.ad_counts(workload.generated(events.rows))
        case "memory":
            return workload.ad_counts(MemoryLines(events.folder))
        case "files":
            return workload.ad_counts(workload.json_files(events.folder))
        case "python":
            return workload.ad_counts_by_function(workload.json_files(events.folder))
        case _:
            raise ValueError(f"there is no case {case!r}")


def batch_rows(case: str, events: Input) -> int:
    """How many rows a batch of the peer has."""
    if case == "generated":
        return events.rows // BATCHES
    return peer.FILES_PER_BATCH * events.rows // len(list(events.folder.iterdir()))


def run_penstock(runner: pen.Runner, pipeline: pen.Pipeline, rows: int) -> Run:
    """Run the pipeline to its end, and watch its checkpoints."""
    sinks.memory(workload.SINK).clear()
    watch = Stopwatch()
    job = pipeline.start(runner)
    seen = None
    while not job.done:
        seen = look(job, watch, seen)
        time.sleep(LOOK_S)
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
