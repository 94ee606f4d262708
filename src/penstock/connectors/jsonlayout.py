"""Where values stand in the lines of a template, without looking for every quote.

Of most values in machine-written lines the length never changes (identifiers, times), and many of the others are short. So where a line
has its values follows from left to right:

1. Values whose length never changed are taken to have it again. Of the others the end is looked for, eight bytes at a time; only the
   last of them needs no search, since the end of the line is known.
2. Each constant text must be where the values before it leave off.
3. What is left are values. They hold no quote if the block has just as many quotes as its constant texts.

That holds for all lines of a block, or nothing is said: then quotes are looked for, which also shows the lengths that are new.
"""

from __future__ import annotations

from typing import cast

import numpy as np
import numpy.typing as npt

from penstock.connectors.linemarks import Lines, Marks, Places

__all__ = ["Layout"]

SEARCHED_MAX = 4
"""Values whose end is looked for. With more, looking for all quotes at once is as fast."""
WORD_BYTES = 8
WORDS_MAX = 4
"""In how many words, one after the other, a value's end is looked for."""
BLOCKS_WITHOUT = 31

_ONES = np.uint64(0x0101010101010101)
_TOPS = np.uint64(0x8080808080808080)


class Layout:
    """What is known of the lengths of values. `looked_at` are the numbers of the values whose places are asked for."""

    def __init__(self, constants: list[bytes], looked_at: list[int]) -> None:
        self._constants = constants
        self._quotes = sum(constant.count(b'"') for constant in constants)
        self._looked_at = {number: column for column, number in enumerate(looked_at)}
        self.known = False
        self._lengths: list[int | None] = []  # of each value, None if it varies
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
        low, high = lengths.min(axis=0).tolist(), lengths.max(axis=0).tolist()
        seen = [least if least == most else None for least, most in zip(low, high)]
        known = [a if a == b else None for a, b in zip(self._lengths, seen)] if self.known else seen
        searched = [most for length, most in zip(known, high) if length is None][:-1]
        far = len(searched) > SEARCHED_MAX or max(searched, default=0) >= WORDS_MAX * WORD_BYTES
        if far or (self.known and known == self._lengths):
            self._without = BLOCKS_WITHOUT  # what was known did not help with this block, or what is new would not with the next
        self._lengths, self.known = known, True

    def _follow(self, block: Lines) -> Marks | None:
        places = np.empty((len(block), 2 * len(self._looked_at)), np.int32)
        varying = [number for number, length in enumerate(self._lengths) if length is None]
        start, ahead = block.starts, len(self._constants[0])  # their sum is where the next value starts
        if block.lacking(self._constants[0], start).any():
            return None
        for number, (length, constant) in enumerate(zip(self._lengths, self._constants[1:])):
            column = self._looked_at.get(number)
            if column is not None:
                np.add(start, ahead, out=places[:, 2 * column], casting="same_kind")
            if length is not None:
                ahead += length
            elif number != varying[-1]:
                start = start + _distance(block, start + ahead, constant[0])
            else:
                behind = sum(map(len, self._constants[number + 1 :])) + sum(cast(list[int], self._lengths[number + 1 :]))
                end = block.ends - (behind + ahead)
                if (end < start).any():
                    return None
                start = end
            if column is not None:
                np.add(start, ahead, out=places[:, 2 * column + 1], casting="same_kind")
            if block.lacking(constant, start + ahead).any():
                return None
            ahead += len(constant)
        return None if (start + ahead != block.ends).any() else places


def _distance(block: Lines, at: Places, byte: int) -> Places:
    """How many bytes lie between these places and the next such byte. If it is far away, too few."""
    words = block.every(np.dtype("<u8"))
    limit = len(words) - 1
    distance = _first(words[np.minimum(at, limit)], byte)
    for word in range(1, WORDS_MAX):
        more = np.flatnonzero(distance == word * WORD_BYTES)
        if not len(more):
            break
        distance[more] += _first(words[np.minimum(at[more] + word * WORD_BYTES, limit)], byte)
    return distance


def _first(found: npt.NDArray[np.uint64], byte: int) -> Places:
    """The number of bytes before the first such byte in each word, eight if it has none."""
    found = found ^ (_ONES * np.uint64(byte))  # now it is the first zero that is looked for
    zeros = (found - _ONES) & ~found & _TOPS  # the lowest bit is at the top of the first zero
    below = np.bitwise_count(~zeros & (zeros - np.uint64(1)))
    return (below >> 3).astype(np.int64)
