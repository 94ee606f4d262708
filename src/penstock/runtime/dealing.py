"""Dealing rows to the tasks of the next stage: by key group, order kept, in messages of bounded size.

A key's group comes from its hash. Where load is low batches are small and the same keys come again and again, so a task remembers
for some keys whose they are: a step in Python per key is less than the steps of the hash.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise, repeat
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.operators.write import conform
from penstock.plan.physical import Exchange
from penstock.protocol.messages import Batch
from penstock.state.columns import key_list
from penstock.state.keygroups import canonical_keys, groups_of, hash_keys, owner

__all__ = ["FRAME_BYTES_MAX", "Dealer"]

FRAME_BYTES_MAX = 4 * 1024 * 1024
FEW_ROWS = 512
REMEMBERED_MAX = 16_384

Owners = npt.NDArray[np.int16]


class Dealer:
    """What task `index` of a stage sends on."""

    def __init__(self, index: int, parallelism: int, max_parallelism: int) -> None:
        self._index, self._parallelism, self._max_parallelism = index, parallelism, max_parallelism
        self._known: dict[int, dict[Any, int]] = defaultdict(dict)  # exchange -> key -> task

    def deal(self, exchange: Exchange, rows: pa.RecordBatch) -> Iterator[tuple[int, Batch]]:
        """Messages, and the task that each is for."""
        arrays = [conform(rows.column(f.name), f.type) for f in exchange.schema]
        rows = pa.RecordBatch.from_arrays(arrays, schema=exchange.schema)
        for target, part in self._parts(exchange, rows):
            for message in messages(part):
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
        owners = self._owners(exchange.id, canonical_keys(rows, exchange.keys))
        order = np.argsort(owners, kind="stable")  # which numpy does by counting for so small a type
        bounds = np.searchsorted(owners[order], np.arange(self._parallelism + 1)).tolist()
        sorted_rows = rows.take(pa.array(order))
        for target, (start, stop) in enumerate(pairwise(bounds)):
            if stop > start:
                yield target, sorted_rows.slice(start, stop - start)

    def _owners(self, exchange: int, keys: pa.RecordBatch) -> Owners:
        """The task of each key."""
        if keys.num_rows > FEW_ROWS:
            return self._hashed(keys)
        known, listed = self._known[exchange], key_list(keys)
        owners: Owners = np.fromiter(map(known.get, listed, repeat(-1)), np.int16, len(listed))
        if owners.min() < 0:
            if len(known) > REMEMBERED_MAX:
                known.clear()
            owners = self._hashed(keys)
            known.update(zip(listed, owners.tolist()))
        return owners

    def _hashed(self, keys: pa.RecordBatch) -> Owners:
        groups = groups_of(hash_keys(keys), self._max_parallelism)
        return owner(groups, self._parallelism, self._max_parallelism).astype(np.int16)


def messages(rows: pa.RecordBatch) -> Iterator[Batch]:
    """The rows in pieces of at most FRAME_BYTES_MAX, however uneven they are; a row that is larger travels alone."""
    size = rows.nbytes
    if size <= FRAME_BYTES_MAX or rows.num_rows == 1:
        yield Batch(rows, rows.num_rows, size)
        return
    half = rows.num_rows // 2
    yield from messages(rows.slice(0, half))
    yield from messages(rows.slice(half))
