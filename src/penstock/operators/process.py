"""Runs a user's `ProcessFunction`: rows and timers of a batch one after the other, its state as columns.

A batch is worked on in four steps: number its keys, call the function for each row, write back what changed, send what was sent.
States are read when a row first asks for one, for all keys of the batch at once.

1. A row whose callback raises is a dead letter (or stops the job), and leaves no trace: its changes, timers and rows are undone.
2. Rows that do not fit their output are found when the batch is encoded. Then the batch is undone and done again, each row
   checked by itself, so that the others are unaffected.
3. With `order="event-time"` rows wait in state until the watermark has passed them. Then rows and timers come in order of time; a
   timer after the rows of its moment. Rows that come later than that are in `late`.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.errors import RAISED, Fix, FunctionError, PenstockError, RowError
from penstock.exact import exactly
from penstock.functions import Failed, arguments_of
from penstock.operators.groups import group_rows
from penstock.operators.named_timers import NamedTimers
from penstock.operators.operator import DEAD, LATE, MAIN, TIME_COLUMN, Errors, Operator, Origin, Out, keep, times_of
from penstock.operators.process_context import RunContext, draws_state
from penstock.operators.rowbuffer import BUCKET, Keys, Places, RowBuffer
from penstock.operators.values import ValueStore
from penstock.processing import states
from penstock.processing.function import Callback, Spec, Timer, to_moment
from penstock.state.columns import gathered
from penstock.state.keygroups import canonical_keys, groups_of, hash_keys
from penstock.tracebacks import one_line, told
from penstock.windows import TIME_MAX

Ints = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class Input:
    """One input: its key columns (none: broadcast), and its columns as the function knows them."""

    keys: tuple[str, ...]
    columns: tuple[str, ...]
    callback: Callback


class _Work:
    """Rows of one batch as the callback takes them."""

    def __init__(self, batch: pa.RecordBatch, keys: Ints, input: Input, origin: Origin | None, timed: bool) -> None:
        self.batch, self.input, self.origin = batch, input, origin
        self.keys: list[int] = keys.tolist()
        self.times: list[int] | None = times_of(batch).tolist() if timed else None

    def arguments(self) -> Iterator[Any]:
        """The row of each call; made anew each time this is asked."""
        return iter(arguments_of(self.input.callback, self.batch))


def _apart(name: str, state: states.State, tables: Mapping[str, Any]) -> ValueStore | None:
    """Where the long values of a state are, if they do not stand in its rows."""
    return None if state.listed is None else ValueStore(name, state.listed, tables)


class Process(Operator):
    """A process function in one task.

    Input:   0: rows, or the left side; 1: the right side, or what is broadcast.
    State:   a table per declared state, and two for lists that may be long; how often keys drew random numbers; per clock the timers
             by name; with an order the rows that wait.
    Output:  main, side outputs; late, with an order.
    """

    def __init__(
        self,
        name: str,
        spec: Spec,
        inputs: list[Input],
        key_fields: list[pa.Field],
        errors: Errors,
        tables: Mapping[str, Any],
        *,
        timed: bool,
        ordered: bool,
        signed: bool,
        stores_broadcast: bool,
        max_parallelism: int,
        watermark: int,
    ) -> None:
        super().__init__(name)
        self._spec, self._inputs, self._errors, self._timed, self._ordered = spec, inputs, errors, timed, ordered
        self._max_parallelism = max_parallelism
        self._key_fields = key_fields
        self._names = [f.name for f in key_fields]
        # All tasks have the same broadcast state: one snapshot of it is enough, and one dead letter.
        self._first = stores_broadcast
        self.states = {n: t for n, t in tables.items() if stores_broadcast or n not in spec.broadcasts}
        self._scope = states.Scope()
        self._function = copy.copy(spec.function)
        self._bound = [state.bound(tables[n], self._scope, _apart(n, state, tables)) for n, state in spec.states.items()]
        self._bound.append(draws_state().bound(tables["random-draws"], self._scope))
        for n, bound in zip(spec.states, self._bound):
            setattr(self._function, n, bound)
        for n, broadcast in spec.broadcasts.items():
            setattr(self._function, n, broadcast.bound(tables[n], self._scope))
        self._clocks = {
            clock: NamedTimers(
                tables[f"{clock}-timers"],
                tables[f"{clock}-due"],
                self._scope,
                max_parallelism,
                ordered=ordered and clock == "event",
            )
            for clock in ("event", "processing")
            if f"{clock}-timers" in tables
        }
        self._buffer = RowBuffer(tables["order-buckets"], tables["order-rows"]) if ordered else None
        self._due = tables["order-due"] if ordered else None
        self._waiting = tables["order-rows"].spec.values if ordered else ()
        self._ctx = RunContext(
            name, spec, self._scope, key_fields, self._clocks, self._bound[-1], timed=timed, signed=signed, watermark=watermark
        )
        self._opened = False
        self.clocked = True  # `ctx.now`
        self._day = tables["processing-due"]  # how far the clock was, also if there are no timers
        self.now = max(self.now, self._day.floor_max)

    # -- rows

    def receive(self, input: int, batch: pa.RecordBatch, origin: Origin | None) -> Iterator[Out]:
        """Rows of one input."""
        self._open()
        side = self._inputs[input]
        if not side.keys:
            yield from self._broadcast(batch, side, origin)
        elif self._buffer is not None:
            yield from self._wait(batch, side, input)
        elif side.callback.name == "on_batch":
            yield from self._batch(batch, side)
        else:
            keys = self._canonical(batch, side)
            groups = group_rows(keys, self._names)
            self._begin(gathered(keys, groups.first))
            yield from self._run([_Work(batch, groups.of, side, origin, self._timed)])

    def _canonical(self, batch: pa.RecordBatch, side: Input) -> pa.RecordBatch:
        return canonical_keys(batch, side.keys, self._names)

    def _broadcast(self, batch: pa.RecordBatch, side: Input, origin: Origin | None) -> Iterator[Out]:
        """No key is current, so states by key cannot be used; what is sent, every task would send."""
        self._begin(pa.RecordBatch.from_arrays([pa.nulls(1, f.type) for f in self._key_fields], names=self._names).slice(0, 0))
        self._scope.may_broadcast = True
        timed = TIME_COLUMN in batch.schema.names
        for port, rows in self._run([_Work(batch, np.zeros(batch.num_rows, np.int64), side, origin, timed)]):
            if self._first or port != DEAD:
                yield port, rows
        self._scope.may_broadcast = False

    def _batch(self, batch: pa.RecordBatch, side: Input) -> Iterator[Out]:
        keys = canonical_keys(batch, side.keys)
        self._begin(keys.slice(0, 0))
        self._ctx.enter(None)
        moments = np.maximum(times_of(batch), self._ctx.passed) if self._timed else None
        shown = batch.select(list(side.columns))
        on_batch: Callable[..., Any] = self._function.on_batch  # type: ignore[attr-defined]
        try:
            found = on_batch(states.Keys(keys, moments), shown, self._ctx)
            made = [] if found is None else [found] if isinstance(found, pa.RecordBatch) else list(found)
        except RAISED as error:
            fix = error.fix if isinstance(error, PenstockError) else None
            raise FunctionError(f"step {self.name!r}: on_batch raised {one_line(error)}", fix=fix) from error
        self._flush()
        for rows in made:
            yield MAIN, self._timed_batch(rows, batch)

    def _timed_batch(self, rows: Any, batch: pa.RecordBatch) -> pa.RecordBatch:
        schema = self._spec.schema
        if not isinstance(rows, pa.RecordBatch) or rows.schema.names != schema.names:
            found = rows.schema.names if isinstance(rows, pa.RecordBatch) else type(rows).__name__
            raise RowError(f"step {self.name!r}: on_batch must give batches with the columns {schema.names}, and gave {found}")
        try:
            arrays, fields = [exactly(rows.column(f.name), f.type) for f in schema], list(schema)
        except pa.ArrowException as error:
            raise RowError(f"step {self.name!r}: on_batch gave a column that does not fit: {error}") from error
        for array, field in zip(arrays, fields):
            if array.null_count and not field.nullable:
                raise RowError(f"step {self.name!r}: on_batch gave a null in {field.name!r}, and the column is not null")
        if self._timed:
            if rows.num_rows != batch.num_rows:
                raise RowError(
                    f"step {self.name!r}: on_batch got {batch.num_rows} rows with event time and gave {rows.num_rows}:"
                    " whose time would they have?",
                    fix=Fix("process.batch-rows", "Give as many rows, or use on_row"),
                )
            arrays.append(batch.column(TIME_COLUMN))
            fields.append(batch.schema.field(TIME_COLUMN))
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))

    # -- rows in order of time

    def _wait(self, batch: pa.RecordBatch, side: Input, input: int) -> Iterator[Out]:
        assert self._buffer is not None
        assert self._due is not None
        keys = Keys(self._canonical(batch, side))
        times = times_of(batch)
        late = times <= self._due.floor_of(groups_of(keys.hashes, self._max_parallelism))
        if late.any():
            self.counters["late"] += int(late.sum())
            yield LATE if input == 0 else "late_right", keep(batch, late)
            rows = np.flatnonzero(~late)
            batch, keys, times = gathered(batch, rows), keys.take(rows), times[rows]
        if not batch.num_rows:
            return
        columns = [
            batch.column(name.partition(".")[2]) if name.startswith(f"{input}.") else pa.nulls(batch.num_rows, field.type)
            for name, field in ((f.name, f) for f in self._waiting)
        ]
        columns[0] = pa.array(np.full(batch.num_rows, input), pa.int8())
        _, fresh = self._buffer.add(keys, times, pa.RecordBatch.from_arrays(columns, names=self._buffer.values))
        self._due.add(fresh.columns.column(BUCKET).to_numpy(), fresh.columns, fresh.hashes)

    def _released(self, time: int) -> Iterator[tuple[pa.RecordBatch, pa.RecordBatch, int]]:
        """Rows that have waited until now, in pieces: keys, rows in order of time, and up to when."""
        assert self._buffer is not None
        assert self._due is not None
        for due in self._due.due(time):
            places = due.select([*self._names, BUCKET])
            stored = self._buffer.pop(Places(places, hash_keys(places.select(self._names))))
            order = np.argsort(stored.places.column(BUCKET).to_numpy(), kind="stable")
            yield gathered(stored.places, order), gathered(stored.rows, order), int(due.column(0)[-1].as_py())
        self._due.advance(time)

    def _works(self, places: pa.RecordBatch, rows: pa.RecordBatch, keys: Ints) -> list[tuple[_Work, Ints]]:
        """Rows that waited, by input, and where they stand among all."""
        which = rows.column(0).to_numpy()
        found = []
        for number, side in enumerate(self._inputs):
            at = np.flatnonzero(which == number)
            if len(at) and side.keys:
                taken = gathered(rows, at)
                columns = [taken.column(f"{number}.{name}") for name in side.columns]
                times = gathered(places.column(BUCKET), at).cast(pa.timestamp("us", tz="UTC"))
                batch = pa.RecordBatch.from_arrays([*columns, times], names=[*side.columns, TIME_COLUMN])
                found.append((_Work(batch, keys[at], side, None, True), at))
        return found

    # -- time

    def advance(self, time: int) -> Iterator[Out]:
        """Rows that waited, and the timers of event time."""
        self._open()
        self._ctx.at_watermark = time
        if self._buffer is not None:
            for places, rows, upto in self._released(time):
                yield from self._in_order(places, rows, upto)
        if "event" in self._clocks:
            yield from self._fire("event", time)
        if time < TIME_MAX:
            self._ctx.passed = time
            self._expire("event", time)

    def _in_order(self, places: pa.RecordBatch, rows: pa.RecordBatch, upto: int) -> Iterator[Out]:
        """Rows with the timers that are due before them, or become so."""
        # Not those at the time of the last row: more rows of that time may follow, and come before them.
        clock, upto = self._clocks.get("event"), upto - 1
        timers = clock.take(upto) if clock is not None else None
        keys = places.select(self._names)
        both = pa.concat_batches([keys, timers.select(self._names)]) if timers is not None else keys
        groups = group_rows(both, self._names)
        self._begin(gathered(both, groups.first))
        works = self._works(places, rows, groups.of[: keys.num_rows])
        sequence = sorted((n, w, i) for w, (_, at) in enumerate(works) for i, n in enumerate(at.tolist()))
        if clock is not None:
            clock.fire(timers, groups.of[keys.num_rows :], upto)
        yield from self._run([work for work, _ in works], [(w, i) for _, w, i in sequence], clock)

    def on_time(self, now: int) -> Iterator[Out]:
        """The timers of the time of day."""
        self._open()
        if now < TIME_MAX:
            self._scope.now = now
            self._expire("processing", now)
        if "processing" in self._clocks:
            yield from self._fire("processing", now)
        else:
            self._day.advance(now)

    @property
    def wake_at(self) -> int | None:
        """When the next of these is due."""
        return self._clocks["processing"].next_due if "processing" in self._clocks else None

    def _expire(self, clock: str, time: int) -> None:
        for bound in self._bound:
            if bound.ttl is not None and bound.clock == clock:
                bound._table.horizon = max(bound._table.horizon, time)

    def _fire(self, name: str, time: int) -> Iterator[Out]:
        clock = self._clocks[name]
        for due in clock.due(time):
            groups = group_rows(due, self._names)
            self._begin(gathered(due.select(self._names), groups.first))
            clock.fire(due, groups.of, int(due.column(0)[-1].as_py()))
            yield from self._run([], [], clock, name)

    # -- a batch

    def _open(self) -> None:
        if not self._opened:
            self._opened = True
            self._function.open(self._ctx)
        if self.now < TIME_MAX:
            self._scope.now = self.now

    def _begin(self, keys: pa.RecordBatch) -> None:
        self._scope.keys = keys
        self._scope.at = 0
        self._scope.journal.clear()
        self._ctx.begin()

    def _flush(self) -> None:
        for bound in self._bound:
            bound._flush()
        for clock in self._clocks.values():
            clock.flush()
        self._scope.journal.clear()

    def _run(
        self,
        works: list[_Work],
        sequence: list[tuple[int, int]] | None = None,
        clock: NamedTimers | None = None,
        clock_name: str = "event",
    ) -> Iterator[Out]:
        """Call the function for all rows, write back, and send. `sequence`: (work, row) in the order to take them."""
        mark = None if clock is None else clock.mark()
        for careful in (False, True):
            bad = self._call(works, sequence, clock, clock_name, careful=careful)
            if bad and self._errors.fail:
                break
            try:
                out = self._ctx.batches()
                for bound in self._bound:
                    bound._prepare()
                break
            except Exception:
                assert not careful, "each row was checked"
                self._scope.undo()
                self._ctx.rewind([0] * (1 + len(self._ctx.sides)))
                if clock is not None and mark is not None:
                    clock.back_to(mark)
        letters = list(itertools.chain.from_iterable(self._letters(work, number, error) for work, number, error in bad))
        self._flush()
        yield from letters
        yield from out

    def _call(
        self,
        works: list[_Work],
        sequence: list[tuple[int, int]] | None,
        clock: NamedTimers | None,
        clock_name: str,
        *,
        careful: bool,
    ) -> list[tuple[_Work | None, int, BaseException]]:
        """Each row, and each timer in between; which failed."""
        bad: list[tuple[_Work | None, int, BaseException]] = []
        if sequence is None:
            (work,) = works
            self._rows(work, bad, careful=careful)
            return bad
        arguments = [list(work.arguments()) for work in works]
        for which, number in sequence:
            work = works[which]
            assert work.times is not None
            while clock is not None and (due := clock.next_firing) is not None and due < work.times[number]:
                self._timer(clock, clock_name, bad, careful=careful)
            self._scope.at = work.keys[number]
            self._one(work, number, arguments[which][number], work.times[number], bad, careful=careful)
        while clock is not None and clock.next_firing is not None:
            self._timer(clock, clock_name, bad, careful=careful)
        return bad

    def _rows(self, work: _Work, bad: list[Any], *, careful: bool) -> None:
        """The hot loop: all rows of a batch."""
        scope, ctx, times = self._scope, self._ctx, work.times
        function: Callable[[Any, Any], Any] = getattr(self._function, work.input.callback.name)
        journal, main, sent = scope.journal, ctx.main.rows, ctx.sent
        slow = careful or bool(ctx.sides)
        for number, (key, argument) in enumerate(zip(work.keys, work.arguments())):
            scope.at = key
            time = None if times is None else times[number]
            if slow:
                self._one(work, number, argument, time, bad, careful=careful)
                continue
            mark, length = len(journal), len(main)
            ctx.enter(time)
            try:
                if type(argument) is Failed:
                    raise argument.error
                found = function(argument, ctx)
                if found is not None:
                    sent(found)
            except RAISED as error:
                self._undo(mark)
                ctx.main.cut(length)
                bad.append((work, number, error))

    def _one(self, work: _Work, number: int, argument: Any, time: int | None, bad: list[Any], *, careful: bool) -> None:
        self._ctx.enter(time)
        function = getattr(self._function, work.input.callback.name)

        def call() -> Any:
            if type(argument) is Failed:
                raise argument.error
            return function(argument, self._ctx)

        self._guarded(call, work, number, bad, careful=careful)

    def _timer(self, clock: NamedTimers, name: str, bad: list[Any], *, careful: bool) -> None:
        popped = clock.pop()
        if popped is None:
            return
        at, timer, (due, when, time) = popped
        self._scope.at = at
        if name == "event":
            self._ctx.enter(when, max(when, due))
        else:  # what it sends has the time of who set it, and is not late for having waited
            late = time is not None and time <= self._ctx.at_watermark < TIME_MAX
            self._ctx.enter(self._ctx.at_watermark + 1 if late else time)
        fired = Timer(timer, to_moment(when), name)
        on_timer: Callable[..., Any] = self._function.on_timer  # type: ignore[attr-defined]
        self._guarded(lambda: on_timer(fired, self._ctx), None, at, bad, careful=careful)

    def _guarded(self, call: Callable[[], Any], work: _Work | None, number: int, bad: list[Any], *, careful: bool) -> None:
        """Call, and undo if it raises."""
        mark, marks = len(self._scope.journal), self._ctx.marks()
        try:
            found = call()
            if found is not None:
                self._ctx.sent(found)
            if careful:
                self._ctx.check(marks)
                for bound in self._bound:
                    bound._verify()
        except RAISED as error:
            self._undo(mark)
            self._ctx.rewind(marks)
            bad.append((work, number, error))

    def _undo(self, mark: int) -> None:
        journal = self._scope.journal
        while len(journal) > mark:
            function, *arguments = journal.pop()
            function(*arguments)

    def _letters(self, work: _Work | None, number: int, error: BaseException) -> Iterator[Out]:
        name = "on_timer" if work is None else work.input.callback.name
        text = told(error, getattr(self._function, name), before="on_timer: " if work is None else "")
        if work is not None:
            yield from self._errors.letters(work.batch, [number], text, work.origin)
        else:
            yield from self._errors.letters(self._scope.keys, [number], text, None)

    def close(self) -> None:
        """Tell the function."""
        if self._opened:
            self._function.close()
