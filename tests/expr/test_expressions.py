"""What users write becomes a tree, and mistakes are found before the first row."""

from __future__ import annotations

from datetime import datetime

import pyarrow as pa
import pytest

from penstock.errors import PlanError
from penstock.expr import Expr, coalesce, col, concat, count, event_time, lit, struct, udf, when

ADS = pa.schema({"ad_id": pa.string(), "event_type": pa.string(), "at": pa.timestamp("us", tz="UTC")})
MIXED = pa.schema(
    [
        pa.field("i", pa.int32(), nullable=False),
        pa.field("n", pa.int64()),
        pa.field("x", pa.float64()),
        pa.field("f", pa.float32()),
        pa.field("d", pa.decimal128(10, 2)),
        pa.field("s", pa.string()),
        pa.field("b", pa.bool_()),
        pa.field("u", pa.uint32()),
        pa.field("p", pa.struct([pa.field("city", pa.string())])),
        pa.field("xs", pa.list_(pa.int64())),
        pa.field("m", pa.map_(pa.string(), pa.float64())),
        pa.field("at", pa.timestamp("us", tz="UTC")),
        pa.field("day", pa.date32()),
    ]
)


@pytest.mark.parametrize(
    ("expr", "text"),
    [
        (col("price") * col("quantity"), "price * quantity"),
        ((col("a") + 1) * -col("b"), "(a + 1) * (-b)"),
        ((col("kind") == "view") & ~col("bot"), "(kind = 'view') and (not bot)"),
        (col("s") == "it's", "s = 'it''s'"),
        (when(col("a") > 1, "x").otherwise(None), "case when a > 1 then 'x' else null end"),
        (col("a").is_in([1, 2]), "a in (1, 2)"),
        (col("a").between(1, 2), "a between 1 and 2"),
        (col("a").fill_null(0).cast("int"), "cast(coalesce(a, 0) as int)"),
        (col("user")["address"]["city"], "user.address.city"),
        (col("xs")[0], "xs[0]"),
        (col("at").dt.truncate("1h"), "truncate(at, '1h')"),
        (col("odd name").is_null(), "`odd name` is null"),
        (event_time(), "event_time()"),
        (1 - col("a"), "1 - a"),
    ],
)
def test_the_text_of_an_expression_is_sql(expr: Expr, text: str) -> None:
    assert expr.text() == repr(expr) == text


def test_equality_builds_a_comparison_and_same_compares() -> None:
    assert (col("a") == 1).text() == "a = 1"
    assert (col("a") + 1).same(col("a") + 1)
    assert hash(col("a") + 1) == hash(col("a") + 1)
    assert not (col("a") + 1).same(col("a") + 1.0)
    assert not lit(1).same(lit(True))
    assert not col("a").same(col("a").alias("b"))


def test_an_expression_has_no_truth_value() -> None:
    with pytest.raises(PlanError) as caught:
        _ = col("a") > 1 and col("b") < 2
    assert str(caught.value) == (
        "an expression is neither true nor false until it runs, so 'and', 'or', 'not' and 'if' cannot use it\n"
        '  Use &, | and ~, with each part in parentheses. Write: (col("a") > 1) & (col("b") < 2)'
    )


def test_an_expression_cannot_be_walked_by_accident() -> None:
    with pytest.raises(TypeError):
        iter(col("a"))
    with pytest.raises(TypeError):
        _ = 1 in col("a")  # type: ignore[misc]


def test_an_unknown_column_names_the_known_ones_and_the_nearest() -> None:
    with pytest.raises(PlanError) as caught:
        (col("evnt_type") == "view").check(ADS)
    assert str(caught.value) == (
        "there is no column 'evnt_type' here. Columns: ad_id, event_type, at. Did you mean 'event_type'?"
    )


def test_event_time_needs_a_watermark() -> None:
    with pytest.raises(PlanError, match="with_watermark"):
        event_time().check(ADS)
    assert event_time().type(ADS.append(pa.field("__time", pa.timestamp("us", tz="UTC")))) == pa.timestamp("us", tz="UTC")


@pytest.mark.parametrize(
    ("expr", "found"),
    [
        (col("i") + 1, pa.int32()),
        (col("i") + 2**40, pa.int64()),
        (col("i") + col("n"), pa.int64()),
        (col("n") / 2, pa.float64()),
        (col("n") % 2, pa.int64()),
        (col("i") * 1.5, pa.float64()),
        (col("f") + 1, pa.float32()),
        (col("f") + col("i"), pa.float64()),
        (col("d") + 1, pa.decimal128(11, 2)),
        (col("d") * col("d"), pa.decimal128(21, 4)),
        (col("d") + col("x"), pa.float64()),
        (col("u") + 1, pa.int64()),
        (col("s").str.length(), pa.int32()),
        (col("s").str.split(","), pa.list_(pa.string())),
        (col("p")["city"], pa.string()),
        (col("xs")[0], pa.int64()),
        (col("m")["k"], pa.float64()),
        (col("at") > "2026-01-01", pa.bool_()),
        (col("at").dt.year(), pa.int32()),
        (col("at") - col("at"), pa.duration("us")),
        (when(col("b"), 1).otherwise(2.5), pa.float64()),
        (when(col("b"), col("i")), pa.int32()),
        (coalesce(col("i"), 0), pa.int32()),
        (concat(col("s"), col("n")), pa.string()),
        (lit(1), pa.int64()),
        (lit(None).cast("string"), pa.string()),
    ],
)
def test_types_follow_spark_and_literals_bend(expr: Expr, found: pa.DataType) -> None:
    assert expr.type(MIXED) == found


@pytest.mark.parametrize(
    ("expr", "message"),
    [
        (
            col("s") + 1,
            r"found string \(s\) and bigint \(1\)(.|\n)*cast\(\"bigint\"\), or pen\.concat",
        ),
        (col("s") > col("n"), r"found string \(s\) and bigint \(n\)(.|\n)*Write: col\(\"s\"\)\.cast\(\"bigint\"\)"),
        (col("n") & col("b"), r"must be boolean, and found bigint \(n\)"),
        (~col("n"), r"must be boolean"),
        (col("n").str.lower(), r"needs text, and found bigint"),
        (col("s").dt.year(), r"needs a timestamp, and found string"),
        (col("p")["town"], r"no field 'town' in p\. Fields: city"),
        (col("n")[0], r"needs a struct, map or list"),
        (col("p") == col("p"), r"cannot be compared"),
        (col("xs").cast("int"), r"array<bigint> cannot be cast to int"),
        (col("at") > "yesterday", r"'yesterday' is not a timestamp"),
        (when(col("b"), 1).otherwise("x"), r"type in common"),
        (col("x").div(2), r"whole numbers"),
    ],
)
def test_a_type_mismatch_names_the_types(expr: Expr, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        expr.check(MIXED)


def test_values_that_cannot_be_literals_are_refused() -> None:
    for value in ([1], object(), datetime(2026, 1, 1), 2**70):
        with pytest.raises(PlanError):
            lit(value)


def test_options_are_checked_when_written() -> None:
    for build in (
        lambda: col("s").str.extract("no group"),
        lambda: col("s").str.extract("(?=ahead)(x)"),
        lambda: col("at").dt.truncate("1 fortnight"),
        lambda: col("s").str.split(""),
        lambda: col("a").is_in([]),
        lambda: col("a").is_in("abc"),
        lambda: col("a").cast("wat"),
        lambda: struct(col("a") + 1),
        lambda: count(where="a > 1"),
    ):
        with pytest.raises(PlanError):
            build()


def test_columns_are_those_that_are_read() -> None:
    expr = when(col("a") > 1, col("b")["x"]).otherwise(coalesce(col("c"), event_time()))
    assert expr.columns() == {"a", "b", "c", "__time"}
    assert col("a").sum(where=col("b")).columns() == {"a", "b"}


def test_names_come_from_aliases_and_columns() -> None:
    assert (col("a").name, col("a").alias("b").name, (col("a") + 1).name) == ("a", "b", None)


def test_nullability_is_known() -> None:
    assert not (col("i") + 1).field(MIXED, "r").nullable
    assert (col("i") + col("n")).field(MIXED, "r").nullable
    assert not coalesce(col("n"), 0).field(MIXED, "r").nullable
    assert not col("n").is_null().field(MIXED, "r").nullable
    assert when(col("i") > 1, 1).field(MIXED, "r").nullable
    assert not when(col("i") > 1, 1).otherwise(0).field(MIXED, "r").nullable


def test_a_udf_needs_to_know_what_it_returns_and_takes() -> None:
    def unknown(x: str): ...  # type: ignore[no-untyped-def]
    def known(x: str) -> str: ...  # type: ignore[empty-body]

    with pytest.raises(PlanError, match="cannot tell what unknown returns"):
        udf(unknown)
    with pytest.raises(PlanError, match=r"known\(\) takes string as 'x', and found bigint"):
        udf(known)(col("n")).check(MIXED)
    with pytest.raises(PlanError, match="takes 1 expressions"):
        udf(known)(col("s"), col("s"))
