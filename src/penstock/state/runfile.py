"""The file of a run: how its bytes come about, what a manifest says about it, and how it is read and checked.

It is one Arrow IPC file with one batch; `runs.py` says what stands in it. A file is what its `Handle` says, in length and checksum, or it
is refused (CorruptError); that is checked once per process.

Version 1 has its rows sorted by (group, hash), version 2 in any order. To sort a million rows each second for a file that is read only if
something breaks costs more than everything else about it; whoever does open such a file sorts it then, in memory.
"""

from __future__ import annotations

import dataclasses
import re
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from penstock.errors import CorruptError
from penstock.state.columns import Ints, fixed_values

__all__ = [
    "DELETE",
    "GROUP",
    "HASH",
    "OP",
    "PUT",
    "SORTED",
    "UNSORTED",
    "Files",
    "Groups",
    "Handle",
    "Hashes",
    "Kind",
    "checksum",
    "decode_run",
    "encode_run",
    "forget_validated",
    "in_order",
    "order_of",
    "read_run",
    "remember_validated",
    "run_schema",
    "stored_schema",
    "visible_rows",
]

GROUP, HASH, OP = "__group", "__hash", "__op"
PUT, DELETE = 1, 0
SORTED, UNSORTED = {b"penstock.run": b"1"}, {b"penstock.run": b"2"}
"""Schema metadata of every run: the version of the format. Others are refused."""

Kind = Literal["run", "timers"]
Groups = npt.NDArray[np.int32]
Hashes = npt.NDArray[np.uint64]


class Files(Protocol):
    """Where runs live."""

    def write(self, path: str, *pieces: pa.Buffer, read_soon: bool = True) -> None:
        """Make these pieces, one after the other, durable under a new name: whole or not at all.

        Args:
            read_soon: Whether anybody will read it, unless something breaks.
        """

    def open(self, path: str) -> pa.Buffer:
        """The bytes of a file; may be mapped."""


@dataclass(frozen=True, slots=True)
class Handle:
    """What a manifest says about one file of state. Groups are inclusive; due times are in µs, None for keyed runs."""

    path: str
    kind: Kind
    first_group: int
    last_group: int
    rows: int
    bytes: int
    checksum: str
    min_due: int | None = None
    max_due: int | None = None

    def to_json(self) -> dict[str, Any]:
        """The handle as JSON; `from_json` is its inverse."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: object) -> Handle:
        """Read a handle back; CorruptError if anything about it is not as `to_json` writes it."""
        names = [field.name for field in dataclasses.fields(cls)]
        if not isinstance(data, dict) or sorted(map(str, data)) != sorted(names):
            raise CorruptError(f"not a state handle: {data!r}; expected an object with {', '.join(names)}")
        for problem in _problems(data):
            raise CorruptError(f"state handle {data['path']!r}: {problem}")
        return cls(**data)

    def within(self, groups: range) -> Handle | None:
        """The handle for those of its groups that are in `groups`; None if there are none."""
        first, last = max(self.first_group, groups.start), min(self.last_group, groups.stop - 1)
        return dataclasses.replace(self, first_group=first, last_group=last) if first <= last else None


def _problems(data: Mapping[str, Any]) -> Iterator[str]:
    path = data["path"]
    if not isinstance(path, str) or not path or path.startswith("/") or "\\" in path or "\0" in path:
        yield "path must be a relative path"
    elif any(part in ("", ".", "..") for part in path.split("/")):
        yield "path must not have empty, '.' or '..' parts"
    if data["kind"] not in ("run", "timers"):
        yield f"unknown kind {data['kind']!r}"
    for name in ("first_group", "last_group", "rows", "bytes"):
        if type(data[name]) is not int or data[name] < 0:
            yield f"{name} must be a number, not {data[name]!r}"
    if data["last_group"] < data["first_group"]:
        yield "last_group is before first_group"
    if not isinstance(data["checksum"], str) or not re.fullmatch("[0-9a-f]{32}", data["checksum"]):
        yield f"checksum must be 32 hex digits, not {data['checksum']!r}"
    wanted = int if data["kind"] == "timers" else type(None)
    for name in ("min_due", "max_due"):
        if type(data[name]) is not wanted:
            yield f"{name} of kind {data['kind']} must be {wanted.__name__}, not {data[name]!r}"
    if wanted is int and data["max_due"] < data["min_due"]:
        yield "max_due is before min_due"


def run_schema(keys: pa.Schema, values: pa.Schema) -> pa.Schema:
    """The schema of keyed runs. Names and types only: nullability and metadata of the user's schema do not matter."""
    fields = [pa.field(GROUP, pa.int32(), False), pa.field(HASH, pa.uint64(), False)]
    fields += [pa.field(field.name, field.type) for field in keys]
    fields += [pa.field(OP, pa.int8(), False)]
    fields += [pa.field(field.name, field.type) for field in values]
    return pa.schema(fields, SORTED)


def encode_run(batch: pa.RecordBatch, format: Mapping[bytes, bytes] = SORTED) -> list[pa.Buffer]:
    """The bytes of the file, in pieces: Arrow's own file format, uncompressed so that it can be used where it is mapped.

    Columns are pieces as they are, without a copy.
    """
    pieces = _Pieces()
    batch = batch.replace_schema_metadata(format)
    with pa.ipc.new_file(pa.PythonFile(pieces, mode="w"), batch.schema) as writer:
        writer.write_batch(batch)
    return pieces.found


class _Pieces:
    """A file that keeps what is written to it as it comes."""

    def __init__(self) -> None:
        self.found: list[pa.Buffer] = []
        self.closed = False

    def write(self, piece: bytes | pa.Buffer) -> None:
        self.found.append(pa.py_buffer(piece))

    def tell(self) -> int:
        return sum(piece.size for piece in self.found)

    def flush(self) -> None: ...

    def close(self) -> None: ...


_CHECKSUM_BYTES = 1 << 22
"""At a time: xxhash keeps other threads waiting meanwhile, and a run may be large."""


def checksum(*pieces: pa.Buffer) -> str:
    """128 bits of XXH3 of these bytes, one piece after the other: against accidents, not against malice."""
    digest = xxhash.xxh3_128()
    for piece in pieces:
        view = memoryview(piece)
        for start in range(0, len(view), _CHECKSUM_BYTES):
            digest.update(view[start : start + _CHECKSUM_BYTES])
    result: str = digest.hexdigest()
    return result


_VALIDATED_MAX = 16_384
_validated: OrderedDict[tuple[str, str], None] = OrderedDict()
_validated_lock = threading.Lock()


def remember_validated(handle: Handle) -> None:
    """Do not check this file again in this process."""
    with _validated_lock:
        _validated[handle.path, handle.checksum] = None
        _validated.move_to_end((handle.path, handle.checksum))
        if len(_validated) > _VALIDATED_MAX:
            _validated.popitem(last=False)


def forget_validated() -> None:
    """Check every file again when it is next opened. Each attempt begins so: a file may have been damaged since an earlier one."""
    with _validated_lock:
        _validated.clear()


def read_run(handle: Handle, files: Files, schema: pa.Schema) -> pa.RecordBatch:
    """The batch of a stored run of either kind."""
    return decode_run(files.open(handle.path), handle, schema)[0]


def decode_run(data: pa.Buffer, handle: Handle, schema: pa.Schema | None) -> tuple[pa.RecordBatch, bool]:
    """The batch, sorted; and whether the file is. Of one that is not, the rows that are visible.

    Args:
        schema: the columns that it must have; None: those that it has.
    """
    if not isinstance(data, pa.Buffer):
        data = pa.py_buffer(data)
    if data.size != handle.bytes:
        raise CorruptError(f"state file {handle.path} has {data.size} bytes; it was written with {handle.bytes}")
    with _validated_lock:
        known = (handle.path, handle.checksum) in _validated
    if not known and checksum(data) != handle.checksum:
        raise CorruptError(f"state file {handle.path} was altered: its checksum is not {handle.checksum}")
    try:
        batch, is_sorted = _decode(data, schema)
        if not known:
            batch.validate(full=True)
            _check_rows(batch, handle, is_sorted=is_sorted)
        if not is_sorted:
            batch = in_order(_within(batch, handle))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise CorruptError(f"state file {handle.path} is no run of this state: {error}") from error
    remember_validated(handle)
    return batch, is_sorted


def visible_rows(handle: Handle, files: Files) -> pa.RecordBatch:
    """The visible rows of a stored run, sorted, in the columns that it has."""
    return _within(decode_run(files.open(handle.path), handle, None)[0], handle)


def stored_schema(path: str, files: Files) -> pa.Schema:
    """The columns of a stored run."""
    try:
        return pa.ipc.open_file(files.open(path)).schema
    except (pa.ArrowException, OSError, ValueError) as error:
        raise CorruptError(f"state file {path} is no run: {error}") from error


def _decode(data: pa.Buffer, schema: pa.Schema | None) -> tuple[pa.RecordBatch, bool]:
    reader = pa.ipc.open_file(data)
    found = reader.schema
    format = dict(found.metadata or {})
    if format not in (SORTED, UNSORTED):
        raise ValueError(f"format {found.metadata}, this version reads {SORTED} and {UNSORTED}")
    if schema is not None and not found.equals(schema):
        raise ValueError(f"its columns are ({_columns(found)}), expected ({_columns(schema)})")
    if reader.num_record_batches != 1:
        raise ValueError(f"{reader.num_record_batches} batches, expected 1")
    return reader.get_batch(0).replace_schema_metadata(SORTED), format == SORTED


def _within(batch: pa.RecordBatch, handle: Handle) -> pa.RecordBatch:
    groups = fixed_values(batch.column(0))
    mine = (groups >= handle.first_group) & (groups <= handle.last_group)
    return batch if mine.all() else batch.filter(pa.array(mine))


def in_order(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows as a run has them."""
    return batch.take(pa.array(order_of(fixed_values(batch.column(0)), fixed_values(batch.column(1)))))


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def _check_rows(batch: pa.RecordBatch, handle: Handle, *, is_sorted: bool) -> None:
    if batch.num_rows != handle.rows:
        raise ValueError(f"{batch.num_rows} rows, expected {handle.rows}")
    if not is_sorted:
        return
    if handle.kind == "timers":
        major, minor = fixed_values(batch.column(1)), None
    else:
        major, minor = fixed_values(batch.column(0)), fixed_values(batch.column(1))
    rising = major[1:] > major[:-1]
    level = major[1:] == major[:-1]
    if minor is not None:
        level &= minor[1:] >= minor[:-1]
    if not np.all(rising | level):
        raise ValueError("its rows are not sorted")


def order_of(groups: Groups, hashes: Hashes) -> Ints:
    """The rows by (group, hash), as a stable sort gives them: `np.lexsort((hashes, groups))`, several times faster.

    numpy sorts 16 bits by counting. So the rows are sorted by 32 bits, the group and the first bits of the hash; the few that share
    those and stand in the wrong order are sorted once more.
    """
    if not len(groups):
        return np.empty(0, np.int64)
    bits = int(groups.max()).bit_length()
    assert bits <= 16, "groups fit 16 bits"
    prefix = (groups.astype(np.uint32) << np.uint32(32 - bits)) | (hashes >> np.uint64(32 + bits)).astype(np.uint32)
    order = np.argsort(prefix.astype(np.uint16), kind="stable")
    order = order[np.argsort((prefix >> np.uint32(16)).astype(np.uint16)[order], kind="stable")]
    prefix, sorted_hashes = prefix[order], hashes[order]
    wrong = np.flatnonzero((prefix[1:] == prefix[:-1]) & (sorted_hashes[1:] < sorted_hashes[:-1]))
    if len(wrong):
        alike = np.unique(prefix[wrong])
        starts = np.searchsorted(prefix, alike)
        counts = np.searchsorted(prefix, alike, "right") - starts
        rows = np.repeat(starts - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
        order[rows] = order[rows][np.lexsort((sorted_hashes[rows], prefix[rows]))]
    return order
