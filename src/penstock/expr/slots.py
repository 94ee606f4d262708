"""Slots: accumulators that Arrow's hash aggregation does not have, one class for each kind.

A class owns the accumulator columns of one aggregate. It makes them from rows (`partial`), makes one row of several
(`merge`) and reads the result off them (`finish`). All of it works on `Segments`: whole columns, group by group.

1. Merging is associative. Where the order of rows matters (first, last, collect), earlier rows come first in each
   segment, and what is merged keeps that order.
2. Rows for which the aggregate's condition is not true are gone before a slot sees them.
3. Numbers in columns of fixed width where possible: the state keeps those in arrays, and everything else as Python
   objects.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.exact import exactly
from penstock.expr.ordering import decoded, ordinals
from penstock.expr.promote import TIMESTAMP
from penstock.expr.segments import Bools, Ints, Segments, take_rows

__all__ = [
    "Edge",
    "Moments",
    "Rows",
    "Slots",
    "distinct_places",
    "is_root",
    "one_zero",
    "variances",
]


@dataclass(frozen=True)
class Rows:
    """Input rows: the values of the aggregate's expressions, the groups, event times, and +1 or -1 for each row."""

    inputs: list[pa.Array]
    segments: Segments
    times: pa.Array | None = None
    signs: Ints | None = None


class Slots:
    """The accumulator columns of one aggregate."""

    fields: list[pa.Field]
    keeps = ""
    """What its columns hold, as far as their names and types do not say: what holds something else cannot go on from them."""

    def partial(self, rows: Rows) -> list[pa.Array]:
        """One row of accumulators per group of input rows."""
        raise NotImplementedError

    def merge(self, columns: list[pa.Array], segments: Segments) -> list[pa.Array]:
        """One row of accumulators per group of accumulator rows."""
        raise NotImplementedError

    def finish(self, columns: list[pa.Array]) -> pa.Array:
        """The result of each row of accumulators."""
        raise NotImplementedError

    can_unmerge = False

    def unmerge(self, whole: list[pa.Array], part: list[pa.Array]) -> list[pa.Array]:
        """What was merged with `part` to give `whole`, row by row."""
        raise NotImplementedError

    def negative(self, columns: list[pa.Array]) -> Bools:
        """The rows that have lost more than they had."""
        return np.zeros(len(columns[0]), np.bool_)

    def clamp(self, columns: list[pa.Array]) -> list[pa.Array]:
        """The accumulators without what is negative."""
        return columns


class Moments(Slots):
    """Variance: the number of values, their mean, and the sum of squared distances from it (Chan's formula)."""

    def __init__(self, name: str, ddof: int, root: bool) -> None:
        self.fields = [
            pa.field(f"{name}.n", pa.int64(), nullable=False),
            pa.field(f"{name}.mean", pa.float64()),
            pa.field(f"{name}.m2", pa.float64()),
        ]
        self._ddof, self._root = ddof, root

    def partial(self, rows: Rows) -> list[pa.Array]:
        segments = rows.segments.known(rows.inputs[0])
        values = take_rows(decoded(rows.inputs[0]), segments).cast(pa.float64(), safe=False).to_numpy()
        number = segments.lengths
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):  # infinities: the result is NaN, as in Spark
            # Distances from a value of the group are small numbers, and exactly 0 where all values are equal.
            pivot = np.zeros(segments.groups)
            pivot[number > 0] = values[segments.offsets[:-1][number > 0]]
            shifted = values - segments.spread(pivot)
            shift = segments.reduce(np.add, shifted, 0.0) / np.maximum(number, 1)
            squares = segments.reduce(np.add, np.square(shifted - segments.spread(shift)), 0.0)
        return _moments(number, pivot + shift, squares)

    def merge(self, columns: list[pa.Array], segments: Segments) -> list[pa.Array]:
        numbers, means, squares = (
            pc.fill_null(take_rows(column, segments), 0).to_numpy(zero_copy_only=False) for column in columns
        )
        number = segments.reduce(np.add, numbers, 0)
        with np.errstate(invalid="ignore", over="ignore"):
            pivot = np.zeros(segments.groups)
            some = segments.lengths > 0
            pivot[some] = means[segments.offsets[:-1][some]]
            # An empty part has no mean: its weight is 0, but 0 times infinity would still be NaN.
            shifted = np.where(numbers > 0, means - segments.spread(pivot), 0.0)
            shift = segments.reduce(np.add, shifted * numbers, 0.0) / np.maximum(number, 1)
            between = np.where(numbers > 0, np.square(shifted - segments.spread(shift)), 0.0) * numbers
            total = segments.reduce(np.add, squares + between, 0.0)
        return _moments(number, pivot + shift, total)

    def finish(self, columns: list[pa.Array]) -> pa.Array:
        number = columns[0].to_numpy()
        squares = pc.fill_null(columns[2], 0.0).to_numpy(zero_copy_only=False)
        return variances(squares, number - self._ddof, self._root)


def _moments(number: Ints, mean: npt.NDArray[np.float64], squares: npt.NDArray[np.float64]) -> list[pa.Array]:
    none = number == 0
    return [pa.array(number), pa.array(mean, mask=none), pa.array(squares, mask=none)]


def variances(squares: npt.NDArray[np.float64], freedom: Ints, root: bool) -> pa.Array:
    """Sums of squares over degrees of freedom; null where there are none."""
    found = squares / np.maximum(freedom, 1)
    return pa.array(np.sqrt(found) if root else found, mask=freedom <= 0)


def is_root(kind: str) -> bool:
    """Whether it is the standard deviation that is asked for."""
    return kind == "stddev"


class Edge(Slots):
    """First and last: the value of the row with the least or greatest event time, or that came first or last.

    Of rows with the same time, first is the one that came first and last the one that came last.
    """

    def __init__(self, name: str, type: pa.DataType, *, last: bool, timed: bool, ignore_nulls: bool) -> None:
        # A null value may be the first one, so another column says whether there is any.
        mark = pa.field(f"{name}.time", TIMESTAMP) if timed else pa.field(f"{name}.seen", pa.bool_())
        self.fields = [pa.field(f"{name}.value", type), mark]
        self._last, self._timed, self._ignore_nulls = last, timed, ignore_nulls
        self.keeps = f"the {'last' if last else 'first'} value{' that is not null' if ignore_nulls else ''}"

    def partial(self, rows: Rows) -> list[pa.Array]:
        values, kind = decoded(rows.inputs[0]), self.fields[0].type
        values = exactly(values, kind) if pa.types.is_nested(kind) else values.cast(kind, safe=False)
        segments = rows.segments.known(values) if self._ignore_nulls else rows.segments
        if not self._timed:
            return self._chosen(values, pa.repeat(pa.scalar(True), len(values)), segments)
        assert rows.times is not None, "the schema has event time, and the batch has none"
        times = rows.times.cast(TIMESTAMP)
        return self._chosen(values, times, segments.known(times))

    def merge(self, columns: list[pa.Array], segments: Segments) -> list[pa.Array]:
        values, marks = columns
        return self._chosen(values, marks, segments.known(marks))

    def finish(self, columns: list[pa.Array]) -> pa.Array:
        return columns[0]

    def _chosen(self, values: pa.Array, marks: pa.Array, segments: Segments) -> list[pa.Array]:
        """The chosen row of each group; null where a group has none."""
        places = segments.offsets[1:] - 1 if self._last else segments.offsets[:-1]
        none = segments.lengths == 0
        if self._timed and len(segments.order):
            times = take_rows(marks, segments).cast(pa.int64()).to_numpy(zero_copy_only=False)
            best = segments.reduce(np.maximum if self._last else np.minimum, times, 0)
            ties = np.flatnonzero(times == segments.spread(best))
            if self._last:
                places = ties[np.maximum(np.searchsorted(ties, segments.offsets[1:]) - 1, 0)]
            else:
                places = ties[np.minimum(np.searchsorted(ties, segments.offsets[:-1]), len(ties) - 1)]
        rows = np.zeros(segments.groups, np.int64)
        rows[~none] = segments.order[places[~none]]
        chosen = pa.array(rows, mask=none)
        return [values.take(chosen), marks.take(chosen)]


def distinct_places(items: pa.Array, segments: Segments) -> Ints:
    """One place for each different item of each group, in order, as `items` are."""
    table = pa.table({"group": segments.ids, "key": ordinals(items), "place": np.arange(len(items))})
    found = table.group_by(["group", "key"], use_threads=False).aggregate([("place", "min")])
    return np.sort(found.column("place_min").to_numpy())


def one_zero(values: pa.Array) -> pa.Array:
    """Floats with one zero: to a count of different values, as in Spark, -0.0 and 0.0 are the same."""
    return pc.add(values, pa.scalar(0.0, values.type)) if pa.types.is_floating(values.type) else values
