"""User-defined aggregates: a class with `create`, `add`, `merge` and `result`, called with expressions.

    class GeoMean(pen.Aggregate):
        state = "struct<logs: double, n: bigint>"
        def create(self): return {"logs": 0.0, "n": 0}
        def add(self, acc, x: float): return {"logs": acc["logs"] + log(x), "n": acc["n"] + 1}
        def merge(self, a, b): return {"logs": a["logs"] + b["logs"], "n": a["n"] + b["n"]}
        def result(self, acc) -> float | None: return exp(acc["logs"] / acc["n"]) if acc["n"] else None

    stream.key_by("shop").aggregate(g=GeoMean()(col("price")), name="means")

An accumulator is a value of one type, kept in the state and sent between tasks as such. The return annotations of
`create` and `result` say the types, as annotations of columns do; `state = "struct<total: double, n: bigint>"` and
`returns = "double"` say them where annotations cannot. Nothing is pickled: state outlives the program that wrote it,
and must be readable without running code.

1. `add(acc, value, …)` and `merge(a, b)` return the new accumulator; they may change the old one.
2. A null for a parameter that is not annotated `T | None` skips the row, as for `pen.udf`.
3. `retract(acc, value, …)` undoes an `add`. It may meet an accumulator that has not seen the value: the row may have
   been added to another one, with which this one is merged later.
4. A row for which `add` or `retract` raises is a bad row. What else raises stops the job, naming class and method.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import typing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.errors import RAISED, Fix, PenstockError, PlanError, RowError
from penstock.expr.aggregates import Aggregate
from penstock.expr.evaluate import node_of
from penstock.expr.nodes import Node, Udf, literal
from penstock.expr.segments import Ints, Segments, take_rows
from penstock.expr.slots import Rows, Slots
from penstock.expr.udf import HINTS, has_records
from penstock.functions import instance_maker, plain_value
from penstock.schema import far_error, far_rows, to_array, to_field, to_type, to_values, type_name
from penstock.tracebacks import told

__all__ = ["AggregateFailed", "BadRows", "UserAggregate", "UserSlots"]

Maker = Callable[[Any], Any]


class AggregateFailed(PenstockError):
    """A user's aggregate raised, or returned what does not fit, where no single row is to blame."""


class BadRows(Exception):
    """Raised within a fold: rows (by number) that an `add` refused, and why. They are left out and the fold begins again."""

    def __init__(self, rows: Ints, reasons: Sequence[str]) -> None:
        super().__init__(f"{len(rows)} bad rows")
        self.rows, self.reasons = rows, reasons


class UserAggregate:
    """The base of user-defined aggregates.

    >>> from penstock.expr import col
    >>> class Longest(UserAggregate):
    ...     def create(self) -> int:
    ...         return 0
    ...     def add(self, acc: int, text: str) -> int:
    ...         return max(acc, len(text))
    ...     def merge(self, a: int, b: int) -> int:
    ...         return max(a, b)
    ...     def result(self, acc: int) -> int:
    ...         return acc
    >>> Longest()(col("s"))
    Longest(s)
    """

    state: Any = None
    """The type of the accumulator, where the return annotation of `create` does not say it."""
    returns: Any = None
    """The type of the result, where the return annotation of `result` does not say it."""

    # Declared, not defined: a subclass chooses its own parameters.
    create: Callable[..., Any]
    add: Callable[..., Any]
    merge: Callable[..., Any]
    result: Callable[..., Any]

    def __call__(self, *inputs: Any, where: Any = None) -> Aggregate:
        """The aggregate of these expressions, over the rows for which `where` is true."""
        call = UserCall.of(self)
        nodes = [_node(value) for value in inputs]
        if len(nodes) != len(call.parameters) or not nodes:
            names = ", ".join(call.names)
            raise PlanError(f"{call.name}.add takes {len(call.names)} expressions ({names}), and found {len(nodes)}")
        checked = [call.checked(index, node) for index, node in enumerate(nodes)]
        condition = None if where is None else node_of(where)
        return Aggregate("user", checked[0], condition, options=(call,), more=tuple(checked[1:]))


def _node(value: Any) -> Node:
    return node_of(value) if hasattr(value, "node") or isinstance(value, Node) else literal(value)


def _as_is(values: pa.Array) -> pa.Array:
    return values


@dataclass(frozen=True)
class UserCall:
    """A user's aggregate of which everything is known: its types, and which parameters take null."""

    aggregate: UserAggregate
    name: str
    state: pa.Field
    result: pa.Field
    names: tuple[str, ...]
    parameters: tuple[pa.Field | None, ...]
    makers: tuple[Maker | None, ...]  # of each parameter: what makes instances of its values, where its type has classes
    remade: Maker | None  # the same of the accumulator

    @classmethod
    def of(cls, aggregate: UserAggregate) -> UserCall:
        """Read the annotations of its methods."""
        kind = type(aggregate)
        missing = [name for name in ("create", "add", "merge", "result") if not callable(getattr(aggregate, name, None))]
        if missing:
            raise PlanError(f"{kind.__name__} is no aggregate yet: it needs a method {missing[0]}")
        hint = None if aggregate.state is not None else _hints(aggregate, "create").get("return")
        state = _field(kind, "create", hint, aggregate.state, "state")
        result = _field(kind, "result", _hints(aggregate, "result").get("return"), aggregate.returns, "returns")
        names = tuple(inspect.signature(aggregate.add).parameters)[1:]
        hints = _hints(aggregate, "add")
        parameters = tuple(to_field(name, hints[name]) if hints.get(name, Any) is not Any else None for name in names)
        makers = tuple(None if field is None else _maker(hints[name], field.type) for name, field in zip(names, parameters))
        remade = None if hint is None else _maker(hint, state.type)
        call = cls(aggregate, kind.__name__, state, result, names, parameters, makers, remade)
        return call._started()

    @property
    def retracts(self) -> bool:
        """Whether rows can be taken back."""
        return callable(getattr(self.aggregate, "retract", None))

    def checked(self, index: int, node: Node) -> Node:
        """An argument in the type that its parameter is annotated with."""
        field = self.parameters[index]
        if field is None:
            return node
        return Udf(self.name, _as_is, (node,), (field,), pa.field(field.name, field.type), by_column=True)

    def shown(self, node: Node) -> str:
        """An argument as it was written."""
        return node.args[0].text() if isinstance(node, Udf) and node.function is _as_is else node.text()

    def run(self, method: str, *args: Any) -> Any:
        """Call a method; what it raises is told by name."""
        try:
            found = getattr(self.aggregate, method)(*args)
        except RAISED as error:  # Whatever a user's code raises.
            raise AggregateFailed(f"{self.name}.{method} failed: {error!r}") from error
        return found if method == "result" else self.returned(found, method)

    def returned(self, found: Any, method: str) -> Any:
        """`found`, if it can be an accumulator at all. To change one and forget to return it is easy."""
        if found is None and not self.state.nullable:
            raise AggregateFailed(
                f"{self.name}.{method} returned None", fix=Fix("user-aggregate.returned", f"Return the accumulator from {method}")
            )
        return found

    def pack(self, accumulators: Sequence[Any], method: str) -> pa.Array:
        """Accumulators as a column."""
        return self._array(accumulators, self.state, method)

    def unpack(self, column: pa.Array) -> list[Any]:
        """A column as accumulators."""
        values = to_values(column)
        return values if self.remade is None else [None if value is None else self.remade(value) for value in values]

    def arguments(self, columns: Sequence[pa.Array]) -> list[list[Any]]:
        """Columns as what `add` takes."""
        found = [to_values(column) for column in columns]
        return [
            values if make is None else [None if value is None else make(value) for value in values]
            for values, make in zip(found, self.makers, strict=True)
        ]

    def results(self, accumulators: Sequence[Any]) -> pa.Array:
        """What `result` says of each accumulator."""
        return self._array([self.run("result", accumulator) for accumulator in accumulators], self.result, "result")

    def _array(self, values: Sequence[Any], field: pa.Field, method: str) -> pa.Array:
        try:
            return to_array([plain_value(value) for value in values] if has_records(field.type) else values, field)
        except RowError as error:
            text = f"{self.name}.{method} returned what does not fit {field.type}: {error.message}"
            raise AggregateFailed(text, fix=error.fix) from error

    def _started(self) -> UserCall:
        """The same, after a look at a new accumulator: mistakes in its type are found before the first row."""
        try:
            first = self.aggregate.create()
            found = dataclasses.replace(self, state=self.state.with_nullable(True)) if first is None else self
            found.pack([first], "create")
        except AggregateFailed as error:
            raise PlanError(
                error.message, fix=Fix("user-aggregate.accumulator", _typing(self.name, plain_value(first)))
            ) from error
        except RAISED as error:  # Whatever a user's code raises.
            raise PlanError(f"{self.name}.create failed: {error!r}") from error
        return found


def _maker(hint: Any, kind: pa.DataType) -> Maker | None:
    """What makes instances of Arrow's values; None where there are no records in them."""
    return instance_maker(hint) if has_records(kind) else None


def _typing(name: str, accumulator: Any) -> str:
    """How to say the type of an accumulator, for one whose type was said to be another."""
    try:
        found = type_name(pa.array([accumulator]).type)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError):
        return f"Return a value of the type that is said, from {name}.create"
    return f'Annotate {name}.create with what it returns, or say it in the class. Write: state = "{found}"'


def _hints(aggregate: UserAggregate, method: str) -> dict[str, Any]:
    try:
        return typing.get_type_hints(getattr(aggregate, method), include_extras=True)
    except NameError as error:
        name = type(aggregate).__name__
        raise PlanError(f"cannot read the annotations of {name}.{method}: {error}", fix=HINTS) from error


def _field(kind: type, method: str, hint: Any, said: Any, attribute: str) -> pa.Field:
    name = f"{kind.__name__}.{method}"
    if said is not None:
        if isinstance(said, str | pa.DataType):
            return pa.field(name, to_type(said), nullable=method == "result")
        return to_field(name, said)
    takes = "self" if method == "create" else "self, acc"
    fix = Fix(
        "user-aggregate.type",
        f'Annotate it, def {method}({takes}) -> float, or say it in the class. Write: {attribute} = "double"',
    )
    if hint is None:
        raise PlanError(f"cannot tell the type of what {name} returns", fix=fix)
    try:
        return to_field(name, hint)
    except PlanError as error:
        raise PlanError(error.message, fix=fix) from error


class UserSlots(Slots):
    """One column: the accumulator of a user's aggregate."""

    def __init__(self, name: str, call: UserCall) -> None:
        self.fields = [pa.field(f"{name}.acc", call.state.type)]
        self._call = call

    def partial(self, rows: Rows) -> list[pa.Array]:
        segments = rows.segments
        for values, field in zip(rows.inputs, self._call.parameters, strict=True):
            segments = segments.known(values) if field is not None and not field.nullable else segments
        taken = [take_rows(values, segments) for values in rows.inputs]
        try:
            columns = self._call.arguments(taken)
        except (OverflowError, ValueError):
            far = sorted({row for values in taken for row in far_rows(values)})
            raise BadRows(segments.order[np.array(far)], [str(far_error(self._call.name))] * len(far)) from None
        signs = None if rows.signs is None else rows.signs[segments.order].tolist()
        found, bad = [], []
        reasons: list[str] = []
        for start, end in _bounds(segments):
            part = list(zip(*(column[start:end] for column in columns)))
            accumulator, refused = self._fold(part, None if signs is None else signs[start:end])
            found.append(accumulator)
            bad += [start + place for place in refused]
            reasons += refused.values()
        if bad:
            raise BadRows(segments.order[np.array(bad)], reasons)
        return [self._call.pack(found, "add")]

    def _fold(self, rows: list[tuple[Any, ...]], signs: list[int] | None) -> tuple[Any, dict[int, str]]:
        """The accumulator of some rows, and the places of those that were refused, with the reasons."""
        add: Callable[..., Any] = self._call.aggregate.add
        retract: Callable[..., Any] = getattr(self._call.aggregate, "retract", add)
        accumulator = self._call.run("create")
        try:
            for place, row in enumerate(rows):
                accumulator = add(accumulator, *row) if signs is None or signs[place] > 0 else retract(accumulator, *row)
        except RAISED:
            return self._fold_carefully(rows, signs)
        last = "add" if not signs or signs[-1] > 0 else "retract"
        return self._call.returned(accumulator, last) if rows else accumulator, {}

    def _fold_carefully(self, rows: list[tuple[Any, ...]], signs: list[int] | None) -> tuple[Any, dict[int, str]]:
        """The same where some row is refused: an `add` that raised may have spoiled the accumulator, so it gets a copy."""
        accumulator = self._call.run("create")
        refused: dict[int, str] = {}
        for place, row in enumerate(rows):
            method = "add" if signs is None or signs[place] > 0 else "retract"
            try:
                found = getattr(self._call.aggregate, method)(copy.deepcopy(accumulator), *row)
            except RAISED as error:
                refused[place] = told(error, before=f"{self._call.name}.{method} failed: ")
                continue
            accumulator = self._call.returned(found, method)
        return accumulator, refused

    def merge(self, columns: list[pa.Array], segments: Segments) -> list[pa.Array]:
        accumulators = self._call.unpack(take_rows(columns[0], segments))
        return [self._call.pack([self._merged(accumulators[a:b]) for a, b in _bounds(segments)], "merge")]

    @property
    def can_unmerge(self) -> bool:  # type: ignore[override]
        """Whether the aggregate can undo a merge, and gives null only where no row is left (`api.shortforms.InvertibleFold`)."""
        return getattr(self._call.aggregate, "unmerges", False) is True

    def unmerge(self, whole: list[pa.Array], part: list[pa.Array]) -> list[pa.Array]:
        pairs = zip(self._call.unpack(whole[0]), self._call.unpack(part[0]), strict=True)
        return [self._call.pack([self._call.run("unmerge", a, b) for a, b in pairs], "unmerge")]

    def _merged(self, parts: list[Any]) -> Any:
        if not parts:
            return self._call.run("create")
        found = parts[0]
        for part in parts[1:]:
            found = self._call.run("merge", found, part)
        return found

    def finish(self, columns: list[pa.Array]) -> pa.Array:
        return self._call.results(self._call.unpack(columns[0]))


def _bounds(segments: Segments) -> Iterator[tuple[int, int]]:
    ends = segments.offsets.tolist()
    return pairwise(ends)
