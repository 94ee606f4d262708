"""A source that plays transcripts: what happens at each step is a few rows, and a gate says up to which step they may be read.

Time is scripted through the public API alone: a *mark* is a row whose punctuation says how far time is, and that the pipeline leaves
out afterwards. A change of the clock needs a row too, so that there is something to wait for: a mark that says nothing about time.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.connectors.connector import Chunk, Reader, Source, SourceContext
from transcripts.script import Step

SCHEMA = pa.schema(
    [
        pa.field("k", pa.string(), nullable=False),
        pa.field("v", pa.int64(), nullable=False),
        pa.field("at", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("mark", pa.int64(), nullable=False),
        pa.field("reached", pa.timestamp("us", tz="UTC")),
    ]
)

Entry = tuple[str, int, int, int, int | None]


def entries(step: Step) -> list[Entry]:
    """What a step is in the source: rows (k, v, at, mark, reached)."""
    if step.action == "rows":
        return [(key, value, at, 0, None) for key, at, value in step.value]
    if step.action == "watermark":
        return [("", 0, 0, 1, step.value)]
    return [("", 0, 0, 1, None)] if step.action == "clock" else []


def batch_of(rows: list[Entry]) -> pa.RecordBatch:
    """Rows as a batch."""
    columns = zip(*rows) if rows else ([],) * len(SCHEMA)
    return pa.RecordBatch.from_arrays([pa.array(list(c), f.type) for c, f in zip(columns, SCHEMA)], schema=SCHEMA)


@dataclass(frozen=True)
class Scripted(Source):
    """The rows of one transcript; `stops[i]`: how many of them may be read once the gate is at i. At the last stop it ends."""

    name: str
    rows: list[Entry]
    stops: list[int]
    gate: str
    schema = SCHEMA
    bounded = True

    def splits(self) -> tuple[str, ...]:
        return ("script",)

    def open(self, split: str, position: Any, context: SourceContext) -> Reader:
        return ScriptedReader(self, position or 0, context.columns)

    def describe(self) -> str:
        return "scripted, replayable"


class ScriptedReader(Reader):
    def __init__(self, source: Scripted, position: int, columns: tuple[str, ...]) -> None:
        self._source, self._position, self._columns, self._ended = source, position, columns, False

    def _stop(self) -> tuple[int, bool]:
        """How many rows may be read, and whether that is all."""
        stage, stops = int(Path(self._source.gate).read_text()), self._source.stops
        return (stops[-1], True) if stage >= len(stops) - 1 else (stops[stage], False)

    def backlog(self) -> bool:
        stop, over = self._stop()
        return self._position < stop or (over and not self._ended)

    def poll(self, rows_max: int) -> Chunk | None:
        (stop, over), start = self._stop(), self._position
        self._position = max(start, min(stop, start + rows_max))
        rows = self._source.rows[start : self._position]
        self._ended = over and self._position == stop
        if rows:
            return Chunk(batch_of(rows).select(list(self._columns)), self._position, ended=self._ended)
        return Chunk(None, self._position, ended=True) if self._ended else None


def write_number(path: Path, number: int) -> None:
    """Whole or not at all: somebody may be reading."""
    temporary = path.with_name(f"{path.name}.next")
    temporary.write_text(str(number))
    os.replace(temporary, path)
