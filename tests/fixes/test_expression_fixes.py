"""The fixes of expressions: what is proposed is put into the expression, which means something then, and has the right values."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

import penstock as pen
from fixes.applying import code_of, evaluate, shown
from fixes.streams import Streams, applied
from penstock import col
from penstock.errors import PlanError
from penstock.expr import evaluate as values_of
from penstock.expr import parse

ROW = {
    "n": 7,
    "x": 1.5,
    "s": "12",
    "t": "5",
    "b": True,
    "d": date(2026, 1, 31),
    "at": datetime(2026, 1, 31, 12, tzinfo=UTC),
    "pause": timedelta(hours=1),
    "dec": Decimal("2.50"),
    "p": {"city": "Ulm", "rank": 3},
    "xs": [4, 5],
    "m": [("key", 6)],
    "word": "web",
}
ROWS = pa.schema(
    {
        "n": pa.int64(),
        "x": pa.float64(),
        "s": pa.string(),
        "t": pa.string(),
        "b": pa.bool_(),
        "d": pa.date32(),
        "at": pa.timestamp("us", "UTC"),
        "pause": pa.duration("us"),
        "dec": pa.decimal128(10, 2),
        "p": pa.struct({"city": pa.string(), "rank": pa.int64()}),
        "xs": pa.list_(pa.int64()),
        "m": pa.map_(pa.string(), pa.int64()),
        "word": pa.dictionary(pa.int32(), pa.string()),
    }
)
BATCH = pa.RecordBatch.from_pylist([ROW], schema=ROWS)


def value(expr: Any) -> Any:
    """The value of an expression for the row above, where it has one."""
    expr.check(ROWS)
    return values_of(expr, BATCH).values[0].as_py()


def behind(expr: pen.Expr, text: str) -> Any:
    """An expression with the proposed code behind it."""
    return evaluate(f"expr{text.rpartition('Write: ')[2]}", expr=expr)


def broken(expr: pen.Expr) -> Callable[[], None]:
    return lambda: expr.check(ROWS)


@pytest.mark.parametrize("use", [lambda e: e and e, lambda e: e or e, lambda e: not e, lambda e: 1 if e else 2])
def test_conditions_are_joined_by_operators(use: Callable[[Any], Any]) -> None:
    text = shown("expr.bool", lambda: use(col("a") > 1))
    (code,) = code_of(text)
    batch = pa.record_batch({"a": [2, 2, 0], "b": [1, 3, 1]})
    assert values_of(evaluate(code), batch).values.to_pylist() == [True, False, False]
    assert "&, | and ~" in text
    assert values_of((col("a") > 1) | ~(col("b") < 2), batch).values.to_pylist() == [True, True, False]


@pytest.mark.parametrize("text", ["12", b"12"])
def test_a_text_is_put_in_a_list(text: str | bytes) -> None:
    (code,) = code_of(shown("expr.is_in", lambda: col("s").is_in(text)))
    assert value(applied(col("s") if isinstance(text, str) else col("s").cast("binary"), code)) is True


def test_a_column_is_compared_and_constants_are_listed() -> None:
    text = shown("expr.is_in-expression", lambda: col("n").is_in(col("x")))  # type: ignore[arg-type]
    assert "by ==" in text
    assert value(col("n") == col("x")) is False
    assert value(behind(col("n"), text)) is False


def test_a_separator_is_named() -> None:
    assert value(behind(pen.lit("a,b"), shown("expr.split", lambda: col("s").str.split("")))) == ["a", "b"]


@pytest.mark.parametrize("name", ["", 3, None])
def test_a_column_is_taken_by_its_name(name: Any) -> None:
    (code,) = code_of(shown("expr.col", lambda: col(name)))
    assert evaluate(code).name == "price"


def test_a_field_of_a_struct_gets_a_name() -> None:
    total = behind(col("n") + 1, shown("struct.name", lambda: pen.struct(col("n") + 1)))
    assert value(pen.struct(total)) == {"total": 8}
    (code,) = code_of(shown("struct.name", lambda: pen.struct(3)))  # type: ignore[arg-type]
    assert value(evaluate(code)) == {"total": 3}


def test_a_condition_of_an_aggregate_is_an_expression() -> None:
    def counted(where: Any) -> Any:
        return lambda: pen.count(where=where)

    rows = Streams().left
    for where, like in (("user", col("user")), ("price > 3", col("price") > 10), (True, pen.lit(True))):
        (code,) = code_of(shown("expr.expected", counted(where)))
        assert evaluate(code).same(like)
    rows.key_by("id").aggregate(n=pen.count(where=evaluate('col("price") > 10')), name="some")


def test_a_step_of_truncate_has_a_unit() -> None:
    text = shown("expr.duration", lambda: col("at").dt.truncate("ten"))
    assert "a timedelta" in text
    for step in [*re.findall('"(.+?)"', text), timedelta(seconds=10)]:
        assert value(col("at").dt.truncate(step)) <= ROW["at"]


@pytest.mark.parametrize(
    "moment",
    [datetime(2026, 1, 31), datetime(2026, 1, 31, 12), datetime(2026, 1, 31, 12, 0, 3), datetime(2026, 1, 31, 12, 0, 0, 5)],
)
def test_a_moment_without_a_zone_says_that_it_is_utc(moment: datetime) -> None:
    (code,) = code_of(shown("literal.zone", lambda: pen.lit(moment)))
    assert value(pen.lit(evaluate(code))) == moment.replace(tzinfo=UTC)


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1, 10**38 - 1])
def test_a_number_of_many_digits_is_a_decimal(number: int) -> None:
    (code,) = code_of(shown("literal.bits", lambda: pen.lit(number)))
    assert value(pen.lit(evaluate(code))) == number


def test_a_number_that_is_too_long_for_a_decimal_is_told_nothing_that_fails() -> None:
    with pytest.raises(PlanError, match="does not fit in 64 bits") as caught:
        pen.lit(10**38)
    assert caught.value.fix is None


def test_text_is_written_as_a_date_or_a_time() -> None:
    text = evaluate(shown("literal.date", broken(col("d") == "yesterday")).partition("Write: ")[2])
    assert value(col("d") == text) is True
    text = evaluate(shown("literal.timestamp", broken(col("at") == "yesterday")).partition("Write: ")[2])
    assert value(col("at") == text) is True


def test_event_time_is_given_to_the_stream() -> None:
    rows = Streams().left
    (code,) = code_of(shown("time.none", lambda: rows.with_columns(t=pen.event_time())))
    assert "t" in applied(rows, code).with_columns(t=pen.event_time()).schema.names


NEEDS: list[tuple[str, Callable[[pen.Expr], pen.Expr], Any]] = [
    ("n", lambda e: e.str.length(), 1),
    ("s", lambda e: -e, -12.0),
    ("n", lambda e: e.dt.year(), 1970),
    ("d", lambda e: e.dt.hour(), 0),
    ("d", lambda e: e.dt.truncate("1h"), datetime(2026, 1, 31, tzinfo=UTC)),
]


@pytest.mark.parametrize(("name", "function", "result"), NEEDS)
def test_what_a_function_cannot_take_is_cast(name: str, function: Callable[[pen.Expr], pen.Expr], result: Any) -> None:
    (code,) = code_of(shown("expr.cast", broken(function(col(name)))))
    assert value(function(evaluate(code))) == result
    text = shown("expr.cast", broken(function(pen.coalesce(col(name)))))
    assert f"behind coalesce({name})" in text
    assert value(function(behind(pen.coalesce(col(name)), text))) == result


def test_event_time_is_cast_by_its_own_code() -> None:
    rows = Streams().timed
    (code,) = code_of(shown("expr.cast", lambda: rows.with_columns(t=pen.event_time().str.length())))
    assert code.startswith("pen.event_time().")
    rows.with_columns(t=evaluate(code).str.length())


def test_text_is_cast_to_what_it_is_compared_with() -> None:
    (code,) = code_of(shown("expr.types", broken(col("n") > col("s"))))
    assert value(col("n") < evaluate(code)) is True
    (code,) = code_of(shown("expr.types", broken(col("s").between(1, 20))))
    assert value(evaluate(code).between(1, 20)) is True
    (code,) = code_of(shown("expr.types", broken(pen.when(col("b"), "one").otherwise(2))))
    assert value(pen.when(col("b"), "one").otherwise(evaluate(code))) == "one"
    text = shown("expr.types", broken(pen.coalesce(col("s").str.lower(), col("n"))))
    assert "behind lower(s)" in text
    assert value(pen.coalesce(behind(col("s").str.lower(), text), col("n"))) == 12


QUOTED: list[tuple[str, Any, Callable[[Any], pen.Expr], Any]] = [
    ("n", "10", lambda v: col("n") < v, True),  # as texts it would be false
    ("n", "6.5", lambda v: col("n") > v, True),
    ("n", "-5", lambda v: col("n") > v, True),
    ("n", " 007 ", lambda v: col("n") == v, True),
    ("dec", "2.5", lambda v: col("dec") == v, True),  # as a text it would be 2.50
    ("x", "1.50", lambda v: col("x") == v, True),
    ("x", "1e3", lambda v: col("x") < v, True),
    ("x", "Infinity", lambda v: col("x") < v, True),
    ("b", "TRUE", lambda v: col("b") == v, True),
    ("n", "10", lambda v: pen.greatest(col("n"), v), 10),
    ("n", "0", lambda v: pen.coalesce(col("n"), v), 7),
]


@pytest.mark.parametrize(("name", "text", "compare", "expected"), QUOTED)
def test_a_number_in_quotes_is_compared_as_the_number(name: str, text: str, compare: Any, expected: Any) -> None:
    (code,) = code_of(shown("expr.quotes", broken(compare(text))))
    assert value(compare(evaluate(code))) == expected


def test_numbers_in_quotes_are_compared_as_numbers() -> None:
    (code,) = code_of(shown("expr.quotes", broken(col("dec").is_in(["2.5", "8"]))))
    assert value(col("dec").is_in(evaluate(code))) is True
    (code,) = code_of(shown("expr.quotes", broken(col("n").between("1", "10"))))
    assert value(col("n").between(*evaluate(code))) is True
    (code,) = code_of(shown("expr.quotes", broken(parse("n in (1, '7')"))))
    assert value(parse(f"n in (1, {code})")) is True


def test_a_number_in_quotes_is_computed_with_as_the_number() -> None:
    number, joined = code_of(shown("expr.quoted-number", broken(col("n") + "9")))
    assert value(col("n") + evaluate(number)) == 16
    assert value(evaluate(joined)) == "79"
    (code,) = code_of(shown("expr.quoted-number", broken(col("n").div("2"))))
    assert value(col("n").div(evaluate(code))) == 3


def test_a_sum_of_text_and_a_number_is_of_numbers_or_joined() -> None:
    number, joined = code_of(shown("expr.number-or-text", broken(col("s") + col("n"))))
    assert value(evaluate(number) + col("n")) == 19
    assert value(evaluate(joined)) == "127"
    number, joined = code_of(shown("expr.number-or-text", broken(1 + col("word"))))
    assert value(evaluate(joined)) == "1web"
    assert evaluate(number).type(ROWS) == pa.int64()
    text = shown("expr.number-or-text", broken(col("s").str.trim() + 1))
    assert value(behind(col("s").str.trim(), text) + 1) == 13


def test_texts_are_joined_by_a_function() -> None:
    (code,) = code_of(shown("expr.concat", broken(col("s") + col("t"))))
    assert value(evaluate(code)) == "125"
    (code,) = code_of(shown("expr.concat", broken(col("s") + " pieces")))
    assert value(evaluate(code)) == "12 pieces"
    text = shown("expr.concat", broken(col("s").str.lower() + col("t")))
    assert "pen.concat" in text
    assert value(pen.concat(col("s").str.lower(), col("t"))) == "125"
    sql = text.partition("in SQL it is ")[2]
    rows = Streams().left.select(s="user", t="user").with_columns(x=sql)
    assert rows.schema.field("x").type == pa.string()


def test_a_value_that_is_no_number_is_cast_to_one() -> None:
    (code,) = code_of(shown("expr.number", broken(col("s") * col("x"))))
    assert value(evaluate(code) * col("x")) == 18.0
    (code,) = code_of(shown("expr.number", broken(col("x").div(2))))
    assert value(evaluate(code).div(2)) == 0
    (code,) = code_of(shown("expr.number", broken(col("d") - col("pause"))))
    assert value(evaluate(code) - col("pause")) == datetime(2026, 1, 30, 23, tzinfo=UTC)


def test_both_sides_are_cast_where_one_is_not_enough() -> None:
    text = shown("expr.both", broken(col("s") * col("t")))
    assert value(behind(col("s"), text) * behind(col("t"), text)) == 60.0
    text = shown("expr.both", broken(col("x").div(col("dec"))))
    assert value(behind(col("x"), text).div(behind(col("dec"), text))) == 0
    text = shown("expr.both", broken(col("d") - col("d")))
    assert value(behind(col("d"), text) - behind(col("d"), text)) == timedelta(0)


@pytest.mark.parametrize("name", ["p", "xs", "m"])
def test_what_is_inside_is_compared(name: str) -> None:
    text = shown("expr.inside", broken(col(name) == col(name)))
    assert value(behind(col(name), text) == behind(col(name), text)) is True


OPERATIONS: dict[str, Callable[[Any, Any], pen.Expr]] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "divide": lambda a, b: a / b,
    "div": lambda a, b: a.div(b),
    "compare": lambda a, b: a < b,
    "coalesce": pen.coalesce,
}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_what_is_proposed_for_any_two_types_is_enough(operation: str) -> None:
    apply, proposed = OPERATIONS[operation], 0
    for first in ROWS.names:
        for second in ROWS.names:
            if first == second:
                continue
            try:
                apply(col(first), col(second)).check(ROWS)
            except PlanError as error:
                if error.fix is None:
                    continue
                text = error.fix.text
                if error.fix.id in ("expr.both", "expr.inside"):
                    mended = apply(behind(col(first), text), behind(col(second), text))
                elif error.fix.id == "expr.concat":
                    mended = evaluate(code_of(text)[0])
                else:
                    cast = evaluate(code_of(text)[0])
                    mended = apply(*(cast if cast.columns() == {name} else col(name) for name in (first, second)))
                mended.check(ROWS)
                proposed += 1
    assert proposed > 20


def test_nothing_is_proposed_where_nothing_helps() -> None:
    for expr in (
        col("n") > "nine",
        col("pause") > "1h",
        col("b") == "yes",
        col("p") + 1,
        col("d") + 1,
        col("n").between("a", 3),
        col("xs") == col("n"),
        col("p").dt.year(),
    ):
        with pytest.raises(PlanError) as caught:
            expr.check(ROWS)
        assert caught.value.fix is None
