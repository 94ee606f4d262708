"""What an expression means for a given schema: every node gets its type, and casts go where types differ.

`resolve(node, schema)` turns the tree that was written into a tree of `Typed`, whose functions find their
arguments in exactly the types they compute with. All mistakes that can be known before the first row are
found here, as `PlanError`: a column that is not there, text where a number is needed.

Each function has one rule: it gets the call and its resolved arguments, and returns the typed node or
refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pyarrow as pa

from penstock.errors import Fix, PlanError
from penstock.eventtime import NEEDS_TIME
from penstock.expr.casts import can_cast
from penstock.expr.mending import as_numbers, as_one_type, casting, clash, inside
from penstock.expr.moments import duration_us
from penstock.expr.nodes import EVENT_TIME, Call, Case, Cast, Column, Literal, Node, Udf
from penstock.expr.promote import (
    TIMESTAMP,
    Typed,
    coerce,
    decimal_result,
    is_numeric,
    to_decimal_type,
    unify,
    working,
)
from penstock.expr.regex import named_group, splitting
from penstock.expr.time_formats import time_format
from penstock.schema import no_such_column, type_name

__all__ = ["resolve"]

Rule = Callable[[Call, list[Typed]], Typed]


def resolve(node: Node, schema: pa.Schema) -> Typed:
    """The typed tree of `node` over rows of `schema`."""
    match node:
        case Column(name):
            return _column(name, schema)
        case Literal(value, found):
            return Typed("literal", found, value is None, (), (value,), node.text())
        case Cast():
            return _cast(node, resolve(node.input, schema))
        case Case():
            return _case(node, schema)
        case Udf():
            return _udf(node, [resolve(arg, schema) for arg in node.args])
        case Call():
            return _RULES[node.function](node, [resolve(arg, schema) for arg in node.args])
    raise AssertionError(f"unknown node {type(node).__name__}")


def _column(name: str, schema: pa.Schema) -> Typed:
    index = schema.get_field_index(name)
    if index >= 0:
        field = schema.field(index)
        return Typed("column", field.type, field.nullable, (), (name,), Column(name).text())
    if name == EVENT_TIME:
        raise PlanError("event_time() needs event time, and this stream has none", fix=NEEDS_TIME)
    raise PlanError(no_such_column(name, schema.names))


def _cast(node: Cast, value: Typed) -> Typed:
    if value.is_literal and value.options[0] is None:
        return coerce(value, node.type)
    if not can_cast(value.type, node.type):
        raise PlanError(f"{type_name(value.type)} cannot be cast to {type_name(node.type)}, in: {node.text()}")
    return Typed("cast", node.type, value.nullable or node.attempt, (value,), (node.attempt,), node.text())


def _case(node: Case, schema: pa.Schema) -> Typed:
    conditions, values = zip(*node.branches, strict=True)
    tests = [_boolean(node, resolve(condition, schema)) for condition in conditions]
    otherwise = node.otherwise if node.otherwise is not None else Literal(None, pa.null())
    results = _unified(node, [working(resolve(value, schema)) for value in (*values, otherwise)])
    nullable = any(result.nullable for result in results)
    return Typed("case", results[0].type, nullable, (*tests, *results), (len(tests),), node.text())


def _udf(node: Udf, args: list[Typed]) -> Typed:
    coerced = [_argument(node, arg, field) for arg, field in zip(args, node.parameters, strict=True)]
    # A null where the function takes none makes its result null, as for SQL's own functions.
    skips = any(
        arg.nullable and field is not None and not field.nullable for arg, field in zip(args, node.parameters, strict=True)
    )
    nullable = node.returns.nullable or skips or node.by_column
    return Typed("udf", node.returns.type, nullable, tuple(coerced), (node,), node.text())


def _argument(node: Udf, arg: Typed, field: pa.Field | None) -> Typed:
    if field is None:
        return arg
    value = working(arg)
    if _holds(value.type, field.type):
        return coerce(value, field.type)  # a null inside, where the function takes none, makes its row bad
    found = unify([value, Typed("column", field.type, True, (), (), "")])
    if found == field.type or (is_numeric(value.type) and pa.types.is_floating(field.type)):
        return coerce(value, field.type)
    raise PlanError(
        f"{node.name}() takes {type_name(field.type)} as {field.name!r}, and found {type_name(arg.type)} ({arg.text})",
        fix=Fix("udf.argument", casting(arg, field.type)) if can_cast(arg.type, field.type) else None,
    )


def _holds(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether records, lists or maps are of the same types inside, but for what may be null, and for fields that nobody wants."""
    if pa.types.is_struct(found) and pa.types.is_struct(wanted):
        places = [found.get_field_index(field.name) for field in wanted]
        return all(at >= 0 and _same(found.field(at).type, field.type) for at, field in zip(places, wanted))
    if pa.types.is_list(found) and pa.types.is_list(wanted):
        return _same(found.value_type, wanted.value_type)
    if pa.types.is_map(found) and pa.types.is_map(wanted):
        return found.key_type == wanted.key_type and _same(found.item_type, wanted.item_type)
    return False


def _same(found: pa.DataType, wanted: pa.DataType) -> bool:
    return found == wanted or _holds(found, wanted)


def _typed(call: Call, found: pa.DataType, args: Sequence[Typed], *, nullable: bool | None = None) -> Typed:
    if nullable is None:
        nullable = any(arg.nullable for arg in args)
    return Typed(call.function, found, nullable, tuple(args), call.options, call.text())


def _mismatch(node: Node, needs: str, args: Sequence[Typed], fix: Fix | None = None) -> PlanError:
    found = " and ".join(f"{type_name(arg.type)} ({arg.text})" for arg in args)
    return PlanError(f"{needs}, and found {found}, in: {node.text()}", fix=fix)


def _wrong(node: Node, needs: str, arg: Typed, target: pa.DataType) -> PlanError:
    fix = Fix("expr.cast", casting(arg, target)) if can_cast(arg.type, target) else None
    return _mismatch(node, needs, [arg], fix)


def _unified(node: Node, args: Sequence[Typed]) -> list[Typed]:
    found = unify(args)
    if found is None:
        raise _mismatch(node, "the values need a type in common", clash(args), as_one_type(args, comparing=False))
    return [coerce(arg, found) for arg in args]


def _boolean(node: Node, arg: Typed) -> Typed:
    if pa.types.is_null(arg.type):
        return coerce(arg, pa.bool_())
    value = working(arg)
    if not pa.types.is_boolean(value.type):
        raise PlanError(f"a condition must be boolean, and found {type_name(arg.type)} ({arg.text}), in: {node.text()}")
    return value


def _logic(call: Call, args: list[Typed]) -> Typed:
    return _typed(call, pa.bool_(), [_boolean(call, arg) for arg in args])


def _numbers(call: Call, args: list[Typed]) -> list[Typed]:
    values = [working(arg) for arg in args]
    for value in values:
        if not is_numeric(value.type) and not pa.types.is_null(value.type):
            if len(values) == 2:
                fix = as_numbers(call.function, values, lambda tried: _temporal(call, tried) is not None)
                raise _mismatch(call, "arithmetic needs numbers", values, fix)
            raise _wrong(call, "arithmetic needs a number", value, pa.float64())
    return values


def _arithmetic(call: Call, args: list[Typed]) -> Typed:
    temporal = _temporal(call, [working(arg) for arg in args])
    if temporal is not None:
        return temporal
    values = _numbers(call, args)
    found = unify(values)
    assert found is not None, "numbers always have a type in common"
    if pa.types.is_decimal(found):
        # Each side keeps its own digits: Spark's rules for the result are stated in them.
        values = [coerce(value, _decimal_operand(value)) for value in values]
        return _typed(call, decimal_result(call.function, values[0].type, values[1].type), values)
    found = pa.int64() if pa.types.is_null(found) else found
    return _typed(call, found, [coerce(value, found) for value in values])


def _decimal_operand(value: Typed) -> pa.DataType:
    if value.is_literal and isinstance(value.options[0], int):
        return pa.decimal128(len(str(abs(value.options[0]))), 0)
    return pa.decimal128(1, 0) if pa.types.is_null(value.type) else to_decimal_type(value.type)


def _temporal(call: Call, args: list[Typed]) -> Typed | None:
    """A moment plus or minus a duration, or the duration between two moments; None for anything else."""
    left, right = (arg.type for arg in args)
    if call.function == "add" and pa.types.is_duration(left) and pa.types.is_timestamp(right):
        return _typed(call, right, args[::-1])
    movable = pa.types.is_timestamp(left) or pa.types.is_duration(left)
    if call.function in ("add", "subtract") and movable and pa.types.is_duration(right):
        return _typed(call, left, args)
    if call.function == "subtract" and pa.types.is_timestamp(left) and left == right:
        return _typed(call, pa.duration("us"), args)
    return None


def _divide(call: Call, args: list[Typed]) -> Typed:
    return _typed(call, pa.float64(), [coerce(value, pa.float64()) for value in _numbers(call, args)])


def _div(call: Call, args: list[Typed]) -> Typed:
    values = [working(arg) for arg in args]
    wrong = [value for value in values if not pa.types.is_integer(value.type) and not pa.types.is_null(value.type)]
    if wrong:
        raise _mismatch(call, "div needs whole numbers", wrong, as_numbers(call.function, values, lambda _: False))
    return _typed(call, pa.int64(), [coerce(value, pa.int64()) for value in values])


def _negate(call: Call, args: list[Typed]) -> Typed:
    values = _numbers(call, args)
    found = pa.int64() if pa.types.is_null(values[0].type) else values[0].type
    return _typed(call, found, [coerce(values[0], found)])


def _compare(call: Call, args: list[Typed]) -> Typed:
    values = [working(arg) for arg in args]
    found = unify(values)
    if found is None:
        raise _mismatch(call, "a comparison needs a type in common", values, as_one_type(values, comparing=True))
    if pa.types.is_nested(found):
        way = inside(found, lambda _: True)
        raise PlanError(
            f"values of type {type_name(found)} cannot be compared, in: {call.text()}",
            fix=None if way is None else Fix("expr.inside", f"Compare what is inside, with this behind each. Write: {way}"),
        )
    return _typed(call, pa.bool_(), [coerce(value, found) for value in values])


def _null_test(call: Call, args: list[Typed]) -> Typed:
    return _typed(call, pa.bool_(), args, nullable=False)


def _coalesce(call: Call, args: list[Typed]) -> Typed:
    values = _unified(call, [working(arg) for arg in args])
    return _typed(call, values[0].type, values, nullable=all(arg.nullable for arg in args))


def _extreme(call: Call, args: list[Typed]) -> Typed:
    values = _compare(call, args).args
    return _typed(call, values[0].type, values, nullable=all(arg.nullable for arg in args))


def _concat(call: Call, args: list[Typed]) -> Typed:
    for arg in args:
        if not can_cast(arg.type, pa.string()):
            raise _mismatch(call, "concat joins text", [arg])
    return _typed(call, pa.string(), [_as_text(arg) for arg in args])


def _as_text(arg: Typed) -> Typed:
    """A cast that also works for literals: their text is only known to the kernel."""
    if arg.type == pa.string() or pa.types.is_null(arg.type):
        return coerce(arg, pa.string())
    return Typed("cast", pa.string(), arg.nullable, (arg,), (False,), arg.text)


def _text(found: pa.DataType) -> Rule:
    """The rule of a function of one text."""

    def rule(call: Call, args: list[Typed]) -> Typed:
        value = working(args[0])
        if pa.types.is_null(value.type):
            value = coerce(value, pa.string())
        if value.type != pa.string():
            raise _wrong(call, f"{call.function} needs text", args[0], pa.string())
        if call.function == "extract":
            named_group(*call.options)
        if call.function == "split" and call.options[1]:
            splitting(call.options[0])
        return _typed(call, found, [value])

    return rule


def _truncate(call: Call, args: list[Typed]) -> Typed:
    value = working(args[0])
    if not pa.types.is_timestamp(value.type):
        raise _wrong(call, "truncate needs a timestamp", args[0], TIMESTAMP)
    duration_us(call.options[0])
    return _typed(call, value.type, [value])


def _date_part(call: Call, args: list[Typed]) -> Typed:
    value = working(args[0])
    is_date = pa.types.is_date(value.type) and call.function in ("year", "month", "day")
    if not is_date and not pa.types.is_timestamp(value.type):
        raise _wrong(call, f"{call.function} needs a timestamp", args[0], TIMESTAMP)
    return _typed(call, pa.int32(), [value])


def _struct(call: Call, args: list[Typed]) -> Typed:
    fields = [pa.field(name, arg.type, arg.nullable) for name, arg in zip(call.options, args, strict=True)]
    return _typed(call, pa.struct(fields), args, nullable=False)


def _get(call: Call, args: list[Typed]) -> Typed:
    value, key = working(args[0]), args[1]
    if pa.types.is_struct(value.type):
        return _get_field(call, value, key)
    if pa.types.is_map(value.type):
        kind = value.type.key_type
        if not _is_constant(key) or unify([Typed("column", kind, False, (), (), ""), key]) != kind:
            raise PlanError(
                f"a key of {type_name(value.type)} must be a literal of type {type_name(kind)}, "
                f"and found {type_name(key.type)} ({key.text}), in: {call.text()}"
            )
        return _typed(call, value.type.item_type, [value, coerce(key, kind)], nullable=True)
    if pa.types.is_list(value.type):
        index = working(key)
        if not pa.types.is_integer(index.type):
            raise PlanError(f"an element of {type_name(value.type)} is found by its number, in: {call.text()}")
        nullable = value.nullable or index.nullable or value.type.value_field.nullable
        return _typed(call, value.type.value_type, [value, coerce(index, pa.int64())], nullable=nullable)
    raise PlanError(f"[] needs a struct, map or list, and found {type_name(value.type)} ({value.text}), in: {call.text()}")


def _is_constant(arg: Typed) -> bool:
    """A literal, also one that is written as a cast: date '2026-01-31', -1.50BD."""
    return arg.is_literal or (arg.function in ("cast", "negate") and _is_constant(arg.args[0]))


def _element_at(call: Call, args: list[Typed]) -> Typed:
    """As `get`, but the first element of a list is 1 and the last -1, as in Spark."""
    value, key = working(args[0]), args[1]
    if pa.types.is_map(value.type):
        return _get(replace(call, function="get"), args)
    if not pa.types.is_list(value.type):
        raise PlanError(
            f"{call.function} needs a map or list, and found {type_name(value.type)} ({value.text}), in: {call.text()}"
        )
    if key.is_literal and key.options[0] == 0:
        raise PlanError(
            f"{call.function} counts from 1, or from the end with -1, and found 0, in: {call.text()}",
            fix=Fix("sql.element", f"Write: {call.function}({value.text}, 1)"),
        )
    index = working(key)
    if not pa.types.is_integer(index.type):
        raise PlanError(f"an element of {type_name(value.type)} is found by its number, in: {call.text()}")
    nullable = value.nullable or index.nullable or value.type.value_field.nullable or call.function == "try_element_at"
    return _typed(call, value.type.value_type, [value, coerce(index, pa.int64())], nullable=nullable)


def _by_format(call: Call, args: list[Typed]) -> Typed:
    value = working(args[0])
    if pa.types.is_null(value.type):
        value = coerce(value, pa.string())
    if value.type != pa.string():
        raise _wrong(call, f"{call.function} with a format needs text", args[0], pa.string())
    time_format(call.function, call.options[0])
    return _typed(call, pa.date32() if call.function == "to_date" else TIMESTAMP, [value])


def _floor(call: Call, args: list[Typed]) -> Typed:
    value = working(args[0])
    if pa.types.is_null(value.type):
        value = coerce(value, TIMESTAMP)
    if pa.types.is_timestamp(value.type) or (pa.types.is_date(value.type) and call.function == "trunc"):
        return _typed(call, pa.date32() if call.function == "trunc" else value.type, [value])
    raise _wrong(call, f"{call.function} needs a timestamp", args[0], TIMESTAMP)


def _get_field(call: Call, value: Typed, key: Typed) -> Typed:
    name = key.options[0] if key.is_literal else None
    index = value.type.get_field_index(name) if isinstance(name, str) else -1
    if index < 0:
        names = ", ".join(field.name for field in value.type)
        raise PlanError(f"there is no field {key.text} in {value.text}. Fields: {names}")
    field = value.type.field(index)
    return Typed("field", field.type, value.nullable or field.nullable, (value,), (index,), call.text())


_RULES: dict[str, Rule] = {
    **dict.fromkeys(("add", "subtract", "multiply", "modulo"), _arithmetic),
    **dict.fromkeys(("equal", "not_equal", "less", "less_equal", "greater", "greater_equal"), _compare),
    **dict.fromkeys(("is_in", "between", "same"), _compare),
    **dict.fromkeys(("and", "or", "not"), _logic),
    **dict.fromkeys(("is_null", "is_not_null"), _null_test),
    **dict.fromkeys(("least", "greatest"), _extreme),
    **dict.fromkeys(("lower", "upper", "trim", "replace", "extract"), _text(pa.string())),
    **dict.fromkeys(("contains", "starts_with", "ends_with"), _text(pa.bool_())),
    **dict.fromkeys(("year", "month", "day", "hour", "minute", "second"), _date_part),
    "length": _text(pa.int32()),
    "split": _text(pa.list_(pa.string())),
    "divide": _divide,
    "div": _div,
    "negate": _negate,
    "coalesce": _coalesce,
    "concat": _concat,
    "truncate": _truncate,
    "date_trunc": _floor,
    "trunc": _floor,
    "to_date": _by_format,
    "to_timestamp": _by_format,
    "struct": _struct,
    "get": _get,
    "element_at": _element_at,
    "try_element_at": _element_at,
}
