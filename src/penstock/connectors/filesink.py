"""Rows into a folder of files, where readers see whole epochs only.

    <path>/epoch=7/part-<uid>-3.parquet, _epoch.json       visible: glob <path>/epoch=*/part-*
    <path>/_rolled/<lineage>/epoch=8/…                     committed, waiting to become part of a larger directory (roll=)
    <path>/_staging/<lineage>/open-<uid>/part-…            being written
    <path>/_staging/<lineage>/8-<uid>/part-…               prepared for epoch 8
    <path>/_staging/<lineage>/commit-8/…                   about to become visible

`_epoch.json` is the marker: lineage, epochs, and each part's rows, bytes and checksum, under a checksum of its own.

1. A prepared part is synced and never moves. To commit, all parts of the epoch are linked into `commit-<n>`, the marker
   is written, and ONE rename makes the directory visible. A half-made `commit-<n>` holds links only and is thrown away;
   so any step may be repeated. What was linked is compared with the checksum that the committable carries: a file that
   changed since it was prepared is refused, never shown.
2. The target exists: with our own marker it was done before (ALREADY); with any other it is not ours to touch (`StorageError`).
   Prepared parts are removed after the rename.
3. An epoch without rows makes no directory.
5. `change="change"`: rows that replace or withdraw earlier ones can be written too; the column says 1 for a row that is added or
   put, -1 for one that is deleted or withdrawn. The sum over all epochs is the result.
4. `roll=N` gathers: a commit renames the epoch into `_rolled` (that is its commit: durable, once, never undone), and N
   of them are linked into `epoch=<first>-<last>`, made visible by one rename, before their own directories go. A crash
   between the two is noticed by the next commit, because visible markers list their epochs. Closing the committer shows
   what was gathered; after a crash the next one goes on.
6. A committable says in which folder it was prepared. If the sink has another one now, the epoch is committed to the old one all the
   same: it was promised there. Unless the folder was moved, and the parts, or the epoch itself, are found in the new one.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.connectors.connector import Committer, Json, Sink, SinkContext, Verdict, Writer
from penstock.connectors.durable import file_checksum, make_dirs, naming, sync_dir
from penstock.connectors.marks import read_mark, write_mark
from penstock.connectors.rowfile import FORMATS, RowFile, open_row_file
from penstock.errors import ConfigError, CorruptError, Fix, StorageError
from penstock.names import check_name

__all__ = ["FileSink", "files"]

MARKER = "_epoch.json"
EPOCH_DIR = re.compile(r"epoch=(\d+)(?:-(\d+))?")
NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK, errno.EXDEV)


@dataclass(frozen=True)
class FileSink(Sink):
    """Files of `format` in `path`; `roll` epochs with rows share a directory."""

    name: str
    path: str
    format: str
    roll: int
    change: str | None = None
    kind: str = field(init=False, default="transactional")

    @property
    def accepts(self) -> frozenset[str]:  # type: ignore[override]
        """Only files that say so hold rows that take others back."""
        return frozenset({"append", "update", "retract"} if self.change else {"append"})

    @property
    def wants_change(self) -> bool:  # type: ignore[override]
        """A column that was asked for is always there."""
        return self.change is not None

    @property
    def change_name(self) -> str:  # type: ignore[override]
        """As the user calls it."""
        return self.change or "change"

    def writer(self, context: SinkContext) -> Writer:
        return _FileWriter(self, context)

    def committer(self, context: SinkContext) -> Committer:
        return _FileCommitter(self, context)

    def describe(self) -> str:
        return "files, transactional"


def files(
    path: str | os.PathLike[str],
    *,
    format: str = "parquet",
    roll: int = 1,
    change: str | None = None,
    name: str | None = None,
) -> FileSink:
    """See `penstock.sinks.files`."""
    text = os.fspath(path)
    if "://" in text:
        raise ConfigError(
            f"{text!r}: files are written to local or mounted folders",
            fix=Fix("file-sink.path", "Give the path of such a folder, without '://'"),
        )
    if format not in FORMATS:
        raise ConfigError(f"format={format!r} is not known. Formats: {', '.join(FORMATS)}")
    if roll < 1:
        raise ConfigError(f"roll={roll}: expected the number of epochs in a directory, at least 1")
    absolute = Path(text).absolute()
    return FileSink(check_name(absolute.name if name is None else name, "a sink"), str(absolute), format, roll, change)


def _staging(sink: FileSink, context: SinkContext) -> Path:
    return Path(sink.path, "_staging", check_name(context.lineage, "a lineage"))


class _FileWriter(Writer):
    """One part per epoch with rows."""

    def __init__(self, sink: FileSink, context: SinkContext) -> None:
        self._sink = sink
        self._context = context
        self._staging = _staging(sink, context)
        self._open = self._staging / f"open-{check_name(context.uid, 'a writer')}"
        self._file: RowFile | None = None
        self._part = ""
        self._count = 0

    def write(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        if self._file is None:
            make_dirs(self._open)
            # The count makes the name unique even if the parts of two epochs are committed as one.
            self._part = f"part-{self._context.uid}-{self._count}.{self._sink.format}"
            self._count += 1
            self._file = open_row_file(self._sink.format, self._open / self._part, self._context.schema)
        self._file.write(batch)

    def prepare(self, epoch: int) -> Sequence[Json]:
        if self._file is None:
            return []
        written = self._file.close()
        self._file = None
        sync_dir(self._open)
        folder = self._staging / f"{epoch}-{self._context.uid}"
        os.rename(self._open, folder)
        sync_dir(self._staging)
        return [
            {
                "folder": folder.name,
                "part": self._part,
                "rows": written.rows,
                "bytes": written.bytes,
                "xxh64": written.checksum,
                "path": self._sink.path,
            }
        ]

    def close(self) -> None:
        if self._file is not None:
            self._file.abandon()
            self._file = None
        shutil.rmtree(self._open, ignore_errors=True)


class _FileCommitter(Committer):
    def __init__(self, sink: FileSink, context: SinkContext) -> None:
        self._sink, self._context = sink, context
        self._elsewhere: dict[str, _FileCommitter] = {}  # folders that the sink had before
        self._path = Path(sink.path)
        self._roll = sink.roll
        self._lineage = context.lineage
        self._staging = _staging(sink, context)
        self._all_rolled = Path(sink.path, "_rolled")
        self._rolled = self._all_rolled / context.lineage
        self._inherited = False  # whether what other lineages left in `_rolled` was shown
        self._ranges: list[tuple[int, int, Path]] | None = None  # visible directories of several epochs

    def commit(self, epoch: int, committables: Sequence[Json], attempt: int) -> Verdict:
        if not committables:
            return Verdict.DONE
        parts = _parts(committables)
        done = self._find(epoch)
        before = committables[0].get("path", self._sink.path)  # older ones do not say it
        if before != self._sink.path and not self._moved(done, epoch, committables):
            return self._other(before).commit(epoch, committables, attempt)
        if not self._inherited:
            self._show(self._roll)
            self._inherited = True
            done = self._find(epoch)
        if done is not None:
            _check_same(done, self._lineage, epoch, parts)
            self._remove_prepared(committables)
            return Verdict.ALREADY
        home = self._path if self._roll == 1 else self._rolled
        marker = {"lineage": self._lineage, "epochs": [epoch], "parts": {str(epoch): parts}}
        self._publish(self._prepared(committables), marker, home / f"epoch={epoch}", f"commit-{epoch}")
        self._remove_prepared(committables)
        if self._roll > 1:
            self._show(self._roll)
        return Verdict.DONE

    def committed(self) -> tuple[str, int] | None:
        found = _epoch_dirs(self._path)
        for folder in _folders(self._all_rolled):
            found += _epoch_dirs(folder)
        if not found:
            return None
        marker = _read_marker(max(found, key=lambda item: item[1])[2])
        return marker["lineage"], max(marker["epochs"])

    def sweep(self, keep: Sequence[Json]) -> None:
        """Called while no writer of this lineage is at work: what is not kept has no owner."""
        kept = {item["folder"] for item in keep}
        if self._staging.is_dir():
            for folder in self._staging.iterdir():
                if folder.name not in kept:
                    shutil.rmtree(folder)

    def close(self) -> None:
        self._show(1)
        for other in self._elsewhere.values():
            other.close()

    def _moved(self, done: Path | None, epoch: int, committables: Sequence[Json]) -> bool:
        """Whether what was prepared in another folder, or committed there, is here now."""
        if done is not None and (done / MARKER).exists():
            marker = _read_marker(done)
            return bool(marker["lineage"] == self._lineage and marker["parts"].get(str(epoch)) == _parts(committables))
        return any(source.exists() for source in self._prepared(committables))

    def _other(self, path: str) -> _FileCommitter:
        if path not in self._elsewhere:
            self._elsewhere[path] = _FileCommitter(replace(self._sink, path=path), self._context)
        return self._elsewhere[path]

    def _prepared(self, committables: Sequence[Json]) -> list[Path]:
        return [self._staging / item["folder"] / item["part"] for item in committables]

    def _find(self, epoch: int) -> Path | None:
        """The directory that shows `epoch`, or holds it until it is shown."""
        for candidate in (self._path / f"epoch={epoch}", self._rolled / f"epoch={epoch}"):
            if candidate.exists():
                return candidate
        if self._ranges is None:
            self._ranges = [item for item in _epoch_dirs(self._path) if item[0] < item[1]]
        for first, last, folder in self._ranges:
            if first <= epoch <= last:
                return folder
        return None

    def _publish(self, sources: list[Path], marker: dict[str, Any], target: Path, temporary: str) -> None:
        """Gather `sources` and make them appear at `target` by one rename."""
        for source in sources:
            if not source.exists():
                raise StorageError(
                    f"{source} is gone: it was prepared for epoch {marker['epochs'][0]} and not committed yet",
                    fix=Fix(
                        "file-sink.gone",
                        "Start the job once with the folder that it wrote to before, put that folder back, or begin with another storage",
                    ),
                )
        make_dirs(target.parent)
        make_dirs(self._staging)
        build = self._staging / temporary
        if build.exists():
            shutil.rmtree(build)
        build.mkdir()
        prepared = {item["name"]: item for parts in marker["parts"].values() for item in parts}
        for source in sources:
            _link(source, build / source.name)
            _check_bytes(build / source.name, prepared[source.name], source)
        write_mark(build / MARKER, marker, indent=1)
        sync_dir(build)
        try:
            os.rename(build, target)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
            raise StorageError(
                f"{target} appeared while it was being committed, so another job seems to write there: {error}"
            ) from error
        sync_dir(target.parent)

    def _show(self, at_least: int) -> None:
        """Make gathered epochs visible if there are enough of them. Those of other lineages have nobody else to show them."""
        for folder in _folders(self._all_rolled):
            own = folder == self._rolled
            self._show_lineage(folder, at_least if own else 1)

    def _show_lineage(self, rolled: Path, at_least: int) -> None:
        lineage = rolled.name
        visible = _epoch_dirs(self._path)
        waiting = []
        for epoch, _, folder in sorted(_epoch_dirs(rolled)):
            shown = [each for first, last, each in visible if first <= epoch <= last]
            if shown and epoch in _read_marker(shown[0])["epochs"]:
                # By an earlier call that died before it could tidy up.
                _check_same(shown[0], lineage, epoch, _read_marker(folder)["parts"][str(epoch)])
                shutil.rmtree(folder)
            else:
                waiting.append((epoch, folder))
        if not waiting or len(waiting) < at_least:
            return
        first, last = waiting[0][0], waiting[-1][0]
        label = f"{first}" if first == last else f"{first}-{last}"
        parts = {str(epoch): _read_marker(folder)["parts"][str(epoch)] for epoch, folder in waiting}
        marker = {"lineage": lineage, "epochs": [epoch for epoch, _ in waiting], "parts": parts}
        sources = [folder / item["name"] for epoch, folder in waiting for item in parts[str(epoch)]]
        self._publish(sources, marker, self._path / f"epoch={label}", f"commit-{label}")
        self._ranges = None
        for _, folder in waiting:
            shutil.rmtree(folder)

    def _remove_prepared(self, committables: Sequence[Json]) -> None:
        for item in committables:
            shutil.rmtree(self._staging / item["folder"], ignore_errors=True)


def _check_same(folder: Path, lineage: str, epoch: int, parts: Json) -> None:
    """Refuse to take `folder` for the commit of `epoch` unless it holds just that."""
    marker = _read_marker(folder)
    if marker["lineage"] != lineage:
        raise StorageError(
            f"{folder} was written by lineage {marker['lineage']}, and lineage {lineage} now has an epoch {epoch} of its own",
            fix=Fix("file-sink.lineage", "Write to another folder, or remove the epochs that should not count"),
        )
    if marker["parts"].get(str(epoch)) != parts:
        raise StorageError(
            f"{folder} shows other rows for epoch {epoch} of lineage {lineage} than those to be committed now. "
            f"The job was restored from before what it had committed"
        )


def _folders(path: Path) -> list[Path]:
    return [each for each in path.iterdir() if each.is_dir()] if path.is_dir() else []


def _parts(committables: Sequence[Json]) -> list[dict[str, Any]]:
    return [{"name": item["part"], "rows": item["rows"], "bytes": item["bytes"], "xxh64": item["xxh64"]} for item in committables]


def _epoch_dirs(path: Path) -> list[tuple[int, int, Path]]:
    """(first epoch, last epoch, directory) of every epoch directory in `path`."""
    if not path.is_dir():
        return []
    found = []
    for name in os.listdir(path):
        if match := EPOCH_DIR.fullmatch(name):
            found.append((int(match[1]), int(match[2] or match[1]), path / name))
    return found


def _read_marker(folder: Path) -> dict[str, Any]:
    marker = read_mark(folder / MARKER, {"lineage": str, "epochs": list, "parts": dict})
    if marker is None:
        raise StorageError(
            f"{folder} was not written by Penstock: it has no {MARKER}",
            fix=Fix("file-sink.folder", "Choose a folder of its own for the sink"),
        )
    return marker


def _check_bytes(linked: Path, part: dict[str, Any], source: Path) -> None:
    """Refuse a part that is not, byte for byte, what was prepared."""
    size = linked.stat().st_size
    if size != part["bytes"]:
        raise CorruptError(f"{source} has {size} bytes, and {part['bytes']} were prepared")
    found = file_checksum(linked)
    if found != part["xxh64"]:
        raise CorruptError(f"{source} is not what was prepared: its checksum is {found}, and {part['xxh64']} was expected")


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        # A file system without hard links: the bytes are written twice instead.
        shutil.copyfile(source, target)
        with naming(target), open(target, "rb") as copied:
            os.fsync(copied.fileno())
