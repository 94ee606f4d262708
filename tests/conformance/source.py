"""A source for tests: the rows of `data`, behind a gate that the test opens step by step, with a record of what was read from
where.

The gate is a file that holds a number: at stage n each split gives its rows up to the n-th stop, and no file means all rows and
the end. So a test can stop a job when every split is mid-way, in any runner, and go on later.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.connectors.connector import Chunk, Reader, Source, SourceContext

SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("k", pa.string(), nullable=False),
        pa.field("v", pa.int64()),
        pa.field("x", pa.float64(), nullable=False),
        pa.field("flag", pa.bool_(), nullable=False),
        pa.field("small", pa.int32(), nullable=False),
        pa.field("price", pa.string(), nullable=False),
        pa.field("maybe", pa.string()),
        pa.field("text", pa.string(), nullable=False),
        pa.field("at", pa.timestamp("us", tz="UTC"), nullable=False),
    ]
)


@dataclass(frozen=True)
class Gated(Source):
    """Rows by split; `folder` holds the gate and the record of what was opened."""

    name: str
    rows: dict[str, list[dict[str, Any]]]
    folder: str
    stops: int  # stages: the last one is the end
    schema = SCHEMA
    bounded = True

    def splits(self) -> tuple[str, ...]:
        return tuple(self.rows)

    def open(self, split: str, position: Any, context: SourceContext) -> Reader:
        return GatedReader(self, split, position or 0, context.columns)

    def describe(self) -> str:
        return "gated, replayable"

    def stop_at(self, split: str, stage: int) -> int:
        """How many rows of a split may be read at a stage."""
        return len(self.rows[split]) * (stage + 1) // self.stops

    def expected(self, stage: int) -> int:
        """How many rows all splits give at a stage."""
        return sum(self.stop_at(split, stage) for split in self.rows)


class GatedReader(Reader):
    prompt = True  # what lies before the gate is there at once, so a run over what is there does not wait for it to open

    def __init__(self, source: Gated, split: str, position: int, columns: tuple[str, ...]) -> None:
        self._source, self._split, self._position, self._columns = source, split, position, columns
        line = f"{os.getpid()} {source.name} {split} {position} {self._stage()}\n"
        with open(Path(source.folder) / "opened.log", "a") as log:
            log.write(line)

    def _stage(self) -> int | None:
        try:
            return int((Path(self._source.folder) / "gate").read_text())
        except (FileNotFoundError, ValueError):
            return None

    def _limit(self) -> int:
        stage = self._stage()
        return len(self._source.rows[self._split]) if stage is None else self._source.stop_at(self._split, stage)

    def backlog(self) -> bool:
        return self._position < self._limit()

    def poll(self, rows_max: int) -> Chunk | None:
        limit = min(self._limit(), self._position + min(rows_max, 97))
        rows = self._source.rows[self._split][self._position : limit]
        self._position = max(limit, self._position)
        ended = self._position == len(self._source.rows[self._split])
        if not rows:
            return Chunk(None, self._position, ended=True) if ended else None
        arrays = [pa.array([row[name] for row in rows], SCHEMA.field(name).type) for name in self._columns]
        batch = pa.RecordBatch.from_arrays(arrays, schema=pa.schema([SCHEMA.field(name) for name in self._columns]))
        return Chunk(batch, self._position, ended=ended)
