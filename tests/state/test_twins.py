"""`Twins` beside a search by hand, with slots that are near, far apart, and at the same place; and what is made of them in place."""

from __future__ import annotations

import functools
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.state import twins as twins_module
from penstock.state.inplace import KNOWN, change
from penstock.state.twins import _PLACES, Twins

slots_ = st.builds(lambda near, far: near + far * _PLACES, st.integers(0, 3), st.integers(0, 4))
some_slots = st.lists(st.one_of(slots_, st.integers(0, 200), st.just(-1)), max_size=60)


@pytest.mark.parametrize("few", [-1, 64])
@given(batches=st.lists(some_slots, min_size=1, max_size=4))
@settings(max_examples=200, deadline=None)
def test_rows_that_share_a_slot_are_found_whatever_was_asked_before(few: int, batches: list[list[int]]) -> None:
    twins = Twins()
    for slots in batches:
        shared = [row for row, slot in enumerate(slots) if slots.count(slot) > 1]
        last = [row for row, slot in enumerate(slots) if slot not in slots[row + 1 :]]
        with mock.patch.object(twins_module, "_FEW", few):
            found = twins.of(np.array(slots, np.int64))
        if found is None:
            assert not shared
            continue
        assert found.last.tolist() == last
        assert isinstance(found.rows, slice) or found.rows.tolist() == shared


def test_few_twins_among_many_rows_are_told_apart_and_many_are_not() -> None:
    slots = np.arange(100)
    slots[40] = slots[7]
    few = Twins().of(slots)
    assert few is not None
    assert not isinstance(few.rows, slice)
    assert few.rows.tolist() == [7, 40]
    many = Twins().of(np.arange(100) // 2)
    assert many is not None
    assert many.rows == slice(None)
    assert many.last.tolist() == list(range(1, 100, 2))


@pytest.mark.parametrize("how", KNOWN)
@given(
    rows=st.lists(st.tuples(st.integers(0, 40), st.integers(-9, 9)), min_size=1, max_size=50),
    known=st.sets(st.integers(0, 40)),
)
@settings(max_examples=150, deadline=None)
def test_every_row_changes_its_slot_as_one_after_the_other_would(
    how: np.ufunc, rows: list[tuple[int, int]], known: set[int]
) -> None:
    values = np.arange(1_000, 1_041)
    slots, given_ = (np.array(column, np.int64) for column in zip(*rows))
    found = np.array([slot in known for slot in slots.tolist()])
    expected = values.copy()
    for slot in set(slots.tolist()):
        begin = [int(values[slot])] if slot in known else []
        expected[slot] = functools.reduce(how, begin + [each for key, each in rows if key == slot])
    twins = Twins().of(slots)
    new = change(
        values,
        slots,
        values[slots],
        given_,
        how,
        found=None if found.all() else found,
        shared=None if twins is None else twins.rows,
    )
    assert values.tolist() == expected.tolist()
    assert new.tolist() == expected[slots].tolist()
