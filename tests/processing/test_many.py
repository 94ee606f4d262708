"""The vectorised form of each state does what the rows would have done one by one, however they are cut into batches."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import penstock as pen
from penstock import col
from penstock.errors import RowError
from penstock.processing.states import Keys
from processing.hands import Feed, Rows
from processing.states import Bench

RELAXED: dict[str, Any] = {"deadline": None, "derandomize": True, "suppress_health_check": list(HealthCheck)}
CLEAR, DROP = 7, 8
"""Numbers that say something else than to be added."""


class Pair(NamedTuple):
    a: int
    b: int | None


def states(**forget: Any) -> dict[str, Any]:
    return {
        "last": pen.ValueState(int, default=-1, **forget),
        "items": pen.ListState(int, **forget),
        "whole": pen.ListState(int, **forget),
        "names": pen.MapState(str, int, **forget),
        "most": pen.ReducingState(max, int, **forget),
        "text": pen.ReducingState(lambda a, b: a + b, str, **forget),
        "mean": pen.AggregatingState(col("value").mean(), int, **forget),
        "pairs": pen.AggregatingState((col("a") + pen.coalesce(col("b"), 0)).sum(), Pair, **forget),
    }


class ByRow(pen.ProcessFunction):
    """One row after the other."""

    def __init__(self, **forget: Any) -> None:
        vars(self).update(states(**forget))

    def on_row(self, row: pen.Row, ctx: pen.Context) -> str | None:
        me: Any = self
        if row.n is None:
            lists = me.last.get(), me.items.get(), me.whole.get(), [me.names.get(name) for name in "xy"]
            return " ".join(map(str, (ctx.key, *lists, me.most.get(), me.text.get(), me.mean.get(), me.pairs.get())))
        if row.n == CLEAR:
            for name in states():
                getattr(me, name).clear()
            return None
        name = "xy"[row.n % 2]
        if row.n == DROP:
            me.names.remove("x")
            return None
        me.last.set(row.n)
        me.items.append(row.n)
        me.whole.set(list(range(row.n % 3)))
        me.names.set(name, row.n)
        me.most.add(row.n)
        me.text.add(str(row.n))
        me.mean.add(row.n)
        me.pairs.add(Pair(row.n, None if row.n % 2 else 1))
        return None


class ByBatch(pen.ProcessFunction):
    """The rows between two that say something else at once."""

    def __init__(self, **forget: Any) -> None:
        vars(self).update(states(**forget))

    def on_batch(self, keys: Keys, batch: pa.RecordBatch, ctx: pen.Context) -> pa.RecordBatch:
        numbers = batch.column("n").to_pylist()
        told: list[str | None] = [None] * len(numbers)
        special = [i for i, n in enumerate(numbers) if n in (None, CLEAR, DROP)]
        for before, at in pairwise([-1, *special, len(numbers)]):
            self.many(keys.take(range(before + 1, at)), numbers[before + 1 : at])
            if at < len(numbers):
                told[at] = self.one(keys.take([at]), numbers[at])
        return pa.record_batch({"value": pa.array(told, pa.string())})

    def many(self, keys: Keys, numbers: list[int]) -> None:
        me: Any = self
        column = pa.array(numbers, pa.int64())
        me.last.set_many(keys, column)
        me.items.append_many(keys, column)
        me.whole.set_many(keys, pa.array([list(range(n % 3)) for n in numbers], pa.list_(pa.int64())))
        me.names.set_many(keys, pa.array(["xy"[n % 2] for n in numbers], pa.string()), column)
        me.most.add_many(keys, column)
        me.text.add_many(keys, pa.array([str(n) for n in numbers], pa.string()))
        me.mean.add_many(keys, column)
        me.pairs.add_many(keys, [{"a": n, "b": None if n % 2 else 1} for n in numbers])

    def one(self, key: Keys, number: int | None) -> str | None:
        me: Any = self
        if number == CLEAR:
            for name in states():
                getattr(me, name).clear_many(key)
            return None
        if number == DROP:
            me.names.remove_many(key, ["x"])
            return None
        got = [getattr(me, name).get_many(key).to_pylist()[0] for name in states() if name != "names"]
        names = [me.names.get_many(key, [name]).to_pylist()[0] for name in "xy"]
        return " ".join(map(str, (key.columns.column(0)[0].as_py(), *got[:3], names, *got[3:])))


KEYS = ("a", None)
NUMBERS = st.sampled_from([0, 1, 2, 3, 4, 5, None, None, CLEAR, DROP])
ROWS = st.lists(st.tuples(st.sampled_from(KEYS), NUMBERS, st.integers(0, 20)), min_size=8, max_size=25)


def told(function: pen.ProcessFunction, rows: Rows, cuts: list[int], **options: Any) -> list[str]:
    """What is told of each key, in order."""
    feed = Feed(function, on_error="fail", **options)
    rows, used = [*rows, *((key, None, 20) for key in KEYS)], 0
    while rows:
        size = cuts[used % len(cuts)]
        feed.tick(used).rows(*rows[:size])
        used += 1
        rows = rows[size:]
        if used % 4 == 0:
            feed.restore(1 + used % 3)
    return sorted((text for text in feed.sent() if text is not None), key=lambda text: text.split()[0])


@pytest.mark.parametrize("forget", [{}, {"ttl": "5s"}, {"ttl": "3s", "clock": "processing"}], ids=["keep", "event", "processing"])
@settings(max_examples=8, **RELAXED)
@given(rows=ROWS, cuts=st.lists(st.integers(1, 12), min_size=1, max_size=6))
def test_whole_batches_do_what_their_rows_do(forget: dict[str, Any], rows: Rows, cuts: list[int]) -> None:
    by_row = told(ByRow(**forget), rows, cuts)
    assert told(ByBatch(**forget), rows, cuts, schema="value string") == by_row
    assert len(by_row) >= len(KEYS)


def test_a_row_that_comes_too_late_for_what_the_row_before_wrote_starts_anew() -> None:
    items, mean = Bench(pen.ListState(int, ttl="10us")), Bench(pen.AggregatingState(col("value").mean(), int, ttl="10us"))
    columns = pa.record_batch({"k": ["a", "b", "a", "b"]})
    for bench, add in ((items, items.state.append_many), (mean, mean.state.add_many)):
        add(Keys(columns, np.array([0, 0, 9, 10])), [1, 2, 3, 4])
        bench.batch()
    later = Keys(columns, np.array([18, 19, 19, 20]))
    assert items.state.get_many(later).to_pylist() == [[1, 3], [4], [], []]
    assert mean.state.get_many(later).to_pylist() == [2.0, 4.0, None, None]


def test_columns_that_do_not_fit_are_refused() -> None:
    items, names = Bench(pen.ListState(int)), Bench(pen.MapState(str, int))
    keys = items.keys("a", "b")
    with pytest.raises(RowError, match="state 'it': 1 values for 2 keys"):
        items.state.append_many(keys, [1])
    with pytest.raises(RowError, match="state 'it': a null, and it holds none"):
        items.state.append_many(keys, [1, None])
    with pytest.raises(RowError, match=r"it: expected bigint, and found None"):
        items.state.set_many(keys, [[1], [None]])
    with pytest.raises(RowError, match=r"state 'it': .*'x'"):
        names.state.set_many(keys, ["x", "y"], ["x", "y"])
