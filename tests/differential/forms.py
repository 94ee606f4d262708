"""The forms that are compared: for every entry of the reader's tables, texts of SQL with a type for each column that they read.

`{0}` in a text is the first column, of the first type. Both sides read the same text, unless `spark` says how Spark wants it:
its literal 1 is an int where ours is a bigint, so that functions which insist on an int get one.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from penstock.expr.casts import can_cast
from penstock.schema import type_of

__all__ = ["Form", "casts", "expressions"]


@dataclass(frozen=True)
class Form:
    """A text, the types of its columns, and the entry of the reader's tables that it is about."""

    covers: str
    text: str
    types: tuple[str, ...]
    spark: str | None = None
    intent: str | tuple[str, ...] | None = None

    @property
    def intents(self) -> tuple[str, ...]:
        """The differences by intent that it meets."""
        return (self.intent,) if isinstance(self.intent, str) else self.intent or ()

    @property
    def names(self) -> list[str]:
        """The columns, called the same on both sides and differently from those of any other form."""
        return [f"c{self.number:08x}_{index}" for index in range(len(self.types))]

    @property
    def number(self) -> int:
        """A number of its own, the same in every run."""
        return zlib.crc32(f"{self.text} {self.types}".encode())

    def __str__(self) -> str:
        return self.text.format(*self.types)


INTEGERS = ("tinyint", "smallint", "int", "bigint")
DECIMALS = ("decimal(10,2)", "decimal(38,18)", "decimal(5,0)")
NUMBERS = (*INTEGERS, "float", "double", "decimal(10,2)")
ORDERED = (*NUMBERS, "boolean", "string", "binary", "date", "timestamp", "timestamp_ntz")
NESTED = ("array<int>", "array<array<string>>", "map<string,double>", "struct<a: int, b: array<string>>")
BEYOND = "times beyond the calendar"
TEXTS = ("string:int", "string:number", "string:boolean", "string:date", "string:time")
OPERATORS = {
    "Add": "+",
    "Sub": "-",
    "Mul": "*",
    "Div": "/",
    "Mod": "%",
    "IntDiv": "div",
    "EQ": "=",
    "NEQ": "<>",
    "LT": "<",
    "LTE": "<=",
    "GT": ">",
    "GTE": ">=",
    "NullSafeEQ": "<=>",
}
ARITHMETIC = ("Add", "Sub", "Mul", "Div", "Mod")
COMPARISONS = ("EQ", "NEQ", "LT", "LTE", "GT", "GTE", "NullSafeEQ")


def expressions() -> Iterator[Form]:
    """Everything but casts."""
    yield from _arithmetic()
    yield from _comparisons()
    yield from _logic()
    yield from _syntax()
    yield from _choices()
    yield from _texts()
    yield from _times()
    yield from _nested()
    for name in ("boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "decimal"):
        yield Form(name, f"{name}({{0}})", ("string:number" if name != "boolean" else "string:boolean",))
    for name in ("date", "timestamp"):
        yield Form(name, f"{name}({{0}})", ("string:time",), intent=("times alone", BEYOND) if name == "timestamp" else BEYOND)
    yield Form("binary", "binary({0})", ("string",))
    for kind in ("double", "timestamp", "decimal(38,18)", "boolean"):
        yield Form("string", "string({0})", (kind,), intent="text of doubles" if kind == "double" else None)


def _arithmetic() -> Iterator[Form]:
    pairs = [(kind, kind) for kind in (*NUMBERS, "decimal(38,18)")]
    pairs += [("tinyint", "int"), ("int", "bigint"), ("smallint", "float"), ("bigint", "double"), ("float", "double")]
    pairs += [
        ("int", "decimal(10,2)"),
        ("decimal(10,2)", "bigint"),
        ("decimal(38,18)", "decimal(5,0)"),
        ("decimal(5,0)", "double"),
    ]
    for entry, (left, right) in product(ARITHMETIC, pairs):
        if entry == "Div" and "decimal" in left + right:
            exact = "cast({0} as double) / cast({1} as double)"
            yield Form(entry, "{0} / {1}", (left, right), exact, "decimals")
            continue
        yield Form(entry, f"{{0}} {OPERATORS[entry]} {{1}}", (left, right))
    for left, right in [*((kind, kind) for kind in INTEGERS), ("tinyint", "bigint")]:
        yield Form("IntDiv", "{0} div {1}", (left, right))
    for kind in (*NUMBERS, "decimal(38,18)"):
        yield Form("Neg", "-{0}", (kind,), intent="negated decimals" if kind == "decimal(38,18)" else None)
    for entry, kind in product(("Add", "Sub", "Mul", "Mod", "Div"), ("int", "bigint", "double", "decimal(10,2)")):
        number = "3" if kind != "double" else "3D"
        if entry == "Div" and kind == "decimal(10,2)":
            yield Form(entry, "{0} / 3", (kind,), "cast({0} as double) / 3", "decimals")
            continue
        yield Form(entry, f"{{0}} {OPERATORS[entry]} {number}", (kind,))
        yield Form(entry, f"{number} {OPERATORS[entry]} {{0}}", (kind,))
    yield Form("mod", "mod({0}, {1})", ("int:some", "int:some"))
    yield Form("div", "div({0}, {1})", ("int:some", "bigint:some"))
    yield Form("IntDiv", "{0} div 7", ("bigint",))
    yield Form("Sub", "{0} - {1}", ("timestamp", "timestamp"))
    yield Form("Sub", "{0} - {1}", ("timestamp_ntz", "timestamp_ntz"))
    yield Form("Add", "{0} + ({1} - {2})", ("timestamp", "timestamp", "timestamp"), intent=BEYOND)
    yield Form("Sub", "{0} - ({1} - {2})", ("timestamp_ntz", "timestamp_ntz", "timestamp_ntz"), intent=BEYOND)


def _comparisons() -> Iterator[Form]:
    pairs = [(kind, kind) for kind in ORDERED]
    pairs += [
        ("int", "bigint"),
        ("bigint", "double"),
        ("float", "double"),
        ("int", "decimal(10,2)"),
        ("decimal(38,18)", "decimal(5,0)"),
    ]
    pairs += [("decimal(10,2)", "double"), ("date", "timestamp"), ("int", "float"), ("bigint", "float")]
    for entry, (left, right) in product(COMPARISONS, pairs):
        yield Form(entry, f"{{0}} {OPERATORS[entry]} {{1}}", (left, right))
    for kind, number in (
        ("int", "3"),
        ("bigint", "-1"),
        ("tinyint", "300"),
        ("double", "1.5"),
        ("decimal(10,2)", "1"),
        ("float", "0.5"),
    ):
        yield Form("LT", f"{{0}} < {number}", (kind,))
        yield Form("EQ", f"{number} = {{0}}", (kind,))
    yield Form("GT", "{0} > '2026-01-02'", ("date",))
    yield Form("GTE", "{0} >= '2026-01-02 03:04:05'", ("timestamp",))
    yield Form("EQ", "{0} == 'a'", ("string",))
    yield Form("NEQ", "{0} != 'a'", ("string",))
    for kind in ORDERED:
        yield Form("Between", "{0} between {1} and {2}", (kind, kind, kind))
        yield Form("In", "{0} in ({1}, {2})", (kind, kind, kind))
    yield Form("Between", "{0} not between -3 and 3", ("int",))
    yield Form("In", "{0} in (1, 2, null)", ("int",))
    yield Form("In", "{0} not in (1, 2, null)", ("bigint",))
    yield Form("In", "{0} in (0D, -1D, 1.5D)", ("double",))
    yield Form("In", "{0} in ('a', '', 'ß')", ("string",))
    yield Form("In", "{0} in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13)", ("tinyint",))
    yield Form("In", "{0} in ('2026-01-02')", ("date",))


def _logic() -> Iterator[Form]:
    for kind in ("float", "double"):
        yield Form("In", "{0} in (0)", (kind,))
        yield Form("In", "{0} in (0, 1, null)", (kind,))
    for text in ("{0} between 3 and 10 div {1}", "{0} between 10 div {1} and 3", "{0} not between 3 and 10 div {1}"):
        yield Form("Between", text, ("bigint:some", "bigint:some"))
    for text in ("{0} = 10 div {1}", "10 div {1} < {0}", "{0} in (10 div {1}, 1)", "{0} + 10 div {1}", "(10 div {1}) % {0}"):
        yield Form("IntDiv", text, ("bigint:some", "bigint:some"))
    yield Form("Bracket", "{0}[cast(10 div {1} as int)]", ("array<int>", "bigint:some"))
    yield Form("element_at", "element_at({0}, cast(10 div {1} as int))", ("array<int>", "bigint:some"))
    yield Form("And", "{0} and {1}", ("boolean", "boolean"))
    yield Form("Or", "{0} or {1}", ("boolean", "boolean"))
    yield Form("And", "{0} <> 0 and 10 / {0} > 1", ("int:some",))
    yield Form("Or", "{0} = 0 or 10 % {0} = 1", ("int:some",))
    yield Form("And", "10 / {0} > 1 and {1}", ("int:some", "boolean"))
    yield Form("Or", "{1} or 10 / {0} > 1", ("int:some", "boolean"))
    yield Form("Not", "not {0}", ("boolean",))
    yield Form("Not", "!{0}", ("boolean",))
    for kind in (*ORDERED, *NESTED):
        yield Form("Is", "{0} is null", (kind,))
        yield Form("Not", "{0} is not null", (kind,))
    yield Form("Is", "{0} is true", ("boolean",))
    yield Form("Is", "{0} is not false", ("boolean",))


def _syntax() -> Iterator[Form]:
    for kind in (*ORDERED, *NESTED):
        yield Form("Column", "{0}", (kind,))
    yield Form("Paren", "({0} + 1) * 2", ("int:small",))
    yield Form("Add", "1 + {0} * 2 - 3 % 2", ("int:small",), "1L + {0} * 2 - 3L % 2L", "literals")
    yield Form("Literal", "1", ("int",), "1L", "literals")
    yield Form("Literal", "1.5", ("int",), "1.5D", "literals")
    yield Form("Null", "null", ("int",))
    yield Form("Boolean", "true", ("int",))
    yield Form("Boolean", "false and {0} = 1", ("int",))
    literals = [
        "1L",
        "-5S",
        "3Y",
        "1.5D",
        "1.5F",
        "12.50BD",
        "1e3",
        "-9223372036854775808",
        "1.5e-3",
        "'it''s'",
        '"a""b"',
        "'a' 'b'",
    ]
    literals += [r"'\d\n\t\\\u0041\101\%'", r"r'\d'", "date '2026-01-02'", "timestamp '2026-01-02 03:04:05.5'", "''", "'日本𝒳'"]
    literals += ["timestamp '1969-12-31 23:59:59Z'", "timestamp_ntz '2026-01-02 03:04:05'", "'\"'", '"\'"', "'a''''b'", r"'\''"]
    for text in literals:
        entry = {"-": "Neg", "r": "RawString", "d": "Cast", "t": "Cast"}.get(
            text[0], "Cast" if text[-1] in "LSYDF" else "Literal"
        )
        yield Form("Concat" if text == "'a' 'b'" else entry, text, ("int",))
    yield Form("Cast", "{0}::string", ("int",))
    yield Form("TryCast", "{0}?::int", ("string:int",), "try_cast({0} as int)")
    yield Form("DPipe", "{0} || {1}", ("string", "string"))
    yield Form("DPipe", "{0} || '-' || {1}", ("int", "date"))
    yield Form("Trim", "trim({0})", ("string",))
    yield Form("Anonymous", "lower(upper({0}))", ("string",))


def _choices() -> Iterator[Form]:
    for name in ("coalesce", "nvl", "ifnull"):
        for kind in ("int", "string", "double", "timestamp", "array<int>"):
            yield Form(name, f"{name}({{0}}, {{1}})", (kind, kind))
        yield Form(name, f"{name}({{0}}, {{1}})", ("int", "bigint"))
    yield Form("coalesce", "coalesce({0}, 10 div {1}, {2})", ("bigint", "int:some", "bigint"))
    yield Form("coalesce", "coalesce({0}, 0L)", ("bigint",))
    yield Form("coalesce", "coalesce({0})", ("string",))
    yield Form("coalesce", "coalesce({0}, {1})", ("date", "timestamp"))
    yield Form("if", "if({0}, {1}, {2})", ("boolean", "int", "double"))
    yield Form("if", "if({0}, {1}, null)", ("boolean", "struct<a: int, b: array<string>>"))
    yield Form("if", "if({0} <> 0, 10 / {0}, 0D)", ("int:some",))
    yield Form("if", "if(10 / {0} > 2, {1}, {1})", ("int:some", "string"))
    yield Form("Case", "case when {0} > 0 then {1} when {0} < -5 then {2} else {1} end", ("int:small", "string", "string"))
    yield Form("Case", "case {0} when 1 then {1} when 2 then {2} end", ("int:some", "decimal(10,2)", "int"))
    yield Form("Case", "case when {0} then 10 / {1} end", ("boolean", "int:some"))
    yield Form("Case", "case when {0} then {1} else {2} end", ("boolean", "date", "timestamp"))
    for name in ("least", "greatest"):
        for kind in ORDERED:
            yield Form(name, f"{name}({{0}}, {{1}}, {{2}})", (kind, kind, kind))
        yield Form(name, f"{name}({{0}}, {{1}})", ("int", "double"))
        yield Form(name, f"{name}({{0}}, 3)", ("int",))


def _texts() -> Iterator[Form]:
    for name in ("lower", "lcase", "upper", "ucase"):
        yield Form(name, f"{name}({{0}})", ("string",))
        yield Form(name, f"{name}({{0}})", ("string:case",))
    for name in ("length", "len", "char_length", "character_length", "trim"):
        yield Form(name, f"{name}({{0}})", ("string",))
    for name, part in product(("contains", "startswith", "endswith", "starts_with", "ends_with"), ("'a'", "''", "'ß'", "'%'")):
        yield Form(name, f"{name}({{0}}, {part})", ("string",), f"{name.replace('s_', 's')}({{0}}, {part})")
    for old, new in (("'a'", "'bb'"), ("'aa'", "'a'"), ("''", "'x'"), ("','", "''"), ("'.'", r"'\\1'")):
        yield Form("replace", f"replace({{0}}, {old}, {new})", ("string",))
    yield Form("replace", "replace({0}, 'a')", ("string",))
    yield Form("concat", "concat({0})", ("string",))
    yield Form("concat", "concat({0}, null)", ("string",))
    for kind in ("string", "int", "double:some", "boolean", "date", "timestamp", "decimal(10,2)", "timestamp_ntz"):
        yield Form("concat", "concat({0}, {1}, '-')", (kind, "string"))
    yield Form("concat", "concat({0}, {1})", ("binary", "string"))
    for pattern in (
        "'([a-z]+)'",
        r"'(\\w)(\\d)'",
        "'(a)|(b)'",
        "'(?i)(AB)'",
        r"'(\\s)'",
        "'(.)$'",
        "'(.+)'",
        "'^(.*),'",
        r"'(\\p{{L}}+)'",
        "'(a*?)b'",
        "'([^,]*),'",
    ):
        intent = "end of a text" if "$" in pattern else None
        yield Form("regexp_extract", f"regexp_extract({{0}}, {pattern})", ("string",), intent=intent)
        yield Form("regexp_extract", f"regexp_extract({{0}}, {pattern}, 0)", ("string",), intent=intent)
    for pattern in (r"[\S]+", r"\Q.\E.", r"(\Qa.\E)?b", r"[^\s]", r"[\[a\]]+", "(?s)a.b", "(?m)^b"):
        yield Form("regexp_extract", f"regexp_extract({{0}}, r'{pattern}', 0)", ("string",))
    yield Form("regexp_extract", r"regexp_extract({0}, '(\\w)(\\d)', 2)", ("string",))
    yield Form("regexp_extract", "regexp_extract({0}, '(a)|(b)', 2)", ("string",))
    yield Form("regexp_extract", "regexp_extract({0}, '(?<x>a)(b)?', 2)", ("string",))
    yield Form("regexp_extract", r"regexp_extract({0}, r'(\d+)-(\d+)', 1)", ("string:date",))
    for pattern in (
        "','",
        "'a'",
        r"'\\.'",
        "'[,.]'",
        r"'\\s+'",
        "'.'",
        r"'\\|'",
        "' '",
        r"'\\bb'",
        r"'(?i)A'",
        "'a|b'",
        "'aa'",
        "'[^a]'",
    ):
        yield Form("split", f"split({{0}}, {pattern})", ("string",))
    yield Form("Bracket", "split({0}, ',')[1]", ("string",))


def _times() -> Iterator[Form]:
    for name in ("year", "month", "day", "dayofmonth"):
        for kind in ("date", "timestamp", "timestamp_ntz"):
            yield Form(name, f"{name}({{0}})", (kind,))
    for name in ("hour", "minute", "second"):
        for kind in ("timestamp", "timestamp_ntz"):
            yield Form(name, f"{name}({{0}})", (kind,))
    for unit in (
        "YEAR",
        "yyyy",
        "yy",
        "quarter",
        "month",
        "MM",
        "mon",
        "week",
        "day",
        "DD",
        "hour",
        "minute",
        "second",
        "millisecond",
        "MICROSECOND",
    ):
        yield Form("date_trunc", f"date_trunc('{unit}', {{0}})", ("timestamp",))
    for unit in ("month", "day"):
        local = f"cast(date_trunc('{unit}', {{0}}) as timestamp_ntz)"
        yield Form("date_trunc", f"date_trunc('{unit}', {{0}})", ("timestamp_ntz",), local, "clocks without zones")
    for unit, kind in product(("year", "YYYY", "yy", "quarter", "month", "MM", "mon", "week"), ("date", "timestamp")):
        yield Form("trunc", f"trunc({{0}}, '{unit}')", (kind,))
    for duration in ("second", "minute", "hour", "day"):
        yield Form("truncate", f"truncate({{0}}, '1 {duration}')", ("timestamp",), f"date_trunc('{duration}', {{0}})")
    for name in ("to_date", "to_timestamp"):
        for kind in ("string:date", "string:time", "date", "timestamp", "timestamp_ntz"):
            alone = ("times alone",) if name == "to_timestamp" and "string" in kind else ()
            yield Form(name, f"{name}({{0}})", (kind,), intent=(*alone, BEYOND) if "string" in kind else None)
        for pattern in (
            "dd/MM/yyyy",
            "d/M/yyyy",
            "yyyy-MM-dd",
            "yyyyMMdd",
            "yyyy-MM-dd''T''HH:mm:ss",
            "yyyy-MM-dd HH:mm:ss.SSSSSS",
            "dd.MM.yy",
            "HH:mm",
            "yyyy-M-d",
            "yyyy-MM-dd HH:mm:ss.SSS",
        ):
            yield Form(name, f"{name}({{0}}, '{pattern}')", ("string:formatted",), intent=BEYOND)
    for text in (
        "year(to_date({0}))",
        "year(to_timestamp({0}))",
        "cast(to_date({0}) as string)",
        "cast(to_timestamp({0}) as string)",
        "trunc(to_date({0}), 'month')",
        "date_trunc('week', to_timestamp({0}))",
    ):
        yield Form("to_date" if "to_date" in text else "to_timestamp", text, ("string:far",), intent=BEYOND)


def _nested() -> Iterator[Form]:
    for kind in ("array<int>", "array<string>", "array<struct<a: int>>", "array<array<string>>"):
        for name in ("element_at", "try_element_at"):
            yield Form(name, f"{name}({{0}}, {{1}})", (kind, "int:small"))
            yield Form(name, f"{name}({{0}}, 1)", (kind,))
            yield Form(name, f"{name}({{0}}, -1)", (kind,))
        yield Form("Bracket", "{0}[{1}]", (kind, "int:small"))
        yield Form("Bracket", "{0}[0]", (kind,))
    for kind, key in (("map<string,int>", "'a'"), ("map<int,array<string>>", "1"), ("map<string,struct<a: int>>", "''")):
        yield Form("Bracket", f"{{0}}[{key}]", (kind,))
        for name in ("element_at", "try_element_at"):
            yield Form(name, f"{name}({{0}}, {key})", (kind,))
    for kind, key in (
        ("double", "1.5D"),
        ("double", "-0D"),
        ("double", "double('NaN')"),
        ("float", "1.5F"),
        ("decimal(10,2)", "1.50BD"),
    ):
        yield Form("Bracket", f"{{0}}[{key}]", (f"map<{kind},int>",))
        exact = f"cast({key} as {kind})"  # where Spark converts a key of [], but not of element_at
        yield Form("element_at", f"element_at({{0}}, {key})", (f"map<{kind},int>",), f"element_at({{0}}, {exact})")
    yield Form("Bracket", "{0}[1.5]", ("map<double,string>",), "{0}[1.5D]")
    yield Form("Bracket", "{0}[date '2026-01-02']", ("map<date,array<int>>",))
    yield Form("Bracket", "{0}['2026-01-02']", ("map<date,string>",), "{0}[date '2026-01-02']")
    yield Form("Bracket", "{0}[true]", ("map<boolean,int>",))
    record = "struct<a: int, b: array<string>>"
    yield Form("Column", "{0}.a", (record,))
    yield Form("Dot", "{0}[1].a", ("array<struct<a: int>>",))
    yield Form("Bracket", "{0}.b[0]", (record,))
    yield Form("struct", "struct({0}, {1} as x)", ("int", "array<string>"))
    yield Form("struct", "struct({0}.a, {1} + 1 as n).n", (record, "int"))
    yield Form("named_struct", "named_struct('x', {0}, 'y', {1})", ("string", "timestamp"))


CAST_TYPES = (
    *NUMBERS,
    "decimal(38,18)",
    "boolean",
    "string",
    *TEXTS,
    "binary",
    "date",
    "timestamp",
    "timestamp_ntz",
    "bigint:seconds",
    "double:seconds",
)
TARGETS = (*NUMBERS, "decimal(5,0)", "decimal(38,18)", "boolean", "string", "binary", "date", "timestamp", "timestamp_ntz")


def casts() -> Iterator[Form]:
    """Every pair of types that has a cast; texts with words and digits that suit the target."""
    for source, target in product(CAST_TYPES, TARGETS):
        plain = type_of(source.rpartition(":")[0] or source)
        if can_cast(plain, type_of(target)):
            made = target.startswith(("date", "timestamp")) and not source.startswith(("date", "timestamp"))
            intent = (BEYOND,) if made else ()
            if source.startswith("string") and target.startswith("timestamp"):
                intent = ("times alone", BEYOND)
            if source.partition(":")[0] in ("float", "double") and (target == "string" or "decimal" in target):
                intent = ("text of doubles",)
            yield Form("Cast", f"cast({{0}} as {target})", (source,), intent=intent)
            yield Form("TryCast", f"try_cast({{0}} as {target})", (source,), intent=intent)
    for source, target in (
        ("array<string>", "array<int>"),
        ("array<double>", "array<int>"),
        ("array<int>", "array<string>"),
        ("array<array<int>>", "array<array<bigint>>"),
    ):
        yield Form("Cast", f"cast({{0}} as {target})", (source,))
        yield Form("TryCast", f"try_cast({{0}} as {target})", (source,))
    record = "struct<a: int, b: array<string>>"
    for source, target in (
        (record, "struct<a: bigint, b: array<string>>"),
        ("array<struct<a: int>>", "array<struct<a: string>>"),
        ("map<string,int>", "map<string,bigint>"),
        ("map<string,double>", "map<string,int>"),
    ):
        yield Form("Cast", f"cast({{0}} as {target})", (source,))
        yield Form("TryCast", f"try_cast({{0}} as {target})", (source,))
    by_name = "if({0} is null, null, named_struct('b', {0}.b, 'a', cast({0}.a as string)))"
    yield Form("Cast", "cast({0} as struct<b: array<string>, a: string>)", (record,), by_name, "fields by name")
