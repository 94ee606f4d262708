"""What the load sweep feeds and what it gathers: rows at a steady rate, and the results that a job committed.

1. Row i is **due** at `start + i / rate`. The first reader that opens says when the start was, for all readers and for whoever
   watches: a job that takes a second to begin is not a second late. A restart does not move the start.
2. A source is read for as long as the schedule says and not for a number of rows. So a rate of 0 and a flood are cases like any
   other, and a system that does not keep up is late, not endless. What was read is known by the positions.
3. The time of an event is the moment at which it is due, as in real streams, counted from a fixed date. In a flood, which has no
   schedule, events are a microsecond apart.
4. Sinks keep what verifies a run and no more: of updates a note each (key, n, when it was written), in a file per epoch; of final
   results their number and the sum of `n`, which travel with the commit.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from benchmarks import sampler
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

SPLITS = 2
BASE_US = 1_767_225_600_000_000
US = 1_000_000
Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Schedule:
    """When rows are due, in seconds since the start. `rate`: rows a second over all splits; None for a flood."""

    rate: float | None
    warm_s: float
    seconds: float

    @property
    def whole_s(self) -> float:
        """Until the source ends."""
        return self.warm_s + self.seconds

    def due(self, elapsed_s: float) -> int:
        """How many rows are due by then; row 0 is due at once."""
        assert self.rate is not None, "a flood has no schedule"
        return int(elapsed_s * self.rate) + 1 if self.rate and elapsed_s >= 0 else 0

    def due_of(self, split: int, elapsed_s: float) -> int:
        """How many of them are of one split: row n of split s is row `n * SPLITS + s` of all."""
        return (self.due(elapsed_s) - split + SPLITS - 1) // SPLITS

    def event_us(self, number: Numbers) -> Numbers:
        """The times of events."""
        return BASE_US + (number if not self.rate else (number * (US / self.rate)).astype(np.int64))


class Progress:
    """Beside a run, in a file of its folder: how far each split of a source was read."""

    def __init__(self, folder: Path, source: str) -> None:
        path = folder / f"{source}.read"
        with path.open("ab") as file:
            file.truncate(SPLITS * np.dtype(np.int64).itemsize)  # zeros if it is new, and otherwise nothing: readers open at once
        self.read: Any = np.memmap(path, np.int64, "r+")


def begin(folder: Path) -> int:
    """When a schedule began, in microseconds since 1970: now, if nobody has begun it."""
    began = started(folder)
    if began is None:
        mine = folder / f"start-{os.getpid()}-{time.time_ns()}"
        mine.write_text(str(time.time_ns() // 1000))
        with contextlib.suppress(FileExistsError):  # another reader was first
            os.link(mine, folder / "start")  # whole, or not at all
        began = started(folder)
        assert began is not None, "the start is there"
    return began


def started(folder: Path) -> int | None:
    """When a schedule began; None if it has not."""
    try:
        return int((folder / "start").read_text())
    except FileNotFoundError:
        return None


@dataclass(frozen=True)
class Steady(Source):
    """Rows that `make` makes of their numbers, as they become due. `make(number, schedule)` gives the columns of the schema."""

    name: str
    schema: pa.Schema
    make: Callable[[Numbers, Schedule], dict[str, Any]]
    schedule: Schedule
    folder: Path
    bounded: bool = True

    def splits(self) -> tuple[str, ...]:
        return tuple(str(split) for split in range(SPLITS))

    def open(self, split: str, position: Json, context: SourceContext) -> Reader:
        return SteadyReader(self, int(split), position or 0, context)

    def describe(self) -> str:
        return "rows at a steady rate, replayable"


class SteadyReader(Reader):
    """What is due of one split."""

    prompt = True

    def __init__(self, source: Steady, split: int, position: int, context: SourceContext) -> None:
        sampler.start_if_wanted()
        self.source, self.split, self.position = source, split, position
        self.began = context.began
        self.columns = context.columns
        self.progress = Progress(source.folder, source.name)
        self.start_us = begin(source.folder)
        self.told_end = False

    def poll(self, rows_max: int) -> Chunk | None:
        over, count = self.ready(rows_max)
        if over:
            self.told_end = True
            return Chunk(None, self.position, ended=True)
        if count <= 0:
            return None
        number = np.arange(self.position, self.position + count, dtype=np.int64) * SPLITS + self.split
        made = self.source.make(number, self.source.schedule)
        schema = pa.schema([self.source.schema.field(name) for name in self.columns])
        batch = pa.RecordBatch.from_arrays([pa.array(made[each.name]).cast(each.type) for each in schema], schema=schema)
        self.position += count
        self.progress.read[self.split] = self.position
        return Chunk(batch, self.position)

    def ready(self, rows_max: int) -> tuple[bool, int]:
        """Whether the time is over, and how many rows can be had."""
        still = None if self.began is None else self.began.now_us
        elapsed_s = ((time.time_ns() // 1000 if still is None else still) - self.start_us) / US
        schedule = self.source.schedule
        due = rows_max if schedule.rate is None else schedule.due_of(self.split, elapsed_s) - self.position
        return elapsed_s >= schedule.whole_s, min(rows_max, due)

    def due_at(self) -> int | None:
        """When the next row is due, or the end."""
        schedule = self.source.schedule
        if schedule.rate is None:
            return None
        end_us = self.start_us + int(schedule.whole_s * US)
        number = self.position * SPLITS + self.split
        return min(end_us, self.start_us + math.ceil(number / schedule.rate * US)) if schedule.rate else end_us

    def backlog(self) -> bool:
        over, count = self.ready(1)
        return not self.told_end if over else count > 0


@dataclass(frozen=True)
class Gathered(Sink):
    """Takes updates (`key`, n), or results with an n, and notes what verifies them. `key`: the column; None for results."""

    folder: Path
    name: str
    key: str | None = None
    accepts: frozenset[str] = frozenset({"append", "update"})

    def writer(self, context: SinkContext) -> Writer:
        return Notes(self, context.uid.replace("/", "-")) if self.key else Sums()

    def committer(self, context: SinkContext) -> Committer:
        return Commits(self.folder / f"{self.name}.commits")


class Notes(Writer):
    """Of updates: key, n, and when it was written, in microseconds since 1970."""

    def __init__(self, sink: Gathered, uid: str) -> None:
        self.sink, self.uid = sink, uid
        self.noted: list[Numbers] = []

    def write(self, batch: pa.RecordBatch) -> None:
        columns = [batch.column(name).to_numpy() for name in (self.sink.key, "n")]
        self.noted.append(np.column_stack([*columns, np.full(batch.num_rows, time.time_ns() // 1000)]))

    def prepare(self, epoch: int) -> list[Json]:
        if not self.noted:
            return []
        rows = np.concatenate(self.noted)
        self.noted = []
        file = f"{self.sink.name}-{epoch}-{self.uid}.notes"
        rows.tofile(self.sink.folder / file)
        return [{"file": file, "rows": len(rows), "sum": 0}]


class Sums(Writer):
    """Of results: how many there are, and the sum of their counts."""

    def __init__(self) -> None:
        self.rows = self.sum = 0

    def write(self, batch: pa.RecordBatch) -> None:
        self.rows += batch.num_rows
        if "n" in batch.schema.names:
            self.sum += int(batch.column("n").to_numpy().sum())

    def prepare(self, epoch: int) -> list[Json]:
        said = {"rows": self.rows, "sum": self.sum}
        self.rows = self.sum = 0
        return [said] if said["rows"] else []


class Commits(Committer):
    """Beside the coordinator: a line per epoch. One that is committed again says the same."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def commit(self, epoch: int, committables: Sequence[Json], attempt: int) -> Verdict:
        line = {
            "epoch": epoch,
            "at_us": time.time_ns() // 1000,
            "rows": sum(each["rows"] for each in committables),
            "sum": sum(each["sum"] for each in committables),
            "files": [each["file"] for each in committables if "file" in each],
        }
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")
        return Verdict.DONE


def commits(folder: Path, sink: str) -> list[dict[str, Any]]:
    """What a sink committed, each epoch once: the first time counts."""
    path = folder / f"{sink}.commits"
    found: dict[int, dict[str, Any]] = {}
    for line in path.read_text().splitlines() if path.exists() else []:
        said = json.loads(line)
        found.setdefault(said["epoch"], said)
    return list(found.values())


def updates(folder: Path, sink: str) -> Numbers:
    """All committed updates: key, n, when it was written and when it was committed; those of a key in order."""
    found = [np.zeros((0, 4), np.int64)]
    for said in commits(folder, sink):
        for file in said["files"]:
            noted = np.fromfile(folder / file, np.int64).reshape(-1, 3)
            found.append(np.column_stack([noted, np.full(len(noted), said["at_us"])]))
    rows = np.concatenate(found)
    return rows[np.lexsort((rows[:, 1], rows[:, 0]))]
