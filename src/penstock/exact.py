"""Arrow arrays that are exactly of a type, nullability included, at every depth.

Arrow's types say of each field inside a struct, list or map whether it may be null, and its functions do not agree on what that means:

1. A value **under a null** is nobody's: what a null struct's fields hold, or what stands between the offsets of a null list. Most
   functions put nulls there (`take`, `if_else`, `pa.nulls`, readers), also where the field is not null. Casts and the Parquet writer
   then refuse the array.
2. A null that is **seen**, in a field that is not null, is a mistake. A cast of a list or map lets it pass.

So a cast that may change what is inside goes by `exactly`: it refuses nulls that are seen, and takes away those that are not.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["compact", "exactly", "exactly_batch", "has_strict", "nullable", "one_array", "seen_nulls", "settled"]

Leaf = Callable[[pa.Array, pa.DataType], pa.Array]
"""How a value that has nothing inside becomes one of another type."""
Rows = npt.NDArray[np.bool_]


def exactly(array: pa.Array, kind: pa.DataType, leaf: Leaf | None = None) -> pa.Array:
    """`array` as `kind`; ArrowInvalid where a value has no place in it, or a null is seen where none may be.

    >>> kind = pa.struct([pa.field("n", pa.int64(), nullable=False)])
    >>> exactly(pa.nulls(2, kind), kind).field("n").null_count
    0
    """
    if array.type == kind and not has_strict(kind):
        return array if leaf is None else _inside(array, kind, leaf)
    if not pa.types.is_nested(kind) and leaf is None:
        return array.cast(kind)
    bad = seen_nulls(array, pa.field("value", kind))
    if bad is not None:
        raise pa.ArrowInvalid(f"row {int(np.flatnonzero(bad)[0])} has a null inside, where {kind} has none")
    return _inside(array, kind, leaf or _cast)


def exactly_batch(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The columns of `schema`, each exactly of its type."""
    arrays = [exactly(batch.column(field.name), field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def one_array(column: pa.ChunkedArray) -> pa.Array:
    """A column of a table in one piece."""
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.nulls(0, column.type)


def settled(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The same rows, without nulls that are not seen in fields that are not null."""
    if not any(has_strict(kind) for kind in batch.schema.types):
        return batch
    return exactly_batch(batch, batch.schema)


def seen_nulls(array: pa.Array, field: pa.Field) -> Rows | None:
    """The rows with a null in `field`, or in a field inside it, that is not null; None if there is none."""
    bad: Rows | None = None
    if not field.nullable and array.null_count:
        bad = np.asarray(array.is_null())
    if not has_strict(field.type) or not len(array):
        return bad
    for parts, owners, inner in _parts(array, field.type):
        found = seen_nulls(parts, inner)
        if found is not None:
            bad = np.zeros(len(array), bool) if bad is None else bad
            bad[owners[found]] = True
    return bad


Part = tuple[pa.Array, npt.NDArray[np.int64], pa.Field]
"""Values inside an array, the row that each belongs to, and their field."""


def _parts(array: pa.Array, kind: pa.DataType) -> list[Part]:
    """What is seen inside an array."""
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_struct(kind):
        return _struct_parts(array, kind)
    whole = compact(array)
    rows = np.flatnonzero(np.asarray(whole.is_valid())) if whole.null_count else np.arange(len(whole))
    lengths = np.diff(whole.offsets.to_numpy(zero_copy_only=False))
    owners: npt.NDArray[np.int64] = np.repeat(rows, lengths[rows])
    if pa.types.is_map(kind):
        return [(whole.items, owners, kind.item_field)]
    return [(whole.values, owners, kind.value_field)]


def _struct_parts(array: pa.Array, kind: pa.DataType) -> list[Part]:
    present = np.asarray(array.is_valid()) if array.null_count else None
    parts: list[Part] = []
    for inner in kind:
        index = array.type.get_field_index(inner.name)
        if index < 0 or (inner.nullable and not has_strict(inner.type)):
            continue
        values = array.field(index)
        if not values.null_count and not has_strict(inner.type):
            continue
        if present is None:
            parts.append((values, np.arange(len(array)), inner))
        elif has_strict(inner.type) or pc.any(pc.and_(array.is_valid(), values.is_null())).as_py():
            parts.append((values.filter(pa.array(present)), np.flatnonzero(present), inner))
    return parts


def _inside(array: pa.Array, kind: pa.DataType, leaf: Leaf) -> pa.Array:
    """`array` as `kind`, with nothing null that may not be; what is null is known not to be seen."""
    if pa.types.is_dictionary(array.type) and pa.types.is_nested(kind):
        array = array.dictionary_decode()
    if pa.types.is_struct(kind) and pa.types.is_struct(array.type):
        children = [_child(array, field, leaf) for field in kind]
        mask = array.is_null() if array.null_count else None
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=mask)
    if pa.types.is_list(kind) and pa.types.is_list(array.type):
        whole = compact(array)
        items = _field(whole.values, kind.value_field, leaf)
        return pa.ListArray.from_arrays(whole.offsets, items, type=kind, mask=_mask(whole))
    if pa.types.is_map(kind) and pa.types.is_map(array.type):
        whole = compact(array)
        keys, items = _field(whole.keys, kind.key_field, leaf), _field(whole.items, kind.item_field, leaf)
        return pa.MapArray.from_arrays(whole.offsets, keys, items, type=kind, mask=_mask(whole))
    return leaf(array, kind)


def _child(array: pa.StructArray, field: pa.Field, leaf: Leaf) -> pa.Array:
    index = array.type.get_field_index(field.name)
    if index >= 0:
        return _field(array.field(index), field, leaf)
    if not field.nullable:
        raise pa.ArrowInvalid(f"there is no field {field.name!r} in {array.type}")
    return _field(pa.nulls(len(array), field.type), field, leaf)


def _field(array: pa.Array, field: pa.Field, leaf: Leaf) -> pa.Array:
    found = _inside(array, field.type, leaf)
    return found if field.nullable or not found.null_count else _without_nulls(found)


def _without_nulls(array: pa.Array) -> pa.Array:
    """The same with some value where there was none. Nobody sees it."""
    kind = array.type
    if pa.types.is_struct(kind):
        return pa.StructArray.from_arrays([array.field(i) for i in range(kind.num_fields)], fields=list(kind))
    if pa.types.is_list(kind):
        whole = compact(array)
        return pa.ListArray.from_arrays(whole.offsets, whole.values, type=kind)
    if pa.types.is_map(kind):
        whole = compact(array)
        return pa.MapArray.from_arrays(whole.offsets, whole.keys, whole.items, type=kind)
    if pa.types.is_primitive(kind) or pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_decimal(kind):
        # What the values' bytes are where they are null is not said, but they are there.
        return pa.Array.from_buffers(kind, len(array), [None, *array.buffers()[1:]], 0, array.offset)
    present = array.drop_null()
    return pc.fill_null(array, present[0]) if len(present) else array


def compact(array: pa.Array) -> pa.Array:
    """A list or map array of which every item is seen, and whose offsets start at 0."""
    first, last = (array.offsets[at].as_py() for at in (0, -1))
    items = array.items if pa.types.is_map(array.type) else array.values
    if array.offset == 0 and first == 0 and last == len(items) and not _hides(array):
        return array
    return array.take(pa.array(np.arange(len(array))))


def _hides(array: pa.Array) -> bool:
    """Whether there are items between the offsets of a null."""
    if not array.null_count:
        return False
    lengths = np.diff(array.offsets.to_numpy(zero_copy_only=False))
    return bool(lengths[np.asarray(array.is_null())].any())


def _mask(array: pa.Array) -> pa.Array | None:
    return array.is_null() if array.null_count else None


def _cast(array: pa.Array, kind: pa.DataType) -> pa.Array:
    return array if array.type == kind else array.cast(kind)


@lru_cache(maxsize=1024)
def nullable(kind: pa.DataType) -> pa.DataType:
    """The type with fields inside that may all be null."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, nullable(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(pa.field(kind.value_field.name, nullable(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(nullable(kind.key_type), nullable(kind.item_type))
    return kind


@lru_cache(maxsize=1024)
def has_strict(kind: pa.DataType) -> bool:
    """Whether a field inside this type may not be null. Keys of maps never are, and Arrow sees to that."""
    if pa.types.is_dictionary(kind):
        return has_strict(kind.value_type)
    if pa.types.is_map(kind):
        return not kind.item_field.nullable or has_strict(kind.item_type) or has_strict(kind.key_type)
    if pa.types.is_struct(kind) or pa.types.is_list(kind):
        return any(not kind.field(i).nullable or has_strict(kind.field(i).type) for i in range(kind.num_fields))
    return False
