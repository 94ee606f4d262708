"""`Overlay`: the rows of a table that are in memory, one numpy array per column.

A row of the arrays is a **slot**, and an index leads from keys to slots. Whole batches of keys are found and placed at once, without
a step in Python per key unless there are few: then `near.py` knows most of them.

1. A slot is free, or holds a key. It is **clean** or **dirty**, and a dirty one may be **deleted**: see `table.py`, whose marks they are.
2. Slots of keys that are gone are used again before new ones are. Their columns are cleared first: an expiry that is left there would
   be looked at.
3. New keys of small batches are **young**: `near` knows where they are, the index does not. It is told of all of them at once, when
   it is asked for a key that `near` does not know and might not have been told of, or is to forget some. Many never get there.
4. -1 stands for no slot. As an index it is the last slot, so what is read there is arbitrary, and whoever asks looks at `slots >= 0`.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.state import keygroups
from penstock.state.columns import Bools, Column, Given, Ints, Rows, copied, grown, key_list
from penstock.state.index import Equal, Index, never
from penstock.state.near import Near
from penstock.state.runfile import Groups, Hashes, order_of
from penstock.state.spec import StateSpec
from penstock.state.texts import column_for
from penstock.state.twins import Twins

__all__ = ["Asked", "Overlay"]

TEXT_BYTES_MAX = 1 << 30
"""Of texts in one column of a run: Arrow counts them with 31 bits, and does not notice if they are more."""
FEW = 512
"""So many keys are listed in Python."""
MANY = 16
"""To write to a slot by its number costs what it costs to write to so many that follow each other."""
_SLOTS_MIN = 1_024


@dataclass(slots=True)
class Asked:
    """A batch of keys, and where they are."""

    keys: pa.RecordBatch
    routing: Hashes | None
    """What decides their groups, if it is known."""
    hashes: Hashes | None
    """What finds them; None if nobody needed it so far."""
    slots: Ints
    listed: list[Any] | None = None
    """The keys in Python, if they are few."""


class Overlay:
    """The rows of one table in memory. By slot: `keys`, `values`, `hash`, `group`, `dirty` and `deleted`."""

    hash: Hashes
    group: Groups
    dirty: Bools
    deleted: Bools
    _graves: bool
    """Whether any slot is deleted."""

    def __init__(self, spec: StateSpec) -> None:
        self._spec, self._schema = spec, spec.schema
        self.keys = [column_for(field.type) for field in spec.keys]
        self.values = [column_for(field.type) for field in spec.values]
        self.hash = np.empty(0, np.uint64)
        self.group = np.empty(0, np.int32)
        self.dirty = np.empty(0, np.bool_)
        self.deleted = np.empty(0, np.bool_)
        self.used = 0
        """Slots from here on never held a key."""
        self._index = Index()
        self._near = Near()
        self._young: list[Ints] = []
        self._young_count = 0
        self.twins = Twins()
        self._graves = False
        self._free: list[Ints] = []
        self._held: Ints | None = None
        self._grow(_SLOTS_MIN)

    def __len__(self) -> int:
        return len(self._index) + self._young_count

    # -- which slots

    def find(self, keys: pa.RecordBatch, routing: Hashes | None) -> Asked:
        """Where each key is; -1 if it is not there. `routing`: the hashes of its first `route_columns` columns, if they are known."""
        if keys.num_rows <= FEW:
            return self._find_few(keys, routing)
        self._settle()
        routing, hashes = self.hashes(keys, routing)
        return Asked(keys, routing, hashes, self._index.find(hashes, self._equal_to(keys)))

    def _find_few(self, keys: pa.RecordBatch, routing: Hashes | None) -> Asked:
        listed = key_list(keys)
        near = self._near.find(listed)
        slots = np.array(near, np.int64)
        if -1 not in near or self._all_near:
            return Asked(keys, routing, None, slots, listed)
        self._settle()
        routing, hashes = self.hashes(keys, routing)
        equal, missing = self._equal_to(keys), np.flatnonzero(slots < 0)
        slots[missing] = self._index.find(hashes[missing], lambda found, rows: equal(found, missing[rows]))
        self._near.learn([listed[row] for row in missing.tolist()], slots[missing])
        return Asked(keys, routing, hashes, slots, listed)

    @property
    def _all_near(self) -> bool:
        """Whether `near` knows every key there is, as where keys are few: then what it does not know is not here."""
        return len(self._near) == len(self)

    def hashes(self, keys: pa.RecordBatch, routing: Hashes | None) -> tuple[Hashes, Hashes]:
        """What decides the groups of keys, and what finds them."""
        count = self._spec.route_columns or len(self.keys)
        if routing is None:
            routing = keygroups.hash_keys(keys.select(list(range(count))))
        rest = list(range(count, len(self.keys)))
        return routing, keygroups.hash_keys(keys.select(rest), routing) if rest else routing

    def _equal_to(self, keys: pa.RecordBatch) -> Equal:
        """What says whether `slots[i]` holds key `rows[i]` of these. Of new keys nobody asks, so they are made ready when somebody does."""
        given: list[tuple[Column, Given]] = []

        def equal(slots: Ints, rows: Rows) -> Bools:
            if not given:
                given.extend((column, column.given(array)) for column, array in zip(self.keys, keys.columns, strict=True))
            return functools.reduce(np.logical_and, (column.equal(slots, each, rows) for column, each in given))

        return equal

    def alive(self, slots: Ints) -> Bools:
        """Which of these hold a key that is not deleted."""
        alive = slots >= 0
        if self._graves:
            alive &= ~self.deleted[slots]
        return alive

    def bury(self, slots: Ints) -> None:
        """The keys of these slots are deleted, which the next freeze is to say."""
        self.deleted[slots] = self.dirty[slots] = True
        self._graves = True

    def revive(self, slots: Ints) -> None:
        """The keys of these slots are there, or there again, and what they hold is new."""
        if self._graves:
            self.deleted[slots] = False
        self.dirty[slots] = True

    def clean(self, dirty: Ints) -> None:
        """The runs say the same as these slots, which are all that were dirty. Those of deleted keys were released."""
        if len(dirty) * MANY > self.used:
            self.dirty[: self.used] = False
        else:
            self.dirty[dirty] = False
        self._graves = False

    def buried(self, slots: Ints) -> Ints:
        """Those of these slots whose keys are deleted."""
        return slots[self.deleted[slots]] if self._graves else slots[:0]

    def dirty_slots(self) -> Ints:
        """Those that are dirty, ascending."""
        return np.flatnonzero(self.dirty[: self.used])

    def held(self) -> Ints:
        """Those that hold a key, ascending. Known from then on as long as none comes or goes."""
        if self._held is None:
            held = np.ones(self.used, np.bool_)
            for slots in self._free:
                held[slots] = False
            self._held = np.flatnonzero(held)
        return self._held

    def in_order(self, slots: Ints) -> Ints:
        """These slots in the order of runs."""
        return slots[order_of(self.group[slots], self.hash[slots])]

    # -- keys come and go

    def place(self, keys: pa.RecordBatch, groups: Groups, hashes: Hashes) -> Ints:
        """Slots for keys that have none: clean, and without values. The same key twice gets one."""
        listed = key_list(keys) if keys.num_rows <= FEW else None
        fresh = self._allocate(keys.num_rows)
        for column, array in zip(self.keys, keys.columns, strict=True):
            column.put(fresh, array)
        self.hash[fresh], self.group[fresh] = hashes, groups
        if listed is not None and self._all_near:
            first: dict[Any, int] = {}
            slots = np.array([first.setdefault(key, slot) for key, slot in zip(listed, fresh.tolist())], np.int64)
            self._young.append(fresh if len(first) == len(fresh) else np.unique(slots))
            self._young_count += len(first)
        else:
            self._settle()
            slots = self._index.insert(hashes, fresh, self._equal_to(keys))
        if len(fresh) > 1:
            self._give_back(fresh[slots != fresh])
        if listed is not None:
            self._near.learn(listed, slots)
        return slots

    def _settle(self) -> None:
        """Let the index know of young keys, all at once."""
        if self._young:
            slots, self._young, self._young_count = np.concatenate(self._young), [], 0
            self._index.insert(self.hash[slots], slots, never)

    def make_room(self, keys: int) -> None:
        """So many keys are about to come: grow once."""
        self._grow(max(keys, len(self.hash)))
        self._index.make_room(keys)

    def release(self, slots: Ints) -> None:
        """The keys of these slots are gone."""
        self._settle()
        self._index.remove(self.hash[slots], slots)
        self._near.forget(slots)
        self.deleted[slots] = self.dirty[slots] = False
        self._give_back(slots)

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
        start, self.used = self.used, self.used + count
        if self.used > len(self.hash):
            self._grow(max(self.used, 2 * len(self.hash)))
        return np.concatenate([*parts, np.arange(start, self.used)])

    def _grow(self, capacity: int) -> None:
        for column in (*self.keys, *self.values):
            column.grow(capacity)
        self.hash, self.group = grown(self.hash, capacity), grown(self.group, capacity)
        self.dirty, self.deleted = grown(self.dirty, capacity), grown(self.deleted, capacity)

    def _give_back(self, slots: Ints) -> None:
        """These slots may be used again."""
        if len(slots):
            for column in (*self.keys, *self.values):
                column.clear(slots)
            self._free.append(slots)
            self._held = None

    # -- out of here

    def rows_of(self, slots: Rows, *, keep_deleted: bool) -> pa.RecordBatch:
        """The rows of these slots as those of a run, copied."""
        live = ~self.deleted[slots] if self._graves else None
        if live is not None and not keep_deleted:
            slots, live = (np.flatnonzero(live) if isinstance(slots, slice) else slots[live]), None
        group = copied(self.group, slots)
        op = np.ones(len(group), np.int8) if live is None else live.astype(np.int8)
        head = [pa.array(group), pa.array(copied(self.hash, slots)), *(column.take(slots) for column in self.keys)]
        values = [column.take(slots, live) for column in self.values]
        return pa.RecordBatch.from_arrays([*head, pa.array(op), *values], schema=self._schema)

    def parts(self, slots: Ints) -> list[Ints]:
        """These slots in parts of which no column has more bytes of text than fit in one of Arrow's."""
        large = [column for column in (*self.keys, *self.values) if column.text_bytes_max > TEXT_BYTES_MAX]
        if not large:
            return [slots]
        ends = np.cumsum(np.add.reduce([column.text_bytes(slots) for column in large]))
        cuts = np.searchsorted(ends, np.arange(TEXT_BYTES_MAX, ends[-1] if len(ends) else 0, TEXT_BYTES_MAX))
        return np.split(slots, cuts)
