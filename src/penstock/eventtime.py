"""Event time: integers in microseconds, durations as text, and the shape of windows.

Inside, a time is an int (µs since 1970 UTC, Spark's and Arrow's own unit) and a duration an int of µs. Text (`"10s"`) and
`timedelta` exist only at the API. A window `[start, end)` holds the times `start <= t < end`; its last moment is `end - 1`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.errors import PlanError

MICROS = {"us": 1, "µs": 1, "ms": 1_000, "s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000}
_WORDS = {"microsecond": "us", "millisecond": "ms", "second": "s", "minute": "m", "hour": "h", "day": "d"}
_DURATION = re.compile(r"\s*(-?\d+(?:\.\d+)?)\s*([a-zµ]+)\s*")


def micros(value: object, what: str = "duration") -> int:
    """A duration as microseconds.

    >>> micros("250ms"), micros("10 seconds"), micros(timedelta(minutes=1))
    (250000, 10000000, 60000000)
    """
    if isinstance(value, timedelta):
        return (value.days * 86_400 + value.seconds) * 1_000_000 + value.microseconds
    if isinstance(value, str):
        match = _DURATION.fullmatch(value)
        unit = match and (match[2] if match[2] in MICROS else _WORDS.get(match[2].removesuffix("s")))
        if match and unit:
            return round(float(match[1]) * MICROS[unit])
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise PlanError(f'{what}={value} has no unit. Write: {what}="{value}s"')
    raise PlanError(f'{what}={value!r} is not a duration. Write "250ms", "10s", "5m", "1h", "7d" or a timedelta')


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


@dataclass(frozen=True, slots=True)
class Tumbling:
    """Windows of one size, side by side: each time lies in exactly one.

    >>> Tumbling(10).start_of(np.array([-1, 0, 9, 10]))
    array([-10,   0,   0,  10])
    """

    size: int
    offset: int = 0

    def __post_init__(self) -> None:
        if self.size <= 0:
            raise PlanError(f'a window of {duration_text(self.size)} holds nothing. Write a positive size: tumbling("10s")')

    def start_of(self, times: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The start of the window each time lies in."""
        starts: npt.NDArray[np.int64] = times - np.mod(times - self.offset, self.size)
        return starts

    def params(self) -> dict[str, Any]:
        """What a checkpoint records: state of one shape does not fit another."""
        return {"shape": "tumbling", "size": self.size, "offset": self.offset}

    def text(self) -> str:
        """As the user wrote it."""
        offset = f', offset="{duration_text(self.offset)}"' if self.offset else ""
        return f'tumbling("{duration_text(self.size)}"{offset})'
