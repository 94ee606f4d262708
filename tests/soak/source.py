"""The rows of the soak: made from their number, at a steady rate, until a file says where the input ends. Every read is noted.

1. Row n is a pure function of n and a seed (`columns`), so the oracle can make it too. Row i of split s has the number
   `i * SPLITS + s`: together the splits hold 0, 1, 2, … once each.
2. The input has no end until the harness writes one into `<folder>/end`: only then is it known how long the kills took.
3. A reader appends a line to `<folder>/reads/<pid>` for every chunk it hands out, before anybody works on it::

       1794742800123456789 2 4100 37        (nanoseconds since 1970, split, first row of the split, rows)

   The bytes are in the kernel when `poll` returns, so SIGKILL does not lose them. What is below a line that was there before is
   a row read again: that is how rows replayed are counted, whatever the runner says of itself.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.connectors.connector import Began, Chunk, Reader, Source, SourceContext

SPLITS = 3
KEYS = 23
START_US = 1_767_225_600_000_000  # 2026-01-01 00:00:00 UTC
STEP_US = 500  # of event time from row to row
DISORDER_US = 400_000  # less than the pipeline's delay, so that no row is late
CHUNK_ROWS = 50
LOOK_S = 0.05  # how often a reader looks for the end

SCHEMA = pa.schema(
    [
        pa.field("n", pa.int64(), nullable=False),
        pa.field("key", pa.int64(), nullable=False),
        pa.field("value", pa.int64(), nullable=False),
        pa.field("at", pa.timestamp("us", tz="UTC"), nullable=False),
    ]
)


def columns(numbers: np.ndarray[Any, Any], seed: int) -> dict[str, np.ndarray[Any, Any]]:
    """The columns of rows by their numbers; times in microseconds since 1970."""
    offset = np.uint64((seed * 2 + 1) * 1442695040888963407 % (1 << 64))
    mixed = numbers.astype(np.uint64) * np.uint64(6364136223846793005) + offset
    mixed = (mixed >> np.uint64(33)).astype(np.int64)
    return {
        "n": numbers,
        "key": mixed % KEYS,
        "value": mixed % 1009 - 500,
        "at": START_US + numbers * STEP_US + mixed % DISORDER_US,
    }


def rows_in_split(rows: int, split: int) -> int:
    """How many of the first `rows` rows are in a split."""
    return max(0, (rows - split + SPLITS - 1) // SPLITS)


@dataclass(frozen=True)
class Numbers(Source):
    """Rows 0, 1, 2, … at `rate` rows a second over all splits."""

    name: str
    folder: str
    rate: float
    seed: int
    schema = SCHEMA
    bounded = True

    def splits(self) -> tuple[str, ...]:
        return tuple(str(split) for split in range(SPLITS))

    def open(self, split: str, position: Any, context: SourceContext) -> Reader:
        return NumbersReader(self, int(split), position or 0, context)

    def describe(self) -> str:
        return "numbers, replayable"


class NumbersReader(Reader):
    """What is due of one split."""

    def __init__(self, source: Numbers, split: int, position: int, context: SourceContext) -> None:
        self._source, self._split, self._position, self._columns = source, split, position, context.columns
        self._began = context.began or Began(time.time_ns() // 1000, position)
        self._end: int | None = None
        self._look_at = 0.0
        notes = Path(source.folder, "reads", str(os.getpid()))
        self._notes = os.open(notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def backlog(self) -> bool:
        return self._due() > 0 or self._position == self._end

    def poll(self, rows_max: int) -> Chunk | None:
        count = min(self._due(), rows_max, CHUNK_ROWS)
        if count <= 0:
            return Chunk(None, self._position, ended=True) if self._position == self._end else None
        first = self._position
        os.write(self._notes, f"{time.time_ns()} {self._split} {first} {count}\n".encode())
        self._position += count
        made = columns(np.arange(first, self._position, dtype=np.int64) * SPLITS + self._split, self._source.seed)
        schema = pa.schema([SCHEMA.field(name) for name in self._columns])
        batch = pa.RecordBatch.from_arrays([pa.array(made[field.name]).cast(field.type) for field in schema], schema=schema)
        return Chunk(batch, self._position, ended=self._position == self._end)

    def close(self) -> None:
        os.close(self._notes)

    def _due(self) -> int:
        if self._end is None and time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + LOOK_S
            rows = end_of(Path(self._source.folder))
            self._end = None if rows is None else rows_in_split(rows, self._split)
        now_us = self._began.now_us or time.time_ns() // 1000
        due = int((now_us - self._began.at_us) / 1e6 * self._source.rate / SPLITS) - (
            self._position - (self._began.position or 0)
        )
        return due if self._end is None else min(due, self._end - self._position)


def end_of(folder: Path) -> int | None:
    """How many rows there are, once that is known."""
    try:
        return int((folder / "end").read_text())
    except FileNotFoundError:
        return None
