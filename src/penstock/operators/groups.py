"""Which rows of a batch belong together: by key, by key and window.

Many rows are grouped as whole columns, without a Python step per row. Of few (`FEW`) a dict is the quicker way: what numpy and Arrow
need to begin, for a dozen calls, is more than a step per row. Which way it is, is decided here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.state.columns import key_list

Ints = np.ndarray[Any, np.dtype[np.int64]]
FEW = 64
_TOLD_APART = frozenset(
    type.id
    for type in (
        *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
        *(pa.bool_(), pa.string(), pa.binary(), pa.date32(), pa.timestamp("us"), pa.decimal128(1)),
    )
)
"""Kinds of values that Python finds equal when Arrow does. Floats are not: of them Python's NaN equals nothing."""


@dataclass(frozen=True, slots=True)
class Groups:
    """The groups of a batch's rows, numbered in the order in which they first come."""

    of: Ints  # the group of each row
    first: Ints  # the first row of each group
    count: Ints  # how many rows each has
    rank: Ints  # the number of each row within its group, from 0


def group_rows(batch: pa.RecordBatch, columns: Sequence[str]) -> Groups:
    """Group rows by columns; null equals null.

    >>> group_rows(pa.record_batch({"k": ["a", "b", "a"]}), ["k"]).rank
    array([0, 0, 1])
    """
    if batch.num_rows <= FEW:
        arrays = [batch.column(name) for name in columns]
        if all(array.type.id in _TOLD_APART for array in arrays):
            return _of_few(key_list(arrays) if arrays else [()] * batch.num_rows)
    codes = np.zeros(batch.num_rows, np.int64)
    for name in columns:
        column = batch.column(name)
        encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
        numbers = pc.fill_null(encoded.indices.cast(pa.int64()), len(encoded.dictionary)).to_numpy(zero_copy_only=False)
        # After each column codes are made dense again, so the product stays small.
        codes = np.unique(codes * (len(encoded.dictionary) + 1) + numbers, return_inverse=True)[1].reshape(-1)
    return numbered(codes)


def group_pairs(codes: Ints, others: Ints) -> Groups:
    """Groups of rows that are equal in two columns of numbers."""
    if len(codes) <= FEW:
        return _of_few(list(zip(codes.tolist(), others.tolist())))
    places = np.unique(others, return_inverse=True)[1].reshape(-1)
    return numbered(codes * (int(places.max()) + 1 if len(places) else 1) + places)


def numbered(codes: Ints) -> Groups:
    """Groups of equal codes."""
    if len(codes) <= FEW:
        return _of_few(codes.tolist())
    _, first, inverse, count = np.unique(codes, return_index=True, return_inverse=True, return_counts=True)
    order = np.argsort(first, kind="stable")  # old number -> by first row
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    of = place[inverse.reshape(-1)]
    return Groups(of, first[order], count[order], ranks(of))


def _of_few(keys: list[Any]) -> Groups:
    """Groups of equal keys."""
    numbers: dict[Any, int] = {}
    of: list[int] = []
    first: list[int] = []
    count: list[int] = []
    rank: list[int] = []
    for row, key in enumerate(keys):
        number = numbers.setdefault(key, len(first))
        if number == len(first):
            first.append(row)
            count.append(0)
        of.append(number)
        rank.append(count[number])
        count[number] += 1
    return Groups(np.array(of, np.int64), np.array(first, np.int64), np.array(count, np.int64), np.array(rank, np.int64))


def ranks(of: Ints) -> Ints:
    """The number of each row within its group, in the order of rows."""
    if len(of) <= FEW:
        return _of_few(of.tolist()).rank
    order = np.argsort(of, kind="stable")
    grouped = of[order]
    starts = np.flatnonzero(np.r_[True, grouped[1:] != grouped[:-1]]) if len(of) else np.empty(0, np.int64)
    lengths = np.diff(np.r_[starts, len(of)])
    rank = np.empty(len(of), np.int64)
    rank[order] = np.arange(len(of)) - np.repeat(starts, lengths)
    return rank
