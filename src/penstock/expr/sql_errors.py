"""What a user is told whose SQL has something that there is not: the word that was written, the nearest that there is, and the page.

`INSTEAD` has the functions and operators of Spark that are asked for most, each with an expression that comes nearest; a test reads
every one of them. For any other name the nearest name is looked for.
"""

from __future__ import annotations

import difflib
from typing import Any

from penstock.errors import Fix, PlanError

__all__ = ["INSTEAD", "LIST_OF_FUNCTIONS", "no_such_function", "no_such_operator", "written"]

LIST_OF_FUNCTIONS = "All functions are in docs/guide/functions.md"

_SUBSTRING = "regexp_extract(text, '^.{2}(.{0,3})', 1)"
_NOW = "event_time()"
_SECONDS = "cast(at as bigint)"
_DAYS_LATER = "cast(cast(at as bigint) + 7 * 86400 as timestamp)"
_DAYS_BETWEEN = "(cast(at as bigint) - cast(before as bigint)) div 86400"
_FOUND = "regexp_extract(text, '(pattern)', 1) <> ''"

INSTEAD: dict[str, str] = {
    "abs": "greatest(x, -x)",
    "bround": "cast(x as decimal(18, 2))",
    "concat_ws": "concat(a, '-', b)",
    "convert": "cast(x as int)",
    **dict.fromkeys(("charindex", "instr", "like", "ilike", "locate", "position"), "contains(text, 'part')"),
    **dict.fromkeys(("current_date", "current_timestamp", "curdate", "getdate", "localtimestamp", "now"), _NOW),
    **dict.fromkeys(("date_add", "date_sub", "dateadd", "timestampadd", "interval"), _DAYS_LATER),
    **dict.fromkeys(("date_diff", "datediff", "timestampdiff"), _DAYS_BETWEEN),
    "date_format": "cast(at as string)",
    "date_part": "year(at)",
    "datepart": "year(at)",
    "decode": "case a when 1 then 'one' end",
    "extract": "year(at)",
    "from_unixtime": "cast(seconds as timestamp)",
    "get": "try_element_at(list, 1)",
    **dict.fromkeys(("iff", "iif"), "if(condition, a, b)"),
    "is distinct from": "not (a <=> b)",
    "isnan": "x = double('NaN')",
    "isnotnull": "x is not null",
    "isnull": "x is null",
    "left": "regexp_extract(text, '^(.{0,3})', 1)",
    "ltrim": "trim(text)",
    "nanvl": "if(x = double('NaN'), a, x)",
    "negative": "-x",
    "nullif": "if(a = b, null, a)",
    "nvl2": "if(x is not null, a, b)",
    "pmod": "((a % b) + b) % b",
    "positive": "x",
    "quarter": "(month(at) + 2) div 3",
    **dict.fromkeys(("regexp", "regexp_like", "rlike"), _FOUND),
    "regexp_replace": "replace(text, 'old', 'new')",
    "regexp_substr": "regexp_extract(text, 'pattern', 0)",
    "right": "regexp_extract(text, '(.{0,3})$', 1)",
    "round": "cast(x as decimal(18, 2))",
    "rtrim": "trim(text)",
    "safe_cast": "try_cast(x as int)",
    "sign": "case when x > 0 then 1 when x < 0 then -1 when x = 0 then 0 end",
    "signum": "case when x > 0 then 1 when x < 0 then -1 when x = 0 then 0 end",
    "split_part": "try_element_at(split(text, ','), 2)",
    **dict.fromkeys(("substr", "substring"), _SUBSTRING),
    "timestamp_micros": "cast(micros / 1000000 as timestamp)",
    "timestamp_millis": "cast(millis / 1000 as timestamp)",
    "timestamp_seconds": "cast(seconds as timestamp)",
    **dict.fromkeys(("to_char", "to_varchar"), "string(x)"),
    "to_number": "cast(text as decimal(18, 2))",
    **dict.fromkeys(("to_unix_timestamp", "unix_seconds", "unix_timestamp"), _SECONDS),
    "try_divide": "if(b = 0, null, a / b)",
    "try_to_date": "try_cast(text as date)",
    "try_to_timestamp": "try_cast(text as timestamp)",
    "zeroifnull": "coalesce(x, 0)",
}

_OPERATORS = {
    "BitwiseAnd": "&",
    "BitwiseLeftShift": "<<",
    "BitwiseNot": "~",
    "BitwiseOr": "|",
    "BitwiseRightShift": ">>",
    "BitwiseXor": "^",
    "AtTimeZone": "at time zone",
    "Exists": "exists",
    "HexString": "x'...'",
    "ILike": "ilike",
    "In": "in (select ...)",
    "Interval": "interval",
    "JSONExtract": ":",
    "Like": "like",
    "NullSafeNEQ": "is distinct from",
    "Placeholder": "?",
    "RegexpLike": "rlike",
    "Select": "select",
    "StrToDate": "cast(... format ...)",
    "Subquery": "select",
    "TryCast": "try_cast",
    "Tuple": "(a, b)",
    "Window": "over",
}


def written(tree: Any) -> str:
    """A tree of sqlglot's as SQL, with names as the user wrote them."""
    return str(tree.sql(dialect="spark", normalize_functions=False))


def no_such_function(name: str, text: str) -> PlanError:
    """The error for a function that there is not."""
    from penstock.expr.sql_aggregates import AGGREGATES

    if name in AGGREGATES:
        return PlanError(
            f"{name} is an aggregate, and an expression is about one row: {text}",
            fix=Fix("sql.aggregate", f'Aggregates belong in aggregate(). Write: .aggregate(x="{text}")'),
        )
    return PlanError(f"{name} is not among the functions of these expressions: {text}", fix=_nearest(name))


def no_such_operator(tree: Any, mark: str = "") -> PlanError:
    """The error for a piece of syntax that there is not, or for one with a mark that there is not."""
    kind = type(tree).__name__
    word = f"{_OPERATORS.get(kind, str(tree.key))} {mark}".strip()
    return PlanError(f"{word} is not supported in these expressions: {written(tree)}", fix=_nearest(word))


def _nearest(name: str) -> Fix:
    from penstock.expr.sql_functions import FUNCTIONS

    if name in INSTEAD:
        return Fix(
            "sql.instead", f"{LIST_OF_FUNCTIONS}. The nearest is this, or a function of your own: pen.udf. Write: {INSTEAD[name]}"
        )
    close = difflib.get_close_matches(name, FUNCTIONS, 1)
    if close:
        return Fix("sql.name", f"Did you mean {close[0]}? {LIST_OF_FUNCTIONS}. Write: {FUNCTIONS[close[0]].form}")
    return Fix("sql.udf", f"Make it a function of your own: pen.udf. {LIST_OF_FUNCTIONS}")
