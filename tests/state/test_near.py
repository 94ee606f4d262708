"""Keys of small batches, known without the index."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock.state.near import KEYS_MAX, Near

SLOTS = 40


@given(st.lists(st.tuples(st.booleans(), st.sets(st.integers(0, SLOTS - 1)))))
def test_what_was_forgotten_is_not_found_and_all_else_is(steps: list[tuple[bool, set[int]]]) -> None:
    near, known = Near(), {}
    for learns, slots in steps:
        if learns:
            near.learn([f"key {slot}" for slot in slots], np.array([*slots], np.int64))
            known |= {f"key {slot}": slot for slot in slots}
        else:
            near.forget(np.array([*slots], np.int64))
            known = {key: slot for key, slot in known.items() if slot not in slots}
        keys = [f"key {slot}" for slot in range(SLOTS)]
        assert near.find(keys) == [known.get(key, -1) for key in keys]


def test_too_many_keys_are_forgotten_rather_than_kept() -> None:
    near = Near()
    near.learn(range(KEYS_MAX + 1), np.arange(KEYS_MAX + 1))
    near.learn([-1], np.array([7]))
    assert near.find([0, -1]) == [-1, 7]
