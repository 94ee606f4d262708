"""How long a row takes from being due to being counted: a running count per key at a steady rate, snapshots every second.

Row i is **due** at `start + i / rate`. The source hands out what is due and nothing earlier; if it is late, the row has been
waiting, and that counts. The row is **counted** when the sink's writer, in the same task as the aggregate, is given the new count of
its key. So reading, the exchange between processes, the keyed state, snapshots and every queue are in the figure; the commit, which
is once a second by choice, is not.

Each row is measured. Row i has key `i % KEYS`; keys are even or odd, so are splits, and so the rows of a key come from one split
in order: a count that went from 7 to 9 says which two rows were counted, and with the newest row's time when each was due.
"""

from __future__ import annotations

import math
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import penstock as pen
from benchmarks import flinkpeer, processes, sampler
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

KEYS = 100
SPLITS = 2
WARM_S = 5  # at the start, not counted
BLOCK = 1 << 16  # rows that are noted in one piece

SCHEMA = pa.schema([pa.field("key", pa.int64(), nullable=False), pa.field("due", pa.int64(), nullable=False)])

assert KEYS % SPLITS == 0, "the rows of a key come from one split"


@dataclass(frozen=True)
class Paced(Source):
    """Rows (key, due) at `rate` per second over all splits, for `seconds`."""

    rate: int
    seconds: float
    name: str = "paced"
    bounded: bool = True
    replayable: bool = True
    schema: pa.Schema = SCHEMA

    def splits(self) -> tuple[str, ...]:
        return tuple(str(split) for split in range(SPLITS))

    def open(self, split: str, position: Json, context: SourceContext) -> Reader:
        return PacedReader(self, int(split), position or 0)

    def describe(self) -> str:
        return f"paced, {self.rate} rows/s"


class PacedReader(Reader):
    """What is due of one split. Row n of split s is row `n * SPLITS + s` of all."""

    def __init__(self, source: Paced, split: int, position: int) -> None:
        self.split, self.position = split, position
        self.step_us = 1e6 / source.rate  # between two rows of all splits
        self.end = int(source.rate * source.seconds) // SPLITS
        self.start_us = time.time_ns() / 1e3 - position * SPLITS * self.step_us

    def poll(self, rows_max: int) -> Chunk | None:
        elapsed_us = time.time_ns() / 1e3 - self.start_us
        due = int(elapsed_us / (self.step_us * SPLITS)) + 1  # row 0 is due at once
        count = min(rows_max, min(due, self.end) - self.position)
        if count <= 0:
            return None if self.position < self.end else Chunk(None, self.position, ended=True)
        number = np.arange(self.position, self.position + count, dtype=np.int64) * SPLITS + self.split
        self.position += count
        due_at = (self.start_us + number * self.step_us).astype(np.int64)
        return Chunk(pa.RecordBatch.from_arrays([pa.array(number % KEYS), pa.array(due_at)], schema=SCHEMA), self.position)

    def due_at(self) -> int | None:
        """When the next row is due; the end is told at once."""
        return math.ceil(self.start_us + self.position * SPLITS * self.step_us) if self.position < self.end else None


@dataclass(frozen=True)
class Record(Sink):
    """Takes updates (key, n, due) and notes how late the newest row of each is, in microseconds: a file per task, at its end."""

    folder: Path
    rate: int
    name: str = "latency"
    accepts: frozenset[str] = frozenset({"update"})

    def writer(self, context: SinkContext) -> Writer:
        return RecordWriter(self, context.uid)

    def committer(self, context: SinkContext) -> Committer:
        return Nothing()


class RecordWriter(Writer):
    """In the task that counts. It keeps notes in memory; how late each row is, is worked out after the run."""

    def __init__(self, sink: Record, uid: str) -> None:
        sampler.start_if_wanted()
        self.file = sink.folder / f"{uid}.i32"
        self.blocks: list[npt.NDArray[np.int32]] = []
        self.left = 0  # rows that fit in the last block

    def write(self, batch: pa.RecordBatch) -> None:
        if self.left < batch.num_rows:
            self.blocks.append(np.zeros((max(BLOCK, batch.num_rows), 3), np.int32))
            self.left = len(self.blocks[-1])
        noted = self.blocks[-1][-self.left :][: batch.num_rows]
        self.left -= batch.num_rows
        noted[:, 0] = batch.column("key").to_numpy()
        noted[:, 1] = batch.column("n").to_numpy()
        noted[:, 2] = time.time_ns() // 1000 - batch.column("due").to_numpy()

    def prepare(self, epoch: int) -> list[int]:
        return [epoch]

    def close(self) -> None:
        with self.file.open("wb") as file:
            for block in self.blocks:
                block[block[:, 1] > 0].tofile(file)


class Nothing(Committer):
    """Beside the coordinator: there is nothing to make visible."""

    def commit(self, epoch: int, committables: Sequence[Json], attempt: int) -> Verdict:
        return Verdict.DONE


def lateness(folder: Path, rate: int) -> npt.NDArray[np.float64]:
    """How late each row was counted, in microseconds; nan for those at the start."""
    late = []
    for file in sorted(folder.glob("*.i32")):  # those of a key are in one of them
        noted = np.fromfile(file, np.int32).reshape(-1, 3).astype(np.int64)
        key, total, newest = noted[np.argsort(noted[:, 0], kind="stable")].T  # the updates of a key in a row, and in order
        which, back = first_counted(key, total)
        warm = (total[which] - 1 - back) * KEYS < WARM_S * rate
        late.append(np.where(warm, np.nan, newest[which] + back * KEYS * 1e6 / rate))
    return np.concatenate(late)


def first_counted(key: npt.NDArray[Any], total: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Of updates, those of a key in a row and in order: for each row the update that was the first to count it, and how many rows
    of its key that update counted after it.
    """
    before = np.where(np.diff(key, prepend=-1) != 0, 0, np.roll(total, 1))
    fresh = total - before
    # The rows that an update is the first to count, back from the newest one: 0, 1, ... fresh - 1.
    which = np.repeat(np.arange(len(key)), fresh)
    return which, np.arange(len(which)) - np.repeat(np.cumsum(fresh) - fresh, fresh)


def running_count(rate: int, seconds: float, folder: Path) -> pen.Pipeline:
    """Count rows per key."""
    return (
        pen.Pipeline("latency")
        .read(Paced(rate, seconds))
        .key_by("key")
        .aggregate(n=count(), due=col("due").max(), name="counts")
        .write(Record(folder, rate))
    )


def run_system(system: str, rate: int, seconds: float, runs: int) -> dict[str, Any]:
    """The case for one of the systems: the medians of several runs."""
    found = [flinkpeer.latency(rate, seconds, WARM_S) if system == "flink" else alone(rate, seconds) for _ in range(runs)]
    percentiles = {name: statistics.median(each[name] for each in found) for name in ("p50_ms", "p99_ms", "p999_ms")}
    return {
        "rate": rate,
        "seconds": seconds,
        "runs": found,
        "measured": sum(each["measured"] for each in found),
        "commits": sum(each["commits"] for each in found),
        "verified": all(each["verified"] for each in found),
        "note": "; ".join(each["note"] for each in found if each["note"]),
        **percentiles,
        "max_ms": max(each["max_ms"] for each in found),
        "memory": max(each["memory"] for each in found),
    }


def alone(rate: int, seconds: float) -> dict[str, Any]:
    """One run of Penstock, in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as scratch:
        return run(rate, seconds, Path(scratch))


def run(rate: int, seconds: float, folder: Path, runner: pen.Runner | None = None) -> dict[str, Any]:
    """Run for `seconds`, and say how late rows were counted, in milliseconds."""
    if runner is None:
        runner = pen.Continuous(session(), parallelism=PARALLELISM, snapshot_every="1s")
    with processes.watched(os.getpid()) as used:  # without what it takes to read the results
        job = running_count(rate, seconds, folder).run(runner)
    counted = lateness(folder, rate)
    late = counted[~np.isnan(counted)] / 1e3
    p50, p99, p999, worst = np.percentile(late, [50, 99, 99.9, 100]).round(2).tolist()
    rows = int(rate * seconds) // SPLITS * SPLITS
    return {
        "rate": rate,
        "seconds": seconds,
        "measured": len(late),
        "commits": job.conductor.epochs_published,
        "verified": len(counted) == rows,
        "note": "" if len(counted) == rows else f"{len(counted)} rows were counted instead of {rows}",
        "p50_ms": p50,
        "p99_ms": p99,
        "p999_ms": p999,
        "max_ms": worst,
        "memory": used.memory,
    }
