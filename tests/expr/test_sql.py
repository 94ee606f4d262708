"""SQL gives the same trees as Python, and refuses by name what it has no node for."""

from __future__ import annotations

import subprocess
import sys

import pytest

from penstock.errors import PlanError
from penstock.expr import (
    Aggregate,
    Expr,
    coalesce,
    col,
    concat,
    count,
    event_time,
    greatest,
    lit,
    parse,
    parse_aggregate,
    struct,
    when,
)


@pytest.mark.parametrize(
    ("text", "expr"),
    [
        ("user", col("user")),
        ("price * quantity", col("price") * col("quantity")),
        ("(a + 1) * -b - -2", (col("a") + 1) * -col("b") - -2),
        ("a / 2 + a % 2 + a div 2", col("a") / 2 + col("a") % 2 + col("a").div(2)),
        ("kind = 'view' and not bot", (col("kind") == "view") & ~col("bot")),
        ("a <> 1 or a >= 1.5", (col("a") != 1) | (col("a") >= 1.5)),
        ("payment_id is not null", col("payment_id").is_not_null()),
        ("a is null", col("a").is_null()),
        ("a in (1, 2)", col("a").is_in([1, 2])),
        ("a not in ('x')", ~col("a").is_in(["x"])),
        ("a in (b, 1)", (col("a") == col("b")) | (col("a") == 1)),
        ("a between 1 and 2", col("a").between(1, 2)),
        ("case when a > 1 then 'x' else 'y' end", when(col("a") > 1, "x").otherwise("y")),
        ("case a when 1 then true end", when(col("a") == 1, True)),
        ("if(a, 1, null)", when(col("a"), 1).otherwise(None)),
        ("cast(a as decimal(10, 2))", col("a").cast("decimal(10,2)")),
        ("cast(a as timestamp)", col("a").cast("timestamp")),
        ("coalesce(a, 0)", coalesce(col("a"), 0)),
        ("greatest(a, b)", greatest(col("a"), col("b"))),
        ("a || '-' || b", concat(concat(col("a"), "-"), col("b"))),
        ("concat(a, b)", concat(col("a"), col("b"))),
        ("user.address.city", col("user")["address"]["city"]),
        ("xs[0]", col("xs")[0]),
        ("m['k']", col("m")["k"]),
        ("lower(trim(s))", col("s").str.trim().str.lower()),
        ("upper(s)", col("s").str.upper()),
        ("length(s)", col("s").str.length()),
        ("contains(s, 'x')", col("s").str.contains("x")),
        (
            "startswith(s, 'x') and endswith(s, 'y')",
            col("s").str.starts_with("x") & col("s").str.ends_with("y"),
        ),
        ("replace(s, 'a', 'b')", col("s").str.replace("a", "b")),
        ("regexp_extract(s, '(a)b', 1)", col("s").str.extract("(a)b")),
        ("split(s, ',')", col("s").str.split(",")),
        (
            "year(at) + hour(at) + second(at)",
            col("at").dt.year() + col("at").dt.hour() + col("at").dt.second(),
        ),
        ("date_trunc('hour', at)", col("at").dt.truncate("1 hour")),
        ("struct(a, b as c)", struct(col("a"), c=col("b"))),
        ("event_time()", event_time()),
        ("true", lit(True)),
        ("`odd name` + 1", col("odd name") + 1),
        ("a + 1 as total", (col("a") + 1).alias("total")),
    ],
)
def test_sql_is_the_same_tree_as_python(text: str, expr: Expr) -> None:
    assert parse(text).same(expr), parse(text)


@pytest.mark.parametrize(
    ("text", "aggregate"),
    [
        ("count(*)", count()),
        ("count(1)", count()),
        ("count(x)", col("x").count()),
        ("sum(price * quantity)", (col("price") * col("quantity")).sum()),
        ("avg(x) as mean_x", col("x").mean().alias("mean_x")),
        ("min(x)", col("x").min()),
        ("max(x) filter (where y > 1)", col("x").max(where=col("y") > 1)),
        ("count(*) filter (where kind = 'view')", count(where=col("kind") == "view")),
    ],
)
def test_aggregates_read_the_same_way(text: str, aggregate: Aggregate) -> None:
    assert parse_aggregate(text) == aggregate


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("frobnicate(x)", "frobnicate is not supported"),
        ("sum(x)", "Aggregates belong in"),
        ("x like 'a%'", "like is not supported"),
        ("x in (select y from t)", "not supported"),
        ("a +", "cannot read 'a \\+' as SQL"),
        ("a b c", "as SQL"),
        ("", "expected SQL"),
        ("a; b", "expected one SQL expression"),
        ("*", "not supported|Name the columns"),
        ("cast(a as interval)", "there is no type|not supported"),
        ("contains(a, b)", "needs a text in quotes"),
        ("date_trunc('month', at)", "second, minute, hour or day"),
    ],
)
def test_what_has_no_node_is_refused_by_name(text: str, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        parse(text)


@pytest.mark.parametrize("text", ["sum(a) / count(*)", "x + 1", "count(distinct x, y)", "count(x, y)", "any_value(x)"])
def test_what_is_not_one_aggregate_is_refused(text: str) -> None:
    with pytest.raises(PlanError):
        parse_aggregate(text)


def test_text_of_an_expression_reads_back() -> None:
    for text in (
        "(a + 1) * b",
        "case when a > 1 then 'it''s' else null end",
        "cast(a as int)",
        "user.city",
        "a in (1, 2)",
    ):
        assert parse(parse(text).text()).same(parse(text))


def test_importing_expressions_does_not_import_sqlglot() -> None:
    code = "import sys, penstock.expr; sys.exit('sqlglot' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
