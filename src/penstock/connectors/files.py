"""Files of a folder as a stream: JSON lines, CSV or Parquet, read once each, in the order of their names.

Files are dealt to lanes (splits) by the hash of their name; a lane reads one file after the other. Names are relative
to the folder, so a folder may be moved as a whole between two starts.

1. A position is `{"splits", "done": {name: bytes}, "file", "offset"}`: the files that were read, the one being read
   and how far. Positions share their `done` with each other and are never changed in place.
2. Without `watch` the source is bounded: it ends after the files that are there when a reader opens. With it, the
   folder is looked through again every so often, and new files join their lane, wherever their names sort.
3. A file that was read never changes: another size is an error that names it. Deleting it is allowed.
4. Names starting with "." or "_" and names ending in ".tmp" are not looked at. So write to such a name, then rename:
   a file that grows while it is read is read as far as it goes and counts as changed afterwards.
5. While watching, a last line without its line break is waited for, and with it everything behind it in its lane.
"""

from __future__ import annotations

import functools
import glob
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import xxhash

from penstock.connectors.connector import Bound, Chunk, Json, Reader, Source, SourceContext
from penstock.connectors.csvlines import CsvLines, header_names
from penstock.connectors.fileformat import FileReader, pick
from penstock.connectors.jsonlines import JsonLines
from penstock.connectors.lines import CHANGED, LineDecoder, LineFile
from penstock.connectors.parquetfile import ParquetReader, file_schema
from penstock.errors import ConfigError, Fix, RestoreError, StorageError
from penstock.eventtime import micros
from penstock.names import check_name
from penstock.schema import to_schema

__all__ = ["Files", "files"]

FORMATS = {".json": "json", ".jsonl": "json", ".ndjson": "json", ".csv": "csv", ".parquet": "parquet"}
COMPRESSED = (".gz", ".bz2", ".zst", ".xz", ".zip", ".lz4")
COLUMNS = Fix("files.schema", 'Write: schema="user string not null, price double"')


@dataclass(frozen=True)
class Files(Source):
    """The files `pattern` in `folder`. Made by `files`, which works out what is not said."""

    name: str
    schema: pa.Schema
    folder: str
    pattern: str
    format: str
    by_suffix: bool  # only files with a suffix of the format, not all that the pattern matches
    watch_us: int | None
    lanes: int
    header: bool
    bounded: bool = field(init=False)
    replayable: bool = field(init=False, default=True)
    skips: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "bounded", self.watch_us is None)
        object.__setattr__(self, "skips", self.format == "parquet")

    def splits(self) -> tuple[str, ...]:
        return tuple(str(lane) for lane in range(self.lanes))

    def open(self, split: str, position: Json, context: SourceContext) -> Reader:
        return _Lane(self, int(split), position, context)

    def describe(self) -> str:
        return "files, replayable"

    def listing(self, lane: int) -> list[str]:
        """The names of the lane's files that are there now, in order."""
        found = _names(self.folder, self.pattern)
        if self.by_suffix:
            found = [name for name in found if _format_of(name) == self.format]
        return [name for name in found if xxhash.xxh64_intdigest(name.encode()) % self.lanes == lane]

    def opener(self, columns: tuple[str, ...], bounds: tuple[Bound, ...] = ()) -> Callable[[str, Json], FileReader]:
        """What opens a file of this name at an offset. Files that it opens one after the other share what was learned of their lines."""
        wanted = pick(self.schema, columns)
        if self.format == "parquet":
            return lambda name, offset: ParquetReader(self._path(name), name, offset, wanted, bounds)
        if self.format == "csv":
            return lambda name, offset: self._lines(
                name, offset, functools.partial(_csv_decoder, wanted, self.schema.names, name)
            )
        json_lines = JsonLines(wanted)
        return lambda name, offset: self._lines(name, offset, lambda _header: json_lines)

    def _lines(self, name: str, offset: Json, decoder: Callable[[bytes | None], LineDecoder]) -> FileReader:
        header = self.format == "csv" and self.header
        return LineFile(self._path(name), name, offset, decoder=decoder, header=header, final=self.bounded)

    def _path(self, name: str) -> Path:
        return Path(self.folder, name)


def _csv_decoder(schema: pa.Schema, names: list[str], file: str, header: bytes | None) -> LineDecoder:
    return CsvLines(schema, names if header is None else header_names(header, file), file)


def files(
    path: str | os.PathLike[str],
    *,
    schema: Any = None,
    format: str | None = None,
    watch: Any = None,
    splits: int = 4,
    header: bool = True,
    name: str | None = None,
) -> Files:
    """See `penstock.sources.files`."""
    text = os.fspath(path)
    if "://" in text:
        raise ConfigError(
            f"{text!r}: files are read from local or mounted folders",
            fix=Fix("files.path", "Give the path of such a folder, without '://'"),
        )
    if splits < 1:
        raise ConfigError(f"splits={splits}: expected at least 1")
    if format is not None and format not in FORMATS.values():
        raise ConfigError(f"format={format!r} is not known. Formats: json, csv, parquet")
    folder, pattern, default_name = _place(text)
    if watch is None and not glob.has_magic(text) and not os.path.exists(text):
        raise ConfigError(f"there is nothing at {text!r}", fix=Fix("files.nothing", 'To wait for it, write: watch="1s"'))
    by_suffix = False
    if format is None:
        format = _format_of(pattern)
        by_suffix = format is None
        format = format or _format_found(folder, pattern, text)
    if schema is not None:
        found = to_schema(schema)
    elif format == "parquet":
        found = _schema_found(folder, pattern, text)
    else:
        raise ConfigError(f"{format} files do not say which columns they have", fix=COLUMNS)
    return Files(
        name=check_name(default_name if name is None else name, "a source"),
        schema=found,
        folder=folder,
        pattern=pattern,
        format=format,
        by_suffix=by_suffix,
        watch_us=None if watch is None else micros(watch, "watch"),
        lanes=splits,
        header=header,
    )


def _place(text: str) -> tuple[str, str, str]:
    """(folder, pattern below it, default name) of a file, a folder or a glob. Absolute: workers may run elsewhere."""
    path = Path(text).absolute()
    if path.is_dir():
        return str(path), "*", path.name
    if not path.exists() and not path.suffix and not glob.has_magic(text):
        return str(path), "*", path.name  # a folder that is not there yet
    if path.is_file() or not glob.has_magic(text):
        if path.suffix in COMPRESSED:
            raise _compressed(path.name)
        return str(path.parent), glob.escape(path.name), path.stem
    parts = path.parts
    first = next(index for index, part in enumerate(parts) if glob.has_magic(part))
    folder = Path(*parts[:first])
    return str(folder), os.path.join(*parts[first:]), folder.name


def _names(folder: str, pattern: str) -> list[str]:
    found = []
    for name in glob.glob(pattern, root_dir=folder, recursive=True):
        hidden = any(part.startswith((".", "_")) for part in name.split(os.sep))
        if hidden or name.endswith(".tmp") or not os.path.isfile(os.path.join(folder, name)):
            continue
        if name.endswith(COMPRESSED):
            raise _compressed(name)
        found.append(name)
    return sorted(found)


def _compressed(name: str) -> StorageError:
    return StorageError(
        f"{name!r} is compressed, and positions in compressed files cannot be found again",
        fix=Fix("files.compressed", "Unpack it, or convert it to Parquet"),
    )


def _format_of(name: str) -> str | None:
    return FORMATS.get(Path(name).suffix.rstrip("]"))


def _format_found(folder: str, pattern: str, text: str) -> str:
    formats = {found for name in _names(folder, pattern) if (found := _format_of(name))}
    if not formats:
        raise ConfigError(
            f"{text!r}: cannot tell the format, there is no file to tell it from", fix=Fix("files.format", 'Write: format="json"')
        )
    if len(formats) > 1:
        raise ConfigError(
            f"{text!r}: cannot tell the format, there are files of several ({', '.join(sorted(formats))})",
            fix=Fix("files.formats", f"Name those of one format. Write: {_of_one_format(folder, pattern, text)!r}"),
        )
    return formats.pop()


def _of_one_format(folder: str, pattern: str, text: str) -> str:
    """A glob for those of the files whose names are of the first format that is there."""
    suffix = next(Path(name).suffix for name in _names(folder, pattern) if _format_of(name))
    return str(Path(text).with_name(f"*{suffix}") if glob.has_magic(text) else Path(text, f"*{suffix}"))


def _schema_found(folder: str, pattern: str, text: str) -> pa.Schema:
    names = [name for name in _names(folder, pattern) if os.path.getsize(os.path.join(folder, name))]
    if not names:
        raise ConfigError(f"{text!r}: there is no Parquet file yet to take the columns from", fix=COLUMNS)
    return file_schema(Path(folder, names[0]))


class _Lane(Reader):
    """Reads a lane's files one after the other."""

    prompt = True

    def __init__(self, source: Files, lane: int, position: Json, context: SourceContext) -> None:
        self.source = source
        self.lane = lane
        self.columns = list(context.columns)
        self.open = source.opener(context.columns, context.bounds)
        self.done: Mapping[str, int] = {}
        self.name: str | None = None
        self.file: FileReader | None = None
        self.ended = False
        self.waited_at = -1  # the size of the file when half a line was all that was left
        self.todo: list[str] = []
        self.look_at = time.monotonic()
        if position is not None:
            self._restore(position)
        self._look()

    def poll(self, rows_max: int) -> Chunk | None:
        while True:
            if self.file is None and not self._next_file():
                if not self.source.bounded:
                    return None
                self.ended = True
                return Chunk(None, self._position(), ended=True)
            assert self.file is not None
            piece = self.file.read(rows_max)
            finished = self.file.finished
            if finished:
                self._finish()
            if piece is not None:
                batch = None if piece.batch is None else piece.batch.select(self.columns)
                return Chunk(batch, self._position(), piece.bad)
            if not finished:
                self.waited_at = self.file.size  # for the rest of a line
                return None

    def backlog(self) -> bool:
        if self.ended:
            return False
        if self.file is not None:
            return self.file.size != self.waited_at
        return bool(self.todo) or self.source.bounded or time.monotonic() >= self.look_at

    def due_at(self) -> int | None:
        if self.file is not None or self.todo or self.source.bounded:
            return None
        return time.time_ns() // 1000 + int((self.look_at - time.monotonic()) * 1e6)

    def close(self) -> None:
        if self.file is not None:
            self.file.close()
            self.file = None

    def _position(self) -> Json:
        offset = self.file.offset if self.file is not None else None
        return {"splits": self.source.lanes, "done": self.done, "file": self.name, "offset": offset}

    def _restore(self, position: Json) -> None:
        if position["splits"] != self.source.lanes:
            raise RestoreError(
                f"source {self.source.name!r} was read with splits={position['splits']}, and files would be dealt differently "
                f"with splits={self.source.lanes}",
                fix=Fix("files.splits", f"Write: splits={position['splits']}"),
            )
        self.done = position["done"]
        if position["file"] is not None:
            self._open(position["file"], position["offset"])

    def _open(self, name: str, offset: Json) -> None:
        try:
            self.file = self.open(name, offset)
        except FileNotFoundError as error:
            raise StorageError(
                f"{name!r} is gone from {self.source.folder}, and {'half of it' if offset else 'it'} was not read yet"
            ) from error
        self.name = name
        self.waited_at = -1

    def _next_file(self) -> bool:
        if not self.todo and not self.source.bounded and time.monotonic() >= self.look_at:
            self._look()
        if not self.todo:
            return False
        self._open(self.todo.pop(), None)
        return True

    def _finish(self) -> None:
        assert self.file is not None
        assert self.name is not None
        # A new dict: positions already given out keep the old one.
        self.done = {**self.done, self.name: self.file.size}
        self.file.close()
        self.file = None
        self.name = None

    def _look(self) -> None:
        """Find the lane's files that were not read; the last is the next to read."""
        if self.source.bounded and not os.path.isdir(self.source.folder):
            raise StorageError(f"source {self.source.name!r}: there is no folder {self.source.folder}")
        todo = []
        for name in self.source.listing(self.lane):
            try:
                size = os.path.getsize(os.path.join(self.source.folder, name))
            except FileNotFoundError:
                continue  # removed since it was listed
            before = self.done.get(name)
            if before is None:
                # While watching, an empty file is one that its writer has only created yet.
                if name != self.name and (size or self.source.bounded):
                    todo.append(name)
            elif before != size:
                raise StorageError(
                    f"{name!r} in {self.source.folder} had {before} bytes when it was read and has {size} now, "
                    f"and files may not change after they were read",
                    fix=CHANGED,
                )
        self.todo = todo[::-1]
        if self.source.watch_us is not None:
            self.look_at = time.monotonic() + self.source.watch_us / 1e6
