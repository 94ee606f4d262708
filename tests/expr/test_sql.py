"""SQL gives the same trees as Python, and refuses by name what it has no node for."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import PlanError
from penstock.expr import (
    Aggregate,
    Expr,
    coalesce,
    col,
    concat,
    count,
    evaluate,
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
        ("to_date(s)", col("s").cast("date")),
        ("regexp_extract(s, '(a)(b)', 2)", col("s").str.extract("(a)(b)", 2)),
        ("'it''s' || \"a\"\"b\" || 'c' 'd'", concat(concat("it's", 'a"b'), "cd")),
        (r"regexp_extract(s, r'(\d+)')", col("s").str.extract(r"(\d+)")),
    ],
)
def test_sql_is_the_same_tree_as_python(text: str, expr: Expr) -> None:
    assert parse(text).same(expr), parse(text)


def values(text: str, **columns: Any) -> list[Any]:
    """The value of each row; "bad" where it is an error."""
    found = evaluate(parse(text), pa.record_batch(columns))
    bad = [False] * len(found.values) if found.errors is None else found.errors.to_pylist()
    return ["bad" if error else value for value, error in zip(found.values.to_pylist(), bad, strict=True)]


LISTS = pa.array([["p", "q"], [], None, [None]], pa.list_(pa.string()))
DAY = date(2026, 1, 2)


def test_to_date_gives_dates() -> None:
    at = pa.array([datetime(2026, 1, 2, 23, 59, tzinfo=UTC), None], pa.timestamp("us", tz="UTC"))
    assert values("to_date(at)", at=at) == [DAY, None]
    assert values("to_date(s)", s=["2026-01-02", "rubbish", None]) == [DAY, "bad", None]


def test_to_date_follows_its_format() -> None:
    texts = ["02/01/2026", "2026-01-02", "31/02/2026", "2/1/2026", None]
    assert values("to_date(s, 'dd/MM/yyyy')", s=texts) == [DAY, "bad", "bad", "bad", None]
    assert values("to_date(s, 'd/M/yyyy')", s=["2/1/2026"]) == [DAY]
    at = datetime(2026, 1, 2, 3, 4, 5, 600_000, tzinfo=UTC)
    assert values("to_timestamp(s, \"yyyyMMdd'T'HHmmss.SSS\")", s=["20260102T030405.6", "20260102T240405.6"]) == [at, "bad"]


def test_element_at_counts_from_1_and_from_the_end() -> None:
    assert values("element_at(xs, 1)", xs=LISTS) == ["p", "bad", None, None]
    assert values("element_at(xs, -1)", xs=LISTS) == ["q", "bad", None, None]
    assert values("try_element_at(xs, 2)", xs=LISTS) == ["q", None, None, None]
    assert values("try_element_at(xs, n)", xs=LISTS, n=pa.array([0, 1, 0, 1])) == ["bad", None, None, None]
    assert values("xs[0]", xs=LISTS) == ["p", "bad", None, None]
    assert values("element_at(m, 'b')", m=pa.array([[("a", 1)], [("b", 2)]], pa.map_(pa.string(), pa.int64()))) == [None, 2]


def test_trunc_goes_to_months_and_date_trunc_to_any_unit() -> None:
    at = pa.array([datetime(1969, 5, 6, 7, 8, tzinfo=UTC)], pa.timestamp("us", tz="UTC"))
    assert values("trunc(at, 'MM')", at=at) == [date(1969, 5, 1)]
    assert values("trunc(at, 'week')", at=at) == [date(1969, 5, 5)]
    assert values("date_trunc('DAY', at)", at=at) == [datetime(1969, 5, 6, tzinfo=UTC)]
    assert values("date_trunc('quarter', at)", at=at) == [datetime(1969, 4, 1, tzinfo=UTC)]


def test_regexp_extract_gives_any_group_and_no_text_where_nothing_matches() -> None:
    texts = ["a1b2", "zz", None, "a1"]
    assert values(r"regexp_extract(s, '([a-z])([0-9])', 2)", s=texts) == ["1", "", None, "1"]
    assert values(r"regexp_extract(s, '([a-z])([0-9])', 0)", s=texts) == ["a1", "", None, "a1"]
    assert values(r"regexp_extract(s, '(x)|(a)', 1)", s=texts) == ["", "", None, ""]


def test_an_index_beyond_the_parts_of_a_text_is_an_error_of_its_row() -> None:
    assert values("split(s, ',')[1]", s=["a,b", "a"]) == ["b", "bad"]


@pytest.mark.parametrize(
    ("text", "aggregate"),
    [
        ("count(*)", count()),
        ("count(1)", count()),
        ("count(x)", col("x").count()),
        ("sum(price * quantity)", (col("price") * col("quantity")).sum()),
        ("avg(x) as mean_x", col("x").mean().alias("mean_x")),
        ("min(x)", col("x").min()),
        ("first(x) ignore nulls", col("x").first(ignore_nulls=True)),
        ("last_value(x, true)", col("x").last(ignore_nulls=True)),
        ("mean(x)", col("x").mean()),
        ("max(x) filter (where y > 1)", col("x").max(where=col("y") > 1)),
        ("count(*) filter (where kind = 'view')", count(where=col("kind") == "view")),
    ],
)
def test_aggregates_read_the_same_way(text: str, aggregate: Aggregate) -> None:
    assert parse_aggregate(text) == aggregate


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("frobnicate(x)", "frobnicate is not among the functions"),
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
        ("date_trunc('fortnight', at)", "no unit 'fortnight'"),
        ("trunc(at, 'DAY')", "trunc gives a date"),
        ("lower(a, b)", "lower does not take 2 arguments"),
        ("now()", "now is not among the functions"),
        ("current_date", "current_date is not among the functions"),
        ("date_format(at, 'yyyy')", "date_format is not among the functions.*: date_format\\(at, 'yyyy'\\)"),
        ("array_size(xs)", "array_size is not"),
        ("position('a' in s)", "position is not"),
        ("a & b", "& is not supported"),
        ("cast(a as text)", "cannot read"),
        ("to_date(s, 'yyyy-MMM')", "'MMM' where it stands"),
        ("regexp_extract(s, '(a)', 2)", None),
        ("struct(a, a)", "two fields called 'a'"),
    ],
)
def test_what_has_no_node_is_refused_by_name(text: str, message: str | None) -> None:
    with pytest.raises(PlanError, match=message):
        parse(text).check(pa.schema({"s": pa.string()}))


@pytest.mark.parametrize(
    "text", ["sum(a) / count(*)", "x + 1", "count(distinct x, y)", "count(x, y)", "any_value(x)", "max(x, 3)"]
)
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


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x between symmetric 3 and 1", "between symmetric is not supported"),
        ("cast(x as int format 'yyyy')", "format is not supported"),
        ("try_cast(x as int default 1 on conversion error)", "try_cast default is not supported"),
        ("coalesce(, 0)", "beside a comma"),
        ("greatest(1, , 2)", "beside a comma"),
        ("x in (1, )", "beside a comma"),
        ("1e400", "1e400 is more than a double can hold"),
        ("x > -1e400", "1e400 is more than a double can hold"),
    ],
)
def test_what_the_reader_would_overlook_is_refused(text: str, said: str) -> None:
    with pytest.raises(PlanError, match=said):
        parse(text)


@pytest.mark.parametrize("form", ["{}", "{} > 1", "({} + 1)", "coalesce({}, 0)", "x = {}", "not {}", "r.{}", "{} as y"])
def test_columns_may_be_called_as_the_statements_of_sql_are(form: str, caplog: pytest.LogCaptureFixture) -> None:
    words = "all analyze begin call comment desc describe for join kill load on show set table update use using values"
    for word in words.split():
        inner = col("r")[word] if form.startswith("r.") else col(word)
        wanted = {"{}": inner, "{} > 1": inner > 1, "({} + 1)": inner + 1, "coalesce({}, 0)": coalesce(inner, 0)}
        wanted |= {"x = {}": col("x") == inner, "not {}": ~inner, "r.{}": inner, "{} as y": inner.alias("y")}
        assert str(parse(form.format(word))) == str(wanted[form]), word
        assert str(parse_aggregate(f"sum({word})")) == str(col(word).sum())
    assert caplog.records == [], "nor does sqlglot warn"
