"""Aggregates in SQL: "avg(x) filter (where y > 1)" is `col("x").mean(where=col("y") > 1)`.

Names are Spark's. What SQL has no name for is written as the method is: `top_k(x, 3)`, `quantile(x, 0.5)`, the exact one.
(Spark's `percentile` is none: it gives values between two of those that there are.) `AGGREGATES` is all there is; a name
that is not in it is refused, and so are arguments that no form has.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.errors import Fix, PlanError
from penstock.expr.aggregates import Aggregate
from penstock.expr.expressions import Expr
from penstock.expr.nodes import Literal, Node
from penstock.expr.sql import node_of_tree, read
from penstock.expr.sql_errors import LIST_OF_FUNCTIONS, written

__all__ = ["AGGREGATES", "parse_aggregate"]

Reader = Callable[[list[Any], Expr | None], Aggregate | None]


def parse_aggregate(text: str) -> Aggregate:
    """The aggregate that an SQL text says.

    >>> parse_aggregate("sum(price * quantity) filter (where kind = 'sale')")
    sum(price * quantity) filter (where kind = 'sale')
    """
    tree, name, where = read(text), None, None
    if type(tree).__name__ == "Alias":
        tree, name = tree.this, tree.alias
    if type(tree).__name__ == "Filter":
        tree, where = tree.this, Expr(node_of_tree(tree.expression.this))
    reader: Reader | None = None
    if type(tree).__name__ == "IgnoreNulls" and str(tree.this.this).lower() in _EDGES and len(tree.this.expressions) == 1:
        found = _edge(_EDGES[str(tree.this.this).lower()], ignore_nulls=True)(tree.this.expressions, where)
    else:
        reader = AGGREGATES.get(str(tree.this).lower()) if type(tree).__name__ == "Anonymous" else None
        found = None if reader is None else reader(tree.expressions, where)
    if type(tree).__name__ == "Anonymous" and str(tree.this).lower() in _INSTEAD:
        name = str(tree.this).lower()
        raise PlanError(
            f"{name} is not among the aggregates: {text}",
            fix=Fix("sql.aggregate_instead", f"{LIST_OF_FUNCTIONS}. The nearest is this. Write: {_INSTEAD[name]}"),
        )
    if found is None and reader is not None:
        raise PlanError(
            f"{text!r} is no form of {str(tree.this).lower()}",
            fix=Fix("sql.aggregate_form", f"It is written {_form(str(tree.this).lower())}. {LIST_OF_FUNCTIONS}"),
        )
    if found is None:
        raise PlanError(
            f"{text!r} is not one aggregate. Known: {', '.join(AGGREGATES)}, each with filter (where ...)",
            fix=Fix("sql.aggregates", f"What is computed from aggregates goes into a select() after them. {LIST_OF_FUNCTIONS}"),
        )
    return found if name is None else found.alias(name)


def _form(name: str) -> str:
    if name in ("approx_percentile", "percentile_approx", "quantile"):
        return f"{name}(x, 0.5), or {name}(x, array(0.5, 0.9))"
    return {"top_k": "top_k(x, 3)", **dict.fromkeys(_EDGES, f"{name}(x), or {name}(x, true)")}.get(name, f"{name}(x)")


def _method(name: str, **options: Any) -> Reader:
    """The reader of a function of one expression that is a method."""

    def reader(args: list[Any], where: Expr | None) -> Aggregate | None:
        if len(args) != 1:
            return None
        found: Aggregate = getattr(Expr(node_of_tree(args[0])), name)(where=where, **options)
        return found

    return reader


def _count(args: list[Any], where: Expr | None) -> Aggregate | None:
    if len(args) != 1:
        return _several(args)
    inner = type(args[0]).__name__
    if inner == "Distinct":
        distinct = args[0].expressions
        return Expr(node_of_tree(distinct[0])).count_distinct(where=where) if len(distinct) == 1 else _several(distinct)
    node = None if inner == "Star" else node_of_tree(args[0])
    constant = isinstance(node, Literal) and node.value is not None
    return Aggregate("count", None if constant else node, None if where is None else where.node)


def _several(args: list[Any]) -> Aggregate:
    fields = ", ".join(map(written, args)) or "x, y"
    raise PlanError(
        f"count takes one expression, and found {len(args)}", fix=Fix("sql.count", f"Write: count(distinct struct({fields}))")
    )


def _edge(name: str, *, ignore_nulls: bool = False) -> Reader:
    """`first` and `last`, which may be told as their second argument to ignore nulls."""

    def reader(args: list[Any], where: Expr | None) -> Aggregate | None:
        if len(args) == 2 and type(args[1]).__name__ == "Boolean":
            return _method(name, ignore_nulls=bool(args[1].this))(args[:1], where)
        return _method(name, **({"ignore_nulls": True} if ignore_nulls else {}))(args, where)

    return reader


def _quantile(approx: bool) -> Reader:
    def reader(args: list[Any], where: Expr | None) -> Aggregate | None:
        if len(args) != 2:
            return None
        return Expr(node_of_tree(args[0])).quantile(_shares(args[1]), approx=approx, where=where)

    return reader


def _shares(tree: Any) -> float | list[float]:
    if type(tree).__name__ == "Anonymous" and str(tree.this).lower() == "array":
        return [_number(item) for item in tree.expressions]
    found: float = _number(tree)
    return found


def _number(tree: Any) -> Any:
    node: Node = node_of_tree(tree)
    if isinstance(node, Literal) and isinstance(node.value, int | float):
        return node.value
    raise PlanError(f"expected a number, and found {written(tree)}")


def _top_k(args: list[Any], where: Expr | None) -> Aggregate | None:
    return Expr(node_of_tree(args[0])).top_k(_number(args[1]), where=where) if len(args) == 2 else None


_EDGES = {"first": "first", "first_value": "first", "last": "last", "last_value": "last"}

_INSTEAD = {
    "any_value": "first(x)",
    "approx_distinct": "approx_count_distinct(x)",
    "bool_and": "count(*) filter (where not x)",
    "bool_or": "count(*) filter (where x)",
    "collect_set": "collect_list(x)",
    "count_if": "count(*) filter (where x > 0)",
    "every": "count(*) filter (where not x)",
    "median": "quantile(x, 0.5)",
    "percentile": "quantile(x, 0.5)",
    "percentile_cont": "quantile(x, 0.5)",
    "percentile_disc": "quantile(x, 0.5)",
    "regr_count": "count(x)",
    "some": "count(*) filter (where x)",
    "string_agg": "collect_list(x)",
    "listagg": "collect_list(x)",
}

AGGREGATES: dict[str, Reader] = {
    "count": _count,
    "sum": _method("sum"),
    "min": _method("min"),
    "max": _method("max"),
    **dict.fromkeys(("avg", "mean"), _method("mean")),
    **dict.fromkeys(("var_samp", "variance"), _method("variance")),
    "var_pop": _method("variance", ddof=0),
    **dict.fromkeys(("stddev", "stddev_samp", "std"), _method("stddev")),
    "stddev_pop": _method("stddev", ddof=0),
    **{name: _edge(method) for name, method in _EDGES.items()},
    **dict.fromkeys(("collect_list", "array_agg"), _method("collect")),
    "top_k": _top_k,
    "approx_count_distinct": _method("count_distinct", approx=True),
    **dict.fromkeys(("approx_percentile", "percentile_approx"), _quantile(True)),
    "quantile": _quantile(False),
}
