"""Aggregates against a plain-Python oracle, however the rows were batched."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import PlanError, RowError
from penstock.expr import ROWS, Accumulators, Aggregate, SumOverflow, col, count

SCHEMA = pa.schema({"k": pa.string(), "n": pa.int64(), "x": pa.float64(), "d": pa.decimal128(10, 2), "s": pa.string()})
ALL = [
    ("rows", count()),
    ("big", count(where=col("n") > 0)),
    ("known", col("n").count()),
    ("total", col("n").sum()),
    ("low", col("n").min()),
    ("high", col("s").max()),
    ("mean", col("n").mean()),
    ("money", col("d").sum()),
    ("halves", col("x").sum()),
    ("some", col("n").sum(where=col("s") == "a")),
]

row_values = st.fixed_dictionaries(
    {
        "k": st.sampled_from(["a", "b", "c", None]),
        "n": st.one_of(st.none(), st.integers(-1000, 1000)),
        "x": st.one_of(st.none(), st.integers(-64, 64).map(lambda i: i / 8)),
        "d": st.one_of(st.none(), st.integers(-500, 500).map(lambda i: Decimal(i).scaleb(-2))),
        "s": st.one_of(st.none(), st.sampled_from(["a", "b", "zz", ""])),
    }
)


def batch_of(rows: Sequence[dict[str, Any]], schema: pa.Schema = SCHEMA) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(rows), schema=schema)


def oracle(rows: list[dict[str, Any]]) -> dict[Any, list[Any]]:
    groups: dict[Any, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(row["k"], []).append(row)
    return {key: expected(group) for key, group in groups.items()}


def expected(group: list[dict[str, Any]]) -> list[Any]:
    def known(name: str) -> list[Any]:
        return [row[name] for row in group if row[name] is not None]

    n, some = known("n"), [row["n"] for row in group if row["s"] == "a" and row["n"] is not None]
    return [
        len(group),
        sum(value > 0 for value in n),
        len(n),
        sum(n) if n else None,
        min(n, default=None),
        max(known("s"), default=None),
        sum(n) / len(n) if n else None,
        sum(known("d")) if known("d") else None,
        sum(known("x")) if known("x") else None,
        sum(some) if some else None,
    ]


def results(acc: Accumulators, rows: pa.RecordBatch) -> dict[Any, list[Any]]:
    columns = [column.to_pylist() for column in acc.finish(rows)]
    return {key: list(values) for key, *values in zip(rows.column("k").to_pylist(), *columns, strict=True)}


@given(st.lists(row_values, max_size=30), st.lists(st.integers(0, 30), max_size=4))
def test_results_are_those_of_plain_python_however_rows_were_batched(rows: list[dict[str, Any]], cuts: list[int]) -> None:
    acc = Accumulators(ALL, SCHEMA)
    bounds = sorted({0, len(rows), *(min(cut, len(rows)) for cut in cuts)})
    pieces = [acc.partial(batch_of(rows[a:b]), ["k"])[0] for a, b in pairwise(bounds)]
    pieces = pieces or [acc.partial(batch_of([]), ["k"])[0]]
    merged = acc.merge(pieces, ["k"])
    assert results(acc, merged) == oracle(rows)
    assert list(results(acc, merged)) == list(oracle(rows))  # In order of first appearance.
    assert sum(merged.column(ROWS).to_pylist()) == len(rows)
    again = acc.merge(pa.Table.from_batches([acc.merge(pieces[:1], ["k"]), *pieces[1:]]), ["k"])
    assert again.equals(merged)


def test_a_partial_row_has_keys_accumulators_and_the_number_of_rows() -> None:
    acc = Accumulators([("total", col("n").sum()), ("m", col("n").mean())], SCHEMA)
    assert [field.name for field in acc.fields] == ["total.sum", "m.sum", "m.n"]
    partial, errors = acc.partial(batch_of([{"k": "a", "n": 1}, {"k": "a", "n": 2}]), ["k"])
    assert partial.schema.names == ["k", "total.sum", "m.sum", "m.n", ROWS]
    assert partial.select([field.name for field in acc.fields]).schema == pa.schema(acc.fields)
    assert partial.to_pylist() == [{"k": "a", "total.sum": 3, "m.sum": Decimal(3), "m.n": 2, ROWS: 2}]
    assert errors is None


def test_rows_to_merge_may_differ_in_nullability_and_order_of_columns() -> None:
    acc = Accumulators([("t", col("n").sum())], SCHEMA)
    one = acc.partial(batch_of([{"k": "a", "n": 1}]), ["k"])[0]
    strict = pa.schema([field.with_nullable(False) for field in one.schema])
    other = pa.RecordBatch.from_arrays(one.columns, schema=strict).select([ROWS, "t.sum", "k"])
    assert acc.merge([one, other], ["k"]).to_pylist() == [{"k": "a", "t.sum": 2, ROWS: 2}]


def test_without_keys_all_rows_are_one_group_and_no_rows_are_none() -> None:
    acc = Accumulators([("n", count())], SCHEMA)
    assert acc.partial(batch_of([{"k": "a"}, {"k": "b"}]), [])[0].to_pylist() == [{"n.n": 2, ROWS: 2}]
    assert acc.partial(batch_of([]), [])[0].num_rows == 0


def test_bad_rows_are_left_out_everywhere_and_reported() -> None:
    acc = Accumulators([("n", count()), ("t", (10 / col("n")).sum())], SCHEMA)
    partial, errors = acc.partial(batch_of([{"k": "a", "n": 0}, {"k": "a", "n": 5}, {"k": "b", "n": 0}]), ["k"])
    assert partial.to_pylist() == [{"k": "a", "n.n": 1, "t.sum": 2.0, ROWS: 1}]
    assert errors is not None
    assert errors.tolist() == [True, False, True]


@given(st.lists(st.one_of(st.none(), st.integers(-5, 5))))
def test_bad_rows_do_not_change_what_good_rows_give(numbers: list[int | None]) -> None:
    schema = pa.schema({"n": pa.int64()})
    acc = Accumulators([("t", (10 / col("n")).max()), ("c", count())], schema)
    partial, errors = acc.partial(batch_of([{"n": n} for n in numbers], schema), [])
    good = [n for n in numbers if n != 0]
    assert (errors.sum() if errors is not None else 0) == len(numbers) - len(good)
    alone, none = acc.partial(batch_of([{"n": n} for n in good], schema), [])
    assert none is None
    assert partial.equals(alone)


def test_a_sum_never_wraps() -> None:
    acc = Accumulators([("t", col("n").sum())], SCHEMA)
    big = {"k": "a", "n": 2**62}
    with pytest.raises(SumOverflow, match=r"t\.sum") as caught:
        acc.partial(batch_of([big, big]), ["k"])
    assert isinstance(caught.value, OverflowError)
    assert isinstance(caught.value, RowError)
    one = acc.partial(batch_of([big]), ["k"])[0]
    with pytest.raises(SumOverflow):
        acc.merge([one, one], ["k"])


def test_large_integers_that_cancel_out_are_summed_exactly() -> None:
    acc = Accumulators([("t", col("n").sum()), ("m", col("n").mean())], SCHEMA)
    rows = [{"k": "a", "n": n} for n in (2**62, 2**62, -(2**62), -(2**63), 7)]
    assert acc.finish(acc.partial(batch_of(rows), ["k"])[0])[0].to_pylist() == [-(2**62) + 7]


def test_a_mean_exists_where_the_sum_does_not_fit() -> None:
    acc = Accumulators([("m", col("n").mean())], SCHEMA)
    rows = [{"k": "a", "n": 2**63 - 1}] * 4
    assert acc.finish(acc.partial(batch_of(rows), ["k"])[0])[0].to_pylist() == [float(2**63 - 1)]


def test_a_decimal_sum_never_wraps() -> None:
    schema = pa.schema({"k": pa.string(), "d": pa.decimal128(38, 0)})
    acc = Accumulators([("t", col("d").sum())], schema)
    with pytest.raises(SumOverflow):
        acc.partial(batch_of([{"k": "a", "d": Decimal("9" * 38)}] * 2, schema), ["k"])


def test_nan_is_the_greatest_in_min_and_max() -> None:
    acc = Accumulators([("lo", col("x").min()), ("hi", col("x").max())], SCHEMA)
    rows = [{"k": "a", "x": x} for x in (1.5, math.nan, -math.inf, None, -2.0)]
    lo, hi = (column.to_pylist()[0] for column in acc.finish(acc.partial(batch_of(rows), ["k"])[0]))
    assert lo == -math.inf
    assert math.isnan(hi)
    only = acc.finish(acc.partial(batch_of([{"k": "a", "x": math.nan}]), ["k"])[0])
    assert math.isnan(only[0].to_pylist()[0])


@pytest.mark.parametrize(
    "keys",
    [
        pa.array([{"a": 1}, {"a": 2}, {"a": 1}, None]),
        pa.array([[1], [2], [1], None]),
        pa.array(["x", "y", "x", None]).dictionary_encode(),
        pa.array([Decimal("1.5"), Decimal("2.5"), Decimal("1.5"), None]),
        pa.array([True, False, True, None]),
        pa.array([9, 1, 2, 1, None])[1:],
    ],
)
def test_keys_may_be_of_any_type(keys: pa.Array) -> None:
    batch = pa.RecordBatch.from_arrays([keys], names=["k"])
    acc = Accumulators([("n", count())], batch.schema)
    partial = acc.partial(batch, ["k"])[0]
    assert partial.column("k").to_pylist() == [*keys.to_pylist()[:2], None]
    assert acc.finish(partial)[0].to_pylist() == [2, 1, 1]
    assert acc.finish(acc.merge([partial, partial], ["k"]))[0].to_pylist() == [4, 2, 2]


def test_inputs_may_be_dictionaries_and_small_integers() -> None:
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array(["b", "a"]).dictionary_encode(),
            pa.array([100, 100], pa.int8()),
            pa.array([1.5, 2.5], pa.float32()),
        ],
        names=["s", "n", "f"],
    )
    aggregates = [
        ("lo", col("s").min()),
        ("t", col("n").sum()),
        ("f", col("f").max()),
        ("sf", col("f").sum()),
    ]
    acc = Accumulators(aggregates, batch.schema)
    found = acc.finish(acc.partial(batch, [])[0])
    assert [column.to_pylist() for column in found] == [["a"], [200], [2.5], [4.0]]
    assert [column.type for column in found] == [field.type for field in acc.results]


@pytest.mark.parametrize(
    ("aggregate", "found", "nullable"),
    [
        (count(), pa.int64(), False),
        (col("s").count(), pa.int64(), False),
        (col("n").sum(), pa.int64(), True),
        (col("x").sum(), pa.float64(), True),
        (col("d").sum(), pa.decimal128(38, 2), True),
        (col("n").mean(), pa.float64(), True),
        (col("s").min(), pa.string(), True),
    ],
)
def test_result_types(aggregate: Aggregate, found: pa.DataType, nullable: bool) -> None:
    assert aggregate.field(SCHEMA, "r") == pa.field("r", found, nullable)


def test_aggregates_are_compared_by_structure_and_print_as_sql() -> None:
    assert col("n").sum() == col("n").sum() != col("n").max()
    assert hash(count(where=col("n") > 1)) == hash(count(where=col("n") > 1))
    assert count(where=col("n") > 1).text() == "count(*) filter (where n > 1)"
    assert col("n").sum().alias("t").name == "t"


@pytest.mark.parametrize("aggregate", [col("s").sum(), col("nope").max(), count(where=col("n")), col("s").mean()])
def test_aggregates_that_mean_nothing_are_refused(aggregate: Aggregate) -> None:
    with pytest.raises(PlanError):
        aggregate.check(SCHEMA)
