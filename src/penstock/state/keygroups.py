"""Key -> hash -> key group -> task: who owns which key, the same in every process and on the JVM.

A key group is the unit in which state moves between tasks. There are `max_parallelism` of them, for the life of a
pipeline; a task owns a contiguous range, so a rescale only cuts and joins ranges.

1. A key has a **canonical type** before anything looks at it: bool, int64, string, binary, date32,
   timestamp[us, UTC], decimal128. So int32 7 from one file and int64 7 from another are one key. Floats are
   refused: 0.1 + 0.2 is nobody's key. Null is a key.
2. The **hash** of a key is Spark's `xxhash64(columns…)`: XXH64 of the little-endian bytes with seed 42, each further
   column seeded with the hash so far, a null leaving it unchanged. `HASH_ID` names this rule in every manifest.
3. The **group** is the signed hash modulo `max_parallelism`, never negative (Spark's `pmod`).
4. The **owner** of group g is task `g * parallelism // max_parallelism`; `group_range` is the inverse.

    >>> batch = pa.record_batch({"ad": pa.array([7, 7], pa.int32())})
    >>> hashes = hash_keys(canonical_keys(batch, ["ad"]))
    >>> groups_of(hashes, 128).tolist()
    [113, 113]
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from penstock.errors import PlanError, RowError
from penstock.state import xxh64
from penstock.state.columns import fixed_values, slot_dtype, validity

__all__ = [
    "HASH_ID",
    "MAX_PARALLELISM_MAX",
    "canonical_keys",
    "canonical_type",
    "group_range",
    "groups_of",
    "hash_keys",
    "owner",
]

HASH_ID = "xxh64-42-v1"
MAX_PARALLELISM_MAX = 32_768
"""Groups fit int16, which lets numpy sort them by counting."""

U64 = npt.NDArray[np.uint64]
_SEED = np.uint64(42)
_XXH64 = xxhash.xxh64_intdigest
_FEW = 32
_LONG_DIGITS = 18
"""Decimals of up to this precision are hashed as their unscaled long, as Spark keeps them."""


def canonical_type(type: pa.DataType) -> pa.DataType:
    """The type a key column of this type has in hashes and in state; PlanError if it cannot be a key."""
    t = pa.types
    if t.is_dictionary(type):
        return canonical_type(type.value_type)
    if t.is_boolean(type) or t.is_date32(type) or t.is_decimal128(type):
        return type
    if t.is_integer(type):
        return pa.int64()
    if t.is_string(type) or t.is_large_string(type) or t.is_string_view(type):
        return pa.string()
    if t.is_binary(type) or t.is_large_binary(type) or t.is_binary_view(type) or t.is_fixed_size_binary(type):
        return pa.binary()
    if t.is_date64(type):
        return pa.date32()
    if t.is_timestamp(type):
        return pa.timestamp("us", "UTC")
    if t.is_decimal32(type) or t.is_decimal64(type):
        return pa.decimal128(type.precision, type.scale)
    if t.is_floating(type):
        hint = "floats that look equal often are not; cast it to an integer, a decimal or a string first"
    else:
        hint = "a key is a bool, integer, string, binary, date, timestamp or decimal; cast it, or key by its parts"
    raise PlanError(f"a column of type {type} cannot be a key: {hint}")


_CANONICAL = frozenset(type.id for type in (pa.bool_(), pa.int64(), pa.string(), pa.binary(), pa.date32(), pa.decimal128(1)))
"""Kinds of types that are canonical as they are, by Arrow's numbers."""


def canonical_keys(batch: pa.RecordBatch, columns: Sequence[str], names: Sequence[str] = ()) -> pa.RecordBatch:
    """The key columns of a batch, in the order given, in their canonical types; called by other `names`, if any are given."""
    assert columns, "a key has at least one column"
    arrays, schema = [], batch.schema
    for name in columns:
        index = schema.get_field_index(name)
        if index < 0:
            raise PlanError(f"there is no key column {name!r}; the columns are {', '.join(schema.names)}")
        arrays.append(_canonical(name, batch.column(index)))
    return pa.RecordBatch.from_arrays(arrays, list(names or columns))


def _canonical(name: str, array: pa.Array) -> pa.Array:
    if array.type.id in _CANONICAL:
        return array
    wanted = canonical_type(array.type)
    if array.type == wanted:
        return array
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    try:
        return array.cast(wanted)
    except pa.ArrowInvalid as error:
        # uint64 beyond int64, or nanoseconds that are not whole microseconds: two keys must not become one.
        raise RowError(f"key column {name!r} ({array.type}) has a value that is no {wanted}: {error}") from error


def hash_keys(keys: pa.RecordBatch, seeds: U64 | None = None) -> U64:
    """Hash each row of canonical key columns.

    Args:
        seeds: The hashes of the columns before these, to go on from there.
    """
    if keys.num_rows <= _FEW:
        return _hash_few(keys, seeds)
    h: U64 = np.broadcast_to(_SEED, keys.num_rows) if seeds is None else seeds
    for column in keys.columns:
        hashed = _hash_column(column, h)
        valid = validity(column)
        h = hashed if valid is None else np.where(valid, hashed, h)
    return h


def _hash_few(keys: pa.RecordBatch, seeds: U64 | None) -> U64:
    """The same hashes, one by one: few are made before numpy's fifty steps for a column have begun."""
    hashes: list[int] = [int(_SEED)] * keys.num_rows if seeds is None else seeds.tolist()
    for column in keys.columns:
        pieces = _pieces(column)
        hashed = _hash_column(column, np.array(hashes, np.uint64)).tolist() if pieces is None else map(_XXH64, pieces, hashes)
        valid = validity(column)
        hashes = list(hashed) if valid is None else [new if ok else h for new, h, ok in zip(hashed, hashes, valid.tolist())]
    return np.array(hashes, np.uint64)


def _pieces(array: pa.Array) -> list[memoryview] | None:
    """The bytes of each value, where they stand in the column as they are hashed."""
    if not len(array):
        return []
    _, *buffers = array.buffers()
    if pa.types.is_string(array.type) or pa.types.is_binary(array.type):
        ends = np.frombuffer(buffers[0], np.int32, len(array) + 1, array.offset * 4).tolist()
        data = memoryview(buffers[1] or b"")
        return [data[start:end] for start, end in itertools.pairwise(ends)]
    if slot_dtype(array.type).itemsize == 8 and slot_dtype(array.type).kind == "i":
        data, first = memoryview(buffers[0]), array.offset * 8
        return [data[at : at + 8] for at in range(first, first + 8 * len(array), 8)]
    return None


def _hash_column(array: pa.Array, seeds: U64) -> U64:
    type = array.type
    assert canonical_type(type) == type, f"{type} is not a canonical key type"
    if pa.types.is_boolean(type):
        return xxh64.hash_words_4(fixed_values(array).astype(np.uint32), seeds)
    if pa.types.is_date32(type):
        return xxh64.hash_words_4(fixed_values(array, np.dtype(np.uint32)), seeds)
    if pa.types.is_string(type) or pa.types.is_binary(type):
        return _hash_strings(array, seeds)
    if pa.types.is_decimal128(type):
        return _hash_decimals(array, seeds)
    return xxh64.hash_words_8(fixed_values(array, np.dtype(np.uint64)), seeds)


def _hash_strings(array: pa.Array, seeds: U64) -> U64:
    _, offsets_buffer, data_buffer = array.buffers()
    if len(array) == 0:
        return seeds
    offsets = np.frombuffer(offsets_buffer, np.int32, len(array) + 1, array.offset * 4).astype(np.int64)
    data = np.frombuffer(data_buffer, np.uint8) if data_buffer is not None else np.empty(0, np.uint8)
    return xxh64.hash_bytes(data, offsets[:-1], offsets[1:], seeds)


def _hash_decimals(array: pa.Array, seeds: U64) -> U64:
    if array.type.precision <= _LONG_DIGITS:
        if len(array) == 0:
            return seeds
        # 16 little-endian bytes each; the low 8 are the whole value at this precision.
        words = np.frombuffer(array.buffers()[1], np.uint64, 2 * len(array), array.offset * 16)
        return xxh64.hash_words_8(words[::2], seeds)
    # What java.math.BigInteger.toByteArray gives: big-endian two's complement, as short as possible.
    scale = array.type.scale
    pieces = [_big_integer(value, scale) for value in array.to_pylist()]
    ends = np.cumsum(np.fromiter(map(len, pieces), np.int64, len(pieces)))
    starts = np.concatenate([np.zeros(1, np.int64), ends[:-1]]) if len(ends) else ends
    return xxh64.hash_bytes(np.frombuffer(b"".join(pieces), np.uint8), starts, ends, seeds)


def _big_integer(value: Any, scale: int) -> bytes:
    if value is None:
        return b""
    sign, digits, exponent = value.as_tuple()
    assert exponent == -scale, f"{value} is not at scale {scale}"
    unscaled = int("".join(map(str, digits)))
    unscaled = -unscaled if sign else unscaled
    bits = (unscaled if unscaled >= 0 else ~unscaled).bit_length()
    return unscaled.to_bytes(bits // 8 + 1, "big", signed=True)


def groups_of(hashes: U64, max_parallelism: int) -> npt.NDArray[np.int32]:
    """The key group of each hash."""
    assert 1 <= max_parallelism <= MAX_PARALLELISM_MAX, f"max_parallelism {max_parallelism} is out of range"
    signed = hashes.view(np.int64)
    if max_parallelism & (max_parallelism - 1) == 0:  # its lowest bits, also below 0; to divide takes twenty times as long
        return (signed & (max_parallelism - 1)).astype(np.int32)
    # numpy's % has the sign of the divisor, which is what pmod is.
    return (signed % max_parallelism).astype(np.int32)


def owner(groups: npt.NDArray[np.int32], parallelism: int, max_parallelism: int) -> npt.NDArray[np.int32]:
    """The task that owns each group."""
    assert 1 <= parallelism <= max_parallelism, f"parallelism {parallelism} is out of 1..{max_parallelism}"
    return (groups.astype(np.int64) * parallelism // max_parallelism).astype(np.int32)


def group_range(task: int, parallelism: int, max_parallelism: int) -> range:
    """The groups a task owns: those g with `owner(g) == task`."""
    assert 1 <= parallelism <= max_parallelism, f"parallelism {parallelism} is out of 1..{max_parallelism}"
    assert 0 <= task < parallelism, f"task {task} is out of 0..{parallelism - 1}"
    # Rounded up: the first g with g * parallelism >= task * max_parallelism.
    first = -(-task * max_parallelism // parallelism)
    last = -(-(task + 1) * max_parallelism // parallelism)
    return range(first, last)
