"""How long a job is away when one of its workers is killed: from SIGKILL to the next published snapshot, over many kills.

    python -m benchmarks.run --case recovery

Ad counts of generated events at a steady rate, with a snapshot every second. Some time after a snapshot, at random within the
interval, one of the two worker processes gets SIGKILL. Three moments are noted, in seconds since the signal:

1. **begun**: the loss is noticed, what is left of the attempt has ended, and the next attempt begins.
2. **started**: all workers of that attempt are there. From begun to started is what a process start takes: Spark's job, Python, and
   what it imports.
3. **back**: a snapshot of that attempt is published. The job makes progress that lasts again.

So that the figure is the engine's and not an option's, a restart waits 100 ms and not a second. At the end all windows are closed and
every count is compared with one made from the numbers of the rows that were read.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

import penstock as pen
from benchmarks import workload
from benchmarks.measure import difference
from benchmarks.systems import PARALLELISM, session
from penstock import sinks

RATE = 200_000
INTERVAL_S = 1.0
BACKOFF = "100ms"
WAIT_S = 60.0
LOOK_S = 0.002
CHUNK = 1_000_000  # numbers at a time, when the counts are made


@dataclass(frozen=True, slots=True)
class Recovery:
    """Seconds since SIGKILL."""

    begun: float
    started: float
    back: float

    @property
    def process_start(self) -> float:
        """How long the workers of the new attempt needed to be there."""
        return self.started - self.begun


def run(kills: int, *, rate: int = RATE, interval_s: float = INTERVAL_S, spark: Any = None) -> dict[str, Any]:
    """Kill so many workers, one after the other."""
    chance = random.Random(kills)
    sinks.memory(workload.SINK).clear()
    every = f"{interval_s * 1000:.0f}ms"
    runner = pen.Continuous(spark or session(), parallelism=PARALLELISM, snapshot_every=every, backoff=BACKOFF)
    job = workload.ad_counts(workload.generated(None, rate=rate)).start(runner)
    try:
        found = [kill_one(job, chance, interval_s) for _ in range(kills)]
        job.stop(finish=True, timeout=f"{WAIT_S:.0f}s")
    finally:
        if not job.done:
            job.cancel()
    note = difference(workload.committed(), workload.views_in(rows_of(job.conductor.manifest)))
    if job.conductor.replayed == 0:
        note += " no row was read twice: the kills cost nothing, and prove nothing"
    return {**summary(found, interval_s), "replayed": job.conductor.replayed, "verified": not note, "note": note}


def kill_one(job: Any, chance: random.Random, interval_s: float) -> Recovery:
    """Kill a worker once the attempt has published a snapshot, and wait until the next attempt has, too."""
    wait_for(lambda: published_by(job) == job.status().attempt > 0, "a snapshot before the kill")
    time.sleep(chance.uniform(0, interval_s))
    attempt = job.status().attempt
    worker = chance.choice(server_of(job).processes())
    began = time.perf_counter()
    os.kill(worker, signal.SIGKILL)
    # While no attempt is under way there is no server.
    begun = wait_for(lambda: job.status().attempt > attempt and server_of(job) is not None, "the next attempt") - began
    started = wait_for(lambda: (server := server_of(job)) is not None and server.complete, "its workers") - began
    back = wait_for(lambda: published_by(job) > attempt, "its first snapshot") - began
    return Recovery(begun, started, back)


def wait_for(true: Callable[[], bool], what: str) -> float:
    """The moment at which it is true."""
    until = time.perf_counter() + WAIT_S
    while not true():
        if time.perf_counter() > until:
            raise TimeoutError(f"{what}: not within {WAIT_S:.0f} s")
        time.sleep(LOOK_S)
    return time.perf_counter()


def published_by(job: Any) -> int:
    """The attempt that published the newest snapshot; 0 if there is none."""
    manifest = job.conductor.manifest
    return manifest.attempt if manifest is not None else 0


def server_of(job: Any) -> Any:
    """What the workers of the attempt under way talk to, if there is one."""
    attempts = job.conductor._attempts
    return attempts.server if attempts is not None else None


def rows_of(manifest: Any) -> Iterator[npt.NDArray[np.int64]]:
    """The numbers of all rows that were read: row n of split s is row `n * splits + s` of all."""
    (source,) = manifest.sources
    for split, entry in source.splits.items():
        end = entry.position or 0
        for first in range(0, end, CHUNK):
            yield np.arange(first, min(first + CHUNK, end), dtype=np.int64) * len(source.splits) + int(split)


def summary(found: list[Recovery], interval_s: float) -> dict[str, Any]:
    """What people want to know of all kills."""
    back = [each.back for each in found]
    start = [each.process_start for each in found]
    p50, p99, most = np.percentile(back, [50, 99, 100]).round(3).tolist()
    start_p50, start_p99 = np.percentile(start, [50, 99]).round(3).tolist()
    limit = round(2 * interval_s + start_p50, 3)
    figures = {
        "workers killed, each while rows were read": str(len(found)),
        "from SIGKILL to a published snapshot: p50, p99, most": f"{p50:.2f} s, {p99:.2f} s, {most:.2f} s",
        "of it until the next attempt begins: p50": f"{np.percentile([each.begun for each in found], 50):.2f} s",
        "of it until its processes have started: p50, p99": f"{start_p50:.2f} s, {start_p99:.2f} s",
        "two intervals and a process start (p50)": f"{limit:.2f} s; p99 is {p99 / limit:.0%} of it",
    }
    return {"p99_s": p99, "limit_s": limit, "figures": figures, "kills": [asdict(each) for each in found]}
