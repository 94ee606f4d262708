"""`TextColumn` against a list of strings."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.state import texts
from penstock.state.texts import TextColumn, column_for

SLOTS = 8
some_text = st.none() | st.sampled_from(
    ["", "a", "twelve bytes", "thirteen byte", "thirteen bytf", "x" * 100, "x" * 99 + "y", "ä" * 7]
)


@pytest.mark.parametrize("few", [-1, 8])
@given(puts=st.lists(st.lists(st.tuples(st.integers(0, SLOTS - 1), some_text), max_size=6), max_size=12), binary=st.booleans())
@settings(max_examples=150, deadline=None)
def test_a_column_holds_what_was_put_last(few: int, puts: list[list[tuple[int, str | None]]], binary: bool) -> None:
    with mock.patch.object(texts, "_FEW", few):
        put_and_compare(puts, binary)


def put_and_compare(puts: list[list[tuple[int, str | None]]], binary: bool) -> None:
    type = pa.binary() if binary else pa.string()
    column = column_for(type)
    column.grow(SLOTS // 2)
    column.grow(SLOTS)
    model: list[str | None] = [""] * SLOTS
    column.put(np.arange(SLOTS), pa.array(model, pa.string()).cast(type))
    for rows in puts:
        # A slice, because arrays that do not start at 0 are where conversions go wrong.
        array = pa.array(["before", *(text for _, text in rows)], pa.string()).slice(1).cast(type)
        slots = np.array([slot for slot, _ in rows], np.int64)
        column.put(slots, array)
        for slot, text in rows:
            model[slot] = text
        wanted = pa.array(model, pa.string()).cast(type)
        everything = np.arange(SLOTS)
        assert column.take(everything).equals(wanted)
        pairs = [(slot, row) for slot in range(SLOTS) for row in range(len(rows))]
        equal = column.equal(
            np.array([slot for slot, _ in pairs], np.int64), column.given(array), np.array([row for _, row in pairs], np.int64)
        )
        assert equal.tolist() == [model[slot] == rows[row][1] for slot, row in pairs]


def test_what_is_not_found_is_null() -> None:
    column = TextColumn(pa.string())
    column.grow(2)
    column.put(np.arange(2), pa.array(["a", "b" * 20]))
    assert column.take(np.array([1, 0, 1]), np.array([True, False, False])).to_pylist() == ["b" * 20, None, None]


def test_bytes_of_strings_that_were_replaced_are_let_go() -> None:
    column = TextColumn(pa.string())
    column.grow(10)
    for number in range(2_000):
        column.put(np.arange(10), pa.array([f"{number:050d}-{slot}" for slot in range(10)]))
    assert column.take(np.arange(10)).to_pylist() == [f"{1_999:050d}-{slot}" for slot in range(10)]
    assert sum(map(len, column._chunks)) <= 4 * texts._CHUNK_MIN


def test_more_bytes_than_a_chunk_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "_CHUNK_MIN", 100)
    monkeypatch.setattr(texts, "_CHUNK_MAX", 1_000)
    column = TextColumn(pa.binary())
    column.grow(400)
    wanted = [bytes([number % 256]) * (number % 60) for number in range(400)]
    for turn in range(5):
        wanted = wanted[turn:] + wanted[:turn]
        for start in range(0, 400, 40):
            column.put(np.arange(start, start + 40), pa.array(wanted[start : start + 40], pa.binary()))
    assert column.take(np.arange(400)).to_pylist() == wanted
    column.clear(np.arange(400))
    column.put(np.arange(1), pa.array([b"z" * 900], pa.binary()))
    assert column.take(np.arange(1)).to_pylist() == [b"z" * 900]
