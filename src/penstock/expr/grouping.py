"""Grouping: rows of equal keys become one row, by Arrow's hash aggregation.

Groups come out in the order in which their first rows came, though nobody is promised that. Whoever needs the rows of
each group, and not only what they fold into, asks for `Segments`.

Where load is low batches are small. What Arrow needs to begin is then more than the whole work, so few rows of plain kinds are
grouped here: often no key stands twice in them, and every row is its own group. And where rows are only counted, by keys that are
numbers in a small range (or in a dictionary), numpy counts them several times faster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.expr.encoded import numbers_of
from penstock.expr.folds import Slot, as_slot, fold
from penstock.expr.ordering import decoded, groupable
from penstock.expr.segments import Segments

__all__ = ["Keys", "group", "group_and_list", "keys_of", "one_array", "one_batch"]

Keys = list[tuple[pa.Field, pa.Array]]

FEW_ROWS = 512
SMALL_RANGE = 1 << 16
_FOLDS: dict[str, np.ufunc] = {"sum": np.add, "min": np.minimum, "max": np.maximum}


def keys_of(batch: pa.RecordBatch, names: Sequence[str]) -> Keys:
    """The key columns and their fields."""
    return [(batch.schema.field(name), batch.column(name)) for name in names]


def group(keys: Keys, folds: list[tuple[Slot, Any]], rows: int) -> pa.RecordBatch:
    """Group rows by `keys` and fold each slot's values within each group."""
    short = None
    if keys and rows:
        short = _counted(keys, folds, rows)
        if short is None and rows <= FEW_ROWS:
            short = _few(keys, folds, rows)
    return short if short is not None else _group(keys, folds, rows, listed=False)[0]


def group_and_list(keys: Keys, folds: list[tuple[Slot, Any]], rows: int) -> tuple[pa.RecordBatch, Segments]:
    """`group`, and the rows of each group."""
    grouped, lists = _group(keys, folds, rows, listed=True)
    assert lists is not None, "rows were asked for"
    return grouped, Segments.of_lists(lists)


def _few(keys: Keys, folds: list[tuple[Slot, Any]], rows: int) -> pa.RecordBatch | None:
    """What `_group` makes of few rows. None if keys or values are not of the kinds that are told apart and folded easily."""
    columns = [decoded(column) for _, column in keys]
    if not all(pa.types.is_integer(column.type) or pa.types.is_string(column.type) for column in columns):
        return None
    lists = [column.to_pylist() for column in columns]
    numbers: dict[Any, int] = {}
    found = [numbers.setdefault(key, len(numbers)) for key in (zip(*lists) if len(lists) > 1 else lists[0])]
    alone = len(numbers) == rows
    order = np.argsort(np.array(found), kind="stable")
    starts = np.arange(rows) if alone else np.searchsorted(np.array(found)[order], np.arange(len(numbers)))
    arrays = columns if alone else [column.take(pa.array(order[starts])) for column in columns]
    counts: pa.Array | None = None
    for slot, values in folds:
        if slot.fold == "count" and (values is None or not values.null_count):
            counts = pa.array(np.diff(starts, append=rows)) if counts is None else counts
            arrays.append(as_slot(counts, slot))
            continue
        prepared, function, _, read = fold(slot, values)
        if alone:
            if prepared.null_count and not slot.field.nullable:  # of nothing, a count is 0
                prepared = pc.fill_null(prepared, 0)
            if function == "sum" and pa.types.is_floating(prepared.type):  # a sum begins with 0.0, and so is never -0.0
                prepared = pc.add(prepared, 0.0)
        else:
            if prepared.type != pa.int64() or prepared.null_count:
                return None
            prepared = pa.array(_FOLDS[function].reduceat(prepared.to_numpy()[order], starts))
        arrays.append(read(prepared, slot))
    fields = [field.with_type(array.type) for (field, _), array in zip(keys, arrays)] + [slot.field for slot, _ in folds]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def _counted(keys: Keys, folds: list[tuple[Slot, Any]], rows: int) -> pa.RecordBatch | None:
    """What `_group` makes of rows that are only counted, by keys that are numbers in a small range. None if they are not."""
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
            codes = codes * each.span + (each.numbers - each.low)
    counts = np.bincount(codes)
    there = np.flatnonzero(counts)
    arrays: list[pa.Array] = []
    left = there
    for each in reversed(ranges):
        arrays.insert(0, each.value(left % each.span))
        left = left // each.span
    counted = pa.array(counts[there])
    fields = [field.with_type(array.type) for (field, _), array in zip(keys, arrays)] + [slot.field for slot, _ in folds]
    return pa.RecordBatch.from_arrays([*arrays, *(as_slot(counted, slot) for slot, _ in folds)], schema=pa.schema(fields))


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


def _group(keys: Keys, folds: list[tuple[Slot, Any]], rows: int, *, listed: bool) -> tuple[pa.RecordBatch, pa.ListArray | None]:
    key_columns = [f"key{index}" for index in range(len(keys))] or ["all"]
    encoded = [numbers_of(column) if pa.types.is_dictionary(column.type) else None for _, column in keys]
    columns = [groupable(column) if each is None else each[0] for (_, column), each in zip(keys, encoded)]
    columns = columns or [pa.nulls(rows, pa.int8())]
    names = list(key_columns)
    requests: dict[str, tuple[Any, ...]] = {}
    readers: list[Callable[[pa.Table], pa.Array]] = []
    for index, (slot, values) in enumerate(folds):
        if slot.fold == "count" and (values is None or not values.null_count):
            requests["all"] = ([], "count_all")  # once, however many slots want it
            readers.append(_reader("count_all", slot, as_slot))
            continue
        prepared, function, options, read = fold(slot, values)
        names.append(f"in{index}")
        columns.append(prepared)
        requests[f"in{index}"] = (f"in{index}", function, options)
        readers.append(_reader(f"in{index}_{function}", slot, read))
    as_they_are = all(each is not None or ours is theirs for ours, (_, theirs), each in zip(columns, keys, encoded))
    if listed or not as_they_are:
        names.append("row")
        columns.append(pa.array(np.arange(rows)))
        requests |= {"list": ("row", "list")} if listed else {}
        requests |= {} if as_they_are else {"row": ("row", "min")}
    table = pa.Table.from_arrays(columns, names=names)
    grouped = table.group_by(key_columns, use_threads=False).aggregate(list(requests.values()))
    if as_they_are:
        found = [one_array(grouped.column(name)) for name in key_columns[: len(keys)]]
        arrays = [key if each is None else each[1].take(key) for key, each in zip(found, encoded)]
    else:
        first = one_array(grouped.column("row_min"))
        arrays = [column.take(first) for _, column in keys]
    arrays += [read(grouped) for read in readers]
    fields = [field.with_type(array.type) for (field, _), array in zip(keys, arrays)] + [slot.field for slot, _ in folds]
    lists = one_array(grouped.column("row_list")) if listed else None
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields)), lists


def _reader(column: str, slot: Slot, read: Callable[[pa.Array, Slot], pa.Array]) -> Callable[[pa.Table], pa.Array]:
    return lambda grouped: read(one_array(grouped.column(column)), slot)


def one_batch(rows: pa.Table | pa.RecordBatch | Iterable[pa.RecordBatch]) -> pa.RecordBatch:
    """Rows from wherever as one batch."""
    if isinstance(rows, pa.RecordBatch):
        return rows
    if isinstance(rows, pa.Table):
        return pa.RecordBatch.from_arrays([one_array(column) for column in rows.columns], schema=rows.schema)
    batches = list(rows)
    fields = [_common_field(field, batches) for field in batches[0].schema]
    arrays = [pa.concat_arrays([batch.column(field.name) for batch in batches]) for field in fields]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def one_array(column: pa.ChunkedArray) -> pa.Array:
    """The chunks of a column as one array."""
    if column.num_chunks == 1:
        return column.chunk(0)
    found = column.combine_chunks() if column.num_chunks else pa.nulls(0, column.type)
    return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found


def _common_field(field: pa.Field, batches: Sequence[pa.RecordBatch]) -> pa.Field:
    """Rows from state and rows from a batch may differ in what may be null, and in the order of columns."""
    return field.with_nullable(any(batch.schema.field(field.name).nullable for batch in batches))
