"""Slices as two stacks: what they add up to is what all slices of the window add up to, whoever comes and goes."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from penstock.expr import Accumulators, col, count
from penstock.operators.slicestacks import SliceStacks

TIME = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema([("key", pa.string()), ("v", pa.int64()), ("__time", TIME)])
ACCUMULATORS = Accumulators(
    [("n", count()), ("most", col("v").max()), ("all", col("v").collect()), ("middle", col("v").mean())], SCHEMA
)


def parts(rows: list[tuple[str, int]], slice: int) -> pa.RecordBatch:
    batch = pa.RecordBatch.from_arrays(
        [pa.array([key for key, _ in rows]), pa.array([v for _, v in rows]), pa.array([slice] * len(rows), TIME)], schema=SCHEMA
    )
    return ACCUMULATORS.partial(batch, ["key"])[0]


def results(keys: list[str], values: pa.RecordBatch) -> dict[str, tuple[object, ...]]:
    columns = [column.to_pylist() for column in ACCUMULATORS.finish(values)]
    return dict(zip(keys, zip(*columns)))


rows = st.lists(st.tuples(st.sampled_from("abcd"), st.integers(-9, 9)), max_size=6)


@given(st.lists(rows, min_size=1, max_size=14), st.integers(1, 5), st.integers(1, 3))
def test_each_window_is_the_sum_of_its_slices_in_order(slices: list[list[tuple[str, int]]], width: int, step: int) -> None:
    step = min(step, width)  # no row is between two windows
    stacks = SliceStacks(ACCUMULATORS, 0)
    for start in range(0, len(slices) - width + 1, step):
        for each in range(stacks.upto, start + width):
            made = parts(slices[each], each)
            stacks.add(each, stacks.number(made.select(["key"])), made.select([f.name for f in ACCUMULATORS.fields]))
        stacks.upto = max(stacks.upto, start + width)
        wanted: dict[str, list[int]] = {}
        for each in slices[start : start + width]:
            for key, v in each:
                wanted.setdefault(key, []).append(v)
        numbers = stacks.numbers()
        assert set(stacks.keys_of(numbers)[0].column("key").to_pylist() if len(numbers) else []) == set(wanted)
        if wanted:
            whole = stacks.whole()
            assert whole.numbers.tolist() == numbers.tolist()
            found = results(stacks.keys_of(whole.numbers)[0].column("key").to_pylist(), whole.values)
            assert found == {key: (len(v), max(v), v, sum(v) / len(v)) for key, v in wanted.items()}
        gone = {(at, number) for at, some in stacks.drop(start + step) for number in some.tolist()}
        named = {(at, stacks.keys_of(np.array([number]))[0].column("key")[0].as_py()) for at, number in gone}
        assert named == {(at, key) for at in range(start, min(start + step, stacks.upto)) for key, _ in slices[at]}


def test_a_key_that_stands_twice_has_one_number() -> None:
    stacks = SliceStacks(ACCUMULATORS, 0)
    assert stacks.number(pa.record_batch({"key": ["b", "a", "b"]})).tolist() == [0, 1, 0]
    assert stacks.distinct(pa.record_batch({"key": ["c", "c", "a"]})).tolist() == [1, 2]
    assert stacks.keys_of(np.array([2, 0]))[0].column("key").to_pylist() == ["c", "b"]


def test_stacks_are_worn_when_most_numbers_belong_to_nobody() -> None:
    stacks = SliceStacks(ACCUMULATORS, 0)
    stacks.number(pa.record_batch({"key": [str(i) for i in range(1_000)]}))
    assert not stacks.worn
    stacks.number(pa.record_batch({"key": ["one more"]}))
    assert stacks.worn
