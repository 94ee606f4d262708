"""A sink for looking: each committed epoch with rows is printed as a small table.

1. Printing happens at commit, in the coordinator's process: at least once, since a crash may come between printing and noting it.
2. The first rows only; how many there are is said below. Of a stream whose rows replace or withdraw earlier ones the last rows
   instead: they are what holds now.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa
from rich.console import Console
from rich.table import Table

from penstock.connectors.connector import Committer, Sink, SinkContext, Writer
from penstock.connectors.staged import StagedCommitter, StagedWriter
from penstock.errors import ConfigError
from penstock.names import check_name
from penstock.schema import to_rows

__all__ = ["ConsoleSink", "console"]


@dataclass(frozen=True)
class ConsoleSink(Sink):
    """Prints up to `rows` rows of each epoch."""

    name: str
    rows: int
    kind: str = field(init=False, default="at-least-once")
    accepts: frozenset[str] = field(init=False, default=frozenset({"append", "update", "retract"}))

    def writer(self, context: SinkContext) -> Writer:
        return StagedWriter(context)

    def committer(self, context: SinkContext) -> Committer:
        return _ConsoleCommitter(context, self.rows)

    def describe(self) -> str:
        return "console, at-least-once"


def console(*, rows: int = 20, name: str = "console") -> ConsoleSink:
    """See `penstock.sinks.console`."""
    if rows < 1:
        raise ConfigError(f"rows={rows}: expected how many rows of an epoch to show, at least 1")
    return ConsoleSink(check_name(name, "a sink"), rows)


class _ConsoleCommitter(StagedCommitter):
    def __init__(self, context: SinkContext, rows: int) -> None:
        super().__init__(context)
        self._rows_shown = rows

    def deliver(self, epoch: int, rows: pa.RecordBatchReader, attempt: int) -> None:
        newest = self.context.changes != "append"
        shown: list[dict[str, object]] = []
        total = 0
        for batch in rows:
            total += batch.num_rows
            if newest:
                shown += to_rows(batch.slice(max(0, batch.num_rows - self._rows_shown)))
                del shown[: -self._rows_shown]
            else:
                shown += to_rows(batch.slice(0, self._rows_shown - len(shown)))
        table = Table(title=f"{self.context.name}, epoch {epoch}", title_justify="left")
        for name in self.context.schema.names:
            table.add_column(name, overflow="fold")
        for row in shown:
            table.add_row(*("" if value is None else str(value) for value in row.values()))
        terminal = Console(markup=False, highlight=False)
        terminal.print(table)
        if total > len(shown):
            terminal.print(f"{'the newest ' if newest else ''}{len(shown)} of {total} rows", style="italic")
