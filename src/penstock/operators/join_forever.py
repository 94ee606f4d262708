"""The join of what is there: rows of both sides are kept for ever, or until they are withdrawn.

Both sides are multisets. A row that comes meets all rows of the other side with its key, now and later; a row that is withdrawn
takes with it everything it was part of. What one batch changes is netted first: a row that comes and goes within it did nothing.

1. A row is withdrawn by an equal one (in all columns that are kept, and its event time). One that was never there is counted
   ("unmatched") and changes nothing.
2. Where rows are sent without a match ("left", "right", "full"), such a row is withdrawn when its first match comes, and sent again
   when its last one goes.
3. The event time of a result, if both sides have one, is the later of both; of a row without a match, its own. So a row is
   withdrawn with the very time it was sent with.
4. Rows with a null in their key match nothing and are not kept; they are only passed on, where rows without a match are sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.expr.ordering import groupable
from penstock.operators.groups import group_rows, ranks
from penstock.operators.joining import Join, Joined, numbers
from penstock.operators.operator import CHANGE_COLUMN, MAIN, TIME_COLUMN, Origin, Out, as_times
from penstock.operators.rowbuffer import Ints, Keys, Places, RowBuffer, Stored, distinct_places, pairs
from penstock.state.columns import gathered

PLACE = "__place"


@dataclass(frozen=True, slots=True)
class Changes:
    """Rows that come (+1) or are withdrawn (-1): whose place each has, and the rows themselves."""

    of: Ints
    sign: Ints
    rows: pa.RecordBatch

    def take(self, rows: Ints) -> Changes:
        """Some of them."""
        return Changes(self.of[rows], self.sign[rows], gathered(self.rows, rows))


class ForeverJoin(Join):
    """Rows of two streams with equal keys, whenever they come.

    Input:   rows of both sides; rows that say they are withdrawn.
    State:   per side all rows by key, numbered without holes.
    Output:  main: results, and where anything can change what is withdrawn of them.
    """

    def __init__(self, name: str, joined: Joined, how: str, states: Mapping[str, Any], *, max_parallelism: int) -> None:
        super().__init__(name, joined, how, states, max_parallelism=max_parallelism)
        self._buffers = [RowBuffer(states[f"{side}_buckets"], states[f"{side}_rows"]) for side in ("left", "right")]
        self._hidden = [f.name for f in joined.schema if f.name in (TIME_COLUMN, CHANGE_COLUMN)]

    def receive(self, input: int, batch: pa.RecordBatch, origin: Origin | None) -> Iterator[Out]:
        """Bring one side up to date, and send what that changes."""
        keys, rows = self._keys(input, batch), self._sides[input].rows(batch)
        places, groups = distinct_places(keys, np.zeros(len(keys), np.int64))
        changes = Changes(groups.of, np.ones(len(keys), np.int64), rows)
        if CHANGE_COLUMN in batch.schema.names:
            changes = net(groups.of, batch.column(CHANGE_COLUMN).to_numpy().astype(np.int64), rows)
        whole = Keys(places.columns.drop_columns([places.columns.schema.names[-1]]), places.hashes, np.arange(len(places))).whole
        nowhere = np.flatnonzero(~whole[changes.of])
        changes, apart = changes.take(np.flatnonzero(whole[changes.of])), changes.take(nowhere)
        changes, before, after = self._bring_up_to_date(input, places, changes)
        other = 1 - input
        stored = self._buffers[other].fetch(places)
        if self._sent_alone[input]:
            lonely = changes.take(np.flatnonzero(stored.counts[changes.of] == 0))
            yield from self._lonely(input, places, apart)
            yield from self._lonely(input, places, lonely)
        if self._sent_alone[other]:
            turned = ((before > 0) != (after > 0))[stored.of]
            at = np.flatnonzero(turned)
            sign = np.where(after[stored.of[at]] == 0, 1, -1)
            yield from self._lonely(other, places, Changes(stored.of[at], sign, gathered(stored.rows, at)))
        yield from self._pairs(input, places, changes, stored)

    # -- state

    def _bring_up_to_date(self, side: int, places: Places, changes: Changes) -> tuple[Changes, Ints, Ints]:
        """The changes that are real; how many rows each place had, and has."""
        buffer = self._buffers[side]
        before = buffer.counts(places)
        if (changes.sign < 0).any():
            changes = self._withdraw(side, places, before, changes)
        fresh = np.flatnonzero(changes.sign > 0)
        if len(fresh):
            self._put(side, places, changes.of[fresh], gathered(changes.rows, fresh))
        return changes, before, before + np.bincount(changes.of, changes.sign, len(places)).astype(np.int64)

    def _withdraw(self, side: int, places: Places, counts: Ints, changes: Changes) -> Changes:
        """Take out rows equal to those withdrawn. What is left of a place is numbered anew."""
        gone = np.flatnonzero(changes.sign < 0)
        touched = np.unique(changes.of[gone])
        some = places.take(touched)
        stored = self._buffers[side].fetch(some, counts[touched])
        had = stored.rows.num_rows
        both = pa.concat_batches([stored.rows, gathered(changes.rows, gone).select(stored.rows.schema.names)])
        of = alike(np.concatenate([touched[stored.of], changes.of[gone]]), both)
        # The n-th row withdrawn takes out the n-th of those equal to it.
        kinds = int(of.max()) + 1
        there, wanted = np.bincount(of[:had], minlength=kinds), np.bincount(of[had:], minlength=kinds)
        real = ranks(of[had:]) < there[of[had:]]
        stays = ranks(of[:had]) >= wanted[of[:had]]
        self.counters["unmatched"] += int((~real).sum())
        self._buffers[side].drop(some)
        left = np.flatnonzero(stays)
        if len(left):
            self._put(side, places, touched[stored.of[left]], gathered(stored.rows, left))
        return changes.take(np.sort(np.concatenate([np.flatnonzero(changes.sign > 0), gone[real]])))

    def _put(self, side: int, places: Places, of: Ints, rows: pa.RecordBatch) -> None:
        columns = gathered(places.columns.select(list(self._joined.keys)), of)
        self._buffers[side].add(Keys(columns, places.hashes[of], of), np.zeros(len(of), np.int64), rows)

    # -- results

    def _lonely(self, side: int, places: Places, changes: Changes) -> Iterator[Out]:
        """Rows without a match."""
        for sign in (-1, 1):
            some = changes.take(np.flatnonzero(changes.sign == sign))
            if len(some.of):
                times = numbers(some.rows)
                yield MAIN, self._alone(side, gathered(places.columns, some.of), some.rows, self._marks(times, some.sign))

    def _pairs(self, side: int, places: Places, changes: Changes, stored: Stored) -> Iterator[Out]:
        # What is withdrawn goes first.
        rows = np.argsort(changes.sign, kind="stable")
        for ours, theirs in pairs(rows, changes.of[rows], stored):
            new, old = gathered(changes.rows, ours), gathered(stored.rows, theirs)
            both = (new, old) if side == 0 else (old, new)
            times = np.maximum(numbers(new), numbers(old))
            keys = gathered(places.columns, changes.of[ours])
            yield MAIN, self._joined.rows(keys, *both, self._marks(times, changes.sign[ours]))

    def _marks(self, times: Ints, sign: Ints) -> dict[str, pa.Array]:
        marks = {TIME_COLUMN: as_times(times), CHANGE_COLUMN: pa.array(sign.astype(np.int8))}
        return {name: marks[name] for name in self._hidden}


def net(of: Ints, change: Ints, rows: pa.RecordBatch) -> Changes:
    """What is left of changes once equal rows that come and go are taken off each other."""
    kinds = alike(of, rows)
    total = np.bincount(kinds, change).astype(np.int64)
    first = np.unique(kinds, return_index=True)[1]
    each = np.repeat(first, np.abs(total))
    return Changes(of[each], np.sign(np.repeat(total, np.abs(total))), gathered(rows, each))


def alike(of: Ints, rows: pa.RecordBatch) -> Ints:
    """Numbers that are equal where place and row are."""
    columns = [pa.array(of), *map(groupable, rows.columns)]
    names = [PLACE, *rows.schema.names]
    return group_rows(pa.RecordBatch.from_arrays(columns, names=names), names).of
