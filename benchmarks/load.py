"""A load sweep: how many cores a job needs at a steady rate, by pipeline, rate and system.

    python -m benchmarks.run --case load                                   # what the table CHOICE has; `--quick` for less of it
    python -m benchmarks.run --case load --system continuous --pipeline sessions --rate 100 --rate 10000

Every other case floods the engine. Real jobs get the rows that there are, and who runs them pays for the cores they use meanwhile.
Pipelines are those of `loadjobs.py`, rows become due as `loadsource.py` says. Each point is one job of some seconds:

1. **Warm-up**: the first seconds of a job are not measured, and before the first job of a system another one runs at `WARM_RATE`.
   All jobs of a system run in one process, one after the other; of each pipeline the slow rates first and the flood last.
2. **Cores**: processor time of all processes of the job, divided by the seconds of the window. For Penstock these are the driver's
   Python, Java and all workers; for Flink its one Java process, which says so itself.
3. **Waiting**: rows that are due and not read yet, at the beginning of the window and at its end; of files, those that are not in the
   newest snapshot. A system that does not keep up has more of them at the end.
4. **Late**: from when a row is due to when its result is written, and to when that is committed, of all rows that are due within
   the window. Only `count` and `files` send a result for each row, and a flood has no schedule.
5. **Memory**: the most of three looks at all processes, as `processes.py` counts it. What the jobs before left to Java is in it.
6. A job ends when the schedule does. Then all it committed is compared with what the rows that were read should have given; a point
   with wrong results, or one that was restarted, fails the command.

Flink is in `loadpeers.py`, Structured Streaming in `loadspark.py`. What a system cannot run is in `CANNOT` with the reason, and what
it cannot run at one rate in `NOT_AT`. Missing: Structured Streaming's interval join.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import penstock as pen
from benchmarks import loadfeed, processes
from benchmarks.latency import first_counted
from benchmarks.loadjobs import KEYS, LOADS, Load, Read, Written
from benchmarks.loadsource import SPLITS, US, Progress, Schedule, started, updates
from benchmarks.recovery import wait_for

PARALLELISM = 2
SNAPSHOT_EVERY = "1s"
WARM_RATE = "20000"
WAIT_S = 60.0
FLOOD = "flood"
RATES = ("0", "10", "100", "1000", "10000", "100000", FLOOD)
"""Rows per second, as one asks for them."""

PENSTOCK: dict[str, dict[str, Any]] = {"continuous": {}, "continuous-100ms": {"latency": "100ms"}, "microbatch": {}, "local": {}}
"""With its options: rows may wait as long as Flink's do by default, in place of 5 ms."""
FLINK = {"flink": "100ms", "flink-latency": "0ms"}
"""With the buffer timeout of each: Flink's default, and the one for low latency."""
SYSTEMS = (*PENSTOCK, *FLINK, "structured-streaming")
CANNOT = {
    ("aggregates", "structured-streaming"): "sixteen queries, each with a source of its own",
    ("sessions", "structured-streaming"): "three queries, and no duplicates within a time of the row that passed",
    ("interval", "structured-streaming"): "not written yet",
    ("function", "structured-streaming"): "transformWithState of Python; statepeer.py has it",
}
"""What cannot be measured, and why: by pipeline and system."""
NOT_AT: dict[tuple[str, str, str], str] = {
    **{
        ("interval", system, FLOOD): "the stream that is read faster would wait for the other without bound" for system in SYSTEMS
    },
    **{("files", system, FLOOD): "they appear on a schedule" for system in SYSTEMS},
    ("count", "structured-streaming", FLOOD): "the rate source has no rate without bound",
    ("count", "structured-streaming", "0"): "the rate source has no rate of no rows",
}
"""What cannot be measured at one rate, and why: by pipeline, system and rate."""
FEW = ("0", "100", "10000")
CHOICE: dict[str, dict[str, dict[str, tuple[str, ...]]]] = {
    "full": {
        "count": {
            "continuous": RATES,
            "continuous-100ms": FEW,
            "microbatch": (*FEW, FLOOD),
            "local": (*FEW, FLOOD),
            "flink": RATES,
            "flink-latency": FEW,
            "structured-streaming": ("100", "10000"),
        },
        "aggregates": {"continuous": FEW, "microbatch": ("100",), "local": ("100",), "flink": FEW},
        "sessions": {"continuous": (*FEW, FLOOD), "microbatch": ("100", "10000"), "local": ("100",), "flink": (*FEW, FLOOD)},
        "interval": {"continuous": ("100", "10000"), "flink": ("100", "10000")},
        "function": {"continuous": ("100", "10000"), "flink": ("100", "10000")},
        "files": {"continuous": ("100", "10000"), "flink": ("100", "10000"), "structured-streaming": ("100",)},
    },
    "quick": {"count": {"continuous": ("100", "10000")}, "sessions": {"continuous": ("100",)}},
}
"""The points of a full run, which takes eleven minutes, and of a quick one, half a minute: by size, pipeline and system. They are chosen
to show each pipeline beside Flink at a rate that is slow and at one that is usual, and one pipeline at all rates."""


@dataclass(frozen=True, slots=True)
class Point:
    """One job to measure."""

    pipeline: str
    rate: str

    def schedule(self, warm_s: float, seconds: float) -> Schedule:
        """When its rows are due."""
        return Schedule(None if self.rate == FLOOD else float(self.rate), warm_s, seconds)


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at a job. `cpu_s` is processor time by part: the driver's Python, Java, and workers."""

    at_us: int
    cpu_s: Mapping[str, float]
    epoch: int
    read: int
    memory: int


def chosen(size: str, system: str, pipelines: Sequence[str] | None = None, rates: Sequence[str] | None = None) -> list[Point]:
    """The points of a system. Pipelines that are named are run at all rates that are named, whatever the table says; what is not
    named is as the table has it."""
    table = CHOICE[size]
    found = []
    for pipeline in LOADS:
        if pipelines is not None and pipeline not in pipelines:
            continue
        usual = table.get(pipeline, {}).get(system, ())
        if pipelines is not None:
            usual = usual or FEW
        wanted = usual if rates is None or not usual else rates
        if (pipeline, system) not in CANNOT:
            found += [Point(pipeline, rate) for rate in RATES if rate in wanted and (pipeline, system, rate) not in NOT_AT]
    return found


def left_out(pipelines: Sequence[str] | None, rates: Sequence[str] | None, systems: Sequence[str]) -> list[str]:
    """What was named and cannot be measured, in words."""
    wanted = [
        f"{pipeline} on {system}: {reason}"
        for (pipeline, system), reason in CANNOT.items()
        if system in systems and pipeline in (pipelines or ())
    ]
    return wanted + [
        f"{pipeline} on {system} at {rate}: {reason}"
        for (pipeline, system, rate), reason in NOT_AT.items()
        if system in systems and pipeline in (pipelines or ()) and rate in (rates or ())
    ]


def run(system: str, points: Sequence[Point], warm_s: float, seconds: float, spark: Any = None) -> dict[str, Any]:
    """All points of a system, in this process."""
    from benchmarks import loadpeers, loadspark

    if system in FLINK:
        found = loadpeers.flink(FLINK[system], points, warm_s, seconds)
    elif system in PENSTOCK:
        found = penstock(system, points, warm_s, seconds, spark)
    else:
        found = loadspark.run(points, warm_s, seconds)
    for each in found:
        print(f"    {system:22} {words(each)}", flush=True)
    note = "; ".join(f"{each['pipeline']} at {each['rate']}: {each['note']}" for each in found if each["note"])
    return {"loads": found, "verified": not note, "note": note}


def penstock(system: str, points: Sequence[Point], warm_s: float, seconds: float, spark: Any = None) -> list[dict[str, Any]]:
    """All points of one of our runners, behind a warm-up."""
    if spark is None and system != "local":
        from benchmarks.systems import session

        spark = session()
    found = []
    for number, point in enumerate(warmed(points)):
        schedule = point.schedule(warm_s, seconds if number else 1.0)
        with tempfile.TemporaryDirectory(prefix="penstock-bench-", ignore_cleanup_errors=True) as scratch:
            measured = one(LOADS[point.pipeline], schedule, Path(scratch), runner_of(system, spark, Path(scratch)))
        found.append({"pipeline": point.pipeline, "rate": point.rate, **measured})
    return found[1:]


def warmed(points: Sequence[Point]) -> list[Point]:
    """The points behind one that is not counted."""
    return [Point(points[0].pipeline, WARM_RATE), *points] if points else []


def runner_of(system: str, spark: Any, folder: Path) -> pen.Runner:
    """Penstock with the usual options, and snapshots that are written down."""
    options = {
        "parallelism": PARALLELISM,
        "snapshot_every": SNAPSHOT_EVERY,
        "storage": str(folder / "storage"),
        **PENSTOCK[system],
    }
    if system == "local":
        return pen.Local(**options)
    return pen.MicroBatch(spark, **options) if system == "microbatch" else pen.Continuous(spark, **options)


def one(load: Load, schedule: Schedule, folder: Path, runner: pen.Runner) -> dict[str, Any]:
    """Run one job, and look at it at the beginning of its window, in the middle and at the end."""
    with contextlib.ExitStack() as stack:
        job = load.build(schedule, folder).start(runner)
        stack.callback(lambda: job.done or job.cancel())
        feeder = {stack.enter_context(loadfeed.feeding(folder, schedule))} if load.fed else set()
        wait_for(lambda: started(folder) is not None or job.done, "the first reader")
        start_us = started(folder)
        assert start_us is not None, f"the job ended before it began: {job.status()}"
        samples = []
        for offset_s in (schedule.warm_s, schedule.warm_s + schedule.seconds / 2, schedule.whole_s):
            time.sleep(max(0.0, start_us / US + offset_s - time.time()))
            samples.append(sample(job.status().epoch or 0, rows_read(job, folder), feeder))
        if load.fed:
            lines = loadfeed.fed(folder)
            wait_for(lambda: rows_read(job, folder) >= lines or job.done, f"{lines} lines")
            job.stop(timeout=f"{WAIT_S:.0f}s")
        job.wait(timeout=f"{WAIT_S:.0f}s")
        read = {"lines": [lines]} if load.fed else read_of(folder)
    note = load.wrong(schedule, Written.to(folder), read)
    if job.status().restarts:
        note += f"the job was restarted, {job.status().restarts} times: {job.conductor.trouble}"
    found = {**summary(samples, schedule, start_us), "note": note.strip("; "), "verified": not note}
    return found if load.timed is None else {**found, **lateness(updates(folder, load.timed), schedule, start_us)}


def sample(epoch: int, read: int, without: Set[int] = frozenset()) -> Sample:
    """Look once, at all processes but those `without`."""
    members: dict[str, list[int]] = {}
    for member in processes.family(os.getpid()):
        if member not in without:
            java = processes.text_of(member, "comm").strip() == "java"
            members.setdefault("driver" if member == os.getpid() else "java" if java else "workers", []).append(member)
    at_us = time.time_ns() // 1000
    cpu_s = {part: processes.cpu_of_all(each) for part, each in members.items()}
    return Sample(at_us, cpu_s, epoch, read, sum(processes.memory_of(member) for each in members.values() for member in each))


def read_of(folder: Path) -> Read:
    """How far each source was read."""
    return {path.stem: Progress(folder, path.stem).read.tolist() for path in folder.glob("*.read")}


def rows_read(job: Any, folder: Path) -> int:
    """How many rows were read; of files, up to the newest snapshot."""
    manifest = job.conductor.manifest
    noted = sum(map(sum, read_of(folder).values()))
    return noted or (manifest.counters.get("source lines.read", 0) if manifest is not None else 0)


def summary(samples: Sequence[Sample], schedule: Schedule, start_us: int) -> dict[str, Any]:
    """What happened from the first sample to the last."""
    first, last = samples[0], samples[-1]
    seconds = (last.at_us - first.at_us) / US
    parts = {part: round((used - first.cpu_s.get(part, 0.0)) / seconds, 3) for part, used in last.cpu_s.items()}
    found: dict[str, Any] = {
        "cores": round(sum(parts.values()), 3),
        "parts": parts,
        "epochs_s": round((last.epoch - first.epoch) / seconds, 2),
        "rows_s": round((last.read - first.read) / seconds),
        "memory": max(sample.memory for sample in samples),
    }
    if schedule.rate is not None:
        # Never fewer than none: two streams of half the rate, and lanes of their own, have a row due each at the start.
        found["waiting"] = [max(0, schedule.due((each.at_us - start_us) / US) - each.read) for each in (first, last)]
    return found


def lateness(noted: npt.NDArray[np.int64], schedule: Schedule, start_us: int) -> dict[str, float]:
    """How late the rows of the window were counted and committed. `noted`: key, count, when it was written and committed."""
    if not schedule.rate or not len(noted):
        return {}
    key, total, written, committed = noted.T
    which, back = first_counted(key, total)
    number = (total[which] - 1 - back) * KEYS + key[which]
    due_us = number * (US / schedule.rate)
    within = (due_us >= schedule.warm_s * US) & (due_us < schedule.whole_s * US)
    found: dict[str, float] = {}
    for name, at_us in (("", written), ("committed_", committed)):
        late_ms = (at_us[which] - start_us - due_us)[within] / 1e3
        if len(late_ms):
            p50, p99 = np.percentile(late_ms, [50, 99]).round(2).tolist()
            found |= {f"{name}p50_ms": p50, f"{name}p99_ms": p99}
    return found


def words(found: dict[str, Any]) -> str:
    """A point in a line."""
    parts = ", ".join(f"{part} {cores:.2f}" for part, cores in found["parts"].items())
    text = f"{found['pipeline']:10} {found['rate']:>7} rows/s: {found['cores']:.2f} cores ({parts}), {found['epochs_s']:.2f} epochs/s"
    text += f", {found['rows_s']:,} rows/s read, {found['memory'] / 2**20:,.0f} MiB"
    if "waiting" in found:
        text += f", waiting {found['waiting'][0]:,} to {found['waiting'][1]:,}"
    if "p50_ms" in found:
        text += f", result p50 {found['p50_ms']} p99 {found['p99_ms']} ms"
    if "committed_p50_ms" in found:
        text += f", committed p50 {found['committed_p50_ms']:.0f} p99 {found['committed_p99_ms']:.0f} ms"
    return text + (f"  WRONG: {found['note']}" if found["note"] else "")


assert KEYS % SPLITS == 0, "the rows of a key come from one split"
