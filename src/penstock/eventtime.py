"""Event time: integers in microseconds, durations as text, and the shape of windows.

Inside, a time is an int (µs since 1970 UTC, Spark's and Arrow's own unit) and a duration an int of µs. Text (`"10s"`) and
`timedelta` exist only at the API. A window `[start, end)` holds the times `start <= t < end`; its last moment is `end - 1`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from penstock.errors import Fix, PlanError, brief
from penstock.grid import Ints, at_or_before
from penstock.localtime import DAY, LocalGrid

MICROS = {"us": 1, "µs": 1, "ms": 1_000, "s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000}
_WORDS = {"microsecond": "us", "millisecond": "ms", "second": "s", "minute": "m", "hour": "h", "day": "d"}
DURATION_MAX = 106_000_000 * MICROS["d"]
NEEDS_TIME = Fix("time.none", 'Give the stream event time, right after read. Write: .with_watermark("at", delay="5s")')
_DURATION = re.compile(r"\s*(-?\d+(?:\.\d+)?)\s*([a-zµ]+)\s*")


def micros(value: object, what: str = "duration") -> int:
    """A duration as microseconds.

    >>> micros("250ms"), micros("10 seconds"), micros(timedelta(minutes=1))
    (250000, 10000000, 60000000)
    """
    if isinstance(value, timedelta):
        return _bounded((value.days * 86_400 + value.seconds) * 1_000_000 + value.microseconds, value, what)
    if isinstance(value, str):
        match = _DURATION.fullmatch(value)
        unit = match and (match[2] if match[2] in MICROS else _WORDS.get(match[2].removesuffix("s")))
        if match and unit:
            return _bounded(round(float(match[1]) * MICROS[unit]), value, what)
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise PlanError(
            f"{what}={value} has no unit", fix=Fix("duration.unit", f'If seconds are meant, say so. Write: {what}="{value}s"')
        )
    raise PlanError(
        f"{what}={brief(value)} is not a duration",
        fix=Fix("duration.text", 'It is a timedelta, or a number and a unit: "250ms", "10s", "5m", "1h", "7d"'),
    )


def _bounded(duration: int, value: object, what: str) -> int:
    """A duration that fits 64 bits."""
    if abs(duration) > DURATION_MAX:
        raise PlanError(
            f"{what}={value!r} is longer than all of time here",
            fix=Fix("duration.longest", f'Write: {what}="106000000d", or {what}="{"-" if duration < 0 else ""}1d"'),
        )
    return duration


def duration_text(value: int) -> str:
    """The shortest exact text of a duration."""
    for unit in ("d", "h", "m", "s", "ms"):
        if value and value % MICROS[unit] == 0:
            return f"{value // MICROS[unit]}{unit}"
    return f"{value}us"


def time_text(value: int) -> str:
    """A time for people; the ends of time are named."""
    if value <= -(2**62):
        return "-"
    if value >= 2**62:
        return "end"
    return datetime.fromtimestamp(value / 1_000_000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def check_clock(clock: object) -> None:
    """A window follows event time or the clock of the machine."""
    if clock not in ("event", "processing"):
        raise PlanError(
            f'clock={clock!r} is neither "event" nor "processing"',
            fix=Fix("window.clock", 'Write: clock="event", or clock="processing"'),
        )


@dataclass(frozen=True, slots=True)
class Tumbling:
    """Windows of one size, side by side: each time lies in exactly one.

    With a time zone they follow its wall clock (`localtime.py` says how): a day is 23, 24 or 25 hours long.

    >>> import numpy as np
    >>> Tumbling(10).start_of(np.array([-1, 0, 9, 10]))
    array([-10,   0,   0,  10])
    """

    size: int
    offset: int = 0
    timezone: str | None = None
    clock: str = "event"

    merging: ClassVar[bool] = False
    by_rows: ClassVar[bool] = False
    timed: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.size <= 0:
            raise PlanError(
                f"a window of {duration_text(self.size)} holds nothing",
                fix=Fix("tumbling.size", 'Give a positive size. Write: pen.tumbling("10s")'),
            )
        check_clock(self.clock)
        if self.timezone is not None:
            check_zone(self.timezone)
            if self.size % DAY and DAY % self.size:
                raise PlanError(
                    f"windows of {duration_text(self.size)} fit neither into a day nor days into them, so they cannot follow the"
                    f" clock of {self.timezone}",
                    fix=Fix("tumbling.zone", 'Give a size such as "15m", "6h", "1d" or "7d", or leave timezone= out'),
                )

    def assign(self, times: Ints) -> tuple[None, Ints, Ints]:
        """Start and end of the window of each time, in order."""
        if self.timezone is not None:
            return None, *LocalGrid(self.timezone, self.size, self.offset).bounds(times)
        starts = at_or_before(times, self.size, self.offset)
        return None, starts, starts + self.size

    def start_of(self, times: Ints) -> Ints:
        """The start of the window each time lies in."""
        return self.assign(times)[1] if self.timezone is not None else at_or_before(times, self.size, self.offset)

    def end_of(self, starts: Ints) -> Ints:
        """The end of the windows that start there."""
        return self.assign(starts)[2] if self.timezone is not None else starts + self.size

    def params(self) -> dict[str, Any]:
        """What a checkpoint records: state of one shape does not fit another."""
        # What is left out by default did not exist when the first checkpoints were written.
        zone = {} if self.timezone is None else {"timezone": self.timezone}
        clock = {} if self.clock == "event" else {"clock": self.clock}
        return {"shape": "tumbling", "size": self.size, "offset": self.offset, **zone, **clock}

    def text(self) -> str:
        """As the user wrote it."""
        return f'tumbling("{duration_text(self.size)}"{options(self.offset, self.timezone, self.clock)})'


def options(offset: int = 0, timezone: str | None = None, clock: str = "event") -> str:
    """The options of a window that are not the default, as the user wrote them."""
    written = [f', offset="{duration_text(offset)}"'] if offset else []
    written += [f', timezone="{timezone}"'] if timezone is not None else []
    written += [f', clock="{clock}"'] if clock != "event" else []
    return "".join(written)


def check_zone(timezone: object) -> None:
    """A time zone is a name that the zone database of this machine knows."""
    try:
        if isinstance(timezone, str):
            ZoneInfo(timezone)
            return
    except (ZoneInfoNotFoundError, ValueError, OSError):
        pass  # names that are no file names raise the others
    raise PlanError(
        f"timezone={timezone!r} is not the name of a time zone",
        fix=Fix("window.zone", 'Write: timezone="Europe/Berlin", or timezone="UTC"'),
    )
