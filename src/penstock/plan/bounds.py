"""Which rows a source may leave out, since the first thing that happens to them is a filter that drops them.

1. Only filters that directly follow the source count: event time, a function or a second reader would miss the rows.
2. A condition counts if it is made of comparisons between a column and a literal of its type, joined by `and`. Those never fail, so
   no row that is left out would have been an error. Floats do not count: NaN is greater than all numbers here, and not in files.
3. The filter stays in the plan. A source that leaves out nothing, or not all, is as right as one that does.
"""

from __future__ import annotations

import pyarrow as pa

from penstock.connectors.connector import Bound
from penstock.expr import comparisons
from penstock.plan.logical import Filter, Node, Read

SYMBOLS = {"equal": "=", "less": "<", "less_equal": "<=", "greater": ">", "greater_equal": ">="}


def source_bounds(read: Read, nodes: tuple[Node, ...]) -> tuple[Bound, ...]:
    """What all rows of a source that are not dropped at once have in common."""
    if not read.source.skips:
        return ()
    found: list[Bound] = []
    node: Node = read
    while True:
        readers = [other for other in nodes if node in other.inputs]
        if len(readers) != 1 or not isinstance(readers[0], Filter):
            return tuple(found)
        node = readers[0]
        compared = comparisons(node.condition)
        if compared is None:
            return tuple(found)
        for column, function, literal, kind in compared:
            if not _same(read.schema.field(column).type, kind, literal):
                return tuple(found)
            if function in SYMBOLS:
                found.append(Bound(column, SYMBOLS[function], literal))


def _same(column: pa.DataType, kind: pa.DataType, literal: object) -> bool:
    """Whether values of a column and the literal are ordered in the same way here and in files."""
    if pa.types.is_signed_integer(column) and pa.types.is_signed_integer(kind):
        assert isinstance(literal, int), "an integer literal"
        return bool(-(2 ** (column.bit_width - 1)) <= literal < 2 ** (column.bit_width - 1))
    return column == kind and bool(pa.types.is_string(kind) or pa.types.is_date32(kind) or pa.types.is_timestamp(kind))
