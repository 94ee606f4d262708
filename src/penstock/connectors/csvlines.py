"""CSV lines into Arrow: RFC 4180, except that a value cannot contain a line break.

1. With a header, columns are found by name and their order is free; a wanted column that is missing is an error of
   the file. Without one, columns are those of the schema, in its order.
2. Nothing between two commas is null. In a text column that may not be null it is the empty text, and `""` is the
   empty text anywhere.
3. A line with too few or too many values, or a value of another type, is a bad record.
4. Timestamps are ISO 8601 with a zone (without, if the column has no time zone).
"""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pv

from penstock.connectors.fileformat import Undecodable
from penstock.connectors.lines import LineDecoder, line_breaks
from penstock.errors import ConfigError, StorageError

__all__ = ["CsvLines", "header_names"]


class CsvLines(LineDecoder):
    """Decodes lines with the columns `names` into those of `schema`."""

    def __init__(self, schema: pa.Schema, names: list[str], file: str) -> None:
        self.schema = schema
        self._names = names
        for name in schema.names:
            if names.count(name) != 1:
                problem = "has no" if name not in names else "has more than one"
                raise StorageError(f"{file!r} {problem} column {name!r}. Its header: {', '.join(names)}")
        self._convert = pv.ConvertOptions(
            column_types=schema,
            include_columns=schema.names,
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        )

    def many(self, block: bytes) -> pa.RecordBatch:
        # A lone \r would end a row for pyarrow, and an open quote swallow the lines that follow. Without the one, and with the
        # last line closed, as many rows as lines means one row on each.
        lines = len(line_breaks(block))
        if b"\r" in block and block.count(b"\r") != block.count(b"\r\n"):
            raise Undecodable("a carriage return stands alone")
        if b'"' in block and _ends_in_quotes(block[block.rfind(b"\n", 0, -1) + 1 :]):
            raise Undecodable("a quote is not closed on its line (values cannot contain line breaks)")
        try:
            table = pv.read_csv(
                pa.BufferReader(block),
                read_options=pv.ReadOptions(use_threads=False, column_names=self._names, block_size=len(block) + 1),
                convert_options=self._convert,
            )
        except pa.ArrowNotImplementedError as error:
            raise ConfigError(f"CSV cannot be read with this schema: {error}") from error
        except pa.ArrowInvalid as error:
            raise Undecodable(self._explain(str(error))) from error
        if table.num_rows != lines:
            raise Undecodable(f"{lines} lines hold {table.num_rows} rows")
        arrays = []
        for field in self.schema:
            values = table.column(field.name)
            if not field.nullable and values.null_count and pa.types.is_string(field.type):
                values = pc.fill_null(values, "")
            if not field.nullable and values.null_count:
                raise Undecodable(f"column {field.name!r} is not null, and there is no value for it")
            arrays.append(values.chunk(0) if values.num_chunks == 1 else pa.concat_arrays(values.chunks))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def apart(self, lines: Sequence[bytes]) -> tuple[pa.RecordBatch, dict[int, str]]:
        """There is no second reading of a line: it is refused again, and now told why."""
        assert len(lines) == 1, "more are halved"
        try:
            return self.many(lines[0] + b"\n"), {}
        except Undecodable as error:
            return pa.RecordBatch.from_pylist([], schema=self.schema), {0: str(error)}

    def strip(self, line: bytes) -> bytes:
        return line.removesuffix(b"\r")

    def _explain(self, message: str) -> str:
        found = re.match(r"In CSV column #(\d+): (?:Row #\d+: )?(.*)", message, re.DOTALL)
        if found is None:
            return re.sub(r"^CSV parse error: Row #\d+: ", "", message)
        return f"column {self._names[int(found[1])]!r}: {found[2]}"


def header_names(line: bytes, file: str) -> list[str]:
    """The column names in a header line."""
    try:
        text = line.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise StorageError(f"the header of {file!r} is not UTF-8: {error}") from error
    return next(csv.reader([text]), [])


def _ends_in_quotes(line: bytes) -> bool:
    """Whether the line ends inside quotes. As for pyarrow, a quote opens a value only where the value starts."""
    quoted = False
    start = True
    index = 0
    while index < len(line):
        char = line[index : index + 1]
        if quoted:
            if char == b'"':
                if line[index + 1 : index + 2] == b'"':
                    index += 1
                else:
                    quoted = False
        elif char == b'"' and start:
            quoted = True
        start = not quoted and char == b","
        index += 1
    return quoted
