"""What users write as arguments: strings are SQL, expressions are themselves, keywords are names."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TypeVar

from penstock.api.where import user_line
from penstock.errors import Fix, PlanError, brief
from penstock.expr import Aggregate, Expr, parse, parse_aggregate
from penstock.names import check_name

T = TypeVar("T")


def at_line(build: Callable[[], T]) -> T:
    """What `build` returns; its PlanError points at the user's line."""
    try:
        return build()
    except PlanError as error:
        if error.where is None:
            error.where = user_line()
        raise


def as_expr(value: object) -> Expr:
    """A string is SQL, an expression is itself."""
    if isinstance(value, Expr):
        return value
    if isinstance(value, str):
        return parse(value)
    raise PlanError(
        f"expected an expression or SQL text, and got {brief(value)}",
        fix=Fix("expr.literal", f"If a literal is meant, write it so. Write: pen.lit({value!r})"),
    )


def named_exprs(values: tuple[Expr | str, ...]) -> list[tuple[str, Expr]]:
    """Positional arguments: each must have a name of its own."""
    named = []
    for value in values:
        expr = as_expr(value)
        if expr.name is None:
            code = f"total={value!r}" if isinstance(value, str) else '.alias("total")'
            raise PlanError(f"{expr.text()} has no name", fix=Fix("expr.name", f"Name the column. Write: {code}"))
        named.append((expr.name, expr))
    return named


def keyword_exprs(values: Mapping[str, Expr | str]) -> list[tuple[str, Expr]]:
    """Keyword arguments: the keyword is the name."""
    return [(name, as_expr(value)) for name, value in values.items()]


def named_aggregates(aliased: tuple[Aggregate, ...], named: Mapping[str, Aggregate | str]) -> tuple[tuple[str, Aggregate], ...]:
    """Aggregates with the names of their result columns."""
    built: list[tuple[str, Aggregate]] = []
    for aggregate in aliased:
        if not isinstance(aggregate, Aggregate) or aggregate.name is None:
            raise PlanError(
                "an aggregate needs a name", fix=Fix("aggregate.name", 'Write: n=pen.count(), or pen.count().alias("n")')
            )
        built.append((aggregate.name, aggregate))
    for name, value in named.items():
        aggregate = parse_aggregate(value) if isinstance(value, str) else value
        if not isinstance(aggregate, Aggregate):
            raise PlanError(
                f"{name}={value!r} is no aggregate",
                fix=Fix("aggregate.kind", f'Write: {name}=pen.count(), or {name}=col("x").sum()'),
            )
        built.append((name, aggregate))
    if not built:
        raise PlanError(
            "aggregate needs something to compute", fix=Fix("aggregate.empty", 'Write: .aggregate(n=pen.count(), name="counts")')
        )
    return tuple(built)


def need_name(name: str | None, verb: str, what: object, by: tuple[str, ...]) -> str:
    """The step's name, or an error that shows the line to write."""
    if name is None:
        suggestion = suggested_name(*(key.lstrip("_") for key in by), "counts" if verb == "aggregate" else verb)
        if isinstance(what, str):
            inside = what
        elif isinstance(what, tuple):
            inside = ", ".join(f"{n}=pen.count()" if a.text() == "count(*)" else f"{n}={quoted(a.text())}" for n, a in what)
        else:
            called = getattr(what, "__name__", "")
            inside = called if called.isidentifier() else "…"
        raise PlanError(
            f"this {verb} keeps state, so it needs a name: savepoints find its state by it",
            fix=Fix("step.name", f'Write: .{verb}({inside}, name="{suggestion}")'),
            where=user_line(),
        )
    return check_name(name, "a step", where=user_line())


def suggested_name(*parts: str) -> str:
    """A name that a step may have, of these parts."""
    return re.sub(r"[^0-9A-Za-z]+", "-", "-".join(parts)).strip("-")


def quoted(text: str) -> str:
    """A text as people write it in Python."""
    return repr(text) if '"' in text or "\\" in text else f'"{text}"'
