"""Windows: which of them a row lies in. Shapes are values that the API builds; they keep no state.

All shapes share one interface (`Shape`):

    assign(times)   (rows, starts, ends): one entry per row and window. `rows` are row numbers, ascending; None: one window per
                    row, in order. A window holds `start <= t < end`; its last moment is `end - 1`.
    merging         whether windows of a key that meet become one (sessions): what `assign` gives is then only the beginning
    by_rows         whether "times" are row numbers of the key, 0, 1, 2…, not times
    timed           whether rows need a time at all
    clock           whose time it is: "event" (the row's) or "processing" (the machine's)
    params, text    for checkpoints, and for people

| shape           | windows                                       | each row lies in             |
|-----------------|-----------------------------------------------|------------------------------|
| `Tumbling`      | side by side; with a time zone, by its clock  | one                          |
| `Sliding`       | one begins at every step                      | size / every, up or down     |
| `Session`       | up to a gap between the rows of a key         | one, once merged             |
| `CountTumbling` | so many rows of a key, then the next          | one                          |
| `CountSliding`  | the last so many rows, at every so many       | rows / every, up or down     |
| `Running`       | one, for all time                             | it                           |
| `Custom`        | what the user's `WindowShape.assign(at)` says | 1 to 1000                    |
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, TypeAlias

import numpy as np

from penstock.errors import Fix, PlanError, RowError, brief
from penstock.eventtime import Tumbling, check_clock, micros
from penstock.grid import Ints
from penstock.shapes import TIME_MAX, TIME_MIN, CountSliding, CountTumbling, Running, Session, Sliding

__all__ = [
    "TIME_MAX",
    "TIME_MIN",
    "CountSliding",
    "CountTumbling",
    "Custom",
    "Running",
    "Session",
    "Shape",
    "Sliding",
    "Tumbling",
    "WindowShape",
    "closing",
    "running",
    "session",
    "shape_of",
    "sliding",
    "tumbling",
]

WINDOWS_MAX = 1000
_EPOCH, _MICRO = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)


def closing(ends: Ints, lateness: int) -> Ints:
    """The watermark at which windows close for good: last moment + lateness, but not beyond the end of time.

    A row is late for a window if this is at or below the watermark.
    """
    last: Ints = ends - 1
    closed: Ints = np.minimum(last, TIME_MAX - lateness) + lateness
    return closed


class WindowShape:
    """Windows of your own: extend this and say which windows a time lies in.

        @dataclass(frozen=True)
        class Quarter(pen.WindowShape):
            def assign(self, at: datetime) -> list[tuple[datetime, datetime]]:
                first = at.replace(month=(at.month - 1) // 3 * 3 + 1, day=1, hour=0, minute=0, second=0, microsecond=0)
                return [(first, (first + timedelta(days=93)).replace(day=1))]

    `assign` must depend on nothing but `at` and the fields of the shape: it is called once per distinct time, on any machine,
    and again after a failure. Fields go into checkpoints: a pipeline with other fields does not continue from them.
    """

    clock: ClassVar[str] = "event"

    def assign(self, at: datetime) -> list[tuple[datetime, datetime]]:
        """The windows (start, end) of a time in UTC; `start <= at < end` must hold, and times must have a time zone."""
        raise NotImplementedError(f"{type(self).__name__} must define assign(at)")


@dataclass(frozen=True, slots=True)
class Custom:
    """A user's shape behind the interface of ours."""

    shape: WindowShape

    merging: ClassVar[bool] = False
    by_rows: ClassVar[bool] = False
    timed: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_clock(self.clock)
        if type(self.shape).assign is WindowShape.assign:
            raise PlanError(
                f"{self.text()} does not say which windows a time lies in",
                fix=Fix("shape.assign", "Define assign(self, at) in the class, which returns a list of (start, end)"),
            )

    @property
    def clock(self) -> str:
        """The user's class may say "processing"."""
        return self.shape.clock

    def assign(self, times: Ints) -> tuple[Ints | None, Ints, Ints]:
        """Ask the user's method once per distinct time."""
        distinct, places = np.unique(times, return_inverse=True)
        found = [self._checked(time) for time in distinct.tolist()]
        counts = np.array([len(windows) for windows in found], np.int64)
        bounds = np.array([bound for windows in found for bound in windows], np.int64).reshape(-1, 2)
        if (counts == 1).all():
            return None, bounds[places, 0], bounds[places, 1]
        each = counts[places]
        rows = np.repeat(np.arange(len(times)), each)
        within = np.arange(len(rows)) - np.repeat(np.cumsum(each) - each, each)
        at = (np.cumsum(counts) - counts)[places][rows] + within
        return rows, bounds[at, 0], bounds[at, 1]

    def _checked(self, time: int) -> list[tuple[int, int]]:
        try:
            at = _EPOCH + time * _MICRO
        except OverflowError:
            raise RowError(f"{self.text()} cannot be asked about a time outside the years 1 to 9999 ({time} µs)") from None
        windows = self.shape.assign(at)
        said = f"{self.text()}.assign({at.isoformat()})"
        if not isinstance(windows, list) or not 1 <= len(windows) <= WINDOWS_MAX:
            raise RowError(f"{said} returned {_short(windows)}; expected a list of 1 to {WINDOWS_MAX} windows (start, end)")
        for window in windows:
            if not isinstance(window, tuple) or len(window) != 2 or not all(map(_aware, window)):
                raise RowError(f"{said} returned {_short(window)}; expected (start, end), datetimes with a time zone")
            if not window[0] <= at < window[1]:
                # A window that ends before its row would be late when the row is not.
                raise RowError(f"{said} returned {_short(window)}, which does not hold that time; expected start <= at < end")
        bounds = {((start - _EPOCH) // _MICRO, (end - _EPOCH) // _MICRO) for start, end in windows}
        if len(bounds) < len(windows):
            raise RowError(f"{said} returned a window twice; the row would be counted twice in it")
        return sorted(bounds)

    def params(self) -> dict[str, Any]:
        """What a checkpoint records: the class and its fields."""
        fields = {name: repr(value) for name, value in sorted(_fields(self.shape).items())}
        clock = {} if self.clock == "event" else {"clock": self.clock}
        return {"shape": "custom", "class": type(self.shape).__qualname__, "fields": fields, **clock}

    def text(self) -> str:
        """As the user wrote it, more or less."""
        return f"{type(self.shape).__name__}({', '.join(f'{name}={value!r}' for name, value in _fields(self.shape).items())})"


Shape: TypeAlias = Tumbling | Sliding | Session | CountTumbling | CountSliding | Running | Custom


def shape_of(value: object) -> Shape:
    """The shape the user gave to `window()`; a shape of the user's own gets our interface."""
    if isinstance(value, Shape):
        return value
    if isinstance(value, WindowShape):
        return Custom(value)
    if isinstance(value, type) and issubclass(value, WindowShape):
        raise PlanError(
            f"window needs a shape, and {value.__name__} is a class of them",
            fix=Fix("shape.class", f"Make one of it. Write: .window({value.__name__}())"),
        )
    raise PlanError(
        f"window needs a shape, and {brief(value)} is none", fix=Fix("shape.kind", 'Write: .window(pen.tumbling("10s"))')
    )


# -- what the user writes


def tumbling(
    size: Any = None, *, rows: int | None = None, offset: Any = "0s", timezone: str | None = None, clock: str = "event"
) -> Tumbling | CountTumbling:
    """Windows of one size, side by side: `tumbling("10s")`, or of so many rows of a key: `tumbling(rows=100)`.

    Args:
        offset: where the first one begins: `tumbling("1h", offset="15m")` begins at a quarter past.
        timezone: follow the clock of a zone: `tumbling("1d", timezone="Europe/Berlin")` gives days of 23, 24 or 25 hours.
        clock: "processing": by the time at which rows come, not their event time.
    """
    if rows is None:
        return Tumbling(micros(size, "size"), micros(offset, "offset"), timezone, clock)
    _only_rows(rows, size=size, offset=offset, timezone=timezone, clock=clock)
    return CountTumbling(rows)


def sliding(
    size: Any = None,
    *,
    every: Any,
    rows: int | None = None,
    offset: Any = "0s",
    timezone: str | None = None,
    clock: str = "event",
) -> Sliding | CountSliding:
    """Windows that overlap: an hour, begun anew each minute: `sliding("1h", every="1m")`.

    Args:
        rows: the last so many rows of a key, at every so many: `sliding(rows=100, every=10)`; at the beginning of a key fewer.
    """
    if rows is not None:
        _only_rows(rows, size=size, offset=offset, timezone=timezone, clock=clock)
        return CountSliding(rows, every)
    if timezone is not None:
        raise PlanError(
            f"sliding windows have one length, and days of {timezone} do not",
            fix=Fix("sliding.zone", f'Leave timezone= out, or take days. Write: pen.tumbling("1d", timezone="{timezone}")'),
        )
    return Sliding(micros(size, "size"), micros(every, "every"), micros(offset, "offset"), clock)


def session(gap: Any, *, clock: str = "event") -> Session:
    """The rows of a key until it is silent for the length of the gap: `session("30m")`."""
    return Session(micros(gap, "gap"), clock)


def running() -> Running:
    """One window for all time: its results are updated for ever."""
    return Running()


def _only_rows(rows: object, **others: object) -> None:
    defaults = {"size": None, "offset": "0s", "timezone": None, "clock": "event"}
    for name, value in others.items():
        if value != defaults[name]:
            raise PlanError(
                f"a window of rows={rows} has no time, so {name}={value!r} means nothing",
                fix=Fix("rows-window.time", f"Leave {name} out, or rows"),
            )


def _fields(shape: WindowShape) -> dict[str, Any]:
    # Not `repr`: that of a plain class holds an address, which is another one in the next run.
    if dataclasses.is_dataclass(shape):
        return {field.name: getattr(shape, field.name) for field in dataclasses.fields(shape)}
    return dict(vars(shape))


def _aware(value: object) -> bool:
    return isinstance(value, datetime) and value.utcoffset() is not None


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}…"
