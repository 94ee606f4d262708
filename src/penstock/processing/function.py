"""`ProcessFunction`: a user's own keyed logic, and what is read off the class before anything runs.

A class has `on_row` (or `on_batch`, or `on_left` and `on_right` for two inputs), `on_timer` if it sets timers, and `on_broadcast` if
it has a broadcast input. What they are annotated with says what they get and give, as for functions of one row.
"""

from __future__ import annotations

import inspect
import random
import re
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar, overload

import pyarrow as pa

from penstock.errors import Fix, PlanError, RowError, brief
from penstock.eventtime import micros
from penstock.functions import Decoder, Encoder, decoder_for, encoder_for
from penstock.processing.output import Output
from penstock.processing.states import CLOCKS, BroadcastState, Keys, State
from penstock.schema import is_optional, is_unicode, visible

R = TypeVar("R")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICRO = timedelta(microseconds=1)

ROW_CALLBACKS = ("on_row", "on_left", "on_right", "on_broadcast")


@dataclass(frozen=True, slots=True)
class Timer:
    """A timer that fired: its name, the time it was set for, and whose time that is."""

    name: str
    at: datetime
    clock: str = "event"


class Context:
    """What a callback is told, and what it can do besides keeping state.

    `key`, `event_time`, `watermark` and `now` are of the row or timer that is being processed.
    """

    key: Any
    """The value of the key column; a tuple if there are several."""
    step: str
    """The name of the step."""

    @property
    def event_time(self) -> datetime | None:
        """The row's event time, or the time the timer was set for; None without event time."""
        raise NotImplementedError

    @property
    def watermark(self) -> datetime | None:
        """How far event time is; None before anything is known."""
        raise NotImplementedError

    @property
    def now(self) -> datetime:
        """The time of day. It stands still while a row is processed and never goes back, not even after a restore."""
        raise NotImplementedError

    @property
    def random(self) -> random.Random:
        """Random numbers that are the same when the row is processed again: they depend on the key and how often it drew."""
        raise NotImplementedError

    @overload
    def emit(self, row: R, *, to: Output[R]) -> None: ...
    @overload
    def emit(self, row: Mapping[str, Any], *, to: Output[Any]) -> None: ...
    @overload
    def emit(self, row: Any, *, to: str | None = None) -> None: ...
    def emit(self, row: Any, *, to: Output[Any] | str | None = None) -> None:
        """Send a row, also to a side output: `ctx.emit(row, to=self.suspects)`."""
        raise NotImplementedError

    def set_timer(
        self, name: str = "", *, after: str | timedelta | None = None, at: datetime | None = None, clock: str = "event"
    ) -> None:
        """Have `on_timer` called for this key at a time. A timer with the same name and clock is replaced.

        Args:
            after: so long after the time of this row or timer (or after now, with `clock="processing"`): `"1m"`.
            at: or: a datetime.
        """
        raise NotImplementedError

    def clear_timer(self, name: str = "", *, clock: str = "event") -> None:
        """No such timer any more."""
        raise NotImplementedError


class ProcessFunction:
    """Your own logic per key, with state and timers. Extend it, declare states as class attributes, and say what a row does.

        class Count(pen.ProcessFunction):
            n = pen.ValueState(int, default=0)

            def on_row(self, row: Click, ctx: pen.Context) -> Iterator[Counted]:
                self.n.set(self.n.get() + 1)
                yield Counted(row.user, self.n.get())

        clicks.key_by("user").process(Count(), name="counts")

    Callbacks yield rows, return one, or return nothing. Instead of `on_row` there may be `on_batch(keys, batch, ctx)`, which gets an
    Arrow batch with the keys of its rows and works with `get_many`, `set_many` and `clear_many` of states. What it gives must not
    depend on how rows are cut into batches.
    """

    def open(self, ctx: Context) -> None:
        """Called before anything else: once per worker, or more often."""

    def close(self) -> None:
        """Called when the worker is done, if it ends in peace."""


@dataclass(frozen=True)
class Callback:
    """A callback that takes rows: the columns it reads, and how rows become its arguments."""

    name: str
    columns: tuple[str, ...]
    decoder: Decoder


@dataclass(frozen=True)
class Spec:
    """What is known of a process function before it runs."""

    function: ProcessFunction
    states: Mapping[str, State]
    broadcasts: Mapping[str, BroadcastState[Any, Any]]
    outputs: Mapping[str, Output[Any]]
    callbacks: tuple[Callback, ...]  # of each input; `on_batch` takes all columns
    schema: pa.Schema  # of the main output
    encoder: Encoder
    by_batch: bool
    timers: bool  # whether there is on_timer

    @property
    def name(self) -> str:
        """The class."""
        return type(self.function).__name__


def read_spec(
    function: ProcessFunction, inputs: list[pa.Schema], kinds: list[str], schema: Any = None, *, clock: str = "event"
) -> Spec:
    """Check a class against its inputs; a `PlanError` says what is missing.

    Args:
        kinds: of the inputs: "row", "left", "right", "broadcast".
        schema: of the rows it sends, where annotations do not say it.
        clock: by which states forget that do not say it.
    """
    wanted = _wanted(function, kinds)
    name, by_batch = type(function).__name__, hasattr(function, "on_batch")
    if "broadcast" in kinds:
        _check_silent(function)
    declared = _declared(function)
    callbacks = [
        Callback(callback, tuple(visible(input).names), _nothing)
        if callback == "on_batch"
        else _callback(function, callback, input)
        for callback, input in zip(wanted, inputs, strict=True)
    ]
    given = [schema] if schema is not None else _returned(function, [c for c in wanted if c != "on_batch"])
    if not given and by_batch:
        raise PlanError(
            f"{name}.on_batch gives batches, and nobody says of which columns",
            fix=Fix(
                "process.on_batch", f'Say them. Write: .process({name}(), schema="user string, n bigint", name="{named(name)}")'
            ),
        )
    output, encoder = encoder_for(given[0], visible(inputs[0])) if given else (_NOTHING, _no_rows)
    return Spec(
        function,
        {n: s.timed(clock) for n, s in declared.items() if isinstance(s, State)},
        {n: s for n, s in declared.items() if isinstance(s, BroadcastState)},
        {n: s for n, s in declared.items() if isinstance(s, Output)},
        tuple(callbacks),
        output,
        encoder,
        by_batch,
        hasattr(function, "on_timer"),
    )


def _wanted(function: ProcessFunction, kinds: list[str]) -> list[str]:
    """The callback that takes the rows of each input; that all of them are there, and no others."""
    if isinstance(function, type):
        raise PlanError(
            f"process needs an object, and got the class {function.__name__}",
            fix=Fix(
                "process.class", f'Make one of it. Write: .process({function.__name__}(), name="{named(function.__name__)}")'
            ),
        )
    if not isinstance(function, ProcessFunction):
        raise PlanError(
            f"process needs a pen.ProcessFunction, and got {brief(function)}",
            fix=Fix(
                "process.kind",
                "Write a class with on_row, class MyProcess(pen.ProcessFunction), or use map for a function of a row",
            ),
        )
    name = type(function).__name__
    by_batch = hasattr(function, "on_batch")
    if by_batch and hasattr(function, "on_row"):
        raise PlanError(
            f"{name} has both on_row and on_batch, and rows go to one of them", fix=Fix("process.both", "Remove one of them")
        )
    wanted = ["on_batch" if by_batch and kind == "row" else f"on_{kind}" for kind in kinds]
    for callback in wanted:
        if not hasattr(function, callback):
            raise PlanError(
                f"{name} has no {callback}, which takes the rows of this input",
                fix=Fix("process.callback", f"Define it in the class: def {callback}(self, row, ctx)"),
            )
    for callback in ("on_batch", *ROW_CALLBACKS):
        if hasattr(function, callback) and callback not in wanted:
            inputs_text = ", ".join(wanted)
            raise PlanError(
                f"{name} has {callback}, and nothing would call it: this step calls {inputs_text}",
                fix=Fix("process.unused", _FIXES[callback]),
            )
    return wanted


_NOTHING = pa.schema([pa.field("nothing", pa.null())])
"""The columns of an output that never has a row."""

_FIXES = {
    "on_row": "With two keyed inputs write on_left and on_right",
    "on_batch": "With two inputs write on_left and on_right",
    "on_left": 'It needs a second keyed input: a.key_by("k").connect(b.key_by("k")).process(…)',
    "on_right": 'It needs a second keyed input: a.key_by("k").connect(b.key_by("k")).process(…)',
    "on_broadcast": 'It needs a broadcast input: a.key_by("k").connect(b.broadcast()).process(…)',
}


def _declared(function: ProcessFunction) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for owner in reversed(type(function).__mro__):
        for name, value in vars(owner).items():
            if isinstance(value, State | BroadcastState | Output):
                found[name] = value
            else:
                found.pop(name, None)
    for name, value in vars(function).items():
        if isinstance(value, State | BroadcastState | Output):
            value.name = value.name or name
            found[name] = value
    for name in found:
        if name.startswith("_"):
            raise PlanError(
                f"a state cannot be called {name!r}: names that start with _ are private",
                fix=Fix("state.private", f"Choose another name, such as {name.strip('_') or 'state'}"),
            )
        if hasattr(ProcessFunction, name) or name == "on_timer":
            raise PlanError(
                f"a state cannot be called {name!r}: that is a method of process functions",
                fix=Fix("state.method", f"Choose another name, such as {name}_state"),
            )
    return found


def _check_silent(function: ProcessFunction) -> None:
    """What on_broadcast sent, every task would send."""
    method = function.on_broadcast  # type: ignore[attr-defined]
    if _gives(method) or row_type(_hints(method).get("return")) is not None:
        raise PlanError(
            f"{type(function).__name__}.on_broadcast runs on every task, so each would send its rows",
            fix=Fix(
                "process.on_broadcast", "Keep what it learns in a BroadcastState, and send from the callback of the other input"
            ),
        )


def _callback(function: ProcessFunction, callback: str, input: pa.Schema) -> Callback:
    method = getattr(function, callback)
    hints = _hints(method)
    parameters = list(inspect.signature(method).parameters)
    if len(parameters) != 2:
        raise PlanError(
            f"{type(function).__name__}.{callback} takes {len(parameters)} arguments, and is given a row and a context",
            fix=Fix("process.arguments", f"Let it take both: def {callback}(self, row, ctx)"),
        )
    wanted = getattr(function, "row_hint", None) or hints.get(parameters[0])
    columns, decoder = decoder_for(f"{type(function).__name__}.{callback}", wanted, visible(input))
    return Callback(callback, columns, decoder)


def _hints(method: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(method, include_extras=True)
    except NameError as error:
        raise PlanError(
            f"cannot read the annotations of {method.__qualname__}: {error}",
            fix=Fix("process.hints", "Define the classes they mention at the top level of a module"),
        ) from error


def _returned(function: ProcessFunction, callbacks: list[str]) -> list[Any]:
    """What one row of the main output is, by the return annotations; they must agree."""
    found: list[Any] = []
    for callback in [*callbacks, *(["on_timer"] if hasattr(function, "on_timer") else [])]:
        method = getattr(function, callback)
        returns = _hints(method).get("return", ...)
        if returns is ...:
            if _gives(method):
                raise PlanError(
                    f"cannot tell what {type(function).__name__}.{callback} sends",
                    fix=Fix(
                        "process.sends",
                        f"Annotate it, def {callback}(self, …) -> Iterator[Alert], or say it: .process(…, schema=Alert)",
                    ),
                )
            continue
        row = row_type(returns)
        if row is not None and row not in found:
            found.append(row)
    if len(found) > 1:
        names = ", ".join(getattr(row, "__name__", str(row)) for row in found)
        raise PlanError(
            f"the callbacks of {type(function).__name__} send different rows: {names}",
            fix=Fix("process.rows", "Send one kind with yield, and others to side outputs: pen.Output(…), ctx.emit(row, to=…)"),
        )
    return found


def named(called: str) -> str:
    """A name for a step, of the name of its class."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|_+", "-", called.strip("_")).lower()


def _gives(method: Callable[..., Any]) -> bool:
    """Whether a callback without annotation might send something."""
    code = getattr(method, "__code__", None) or getattr(getattr(method, "__func__", None), "__code__", None)
    return bool(code is not None and code.co_flags & inspect.CO_GENERATOR)


def row_type(returns: Any) -> Any:
    """`Iterator[Alert]`, `list[Alert]`, `Alert | None` and `Alert` give Alerts; `None` gives nothing."""
    if returns is None or returns is type(None):
        return None
    inner, _ = is_optional(returns) if typing.get_origin(returns) in (typing.Union, types.UnionType) else (returns, False)
    origin = typing.get_origin(inner)
    several = isinstance(origin, type) and hasattr(origin, "__iter__") and not issubclass(origin, Mapping)
    return typing.get_args(inner)[0] if several and typing.get_args(inner) else inner


def _nothing(columns: list[list[Any]], rows: int) -> list[Any]:
    raise AssertionError("on_batch gets no rows")


def _no_rows(results: list[Any]) -> list[list[Any]]:
    if results:
        raise RowError(
            f"a row was sent, {results[0]!r}, and no callback is annotated to",
            fix=Fix("process.silent", "Annotate it, -> Iterator[Alert], or say it: .process(…, schema=Alert)"),
        )
    return [[]]


def to_moment(time: int) -> datetime:
    """Microseconds as a time for people."""
    return _EPOCH + timedelta(microseconds=time)


def due_time(base: int, after: Any, at: datetime | None, name: str) -> int:
    """When a timer is due, in microseconds."""
    if (after is None) == (at is None):
        found = "neither after= nor at=" if at is None else "both after= and at="
        raise RowError(f"timer {name!r}: found {found}", fix=Fix("timer.when", 'Say when, by one of them. Write: after="1m"'))
    if at is None:
        return base + micros(after, "after")
    if not isinstance(at, datetime) or at.tzinfo is None:
        raise RowError(f"timer {name!r}: at= must be a datetime with time zone, and is {at!r}")
    return (at - _EPOCH) // _MICRO


def check_timer(name: Any, clock: str) -> None:
    """Both must be known."""
    if not isinstance(name, str):
        raise RowError(f"the name of a timer is a string, and this is {name!r}")
    if not is_unicode(name):
        raise RowError(f"the name of a timer is stored, and {name!r} is no text that can be: it has half of a character")
    if clock not in CLOCKS:
        clocks = ", or ".join(f'clock="{each}"' for each in CLOCKS)
        raise RowError(f"timer {name!r}: clock={clock!r} is not known", fix=Fix("timer.clock", f"Write: {clocks}"))


__all__ = [
    "Callback",
    "Context",
    "Keys",
    "ProcessFunction",
    "Spec",
    "Timer",
    "check_timer",
    "due_time",
    "read_spec",
    "row_type",
    "to_moment",
]
