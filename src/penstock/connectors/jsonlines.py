"""JSON lines into Arrow: one object per line, only the wanted fields decoded.

pyarrow's reader decodes a whole block. It is lenient where a stream must not be, so three things are checked around
it: that each line is exactly one object, that the bytes are UTF-8, and that nothing is null where the schema says
"not null".

1. Fields that the schema does not have are ignored. A missing field is null.
2. A value of another type is a bad record; nothing is converted silently (`1.0` is no integer, `1` no string).
3. A timestamp is ISO 8601 with a zone ("2026-11-15T12:00:00.5Z", "+01:00"), or an integer: microseconds since 1970
   UTC. A column without time zone takes ISO text without a zone. A date is ISO text.
4. Of a field that stands twice in one object the last one counts.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.json as pj

from penstock.connectors.fileformat import Undecodable, check_utf8, has_forbidden_null
from penstock.connectors.jsontemplates import Templates
from penstock.connectors.lines import LineDecoder, line_breaks
from penstock.errors import ConfigError
from penstock.schema import type_name

__all__ = ["JsonLines"]

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class JsonLines(LineDecoder):
    """Decodes lines into the columns of `schema`: those that fit a template that way, which is faster, the others by pyarrow."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self._templates = Templates(schema)
        forms = [_read_as(schema, numbers=False), _read_as(schema, numbers=True)]
        # A stream has timestamps as text or as numbers; what worked last is tried first.
        self._forms = forms[:1] if forms[0] == forms[1] else forms

    def many(self, block: bytes) -> pa.RecordBatch:
        return self._templates.decode(block, self._exactly)

    def _exactly(self, block: bytes) -> pa.RecordBatch:
        """Whatever the lines look like."""
        if np.frombuffer(block, np.uint8).max(initial=0) >= 0x80:  # three times faster than `isascii`
            check_utf8(block)
        lines = _check_shape(block)
        problem: Exception | None = None
        for index, form in enumerate(self._forms):
            try:
                batch = self._decode(block, form)
            except pa.ArrowNotImplementedError as error:
                raise ConfigError(f"JSON cannot be read with this schema: {error}") from error
            except pa.ArrowInvalid as error:
                problem = error
                continue
            if index:
                self._forms.reverse()
            if batch.num_rows != lines:
                raise Undecodable(f"{lines} lines hold {batch.num_rows} objects")
            return batch
        raise Undecodable(str(problem))

    def one(self, line: bytes) -> pa.RecordBatch:
        found = _parse(line)
        arrays = [_column(found.get(field.name), field) for field in self.schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def strip(self, line: bytes) -> bytes:
        return line.strip(b" \t\r")

    def _decode(self, block: bytes, form: pa.Schema) -> pa.RecordBatch:
        table = pj.read_json(
            pa.BufferReader(block),
            read_options=pj.ReadOptions(use_threads=False, block_size=len(block) + 1),
            parse_options=pj.ParseOptions(explicit_schema=form, unexpected_field_behavior="ignore"),
        )
        arrays = []
        for field in self.schema:
            values = table.column(field.name)
            if has_forbidden_null(values, field):
                raise Undecodable(f"column {field.name!r} may not be null")
            if values.type != field.type:
                values = values.cast(field.type)
            arrays.append(values.chunk(0) if values.num_chunks == 1 else pa.concat_arrays(values.chunks))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def _read_as(schema: pa.Schema, *, numbers: bool) -> pa.Schema:
    """What pyarrow is asked for: times as text (its own parser takes no zone for UTC) or as numbers; cast afterwards."""
    fields = []
    for field in schema:
        kind = field.type
        if pa.types.is_timestamp(kind):
            # Numbers are microseconds whatever the column's unit is.
            kind = pa.int64() if numbers and kind.unit == "us" else pa.string()
        elif pa.types.is_date(kind):
            kind = pa.string()
        fields.append(pa.field(field.name, kind))
    return pa.schema(fields)


def _check_shape(block: bytes) -> int:
    """The number of lines, if each line's rows are its own.

    If every line starts with `{` and ends with `}`, no object can span two lines: between `}` and `{` JSON wants a
    comma. So as many objects as lines means one on each.
    """
    chars = np.frombuffer(block, np.uint8)
    breaks = line_breaks(block)
    last = chars[breaks - 1]
    if (last == 0x0D).any():
        last = chars[breaks - 1 - (last == 0x0D)]
    closed = (last == ord("}")).all()
    if not closed or chars[0] != ord("{") or not (chars[breaks[:-1] + 1] == ord("{")).all():
        raise Undecodable("not one object per line")
    return len(breaks)


def _parse(line: bytes) -> dict[str, Any]:
    try:
        # Decimal keeps every digit for decimal columns.
        found = json.loads(line.decode("utf-8"), parse_float=Decimal)
    except (ValueError, RecursionError) as error:
        raise Undecodable(f"not JSON: {error}") from error
    if not isinstance(found, dict):
        raise Undecodable(f"expected an object, found {_sample(found)}")
    return found


def _column(value: Any, field: pa.Field) -> pa.Array:
    """One value as a column of one row, or why it does not fit."""
    if value is None:
        if not field.nullable:
            raise Undecodable(f"column {field.name!r} is not null, and there is no value for it")
        return pa.nulls(1, field.type)
    problem = Undecodable(f"column {field.name!r} is {type_name(field.type)}, and the value is {_sample(value)}")
    sent = value
    if isinstance(value, Decimal) and pa.types.is_decimal(field.type):
        sent = str(value)
    elif pa.types.is_timestamp(field.type) and type(value) is int:
        try:
            sent = (EPOCH + timedelta(microseconds=value)).isoformat()
        except OverflowError:
            raise problem from None
        if field.type.tz is None:
            sent = sent.removesuffix("+00:00")
    line = json.dumps({field.name: sent}, default=float).encode() + b"\n"
    try:
        return JsonLines(pa.schema([field])).many(line).column(0)
    except Undecodable:
        raise problem from None


def _sample(value: Any) -> str:
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 80 else text[:77] + "..."
