"""`KeyedTable`: values by key. Changes in memory over immutable runs; a freeze costs what changed, not what is there.

The overlay holds the keys in use: one numpy array per column, a row of them is a *slot*, and an index from key to slot.
Whole batches of keys are read and written at once, without a step in Python per key unless there are few. What is not in
the overlay is searched in the runs, newest first, and kept in a slot from then on.

1. A slot is **clean** (equal to what the runs say) or **dirty**. A dirty slot may be **deleted**: a tombstone that
   hides older runs.
2. `freeze` makes one run of the dirty slots. Then the runs say everything, and the overlay is only a cache: beyond
   `slots_max` it is emptied, when it is next used and not while a snapshot waits.
3. A key belongs to its group by the hash of its first `route_columns` columns (all, unless the spec says otherwise): a
   window's state is found by (key, window start) but lives where the key lives.
4. A table owns a range of groups. Rows of other groups, in runs shared with other tasks, do not exist for it.
5. The list of runs is `history.py`'s: freeze, store and stored may overlap in any order.
6. A row may say when it expires (`StateSpec.expires`). The operator raises the **horizon**; a row at or before it is gone
   for readers at once, leaves the overlay at the next freeze, and the files when they are merged. What is seen never
   depends on when that is, as long as the horizon does not fall: who restores a table raises it before the first read.
7. A table that began empty, or small enough to be loaded as a whole, and was never emptied is **complete**: a key that has no slot
   is nowhere. No run is searched then, and when most keys changed, or many did again and again, `freeze` makes a run of all of them:
   it takes the place of all others, and nothing is left to merge.

A table without value columns is a set.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import PlanError
from penstock.state import keygroups
from penstock.state.columns import Bools, Ints, batch_of, fixed_array, fixed_values, grown, key_list
from penstock.state.history import MERGE_BYTES_MAX, Frozen, History, reopen
from penstock.state.index import Equal, Index
from penstock.state.near import Near
from penstock.state.runfile import GROUP, HASH, OP, PUT, Files, Groups, Handle, Hashes, order_of, run_schema
from penstock.state.runs import NEVER, Expiry, Run, expired, find, merge_runs, parts_of
from penstock.state.texts import column_for

__all__ = ["SLOTS_MAX", "KeyedTable", "StateSpec"]

SLOTS_MAX = 8_000_000
WHOLE_MAX = 1.5
"""A run of all keys may have so many times the rows of one of what changed: about what it would cost to merge the latter."""
PAUSE_MAX = 8
"""And never more than so many times: a freeze is to cost what changed, not what is there."""
LOADED_BYTES_MAX = 512 << 20
"""A larger table is not loaded as a whole when it is opened."""
TEXT_BYTES_MAX = 1 << 30
"""Of texts in one column of a run: Arrow counts them with 31 bits, and does not notice if they are more."""
SCAN_ROWS = 65_536
_SLOTS_MIN = 1_024
_FEW = 512
_NO_HASHES = np.empty(0, np.uint64)


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
    routing: Hashes
    hashes: Hashes
    slots: Ints
    listed: list[Any] | None = None
    """The keys in Python, if they are few."""


class KeyedTable:
    """The state of one operator in one task.

    Args:
        slots_max: How many keys stay in memory.
        lasting: Whether it lives on after its next snapshot. If not, another will soon search what this one stores.

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

    _index: Index
    _hash: Hashes
    _group: Groups
    _dirty: Bools
    _deleted: Bools
    _row: npt.NDArray[np.int32]
    """Room to write down rows by slot; holds nothing between calls."""
    _free: list[Ints]
    _full: bool
    _near: Near
    _asked: _Asked | None
    _complete: bool
    _held: Ints | None
    """All slots with a key, ascending, as long as none comes or goes; None if they are not known."""

    def __init__(
        self,
        spec: StateSpec,
        groups: range,
        max_parallelism: int,
        runs: Iterable[Run] = (),
        *,
        slots_max: int = SLOTS_MAX,
        lasting: bool = True,
    ) -> None:
        assert groups.step == 1, "a task owns a contiguous range of groups"
        self.spec = spec
        self.groups = groups
        self.max_parallelism = max_parallelism
        self._schema = spec.schema
        self._values_schema = pa.schema(list(self._schema)[len(spec.keys) + 3 :])
        self._slots_max = slots_max
        self._lasting = lasting
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
        table = cls(spec, groups, max_parallelism, [run for run in runs if run.rows], **options)
        if table._lasting:
            table._load_all()
        return table

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
        asked = self._ask(keys, hashes)
        self._load(asked)
        slots = asked.slots
        found = slots >= 0
        found &= ~self._deleted[slots]
        if self._horizon != NEVER:
            found &= ~self._expired(slots)
        lost = None if found.all() else found
        arrays = [column.take(slots, lost) for column in self._values]
        return found, batch_of(self._values_schema, arrays, len(slots))

    def repeats(self, keys: pa.RecordBatch) -> Bools | None:
        """Which rows have a key that another has too; None if none has. Of rows whose keys are not there it may say so without need."""
        asked = self._ask(keys, None)
        if asked.listed is not None:
            return None if len(set(asked.listed)) == len(asked.listed) else np.ones(keys.num_rows, np.bool_)
        self._load(asked)
        slots, rows = asked.slots, np.arange(keys.num_rows, dtype=np.int32)
        # Of rows with the same slot the last stays, and the others find it there. -1, for no slot, is one like others here.
        self._row[slots] = rows
        earlier = self._row[slots] != rows
        if not earlier.any():
            return None
        self._row[slots] = 0
        self._row[slots[earlier]] = 1
        shared: Bools = self._row[slots] == 1
        return shared

    def put_many(self, keys: pa.RecordBatch, values: pa.RecordBatch, hashes: Hashes | None = None) -> None:
        """Set the values of keys; of a key that occurs twice the last row stays."""
        asked = self._ask(keys, hashes)
        self._insert(asked, np.flatnonzero(asked.slots < 0))
        for column, array in zip(self._values, values.columns, strict=True):
            column.put(asked.slots, array)
        self._deleted[asked.slots] = False
        self._dirty[asked.slots] = True

    def change_many(
        self, keys: pa.RecordBatch, values: Sequence[pa.Array], how: Sequence[np.ufunc]
    ) -> tuple[Bools, list[pa.Array]] | None:
        """Change values where they stand: each becomes `how` of itself and the one given, or that one where the key is not there. No key
        occurs twice.

        Returns which keys were there, and the new values; or None, and nothing is done, if a value is no whole number, or a sum does not
        fit, or rows expire.
        """
        asked = self._ask(keys, None)
        self._load(asked)
        if self._horizon != NEVER or any(
            array.null_count or array.type != column.type or not column.whole for column, array in zip(self._values, values)
        ):
            return None
        found = (asked.slots >= 0) & ~self._deleted[asked.slots]
        # What stands in slots of keys that are not there (-1 is one as others here) is arbitrary, and not looked at.
        all_there = bool(found.all())
        changed = []
        for column, array, change in zip(self._values, values, how, strict=True):
            old, given = column.values[asked.slots], fixed_values(array, column.dtype)
            now = change(old, given)
            if change is np.add:
                over = (old ^ now) & (given ^ now) < 0
                if (over & found).any():
                    return None
            changed.append(now if all_there else np.where(found, now, given))
        if not all_there:
            self._insert(asked, np.flatnonzero(asked.slots < 0))
            self._deleted[asked.slots] = False
        slots = asked.slots
        for column, now in zip(self._values, changed):
            column.values[slots] = now
            if not all_there:
                column.valid[slots] = True
        self._dirty[slots] = True
        return found, [fixed_array(column.type, now, None) for column, now in zip(self._values, changed)]

    def delete_many(self, keys: pa.RecordBatch, hashes: Hashes | None = None) -> None:
        """Remove keys; those that are not there are none the worse for it."""
        asked = self._ask(keys, hashes)
        slots = asked.slots
        if self._history.runs:
            if self._complete:
                slots = slots[slots >= 0]
            else:
                # Cheaper than to search whether a run has them: a tombstone says they are gone in any case.
                self._insert(asked, np.flatnonzero(slots < 0))
            self._deleted[slots] = self._dirty[slots] = True
        else:  # nothing is older, so there is nothing a tombstone could hide
            self._release(np.unique(slots[slots >= 0]))

    def scan(self) -> Iterator[pa.RecordBatch]:
        """All live rows (key and value columns) as of the call, by group and hash, in batches of bounded size."""
        runs = (*self._runs_of(self._dirty_slots(), keep_deleted=True), *self._history.runs)
        columns = [*self.spec.keys.names, *self.spec.values.names]
        return (batch.select(columns).replace_schema_metadata(None) for batch in self._merged(runs, self._expiry))

    def _merged(self, runs: Sequence[Run], expiry: Expiry | None) -> Iterator[pa.RecordBatch]:
        """The live rows of runs as one run would hold them, in batches."""
        if not runs:
            return
        for groups in parts_of(runs, self.groups, SCAN_ROWS):
            batch = merge_runs(runs, groups, drop_deletes=True, expiry=expiry)
            if batch.num_rows:
                yield batch
        if not self._searches:
            for run in runs:
                run.let_go()

    @property
    def _searches(self) -> bool:
        """Whether keys are searched in its runs, by itself or by the table that is made of them next."""
        return self._full or not self._complete or not self._lasting

    # -- snapshots

    def freeze(self, epoch: int) -> Frozen:
        """The state as of now, for `store`; costs what changed since the last time."""
        dirty = self._dirty_slots()
        if len(dirty):
            if self._horizon != NEVER:
                self._deleted[dirty] |= self._expired(dirty)
            self._freezing(dirty)
            if self._worth_all(len(dirty)):
                self._freeze_all()
            else:
                self._freeze_changes(dirty)
            self._release(dirty[self._deleted[dirty]])
            self._dirty[dirty] = False
        if self._horizon > self._cleared:
            # Those still there are clean: the runs have them, and `_load` will not bring them back.
            self._release(np.flatnonzero(self._expired(slice(self._used))))
            self._cleared = self._horizon
        self._full = len(self._index) > self._slots_max
        merge = functools.partial(_merge, groups=self.groups, expiry=self._expiry)
        return self._history.freeze(epoch, kind="run", schema=self._schema, merge=merge, searched=self._searches)

    def _worth_all(self, changed: int) -> bool:
        """Whether to freeze all keys, where so many changed."""
        if not self._complete or sum(run.nbytes for run in self._history.runs) > MERGE_BYTES_MAX:
            return False
        keys = len(self._index)
        # Or once the runs have more rows that no longer count than rows that do; unless that takes far longer than what changed.
        return keys <= WHOLE_MAX * changed or (keys <= PAUSE_MAX * changed and self.rows_estimate >= 2 * keys)

    def _freeze_changes(self, dirty: Ints) -> None:
        # Where nothing is older there is nothing a tombstone could hide.
        for run in self._runs_of(dirty, keep_deleted=bool(self._history.runs)):
            self._history.append(run)

    def _freeze_all(self) -> None:
        if self._held is None:
            held = np.ones(self._used, np.bool_)
            for slots in self._free:
                held[slots] = False
            self._held = np.flatnonzero(held)
        self._history.replace(self._runs_of(self._held, keep_deleted=False))

    def _runs_of(self, slots: Ints, *, keep_deleted: bool) -> list[Run]:
        """The rows of these slots, in no order: one run, or several of different keys."""
        batches = [self._delta(part, keep_deleted=keep_deleted) for part in self._parts(slots)]
        return [Run.unsorted(batch) for batch in batches if batch.num_rows]

    def _parts(self, slots: Ints) -> list[Ints]:
        """These slots in parts of which no column has more bytes of text than fit in one of Arrow's."""
        large = [column for column in (*self._keys, *self._values) if column.text_bytes_max > TEXT_BYTES_MAX]
        if not large:
            return [slots]
        ends = np.cumsum(np.add.reduce([column.text_bytes(slots) for column in large]))
        cuts = np.searchsorted(ends, np.arange(TEXT_BYTES_MAX, ends[-1] if len(ends) else 0, TEXT_BYTES_MAX))
        return np.split(slots, cuts)

    def stored(self, frozen: Frozen, handles: Sequence[Handle]) -> None:
        """`store(frozen)` returned these handles: refer to the files from now on."""
        self._history.stored(frozen, handles)

    def _freezing(self, dirty: Ints) -> None:
        """The runs are about to say the same as these slots: for those who keep a copy of what the runs say."""

    # -- slots

    def _empty(self) -> None:
        self._index = Index()
        self._keys = [column_for(field.type) for field in self.spec.keys]
        self._values = [column_for(field.type) for field in self.spec.values]
        self._hash = np.empty(0, np.uint64)
        self._group = np.empty(0, np.int32)
        self._dirty = np.empty(0, np.bool_)
        self._deleted = np.empty(0, np.bool_)
        self._row = np.empty(0, np.int32)
        self._free = []
        self._used = 0
        self._full = False
        self._near = Near()
        self._asked = None
        self._held = None
        self._complete = not self._history.runs
        self._grow(_SLOTS_MIN)

    def _ask(self, keys: pa.RecordBatch, routing: Hashes | None) -> _Asked:
        """Where each key is in the overlay; -1 if it is not there."""
        if self._asked is not None and self._asked.keys is keys and not self._full:
            return self._asked
        assert keys.schema.types == self.spec.keys.types, f"keys are {keys.schema}, not {self.spec.keys}"
        if self._full:
            self._empty()
        self._asked = self._search(keys, routing) if keys.num_rows > _FEW else self._search_few(keys, routing)
        return self._asked

    def _search(self, keys: pa.RecordBatch, routing: Hashes | None) -> _Asked:
        routing, hashes = self._hashes(keys, routing)
        return _Asked(keys, routing, hashes, self._index.find(hashes, self._equal_to(keys)))

    def _search_few(self, keys: pa.RecordBatch, routing: Hashes | None) -> _Asked:
        listed = key_list(keys)
        slots = self._near.find(listed)
        missing = np.flatnonzero(slots < 0)
        if not len(missing):
            return _Asked(keys, _NO_HASHES, _NO_HASHES, slots, listed)  # so nobody will ask for the hashes
        routing, hashes = self._hashes(keys, routing)
        equal = self._equal_to(keys)
        slots[missing] = self._index.find(hashes[missing], lambda found, rows: equal(found, missing[rows]))
        self._near.learn([listed[row] for row in missing.tolist()], slots[missing])
        return _Asked(keys, routing, hashes, slots, listed)

    def _hashes(self, keys: pa.RecordBatch, routing: Hashes | None) -> tuple[Hashes, Hashes]:
        """What decides the groups of keys, and what finds them."""
        count = self.spec.route_columns or len(self.spec.keys)
        if routing is None:
            routing = keygroups.hash_keys(keys.select(list(range(count))))
        rest = list(range(count, len(self.spec.keys)))
        return routing, keygroups.hash_keys(keys.select(rest), routing) if rest else routing

    def _equal_to(self, keys: pa.RecordBatch) -> Equal:
        """What says whether `slots[i]` holds key `rows[i]` of these."""
        given = [(column, column.given(array)) for column, array in zip(self._keys, keys.columns, strict=True)]

        def equal(slots: Ints, rows: Ints) -> Bools:
            return functools.reduce(np.logical_and, (column.equal(slots, each, rows) for column, each in given))

        return equal

    def _load(self, asked: _Asked) -> None:
        """Bring keys that are only in runs into clean slots."""
        if self._complete or not self._history.runs:
            return
        missing = np.flatnonzero(asked.slots < 0)
        if not len(missing):
            return
        groups, hashes = self._groups_of(asked.routing[missing]), asked.hashes[missing]
        for rows, arrays in self._stored_rows(asked.keys.take(pa.array(missing)), groups, hashes):
            if self._horizon != NEVER:
                alive = ~expired(arrays[self._expires], self._horizon)
                rows, arrays = rows[alive], [array.filter(pa.array(alive)) for array in arrays]
            slots = self._insert(asked, missing[rows])
            for column, array in zip(self._values, arrays, strict=True):
                column.put(slots, array)

    def _stored_rows(self, keys: pa.RecordBatch, groups: Groups, hashes: Hashes) -> Iterator[tuple[Ints, list[pa.Array]]]:
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

    def _groups_of(self, routing: Hashes) -> Groups:
        groups = keygroups.groups_of(routing, self.max_parallelism)
        mine = (groups >= self.groups.start) & (groups < self.groups.stop)
        assert mine.all(), f"state {self.spec.name!r}: a key of another task's groups; this one has {self.groups}"
        return groups

    def _load_all(self) -> None:
        """Bring all rows into clean slots, if there is room: about 100 ns each, and from then on snapshots cost a fraction."""
        runs = self._history.runs
        # Of its rows half may have been replaced by others: see `_worth_all`.
        if sum(run.rows for run in runs) > 2 * self._slots_max or sum(run.nbytes for run in runs) > LOADED_BYTES_MAX:
            return
        most = max((run.rows for run in runs), default=0)
        self._grow(max(most, len(self._hash)))
        self._index.make_room(most)
        for batch in self._merged(runs, None):
            keys = batch.select(self.spec.keys.names)
            slots = self._place(keys, fixed_values(batch.column(GROUP)), fixed_values(batch.column(HASH)))
            for column, name in zip(self._values, self.spec.values.names, strict=True):
                column.put(slots, batch.column(name))
        self._complete = True
        for run in runs:
            run.let_go()

    def _insert(self, asked: _Asked, rows: Ints) -> Ints:
        """Make slots for the keys in these rows, which have none; the same key twice gets one."""
        if not len(rows):
            return rows
        keys = asked.keys if len(rows) == len(asked.slots) else asked.keys.take(pa.array(rows))
        slots = self._place(keys, self._groups_of(asked.routing[rows]), asked.hashes[rows])
        asked.slots[rows] = slots
        if len(rows) <= _FEW:
            self._near.learn(key_list(keys), slots)
        return slots

    def _place(self, keys: pa.RecordBatch, groups: Groups, hashes: Hashes) -> Ints:
        """Slots for keys that have none."""
        fresh = self._allocate(keys.num_rows)
        for column, array in zip(self._keys, keys.columns, strict=True):
            column.put(fresh, array)
        self._hash[fresh], self._group[fresh] = hashes, groups
        slots = self._index.insert(hashes, fresh, self._equal_to(keys))
        self._give_back(fresh[slots != fresh])
        return slots

    def _allocate(self, count: int) -> Ints:
        """Slots for `count` keys: given back ones first."""
        self._held = None
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
        self._hash, self._group = grown(self._hash, capacity), grown(self._group, capacity)
        self._dirty, self._deleted = grown(self._dirty, capacity), grown(self._deleted, capacity)
        self._row = np.empty(capacity, np.int32)

    def _dirty_slots(self) -> Ints:
        return np.flatnonzero(self._dirty[: self._used])

    def _sorted(self, slots: Ints) -> Ints:
        return slots[order_of(self._group[slots], self._hash[slots])]

    def _delta(self, slots: Ints, *, keep_deleted: bool) -> pa.RecordBatch:
        """The rows of these slots as those of a run."""
        live = ~self._deleted[slots]
        if not keep_deleted and not live.all():
            slots = slots[live]
            live = live[live]
        keys = [column.take(slots) for column in self._keys]
        values = [column.take(slots, live) for column in self._values]
        head = [pa.array(self._group[slots]), pa.array(self._hash[slots])]
        return pa.RecordBatch.from_arrays([*head, *keys, pa.array(live.astype(np.int8)), *values], schema=self._schema)

    def _release(self, slots: Ints) -> None:
        """Give back slots of keys that are gone, without a trace or with one in the runs."""
        if not len(slots):
            return
        self._index.remove(self._hash[slots], slots)
        self._near.forget(slots)
        self._deleted[slots] = self._dirty[slots] = False
        self._give_back(slots)
        self._asked = None

    def _give_back(self, slots: Ints) -> None:
        """These slots may be used again."""
        if len(slots):
            for column in (*self._keys, *self._values):
                column.clear(slots)
            self._free.append(slots)
            self._held = None


def _merge(runs: Sequence[Run], *, groups: range, expiry: Expiry | None, oldest: bool) -> pa.RecordBatch:
    return merge_runs(runs, groups, drop_deletes=oldest, expiry=expiry)
