"""Runs: what state is made of. A run is one immutable batch, sorted, in memory or in a file that is mapped (`runfile.py`), and searched.

A keyed run, sorted by (group, hash), each key at most once:

    __group int32 | __hash uint64 | key columns… | __op int8 (1 put, 0 delete) | value columns…

A state is a list of runs, newest first; the newest row of a key is its value. Nothing is ever changed in place: a
change is a newer run, and `merge_runs` makes one run of several. (Timer runs, kind "timers", are in `timers.py`.)

1. A file is what its `Handle` says, or it is refused.
2. A handle may cover fewer groups than its file: after a rescale several tasks read one file, each its own groups.
   Rows outside the handle's groups do not exist.
3. Two keys may share a hash. Equal hashes are candidates; equal key columns decide.
4. Bytes are written once, under a name never used before, and only then named by a handle.
5. A row may expire: it is gone once its `Expiry` says so, as if it had been deleted. No file is touched for that; a merge
   leaves such rows out, or buries them where an older run may still hold the key.
6. A file that nobody is going to search may have its rows in any order, see `runfile.py`; for whoever reads the run they are sorted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.state.columns import Bools, Comparer, Ints, Values, fixed_values, key_list, validity
from penstock.state.runfile import (
    DELETE,
    OP,
    PUT,
    UNSORTED,
    Files,
    Groups,
    Handle,
    Hashes,
    decode_run,
    encode_run,
    in_order,
    order_of,
)

__all__ = ["NEVER", "Expiry", "Run", "expired", "find", "merge_runs", "open_run", "parts_of"]

MERGE_ROWS = 1 << 18
"""About as many are merged at a time: it takes little memory beside the result, and keeps no other thread waiting for long."""
UNSORTED_BYTES_MAX = 256 << 20
"""Larger files are sorted in any case: they are to be mapped, not held in memory."""

NEVER = int(np.iinfo(np.int64).min)
"""Before all time: where no timer has fired, and nothing has expired."""


@dataclass(frozen=True, slots=True)
class Expiry:
    """When rows are gone: those whose `column` (int64, µs) is at or before `horizon`. Null never expires."""

    column: str
    horizon: int


class _Once:
    """A property that is made when it is first asked for. Without a lock, which `functools.cached_property` holds for all instances until
    Python 3.12: no thread waits while another sorts a large run; at worst two do the same work."""

    def __init__(self, make: Callable[[Any], Any]) -> None:
        self._make, self._name = make, make.__name__

    def __get__(self, run: Any, owner: type) -> Any:
        made = run.__dict__[self._name] = self._make(run)
        return made


class Run:
    """One immutable sorted batch, in memory (`handle` is None) or in a file, of which groups first..last are visible."""

    def __init__(
        self, load: Callable[[Run], pa.RecordBatch], first_group: int, last_group: int, rows: int, handle: Handle | None = None
    ) -> None:
        self._load = load
        self._loaded: pa.RecordBatch | None = None
        self._unsorted: pa.RecordBatch | None = None
        self.in_order = True  # whether its file is; of one that was never read, whoever wrote it knows
        self.first_group = first_group
        self.last_group = last_group
        self.rows = rows
        self.handle = handle
        self._made_filter: tuple[npt.NDArray[np.uint8], np.uint64] | None = None

    @classmethod
    def of(cls, batch: pa.RecordBatch) -> Run:
        """A run in memory."""
        assert batch.num_rows > 0, "a run has rows"
        groups = fixed_values(batch.column(0))
        return cls(lambda run: batch, int(groups.min()), int(groups.max()), batch.num_rows)

    @classmethod
    def unsorted(cls, batch: pa.RecordBatch) -> Run:
        """A run in memory of rows in any order: whoever wants them sorted first sorts them."""
        run = cls.of(batch)
        run._load, run._unsorted = lambda run: in_order(batch), batch
        return run

    @classmethod
    def stored(cls, handle: Handle, files: Files, schema: pa.Schema) -> Run:
        """A run in a file. The file is mapped here, so nobody can take it away; it is read and checked when its rows are needed."""
        data = files.open(handle.path)

        def load(run: Run) -> pa.RecordBatch:
            batch, run.in_order = decode_run(data, handle, schema)
            return batch

        return cls(load, handle.first_group, handle.last_group, handle.rows, handle)

    @property
    def batch(self) -> pa.RecordBatch:
        """The whole batch, with the rows that are not visible too."""
        loaded = self._loaded
        if loaded is None:  # perhaps in another thread too, which does no harm
            loaded = self._loaded = self._load(self)
        return loaded

    def let_go(self) -> None:
        """Nobody needs its rows for now: they can be read again."""
        if self.handle is None:
            return  # it is nowhere else
        self._loaded = None
        for name in ("groups", "hashes", "ops", "keys"):
            self.__dict__.pop(name, None)

    @_Once
    def groups(self) -> Groups:
        return fixed_values(self.batch.column(0))

    @_Once
    def hashes(self) -> Hashes:
        return fixed_values(self.batch.column(1))

    @_Once
    def ops(self) -> Values:
        return fixed_values(self.batch.column(OP))

    @_Once
    def keys(self) -> Comparer:
        return Comparer(_key_columns(self.batch))

    @_Once
    def offsets(self) -> Ints:
        """Where each visible group starts; one more entry for the end."""
        wanted = np.arange(self.first_group, self.last_group + 2, dtype=np.int32)
        return np.searchsorted(self.groups, wanted).astype(np.int64)

    def may_hold(self, hashes: Hashes) -> Bools:
        """False where no key here has that hash: far cheaper to know than where it is."""
        there, shift = self._filter()
        bit = (hashes >> shift).view(np.int64)
        may: Bools = (there[bit >> 3] >> (bit & 7).astype(np.uint8) & 1).view(np.bool_)
        return may

    def _filter(self) -> tuple[npt.NDArray[np.uint8], np.uint64]:
        """A bit for each beginning that a hash can have, set if one has it: of eight bits or more, one; and how long the rest is."""
        if self._made_filter is None:
            bits = max(3, (8 * len(self.hashes)).bit_length())
            shift = np.uint64(64 - bits)
            there = np.zeros(1 << bits, np.bool_)
            there[(self.hashes >> shift).view(np.int64)] = True
            # Without a lock: two threads may both make it, but neither waits while the other does so for a larger run.
            self._made_filter = np.packbits(there, bitorder="little"), shift
        return self._made_filter

    @property
    def nbytes(self) -> int:
        """About the size of the file."""
        return self.handle.bytes if self.handle else int((self.batch if self._unsorted is None else self._unsorted).nbytes)

    def encoded(self, *, searched: bool) -> list[pa.Buffer]:
        """The bytes of its file; `searched`: whether it will be."""
        unsorted = self._left_unsorted(searched)
        if unsorted is not None:
            return encode_run(unsorted, UNSORTED)
        return encode_run(self.slice(range(self.first_group, self.last_group + 1)))

    def written(self, handle: Handle, files: Files, schema: pa.Schema, *, searched: bool) -> Run:
        """This run as the file it was just written to. What is needed to search it is made by whoever writes, not by the task."""
        run = Run.stored(handle, files, schema)
        run.in_order = self._left_unsorted(searched) is None
        if searched:
            run.offsets, run._made_filter = self.offsets - self.offsets[0], self._filter()
        return run

    def _left_unsorted(self, searched: bool) -> pa.RecordBatch | None:
        """Its rows as they are, if they are to be written so."""
        rows = self._unsorted
        return None if rows is None or searched or rows.nbytes > UNSORTED_BYTES_MAX else rows

    def slice(self, groups: range) -> pa.RecordBatch:
        """The visible rows of these groups, without a copy."""
        first = min(max(groups.start, self.first_group), self.last_group + 1)
        stop = max(min(groups.stop, self.last_group + 1), first)
        start, end = self.offsets[first - self.first_group], self.offsets[stop - self.first_group]
        return self.batch.slice(start, end - start)

    def lookup(self, groups: Groups, hashes: Hashes, keys: Comparer, rows: Ints) -> Ints:
        """The row of this run that holds each key, or -1.

        Args:
            groups: Ascending, all visible here; and `hashes` ascending within a group.
            keys: Key `rows[i]` of it has `groups[i]` and `hashes[i]`.
        """
        at, ends = np.empty(len(groups), np.int64), np.empty(len(groups), np.int64)
        starts = np.concatenate([[0], np.flatnonzero(groups[1:] != groups[:-1]) + 1, [len(groups)]])
        for a, b in zip(starts[:-1].tolist(), starts[1:].tolist()):
            group = int(groups[a]) - self.first_group
            start, end = int(self.offsets[group]), int(self.offsets[group + 1])
            at[a:b] = start + np.searchsorted(self.hashes[start:end], hashes[a:b])
            ends[a:b] = end
        result = np.full(len(groups), -1, np.int64)
        todo = np.arange(len(groups))
        while True:
            # Rows that share their hash with another key move on to the next candidate; hardly ever a second round.
            todo = todo[at[todo] < ends[todo]]
            todo = todo[self.hashes[at[todo]] == hashes[todo]]
            if not len(todo):
                return result
            equal = self.keys.equal(at[todo], keys, rows[todo])
            result[todo[equal]] = at[todo[equal]]
            todo = todo[~equal]
            at[todo] += 1


def _key_columns(batch: pa.RecordBatch) -> list[pa.Array]:
    return cast("list[pa.Array]", batch.columns[2 : batch.schema.get_field_index(OP)])


def open_run(handle: Handle, files: Files, schema: pa.Schema) -> Run:
    """Open a stored run; CorruptError, naming the file, if it is not what was written."""
    run = Run.stored(handle, files, schema)
    run.rows = int(run.offsets[-1] - run.offsets[0])
    return run


def find(runs: Sequence[Run], groups: Groups, hashes: Hashes, keys: pa.RecordBatch) -> tuple[Ints, Ints]:
    """Where the newest row of each key is: the position of its run in `runs` (-1: nowhere) and its row there."""
    which, where = np.full(len(hashes), -1, np.int64), np.full(len(hashes), -1, np.int64)
    comparer = Comparer(keys.columns)
    # Sorted once, the queries walk every run in the order of its pages.
    todo = order_of(groups, hashes)
    for position, run in enumerate(runs):
        if not len(todo):
            break
        asked = todo[(groups[todo] >= run.first_group) & (groups[todo] <= run.last_group)]
        asked = asked[run.may_hold(hashes[asked])]
        rows = run.lookup(groups[asked], hashes[asked], comparer, asked) if len(asked) else asked
        hit = asked[rows >= 0]
        which[hit], where[hit] = position, rows[rows >= 0]
        todo = todo[which[todo] < 0]
    return which, where


def expired(times: pa.Array, horizon: int) -> Bools:
    """Which rows are gone, by their column of expiry times."""
    gone: Bools = fixed_values(times) <= horizon
    valid = validity(times)
    return gone if valid is None else gone & valid


def merge_runs(runs: Sequence[Run], groups: range, *, drop_deletes: bool, expiry: Expiry | None = None) -> pa.RecordBatch:
    """One sorted batch with the newest row of each key in `groups`.

    Args:
        runs: Newest first.
        drop_deletes: Leave out deleted keys. Only right if no older run could still hold a put of them.
        expiry: Rows that are gone by it count as deleted.
    """
    assert runs, "there is nothing to merge"
    merged = [_merge_part(runs, part, drop_deletes=drop_deletes, expiry=expiry) for part in parts_of(runs, groups, MERGE_ROWS)]
    return pa.concat_batches(merged) if len(merged) > 1 else merged[0] if merged else runs[0].batch.slice(0, 0)


def parts_of(runs: Sequence[Run], groups: range, rows_max: int) -> Iterator[range]:
    """Neighbouring groups, of about `rows_max` rows together; groups without rows may be missing."""
    counts = np.zeros(len(groups), np.int64)
    for run in runs:
        first, stop = max(run.first_group, groups.start), min(run.last_group + 1, groups.stop)
        if first < stop:
            offsets = run.offsets[first - run.first_group : stop - run.first_group + 1]
            counts[first - groups.start : stop - groups.start] += np.diff(offsets)
    first, rows = groups.start, 0
    for group, count in zip(groups, counts.tolist()):
        rows += count
        if rows >= rows_max or group == groups[-1]:
            if rows:
                yield range(first, group + 1)
            first, rows = group + 1, 0


def _merge_part(runs: Sequence[Run], groups: range, *, drop_deletes: bool, expiry: Expiry | None) -> pa.RecordBatch:
    parts = [part for run in runs if (part := run.slice(groups)).num_rows]
    batch = pa.concat_batches(parts)
    group, hashes = fixed_values(batch.column(0)), fixed_values(batch.column(1))
    if len(parts) == 1:
        order = np.arange(batch.num_rows)
        keep = np.ones(batch.num_rows, np.bool_)
    else:
        # The order is stable, so of equal (group, hash) the newest comes first.
        order = order_of(group, hashes)
        keep = _newest(batch, order, (group[order], hashes[order]))
    gone = None if expiry is None else expired(batch.column(expiry.column), expiry.horizon)
    if drop_deletes:
        keep &= fixed_values(batch.column(OP))[order] == PUT
        if gone is not None:
            keep &= ~gone[order]
    if len(parts) == 1 and gone is None and keep.all():
        return batch
    rows = order[keep]
    if drop_deletes or gone is None or not gone[rows].any():
        return batch.take(pa.array(rows))
    return _buried(batch, rows, gone[rows])


def _buried(batch: pa.RecordBatch, rows: Ints, gone: Bools) -> pa.RecordBatch:
    """These rows, those that are gone as tombstones."""
    first_value = batch.schema.get_field_index(OP) + 1
    ops = np.where(gone, DELETE, fixed_values(batch.column(OP))[rows]).astype(np.int8)
    keys = [column.take(pa.array(rows)) for column in batch.columns[: first_value - 1]]
    values = [column.take(pa.array(rows, mask=gone)) for column in batch.columns[first_value:]]
    return pa.RecordBatch.from_arrays([*keys, pa.array(ops), *values], schema=batch.schema)


def _newest(batch: pa.RecordBatch, order: Ints, sorted_by: tuple[Values, Values]) -> Bools:
    """Which rows, in sorted order, are the first of their key."""
    group, hashes = sorted_by
    keep = np.ones(len(order), np.bool_)
    twins = np.flatnonzero((group[1:] == group[:-1]) & (hashes[1:] == hashes[:-1])) + 1
    if not len(twins):
        return keep
    comparer = Comparer(_key_columns(batch))
    equal = comparer.equal(order[twins], comparer, order[twins - 1])
    keep[twins] = ~equal
    if equal.all():
        return keep
    # Different keys with one hash: their rows may alternate, so look at every row of such a stretch.
    inside = np.zeros(len(order) + 1, np.bool_)
    inside[twins] = True
    edges = np.flatnonzero(~inside)
    for odd in np.unique(np.searchsorted(edges, twins[~equal], "right")).tolist():
        start, stop = int(edges[odd - 1]), int(edges[odd])
        keys = key_list(_take_keys(batch, order[start:stop]))
        seen: set[Any] = set()
        for row, key in enumerate(keys, start):
            keep[row] = key not in seen
            seen.add(key)
    return keep


def _take_keys(batch: pa.RecordBatch, rows: Ints) -> pa.RecordBatch:
    stop = batch.schema.get_field_index(OP)
    return batch.select(list(range(2, stop))).take(pa.array(rows))
