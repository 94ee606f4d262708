"""Slots that keep values: all of them, the different ones, or the greatest."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.expr.listed import Listed, identity_type
from penstock.expr.ordering import decoded, ordinals
from penstock.expr.segments import Ints, Segments, flattened, list_array, take_rows
from penstock.expr.slots import Rows, Slots, distinct_places, one_zero

__all__ = ["Collected", "Distinct", "TopK"]


class Collected(Listed):
    """All values in the order they came, nulls left out."""

    def __init__(self, name: str, type: pa.DataType) -> None:
        self.item, self._type = type, pa.list_(type)
        self.fields = [pa.field(f"{name}.list", self._type)]
        self.keeps = "all values, as they came"

    def partial(self, rows: Rows) -> list[pa.Array]:
        values = decoded(rows.inputs[0])
        segments = rows.segments.known(values)
        return [list_array(take_rows(values, segments), segments.offsets, self._type)]

    def merge(self, columns: list[pa.Array], segments: Segments) -> list[pa.Array]:
        items, inner = flattened(columns[0], segments)
        return [list_array(items, inner.offsets, self._type)]

    def finish(self, columns: list[pa.Array]) -> pa.Array:
        return columns[0]


class TopK(Slots):
    """The k greatest values, in descending order, nulls left out. Its list has k values at most, so it stays in the key's row."""

    def __init__(self, name: str, type: pa.DataType, k: int) -> None:
        self._type, self._k = pa.list_(type), k
        self.fields = [pa.field(f"{name}.list", self._type)]
        self.keeps = "the greatest value" if k == 1 else f"the {k} greatest values"

    def partial(self, rows: Rows) -> list[pa.Array]:
        values = decoded(rows.inputs[0])
        segments = rows.segments.known(values)
        return [self._top(take_rows(values, segments), segments)]

    def merge(self, columns: list[pa.Array], segments: Segments) -> list[pa.Array]:
        return [self._top(*flattened(columns[0], segments))]

    def finish(self, columns: list[pa.Array]) -> pa.Array:
        return columns[0]

    def _top(self, items: pa.Array, segments: Segments) -> pa.ListArray:
        """The greatest of each group; `items` are in order."""
        keys = ~ordinals(items)  # "not" turns the order around, and no integer is too large for it
        places = self._candidates(keys, segments)
        groups = segments.ids[places]
        order = np.lexsort((keys[places], groups))
        offsets = np.searchsorted(groups, np.arange(segments.groups + 1))
        rank = np.arange(len(order)) - offsets[groups]
        kept = order[rank < self._k]
        ends = np.concatenate([[0], np.cumsum(np.minimum(np.diff(offsets), self._k))])
        return list_array(items.take(pa.array(places[kept])), ends, self._type)

    def _candidates(self, keys: Ints, segments: Segments) -> Ints:
        """Places without most of those that cannot be among the greatest: large groups are cut before they are sorted."""
        large = np.flatnonzero(segments.lengths > 4 * self._k + 64)
        if not len(large):
            return np.arange(len(keys))
        bounds = np.full(segments.groups, np.iinfo(np.int64).max)
        for group in large.tolist():
            part = keys[segments.offsets[group] : segments.offsets[group + 1]]
            bounds[group] = np.partition(part, self._k - 1)[self._k - 1]
        return np.flatnonzero(keys <= segments.spread(bounds))


class Distinct(Listed):
    """The different values, in the order they first came; the result is how many there are."""

    sized = True

    def __init__(self, name: str, type: pa.DataType) -> None:
        self.item, self._type = type, pa.list_(type)
        self.identity = (pa.field("__value", identity_type(type)),)
        self.fields = [pa.field(f"{name}.set", self._type)]

    def partial(self, rows: Rows) -> list[pa.Array]:
        values = one_zero(decoded(rows.inputs[0]))
        segments = rows.segments.known(values)
        return [self._distinct(take_rows(values, segments), segments)]

    def merge(self, columns: list[pa.Array], segments: Segments) -> list[pa.Array]:
        return [self._distinct(*flattened(columns[0], segments))]

    def finish(self, columns: list[pa.Array]) -> pa.Array:
        return pc.fill_null(pc.list_value_length(columns[0]), 0).cast(pa.int64())

    def _distinct(self, items: pa.Array, segments: Segments) -> pa.ListArray:
        places = distinct_places(items, segments)
        offsets = np.searchsorted(segments.ids[places], np.arange(segments.groups + 1))
        return list_array(items.take(pa.array(places)), offsets, self._type)
