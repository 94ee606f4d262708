"""Accumulators: aggregates in pieces that can be computed apart and put together.

An aggregate over a stream is never computed at once. Rows of a batch become **partial** rows, one per key,
whose columns are accumulators; partial rows of equal keys **merge** into one, any number of times, in any
grouping; and the result is read off the last one (**finish**). A mean, for example, is a sum and a count
until then.

1. Merging is associative and commutative, so results do not depend on how rows were batched (floats only up
   to rounding).
2. An accumulator column is called after its result: "total.sum", "total.n".
3. The order of output rows is not promised.
4. Integers are summed exactly: if a cheap bound shows that 64 bits suffice they are used, otherwise decimals
   are. A sum that does not fit its type raises `SumOverflow`. It is the sum of a batch, or of what was
   merged, that must fit, even if a later row would bring it back.
5. For min and max, NaN is the greatest number (as in Spark) and -0.0 is below 0.0, whatever order they come
   in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.expr.aggregates import Aggregate, SumOverflow
from penstock.expr.evaluate import Evaluated, compile
from penstock.expr.nodes import Case, Literal, Node
from penstock.expr.rowwise import either

__all__ = ["ROWS", "Accumulators"]

ROWS = "__rows"
"""The column with the number of input rows that a partial row stands for."""

_INT_SUM = pa.decimal128(38, 0)
_BOUND = 2**63
_NULL_IF_EMPTY = pc.ScalarAggregateOptions(min_count=1)


Keys = list[tuple[pa.Field, pa.Array]]


@dataclass(frozen=True)
class _Slot:
    """One accumulator column: how rows are folded into it ("count", "sum", "min", "max") and its type."""

    name: str
    fold: str
    type: pa.DataType


@dataclass(frozen=True)
class _Step:
    """One aggregate, ready to run: its result, what evaluates its input, and its slots."""

    name: str
    aggregate: Aggregate
    result: pa.DataType
    evaluate: Callable[[pa.RecordBatch], Evaluated] | None
    slots: tuple[_Slot, ...]


class Accumulators:
    """The accumulators of several aggregates over rows of one schema.

    >>> from penstock.expr import col
    >>> batch = pa.record_batch({"k": ["a", "b", "a"], "n": [1, 2, 3]})
    >>> acc = Accumulators([("total", col("n").sum())], batch.schema)
    >>> partial, errors = acc.partial(batch, ["k"])
    >>> acc.finish(partial)[0].to_pylist()
    [4, 2]
    """

    def __init__(self, aggregates: Sequence[tuple[str, Aggregate]], schema: pa.Schema) -> None:
        self.steps = [_step(name, aggregate, schema) for name, aggregate in aggregates]
        self.results: list[pa.Field] = [aggregate.field(schema, name) for name, aggregate in aggregates]

    @property
    def fields(self) -> list[pa.Field]:
        """All accumulator columns, in order. Counts are never null."""
        return [pa.field(slot.name, slot.type, slot.fold != "count") for step in self.steps for slot in step.slots]

    def partial(self, batch: pa.RecordBatch, key_names: Sequence[str]) -> tuple[pa.RecordBatch, np.ndarray | None]:
        """One row per distinct key: keys, accumulators and `__rows`; and which rows were left out as bad.

        A bad row counts nowhere: in no aggregate and not in `__rows`. The mask is None where no row is bad.
        """
        inputs = [step.evaluate(batch) if step.evaluate is not None else None for step in self.steps]
        errors: pa.Array | None = None
        for found in inputs:
            errors = either(errors, found.errors if found is not None else None)
        keys = _keys(batch, key_names)
        folds: list[tuple[_Slot, Any]] = []
        for step, found in zip(self.steps, inputs, strict=True):
            folds += [(slot, found.values if found is not None else None) for slot in step.slots]
        folds.append((_Slot(ROWS, "count", pa.int64()), None))
        if errors is None:
            return _group(keys, folds, batch.num_rows), None
        good = pc.invert(errors)
        keys = [(field, column.filter(good)) for field, column in keys]
        folds = [(slot, None if values is None else values.filter(good)) for slot, values in folds]
        return _group(keys, folds, pc.sum(good).as_py() or 0), np.asarray(errors)

    def merge(self, rows: pa.Table | pa.RecordBatch | Iterable[pa.RecordBatch], key_names: Sequence[str]) -> pa.RecordBatch:
        """One row per distinct key from rows of keys and accumulators, and of `__rows` if it is there."""
        batch = _one_batch(rows)
        slots = [slot for step in self.steps for slot in step.slots]
        if ROWS in batch.schema.names:
            slots.append(_Slot(ROWS, "count", pa.int64()))
        keys = _keys(batch, key_names)
        # Counts were counted; what is left is to add them.
        folds = [(_Slot(slot.name, _MERGE[slot.fold], slot.type), batch.column(slot.name)) for slot in slots]
        return _group(keys, folds, batch.num_rows)

    def combine(self, old: pa.RecordBatch, found: np.ndarray, new: pa.RecordBatch) -> pa.RecordBatch:
        """Row i of `old` and row i of `new` become one; where `found` is False there is no old row.

        What `merge` does for rows whose keys are known to be equal pairwise: no grouping, so it costs little for few rows.
        """
        slots = [slot for step in self.steps for slot in step.slots]
        arrays = [_combine(slot, old.column(slot.name), new.column(slot.name), found) for slot in slots]
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(self.fields))

    def finish(self, rows: pa.RecordBatch) -> list[pa.Array]:
        """The result columns of accumulator rows, in the order of the aggregates."""
        return [_finish(step, [rows.column(slot.name) for slot in step.slots]) for step in self.steps]


_MERGE = {"count": "add", "add": "add", "sum": "sum", "min": "min", "max": "max"}

_PAIRWISE: dict[str, Callable[[pa.Array, pa.Array], pa.Array]] = {
    "add": pc.add_checked,
    "sum": pc.add_checked,
    "min": pc.min_element_wise,
    "max": pc.max_element_wise,
}


def _combine(slot: _Slot, left: pa.Array, right: pa.Array, found: np.ndarray) -> pa.Array:
    """Two columns of one slot as one, row by row; null stands for nothing yet."""
    fold = _MERGE[slot.fold]
    if not _is_plain(slot.type, fold):
        # The general way: group by row number.
        numbers = pa.array(np.concatenate([np.flatnonzero(found), np.arange(len(right))]))
        values = pa.concat_arrays([left.filter(pa.array(found)), right])
        folds = [(_Slot(slot.name, fold, slot.type), values)]
        grouped = _group([(pa.field("row", pa.int64()), numbers)], folds, len(numbers))
        return grouped.column(1).take(pc.sort_indices(grouped.column(0)))
    try:
        both = _PAIRWISE[fold](left, right)
    except pa.ArrowInvalid as error:
        raise SumOverflow(f"{slot.name}: the sum does not fit in {slot.type}") from error
    return pc.coalesce(both, right, left) if both.null_count else both


def _is_plain(kind: pa.DataType, fold: str) -> bool:
    """Whether Arrow's own arithmetic on two columns of this type means what ours does."""
    # It is not so for decimals, which grow when they are added, and for the order of NaN and -0.0.
    return pa.types.is_integer(kind) or (pa.types.is_floating(kind) and fold == "sum")


def _step(name: str, aggregate: Aggregate, schema: pa.Schema) -> _Step:
    result = aggregate.type(schema)
    node = _filtered(aggregate)
    return _Step(
        name,
        aggregate,
        result,
        None if node is None else compile(node, schema),
        _slots(name, aggregate, schema),
    )


def _slots(name: str, aggregate: Aggregate, schema: pa.Schema) -> tuple[_Slot, ...]:
    match aggregate.kind:
        case "count":
            return (_Slot(f"{name}.n", "count", pa.int64()),)
        case "mean":
            # A sum of integers is kept in decimals: a mean exists even where a 64-bit sum does not.
            found = aggregate.input_type(schema)
            scale = found.scale if pa.types.is_decimal(found) else 0
            total = pa.float64() if pa.types.is_floating(found) else pa.decimal128(38, scale)
            return (_Slot(f"{name}.sum", "sum", total), _Slot(f"{name}.n", "count", pa.int64()))
        case _:
            return (_Slot(f"{name}.{aggregate.kind}", aggregate.kind, aggregate.type(schema)),)


def _filtered(aggregate: Aggregate) -> Node | None:
    """The input as an expression that is null in rows that do not count."""
    if aggregate.where is None:
        return aggregate.input
    value = aggregate.input if aggregate.input is not None else Literal(True, pa.bool_())
    return Case(((aggregate.where, value),))


def _one_batch(rows: pa.Table | pa.RecordBatch | Iterable[pa.RecordBatch]) -> pa.RecordBatch:
    if isinstance(rows, pa.RecordBatch):
        return rows
    if isinstance(rows, pa.Table):
        return pa.RecordBatch.from_arrays([_one_array(column) for column in rows.columns], schema=rows.schema)
    batches = list(rows)
    fields = [_common_field(field, batches) for field in batches[0].schema]
    arrays = [pa.concat_arrays([batch.column(field.name) for batch in batches]) for field in fields]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def _common_field(field: pa.Field, batches: Sequence[pa.RecordBatch]) -> pa.Field:
    """Rows from state and rows from a batch may differ in what may be null, and in the order of columns."""
    return field.with_nullable(any(batch.schema.field(field.name).nullable for batch in batches))


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    if column.num_chunks == 1:
        return column.chunk(0)
    found = column.combine_chunks() if column.num_chunks else pa.nulls(0, column.type)
    return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found


def _keys(batch: pa.RecordBatch, names: Sequence[str]) -> Keys:
    return [(batch.schema.field(name), batch.column(name)) for name in names]


def _group(keys: Keys, folds: list[tuple[_Slot, Any]], rows: int) -> pa.RecordBatch:
    """Group rows by `keys` and fold each slot's values within each group."""
    key_columns = [f"key{index}" for index in range(len(keys))] or ["all"]
    columns = [_groupable(column) for _, column in keys] or [pa.nulls(rows, pa.int8())]
    names = list(key_columns)
    requests: dict[str, tuple[Any, ...]] = {}
    readers: list[Callable[[pa.Table], pa.Array]] = []
    for index, (slot, values) in enumerate(folds):
        if slot.fold == "count" and (values is None or not values.null_count):
            requests["all"] = ([], "count_all")  # once, however many slots want it
            readers.append(_reader("count_all", slot, _as_slot))
            continue
        prepared, function, options, read = _fold(slot, values)
        names.append(f"in{index}")
        columns.append(prepared)
        requests[f"in{index}"] = (f"in{index}", function, options)
        readers.append(_reader(f"in{index}_{function}", slot, read))
    as_they_are = all(ours is theirs for ours, (_, theirs) in zip(columns, keys))
    if not as_they_are:
        names.append("row")
        columns.append(pa.array(np.arange(rows)))
        requests["row"] = ("row", "min")
    table = pa.Table.from_arrays(columns, names=names)
    grouped = table.group_by(key_columns, use_threads=False).aggregate(list(requests.values()))
    if as_they_are:
        arrays = [_one_array(grouped.column(name)) for name in key_columns[: len(keys)]]
    else:
        first = _one_array(grouped.column("row_min"))
        arrays = [column.take(first) for _, column in keys]
    arrays += [read(grouped) for read in readers]
    fields = [field for field, _ in keys]
    fields += [pa.field(slot.name, slot.type, slot.fold not in ("count", "add")) for slot, _ in folds]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def _reader(column: str, slot: _Slot, read: Callable[[pa.Array, _Slot], pa.Array]) -> Callable[[pa.Table], pa.Array]:
    return lambda grouped: read(_one_array(grouped.column(column)), slot)


def _groupable(column: pa.Array) -> pa.Array:
    """A column Arrow can group by: nested values, which it cannot, stand as numbers of their texts."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if not pa.types.is_nested(column.type):
        return column
    return pa.array([None if value is None else repr(value) for value in column.to_pylist()], pa.string())


Prepared = tuple[pa.Array, str, Any, Callable[[pa.Array, _Slot], pa.Array]]


def _fold(slot: _Slot, values: Any) -> Prepared:
    """How a slot's values go into Arrow's hash aggregation, and how they come out of it."""
    if slot.fold == "count":
        return pc.is_valid(values), "sum", pc.ScalarAggregateOptions(min_count=0), _as_slot
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if slot.fold == "add":
        return *_prepared_integers(values), pc.ScalarAggregateOptions(min_count=0), _fit_sum
    if slot.fold in ("min", "max"):
        return _sortable(values), slot.fold, _NULL_IF_EMPTY, _from_sortable
    if pa.types.is_floating(slot.type):
        return values.cast(pa.float64(), safe=False), "sum", _NULL_IF_EMPTY, _as_slot
    if pa.types.is_integer(values.type):
        return *_prepared_integers(values), _NULL_IF_EMPTY, _fit_sum
    return (
        values.cast(pa.decimal256(min(values.type.precision, 76), values.type.scale)),
        "sum",
        _NULL_IF_EMPTY,
        _fit_sum,
    )


def _as_slot(found: pa.Array, slot: _Slot) -> pa.Array:
    return found.cast(slot.type)


def _prepared_integers(values: pa.Array) -> tuple[pa.Array, str]:
    """Integers in the narrowest type in which their sum cannot leave 64 bits, or else as decimals."""
    bounds = pc.min_max(values)
    greatest = max(abs(bounds["min"].as_py() or 0), abs(bounds["max"].as_py() or 0))
    if greatest * len(values) < _BOUND:
        return values.cast(pa.int64()), "sum"
    wide = values.cast(pa.decimal128(20, 0))
    return wide.cast(_INT_SUM), "sum"


def _fit_sum(found: pa.Array, slot: _Slot) -> pa.Array:
    """A sum in its slot's type; `SumOverflow` where it does not fit."""
    try:
        if pa.types.is_decimal(slot.type) and pa.types.is_integer(found.type):
            found = found.cast(pa.decimal128(19, 0))
        return found.cast(slot.type)
    except pa.ArrowInvalid as error:
        raise SumOverflow(f"{slot.name}: the sum does not fit in {slot.type}") from error


def _sortable(values: pa.Array) -> pa.Array:
    """Values whose order Arrow knows: doubles become integers of the same order, with NaN on top."""
    if pa.types.is_duration(values.type):
        return values.cast(pa.int64())
    if not pa.types.is_floating(values.type):
        return values
    doubles = pc.fill_null(values.cast(pa.float64()), 0.0).to_numpy(zero_copy_only=False)
    bits = np.where(np.isnan(doubles), np.float64("nan"), doubles).view(np.int64)
    ordered = pa.array(np.where(bits < 0, bits ^ np.int64(2**63 - 1), bits))
    return pc.if_else(pc.is_valid(values), ordered, pa.scalar(None, pa.int64()))


def _from_sortable(found: pa.Array, slot: _Slot) -> pa.Array:
    if not pa.types.is_floating(slot.type):
        return found.cast(slot.type)
    ordered = pc.fill_null(found, 0).to_numpy(zero_copy_only=False)
    bits = np.where(ordered < 0, ordered ^ np.int64(2**63 - 1), ordered)
    doubles = pa.array(bits.view(np.float64))
    return pc.if_else(pc.is_valid(found), doubles, pa.scalar(None, pa.float64())).cast(slot.type, safe=False)


def _finish(step: _Step, columns: list[pa.Array]) -> pa.Array:
    if step.aggregate.kind != "mean":
        return columns[0]
    total, number = columns
    if pa.types.is_floating(total.type):
        return pc.divide(total, pc.if_else(pc.equal(number, 0), None, number).cast(pa.float64()))
    pairs = zip(total.to_pylist(), number.to_pylist(), strict=True)
    return pa.array([None if value is None else _mean(value, rows) for value, rows in pairs], pa.float64())


def _mean(total: Decimal, rows: int) -> float:
    """The nearest double to the exact mean."""
    numerator, denominator = total.as_integer_ratio()
    return numerator / (denominator * rows)
