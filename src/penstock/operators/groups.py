"""Which rows of a batch belong together: by key, by key and window. On whole columns, without a Python step per row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Ints = np.ndarray[Any, np.dtype[np.int64]]


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
    codes = np.zeros(batch.num_rows, np.int64)
    for name in columns:
        column = batch.column(name)
        encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
        numbers = pc.fill_null(encoded.indices.cast(pa.int64()), len(encoded.dictionary)).to_numpy(zero_copy_only=False)
        # After each column codes are made dense again, so the product stays small.
        codes = np.unique(codes * (len(encoded.dictionary) + 1) + numbers, return_inverse=True)[1].reshape(-1)
    return numbered(codes)


def numbered(codes: Ints) -> Groups:
    """Groups of equal codes."""
    _, first, inverse, count = np.unique(codes, return_index=True, return_inverse=True, return_counts=True)
    order = np.argsort(first, kind="stable")  # old number -> by first row
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    of = place[inverse.reshape(-1)]
    return Groups(of, first[order], count[order], ranks(of))


def ranks(of: Ints) -> Ints:
    """The number of each row within its group, in the order of rows."""
    order = np.argsort(of, kind="stable")
    grouped = of[order]
    starts = np.flatnonzero(np.r_[True, grouped[1:] != grouped[:-1]]) if len(of) else np.empty(0, np.int64)
    lengths = np.diff(np.r_[starts, len(of)])
    rank = np.empty(len(of), np.int64)
    rank[order] = np.arange(len(of)) - np.repeat(starts, lengths)
    return rank
