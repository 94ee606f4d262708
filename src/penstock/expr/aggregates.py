"""Aggregates: one value from many rows. This file says what each one is; `accumulators` computes them.

An aggregate is a kind, an input expression, and optionally a condition that rows must meet to be counted at
all. Nulls are as in SQL: they are skipped, and an aggregate of no value at all is null, except that a count is 0 and
a list is empty. `first` and `last` alone look at nulls, unless told to ignore them.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from penstock.errors import Fix, PlanError, RowError
from penstock.expr.casts import can_cast
from penstock.expr.evaluate import node_of
from penstock.expr.mending import casting, inside
from penstock.expr.nodes import Call, Node, columns_of
from penstock.expr.promote import Typed, is_numeric
from penstock.expr.resolve import resolve
from penstock.schema import column_name, type_name

__all__ = ["KINDS", "Aggregate", "SumOverflow", "count", "keeping_all"]

_NUMBERS = ("sum", "mean", "variance", "stddev", "quantile")
_COMPARED = ("min", "max", "top_k")
_ANY = ("first", "last", "collect", "count_distinct")

KINDS = ("count", *_NUMBERS, *_COMPARED, *_ANY, "user")


class SumOverflow(RowError, OverflowError):
    """A sum left the range of its type. It is never wrapped around."""


@dataclass(frozen=True)
class Aggregate:
    """One value from many rows: `col("price").sum()`, `count(where=col("kind") == "view")`.

    Frozen, hashable and compared by structure, like the nodes it holds. `options` depend on the kind:
    variance, stddev (ddof,); first, last (ignore_nulls,); top_k (k,); count_distinct (approx,);
    quantile (shares, several, approx); user (a `UserCall`,). Only user aggregates have `more` than one input.
    """

    kind: str
    input: Node | None = None
    where: Node | None = None
    name: str | None = None
    options: tuple[Any, ...] = ()
    more: tuple[Node, ...] = ()

    def __post_init__(self) -> None:
        assert self.kind in KINDS, f"unknown aggregate {self.kind!r}"
        assert self.input is not None or self.kind == "count", f"{self.kind} needs an input"

    def alias(self, name: str) -> Aggregate:
        """The same aggregate under another name."""
        return replace(self, name=column_name(name))

    @property
    def inputs(self) -> tuple[Node, ...]:
        """The expressions it is of."""
        return (*(() if self.input is None else (self.input,)), *self.more)

    @property
    def is_sketch(self) -> bool:
        """Whether it is approximate, and so needs the library of sketches."""
        return self.kind in ("count_distinct", "quantile") and bool(self.options[-1])

    def type(self, schema: pa.Schema) -> pa.DataType:
        """The type of the result over rows of `schema`; a `PlanError` where it has none."""
        self._check_where(schema)
        if self.kind in ("count", "user"):
            for node in self.inputs:
                resolve(node, schema)
            return pa.int64() if self.kind == "count" else self.options[0].result.type
        if self.is_sketch:
            _check_sketches(self)
        found = self.input_type(schema)
        match self.kind:
            case "count_distinct":
                return pa.int64()
            case "collect" | "top_k":
                return pa.list_(found)
            case "mean" | "variance" | "stddev":
                return pa.float64()
            case "quantile":
                return pa.list_(pa.float64()) if self.options[1] else pa.float64()
            case "sum":
                return _sum_type(found)
        return found

    def field(self, schema: pa.Schema, name: str) -> pa.Field:
        """The result column: a count or list is never null, anything else is null for no value."""
        nullable = self.kind not in ("count", "count_distinct", "collect", "top_k")
        if self.kind == "user":
            nullable = self.options[0].result.nullable
        return pa.field(name, self.type(schema), nullable=nullable)

    def check(self, schema: pa.Schema) -> None:
        """Raise a `PlanError` unless the aggregate means something over rows of `schema`."""
        self.type(schema)

    def input_type(self, schema: pa.Schema) -> pa.DataType:
        """The type of the input, decoded; a `PlanError` if this kind cannot take it."""
        assert self.input is not None, "a count of rows has no input"
        typed = resolve(self.input, schema)
        found = typed.type.value_type if pa.types.is_dictionary(typed.type) else typed.type
        shown = f"{type_name(found)} ({self.input.text()})"
        if self.kind in _NUMBERS and not is_numeric(found):
            raise PlanError(f"{self.kind} needs numbers, and found {shown}", fix=_as_numbers(typed))
        if self.kind in _COMPARED and pa.types.is_nested(found):
            raise PlanError(
                f"{self.kind} needs values that can be compared, and found {shown}", fix=_inside(typed, lambda _: True)
            )
        if pa.types.is_null(found):
            raise PlanError(
                f"{self.kind} needs values of some type, and found only null ({self.input.text()})",
                fix=Fix("aggregate.null", f"Say of which type they would be. {casting(typed, pa.int64())}"),
            )
        return found

    def columns(self) -> frozenset[str]:
        """The columns that it reads."""
        nodes = [*self.inputs, *(() if self.where is None else (self.where,))]
        return frozenset().union(*map(columns_of, nodes))

    def text(self) -> str:
        """The aggregate as SQL, where SQL has it."""
        shown = self._call_text()
        return shown if self.where is None else f"{shown} filter (where {self.where.text()})"

    def __repr__(self) -> str:
        return self.text()

    def _call_text(self) -> str:
        value = self.input.text() if self.input is not None else "*"
        match self.kind:
            case "mean":
                return f"avg({value})"
            case "variance":
                return f"{'var_samp' if self.options[0] else 'var_pop'}({value})"
            case "stddev":
                return f"{'stddev_samp' if self.options[0] else 'stddev_pop'}({value})"
            case "first" | "last":
                return f"{self.kind}({value}{', true' if self.options[0] else ''})"
            case "collect":
                return f"collect_list({value})"
            case "top_k":
                return f"top_k({value}, {self.options[0]})"
            case "count_distinct":
                return f"approx_count_distinct({value})" if self.options[0] else f"count(distinct {value})"
            case "quantile":
                return self._quantile_text(value)
            case "user":
                call = self.options[0]
                return f"{call.name}({', '.join(call.shown(node) for node in self.inputs)})"
        return f"{self.kind}({value})"

    def _quantile_text(self, value: str) -> str:
        shares, several, approx = self.options
        share = f"array({', '.join(map(str, shares))})" if several else str(shares[0])
        return f"{'approx_percentile' if approx else 'quantile'}({value}, {share})"

    def _check_where(self, schema: pa.Schema) -> None:
        if self.where is not None:
            resolve(Call("not", (self.where,)), schema)


def count(*, where: Any = None) -> Aggregate:
    """The number of rows, or of those for which `where` is true.

    >>> count()
    count(*)
    """
    return Aggregate("count", where=None if where is None else node_of(where))


def _sum_type(found: pa.DataType) -> pa.DataType:
    if pa.types.is_floating(found):
        return pa.float64()
    return pa.decimal128(38, found.scale) if pa.types.is_decimal(found) else pa.int64()


def _as_numbers(typed: Typed) -> Fix | None:
    """How to get numbers of something else: a cast, or a number inside; None if there is no way."""
    if pa.types.is_nested(typed.type):
        return _inside(typed, is_numeric)
    return Fix("aggregate.numbers", casting(typed, pa.float64())) if can_cast(typed.type, pa.float64()) else None


def _inside(typed: Typed, fits: Callable[[pa.DataType], bool]) -> Fix | None:
    """How to get to a value inside of a record, list or map that fits; None if there is none."""
    way = inside(typed.type, fits)
    return None if way is None else Fix("aggregate.inside", f"Take what is inside, with this behind {typed.text}. Write: {way}")


def keeping_all(aggregate: Aggregate) -> str:
    """What to write instead of a sketch, in SQL and as code."""
    exact = replace(aggregate, options=(*aggregate.options[:-1], False), where=None).text()
    if aggregate.kind == "count_distinct":
        return f"keep every value: {exact} in SQL. Write: .count_distinct()"
    shares, several, _ = aggregate.options
    return f"keep every value: {exact} in SQL. Write: .quantile({list(shares) if several else shares[0]}, approx=False)"


def _check_sketches(aggregate: Aggregate) -> None:
    if importlib.util.find_spec("datasketches") is None:
        raise PlanError(
            f"{aggregate.text()} needs the package datasketches, which is not installed",
            fix=Fix("aggregate.sketches", f'Install it, pip install "penstock[sketches]", or {keeping_all(aggregate)}'),
        )
