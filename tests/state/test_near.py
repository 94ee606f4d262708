"""Keys of small batches, known without the index."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.state import near as near_module
from penstock.state import overlay as overlay_module
from penstock.state.near import KEYS_MAX, Near
from penstock.state.spec import StateSpec
from penstock.state.table import KeyedTable

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


SPEC = StateSpec("n", pa.schema([("k", pa.int64())]), pa.schema([("n", pa.int64())]))
some_keys = st.lists(st.integers(0, 30), max_size=12)


@given(st.lists(st.tuples(st.sampled_from(["put", "get", "delete", "freeze"]), some_keys), max_size=30), st.integers(0, 12))
@settings(deadline=None)
def test_a_table_finds_its_keys_whether_near_knows_all_of_them_or_not(steps: list[tuple[str, list[int]]], few: int) -> None:
    with mock.patch.object(near_module, "KEYS_MAX", 5), mock.patch.object(overlay_module, "FEW", few):
        table, model = KeyedTable(SPEC, range(8), 8), dict[int, int]()
        for number, (what, keys) in enumerate(steps):
            batch = pa.record_batch([pa.array(keys, pa.int64())], names=["k"])
            if what == "freeze":
                table.freeze(number)
            elif what == "put":
                values = [number * 100 + place for place in range(len(keys))]
                table.put_many(batch, pa.record_batch([pa.array(values, pa.int64())], names=["n"]))
                model |= dict(zip(keys, values))
            elif what == "delete":
                table.delete_many(batch)
                model = {key: n for key, n in model.items() if key not in keys}
            found, rows = table.get_many(batch)
            assert found.tolist() == [key in model for key in keys]
            assert rows.column("n").to_pylist() == [model.get(key) for key in keys]
        every = {row["k"]: row["n"] for rows in table.scan() for row in rows.to_pylist()}
        assert every == model
