"""What a function returns as a source: a table from a database, a service or a file that nothing here knows how to read.

    def users() -> list[tuple[int, str]]:
        with sqlite3.connect("shop.db") as db:
            return db.execute("select id, name from users").fetchall()

    p.table(sources.call(users, schema="id bigint, name string"), key="id", refresh="10m")

The function is called where rows are needed, once for each time the table is read, and may return something else each time: that is
what a table with `refresh` is for, and why such a source is not replayable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from penstock.connectors.connector import Chunk, Json, Reader, Source, SourceContext
from penstock.connectors.memory import memory
from penstock.errors import RAISED, FunctionError
from penstock.names import check_name
from penstock.schema import to_schema

__all__ = ["Call", "call"]


@dataclass(frozen=True, eq=False)
class Call(Source):
    """The rows that `function` returns when it is called: an Arrow table, a pandas frame, dicts, dataclasses or tuples."""

    name: str
    schema: pa.Schema
    function: Callable[[], Any]
    bounded: bool = field(init=False, default=True)
    replayable: bool = field(init=False, default=False)

    def splits(self) -> tuple[str, ...]:
        return ("all",)

    def open(self, split: str, position: Json, context: SourceContext) -> Reader:
        return _CallReader(self, context.columns)

    def describe(self) -> str:
        return f"function {getattr(self.function, '__name__', 'of yours')}, cannot be read again"


def call(function: Callable[[], Any], *, schema: Any, name: str | None = None) -> Call:
    """See `penstock.sources.call`."""
    given = getattr(function, "__name__", "call").strip("<>") if name is None else name
    return Call(check_name(given, "a source"), to_schema(schema), function)


class _CallReader(Reader):
    prompt = True

    def __init__(self, source: Call, columns: tuple[str, ...]) -> None:
        self._source, self._columns = source, list(columns)

    def poll(self, rows_max: int) -> Chunk | None:
        source = self._source
        try:
            table = memory(_rows(source.function(), source.schema), schema=source.schema, name=source.name).table
        except RAISED as error:  # whatever a user's function, or a driver, raises
            raise FunctionError(f"source {source.name!r}: its function failed: {type(error).__name__}: {error}") from error
        batches = table.select(self._columns).combine_chunks().to_batches()
        return Chunk(batches[0] if batches else None, table.num_rows, ended=True)


def _rows(found: Any, schema: pa.Schema) -> Any:
    """What the function returned, as `memory` takes it. Tuples, as databases give them, are in the order of the schema."""
    if hasattr(found, "to_records") and hasattr(found, "columns"):
        return pa.Table.from_pandas(found, preserve_index=False)
    if isinstance(found, pa.Table | pa.RecordBatch) or not isinstance(found, Iterable):
        return found
    return [dict(zip(schema.names, row, strict=True)) if type(row) in (tuple, list) else row for row in found]
