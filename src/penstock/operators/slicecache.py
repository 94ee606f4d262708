"""The slices of the window that closed last, at hand for the next: of sixty, fifty-nine are the same.

A cache and no state: what is in it stands in the table as well. It holds all slices that the table has between the start of the
next window and `upto`, each with the number of its key. A row that falls into one of these makes it worthless.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from penstock.operators.operator import keep
from penstock.state.columns import key_list

Ints = np.ndarray[Any, np.dtype[np.int64]]


class SliceCache:
    """Slices with their accumulators; those of a key stand in order of time."""

    def __init__(self, upto: int) -> None:
        self.upto = upto
        self._numbers: dict[Any, int] = {}
        self._keys = np.empty(0, np.int64)
        self._slices = np.empty(0, np.int64)
        self._values: list[pa.RecordBatch] = []

    def add(self, keys: pa.RecordBatch, slices: Ints, values: pa.RecordBatch, upto: int) -> None:
        """Slices that are later than all that are here."""
        if len(slices):
            self._keys = np.concatenate([self._keys, self._number(keys)])
            self._slices = np.concatenate([self._slices, slices])
            self._values.append(values)
        self.upto = upto

    def of(self, keys: pa.RecordBatch) -> tuple[Ints, Ints, pa.RecordBatch]:
        """All slices of these keys: whose (as a row of `keys`), where they start, and their accumulators."""
        row = np.full(len(self._numbers) + keys.num_rows, -1)
        row[self._number(keys)] = np.arange(keys.num_rows)
        rows = row[self._keys]
        known = rows >= 0
        values = pa.concat_batches(self._values)
        self._values = [values]
        return rows[known], self._slices[known], keep(values, known)

    def drop(self, before: int) -> None:
        """Forget the slices before this time."""
        kept = self._slices >= before
        self._keys, self._slices = self._keys[kept], self._slices[kept]
        self._values = [keep(pa.concat_batches(self._values), kept)]

    @property
    def worn(self) -> bool:
        """Whether most of the keys it has numbers for are gone."""
        return len(self._numbers) > 1_000 + 4 * len(self._slices)

    def _number(self, keys: pa.RecordBatch) -> Ints:
        numbers = self._numbers
        return np.fromiter((numbers.setdefault(key, len(numbers)) for key in key_list(keys)), np.int64, keys.num_rows)
