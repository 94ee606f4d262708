"""`KeyedTable`: values by key. Changes in memory over immutable runs; a freeze costs what changed, not what is there.

The overlay holds the keys in use: one numpy array per column, a row of them is a *slot*, and one dict from key to
slot. Whole batches of keys are read and written at once; the dict lookup is the only step in Python per key. What is
not in the overlay is searched in the runs, newest first, and kept in a slot from then on.

1. A slot is **clean** (equal to what the runs say) or **dirty**. A dirty slot may be **deleted**: a tombstone that
   hides older runs.
2. `freeze` makes one run of the dirty slots. Then the runs say everything, and the overlay is only a cache: beyond
   `slots_max` it is emptied.
3. A key belongs to its group by the hash of its first `route_columns` columns (all, unless the spec says otherwise): a
   window's state is found by (key, window start) but lives where the key lives.
4. A table owns a range of groups. Rows of other groups, in runs shared with other tasks, do not exist for it.
5. The list of runs is `history.py`'s: freeze, store and stored may overlap in any order.
6. A row may say when it expires (`StateSpec.expires`). The operator raises the **horizon**; a row at or before it is gone
   for readers at once, leaves the overlay at the next freeze, and the files when they are merged. What is seen never
   depends on when that is, as long as the horizon does not fall: who restores a table raises it before the first read.

A table without value columns is a set.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Self

import numpy as np
import pyarrow as pa

from penstock.errors import PlanError
from penstock.state import keygroups
from penstock.state.columns import Bools, Column, Ints, batch_of, key_list
from penstock.state.history import Frozen, History, reopen
from penstock.state.runs import (
    GROUP,
    HASH,
    NEVER,
    OP,
    PUT,
    Expiry,
    Files,
    Groups,
    Handle,
    Hashes,
    Run,
    expired,
    find,
    merge_runs,
    run_schema,
)

__all__ = ["SLOTS_MAX", "KeyedTable", "StateSpec"]

SLOTS_MAX = 1_000_000
SCAN_ROWS = 65_536
_SLOTS_MIN = 1_024


@dataclass(frozen=True, slots=True)
class StateSpec:
    """What a table holds.

    Args:
        keys: What a row is found by; canonical key types.
        route_columns: How many of the first key columns decide the key group; None for all.
        expires: The value column (int64, µs) that says when a row is gone; None: rows stay until they are deleted.
    """

    name: str
    keys: pa.Schema
    values: pa.Schema
    route_columns: int | None = None
    expires: str | None = None

    def __post_init__(self) -> None:
        assert len(self.keys) > 0, f"state {self.name!r} has no key columns"
        assert self.route_columns is None or 1 <= self.route_columns <= len(self.keys), "route_columns is out of range"
        if self.expires is not None:
            assert self.expires in self.values.names, f"state {self.name!r} has no value {self.expires!r} to expire by"
            assert self.values.field(self.expires).type == pa.int64(), "rows expire at a number of microseconds"
        for field in self.keys:
            canonical = keygroups.canonical_type(field.type)
            if field.type != canonical:
                raise PlanError(f"state {self.name!r}: key {field.name!r} is {field.type}; it must be cast to {canonical}")
        names = [GROUP, HASH, *self.keys.names, OP, *self.values.names]
        for name in names:
            if names.count(name) > 1:
                raise PlanError(f"state {self.name!r}: two columns are called {name!r}; rename one")

    @property
    def schema(self) -> pa.Schema:
        """The schema of its runs."""
        return run_schema(self.keys, self.values)


@dataclass(slots=True)
class _Asked:
    """The last batch of keys and where they are: a put usually follows a get of the same keys."""

    keys: pa.RecordBatch
    list: list[Any]
    slots: Ints


class KeyedTable:
    """The state of one operator in one task.

    Everywhere `hashes` may be given if the caller has them: `hash_keys` of the first `route_columns` key columns.

    Example:
        >>> spec = StateSpec("n", pa.schema([("ad", pa.int64())]), pa.schema([("n", pa.int64())]))
        >>> table = KeyedTable(spec, range(128), 128)
        >>> ads = pa.record_batch({"ad": [7, 8]})
        >>> table.put_many(ads, pa.record_batch({"n": [1, 2]}))
        >>> found, values = table.get_many(pa.record_batch({"ad": [8, 9]}))
        >>> found.tolist(), values.to_pydict()
        ([True, False], {'n': [2, None]})
    """

    _index: dict[Any, int]
    _hash: Hashes
    _group: Groups
    _dirty: Bools
    _deleted: Bools
    _free: list[Ints]
    _asked: _Asked | None

    def __init__(
        self,
        spec: StateSpec,
        groups: range,
        max_parallelism: int,
        runs: Iterable[Run] = (),
        *,
        slots_max: int = SLOTS_MAX,
    ) -> None:
        assert groups.step == 1, "a task owns a contiguous range of groups"
        self.spec = spec
        self.groups = groups
        self.max_parallelism = max_parallelism
        self._schema = spec.schema
        self._values_schema = pa.schema(list(self._schema)[len(spec.keys) + 3 :])
        self._slots_max = slots_max
        self._expires = -1 if spec.expires is None else spec.values.get_field_index(spec.expires)
        self._horizon = self._cleared = NEVER
        runs = tuple(runs)
        assert all(run.first_group in groups and run.last_group in groups for run in runs), "a run of another task's groups"
        self._history = History(runs)
        self._empty()

    @classmethod
    def open(
        cls,
        spec: StateSpec,
        groups: range,
        max_parallelism: int,
        handles: Iterable[Handle],
        files: Files,
        **options: Any,
    ) -> Self:
        """The table that was stored as `handles`: newest first; lists of different old tasks one after the other.

        Args:
            options: As for the table itself.
        """
        mine = [handle for each in handles if (handle := each.within(groups)) is not None]
        assert all(handle.kind == "run" for handle in mine), "timers are not a table"
        schema = spec.schema
        runs = [reopen(handle, files, schema) for handle in mine]
        return cls(spec, groups, max_parallelism, [run for run in runs if run.rows], **options)

    def close(self) -> None:
        """Let go of what is outside Python's memory: here, nothing."""

    @property
    def horizon(self) -> int:
        """Rows that expire at or before it are gone. It only rises: to set it lower changes nothing."""
        return self._horizon

    @horizon.setter
    def horizon(self, time: int) -> None:
        assert self.spec.expires is not None, f"rows of state {self.spec.name!r} do not expire"
        self._horizon = max(self._horizon, time)

    @property
    def _expiry(self) -> Expiry | None:
        expires = self.spec.expires
        return None if expires is None or self._horizon == NEVER else Expiry(expires, self._horizon)

    @property
    def rows_estimate(self) -> int:
        """At least the number of live keys; rows replaced or deleted in newer runs are counted too."""
        return sum(run.rows for run in self._history.runs) + int(np.count_nonzero(self._dirty))

    # -- reading and writing

    def get_many(self, keys: pa.RecordBatch, hashes: Hashes | None = None) -> tuple[Bools, pa.RecordBatch]:
        """Which keys are there, and their values row by row (null where not found)."""
        asked = self._ask(keys)
        slots = asked.slots
        if (slots < 0).any():
            self._load(asked, hashes)
        found = slots >= 0
        found &= ~self._deleted[slots]
        if self._horizon != NEVER:
            found &= ~self._expired(slots)
        lost = None if found.all() else found
        arrays = [column.take(slots, lost) for column in self._values]
        return found, batch_of(self._values_schema, arrays, len(slots))

    def distinct(self, keys: pa.RecordBatch) -> bool:
        """Whether no key occurs twice. Cheap for the keys that were asked for last."""
        listed = self._ask(keys).list
        return len(set(listed)) == len(listed)

    def put_many(self, keys: pa.RecordBatch, values: pa.RecordBatch, hashes: Hashes | None = None) -> None:
        """Set the values of keys; of a key that occurs twice the last row stays."""
        assert values.schema.types == self._values_schema.types, f"values are {values.schema}, not {self._values_schema}"
        asked = self._ask(keys)
        self._add(asked, np.flatnonzero(asked.slots < 0), hashes)
        for column, array in zip(self._values, values.columns, strict=True):
            column.put(asked.slots, array)
        self._deleted[asked.slots] = False
        self._touch(asked.slots)

    def delete_many(self, keys: pa.RecordBatch, hashes: Hashes | None = None) -> None:
        """Remove keys; those that are not there are none the worse for it."""
        asked = self._ask(keys)
        slots = asked.slots
        if self._history.runs:
            # Cheaper than to search whether a run has them: a tombstone says they are gone in any case.
            self._add(asked, np.flatnonzero(slots < 0), hashes)
            self._deleted[slots] = True
            self._touch(slots)
        else:  # nothing is older, so there is nothing a tombstone could hide
            self._release(np.unique(slots[slots >= 0]))

    def scan(self) -> Iterator[pa.RecordBatch]:
        """All live rows (key and value columns) as of the call, by group and hash, in batches of bounded size."""
        changes = self._delta(self._dirty_slots(), keep_deleted=True)
        runs = (*([Run.of(changes)] if changes.num_rows else []), *self._history.runs)
        columns = [*self.spec.keys.names, *self.spec.values.names]
        return (batch.select(columns).replace_schema_metadata(None) for batch in self._merged(runs, self._expiry))

    def _merged(self, runs: Sequence[Run], expiry: Expiry | None) -> Iterator[pa.RecordBatch]:
        """The live rows of runs as one run would hold them, in batches."""
        if not runs:
            return
        counts = np.zeros(len(self.groups), np.int64)
        for run in runs:
            counts[run.first_group - self.groups.start :][: len(run.offsets) - 1] += np.diff(run.offsets)
        first, rows = self.groups.start, 0
        for group, count in zip(self.groups, counts.tolist()):
            rows += count
            if rows >= SCAN_ROWS or group == self.groups[-1]:
                if rows:
                    batch = merge_runs(runs, range(first, group + 1), drop_deletes=True, expiry=expiry)
                    if batch.num_rows:
                        yield batch
                first, rows = group + 1, 0

    # -- snapshots

    def freeze(self, epoch: int) -> Frozen:
        """The state as of now, for `store`; costs what changed since the last time."""
        dirty = self._dirty_slots()
        if len(dirty):
            if self._horizon != NEVER:
                self._deleted[dirty] |= self._expired(dirty)
            # Where nothing is older there is nothing a tombstone could hide.
            changes = self._delta(dirty, keep_deleted=bool(self._history.runs))
            if changes.num_rows:
                self._history.append(Run.of(changes))
                self._frozen(changes)
            self._release(dirty[self._deleted[dirty]])
            self._dirty[dirty] = False
        if self._horizon > self._cleared:
            # Those still there are clean: the runs have them, and `_load` will not bring them back.
            self._release(np.flatnonzero(self._expired(slice(self._used))))
            self._cleared = self._horizon
        if len(self._index) > self._slots_max:
            self._empty()
        merge = functools.partial(_merge, groups=self.groups, expiry=self._expiry)
        return self._history.freeze(epoch, kind="run", schema=self._schema, merge=merge)

    def stored(self, frozen: Frozen, handles: Sequence[Handle]) -> None:
        """`store(frozen)` returned these handles: refer to the files from now on."""
        self._history.stored(frozen, handles)

    def _frozen(self, changes: pa.RecordBatch) -> None:
        """These rows became the newest run: for those who keep a copy of what the runs say."""

    # -- slots

    def _empty(self) -> None:
        self._index = {}
        self._keys = [Column(field.type) for field in self.spec.keys]
        self._values = [Column(field.type) for field in self.spec.values]
        self._hash = np.empty(0, np.uint64)
        self._group = np.empty(0, np.int32)
        self._dirty = np.empty(0, np.bool_)
        self._deleted = np.empty(0, np.bool_)
        self._free = []
        self._used = 0
        self._asked = None
        self._grow(_SLOTS_MIN)

    def _ask(self, keys: pa.RecordBatch) -> _Asked:
        """Where each key is in the overlay; -1 if it is not there."""
        if self._asked is not None and self._asked.keys is keys:
            return self._asked
        assert keys.schema.types == self.spec.keys.types, f"keys are {keys.schema}, not {self.spec.keys}"
        listed = key_list(keys)
        slots = np.fromiter(map(self._index.get, listed, repeat(-1)), np.int64, len(listed))
        self._asked = _Asked(keys, listed, slots)
        return self._asked

    def _load(self, asked: _Asked, hashes: Hashes | None) -> None:
        """Bring keys that are only in runs into clean slots."""
        if not self._history.runs:
            return
        missing = np.flatnonzero(asked.slots < 0)
        keys = asked.keys.take(pa.array(missing))
        groups, full = self._hashes(keys, None if hashes is None else hashes[missing])
        for rows, arrays in self._search(keys, groups, full):
            if self._horizon != NEVER:
                alive = ~expired(arrays[self._expires], self._horizon)
                rows, arrays = rows[alive], [array.filter(pa.array(alive)) for array in arrays]
            if len(rows):
                slots = self._insert(asked, missing[rows], groups[rows], full[rows])
                for column, array in zip(self._values, arrays, strict=True):
                    column.put(slots, array)

    def _search(self, keys: pa.RecordBatch, groups: Groups, hashes: Hashes) -> Iterator[tuple[Ints, list[pa.Array]]]:
        """What the runs say: numbers of keys that are there, ascending, and their value columns."""
        runs = self._history.runs
        which, where = find(runs, groups, hashes, keys)
        for position, run in enumerate(runs):
            hit = np.flatnonzero(which == position)
            hit = hit[run.ops[where[hit]] == PUT]
            if len(hit):
                yield hit, run.batch.select(self.spec.values.names).take(pa.array(where[hit])).columns

    def _expired(self, slots: Ints | slice) -> Bools:
        """Which of these slots the horizon has passed. Slots that are free, or hold nothing yet, are null."""
        times = self._values[self._expires]
        gone: Bools = times.valid[slots] & (times.values[slots] <= self._horizon)
        return gone

    def _add(self, asked: _Asked, missing: Ints, hashes: Hashes | None) -> None:
        """Give slots to keys that have none."""
        if len(missing):
            keys = asked.keys if len(missing) == len(asked.slots) else asked.keys.take(pa.array(missing))
            groups, full = self._hashes(keys, None if hashes is None else hashes[missing])
            self._insert(asked, missing, groups, full)

    def _hashes(self, keys: pa.RecordBatch, routing: Hashes | None) -> tuple[Groups, Hashes]:
        """The group of each key, and the hash its rows are sorted by (of all its columns)."""
        count = self.spec.route_columns or len(self.spec.keys)
        if routing is None:
            routing = keygroups.hash_keys(keys.select(list(range(count))))
        groups = keygroups.groups_of(routing, self.max_parallelism)
        mine = (groups >= self.groups.start) & (groups < self.groups.stop)
        assert mine.all(), f"state {self.spec.name!r}: a key of another task's groups; this one has {self.groups}"
        rest = list(range(count, len(self.spec.keys)))
        return groups, keygroups.hash_keys(keys.select(rest), routing) if rest else routing

    def _insert(self, asked: _Asked, rows: Ints, groups: Groups, hashes: Hashes) -> Ints:
        """Make slots for the keys in these rows (ascending), which have none; the same key twice gets one."""
        fresh = self._allocate(len(rows))
        listed = asked.list
        keys = listed if len(rows) == len(listed) else [listed[row] for row in rows.tolist()]
        slots = np.fromiter(map(self._index.setdefault, keys, fresh.tolist()), np.int64, len(rows))
        spare = fresh[slots != fresh]
        if len(spare):
            self._free.append(spare)
        taken = asked.keys if len(rows) == len(listed) else asked.keys.take(pa.array(rows))
        for column, array in zip(self._keys, taken.columns, strict=True):
            column.put(slots, array)
        self._hash[slots], self._group[slots] = hashes, groups
        asked.slots[rows] = slots
        return slots

    def _allocate(self, count: int) -> Ints:
        """Slots for `count` keys: given back ones first."""
        parts: list[Ints] = []
        while count and self._free:
            given = self._free.pop()
            if len(given) > count:
                self._free.append(given[count:])
                given = given[:count]
            parts.append(given)
            count -= len(given)
        start, self._used = self._used, self._used + count
        if self._used > len(self._hash):
            self._grow(max(self._used, 2 * len(self._hash)))
        return np.concatenate([*parts, np.arange(start, self._used)])

    def _grow(self, capacity: int) -> None:
        for column in (*self._keys, *self._values):
            column.grow(capacity)
        more = capacity - len(self._hash)
        self._hash = np.concatenate([self._hash, np.zeros(more, np.uint64)])
        self._group = np.concatenate([self._group, np.zeros(more, np.int32)])
        self._dirty = np.concatenate([self._dirty, np.zeros(more, np.bool_)])
        self._deleted = np.concatenate([self._deleted, np.zeros(more, np.bool_)])

    def _touch(self, slots: Ints) -> None:
        self._dirty[slots] = True

    def _dirty_slots(self) -> Ints:
        return np.flatnonzero(self._dirty)

    def _delta(self, slots: Ints, *, keep_deleted: bool) -> pa.RecordBatch:
        """The rows of these slots, sorted as a run."""
        if not keep_deleted:
            slots = slots[~self._deleted[slots]]
        slots = slots[np.lexsort((self._hash[slots], self._group[slots].astype(np.int16)))]
        live = ~self._deleted[slots]
        keys = [column.take(slots) for column in self._keys]
        values = [column.take(slots, live) for column in self._values]
        head = [pa.array(self._group[slots]), pa.array(self._hash[slots])]
        return pa.RecordBatch.from_arrays([*head, *keys, pa.array(live.astype(np.int8)), *values], schema=self._schema)

    def _release(self, slots: Ints) -> None:
        """Give back slots of keys that are gone, without a trace or with one in the runs."""
        if not len(slots):
            return
        arrays = [column.take(slots) for column in self._keys]
        keys = key_list(pa.RecordBatch.from_arrays(arrays, schema=pa.schema([(f.name, f.type) for f in self.spec.keys])))
        deque(map(self._index.__delitem__, keys), maxlen=0)
        for column in (*self._keys, *self._values):
            column.clear(slots)
        self._deleted[slots] = self._dirty[slots] = False
        self._free.append(slots)
        self._asked = None


def _merge(runs: Sequence[Run], *, groups: range, expiry: Expiry | None, oldest: bool) -> pa.RecordBatch:
    return merge_runs(runs, groups, drop_deletes=oldest, expiry=expiry)
