"""Where values stand in the lines of a template, without looking for every quote.

Of most values in machine-written lines the length never changes (identifiers, times) or is one of a few (kinds, counts). So where a
line has its values follows from left to right:

1. Values whose length never changed are taken to have it again. The others are taken to have a length that was seen before: the shortest
   that ends where a value may end. Only of the last of them no length needs to be known, since the end of the line is.
2. Each constant text must be where the values before it leave off.
3. What is left are values. They hold no quote if the block has just as many quotes as its constant texts.

That holds for all lines of a block, or nothing is said: then quotes are looked for, which also shows the lengths that are new.
"""

from __future__ import annotations

import numpy as np

from penstock.connectors.linemarks import Lines, Marks, Places

__all__ = ["Layout"]

LENGTHS_MAX = 24
"""Of all values that vary. With more, looking for all quotes at once is as fast."""
BLOCKS_WITHOUT = 31


class Layout:
    """What is known of the lengths of values. `looked_at` are the numbers of the values whose places are asked for."""

    def __init__(self, constants: list[bytes], looked_at: list[int]) -> None:
        self._constants = constants
        self._quotes = sum(constant.count(b'"') for constant in constants)
        self._looked_at = {number: column for column, number in enumerate(looked_at)}
        self.known = False
        self._lengths: list[set[int]] = []  # that each value was seen to have
        self._without = 0  # how many blocks to leave alone

    def places(self, block: Lines) -> Marks | None:
        """Start and end of each value that is looked at, a row for each line; None if a line may be another."""
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

    def _follow(self, block: Lines) -> Marks | None:
        places: Marks = np.empty((len(block), 2 * len(self._looked_at)), np.int32)
        last = max((number for number, lengths in enumerate(self._lengths) if len(lengths) > 1), default=None)
        start, ahead = block.starts, len(self._constants[0])  # their sum is where the next value starts
        if block.lacking(self._constants[0], start).any():
            return None
        for number, (lengths, constant) in enumerate(zip(self._lengths, self._constants[1:])):
            column = self._looked_at.get(number)
            if column is not None:
                np.add(start, ahead, out=places[:, 2 * column], casting="same_kind")
            if number == last:
                behind = sum(map(len, self._constants[number + 1 :])) + sum(map(max, self._lengths[number + 1 :]))
                end = block.ends - (behind + ahead)
                if (end < start).any():
                    return None
                start = end
            elif len(lengths) > 1:
                start = start + _ending(block, start + ahead, lengths, constant[0])
            else:
                ahead += max(lengths)
            if column is not None:
                np.add(start, ahead, out=places[:, 2 * column + 1], casting="same_kind")
            if block.lacking(constant, start + ahead).any():
                return None
            ahead += len(constant)
        return None if (start + ahead != block.ends).any() else places


def _ending(block: Lines, at: Places, lengths: set[int], byte: int) -> Places:
    """The first of these lengths that leads from each place to such a byte. If none does, any."""
    longest, *shorter = sorted(lengths, reverse=True)
    found: Places = np.full(len(at), longest)
    for length in shorter:
        found = np.where(block.chars.take(at + length, mode="clip") == byte, length, found)
    return found
