"""A text file read in blocks of whole lines, with a byte offset for every row.

A block of about 3 MiB is read and cut after its last line break, so every block boundary is a line boundary. The
whole block is decoded at once, which is fast; rows that were not asked for yet stay in memory. A position in the
middle of a block is the byte behind the last row given out. The rows of several blocks are given out as one batch.

1. One line is at most one row. Blank lines are none. `\\n` and `\\r\\n` end a line; a byte order mark at the start is skipped.
2. If a block does not decode, it is halved until the lines at fault stand alone: they become bad records, all others become rows.
   So what a line becomes never depends on its neighbours or on where blocks happen to be cut.
3. A last line without a line break is a row if the file is `final`; else it is waited for.
4. A line of more than 64 MiB is a bad record and is skipped without being held in memory.
"""

from __future__ import annotations

import abc
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.connectors.connector import BadRecord
from penstock.connectors.fileformat import FileReader, Piece, Undecodable
from penstock.connectors.linemarks import seldom
from penstock.errors import Fix, StorageError

__all__ = ["CHANGED", "LineDecoder", "LineFile", "line_breaks"]

BLOCK_BYTES = 3 << 20
"""Of so many bytes what a block costs before the first one hardly matters; and its memory is used again for the next."""
PIECE_BYTES = 16 << 20
"""Of lines of 250 bytes that is 65,000 rows. Twice as many cost less further on, but where every core has a task the cores' shared cache
holds what they are made of no more, and that costs a tenth."""
LINE_BYTES_MAX = 64 << 20
TAIL_BYTES = 4_096
SAMPLE_CHARS = 1_000
BOM = b"\xef\xbb\xbf"

CHANGED = Fix("files.changed", "Put the file back as it was, and put new rows into a new file")
"""What to do where a file that was read, or begun, is not what it was."""


def line_breaks(block: bytes) -> npt.NDArray[np.int64]:
    """Where the line breaks stand in `block`. Several times faster than bytes.count or split."""
    return seldom(np.frombuffer(block, np.uint8) == 0x0A)


class LineDecoder(abc.ABC):
    """Turns lines into rows of `schema`."""

    schema: pa.Schema
    lines_apart: int = 1
    """So many lines that `many` refused are decoded apart; more are halved first."""

    @abc.abstractmethod
    def many(self, block: bytes) -> pa.RecordBatch:
        """`block` is one or more lines, each ended by a line break: exactly one row each, or Undecodable."""

    @abc.abstractmethod
    def apart(self, lines: Sequence[bytes]) -> tuple[pa.RecordBatch, dict[int, str]]:
        """Lines that `many` refused, without their line breaks: the rows of those that are good after all, and what is wrong with
        the others, by their number. A line that `many` takes becomes the same row here.
        """

    @abc.abstractmethod
    def strip(self, line: bytes) -> bytes:
        """The line without what means nothing around it; empty for a blank line."""


@dataclass
class _Block:
    """A decoded block. `ends[i]` is the file offset behind the line of row i; computed only if the block is cut."""

    batch: pa.RecordBatch
    end: int
    ends: Callable[[], npt.NDArray[np.int64]]
    bad: list[tuple[int, BadRecord]]  # with the offset behind each
    taken: int = 0


class LineFile(FileReader):
    """A file of lines. `decoder` is made from the header line, or from None if the file has no header."""

    def __init__(
        self,
        path: Path,
        name: str,
        offset: int | None,
        *,
        decoder: Callable[[bytes | None], LineDecoder],
        header: bool,
        final: bool,
    ) -> None:
        self.name = name
        self._final = final
        self._header = header
        self._make_decoder = decoder
        self._decoder: LineDecoder | None = None
        self._block: _Block | None = None
        self._handle = os.open(path, os.O_RDONLY)
        self._size_at_open = os.fstat(self._handle).st_size
        self.offset: int = offset or 0
        self._check_offset()

    def read(self, rows_max: int) -> Piece | None:
        assert rows_max > 0, "a poll asks for at least one row"
        if self._decoder is None and not self._start():
            return None
        pieces: list[Piece] = []
        rows, stop = 0, self.offset + PIECE_BYTES
        while rows < rows_max and self.offset < stop and (piece := self._read_block(rows_max - rows)) is not None:
            pieces.append(piece)
            rows += piece.batch.num_rows if piece.batch is not None else 0
        return _joined(pieces) if len(pieces) != 1 else pieces[0]

    def _read_block(self, rows_max: int) -> Piece | None:
        """Rows of one block."""
        if self._block is None:
            self._block = self._load()
        if self._block is None:
            return None
        block = self._block
        rows = min(rows_max, block.batch.num_rows - block.taken)
        batch = block.batch.slice(block.taken, rows)
        block.taken += rows
        if block.taken == block.batch.num_rows:
            self.offset = block.end
            bad = block.bad
            self._block = None
        else:
            self.offset = int(block.ends()[block.taken - 1])
            bad = [item for item in block.bad if item[0] <= self.offset]
            block.bad = block.bad[len(bad) :]
        return Piece(batch if rows else None, tuple(record for _, record in bad))

    @property
    def finished(self) -> bool:
        return self._block is None and self.offset >= self.size

    @property
    def size(self) -> int:
        # A bounded read is of the file as it was found: what is appended meanwhile is noticed at the next start.
        return self._size_at_open if self._final else os.fstat(self._handle).st_size

    def close(self) -> None:
        os.close(self._handle)

    def _check_offset(self) -> None:
        if not self.offset:
            return
        before = os.pread(self._handle, 1, self.offset - 1)
        if before != b"\n" and not (before and self.offset == self._size_at_open):
            raise StorageError(
                f"{self.name!r} was read up to byte {self.offset}, and there is no end of a line now: the file was changed",
                fix=CHANGED,
            )

    def _start(self) -> bool:
        """Skip the byte order mark and read the header; False if the header line is not complete yet."""
        mark = len(BOM) if os.pread(self._handle, len(BOM), 0) == BOM else 0
        header = None
        if self._header:
            found = self._next_lines(mark, first_only=True)
            if found is None:
                return False
            header = found
            mark += len(found)
        self._decoder = self._make_decoder(header)
        self.offset = max(self.offset, mark)
        return True

    def _next_lines(self, offset: int, *, first_only: bool = False) -> bytes | None:
        """Whole lines from `offset`, about a block of them. Empty: the first line is too long. None: nothing there now."""
        want = BLOCK_BYTES
        while True:
            size = self.size
            data = os.pread(self._handle, self._up_to_break(offset, min(want, size - offset)), offset)
            if not data:
                return None
            at_end = offset + len(data) >= size
            cut = (data.find(b"\n") if first_only else data.rfind(b"\n")) + 1
            if at_end and self._final and not (first_only and cut):
                cut = len(data)
            if cut:
                return data[:cut]
            if at_end:
                return None
            if want >= LINE_BYTES_MAX:
                return b""
            want = min(want * 4, LINE_BYTES_MAX)

    def _up_to_break(self, offset: int, count: int) -> int:
        """At most `count` bytes, and to a line break if one is near there: then nothing is read that must be cut off, by a copy."""
        if count < BLOCK_BYTES:
            return count
        tail = min(TAIL_BYTES, count)
        found = os.pread(self._handle, tail, offset + count - tail).rfind(b"\n")
        return count if found < 0 else count - tail + found + 1

    def _load(self) -> _Block | None:
        data = self._next_lines(self.offset)
        if data is None:
            return None
        if not data:
            return self._skip_long_line()
        assert self._decoder is not None
        return _decode(self._decoder, data, self.offset, self.name)

    def _skip_long_line(self) -> _Block | None:
        offset = self.offset + LINE_BYTES_MAX
        while data := os.pread(self._handle, min(BLOCK_BYTES, self.size - offset), offset):
            found = data.find(b"\n")
            if found >= 0:
                offset += found + 1
                break
            offset += len(data)
        else:
            if not self._final:
                return None
        assert self._decoder is not None
        sample = os.pread(self._handle, SAMPLE_CHARS, self.offset)
        record = _bad(self.name, self.offset, f"the line has more than {LINE_BYTES_MAX} bytes", sample)
        empty = pa.RecordBatch.from_pylist([], schema=self._decoder.schema)
        return _Block(empty, offset, lambda: np.empty(0, np.int64), [(offset, record)])


def _joined(pieces: list[Piece]) -> Piece | None:
    """Several pieces as one; None of none."""
    if not pieces:
        return None
    batches = [piece.batch for piece in pieces if piece.batch is not None]
    return Piece(pa.concat_batches(batches) if batches else None, tuple(record for piece in pieces for record in piece.bad))


def _decode(decoder: LineDecoder, data: bytes, offset: int, name: str) -> _Block:
    end = offset + len(data)
    block = data if data.endswith(b"\n") else data + b"\n"
    try:
        batch = decoder.many(block)
    except Undecodable:
        return _decode_apart(decoder, block, offset, end, name)

    def ends() -> npt.NDArray[np.int64]:
        return line_breaks(block) + (offset + 1)

    return _Block(batch, end, _once(ends), [])


def _decode_apart(decoder: LineDecoder, block: bytes, offset: int, end: int, name: str) -> _Block:
    """The block holds blank or bad lines: decode what can be decoded, in runs as long as possible."""
    lines: list[tuple[int, int, bytes]] = []  # offset, offset behind, stripped line
    at = offset
    for line in block.split(b"\n")[:-1]:
        behind = min(at + len(line) + 1, end)
        stripped = decoder.strip(line)
        if stripped:
            lines.append((at, behind, stripped))
        at = behind
    batches: list[pa.RecordBatch] = []
    ends: list[int] = []
    bad: list[tuple[int, BadRecord]] = []
    todo = [(0, len(lines))]
    while todo:
        low, high = todo.pop()
        if low == high:
            continue
        run = lines[low:high]
        try:
            batches.append(decoder.many(b"".join(line + b"\n" for _, _, line in run)))
            faults: dict[int, str] = {}
        except Undecodable:
            if len(run) > decoder.lines_apart:
                middle = (low + high) // 2
                todo += [(middle, high), (low, middle)]  # the earlier half is popped first: rows stay in order
                continue
            rows, faults = decoder.apart([line for _, _, line in run])
            batches.append(rows)
        for number, (start, behind, line) in enumerate(run):
            if number in faults:
                bad.append((behind, _bad(name, start, faults[number], line)))
            else:
                ends.append(behind)
    table = pa.Table.from_batches(batches, schema=decoder.schema).combine_chunks()
    batch = (table.to_batches() or [pa.RecordBatch.from_pylist([], schema=decoder.schema)])[0]
    assert batch.num_rows == len(ends), "one offset per row"
    return _Block(batch, end, lambda: np.asarray(ends, np.int64), bad)


def _bad(name: str, offset: int, error: str, line: bytes) -> BadRecord:
    sample = line[: SAMPLE_CHARS * 4].decode("utf-8", "backslashreplace")[:SAMPLE_CHARS]
    return BadRecord({"file": name, "offset": offset}, error, sample)


def _once(compute: Callable[[], npt.NDArray[np.int64]]) -> Callable[[], npt.NDArray[np.int64]]:
    found: list[npt.NDArray[np.int64]] = []

    def get() -> npt.NDArray[np.int64]:
        if not found:
            found.append(compute())
        return found[0]

    return get
