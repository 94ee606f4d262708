"""SQL as another way to write expressions: "price * quantity" is `col("price") * col("quantity")`.

sqlglot reads the text; this file maps its tree to ours, one line per construct, and `sql_functions` has the functions. It is only a
reader: nothing of the tree is kept, and what we have no node for is refused by the name that the user wrote. sqlglot is imported when the
first text is read, because it is slow to import.

The text is read as Databricks SQL, which is Spark's plus a few words: only there does sqlglot tell `cast` from `try_cast`. What a text
means is what Spark 4 says in ANSI mode, with UTC as time zone; `tests/differential` compares each construct with Spark.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

from penstock.errors import Fix, PlanError
from penstock.expr.expressions import Expr
from penstock.expr.nodes import Call, Case, Cast, Column, Literal, Node, literal
from penstock.expr.sql_errors import no_such_operator, written
from penstock.expr.sql_functions import function
from penstock.schema import type_of

__all__ = ["BINARY", "SYNTAX", "node_of_tree", "parse", "parse_order", "read"]

Reader = Callable[[Any], Node]

BINARY = {
    "Add": "add",
    "Sub": "subtract",
    "Mul": "multiply",
    "Div": "divide",
    "IntDiv": "div",
    "Mod": "modulo",
    "EQ": "equal",
    "NEQ": "not_equal",
    "LT": "less",
    "LTE": "less_equal",
    "GT": "greater",
    "GTE": "greater_equal",
    "And": "and",
    "Or": "or",
    "NullSafeEQ": "same",
    "DPipe": "concat",
}


def parse(text: str) -> Expr:
    """The expression that an SQL text says; a bare name is a column.

    >>> parse("price * quantity as total")
    price * quantity as total
    """
    return _named(read(text))


def parse_order(text: str) -> tuple[Expr, bool | None, bool | None]:
    """What a text says as in `order by`: the expression, whether it is ascending and whether nulls come first; None if it does not.

    >>> parse_order("price desc")
    (price, False, None)
    """
    tree = _tree(text)
    if type(tree).__name__ != "Ordered":
        return _named(tree), None, None
    descending = tree.args["desc"]
    return _named(tree.this), None if descending is None else not descending, tree.args["nulls_first"]


def _named(tree: Any) -> Expr:
    if type(tree).__name__ == "Alias":
        return Expr(node_of_tree(tree.this), tree.alias)
    return Expr(node_of_tree(tree))


def read(text: str) -> Any:
    """The tree of sqlglot's that a text says, which is no order of rows."""
    tree = _tree(text)
    if type(tree).__name__ == "Ordered":
        raise _ordered(tree)
    return tree


def _ordered(tree: Any) -> PlanError:
    value, descending, nulls_first = tree.this, tree.args["desc"], tree.args["nulls_first"]
    words = [] if descending is None else ["desc" if descending else "asc"]
    fix = Fix("sql.order", f"Leave it out; a name goes behind as. Write: {written(value)} as {''.join(words)}")
    if nulls_first is not None or type(value).__name__ == "Alias":
        words += [] if nulls_first is None else ["nulls first" if nulls_first else "nulls last"]
        fix = Fix("sql.no-order", f"Leave it out. Write: {written(value)}")
    said = " ".join(words)
    return PlanError(f"{said} says how rows are ordered, and there are none to order here: {written(value)} {said}", fix=fix)


def _tree(text: str) -> Any:
    if not isinstance(text, str) or not text.strip():
        raise PlanError(f"expected SQL, and found {text!r}")
    from sqlglot.errors import SqlglotError

    from penstock.expr.sql_parser import trees_of

    try:
        trees = trees_of(text)
    except SqlglotError as error:
        raise PlanError(f"cannot read {text!r} as SQL: {_first_problem(error)}") from error
    if len(trees) != 1 or trees[0] is None:
        raise PlanError(f"expected one SQL expression, and found {len(trees)} in {text!r}")
    return trees[0]


def _first_problem(error: Any) -> str:
    problems = getattr(error, "errors", None)
    if not problems:
        return str(error)
    return f"{problems[0]['description']} at column {problems[0]['col']}"


def node_of_tree(tree: Any) -> Node:
    """A tree of sqlglot's as a node of ours."""
    reader = SYNTAX.get(type(tree).__name__)
    if reader is None:
        raise _star() if type(tree).__name__ == "Star" else no_such_operator(tree)
    for mark, value in tree.args.items():
        if value not in (None, False, []) and mark not in _EVERYWHERE and mark not in _READ.get(type(tree).__name__, ()):
            raise no_such_operator(tree, mark)
    return reader(tree)


def _star() -> PlanError:
    return PlanError("* stands for all columns, and is no expression", fix=Fix("sql.star", "Name the columns that you want"))


def _binary(tree: Any) -> Node:
    return Call(BINARY[type(tree).__name__], (node_of_tree(tree.this), node_of_tree(tree.expression)))


def _not(tree: Any) -> Node:
    if type(tree.this).__name__ == "Is" and _is_null(tree.this):
        return Call("is_not_null", (node_of_tree(tree.this.this),))
    return Call("not", (node_of_tree(tree.this),))


def _column(tree: Any) -> Node:
    if type(tree.this).__name__ == "Star":
        raise _star()
    first, *rest = [part.name for part in tree.parts]
    node: Node = Column(first)
    for name in rest:
        node = Call("get", (node, literal(name)))
    return node


def _dot(tree: Any) -> Node:
    if type(tree.expression).__name__ != "Identifier":
        raise no_such_operator(tree)
    return Call("get", (node_of_tree(tree.this), literal(tree.expression.name)))


def _bracket(tree: Any) -> Node:
    if len(tree.expressions) != 1:
        raise no_such_operator(tree)
    return Call("get", (node_of_tree(tree.this), node_of_tree(tree.expressions[0])))


def _literal(tree: Any) -> Literal:
    return literal(tree.this) if tree.is_string else literal(_number(tree.this))


def _number(text: str) -> int | float:
    if text.isdigit():
        return int(text)
    if math.isinf(float(text)):
        raise PlanError(f"{text} is more than a double can hold")
    return float(text)


def _negative(tree: Any) -> Node:
    # Folded, so that -1 is a literal that bends to its neighbour, like 1.
    if type(tree.this).__name__ == "Literal" and not tree.this.is_string:
        return literal(-_number(tree.this.this))
    return Call("negate", (node_of_tree(tree.this),))


def _is_null(tree: Any) -> bool:
    return type(tree.expression).__name__ == "Null"


def _is(tree: Any) -> Node:
    if _is_null(tree):
        return Call("is_null", (node_of_tree(tree.this),))
    if type(tree.expression).__name__ == "Boolean":
        return Call("same", (node_of_tree(tree.this), node_of_tree(tree.expression)))
    raise no_such_operator(tree)


def _in(tree: Any) -> Node:
    if not tree.expressions:
        raise no_such_operator(tree)
    value, options = node_of_tree(tree.this), [node_of_tree(option) for option in tree.expressions]
    if all(isinstance(option, Literal) for option in options):
        return Call("is_in", (value, *options))
    return functools.reduce(lambda a, b: Call("or", (a, b)), [Call("equal", (value, option)) for option in options])


def _case(tree: Any) -> Node:
    subject = tree.this
    branches = []
    for branch in tree.args["ifs"]:
        test = node_of_tree(branch.this) if subject is None else Call("equal", (node_of_tree(subject), node_of_tree(branch.this)))
        branches.append((test, node_of_tree(branch.args["true"])))
    return Case(tuple(branches), _optional(tree.args.get("default")))


def _optional(tree: Any) -> Node | None:
    return None if tree is None else node_of_tree(tree)


def _type_text(tree: Any) -> str:
    text: str = tree.args["to"].sql(dialect="spark")
    return text


def _adjacent(tree: Any) -> Node:
    """Texts that stand side by side are one text: 'a' 'b' is 'ab'."""
    return literal("".join(part.this for part in tree.expressions))


def _trim(tree: Any) -> Node:
    if tree.expression:
        raise no_such_operator(tree)
    return Call("trim", (node_of_tree(tree.this),))


_EVERYWHERE = ("this", "expression", "expressions")
_READ: dict[str, tuple[str, ...]] = {
    "Between": ("low", "high"),
    "Case": ("ifs", "default"),
    "Cast": ("to",),
    "Column": ("table", "db", "catalog"),
    "DPipe": ("safe",),  # whether it takes what is no text, which it does
    "In": ("query", "field", "unnest"),  # which are refused by name
    "Literal": ("is_string",),
    "TryCast": ("to", "safe"),  # what makes it one that tries
}
"""What a tree may have besides these and is read. Any other mark would be overlooked: the tree is refused."""

SYNTAX: dict[str, Reader] = {
    **dict.fromkeys(BINARY, _binary),
    "Anonymous": lambda tree: function(tree, node_of_tree),
    "Between": lambda tree: Call(
        "between", tuple(node_of_tree(part) for part in (tree.this, tree.args["low"], tree.args["high"]))
    ),
    "Boolean": lambda tree: literal(bool(tree.this)),
    "Bracket": _bracket,
    "Case": _case,
    "Cast": lambda tree: Cast(node_of_tree(tree.this), type_of(_type_text(tree))),
    "Column": _column,
    "Concat": _adjacent,
    "Dot": _dot,
    "In": _in,
    "Is": _is,
    "Literal": _literal,
    "Neg": _negative,
    "Not": _not,
    "Null": lambda tree: literal(None),
    "Paren": lambda tree: node_of_tree(tree.this),
    "RawString": lambda tree: literal(tree.this),
    "Trim": _trim,
    "TryCast": lambda tree: Cast(node_of_tree(tree.this), type_of(_type_text(tree)), True),
}
