"""The peers of the load sweep: the same pipelines, rows and checks as those of `loadjobs.py`.

**Flink** is `benchmarks/flink/LoadJobs.java`: what one writes for the DataStream API, on the cluster of the other cases (one Java
process, two slots, object reuse, heap state), exactly once with a checkpoint a second. Its source sleeps until the next row is due, at
least 0.2 ms and at most 0.1 s. Results are added up where they arrive, and no file is written: that is in Flink's favour. All points
run in one process, one after the other, behind a warm-up that is not counted. Java's own processor time is what a point uses. The job
over files has no end of its own: it is cancelled when it has counted all lines and a checkpoint is complete behind them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from benchmarks import flinkpeer, load
from benchmarks.load import PARALLELISM, SNAPSHOT_EVERY, Point, Sample
from benchmarks.loadjobs import LOADS, Written
from benchmarks.loadsource import SPLITS

SECONDS_MORE = 60  # per point: what starting and ending a job may take


def flink(buffer_timeout: str, points: Sequence[Point], warm_s: float, seconds: float) -> list[dict[str, Any]]:
    """All points in one Java process."""
    every = load.warmed(points)
    words = {"case": "load", "warm_s": warm_s, "seconds": seconds, "points": ",".join(f"{p.pipeline}:{p.rate}" for p in every)}
    words |= {"feeder": "\t".join([sys.executable, "-m", "benchmarks.loadfeed"])}
    words |= {"snapshot_every": SNAPSHOT_EVERY, "buffer_timeout": buffer_timeout, "parallelism": PARALLELISM}
    said, _ = flinkpeer.java(words, seconds_max=len(every) * (warm_s + seconds + SECONDS_MORE))
    return [of_flink(each, point, warm_s, seconds) for each, point in zip(said["runs"][1:], points)]


def of_flink(said: dict[str, Any], point: Point, warm_s: float, seconds: float) -> dict[str, Any]:
    """A point, of what the Java process said of it. Its clock begins with the schedule."""
    schedule = point.schedule(warm_s, seconds)
    sources = {"interval": ("orders", "payments"), "files": ("lines",)}.get(point.pipeline, ("rows",))
    read = {name: said["read"][number * SPLITS : (number + 1) * SPLITS] for number, name in enumerate(sources)}
    note = LOADS[point.pipeline].wrong(schedule, Written(said["counts"], said["sums"]), read)
    samples = [Sample(at_us, {"java": cpu_s}, *others) for at_us, cpu_s, *others in said["samples"]]
    late = said["late"] if LOADS[point.pipeline].timed and schedule.rate is not None else {}
    found = {**load.summary(samples, schedule, 0), **late, "note": note.strip("; "), "verified": not note}
    return {"pipeline": point.pipeline, "rate": point.rate, **found}
