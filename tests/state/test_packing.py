"""Rows as bytes: whatever the type, what comes back is what went in."""

from __future__ import annotations

import decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import RunnerError
from penstock.state.packing import Packing

NESTED = pa.list_(pa.struct([("a", pa.int32()), ("b", pa.list_(pa.string()))]))
TYPES: dict[pa.DataType, Any] = {
    pa.bool_(): st.booleans(),
    pa.int8(): st.integers(-128, 127),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.float64(): st.floats(allow_nan=False),
    pa.timestamp("us", "UTC"): st.integers(0, 2**40),
    pa.decimal128(20, 2): st.integers(-(10**17), 10**17).map(lambda n: decimal.Decimal(n).scaleb(-2)),
    pa.binary(3): st.binary(min_size=3, max_size=3),
    pa.string(): st.text("aé\0", max_size=5),
    pa.large_binary(): st.binary(max_size=5),
    pa.string_view(): st.text("aé\0", max_size=5),
    pa.dictionary(pa.int32(), pa.string()): st.text("aé\0", max_size=2),
    pa.list_(pa.int64()): st.lists(st.none() | st.integers(0, 9), max_size=3),
    pa.large_list(pa.string()): st.lists(st.text("aé\0", max_size=2), max_size=3),
    pa.list_(pa.int64(), 2): st.lists(st.integers(0, 9), min_size=2, max_size=2),
    pa.map_(pa.string(), pa.int64()): st.dictionaries(st.text("aé\0", max_size=2), st.none() | st.integers(0, 9), max_size=2).map(
        lambda d: list(d.items())
    ),
    pa.struct([("a", pa.int64()), ("s", pa.string())]): st.fixed_dictionaries(
        {"a": st.none() | st.integers(0, 9), "s": st.none() | st.text("aé\0", max_size=2)}
    ),
    pa.struct([]): st.just({}),
    NESTED: st.lists(
        st.none()
        | st.fixed_dictionaries(
            {"a": st.none() | st.integers(0, 9), "b": st.none() | st.lists(st.text("aé\0", max_size=2), max_size=2)}
        ),
        max_size=3,
    ),
    pa.null(): st.none(),
}


@settings(deadline=None)
@given(st.data())
def test_what_comes_back_is_what_went_in(data: st.DataObject) -> None:
    types = data.draw(st.lists(st.sampled_from(list(TYPES)), max_size=4))
    rows = data.draw(st.integers(0, 5))
    arrays = []
    for type in types:
        values = data.draw(st.lists(st.none() | TYPES[type], min_size=rows + 1, max_size=rows + 1))
        # A slice, because arrays that do not start at 0 are where conversions go wrong.
        arrays.append(pa.array(values, type).slice(1))
    packing = Packing(types)
    packed = packing.pack(arrays, rows)
    assert len(packed) == rows
    for array, again in zip(arrays, packing.unpack(packed), strict=True):
        again.validate(full=True)
        assert again.type == array.type
        assert again.to_pylist() == array.to_pylist()


def test_equal_keys_are_equal_bytes_whatever_stands_under_a_null() -> None:
    types = [pa.int64(), pa.string()]
    dirty = pa.Array.from_buffers(pa.int64(), 1, [pa.py_buffer(b"\0"), pa.py_buffer(b"\7" * 8)])
    clean = pa.array([None], pa.int64())
    text = pa.array(["x"])
    assert Packing(types).pack([dirty, text], 1) == Packing(types).pack([clean, text], 1)


def test_different_keys_are_different_bytes() -> None:
    keys = [("a", "b"), ("ab", ""), ("", "ab"), (None, "ab"), ("ab", None), (None, None), ("", "")]
    arrays = [pa.array([key[i] for key in keys], pa.string()) for i in range(2)]
    assert len(set(Packing([pa.string()] * 2).pack(arrays, len(keys)))) == len(keys)


@pytest.mark.parametrize("type", [pa.month_day_nano_interval(), pa.list_(pa.month_day_nano_interval())], ids=str)
def test_a_type_without_bytes_is_refused(type: pa.DataType) -> None:
    with pytest.raises(RunnerError, match='state="columnar"'):
        Packing([type])
