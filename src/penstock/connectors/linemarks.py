"""Where things stand in a block of lines: line breaks and quotes, found for all lines at once. And what stands there."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

__all__ = ["Lines", "Marks", "Pieces", "Places", "Spans", "seldom", "within"]

Places = npt.NDArray[np.int64]
"""Byte positions in a block, or numbers of lines."""
Marks = npt.NDArray[np.int32] | npt.NDArray[np.int64]
"""Byte positions in a block: a row for each line."""

Pieces = npt.NDArray[np.void]
"""Bytes of a block, equally many of each line, side by side."""

SAMPLE_BYTES = 4_096


@dataclass(frozen=True, slots=True)
class Spans:
    """Where something starts and ends in each line."""

    starts: Marks
    ends: Marks


class Lines:
    """The lines of a block, each ended by a line break, and where their quotes are."""

    def __init__(self, block: bytes) -> None:
        assert block.endswith(b"\n"), "whole lines"
        self.block = block
        self.chars = np.frombuffer(block, np.uint8)
        # As signed bytes, what is beyond ASCII is less than a space too, and found on the way. Unless there is much of it.
        seems_ascii = block[:SAMPLE_BYTES].isascii()
        odd = seldom((self.chars.view(np.int8) if seems_ascii else self.chars) < 0x20)
        found = self.chars[odd]
        self.ascii = seems_ascii and bool(found.max() < 0x80)  # if not, nobody knows
        is_break = found == 0x0A
        self.breaks: Places = odd[is_break]
        self.starts: Places = np.concatenate([[0], self.breaks[:-1] + 1])
        self.ends: Places = self.breaks - (self.chars[self.breaks - 1] == 0x0D)
        self._control: Places = odd[~is_break & (found < 0x80)]

    def __len__(self) -> int:
        return len(self.breaks)

    @cached_property
    def quotes(self) -> Places:
        return np.flatnonzero(self.chars == ord('"'))

    @cached_property
    def _first_quotes(self) -> Places:
        """The number of each line's first quote, and one more."""
        return np.searchsorted(self.quotes, np.append(self.starts, len(self.chars)))

    def count(self, char: str) -> int:
        """How often it occurs. Several times faster than bytes.count."""
        return int(np.count_nonzero(self.chars == ord(char)))

    def pieces(self, length: int, at: Marks) -> Pieces:
        """So many bytes from each of these places. IndexError if there are not so many."""
        every = np.ndarray((max(len(self.chars) - length + 1, 0),), np.dtype((np.void, length)), self.block, 0, (1,))
        found: Pieces = every[at]
        return found

    def alike(self, spans: Spans) -> Pieces | None:
        """The bytes of these spans if all have the same length; not of none, or of nothing."""
        length = int(spans.ends[0] - spans.starts[0]) if len(spans.ends) else 0
        if length <= 0 or (spans.ends - spans.starts != length).any():
            return None
        return self.pieces(length, spans.starts)

    def lacking(self, text: bytes, at: Marks) -> npt.NDArray[np.bool_]:
        """Which of these places have another text. IndexError if it would not fit behind one of them."""
        found = self.pieces(len(text), at).tobytes()
        if found == text * len(at):  # mostly, and found out by one comparison
            return np.zeros(len(at), bool)
        rows = np.frombuffer(found, np.uint8).reshape(len(at), len(text))
        wrong: npt.NDArray[np.bool_] = (rows != np.frombuffer(text, np.uint8)).any(axis=1)
        return wrong

    def text(self, line: int) -> bytes:
        """One line without its line break."""
        return self.block[self.starts[line] : self.ends[line]]

    def first(self, lines: int) -> Lines:
        """A block of the first lines alone."""
        return Lines(self.block[: self.breaks[lines - 1] + 1]) if lines < len(self) else self

    def only(self, lines: Places) -> bytes:
        """These lines with their line breaks."""
        return b"".join(self.block[self.starts[line] : self.breaks[line] + 1] for line in lines)

    def plain(self) -> Places:
        """The lines without backslashes and control characters."""
        odd = self._control
        if len(odd):
            odd = odd[odd != self.ends[np.searchsorted(self.breaks, odd)]]  # \r may stand before \n
        if b"\\" in self.block:
            odd = np.concatenate([odd, np.flatnonzero(self.chars == ord("\\"))])
        every = np.arange(len(self))
        return np.delete(every, np.searchsorted(self.breaks, odd)) if len(odd) else every

    def marks(self, lines: Places, quotes: int) -> tuple[Places, Marks]:
        """Those of these lines that have so many quotes, and a row for each: its start, its quotes, its end."""
        if len(lines) == len(self) and len(self.quotes) == quotes * len(self):
            # As many as if every line had its own, and if one has not, its quotes are not where the template says.
            places = self.quotes.reshape(len(lines), quotes)
        else:
            first = self._first_quotes
            lines = lines[first[lines + 1] - first[lines] == quotes]
            places = self.quotes[first[lines, None] + np.arange(quotes)]
        marks = np.empty((len(lines), quotes + 2), np.int64)
        marks[:, 0], marks[:, 1:-1], marks[:, -1] = self.starts[lines], places, self.ends[lines]
        return lines, marks


def seldom(mask: npt.NDArray[np.bool_]) -> Places:
    """Where `mask` is true. Several times faster than flatnonzero if that is seldom, as line breaks are."""
    eights = mask[: len(mask) // 8 * 8].view("<u8")
    tail = np.flatnonzero(mask[len(eights) * 8 :]) + len(eights) * 8
    at = np.flatnonzero(eights != 0)
    found = eights[at]
    if (found & (found - np.uint64(1))).any():
        return np.flatnonzero(mask)  # some eight have two
    # A true byte is a 1. Multiplied by this number it brings to the top how many bytes stand below it.
    inside = (found * np.uint64(0x0001020304050607)) >> np.uint64(56)
    return np.concatenate([at * 8 + inside.astype(np.int64), tail])


def within(pieces: Pieces, place: int, length: int) -> Pieces:
    """So many bytes from a place in each piece."""
    return np.ascontiguousarray(np.ndarray((len(pieces),), np.dtype((np.void, length)), pieces, place, pieces.strides))
