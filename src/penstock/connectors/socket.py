"""Lines of text from a TCP server, one row each: a column `value`.

A socket cannot be read twice. With a journal (the default) a receiver writes each line to the job directory first and
readers read from there: exactly once after receipt, and what was not yet journalled when the process died is lost.
Without one, rows go straight to the reader.

1. The server closing the connection is the end of the stream; a last line without its line break still counts.
2. A server that cannot be reached is tried again, with growing pauses, for `connect_s` seconds; then it is an error. A connection
   that breaks is made anew in the same way, and the line that was cut is lost.
3. Lines are UTF-8; one that is not is a bad record. An empty line is an empty row.
4. Without a journal a position is a count of rows, and the reader holds the connection: nothing can be read again.
"""

from __future__ import annotations

import queue
import socket as net
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from penstock.connectors import journal as journals
from penstock.connectors.connector import BadRecord, Chunk, Json, Reader, Source, SourceContext
from penstock.connectors.receiver import Receiver
from penstock.errors import ConfigError, Fix, JobError
from penstock.names import check_name

__all__ = ["Socket", "SocketReceiver", "socket"]

SCHEMA = pa.schema([pa.field("value", pa.string(), nullable=False)])
RECEIVE_BYTES = 1 << 18
LINE_BYTES_MAX = 16 << 20
SYNC_S = 0.010  # how long lines may wait for company before they are synced together
QUEUE_BATCHES = 64  # without a journal: then the receiver stops reading, and TCP slows the server down
SAMPLE_CHARS = 1_000


@dataclass(frozen=True)
class Socket(Source):
    """Lines from `host`:`port`."""

    name: str
    host: str
    port: int
    journal: bool
    connect_s: float
    schema: pa.Schema = field(init=False, default=SCHEMA)
    bounded: bool = field(init=False, default=False)
    replayable: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "replayable", self.journal)

    def splits(self) -> tuple[str, ...]:
        return ("0",)

    def open(self, split: str, position: Json, context: SourceContext) -> Reader:
        if self.journal:
            return _JournalLines(self.folder(context), position, context.columns)
        return _DirectLines(self, position or 0, context.columns)

    def receiver(self, context: SourceContext) -> Receiver | None:
        """What must run once per job for the readers to have something to read."""
        return SocketReceiver(self, self.folder(context)) if self.journal else None

    def collect(self, position: Json, context: SourceContext) -> None:
        """Remove journal files before `position`, which the oldest kept checkpoint holds."""
        if self.journal and position is not None:
            journals.collect(self.folder(context), position)

    def folder(self, context: SourceContext) -> Path:
        """Where the journal is."""
        return context.job_dir / "journal" / context.name

    def describe(self) -> str:
        return "socket, exactly once after receipt" if self.journal else "socket, cannot be read again"


def socket(host: str, port: int, *, journal: bool = True, connect_s: float = 10.0, name: str | None = None) -> Socket:
    """See `penstock.sources.socket`."""
    if not 0 < port < 65536:
        raise ConfigError(f"port={port}: expected 1 to 65535")
    return Socket(check_name(f"{host}-{port}".strip("[]:") if name is None else name, "a source"), host, port, journal, connect_s)


class SocketReceiver(Receiver):
    """Writes the server's lines to the journal, syncing what arrived within a few milliseconds together."""

    def __init__(self, source: Socket, folder: Path) -> None:
        self._source = source
        self._folder = folder
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._writer: journals.JournalWriter | None = None
        self._error: Exception | None = None
        self._ended = False

    def start(self) -> None:
        assert self._thread is None, "a receiver starts once"
        self._writer = journals.JournalWriter(self._folder)
        self._ended = self._writer.ended
        if self._ended:
            self._writer.close()
            return
        self._thread = threading.Thread(target=self._run, name=f"receive-{self._source.name}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()

    @property
    def ended(self) -> bool:
        return self._ended

    def check(self) -> None:
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        assert self._writer is not None
        try:
            self._receive(self._writer)
        except Exception as error:
            self._error = error
        finally:
            self._writer.close()

    def _receive(self, writer: journals.JournalWriter) -> None:
        waiting: list[bytes] = []
        size = 0
        since = 0.0
        for lines in _lines_of(self._source, self._stopping):
            if lines and not waiting:
                since = time.monotonic()
            waiting += lines
            size += sum(map(len, lines))
            if waiting and (size >= RECEIVE_BYTES or time.monotonic() - since >= SYNC_S):
                _append(writer, waiting)
                waiting, size = [], 0
        if waiting:
            _append(writer, waiting)
        if not self._stopping.is_set():
            writer.end()
            self._ended = True


def _append(writer: journals.JournalWriter, lines: list[bytes]) -> None:
    writer.append(len(lines), b"\n".join(lines) + b"\n")


def _lines_of(source: Socket, stopping: threading.Event) -> Iterator[list[bytes]]:
    """Complete lines as they come, an empty list now and then; returns at the server's end, or when stopping."""
    while not stopping.is_set():
        connection = _connect(source, stopping)
        if connection is None:
            return
        with connection:
            connection.settimeout(SYNC_S)
            rest = b""
            try:
                while not stopping.is_set():
                    try:
                        data = connection.recv(RECEIVE_BYTES)
                    except TimeoutError:
                        yield []
                        continue
                    if not data:
                        if rest:
                            yield [rest]
                        return
                    *lines, rest = (rest + data).split(b"\n")
                    if len(rest) > LINE_BYTES_MAX:
                        raise JobError(
                            f"source {source.name!r}: a line has more than {LINE_BYTES_MAX} bytes. "
                            f"Does {source.host}:{source.port} send lines of text?"
                        )
                    yield lines
            except ConnectionError:
                continue  # broken, not closed: connect anew


def _connect(source: Socket, stopping: threading.Event) -> net.socket | None:
    give_up = time.monotonic() + source.connect_s
    pause = 0.05
    while not stopping.is_set():
        left = max(give_up - time.monotonic(), 0.001)
        try:
            return net.create_connection((source.host, source.port), timeout=left)
        except OSError as error:
            if time.monotonic() + pause >= give_up:
                raise JobError(
                    f"source {source.name!r}: {source.host}:{source.port} could not be reached for {source.connect_s:g} s: "
                    f"{error}",
                    fix=Fix("socket.server", f"Start the server that it is to read from. To try it out: nc -lk {source.port}"),
                ) from error
        stopping.wait(pause)
        pause = min(pause * 2, 1.0)
    return None


class _JournalLines(Reader):
    """Rows from the journal, wherever the receiver is."""

    prompt = True

    def __init__(self, folder: Path, position: Json, columns: tuple[str, ...]) -> None:
        self._columns = columns
        self._journal = journals.JournalReader(folder, position)
        self._row = 0 if position is None else int(position["row"])
        self._frame: journals.Frame | None = None
        self._lines: list[bytes] = []
        self._ended = False

    def poll(self, rows_max: int) -> Chunk | None:
        if not self.backlog():
            return Chunk(None, self._journal.position(0), ended=True) if self._ended else None
        assert self._frame is not None
        if self._frame.kind == journals.END:
            self._ended = True
            return Chunk(None, self._journal.position(0), ended=True)
        if not self._lines:
            self._lines = self._frame.payload.split(b"\n")[:-1]
            assert len(self._lines) == self._frame.rows, "a frame holds as many lines as it says"
        first = self._row
        lines = self._lines[first : first + rows_max]
        place = self._journal.position(0)
        self._row += len(lines)
        if self._row >= len(self._lines):
            self._journal.advance(self._frame)
            self._frame, self._lines, self._row = None, [], 0
        batch, bad = _decode(lines, [{**place, "row": first + index} for index in range(len(lines))], self._columns)
        return Chunk(batch, self._journal.position(self._row), bad)

    def backlog(self) -> bool:
        if self._frame is None and not self._ended:
            self._frame = self._journal.next()
        return self._frame is not None and not self._ended

    def close(self) -> None:
        self._journal.close()


class _DirectLines(Reader):
    """Rows straight from the connection, which a thread of its own reads."""

    def __init__(self, source: Socket, position: int, columns: tuple[str, ...]) -> None:
        self._columns = columns
        self._position = position
        self._lines: list[bytes] = []
        self._ended = False
        self._error: Exception | None = None
        self._stopping = threading.Event()
        self._queue: queue.Queue[list[bytes] | None] = queue.Queue(QUEUE_BATCHES)
        self._thread = threading.Thread(target=self._run, args=(source,), name=f"receive-{source.name}", daemon=True)
        self._thread.start()

    def poll(self, rows_max: int) -> Chunk | None:
        if not self._lines and not self._ended:
            self._take()
        if self._error is not None:
            raise self._error
        if not self._lines:
            return Chunk(None, self._position, ended=True) if self._ended else None
        lines, self._lines = self._lines[:rows_max], self._lines[rows_max:]
        batch, bad = _decode(lines, [self._position + index for index in range(len(lines))], self._columns)
        self._position += len(lines)
        return Chunk(batch, self._position, bad)

    def backlog(self) -> bool:
        return bool(self._lines) or not self._queue.empty()

    def close(self) -> None:
        self._stopping.set()
        self._thread.join(timeout=5)

    def _take(self) -> None:
        try:
            found = self._queue.get_nowait()
        except queue.Empty:
            return
        self._ended = found is None
        self._lines = found or []

    def _run(self, source: Socket) -> None:
        try:
            for lines in _lines_of(source, self._stopping):
                if lines:
                    self._put(lines)
        except Exception as error:
            self._error = error
        self._put(None)

    def _put(self, lines: list[bytes] | None) -> None:
        while not self._stopping.is_set():
            try:
                self._queue.put(lines, timeout=SYNC_S)
                return
            except queue.Full:
                continue


def _decode(
    lines: list[bytes], places: list[Json], columns: tuple[str, ...]
) -> tuple[pa.RecordBatch | None, tuple[BadRecord, ...]]:
    texts: list[str] = []
    bad: list[BadRecord] = []
    for line, place in zip(lines, places):
        line = line.removesuffix(b"\r")
        try:
            texts.append(line.decode())
        except UnicodeDecodeError as error:
            sample = line.decode("utf-8", "backslashreplace")[:SAMPLE_CHARS]
            bad.append(BadRecord(place, f"not UTF-8: {error.reason} at byte {error.start}", sample))
    if not texts:
        return None, tuple(bad)
    batch = pa.RecordBatch.from_arrays([pa.array(texts, pa.string())], schema=SCHEMA)
    return batch.select(list(columns)), tuple(bad)
