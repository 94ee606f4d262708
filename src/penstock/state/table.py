"""`KeyedTable`: values by key. Changes in memory over immutable runs; a freeze costs what changed, not what is there.

The overlay (`overlay.py`) holds the keys in use, each in a *slot*. Whole batches of keys are read and written at once. What is not in
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
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pyarrow as pa

from penstock.state import inplace, keygroups
from penstock.state.columns import Bools, Ints, Rows, batch_of, fixed_array, fixed_values, gathered
from penstock.state.history import MERGE_BYTES_MAX, Frozen, History, reopen
from penstock.state.overlay import Asked, Overlay
from penstock.state.runfile import GROUP, HASH, PUT, Files, Groups, Handle, Hashes, visible_rows
from penstock.state.runs import NEVER, Expiry, Run, expired, find, merge_runs, parts_of
from penstock.state.spec import StateSpec

__all__ = ["SLOTS_MAX", "KeyedTable"]

SLOTS_MAX = 8_000_000
WHOLE_MAX = 1.5
"""A run of all keys may have so many times the rows of one of what changed: about what it would cost to merge the latter."""
PAUSE_MAX = 8
"""And never more than so many times: a freeze is to cost what changed, not what is there."""
LOADED_BYTES_MAX = 512 << 20
"""A larger table is not loaded as a whole when it is opened."""
SCAN_ROWS = 65_536


@dataclass(frozen=True, slots=True)
class Changed:
    """What `change_many` did. Of rows that share their key there is one: `rows` says which; None: all rows, in their order."""

    rows: Ints | None
    found: Bools  # whether the key was there
    types: list[pa.DataType]
    numbers: list[Ints]  # by column, what it became

    @property
    def values(self) -> list[pa.Array]:
        """What each value became, for those who want to know: whoever waits for a window to close does not."""
        return [fixed_array(type, each, None) for type, each in zip(self.types, self.numbers, strict=True)]


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

    _overlay: Overlay
    _full: bool
    """Whether the overlay is to be emptied before it is used again."""
    _complete: bool
    _asked: Asked | None
    """The last batch of keys: a put usually follows a get of the same."""

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
        self._value_types = spec.values.types
        self._slots_max = slots_max
        self._lasting = lasting
        self._expires = -1 if spec.expires is None else spec.values.get_field_index(spec.expires)
        self._horizon = self._cleared = NEVER
        self._accepted: pa.Schema | None = None  # the schema of the keys that were asked for last, which are of the right types
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
        *,
        convert: Callable[[pa.RecordBatch, pa.Schema], pa.RecordBatch] | None = None,
        **options: Any,
    ) -> Self:
        """The table that was stored as `handles`: newest first; lists of different old tasks one after the other.

        Args:
            convert: makes the rows of other columns ones of these: what it makes is written by the next snapshot, as if it had changed.
            options: As for the table itself.
        """
        mine = [handle for each in handles if (handle := each.within(groups)) is not None]
        assert all(handle.kind == "run" for handle in mine), "timers are not a table"
        schema = spec.schema
        if convert is None:
            runs = [reopen(handle, files, schema) for handle in mine]
        else:
            stored = (visible_rows(handle, files) for handle in mine)
            runs = [Run.of(convert(rows, schema)) for rows in stored if rows.num_rows]
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
        return sum(run.rows for run in self._history.runs) + int(np.count_nonzero(self._overlay.dirty))

    # -- reading and writing

    def get_many(self, keys: pa.RecordBatch, hashes: Hashes | None = None) -> tuple[Bools, pa.RecordBatch]:
        """Which keys are there, and their values row by row (null where not found)."""
        asked = self._ask(keys, hashes)
        self._load(asked)
        slots = asked.slots
        found = self._overlay.alive(slots)
        if self._horizon != NEVER:
            found &= ~self._expired(slots)
        lost = None if found.all() else found
        arrays = [column.take(slots, lost) for column in self._overlay.values]
        return found, batch_of(self._values_schema, arrays, len(slots))

    def repeats(self, keys: pa.RecordBatch) -> Bools | None:
        """Which rows have a key that another has too; None if none has. Where many have, or of rows whose keys are not there, it may say so
        without need."""
        asked = self._ask(keys, None)
        if asked.listed is not None:
            return None if len(set(asked.listed)) == len(asked.listed) else np.ones(keys.num_rows, np.bool_)
        self._load(asked)
        twins = self._overlay.twins.of(asked.slots)
        if twins is None:
            return None
        repeats = np.zeros(keys.num_rows, np.bool_)
        repeats[twins.rows] = True
        return repeats

    def put_many(self, keys: pa.RecordBatch, values: pa.RecordBatch, hashes: Hashes | None = None) -> None:
        """Set the values of keys; of a key that occurs twice the last row stays."""
        asked = self._ask(keys, hashes)
        self._insert(asked, np.flatnonzero(asked.slots < 0))
        overlay = self._overlay
        for column, array in zip(overlay.values, values.columns, strict=True):
            column.put(asked.slots, array)
        overlay.revive(asked.slots)

    def change_many(self, keys: pa.RecordBatch, values: Sequence[pa.Array], how: Sequence[np.ufunc]) -> Changed | None:
        """Change values where they stand: each becomes `how` of itself and all that are given for its key, or of those alone where the
        key is not there. None, and nothing is done, if a value is no whole number, or a sum might not fit, or rows expire.
        """
        asked = self._ask(keys, None)
        self._load(asked)
        overlay = self._overlay
        given: list[Ints] = []
        for column, array in zip(overlay.values, values, strict=True):
            if not column.whole or array.null_count or array.type != column.type:
                return None
            given.append(fixed_values(array, column.dtype))
        if self._horizon != NEVER:
            return None
        slots = asked.slots
        # What stands in slots of keys that are not there is arbitrary; at worst it looks too large.
        old = [column.values.take(slots, mode="clip") for column in overlay.values]
        if not all(inplace.adds_up(*each) for *each, change in zip(old, given, how, strict=True) if change is np.add):
            return None
        found = overlay.alive(slots)
        new = not found.all()
        if new:
            self._insert(asked, np.flatnonzero(slots < 0))
        overlay.revive(slots)
        twins = overlay.twins.of(slots)
        changed = []
        for column, before, each, change in zip(overlay.values, old, given, how):
            if new:
                column.valid[slots] = True
            shared = None if twins is None else twins.rows
            changed.append(
                inplace.change(column.values, slots, before, each, change, found=found if new else None, shared=shared)
            )
        rows = None if twins is None else twins.last
        if rows is not None:
            found, changed = found[rows], [each[rows] for each in changed]
        return Changed(rows, found, self._value_types, changed)

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
            self._overlay.bury(slots)
        else:  # nothing is older, so there is nothing a tombstone could hide
            self._release(np.unique(slots[slots >= 0]))

    def scan(self) -> Iterator[pa.RecordBatch]:
        """All live rows (key and value columns) as of the call, by group and hash, in batches of bounded size."""
        runs = (*self._runs_of(self._overlay.dirty_slots(), keep_deleted=True), *self._history.runs)
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
        overlay = self._overlay
        dirty = overlay.dirty_slots()
        if len(dirty):
            if self._horizon != NEVER:
                overlay.bury(dirty[self._expired(dirty)])
            self._freezing(dirty)
            if self._worth_all(len(dirty)):
                self._history.replace(self._runs_of(overlay.held(), keep_deleted=False))
            else:
                # Where nothing is older there is nothing a tombstone could hide.
                for run in self._runs_of(dirty, keep_deleted=bool(self._history.runs)):
                    self._history.append(run)
            self._release(overlay.buried(dirty))
            overlay.clean(dirty)
        if self._horizon > self._cleared:
            # Those still there are clean: the runs have them, and `_load` will not bring them back.
            self._release(np.flatnonzero(self._expired(slice(overlay.used))))
            self._cleared = self._horizon
        self._full = len(overlay) > self._slots_max
        merge = functools.partial(_merge, groups=self.groups, expiry=self._expiry)
        return self._history.freeze(epoch, kind="run", schema=self._schema, merge=merge, searched=self._searches)

    def _worth_all(self, changed: int) -> bool:
        """Whether to freeze all keys, where so many changed."""
        if not self._complete or sum(run.nbytes for run in self._history.runs) > MERGE_BYTES_MAX:
            return False
        keys = len(self._overlay)
        # Or once the runs have more rows that no longer count than rows that do; unless that takes far longer than what changed.
        return keys <= WHOLE_MAX * changed or (keys <= PAUSE_MAX * changed and self.rows_estimate >= 2 * keys)

    def _runs_of(self, slots: Ints, *, keep_deleted: bool) -> list[Run]:
        """The rows of these slots, which ascend, in no order: one run, or several of different keys."""
        overlay = self._overlay
        parts: list[Rows] = list(overlay.parts(slots))
        if len(parts) == 1 and len(slots) == overlay.used:
            parts = [slice(overlay.used)]  # all of them: copied as a whole
        batches = [overlay.rows_of(part, keep_deleted=keep_deleted) for part in parts]
        return [Run.unsorted(batch) for batch in batches if batch.num_rows]

    def stored(self, frozen: Frozen, handles: Sequence[Handle]) -> None:
        """`store(frozen)` returned these handles: refer to the files from now on."""
        self._history.stored(frozen, handles)

    def _freezing(self, dirty: Ints) -> None:
        """The runs are about to say the same as these slots: for those who keep a copy of what the runs say."""

    # -- slots

    def _empty(self) -> None:
        self._overlay = Overlay(self.spec)
        self._full = False
        self._asked = None
        self._complete = not self._history.runs

    def _ask(self, keys: pa.RecordBatch, routing: Hashes | None) -> Asked:
        """Where each key is in the overlay; -1 if it is not there."""
        if self._asked is not None and self._asked.keys is keys and not self._full:
            return self._asked
        if keys.schema != self._accepted:
            assert keys.schema.types == self.spec.keys.types, f"keys are {keys.schema}, not {self.spec.keys}"
            self._accepted = keys.schema
        if self._full:
            self._empty()
        self._asked = self._overlay.find(keys, routing)
        return self._asked

    def _load(self, asked: Asked) -> None:
        """Bring keys that are only in runs into clean slots."""
        if self._complete or not self._history.runs:
            return
        missing = np.flatnonzero(asked.slots < 0)
        if not len(missing):
            return
        keys = gathered(asked.keys, missing)
        routing, hashes = self._hashed(asked, missing, keys)
        for rows, arrays in self._stored_rows(keys, self._groups_of(routing), hashes):
            if self._horizon != NEVER:
                alive = ~expired(arrays[self._expires], self._horizon)
                rows, arrays = rows[alive], [array.filter(pa.array(alive)) for array in arrays]
            slots = self._insert(asked, missing[rows])
            for column, array in zip(self._overlay.values, arrays, strict=True):
                column.put(slots, array)

    def _stored_rows(self, keys: pa.RecordBatch, groups: Groups, hashes: Hashes) -> Iterator[tuple[Ints, list[pa.Array]]]:
        """What the runs say: numbers of keys that are there, ascending, and their value columns."""
        runs = self._history.runs
        which, where = find(runs, groups, hashes, keys)
        for position, run in enumerate(runs):
            hit = np.flatnonzero(which == position)
            hit = hit[run.ops[where[hit]] == PUT]
            if len(hit):
                yield hit, gathered(run.batch.select(self.spec.values.names), where[hit]).columns

    def _expired(self, slots: Ints | slice) -> Bools:
        """Which of these slots the horizon has passed. Slots that are free, or hold nothing yet, are null."""
        times = self._overlay.values[self._expires]
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
        self._overlay.make_room(most)
        for batch in self._merged(runs, None):
            keys = batch.select(self.spec.keys.names)
            slots = self._overlay.place(keys, fixed_values(batch.column(GROUP)), fixed_values(batch.column(HASH)))
            for column, name in zip(self._overlay.values, self.spec.values.names, strict=True):
                column.put(slots, batch.column(name))
        self._complete = True
        for run in runs:
            run.let_go()

    def _insert(self, asked: Asked, rows: Ints) -> Ints:
        """Make slots for the keys in these rows, which have none; the same key twice gets one."""
        if not len(rows):
            return rows
        keys = asked.keys if len(rows) == len(asked.slots) else gathered(asked.keys, rows)
        routing, hashes = self._hashed(asked, rows, keys)
        slots = self._overlay.place(keys, self._groups_of(routing), hashes)
        asked.slots[rows] = slots
        return slots

    def _hashed(self, asked: Asked, rows: Ints, keys: pa.RecordBatch) -> tuple[Hashes, Hashes]:
        """What decides the groups of these rows, whose keys are `keys`, and what finds them."""
        routing = None if asked.routing is None else asked.routing[rows]
        return self._overlay.hashes(keys, routing) if asked.hashes is None or routing is None else (routing, asked.hashes[rows])

    def _release(self, slots: Ints) -> None:
        """Give back slots of keys that are gone, without a trace or with one in the runs."""
        if len(slots):
            self._overlay.release(slots)
            self._asked = None


def _merge(runs: Sequence[Run], *, groups: range, expiry: Expiry | None, oldest: bool) -> pa.RecordBatch:
    return merge_runs(runs, groups, drop_deletes=oldest, expiry=expiry)
