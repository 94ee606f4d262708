"""A Parquet file read row group by row group; the offset is [row group, row in it].

1. Only the wanted columns are read. A column the file lacks is an error of the file; a column of another type is
   converted if nothing is lost.
2. Row groups that hold no row within the bounds, by their own statistics, are not read.
3. A row with null where the schema says "not null" is a bad record. Parquet has no other kind: a file that cannot be
   decoded is an error.
"""

from __future__ import annotations

import functools
import operator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.connectors.connector import BadRecord, Bound, Json
from penstock.connectors.fileformat import FileReader, Piece
from penstock.errors import CorruptError, Fix, StorageError
from penstock.exact import exactly, exactly_batch, nullable, seen_nulls

__all__ = ["ParquetReader", "file_schema"]

SAMPLE_CHARS = 1_000
COMPARISONS = {"=": operator.eq, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}


def file_schema(path: Path) -> pa.Schema:
    """The columns a Parquet file says it has."""
    try:
        return pq.read_schema(path).remove_metadata()
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(path.name, error) from error


class ParquetReader(FileReader):
    """Rows of one Parquet file. One row group is in memory at a time."""

    def __init__(self, path: Path, name: str, offset: Json, schema: pa.Schema, bounds: tuple[Bound, ...] = ()) -> None:
        self.name = name
        self._schema = schema
        self._bounds = bounds
        self._size = path.stat().st_size
        self._file: pq.ParquetFile | None = None
        group, row = offset or (0, 0)
        self._group = int(group)
        self._row = int(row)
        self._batch: pa.RecordBatch | None = None  # the group's rows
        self._groups = 0
        self._useful: frozenset[int] = frozenset()  # groups that may hold rows within the bounds
        if self._size:  # an empty file has no rows rather than no footer
            self._open(path)

    def _open(self, path: Path) -> None:
        try:
            self._file = pq.ParquetFile(path, memory_map=True)
        except (pa.ArrowException, OSError) as error:
            raise _unreadable(self.name, error) from error
        self._groups = self._file.num_row_groups
        have = self._file.schema_arrow.names
        for name in self._schema.names:
            if name not in have:
                raise StorageError(f"{self.name!r} has no column {name!r}. Its columns: {', '.join(have)}")
        if self._group > self._groups:
            raise StorageError(f"{self.name!r} was read up to row group {self._group} and has {self._groups}: it was changed")
        self._useful = useful_groups(self._file, path, self._bounds, self._schema)
        self._skip_groups()

    @property
    def offset(self) -> Json:
        return [self._group, self._row]

    @property
    def finished(self) -> bool:
        return self._group >= self._groups

    @property
    def size(self) -> int:
        return self._size

    def read(self, rows_max: int) -> Piece | None:
        assert rows_max > 0, "a poll asks for at least one row"
        if self.finished:
            return None
        if self._batch is None:
            self._batch = self._read_group()
        group, first = self._group, self._row
        batch = self._batch.slice(first, rows_max)
        self._row += batch.num_rows
        if self._row >= self._batch.num_rows:
            self._group, self._row, self._batch = group + 1, 0, None
            self._skip_groups()
        return self._without_nulls(batch, group, first)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _skip_groups(self) -> None:
        while self._group < self._groups and self._group not in self._useful:
            self._group, self._row = self._group + 1, 0

    def _read_group(self) -> pa.RecordBatch:
        assert self._file is not None
        try:
            table = self._file.read_row_group(self._group, columns=self._schema.names, use_threads=False)
        except (pa.ArrowException, OSError) as error:
            raise _unreadable(self.name, error) from error
        arrays = []
        for field in self._schema:
            values = table.column(field.name).combine_chunks()
            if isinstance(values, pa.ChunkedArray):  # more than 2 GiB of text stays in pieces
                values = pa.concat_arrays(values.chunks)
            try:
                arrays.append(values if values.type == field.type else exactly(values, nullable(field.type)))
            except pa.ArrowException as error:
                raise StorageError(
                    f"column {field.name!r} of {self.name!r} is {values.type} and does not fit {field.type}: {error}"
                ) from error
        # Nulls are looked for afterwards, so the fields may be nullable here.
        return pa.RecordBatch.from_arrays(arrays, names=self._schema.names)

    def _without_nulls(self, batch: pa.RecordBatch, group: int, first: int) -> Piece:
        bad = np.zeros(batch.num_rows, bool)
        for field, values in zip(self._schema, batch.columns):
            found = seen_nulls(values, field)
            if found is not None:
                bad |= found
        if not bad.any():
            return Piece(exactly_batch(batch, self._schema))
        records = tuple(
            BadRecord(
                {"file": self.name, "offset": [group, first + int(row)]},
                "null in a column, or in a field inside it, that is not null",
                str(batch.slice(int(row), 1).to_pylist()[0])[:SAMPLE_CHARS],
            )
            for row in np.flatnonzero(bad)
        )
        good = batch.filter(pc.invert(pa.array(bad)))
        if not good.num_rows:
            return Piece(None, records)
        return Piece(exactly_batch(good, self._schema), records)


def useful_groups(file: pq.ParquetFile, path: Path, bounds: tuple[Bound, ...], schema: pa.Schema) -> frozenset[int]:
    """The row groups that have rows, and whose statistics allow for some within the bounds."""
    groups = frozenset(group for group in range(file.num_row_groups) if file.metadata.row_group(group).num_rows)
    own = file.schema_arrow
    # Values that are converted on reading may compare differently before it.
    conditions = [
        COMPARISONS[bound.comparison](pc.field(bound.column), pa.scalar(bound.value, own.field(bound.column).type))
        for bound in bounds
        if own.field(bound.column).type == schema.field(bound.column).type
    ]
    if not conditions:
        return groups
    import pyarrow.dataset as ds  # takes its time, and most pipelines do without
    from pyarrow.fs import LocalFileSystem

    fragment = ds.ParquetFileFormat().make_fragment(str(path), LocalFileSystem())
    found = fragment.subset(filter=functools.reduce(operator.and_, conditions), schema=own)
    return groups & {group.id for group in found.row_groups}


def _unreadable(name: str, error: Exception) -> CorruptError:
    return CorruptError(
        f"{name!r} cannot be read as Parquet: {error}",
        fix=Fix(
            "parquet.unfinished",
            "If it was still being written: write to a name that ends in .tmp, and rename it once it is whole",
        ),
    )
