"""Accumulators: aggregates in pieces that can be computed apart and put together.

An aggregate over a stream is never computed at once. Rows of a batch become **partial** rows, one per key,
whose columns are accumulators; partial rows of equal keys **merge** into one, any number of times, in any
grouping; and the result is read off the last one (**finish**). A mean, for example, is a sum and a count
until then.

1. Merging is associative, so results do not depend on how rows were batched (floats only up to rounding, quantile
   sketches up to their error). It is commutative too, except where order is the point: in first, last and collect,
   what is merged first came first.
2. An accumulator column is called after its result: "total.sum", "total.n".
3. The order of output rows is not promised.
4. Count, sum, min, max and mean are `folds`: Arrow does them in one pass. All else are `slots`, which get the rows of
   each group.
5. With `retract`, rows carry `__change`: +1 for a row that comes, -1 for one that is taken back. What is linear and
   exact counts with signs (`signed`); all else keeps a `multiset`.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.expr.aggregates import Aggregate
from penstock.expr.build import build
from penstock.expr.evaluate import Evaluated, compile
from penstock.expr.folds import Folded, Slot, combine, merging, whole
from penstock.expr.grouping import group, group_and_list, keys_of, one_batch
from penstock.expr.listed import Listed
from penstock.expr.nodes import EVENT_TIME, Case, Literal, Node
from penstock.expr.quickgroups import apart
from penstock.expr.rowwise import either
from penstock.expr.segments import Bools, Segments, pairs
from penstock.expr.slots import Rows, Slots
from penstock.expr.udaf import BadRows, UserSlots
from penstock.tracebacks import joined

__all__ = ["CHANGE", "ROWS", "Accumulators"]

ROWS = "__rows"
"""The column with the number of input rows that a partial row stands for; with `retract`, of those left."""

CHANGE = "__change"
"""The column that says whether a row comes (+1) or is taken back (-1)."""

_TRUE = Literal(True, pa.bool_())


@dataclass(frozen=True)
class _Step:
    """One aggregate, ready to run: what evaluates its inputs, which rows count, and its accumulator columns."""

    evaluate: tuple[Callable[[pa.RecordBatch], Evaluated], ...]
    counts: Callable[[pa.RecordBatch], Evaluated] | None
    columns: Folded | Slots

    @functools.cached_property
    def names(self) -> list[str]:
        return [field.name for field in self.columns.fields]


@dataclass(frozen=True)
class _Inputs:
    """The inputs of one step, row by row, and where they count."""

    values: list[pa.Array]
    counts: pa.Array | None

    def filter(self, good: pa.Array) -> _Inputs:
        counts = None if self.counts is None else self.counts.filter(good)
        return _Inputs([values.filter(good) for values in self.values], counts)


class Accumulators:
    """The accumulators of several aggregates over rows of one schema.

    >>> from penstock.expr import col
    >>> batch = pa.record_batch({"k": ["a", "b", "a"], "n": [1, 2, 3]})
    >>> acc = Accumulators([("total", col("n").sum())], batch.schema)
    >>> partial, errors = acc.partial(batch, ["k"])
    >>> acc.finish(partial)[0].to_pylist()
    [4, 2]

    Args:
        schema: the columns of the rows, with `__time` if they have event time (`first` and `last` go by it).
        retract: rows can be taken back; every batch has `__change`.
    """

    def __init__(self, aggregates: Sequence[tuple[str, Aggregate]], schema: pa.Schema, *, retract: bool = False) -> None:
        self.results: list[pa.Field] = [aggregate.field(schema, name) for name, aggregate in aggregates]
        self.steps = [_step(name, aggregate, schema, retract) for name, aggregate in aggregates]
        self.fields: list[pa.Field] = [field for step in self.steps for field in step.columns.fields]
        self.schema = pa.schema(self.fields)
        self._rows = Slot(ROWS, "add" if retract else "count", pa.int64())
        self._retract, self._timed = retract, EVENT_TIME in schema.names
        self._listed = any(isinstance(step.columns, Slots) for step in self.steps)
        # Of the last batch: rows that were left out since an expression failed, or a user's aggregate refused them; and why.
        self._failed: list[tuple[Bools, str]] = []
        self._refused: dict[int, str] = {}

    @functools.cached_property
    def in_place(self) -> list[np.ufunc] | None:
        """What `combine` does to each column, if all of them can be whole numbers."""
        slots = [slot for step in self.steps if isinstance(step.columns, Folded) for slot in step.columns.slots]
        found = [fold for slot in slots if (fold := whole(slot)) is not None]
        return None if self._listed or len(found) < len(slots) else found

    def partial(
        self, batch: pa.RecordBatch, key_names: Sequence[str], *, grouped: bool = True
    ) -> tuple[pa.RecordBatch, np.ndarray | None]:
        """One row per distinct key: keys, accumulators and `__rows`; and which rows were left out as bad.

        A bad row counts nowhere: in no aggregate and not in `__rows`. The mask is None where no row is bad.

        Args:
            grouped: if False, a key may stand in several rows, where that is less work.
        """
        inputs, errors = self._inputs(batch)
        if errors is None and not self._listed:
            return self._partial(batch, key_names, inputs, None, grouped), None
        bad = np.zeros(batch.num_rows, np.bool_) if errors is None else np.array(errors)
        while True:
            good = ~bad if bad.any() else None
            try:
                return self._partial(batch, key_names, inputs, good), bad if good is not None else None
            except BadRows as found_bad:  # Each time some rows fewer, so it ends.
                rows = np.flatnonzero(~bad)[found_bad.rows]
                bad[rows] = True
                self._refused |= dict(zip(rows.tolist(), found_bad.reasons, strict=True))

    def failing(self, batch: pa.RecordBatch, key_names: Sequence[str]) -> np.ndarray | None:
        """The rows that `partial` would leave out, if those are all that is wanted of it."""
        return None if not self._listed and self._inputs(batch)[1] is None else self.partial(batch, key_names)[1]

    def _inputs(self, batch: pa.RecordBatch) -> tuple[list[_Inputs], pa.Array | None]:
        """What the steps are given, and the rows for which that failed."""
        inputs, errors = [], None
        self._failed, self._refused = [], {}
        for step in self.steps:
            found = [evaluate(batch) for evaluate in step.evaluate]
            counts = None if step.counts is None else step.counts(batch)
            for one in found if counts is None else (*found, counts):
                errors = either(errors, one.errors)
                if one.errors is not None:
                    self._failed.append((np.asarray(one.errors), one.reason or "the expression failed"))
            inputs.append(_Inputs([one.values for one in found], None if counts is None else counts.values))
        return inputs, errors

    def reasons(self, rows: Iterable[int]) -> list[str]:
        """Why each of these rows was left out of the last batch that `partial` got."""
        return [self._refused.get(row) or joined([why for mask, why in self._failed if mask[row]]) for row in rows]

    def merge(self, rows: pa.Table | pa.RecordBatch | Iterable[pa.RecordBatch], key_names: Sequence[str]) -> pa.RecordBatch:
        """One row per distinct key from rows of keys and accumulators, and of `__rows` if it is there."""
        batch = one_batch(rows)
        slots = [slot for step in self.steps if isinstance(step.columns, Folded) for slot in step.columns.slots]
        if ROWS in batch.schema.names:
            slots.append(self._rows)
        folds = [(merging(slot), batch.column(slot.name)) for slot in slots]
        keys = keys_of(batch, key_names)
        if not self._listed:
            return group(keys, folds, batch.num_rows)
        grouped, segments = group_and_list(keys, folds, batch.num_rows)
        made = [
            [] if isinstance(step.columns, Folded) else step.columns.merge(_columns(batch, step), segments) for step in self.steps
        ]
        return self._assembled(grouped, made, len(keys))

    def merge_some(self, rows: pa.RecordBatch, key_names: Sequence[str], which: Bools) -> pa.RecordBatch:
        """`merge`, if it is known which rows share a key with others."""
        if which.all():
            return self.merge(rows, key_names)
        return one_batch([rows.filter(pa.array(~which)), self.merge(rows.filter(pa.array(which)), key_names)])

    def combine(self, old: pa.RecordBatch, found: np.ndarray, new: pa.RecordBatch) -> pa.RecordBatch:
        """Row i of `old` and row i of `new` become one; where `found` is False there is no old row.

        What `merge` does for rows whose keys are known to be equal pairwise: no grouping, so it costs little for few rows.
        `__rows` is added up too where both have it.
        """
        segments = pairs(np.asarray(found, np.bool_)) if self._listed else None
        arrays: list[pa.Array] = []
        for step in self.steps:
            left, right = _columns(old, step), _columns(new, step)
            if isinstance(step.columns, Folded):
                slots = zip(step.columns.slots, left, right, strict=True)
                arrays += [_combined(slot, before, now, found) for slot, before, now in slots]
            else:
                assert segments is not None, "slots need segments"
                both = [pa.concat_arrays(columns) for columns in zip(left, right, strict=True)]
                arrays += step.columns.merge(both, segments)
        schema = self.schema
        if ROWS in old.schema.names and ROWS in new.schema.names:
            schema = schema.append(self._rows.field)
            arrays.append(_combined(self._rows, old.column(ROWS), new.column(ROWS), found))
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def empty(self) -> pa.RecordBatch:
        """One row of accumulators of no rows."""
        nothing = Segments(np.empty(0, np.int64), np.zeros(2, np.int64))
        arrays: list[pa.Array] = []
        for step in self.steps:
            if isinstance(step.columns, Folded):
                arrays += [pa.array([None if f.nullable else 0], f.type) for f in step.columns.fields]
            else:
                arrays += step.columns.merge([pa.array([], f.type) for f in step.columns.fields], nothing)
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    @property
    def lists(self) -> list[tuple[str, Listed]]:
        """The aggregates that are a list per key, which may be long, by name."""
        steps = zip(self.results, self.steps, strict=True)
        return [(field.name, step.columns) for field, step in steps if isinstance(step.columns, Listed)]

    @property
    def keeps(self) -> dict[str, str]:
        """What of these aggregates is kept, where the columns do not say it, by name."""
        steps = zip(self.results, self.steps, strict=True)
        return {field.name: step.columns.keeps for field, step in steps if step.columns.keeps}

    @property
    def added_up(self) -> list[str]:
        """The aggregates that are right only if they had every row that is taken back: they keep a sum, and not what is in it."""
        steps = zip(self.results, self.steps, strict=True)
        return [field.name for field, step in steps if self._retract and isinstance(step.columns, Folded | UserSlots)]

    def without_lists(self) -> Accumulators:
        """The accumulators of all others, to combine them."""
        others = copy.copy(self)
        others.steps = [step for step in self.steps if not isinstance(step.columns, Listed)]
        others.fields = [field for step in others.steps for field in step.columns.fields]
        others.schema = pa.schema(others.fields)
        others._listed = any(isinstance(step.columns, Slots) for step in others.steps)
        return others

    @property
    def can_unmerge(self) -> bool:
        """Whether what was merged can be taken apart again."""
        return all(step.columns.can_unmerge for step in self.steps)

    def unmerge(self, whole: pa.RecordBatch, part: pa.RecordBatch) -> pa.RecordBatch:
        """What was merged with row i of `part` to give row i of `whole`."""
        arrays = [a for step in self.steps for a in step.columns.unmerge(_columns(whole, step), _columns(part, step))]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def finish(self, rows: pa.RecordBatch) -> list[pa.Array]:
        """The result columns of accumulator rows, in the order of the aggregates."""
        return [step.columns.finish(_columns(rows, step)) for step in self.steps]

    def check(self, merged: pa.RecordBatch) -> Bools:
        """The rows from which more was taken back than had come: some count in them is negative.

        That is legal in partial rows, where the row taken back may be in the state, and an error of the input after
        they met the state. A `clamp` repairs such rows.
        """
        negative = np.zeros(merged.num_rows, np.bool_)
        for step in self.steps:
            negative |= step.columns.negative(_columns(merged, step))
        if ROWS in merged.schema.names:
            negative |= merged.column(ROWS).to_numpy() < 0
        return negative

    def clamp(self, merged: pa.RecordBatch) -> pa.RecordBatch:
        """The same rows without what is negative: as if what was taken back but had never come were not taken back."""
        columns = dict(zip(merged.schema.names, merged.columns))
        for step in self.steps:
            columns |= zip(step.names, step.columns.clamp(_columns(merged, step)))
        if ROWS in columns:
            columns[ROWS] = pc.max_element_wise(columns[ROWS], 0)
        return pa.RecordBatch.from_arrays(list(columns.values()), schema=merged.schema)

    def _partial(
        self, batch: pa.RecordBatch, key_names: Sequence[str], inputs: list[_Inputs], good: Bools | None, grouped: bool = True
    ) -> pa.RecordBatch:
        """The partial rows of the good rows."""
        hidden = [CHANGE] * self._retract + [EVENT_TIME] * (self._timed and self._listed)
        columns = {name: batch.column(name) for name in hidden}
        keys, rows = keys_of(batch, key_names), batch.num_rows
        if good is not None:
            mask = pa.array(good)
            rows = int(good.sum())
            keys = [(field, column.filter(mask)) for field, column in keys]
            inputs = [one.filter(mask) for one in inputs]
            columns = {name: column.filter(mask) for name, column in columns.items()}
        signs = columns[CHANGE].to_numpy().astype(np.int64) if self._retract else None
        folds: list[tuple[Slot, Any]] = []
        for step, one in zip(self.steps, inputs, strict=True):
            if isinstance(step.columns, Folded):
                values = one.values[0] if one.values else None
                folds += zip(step.columns.slots, step.columns.inputs(values, signs), strict=True)
        folds.append((self._rows, None if signs is None else pa.array(signs)))
        if not self._listed:
            return group(keys, folds, rows) if grouped else apart(keys, folds, rows)
        found, segments = group_and_list(keys, folds, rows)
        made: list[list[pa.Array]] = []
        for step, one in zip(self.steps, inputs, strict=True):
            if isinstance(step.columns, Folded):
                made.append([])
                continue
            counted = segments if one.counts is None else segments.known(one.counts)
            made.append(step.columns.partial(Rows(one.values, counted, columns.get(EVENT_TIME), signs)))
        return self._assembled(found, made, len(keys))

    def _assembled(self, grouped: pa.RecordBatch, made: list[list[pa.Array]], keys: int) -> pa.RecordBatch:
        """Keys, the columns of each step in turn, and `__rows`; those of folds were grouped, others are `made`."""
        arrays, fields = grouped.columns[:keys], list(grouped.schema)[:keys]
        for step, columns in zip(self.steps, made, strict=True):
            arrays += columns or _columns(grouped, step)
            fields += step.columns.fields
        if ROWS in grouped.schema.names:
            arrays.append(grouped.column(ROWS))
            fields.append(self._rows.field)
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def _step(name: str, aggregate: Aggregate, schema: pa.Schema, retract: bool) -> _Step:
    columns = build(name, aggregate, schema, retract=retract)
    nodes = _filtered(aggregate)
    # Null says that a row does not count, unless null may count itself.
    aside = aggregate.where is not None and isinstance(columns, Slots)
    counts = compile(Case(((aggregate.where, _TRUE),)), schema) if aside and aggregate.where is not None else None
    return _Step(tuple(compile(node, schema) for node in nodes), counts, columns)


def _filtered(aggregate: Aggregate) -> list[Node]:
    """The inputs as expressions that are null, and never fail, in rows that do not count."""
    if aggregate.where is None:
        return list(aggregate.inputs)
    return [Case(((aggregate.where, node),)) for node in aggregate.inputs or (_TRUE,)]


def _columns(batch: pa.RecordBatch, step: _Step) -> list[pa.Array]:
    return [batch.column(name) for name in step.names]


def _combined(slot: Slot, left: pa.Array, right: pa.Array, found: np.ndarray) -> pa.Array:
    """Two columns of one slot as one, row by row; null stands for nothing yet."""
    both = combine(slot, left, right)
    if both is not None:
        return both
    # The general way: group by row number.
    numbers = pa.array(np.concatenate([np.flatnonzero(found), np.arange(len(right))]))
    values = pa.concat_arrays([left.filter(pa.array(found)), right])
    grouped = group([(pa.field("row", pa.int64()), numbers)], [(merging(slot), values)], len(numbers))
    return grouped.column(1).take(pc.sort_indices(grouped.column(0)))
