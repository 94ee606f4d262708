"""Results from a multiset: what an aggregate is of the values that remain.

Floats are added by `math.fsum`, which rounds once, so a sum does not depend on what came and went before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import Fix, PlanError
from penstock.expr.aggregates import Aggregate
from penstock.expr.multiset import Entries, Multiset
from penstock.expr.segments import Ints, list_array
from penstock.expr.slots import is_root, one_zero

__all__ = ["multiset", "quantile_slots"]


def multiset(name: str, aggregate: Aggregate, schema: pa.Schema, *, timed: bool) -> Multiset:
    """The slots of an aggregate that is not linear, over rows that can be taken back."""
    found = aggregate.input_type(schema)
    match aggregate.kind:
        case "min":
            return Multiset(name, found, lambda entries: _at_edge(entries, last=False))
        case "max":
            return Multiset(name, found, lambda entries: _at_edge(entries, last=True))
        case "first" | "last":
            return _edge(name, aggregate, found, timed)
        case "collect":
            return Multiset(name, found, lambda entries: _expanded(entries, pa.list_(found)))
        case "top_k":
            return Multiset(name, found, lambda entries: _top(entries, aggregate.options[0], pa.list_(found)))
        case "count_distinct":
            return Multiset(
                name, found, lambda entries: pa.array(entries.segments.lengths), prepare=one_zero, sized=True, keeps="each once"
            )
        case "sum" | "mean" | "variance" | "stddev":
            return Multiset(name, pa.float64(), lambda entries: _per_key(entries, _moment(aggregate)))
    raise AssertionError(f"{aggregate.kind} needs no multiset")


def quantile_slots(name: str, aggregate: Aggregate) -> Multiset:
    """An exact quantile: the least value such that at least this share of the values is not greater."""
    shares, several = aggregate.options[:2]
    return Multiset(
        name, pa.float64(), lambda entries: _quantiles(entries, shares, several), prepare=_without_nan, keeps="but NaN"
    )


def _without_nan(values: pa.Array) -> pa.Array:
    return one_zero(pc.if_else(pc.is_nan(values), pa.scalar(None, values.type), values))


def _edge(name: str, aggregate: Aggregate, found: pa.DataType, timed: bool) -> Multiset:
    if not timed:
        raise PlanError(
            f"{aggregate.text()}: rows that can be taken back have no order of arrival",
            fix=Fix(
                "retract.order",
                "Take min() or max(), or make the rows before it in a window of event time. "
                'Write: .window(pen.tumbling("1m"), emit="retract")',
            ),
        )
    last = aggregate.kind == "last"
    nulls, keeps = not aggregate.options[0], "but nulls" if aggregate.options[0] else "nulls too"
    return Multiset(name, found, lambda entries: _at_edge(entries, last=last), timed=True, nulls=nulls, keeps=keeps)


def _at_edge(entries: Entries, *, last: bool) -> pa.Array:
    none = entries.segments.lengths == 0
    places = entries.offsets[1:] - 1 if last else entries.offsets[:-1]
    return entries.values.take(pa.array(np.where(none, 0, places), mask=none))


def _expanded(entries: Entries, type: pa.DataType) -> pa.ListArray:
    """Each value as often as it is there."""
    places = np.repeat(np.arange(len(entries.counts)), entries.counts)
    return list_array(entries.values.take(pa.array(places)), _ends(entries), type)


def _ends(entries: Entries) -> Ints:
    """Where the values of each key end, if each stands as often as it is there."""
    found: Ints = np.concatenate([[0], np.cumsum(entries.counts)])[entries.offsets]
    return found


def _top(entries: Entries, k: int, type: pa.DataType) -> pa.ListArray:
    few = Entries(entries.values, np.minimum(entries.counts, k), entries.offsets)
    ends = _ends(few)
    kept = np.minimum(np.diff(ends), k)
    offsets = np.concatenate([[0], np.cumsum(kept)])
    # Place j of a list is the j-th from the end of the key's values.
    groups = np.repeat(np.arange(len(kept)), kept)
    from_end = np.arange(offsets[-1]) - offsets[groups]
    places = np.repeat(np.arange(len(few.counts)), few.counts)[ends[1:][groups] - 1 - from_end]
    return list_array(few.values.take(pa.array(places)), offsets, type)


def _quantiles(entries: Entries, shares: Sequence[float], several: bool) -> pa.Array:
    ends = _ends(entries)
    number, none = np.diff(ends), entries.segments.lengths == 0
    totals = np.cumsum(entries.counts)
    columns = []
    for share in shares:
        rank = np.maximum(np.ceil(share * number).astype(np.int64), 1)
        places = np.searchsorted(totals, ends[:-1] + rank)
        columns.append(entries.values.take(pa.array(np.where(none, 0, places), mask=none)))
    if not several:
        return columns[0]
    rows = [None if empty else list(row) for empty, row in zip(none, zip(*(c.to_pylist() for c in columns)))]
    return pa.array(rows, pa.list_(pa.float64()))


Moment = Callable[[list[float], list[int]], float | None]


def _per_key(entries: Entries, moment: Moment) -> pa.Array:
    values, counts, ends = entries.values.to_pylist(), entries.counts.tolist(), entries.offsets.tolist()
    return pa.array([moment(values[a:b], counts[a:b]) if b > a else None for a, b in pairwise(ends)], pa.float64())


def _moment(aggregate: Aggregate) -> Moment:
    match aggregate.kind:
        case "sum":
            return exact_sum
        case "mean":
            return lambda values, counts: exact_sum(values, counts) / sum(counts)
    root, ddof = is_root(aggregate.kind), aggregate.options[0]

    def variance(values: list[float], counts: list[int]) -> float | None:
        number = sum(counts)
        if number <= ddof:
            return None
        mean = exact_sum(values, counts) / number
        found = exact_sum([(value - mean) ** 2 for value in values], counts) / (number - ddof)
        return math.sqrt(found) if root else found

    return variance


def exact_sum(values: list[float], counts: list[int]) -> float:
    """The nearest double to the sum of each value times its count.

    >>> exact_sum([1e16, 1.0, -1e16], [1, 3, 1])
    3.0
    """
    if not all(map(math.isfinite, values)):
        return sum(values)  # an infinity or NaN: finite values, and how many there are, do not matter
    try:
        return math.fsum(_terms(values, counts))
    except OverflowError:
        exact = sum(Fraction(value) * count for value, count in zip(values, counts))
        try:
            return float(exact)
        except OverflowError:
            return math.inf if exact > 0 else -math.inf


def _terms(values: list[float], counts: list[int]) -> Iterator[float]:
    """Doubles that add up to each value times its count: a power of two times a value is exact."""
    for value, count in zip(values, counts):
        power = 0
        while count:
            if count & 1:
                yield math.ldexp(value, power)
            count, power = count >> 1, power + 1
