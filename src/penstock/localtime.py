"""Windows by the clock on the wall: where hours and days of a time zone begin, as instants (µs since 1970 UTC).

A wall clock is not a good ruler: once a year an hour is missing, once a year one comes twice. So windows are not sets of
wall-clock readings; they are made of *boundaries*, and a boundary is one instant:

1. The boundary of the reading L is the first instant at which the wall clock shows L **or later**. A midnight that is
   skipped begins the day when the clock jumps over it; a midnight that comes twice begins it the first time.
2. Where the clock is set by a whole number of windows, the grid goes on as if nothing had happened: in UTC it is the same
   grid. So in Berlin hour windows are always an hour long (and 02:00 comes twice in October); on Lord Howe Island, where
   clocks move by half an hour, one hour window of the year is 90 minutes long and one is 30.
   Windows of whole days do not use this rule: a date is one window, even the 48 hours of a date that came twice.
3. Boundaries never go back, so `[boundary, next boundary)` tile time: each instant lies in exactly one window.

How: a zone's offset is constant between *transitions*. `zoneinfo` does not tell them, so they are searched for, once per
zone and *block* of about 13 months: offsets are compared day by day, and where two differ the second is found by bisection.
A table holds the segments of a block (with two days on either side); per row there is only a binary search in a few numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import pairwise
from zoneinfo import ZoneInfo

import numpy as np

from penstock.grid import Ints, at_or_before

DAY = 86_400_000_000
_DAY_S, _MICROS = 86_400, 1_000_000
_BLOCK_BITS = 45
_MARGIN_S = 2 * _DAY_S
_LONG_AGO = -(2**62)

# Local time must stay within the years 1 to 9999 of `datetime`; no zone changes its offset in the days left out.
_FIRST_S = round((datetime(1, 1, 3) - datetime(1970, 1, 1)).total_seconds())
_LAST_S = round((datetime(9999, 12, 29) - datetime(1970, 1, 1)).total_seconds())


@dataclass(frozen=True, slots=True)
class LocalGrid:
    """Windows of one size, aligned to the local time of a zone. The size divides a day, or is a number of days.

    >>> grid = LocalGrid("Europe/Berlin", DAY)
    >>> starts, ends = grid.bounds(np.array([1711843200_000000]))  # 2024-03-31, when clocks went forward
    >>> (ends - starts) // 3600_000000
    array([23])
    """

    zone: str
    size: int
    offset: int = 0

    def bounds(self, times: Ints) -> tuple[Ints, Ints]:
        """Start and end of the window each time lies in."""
        if not len(times):
            return times, times
        if self.size < DAY:
            starts, ends = _by_block(times, self._short)
            return starts, ends
        locals_ = self._floor(_by_block(times, lambda block, part: self._table(block).shown(part)))
        starts, ends = (
            _by_block(each, lambda block, part: self._table(block).first(part)) for each in (locals_, locals_ + self.size)
        )
        return starts, ends

    def _short(self, block: int, times: Ints) -> Ints:
        """Rule 2 makes readings comparable only within one table; a window shorter than a day fits into the margins."""
        table = self._table(block)
        locals_ = self._floor(table.shown(times))
        return np.stack([table.first(locals_), table.first(locals_ + self.size)])

    def _floor(self, locals_: Ints) -> Ints:
        return at_or_before(locals_, self.size, self.offset)

    def _table(self, block: int) -> _Table:
        return _table(self.zone, block, self.size if self.size < DAY else 0)


@dataclass(frozen=True, slots=True)
class _Table:
    """The segments of a block: from `starts[i]` the wall clock shows time + `offsets[i]`."""

    starts: Ints
    offsets: Ints
    floors: Ints  # the latest reading shown before the segment
    reaches: Ints  # the latest reading shown up to its end; never falls

    def shown(self, times: Ints) -> Ints:
        """The latest reading shown at or before each time."""
        i = np.searchsorted(self.starts, times, "right") - 1
        latest: Ints = np.maximum(times + self.offsets[i], self.floors[i])
        return latest

    def first(self, readings: Ints) -> Ints:
        """The first instant at which each reading, or a later one, is shown."""
        i = np.searchsorted(self.reaches, readings, "left")
        instants: Ints = np.maximum(self.starts[i], readings - self.offsets[i])
        return instants


def _by_block(values: Ints, function: Callable[[int, Ints], Ints]) -> Ints:
    """Call once per block, with the values in it; results are put together along the last axis."""
    blocks = values >> _BLOCK_BITS
    if blocks.min() == blocks.max():
        return function(int(blocks[0]), values)
    order = np.argsort(blocks, kind="stable")
    parts = np.split(order, np.flatnonzero(np.diff(blocks[order])) + 1)
    results = np.concatenate([function(int(blocks[part[0]]), values[part]) for part in parts], axis=-1)
    out = np.empty_like(results)
    out[..., order] = results
    return out


@lru_cache(maxsize=16_384)
def _table(zone: str, block: int, step: int) -> _Table:
    """The table of a block; changes of the clock by whole steps are left out, if a step is given."""
    segments, high = _segments(zone, block)
    starts, offsets = [segments[0][0] * _MICROS], [segments[0][1] * _MICROS]
    for (_, before), (second, after) in pairwise(segments):
        shift = (after - before) * _MICROS
        if not step or shift % step:
            starts.append(second * _MICROS)
            offsets.append(offsets[-1] + shift)
    ends = [*starts[1:], high * _MICROS]
    reaches = np.maximum.accumulate(np.array([end - 1 + offset for end, offset in zip(ends, offsets)], np.int64))
    floors = np.array([_LONG_AGO, *reaches[:-1].tolist()], np.int64)
    return _Table(np.array(starts, np.int64), np.array(offsets, np.int64), floors, reaches)


@lru_cache(maxsize=16_384)
def _segments(name: str, block: int) -> tuple[list[tuple[int, int]], int]:
    """(first second, offset in seconds) of each segment of a block with its margins, and the second after the last.

    Two changes within a day that undo each other are not seen; the zone database has none.
    """
    zone = ZoneInfo(name)
    low = (block << _BLOCK_BITS) // _MICROS - _MARGIN_S
    high = ((block + 1) << _BLOCK_BITS) // _MICROS + 1 + _MARGIN_S
    found = [(low, _offset(zone, low))]
    for day in range(low + _DAY_S, high + _DAY_S, _DAY_S):
        while _offset(zone, day) != found[-1][1]:
            before, after = max(found[-1][0], day - _DAY_S), day
            while after - before > 1:
                middle = (before + after) // 2
                before, after = (middle, after) if _offset(zone, middle) == found[-1][1] else (before, middle)
            found.append((after, _offset(zone, after)))
    return found, max(high, found[-1][0] + 1)


def _offset(zone: ZoneInfo, second: int) -> int:
    moment = datetime(1970, 1, 1, tzinfo=zone) + timedelta(seconds=min(max(second, _FIRST_S), _LAST_S))
    offset = zone.fromutc(moment).utcoffset()
    assert offset is not None, "a zone has an offset at every instant"
    return round(offset.total_seconds())
