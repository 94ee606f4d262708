"""What was read, by whom and when, from the notes of all readers; and how much of it was read again.

Drivers look into splits too (the micro-batch runner asks whether there are rows). What they see is thrown away, so their notes
are left out.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from soak.source import SPLITS


@dataclass(frozen=True, slots=True, order=True)
class Note:
    """Rows `first` to `first + rows` of a split were handed out."""

    at: float
    pid: int
    split: int
    first: int
    rows: int


@dataclass
class Reads:
    """The notes in a folder; `look` takes in what was added."""

    folder: Path
    drivers: set[int] = field(default_factory=set)
    notes: list[Note] = field(default_factory=list)
    _sizes: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    def look(self) -> None:
        """Take in what was written since the last look."""
        for file in self.folder.iterdir():
            if int(file.name) in self.drivers:
                continue
            with open(file, "rb") as handle:
                handle.seek(self._sizes[file.name])
                data = handle.read()
            whole = data.rfind(b"\n") + 1
            self._sizes[file.name] += whole
            for line in data[:whole].splitlines():
                ns, split, first, rows = (int(word) for word in line.split())
                self.notes.append(Note(ns / 1e9, int(file.name), split, first, rows))

    def readers(self, since: float) -> set[int]:
        """The processes that have read something since then."""
        self.look()
        return {note.pid for note in self.notes[-2000:] if note.at >= since}

    def highest(self, since: float = 0.0, before: float = float("inf")) -> dict[int, int]:
        """How far each split was read in that time."""
        marks = dict.fromkeys(range(SPLITS), 0)
        for note in self.notes:
            if since <= note.at < before:
                marks[note.split] = max(marks[note.split], note.first + note.rows)
        return marks

    def all_read(self, since: float) -> bool:
        """Whether every split was read since then."""
        self.look()
        return all(self.highest(since).values())

    def replayed(self, after: float, until: float, since: float = 0.0) -> int:
        """Rows read from `after` to `until` that had been read before, from `since` on."""
        self.look()
        marks = self.highest(since, after)
        again = [note for note in self.notes if after <= note.at <= until]
        return sum(max(0, min(note.first + note.rows, marks[note.split]) - note.first) for note in again)

    def rows(self, since: float = 0.0) -> int:
        """How many rows the input must have at least to hold all that was read since then."""
        self.look()
        return max(count * SPLITS + split for split, count in self.highest(since).items())
