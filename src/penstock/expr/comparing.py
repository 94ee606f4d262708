"""What a condition compares, for those who want to know before any row is there."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from penstock.expr.expressions import Expr
from penstock.expr.nodes import Call, Column, Literal, Node

__all__ = ["comparisons"]

_TURNED = {
    "equal": "equal",
    "not_equal": "not_equal",
    "less": "greater",
    "less_equal": "greater_equal",
    "greater": "less",
    "greater_equal": "less_equal",
}

Comparison = tuple[str, str, Any, pa.DataType]
"""Column, function, literal and the literal's type."""


def comparisons(condition: Expr) -> list[Comparison] | None:
    """The comparisons of columns with literals, all of which a condition asks for; None if it asks for anything else.

    >>> from penstock.expr import col
    >>> [compared[:3] for compared in comparisons(col("n").between(1, 5) & (col("kind") == "view"))]
    [('n', 'greater_equal', 1), ('n', 'less_equal', 5), ('kind', 'equal', 'view')]
    """
    return _comparisons(condition.node)


def _comparisons(node: Node) -> list[Comparison] | None:
    match node:
        case Call("and", (left, right)):
            first, second = _comparisons(left), _comparisons(right)
            return None if first is None or second is None else first + second
        case Call("between", (Column(name), Literal(low, kind), Literal(high, other))):
            return [(name, "greater_equal", low, kind), (name, "less_equal", high, other)]
        case Call(function, (Column(name), Literal(value, kind))) if function in _TURNED:
            return [(name, function, value, kind)]
        case Call(function, (Literal(value, kind), Column(name))) if function in _TURNED:
            return [(name, _TURNED[function], value, kind)]
    return None
