"""`combine` is `merge` for rows that are known to belong together."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.expr import ROWS, Accumulators, SumOverflow, col, count, quickgroups

SCHEMA = pa.schema(
    {
        "k": pa.int64(),
        "n": pa.int64(),
        "x": pa.float64(),
        "d": pa.decimal128(10, 2),
        "s": pa.string(),
        "b": pa.bool_(),
        "at": pa.timestamp("us", "UTC"),
    }
)
KINDS = {"n": ("sum", "min", "max", "mean", "count"), "x": ("sum", "min", "max"), "d": ("sum", "min", "max", "mean")}
KINDS |= {"s": ("min", "max", "count"), "at": ("min", "max")}
ALL = [("rows", count()), *((f"{kind}_{name}", getattr(col(name), kind)()) for name, kinds in KINDS.items() for kind in kinds)]

rows = st.lists(
    st.fixed_dictionaries(
        {
            "k": st.integers(0, 5),
            "n": st.one_of(st.none(), st.integers(-1000, 1000)),
            "x": st.one_of(st.none(), st.sampled_from([math.nan, -0.0, 0.0, 1.5, -2.25])),
            "d": st.one_of(st.none(), st.integers(-500, 500).map(lambda i: Decimal(i).scaleb(-2))),
            "s": st.one_of(st.none(), st.sampled_from(["a", "b", "zz", ""])),
            "b": st.none(),
            "at": st.one_of(st.none(), st.integers(0, 9).map(lambda i: datetime(2026, 1, 1, i, tzinfo=UTC))),
        }
    ),
    max_size=12,
)


def partial(found: list[dict[str, Any]], acc: Accumulators) -> pa.RecordBatch:
    return acc.partial(pa.RecordBatch.from_pylist(found, schema=SCHEMA), ["k"])[0].drop_columns([ROWS])


@given(rows, rows)
def test_combining_row_by_row_is_merging_by_key(before: list[dict[str, Any]], now: list[dict[str, Any]]) -> None:
    acc = Accumulators(ALL, SCHEMA)
    old, new = partial(before, acc), partial(now, acc)
    places = {key: place for place, key in enumerate(old.column("k").to_pylist())}
    found = np.array([key in places for key in new.column("k").to_pylist()], bool)
    aligned = old.take(pa.array([places.get(key) for key in new.column("k").to_pylist()], pa.int64()))
    fields = [field.name for field in acc.fields]
    combined = acc.combine(aligned.select(fields), found, new.select(fields))
    here = old.filter(pa.array([key in new.column("k").to_pylist() for key in places], pa.bool_()))
    merged = acc.merge([here, new], ["k"])
    order = {key: place for place, key in enumerate(merged.column("k").to_pylist())}
    wanted = merged.take(pa.array([order[key] for key in new.column("k").to_pylist()], pa.int64())).select(fields)
    assert repr(combined.to_pylist()) == repr(wanted.to_pylist())  # repr: NaN is NaN, and -0.0 is not 0.0
    assert combined.schema.equals(pa.schema(acc.fields))


def test_a_sum_that_does_not_fit_says_so() -> None:
    acc = Accumulators([("total", col("n").sum())], SCHEMA)
    half = pa.record_batch({"total.sum": pa.array([2**62])})
    with pytest.raises(SumOverflow, match="total"):
        acc.combine(half, np.array([True]), half)


@given(rows, st.sampled_from([["k"], ["k", "s"], ["s"]]), st.booleans())
def test_few_rows_are_grouped_like_many(found: list[dict[str, Any]], keys: list[str], encoded: bool) -> None:
    batch = pa.RecordBatch.from_pylist(found, schema=SCHEMA)
    if encoded:
        place = SCHEMA.get_field_index("s")
        batch = batch.set_column(place, "s", batch.column("s").dictionary_encode())
    acc = Accumulators(ALL, SCHEMA)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quickgroups, "FEW_ROWS", 0)
        many, _ = acc.partial(batch, keys)
    few, _ = acc.partial(batch, keys)
    assert few.schema == many.schema
    assert sorted(map(repr, few.to_pylist())) == sorted(
        map(repr, many.to_pylist())
    )  # NaN is not equal to itself, and -0.0 is not 0.0


@given(rows, st.sampled_from([["k"], ["k", "s"]]))
def test_rows_that_were_not_grouped_merge_into_those_that_were(found: list[dict[str, Any]], keys: list[str]) -> None:
    batch = pa.RecordBatch.from_pylist(found, schema=SCHEMA)
    acc = Accumulators(ALL, SCHEMA)
    rows, bad = acc.partial(batch, keys, grouped=False)
    assert bad is None
    at_once, _ = acc.partial(batch, keys)
    assert rows.schema == at_once.schema
    assert sorted(map(repr, acc.merge(rows, keys).to_pylist())) == sorted(map(repr, at_once.to_pylist()))


def test_folds_alone_leave_every_row_apart_if_that_is_allowed() -> None:
    acc = Accumulators([("n", count()), ("total", col("n").sum())], SCHEMA)
    batch = pa.RecordBatch.from_pylist([{"k": 7, "n": 1}, {"k": 7, "n": 2}], schema=SCHEMA)
    rows, _ = acc.partial(batch, ["k"], grouped=False)
    assert rows.select(["n.n", "total.sum"]).to_pylist() == [{"n.n": 1, "total.sum": 1}, {"n.n": 1, "total.sum": 2}]


@given(
    st.lists(st.tuples(st.integers(-3, 3), st.sampled_from("abc"), st.sampled_from([0, 10**7])), min_size=1, max_size=40),
    st.sampled_from([["k"], ["k", "s"], ["s"], ["k", "s", "w"], ["w"]]),
    st.sampled_from([pa.int8(), pa.int64(), pa.uint8()]),
    st.booleans(),
)
def test_rows_that_are_only_counted_are_grouped_alike(
    found: list[Any], keys: list[str], kind: pa.DataType, encoded: bool
) -> None:
    k, s, w = (list(column) for column in zip(*found))
    texts = pa.array(s).dictionary_encode() if encoded else pa.array(s)
    batch = pa.record_batch({"k": pa.array([abs(n) if kind == pa.uint8() else n for n in k], kind), "s": texts, "w": pa.array(w)})
    acc = Accumulators([("n", count()), ("m", col("w").count())], batch.schema)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quickgroups, "FEW_ROWS", 0)
        short, _ = acc.partial(batch, keys)
        patch.setattr(quickgroups, "SMALL_RANGE", 0)
        by_arrow, _ = acc.partial(batch, keys)
    assert short.schema == by_arrow.schema
    assert sorted(map(repr, short.to_pylist())) == sorted(map(repr, by_arrow.to_pylist()))


@pytest.mark.parametrize("kind", [pa.int8(), pa.int16(), pa.int64()])
def test_counted_keys_may_be_as_far_apart_as_their_type_allows(kind: pa.DataType) -> None:
    batch = pa.record_batch({"k": pa.array([-128, 127, 127] * 300, kind)})
    found, _ = Accumulators([("n", count())], batch.schema).partial(batch, ["k"])
    assert sorted((row["k"], row["n.n"]) for row in found.to_pylist()) == [(-128, 300), (127, 600)]


def test_counted_texts_may_have_numbers_of_any_type() -> None:
    numbers = pa.array([0, 1, 1] * 300, pa.uint64())
    batch = pa.record_batch({"s": pa.DictionaryArray.from_arrays(numbers, pa.array(["a", "b"]))})
    found, _ = Accumulators([("n", count())], batch.schema).partial(batch, ["s"])
    assert sorted((row["s"], row["n.n"]) for row in found.to_pylist()) == [("a", 300), ("b", 600)]


def test_batches_of_many_sizes_leave_little_behind() -> None:
    acc = Accumulators([("n", count())], pa.schema({"k": pa.int64()}))
    quickgroups._many_ones.cache_clear()
    for rows in range(1, 3_000):
        partial_rows, _ = acc.partial(pa.record_batch({"k": np.arange(rows)}), ["k"], grouped=False)
        assert partial_rows.num_rows == rows
    assert quickgroups._many_ones.cache_info().currsize <= 12
