"""Random expressions of several operators and functions: what each means by itself, and which errors count where they meet.

A form of one function cannot show that `x = 10 div y` looks at the division only where x is not null, as Spark does. These are
trees of a seed's making, as SQL texts, of five types of values.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from differential.forms import Form

__all__ = ["compositions"]

_CONSTANTS = {
    "n": ("1L", "2L", "0L", "-3L", "cast(null as bigint)"),
    "f": ("1.5D", "0D", "-0D", "double('NaN')"),
    "b": ("true", "false", "cast(null as boolean)"),
    "s": ("'a'", "''", "'b,c'", "cast(null as string)"),
    "t": ("timestamp '2026-01-02 03:04:05'",),
}
_COLUMNS = {
    "n": ("bigint:some", "bigint:some", "bigint:small"),
    "f": ("double:some", "double"),
    "b": ("boolean",),
    "s": ("string", "string:int"),
    "t": ("timestamp",),
    "list": ("array<int>",),
}
# What gives a value of each type: {n} stands for any number, {list} for a list, and {x} three times for values of one type.
_FORMS = {
    "n": (
        *("({n} + {n})", "({n} - {n})", "({n} * {n})", "({n} div {n})", "({n} div {n})", "({n} % {n})", "(- {n})"),
        *("coalesce({n}, {n})", "if({b}, {n}, {n})", "least({n}, {n})", "greatest({n}, {n})", "cast(length({s}) as bigint)"),
        *("case when {b} then {n} when {b} then {n} end", "case {n} when {n} then {n} else {n} end"),
        *("try_cast({s} as bigint)", "cast({b} as bigint)", "cast(year({t}) as bigint)", "cast({list}[0] as bigint)"),
        *("cast({list}[cast({n} as int)] as bigint)", "cast(element_at({list}, 1) as bigint)"),
    ),
    "f": (
        *("({f} + {f})", "({f} - {f})", "({f} * {f})", "({f} / {f})", "({n} / {n})", "(- {f})", "cast({n} as double)"),
        *("coalesce({f}, {f})", "if({b}, {f}, {f})", "greatest({f}, {f})"),
    ),
    "b": (
        *("({x} = {x})", "({x} <> {x})", "({x} < {x})", "({x} <= {x})", "({x} > {x})", "({x} >= {x})", "({x} <=> {x})"),
        *("({b} and {b})", "({b} or {b})", "(not {b})", "({x} is null)", "({x} is not null)", "({b} is true)"),
        *("({x} in ({x}, {x}))", "({x} not in ({x}, {x}))", "({n} in (1, 2, null))", "({f} in (0, 1))", "({s} in ('a', 'b'))"),
        *("({x} between {x} and {x})", "({x} not between {x} and {x})", "contains({s}, 'a')"),
    ),
    "s": (
        *(
            "concat({s}, {s})",
            "({s} || {n})",
            "upper({s})",
            "replace({s}, 'a', 'b')",
            "cast({n} as string)",
            "cast({t} as string)",
        ),
        *("coalesce({s}, {s})", "if({b}, {s}, {s})", "regexp_extract({s}, '([a-z]+)', 1)"),
        "try_element_at(split({s}, ','), 1)",
    ),
    "t": (
        "date_trunc('month', {t})",
        "coalesce({t}, {t})",
        "if({b}, {t}, {t})",
        "cast(to_date({t}) as timestamp)",
    ),
}


def compositions(count: int, seed: int) -> Iterator[Form]:
    """So many random expressions."""
    made: set[int] = set()
    for number in range(count):
        chosen = random.Random(f"compositions {seed} {number}")
        types: list[str] = []
        text = _text(chosen, chosen.choice("nfbbbst"), chosen.choice([2, 3, 4]), types)
        form = Form("Paren", text, tuple(types or ["int"]))
        if form.number not in made:  # the numbers are the names of columns
            made.add(form.number)
            yield form


def _text(chosen: random.Random, kind: str, depth: int, types: list[str]) -> str:
    if kind == "list" or depth <= 0 or chosen.random() < 0.2:
        return _leaf(chosen, kind, types)
    form, same = chosen.choice(_FORMS[kind]), chosen.choice("nnfst")
    text, position = "", 0
    while (start := form.find("{", position)) >= 0:
        end = form.index("}", start)
        inner = form[start + 1 : end]
        text += form[position:start] + _text(chosen, same if inner == "x" else inner, depth - 1, types)
        position = end + 1
    return text + form[position:]


def _leaf(chosen: random.Random, kind: str, types: list[str]) -> str:
    if kind in _CONSTANTS and chosen.random() < 0.25:
        return chosen.choice(_CONSTANTS[kind])
    column = chosen.choice(_COLUMNS[kind])
    if column not in types or chosen.random() < 0.5:
        types.append(column)
    return f"{{{max(index for index, each in enumerate(types) if each == column)}}}"
