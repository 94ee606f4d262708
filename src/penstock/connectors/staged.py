"""Rows waiting in the job directory until their epoch is committed; then handed over, in the coordinator's process.

What console, memory and foreach_batch share: sinks whose outside cannot prepare anything.

    <job_dir>/staging/<sink>/open-<uid>-3.arrow       being written
    <job_dir>/staging/<sink>/8-<uid>.arrow            prepared for epoch 8 (an Arrow stream; its checksum is in the committable)
    <job_dir>/staging/<sink>/delivered.json           a mark {"lineage", "epoch", "last"}: the newest, and the last handed over

1. `deliver` is called after the epoch is published, with rows read from the files the manifest names. So for one
   (lineage, epoch) they are the same rows, in every attempt and every runner.
2. When it returns, `delivered.json` is written, then the files go. A crash before the mark means another call with the same rows:
   at least once. A crash after it means none. A mark that finds no room is written later, without another call.
3. Files are checked against their checksums before the first row is handed over.
"""

from __future__ import annotations

import abc
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.connectors.connector import Committer, Json, SinkContext, Verdict, Writer
from penstock.connectors.durable import Hashed, file_checksum, make_dirs, sync_dir
from penstock.connectors.marks import read_mark, write_mark
from penstock.errors import CorruptError, StorageError
from penstock.names import check_name

__all__ = ["StagedCommitter", "StagedWriter"]

DELIVERED = "delivered.json"


def _folder(context: SinkContext) -> Path:
    return context.job_dir / "staging" / check_name(context.name, "a sink")


class StagedWriter(Writer):
    """Writes an Arrow stream per epoch with rows."""

    def __init__(self, context: SinkContext) -> None:
        self._folder = _folder(context)
        self._schema = context.schema
        self._uid = check_name(context.uid, "a writer")
        self._count = 0
        self._file: Hashed | None = None
        self._stream: pa.ipc.RecordBatchStreamWriter | None = None
        self._path = self._folder
        self._rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        if self._file is None:
            make_dirs(self._folder)
            self._path = self._folder / f"open-{self._uid}-{self._count}.arrow"
            self._count += 1
            self._rows = 0
            self._file = Hashed(self._path)
            self._stream = pa.ipc.new_stream(pa.PythonFile(self._file, mode="w"), self._schema)
        assert self._stream is not None
        self._stream.write_batch(batch)
        self._rows += batch.num_rows

    def prepare(self, epoch: int) -> Sequence[Json]:
        if self._file is None:
            return []
        assert self._stream is not None
        file = self._file
        self._stream.close()
        file.seal()
        self._file = self._stream = None
        target = self._folder / f"{epoch}-{self._uid}.arrow"
        os.rename(self._path, target)
        sync_dir(self._folder)
        return [{"file": target.name, "rows": self._rows, "bytes": file.size, "xxh64": file.checksum}]

    def close(self) -> None:
        if self._file is not None:
            self._file.abandon()
            self._file = self._stream = None
            self._path.unlink(missing_ok=True)


class StagedCommitter(Committer):
    """Hands staged epochs over, in order."""

    def __init__(self, context: SinkContext) -> None:
        self.context = context
        self._folder = _folder(context)
        self._unmarked: int | None = None  # the epoch that was handed over, and could not be marked yet

    @abc.abstractmethod
    def deliver(self, epoch: int, rows: pa.RecordBatchReader, attempt: int) -> None:
        """Hand the epoch's rows over. May be called again for the same epoch, then with the same rows."""

    def commit(self, epoch: int, committables: Sequence[Json], attempt: int) -> Verdict:
        if not committables:
            return Verdict.DONE
        mark = self._mark()
        if self._was_delivered(epoch, committables, mark):
            self._remove(committables)
            return Verdict.ALREADY
        if self._unmarked != epoch:
            for item in committables:
                self._check(item)
            self.deliver(epoch, self._rows(committables), attempt)
            self._unmarked = epoch
        same = mark is not None and mark["lineage"] == self.context.lineage
        newest = max(epoch, mark["epoch"]) if mark is not None and same else epoch
        write_mark(self._folder / DELIVERED, {"lineage": self.context.lineage, "epoch": newest, "last": epoch})
        self._unmarked = None
        self._remove(committables)
        return Verdict.DONE

    def committed(self) -> tuple[str, int] | None:
        mark = self._mark()
        return None if mark is None else (mark["lineage"], mark["epoch"])

    def _was_delivered(self, epoch: int, committables: Sequence[Json], mark: dict[str, Any] | None) -> bool:
        if mark is None or mark["lineage"] != self.context.lineage:
            return False
        if epoch == mark["last"]:
            return True
        # An epoch whose delivery failed may be tried again after later ones: its files are still there.
        gone = not any((self._folder / item["file"]).exists() for item in committables)
        return gone and epoch <= mark["epoch"]

    def _mark(self) -> dict[str, Any] | None:
        return read_mark(self._folder / DELIVERED, {"lineage": str, "epoch": int, "last": int})

    def sweep(self, keep: Sequence[Json]) -> None:
        """Called while no writer is at work: what is not kept has no owner."""
        kept = {item["file"] for item in keep}
        if self._folder.is_dir():
            for path in self._folder.glob("*.arrow"):
                if path.name not in kept:
                    path.unlink()

    def _check(self, item: Json) -> None:
        path = self._folder / item["file"]
        if not path.exists():
            raise StorageError(f"{path} is gone: it holds rows that were prepared and not delivered yet")
        if path.stat().st_size != item["bytes"] or file_checksum(path) != item["xxh64"]:
            raise CorruptError(f"{path} is not what was prepared: its size or checksum differs")

    def _rows(self, committables: Sequence[Json]) -> pa.RecordBatchReader:
        paths = [self._folder / item["file"] for item in committables]
        return pa.RecordBatchReader.from_batches(self.context.schema, _batches(paths))

    def _remove(self, committables: Sequence[Json]) -> None:
        for item in committables:
            (self._folder / item["file"]).unlink(missing_ok=True)


def _batches(paths: list[Path]) -> Iterator[pa.RecordBatch]:
    for path in paths:
        with pa.OSFile(str(path), "rb") as file:
            yield from pa.ipc.open_stream(file)
