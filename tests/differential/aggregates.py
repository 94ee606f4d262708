"""Aggregates: groups of rows as Penstock folds them, and as Spark does, in one query."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from differential.comparing import Outcome, Sample, values_of
from differential.forms import ORDERED, Form
from differential.generators import column
from penstock.expr import Accumulators, parse_aggregate

__all__ = ["aggregates", "compared"]

GROUPS = 12
IN_ORDER = ("first", "last", "first_value", "last_value", "collect_list", "array_agg")
WINDOW = " over (partition by k order by at rows between unbounded preceding and unbounded following)"


def aggregates(types: tuple[str, ...] = ORDERED) -> Iterator[Form]:
    """Every name of an aggregate, of these types and of numbers."""
    yield Form("count", "count(*)", ("int",))
    yield Form("count", "count(1)", ("int",))
    yield Form("count", "count({0}) filter (where {1} > 0)", ("string", "int"))
    yield Form("count", "count(distinct struct({0}, {1}))", ("int:some", "boolean"))
    for kind in types:
        yield Form("count", "count({0})", (kind,))
        yield Form("count", "count(distinct {0})", (kind,))
        for name in ("min", "max"):
            yield Form(name, f"{name}({{0}})", (kind,))
        for name in ("first", "last", "first_value", "last_value"):
            yield Form(name, f"{name}({{0}})", (kind,))
            yield Form(name, f"{name}({{0}}, true)", (kind,))
            yield Form(name, f"{name}({{0}}) ignore nulls", (kind,))
        for name in ("collect_list", "array_agg"):
            yield Form(name, f"{name}({{0}})", (kind,))
        if kind != "boolean":
            yield Form("top_k", "top_k({0}, 3)", (kind,), "slice(sort_array(collect_list({0}), false), 1, 3)")
    numbers = ("tinyint", "smallint", "int", "bigint:some", "double:moderate")
    for kind in numbers:
        close = "sums of doubles"
        yield Form("sum", "sum({0})", (kind,), intent=close if "double" in kind else None)
        yield Form("sum", "sum({0}) filter (where {0} > 5)", (kind,), intent=close if "double" in kind else None)
        for name in ("avg", "mean", "var_samp", "variance", "var_pop", "stddev", "stddev_samp", "std", "stddev_pop"):
            yield Form(name, f"{name}({{0}})", (kind,), intent=close)
        exact = "sort_array(collect_list({0}) filter (where {0} is not null))"
        least = f"cast(element_at({exact}, cast(greatest(ceil(0.5D * size({exact})), 1) as int)) as double)"
        filled = f"if(count({{0}}) = 0, null, {least})"
        yield Form("quantile", "quantile({0}, 0.5)", (kind,), filled, "decimals")
        for name in ("approx_percentile", "percentile_approx"):
            yield Form(name, f"{name}({{0}}, 0.5)", (kind,), f"cast({name}({{0}}, 0.5) as double)", "decimals")
            both = f"cast({name}({{0}}, array(0.25, 1)) as array<double>)"
            yield Form(name, f"{name}({{0}}, array(0.25, 1))", (kind,), both, "decimals")
    yield Form("sum", "sum({0})", ("decimal(10,2)",), "cast(sum({0}) as decimal(38,2))", "decimals")
    for name in ("avg", "var_pop", "stddev"):
        yield Form(name, f"{name}({{0}})", ("decimal(10,2)",), f"{name}(cast({{0}} as double))", "decimals")
    yield Form("sum", "sum({0})", ("double",))
    yield Form("approx_count_distinct", "approx_count_distinct({0})", ("int:some",))


def compared(spark: Any, forms: list[Form], rows: int, seed: int) -> list[tuple[Sample, Outcome | str]]:
    """Each form over the same groups; as the columns of a sample stand the keys."""
    chosen = random.Random(seed)
    keys = pa.array(
        [chosen.randrange(GROUPS) for _ in range(rows)], pa.int64()
    )  # not null: Spark sorts those rows among themselves
    arrays, names = [keys], ["k"]
    for form in forms:
        arrays += [column(kind, rows, chosen) for kind in form.types]
        names += form.names
    table = pa.table(arrays, names=names)
    batch = table.combine_chunks().to_batches()[0]
    order, theirs = _by_spark(spark, table, forms)
    found = []
    for form, answer in zip(forms, theirs, strict=True):
        acc = Accumulators([("x", parse_aggregate(form.text.format(*form.names)))], batch.schema)
        grouped, bad = acc.partial(batch, ["k"])
        assert bad is None, f"{form}: a row is an error"
        place = {key: index for index, key in enumerate(grouped.column("k").to_pylist())}
        ours = acc.finish(grouped)[0].take(pa.array([place[key] for key in order]))
        sample = Sample(form, [pa.array(order, pa.int64())], Outcome(ours, pa.array([False] * len(order))))
        found.append((sample, answer))
    return found


def _by_spark(spark: Any, table: pa.Table, forms: list[Form]) -> tuple[list[Any], list[Outcome | str]]:
    from pyspark.sql import functions as F

    local = [name for name in table.column_names if table.schema.field(name).type == pa.timestamp("us")]
    columns = [F.expr(f"cast({n} as timestamp_ntz)").alias(n) if n in local else F.col(n) for n in table.column_names]
    numbered = table.append_column("at", pa.array(range(len(table)), pa.int64()))
    frame = spark.createDataFrame(numbered).coalesce(1).select(*columns, "at")
    answers: dict[Form, Outcome | str] = {}
    order: list[Any] = []
    ordered = [form for form in forms if form.covers in IN_ORDER]
    for some in (*_chunks([form for form in forms if form not in ordered]), *_chunks(ordered)):
        # In a group Spark sees rows in any order; in a window in the one that is asked for.
        over = WINDOW if some[0] in ordered else ""
        wanted = [F.expr((each.spark or each.text).format(*each.names) + over).alias(f"r{i}") for i, each in enumerate(some)]
        if over:
            every = frame.select("k", F.expr(f"at = min(at){WINDOW}").alias("one"), *wanted)
            grouped = every.where("one").orderBy("k")
        else:
            grouped = frame.groupBy("k").agg(*wanted).orderBy("k")
        answer = grouped.toArrow()
        order = answer.column("k").to_pylist()
        for index, form in enumerate(some):
            values = values_of(answer, f"r{index}", grouped.schema[f"r{index}"].dataType)
            answers[form] = Outcome(values, pa.array([False] * len(order)))
    return order, [answers[form] for form in forms]


def _chunks(forms: list[Form]) -> Iterator[list[Form]]:
    for start in range(0, len(forms), 60):
        yield forms[start : start + 60]
