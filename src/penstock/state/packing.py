"""Rows as bytes, and back, a batch at a time: how rows are kept outside of Arrow.

A row is a *head*, which has the same width in all rows, and a *tail*:

    prefix | one byte per column, 1 if it is there | fixed-width values | uint32 length of each other value || those values…

1. The prefix is the caller's, to sort by. Equal rows are equal bytes: what stands under a null is zeros. So packed keys can be looked up.
2. Fixed-width values stand as Arrow stores them, strings and binary as their bytes, a struct as the row of its fields. A
   list is empty bytes if it has no elements, else uint32 count, uint32 length of each element, elements as rows.
3. All heads are one numpy array. Only joining heads to tails, and packing lists, costs a step in Python per row.

These bytes are no file format: they live as long as the process that made them.

    >>> packing = Packing([pa.int64(), pa.string()])
    >>> rows = packing.pack([pa.array([7, None]), pa.array(["a", "b"])], 2)
    >>> [len(row) for row in rows]
    [15, 15]
    >>> [array.to_pylist() for array in packing.unpack(rows)]
    [[7, None], ['a', 'b']]
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import Fix, RunnerError
from penstock.state.columns import Bools, Ints, Values, fixed_array, fixed_values, slot_dtype, validity

__all__ = ["Packing"]

Bytes = npt.NDArray[np.uint8]
_LENGTH = np.dtype("<u4")


class Packing:
    """How rows of columns of these types become bytes; RunnerError if a type has no such form."""

    def __init__(self, types: Sequence[pa.DataType], prefix: np.dtype[Any] | None = None) -> None:
        self.types = tuple(types)
        self._storage = [_storage(type) for type in self.types]
        self._fixed = [_fixed_dtype(type) for type in self._storage]
        fields: list[Any] = [(str(i), _LENGTH if fixed is None else fixed) for i, fixed in enumerate(self._fixed)]
        front: list[Any] = [] if prefix is None else [("prefix", prefix)]
        self._head = np.dtype([*front, ("there", np.bool_, (len(self.types),)), *fields]) if self.types else np.dtype([])
        for type, fixed in zip(self._storage, self._fixed):
            if fixed is None:
                _check(type)

    def pack(self, arrays: Sequence[pa.Array], rows: int, prefix: Values | None = None) -> list[bytes]:
        """One bytes per row; `prefix` if the packing has one."""
        if not self.types:
            return [b""] * rows
        heads = np.zeros(rows, self._head)
        if prefix is not None:
            heads["prefix"] = prefix
        tails: list[list[bytes]] = []
        for number, (given, storage, fixed) in enumerate(zip(arrays, self._storage, self._fixed, strict=True)):
            array = given if given.type == storage else given.cast(storage)
            valid = validity(array)
            there: Any = slice(None) if valid is None else valid
            heads["there"][there, number] = True
            if fixed is None:
                cells = _cells(array)
                heads[str(number)] = np.fromiter(map(len, cells), np.int64, rows)
                tails.append(cells)
            else:
                heads[str(number)][there] = _stored(array, fixed)[there]
        data, width = heads.tobytes(), self._head.itemsize
        fronts = [data[start : start + width] for start in range(0, len(data), width)]
        return list(map(b"".join, zip(fronts, *tails))) if tails else fronts

    def unpack(self, rows: Sequence[bytes]) -> list[pa.Array]:
        """The columns of packed rows."""
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        return self._unpack(np.frombuffer(b"".join(rows), np.uint8), np.cumsum(lengths) - lengths)

    def _unpack(self, data: Bytes, starts: Ints) -> list[pa.Array]:
        """The columns of the rows that start there in `data`."""
        if not self.types:
            return []
        width = self._head.itemsize
        if None not in self._fixed and len(data) == len(starts) * width:  # heads and nothing else
            heads = data.view(self._head)
        else:
            heads = data[starts[:, None] + np.arange(width)].view(self._head).reshape(len(starts))
        at, arrays = starts + width, []
        for number, (type, fixed) in enumerate(zip(self._storage, self._fixed)):
            valid = np.ascontiguousarray(heads["there"][:, number])
            values = np.ascontiguousarray(heads[str(number)])
            if fixed is None:
                lengths = values.astype(np.int64)
                arrays.append(_column(type, data, at, lengths, valid))
                at = at + lengths
            elif fixed.kind == "V":
                arrays.append(_array(type, valid, [values.view(np.uint8)]))
            else:
                arrays.append(fixed_array(type, values, valid))
        return [array if array.type == type else pa.array(array.to_pylist(), type) for array, type in zip(arrays, self.types)]


@functools.cache
def _packing(*types: pa.DataType) -> Packing:
    return Packing(types)


def _storage(type: pa.DataType) -> pa.DataType:
    """The type whose values stand for those of `type`: the same, but for types that are rare in state."""
    t = pa.types
    if t.is_null(type):
        return pa.int8()
    if t.is_dictionary(type):
        return type.value_type
    if t.is_fixed_size_list(type):
        return pa.list_(type.value_type)
    if t.is_string_view(type):
        return pa.string()
    return pa.binary() if t.is_binary_view(type) else type


def _fixed_dtype(type: pa.DataType) -> np.dtype[Any] | None:
    """The numpy type that holds one value; None if values differ in width."""
    if pa.types.is_decimal(type) or pa.types.is_fixed_size_binary(type):
        return np.dtype(f"V{type.bit_width // 8}")
    dtype = slot_dtype(type)
    return None if dtype == np.dtype(object) else dtype


def _stored(array: pa.Array, dtype: np.dtype[Any]) -> Values:
    """The storage of a fixed-width column."""
    if dtype.kind != "V" or not len(array):
        return fixed_values(array, dtype)
    return np.frombuffer(array.buffers()[1], dtype, len(array), array.offset * dtype.itemsize)


# --- values that differ in width
# ----------------------------------------------------------------------------------------------------------------------------------


def _is_text(type: pa.DataType) -> bool:
    t = pa.types
    return bool(t.is_string(type) or t.is_large_string(type) or t.is_binary(type) or t.is_large_binary(type))


def _is_list(type: pa.DataType) -> bool:
    t = pa.types
    return bool(t.is_list(type) or t.is_large_list(type) or t.is_map(type))


def _element(type: pa.DataType) -> pa.DataType:
    """What a list holds; a map is a list of pairs."""
    return pa.struct([type.key_field, type.item_field]) if pa.types.is_map(type) else type.value_type


def _check(type: pa.DataType) -> None:
    """RunnerError if there are no bytes for a type."""
    if pa.types.is_struct(type):
        _packing(*(field.type for field in type))
    elif _is_list(type):
        _packing(_element(type))
    elif not _is_text(type):
        raise RunnerError(
            f"state of type {type} cannot be kept in RocksDB, whose rows are numbers, times, texts, bytes, and lists, maps and structs"
            " of those",
            fix=Fix("rocksdb.type", 'Use another type, or columnar tables. Write: state="columnar"'),
        )


def _cells(array: pa.Array) -> list[bytes]:
    """One bytes per value, empty for null."""
    type = array.type
    if _is_text(type):
        large = pa.types.is_large_string(type) or pa.types.is_large_binary(type)
        texts = array.cast(pa.large_binary() if large else pa.binary()).to_pylist()
        return texts if array.null_count == 0 else [text or b"" for text in texts]
    if pa.types.is_struct(type):
        return _packing(*(field.type for field in type)).pack(array.flatten(), len(array))
    if not len(array):
        return []
    offsets: list[int] = array.offsets.to_pylist()
    first, last = offsets[0], offsets[-1]
    values = array.values
    if pa.types.is_map(type):
        values = pa.StructArray.from_arrays([array.keys, array.items], fields=list(_element(type)))
    elements = _packing(_element(type)).pack([values.slice(first, last - first)], last - first)
    valid = validity(array)
    there = [True] * len(array) if valid is None else valid.tolist()
    spans = zip(offsets[:-1], offsets[1:], there)
    return [_list_cell(elements[start - first : stop - first]) if ours else b"" for start, stop, ours in spans]


def _list_cell(elements: list[bytes]) -> bytes:
    if not elements:
        return b""
    return struct.pack(f"<{len(elements) + 1}I", len(elements), *map(len, elements)) + b"".join(elements)


def _column(type: pa.DataType, data: Bytes, starts: Ints, lengths: Ints, valid: Bools) -> pa.Array:
    """The column whose value i is `data[starts[i]:][:lengths[i]]`."""
    if _is_text(type):
        large = pa.types.is_large_string(type) or pa.types.is_large_binary(type)
        texts, offsets = _gather(data, starts, lengths)
        return _array(type, valid, [offsets.astype(np.int64 if large else np.int32), texts])
    if pa.types.is_struct(type):
        return _array(type, valid, [], _packing(*(field.type for field in type))._unpack(data, starts))
    counts = np.zeros(len(starts), np.int64)
    some = np.flatnonzero(lengths)
    counts[some] = _gather(data, starts[some], np.full(len(some), 4))[0].view(_LENGTH)
    sizes = _gather(data, starts + 4, 4 * counts)[0].view(_LENGTH).astype(np.int64)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    # Elements follow each other within a list, and each list's elements its counts and lengths.
    before = np.concatenate([[0], np.cumsum(sizes)])
    at = before[:-1] + np.repeat(starts + 4 + 4 * counts - before[offsets[:-1]], counts)
    (elements,) = _packing(_element(type))._unpack(data, at)
    wide = np.int64 if pa.types.is_large_list(type) else np.int32
    return _array(type, valid, [offsets.astype(wide)], [elements])


def _gather(data: Bytes, starts: Ints, lengths: Ints) -> tuple[Bytes, Ints]:
    """Pieces of `data` one after the other, and where each begins; one more entry for the end."""
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return data[np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths)], offsets


def _array(type: pa.DataType, valid: Bools, values: Sequence[Values], children: Sequence[pa.Array] = ()) -> pa.Array:
    nulls = int(len(valid) - np.count_nonzero(valid))
    bitmap = pa.py_buffer(np.packbits(valid, bitorder="little")) if nulls else None
    buffers = [bitmap, *map(pa.py_buffer, values)]
    return pa.Array.from_buffers(type, len(valid), buffers, nulls, children=list(children))
