"""The order of values, as integers: NaN is the greatest number (as in Spark), -0.0 is below 0.0, false below true.

Arrow sorts NaN apart and calls -0.0 and 0.0 equal, and cannot sort nested values at all. Integers have no such
questions, so whatever must be compared, sorted or told apart is turned into them first.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.expr.segments import Ints

__all__ = ["decoded", "from_sortable", "groupable", "ordinals", "sortable"]


def decoded(values: pa.Array) -> pa.Array:
    """A dictionary as the values it stands for."""
    return values.dictionary_decode() if pa.types.is_dictionary(values.type) else values


def groupable(column: pa.Array) -> pa.Array:
    """A column Arrow can group by: nested values, which it cannot, stand as their texts."""
    column = decoded(column)
    if not pa.types.is_nested(column.type):
        return column
    return pa.array([None if value is None else repr(value) for value in column.to_pylist()], pa.string())


def ordinals(values: pa.Array) -> Ints:
    """Integers that are equal where the values are, and in the same order. What stands for null is arbitrary.

    They compare within one array only: a text becomes its rank. Nested values are ordered by their texts.

    >>> ordinals(pa.array(["b", "a", "b"])).tolist()
    [2, 1, 2]
    """
    values = groupable(values)
    is_ = pa.types
    if is_.is_floating(values.type):
        return _bits(values)
    if is_.is_uint64(values.type):
        unsigned = pc.fill_null(values, 0).to_numpy(zero_copy_only=False)
        flipped: Ints = (unsigned ^ np.uint64(2**63)).view(np.int64)
        return flipped
    if is_.is_date32(values.type) or is_.is_time32(values.type):
        values = values.cast(pa.int32())
    if is_.is_integer(values.type) or is_.is_temporal(values.type) or is_.is_boolean(values.type):
        integers: Ints = pc.fill_null(values.cast(pa.int64()), 0).to_numpy(zero_copy_only=False)
        return integers
    encoded = values.dictionary_encode()
    ranks = pc.rank(encoded.dictionary, tiebreaker="dense").to_numpy().astype(np.int64)
    places = pc.fill_null(encoded.indices, 0).to_numpy(zero_copy_only=False)
    return ranks[places] if len(ranks) else np.zeros(len(values), np.int64)


def sortable(values: pa.Array) -> pa.Array:
    """Values whose order Arrow knows: doubles become integers of the same order, with NaN on top."""
    if pa.types.is_duration(values.type):
        return values.cast(pa.int64())
    if not pa.types.is_floating(values.type):
        return values
    return pc.if_else(pc.is_valid(values), pa.array(_bits(values)), pa.scalar(None, pa.int64()))


def from_sortable(found: pa.Array, type: pa.DataType) -> pa.Array:
    """What `sortable` was made from."""
    if not pa.types.is_floating(type):
        return found if found.type == type else found.cast(type)
    ordered = pc.fill_null(found, 0).to_numpy(zero_copy_only=False)
    bits = np.where(ordered < 0, ordered ^ np.int64(2**63 - 1), ordered)
    doubles = pa.array(bits.view(np.float64))
    return pc.if_else(pc.is_valid(found), doubles, pa.scalar(None, pa.float64())).cast(type, safe=False)


def _bits(values: pa.Array) -> Ints:
    """Doubles as integers of the same order."""
    doubles = pc.fill_null(values.cast(pa.float64()), 0.0).to_numpy(zero_copy_only=False)
    bits = np.where(np.isnan(doubles), np.float64("nan"), doubles).view(np.int64)
    return np.where(bits < 0, bits ^ np.int64(2**63 - 1), bits)
