"""Every aggregate is what plain Python says, however its rows were batched and merged."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from aggregate_oracle import COLUMNS, SCHEMA, Row, batch_of, by_key, close, everything, folded, results, rows
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import PlanError
from penstock.expr import EVENT_TIME, Accumulators, Aggregate, col, parse_aggregate

ALL = everything()
ACC = Accumulators([(name, aggregate) for name, (aggregate, _) in ALL.items()], SCHEMA)
UNTIMED = pa.schema([field for field in SCHEMA if field.name != EVENT_TIME])


def compare(found: dict[Any, dict[str, Any]], wanted: dict[Any, list[Row]]) -> None:
    assert set(found) == set(wanted)
    for key, group in wanted.items():
        for name, (_, reference) in ALL.items():
            assert close(found[key][name], reference(group)), f"{name}: {found[key][name]!r}, expected {reference(group)!r}"


@settings(max_examples=30, deadline=None)
@given(rows, st.lists(st.integers(0, 25), max_size=4), st.randoms())
def test_any_split_and_any_grouping_of_merges_give_the_same(found: list[Row], cuts: list[int], random: Any) -> None:
    bounds = sorted({0, len(found), *(min(cut, len(found)) for cut in cuts)})
    pieces = [ACC.partial(batch_of(found[a:b]), ["k"])[0] for a, b in pairwise(bounds)]
    compare(results(ACC, folded(ACC, pieces)), by_key(found))
    while len(pieces) > 1:  # neighbours merge in any order; what came first stays first
        place = random.randrange(len(pieces) - 1)
        pieces[place : place + 2] = [ACC.merge(pieces[place : place + 2], ["k"])]
    compare(results(ACC, pieces[0] if pieces else ACC.partial(batch_of([]), ["k"])[0]), by_key(found))


def test_no_rows_give_no_groups() -> None:
    empty = ACC.partial(batch_of([]), ["k"])[0]
    assert empty.num_rows == 0
    assert [column.type for column in ACC.finish(empty)] == [field.type for field in ACC.results]
    assert ACC.merge([empty, empty], ["k"]).schema.equals(empty.schema)


def test_all_null_rows_give_null_zero_or_an_empty_list() -> None:
    row = dict.fromkeys(COLUMNS) | {"k": 1, EVENT_TIME: datetime(2026, 1, 1, tzinfo=UTC)}
    found = results(ACC, ACC.partial(batch_of([row, row]), ["k"])[0])[1]
    assert {name: found[name] for name in ("var_n", "first_s_False", "q_x", "qs_x")} == dict.fromkeys(
        ("var_n", "first_s_False", "q_x", "qs_x")
    )
    assert (found["collect_s"], found["top_n"], found["distinct_x"], found["rows"]) == ([], [], 0, 2)


def test_partial_rows_have_the_columns_that_fields_say() -> None:
    partial = ACC.partial(batch_of([dict.fromkeys(SCHEMA.names) | {"k": 1}]), ["k"])[0]
    assert partial.schema.names == ["k", *(field.name for field in ACC.fields), "__rows"]
    assert partial.select([field.name for field in ACC.fields]).schema == pa.schema(ACC.fields)


@pytest.mark.parametrize(("hours", "first", "last"), [((1, 1, 1), 10, 30), ((3, 1, 2), 20, 10), ((2, 1, 1), 20, 10)])
def test_first_and_last_go_by_event_time_and_ties_by_arrival(hours: tuple[int, ...], first: int, last: int) -> None:
    at = [datetime(2026, 1, 1, hour, tzinfo=UTC) for hour in hours]
    found = [{"k": 1, "n": n, EVENT_TIME: time} for n, time in zip((10, 20, 30), at, strict=True)]
    acc = Accumulators([("f", col("n").first()), ("l", col("n").last())], SCHEMA)
    whole = [acc.partial(batch_of(found), ["k"])[0]]
    single = [acc.partial(batch_of([one]), ["k"])[0] for one in found]
    for pieces in (whole, single):
        assert results(acc, acc.merge(pieces, ["k"]))[1] == {"f": first, "l": last}
        assert results(acc, folded(acc, pieces))[1] == {"f": first, "l": last}


def test_without_event_time_first_and_last_go_by_arrival() -> None:
    acc = Accumulators([("f", col("s").first()), ("l", col("s").last()), ("k", col("s").last(ignore_nulls=True))], UNTIMED)
    texts = [None, "b", "a", None]
    pieces = [acc.partial(batch_of([{"k": 1, "s": text}], UNTIMED), ["k"])[0] for text in texts]
    assert results(acc, acc.merge(pieces, ["k"]))[1] == {"f": None, "l": None, "k": "a"}
    assert results(acc, folded(acc, pieces))[1] == {"f": None, "l": None, "k": "a"}


@pytest.mark.parametrize("size", [1, 3, 100, 5000])
def test_top_k_of_large_groups_is_that_of_sorting(size: int) -> None:
    numbers = [(i * 7919) % 1009 - 500 for i in range(size)]
    batch = pa.record_batch({"k": pa.array([i % 3 for i in range(size)]), "n": pa.array(numbers)})
    acc = Accumulators([("t", col("n").top_k(5))], batch.schema)
    found = results(acc, acc.partial(batch, ["k"])[0])
    assert found == {k: {"t": sorted(numbers[k::3], reverse=True)[:5]} for k in range(min(3, size))}


def test_variance_keeps_its_digits_where_values_are_large_and_close() -> None:
    batch = pa.record_batch({"k": pa.array([1] * 4), "x": pa.array([1e9 + 4, 1e9 + 7, 1e9 + 13, 1e9 + 16])})
    acc = Accumulators([("v", col("x").variance()), ("c", (col("x") * 0 + 0.1).variance())], batch.schema)
    parts = [acc.partial(batch.slice(place, 1), ["k"])[0] for place in range(4)]
    for merged in (acc.merge(parts, ["k"]), acc.partial(batch, ["k"])[0], folded(acc, parts)):
        assert results(acc, merged)[1] == {"v": 30.0, "c": 0.0}


def test_a_bad_row_counts_in_no_slot() -> None:
    acc = Accumulators([("l", (10 / col("n")).collect()), ("s", col("s").collect()), ("f", col("s").first())], UNTIMED)
    found = [{"k": 1, "n": 0, "s": "bad"}, {"k": 1, "n": 5, "s": "good"}]
    partial, errors = acc.partial(batch_of(found, UNTIMED), ["k"])
    assert errors is not None
    assert errors.tolist() == [True, False]
    assert results(acc, partial)[1] == {"l": [2.0], "s": ["good"], "f": "good"}


def test_an_error_in_a_row_that_does_not_count_is_none() -> None:
    acc = Accumulators([("l", (10 / col("n")).collect(where=col("n") != 0))], UNTIMED)
    partial, errors = acc.partial(batch_of([{"k": 1, "n": 0}, {"k": 1, "n": 5}], UNTIMED), ["k"])
    assert errors is None
    assert results(acc, partial)[1] == {"l": [2.0]}


@pytest.mark.parametrize(
    "values",
    [
        pa.array(["b", "a", None, "b"]).dictionary_encode(),
        pa.array(["b", "a", None, "b"], pa.large_string()),
        pa.array([b"b", b"a", None, b"b"]),
        pa.array([2, 1, None, 2], pa.uint64()),
        pa.array([2**64 - 1, 1, None, 2**64 - 1], pa.uint64()),
        pa.array([2, 1, None, 2], pa.int8()),
        pa.array([2.5, 1.5, None, 2.5], pa.float32()),
        pa.array([Decimal("2.5"), Decimal("1.5"), None, Decimal("2.5")]),
        pa.array([2, 1, None, 2], pa.duration("us")),
        pa.array([2, 1, None, 2], pa.time64("us")),
        pa.array([2, 1, None, 2], pa.date32()),
        pa.array([2, 1, None, 2], pa.timestamp("ns", "UTC")),
        pa.array([True, False, None, True]),
    ],
    ids=lambda values: str(values.type),
)
@pytest.mark.parametrize("retract", [False, True])
def test_slots_take_every_type_that_can_be_compared(values: pa.Array, retract: bool) -> None:
    times = pa.array([4, 3, 2, 1], pa.timestamp("us", "UTC"))
    batch = pa.RecordBatch.from_arrays([pa.array([1] * 4), values, times], names=["k", "v", EVENT_TIME])
    aggregates = [("t", col("v").top_k(2)), ("c", col("v").collect()), ("d", col("v").count_distinct())]
    aggregates += [("f", col("v").first()), ("l", col("v").last()), ("lo", col("v").min())]
    aggregates += [] if retract else [("a", col("v").count_distinct(approx=True))]
    acc = Accumulators(aggregates, batch.schema, retract=retract)
    if retract:
        batch = batch.append_column("__change", pa.array([1] * 4, pa.int8()))
    partial = acc.partial(batch, ["k"])[0]
    found = results(acc, acc.merge([partial, acc.partial(batch.slice(0, 0), ["k"])[0]], ["k"]))[1]
    high, low = values.cast(found_type(values)).to_pylist()[:2]
    assert found["t"] == [high, high]
    assert sorted(map(str, found["c"])) == sorted(map(str, [high, low, high]))
    assert (found["d"], found["f"], found["l"], found["lo"]) == (2, high, high, low)
    assert found.get("a", 2) == 2


def found_type(values: pa.Array) -> pa.DataType:
    return values.type.value_type if pa.types.is_dictionary(values.type) else values.type


@pytest.mark.parametrize(
    ("text", "aggregate"),
    [
        ("var_samp(n)", col("n").variance()),
        ("variance(n)", col("n").variance()),
        ("var_pop(n)", col("n").variance(ddof=0)),
        ("stddev(n)", col("n").stddev()),
        ("stddev_samp(n)", col("n").stddev()),
        ("std(n)", col("n").stddev()),
        ("stddev_pop(n)", col("n").stddev(ddof=0)),
        ("first(n)", col("n").first()),
        ("first_value(n)", col("n").first()),
        ("first(n, true)", col("n").first(ignore_nulls=True)),
        ("last(n) ignore nulls", col("n").last(ignore_nulls=True)),
        ("last_value(n)", col("n").last()),
        ("collect_list(n + 1)", (col("n") + 1).collect()),
        ("array_agg(n)", col("n").collect()),
        ("top_k(n, 3)", col("n").top_k(3)),
        ("count(distinct n)", col("n").count_distinct()),
        ("count(distinct n) filter (where b)", col("n").count_distinct(where=col("b"))),
        ("approx_count_distinct(n)", col("n").count_distinct(approx=True)),
        ("approx_percentile(n, 0.5)", col("n").quantile(0.5)),
        ("percentile_approx(n, array(0.5, 0.99))", col("n").quantile([0.5, 0.99])),
        ("quantile(n, 0.5)", col("n").quantile(0.5, approx=False)),
        ("last(n, true) filter (where b) as x", col("n").last(ignore_nulls=True, where=col("b")).alias("x")),
    ],
)
def test_sql_is_the_same_as_the_method_and_its_text_reads_back(text: str, aggregate: Aggregate) -> None:
    assert parse_aggregate(text) == aggregate
    assert parse_aggregate(aggregate.alias("y").text()).alias("y") == aggregate.alias("y")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: col("n").top_k(0), r"Write: \.top_k\(3\)"),
        (lambda: col("n").top_k(True), "top_k"),
        (lambda: col("n").quantile(1.5), "from 0 to 1"),
        (lambda: col("n").quantile([]), "from 0 to 1"),
        (lambda: col("n").quantile("0.5"), "from 0 to 1"),
        (lambda: col("n").variance(ddof=2), "ddof is 1"),
        (lambda: col("s").variance().check(SCHEMA), r'Write: col\("s"\)\.cast\("double"\)'),
        (lambda: col("s").quantile(0.5).check(SCHEMA), r'Write: col\("s"\)\.cast\("double"\)'),
        (lambda: col("p").top_k(2).check(SCHEMA), r'Take what is inside.* Write: \["'),
        (lambda: col("nope").last().check(SCHEMA), "no column 'nope'"),
        (lambda: col("n").last(where=col("n")).check(SCHEMA), "boolean"),
        (lambda: parse_aggregate("count(distinct n, s)"), r"struct\(n, s\)"),
        (lambda: parse_aggregate("approx_percentile(n, s)"), "expected a number"),
        (lambda: parse_aggregate("approx_percentile(n, 0.5, 100)"), r"written approx_percentile\(x, 0.5\)"),
        (lambda: parse_aggregate("approx_count_distinct(n, 0.1)"), r"written approx_count_distinct\(x\)"),
        (lambda: parse_aggregate("sum(distinct n)"), "distinct"),
        (lambda: parse_aggregate("collect_set(n)"), r"Write: collect_list\(x\)"),
    ],
)
def test_what_means_nothing_is_refused_with_the_fix(make: Any, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        make()


def test_nan_is_the_greatest_and_both_zeros_are_one_value() -> None:
    batch = pa.record_batch({"k": pa.array([1] * 5), "x": pa.array([0.0, math.nan, -0.0, 1.0, math.nan])})
    acc = Accumulators([("t", col("x").top_k(9)), ("d", col("x").count_distinct())], batch.schema)
    found = results(acc, acc.partial(batch, ["k"])[0])[1]
    assert repr(found["t"]) == "[nan, nan, 1.0, 0.0, -0.0]"
    assert found["d"] == 3
