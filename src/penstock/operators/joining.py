"""What all joins share: rows of a side as state knows them, late rows, and how result rows are put together.

Rows of a side are brought into one form as soon as they arrive (`Side.rows`): the columns the result needs, as `row.x`, and their
event time as a number, `__time`. Whether a row of a pair has just come or was kept makes no difference then.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.exact import exactly
from penstock.operators.operator import TIME_COLUMN, Operator, Out, as_times, keep
from penstock.operators.rowbuffer import Bools, Ints, Keys
from penstock.state.keygroups import canonical_keys, groups_of
from penstock.state.timers import TimerTable

LATE_PORTS = ("late", "late_right")


@dataclass(frozen=True)
class Side:
    """One input: its key columns, the other columns that are kept, and what the result calls them."""

    keys: tuple[str, ...]
    kept: tuple[str, ...]
    named: tuple[str, ...]

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Rows as they are kept."""
        arrays = [batch.column(name) for name in self.kept]
        timed = batch.schema.get_field_index(TIME_COLUMN) >= 0
        arrays.append(batch.column(TIME_COLUMN).view(pa.int64()) if timed else pa.array(np.zeros(batch.num_rows, np.int64)))
        return pa.RecordBatch.from_arrays(arrays, names=self.stored)

    @functools.cached_property
    def stored(self) -> list[str]:
        """What the columns are called in state."""
        return [*(f"row.{name}" for name in self.kept), "__time"]


@dataclass(frozen=True)
class Joined:
    """How result rows are put together. `keys` are the key's columns, `schema` is the result's with its hidden columns."""

    keys: tuple[str, ...]
    sides: tuple[Side, Side]
    schema: pa.Schema

    def rows(
        self, keys: pa.RecordBatch, left: pa.RecordBatch | None, right: pa.RecordBatch | None, hidden: Mapping[str, pa.Array]
    ) -> pa.RecordBatch:
        """Rows of the result; None: that side is missing in all of them."""
        found: dict[str, pa.Array] = dict(hidden)
        found |= {name: keys.column(name) for name in self.keys}
        for side, rows in zip(self.sides, (left, right)):
            for name, column in zip(side.named, side.kept):
                found[name] = (
                    pa.nulls(keys.num_rows, self.schema.field(name).type) if rows is None else rows.column(f"row.{column}")
                )
        # Columns that nobody uses are not there.
        fields = [f for f in self.schema if f.name in found]
        arrays = [found[f.name] if found[f.name].type == f.type else exactly(found[f.name], f.type) for f in fields]
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


class Join(Operator):
    """Base of the joins of two streams."""

    def __init__(self, name: str, joined: Joined, how: str, states: Mapping[str, Any], *, max_parallelism: int) -> None:
        super().__init__(name)
        self._joined, self._sides, self._how, self.states = joined, joined.sides, how, states
        self._max_parallelism = max_parallelism
        # Whether rows of a side are sent if they have no match.
        self._sent_alone = (how in ("left", "full", "anti"), how in ("right", "full"))

    def _keys(self, side: int, batch: pa.RecordBatch) -> Keys:
        """The keys of rows, by the left side's names."""
        return Keys(canonical_keys(batch, self._sides[side].keys, self._joined.keys))

    @property
    def _timers(self) -> TimerTable:
        timers: TimerTable = self.states["timers"]
        return timers

    def _floors(self, keys: Keys) -> Ints:
        """How far time is for each key."""
        timers = self._timers
        if timers.floor_min == timers.floor_max:  # as almost always: no need to know whose key is where
            return np.full(len(keys), timers.floor_max)
        return timers.floor_of(groups_of(keys.hashes, self._max_parallelism))

    def _set_late_aside(self, side: int, batch: pa.RecordBatch, late: Bools) -> Iterator[Out]:
        rows = keep(batch, late)
        self.counters[LATE_PORTS[side]] += rows.num_rows
        yield LATE_PORTS[side], rows

    def _alone(self, side: int, keys: pa.RecordBatch, rows: pa.RecordBatch, hidden: Mapping[str, pa.Array]) -> pa.RecordBatch:
        """Rows of one side without a match."""
        left, right = (rows, None) if side == 0 else (None, rows)
        return self._joined.rows(keys, left, right, hidden)


def numbers(rows: pa.RecordBatch, name: str = "__time") -> Ints:
    """A column of numbers without nulls."""
    found: Ints = rows.column(name).to_numpy()
    return found


def bounds(starts: Ints, ends: Ints) -> Sequence[pa.Array]:
    """Windows as columns."""
    return [as_times(starts), as_times(ends)]
