"""Whether what came out is what a transcript expects.

Equality is that of the design, per step: of append rows the multiset; of update rows the last one per key; of retract rows the net
multiset. And no row is ever lost or counted twice: `conserved` works out from the input alone how many rows each window must hold.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.windows import TIME_MIN, CountSliding, Running, closing
from transcripts.build import Result
from transcripts.script import PANE, Row, Transcript

Rows = list[dict[str, Any]]
RENAMED = {"window_start": "start", "window_end": "end"}


@dataclass(frozen=True)
class Outcome:
    """What a run made of a transcript: the rows of each step, and the late ones of all."""

    steps: list[Rows]
    late: list[Row]


def plain(batch: pa.RecordBatch) -> Rows:
    """Rows as dicts; times as microseconds, since Python has none after the year 9999."""
    columns = [c.cast(pa.int64()) if pa.types.is_timestamp(c.type) else c for c in batch.columns]
    names = [RENAMED.get(name, name) for name in batch.schema.names]
    return pa.RecordBatch.from_arrays(columns, names=names).to_pylist()


def judge(transcript: Transcript, result: Result, outcome: Outcome) -> None:
    """Every step, the late rows, and that none was lost."""
    table: dict[Any, dict[str, Any]] = {}
    for number, (step, rows) in enumerate(zip(transcript.steps, outcome.steps, strict=True)):
        sent, wanted = said(transcript, result, rows, table, step.expect)
        where = f"{transcript.name}\n  step {number}, {step.action} {'' if step.action == 'end' else step.value}"
        assert sent == wanted, (
            f"{where}\n  expected {shown(wanted - sent)}\n  got      {shown(sent - wanted)}\n  (as well: {shown(sent & wanted)})"
        )
    if transcript.late is not None:
        assert Counter(outcome.late) == Counter(transcript.late), f"{transcript.name}: late rows"
    conserved(transcript, result, outcome, watermarks=True)


def said(
    transcript: Transcript, result: Result, rows: Rows, table: dict[Any, dict[str, Any]], expect: Sequence[dict[str, Any]]
) -> tuple[Counter[Any], Counter[Any]]:
    """What was sent in a step, and what should have been, in a form that can be compared. Keeps the table up to date."""
    before = dict(table)
    apply(result, table, rows)
    complete = 'emit="complete"' in transcript.windows[-1].arguments
    if result.changes == "append":
        return counted(rows), counted(expect)
    if result.changes == "retract":
        return net(rows), net([{**row, "change": -1 if row.get("op") == "delete" else 1} for row in expect])
    if complete:
        # The whole result: who did not send it again says that it is as it was.
        return counted(table.values() if rows else ()), counted(expect)
    last = {tuple(row[key] for key in result.keys): row for row in rows}
    gone = [key for key, row in last.items() if deleted(row) and key in before]
    sent = counted(without_change(row) for row in last.values() if not deleted(row))
    wanted = counted(row for row in expect if row.get("op") != "delete")
    expected_gone = [tuple(row[key] for key in result.keys) for row in expect if row.get("op") == "delete"]
    return sent + Counter(map(delete_of, gone)), wanted + Counter(map(delete_of, expected_gone))


def apply(result: Result, table: dict[Any, dict[str, Any]], rows: Rows) -> None:
    """Bring the table of an update stream up to date."""
    if result.changes != "update":
        return
    for row in rows:
        key = tuple(row[name] for name in result.keys)
        if deleted(row):
            table.pop(key, None)
        else:
            table[key] = without_change(row)


def deleted(row: dict[str, Any]) -> bool:
    return bool(row.get("change", 1) < 0)


def delete_of(key: tuple[Any, ...]) -> tuple[str, tuple[Any, ...]]:
    return "delete", key


def without_change(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in ("change", "op")}


def values(row: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
    """A row without what is said of its pane: what a retraction must be equal to."""
    return tuple(sorted((name, value) for name, value in without_change(row).items() if name not in PANE))


def counted(rows: Iterable[dict[str, Any]]) -> Counter[Any]:
    return Counter(tuple(sorted(without_change(row).items())) for row in rows)


def net(rows: Sequence[dict[str, Any]]) -> Counter[Any]:
    """Inserts that were not withdrawn (with their panes), and withdrawals of what was there before."""
    live: list[dict[str, Any]] = []
    gone: list[tuple[Any, ...]] = []
    for row in rows:
        if not deleted(row):
            live.append(row)
        elif (same := next((other for other in reversed(live) if values(other) == values(row)), None)) is not None:
            live.remove(same)
        else:
            gone.append(values(row))
    for row in list(live):
        if values(row) in gone:  # withdrawn and added again
            gone.remove(values(row))
            live.remove(row)
    return counted(live) + Counter(("withdrawn", each) for each in gone)


def shown(rows: Counter[Any]) -> str:
    return "; ".join(str(row) for row in rows.elements()) or "nothing"


# --- no row is lost
# ----------------------------------------------------------------------------------------------------------------------------------


def final(result: Result, outcome: Outcome) -> Rows:
    """What stands in the end."""
    rows = [row for step in outcome.steps for row in step]
    if result.changes == "append":
        return rows
    if result.changes == "retract":
        total: Counter[Any] = Counter()
        for row in rows:
            total[values(row)] += -1 if deleted(row) else 1
        assert min(total.values(), default=0) >= 0, "more was withdrawn than was ever sent"
        return [dict(each) for each in total.elements()]
    table: dict[Any, dict[str, Any]] = {}
    apply(result, table, rows)
    return list(table.values())


def conserved(transcript: Transcript, result: Result, outcome: Outcome, *, watermarks: bool) -> None:
    """Each row is counted once in each of its windows that had not closed when it came, or is late.

    Args:
        watermarks: False: how far time was when a row came is not known; then it is in all its windows, or late.
    """
    got: Counter[Any] = Counter()
    wanted: Counter[Any] = Counter()
    first, last = transcript.windows[0], transcript.windows[-1]
    alone = first is last  # of a chain only the sum can be told
    exact = alone and not first.shape.merging and first.shape.clock == "event"
    for row in final(result, outcome):
        key = tuple(row[name] for name in last.key) if alone else ()
        got[place(exact, key, row.get("start"), row.get("end"))] += row["n"]
    late = Counter(outcome.late)
    numbers: Counter[Any] = Counter()
    now = TIME_MIN
    for step in transcript.steps:
        if step.action == "watermark" and watermarks:
            now = step.value
        for row in step.value if step.action == "rows" else ():
            if late[row]:
                late[row] -= 1
                continue
            key = (row[0],) if last.key and alone else ()
            for start, end in windows_of(transcript, row, numbers[key], now):
                wanted[place(exact, key, start, end)] += 1
            numbers[key] += 1
    assert not +late, f"{transcript.name}: rows are late that never came: {late}"
    if isinstance(first.shape, CountSliding):  # a window whose last row does not come is not sent
        wanted = Counter({(key, bounds): n for (key, bounds), n in wanted.items() if bounds[1] <= numbers[key]})
    elif first.shape.by_rows:  # a window that is not full at the end ends with its last row
        got, wanted = ends_left_out(got), ends_left_out(wanted)
    assert got == wanted, (
        f"{transcript.name}: rows were lost or counted twice\n  expected {wanted - got}\n  got      {got - wanted}"
    )


def ends_left_out(places: Counter[Any]) -> Counter[Any]:
    out: Counter[Any] = Counter()
    for (key, bounds), n in places.items():
        out[key, bounds and bounds[0]] += n
    return out


def place(exact: bool, key: tuple[Any, ...], start: int | None, end: int | None) -> Any:
    return key, (start, end) if exact and start is not None else None


def windows_of(transcript: Transcript, row: Row, number: int, now: int) -> list[tuple[int | None, int | None]]:
    """The windows of a row that are open."""
    shape, named = transcript.windows[0].shape, transcript.windows[0].given[1]
    if isinstance(shape, Running):
        return [(None, None)]
    if shape.by_rows:
        _, starts, ends = shape.assign(np.array([number]))
        return list(zip(starts.tolist(), ends.tolist()))
    if shape.merging or shape.clock == "processing":
        _, starts, _ = shape.assign(np.array([0]))
        return [(None, None)] * len(starts)
    from penstock.eventtime import micros

    _, starts, ends = shape.assign(np.array([row[1]]))
    is_open = closing(ends, micros(named.get("lateness", "0s"))) > now
    return list(zip(starts[is_open].tolist(), ends[is_open].tolist()))
