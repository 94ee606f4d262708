"""Linear accumulators over rows that can be taken back: each row weighs +1 or -1.

A count, a sum and a sum of squares do not care in which order rows come and go, as long as the arithmetic is exact.
So integers and decimals are summed in wide decimals here, and only what is exact is linear: floats go to `multiset`.

1. `n` is the signed number of values, and so says when none is left: a sum of no value is null, not 0.
2. Decimals of a variance have at most 33 digits, so that a batch of squares fits in 76.
"""

from __future__ import annotations

from fractions import Fraction
from math import sqrt
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import Fix, PlanError
from penstock.expr.aggregates import Aggregate, SumOverflow
from penstock.expr.folds import Folded, Mean, Slot
from penstock.expr.mending import casting
from penstock.expr.ordering import decoded
from penstock.expr.resolve import resolve
from penstock.expr.segments import Bools, Ints
from penstock.expr.slots import is_root
from penstock.schema import type_name

__all__ = ["signed"]

_DIGITS = 33


def signed(name: str, aggregate: Aggregate, schema: pa.Schema) -> Folded:
    """The columns of a count, or of a sum, mean or variance of integers or decimals."""
    n = Slot(f"{name}.n", "add", pa.int64())
    if aggregate.kind == "count":
        return SignedCount(n)
    found = aggregate.input_type(schema)
    scale = found.scale if pa.types.is_decimal(found) else 0
    total = Slot(f"{name}.sum", "sum", pa.decimal128(38, scale))
    if aggregate.kind == "sum":
        return SignedSum(aggregate.type(schema), n, total)
    if aggregate.kind == "mean":
        return SignedMean(n, total)
    if scale > _DIGITS:
        assert aggregate.input is not None, "only a count has no input"
        code = casting(resolve(aggregate.input, schema), pa.float64())
        raise PlanError(
            f"{aggregate.text()}: its input takes rows back, so its decimals have at most {_DIGITS} digits, and found {type_name(found)}",
            fix=Fix("retract.digits", code),
        )
    squares = Slot(f"{name}.squares", "sum", pa.decimal256(76, 2 * scale))
    return SignedMoments(aggregate, n, Slot(f"{name}.sum", "sum", pa.decimal256(76, scale)), squares)


class SignedCount(Folded):
    """The number of rows, or of values, that are left. The first slot of the others is the same."""

    def inputs(self, values: pa.Array | None, signs: Ints | None) -> list[Any]:
        assert signs is not None, "signed slots need signs"
        if values is None or not values.null_count:
            return [pa.array(signs)]
        return [pc.if_else(values.is_valid(), pa.array(signs), pa.scalar(None, pa.int64()))]

    def negative(self, columns: list[pa.Array]) -> Bools:
        below: Bools = columns[0].to_numpy() < 0
        return below

    def clamp(self, columns: list[pa.Array]) -> list[pa.Array]:
        below = pa.array(self.negative(columns))
        number, *sums = columns
        cleared = [pc.if_else(below, pa.scalar(None, column.type), column) for column in sums]
        return [pc.if_else(below, 0, number), *cleared]


class SignedSum(SignedCount):
    """A sum, and how many values it is of."""

    def __init__(self, result: pa.DataType, *slots: Slot) -> None:
        super().__init__(*slots)
        self._result = result

    def inputs(self, values: pa.Array | None, signs: Ints | None) -> list[Any]:
        assert values is not None, "a sum has an input"
        assert signs is not None, "signed slots need signs"
        return [*super().inputs(values, signs), _with_signs(decoded(values), signs)]

    def finish(self, columns: list[pa.Array]) -> pa.Array:
        number, total = columns
        kept = pc.if_else(pc.greater(number, 0), total, pa.scalar(None, total.type))
        try:
            return kept.cast(self._result)
        except pa.ArrowInvalid as error:
            raise SumOverflow(f"{self.slots[1].name}: the sum does not fit in {self._result}") from error


class SignedMean(SignedSum):
    """The same, divided at the end."""

    def __init__(self, *slots: Slot) -> None:
        super().__init__(slots[1].type, *slots)
        self._mean = Mean(slots[1], slots[0])

    def finish(self, columns: list[pa.Array]) -> pa.Array:
        return self._mean.finish([super().finish(columns), columns[0]])


class SignedMoments(SignedCount):
    """Variance from the sums of values and of their squares: exact, so nothing is lost where they cancel out."""

    def __init__(self, aggregate: Aggregate, *slots: Slot) -> None:
        super().__init__(*slots)
        self._ddof, self._root = aggregate.options[0], is_root(aggregate.kind)

    def inputs(self, values: pa.Array | None, signs: Ints | None) -> list[Any]:
        assert values is not None, "a variance has an input"
        assert signs is not None, "signed slots need signs"
        exact = _exact(decoded(values), self.slots[1])
        squares = pc.multiply(exact, exact)
        return [*super().inputs(values, signs), _with_signs(exact, signs), _with_signs(squares, signs)]

    def finish(self, columns: list[pa.Array]) -> pa.Array:
        rows = zip(*(column.to_pylist() for column in columns), strict=True)
        return pa.array([self._variance(*row) for row in rows], pa.float64())

    def _variance(self, number: int, total: Any, squares: Any) -> float | None:
        if number <= self._ddof:
            return None
        total, squares = Fraction(total or 0), Fraction(squares or 0)
        # Below 0 only where a row was taken back that had never come.
        found = float(max((number * squares - total * total) / (number * (number - self._ddof)), 0))
        return sqrt(found) if self._root else found


def _exact(values: pa.Array, slot: Slot) -> pa.Array:
    """Integers and decimals as decimals whose squares have room."""
    if pa.types.is_integer(values.type):
        values = values.cast(pa.decimal128(20, 0))
    try:
        return values.cast(pa.decimal256(_DIGITS, slot.type.scale))
    except pa.ArrowInvalid as error:
        raise SumOverflow(f"{slot.name}: a value has more than {_DIGITS} digits") from error


def _with_signs(values: pa.Array, signs: Ints) -> pa.Array:
    """Each value, or what cancels it."""
    minus = signs < 0
    if not minus.any():
        return values
    if pa.types.is_integer(values.type):
        # In decimals: -2**63 has no opposite in 64 bits.
        values = values.cast(pa.decimal128(20, 0))
    return pc.if_else(pa.array(minus), pc.negate(values), values)
