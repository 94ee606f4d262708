"""`Twins`: which rows of a batch have the same slot, found in memory that fits the cache however many slots there are.

Each row is written down at the *place* that its slot has in a small array; slots that are far apart may share a place. The last row that
was written there is its **winner**. A row that reads another's number has lost: against a later row of its own slot, then it is not the
last one, or against a stranger. Rows that lost against strangers try again among themselves. All rows of their slot are among them, and
every round settles a slot at each place, so there are as many rounds as slots that share a place: two or three.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from penstock.state.columns import Ints, Rows

__all__ = ["Shared", "Twins"]

_PLACES = 1 << 19
"""At most, of 4 bytes each: about what a core's own cache holds."""
_PER_ROW = 4
"""So many places are enough: small batches need no large array."""
_MANY = 0.125
"""Of the rows: to tell more of them from the others would take longer than it saves."""


_FEW = 64
"""So few slots are told apart by a dict before numpy has begun."""


@dataclass(frozen=True, slots=True)
class Shared:
    """Of the rows of a batch: those whose slot another row has too, or all if they are many; and those whose slot no later row has."""

    rows: Rows
    last: Ints


class Twins:
    """Room to find them in; holds nothing between calls.

    Example:
        >>> shared = Twins().of(np.array([7, 3, 7, 3 + (1 << 19), *range(100, 200)]))
        >>> shared.rows.tolist(), shared.last.tolist()[:4]
        ([0, 2], [1, 2, 3, 4])
        >>> Twins().of(np.array([7, 3]))
    """

    def __init__(self) -> None:
        self._row = np.empty(0, np.int32)

    def of(self, slots: Ints) -> Shared | None:
        """None if all slots differ."""
        if len(slots) <= _FEW:
            return _of_few(slots.tolist())
        if len(self._row) < _PLACES and len(self._row) < _PER_ROW * len(slots):
            self._row = np.empty(min(_PLACES, 1 << (_PER_ROW * len(slots)).bit_length()), np.int32)
        places, numbers = slots & (len(self._row) - 1), np.arange(len(slots), dtype=np.int32)
        self._row[places] = numbers  # of rows with the same place the last stays
        winners = self._row.take(places, mode="clip")
        lost = np.flatnonzero(winners != numbers)
        if not len(lost):
            return None
        last, twins = np.ones(len(slots), np.bool_), 0
        shared: list[npt.NDArray[np.integer]] = []
        while len(lost):
            against = winners.take(lost)
            strange = slots.take(against) != slots.take(lost)
            rest = lost[strange]
            if len(rest):
                lost, against = lost[~strange], against[~strange]
            last[lost] = False
            twins += len(lost)
            shared += [lost, against]
            self._row[places[rest]] = rest
            winners[rest] = self._row[places[rest]]
            lost = rest[winners[rest] != rest]
        if not twins:
            return None
        rows = np.unique(np.concatenate(shared)) if twins < _MANY * len(slots) else slice(None)
        return Shared(rows, np.flatnonzero(last))


def _of_few(slots: list[int]) -> Shared | None:
    last = dict(zip(slots, range(len(slots))))
    twins = len(slots) - len(last)
    if not twins:
        return None
    ends = np.array(sorted(last.values()))
    if twins >= _MANY * len(slots):
        return Shared(slice(None), ends)
    counts = Counter(slots)
    return Shared(np.array([row for row, slot in enumerate(slots) if counts[slot] > 1]), ends)
