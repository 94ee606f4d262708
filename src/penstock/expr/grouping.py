"""Grouping: rows of equal keys become one row, by Arrow's hash aggregation.

Groups come out in the order in which their first rows came, though nobody is promised that. Whoever needs the rows of
each group, and not only what they fold into, asks for `Segments`.
What can be grouped without a hash is, see `quickgroups`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.expr.encoded import numbers_of
from penstock.expr.folds import Slot, as_slot, fold
from penstock.expr.ordering import groupable
from penstock.expr.quickgroups import Keys, quickly
from penstock.expr.segments import Segments

__all__ = ["Keys", "group", "group_and_list", "keys_of", "one_array", "one_batch"]


def keys_of(batch: pa.RecordBatch, names: Sequence[str]) -> Keys:
    """The key columns and their fields."""
    return [(batch.schema.field(name), batch.column(name)) for name in names]


def group(keys: Keys, folds: list[tuple[Slot, Any]], rows: int) -> pa.RecordBatch:
    """Group rows by `keys` and fold each slot's values within each group."""
    quick = quickly(keys, folds, rows)
    return quick if quick is not None else _group(keys, folds, rows, listed=False)[0]


def group_and_list(keys: Keys, folds: list[tuple[Slot, Any]], rows: int) -> tuple[pa.RecordBatch, Segments]:
    """`group`, and the rows of each group."""
    grouped, lists = _group(keys, folds, rows, listed=True)
    assert lists is not None, "rows were asked for"
    return grouped, Segments.of_lists(lists)


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
