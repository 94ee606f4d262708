"""How cost grows: with tasks, keys, the size of batches, channels, and the size of the state.

    python -m benchmarks.run --case scaling

1. **parallelism**: ad counts of generated events in one task and in two, beside Flink; also with a Python function per event, where next to
   nothing but the function takes time. Two should be twice as fast, or as fast as two processes that know nothing of each other: cores
   share a cache and the way to memory. What the driver does, it does on the other core while there is one task, and at the expense of
   two: with a snapshot every 200 ms, as in the throughput cases, that is 5% of them.
2. **keys**: a count per key, as many rows, or a few of each key, over a thousand to ten million. Rows should cost the same; where a batch
   has a key many times, they are counted in front of the exchange and cost less, and the updates per row tell.
3. **exchanged**: the same, but nothing is counted in front of the exchange: what keys cost in the table, with nothing saved before it.
4. **functions**: a Python function per row that counts in its keyed state. It is called for every row whatever the number of keys, so here
   rows should cost the same from the fewest keys on.
5. **batch**: a count per key again, with sources that hand out fewer rows at a time.
6. **channels**: the same in more and more tasks, on the same two cores. Each task has a channel to each: what more of them cost is
   overhead.
7. **state**: a table of more and more keys, of which the same number change between two snapshots. What changes should cost, not what
   is there.

A curve is a list of points; each has a name, what it cost, and figures. Every point is checked.
"""

from __future__ import annotations

import functools
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import penstock as pen
from benchmarks import flinkpeer, statefunctions, statejobs, systems, workload
from benchmarks.measure import Run, difference
from benchmarks.scattered import Scattered, Unfolded
from benchmarks.state import FILL_KEYS, Stored, summary, wrong_total
from benchmarks.workload import Input
from penstock import sinks
from penstock.checkpoints.storage import open_store
from penstock.connectors.connector import Sink, Source
from penstock.runners.runner import Runner

PARTS = ("parallelism", "keys", "exchanged", "functions", "batch", "channels", "state")
KEYS = (1_000, 10_000, 100_000, 1_000_000, 10_000_000)
BATCHES = (65_536, 16_384, 4_096, 1_024)
TASKS_COMPARED = (1, 2)
WHAT = ("whole", "steady")
TASKS = (2, 4, 8)
ROUNDS_MIN = 8  # over all keys, of which the first two find them new
FOLDED_KEYS = 10_000  # up to so many, a batch has each key many times
FOLDED_ROWS = 5  # so many times the rows: they take a fifth of the time
SNAPSHOT_EVERY = "400ms"  # of tasks that are compared: ten of them in the four seconds that two take
PAIRS = 5  # more and shorter runs of one and of two: seconds that follow each other are alike, minutes are not
FEW_KEYS = 100_000
MANY_KEYS = 1_000_000  # from here on a process has more for its keys than for its batches
CHANGED, SNAPSHOTS = 10_000, 50
ALONE_S = 120

Point = dict[str, Any]
MakeRunner = Callable[[int], Runner]
"""A runner of so many tasks."""


def run(part: str, *, runs: int, scale: float) -> dict[str, Any]:
    """One curve; `scale`: how many of the rows. There are no more keys than rows."""
    match part:
        case "parallelism":
            return curve((point for system in SYSTEMS for point in parallelism(system, scale, runs)), compared="")
        case "keys":
            return curve(keys(int(40_000_000 * scale), runs, tasks_on(systems.PARALLELISM)))
        case "exchanged":
            return curve(exchanged(int(40_000_000 * scale), runs, tasks_on(systems.PARALLELISM)))
        case "functions":
            return curve(functions_over_keys(int(2_000_000 * scale), int(10_000_000 * scale), tasks_on(systems.PARALLELISM)))
        case "batch":
            return curve(batches(int(5_000_000 * scale), runs, tasks_on(systems.PARALLELISM)))
        case "channels":
            return curve(channels(int(10_000_000 * scale), runs, tasks_on(max(TASKS))))
        case _:
            with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
                return curve(states(int(10_000_000 * scale), Path(folder)))


def curve(points: Iterator[Point], compared: str = "cost, to the first") -> dict[str, Any]:
    """All points, and what is wrong with any. `compared`: the name of a figure that says how much more than the first one costs."""
    found = list(points)
    if compared:
        for each in found:
            each["figures"][compared] = f"{each['cost'] / found[0]['cost']:.2f}x"
    note = "; ".join(f"{point['name']}: {point['note']}" for point in found if point["note"])
    return {"points": found, "verified": not note, "note": note}


def tasks_on(slots: int) -> MakeRunner:
    """Runners on a Spark that has so many slots, with snapshots every second."""
    spark = systems.session(slots)
    return lambda tasks: pen.Continuous(spark, parallelism=tasks, snapshot_every="1s")


# Tasks.


def penstock(
    runner: Callable[[int], Runner], job: Callable[[Source], pen.Pipeline], rows: int, runs: int, pairs: int = 0
) -> dict[int, list[Run]]:
    """One task and two in turn, so often, or at least `pairs` times, after a run of each that warms up."""
    found: dict[int, list[Run]] = {tasks: [] for tasks in TASKS_COMPARED}
    for count in (rows // 4, *[rows] * max(runs, pairs)):
        for tasks, each in found.items():
            each.append(systems.run_penstock(runner(tasks), job(workload.generated(count)), count))
    return {tasks: each[1:] for tasks, each in found.items()}


def continuous(tasks: int) -> Runner:
    """Tasks on the Spark of the other cases."""
    return pen.Continuous(systems.session(), parallelism=tasks, snapshot_every=SNAPSHOT_EVERY)


def microbatch(tasks: int) -> Runner:
    """With epochs as long as they are if nobody says anything."""
    return pen.MicroBatch(systems.session(), parallelism=tasks)


def flink(rows: int, runs: int) -> dict[int, list[Run]]:
    """The same by Flink, which is started for each."""
    events, warm_up = Input(rows, Path()), Input(rows // 4, Path())
    run = functools.partial(flinkpeer.run, "flink", "generated", events, warm_up, snapshot_every=SNAPSHOT_EVERY)
    return {tasks: run(runs=runs, parallelism=tasks) for tasks in TASKS_COMPARED}


def strangers(rows: int, runs: int) -> dict[int, list[Run]]:
    """One process, and two that know nothing of each other: what the machine has for a second one. Each counts all rows, by itself."""
    found: dict[int, list[Run]] = {count: [] for count in TASKS_COMPARED}
    for _ in range(runs):
        for count, each in found.items():
            each.append(together(count, rows))
    return found


def together(count: int, rows: int) -> Run:
    """So many processes that begin at the same moment, when all have warmed up."""
    context = multiprocessing.get_context("spawn")
    answers, barrier = context.Queue(), context.Barrier(count)
    members = [context.Process(target=alone, args=(rows, barrier, answers)) for _ in range(count)]
    for member in members:
        member.start()
    said = [answers.get(timeout=ALONE_S) for _ in members]
    for member in members:
        member.join()
    seconds = max(end for _, end, _ in said) - min(begin for begin, _, _ in said)
    note = "; ".join(sorted({difference(counts, workload.expected(rows)) for _, _, counts in said} - {""}))
    return Run(count * rows, [(seconds, count * rows)], not note, note)


def alone(rows: int, barrier: Any, answers: Any) -> None:
    """In such a process: when it began, when it ended, and what it counted."""
    for count in (rows // 4, rows):
        sinks.memory(workload.SINK).clear()
        if count == rows:
            barrier.wait(ALONE_S)
        begin = time.time()
        workload.ad_counts(workload.generated(count)).run(pen.Local())
        end = time.time()
    answers.put((begin, end, workload.committed()))


SYSTEMS: dict[str, tuple[Callable[[int, int], dict[int, list[Run]]], int]] = {
    "Penstock Continuous": (functools.partial(penstock, continuous, workload.ad_counts, pairs=PAIRS), 360_000_000),
    "Penstock Continuous, a Python function per event": (
        functools.partial(penstock, continuous, workload.ad_counts_by_function, pairs=PAIRS),
        27_000_000,
    ),
    "Penstock MicroBatch": (functools.partial(penstock, microbatch, workload.ad_counts), 400_000_000),
    "Flink": (flink, 32_000_000),
    "Penstock Local, tasks that know nothing of each other": (strangers, 80_000_000),
}
"""What runs each, and how many rows take some seconds."""


def parallelism(system: str, scale: float, runs: int) -> Iterator[Point]:
    """One task and two: by the medians of each, and run by run, each of two beside the one of one before it. What the machine's hour is
    like counts for both of a pair; medians may be of different hours."""
    run, rows = SYSTEMS[system]
    found = run(int(rows * scale), runs)
    alone = found[TASKS_COMPARED[0]]
    for tasks, each in found.items():
        whole, steady = (statistics.median(getattr(one, what) for one in each) for what in WHAT)
        yield {
            "name": f"{system}, {tasks} task{'s' if tasks > 1 else ''}",
            "cost": 1e9 / whole,
            "note": "; ".join(one.note for one in each if one.note),
            "figures": {
                "events/s, whole": f"{whole / 1e6:.2f}M",
                "steady": f"{steady / 1e6:.2f}M",
                "to one task, by medians": ", ".join(f"{by_medians(each, alone, what):.2f}x" for what in WHAT),
                "run by run": ", ".join(f"{run_by_run(each, alone, what):.2f}x" for what in WHAT),
                "commits": str(min(len(one.commits) for one in each)),
            },
        }


def by_medians(some: Sequence[Run], others: Sequence[Run], what: str) -> float:
    """How many times as fast some runs are as others: the median of these to the median of those."""
    first, second = (statistics.median(getattr(one, what) for one in runs) for runs in (some, others))
    return first / second


def run_by_run(some: Sequence[Run], others: Sequence[Run], what: str) -> float:
    """The same, each beside its own: the median of those."""
    return statistics.median(getattr(one, what) / getattr(other, what) for one, other in zip(some, others, strict=True))


# Keys, batches, channels.


def keys(rows: int, runs: int, runner: MakeRunner) -> Iterator[Point]:
    """As many rows, or a few of each key, over more and more. Of a key in memory is what a process has more than with the fewest keys."""
    least = 0
    for count in KEYS:
        if count > rows:
            break
        wanted = rows * FOLDED_ROWS if count <= FOLDED_KEYS else rows
        found = measured(Scattered(count, max(ROUNDS_MIN, wanted // count)), runner(systems.PARALLELISM), runs)
        memory = max(each.memory for each in found)
        least = least or memory
        more = systems.PARALLELISM * (memory - least) / count
        figures = {"memory of a task's process": f"{memory / 2**20:,.0f} MiB"}
        figures["memory per key"] = f"{more:,.0f} bytes" if count >= MANY_KEYS else "-"
        yield point(f"{count:,} keys", found, figures)


def exchanged(rows: int, runs: int, runner: MakeRunner) -> Iterator[Point]:
    """As many rows over more and more keys, and each row crosses the exchange."""
    for count in KEYS:
        if count > rows:
            break
        source = Unfolded(count, max(ROUNDS_MIN, rows // count))
        yield point(f"{count:,} keys", measured(source, runner(systems.PARALLELISM), runs), {})


def functions_over_keys(rows: int, keys_max: int, runner: MakeRunner) -> Iterator[Point]:
    """A function per row in place of the count: so many rows, or two of each key; a run of each, since they are long."""
    for count in KEYS:
        if count > keys_max:
            break
        source = Scattered(count, max(2, rows // count))
        found = measured(source, runner(systems.PARALLELISM), 1, pipeline=statefunctions.counting(statefunctions.Count))
        yield point(f"{count:,} keys", found, {"memory of a task's process": f"{found[0].memory / 2**20:,.0f} MiB"})


def batches(rows: int, runs: int, runner: MakeRunner) -> Iterator[Point]:
    """Sources that hand out fewer and fewer rows at a time."""
    for batch in BATCHES:
        source = Scattered(FEW_KEYS, max(1, rows // FEW_KEYS), batch=batch)
        yield point(f"{batch:,} rows", measured(source, runner(systems.PARALLELISM), runs), {})


def channels(rows: int, runs: int, runner: MakeRunner) -> Iterator[Point]:
    """More and more tasks, each with a split of its own and a channel to each."""
    for tasks in TASKS:
        source = Scattered(FEW_KEYS, max(1, rows // FEW_KEYS), lanes=tasks)
        yield point(f"{tasks} tasks, {tasks**2} channels", measured(source, runner(tasks), runs), {})


def measured(
    source: Scattered, runner: Runner, runs: int, pipeline: Callable[[Source, Sink], pen.Pipeline] = statejobs.counting
) -> list[statejobs.Counted]:
    """Several runs, after one that warms up. Each split has every key: once each of them was seen so many times all are there."""
    statejobs.count(Scattered(1_000, 100, lanes=source.lanes), runner, pipeline=pipeline)  # what is imported on first use
    filled = min(source.lanes, source.rounds // 2)
    return [statejobs.count(source, runner, filled=filled, pipeline=pipeline) for _ in range(runs)]


def point(name: str, found: list[statejobs.Counted], figures: dict[str, str]) -> Point:
    """Medians of several runs. The cost is processor time: of all workers, all threads."""
    rate, cpu_ns = (statistics.median(getattr(each, what) for each in found) for what in ("rate", "cpu_ns"))
    note = "; ".join({each.note for each in found if each.note})
    costs = {"rows/s": f"{rate / 1e6:.2f}M", "processor time per row": f"{cpu_ns:,.0f} ns"}
    costs["updates per row"] = f"{found[0].updates / found[0].rows:.2f}"
    return {"name": name, "cost": cpu_ns, "rate": rate, "note": note, "figures": {**costs, **figures}}


# The size of the state.


def states(largest: int, folder: Path) -> Iterator[Point]:
    """Tables of more and more keys, one after the other, and what ten thousand changes cost each."""
    random = np.random.default_rng(5)
    for count in (largest // 100, largest // 10, largest):
        table = Stored(open_store(folder / str(count)))
        everything = random.permutation(count)
        for start in range(0, count, FILL_KEYS):
            table.change(everything[start : start + FILL_KEYS])
        changed = min(CHANGED, count)
        cost = summary([table.change(random.choice(count, changed, replace=False)) for _ in range(SNAPSHOTS)])
        restored, restore_s = table.restored()
        yield {
            "name": f"{count:,} keys",
            "cost": cost["pause_p50_ms"],
            "note": wrong_total(restored, table.counted),
            "figures": {
                "files": f"{sum(file.stat().st_size for file in (folder / str(count)).rglob('*.arrow')) / 2**20:,.0f} MiB",
                f"pause for {changed:,} changes, p50 and p99": f"{cost['pause_p50_ms']:.2f} ms, {cost['pause_p99_ms']:.2f} ms",
                "written per change, with compaction": f"{cost['bytes_written_per_change']:,.0f} bytes",
                "restored in": f"{restore_s:.2f} s",
            },
        }
