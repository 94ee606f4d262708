"""Segments: the rows of each group, next to each other and in the order they came.

Arrow's hash aggregation knows counts, sums and extremes. Everything else is computed on segments: `order` lists row
numbers group by group, `offsets` says where each group starts, and numpy's `reduceat` or one sort does all groups at
once. No loop runs over rows.

1. Within a group, rows keep their order. What merges later came later.
2. A group may be empty (its rows did not count); it is still a group.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["Bools", "Ints", "Segments", "flattened", "list_array", "pairs", "take_rows"]

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Segments:
    """Group g is the rows `order[offsets[g]:offsets[g + 1]]`.

    >>> of_two = Segments(np.array([0, 2, 1]), np.array([0, 2, 3]))
    >>> of_two.reduce(np.add, np.array([1, 3, 2]), 0).tolist()
    [4, 2]
    """

    order: Ints
    offsets: Ints

    @classmethod
    def of_lists(cls, rows: pa.ListArray) -> Segments:
        """From a list of row numbers for each group."""
        lengths = pc.list_value_length(rows).to_numpy(zero_copy_only=False)
        return cls(rows.flatten().to_numpy(), np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64))

    @property
    def groups(self) -> int:
        return len(self.offsets) - 1

    @cached_property
    def lengths(self) -> Ints:
        return np.diff(self.offsets)

    @cached_property
    def ids(self) -> Ints:
        """The group of each row, in order."""
        return self.spread(np.arange(self.groups))

    def spread(self, per_group: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """A value of each group as a value of each of its rows."""
        return np.repeat(per_group, self.lengths)

    def keep(self, rows: Bools) -> Segments:
        """The same groups with some rows only; `rows` is by row number."""
        kept = rows[self.order]
        ends = np.concatenate([[0], np.cumsum(kept)])
        return Segments(self.order[kept], ends[self.offsets])

    def known(self, values: pa.Array) -> Segments:
        """The same groups without the rows whose value is null."""
        if not values.null_count:
            return self
        return self.keep(values.is_valid().to_numpy(zero_copy_only=False))

    def reduce(self, function: np.ufunc, values: npt.NDArray[Any], empty: Any) -> npt.NDArray[Any]:
        """Each group's values folded into one; `values` are in order, and no values are `empty`."""
        assert len(values) == len(self.order), f"{len(values)} values for {len(self.order)} rows"
        some = self.lengths > 0
        found = np.full(self.groups, empty, values.dtype)
        if len(values):
            # Empty groups take no rows, so the starts of the others still bound each other.
            found[some] = function.reduceat(values, self.offsets[:-1][some])
        return found


def pairs(found: Bools) -> Segments:
    """The segments of `old` followed by `new`, of n rows each: row i of both, or of `new` alone where not `found`."""
    rows = len(found)
    offsets = np.concatenate([[0], np.cumsum(found + 1)]).astype(np.int64)
    order = np.empty(offsets[-1], np.int64)
    order[offsets[1:] - 1] = np.arange(rows, 2 * rows)
    order[offsets[:-1][found]] = np.flatnonzero(found)
    return Segments(order, offsets)


def take_rows(values: pa.Array, segments: Segments) -> pa.Array:
    """The values in the order of the segments."""
    return values.take(pa.array(segments.order))


def flattened(lists: pa.ListArray, segments: Segments) -> tuple[pa.Array, Segments]:
    """Lists as their items, and the segments of those; a null is an empty list."""
    taken = take_rows(lists, segments)
    lengths = pc.fill_null(pc.list_value_length(taken), 0).to_numpy(zero_copy_only=False)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)[segments.offsets]
    items = taken.flatten()
    return items, Segments(np.arange(len(items)), offsets)


def list_array(items: pa.Array, offsets: Ints, type: pa.DataType) -> pa.ListArray:
    """One list per group from items that lie group by group."""
    assert offsets[-1] == len(items), f"{len(items)} items for offsets up to {offsets[-1]}"
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), items.cast(type.value_type), type=type)
