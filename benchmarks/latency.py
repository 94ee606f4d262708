"""How long a row takes from being due to being counted: a running count per key at a steady rate, snapshots every second.

Row i is **due** at `start + i / rate`. The source hands out what is due and nothing earlier; if it is late, the row has been
waiting, and that counts. The row is **counted** when the step after the aggregate, in the same task, sees the new count of its
key. So reading, the exchange between processes, the keyed state, snapshots and every queue are in the figure; the commit, which
is once a second by choice, is not.

Each row is measured. Row i has key `i % KEYS`; keys are even or odd, so are splits, and so the rows of a key come from one split
in order: a count that went from 7 to 9 says which two rows were counted, and with the newest row's time when each was due.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import penstock as pen
from benchmarks.systems import PARALLELISM, session
from penstock import col, count, sinks
from penstock.connectors.connector import Chunk, Json, Reader, Source, SourceContext

KEYS = 100
SPLITS = 2
WARM_S = 5  # at the start, not counted

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
        return Chunk(pa.record_batch({"key": number % KEYS, "due": due_at}), self.position)


class Recorder:
    """After the aggregate: notes how long each newly counted row has been due, and passes the counts on."""

    def __init__(self, folder: Path, rate: int) -> None:
        self.folder, self.rate = folder, rate
        self.counted: npt.NDArray[np.int64] | None = None  # by key, in this task
        self.late: list[npt.NDArray[np.float64]] = []
        self.write_at = 0.0

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        now_us = time.time_ns() / 1e3
        if self.counted is None:
            self.counted = np.zeros(KEYS, np.int64)
        key, total, newest = (batch.column(name).to_numpy() for name in ("key", "n", "due"))
        fresh = total - self.counted[key]
        self.counted[key] = total
        # Row j of a key, counted back from its newest one.
        back = np.concatenate([np.arange(n) for n in fresh.tolist()]) if len(fresh) else np.empty(0)
        which = np.repeat(np.arange(len(key)), fresh)
        number = total[which] - 1 - back
        due = newest[which] - back * KEYS * 1e6 / self.rate
        self.late.append((now_us - due)[number * KEYS >= WARM_S * self.rate])
        if time.monotonic() > self.write_at:
            self.write_at = time.monotonic() + 1.0
            self.write()
        return batch

    def write(self) -> None:
        """Append what was noted to this task's own file."""
        with open(self.folder / f"{id(self)}.f64", "ab") as file:
            np.concatenate(self.late).tofile(file)
        self.late = []

    def __getstate__(self) -> dict[str, Any]:
        return {"folder": self.folder, "rate": self.rate, "counted": None, "late": [], "write_at": 0.0}


def running_count(rate: int, seconds: float, folder: Path) -> pen.Pipeline:
    """Count rows per key."""
    return (
        pen.Pipeline("latency")
        .read(Paced(rate, seconds))
        .key_by("key")
        .aggregate(n=count(), due=col("due").max(), name="counts")
        .map_batches(Recorder(folder, rate), schema="key bigint, n bigint, due bigint")
        .write(sinks.memory("latency"))
    )


def run(rate: int, seconds: float, folder: Path, runner: pen.Runner | None = None) -> dict[str, Any]:
    """Run for `seconds`, and say how late rows were counted, in milliseconds."""
    if runner is None:
        runner = pen.Continuous(session(), parallelism=PARALLELISM, snapshot_every="1s")
    sinks.memory("latency").clear()
    job = running_count(rate, seconds, folder).run(runner)
    table = sinks.memory("latency", key="key").table()
    rows = int(rate * seconds) // SPLITS * SPLITS
    counted = 0 if table is None else int(np.sum(table.column("n").to_numpy()))
    late = np.concatenate([np.fromfile(file) for file in sorted(folder.glob("*.f64"))]) / 1e3
    p50, p99, p999, worst = np.percentile(late, [50, 99, 99.9, 100]).round(2).tolist()
    return {
        "rate": rate,
        "seconds": seconds,
        "measured": len(late),
        "commits": job.conductor.epochs_published,
        "verified": counted == rows,
        "note": "" if counted == rows else f"{counted} rows were counted instead of {rows}",
        "p50_ms": p50,
        "p99_ms": p99,
        "p999_ms": p999,
        "max_ms": worst,
    }
