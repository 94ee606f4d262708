"""Columns of strings or bytes, without a Python object per value: 16 bytes per slot, laid out as Arrow's string views.

    word 0:  length (32 bits) | the first four bytes
    word 1:  the other eight bytes, if there are at most twelve, or zeros; else the number of a chunk (32 bits) | where in it

So a string of up to twelve bytes is two integers: copied, compared and thrown away like any other. The bytes of a longer one
stand in a *chunk*.

1. Chunks are only added to. A string that is replaced leaves its bytes behind; when most bytes are such, those in use are
   copied to new chunks. Then each byte has been copied once or twice on average, whatever happens.
2. A null, and a slot that holds nothing, is two zeros.
3. Arrow reads views where they are and makes an ordinary string column of them, so reading out is one copy.
"""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.state.columns import Bools, BoxedColumn, Column, Given, Ints, Rows, slot_dtype, validity

__all__ = ["TextColumn", "column_for"]

Words = npt.NDArray[np.uint64]

_INLINE = 12
_FEW = 8
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_CHUNK_MIN = 1 << 16
_CHUNK_MAX = 1 << 30
"""Arrow's offsets are 32 bits with a sign."""


def column_for(type: pa.DataType) -> Column:
    """An empty column of slots for values of this type."""
    if type in (pa.string(), pa.binary()):
        return TextColumn(type)
    return BoxedColumn(type) if slot_dtype(type) == np.dtype(object) else Column(type)


class TextColumn(Column):
    """A column of strings or bytes."""

    def __init__(self, type: pa.DataType) -> None:
        super().__init__(type)
        self.values: Words = np.empty((0, 2), np.uint64)
        self._view_type = pa.string_view() if type == pa.string() else pa.binary_view()
        self._chunks: list[npt.NDArray[np.uint8]] = []
        self._end = 0  # of what is in use of the last chunk

    @property
    def text_bytes_max(self) -> int:
        """How many bytes of text there may be."""
        return sum(map(len, self._chunks)) + _INLINE * len(self.values)

    def text_bytes(self, slots: Ints) -> Ints:
        """How many there are in each of these slots."""
        return _lengths(self.values.take(slots, axis=0)).astype(np.int64)

    def put(self, slots: Ints, array: pa.Array) -> None:
        """Write row i of `array` to `slots[i]`; of rows with the same slot the last stays."""
        assert array.type == self.type, f"column holds {self.type}, was given {array.type}"
        given = self.given(array)
        words: Words = given.values
        long = np.flatnonzero(_lengths(words) > _INLINE)
        if len(long):
            words = words.copy()
            words[long, 1] = self._keep(array if len(long) == len(array) else array.take(pa.array(long)))
        self.values[slots] = words
        self._put_valid(slots, given)

    def take(self, slots: Rows, found: Bools | None = None) -> pa.Array:
        """Row i is what stands in `slots[i]`, or null where `found[i]` is False."""
        return self._views(slots, self._valid(slots, found)).cast(self.type)

    def given(self, array: pa.Array) -> Given:
        """A column to compare slots with: its views, of which those of long strings point into the column's own buffers."""
        valid = validity(array)
        if len(array) <= _FEW:
            words = _words_of_few(array)
            return Given(array, words if valid is None else np.where(valid[:, None], words, np.uint64(0)), valid)
        views = array.cast(self._view_type)
        words = np.frombuffer(views.buffers()[1] or b"", np.uint64).reshape(-1, 2)[views.offset : views.offset + len(views)]
        return Given(array, words if valid is None else np.where(valid[:, None], words, np.uint64(0)), valid)

    def equal(self, slots: Ints, given: Given, rows: Rows) -> Bools:
        """Whether `slots[i]` holds row `rows[i]` of what was given; null equals null."""
        mine, other = self.values.take(slots, axis=0), given.values[rows]
        same: Bools = mine[:, 0] == other[:, 0]
        long = np.flatnonzero(same & (_lengths(mine) > _INLINE))
        same &= mine[:, 1] == other[:, 1]
        if len(long):
            views = self._views(slots[long], self._valid(slots[long], None))
            compared = pc.equal(
                views.cast(self.type), given.array.take(pa.array(long if isinstance(rows, slice) else rows[long]))
            )
            same[long] = compared.fill_null(False).to_numpy(zero_copy_only=False)
        return self._both_null_or(same, slots, given, rows)

    def clear(self, slots: Ints) -> None:
        """The bytes are of no more use."""
        self.values[slots] = 0

    def _views(self, slots: Rows, valid: Bools | None) -> pa.Array:
        bitmap = None if valid is None or valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
        words = self.values[slots] if isinstance(slots, slice) else self.values.take(slots, axis=0)
        return pa.Array.from_buffers(self._view_type, len(words), [bitmap, *map(pa.py_buffer, (words, *self._chunks))])

    def _keep(self, array: pa.Array) -> Words:
        """Copy the bytes of long strings into a chunk; the second word of each."""
        data, offsets = _bytes(array)
        if not self._chunks or self._end + len(data) > len(self._chunks[-1]):
            self._make_room(len(data))
        start, self._end = self._end, self._end + len(data)
        self._chunks[-1][start : self._end] = data
        return _where(offsets + start, len(self._chunks) - 1)

    def _make_room(self, size: int) -> None:
        """A new chunk, of `size` bytes or more; and before that, let go of bytes that nobody uses if they are the most."""
        lengths = _lengths(self.values)
        long = np.flatnonzero(lengths > _INLINE)
        ends = np.cumsum(lengths[long])
        live = int(ends[-1]) if len(long) else 0
        if 2 * live < sum(map(len, self._chunks)):
            cuts = np.searchsorted(ends, np.arange(_CHUNK_MAX, max(live, 1), _CHUNK_MAX))
            parts = [(slots, self.take(slots)) for slots in np.split(long, cuts) if len(slots)]
            self._chunks = []
            for slots, array in parts:
                data, offsets = _bytes(array)
                self.values[slots, 1] = _where(offsets, len(self._chunks))
                self._chunks.append(data)
        self._chunks.append(np.empty(max(size, _CHUNK_MIN, min(live, _CHUNK_MAX)), np.uint8))
        self._end = 0


def _words_of_few(array: pa.Array) -> Words:
    """The two words of each string (0 for where a long one stands): of few, quicker than to have Arrow make views."""
    if not len(array):
        return np.empty((0, 2), np.uint64)
    _, offsets, data = array.buffers()
    ends = np.frombuffer(offsets, np.int32, len(array) + 1, array.offset * 4).tolist()
    read, words = memoryview(data or b""), []
    for start, end in itertools.pairwise(ends):
        size = end - start
        words.append(size | int.from_bytes(read[start : min(start + 4, end)], "little") << 32)
        words.append(int.from_bytes(read[start + 4 : end], "little") if 4 < size <= _INLINE else 0)
    return np.array(words, np.uint64).reshape(-1, 2)


def _bytes(array: pa.Array) -> tuple[npt.NDArray[np.uint8], Ints]:
    """The bytes of all strings one after the other, and where each starts."""
    offsets = np.frombuffer(array.buffers()[1], np.int32, len(array) + 1, array.offset * 4).astype(np.int64)
    return np.frombuffer(array.buffers()[2], np.uint8)[offsets[0] : offsets[-1]], offsets[:-1] - offsets[0]


def _where(offsets: Ints, chunk: int) -> Words:
    return offsets.astype(np.uint64) << _HALF | np.uint64(chunk)


def _lengths(words: Words) -> Words:
    return words[:, 0] & _LOW
