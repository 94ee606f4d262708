"""Values that a state starts from: a table of keys and values, for a step that no snapshot knows.

A table is something in memory (Arrow, pandas, rows as dicts; it travels with the plan) or files (each task reads them and takes the
keys that are its own). It has the key columns by name, and the value: a column `value`, or a column per field of a class. (What
another job left is in `plan.inherited`.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet

from penstock.errors import Fix, PlanError, RowError
from penstock.exact import exactly
from penstock.processing.states import VALUE, AggregatingState, State
from penstock.processing.values import plain_maker
from penstock.schema import to_array


class Initial(Protocol):
    """Where the first values of one state come from."""

    def batches(self, groups: range, max_parallelism: int) -> Iterator[tuple[pa.RecordBatch, pa.RecordBatch]]:
        """Keys and values as the state's table holds them: at least those of the key groups."""


@dataclass(frozen=True, eq=False)
class InitialTable:
    """They come from a table."""

    state: State
    keys: tuple[pa.Field, ...]
    source: Any  # a pa.Table, or the path of files

    def __post_init__(self) -> None:
        if isinstance(self.source, pa.Table):
            self.rows()

    def batches(self, groups: range, max_parallelism: int) -> Iterator[tuple[pa.RecordBatch, pa.RecordBatch]]:
        """All there are."""
        yield self.rows()

    def rows(self) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """Keys, in the stream's types, and values."""
        field = self.state.fields()[0]
        table = self.source if isinstance(self.source, pa.Table) else read_files(Path(self.source), self._types(field))
        try:
            keys = [exactly(self._column(table, f.name), f.type) for f in self.keys]
            values = [self._value(table, field)]
        except (pa.ArrowException, KeyError) as error:
            raise PlanError(f"the initial values of state {self.state.name!r} do not fit: {error}") from None
        if values[0].null_count and not field.nullable:
            raise PlanError(f"the initial values of state {self.state.name!r} have a null, and it holds none")
        if self.state.ttl is not None:
            values.append(pa.nulls(table.num_rows, pa.int64()))
        names = [f.name for f in self.state.columns()]
        return (
            pa.RecordBatch.from_arrays(keys, names=[f.name for f in self.keys]),
            pa.RecordBatch.from_arrays(values, names=names),
        )

    def _types(self, field: pa.Field) -> dict[str, pa.DataType]:
        """What files in which everything is text are read as."""
        values = {inner.name: inner.type for inner in field.type} if pa.types.is_struct(field.type) else {VALUE: field.type}
        plain = {name: kind for name, kind in values.items() if not pa.types.is_nested(kind)}
        return plain | {key.name: key.type for key in self.keys}

    def _column(self, table: pa.Table, name: str) -> pa.Array:
        if name not in table.column_names:
            raise PlanError(
                f"the initial values of state {self.state.name!r} have no column {name!r}. Columns: {', '.join(table.column_names)}"
            )
        column = table.column(name).combine_chunks()
        return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column

    def _value(self, table: pa.Table, field: pa.Field) -> pa.Array:
        if VALUE in table.column_names or not pa.types.is_struct(field.type):
            return exactly(self._column(table, VALUE), field.type)
        parts = [exactly(self._column(table, inner.name), inner.type) for inner in field.type]
        return pa.StructArray.from_arrays(parts, fields=list(field.type))


def rows_table(rows: list[Any], state: State, keys: tuple[pa.Field, ...]) -> pa.Table:
    """Rows as Python has them, with values as the state would take them."""
    field, names = state.fields()[0], [key.name for key in keys]
    convert = plain_maker(field, state.name)
    values = []
    for row in rows:
        if not isinstance(row, dict) or any(name not in row for name in names):
            raise PlanError(f"initial= takes rows as dicts with {', '.join(names)} and a value, and got {row!r:.80}")
        value = row[VALUE] if VALUE in row else {name: item for name, item in row.items() if name not in names}
        values.append(value)
    try:
        columns = [to_array([row[key.name] for row in rows], key) for key in keys]
        columns.append(to_array([convert(value) for value in values], field))
    except RowError as error:
        raise PlanError(f"the initial values of state {state.name!r} do not fit: {error.message}", fix=error.fix) from None
    return pa.Table.from_arrays(columns, names=[*names, VALUE])


def initial_table(source: Any, state: State, keys: tuple[pa.Field, ...]) -> InitialTable:
    """What users may give, checked."""
    if isinstance(state, AggregatingState):
        raise PlanError(
            f"state {state.name!r}: an AggregatingState cannot start from a table",
            fix=Fix(
                "initial.aggregating", "Use a ValueState, or start from the same aggregate of a savepoint: pen.from_savepoint(…)"
            ),
        )
    return InitialTable(state, keys, _table(source, state, keys))


def _table(source: Any, state: State, keys: tuple[pa.Field, ...]) -> Any:
    """As a table, or as the path of files."""
    if isinstance(source, str | Path):
        path = Path(str(source).removeprefix("file://"))
        files_of(path)
        return str(path)
    if isinstance(source, pa.RecordBatch):
        return pa.Table.from_batches([source])
    if isinstance(source, pa.Table):
        return source
    if isinstance(source, list):
        return rows_table(source, state, keys)
    if hasattr(source, "toArrow"):  # a DataFrame of Spark
        return source.toArrow()
    if hasattr(source, "to_dict") and hasattr(source, "columns"):  # of pandas
        return pa.Table.from_pandas(source, preserve_index=False)
    raise PlanError(
        "initial= takes a table (Arrow, pandas, a list of dicts), a path or pen.from_savepoint(…),"
        f" and got {type(source).__name__}"
    )


def files_of(path: Path) -> list[Path]:
    """The files of a path; a PlanError if there are none that can be read."""
    found = sorted(p for p in path.rglob("*") if p.suffix in READERS) if path.is_dir() else [path]
    if not found or not all(p.is_file() and p.suffix in READERS for p in found):
        raise PlanError(f"there is nothing to read in {path}. Files end in {', '.join(READERS)}")
    return found


def read_files(path: Path, types: dict[str, pa.DataType]) -> pa.Table:
    """All rows of a file or folder."""
    return pa.concat_tables([READERS[p.suffix](p, types) for p in files_of(path)], promote_options="default")


def read_csv(path: Path, types: dict[str, pa.DataType]) -> pa.Table:
    """In a CSV file all is text: what it is, is said by who reads it (007 may be a name)."""
    return pyarrow.csv.read_csv(path, convert_options=pyarrow.csv.ConvertOptions(column_types=types))


READERS: dict[str, Callable[[Path, dict[str, pa.DataType]], pa.Table]] = {
    ".parquet": lambda path, types: pyarrow.parquet.read_table(path),
    ".csv": read_csv,
    ".jsonl": lambda path, types: pyarrow.json.read_json(path),
    ".json": lambda path, types: pyarrow.json.read_json(path),
}
