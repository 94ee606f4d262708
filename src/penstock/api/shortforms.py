"""Spark's DStream windows as thin forms of `window(...).aggregate(...)` and `window(...).reduce(...)`, and reduce for any window.

    DStream                      here
    countByWindow                stream.count_by_window("1m", every="10s", name=...)
    countByValueAndWindow        stream.count_by_value_and_window("1m", every="10s", name=...)
    reduceByWindow               stream.reduce_by_window(longer, "1m", every="10s", name=...)
    reduceByKeyAndWindow         stream.reduce_by_key_and_window(longer, "1m", by="k", every="10s", inverse=..., name=...)

Windows are of event time, as everywhere. Without `every` they stand side by side.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from penstock.expr import UserAggregate
from penstock.folding import ReduceFunction
from penstock.windows import Shape, sliding, tumbling


def window_of(size: Any, every: Any) -> Shape:
    """Windows of a size, side by side or one at every step."""
    return tumbling(size) if every is None else sliding(size, every=every)


class FoldRows(UserAggregate):
    """A function of two rows as an aggregate: the accumulator is no row, or the row folded so far.

    Rows are folded in the order they come, and what was folded apart (in slices, in sessions that became one) is folded together:
    the function must be associative.
    """

    def __init__(self, function: ReduceFunction) -> None:
        self.function = function
        row = pa.struct(list(function.schema))
        self.state, self.returns = pa.list_(row), row

    def create(self) -> Any:
        """Nothing yet."""
        return []

    def add(self, acc: Any, row: Any) -> Any:
        """One more row."""
        return self.merge(acc, [row])

    def merge(self, a: Any, b: Any) -> Any:
        """Two folded rows."""
        return [self.function(a[0], b[0])] if a and b else a or b

    def result(self, acc: Any) -> Any:
        """The folded row."""
        return acc[0] if acc else None


class InvertibleFold(FoldRows):
    """The same with a function that undoes it: `inverse(whole, part)`. How many rows there are says when none is left."""

    unmerges = True

    def __init__(self, function: ReduceFunction, inverse: ReduceFunction) -> None:
        super().__init__(function)
        self.inverse = inverse
        row = pa.struct(list(function.schema))
        self.state = pa.list_(pa.struct([pa.field("rows", pa.int64()), pa.field("row", row)]))

    def add(self, acc: Any, row: Any) -> Any:
        """One more row."""
        return self.merge(acc, [{"rows": 1, "row": row}])

    def merge(self, a: Any, b: Any) -> Any:
        """Two folded rows."""
        if not (a and b):
            return a or b
        return [{"rows": a[0]["rows"] + b[0]["rows"], "row": self.function(a[0]["row"], b[0]["row"])}]

    def unmerge(self, a: Any, b: Any) -> Any:
        """What was merged with `b` to give `a`."""
        if not b:
            return a
        left = a[0]["rows"] - b[0]["rows"]
        return [{"rows": left, "row": self.inverse(a[0]["row"], b[0]["row"])}] if left else []

    def result(self, acc: Any) -> Any:
        """The folded row."""
        return acc[0]["row"] if acc else None
