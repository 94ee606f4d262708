"""What a slow sink does to checkpoints and memory: the same running count with a sink that keeps up, and with one that does not.

    python -m benchmarks.run --case backpressure

1. With a sink that only notes what it is given, the pipeline shows how many rows a second the source can give.
2. Then the sink sleeps for every row, as long as makes it a hundred times slower. All channels are full, with seconds of work in
   them. Once snapshots may be taken with the rows in flight (`unaligned_after`), and once they wait for them.

The aim is a checkpoint within two intervals, and memory that does not grow. A worker reads about as often as it writes, so a slow
sink fills the channels slowly, too; therefore it is three times as fast in the first seconds, which are not counted. In the end the
job is stopped: what is in the channels is written, and the last snapshot waits for it. That one is aligned by design and not counted
either. Counted are checkpoints that were triggered between the two.

No call is interrupted by a snapshot. The source hands out `PIECE` rows at a time, which would keep the slow sink busy for seconds; a task
takes them in pieces as soon as it has seen how slow they are.

A key is in a piece once, so every row becomes an update: row i must be committed exactly once, with the count `i // KEYS + 1`.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import penstock as pen
from benchmarks import processes
from benchmarks.recovery import WAIT_S, rows_of, server_of, wait_for
from benchmarks.systems import PARALLELISM, session
from penstock import col, count
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

KEYS = 200_000
SPLITS = 2
PIECE = 65_536
FACTOR = 100
INTERVAL_S = 1.0
INTERVALS_MAX = 2  # the aim: from one checkpoint to the next
UNALIGNED_AFTER = "200ms"
FAST_S = 3.0
FILL_S = 3.0
FILL_FASTER = 3
LOOK_S = 0.005
SCHEMA = pa.schema([pa.field("key", pa.int64(), nullable=False), pa.field("number", pa.int64(), nullable=False)])

assert KEYS % SPLITS == 0, "the rows of a key come from one split"
assert PIECE <= KEYS // SPLITS, "a key is in a piece once"


@dataclass(frozen=True)
class Flood(Source):
    """Rows (key, number) without end, as fast as anybody takes them."""

    name: str = "flood"
    schema: pa.Schema = SCHEMA
    joined: bool = False  # a key is in a batch once

    def splits(self) -> tuple[str, ...]:
        return tuple(str(split) for split in range(SPLITS))

    def open(self, split: str, position: Json, context: SourceContext) -> Reader:
        return FloodReader(int(split), position or 0)


class FloodReader(Reader):
    """Row n of split s is row `n * SPLITS + s` of all."""

    def __init__(self, split: int, position: int) -> None:
        self.split, self.position = split, position

    def poll(self, rows_max: int) -> Chunk | None:
        rows = min(rows_max, PIECE)
        number = np.arange(self.position, self.position + rows, dtype=np.int64) * SPLITS + self.split
        self.position += rows
        return Chunk(pa.RecordBatch.from_arrays([pa.array(number % KEYS), pa.array(number)], schema=SCHEMA), self.position)


@dataclass(frozen=True)
class Slow(Sink):
    """Takes updates (key, n, number), each in `row_s` seconds, and notes their numbers: files of committed epochs.

    For `fill_s` from its first row on it is `FILL_FASTER` times as fast.
    """

    folder: Path
    row_s: float
    fill_s: float
    name: str = "slow"
    accepts: frozenset[str] = frozenset({"update"})

    def writer(self, context: SinkContext) -> Writer:
        return SlowWriter(self, context.uid)

    def committer(self, context: SinkContext) -> Committer:
        return SlowCommitter(self.folder)


class SlowWriter(Writer):
    """In the task that counts. A row with a wrong count is noted as -1, which no row is."""

    def __init__(self, sink: Slow, uid: str) -> None:
        self.sink, self.uid = sink, uid
        self.slow_at = 0.0
        self.written: list[npt.NDArray[np.int64]] = []

    def write(self, batch: pa.RecordBatch) -> None:
        number, n = (batch.column(name).to_numpy() for name in ("number", "n"))
        self.written.append(np.where(n == number // KEYS + 1, number, -1))
        self.slow_at = self.slow_at or time.monotonic() + self.sink.fill_s
        faster = FILL_FASTER if time.monotonic() < self.slow_at else 1
        time.sleep(batch.num_rows * self.sink.row_s / faster)

    def prepare(self, epoch: int) -> list[str]:
        if not self.written:
            return []
        name = f"{epoch}-{self.uid}.i64"
        np.concatenate(self.written).tofile(self.sink.folder / f".{name}")
        self.written = []
        return [name]


class SlowCommitter(Committer):
    """Beside the coordinator: what is committed loses its dot."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def commit(self, epoch: int, committables: Sequence[Json], attempt: int) -> Verdict:
        for name in committables:
            os.replace(self.folder / f".{name}", self.folder / name)
        return Verdict.DONE


def committed(folder: Path) -> dict[int, npt.NDArray[np.int64]]:
    """The numbers of the rows that each epoch committed."""
    found: dict[int, list[npt.NDArray[np.int64]]] = {}
    for file in folder.glob("[!.]*.i64"):
        found.setdefault(int(file.name.partition("-")[0]), []).append(np.fromfile(file, np.int64))
    return {epoch: np.concatenate(numbers) for epoch, numbers in found.items()}


def wrong_rows(committed: Iterable[npt.NDArray[np.int64]], read: Iterable[npt.NDArray[np.int64]]) -> str:
    """What is wrong with the rows that were committed, in words; empty if each that was read is there once."""
    found, wanted = (np.sort(np.concatenate(list(numbers))) for numbers in (committed, read))
    if np.array_equal(found, wanted):
        return ""
    missing, twice = len(np.setdiff1d(wanted, found)), len(found) - len(np.unique(found))
    return f"{len(found)} rows were committed, {len(wanted)} were read; {missing} are missing or wrong, {twice} are there again"


@dataclass(slots=True)
class Seen:
    """What was seen of a job: moments in seconds, by epoch; of checkpoints the bytes in flight; (moment, bytes) of the workers."""

    triggered: dict[int, float] = field(default_factory=dict)
    published: dict[int, float] = field(default_factory=dict)
    in_flight: dict[int, int] = field(default_factory=dict)
    memory: list[tuple[float, int]] = field(default_factory=list)

    def look(self, job: Any) -> None:
        """Look once."""
        now, epoch = time.perf_counter(), job.conductor._core.in_flight
        if epoch is not None:
            self.triggered.setdefault(epoch, now)
        manifest = job.conductor.manifest
        if manifest is not None and manifest.epoch not in self.published:
            self.triggered.setdefault(manifest.epoch, now)  # if all of it was between two looks
            self.published[manifest.epoch] = now
            self.in_flight[manifest.epoch] = sum(entry.bytes for entry in manifest.in_flight)
        server = server_of(job)
        if server is not None and (not self.memory or now - self.memory[-1][0] >= processes.EVERY_S):
            self.memory.append((now, sum(map(processes.memory_of, server.processes()))))

    def summary(self, began: float, stopped: float, rows: Mapping[int, int]) -> dict[str, Any]:
        """Of the checkpoints that were triggered between the two moments; `rows` are those that each epoch committed."""
        epochs = list(self.published)
        counted = [epoch for epoch in epochs if began <= self.triggered[epoch] < stopped]
        assert counted, f"no checkpoint was triggered within {stopped - began:.1f} s: that is too short"
        before = {epoch: self.published[earlier] for earlier, epoch in pairwise(epochs)}
        first, last = counted[0], epochs[-1]
        written = sum(number for epoch, number in rows.items() if epoch > first)
        quarter = (stopped - began) / 4
        second, fourth = (
            float(np.median([held for at, held in self.memory if start <= at - began <= start + quarter]))
            for start in (quarter, 3 * quarter)
        )
        return {
            "rate": round(written / (self.published[last] - self.published[first])),
            "checkpoints": len(counted),
            "gaps_s": [round(self.published[epoch] - before[epoch], 3) for epoch in counted],
            "took_s": [round(self.published[epoch] - self.triggered[epoch], 3) for epoch in counted],
            "in_flight_bytes": max(self.in_flight[epoch] for epoch in counted),
            "memory": max(held for _, held in self.memory),
            "memory_growth": round(fourth - second),
        }


def measured(name: str, row_s: float, seconds: float, unaligned_after: str, spark: Any, fill_s: float = FILL_S) -> dict[str, Any]:
    """The job with one sink: for so many seconds once channels are full, and until what was read is written."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as scratch:
        keyed = pen.Pipeline("backpressure").read(Flood()).key_by("key")
        counts = keyed.aggregate(n=count(), number=col("number").max(), name="counts")
        every = f"{INTERVAL_S * 1000:.0f}ms"
        runner = pen.Continuous(spark, parallelism=PARALLELISM, snapshot_every=every, unaligned_after=unaligned_after)
        job = counts.write(Slow(Path(scratch), row_s, fill_s)).start(runner)
        try:
            wait_for(lambda: (server := server_of(job)) is not None and server.complete, "the workers")
            seen = Seen()
            with processes.looking(lambda: seen.look(job), LOOK_S):
                time.sleep(fill_s)
                wait_for(lambda: len(seen.published) > 0, "the first checkpoint")
                began = time.perf_counter()
                time.sleep(seconds)
                stopped = time.perf_counter()
                job.stop(timeout=f"{WAIT_S:.0f}s")
        finally:
            if not job.done:
                job.cancel()
        epochs = committed(Path(scratch))
    found = seen.summary(began, stopped, {epoch: len(numbers) for epoch, numbers in epochs.items()})
    note = wrong_rows(epochs.values(), rows_of(job.conductor.manifest))
    if row_s and unaligned_after != "never" and not found["in_flight_bytes"]:
        note += " no checkpoint has rows in flight: nothing was in its way, and this proves nothing"
    if job.status().restarts:
        note += f" the job was restarted: {job.status().restarts} times"
    return {"name": name, "row_s": row_s, "rows": sum(map(len, epochs.values())), "note": note.strip(), **found}


def run(seconds: float, *, aligned_too: bool, spark: Any = None) -> dict[str, Any]:
    """A sink that keeps up, then a slow one; beside it, if wanted, the same with aligned snapshots only."""
    spark = spark or session()
    fast = measured("a sink that keeps up", 0.0, FAST_S, "never", spark, fill_s=0)
    row_s = FACTOR * PARALLELISM / fast["rate"]  # every task has a sink of its own
    ways = {f"unaligned after {UNALIGNED_AFTER}": UNALIGNED_AFTER, **({"aligned only": "never"} if aligned_too else {})}
    slow = [measured(f"{FACTOR} times slower, {way}", row_s, seconds, after, spark) for way, after in ways.items()]
    points = [
        {**each, "cost": float(np.median(each["gaps_s"])), "figures": figures(each, fast["rate"])} for each in (fast, *slow)
    ]
    note = "; ".join(f"{each['name']}: {each['note']}" for each in points if each["note"])
    return {"points": points, "verified": not note, "note": note}


def figures(found: dict[str, Any], fast: float) -> dict[str, str]:
    """For the table."""
    gaps, took = found["gaps_s"], found["took_s"]
    met = sum(gap <= INTERVALS_MAX * INTERVAL_S for gap in gaps)
    return {
        "rows/s": f"{found['rate']:,}",
        "back-pressure": f"{fast / found['rate']:.0f}x",
        "a batch of the source takes": f"{found['row_s'] * PIECE / PARALLELISM:.2f} s",
        "checkpoints": str(found["checkpoints"]),
        "from one to the next: p50, p99, most": seconds_of(gaps, (50, 99, 100)),
        f"within {INTERVALS_MAX} intervals": f"{met} of {len(gaps)}",
        "from trigger to published: p50, most": seconds_of(took, (50, 100)),
        "rows in flight, at most": f"{found['in_flight_bytes'] / 2**20:.1f} MiB",
        "memory of the workers": f"{found['memory'] / 2**20:,.0f} MiB",
        "its growth": f"{found['memory_growth'] / 2**20:+.1f} MiB" if found["row_s"] else "-",
    }


def seconds_of(times: list[float], percentiles: tuple[int, ...]) -> str:
    """Percentiles in words."""
    return ", ".join(f"{each:.2f} s" for each in np.percentile(times, percentiles))
