"""Two older ways to keep state, as process functions: `map_with_state` and `update_state_by_key` (Spark's DStreams have them)."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from penstock.errors import PlanError, RowError
from penstock.functions import fields_of, instance_maker
from penstock.processing.function import Context, ProcessFunction, Timer
from penstock.processing.states import ListState, ValueState
from penstock.row import Row, row_of
from penstock.schema import is_optional, is_record_class, to_schema

TIMEOUT, INITIAL, EVERY = "timeout", "initial", "every"
"""Names of timers. `INITIAL` wakes a key that has an initial value and no row yet: its silence begins."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICRO = timedelta(microseconds=1)
_LAST = datetime.max.replace(tzinfo=UTC)


def first_hint(function: Callable[..., Any]) -> Any:
    """The annotation of a function's first parameter; None if it has none."""
    parameters = list(inspect.signature(function).parameters)
    if len(parameters) != 2:
        raise PlanError(f"{name_of(function)} is given a row or rows and a state, and takes {len(parameters)} arguments")
    return hints_of(function).get(parameters[0])


def hints_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The annotations of a function, as types."""
    try:
        return typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError) as error:
        raise PlanError(f"cannot read the annotations of {name_of(function)}: {error}") from error


def name_of(function: Callable[..., Any]) -> str:
    """How to call a function in a message."""
    return str(getattr(function, "__name__", type(function).__name__))


class MapWithState(ProcessFunction):
    """A function of a row and the state of its key; of None and the state when the key was silent for the length of the timeout."""

    def __init__(self, function: Callable[[Any, Any], Any], state: Any, timeout: int | None, clock: str) -> None:
        self.function, self.timeout, self.clock = function, timeout, clock
        self.state: ValueState[Any] = ValueState(state)
        hint = first_hint(function)
        self.row_hint = Row if hint is None else is_optional(hint)[0]

    def on_row(self, row: Any, ctx: Context) -> Any:
        """Call it, and set the clock."""
        found = self.function(row, self.state)
        if self.timeout is not None:
            ctx.clear_timer(INITIAL, clock=self.clock)
            if self.state.exists:
                ctx.set_timer(TIMEOUT, after=self.timeout_text, clock=self.clock)
            else:
                ctx.clear_timer(TIMEOUT, clock=self.clock)
        return found

    @property
    def timeout_text(self) -> str:
        """The timeout as timers take it."""
        return f"{self.timeout}us"

    def on_timer(self, timer: Timer, ctx: Context) -> Any:
        """The last call for this key; or its silence begins."""
        now = ctx.now if self.clock == "processing" else ctx.watermark
        if timer.name == INITIAL and now is not None and now < _LAST:
            assert self.timeout is not None, "only what times out is woken"
            ctx.set_timer(TIMEOUT, at=now + timedelta(microseconds=self.timeout), clock=self.clock)
            return None
        self.state.timing_out = True
        try:
            found = self.function(None, self.state)
        finally:
            self.state.timing_out = False
        self.state.clear()
        return found


class UpdateStateByKey(ProcessFunction):
    """A function of the rows of a key since the last time and its state so far; every so often, for all keys that have a state."""

    def __init__(
        self, function: Callable[[list[Any], Any], Any], state: Any, every: int, input: pa.Schema, by: tuple[str, ...]
    ) -> None:
        self.function, self.every, self.by = function, every, by
        self.state: ValueState[Any] = ValueState(state)
        self.rows: ListState[Any] = ListState(pa.struct(list(input)))
        hint = first_hint(function)
        wanted = typing.get_args(hint) if typing.get_origin(hint) is list else ()
        self._make = instance_maker(wanted[0]) if wanted and is_record_class(wanted[0]) else row_of
        self._whole = is_record_class(state)
        self._names = to_schema(state).names
        self.row_hint = Row

    def on_row(self, row: Any, ctx: Context) -> None:
        """Keep it until it is time."""
        self.rows.append(row)
        self._arm(ctx)

    def _arm(self, ctx: Context) -> None:
        now = (ctx.now - _EPOCH) // _MICRO
        ctx.set_timer(EVERY, after=f"{self.every - now % self.every}us", clock="processing")

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        """One more time."""
        old = self.state.get()
        rows = [self._make(row) for row in self.rows.get()]
        new = self.function(rows, old)
        self.rows.clear()
        if new is not None:
            self.state.set(new)
            ctx.emit(self._row(new, ctx))
            self._arm(ctx)
        elif self.state.exists:
            self.state.clear()
            ctx.withdraw(self._row(old, ctx))  # type: ignore[attr-defined]

    def _row(self, value: Any, ctx: Context) -> dict[str, Any]:
        keys = dict(zip(self.by, (ctx.key,) if len(self.by) == 1 else ctx.key))
        if not self._whole:
            return {**keys, "value": value}
        fields = fields_of(value)
        if fields is None:
            raise RowError(f"{name_of(self.function)} must return the state or None, and returned {value!r}")
        return {**keys, **{name: fields.get(name) for name in self._names}}
