"""`RocksTable`: a `KeyedTable` that finds what is not in memory in RocksDB instead of in the runs.

The columnar table searches up to eight mapped files for a key it does not hold, and the pages it touches are the
operating system's business. Here the whole state stands once more in RocksDB: one place to look, in a cache of known size,
on a disk of one's choice.

1. RocksDB holds **what the runs say**, no more and no less: it is filled from them when the table is opened, and `freeze`
   writes the same changes to it that become the newest run. Changes since then are in the overlay.
2. Keys begin with group and hash, so they are in the order of runs. What is written is sorted already, and what is asked for
   is sorted first: that makes both several times faster.
3. Overlay, deltas, history, scans and hashes are the columnar table's own code, and snapshots cannot differ.
4. The working copy is scratch. It has no log, is never synced, belongs to one process, and is removed when the table is
   closed. A restart begins with an empty folder.
5. A folder left by a process that was killed is removed by whoever next opens a table beside it. Each folder holds a file
   that its owner has locked; the lock ends with the owner, however it ended.
6. Rows that have expired are hidden by the horizon. `freeze` looks through some of the copy each time, more than was
   written, and deletes those it meets: what has expired takes at most about as much room as what has not.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import shutil
import tempfile
import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock.state.backend import RocksDB, require
from penstock.state.columns import Ints, fixed_values
from penstock.state.packing import Packing
from penstock.state.runfile import GROUP, HASH, OP, PUT, Groups, Hashes
from penstock.state.runs import NEVER, Run, expired
from penstock.state.spec import StateSpec
from penstock.state.table import KeyedTable

if TYPE_CHECKING:
    from rocksdict import Cache, Options, Rdict, WriteBufferManager

__all__ = ["RocksTable"]

BATCH_ROWS = 10_000
SLOTS_KEPT = 1_000_000
"""How many keys are kept in memory from one snapshot to the next."""
SWEEP_ROWS = 1_000
PREFIX, HELD = "penstock-rocksdb-", "held"
_BUFFERS = 0.25  # of the cache: memory for writes that RocksDB has not sorted into files yet
_FILES_OPEN_MAX = 256
_PLACE = np.dtype([("group", ">u2"), ("hash", ">u8")])


class RocksTable(KeyedTable):
    """The state of one operator in one task, with a working copy in RocksDB. Close it."""

    def __init__(
        self,
        spec: StateSpec,
        groups: range,
        max_parallelism: int,
        runs: Iterable[Run] = (),
        *,
        slots_max: int = SLOTS_KEPT,
        settings: RocksDB = RocksDB(),  # noqa: B008 - frozen
    ) -> None:
        super().__init__(spec, groups, max_parallelism, runs, slots_max=slots_max)
        require(settings)
        self._pack_keys = Packing(spec.keys.types, _PLACE)
        self._pack_values = Packing(spec.values.types)
        self._cursor: bytes | None = None
        scratch = Scratch(settings.path)
        try:
            self._db = opened(scratch.path / "db", settings.cache_bytes)
        except BaseException:
            scratch.remove()
            raise
        # Also if the table is not closed: when it is forgotten, or at the end of the process.
        self._discard = weakref.finalize(self, discard, self._db, scratch)
        for batch in self._merged(self._history.runs, None):
            self._write(batch)

    def close(self) -> None:
        """Remove the working copy."""
        if self._discard.alive:
            self._discard()
            del self._db

    def _stored_rows(self, keys: pa.RecordBatch, groups: Groups, hashes: Hashes) -> Iterator[tuple[Ints, list[pa.Array]]]:
        """What RocksDB says, which is what the runs say."""
        order = np.lexsort((hashes, groups))
        asked: list[Any] = self._packed(keys.take(pa.array(order)), groups[order], hashes[order])
        found = np.empty(len(order), np.dtype(object))
        found[order] = np.fromiter(self._db.get(asked) or (), np.dtype(object), len(order))
        hit = np.flatnonzero(found != None)  # noqa: E711 - of each row
        if len(hit):
            yield hit, self._pack_values.unpack(found[hit].tolist())

    @property
    def _searches(self) -> bool:
        """RocksDB is searched, and not the runs."""
        return False

    def _load_all(self) -> None:
        """Its rows are in RocksDB: in memory are those in use, and as many as was said."""

    def _freezing(self, dirty: Ints) -> None:
        for part in self._overlay.parts(self._overlay.in_order(dirty)):
            changes = self._overlay.rows_of(part, keep_deleted=True)
            live = fixed_values(changes.column(OP)) == PUT
            self._write(changes.filter(pa.array(live)))
            self._delete(self._keys_of(changes.filter(pa.array(~live))))
        self._sweep(max(SWEEP_ROWS, 2 * len(dirty)))

    def _write(self, rows: pa.RecordBatch) -> None:
        from rocksdict import WriteBatch

        for start in range(0, rows.num_rows, BATCH_ROWS):
            part = rows.slice(start, BATCH_ROWS)
            keys = self._keys_of(part)
            values = self._pack_values.pack(part.select(self.spec.values.names).columns, part.num_rows)
            batch = WriteBatch(raw_mode=True)
            deque(map(batch.put, keys, values), maxlen=0)
            self._db.write(batch)

    def _keys_of(self, rows: pa.RecordBatch) -> list[bytes]:
        """The keys of rows of a run."""
        return self._packed(rows.select(self.spec.keys.names), fixed_values(rows.column(GROUP)), fixed_values(rows.column(HASH)))

    def _packed(self, keys: pa.RecordBatch, groups: Groups, hashes: Hashes) -> list[bytes]:
        place = np.empty(keys.num_rows, _PLACE)
        place["group"], place["hash"] = groups, hashes
        return self._pack_keys.pack(keys.columns, keys.num_rows, place)

    def _delete(self, keys: list[bytes]) -> None:
        from rocksdict import WriteBatch

        if keys:
            batch = WriteBatch(raw_mode=True)
            deque(map(batch.delete, keys), maxlen=0)
            self._db.write(batch)

    def _sweep(self, count: int) -> None:
        """Delete what has expired among the next rows, beginning again after the last."""
        if self._horizon == NEVER:
            return
        items: list[Any] = list(islice(self._db.items(from_key=self._cursor), count))
        self._cursor = items[-1][0] + b"\0" if len(items) == count else None
        if items:
            times = self._pack_values.unpack([value for _, value in items])[self._expires]
            self._delete([items[row][0] for row in np.flatnonzero(expired(times, self._horizon)).tolist()])


def opened(path: Path, cache_bytes: int) -> Rdict:
    """A new, empty database."""
    from rocksdict import Rdict, WriteOptions

    db = Rdict(str(path), _options(cache_bytes))
    unlogged = WriteOptions()
    unlogged.disable_wal = True  # type: ignore[assignment,method-assign]  # its stub says that this is a method
    db.set_write_options(unlogged)
    return db


def discard(db: Rdict, scratch: Scratch) -> None:
    """Give up a database. A fork of our process has its own end, and nothing to give up."""
    if scratch.ours:
        # In good order it would first write out what is removed a moment later.
        db.cancel_all_background(True)
        scratch.remove()


def _options(cache_bytes: int) -> Options:
    from rocksdict import BlockBasedOptions, DBCompressionType, Options

    cache, buffers = _memory(cache_bytes)
    blocks = BlockBasedOptions()
    blocks.set_block_cache(cache)
    # Or indexes and filters would be held besides the cache, without a bound.
    blocks.set_cache_index_and_filter_blocks(True)
    blocks.set_pin_l0_filter_and_index_blocks_in_cache(True)
    blocks.set_bloom_filter(10, False)
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_block_based_table_factory(blocks)
    options.set_write_buffer_manager(buffers)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_max_open_files(_FILES_OPEN_MAX)
    options.set_keep_log_file_num(1)
    options.set_stats_dump_period_sec(0)
    return options


@functools.cache
def _memory(cache_bytes: int) -> tuple[Cache, WriteBufferManager]:
    """The memory that all tables of this process share. Write buffers are charged to the cache: it is the bound of both."""
    from rocksdict import Cache, WriteBufferManager

    cache = Cache(cache_bytes)
    return cache, WriteBufferManager.new_write_buffer_manager_with_cache(int(cache_bytes * _BUFFERS), False, cache)


class Scratch:
    """A new folder that is ours until we remove it, or die. The folders of the dead are removed first."""

    def __init__(self, parent: str | Path | None) -> None:
        place = Path(parent) if parent is not None else Path(tempfile.gettempdir())
        place.mkdir(parents=True, exist_ok=True)
        remove_abandoned(place)
        # Locked before it has a name that others look for.
        unnamed = Path(tempfile.mkdtemp(prefix=f".{PREFIX}", dir=place))
        self._held = os.open(unnamed / HELD, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._held, fcntl.LOCK_EX)
        self.path = unnamed.rename(place / unnamed.name.removeprefix("."))
        self._owner = os.getpid()

    @property
    def ours(self) -> bool:
        """Whether this process made it."""
        return os.getpid() == self._owner

    def remove(self) -> None:
        """Let go of it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._held)


def remove_abandoned(place: Path) -> None:
    """Remove the folders of processes that are gone."""
    for folder in place.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):  # held, somebody else's, or just being removed
            held = os.open(folder / HELD, os.O_RDWR)
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(held)
