"""Groups that are made without a hash: of few rows, and of rows that are only counted by small numbers.

1. Where load is low batches are small, and what Arrow's hash aggregation needs to begin is more than the whole work. Few rows of
   plain kinds are grouped by a Python dict; often no key stands twice, and every row is its own group.
2. Where rows are only counted, by keys that are numbers in a small range (or in a dictionary), numpy counts them several times
   faster.

Both give what `grouping` gives, but for the order of groups, which nobody is promised.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.expr.encoded import numbers_of
from penstock.expr.folds import UFUNCS, Slot, as_slot, fold
from penstock.expr.ordering import decoded

__all__ = ["Keys", "apart", "quickly"]

Keys = list[tuple[pa.Field, pa.Array]]

FEW_ROWS = 512
_INT64 = pa.int64()
SMALL_RANGE = 1 << 16


def quickly(keys: Keys, folds: list[tuple[Slot, Any]], rows: int) -> pa.RecordBatch | None:
    """Rows grouped by `keys`, each slot's values folded within each group; None if that needs a hash."""
    if not keys or not rows:
        return None
    counted = _counted(keys, folds, rows)
    return _few(keys, folds, rows) if counted is None and rows <= FEW_ROWS else counted


def apart(keys: Keys, folds: list[tuple[Slot, Any]], rows: int) -> pa.RecordBatch:
    """Each row as a group of its own."""
    arrays = [decoded(column) for _, column in keys]
    for slot, values in folds:
        if slot.fold == "count" and (values is None or not values.null_count):
            arrays.append(as_slot(_ones(rows), slot))
            continue
        if slot.fold != "count" and values.type == slot.type == _INT64 and (slot.field.nullable or not values.null_count):
            # What a number is folded into by itself is that number.
            arrays.append(values)
            continue
        prepared, function, _, read = fold(slot, values)
        if prepared.null_count and not slot.field.nullable:  # of nothing, a count is 0
            prepared = pc.fill_null(prepared, 0)
        if function == "sum" and pa.types.is_floating(prepared.type):  # a sum begins with 0.0, and so is never -0.0
            prepared = pc.add(prepared, 0.0)
        arrays.append(read(prepared, slot))
    return _batch(keys, folds, arrays)


def _few(keys: Keys, folds: list[tuple[Slot, Any]], rows: int) -> pa.RecordBatch | None:
    """Few rows, grouped. None if keys or values are not of the kinds that are told apart and folded easily."""
    columns = [decoded(column) for _, column in keys]
    if not all(pa.types.is_integer(column.type) or pa.types.is_string(column.type) for column in columns):
        return None
    lists = [column.to_pylist() for column in columns]
    numbers: dict[Any, int] = {}
    found = [numbers.setdefault(key, len(numbers)) for key in (zip(*lists) if len(lists) > 1 else lists[0])]
    if len(numbers) == rows:
        return apart(keys, folds, rows)
    order = np.argsort(found, kind="stable")
    starts = np.searchsorted(np.array(found)[order], np.arange(len(numbers)))
    arrays = [column.take(pa.array(order[starts])) for column in columns]
    counts: pa.Array | None = None
    for slot, values in folds:
        if slot.fold == "count" and (values is None or not values.null_count):
            counts = pa.array(np.diff(starts, append=rows)) if counts is None else counts
            arrays.append(as_slot(counts, slot))
            continue
        prepared, function, _, read = fold(slot, values)
        if prepared.type != pa.int64() or prepared.null_count:
            return None
        arrays.append(read(pa.array(UFUNCS[function].reduceat(prepared.to_numpy()[order], starts)), slot))
    return _batch(keys, folds, arrays)


def _batch(keys: Keys, folds: list[tuple[Slot, Any]], arrays: list[pa.Array]) -> pa.RecordBatch:
    """Columns of keys, then of slots."""
    fields = [field if field.type == array.type else field.with_type(array.type) for (field, _), array in zip(keys, arrays)]
    fields += [slot.field for slot, _ in folds]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def _ones(rows: int) -> pa.Array:
    return _many_ones(rows.bit_length()).slice(0, rows)


@functools.cache
def _many_ones(bits: int) -> pa.Array:
    """As many as fit so many bits: kept for few sizes, not for each that a batch can have."""
    return pa.array(np.ones(1 << bits, np.int64))


def _counted(keys: Keys, folds: list[tuple[Slot, Any]], rows: int) -> pa.RecordBatch | None:
    """Rows that are only counted, by keys that are numbers in a small range. None if they are not."""
    if any(slot.fold != "count" or (values is not None and values.null_count) for slot, values in folds):
        return None
    ranges = []
    size = 1
    for _, column in keys:
        found = _range(column)
        if found is None or (size := size * found.span) > SMALL_RANGE:
            return None
        ranges.append(found)
    codes = np.zeros(rows, np.int64)
    for each in ranges:
        if each.span > 1:  # as it is not for the windows of most batches
            codes = codes * each.span + (each.numbers.astype(np.int64, copy=False) - each.low)
    counts = np.bincount(codes)
    there = np.flatnonzero(counts)
    arrays: list[pa.Array] = []
    left = there
    for each in reversed(ranges):
        arrays.insert(0, each.value(left % each.span))
        left = left // each.span
    counted = pa.array(counts[there])
    return _batch(keys, folds, [*arrays, *(as_slot(counted, slot) for slot, _ in folds)])


@dataclass(frozen=True, slots=True)
class _Range:
    """A key column as numbers from `low` on, `span` of them, and what each stands for."""

    numbers: np.ndarray[Any, Any]
    low: int
    span: int
    value: Callable[[np.ndarray[Any, Any]], pa.Array]


def _range(column: pa.Array) -> _Range | None:
    if pa.types.is_dictionary(column.type):
        found = None if column.null_count else numbers_of(column)
        return None if found is None else _Range(found[0].to_numpy(), 0, len(found[1]), lambda at: found[1].take(pa.array(at)))
    if not pa.types.is_signed_integer(column.type) or column.null_count:
        return None
    numbers = column.to_numpy()
    low, high = int(numbers.min()), int(numbers.max())
    return _Range(numbers, low, high - low + 1, lambda at: pa.array(at + low).cast(column.type))
