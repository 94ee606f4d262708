"""`top`: the n greatest rows by one expression or several, with their rank: of each window, or so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from penstock.expr import Expr
from penstock.plan.joins import BUCKET, NUMBER
from penstock.plan.keyed import WINDOW_COLUMN, KeyedRows, StateLayout, late_rows
from penstock.plan.logical import Node, Used, typed, unique_schema, visible_columns
from penstock.windows import Shape, Sliding, Tumbling

RANK = pa.field("rank", pa.int64(), nullable=False)
_INT = pa.int64()


@dataclass(frozen=True, eq=False, kw_only=True)
class Top(KeyedRows):
    """The `count` greatest (or smallest) rows of each key so far. With a new row all ranks below it change hands."""

    count: int
    order: tuple[Expr, ...]  # the first one decides; where it is equal, the second
    ascending: tuple[bool, ...]  # of each of these
    kept: tuple[str, ...] = field(init=False)  # columns in state, besides the key
    order_types: tuple[pa.DataType, ...] = field(init=False)
    kind = "top"
    verb = "top"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.input.changes == "retract":
            raise self.error(
                "rows of this stream can be withdrawn, and top keeps no more rows than it sends, so it could not say who moves up."
                ' Use an aggregate: col("x").top_k(3)'
            )
        if isinstance(self.count, bool) or not isinstance(self.count, int) or self.count < 1:
            raise self.error(f"top({self.count!r}) is no number of rows. Write: top(10, by=...)")
        self._set(order_types=tuple(typed(each, self.input, self) for each in self.order))
        for each, found in zip(self.order, self.order_types):
            if pa.types.is_nested(found) or pa.types.is_null(found):
                raise self.error(f"by={each.text()} is {found}, which has no order. Order by one of its parts")
        self._set(schema=unique_schema([*self.row_schema, RANK], self), kept=tuple(self._rest(set(self.row_schema.names))))
        self._set_kind()

    def _set_kind(self) -> None:
        self._set(changes="update", keys=(*(f.name for f in self.key_fields), RANK.name))

    def _rest(self, used: set[str]) -> list[str]:
        return [name for name in self.row_schema.names if name in used and name not in self.by]

    def needs(self, used: Used) -> list[set[str]]:
        self._set(kept=tuple(self._rest(used["main"])))
        return [set(self.kept) | set(self.by) | visible_columns(self.order) | used["late"]]

    def states(self) -> Sequence[StateLayout]:
        schema = self.input.schema
        rows = [pa.field(f"row.{name}", schema.field(name).type) for name in self.kept]
        rows += [pa.field(name, type) for name, type in zip(self.order_columns, self.order_types)]
        rows.append(pa.field("__time", _INT))
        bucket = pa.field(BUCKET, _INT)
        return [
            self._layout("buckets", [bucket], [pa.field("__rows", _INT, nullable=False)]),
            self._layout("rows", [bucket, pa.field(NUMBER, _INT)], rows),
        ]

    @property
    def order_columns(self) -> tuple[str, ...]:
        """What the state calls the columns that rows are ordered by."""
        return ("__order", *(f"__order.{number}" for number in range(1, len(self.order))))

    def params(self) -> dict[str, Any] | None:
        by, ascending = [each.text() for each in self.order], list(self.ascending)
        alone = len(by) == 1  # as it was before there could be several
        return {"count": self.count, "by": by[0] if alone else by, "ascending": ascending[0] if alone else ascending}

    def text(self) -> str:
        return self._keyed_text(self._top_text())

    def _top_text(self) -> str:
        by = [f"{each.text()}{' ascending' if up else ''}" for each, up in zip(self.order, self.ascending)]
        return f"top {self.count} by {', '.join(by)}"


@dataclass(frozen=True, eq=False, kw_only=True)
class WindowTop(Top):
    """The greatest rows of each key and window, when it closes."""

    window: Shape
    kind = "window_top"

    def __post_init__(self) -> None:
        if not isinstance(self.window, Tumbling | Sliding) or self.window.clock != "event":
            raise self.error(
                f'top over {self.window.text()} is not there yet. Write .window(pen.tumbling("1m")) or pen.sliding("1h", every="1m")'
            )
        if not self.input.timed:
            raise self.error(
                f'{self.window.text()} needs event time, and this stream has none.\n  Write .with_watermark("at", delay="5s") first'
            )
        super().__post_init__()

    def _set_kind(self) -> None:
        self._set(timed=True)

    def output(self, port: str) -> Node:
        return late_rows(self) if port == "late" else self

    def states(self) -> Sequence[StateLayout]:
        return [*super().states(), self._layout("timers", [pa.field(WINDOW_COLUMN, _INT)], None)]

    def params(self) -> dict[str, Any] | None:
        return {**(super().params() or {}), **self.window.params()}

    def text(self) -> str:
        return self._keyed_text(self._top_text(), f" window {self.window.text()}")
