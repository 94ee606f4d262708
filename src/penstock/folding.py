"""Functions of two rows, for `reduce`: the row folded so far and the next one give the new folded row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock.errors import Fix, PlanError, RowError
from penstock.functions import RowFunction


@dataclass(frozen=True)
class ReduceFunction:
    """A function of two rows of one schema that returns such a row.

    >>> larger = ReduceFunction.of(lambda a, b: a if a.n > b.n else b, pa.schema({"n": pa.int64()}))
    >>> larger({"n": 1}, {"n": 2})
    {'n': 2}
    """

    name: str
    function: Callable[[Any, Any], Any]
    rows: RowFunction  # how rows become what the function takes, and back
    schema: pa.Schema

    @classmethod
    def of(cls, fn: Callable[[Any, Any], Any], schema: pa.Schema) -> ReduceFunction:
        """Read the annotations of `fn`; it must take all columns, since it makes whole rows."""
        name = getattr(fn, "__name__", type(fn).__name__)
        rows = RowFunction.of(fn, "map", schema, schema=schema)
        missing = [column for column in schema.names if column not in rows.columns]
        if missing:
            raise PlanError(
                f"{name} folds whole rows, and does not take the column {missing[0]!r}",
                fix=Fix("reduce.whole-rows", "Take a pen.Row, or a class with all columns"),
            )
        return cls(name, fn, rows, schema)

    def __call__(self, folded: dict[str, Any], row: dict[str, Any]) -> dict[str, Any]:
        """Fold one more row."""
        left, right = (self.rows.decode([[value[c]] for c in self.rows.columns], 1)[0] for value in (folded, row))
        values = dict(zip(self.schema.names, self.rows.encode(self.function(left, right))))
        for field in self.schema:
            if values[field.name] is None and not field.nullable:
                raise RowError(f"{self.name} returned null for {field.name!r}, which is not nullable")
        return values
