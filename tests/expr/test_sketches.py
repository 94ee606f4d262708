"""Sketches are close to the truth; the number of different values does not depend on batches at all."""

from __future__ import annotations

import importlib.util
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from aggregate_oracle import SCHEMA, Row, batch_of, by_key, close, different, folded, known, quantile, results, rows
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import PlanError
from penstock.expr import Accumulators, Aggregate, col

COLUMNS = ("n", "x", "d", "s", "b", "day", "p")
DISTINCT = Accumulators([(name, col(name).count_distinct(approx=True)) for name in COLUMNS], SCHEMA)
SHARES = [0.0, 0.5, 0.99, 1.0]
QUANTILES = Accumulators([(name, col(name).quantile(SHARES)) for name in ("n", "x", "d")], SCHEMA)


def pieces(acc: Accumulators, found: list[Row], cut: int) -> pa.RecordBatch:
    parts = [acc.partial(batch_of(part), ["k"])[0] for part in (found[:cut], found[cut:])]
    merged = acc.merge(parts, ["k"])
    return merged


@settings(max_examples=40, deadline=None)
@given(rows, st.integers(0, 25))
def test_few_different_values_are_counted_exactly(found: list[Row], cut: int) -> None:
    wanted = {key: {name: different(known(name, group)) for name in COLUMNS} for key, group in by_key(found).items()}
    assert results(DISTINCT, pieces(DISTINCT, found, cut)) == wanted


@settings(max_examples=40, deadline=None)
@given(rows, st.integers(0, 25))
def test_quantiles_of_few_values_are_exact(found: list[Row], cut: int) -> None:
    got = results(QUANTILES, pieces(QUANTILES, found, cut))
    for key, group in by_key(found).items():
        for name in ("n", "x", "d"):
            wanted = [quantile(known(name, group), share) for share in SHARES]
            assert close(got[key][name], None if None in wanted else wanted), name


@pytest.mark.parametrize("number", [100, 1000, 20_000])
@pytest.mark.parametrize("batches", [2, 17])
def test_many_different_values_are_counted_alike_in_one_batch_and_in_many(number: int, batches: int) -> None:
    batch = pa.record_batch({"k": pa.array([1] * (2 * number)), "n": pa.array(np.tile(np.arange(number), 2))})
    acc = Accumulators([("d", col("n").count_distinct(approx=True))], batch.schema)
    whole = results(acc, acc.partial(batch, ["k"])[0])[1]["d"]
    assert abs(whole - number) <= 0.06 * number  # almost four standard errors
    step = math.ceil(batch.num_rows / batches)
    parts = [acc.partial(batch.slice(place, step), ["k"])[0] for place in range(0, batch.num_rows, step)]
    assert results(acc, acc.merge(parts, ["k"]))[1]["d"] == whole
    assert results(acc, folded(acc, parts))[1]["d"] == whole
    assert results(acc, acc.merge(parts[::-1], ["k"]))[1]["d"] == whole


@pytest.mark.parametrize("batches", [1, 20])
def test_quantiles_of_many_values_are_off_by_little_in_rank(batches: int) -> None:
    number = 20_000
    values = np.random.default_rng(7).permutation(number).astype(np.float64)
    batch = pa.record_batch({"k": pa.array([1] * number), "x": pa.array(values)})
    acc = Accumulators([("q", col("x").quantile(0.5)), ("qs", col("x").quantile([0.01, 0.9]))], batch.schema)
    step = number // batches
    merged = acc.merge([acc.partial(batch.slice(place, step), ["k"])[0] for place in range(0, number, step)], ["k"])
    found = results(acc, merged)[1]
    for got, share in [(found["q"], 0.5), *zip(found["qs"], (0.01, 0.9), strict=True)]:
        assert abs(got / number - share) < 0.03  # more than twice the error that 99 of 100 stay below


@pytest.mark.parametrize("aggregate", [col("n").count_distinct(approx=True), col("n").quantile(0.5)])
def test_without_the_library_the_plan_says_how_to_get_it(aggregate: Aggregate, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "datasketches" else find(name, *rest))
    with pytest.raises(PlanError, match=r'pip install "penstock\[sketches\]"'):
        Accumulators([("a", aggregate)], SCHEMA)


def test_rows_that_do_not_count_are_in_no_sketch() -> None:
    aggregates: list[tuple[str, Any]] = [
        ("d", col("n").count_distinct(approx=True, where=col("b"))),
        ("q", col("n").quantile(1.0, where=col("b"))),
    ]
    acc = Accumulators(aggregates, SCHEMA)
    found = [{"k": 1, "n": n, "b": b} for n, b in [(1, True), (5, False), (7, None), (2, True)]]
    assert results(acc, acc.partial(batch_of(found), ["k"])[0])[1] == {"d": 2, "q": 2.0}
