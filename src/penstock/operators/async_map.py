"""An awaited function of each row. The operator asks for calls and is told how they ended; it neither waits nor knows the time.

Terms. A row is **in flight** from when it comes until what became of it is sent. A **mark** is something that must keep its place
among the rows: a watermark, or that the input rests. The rows between two marks are a **segment**.

1. Rows in flight are the operator's state, and all of it: whoever restores them asks for their calls again. So a call is made at
   least once, and its result is sent once.
2. A mark passes when all rows before it are sent, and results never leave their segment: what follows a mark leaves after it. So
   a row that was not late when it came is not late when it leaves, nor the other way round.
3. `ordered`: results leave in the order of the rows. Otherwise in any order within their segment.
4. At most `capacity` rows are asked for and not sent. Others wait here, and until none waits the operator is not `ready`: whoever
   feeds it should stop. So it holds at most `capacity` rows and what the last batch brought.
5. A call that fails is asked for again, up to `attempts` times in all, each time after twice the delay. What returns something
   that does not fit the schema is not repeated: it would not fit again. How often a row failed is not part of a snapshot.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, groupby
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.functions import RowFunction
from penstock.operators.operator import MAIN, Errors, Operator, Origin, Out
from penstock.operators.write import conform
from penstock.state.columns import gathered
from penstock.state.history import Frozen
from penstock.state.keygroups import groups_of, hash_keys
from penstock.state.runfile import Handle
from penstock.state.table import KeyedTable
from penstock.tracebacks import told

LANE, NUMBER = "__lane", "__n"
ORIGIN = ("__source", "__split", "__position")
DELAY_US_MAX = 60_000_000
TIME_MIN = -(2**63)


@dataclass(slots=True, eq=False)
class InFlight:
    """A row whose result has not been sent. `number` names its calls; `key` finds it in the state."""

    number: int
    segment: Segment
    key: tuple[int, int]
    batch: pa.RecordBatch
    row: int
    origin: Origin | None
    argument: Any
    attempt: int = 0
    asked: bool = False
    done: bool = False
    result: Any = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """A call to be made after `delay`; no answer within `timeout` is a failure. Microseconds."""

    number: int
    work: Callable[[], Awaitable[Any]]
    timeout: int
    delay: int = 0


@dataclass(frozen=True, slots=True)
class Answer:
    """How a call ended."""

    number: int
    result: Any = None
    error: str | None = None


@dataclass(slots=True)
class Segment:
    """Rows up to a mark. `idle`: the mark says that the input rests, at `time`; no time: the segment is open."""

    rows: dict[int, InFlight] = field(default_factory=dict)
    finished: list[InFlight] = field(default_factory=list)  # in the order they were
    time: int | None = None
    idle: bool = False

    def leave(self, *, ordered: bool) -> list[InFlight]:
        """Take out the rows whose results may be sent."""
        if ordered:
            leaving = []
            for row in self.rows.values():
                if not row.done:
                    break
                leaving.append(row)
        else:
            leaving = sorted(self.finished, key=lambda row: row.number)
        self.finished = []
        for row in leaving:
            del self.rows[row.number]
        return leaving


@dataclass(frozen=True, slots=True)
class Rules:
    """What the user asked for. Times in microseconds."""

    capacity: int
    ordered: bool
    timeout: int
    attempts: int
    delay: int


class AsyncMap(Operator):
    """Await a function for each row.

    Input:   the columns the function reads.
    State:   the rows in flight, found by a lane and a number: see `lane_of`.
    Output:  what it returned, with the hidden columns of the row; rows whose calls failed for good are dead letters.
    """

    def __init__(self, name: str, function: RowFunction, rules: Rules, errors: Errors, table: KeyedTable) -> None:
        super().__init__(name)
        self._function, self._rules, self._errors = function, rules, errors
        self._columns = [f.name for f in table.spec.values if f.name not in ORIGIN]
        self._lane = lane_of(table.groups, table.max_parallelism)
        self._taken = 0  # rows that came, restored ones included
        self._next = 0  # the number of the next row in its lane
        self._segments = deque([Segment()])
        self._waiting: deque[InFlight] = deque()
        self._flying: dict[int, InFlight] = {}
        self._held = 0  # rows that were asked for and not sent
        self._asked: list[Asked] = []
        self._passed = False
        self.time, self.idle = TIME_MIN, False  # what the last mark that passed says
        state = InFlightTable(table, self.in_flight)
        self.states = {"rows": state}
        for batch, keys, origins in state.restored():
            self._take(batch, keys, origins)
            self._next = max(self._next, 1 + max(number for _, number in keys))
        self._ask()

    # What the task asks.

    @property
    def capacity(self) -> int:
        """How many calls may be under way."""
        return self._rules.capacity

    @property
    def ready(self) -> bool:
        """Whether it wants more rows."""
        return not self._waiting

    @property
    def busy(self) -> bool:
        """Whether rows are in flight."""
        return len(self._segments) > 1 or bool(self._segments[0].rows)

    def in_flight(self) -> Iterator[InFlight]:
        """The rows whose results have not been sent, in order."""
        return chain.from_iterable(segment.rows.values() for segment in self._segments)

    def asked(self) -> list[Asked]:
        """The calls to make now; tells each once."""
        asked, self._asked = self._asked, []
        return asked

    def passed(self) -> bool:
        """Whether marks have passed since it was asked last: `time` and `idle` are news."""
        passed, self._passed = self._passed, False
        return passed

    # What happens.

    def process(self, batch: pa.RecordBatch, origin: Origin | None) -> Iterator[Out]:
        """Take rows in."""
        numbers = range(self._next, self._next + batch.num_rows)
        self._next = numbers.stop
        self._take(batch.select(self._columns), [(self._lane, number) for number in numbers], [origin] * batch.num_rows)
        self._ask()
        return self._send()

    def mark(self, time: int, *, idle: bool) -> None:
        """Time is there, or the input rests at that time: it passes behind the rows that are here now."""
        last = self._segments[-1]
        if last.rows:
            last.time, last.idle = time, idle
            self._segments.append(Segment())
        elif len(self._segments) > 1:  # nothing came since the last mark
            last = self._segments[-2]
            last.time, last.idle = time, idle
        else:
            self._pass(time, idle)

    def on_results(self, answers: Iterable[Answer]) -> Iterator[Out]:
        """Calls have ended."""
        for answer in answers:
            row = self._flying.pop(answer.number)
            if answer.error is None:
                self._finish(row, result=answer.result)
            elif row.attempt < self._rules.attempts:
                self._call(row)
            else:
                self._finish(row, error=answer.error)
        yield from self._send()
        self._ask()

    # Rows.

    def _take(self, batch: pa.RecordBatch, keys: Sequence[tuple[int, int]], origins: Sequence[Origin | None]) -> None:
        arguments = self._function.arguments(batch)
        for row, ((argument, error), key, origin) in enumerate(zip(arguments, keys, origins, strict=True)):
            taken = InFlight(self._taken, self._segments[-1], key, batch, row, origin, argument)
            taken.segment.rows[self._taken] = taken
            self._taken += 1
            if error is not None:
                self._finish(taken, error=told(error, self._function.function))
            else:
                self._waiting.append(taken)

    def _finish(self, row: InFlight, *, result: Any = None, error: str | None = None) -> None:
        row.done, row.result, row.error, row.argument = True, result, error, None
        row.segment.finished.append(row)

    def _ask(self) -> None:
        """Ask for calls of rows that wait, as far as there is room."""
        while self._waiting and self._held < self._rules.capacity:
            row = self._waiting.popleft()
            row.asked = True
            self._held += 1
            self._call(row)

    def _call(self, row: InFlight) -> None:
        row.attempt += 1
        delay = 0
        if row.attempt > 1:
            self.counters["retries"] += 1
            delay = min(self._rules.delay * 2 ** min(row.attempt - 2, 32), DELAY_US_MAX)
        self.counters["calls"] += 1
        self._flying[row.number] = row
        self._asked.append(Asked(row.number, partial(self._function.function, row.argument), self._rules.timeout, delay))

    def _send(self) -> Iterator[Out]:
        """Send what may leave now, and let marks pass behind it."""
        leaving: list[InFlight] = []
        while True:
            first = self._segments[0]
            leaving += first.leave(ordered=self._rules.ordered)
            if first.rows or first.time is None:
                break
            self._pass(first.time, first.idle)
            self._segments.popleft()
        self._held -= sum(row.asked for row in leaving)
        for _, rows in groupby(leaving, key=lambda row: (id(row.batch), row.origin)):
            yield from self._results(list(rows))

    def _pass(self, time: int, idle: bool) -> None:
        self.time, self.idle, self._passed = time, idle, True

    def _results(self, rows: list[InFlight]) -> Iterator[Out]:
        """The results of rows that came in one batch."""
        batch, origin = rows[0].batch, rows[0].origin
        good = [row for row in rows if row.error is None]
        applied = self._function.fit([row.row for row in good], [row.result for row in good], [])
        bad = {row.row: row.error for row in rows if row.error is not None}
        bad |= {row: told(error, self._function.function) for row, error in applied.errors}
        if bad:
            numbers = sorted(bad)
            yield from self._errors.letters(batch, numbers, [bad[row] or "" for row in numbers], origin)
        out, picked = applied.rows, pa.array(applied.origin)
        for name in batch.schema.names:
            if name.startswith("__"):
                out = out.append_column(batch.schema.field(name), batch.column(name).take(picked))
        yield MAIN, out


# --- rows in flight as state
# ----------------------------------------------------------------------------------------------------------------------------------


class InFlightTable:
    """The rows in flight as a state. Written down when a snapshot is taken: most rows come and go between two of them."""

    def __init__(self, table: KeyedTable, rows: Callable[[], Iterable[InFlight]]) -> None:
        self._table, self._rows = table, rows
        self._kept: set[tuple[int, int]] = set()  # what the table holds

    def restored(self) -> Iterator[tuple[pa.RecordBatch, list[tuple[int, int]], list[Origin | None]]]:
        """What the table holds: rows of each lane in their order, with their keys and where they were read."""
        found = list(self._table.scan())
        if not found:
            return
        rows = pa.Table.from_batches(found)
        order = pc.sort_indices(rows.select([LANE, NUMBER]), [(LANE, "ascending"), (NUMBER, "ascending")])
        for batch in rows.take(order).combine_chunks().to_batches():
            keys = list(zip(batch.column(LANE).to_pylist(), batch.column(NUMBER).to_pylist()))
            read = zip(*(batch.column(name).to_pylist() for name in ORIGIN))
            self._kept.update(keys)
            values = batch.drop_columns([LANE, NUMBER, *ORIGIN])
            yield values, keys, [None if source is None else Origin(source, split, at) for source, split, at in read]

    def freeze(self, epoch: int) -> Frozen:
        """The rows in flight now."""
        now = {row.key: row for row in self._rows()}
        gone = [key for key in self._kept if key not in now]
        fresh = [row for key, row in now.items() if key not in self._kept]
        if gone:
            self._table.delete_many(keys_of(gone))
        if fresh:
            self._table.put_many(keys_of([row.key for row in fresh]), self._values(fresh))
        self._kept = set(now)
        return self._table.freeze(epoch)

    def stored(self, frozen: Frozen, handles: Sequence[Handle]) -> None:
        """A snapshot is on disk."""
        self._table.stored(frozen, handles)

    def close(self) -> None:
        """Let go of the table."""
        self._table.close()

    def _values(self, rows: list[InFlight]) -> pa.RecordBatch:
        read = [(o.source, o.split, str(o.position)) if (o := row.origin) is not None else (None, None, None) for row in rows]
        told = {name: pa.array([each[i] for each in read], pa.string()) for i, name in enumerate(ORIGIN)}
        pieces = []
        for _, some in groupby(rows, key=lambda row: id(row.batch)):
            several = list(some)
            pieces.append(gathered(several[0].batch, [row.row for row in several]))
        schema = self._table.spec.values
        arrays = [
            told[f.name] if f.name in told else pa.concat_arrays([conform(piece.column(f.name), f.type) for piece in pieces])
            for f in schema
        ]
        return pa.RecordBatch.from_arrays(arrays, names=schema.names)


def keys_of(keys: Sequence[tuple[int, int]]) -> pa.RecordBatch:
    """Keys as the table takes them."""
    return pa.record_batch({LANE: pa.array([a for a, _ in keys], pa.int64()), NUMBER: pa.array([n for _, n in keys], pa.int64())})


def lane_of(groups: range, max_parallelism: int) -> int:
    """The least number whose key group is among these.

    Rows in flight have no key, so each task files them under a lane: a number that hashes to a key group it owns. At a restore the
    lane goes where its group goes, whatever the parallelism, and the rows of a lane stay together and in order.
    """
    step = 4 * max_parallelism
    for first in range(0, 64 * step, step):
        numbers = pa.array(np.arange(first, first + step))
        found = groups_of(hash_keys(pa.record_batch({LANE: numbers})), max_parallelism)
        mine = np.flatnonzero((found >= groups.start) & (found < groups.stop))
        if len(mine):
            return first + int(mine[0])
    raise AssertionError(f"no number hashes to one of the key groups {groups}")
