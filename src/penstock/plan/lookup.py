"""`lookup`: each row with the row of a table that has its key. The table is read whole by every task that needs it.

1. A table is a bounded source: files, memory. It is no part of the stream: it has no splits, no watermark, no exchange, and nothing
   of it is in snapshots. What a row finds is what the table holds when the row passes.
2. A key of the table is unique; a second row with the same key is an error that names it. Rows with a null in their key are never
   found.
3. Only columns that somebody uses are read (`needs` notes which).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa

from penstock.connectors.connector import Source
from penstock.errors import Fix, PlanError
from penstock.eventtime import duration_text
from penstock.plan.logical import Node, Used, casting, check_column_name, check_columns, unique_schema
from penstock.schema import type_name
from penstock.state.keygroups import canonical_type


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """Rows by key, from a bounded source. `refresh`: read again after so many microseconds."""

    name: str
    source: Source
    key: tuple[str, ...]
    refresh: int | None
    uid: str  # tells tables apart in a process that keeps them from epoch to epoch

    @property
    def schema(self) -> pa.Schema:
        """Columns and types."""
        return self.source.schema


@dataclass(frozen=True, eq=False, kw_only=True)
class Lookup(Node):
    """Rows with what a table says of their key."""

    input: Node
    table: Table
    on: tuple[tuple[str, str], ...]  # (column of the stream, key column of the table)
    how: str = "inner"
    suffix: str = "_right"
    on_error: str = "fail"
    kept: tuple[str, ...] = field(init=False)  # columns of the table that somebody uses, besides the key
    kind = "lookup"

    def __post_init__(self) -> None:
        if self.how not in ("inner", "left"):
            raise self.error(f"how={self.how!r} is not known here", fix=Fix("lookup.how", 'Write: how="inner", or how="left"'))
        self._check_on()
        self._check_changes()
        fields = list(self.input.schema)
        for name, column in self.named:
            check_column_name(name, self)
            f = self.table.schema.field(column)
            fields.append(pa.field(name, f.type, f.nullable or self.how == "left"))
        self._like(self.input, unique_schema(fields, self))
        self._set(kept=tuple(column for _, column in self.named))

    def _check_on(self) -> None:
        if sorted(column for _, column in self.on) != sorted(self.table.key):
            left = iter([*(name for name, column in self.on if column not in self.table.key), *self.input.schema.names])
            own = {column: name for name, column in self.on}
            pairs = ", ".join(f'"{own.get(key) or next(left)}": "{key}"' for key in self.table.key)
            raise self.error(
                f"table {self.table.name!r} is found by {', '.join(self.table.key)}, and on= has"
                f" {', '.join(column for _, column in self.on)}",
                fix=Fix("lookup.on", f"Name a column of the stream for each, such as here. Write: on={{{pairs}}}"),
            )
        check_columns([name for name, _ in self.on], self.input, self)
        for name, column in self.on:
            ours, theirs = self.input.schema.field(name).type, self.table.schema.field(column).type
            try:
                same = canonical_type(ours) == canonical_type(theirs)
            except PlanError as error:
                raise self.error(f"the key {name!r}: {error.message}", fix=error.fix) from None
            if not same:
                raise self.error(
                    f"{name!r} is {type_name(ours)} and {column!r} of table {self.table.name!r} is {type_name(theirs)}: no row would"
                    " match",
                    fix=Fix("lookup.types", f"Cast it first. Write: {casting(name, theirs)}"),
                )

    def _check_changes(self) -> None:
        if self.input.changes == "update" and self.how == "inner":
            raise self.error(
                "rows of this stream replace earlier ones, and one that is not found would leave its predecessor standing",
                fix=Fix("lookup.of-updates", 'Write: how="left"'),
            )
        if self.input.changes == "retract" and self.table.refresh is not None:
            raise self.error(
                "rows of this stream can be withdrawn, and a table that is refreshed may say something else then",
                fix=Fix("lookup.refresh", "Leave refresh= of the table out"),
            )

    @property
    def named(self) -> tuple[tuple[str, str], ...]:
        """(column of the result, column of the table), without the key."""
        taken = set(self.input.schema.names)
        rest = [name for name in self.table.schema.names if name not in self.table.key]
        return tuple((name + self.suffix if name in taken else name, name) for name in rest)

    @property
    def inputs(self) -> tuple[Node, ...]:
        return (self.input,)

    def needs(self, used: Used) -> list[set[str]]:
        self._set(kept=tuple(column for name, column in self.named if name in used["main"]))
        mine = {name for name in used["main"] if name in self.input.schema.names}
        return [mine | {name for name, _ in self.on} | set(self.keys)]

    def text(self) -> str:
        on = ", ".join(name if name == column else f"{name}={column}" for name, column in self.on)
        refresh = "" if self.table.refresh is None else f" every {duration_text(self.table.refresh)}"
        return f"lookup {self.table.name} ({self.table.source.describe()}{refresh}) on {on} {self.how}"
