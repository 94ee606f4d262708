"""`Index` against a dict, with hashes that are good, bad and all the same."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.state.index import Index, Ints

HASHES = {
    "good": lambda keys: keys.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15),
    "three": lambda keys: (keys % 3).astype(np.uint64) << np.uint64(62),
    "same": lambda keys: np.zeros(len(keys), np.uint64),
    "same tag": lambda keys: keys.astype(np.uint64),
    "neighbours": lambda keys: keys.astype(np.uint64) << np.uint64(50),
}
some_keys = st.lists(st.integers(0, 40), max_size=12)


class Keys:
    """An index with the keys its slots hold, beside a dict."""

    def __init__(self, hashes: str) -> None:
        self.hashes = HASHES[hashes]
        self.index = Index()
        self.held = np.full(4_096, -1, np.int64)
        self.used = 0
        self.model: dict[int, int] = {}

    def find(self, keys: Ints) -> list[int]:
        return self.index.find(self.hashes(keys), lambda slots, rows: self.held[slots] == keys[rows]).tolist()

    def insert(self, keys: Ints) -> None:
        slots = np.arange(self.used, self.used + len(keys))
        self.used += len(keys)
        self.held[slots] = keys
        result = self.index.insert(self.hashes(keys), slots, lambda slots, rows: self.held[slots] == keys[rows])
        assert self.held[result].tolist() == keys.tolist()
        assert set(result.tolist()) <= set(slots.tolist())
        self.model |= dict(zip(keys.tolist(), result.tolist()))

    def remove(self, keys: Ints) -> None:
        slots = np.array([self.model.pop(key) for key in keys.tolist()], np.int64)
        self.index.remove(self.hashes(keys), slots)


@pytest.mark.parametrize("hashes", HASHES)
@given(steps=st.lists(st.tuples(st.booleans(), some_keys), max_size=20))
@settings(max_examples=60, deadline=None)
def test_an_index_finds_what_a_dict_finds(hashes: str, steps: list[tuple[bool, list[int]]]) -> None:
    keys = Keys(hashes)
    for put, some in steps:
        if put:
            keys.insert(np.array([key for key in some if key not in keys.model], np.int64))
        else:
            keys.remove(np.array(sorted({key for key in some if key in keys.model}), np.int64))
        everything = np.arange(41)
        assert keys.find(everything) == [keys.model.get(key, -1) for key in everything.tolist()]
        assert len(keys.index) == len(keys.model)


def test_keys_are_found_after_the_table_has_grown_in_many_steps() -> None:
    keys = Keys("good")
    keys.held = np.full(400_000, -1, np.int64)
    for start in range(0, 300_000, 50_000):
        keys.insert(np.arange(start, start + 50_000))
    keys.remove(np.arange(0, 300_000, 3))
    keys.insert(np.arange(300_000, 390_000))
    assert keys.find(np.arange(400_000)) == [keys.model.get(key, -1) for key in range(400_000)]


def test_places_of_removed_keys_do_not_add_up() -> None:
    keys = Keys("good")
    keys.held = np.full(400_000, -1, np.int64)
    for start in range(0, 300_000, 1_000):
        batch = np.arange(start, start + 1_000)
        keys.insert(batch)
        keys.remove(batch)
    assert len(keys.index) == 0
    assert len(keys.index._held) <= 16_384


def test_the_hashes_of_one_task_are_spread_over_all_places() -> None:
    """Its groups are the lowest bits."""
    hashes = HASHES["good"](np.arange(200_000))
    mine = hashes[hashes % np.uint64(128) < 8]
    first = Index()
    first.make_room(len(mine))
    places = first._first(mine)
    assert len(np.unique(places)) > 0.8 * len(mine)


def test_a_slot_that_is_not_there_cannot_be_removed() -> None:
    with pytest.raises(AssertionError, match="not in the index"):
        Index().remove(np.zeros(1, np.uint64), np.zeros(1, np.int64))
