"""Aggregates that keep the values of a key: what a store needs to know to keep many of them apart from the key's row.

The accumulator of such an aggregate is a list per key. As long as it is short it is a column like any other. A long one can be
taken apart into **entries** (a value, how often it is there, whose it is), of which each has an **identity**: columns that are
equal where two entries are one. `operators.values` keeps them.

1. An identity compares across batches and tasks, unlike `ordinals`, which ranks texts within one array.
2. Entries of one key are put together in the order in which they first came.
3. A list of a process function (`Items`) is such a list, too, whose entries are all kept.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.expr.ordering import groupable, ordinals
from penstock.expr.segments import Ints, Segments, flattened, list_array
from penstock.expr.slots import Slots

__all__ = ["Apart", "Items", "Listed", "identity_of", "identity_type", "put_at", "tables_of"]

INLINE = 64
"""A list of so many entries is in its key's row; a longer one stands apart."""


@dataclass(frozen=True)
class Apart:
    """The entries of some lists: `owners` says of which list each is; `counts` is None if each is there once."""

    items: pa.Array
    owners: Ints
    counts: Ints | None


class Listed(Slots):
    """Slots of one list per key, which grows with the key's values.

    item      the type of an entry in a chunk (or its field): the value, with its time where that matters
    identity  the columns that tell entries apart; none: all are kept, also equal ones
    counted   whether an entry can be there several times, and be taken back
    sized     whether the result is how many different values there are
    """

    item: pa.DataType
    identity: tuple[pa.Field, ...] = ()
    counted = False
    sized = False

    def taken_apart(self, lists: pa.ListArray) -> Apart:
        """The entries of lists, in order; null is an empty list."""
        items, segments = flattened(lists, Segments(np.arange(len(lists)), np.arange(len(lists) + 1)))
        return Apart(items, segments.ids, None)

    def identities(self, items: pa.Array) -> list[pa.Array]:
        """The columns that tell these entries apart."""
        return [identity_of(items)] if self.identity else []

    def put_together(self, items: pa.Array, counts: Ints | None, offsets: Ints) -> pa.ListArray:
        """One list per key again."""
        return list_array(items, offsets, self.fields[0].type)


class Items(Listed):
    """A list that is kept as it was made, nulls and all."""

    def __init__(self, name: str, item: pa.Field) -> None:
        self.item = item  # a field: whether items may be null is part of the type of their list
        self.fields = [pa.field(name, pa.list_(item))]


def identity_type(type: pa.DataType) -> pa.DataType:
    """The type of the column that tells values of a type apart: one that a key may have."""
    is_ = pa.types
    if is_.is_integer(type) or is_.is_floating(type) or is_.is_temporal(type) or is_.is_boolean(type):
        return pa.int64()
    if is_.is_binary(type) or is_.is_large_binary(type) or is_.is_fixed_size_binary(type):
        return pa.binary()
    return pa.string()


def identity_of(values: pa.Array) -> pa.Array:
    """What is equal where the values are; null for null.

    >>> identity_of(pa.array(["b", None])).to_pylist(), identity_of(pa.array([2.0, -0.0])).to_pylist()
    (['b', None], [4611686018427387904, -1])
    """
    wanted = identity_type(values.type)
    if wanted == pa.int64():
        known = values.is_valid().to_numpy(zero_copy_only=False) if values.null_count else None
        return pa.array(ordinals(values), mask=None if known is None else ~known)
    return groupable(values).cast(wanted) if wanted == pa.string() else pc.cast(values, wanted)


def put_at(column: pa.Array, at: Ints, values: pa.Array) -> pa.Array:
    """The column with other values in some rows."""
    order = np.arange(len(column))
    order[at] = len(column) + np.arange(len(at))
    return pa.concat_arrays([column, values.cast(column.type)]).take(pa.array(order))


SIZES, CHUNKS, COUNTS = "sizes", "chunks", "counts"
CHUNK, VALUES = "__chunk", "__values"
SIZE_FIELDS = [pa.field(f"__{name}", pa.int64(), nullable=False) for name in ("chunks", "last", "held", "there")]
"""Of a key whose values stand apart: its chunks, the entries of the last one, those of all, and how many of them count."""


def tables_of(name: str, listed: Listed) -> list[tuple[str, list[pa.Field], list[pa.Field]]]:
    """The tables for the values of an aggregate or a state: their names, the key columns after the step's own, and the value columns."""
    tables = [
        (f"{name}-{SIZES}", [], SIZE_FIELDS),
        (f"{name}-{CHUNKS}", [pa.field(CHUNK, pa.int64())], [pa.field(VALUES, pa.list_(listed.item))]),
    ]
    if listed.identity:
        count = [pa.field("__count", pa.int64(), nullable=False)] if listed.counted else []
        tables.append((f"{name}-{COUNTS}", list(listed.identity), count))
    return tables
