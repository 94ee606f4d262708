"""Transcripts: what windows mean, as data. `tests/golden/transcripts/*.yaml` holds them, several to a file.

    - name: a row that is late, but within the lateness, is sent with the rest once more
      window: pen.tumbling("10s"), lateness="15s", emit="update"      # what the user writes between the brackets of .window()
      aggregate: {n: count(*), total: sum(v)}
      steps:
        - rows: [[a, 1, 10], [b, 4, 20]]                              # key, event time, value
        - watermark: 11                                               # nothing more comes at or before this time
          expect:
            - {k: a, start: 0, end: 10, n: 1, total: 10}
            - {k: b, start: 0, end: 10, n: 1, total: 20}
        - clock: 105                                                  # the time of day
        - end: true                                                   # of the input; always the last step
      late: []                                                        # rows that came too late for all their windows

1. Times are seconds since 1970 (9.999999 is a microsecond before 10), or written out: 2024-03-31 01:00:00Z. The clock begins at 100.
2. A step without `expect` sends nothing. All rows of `expect` have the same columns: the key, `start` and `end`, the aggregates, and
   of `timing`, `index`, `first` and `last` (`pen.pane`) those that the transcript is about. `op: delete` is a row that is withdrawn or
   deleted; of a row deleted from an update stream only the key says something.
3. `n` is the number of rows that came in; it must be among the aggregates, so that it can be seen that none is lost.
4. Where `late` is left out nobody reads late rows, and there must not be any.
5. `key` is `k` if it is left out; `key: []` is a window over all rows. `then` is a list of further windows over the result.
6. `emits: [update, delta]` plays the transcript once with each `emit=` (of the last window); where they differ, `expect` says for each
   what is expected.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

import penstock as pen
from penstock import triggers
from penstock.windows import Shape, shape_of
from transcripts import shapes

FOLDER = Path(__file__).parent.parent / "golden" / "transcripts"
PANE = ("timing", "index", "first", "last")
ACTIONS = ("rows", "watermark", "clock", "end")

Row = tuple[str, int, int]  # key, event time, value
CLOCK = 100_000_000
"""What the clock shows at first."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Step:
    """Something that happens, and what must come of it."""

    action: str
    value: Any  # rows: tuple of Row; watermark and clock: microseconds
    expect: tuple[dict[str, Any], ...]


@dataclass(frozen=True)
class Window:
    """A windowed aggregate, as the user writes it."""

    key: tuple[str, ...]
    arguments: str
    aggregate: dict[str, str]

    @cached_property
    def given(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of `window()`."""

        def take(*positional: Any, **named: Any) -> Any:
            return positional, named

        names = {"pen": pen, "triggers": triggers, "shapes": shapes, "take": take}
        return eval(f"take({self.arguments})", names)  # type: ignore[no-any-return]

    @property
    def shape(self) -> Shape:
        """Where its windows are."""
        return shape_of(self.given[0][0])


@dataclass(frozen=True)
class Transcript:
    """One of them. `slug` is a name for steps and sinks; those that differ only in `emit=` have one `source`."""

    name: str
    slug: str
    source: str
    windows: tuple[Window, ...]
    steps: tuple[Step, ...]
    late: tuple[Row, ...] | None

    @property
    def columns(self) -> tuple[str, ...]:
        """Those of the expected rows."""
        return next(tuple(row) for step in self.steps for row in step.expect if "op" not in row)

    @property
    def panes(self) -> tuple[str, ...]:
        """What it wants to know of `pen.pane`."""
        return tuple(column for column in PANE if column in self.columns)

    @property
    def clocked(self) -> bool:
        """Whether the clock matters."""
        return any(step.action == "clock" for step in self.steps)

    @property
    def rows(self) -> list[Row]:
        """Everything that comes in."""
        return [row for step in self.steps if step.action == "rows" for row in step.value]


def load() -> list[Transcript]:
    """All transcripts. Empty files and names given twice are errors."""
    files = sorted(FOLDER.glob("*.yaml"))
    found = [transcript for file in files for transcript in read(file)]
    names = [transcript.name for transcript in found]
    assert len(set(names)) == len(names), f"two transcripts have one name: {[n for n in names if names.count(n) > 1]}"
    return found


def read(file: Path) -> Iterator[Transcript]:
    """The transcripts of a file."""
    entries = yaml.safe_load(file.read_text())
    assert isinstance(entries, list), f"{file} holds no transcripts"
    assert entries, f"{file} is empty"
    for number, entry in enumerate(entries):
        try:
            for emit in entry.pop("emits", [None]):
                yield parsed(entry, f"{file.stem}-{number}", emit)
        except Exception as error:
            raise AssertionError(f"{file.name}: transcript {number} ({entry.get('name')}): {error!r}") from error


def parsed(entry: dict[str, Any], source: str, emit: str | None) -> Transcript:
    """A transcript, checked; `emit`: of those it is to be played with."""
    unknown = set(entry) - {"name", "key", "window", "aggregate", "then", "steps", "late"}
    assert not unknown, f"unknown words {unknown}"
    windows = tuple(
        Window(tuple([k] if isinstance(k := each.get("key", "k"), str) else k), each["window"], each["aggregate"])
        for each in [entry, *entry.get("then", [])]
    )
    name, slug = entry["name"], source
    if emit is not None:
        name, slug = f"{name} ({emit})", f"{source}-{emit}"
        windows = (*windows[:-1], replace(windows[-1], arguments=f'{windows[-1].arguments}, emit="{emit}"'))
    late = None if entry.get("late") is None else tuple(map(row_of, entry["late"]))
    by_rows = windows[-1].shape.by_rows
    steps = tuple(step_of(each, by_rows, emit) for each in entry["steps"])
    transcript = Transcript(name, slug, source, windows, steps, late)
    check(transcript)
    return transcript


def check(transcript: Transcript) -> None:
    """What the format promises."""
    *before, end = transcript.steps
    assert end.action == "end", "the last step is `end: true`"
    assert all(step.action != "end" for step in before), "nothing comes after the end"
    last = transcript.windows[-1]
    needed = {*last.key, *last.aggregate, "n"} | ({"start", "end"} if type(last.shape).__name__ != "Running" else set())
    for step in transcript.steps:
        for row in step.expect:
            if "op" not in row:
                assert needed <= set(row) <= needed | set(PANE), f"{row} should have the columns {sorted(needed)}"
                assert set(row) == set(transcript.columns), f"{row} should have the columns {transcript.columns}"
    clocks = [step.value for step in transcript.steps if step.action == "clock"]
    assert [CLOCK, *clocks] == sorted({CLOCK, *clocks}), "the clock goes on"
    twins = [row for row in transcript.late or () if transcript.rows.count(row) != 1]
    assert not twins, f"{twins} should be among the rows, once: else nobody can tell which is late"


def step_of(entry: dict[str, Any], by_rows: bool, emit: str | None) -> Step:
    """A step, its times in microseconds."""
    (action,) = set(entry) - {"expect"}
    assert action in ACTIONS, f"unknown step {action}"
    value = entry[action]
    value = tuple(map(row_of, value)) if action == "rows" else value if action == "end" else micros(value)
    expected = entry.get("expect", ())
    if isinstance(expected, dict):
        expected = expected[emit]
    expect = [dict(row) for row in expected or ()]
    for row in expect:
        for bound in ("start", "end"):
            if bound in row and not by_rows:
                row[bound] = micros(row[bound])
    return Step(action, value, tuple(expect))


def row_of(entry: list[Any]) -> Row:
    """A row, its time in microseconds."""
    key, at, value = entry
    return key, micros(at), value


def micros(value: Any) -> int:
    """Seconds, or a time written out, as microseconds."""
    if isinstance(value, datetime):
        assert value.tzinfo is not None, f"{value} needs a time zone"
        return (value - EPOCH) // timedelta(microseconds=1)
    if isinstance(value, str):  # beyond the years that datetime knows
        match = re.fullmatch(r"(\d+)-01-01Z", value)
        assert match, f"{value!r} is no time"
        year = int(match[1])  # of the same length as one 400 years earlier
        return micros(datetime(year - 400, 1, 1, tzinfo=UTC)) + 146_097 * 86_400_000_000
    return round(value * 1_000_000)
