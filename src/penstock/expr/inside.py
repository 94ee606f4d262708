"""Casts of records, lists and maps: what is inside is cast, by the same rules as elsewhere.

1. A value inside that cannot be cast makes its row bad, and so does a null where the target has none: `cast(words as
   array<string not null>)` is how a column that may hold nulls inside gets to a function that takes none.
2. Fields of a record are found by name; those that the target does not have are left out.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.exact import compact, exactly, nullable, seen_nulls
from penstock.expr.rowwise import Evaluated
from penstock.schema import type_name

__all__ = ["can_cast_inside", "cast_inside"]

Bools = npt.NDArray[np.bool_]
Cast = Callable[[pa.Array, pa.DataType], Evaluated]


def can_cast_inside(
    source: pa.DataType, target: pa.DataType, can_cast: Callable[[pa.DataType, pa.DataType], bool]
) -> bool | None:
    """Whether what is inside `source` can be cast; None if these are not two records, two lists or two maps."""
    if pa.types.is_struct(source) and pa.types.is_struct(target):
        places = [source.get_field_index(field.name) for field in target]
        return all(at >= 0 and can_cast(source.field(at).type, field.type) for at, field in zip(places, target))
    if pa.types.is_list(source) and pa.types.is_list(target):
        return can_cast(source.value_type, target.value_type)
    if pa.types.is_map(source) and pa.types.is_map(target):
        return can_cast(source.key_type, target.key_type) and can_cast(source.item_type, target.item_type)
    return None


def cast_inside(array: pa.Array, target: pa.DataType, cast: Cast) -> Evaluated:
    """`array` as `target`; `cast` is for the values inside."""
    bad, reasons = np.zeros(len(array), bool), [f"a null inside, where {type_name(target)} has none"]
    found = _loosely(array, nullable(target), cast, bad, reasons)
    hidden = seen_nulls(found, pa.field("value", target))
    if hidden is not None:
        bad |= hidden
    if not bad.any():
        return Evaluated(exactly(found, target))
    errors = pa.array(bad)
    return Evaluated(exactly(pc.if_else(errors, pa.scalar(None, found.type), found), target), errors, reasons[-1])


def _loosely(array: pa.Array, target: pa.DataType, cast: Cast, bad: Bools, reasons: list[str]) -> pa.Array:
    """As a type in which everything may be null. Rows that cannot be are marked."""
    present = np.asarray(array.is_valid())
    rows = np.arange(len(array))

    def part(values: pa.Array, kind: pa.DataType, owners: npt.NDArray[np.int64]) -> pa.Array:
        made = cast(values, kind)
        if made.errors is not None:
            wrong = owners[np.asarray(made.errors)]
            wrong = wrong[present[wrong]]  # what is under a null is nobody's
            bad[wrong] = True
            if len(wrong) and made.reason:
                reasons.append(made.reason)
        return made.values

    mask = array.is_null() if array.null_count else None
    if pa.types.is_struct(target):
        children = [part(array.field(array.type.get_field_index(field.name)), field.type, rows) for field in target]
        return pa.StructArray.from_arrays(children, fields=list(target), mask=mask)
    whole = compact(array)
    owners = np.repeat(rows, np.diff(whole.offsets.to_numpy(zero_copy_only=False)))
    if pa.types.is_map(target):
        keys, items = part(whole.keys, target.key_type, owners), part(whole.items, target.item_type, owners)
        return pa.MapArray.from_arrays(whole.offsets, keys, items, type=target, mask=mask)
    return pa.ListArray.from_arrays(whole.offsets, part(whole.values, target.value_type, owners), type=target, mask=mask)
