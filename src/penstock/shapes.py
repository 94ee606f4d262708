"""Window shapes besides `Tumbling`: values, and arithmetic on whole columns. `windows.py` says what they have in common.

Times are µs since 1970 UTC; shapes by count do the same arithmetic on row numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from penstock.errors import Fix, PlanError
from penstock.eventtime import check_clock, duration_text, options
from penstock.grid import Ints, at_or_after, at_or_before

_FEW = 64
TIME_MIN, TIME_MAX = -(2**63), 2**63 - 1
"""The ends of time, as in the protocol: a watermark of TIME_MAX is the end of the input, and passes every window."""


@dataclass(frozen=True, slots=True)
class Sliding:
    """A window begins at every step and lasts `size`: a time lies in size / every of them (rounded up or down).

    Windows are sums of *slices*: between two neighbouring starts or ends nothing happens, so rows of one slice share all
    their windows. A slice is as wide as the greatest common divisor of size and step.

    >>> Sliding(10, 5).assign(np.array([7]))
    (array([0, 0]), array([0, 5]), array([10, 15]))
    """

    size: int
    every: int
    offset: int = 0
    clock: str = "event"

    merging: ClassVar[bool] = False
    by_rows: ClassVar[bool] = False
    timed: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_clock(self.clock)
        for name, value in (("size", self.size), ("every", self.every)):
            if value <= 0:
                raise PlanError(
                    f"{name}={duration_text(value)} must be positive",
                    fix=Fix("sliding.size", 'Write: pen.sliding("1h", every="1m")'),
                )
        if self.every > self.size:
            size, every = duration_text(self.size), duration_text(self.every)
            raise PlanError(
                f"every={every} must not exceed size={size}: rows between two windows would be lost",
                fix=Fix("sliding.every", f'Filter before, if some rows are not wanted. Write: pen.tumbling("{every}")'),
            )

    @property
    def slice(self) -> int:
        """How wide a slice is."""
        return math.gcd(self.size, self.every)

    def slice_of(self, times: Ints) -> Ints:
        """The start of the slice each time lies in."""
        return at_or_before(times, self.slice, self.offset)

    def last_start_of(self, times: Ints) -> Ints:
        """The start of the last window each time, or each slice, lies in."""
        return at_or_before(times, self.every, self.offset)

    def slices_of(self, starts: Ints) -> Ints:
        """The starts of the slices of each window: one row per window, in order of time."""
        slices: Ints = starts[:, None] + self.slice * np.arange(self.size // self.slice)
        return slices

    def first_end_after(self, slice_starts: Ints, floor: Ints | int) -> Ints:
        """The first end of a window with the slice in it whose last moment is after `floor`; TIME_MAX if there is none."""
        latest = slice_starts + self.size  # no window with this slice in it ends later
        least = np.maximum(slice_starts + self.slice, np.minimum(floor, latest) + 2)
        ends = at_or_after(least, self.every, self.offset + self.size)
        found: Ints = np.where(ends <= latest, ends, TIME_MAX)
        return found

    def windows_of(self, times: Ints) -> tuple[Ints, Ints]:
        """Row numbers and starts of all windows the times lie in: by row, then by time."""
        count = -(-self.size // self.every)
        starts = self.last_start_of(times)[:, None] - self.every * np.arange(count - 1, -1, -1)
        rows, columns = np.nonzero(starts > (times - self.size)[:, None])
        return rows, starts[rows, columns]

    def assign(self, times: Ints) -> tuple[Ints, Ints, Ints]:
        """As `windows_of`, with ends."""
        rows, starts = self.windows_of(times)
        return rows, starts, starts + self.size

    def params(self) -> dict[str, Any]:
        """What a checkpoint records."""
        shape = {"shape": "sliding", "size": self.size, "every": self.every, "offset": self.offset}
        return shape if self.clock == "event" else {**shape, "clock": self.clock}

    def text(self) -> str:
        """As the user wrote it."""
        size, every = duration_text(self.size), duration_text(self.every)
        return f'sliding("{size}", every="{every}"{options(self.offset, clock=self.clock)})'


@dataclass(frozen=True, slots=True)
class Session:
    """The rows of a key between two silences: each row opens `[t, t + gap)`, and windows that meet become one.

    Windows that only *touch* do not meet (as in Beam, not in Flink): a row exactly `gap` after the last one begins a new session.
    The watermark passes a session at its last moment, `gap` less 1 µs after its last row; if a row at `gap` still belonged to it,
    the answer would depend on which of the two came first, although no row was late.
    """

    gap: int
    clock: str = "event"

    merging: ClassVar[bool] = True
    by_rows: ClassVar[bool] = False
    timed: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_clock(self.clock)
        if self.gap <= 0:
            raise PlanError(
                f"a session with a gap of {duration_text(self.gap)} has no length",
                fix=Fix("session.gap", 'Write: pen.session("30m")'),
            )

    def assign(self, times: Ints) -> tuple[None, Ints, Ints]:
        """What each row alone would make: still to be merged."""
        return None, times, times + self.gap

    @staticmethod
    def merge(keys: Ints, starts: Ints, ends: Ints) -> tuple[Ints, Ints, Ints]:
        """Join the windows of each key that meet.

        Args:
            keys: codes; equal codes are equal keys.

        Returns:
            The group of each window, and start and end of each group. Groups are numbered by key, then time.

        >>> Session.merge(np.array([7, 7, 7]), np.array([20, 0, 9]), np.array([25, 10, 15]))
        (array([1, 0, 0]), array([ 0, 20]), array([15, 25]))
        """
        if not len(keys):
            return keys, starts, ends
        if len(keys) <= _FEW:
            return _merged_few(keys.tolist(), starts.tolist(), ends.tolist())
        order = np.lexsort((starts, keys))
        key, start, end = keys[order], starts[order], ends[order]
        other = np.r_[True, key[1:] != key[:-1]]
        reach = _reach(np.cumsum(other), end)
        first = other | np.r_[True, start[1:] >= reach[:-1]]
        groups = np.empty(len(keys), np.int64)
        groups[order] = np.cumsum(first) - 1
        at = np.flatnonzero(first)
        return groups, start[at], np.maximum.reduceat(end, at)

    def params(self) -> dict[str, Any]:
        """What a checkpoint records."""
        shape = {"shape": "session", "gap": self.gap}
        return shape if self.clock == "event" else {**shape, "clock": self.clock}

    def text(self) -> str:
        """As the user wrote it."""
        return f'session("{duration_text(self.gap)}"{options(clock=self.clock)})'


def _merged_few(keys: list[int], starts: list[int], ends: list[int]) -> tuple[Ints, Ints, Ints]:
    """The same, window by window: few are merged before numpy's twenty steps have begun."""
    groups = [0] * len(keys)
    begins: list[int] = []
    reaches: list[int] = []
    last = None
    for row in sorted(range(len(keys)), key=lambda row: (keys[row], starts[row])):
        if keys[row] == last and starts[row] < reaches[-1]:
            reaches[-1] = max(reaches[-1], ends[row])
        else:
            last = keys[row]
            begins.append(starts[row])
            reaches.append(ends[row])
        groups[row] = len(begins) - 1
    return np.array(groups), np.array(begins), np.array(reaches)


def _reach(parts: Ints, ends: Ints) -> Ints:
    """The latest end so far within each part (parts ascend). Ends become ranks, so that part and end fit one number."""
    order = np.argsort(ends)
    ranks = np.empty(len(ends), np.int64)
    ranks[order] = np.arange(len(ends))
    latest = np.maximum.accumulate(parts * len(ends) + ranks) % len(ends)
    reach: Ints = ends[order[latest]]
    return reach


@dataclass(frozen=True, slots=True)
class CountTumbling:
    """So many rows of a key, then the next so many. `assign` takes row numbers of the key, from 0."""

    rows: int

    merging: ClassVar[bool] = False
    by_rows: ClassVar[bool] = True
    timed: ClassVar[bool] = False
    clock: ClassVar[str] = "event"

    def __post_init__(self) -> None:
        _check_rows("rows", self.rows, "tumbling(rows=100)")

    def assign(self, ordinals: Ints) -> tuple[None, Ints, Ints]:
        """First row number of each row's window, and the one after its last."""
        starts = at_or_before(ordinals, self.rows)
        return None, starts, starts + self.rows

    def params(self) -> dict[str, Any]:
        """What a checkpoint records."""
        return {"shape": "count_tumbling", "rows": self.rows}

    def text(self) -> str:
        """As the user wrote it."""
        return f"tumbling(rows={self.rows})"


@dataclass(frozen=True, slots=True)
class CountSliding:
    """The last `rows` rows of a key, at every so many. `assign` takes row numbers of the key, from 0.

    A window *ends* behind every `every`-th row of the key, and is known by that end: where `rows` rows have not come yet, it has all
    there are. Nothing is left over when the input ends. (So it is Flink's count window, and SQL's ROWS n PRECEDING.)

    >>> CountSliding(3, 1).assign(np.array([0, 4]))
    (array([0, 0, 0, 1, 1, 1]), array([0, 0, 0, 2, 3, 4]), array([1, 2, 3, 5, 6, 7]))
    """

    rows: int
    every: int

    merging: ClassVar[bool] = False
    by_rows: ClassVar[bool] = True
    timed: ClassVar[bool] = False
    clock: ClassVar[str] = "event"

    def __post_init__(self) -> None:
        _check_rows("rows", self.rows, "sliding(rows=100, every=10)")
        _check_rows("every", self.every, "sliding(rows=100, every=10)")
        if self.every > self.rows:
            raise PlanError(
                f"every={self.every} must not exceed rows={self.rows}: rows between two windows would be lost",
                fix=Fix("sliding.every-rows", f"Write: pen.tumbling(rows={self.every})"),
            )

    @property
    def slice(self) -> int:
        """How many rows make a slice."""
        return math.gcd(self.rows, self.every)

    def slice_of(self, ordinals: Ints) -> Ints:
        """The first row number of each row's slice."""
        return at_or_before(ordinals, self.slice)

    def slices_of(self, ends: Ints) -> Ints:
        """The slices of the windows with these ends: one row per window. Those below 0 are before the first row."""
        slices: Ints = ends[:, None] - self.rows + self.slice * np.arange(self.rows // self.slice)
        return slices

    def starts_of(self, ends: Ints) -> Ints:
        """The first row number of the windows with these ends."""
        return np.maximum(ends - self.rows, 0)

    def assign(self, ordinals: Ints) -> tuple[Ints, Ints, Ints]:
        """Places in `ordinals`, and starts and ends of all windows that the rows lie in."""
        count = -(-self.rows // self.every)
        first = at_or_before(ordinals, self.every) + self.every
        ends = first[:, None] + self.every * np.arange(count)
        rows, columns = np.nonzero(ends <= (ordinals + self.rows)[:, None])
        found = ends[rows, columns]
        return rows, self.starts_of(found), found

    def params(self) -> dict[str, Any]:
        """What a checkpoint records."""
        return {"shape": "count_sliding", "rows": self.rows, "every": self.every}

    def text(self) -> str:
        """As the user wrote it."""
        return f"sliding(rows={self.rows}, every={self.every})"


@dataclass(frozen=True, slots=True)
class Running:
    """The one window that never closes, except at the end of the input (Beam's global window)."""

    merging: ClassVar[bool] = False
    by_rows: ClassVar[bool] = False
    timed: ClassVar[bool] = False
    clock: ClassVar[str] = "event"

    def assign(self, times: Ints) -> tuple[None, Ints, Ints]:
        """All of time, for each."""
        return None, np.full(len(times), TIME_MIN, np.int64), np.full(len(times), TIME_MAX, np.int64)

    def params(self) -> dict[str, Any]:
        """What a checkpoint records."""
        return {"shape": "running"}

    def text(self) -> str:
        """As the user wrote it."""
        return "running()"


def _check_rows(name: str, value: object, example: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise PlanError(f"{name}={value!r} is not a number of rows", fix=Fix("rows-window.rows", f"Write: pen.{example}"))
