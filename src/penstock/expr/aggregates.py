"""Aggregates: one value from many rows. This file says what each one is; `accumulators` computes them.

An aggregate is a kind, an input expression, and optionally a condition that rows must meet to be counted at
all. Nulls are as in SQL: they are skipped, and an aggregate of no value at all is null, except that a count
is 0.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from penstock.errors import PlanError, RowError
from penstock.expr.evaluate import node_of
from penstock.expr.nodes import Call, Node, columns_of
from penstock.expr.promote import is_numeric
from penstock.expr.resolve import resolve
from penstock.schema import type_name

__all__ = ["KINDS", "Aggregate", "SumOverflow", "count"]

KINDS = ("count", "sum", "min", "max", "mean")


class SumOverflow(RowError, OverflowError):
    """A sum left the range of its type. It is never wrapped around."""


@dataclass(frozen=True)
class Aggregate:
    """One value from many rows: `col("price").sum()`, `count(where=col("kind") == "view")`.

    Frozen, hashable and compared by structure, like the nodes it holds.
    """

    kind: str
    input: Node | None = None
    where: Node | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        assert self.kind in KINDS, f"unknown aggregate {self.kind!r}"
        assert self.input is not None or self.kind == "count", f"{self.kind} needs an input"

    def alias(self, name: str) -> Aggregate:
        """The same aggregate under another name."""
        return replace(self, name=name)

    def type(self, schema: pa.Schema) -> pa.DataType:
        """The type of the result over rows of `schema`; a `PlanError` where it has none."""
        self._check_where(schema)
        if self.input is None or self.kind == "count":
            if self.input is not None:
                resolve(self.input, schema)
            return pa.int64()
        found = self.input_type(schema)
        if self.kind in ("min", "max"):
            return found
        if self.kind == "mean" or pa.types.is_floating(found):
            return pa.float64()
        return pa.decimal128(38, found.scale) if pa.types.is_decimal(found) else pa.int64()

    def field(self, schema: pa.Schema, name: str) -> pa.Field:
        """The result column: a count is never null, anything else is null for no value."""
        return pa.field(name, self.type(schema), nullable=self.kind != "count")

    def check(self, schema: pa.Schema) -> None:
        """Raise a `PlanError` unless the aggregate means something over rows of `schema`."""
        self.type(schema)

    def input_type(self, schema: pa.Schema) -> pa.DataType:
        """The type of the input, decoded; a `PlanError` if this kind cannot take it."""
        assert self.input is not None, "a count of rows has no input"
        found = resolve(self.input, schema).type
        found = found.value_type if pa.types.is_dictionary(found) else found
        if self.kind in ("sum", "mean") and not is_numeric(found):
            raise PlanError(
                f"{self.kind} needs numbers, and found {type_name(found)} ({self.input.text()}).\n"
                f"  Cast it: {self.kind}(cast({self.input.text()} as double))"
            )
        if pa.types.is_nested(found) or pa.types.is_null(found):
            raise PlanError(f"{self.kind} needs values that can be compared, and found {type_name(found)} ({self.input.text()})")
        return found

    def columns(self) -> frozenset[str]:
        """The columns that it reads."""
        nodes = [node for node in (self.input, self.where) if node is not None]
        return frozenset().union(*map(columns_of, nodes))

    def text(self) -> str:
        """The aggregate as SQL."""
        function = "avg" if self.kind == "mean" else self.kind
        shown = f"{function}({self.input.text() if self.input is not None else '*'})"
        return shown if self.where is None else f"{shown} filter (where {self.where.text()})"

    def __repr__(self) -> str:
        return self.text()

    def _check_where(self, schema: pa.Schema) -> None:
        if self.where is not None:
            resolve(Call("not", (self.where,)), schema)


def count(*, where: Any = None) -> Aggregate:
    """The number of rows, or of those for which `where` is true.

    >>> count()
    count(*)
    """
    return Aggregate("count", where=None if where is None else node_of(where))
