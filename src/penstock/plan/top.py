"""`top`: the n greatest rows by one expression or several, with their rank: of each window, or so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from penstock.errors import Fix
from penstock.eventtime import NEEDS_TIME
from penstock.expr import Expr
from penstock.plan.joins import BUCKET, NUMBER
from penstock.plan.keyed import WINDOW_COLUMN, KeyedRows, StateLayout, late_rows
from penstock.plan.logical import Node, Used, typed, unique_schema, visible_columns
from penstock.schema import type_name
from penstock.windows import Shape, Sliding, Tumbling

RANK = pa.field("rank", pa.int64(), nullable=False)
_INT = pa.int64()
DIRECTIONS = {None: "", True: " asc", False: " desc"}
"""How a text of by= says whether it is ascending."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Top(KeyedRows):
    """The `count` greatest (or smallest) rows of each key so far. With a new row all ranks below it change hands."""

    count: int
    order: tuple[Expr, ...]  # the first one decides; where it is equal, the second
    ascending: tuple[bool, ...]  # of each of these
    said: tuple[bool | None, ...] = ()  # what of that stands in the texts of by=
    kept: tuple[str, ...] = field(init=False)  # columns in state, besides the key
    order_types: tuple[pa.DataType, ...] = field(init=False)
    kind = "top"
    verb = "top"
    windowed = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.count, bool) or not isinstance(self.count, int) or self.count < 1:
            raise self.error(
                f"top({self.count!r}) is no number of rows; expected a whole number of at least 1",
                fix=Fix("top.count", "Write: count=10"),
            )
        self._set(order_types=tuple(typed(each, self.input, self) for each in self.order))
        for each, found in zip(self.order, self.order_types):
            if _has_no_order(found):
                raise self.error(
                    f"top goes by values that have an order, and {each.text()!r} is {type_name(found)}, which has none",
                    fix=Fix("top.order", f"Go by something of it that has an order. Write: by={self._ordered()!r}"),
                )
        if self.input.changes == "retract":
            raise self.error(
                "top needs rows that stay, and rows of this stream can be withdrawn: it keeps no more rows than it sends, so it could"
                " not say who moves up",
                fix=Fix(
                    "top.of-retractions",
                    "To keep the rows, have windows of event time in the step before, without emit=; an aggregate takes back values alone."
                    f' Write: .aggregate(best={self._aggregated()!r}, name="{self.name}")',
                ),
            )
        self._set(schema=unique_schema([*self.row_schema, RANK], self), kept=tuple(self._rest(set(self.row_schema.names))))
        self._set_kind()

    def _ordered(self) -> str | list[str]:
        """What by= may be instead of what it is."""
        said = self.said or [None] * len(self.order)
        parts = zip(self.order, self.order_types, said)
        texts = [_comparable(each, found).text() + DIRECTIONS[up] for each, found, up in parts]
        return texts[0] if len(texts) == 1 else texts

    def _aggregated(self) -> str:
        """The aggregate that comes nearest: of the smallest values there is only the first."""
        first = self.order[0].text()
        return f"min({first})" if self.ascending[0] else f"top_k({first}, {self.count})"

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


def _has_no_order(found: pa.DataType) -> bool:
    return bool(pa.types.is_nested(found) or pa.types.is_null(found))


def _comparable(value: Expr, found: pa.DataType) -> Expr:
    """Something of a value that has an order: its first field or element, or whether it is there at all."""
    t = pa.types
    if not _has_no_order(found):
        return value
    if t.is_null(found):
        return value.cast("bigint")
    if t.is_struct(found) and found.num_fields:
        return _comparable(value[found.field(0).name], found.field(0).type)
    if t.is_list(found) or t.is_large_list(found):
        return _comparable(value[0], found.value_type)
    if t.is_map(found) and t.is_string(found.key_type):
        return _comparable(value["key"], found.item_type)
    return value.is_not_null()


@dataclass(frozen=True, eq=False, kw_only=True)
class WindowTop(Top):
    """The greatest rows of each key and window, when it closes."""

    window: Shape
    kind = "window_top"
    windowed = True

    def __post_init__(self) -> None:
        if not isinstance(self.window, Tumbling | Sliding) or self.window.clock != "event":
            raise self.error(
                f"top over {self.window.text()} is not there yet: it goes over tumbling and sliding windows of event time",
                fix=Fix("top.window", 'Write: .window(pen.tumbling("1m")), or .window(pen.sliding("1h", every="1m"))'),
            )
        super().__post_init__()
        if not self.input.timed:
            raise self.error(f"{self.window.text()} needs event time, and this stream has none", fix=NEEDS_TIME)

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
