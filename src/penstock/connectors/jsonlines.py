"""JSON lines into Arrow: one object per line, only the wanted fields decoded.

Lines of a known template are decoded by `jsontemplates`, other lines a block at once by `jsonblock`, and those in which something
is odd or bad by `jsonvalues`. What a line becomes is the same by all three; only how fast differs.

1. Fields that the schema does not have are ignored. A missing field is null.
2. A value of another type is a bad record; nothing is converted silently (`1.0` is no integer, `1` no string).
3. A timestamp is ISO 8601 with a zone ("2026-11-15T12:00:00.5Z", "+01:00"), or an integer: microseconds since 1970
   UTC. A column without time zone takes ISO text without a zone. A date is ISO text.
4. Of a field that stands twice in one object the last one counts.
5. A map is an object, whatever its keys.
6. NaN and Infinity are no numbers of JSON, and a number that its column cannot hold (1e400) is no value of it. As Spark writes them,
   they are text: "NaN", "Infinity" and "-Infinity" are values of a float or double.
7. Text is Unicode: a line with half of a surrogate pair (`\\ud800`) is a bad record, in whatever field it stands.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from penstock.connectors.fileformat import Undecodable
from penstock.connectors.jsonblock import BlockForm, check_lines, check_readable
from penstock.connectors.jsonmaps import has_map
from penstock.connectors.jsontemplates import Templates
from penstock.connectors.jsonvalues import decode_values
from penstock.connectors.lines import LineDecoder

__all__ = ["JsonLines"]


class JsonLines(LineDecoder):
    """Decodes lines into the columns of `schema`: those that fit a template that way, which is faster, the others by pyarrow."""

    lines_apart = 64
    """Of fewer lines the search for a bad one costs more than to look at each."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self._templates = Templates(schema)
        self._form = BlockForm(schema)
        for field in schema:
            check_readable(field.type, field.name)
        self._maps = any(map(has_map, schema.types))

    def many(self, block: bytes) -> pa.RecordBatch:
        return self._exactly(block) if self._maps else self._templates.decode(block, self._exactly)

    def apart(self, lines: Sequence[bytes]) -> tuple[pa.RecordBatch, dict[int, str]]:
        return decode_values(lines, self.schema)

    def strip(self, line: bytes) -> bytes:
        return line.strip(b" \t\r")

    def _exactly(self, block: bytes) -> pa.RecordBatch:
        """Whatever the lines look like."""
        lines = check_lines(block)
        batch = self._form.read(block)
        if batch.num_rows != lines:
            raise Undecodable(f"{lines} lines hold {batch.num_rows} objects")
        return batch
