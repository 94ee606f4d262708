"""A journal: received rows on disk, so that a source that cannot be read again can.

One writer appends, any number of readers follow. Files are numbered from 1 and rolled at a size.

    0000000001.journal:  file header | frame | frame | … | ROLL
    0000000002.journal:  file header | frame | frame …

    file header   magic "PENJRNL1", number u64, checksum u64
    frame         marker "PJF1", kind u32, rows u32, bytes u32, payload checksum u64, header checksum u64, payload

1. A frame is written by one write and synced before the next one is written. So a power cut can tear the last frame
   and no other.
2. Header checksums are seeded with file number and offset: a frame is valid only in its own place.
3. A torn tail (an invalid last frame of the last file, with no valid frame behind it) holds nothing that was promised;
   readers stop before it and the next writer cuts it off. What was not written is missing, or zeros: at the end, or a
   whole sector. A last frame of which everything is there, and which is wrong all the same, was promised and is
   damaged, like anything else that is invalid: `CorruptError` with file and offset.
4. A file ends with ROLL before the next one is created, or with END once the peer said that there is no more.
5. A position is `{"file", "offset", "row"}`: rows already read of the frame at that offset. Readers sync before they
   give rows out, so a position never points behind what a power cut leaves.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import struct
from dataclasses import dataclass
from pathlib import Path

import xxhash

from penstock.connectors.connector import Json
from penstock.connectors.durable import make_dirs, sync_dir
from penstock.errors import CorruptError, HeldError, StorageError

__all__ = ["Frame", "JournalReader", "JournalWriter", "collect"]

MAGIC = b"PENJRNL1"
MARKER = b"PJF1"
FILE_HEADER = struct.Struct("<8sQQ")
FRAME_HEADER = struct.Struct("<4sIIIQQ")
CHECKED_BYTES = FRAME_HEADER.size - 8  # of the frame header: all but its own checksum
ROWS, ROLL, END = 1, 2, 3
ROLL_BYTES = 64 << 20
FRAME_BYTES_MAX = 1 << 30
SECTOR_BYTES = 512  # a power cut leaves it as it was, or writes all of it


@dataclass(frozen=True, slots=True)
class Frame:
    """One valid frame; `end` is the offset behind it."""

    kind: int
    rows: int
    payload: bytes
    end: int


class JournalWriter:
    """The one writer of a journal folder. A second one is refused as long as this one lives."""

    def __init__(self, folder: Path, *, roll_bytes: int = ROLL_BYTES) -> None:
        make_dirs(folder)
        self._folder = folder
        self._roll_bytes = roll_bytes
        self._lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        self._handle = -1
        self._broken: str | None = None
        self.ended = False
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            raise HeldError(f"the journal {folder} already has a writer: the source is received elsewhere") from error
        try:
            self._resume()
        except BaseException:
            self.close()
            raise

    def append(self, rows: int, payload: bytes) -> None:
        """Add rows; they are durable when this returns."""
        assert not self.ended, "rows after the end"
        assert rows > 0, "a frame without rows says nothing"
        assert len(payload) <= FRAME_BYTES_MAX, "a frame's length has 32 bits"
        if self._offset + FRAME_HEADER.size + len(payload) > self._roll_bytes and self._offset > FILE_HEADER.size:
            self._write(ROLL, 0, b"")
            os.close(self._handle)
            self._create(self._number + 1)
        self._write(ROWS, rows, payload)

    def end(self) -> None:
        """Say that nothing more will ever come."""
        self._write(END, 0, b"")
        self.ended = True

    def close(self) -> None:
        """Let the next writer in."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _resume(self) -> None:
        numbers = _numbers(self._folder)
        if not numbers:
            self._create(1)
            return
        number = numbers[-1]
        path = _path(self._folder, number)
        handle = os.open(path, os.O_RDWR)
        self._handle, self._number, self._offset = handle, number, FILE_HEADER.size
        size = os.fstat(handle).st_size
        if not _has_header(handle, number, path):
            # Torn while it was created: it never held a frame.
            os.ftruncate(handle, 0)
            self._put(_file_header(number), 0)
            return
        last = 0
        while (frame := _frame_at(handle, path, number, self._offset)) is not None:
            last, self._offset = frame.kind, frame.end
        if self._offset < size:
            os.ftruncate(handle, self._offset)
            os.fsync(handle)
        self.ended = last == END
        if last == ROLL:
            os.close(handle)
            self._create(number + 1)

    def _create(self, number: int) -> None:
        path = _path(self._folder, number)
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        self._number, self._offset = number, FILE_HEADER.size
        self._put(_file_header(number), 0)
        sync_dir(self._folder)

    def _write(self, kind: int, rows: int, payload: bytes) -> None:
        if self._broken is not None:
            raise StorageError(
                f"the journal {self._folder} failed before ({self._broken}); what it holds is unknown until it is reopened"
            )
        head = FRAME_HEADER.pack(MARKER, kind, rows, len(payload), xxhash.xxh64_intdigest(payload), 0)[:CHECKED_BYTES]
        check = xxhash.xxh64_intdigest(head, _seed(self._number, self._offset))
        frame = head + check.to_bytes(8, "little") + payload
        self._put(frame, self._offset)
        self._offset += len(frame)

    def _put(self, data: bytes, offset: int) -> None:
        try:
            written = os.pwrite(self._handle, data, offset)
            while written < len(data):
                written += os.pwrite(self._handle, data[written:], offset + written)
            os.fsync(self._handle)
        except OSError as error:
            # After a failed sync nobody knows what is on disk, and a second one would lie. Reopening finds out.
            self._broken = str(error)
            raise StorageError(f"the journal {_path(self._folder, self._number)} could not be written: {error}") from error


class JournalReader:
    """Follows a journal from a position, frame by frame. Never changes it."""

    def __init__(self, folder: Path, position: Json) -> None:
        self._folder = folder
        self._handle = -1
        self._synced = 0
        self.number: int = 1 if position is None else int(position["file"])
        self.offset: int = FILE_HEADER.size if position is None else int(position["offset"])
        # The part of the journal that was read before, so that it must still be there.
        self._read_before = 0 if position is None else self.offset
        self._inside_frame = position is not None and position["row"] > 0
        numbers = _numbers(folder) if folder.is_dir() else []
        if self.number not in numbers and (numbers or self._read_before > FILE_HEADER.size or self.number > 1):
            found = f"files {numbers[0]} to {numbers[-1]}" if numbers else "no files"
            raise CorruptError(f"the journal {folder} has {found}, and rows are needed from file {self.number}")

    def next(self) -> Frame | None:
        """The next frame with rows, or END; None if it is not there yet. `number` and `offset` are its place until `advance`."""
        while True:
            if self._handle < 0 and not self._open():
                return None
            path = _path(self._folder, self.number)
            frame = _frame_at(self._handle, path, self.number, self.offset)
            if frame is None and _path(self._folder, self.number + 1).exists():
                # ROLL is written before the next file is created, so by now it can be seen.
                frame = _frame_at(self._handle, path, self.number, self.offset)
                if frame is None:
                    raise CorruptError(f"{path} is damaged at byte {self.offset}: it does not end with a roll mark")
            if frame is None:
                if self._inside_frame or os.fstat(self._handle).st_size < self._read_before:
                    raise CorruptError(f"{path} is damaged at byte {self.offset}: rows that were read before are gone")
                return None
            self._inside_frame = False
            if frame.end > self._synced:
                self._synced = os.fstat(self._handle).st_size
                os.fsync(self._handle)
            if frame.kind != ROLL:
                return frame
            self.close()
            self.number, self.offset, self._synced, self._read_before = self.number + 1, FILE_HEADER.size, 0, 0

    def advance(self, frame: Frame) -> None:
        """The frame was read: go behind it."""
        self.offset = frame.end

    def position(self, row: int) -> Json:
        return {"file": self.number, "offset": self.offset, "row": row}

    def close(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def _open(self) -> bool:
        path = _path(self._folder, self.number)
        try:
            handle = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            return False  # nothing was received yet
        if not _has_header(handle, self.number, path):
            os.close(handle)
            if self._inside_frame or self._read_before > FILE_HEADER.size:
                raise CorruptError(f"{path} is damaged at byte 0: rows that were read before are gone")
            return False
        self._handle = handle
        return True


def collect(folder: Path, position: Json) -> None:
    """Remove the files that lie wholly before `position`: nobody will read them again."""
    for number in _numbers(folder):
        if number < position["file"]:
            _path(folder, number).unlink(missing_ok=True)


def _path(folder: Path, number: int) -> Path:
    return folder / f"{number:010d}.journal"


def _numbers(folder: Path) -> list[int]:
    found = sorted(int(path.stem) for path in folder.glob("*.journal"))
    for before, after in itertools.pairwise(found):
        if after != before + 1:
            raise CorruptError(f"the journal {folder} has file {before} and file {after}, and nothing between them")
    return found


def _seed(number: int, offset: int) -> int:
    return (number << 40 | offset) & 0xFFFFFFFFFFFFFFFF


def _file_header(number: int) -> bytes:
    head = MAGIC + number.to_bytes(8, "little")
    return head + xxhash.xxh64_intdigest(head).to_bytes(8, "little")


def _has_header(handle: int, number: int, path: Path) -> bool:
    """Whether the file's header is there. It is synced before the first frame, so with frames behind it, it must be."""
    if os.pread(handle, FILE_HEADER.size, 0) == _file_header(number):
        return True
    if os.fstat(handle).st_size > FILE_HEADER.size:
        raise CorruptError(f"{path} is damaged at byte 0: it does not start as a journal file {number} should")
    if _path(path.parent, number + 1).exists():
        raise CorruptError(f"{path} is cut short, and it is not the last file")
    return False


def _frame_at(handle: int, path: Path, number: int, offset: int) -> Frame | None:
    """The frame at `offset`. None: nothing is there yet, or a torn tail."""
    size = os.fstat(handle).st_size  # what a writer adds from here on is not looked at: it may not be whole yet
    head = os.pread(handle, FRAME_HEADER.size, offset)
    if offset + FRAME_HEADER.size > size:
        return None
    fields = _check_header(head, number, offset)
    if fields is None:
        _refuse_frames_behind(handle, path, number, offset, size)
        _refuse_if_written(handle, path, offset, size)
        return None
    kind, rows, length, digest = fields
    end = offset + FRAME_HEADER.size + length
    if end > size:
        return None
    payload = os.pread(handle, length, offset + FRAME_HEADER.size)
    if xxhash.xxh64_intdigest(payload) == digest:
        return Frame(kind, rows, payload, end)
    if size == end:
        _refuse_if_written(handle, path, offset, end)
        return None
    raise CorruptError(f"{path} is damaged at byte {offset}: the checksum of the frame there is wrong")


def _refuse_if_written(handle: int, path: Path, offset: int, end: int) -> None:
    """An invalid last frame, from `offset` to `end`: torn if its end or one of its sectors was never written, else damaged."""
    if not any(os.pread(handle, 1, end - 1)):
        return
    at = offset
    while at < end:
        border = min((at // SECTOR_BYTES + 1) * SECTOR_BYTES, end)
        if not any(os.pread(handle, border - at, at)):
            return
        at = border
    raise CorruptError(f"{path} is damaged at byte {offset}: all of its last frame is there, and its checksum is wrong")


def _check_header(head: bytes, number: int, offset: int) -> tuple[int, int, int, int] | None:
    if len(head) < FRAME_HEADER.size:
        return None
    marker, kind, rows, length, digest, check = FRAME_HEADER.unpack(head)
    if marker != MARKER or check != xxhash.xxh64_intdigest(head[:CHECKED_BYTES], _seed(number, offset)):
        return None
    return kind, rows, length, digest


def _refuse_frames_behind(handle: int, path: Path, number: int, offset: int, size: int) -> None:
    """There is no valid header at `offset`. That is a torn tail only if no valid frame follows it."""
    at = offset
    while at < size:
        window = os.pread(handle, 1 << 20, at)
        if not window:
            return
        found = window.find(MARKER)
        while found >= 0:
            if at + found > offset and _check_header(os.pread(handle, FRAME_HEADER.size, at + found), number, at + found):
                raise CorruptError(f"{path} is damaged at byte {offset}: a frame behind it, at byte {at + found}, is whole")
            found = window.find(MARKER, found + 1)
        # Windows overlap, so that a marker on their border is seen.
        at += max(len(window) - len(MARKER) + 1, 1)
