"""What the callbacks of a process function are given: the context of a row or timer, and where what they send is collected."""

from __future__ import annotations

import functools
import random
import types
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.errors import Fix, RowError
from penstock.functions import Encoder
from penstock.operators.named_timers import NamedTimers
from penstock.operators.operator import CHANGE_COLUMN, MAIN, TIME_COLUMN, Out, as_times
from penstock.processing.function import Context, Spec, check_timer, due_time, to_moment
from penstock.processing.output import Output
from penstock.processing.states import Scope, ValueState
from penstock.schema import to_array, to_values
from penstock.state.keygroups import hash_keys
from penstock.windows import TIME_MAX, TIME_MIN

TIME_FIELD = pa.field(TIME_COLUMN, pa.timestamp("us", tz="UTC"), nullable=False)
CHANGE_FIELD = pa.field(CHANGE_COLUMN, pa.int8(), nullable=False)
FIRST, LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
_FIRST, _LAST = (due_time(0, None, moment, "") for moment in (FIRST, LAST))
SIDE = "side:"
_SEVERAL = (types.GeneratorType, list)


class Collected:
    """Rows of one output until the batch is done."""

    def __init__(self, schema: pa.Schema, encoder: Encoder, *, timed: bool, signed: bool = False) -> None:
        self._schema, self._encoder, self._timed, self._signed = schema, encoder, timed, signed
        self.rows: list[Any] = []
        self.times: list[int] = []
        self.deletes: set[int] = set()  # which rows say that one with their key is no more

    def cut(self, length: int) -> None:
        """Forget all but the first."""
        del self.rows[length:], self.times[length:]
        self.deletes = {row for row in self.deletes if row < length}

    def check(self, start: int) -> None:
        """Raise if one of the rows from here on does not fit."""
        self._encoded(self.rows[start:])

    def _encoded(self, rows: list[Any]) -> list[pa.Array]:
        columns = self._encoder(rows)
        return [to_array(column, field) for column, field in zip(columns, self._schema, strict=True)]

    def batch(self) -> pa.RecordBatch | None:
        """The rows, if there are any; there are none afterwards."""
        if not self.rows:
            return None
        arrays, fields = self._encoded(self.rows), list(self._schema)
        if self._timed:
            arrays.append(as_times(np.array(self.times, np.int64)))
            fields.append(TIME_FIELD)
        if self._signed:
            changes = np.ones(len(self.rows), np.int8)
            changes[list(self.deletes)] = -1
            arrays.append(pa.array(changes))
            fields.append(CHANGE_FIELD)
        self.rows.clear()
        self.times.clear()
        self.deletes.clear()
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


class RunContext(Context):
    """The context of one running function."""

    def __init__(
        self,
        step: str,
        spec: Spec,
        scope: Scope,
        key_fields: list[pa.Field],
        clocks: dict[str, NamedTimers],
        draws: Any,
        *,
        timed: bool,
        signed: bool,
        watermark: int = TIME_MIN,
    ) -> None:
        self.step = step
        self._spec, self._scope, self._key_fields, self._clocks, self._draws = spec, scope, key_fields, clocks, draws
        self.time: int | None = None  # event time of the row or timer
        self._moment: int | None = None  # the same, but of a timer that was set for the past, when it fires
        self.at_watermark = watermark
        self.passed = watermark if watermark < TIME_MAX else TIME_MIN  # the watermark up to which all has been done
        self._timed = timed
        self._keys: list[Any] | None = None
        self._random: random.Random | None = None
        self.main = Collected(spec.schema, spec.encoder, timed=timed, signed=signed)
        self.sides = {name: Collected(output.schema, output.encoder, timed=timed) for name, output in spec.outputs.items()}

    # -- for the operator

    def begin(self) -> None:
        """Other keys now."""
        self._keys = None

    def enter(self, time: int | None, moment: int | None = None) -> None:
        """The next row or timer."""
        moment = time if moment is None else moment
        self.time, self._moment, self._random = time, moment, None
        if self._timed:
            self._scope.moment = self.passed if moment is None or moment < self.passed else moment

    def marks(self) -> list[int]:
        """How much was sent so far, by output."""
        return [len(self.main.rows), *(len(side.rows) for side in self.sides.values())]

    def rewind(self, marks: list[int]) -> None:
        """Take back what was sent since."""
        for collected, mark in zip((self.main, *self.sides.values()), marks):
            collected.cut(mark)

    def check(self, marks: list[int]) -> None:
        """Raise if something sent since does not fit its output."""
        for collected, mark in zip((self.main, *self.sides.values()), marks):
            if len(collected.rows) > mark:
                collected.check(mark)

    def batches(self) -> list[Out]:
        """All that was sent."""
        named = [(MAIN, self.main), *((SIDE + name, side) for name, side in self.sides.items())]
        return [(port, batch) for port, collected in named if (batch := collected.batch()) is not None]

    def sent(self, found: Any) -> None:
        """What a callback returned: rows, a row, or nothing."""
        main = self.main
        if type(found) in _SEVERAL or isinstance(found, list | Iterator):
            main.rows.extend(found)
        else:
            main.rows.append(found)
        if self._scope.may_broadcast and main.rows:
            self._check_key()
        if self._timed:  # of those that a generator sent by `emit` the time is known already
            main.times.extend([self._stamp()] * (len(main.rows) - len(main.times)))

    def _check_key(self) -> None:
        if self._scope.may_broadcast:
            raise RowError(
                "on_broadcast runs on every task, so each would send this row",
                fix=Fix("process.broadcast-sends", "Send it from on_row"),
            )
        if not self._scope.keys.num_rows:
            raise RowError(
                "rows are sent for a key, and there is none here",
                fix=Fix("process.batch-sends", "Return from on_batch what it sends"),
            )

    def _stamp(self) -> int:
        assert self._moment is not None, "a timed stream has a time"
        return self._moment

    # -- for the user

    @property
    def key(self) -> Any:
        """The key."""
        if self._keys is None:
            if not self._scope.keys.num_rows:
                raise RowError("there is no key here: on_broadcast and on_batch have no current key")
            fields = self._key_fields
            columns = [to_values(self._scope.keys.column(i).cast(f.type)) for i, f in enumerate(fields)]
            self._keys = columns[0] if len(columns) == 1 else list(zip(*columns))
        return self._keys[self._scope.at]

    @property
    def event_time(self) -> datetime | None:
        return None if self.time is None else to_moment(self.time)

    @property
    def watermark(self) -> datetime | None:
        if self.at_watermark <= TIME_MIN:
            return None
        return LAST if self.at_watermark >= TIME_MAX else to_moment(self.at_watermark)

    @property
    def now(self) -> datetime:
        now = self._scope.now
        return FIRST if now <= TIME_MIN else LAST if now >= TIME_MAX else to_moment(now)

    @property
    def random(self) -> random.Random:
        if self._random is None:
            if not self._scope.keys.num_rows:
                raise RowError("random numbers are by key, and there is none here: on_broadcast and on_batch have no current key")
            drawn = self._draws.get()
            self._draws.set(drawn + 1)
            key = hash_keys(self._scope.keys.slice(self._scope.at, 1))[0]
            self._random = random.Random(f"{self.step} {key} {drawn}")
        return self._random

    def emit(self, row: Any, *, to: Output[Any] | str | None = None) -> None:
        self._check_key()
        name = to.name if isinstance(to, Output) else to
        if name is not None and name not in self.sides:
            raise RowError(
                f"there is no side output {name!r}",
                fix=Fix("process.output", f"Declare it in the class of the process function: {name} = pen.Output(…)"),
            )
        collected = self.main if name is None else self.sides[name]
        collected.rows.append(row)
        if self._timed:
            collected.times.append(self._stamp())

    def withdraw(self, row: Any) -> None:
        """Say that the row with this key is no more; only for steps whose rows replace earlier ones."""
        self.main.deletes.add(len(self.main.rows))
        self.emit(row)

    def set_timer(self, name: str = "", *, after: Any = None, at: datetime | None = None, clock: str = "event") -> None:
        check_timer(name, clock)
        if not self._spec.timers:
            raise RowError(
                f"timer {name!r}: there is no on_timer to call",
                fix=Fix("timer.callback", "Define: def on_timer(self, timer, ctx)"),
            )
        if clock == "event" and not self._timed:
            raise RowError(
                f"timer {name!r}: this stream has no event time",
                fix=Fix("timer.event-time", 'Write: clock="processing", or .with_watermark("at", delay="1s") before key_by'),
            )
        if not self._scope.keys.num_rows:
            raise RowError(f"timer {name!r} is by key, and there is none here: on_broadcast and on_batch have no current key")
        base = self._scope.now if clock == "processing" else self.time
        assert base is not None, "a timed stream has a time"
        due = _due(base, after, at, name)
        if not _FIRST <= due <= _LAST:
            raise RowError(f"timer {name!r} would be due in a year that no datetime has")
        self._clocks[clock].set(name, due, self._moment)

    def clear_timer(self, name: str = "", *, clock: str = "event") -> None:
        check_timer(name, clock)
        if clock in self._clocks:
            self._clocks[clock].clear(name)


def _due(base: int, after: Any, at: datetime | None, name: str) -> int:
    if at is None and isinstance(after, str):
        return base + _length(after)
    return due_time(base, after, at, name)


@functools.lru_cache(256)
def _length(text: str) -> int:
    return due_time(0, text, None, "")


def draws_state() -> ValueState[int]:
    """How often each key drew random numbers."""
    state: ValueState[int] = ValueState(int, default=0)
    state.name = "random-draws"
    return state
