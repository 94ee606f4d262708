"""A pipeline that counts per key, with as many keys as one likes; in two tasks, exactly once.

Row i has key `i % keys`, and batches are shorter than that, so a key occurs once in a batch and every update adds one: with r rounds
over the keys there are `keys * r` updates, whose counts add up to `keys * r * (r + 1) / 2`. A count that was lost or forgotten
shows.

The sink is in the task that counts, and notes what that process lives through: how much memory it has, how long its thread stands
still for a snapshot, and the longest it had nothing to write.
"""

from __future__ import annotations

import functools
import json
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

import penstock as pen
from benchmarks import sampler, workload
from benchmarks.measure import Run
from benchmarks.state import BATCH, MEMORY_MAX, memory_now
from benchmarks.systems import PARALLELISM, run_penstock, session
from benchmarks.traced import Cost, EveryOther, Notes, Trace, Traced
from penstock.connectors.connector import (
    Chunk,
    Committer,
    Json,
    Reader,
    Sink,
    SinkContext,
    Source,
    SourceContext,
    Verdict,
    Writer,
)
from penstock.state.table import KeyedTable

SCHEMA = pa.schema([pa.field("key", pa.int64(), nullable=False)])
SPLITS = 2

T = TypeVar("T")


@dataclass(frozen=True)
class Keys(Source):
    """`rounds` times each of the keys."""

    keys: int
    rounds: int
    name: str = "keys"
    bounded: bool = True
    replayable: bool = True
    schema: pa.Schema = SCHEMA
    joined: bool = False  # a key is in a batch once

    def splits(self) -> tuple[str, ...]:
        return tuple(str(split) for split in range(SPLITS))

    def open(self, split: str, position: Json, context: SourceContext) -> Reader:
        return KeysReader(self, int(split), position or 0)

    def describe(self) -> str:
        return f"{self.keys} keys in turn"

    def wrong(self, said: Sequence[Mapping[str, int]]) -> str:
        """What is wrong with what the writers say, in words; empty if nothing is."""
        rows, total = (sum(each[what] for each in said) for what in ("rows", "total"))
        wanted = (self.keys * self.rounds, self.keys * self.rounds * (self.rounds + 1) // 2)
        return "" if (rows, total) == wanted else f"{rows} updates with counts of {total} instead of {wanted[0]} with {wanted[1]}"


class KeysReader(Reader):
    """Row n of split s is row `n * SPLITS + s` of all."""

    def __init__(self, source: Keys, split: int, position: int) -> None:
        assert source.keys % SPLITS == 0, "the rows of a key come from one split"
        self.source, self.split, self.position = source, split, position
        self.end = source.keys * source.rounds // SPLITS
        self.batch = min(BATCH, source.keys // SPLITS)

    def poll(self, rows_max: int) -> Chunk | None:
        count = min(self.batch, rows_max, self.end - self.position)
        number = np.arange(self.position, self.position + count, dtype=np.int64) * SPLITS + self.split
        self.position += count
        batch = pa.RecordBatch.from_arrays([pa.array(number % self.source.keys)], schema=SCHEMA)
        return Chunk(batch, self.position, ended=self.position >= self.end)


@dataclass(frozen=True)
class Tally(Sink):
    """Adds up updates (key, n), of which `rounds` is a key's last; a file per committed epoch with what each writer says.

    Time is taken from the first batch on that has no n up to `filled`: all keys are there by then.
    """

    folder: Path
    rounds: int
    limited: bool = False
    filled: int = 0
    traces: Path | None = None  # where to note when there were how many rows
    name: str = "tally"
    accepts: frozenset[str] = frozenset({"append", "update"})

    def writer(self, context: SinkContext) -> Writer:
        notes = None if self.traces is None else Notes(self.traces / f"{context.uid.replace('/', '-')}.trace")
        return TallyWriter(self.rounds, self.limited, self.filled, notes)

    def committer(self, context: SinkContext) -> Committer:
        return TallyCommitter(self.folder)


class TallyWriter(Writer):
    """In the task that counts."""

    def __init__(self, rounds: int, limited: bool, filled: int, notes: Notes | None) -> None:
        sampler.start_if_wanted()
        self.notes = notes
        self.limited = limited
        if limited:
            resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_MAX, usual_limits()[1]))
        watch_pauses()
        self.rounds, self.filled = rounds, filled
        self.before = self.rows = self.total = self.done = self.most = 0
        self.first_at = self.last_at = 0  # microseconds, as everything here that is written down
        self.gap = self.cpu = 0

    def write(self, batch: pa.RecordBatch) -> None:
        now = time.time_ns() // 1000
        counts = batch.column("n").to_numpy()
        if self.notes is not None:
            self.notes.add(len(counts))
        if not self.first_at and counts.min(initial=self.rounds) > self.filled:
            self.first_at = self.last_at = now
            self.cpu = time.process_time_ns() // 1000
        if self.first_at:
            self.gap, self.last_at = max(self.gap, now - self.last_at), now
        else:
            self.before += len(counts)
        self.rows += len(counts)
        self.total += int(counts.sum())
        self.done += int((counts == self.rounds).sum())
        self.most = max(self.most, int(counts.max(initial=0)))

    def close(self) -> None:
        if self.limited:  # what runs in this process later has nothing to do with it
            resource.setrlimit(resource.RLIMIT_DATA, usual_limits())

    def prepare(self, epoch: int) -> list[Json]:
        if self.notes is not None:
            self.notes.write()
        times = {"first_at": self.first_at, "last_at": self.last_at, "gap": self.gap}
        times |= {"cpu": time.process_time_ns() // 1000 - self.cpu, "process": os.getpid()}
        counts = {"rows": self.rows, "before": self.before, "total": self.total, "done": self.done, "most": self.most}
        said = {**counts, "memory": memory_now(), "pauses": list(PAUSES), **times}
        self.before = self.rows = self.total = self.done = self.most = self.gap = 0
        PAUSES.clear()
        return [said]


class TallyCommitter(Committer):
    """Beside the coordinator."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def commit(self, epoch: int, committables: Sequence[Json], attempt: int) -> Verdict:
        new = self.folder / f"{epoch}.tmp"
        new.write_text(json.dumps(list(committables)))
        os.replace(new, self.folder / f"{epoch}.json")
        return Verdict.DONE


@functools.cache
def usual_limits() -> tuple[int, int]:
    """Of the memory of this process, before anybody changed them."""
    return resource.getrlimit(resource.RLIMIT_DATA)


PAUSES: list[int] = []
"""Microseconds that snapshots cost the thread of this process, since they were last asked for."""


@functools.cache
def watch_pauses() -> None:
    """Take the time of `freeze` and `stored` in this process."""

    def timed(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def call(*args: Any) -> Any:
            began = time.perf_counter()
            result = method(*args)
            PAUSES.append(round((time.perf_counter() - began) * 1e6))
            return result

        return call

    for name in ("freeze", "stored"):
        setattr(KeyedTable, name, timed(getattr(KeyedTable, name)))


def counting(source: Source, sink: Sink) -> pen.Pipeline:
    """Count rows per key."""
    return pen.Pipeline("counts").read(source).key_by("key").aggregate(n=pen.count(), name="counts").write(sink)


@dataclass(frozen=True, slots=True)
class Counted:
    """What came of a run."""

    rows: int  # without those before all keys were there
    updates: int  # as many as rows, unless a key occurs several times in a batch
    seconds: float  # from the first update to the last, of those rows
    cpu_s: float  # of all processes, all threads, from their first update on
    note: str
    commits: int
    memory: int
    pauses_ms: list[float]
    gap_ms: float

    @property
    def rate(self) -> float:
        """Rows per second."""
        return self.rows / self.seconds

    @property
    def cpu_ns(self) -> float:
        """Processor time per row. Other work on the machine changes it little."""
        return self.cpu_s / self.rows * 1e9


def count(
    source: Keys,
    runner: pen.Runner,
    *,
    limited: bool = False,
    filled: int = 0,
    pipeline: Callable[[Source, Sink], pen.Pipeline] = counting,
    traces: Path | None = None,
) -> Counted:
    """Run to the end, and check. `traces`: where to note when there were how many rows."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        pipeline(source, Tally(Path(folder), source.rounds, limited, filled, traces)).run(runner)
        epochs = [json.loads(file.read_text()) for file in Path(folder).glob("*.json")]
    said = [each for epoch in epochs for each in epoch]
    wrote = [each for each in said if each["first_at"]]
    cpu = {process: max(each["cpu"] for each in wrote if each["process"] == process) for process in {w["process"] for w in wrote}}
    return Counted(
        source.keys * source.rounds - sum(each["before"] for each in said),
        sum(each["rows"] - each["before"] for each in said),
        (max(each["last_at"] for each in wrote) - min(each["first_at"] for each in wrote)) / 1e6,
        sum(cpu.values()) / 1e6,
        source.wrong(said),
        len(epochs),
        max(each["memory"] for each in said),
        [pause / 1e3 for each in said for pause in each["pauses"]],
        max(each["gap"] for each in said) / 1e3,
    )


def continuous(snapshot_every: str, state: str = "columnar") -> pen.Runner:
    """Two tasks."""
    return pen.Continuous(session(), parallelism=PARALLELISM, snapshot_every=snapshot_every, state=state)


def large(keys: int, runner: pen.Runner | None = None) -> dict[str, Any]:
    """All keys, and all of them again: none is at hand by then."""
    runner = runner or continuous("1s")
    count(Keys(max(keys // 20, 2 * SPLITS) // 2 * 2, 1), runner)  # what is imported on first use
    found = count(Keys(keys, 2), runner, limited=True)
    p50, p99 = np.percentile(found.pauses_ms, [50, 99]).round(1).tolist()
    figures = {
        "keys, each twice, in two tasks": f"{keys:,}",
        "updates per second; processor time for one": f"{found.rate / 1e6:.2f}M; {found.cpu_ns:.0f} ns",
        "memory of a task's process, most at a snapshot (limit 4 GiB)": f"{found.memory / 2**20:,.0f} MiB",
        "snapshots": str(found.commits),
        "calls of `freeze` and `stored`: p50, p99, most": f"{p50} ms, {p99} ms, {max(found.pauses_ms):.1f} ms",
        "longest time without an update": f"{found.gap_ms:.0f} ms",
    }
    rates = {f"a pipeline, {keys:,} keys": round(found.rate)}
    return {"rates": rates, "figures": figures, "verified": not found.note, "note": found.note}


def snapshots(
    keys: int,
    rounds: int,
    runs: int,
    runner: Callable[[], pen.Runner] = EveryOther,
    pipeline: Callable[[Source, Sink], pen.Pipeline] = counting,
    what: str = "a pipeline",
    seconds: float | None = None,
) -> dict[str, Any]:
    """What snapshots cost: see `traced.py`. `seconds`: how long a run should take; `rounds` are then those of the warm-up, which tells
    how many it takes."""
    warm_up = count(Keys(keys, rounds), runner(), pipeline=pipeline)
    if seconds is not None:
        rounds = max(2, round(warm_up.rate * seconds / keys))

    def run(folder: Path) -> Counted:
        return count(Keys(keys, rounds), runner(), pipeline=pipeline, traces=folder)

    found, cost = traced_runs(run, runs)
    pauses = [pause for each in found for pause in each.pauses_ms]
    figures = {
        "what; keys, rounds over them": f"{what}; {keys:,}, {rounds}",
        **cost.figures("updates"),
        "snapshots in a run": str(min(each.commits for each in found)),
        "calls of `freeze` and `stored`: p99, most": f"{np.percentile(pauses, 99):.1f} ms, {max(pauses):.1f} ms",
        "longest time without an update": f"{max(each.gap_ms for each in found):.0f} ms",
    }
    rate = statistics.median(each.rate for each in found)
    return compared(
        figures, {f"{what}, {keys:,} keys, a snapshot every other second": round(rate)}, [each.note for each in found]
    )


def ad_counts(
    rows: int, runs: int, runner: Callable[[], pen.Runner] = EveryOther, seconds: float | None = None
) -> dict[str, Any]:
    """The same for views per campaign and window, of generated events."""
    warm_up = run_penstock(runner(), workload.ad_counts(workload.generated(rows)), rows)
    if seconds is not None:
        rows = int(warm_up.steady * seconds)

    def run(folder: Path) -> Run:
        return run_penstock(runner(), workload.ad_counts(Traced(workload.generated(rows), folder)), rows)

    found, cost = traced_runs(run, runs)
    figures = {"what; rows": f"ad counts; {rows:,}", **cost.figures("events")}
    figures["snapshots in a run"] = str(min(len(each.commits) for each in found))
    return compared(figures, {}, [each.note for each in found])


def traced_runs(run: Callable[[Path], T], runs: int) -> tuple[list[T], Cost]:
    """So many of them, and what snapshots cost them."""
    found, traces = [], []
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        for _ in range(runs):
            found.append(run(Path(folder)))
            traces.append(Trace.read(Path(folder)))
    return found, Cost.of(traces)


def compared(figures: dict[str, str], rates: dict[str, int], notes: Iterable[str]) -> dict[str, Any]:
    """A result of this part."""
    note = "; ".join(sorted({each for each in notes if each}))
    return {"rates": rates, "figures": figures, "verified": not note, "note": note}
