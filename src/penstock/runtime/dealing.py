"""Dealing rows to the tasks of the next stage: by key group, order kept, in messages of bounded size.

A key's group comes from its hash. Where load is low batches are small and the same keys come again and again, so a task remembers
for some keys whose they are: a step in Python per key is less than the steps of the hash.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.operators.write import conform
from penstock.plan.physical import Exchange
from penstock.protocol.messages import Batch
from penstock.state.columns import key_list
from penstock.state.keygroups import canonical_keys, groups_of, hash_keys, owner

__all__ = ["FRAME_BYTES_MAX", "Dealer"]

FRAME_BYTES_MAX = 4 * 1024 * 1024
WEIGHED_MIN = 64 * 1024
FEW_ROWS = 512
REMEMBERED_MAX = 16_384


class Dealer:
    """What task `index` of a stage sends on."""

    def __init__(self, index: int, parallelism: int, max_parallelism: int) -> None:
        self._index, self._parallelism, self._max_parallelism = index, parallelism, max_parallelism
        self._known: dict[int, dict[Any, int]] = {}  # exchange -> key -> task
        self._widths: dict[int, int | None] = {}  # exchange -> bytes of a row, if all have as many

    def deal(self, exchange: Exchange, rows: pa.RecordBatch) -> Iterator[tuple[int, Batch]]:
        """Messages, and the task that each is for."""
        if rows.schema != exchange.schema:
            arrays = [conform(rows.column(f.name), f.type) for f in exchange.schema]
            rows = pa.RecordBatch.from_arrays(arrays, schema=exchange.schema)
        if exchange.id not in self._widths:
            self._widths[exchange.id] = width_of(exchange.schema)
        width = self._widths[exchange.id]
        # To weigh each part of a small batch would cost more than to deal it: a part has its share of the whole.
        whole = rows.get_total_buffer_size() if width is None else FRAME_BYTES_MAX + 1
        small = whole <= min(WEIGHED_MIN, FRAME_BYTES_MAX)
        for target, part in self._parts(exchange, rows):
            if small:
                yield target, Batch(part, part.num_rows, whole * part.num_rows // max(rows.num_rows, 1))
                continue
            for message in messages(part, width):
                yield target, message

    def _parts(self, exchange: Exchange, rows: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
        if exchange.keys is None:
            yield self._index, rows
            return
        if not exchange.keys:  # to every task
            yield from ((target, rows) for target in range(self._parallelism))
            return
        if self._parallelism == 1:
            yield 0, rows
            return
        order, bounds = self._order(exchange.id, canonical_keys(rows, exchange.keys))
        sorted_rows = rows if order is None else rows.take(order)
        for target, (start, stop) in enumerate(pairwise(bounds)):
            if stop > start:
                yield target, sorted_rows.slice(start, stop - start)

    def _order(self, exchange: int, keys: pa.RecordBatch) -> tuple[pa.Array | None, list[int]]:
        """The rows by task (None: as they are), and where those of each begin and end."""
        if keys.num_rows > FEW_ROWS:
            owners = self._owners(keys)
            order = np.argsort(owners, kind="stable")  # which numpy does by counting for so small a type
            return pa.array(order), np.searchsorted(owners[order], np.arange(self._parallelism + 1)).tolist()
        known, listed = self._known.setdefault(exchange, {}), key_list(keys)
        if not all(map(known.__contains__, listed)):
            if len(known) > REMEMBERED_MAX:
                known.clear()
            known.update(zip(listed, self._owners(keys).tolist()))
        rows: list[list[int]] = [[] for _ in range(self._parallelism)]
        for row, key in enumerate(listed):
            rows[known[key]].append(row)
        in_order, bounds = [row for each in rows for row in each], list(accumulate(map(len, rows), initial=0))
        # Often all go to one task: those of a batch of one row, say.
        return None if in_order == list(range(len(in_order))) else pa.array(in_order, pa.int64()), bounds

    def _owners(self, keys: pa.RecordBatch) -> np.ndarray[Any, np.dtype[np.int16]]:
        """The task of each key."""
        groups = groups_of(hash_keys(keys), self._max_parallelism)
        return owner(groups, self._parallelism, self._max_parallelism).astype(np.int16)


def width_of(schema: pa.Schema) -> int | None:
    """How many bytes a row has, with one for what may be null; None if not all have as many. Arrow's own count takes long."""
    if any(pa.types.is_dictionary(field.type) for field in schema):
        return None
    try:
        return sum(int(field.type.bit_width + 7) // 8 + bool(field.nullable) for field in schema)
    except ValueError:  # of texts, lists and the like
        return None


def messages(rows: pa.RecordBatch, width: int | None) -> Iterator[Batch]:
    """The rows in pieces of at most FRAME_BYTES_MAX, however uneven they are; a row that is larger travels alone."""
    size = rows.nbytes if width is None else rows.num_rows * width
    if size <= FRAME_BYTES_MAX or rows.num_rows == 1:
        yield Batch(rows, rows.num_rows, size)
        return
    half = rows.num_rows // 2
    yield from messages(rows.slice(0, half), width)
    yield from messages(rows.slice(half), width)
