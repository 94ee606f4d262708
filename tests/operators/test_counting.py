"""Windows by the number of rows: which are sent, and what becomes of those that an earlier rule had begun."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as pen
from penstock import col, sinks, sources
from penstock.expr import Accumulators
from penstock.operators.counting import CountAggregate
from penstock.operators.operator import Errors
from penstock.plan.logical import DEAD_SCHEMA
from penstock.state.spec import StateSpec
from penstock.state.table import KeyedTable
from penstock.windows import CountSliding, sliding

GROUPS = 128


def windows_of(rows: int, shape: Any, batch: int) -> list[list[int]]:
    """The rows of each window that is sent, of one key with the rows 1, 2, 3…"""
    source = sources.memory([{"k": "a", "i": i + 1} for i in range(rows)], schema="k string, i bigint", batch=batch)
    out = sinks.memory("counting")
    out.clear()
    stream = pen.Pipeline("counting").read(source).key_by("k").window(shape)
    stream.aggregate(rows=col("i").collect(), name="rows").write(out)
    stream._stream._pipeline.run(pen.Local(restarts=0))
    return [row["rows"] for row in sorted(out.rows(), key=lambda row: (row["window_end"], row["window_start"]))]


def test_the_last_three_at_each_row_are_one_two_and_then_three_rows_and_nothing_more_at_the_end() -> None:
    assert windows_of(5, pen.sliding(rows=3, every=1), 5) == [[1], [1, 2], [1, 2, 3], [2, 3, 4], [3, 4, 5]]


def test_windows_side_by_side_that_are_not_full_are_sent_at_the_end() -> None:
    assert windows_of(5, pen.tumbling(rows=3), 2) == [[1, 2, 3], [4, 5]]


@given(st.integers(1, 6), st.data(), st.integers(0, 20), st.integers(1, 7))
@settings(max_examples=30, deadline=None)
def test_at_every_so_many_rows_the_last_so_many(rows: int, data: st.DataObject, there: int, batch: int) -> None:
    every = data.draw(st.integers(1, rows))
    expected = [list(range(max(end - rows, 0) + 1, end + 1)) for end in range(every, there + 1, every)]
    assert windows_of(there, sliding(rows=rows, every=every), batch) == expected


def table(name: str, more: list[pa.Field], values: list[pa.Field]) -> KeyedTable:
    keys = pa.schema([pa.field("k", pa.string()), *more])
    return KeyedTable(StateSpec(name, keys, pa.schema(values), 1), range(GROUPS), GROUPS)


@pytest.mark.parametrize(
    ("every", "there", "slices", "expected"),
    [
        # As checkpoints have them that were written when windows began, not ended, at every fourth row: six rows of each.
        (4, 7, {4: 2, 6: 1}, [(4, 8, 4), (6, 12, 6)]),  # the window from 0 was sent with its sixth row, and 2 and 3 went with it
        (4, 9, {4: 2, 6: 2, 8: 1}, [(6, 12, 6)]),  # the one from 4 had not been sent: it never is, the one up to 12 is
        (3, 7, {3: 3, 6: 1}, [(3, 9, 6), (6, 12, 6)]),
    ],
)
def test_windows_that_an_earlier_rule_had_begun_go_on_by_the_new_one(
    every: int, there: int, slices: dict[int, int], expected: list[tuple[int, int, int]]
) -> None:
    rows = pa.schema([pa.field("k", pa.string())])
    accumulators = Accumulators([("n", pen.count())], rows)
    states = {
        "accumulators": table("accumulators", [pa.field("__window", pa.int64())], accumulators.fields),
        "counts": table("counts", [], [pa.field("__count", pa.int64(), nullable=False)]),
    }
    ints = [pa.array(list(part)) for part in (slices, slices.values())]
    states["accumulators"].put_many(
        pa.record_batch([pa.array(["a"] * len(slices)), ints[0]], ["k", "__window"]), pa.record_batch([ints[1]], ["n.n"])
    )
    states["counts"].put_many(pa.record_batch({"k": ["a"]}), pa.record_batch({"__count": [there]}))
    output = pa.schema([rows.field(0), *(pa.field(name, pa.int64()) for name in ("window_start", "window_end", "n"))])
    operator = CountAggregate(
        "six",
        output,
        CountSliding(6, every),
        by=list(rows),
        accumulators=accumulators,
        errors=Errors("six", "fail", DEAD_SCHEMA),
        states=states,
        partial=False,
        max_parallelism=GROUPS,
    )
    batch = pa.record_batch({"k": ["a"] * (12 - there)})
    sent = [row for _, rows in [*operator.process(batch, None), *operator.end()] for row in rows.to_pylist()]
    assert [(row["window_start"], row["window_end"], row["n"]) for row in sent] == expected
