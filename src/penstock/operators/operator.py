"""What an operator is: columnar logic over batches. State in, rows out; no IO, no plan, no time of its own.

1. `process` takes rows and yields (port, rows); `advance` is told how far event time is, `on_time` the time of day; `end` that
   no more will come. Each yields as it goes, so a window that fires ten million rows never holds them all. An operator with
   several inputs has `receive` instead of `process`.
2. What an operator remembers across a restart is in `states`, and only there. The task snapshots it; operators contain no
   snapshot code.
3. How rows are cut into batches never changes the result.
4. Rows may be held back for a while, see `holding`: only between one read and the next, so never across a barrier.
5. A row that cannot be processed is a dead letter (port "dead") or an error that stops the job, by `on_error`. In both what to do
   about it is the second line, if the error says that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.errors import Fix, RowError, readable
from penstock.schema import shown
from penstock.state.columns import SPAN_FEW, fixed_array, fixed_values, gathered
from penstock.tracebacks import Told, blame

MAIN, LATE, DEAD = "main", "late", "dead"
PASS = "pass"
"""Not a port: whoever was `holding` yields it, with no rows, when event time may go on to whoever reads it."""

SET_ASIDE = Fix(
    "rows.set_aside", 'To set such rows aside: pen.Pipeline(..., on_error="dead-letter") and pipeline.dead_letters.write(...)'
)

Out = tuple[str, pa.RecordBatch]

TIME_COLUMN, CHANGE_COLUMN, PANE_COLUMN = "__time", "__change", "__pane"
TIME_TYPE = pa.timestamp("us", tz="UTC")
Ints = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class Origin:
    """Where rows were read, as long as that is known: dead letters name it, and watermarks are kept by it."""

    source: str
    split: str
    position: Any


class Operator:
    """Base of all operators; does nothing."""

    name: str
    states: Mapping[str, Any]  # name -> KeyedTable, TimerTable or what has their freeze, stored and close
    counters: Counter[str]
    clocked: bool = False  # whether it goes by the time of day
    now: int = -(2**63)  # the time of day, if it does

    def __init__(self, name: str) -> None:
        self.name = name
        self.states = {}
        self.counters = Counter()

    def receive(self, input: int, batch: pa.RecordBatch, origin: Origin | None) -> Iterator[Out]:
        """Take rows that came in by one of several inputs."""
        return self.process(batch, origin)

    def process(self, batch: pa.RecordBatch, origin: Origin | None) -> Iterator[Out]:
        """Take rows, yield rows."""
        yield MAIN, batch

    @property
    def wake_at(self) -> int | None:
        """When it wants to be told the time (`on_time`) next."""
        return None

    def on_time(self, now: int) -> Iterator[Out]:
        """It is `now`; only for operators that are `clocked`. At the end of input it is the end of time."""
        yield from ()

    @property
    def holding(self) -> bool:
        """Whether it holds rows back: then event time waits behind them. Whoever drives it says `release` before anything but a read."""
        return False

    def release(self) -> Iterator[Out]:
        """Send what is held back, then `PASS`."""
        yield from ()

    def advance(self, time: int) -> Iterator[Out]:
        """Event time has reached `time`: nothing more at or before it."""
        yield from ()

    def end(self) -> Iterator[Out]:
        """No more rows, and event time is over; `advance` has been told."""
        yield from ()

    def close(self) -> None:
        """Let go of what is outside Python's memory. The states are closed by whoever drives it."""


class Errors:
    """What an operator does with rows it cannot process. `where`: the line that the step was written in."""

    def __init__(self, step: str, on_error: str, dead_schema: pa.Schema, where: str = "") -> None:
        self.step, self.fail, self._schema = step, on_error == "fail", dead_schema
        self._line = f" ({where})" if where else ""

    def letters(
        self,
        batch: pa.RecordBatch,
        rows: Sequence[int] | np.ndarray[Any, Any],
        reasons: str | Sequence[str],
        origin: Origin | None,
    ) -> Iterator[Out]:
        """Dead letters for these rows of a batch, or the error that stops the job."""
        numbers = [int(row) for row in rows]
        texts = [readable(reasons)] * len(numbers) if isinstance(reasons, str) else list(map(readable, reasons))
        if CHANGE_COLUMN in batch.schema.names:  # what is withdrawn failed, and was told, when it came
            added = batch.column(CHANGE_COLUMN).to_numpy() > 0
            told = [(row, text) for row, text in zip(numbers, texts) if added[row]]
            numbers, texts = [row for row, _ in told], [text for _, text in told]
        if not numbers:
            return
        visible = [name for name in batch.schema.names if not name.startswith("__")]
        records = [str({name: shown(batch.column(name)[row]) for name in visible})[:1000] for row in numbers]
        if self.fail:
            where = f" of source {origin.source!r}, split {origin.split!r}" if origin else ""
            who = f"step {self.step!r}{self._line}"
            said = texts[0] if isinstance(texts[0], Told) else Told(texts[0])
            fix = SET_ASIDE if said.fix is None else replace(said.fix, text=f"{said.fix.text}\n  {SET_ASIDE.text}")
            refused = RowError(f"{who} cannot process a row{where}: {said}. The row: {records[0]}", fix=fix)
            blame(refused, who, said.frames)
            raise refused
        times = batch.column(TIME_COLUMN) if TIME_COLUMN in batch.schema.names else None
        texts = [f"{text}\n  {text.fix.text}" if isinstance(text, Told) and text.fix else text for text in texts]
        yield DEAD, self._batch(texts, records, origin, [times[row].as_py() for row in numbers] if times is not None else None)

    def undecoded(self, bad: Sequence[Any], origin: Origin) -> Iterator[Out]:
        """Dead letters for records that never became rows (`connectors.BadRecord`)."""
        if not bad:
            return
        if self.fail:
            raise RowError(
                f"source {origin.source!r}{self._line}, split {origin.split!r}, position {bad[0].position}: {readable(bad[0].error)}."
                f" The record: {readable(bad[0].record)}",
                fix=SET_ASIDE,
            )
        letters = self._batch([b.error for b in bad], [b.record for b in bad], origin, None)
        positions = pa.array([readable(str(b.position)) for b in bad], pa.string())
        yield DEAD, letters.set_column(letters.schema.get_field_index("position"), self._schema.field("position"), positions)

    def _batch(self, errors: list[str], records: list[str], origin: Origin | None, times: list[Any] | None) -> pa.RecordBatch:
        count = len(errors)
        # Whatever a source or a function put into them, dead letters can be written.
        columns = {
            "step": [self.step] * count,
            "source": [origin.source if origin else None] * count,
            "split": [origin.split if origin else None] * count,
            "position": [str(origin.position) if origin else None] * count,
            "error": list(map(readable, errors)),
            "record": list(map(readable, records)),
            "event_time": times or [None] * count,
        }
        return pa.RecordBatch.from_pydict(columns, schema=self._schema)


def times_of(batch: pa.RecordBatch) -> Ints:
    """The event time of each row, in microseconds. A cast would say the same, and cost as much as a whole step does for few rows."""
    times: Ints = fixed_values(batch.column(TIME_COLUMN))
    return times


def as_times(micros: Ints) -> pa.Array:
    """Microseconds as times; nobody may write to them afterwards."""
    return fixed_array(TIME_TYPE, np.ascontiguousarray(micros, np.int64), None)


def keep(batch: pa.RecordBatch, mask: np.ndarray[Any, Any]) -> pa.RecordBatch:
    """The rows where the mask is true."""
    if mask.all():
        return batch
    return gathered(batch, np.flatnonzero(mask)) if len(mask) <= SPAN_FEW else batch.filter(pa.array(mask))
