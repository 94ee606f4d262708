"""Arrow columns as numpy arrays, and back: what the rest of the state works on.

Arrow arrays are immutable and may be slices; the overlay of a table needs arrays it can write to, and lookups
need arrays they can compare. This file is the border.

1. **Fixed-width** types (bool, integers, floats, dates, times, timestamps) are numpy arrays of their storage and a
   separate validity array. What stands under a null is arbitrary, and never looked at.
2. Strings and binary are laid out as Arrow's views; see `texts.py`.
3. Everything else (decimals, nested) is an object array of Python values, None for null.
4. Reading a column out copies, so what was read is independent of later writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

__all__ = [
    "BoxedColumn",
    "Column",
    "Comparer",
    "Given",
    "batch_of",
    "copied",
    "fixed_array",
    "fixed_values",
    "gathered",
    "grown",
    "key_list",
    "nulls_filled",
    "slot_dtype",
    "span",
    "validity",
]

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]
Values = npt.NDArray[Any]
Rows = Ints | slice
"""Numbers of rows, or some that follow each other."""
SPAN_FEW = 64
"""So many numbers are compared in Python."""
SLICED_FEW = 1_024


_OBJECT, _INT64 = np.dtype(object), np.dtype(np.int64)
_NUMBERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())
_FLOATS = (pa.float16(), pa.float32(), pa.float64())
_DTYPES: dict[int, np.dtype[Any]] = {
    pa.bool_().id: np.dtype(np.bool_),
    **{type.id: np.dtype(type.to_pandas_dtype()) for type in (*_NUMBERS, *_FLOATS)},
    **{type.id: np.dtype(np.int32) for type in (pa.date32(), pa.time32("s"))},
    **{type.id: np.dtype(np.int64) for type in (pa.date64(), pa.time64("us"), pa.timestamp("us"), pa.duration("us"))},
}
"""By the number that Arrow gives a kind of type, whatever its unit: it is asked for several times per column and batch."""
_LISTED = frozenset(type.id for type in (*_NUMBERS, pa.bool_(), pa.string(), pa.binary()))
"""Kinds whose Python values are as cheap as can be."""


def slot_dtype(type: pa.DataType) -> np.dtype[Any]:
    """The numpy type that holds one value of an Arrow type; `object` if it has no fixed width."""
    return _DTYPES.get(type.id, _OBJECT)


def validity(array: pa.Array) -> Bools | None:
    """Which rows are not null; None if all are."""
    if array.null_count == 0:
        return None
    bitmap = array.buffers()[0]
    if bitmap is None:  # of types that say it elsewhere
        valid: Bools = array.is_valid().to_numpy(zero_copy_only=False)
        return valid
    return _bits(bitmap, array.offset, len(array))


def _bits(buffer: pa.Buffer, offset: int, count: int) -> Bools:
    """Some of the bits of a buffer."""
    first, skip = divmod(offset, 8)
    packed = np.frombuffer(buffer, np.uint8)[first : first + (skip + count + 7) // 8]
    return np.unpackbits(packed, bitorder="little")[skip : skip + count].view(np.bool_)


def nulls_filled(column: pa.Array, missing: int = 0) -> Ints:
    """Numbers of 64 bits, with `missing` for null; nobody may write to them."""
    values, valid = fixed_values(column), validity(column)
    return values if valid is None else np.where(valid, values, missing)


def fixed_values(array: pa.Array, dtype: np.dtype[Any] | None = None) -> Values:
    """The storage of a fixed-width column, without a copy (but for bool, which Arrow packs in bits)."""
    dtype = slot_dtype(array.type) if dtype is None else dtype
    assert dtype is not _OBJECT, f"{array.type} has no fixed width"
    if len(array) == 0:
        return np.empty(0, dtype)
    buffer = array.buffers()[1]
    if dtype.kind == "b":
        return _bits(buffer, array.offset, len(array))
    return np.frombuffer(buffer, dtype, len(array), array.offset * dtype.itemsize)


def fixed_array(type: pa.DataType, values: Values, valid: Bools | None) -> pa.Array:
    """The Arrow column over `values`, which must not be written to afterwards."""
    nulls = 0 if valid is None else int(len(valid) - np.count_nonzero(valid))
    bitmap = pa.py_buffer(np.packbits(valid, bitorder="little")) if valid is not None and nulls else None
    storage = np.packbits(values, bitorder="little") if values.dtype.kind == "b" else values
    return pa.Array.from_buffers(type, len(values), [bitmap, pa.py_buffer(storage)], nulls)


def gathered(values: Any, rows: Ints | list[int]) -> Any:
    """Some rows of an array or a batch, by their numbers. Of a small one, rows that follow each other are a piece of it: no copy.

    >>> gathered(pa.array([7, 8, 9]), np.array([1, 2])).to_pylist()
    [8, 9]
    """
    count = len(rows)
    if count <= SPAN_FEW and len(values) <= SLICED_FEW:  # a piece keeps all of what it is a piece of
        numbers = rows if isinstance(rows, list) else rows.tolist()
        first = numbers[0] if count else 0
        if numbers == list(range(first, first + count)):
            return values if count == len(values) else values.slice(first, count)
    return values.take(pa.array(rows, pa.int64()))


def span(values: Values) -> tuple[int, int]:
    """The least and the greatest of some whole numbers, of which there is one or more. Of few Python finds them faster than numpy."""
    if len(values) <= SPAN_FEW:
        listed = values.tolist()
        return min(listed), max(listed)
    return int(values.min()), int(values.max())


def batch_of(schema: pa.Schema, arrays: Sequence[pa.Array], rows: int) -> pa.RecordBatch:
    """A batch that has `rows` rows even if it has no columns (a table without values is a set)."""
    if len(schema):
        return pa.RecordBatch.from_arrays(list(arrays), schema=schema)
    empty = pa.Array.from_buffers(pa.struct([]), rows, [None])
    return pa.RecordBatch.from_struct_array(empty)


def key_list(keys: pa.RecordBatch | Sequence[pa.Array]) -> list[Any]:
    """One hashable Python value per row: the value itself for one key column, a tuple for several.

    Dates and timestamps stand as their integers: cheaper to make and to hash than datetime objects.
    """
    lists = [_value_list(column) for column in (keys.columns if isinstance(keys, pa.RecordBatch) else keys)]
    return lists[0] if len(lists) == 1 else list(zip(*lists))


def _value_list(array: pa.Array) -> list[Any]:
    dtype = slot_dtype(array.type)
    if array.type.id in _LISTED or dtype is _OBJECT:
        values: list[Any] = array.to_pylist()
        return values
    values = fixed_values(array, dtype).tolist()
    valid = validity(array)
    if valid is not None:
        for row in np.flatnonzero(~valid).tolist():
            values[row] = None
    return values


@dataclass(frozen=True, slots=True)
class Given:
    """A column of a batch in the shape that slots have, to be compared with them. `valid` is None if no row is null."""

    array: pa.Array
    values: Values
    valid: Bools | None


class Column:
    """One growable column of slots, written and read by arrays of slot numbers; of a fixed-width type. See `column_for`.

    What stands in a slot that was never written is arbitrary.
    """

    def __init__(self, type: pa.DataType) -> None:
        self.type = type
        self.dtype = slot_dtype(type)
        self.values: Values = np.empty(0, self.dtype)
        self.valid: Bools = np.empty(0, np.bool_)
        self._nulls = False  # whether a null was ever put: otherwise nobody needs to look at `valid`

    @property
    def whole(self) -> bool:
        """Whether it holds whole numbers of 64 bits, and no null."""
        return self.dtype is _INT64 and not self._nulls

    def grow(self, capacity: int) -> None:
        """Make room for slots below `capacity`."""
        self.values = grown(self.values, capacity)
        self.valid = grown(self.valid, capacity)

    @property
    def text_bytes_max(self) -> int:
        """How many bytes of text there may be."""
        return 0

    def text_bytes(self, slots: Ints) -> Ints:
        """How many there are in each of these slots."""
        return np.zeros(len(slots), np.int64)

    def put(self, slots: Ints, array: pa.Array) -> None:
        """Write row i of `array` to `slots[i]`; of rows with the same slot the last stays."""
        assert array.type == self.type, f"column holds {self.type}, was given {array.type}"
        given = self.given(array)
        self.values[slots] = given.values
        self._put_valid(slots, given)

    def take(self, slots: Rows, found: Bools | None = None) -> pa.Array:
        """Row i is what stands in `slots[i]`, or null where `found[i]` is False."""
        return fixed_array(self.type, copied(self.values, slots), self._valid(slots, found))

    def given(self, array: pa.Array) -> Given:
        """A column to compare slots with."""
        return Given(array, fixed_values(array, self.dtype), validity(array))

    def equal(self, slots: Ints, given: Given, rows: Rows) -> Bools:
        """Whether `slots[i]` holds row `rows[i]` of what was given; null equals null."""
        return self._both_null_or(self.values.take(slots, mode="clip") == given.values[rows], slots, given, rows)

    def clear(self, slots: Ints) -> None:
        """Make these slots null, and let go of what they hold elsewhere."""
        self.valid[slots] = False

    def _put_valid(self, slots: Ints, given: Given) -> None:
        self.valid[slots] = True if given.valid is None else given.valid
        self._nulls |= given.valid is not None

    def _valid(self, slots: Rows, found: Bools | None) -> Bools | None:
        """Which of these slots are not null; None if all are."""
        if not self._nulls:
            return found
        return self.valid[slots] if found is None else self.valid[slots] & found

    def _both_null_or(self, same: Bools, slots: Ints, given: Given, rows: Rows) -> Bools:
        if not self._nulls and given.valid is None:
            return same
        here = self.valid[slots]
        if given.valid is None:
            return same & here
        there = given.valid[rows]
        return np.where(here & there, same, here == there)


class BoxedColumn(Column):
    """A column of whatever numpy has no type for, as Python values."""

    def grow(self, capacity: int) -> None:
        """Make room for slots below `capacity`."""
        self.values = grown(self.values, capacity)

    def put(self, slots: Ints, array: pa.Array) -> None:
        """Write row i of `array` to `slots[i]`; of rows with the same slot the last stays."""
        assert array.type == self.type, f"column holds {self.type}, was given {array.type}"
        self.values[slots] = self.given(array).values

    def take(self, slots: Rows, found: Bools | None = None) -> pa.Array:
        """Row i is what stands in `slots[i]`, or null where `found[i]` is False."""
        values = copied(self.values, slots)
        if found is not None:
            values[~found] = None
        return pa.array(values.tolist(), self.type)

    def given(self, array: pa.Array) -> Given:
        """A column to compare slots with."""
        return Given(array, np.fromiter(array.to_pylist(), np.dtype(object), len(array)), None)

    def equal(self, slots: Ints, given: Given, rows: Rows) -> Bools:
        """Whether `slots[i]` holds row `rows[i]` of what was given; null equals null."""
        same: Bools = self.values[slots] == given.values[rows]
        return same

    def clear(self, slots: Ints) -> None:
        """Let go of the Python objects in these slots."""
        self.values[slots] = None


def copied(values: Values, rows: Rows) -> Values:
    """What stands in these rows; of rows that follow each other several times as fast."""
    return values[rows].copy() if isinstance(rows, slice) else values[rows]


def grown(values: Values, capacity: int) -> Values:
    """A longer copy; what is new is zero, False or None."""
    assert capacity >= len(values), f"{capacity} slots is less than {len(values)}"
    longer = np.zeros((capacity, *values.shape[1:]), values.dtype)
    if values.dtype == np.dtype(object):
        longer[len(values) :] = None
    longer[: len(values)] = values
    return longer


class Comparer:
    """The key columns of a batch, ready to be compared with those of another, row by row.

    Null equals null here: a null key is a key.
    """

    def __init__(self, keys: Sequence[pa.Array]) -> None:
        self._columns = [_comparable(array) for array in keys]

    def equal(self, rows: Ints, other: Comparer, other_rows: Ints) -> Bools:
        """Whether key `rows[i]` of this batch equals key `other_rows[i]` of the other."""
        result = np.ones(len(rows), np.bool_)
        for (values, valid), (other_values, other_valid) in zip(self._columns, other._columns, strict=True):
            if isinstance(values, np.ndarray):
                same = values[rows] == other_values[other_rows]
            else:
                compared = pc.equal(values.take(pa.array(rows)), other_values.take(pa.array(other_rows)))
                same = compared.fill_null(False).to_numpy(zero_copy_only=False)
            if valid is not None or other_valid is not None:
                here = np.True_ if valid is None else valid[rows]
                there = np.True_ if other_valid is None else other_valid[other_rows]
                same = np.where(here & there, same, here == there)
            result &= same
        return result


def _comparable(array: pa.Array) -> tuple[Any, Bools | None]:
    if slot_dtype(array.type) == np.dtype(object):
        return array, validity(array)
    return fixed_values(array), validity(array)
