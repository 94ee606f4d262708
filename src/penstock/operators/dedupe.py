"""The first row of each key passes; later ones are dropped for as long as the key is remembered.

1. First is what comes first. Without `within` a key is remembered for ever.
2. With `within`, a row is a duplicate if its time is at most that much after the time of the row that passed. A later one passes,
   and is what counts from then on. A row from before the one that passed is a duplicate.
3. A row is **late** if the watermark has passed its time + `within`. A key is forgotten when it has passed the time of its row
   + 2 `within`: whatever could be a duplicate of that is late by then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.operators.groups import group_rows
from penstock.operators.operator import LATE, MAIN, Operator, Origin, Out, keep, times_of
from penstock.operators.rowbuffer import Bools, Ints
from penstock.state.columns import batch_of, gathered, nulls_filled
from penstock.state.keygroups import canonical_keys, groups_of, hash_keys
from penstock.state.table import KeyedTable
from penstock.state.timers import DUE, TimerTable


class DropDuplicates(Operator):
    """The first row of each key.

    Input:   rows; with event time if keys are forgotten.
    State:   the keys seen, with the time of the row that passed.
    Timers:  event time, when a key is forgotten; one more for each row of it that passed since.
    Output:  main: rows that passed; late: rows too old to tell.
    """

    def __init__(
        self, name: str, by: Sequence[str], within: int | None, states: Mapping[str, Any], *, max_parallelism: int
    ) -> None:
        super().__init__(name)
        self._by, self._within, self.states = list(by), within, states
        self._seen: KeyedTable = states["seen"]
        self._max_parallelism = max_parallelism

    def process(self, batch: pa.RecordBatch, origin: Origin | None) -> Iterator[Out]:
        """Let first rows pass."""
        if self._within is None:
            yield MAIN, keep(batch, self._first(batch))
            return
        keys = canonical_keys(batch, self._by)
        hashes = hash_keys(keys)
        times = times_of(batch)
        timers: TimerTable = self.states["timers"]
        late = times + self._within <= timers.floor_of(groups_of(hashes, self._max_parallelism))
        if late.any():
            self.counters["late"] += int(late.sum())
            yield LATE, keep(batch, late)
        at = np.flatnonzero(~late)
        passed = at[self._first_within(gathered(keys, at), hashes[at], times[at], self._within, timers)]
        self.counters["dropped"] += len(at) - len(passed)
        yield MAIN, gathered(batch, passed)

    def _first(self, batch: pa.RecordBatch) -> Bools:
        """Which rows are the first of their keys, ever."""
        keys = canonical_keys(batch, self._by)
        groups = group_rows(keys, self._by)
        each = gathered(keys, groups.first)
        found, _ = self._seen.get_many(each)
        fresh = np.flatnonzero(~found)
        self._seen.put_many(gathered(each, fresh), batch_of(pa.schema([]), [], len(fresh)))
        passed = np.zeros(batch.num_rows, np.bool_)
        passed[groups.first[fresh]] = True
        self.counters["dropped"] += batch.num_rows - len(fresh)
        return passed

    def _first_within(
        self, keys: pa.RecordBatch, hashes: np.ndarray[Any, Any], times: Ints, within: int, timers: TimerTable
    ) -> Ints:
        """The numbers of the rows that pass, in order; remembers them."""
        groups = group_rows(keys, self._by)
        each, each_hash = gathered(keys, groups.first), hashes[groups.first]
        found, values = self._seen.get_many(each, each_hash)
        # The last time up to which rows are duplicates.
        until = np.where(found, nulls_filled(values.column("__time")) + within, np.iinfo(np.int64).min)
        before = until.copy()
        passed: list[Ints] = []
        left = np.arange(len(times))
        # Each round lets one row of a key pass: almost always there is one round.
        while len(left := left[times[left] > until[groups.of[left]]]):
            first = left[np.unique(groups.of[left], return_index=True)[1]]
            until[groups.of[first]] = times[first] + within
            # Rows before the one that passed were duplicates of what passed before it.
            passed.append(first)
            left = left[left > first_of(first, groups.of, len(until))[groups.of[left]]]
        changed = np.flatnonzero(until != before)
        if not len(changed):
            return np.empty(0, np.int64)
        some, some_hash = gathered(each, changed), each_hash[changed]
        self._seen.put_many(some, pa.RecordBatch.from_arrays([pa.array(until[changed] - within)], ["__time"]), some_hash)
        # A row that is not late may still come within `within` of the last moment at which it would be a duplicate.
        timers.add(until[changed] + within, some, some_hash)
        return np.sort(np.concatenate(passed))

    def advance(self, time: int) -> Iterator[Out]:
        """Forget keys."""
        if self._within is None:
            return
        timers: TimerTable = self.states["timers"]
        for due in timers.due(time):
            keys = due.select(self._by)
            found, values = self._seen.get_many(keys)
            # A key of which another row passed since is forgotten later.
            over = found & (nulls_filled(values.column("__time")) + 2 * self._within <= due.column(DUE).to_numpy())
            self._seen.delete_many(keep(keys, over))
        timers.advance(time)
        yield from ()


def first_of(rows: Ints, of: Ints, groups: int) -> Ints:
    """By group: the row given for it; -1 if none."""
    found = np.full(groups, -1, np.int64)
    found[of[rows]] = rows
    return found
