"""The fixes of SQL expressions: what is proposed is SQL, or a piece of it, that is read."""

from __future__ import annotations

import pyarrow as pa
import pytest

import penstock as pen
from fixes.applying import code_of, evaluate, shown
from penstock.expr import parse, parse_aggregate
from penstock.expr.sql_aggregates import _INSTEAD
from penstock.expr.sql_errors import INSTEAD


def proposed(text: str) -> str:
    return text.rpartition("Write: ")[2]


@pytest.mark.parametrize("name", INSTEAD)
def test_what_comes_nearest_to_a_function_of_spark_is_read(name: str) -> None:
    written = {"interval": "interval 1 day", "extract": "extract(year from at)", "is distinct from": "a is distinct from b"}
    infix = f"text {name} 'part'" if name in ("like", "ilike", "rlike") else f"{name}(a, b)"
    text = shown("sql.instead", lambda: parse(written.get(name, infix)))
    assert "docs/guide/functions.md" in text
    parse(proposed(text))


def test_a_name_that_was_mistyped_is_proposed_as_it_is() -> None:
    text = shown("sql.name", lambda: parse("lenght(s)"))
    assert proposed(text) == "length(text)"
    parse(proposed(text))


def test_what_is_far_from_everything_is_a_function_of_the_users_own() -> None:
    assert "pen.udf" in shown("sql.udf", lambda: parse("phonetics(s)"))

    @pen.udf
    def phonetics(s: str) -> str:
        return s[:1]

    assert phonetics(pen.col("s")).text() == "phonetics(s)"


def test_a_wrong_number_of_arguments_is_told_how_many() -> None:
    text = shown("sql.arguments", lambda: parse("trunc(at)"))
    assert "trunc(date, 'unit')" in text
    parse("trunc(date, 'month')")


def test_an_aggregate_is_sent_to_where_it_belongs() -> None:
    (code,) = code_of(shown("sql.aggregate", lambda: parse("sum(price)")))
    assert parse_aggregate(evaluate(f"dict({code[len('.aggregate(') : -1]})")["x"]) == pen.col("price").sum()


@pytest.mark.parametrize(("text", "name"), [("price desc", "desc"), ("price > 1 asc", "asc")])
def test_a_column_that_is_called_as_a_direction_has_as_before_its_name(text: str, name: str) -> None:
    assert parse(proposed(shown("sql.order", lambda: parse(text)))).name == name
    aggregate = proposed(shown("sql.order", lambda: parse_aggregate(f"sum(price) {name}")))
    assert parse_aggregate(aggregate).name == name


@pytest.mark.parametrize("order", ["asc nulls first", "desc nulls last", "nulls last", "nulls first"])
def test_an_order_is_left_out_where_nothing_is_ordered(order: str) -> None:
    assert parse(proposed(shown("sql.no-order", lambda: parse(f"price {order}")))).text() == "price"
    assert parse(proposed(shown("sql.no-order", lambda: parse("price as p desc")))).name == "p"


def test_what_is_no_aggregate_goes_behind_them() -> None:
    assert "select() after" in shown("sql.aggregates", lambda: parse_aggregate("sum(a) / count(*)"))


def test_arguments_of_an_aggregate_are_told_as_they_are_written() -> None:
    assert "max(x)." in shown("sql.aggregate_form", lambda: parse_aggregate("max(x, 3)"))
    assert "quantile(x, 0.5)," in shown("sql.aggregate_form", lambda: parse_aggregate("quantile(x, 0.5, 2)"))
    parse_aggregate("quantile(x, array(0.5, 0.9))")


@pytest.mark.parametrize("name", _INSTEAD)
def test_what_comes_nearest_to_an_aggregate_of_spark_is_read(name: str) -> None:
    parse_aggregate(proposed(shown("sql.aggregate_instead", lambda: parse_aggregate(f"{name}(x)"))))


def test_a_separator_that_is_a_pattern_is_quoted() -> None:
    text = shown("regex.split", lambda: parse("split(s, '|')").check(ROWS))
    parse(f"split(s, {text.rpartition('write: ')[2]})").check(ROWS)


def test_several_expressions_are_counted_as_a_struct() -> None:
    (code,) = code_of(shown("sql.count", lambda: parse_aggregate("count(distinct x, y)")))
    assert parse_aggregate(code) == pen.struct(pen.col("x"), pen.col("y")).count_distinct()


def test_a_star_becomes_names() -> None:
    assert "Name the columns" in shown("sql.star", lambda: parse("*"))
    parse("s")


ROWS = pa.schema({"s": pa.string(), "xs": pa.list_(pa.int64())})


def test_elements_are_counted_from_1() -> None:
    parse(proposed(shown("sql.element", lambda: parse("element_at(xs, 0)").check(ROWS)))).check(ROWS)


def test_a_format_of_numbers_is_proposed() -> None:
    text = proposed(shown("sql.format", lambda: parse("to_date(s, 'd. MMMM yyyy')").check(ROWS)))
    parse(text.replace("x", "s")).check(ROWS)


def test_a_pattern_gets_its_group() -> None:
    pattern = proposed(shown("regex.group", lambda: pen.col("s").str.extract("[a-z]+")))
    pen.col("s").str.extract(pattern)


def test_a_group_that_there_is_is_proposed() -> None:
    group = proposed(shown("regex.groups", lambda: pen.col("s").str.extract("(a)(b)", 3)))
    assert int(group) == 2
    pen.col("s").str.extract("(a)(b)", int(group))


def test_a_field_of_a_struct_is_given_a_name() -> None:
    text = proposed(shown("sql.field", lambda: parse("struct(a + 1)")))
    assert parse(text).same(pen.struct(x=pen.col("a") + 1))


def test_a_unit_of_dates_and_one_of_times() -> None:
    parse(proposed(shown("sql.unit", lambda: parse("date_trunc('fortnight', at)"))))
    parse(proposed(shown("sql.trunc", lambda: parse("trunc(at, 'DAY')"))))
