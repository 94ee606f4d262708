"""SQL as another way to write expressions: "price * quantity" is `col("price") * col("quantity")`.

sqlglot reads the text; this file maps its tree to ours, one line per construct. It is only a reader: nothing
of it is kept, and what we have no node for is refused by name. It is imported when the first text is read,
because it is slow to import.

The text is read as Databricks SQL, which is Spark's plus a few words: only there does sqlglot tell `cast`
from `try_cast`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from penstock.errors import PlanError
from penstock.expr.expressions import Expr, event_time
from penstock.expr.nodes import Call, Case, Cast, Column, Literal, Node, literal
from penstock.schema import type_of

__all__ = ["node_of_tree", "parse", "read"]

Reader = Callable[[Any], Node]

_BINARY = {
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
}
_UNARY = {
    "Not": "not",
    "Lower": "lower",
    "Upper": "upper",
    "Length": "length",
    "Year": "year",
    "Month": "month",
    "Day": "day",
    "DayOfMonth": "day",
    "Hour": "hour",
    "Minute": "minute",
    "Second": "second",
}
_LISTS = {"Coalesce": "coalesce", "Least": "least", "Greatest": "greatest", "Concat": "concat"}
_PATTERNS = {"Contains": "contains", "StartsWith": "starts_with", "EndsWith": "ends_with"}
_REGEX_MARKS = set(r".^$*+?{}[]\|()")


def parse(text: str) -> Expr:
    """The expression that an SQL text says; a bare name is a column.

    >>> parse("price * quantity as total")
    price * quantity as total
    """
    tree = read(text)
    if type(tree).__name__ == "Alias":
        return Expr(node_of_tree(tree.this), tree.alias)
    return Expr(node_of_tree(tree))


def read(text: str) -> Any:
    """The tree of sqlglot's that a text says."""
    if not isinstance(text, str) or not text.strip():
        raise PlanError(f"expected SQL, and found {text!r}")
    import sqlglot

    try:
        trees = sqlglot.parse(text, read="databricks")
    except sqlglot.errors.SqlglotError as error:
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
    reader = _readers().get(type(tree).__name__)
    if reader is None:
        raise _unsupported(tree)
    return reader(tree)


def _unsupported(tree: Any) -> PlanError:
    from sqlglot.expressions import AggFunc

    aggregate = isinstance(tree, AggFunc)
    where = " Aggregates belong in .aggregate()" if aggregate else ""
    name = tree.this if type(tree).__name__ == "Anonymous" else tree.key
    return PlanError(f"{str(name).lower()} is not supported in expressions: {tree.sql(dialect='spark')}.{where}")


@functools.cache
def _readers() -> dict[str, Reader]:
    readers: dict[str, Reader] = {
        "Paren": lambda tree: node_of_tree(tree.this),
        "Column": _column,
        "Dot": lambda tree: Call("get", (node_of_tree(tree.this), literal(tree.expression.name))),
        "Bracket": _bracket,
        "Literal": _literal,
        "Boolean": lambda tree: literal(bool(tree.this)),
        "Null": lambda tree: literal(None),
        "Neg": _negative,
        "Is": _is,
        "In": _in,
        "Between": lambda tree: Call(
            "between", (node_of_tree(tree.this), node_of_tree(tree.args["low"]), node_of_tree(tree.args["high"]))
        ),
        "Case": _case,
        "If": lambda tree: Case(((node_of_tree(tree.this), node_of_tree(tree.args["true"])),), _optional(tree.args.get("false"))),
        "Cast": lambda tree: Cast(node_of_tree(tree.this), type_of(_type_text(tree))),
        "TryCast": lambda tree: Cast(node_of_tree(tree.this), type_of(_type_text(tree)), True),
        "DPipe": lambda tree: Call("concat", (node_of_tree(tree.this), node_of_tree(tree.expression))),
        "Struct": _struct,
        "Trim": _trim,
        "Replace": _replace,
        "RegexpExtract": _extract,
        "RegexpSplit": _split,
        "Split": _split,
        "TimestampTrunc": _truncate,
        "DateTrunc": _truncate,
        # sqlglot wraps the argument of year() and its like, to mark that text would do in Spark.
        "TsOrDsToDate": lambda tree: node_of_tree(tree.this),
        "Anonymous": _anonymous,
    }
    for kinds, reader in ((_BINARY, _binary), (_UNARY, _unary), (_LISTS, _list), (_PATTERNS, _pattern)):
        readers |= dict.fromkeys(kinds, reader)
    return readers


def _binary(tree: Any) -> Node:
    return Call(_BINARY[type(tree).__name__], (node_of_tree(tree.this), node_of_tree(tree.expression)))


def _unary(tree: Any) -> Node:
    if type(tree).__name__ == "Not" and type(tree.this).__name__ == "Is" and _is_null(tree.this):
        return Call("is_not_null", (node_of_tree(tree.this.this),))
    return Call(_UNARY[type(tree).__name__], (node_of_tree(tree.this),))


def _list(tree: Any) -> Node:
    args = [tree.this, *tree.expressions] if tree.this is not None else tree.expressions
    return Call(_LISTS[type(tree).__name__], tuple(map(node_of_tree, args)))


def _pattern(tree: Any) -> Node:
    return Call(_PATTERNS[type(tree).__name__], (node_of_tree(tree.this),), (_constant(tree, tree.expression),))


def _column(tree: Any) -> Node:
    if type(tree.this).__name__ == "Star":
        raise PlanError("* stands for all columns and is no expression. Name the columns")
    first, *rest = [part.name for part in tree.parts]
    node: Node = Column(first)
    for name in rest:
        node = Call("get", (node, literal(name)))
    return node


def _bracket(tree: Any) -> Node:
    if len(tree.expressions) != 1:
        raise _unsupported(tree)
    return Call("get", (node_of_tree(tree.this), node_of_tree(tree.expressions[0])))


def _literal(tree: Any) -> Literal:
    if tree.is_string:
        return literal(tree.this)
    try:
        return literal(int(tree.this))
    except ValueError:
        return literal(float(tree.this))


def _negative(tree: Any) -> Node:
    # Folded, so that -1 is a literal that bends to its neighbour, like 1.
    if type(tree.this).__name__ == "Literal" and not tree.this.is_string:
        value = tree.this.this
        return literal(-int(value) if value.isdigit() else -float(value))
    return Call("negate", (node_of_tree(tree.this),))


def _is_null(tree: Any) -> bool:
    return type(tree.expression).__name__ == "Null"


def _is(tree: Any) -> Node:
    if _is_null(tree):
        return Call("is_null", (node_of_tree(tree.this),))
    if type(tree.expression).__name__ == "Boolean":
        return Call("same", (node_of_tree(tree.this), node_of_tree(tree.expression)))
    raise _unsupported(tree)


def _in(tree: Any) -> Node:
    if not tree.expressions:
        raise _unsupported(tree)
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


def _struct(tree: Any) -> Node:
    names, values = [], []
    for field in tree.expressions:
        if type(field).__name__ == "PropertyEQ":
            names.append(field.this.name)
            values.append(node_of_tree(field.expression))
        elif field.alias_or_name:
            names.append(field.alias_or_name)
            values.append(node_of_tree(field.this if type(field).__name__ == "Alias" else field))
        else:
            raise PlanError(f"a field of a struct needs a name: {field.sql(dialect='spark')} as total")
    return Call("struct", tuple(values), tuple(names))


def _constant(tree: Any, argument: Any) -> str:
    if type(argument).__name__ != "Literal" or not argument.is_string:
        raise PlanError(f"{tree.key} needs a text in quotes, not an expression: {tree.sql(dialect='spark')}")
    return str(argument.this)


def _trim(tree: Any) -> Node:
    if any(tree.args.get(extra) is not None for extra in ("expression", "position", "collation")):
        raise _unsupported(tree)
    return Call("trim", (node_of_tree(tree.this),))


def _replace(tree: Any) -> Node:
    replacement = tree.args.get("replacement")
    new = "" if replacement is None else _constant(tree, replacement)
    return Call("replace", (node_of_tree(tree.this),), (_constant(tree, tree.expression), new))


def _extract(tree: Any) -> Node:
    group = tree.args.get("group")
    if group is not None and group.this != "1":
        raise PlanError(f"regexp_extract gives the first group only: {tree.sql(dialect='spark')}")
    return Call("extract", (node_of_tree(tree.this),), (_constant(tree, tree.expression),))


def _split(tree: Any) -> Node:
    if tree.args.get("limit") is not None:
        raise _unsupported(tree)
    separator = _constant(tree, tree.expression)
    if not separator:
        raise PlanError("split needs a separator, and found ''")
    return Call("split", (node_of_tree(tree.this),), (separator, bool(_REGEX_MARKS & set(separator))))


def _truncate(tree: Any) -> Node:
    unit = str(tree.args["unit"].name).lower()
    if unit not in ("second", "minute", "hour", "day"):
        raise PlanError(f"date_trunc goes to second, minute, hour or day, and found {unit!r}")
    return Call("truncate", (node_of_tree(tree.this),), (f"1 {unit}",))


def _anonymous(tree: Any) -> Node:
    name = str(tree.this).lower()
    if name == "event_time" and not tree.expressions:
        return event_time().node
    if name == "truncate" and len(tree.expressions) == 2:
        return Call("truncate", (node_of_tree(tree.expressions[0]),), (_constant(tree, tree.expressions[1]),))
    raise _unsupported(tree)
