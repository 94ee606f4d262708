"""A multiset per key: each different value and how often it is there. It is what rows that can be taken back need.

After a retraction the second least value is the minimum, so all values must be kept. One column holds
`list<struct<value, time, count>>` (`time` for first and last only), sorted by time and value. Counts are added when
lists merge, entries whose count is 0 disappear, and the result is computed from what is left: exactly what the rows
that remain would give.

1. A count in a *partial* row may be negative: the row it takes back may be in the state. In the state it may not;
   `negative` finds such keys and `clamp` drops the entries.
2. Order of arrival is not kept (rows of one change may come by different ways). Where it would matter, the order of
   values decides: `collect` gives them ascending, and of equal times `first` takes the least value, `last` the greatest.
   Null is below all values.
3. Where a key has many values they stand apart from its row (`listed`), and a touch costs what it touches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.expr.listed import Apart, Listed, identity_of, identity_type
from penstock.expr.ordering import decoded, ordinals
from penstock.expr.promote import TIMESTAMP
from penstock.expr.segments import Bools, Ints, Segments, flattened, list_array, take_rows
from penstock.expr.slots import Rows

__all__ = ["Entries", "Multiset"]


@dataclass(frozen=True)
class Entries:
    """The entries of each key: key g has those from `offsets[g]` to `offsets[g + 1]`, sorted."""

    values: pa.Array
    counts: Ints
    offsets: Ints

    @property
    def segments(self) -> Segments:
        return Segments(np.arange(len(self.counts)), self.offsets)


class Multiset(Listed):
    """The values of each key with their counts, and a function from those to the result."""

    counted = True

    def __init__(
        self,
        name: str,
        type: pa.DataType,
        result: Callable[[Entries], pa.Array],
        *,
        timed: bool = False,
        nulls: bool = False,
        sized: bool = False,
        keeps: str = "but nulls",
        prepare: Callable[[pa.Array], pa.Array] = lambda values: values,
    ) -> None:
        times = [pa.field("time", TIMESTAMP)] if timed else []
        self._item = pa.struct([pa.field("value", type), *times, pa.field("count", pa.int64(), nullable=False)])
        self._type = pa.list_(self._item)
        self.fields = [pa.field(f"{name}.values", self._type)]
        self._value, self._result, self._prepare = type, result, prepare
        self._timed, self._nulls, self.sized = timed, nulls, sized
        self.keeps = f"all values, {keeps}"
        self.item = pa.struct([pa.field("value", type), *times])
        moment = [pa.field("__moment", pa.int64())] if timed else []
        self.identity = (*moment, pa.field("__value", identity_type(type)))

    def partial(self, rows: Rows) -> list[pa.Array]:
        values = self._prepare(decoded(rows.inputs[0]).cast(self._value, safe=False))
        segments = rows.segments if self._nulls else rows.segments.known(values)
        signs = np.ones(len(values), np.int64) if rows.signs is None else rows.signs
        times = None
        if self._timed:
            assert rows.times is not None, "the schema has event time, and the batch has none"
            segments = segments.known(rows.times)
            times = take_rows(rows.times, segments).cast(TIMESTAMP)
        return [self._folded(take_rows(values, segments), times, signs[segments.order], segments)]

    def merge(self, columns: list[pa.Array], segments: Segments) -> list[pa.Array]:
        items, inner = flattened(columns[0], segments)
        times = pc.struct_field(items, "time") if self._timed else None
        counts = pc.struct_field(items, "count").to_numpy()
        return [self._folded(pc.struct_field(items, "value"), times, counts, inner)]

    def finish(self, columns: list[pa.Array]) -> pa.Array:
        items, segments = self._items(columns)
        counts = pc.struct_field(items, "count").to_numpy()
        segments = segments.keep(counts > 0)
        values = take_rows(pc.struct_field(items, "value"), segments)
        return self._result(Entries(values, counts[segments.order], segments.offsets))

    def taken_apart(self, lists: pa.ListArray) -> Apart:
        apart = super().taken_apart(lists)
        parts = [pc.struct_field(apart.items, field.name) for field in self.item]
        items = pa.StructArray.from_arrays(parts, fields=list(self.item))
        return Apart(items, apart.owners, pc.struct_field(apart.items, "count").to_numpy())

    def identities(self, items: pa.Array) -> list[pa.Array]:
        moment = [pc.struct_field(items, "time").cast(pa.int64())] if self._timed else []
        return [*moment, identity_of(pc.struct_field(items, "value"))]

    def put_together(self, items: pa.Array, counts: Ints | None, offsets: Ints) -> pa.ListArray:
        assert counts is not None, "a multiset has counts"
        times = pc.struct_field(items, "time") if self._timed else None
        return self._folded(pc.struct_field(items, "value"), times, counts, Segments(np.arange(len(items)), offsets))

    def negative(self, columns: list[pa.Array]) -> Bools:
        items, segments = self._items(columns)
        below = pc.struct_field(items, "count").to_numpy() < 0
        return segments.reduce(np.logical_or, below, False)

    def clamp(self, columns: list[pa.Array]) -> list[pa.Array]:
        items, segments = self._items(columns)
        segments = segments.keep(pc.struct_field(items, "count").to_numpy() > 0)
        lists = list_array(take_rows(items, segments), segments.offsets, self._type)
        kept = np.arange(len(lists))
        return [lists.take(pa.array(kept, mask=columns[0].is_null().to_numpy(zero_copy_only=False)))]  # null is what stands apart

    def _items(self, columns: list[pa.Array]) -> tuple[pa.Array, Segments]:
        rows = len(columns[0])
        return flattened(columns[0], Segments(np.arange(rows), np.arange(rows + 1)))

    def _folded(self, values: pa.Array, times: pa.Array | None, counts: Ints, segments: Segments) -> pa.ListArray:
        """One sorted list per group, equal entries added up; everything is in the order of `segments`."""
        keys = [segments.ids, ordinals(values)]
        if values.null_count:
            valid = values.is_valid().to_numpy(zero_copy_only=False)
            keys[1:] = [valid.astype(np.int8), np.where(valid, keys[1], 0)]  # all nulls are one value
        if times is not None:
            keys.insert(1, times.cast(pa.int64()).to_numpy(zero_copy_only=False))
        names = [f"key{index}" for index in range(len(keys))]
        table = pa.table([*keys, counts, np.arange(len(counts))], names=[*names, "count", "place"])
        found = table.group_by(names, use_threads=False).aggregate([("count", "sum"), ("place", "min")])
        total, places = found.column("count_sum").to_numpy(), found.column("place_min").to_numpy()
        left = total != 0
        total, places = total[left], places[left]
        order = np.lexsort([key[places] for key in reversed(keys)])
        total, places = total[order], pa.array(places[order])
        offsets = np.searchsorted(segments.ids[places.to_numpy()], np.arange(segments.groups + 1))
        columns = [values.take(places), *([] if times is None else [times.take(places)]), pa.array(total)]
        items = pa.StructArray.from_arrays(columns, fields=list(self._item))
        return list_array(items, offsets, self._type)
