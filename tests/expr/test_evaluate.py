"""Evaluation: Spark's meaning on Arrow arrays of every shape, and bad rows that hurt nobody else."""

from __future__ import annotations

import math
import re
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import PlanError
from penstock.expr import (
    Expr,
    coalesce,
    col,
    compile,
    concat,
    evaluate,
    greatest,
    least,
    lit,
    parse,
    struct,
    udf,
    when,
)
from penstock.schema import type_of

T = datetime(2026, 1, 31, 12, 34, 56, 789000, tzinfo=UTC)


def batch(**columns: Any) -> pa.RecordBatch:
    arrays = {name: values if isinstance(values, pa.Array) else pa.array(values) for name, values in columns.items()}
    return pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))


def values(expr: Expr, **columns: Any) -> list[Any]:
    found = evaluate(expr, batch(**columns))
    assert found.errors is None, found.reason
    assert isinstance(found.values, pa.Array)
    result: list[Any] = found.values.to_pylist()
    return result


def bad(expr: Expr, **columns: Any) -> tuple[list[Any], list[int]]:
    """The values, and the numbers of the bad rows."""
    found = evaluate(expr, batch(**columns))
    assert found.errors is not None
    assert found.reason
    assert found.errors.null_count == 0
    return found.values.to_pylist(), [i for i, is_bad in enumerate(found.errors.to_pylist()) if is_bad]


def test_arithmetic_is_sparks() -> None:
    assert values(col("a") / 2, a=[1, 3, None]) == [0.5, 1.5, None]
    assert values(col("a") % 3, a=[7, -7, None]) == [1, -1, None]
    assert values(col("a") % 2.5, a=[-7.0]) == [-2.0]
    assert values(col("a").div(2), a=[7, -7]) == [3, -3]
    assert values(-col("a") * 2 + 1 - col("a"), a=[1, 2]) == [-2, -5]
    assert values(col("a") + col("b"), a=pa.array([Decimal("1.10")]), b=[2]) == [Decimal("3.10")]
    assert values(col("a") * col("a"), a=pa.array([Decimal("1.5")], pa.decimal128(38, 18))) == [Decimal("2.250000")]
    assert values(col("a") % 1, a=pa.array([Decimal("-1.25")])) == [Decimal("-0.25")]


def test_integer_overflow_is_an_error_of_the_row() -> None:
    top = 2**63 - 1
    assert bad(col("a") + 1, a=[1, top, None]) == ([2, None, None], [1])
    assert bad(col("a") - 2, a=[-top, 5]) == ([None, 3], [0])
    assert bad(col("a") * col("a"), a=[3, 2**32]) == ([9, None], [1])
    assert bad(-col("a"), a=[-(2**63), 4]) == ([None, -4], [0])
    assert bad(col("a") + 1, a=pa.array([127, 1], pa.int8())) == ([None, 2], [0])
    assert bad(col("a").div(-1), a=[-(2**63), 4]) == ([None, -4], [0])
    nines = pa.array([Decimal("9" * 38), Decimal(1)])
    assert bad(col("a") * 10, a=nines) == ([None, Decimal(10)], [0])


def test_division_by_zero_is_an_error_of_the_row() -> None:
    for expr in (col("a") / col("b"), col("a").div(col("b")), col("a") % col("b")):
        found, rows = bad(expr, a=[6, 6, None, 6], b=[2, 0, 0, None])
        assert (found[1:], rows) == ([None, None, None], [1])
    assert bad(col("a") / 0.0, a=[1.0]) == ([None], [0])


def test_logic_has_three_values() -> None:
    a, b = [True, True, False, None, None], [None, False, None, False, True]
    assert values(col("a") & col("b"), a=a, b=b) == [None, False, False, False, None]
    assert values(col("a") | col("b"), a=a, b=b) == [True, True, None, None, True]
    assert values(~col("a"), a=[True, None]) == [False, None]


def test_errors_count_only_where_the_value_is_needed() -> None:
    safe = col("n") != 0
    assert values(when(safe, 10 / col("n")), n=[2, 0]) == [5.0, None]
    assert values(safe & (10 / col("n") > 1), n=[2, 0]) == [True, False]
    assert values((col("n") == 0) | (10 / col("n") > 1), n=[2, 0]) == [True, True]
    assert values(coalesce(col("a"), 10 / col("n")), a=[1.0, None], n=[0, 2]) == [1.0, 5.0]
    assert values(when(safe, 1).when(1 / col("n") > 1, 2).otherwise(3), n=[1]) == [1]
    assert bad((10 / col("n") > 1) & safe, n=[2, 0]) == ([True, None], [1])
    assert bad((1 / col("n")).is_null(), n=[1, 0]) == ([False, None], [1])


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("x = 10 div y", [None, False, None]),
        ("x < 10 / y", [None, True, None]),
        ("x + 10 div y", [None, 7, None]),
        ("(10 div y) % x", [None, 1, None]),
        ("xs[cast(10 div y as int)]", [None, 6, None]),
        ("x in (10 div y, 2)", [None, True, None]),
        ("x between 1 and 10 div y", [None, True, None]),
    ],
)
def test_an_error_of_the_right_side_does_not_count_where_the_left_is_null(text: str, result: list[Any]) -> None:
    xs = pa.array([None, [1, 2, 3, 4, 5, 6], None], pa.list_(pa.int64()))
    found = evaluate(parse(text), batch(x=[None, 2, None], y=[0, 2, 1], xs=xs))
    assert found.errors is None
    assert found.values.to_pylist() == result
    found = evaluate(parse(text), batch(x=[2], y=[0], xs=pa.array([[1]])))
    assert found.errors.to_pylist() == [True], text


def test_an_error_of_the_upper_bound_counts_only_where_the_value_is_not_below_the_lower_one() -> None:
    found = evaluate(parse("x between 3 and 10 div y"), batch(x=[2, 3], y=[0, 0]))
    assert found.errors.to_pylist() == [False, True]
    assert found.values.to_pylist() == [False, None]


def test_both_zeros_are_in_a_list_of_one() -> None:
    assert values(col("x").is_in([0, 1]), x=[-0.0, 0.0, 1.0, math.nan, None]) == [True, True, True, False, None]
    assert values(col("x").is_in([-0.0, math.nan]), x=[0.0, math.nan]) == [True, True]
    assert values(col("x").is_in([0]), x=pa.array([-0.0], pa.float32())) == [True]


def test_null_tests_and_choices() -> None:
    assert values(col("a").is_null(), a=[1, None]) == [False, True]
    assert values(col("a").is_not_null(), a=[1, None]) == [True, False]
    assert values(col("a").fill_null(0), a=[1, None]) == [1, 0]
    assert values(col("a").is_in([1, None]), a=[1, 2, None]) == [True, None, None]
    assert values(col("a").is_in([1, 3]), a=[1, 2, None]) == [True, False, None]
    assert values(col("a").between(2, 3), a=[1, 2, 3, 4, None]) == [False, True, True, False, None]
    assert values(least(col("a"), col("b")), a=[1, None, None], b=[2, 2, None]) == [1, 2, None]
    assert values(greatest(col("a"), 2), a=[1, 3, None]) == [2, 3, 2]
    assert values(when(col("a") > 2, "high").when(col("a") > 1, "mid"), a=[1, 2, 3, None]) == [
        None,
        "mid",
        "high",
        None,
    ]


def test_nan_equals_nan_and_is_the_greatest() -> None:
    nan = math.nan
    assert values(col("a") == col("b"), a=[nan, nan, 1.0], b=[nan, 1.0, nan]) == [True, False, False]
    assert values(col("a") > col("b"), a=[nan, 1.0, nan], b=[1.0, nan, nan]) == [True, False, False]
    assert values(col("a") >= nan, a=[nan, 1.0, None]) == [True, False, None]
    assert values(least(col("a"), 1.0), a=[nan]) == [1.0]


@pytest.mark.parametrize(
    ("source", "to", "result"),
    [
        ([3.7, -3.7, None], "bigint", [3, -3, None]),
        ([1.5], "string", ["1.5"]),
        ([1.0, 1e10, 1e-5, math.inf], "string", ["1.0", "1.0E10", "1.0E-5", "Infinity"]),
        (["1", " 2 ", "+3", "-4", None], "int", [1, 2, 3, -4, None]),
        (["1.5", "1e3", " 2 "], "double", [1.5, 1000.0, 2.0]),
        (["1.005"], "decimal(10,2)", [Decimal("1.01")]),
        (["true", "F", "yes", "0"], "boolean", [True, False, True, False]),
        ([0, 2], "boolean", [False, True]),
        ([True, False], "int", [1, 0]),
        ([Decimal("-2.9")], "int", [-2]),
        ([Decimal("2.345")], "decimal(10,2)", [Decimal("2.35")]),
        ([Decimal("0.0000001")], "string", ["0.0000001"]),
        (["2026-01-31"], "date", [date(2026, 1, 31)]),
        (["2026-01-31 12:34:56.789", "2026-01-31T13:34:56.789+01:00"], "timestamp", [T, T]),
        ([T], "string", ["2026-01-31 12:34:56.789"]),
        ([T.replace(microsecond=0)], "string", ["2026-01-31 12:34:56"]),
        ([T], "date", [date(2026, 1, 31)]),
        ([T], "bigint", [int(T.timestamp())]),
        ([date(2026, 1, 31)], "timestamp", [datetime(2026, 1, 31, tzinfo=UTC)]),
        (
            [0, -1],
            "timestamp",
            [datetime(1970, 1, 1, tzinfo=UTC), datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC)],
        ),
        ([1, None], "decimal(5,1)", [Decimal("1.0"), None]),
        ([b"ab"], "string", ["ab"]),
    ],
)
def test_casts_are_sparks(source: list[Any], to: str, result: list[Any]) -> None:
    assert values(col("a").cast(to), a=source) == result


@pytest.mark.parametrize(
    ("source", "to", "good"),
    [
        ([3.0, math.nan], "bigint", 3),
        ([3.0, 2.0**64], "bigint", 3),
        ([3.0, 3e9], "int", 3),
        ([3, 2**40], "int", 3),
        (["3", "x"], "int", 3),
        (["3", "1.5"], "int", 3),
        (["3", "0x10"], "int", 3),
        (["3", "99999999999"], "int", 3),
        (["3", "1_0"], "double", 3.0),
        (["3", "nan"], "decimal(5,0)", Decimal(3)),
        ([3, 10**6], "decimal(5,0)", Decimal(3)),
        (["true", "maybe"], "boolean", True),
        (["2026-01-01", "2026-02-30"], "date", date(2026, 1, 1)),
        (["2026-01-31 12:34:56.789", "noon"], "timestamp", T),
        ([b"ok", b"\xff"], "string", "ok"),
    ],
)
def test_a_bad_cast_is_an_error_of_the_row(source: list[Any], to: str, good: Any) -> None:
    assert bad(col("a").cast(to), a=source) == ([good, None], [1])
    assert values(parse(f"try_cast(a as {to})"), a=source) == [good, None]


def test_text_functions() -> None:
    s = ["Hello, World", "", None]
    assert values(col("s").str.lower(), s=s) == ["hello, world", "", None]
    assert values(col("s").str.upper().str.length(), s=["straße"]) in ([7], [6])
    assert values(col("s").str.contains("."), s=s) == [False, False, None]
    assert values(col("s").str.starts_with("He") & col("s").str.ends_with("ld"), s=s) == [True, False, None]
    assert values(col("s").str.replace("l", "L"), s=s) == ["HeLLo, WorLd", "", None]
    assert values(col("s").str.trim(), s=["  a b "]) == ["a b"]
    assert values(col("s").str.split(", "), s=s) == [["Hello", "World"], [""], None]
    assert values(col("s").str.extract(r"(\w+), (W)"), s=s) == ["Hello", "", None]
    assert values(col("u").str.extract(r"//([^/]+)"), u=["https://a.b/c"]) == ["a.b"]
    assert values(concat(col("s"), "-", col("n")), s=["a", None], n=[1, 2]) == ["a-1", None]


def test_time_functions() -> None:
    assert values(col("t").dt.truncate("10s"), t=[T, None]) == [T.replace(second=50, microsecond=0), None]
    assert values(col("t").dt.truncate("1h"), t=[datetime(1969, 12, 31, 23, 30, tzinfo=UTC)]) == [
        datetime(1969, 12, 31, 23, tzinfo=UTC)
    ]
    parts = [
        col("t").dt.year(),
        col("t").dt.month(),
        col("t").dt.day(),
        col("t").dt.hour(),
        col("t").dt.minute(),
    ]
    assert [values(part, t=[T])[0] for part in [*parts, col("t").dt.second()]] == [2026, 1, 31, 12, 34, 56]
    assert values(col("t") + timedelta(hours=1), t=[T]) == [T + timedelta(hours=1)]
    assert values(col("t") - col("t"), t=[T]) == [timedelta(0)]
    assert values(col("t") > "2026-01-31", t=[T]) == [True]
    assert values(col("t") == T, t=[T]) == [True]
    assert values(col("d") >= "2026-01-31", d=[date(2026, 1, 31)]) == [True]


@pytest.mark.parametrize(
    "text",
    [
        "to_date(t)",
        "cast(t as timestamp_ntz)",
        "to_timestamp(t, 'yyyy-MM-dd')",
        "year(to_date(t))",
        "cast(to_timestamp(t) as string)",
        "trunc(to_date(t), 'month')",
        "date_trunc('year', to_timestamp(t))",
        "cast(split(t, ',') as array<date>)[0]",
    ],
)
def test_a_far_year_is_an_error_of_its_row_and_not_a_wrong_value_or_the_end_of_the_job(text: str) -> None:
    for far in ("92026-01-02", "+10000-01-01", "202611-02-03"):
        found = evaluate(parse(text), batch(t=[far, "1970-01-01", None]))
        assert found.errors.to_pylist() == [True, False, False], text
        assert found.reason is not None
        assert found.values.is_valid().to_pylist() == [False, True, False]
    tried = parse("try_cast(t as date)")
    assert values(tried, t=["92026-01-02", "-0044-03-15", "0001-01-01"]) == [None, None, date(1, 1, 1)]


def test_a_sum_of_times_beyond_the_year_9999_is_an_error_of_its_row() -> None:
    found = evaluate(col("at") + timedelta(days=10), batch(at=[datetime(9999, 12, 31, tzinfo=UTC), T]))
    assert found.errors.to_pylist() == [True, False]


def test_milliseconds_taken_for_seconds_are_told() -> None:
    found = evaluate(col("ms").cast("timestamp"), batch(ms=[1_767_225_600_000, 1_767_225_600]))
    assert found.errors.to_pylist() == [True, False]
    assert found.reason == "a timestamp outside of the years 0001 to 9999"


def test_far_years_of_a_source_are_errors_where_an_expression_looks_at_them() -> None:
    days, micros = pa.array([2**31 - 1, 0], pa.int32()).cast("date32"), pa.array([2**62, 0]).cast(pa.timestamp("us", "UTC"))
    for text in ("trunc(d, 'month')", "year(d)", "cast(d as string)", "cast(d as timestamp)", "d > timestamp '1970-01-01'"):
        assert evaluate(parse(text), batch(d=days)).errors.to_pylist() == [True, False], text
    for text in ("hour(t)", "date_trunc('month', t)", "t - t", "truncate(t, '1h')", "cast(t as string)"):
        assert evaluate(parse(text), batch(t=micros)).errors.to_pylist() == [True, False], text
    assert evaluate(col("d"), batch(d=days)).errors is None
    coarse = evaluate(parse("year(t)"), batch(t=pa.array([2**62, 0]).cast(pa.timestamp("s"))))
    assert coarse.errors.to_pylist() == [True, False]
    assert coarse.reason == "a timestamp outside of the years 0001 to 9999"


def test_time_zones_of_columns_do_not_matter() -> None:
    berlin = pa.array([T]).cast(pa.timestamp("us", tz="Europe/Berlin"))
    assert values(col("t").dt.hour(), t=berlin) == [12]
    nanos = pa.array([-1500], pa.timestamp("ns", tz="UTC"))
    assert values(col("t").dt.truncate("1s"), t=nanos) == [datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC)]


def test_elements_of_structs_lists_and_maps() -> None:
    people = pa.array([{"name": "ann"}, None], pa.struct([("name", pa.string())]))
    assert values(col("p")["name"], p=people) == ["ann", None]
    lists = pa.array([[9], [1, 2], None, [3, 4]], pa.list_(pa.int64())).slice(1)
    assert values(col("xs")[1], xs=lists) == [2, None, 4]
    assert bad(col("xs")[1], xs=pa.array([[1], [1, 2]])) == ([None, 2], [0])
    assert bad(col("xs")[-1], xs=pa.array([[1]])) == ([None], [0])
    maps = pa.array([{"a": 1}, {}, None], pa.map_(pa.string(), pa.int64()))
    assert values(col("m")["a"], m=maps) == [1, None, None]
    assert values(struct(col("a"), b=col("a") + 1), a=[1]) == [{"a": 1, "b": 2}]


@pytest.mark.parametrize(
    ("kind", "keys", "text", "result"),
    [
        ("double", [1.5, math.nan, -0.0], "m[1.5]", 1),
        ("double", [1.5, math.nan, -0.0], "m[double('NaN')]", 2),
        ("double", [1.5, math.nan, -0.0], "element_at(m, 0)", 3),
        ("double", [1.5], "m[2.5]", None),
        ("float", [0.5, 1.5], "m[1.5F]", 2),
        ("decimal(10,2)", [Decimal("1.50")], "m[1.5BD]", 1),
        ("date", [date(2026, 1, 2)], "m[date '2026-01-02']", 1),
        ("timestamp", [T], "m[timestamp '2026-01-31 12:34:56.789']", 1),
        ("binary", [b"a"], "m[cast('a' as binary)]", 1),
    ],
)
def test_keys_of_maps_may_be_of_any_type_that_has_literals(kind: str, keys: list[Any], text: str, result: Any) -> None:
    maps = pa.array([[], [(key, at) for at, key in enumerate(keys, 1)], None, []], pa.map_(type_of(kind), pa.int64()))
    for rows, expected in ((maps, [None, result, None, None]), (maps.slice(1, 2), [result, None]), (maps.slice(0, 0), [])):
        assert values(parse(text), m=rows) == expected


def test_a_key_of_another_type_is_told_with_both_types() -> None:
    with pytest.raises(PlanError, match=r"must be a literal of type smallint, and found double \(1.5\)"):
        compile(parse("m[1.5]"), pa.schema({"m": pa.map_(pa.int16(), pa.int64())}))


def test_arrays_of_every_shape_work() -> None:
    words = pa.array(["x", "a", "b", None, "a"]).dictionary_encode().slice(1)
    assert values(col("w") == "a", w=words) == [True, False, None, True]
    assert values(col("w").str.upper(), w=words) == ["A", "B", None, "A"]
    assert values(col("n") + 1, n=pa.array([], pa.int64())) == []
    assert values(col("n") + 1, n=pa.array([1, 2, 3]).slice(1, 1)) == [3]
    assert values(col("n") + 1, n=pa.nulls(2, pa.int64())) == [None, None]
    assert values(col("n") + 1, n=pa.nulls(2)) == [None, None]
    assert values(col("s").str.length(), s=pa.array(["ab"], pa.large_string())) == [2]
    assert values(col("u") - 1, u=pa.array([0], pa.uint8())) == [-1]
    assert values(lit(1) + 1, n=[0, 0]) == [2, 2]
    assert values(lit(None), n=[0]) == [None]


def test_a_compiled_expression_runs_on_many_batches() -> None:
    run = compile(col("a") + 1, pa.schema({"a": pa.int64()}))
    assert [run(batch(a=pa.array(rows, pa.int64()))).values.to_pylist() for rows in ([1], [], [2, 3])] == [
        [2],
        [],
        [3, 4],
    ]


def test_a_udf_by_value_skips_nulls_and_marks_bad_rows() -> None:
    @udf
    def inverse(n: int) -> float:
        return 1 / n

    @udf
    def shown(n: int | None) -> str:
        return str(n)

    @udf(returns="bigint")
    def wrong(s):  # type: ignore[no-untyped-def]
        return s if s == "x" else 1

    assert bad(inverse(col("n")), n=[2, 0, None]) == ([0.5, None, None], [1])
    assert values(shown(col("n")), n=[1, None]) == ["1", "None"]
    assert bad(wrong(col("s")), s=["x", "y"]) == ([None, 1], [0])


def test_a_udf_by_column_gets_arrays_and_is_retried_by_row() -> None:
    import pyarrow.compute as pc

    def cubed(n):  # type: ignore[no-untyped-def]
        return pc.multiply_checked(pc.multiply_checked(n, n), n)

    cubed.__annotations__ = {"n": pa.Array}
    cube = udf(returns="bigint")(cubed)
    assert values(cube(col("n")), n=[2, None]) == [8, None]
    assert bad(cube(col("n")), n=[2, 2**40]) == ([8, None], [1])


integers = st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1), st.integers(-3, 3))


def oracle(op: str, a: int | None, b: int | None) -> int | None:
    """The exact result; an ArithmeticError where Spark would raise."""
    if a is None or b is None:
        return None
    if op in ("div", "%") and b == 0:
        raise ZeroDivisionError
    whole = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1) if b else 0
    found = {"+": a + b, "-": a - b, "*": a * b, "div": whole, "%": a - whole * b}[op]
    if not -(2**63) <= found < 2**63:
        raise OverflowError
    return found


@given(st.lists(st.tuples(integers, integers)), st.sampled_from(["+", "-", "*", "div", "%"]))
def test_integer_arithmetic_is_exact_and_only_bad_rows_are_marked(rows: list[tuple[Any, Any]], op: str) -> None:
    expected, failed = [], []
    for a, b in rows:
        try:
            expected.append(oracle(op, a, b))
            failed.append(False)
        except ArithmeticError:
            expected.append(None)
            failed.append(True)
    data = batch(a=pa.array([a for a, _ in rows], pa.int64()), b=pa.array([b for _, b in rows], pa.int64()))
    found = evaluate(parse(f"a {op} b"), data)
    assert found.values.to_pylist() == expected
    assert (found.errors.to_pylist() if found.errors is not None else [False] * len(rows)) == failed


@given(
    st.lists(st.tuples(integers, st.one_of(st.none(), st.sampled_from(["1", "x", " 7", "", "99999999999999999999"])))),
    st.data(),
)
def test_splitting_a_batch_does_not_change_the_result(rows: list[tuple[Any, Any]], data: st.DataObject) -> None:
    expr = when(col("a") > 0, col("a") * col("s").cast("bigint")).otherwise(coalesce(col("a") - 5, 0))
    whole = batch(a=pa.array([a for a, _ in rows], pa.int64()), s=pa.array([s for _, s in rows], pa.string()))
    cut = data.draw(st.integers(0, len(rows)))

    def run(piece: pa.RecordBatch) -> list[tuple[Any, bool]]:
        found = evaluate(expr, piece)
        errors = [False] * len(piece) if found.errors is None else found.errors.to_pylist()
        return list(zip(found.values.to_pylist(), errors, strict=True))

    assert run(whole) == run(whole.slice(0, cut)) + run(whole.slice(cut))


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("[a-z&&[^b]]", "'&&' inside of brackets"),
        ("[[:alpha:]]", "'[' inside of brackets"),
        ("[a[bc]]", "'[' inside of brackets"),
        (r"\v", "not read here as Java reads it"),
        (r"[\v]", "not read here as Java reads it"),
        (r"\0101", "not read here as Java reads it"),
        ("(?U)a", "its flags can be i and m"),
        ("a(?s).", "its flags can be i and m"),
    ],
)
def test_a_pattern_that_java_reads_otherwise_is_refused(pattern: str, found: str) -> None:
    for text in (f"regexp_extract(s, r'({pattern})')", f"split(s, r'{pattern}')"):
        with pytest.raises(PlanError, match=re.escape(found)):
            compile(parse(text), pa.schema({"s": pa.string()}))


def test_what_is_quoted_in_a_pattern_is_a_text() -> None:
    assert values(col("s").str.extract(r"(\Q.(\E.)"), s=["a.(b", "a.(\n", "xx"]) == [".(b", "", ""]
    assert values(col("s").str.extract(r"([\S]+)"), s=["\x0bx y"]) == ["x"]
