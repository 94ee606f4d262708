"""Which templates a stream's lines have, and what becomes of lines that have none.

Lines with optional fields, or with null where others have a text, have several templates; those of the last blocks are remembered.
What fits none of them is decoded exactly, and comes back in its place.

1. The result is what the exact decoder alone would give. Only how fast it comes depends on templates.
2. If few lines fit, the next blocks are decoded exactly without a try: a stream of another kind loses next to nothing. Lines with
   records in them have so many quotes that one template must do: to tell the lines of several apart takes longer than to read them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from penstock.connectors.fileformat import check_utf8
from penstock.connectors.jsontemplate import Template
from penstock.connectors.linemarks import Lines, Places

__all__ = ["Templates"]

BYTES_MIN = 32 << 10
"""In less, both ways take about as long."""
TEMPLATES_MAX = 8
BLOCKS_WITHOUT = 31

Part = tuple[Places, pa.RecordBatch]
"""Numbers of lines, and their rows."""


class Templates:
    """The templates of lines that become rows of `schema`."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._known: list[Template] = []
        self._without = 0  # how many blocks to leave alone
        self._nested = any(map(pa.types.is_nested, schema.types))

    def decode(self, block: bytes, exactly: Callable[[bytes], pa.RecordBatch]) -> pa.RecordBatch:
        """A row for each line of `block`. `exactly` decodes any lines, or raises; so does this where they are not UTF-8."""
        if self._without or len(block) < BYTES_MIN:
            self._without -= bool(self._without)
            return exactly(block)
        if self._nested and not self._known and not self._alike(block):
            self._without = BLOCKS_WITHOUT
            return exactly(block)
        lines = Lines(block)
        if not lines.ascii:
            check_utf8(block)
        parts, rest = self._fitting(lines)
        if self._nested and (len(rest) or len(parts) > 1):
            self._without, self._known = BLOCKS_WITHOUT, []
        if 2 * len(rest) > len(lines):
            self._without = BLOCKS_WITHOUT
            return exactly(block)
        if len(rest):
            parts.append((rest, exactly(lines.only(rest))))
        if len(parts) == 1:
            return parts[0][1]
        order = np.argsort(np.concatenate([numbers for numbers, _ in parts]))
        return pa.concat_batches([rows for _, rows in parts]).take(pa.array(order))

    def _alike(self, block: bytes) -> bool:
        """Whether the first lines have one template."""
        start = block[:BYTES_MIN]
        parts, rest = self._fitting(Lines(start[: start.rfind(b"\n") + 1] or block))
        return len(parts) == 1 and not len(rest)

    def _fitting(self, lines: Lines) -> tuple[list[Part], Places]:
        """What fits templates, known ones or new ones, and the numbers of the other lines."""
        untried = lines.plain()
        found: list[tuple[Template, Part]] = []
        for template in self._known:
            untried = self._fit(template, lines, untried, found)
        while 16 * len(untried) > len(lines) and len(found) < TEMPLATES_MAX:
            learned = Template.learn(lines.text(int(untried[0])), self._schema)
            before = len(untried)
            if learned is not None:
                untried = self._fit(learned, lines, untried, found)
            if len(untried) == before:
                break  # the next line might do better, but so many that do not are a sign
        found.sort(key=lambda each: len(each[1][0]), reverse=True)
        self._known = [template for template, _ in found]
        rest = np.ones(len(lines), bool)
        for _, (numbers, _) in found:
            rest[numbers] = False
        return [part for _, part in found], np.flatnonzero(rest)

    def _fit(self, template: Template, lines: Lines, untried: Places, found: list[tuple[Template, Part]]) -> Places:
        """Add what fits to `found`; what is left."""
        if not len(untried):
            return untried
        try:
            numbers, rows = template.decode(lines, untried)
        except pa.ArrowInvalid:
            return untried  # some number is too large for its column, say; the exact decoder will tell which
        if len(numbers):
            found.append((template, (numbers, rows)))
        return np.setdiff1d(untried, numbers, assume_unique=True) if len(numbers) < len(untried) else untried[:0]
