"""JSON lines from memory, as a client of a broker would hand them over: files mapped into memory, in blocks of whole lines.

The peers read the same mapped files line by line. Decoder, blocks and batches are those of `sources.files`. Split s has every second
file, beginning with file s.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from benchmarks import sampler
from penstock.connectors.adevents import AD_EVENT
from penstock.connectors.connector import Chunk, Json, Reader, Source, SourceContext
from penstock.connectors.jsonlines import JsonLines
from penstock.connectors.lines import BLOCK_BYTES, PIECE_BYTES

SPLITS = 2


@dataclass(frozen=True)
class MemoryLines(Source):
    """The lines of all files in `folder`."""

    folder: Path
    name: str = "memory-lines"
    bounded: bool = True
    replayable: bool = True
    schema: pa.Schema = AD_EVENT

    def splits(self) -> tuple[str, ...]:
        return tuple(str(split) for split in range(SPLITS))

    def open(self, split: str, position: Json, context: SourceContext) -> Reader:
        return MemoryLinesReader(sorted(self.folder.iterdir())[int(split) :: SPLITS], position, context.columns)

    def describe(self) -> str:
        return "JSON lines from memory"


class MemoryLinesReader(Reader):
    """A position is (file, offset of a block, rows taken of it)."""

    def __init__(self, files: list[Path], position: Json, columns: tuple[str, ...]) -> None:
        sampler.start_if_wanted()
        self.files = files
        start: tuple[int, int, int] = position or (0, 0, 0)
        self.file, self.offset, self.taken = start
        self.decoder = JsonLines(pa.schema([AD_EVENT.field(name) for name in columns]))
        self.mapped: mmap.mmap | None = None
        self.batch: pa.RecordBatch | None = None
        self.end = 0  # of the block that `batch` is

    def poll(self, rows_max: int) -> Chunk | None:
        pieces: list[pa.RecordBatch] = []
        rows = 0
        while rows < rows_max and len(pieces) < PIECE_BYTES // BLOCK_BYTES and self.file < len(self.files):
            pieces.append(self._piece(rows_max - rows))
            rows += pieces[-1].num_rows
        batch = pa.concat_batches(pieces) if pieces else None
        return Chunk(batch, self._position(), ended=self.file == len(self.files))

    def backlog(self) -> bool:
        return self.file < len(self.files)

    def _piece(self, rows_max: int) -> pa.RecordBatch:
        """Rows of one block."""
        if self.batch is None:
            self.batch = self._next_block()
        rows = self.batch.slice(self.taken, rows_max)
        self.taken += rows.num_rows
        if self.taken == self.batch.num_rows:
            self.batch, self.offset, self.taken = None, self.end, 0
            assert self.mapped is not None
            if self.offset == len(self.mapped):
                self.file, self.offset, self.mapped = self.file + 1, 0, None
        return rows

    def _next_block(self) -> pa.RecordBatch:
        if self.mapped is None:
            with open(self.files[self.file], "rb") as file:
                self.mapped = mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE | mmap.MAP_POPULATE, mmap.PROT_READ)
        self.end = self.mapped.rfind(b"\n", self.offset, self.offset + BLOCK_BYTES) + 1
        assert self.end > self.offset, "a line is shorter than a block, and the last one ends"
        return self.decoder.many(self.mapped[self.offset : self.end])

    def _position(self) -> list[int]:
        return [self.file, self.offset, self.taken]
