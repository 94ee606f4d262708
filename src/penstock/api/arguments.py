"""What users write as arguments: strings are SQL, expressions are themselves, keywords are names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from penstock.api.where import user_line
from penstock.errors import PlanError
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
    raise PlanError(f"expected an expression or SQL text, and got {value!r}. A literal: pen.lit({value!r})")


def named_exprs(values: tuple[Expr | str, ...]) -> list[tuple[str, Expr]]:
    """Positional arguments: each must have a name of its own."""
    named = []
    for value in values:
        expr = as_expr(value)
        if expr.name is None:
            raise PlanError(f'{expr.text()} has no name. Write: total={value!r}, or .alias("total")')
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
            raise PlanError('an aggregate needs a name. Write: n=pen.count(), or pen.count().alias("n")')
        built.append((aggregate.name, aggregate))
    for name, value in named.items():
        aggregate = parse_aggregate(value) if isinstance(value, str) else value
        if not isinstance(aggregate, Aggregate):
            raise PlanError(f'{name}={value!r} is no aggregate. Write: {name}=pen.count(), or {name}=col("x").sum()')
        built.append((name, aggregate))
    if not built:
        raise PlanError('aggregate needs something to compute. Write: .aggregate(n=pen.count(), name="counts")')
    return tuple(built)


def need_name(name: str | None, verb: str, what: object, by: tuple[str, ...]) -> str:
    """The step's name, or an error that shows the line to write."""
    if name is None:
        suggestion = "-".join((*(key.lstrip("_") for key in by), "counts" if verb == "aggregate" else verb)).replace("_", "-")
        if isinstance(what, str):
            inside = what
        elif isinstance(what, tuple):
            inside = ", ".join(f"{n}=pen.count()" if a.text() == "count(*)" else f'{n}="{a.text()}"' for n, a in what)
        else:
            inside = getattr(what, "__name__", "function")
        raise PlanError(
            f"this {verb} keeps state, so it needs a name: savepoints find its state by it.\n"
            f'  Write: .{verb}({inside}, name="{suggestion}")',
            where=user_line(),
        )
    return check_name(name, "a step", where=user_line())
