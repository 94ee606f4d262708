"""Rows in memory as a source: for tests, notebooks and small tables.

1. Row i is in split `i % splits`; a position is the number of rows read of the split.
2. The rows travel with the source to the tasks, so keep them few.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.connectors.connector import Chunk, Json, Reader, Source, SourceContext
from penstock.errors import ConfigError, Fix, RowError, brief
from penstock.exact import exactly, one_array, seen_nulls
from penstock.names import check_name
from penstock.schema import column_name, field_text, to_array, to_schema

__all__ = ["Memory", "memory"]

CODE_MAX = 120


@dataclass(frozen=True, eq=False)
class Memory(Source):
    """`table`, dealt to `lanes` splits, at most `batch` rows in a chunk."""

    name: str
    schema: pa.Schema
    table: pa.Table
    lanes: int
    batch: int
    bounded: bool = field(init=False, default=True)
    replayable: bool = field(init=False, default=True)
    joined: bool = field(init=False, default=False)

    def splits(self) -> tuple[str, ...]:
        return tuple(str(lane) for lane in range(self.lanes))

    def open(self, split: str, position: Json, context: SourceContext) -> Reader:
        rows = self.table
        if self.lanes > 1:
            rows = rows.take(pa.array(np.arange(int(split), rows.num_rows, self.lanes)))
        return _MemoryReader(rows, position or 0, context.columns, self.batch)

    def describe(self) -> str:
        return "memory, replayable"


def memory(
    rows: Iterable[Any] | pa.Table,
    *,
    schema: Any = None,
    splits: int = 1,
    batch: int = 4096,
    name: str = "memory",
) -> Memory:
    """See `penstock.sources.memory`."""
    if splits < 1 or batch < 1:
        raise ConfigError(f"splits={splits}, batch={batch}: expected at least 1 each")
    if isinstance(rows, pa.RecordBatch):
        rows = pa.Table.from_batches([rows])
    if isinstance(rows, pa.Table):
        found = rows.schema.remove_metadata() if schema is None else to_schema(schema)
        table = _as(rows, found)
    else:
        table = _table_of(list(rows), schema, name)
    return Memory(check_name(name, "a source"), table.schema, table, splits, batch)


def _as(table: pa.Table, schema: pa.Schema) -> pa.Table:
    missing = [name for name in schema.names if name not in table.column_names]
    if missing:
        raise ConfigError(f"the table has no column {missing[0]!r}. Its columns: {', '.join(table.column_names)}")
    columns = []
    for each in schema:
        column = one_array(table.column(each.name))
        bad = seen_nulls(column, each)
        if bad is not None:
            row = int(np.flatnonzero(bad)[0])
            raise ConfigError(f"the table has a null in row {row + 1}, column {each.name!r}, which is {field_text(each)}")
        try:
            columns.append(exactly(column, each.type))
        except (pa.ArrowException, ValueError) as error:
            raise ConfigError(f"the table does not fit its schema: column {each.name!r}: {error}") from error
    return pa.Table.from_arrays(columns, schema=schema)


def _table_of(rows: list[Any], schema: Any, name: str) -> pa.Table:
    if schema is None and rows and dataclasses.is_dataclass(rows[0]):
        schema = type(rows[0])
    if schema is None:
        return _inferred(rows, name)
    found = to_schema(schema)
    dicts = [as_dict(row, found) for row in rows]
    columns = [column_of([row.get(each.name) for row in dicts], each, name) for each in found]
    return pa.Table.from_arrays(columns, schema=found)


def column_of(values: list[Any], field: pa.Field, name: str, numbers: Iterable[int] | None = None) -> pa.Array:
    """Values as a column; of those that do not fit the first is named by the number of its row, counted from 1 if left out."""
    try:
        return to_array(values, field)
    except RowError:
        for number, value in zip(range(1, len(values) + 1) if numbers is None else numbers, values):
            try:
                to_array([value], field)
            except RowError as error:
                raise RowError(f"source {name!r}, row {number}: {error.message}", fix=error.fix) from None
        raise


def as_dict(row: Any, schema: pa.Schema) -> dict[str, Any]:
    """A row by column name, of whatever can stand for one."""
    if isinstance(row, dict):
        found = row
    elif dataclasses.is_dataclass(row) and not isinstance(row, type):
        found = dataclasses.asdict(row)
    elif isinstance(row, tuple) and hasattr(row, "_asdict"):
        found = row._asdict()
    elif len(schema) == 1:
        found = {schema.names[0]: row}
    else:
        raise ConfigError(
            f"{brief(row)} is not a row of {', '.join(schema.names)}, which is a dict or a dataclass",
            fix=Fix("memory.row", _as_dict_text(row, schema)),
        )
    unknown = [key for key in found if key not in schema.names]
    if unknown:
        raise ConfigError(f"a row has {unknown[0]!r}, which is no column. Columns: {', '.join(schema.names)}")
    return found


def _as_dict_text(row: Any, schema: pa.Schema) -> str:
    """A row as it should be written, if its values can be told."""
    if isinstance(row, (tuple, list)) and len(row) == len(schema):
        code = repr(dict(zip(schema.names, row)))
        if len(code) <= CODE_MAX:
            return f"Name its values. Write: {code}"
    return "Write each row as a dict, or as an object of a dataclass"


def _inferred(rows: list[Any], source: str) -> pa.Table:
    if not rows or not all(isinstance(row, dict) and row.keys() == rows[0].keys() for row in rows):
        raise ConfigError(
            "cannot tell the columns: without a schema all rows are dicts with the same keys, and there is at least one",
            fix=Fix("memory.schema", 'Write: schema="user string, n bigint"'),
        )
    for name in rows[0]:
        column_name(name)
    columns = [_guessed([row[name] for row in rows], name, source) for name in rows[0]]
    table = pa.Table.from_arrays(columns, names=list(rows[0]))
    for each in table.schema:
        if pa.types.is_timestamp(each.type) and each.type.tz is None:
            raise ConfigError(
                f"column {each.name!r} has times without a zone",
                fix=Fix("memory.zone", "Say the zone of each. Write: datetime(2026, 1, 31, 12, 30, tzinfo=UTC)"),
            )
    to_schema(table.schema)  # refuses names that are Penstock's own
    return table


def _guessed(values: list[Any], name: str, source: str) -> pa.Array:
    """A column of whatever type Arrow takes its values for."""

    def fails(rows: int) -> Exception | None:
        try:
            pa.array(values[:rows])
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
            return error
        return None

    if fails(len(values)) is None:
        return pa.array(values)
    row = bisect.bisect_left(range(1, len(values)), True, key=lambda rows: fails(rows) is not None)
    raise RowError(f"source {source!r}, row {row + 1}: {name}: {fails(row + 1)}")


class _MemoryReader(Reader):
    prompt = True

    def __init__(self, rows: pa.Table, position: int, columns: tuple[str, ...], batch: int) -> None:
        # A table without columns forgets how many rows it has, so one column stays until the end.
        self.rows = rows.select(list(columns or rows.column_names[:1]))
        self.columns = list(columns)
        self.position = position
        self.batch = batch
        self.told_end = False

    def poll(self, rows_max: int) -> Chunk | None:
        piece = self.rows.slice(self.position, min(rows_max, self.batch))
        self.position += piece.num_rows
        self.told_end = self.position >= self.rows.num_rows
        if not piece.num_rows:
            return Chunk(None, self.position, ended=True)
        (batch,) = piece.combine_chunks().to_batches()
        return Chunk(batch.select(self.columns), self.position, ended=self.told_end)

    def backlog(self) -> bool:
        return not self.told_end
