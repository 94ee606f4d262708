"""Where values stand in the lines of a template, without looking for every quote.

Of most values in machine-written lines the length never changes (identifiers, times) or is one of a few (kinds, counts). So where a
line has its values follows from left to right:

1. Values whose length never changed are taken to have it again. The others are taken to have a length that was seen before: the shortest
   that ends where a value may end. Only of the last of them no length needs to be known, since the end of the line is.
2. So a line is made of **stretches** of known width with such a value between each two. The bytes of a stretch are copied for all lines at
   once: it takes hardly longer than to look at one of them, and what follows finds them side by side.
3. Each constant text must be where the values before it leave off.
4. What is left are values. They hold no quote if the block has just as many quotes as its constant texts.

That holds for all lines of a block, or nothing is said: then quotes are looked for, which also shows the lengths that are new.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from penstock.connectors.linemarks import Lines, Marks, Pieces, Places, Spans, within

__all__ = ["Layout"]

LENGTHS_MAX = 24
"""Of all values that vary. With more, looking for all quotes at once is as fast."""
BLOCKS_WITHOUT = 31
COPIED_BYTES_MAX = 64
"""Longer values are stepped over."""


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Constant texts and values whose length never changes; and what is known of the value behind them, if there is one.

    Attributes:
        constants: Each with its place in the stretch.
        values: Those that are looked at: place and length.
        lengths: That the value behind was seen to have; empty at the end of the line.
        stop: The byte behind that value.
        rest: How far before the end of the line that value ends, if all behind it is known.
        looked_at: Whether the value behind is.
    """

    width: int
    constants: list[tuple[int, bytes]]
    values: list[tuple[int, int]]
    lengths: set[int]
    stop: int
    rest: int | None
    looked_at: bool


class Layout:
    """What is known of the lengths of values. `looked_at` are the numbers of the values whose places are asked for."""

    def __init__(self, constants: list[bytes], looked_at: list[int]) -> None:
        self._constants = constants
        self._quotes = sum(constant.count(b'"') for constant in constants)
        self._looked_at = set(looked_at)
        self.known = False
        self._lengths: list[set[int]] = []  # that each value was seen to have
        self._stretches: list[_Stretch] = []
        self._without = 0  # how many blocks to leave alone

    def values(self, block: Lines) -> list[Pieces | Spans] | None:
        """The values that are looked at, each of all lines; None if a line may be another."""
        if self._without:
            self._without -= 1
            return None
        if not self.known or block.count('"') != self._quotes * len(block):
            return None
        try:
            return self._follow(block)
        except IndexError:
            return None  # a value seems to reach beyond the block

    def learn(self, lengths: Marks) -> None:
        """Take note of how long values are: a row for each line, a column for each value."""
        if self._without or not len(lengths):
            return
        seen = [set(np.unique(column).tolist()) for column in lengths.T]
        known = [a | b for a, b in zip(self._lengths, seen)] if self.known else seen
        varying = [len(each) for each in known if len(each) > 1]
        if sum(varying[:-1]) > LENGTHS_MAX or (self.known and known == self._lengths):
            self._without = BLOCKS_WITHOUT  # what was known did not help with this block, or what is new would not with the next
        self._lengths, self.known = known, True
        self._stretches = list(_stretches(self._constants, known, self._looked_at))

    def _follow(self, block: Lines) -> list[Pieces | Spans] | None:
        found: list[Pieces | Spans] = []
        start = block.starts
        for stretch in self._stretches:
            copied = block.pieces(stretch.width, start)
            if any(within(copied, place, len(text)).tobytes() != text * len(block) for place, text in stretch.constants):
                return None
            found += [within(copied, place, length) for place, length in stretch.values]
            start = start + stretch.width
            if not stretch.lengths:
                break
            if stretch.rest is not None:
                end = block.ends - stretch.rest
                if (end < start).any():
                    return None
            else:
                end = start + _ending(block, start, stretch.lengths, stretch.stop)
            if stretch.looked_at:
                found.append(Spans(start, end))
            start = end
        return None if (start != block.ends).any() else found


def _stretches(constants: list[bytes], lengths: list[set[int]], looked_at: set[int]) -> Iterator[_Stretch]:
    """A line's stretches, from left to right."""
    last = max((number for number, each in enumerate(lengths) if len(each) > 1), default=None)
    width, texts, values = len(constants[0]), [(0, constants[0])], []
    for number, (each, constant) in enumerate(zip(lengths, constants[1:])):
        longest = max(each)
        if len(each) == 1 and 0 < longest <= COPIED_BYTES_MAX:
            if number in looked_at:
                values.append((width, longest))
            width += longest
        else:
            rest = sum(map(len, constants[number + 1 :])) + sum(map(max, lengths[number + 1 :])) if number == last else None
            yield _Stretch(width, texts, values, each, constant[0], rest, number in looked_at)
            width, texts, values = 0, [], []
        texts.append((width, constant))
        width += len(constant)
    yield _Stretch(width, texts, values, set(), 0, None, False)


def _ending(block: Lines, at: Places, lengths: set[int], byte: int) -> Places:
    """The first of these lengths that leads from each place to such a byte. If none does, any."""
    longest, *shorter = sorted(lengths, reverse=True)
    found: Places = np.full(len(at), longest)
    for length in shorter:
        found = np.where(block.chars.take(at + length, mode="clip") == byte, length, found)
    return found
