"""Folds that Arrow's hash aggregation does: count, sum, min and max, and the mean made of two of them.

These are the aggregates most streams are made of, so they have the short way: all of them, for all groups, in one
pass of Arrow's own.

1. Integers are summed exactly: if a cheap bound shows that 64 bits suffice they are used, otherwise decimals
   are. A sum that does not fit its type raises `SumOverflow`. It is the sum of a batch, or of what was
   merged, that must fit, even if a later row would bring it back.
2. Null stands for "no value yet", except in counts, which start at 0.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.expr.aggregates import Aggregate, SumOverflow
from penstock.expr.ordering import decoded, from_sortable, sortable
from penstock.expr.segments import Bools, Ints

__all__ = ["UFUNCS", "Folded", "Mean", "Prepared", "Slot", "as_slot", "combine", "fold", "folded", "merging", "whole"]

_INT_SUM = pa.decimal128(38, 0)
_BOUND = 2**63
_NULL_IF_EMPTY = pc.ScalarAggregateOptions(min_count=1)
_ZERO_IF_EMPTY = pc.ScalarAggregateOptions(min_count=0)


@dataclass(frozen=True)
class Slot:
    """One accumulator column: how rows are folded into it ("count", "add", "sum", "min", "max") and its type."""

    name: str
    fold: str
    type: pa.DataType

    @functools.cached_property
    def field(self) -> pa.Field:
        """The column. Counts are never null."""
        return pa.field(self.name, self.type, self.fold not in ("count", "add"))


class Folded:
    """One aggregate made of such columns. This one is its only column; others compute something from several."""

    keeps = ""  # as of `slots.Slots`: names and types say all
    can_unmerge = False  # a sum of nothing is null, and what is left of one does not say whether it is of nothing

    def __init__(self, *slots: Slot) -> None:
        self.slots = slots

    def unmerge(self, whole: list[pa.Array], part: list[pa.Array]) -> list[pa.Array]:
        """Never: see `can_unmerge`."""
        raise NotImplementedError

    @property
    def fields(self) -> list[pa.Field]:
        return [slot.field for slot in self.slots]

    def inputs(self, values: pa.Array | None, signs: Ints | None) -> list[Any]:
        """What is folded into each slot; None stands for the rows themselves."""
        assert signs is None, "rows with signs need signed slots"
        return [values] * len(self.slots)

    def finish(self, columns: list[pa.Array]) -> pa.Array:
        """The result of accumulator rows."""
        return columns[0]

    def negative(self, columns: list[pa.Array]) -> Bools:
        """The rows that have lost more than they had."""
        return np.zeros(len(columns[0]), np.bool_)

    def clamp(self, columns: list[pa.Array]) -> list[pa.Array]:
        """The accumulators without what is negative."""
        return columns


class Mean(Folded):
    """A sum and a count until the end."""

    def finish(self, columns: list[pa.Array]) -> pa.Array:
        total, number = columns
        if pa.types.is_floating(total.type):
            return pc.divide(total, pc.if_else(pc.equal(number, 0), None, number).cast(pa.float64()))
        pairs = zip(total.to_pylist(), number.to_pylist(), strict=True)
        return pa.array([None if value is None or not rows else _mean(value, rows) for value, rows in pairs], pa.float64())


def folded(name: str, aggregate: Aggregate, schema: pa.Schema) -> Folded:
    """The columns of a count, sum, min, max or mean over rows that stay."""
    if aggregate.kind == "count":
        return Folded(Slot(f"{name}.n", "count", pa.int64()))
    if aggregate.kind == "mean":
        # A sum of integers is kept in decimals: a mean exists even where a 64-bit sum does not.
        found = aggregate.input_type(schema)
        scale = found.scale if pa.types.is_decimal(found) else 0
        total = pa.float64() if pa.types.is_floating(found) else pa.decimal128(38, scale)
        return Mean(Slot(f"{name}.sum", "sum", total), Slot(f"{name}.n", "count", pa.int64()))
    return Folded(Slot(f"{name}.{aggregate.kind}", aggregate.kind, aggregate.type(schema)))


Read = Callable[[pa.Array, Slot], pa.Array]
Prepared = tuple[pa.Array, str, Any, Read]

_MERGE = {"count": "add", "add": "add", "sum": "sum", "min": "min", "max": "max"}

_PAIRWISE: dict[str, Callable[[pa.Array, pa.Array], pa.Array]] = {
    "add": pc.add_checked,
    "sum": pc.add_checked,
    "min": pc.min_element_wise,
    "max": pc.max_element_wise,
}


UFUNCS: dict[str, np.ufunc] = {"add": np.add, "sum": np.add, "min": np.minimum, "max": np.maximum}


def whole(slot: Slot) -> np.ufunc | None:
    """What makes one of two accumulators that are whole numbers; None if the slot has others. A sum must be seen to fit."""
    return UFUNCS[_MERGE[slot.fold]] if slot.type == pa.int64() else None


def merging(slot: Slot) -> Slot:
    """How accumulators of a slot are folded again. Counts were counted; what is left is to add them."""
    return replace(slot, fold=_MERGE[slot.fold])


def combine(slot: Slot, left: pa.Array, right: pa.Array) -> pa.Array | None:
    """Two columns of one slot as one, row by row; null stands for nothing yet. None: not by Arrow's arithmetic."""
    how = _MERGE[slot.fold]
    if not _is_plain(slot.type, how):
        return None
    try:
        both = _PAIRWISE[how](left, right)
    except pa.ArrowInvalid as error:
        raise SumOverflow(f"{slot.name}: the sum does not fit in {slot.type}") from error
    return pc.coalesce(both, right, left) if both.null_count else both


def _is_plain(kind: pa.DataType, how: str) -> bool:
    """Whether Arrow's own arithmetic on two columns of this type means what ours does."""
    # It is not so for decimals, which grow when they are added, and for the order of NaN and -0.0.
    return pa.types.is_integer(kind) or (pa.types.is_floating(kind) and how == "sum")


def fold(slot: Slot, values: Any) -> Prepared:
    """How a slot's values go into Arrow's hash aggregation, and how they come out of it."""
    if slot.fold == "count":
        return pc.is_valid(values), "sum", _ZERO_IF_EMPTY, as_slot
    values = decoded(values)
    if slot.fold == "add":
        return *_prepared_integers(values), _ZERO_IF_EMPTY, _fit_sum
    if slot.fold in ("min", "max"):
        return sortable(values), slot.fold, _NULL_IF_EMPTY, lambda found, slot: from_sortable(found, slot.type)
    if pa.types.is_floating(slot.type):
        return values.cast(pa.float64(), safe=False), "sum", _NULL_IF_EMPTY, as_slot
    if pa.types.is_integer(values.type):
        return *_prepared_integers(values), _NULL_IF_EMPTY, _fit_sum
    wide = values.cast(pa.decimal256(min(values.type.precision, 76), values.type.scale))
    return wide, "sum", _NULL_IF_EMPTY, _fit_sum


def as_slot(found: pa.Array, slot: Slot) -> pa.Array:
    """What came out, in the slot's type."""
    return found if found.type == slot.type else found.cast(slot.type)


def _prepared_integers(values: pa.Array) -> tuple[pa.Array, str]:
    """Integers in the narrowest type in which their sum cannot leave 64 bits, or else as decimals."""
    bounds = pc.min_max(values)
    greatest = max(abs(bounds["min"].as_py() or 0), abs(bounds["max"].as_py() or 0))
    if greatest * len(values) < _BOUND:
        return values.cast(pa.int64()), "sum"
    wide = values.cast(pa.decimal128(20, 0))
    return wide.cast(_INT_SUM), "sum"


def _fit_sum(found: pa.Array, slot: Slot) -> pa.Array:
    """A sum in its slot's type; `SumOverflow` where it does not fit."""
    try:
        if pa.types.is_decimal(slot.type) and pa.types.is_integer(found.type):
            found = found.cast(pa.decimal128(19, 0))
        return found.cast(slot.type)
    except pa.ArrowInvalid as error:
        raise SumOverflow(f"{slot.name}: the sum does not fit in {slot.type}") from error


def _mean(total: Decimal, rows: int) -> float:
    """The nearest double to the exact mean."""
    numerator, denominator = total.as_integer_ratio()
    return numerator / (denominator * rows)
