"""Aggregates in SQL: "avg(x) filter (where y > 1)" is `col("x").mean(where=col("y") > 1)`.

Names are Spark's. What SQL has no name for is written as the method is: `top_k(x, 3)`, `quantile(x, 0.5)`, the exact one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.errors import PlanError
from penstock.expr.aggregates import Aggregate
from penstock.expr.expressions import Expr
from penstock.expr.nodes import Literal, Node
from penstock.expr.sql import node_of_tree, read

__all__ = ["parse_aggregate"]

_KNOWN = (
    "count(*), count(x), count(distinct x), sum(x), min(x), max(x), avg(x), var_samp(x), var_pop(x), stddev(x), "
    "stddev_pop(x), first(x), last(x), first(x, true) to ignore nulls, collect_list(x), top_k(x, k), "
    "approx_count_distinct(x), approx_percentile(x, q), quantile(x, q)"
)


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
    reader = _READERS.get(type(tree).__name__)
    found = None if reader is None else reader(tree, where)
    if found is None:
        raise PlanError(
            f"{text!r} is not one aggregate. Known: {_KNOWN}, each with filter (where …).\n"
            "  What is computed from aggregates goes into a .select() after them"
        )
    return found if name is None else found.alias(name)


Reader = Callable[[Any, Expr | None], Aggregate | None]


def _method(name: str, **options: Any) -> Reader:
    """The reader of a function of one expression that is a method."""

    def reader(tree: Any, where: Expr | None) -> Aggregate:
        extra = [key for key, value in tree.args.items() if key in ("accuracy", "expression") and value is not None]
        if extra:
            raise PlanError(f"{tree.sql(dialect='spark')}: {name} takes one expression here")
        found: Aggregate = getattr(Expr(node_of_tree(tree.this)), name)(where=where, **options)
        return found

    return reader


def _count(tree: Any, where: Expr | None) -> Aggregate:
    inner = type(tree.this).__name__
    if tree.expressions or (inner == "Distinct" and len(tree.this.expressions) != 1):
        raise PlanError(f"{tree.sql(dialect='spark')}: count takes one expression. Several: count(distinct struct(x, y))")
    if inner == "Distinct":
        return Expr(node_of_tree(tree.this.expressions[0])).count_distinct(where=where)
    node = None if inner == "Star" else node_of_tree(tree.this)
    constant = isinstance(node, Literal) and node.value is not None
    return Aggregate("count", None if constant else node, None if where is None else where.node)


def _ignoring_nulls(tree: Any, where: Expr | None) -> Aggregate | None:
    name = {"First": "first", "FirstValue": "first", "Last": "last", "LastValue": "last"}.get(type(tree.this).__name__)
    return None if name is None else _method(name, ignore_nulls=True)(tree.this, where)


def _quantile(approx: bool) -> Reader:
    def reader(tree: Any, where: Expr | None) -> Aggregate:
        if tree.args.get("accuracy") is not None:
            raise PlanError(f"{tree.sql(dialect='spark')}: the accuracy of approx_percentile cannot be chosen. Leave it out")
        return Expr(node_of_tree(tree.this)).quantile(_shares(tree.args["quantile"]), approx=approx, where=where)

    return reader


def _shares(tree: Any) -> float | list[float]:
    if type(tree).__name__ == "Array":
        return [_number(item) for item in tree.expressions]
    found: float = _number(tree)
    return found


def _number(tree: Any) -> Any:
    node: Node = node_of_tree(tree)
    if isinstance(node, Literal) and isinstance(node.value, int | float):
        return node.value
    raise PlanError(f"expected a number, and found {tree.sql(dialect='spark')}")


def _by_name(tree: Any, where: Expr | None) -> Aggregate | None:
    """Functions that sqlglot does not know."""
    name, args = str(tree.this).lower(), tree.expressions
    if name == "std" and len(args) == 1:
        return Expr(node_of_tree(args[0])).stddev(where=where)
    if name == "top_k" and len(args) == 2:
        return Expr(node_of_tree(args[0])).top_k(_number(args[1]), where=where)
    return None


_READERS: dict[str, Reader] = {
    "Count": _count,
    "Sum": _method("sum"),
    "Min": _method("min"),
    "Max": _method("max"),
    "Avg": _method("mean"),
    "Variance": _method("variance"),
    "VariancePop": _method("variance", ddof=0),
    "Stddev": _method("stddev"),
    "StddevSamp": _method("stddev"),
    "StddevPop": _method("stddev", ddof=0),
    "First": _method("first"),
    "FirstValue": _method("first"),
    "Last": _method("last"),
    "LastValue": _method("last"),
    "IgnoreNulls": _ignoring_nulls,
    "ArrayAgg": _method("collect"),
    "ApproxDistinct": _method("count_distinct", approx=True),
    "ApproxQuantile": _quantile(True),
    "Quantile": _quantile(False),
    "Anonymous": _by_name,
}
