"""Rows into one new file, as Parquet, JSON lines or CSV. What these files hold, `sources.files` reads back.

1. A file is written once, from start to end, under a name nobody else uses; `close` makes its bytes durable and describes them.
2. JSON: times as ISO 8601 with zone, dates as ISO, decimals as text (every digit), one object per line. A map is an object. NaN and
   infinities are the texts "NaN", "Infinity" and "-Infinity", as Spark's `to_json` writes them.
3. CSV: a header, null as nothing, texts in quotes.
"""

from __future__ import annotations

import abc
import json
import math
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pv
import pyarrow.parquet as pq

from penstock.connectors.durable import Hashed
from penstock.connectors.jsonmaps import has_map
from penstock.errors import ConfigError, Fix
from penstock.schema import to_rows

__all__ = ["FORMATS", "RowFile", "Written", "open_row_file"]

ROW_GROUP_ROWS = 1 << 17


@dataclass(frozen=True, slots=True)
class Written:
    """What a closed file holds."""

    rows: int
    bytes: int
    checksum: str


class RowFile(abc.ABC):
    """A file that takes batches of `schema`."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._file = Hashed(path)
        self._schema = schema
        self.rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        self.rows += batch.num_rows
        self._write(batch)

    def close(self) -> Written:
        """Finish the file and sync it."""
        self._finish()
        self._file.seal()
        return Written(self.rows, self._file.size, self._file.checksum)

    def abandon(self) -> None:
        """Close without a promise."""
        self._file.abandon()

    @abc.abstractmethod
    def _write(self, batch: pa.RecordBatch) -> None: ...

    def _finish(self) -> None:
        return None


class _Parquet(RowFile):
    """Small batches are gathered: a row group per batch would make files that are slow to read."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        super().__init__(path, schema)
        self._writer = pq.ParquetWriter(pa.PythonFile(self._file, mode="w"), schema, compression="zstd")
        self._gathered: list[pa.RecordBatch] = []
        self._gathered_rows = 0

    def _write(self, batch: pa.RecordBatch) -> None:
        self._gathered.append(batch)
        self._gathered_rows += batch.num_rows
        if self._gathered_rows >= ROW_GROUP_ROWS:
            self._write_group()

    def _write_group(self) -> None:
        if self._gathered:
            self._writer.write_table(pa.Table.from_batches(self._gathered))
            self._gathered, self._gathered_rows = [], 0

    def _finish(self) -> None:
        self._write_group()
        self._writer.close()


class _Json(RowFile):
    def __init__(self, path: Path, schema: pa.Schema) -> None:
        for field in schema:
            if pa.types.is_binary(field.type) or pa.types.is_large_binary(field.type):
                raise ConfigError(
                    f"column {field.name!r} is binary, which JSON cannot hold",
                    fix=Fix("file-sink.binary", f'Write: format="parquet", or col({field.name!r}).cast("string")'),
                )
        super().__init__(path, schema)
        self._has_maps = any(map(has_map, schema.types))

    def _write(self, batch: pa.RecordBatch) -> None:
        rows = to_rows(batch)
        if self._has_maps:
            rows = [{f.name: _with_objects(row[f.name], f.type) for f in self._schema} for row in rows]
        try:
            text = "\n".join(map(_ENCODER.encode, rows))
        except ValueError:  # JSON has no NaN and no infinities
            text = "\n".join(_ENCODER.encode(_finite(row)) for row in rows)
        self._file.write((text + "\n").encode())


class _Csv(RowFile):
    def __init__(self, path: Path, schema: pa.Schema) -> None:
        super().__init__(path, schema)
        self._writer = pv.CSVWriter(pa.PythonFile(self._file, mode="w"), schema)

    def _write(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch)

    def _finish(self) -> None:
        self._writer.close()


FORMATS: dict[str, type[RowFile]] = {"parquet": _Parquet, "json": _Json, "csv": _Csv}


def open_row_file(format: str, path: Path, schema: pa.Schema) -> RowFile:
    """A new file at `path`, which must not exist."""
    return FORMATS[format](path, schema)


def _plain(value: Any) -> Any:
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    raise ConfigError(
        f"values of the type {type(value).__name__} cannot be written as JSON",
        fix=Fix("file-sink.json", 'Write: format="parquet"'),
    )


_ENCODER = json.JSONEncoder(default=_plain, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _finite(value: Any) -> Any:
    """The value with text where a number is none."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list) else value


def _with_objects(value: Any, kind: pa.DataType) -> Any:
    """The value with objects for maps, which Arrow gives as lists of pairs."""
    if value is None or not has_map(kind):
        return value
    if pa.types.is_map(kind):
        return {str(key): _with_objects(item, kind.item_type) for key, item in value}
    if pa.types.is_struct(kind):
        return {field.name: _with_objects(value[field.name], field.type) for field in kind}
    return [_with_objects(item, kind.value_type) for item in value]
