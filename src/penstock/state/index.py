"""`Index`: from a key's hash to its slot, for whole batches of keys at a time.

A table of *places*, twice as many as keys or more. The highest bits of a hash say which place to try first, and from there
further places are tried, 1, 2, 3, … apart, until the key is found or a place is empty. All keys of a batch try a place in the
same few numpy steps; those that are not done try their next one. Most are done after one, so a batch costs some ten steps
per key of C, and none of Python.

1. A place is **empty**, **gone** (its key was removed: search goes on behind it) or holds a slot and that slot's hash.
2. Two keys may share a hash. The index knows hashes and slots only; whether a slot holds the key that is asked for is for
   the caller's `equal` to say.
3. Equal keys have equal hashes, so they try the same places in the same order. That is why keys that occur twice in one
   `insert` meet, and get one slot.
4. At most half of the places are not empty, so every search ends, soon. The lowest bits of a hash decide the key group,
   and a task has only some groups: they would leave places unused, the highest do not.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

__all__ = ["Equal", "Index"]

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]

Equal = Callable[[Ints, Ints], Bools]
"""Whether the key in `slots[i]` is the key of row `rows[i]` of the batch that is asked for."""

_EMPTY, _GONE = -1, -2
_BITS_MIN = 6


class Index:
    """Where keys are.

    Example:
        >>> index, keys = Index(), np.array([30, 10, 30])
        >>> hashes = keys.astype(np.uint64) << np.uint64(58)
        >>> equal = lambda slots, rows: keys[slots] == keys[rows]
        >>> index.insert(hashes, np.array([0, 1, 2]), equal).tolist()
        [2, 1, 2]
        >>> index.find(hashes, equal).tolist(), len(index)
        ([2, 1, 2], 2)
    """

    def __init__(self) -> None:
        self._count = 0
        self._reserve(_BITS_MIN)

    def __len__(self) -> int:
        return self._count

    def find(self, hashes: Hashes, equal: Equal) -> Ints:
        """The slot of each key; -1 where there is none."""
        found = np.full(len(hashes), -1, np.int64)
        todo, places, step = np.arange(len(hashes)), self._first(hashes), 0
        while len(todo):
            here = self._slots[places]
            alike = self._hashes[places] == hashes
            alike &= here >= 0
            if alike.all():
                alike = equal(here, todo)
            else:
                rows = np.flatnonzero(alike)
                alike[rows] = equal(here[rows], todo[rows])
            if not step and alike.all():
                return here  # as almost always, if there are few
            found[todo[alike]] = here[alike]
            others = np.flatnonzero(~alike & (here != _EMPTY))
            step += 1
            todo, hashes, places = todo[others], hashes[others], (places[others] + step) & self._mask
        return found

    def insert(self, hashes: Hashes, slots: Ints, equal: Equal) -> Ints:
        """Add keys that are not there: row i in `slots[i]`, which holds its key already. A key that occurs twice gets one of its slots.

        Returns:
            The slot of each key.
        """
        self._make_room(len(slots))
        return self._insert(hashes, slots, equal)

    def remove(self, hashes: Hashes, slots: Ints) -> None:
        """Take out the keys in these slots."""
        places, step = self._first(hashes), 0
        self._count -= len(slots)
        while len(slots):
            here = self._slots[places]
            hit = here == slots
            self._slots[places[hit]] = _GONE
            others = np.flatnonzero(~hit)
            assert (here[others] != _EMPTY).all(), "a slot that is not in the index"
            step += 1
            slots, places = slots[others], (places[others] + step) & self._mask

    def _first(self, hashes: Hashes) -> Ints:
        """The place to try first."""
        return (hashes >> self._shift).view(np.int64)

    def _insert(self, hashes: Hashes, slots: Ints, equal: Equal) -> Ints:
        result = slots.copy()
        todo, places, step = np.arange(len(slots)), self._first(hashes), 0
        while len(todo):
            before = self._slots[places]
            free = np.flatnonzero(before < 0)
            self._slots[places[free]] = slots[free]  # where several want a place, one of them gets it
            here = self._slots[places]
            won = here == slots
            self._hashes[places[won]] = hashes[won]
            self._filled += int(np.count_nonzero(before[won] == _EMPTY))
            self._count += int(np.count_nonzero(won))
            rows = np.flatnonzero(~won & (self._hashes[places] == hashes))
            rows = rows[equal(here[rows], todo[rows])]
            result[todo[rows]] = here[rows]
            won[rows] = True
            others = np.flatnonzero(~won)
            step += 1
            todo, hashes, slots = todo[others], hashes[others], slots[others]
            places = (places[others] + step) & self._mask
        return result

    def _make_room(self, count: int) -> None:
        if 2 * (self._filled + count) <= len(self._slots):
            return
        live = np.flatnonzero(self._slots >= 0)
        hashes, slots = self._hashes[live], self._slots[live]
        self._count = 0
        self._reserve(max(_BITS_MIN, int(3 * (len(live) + count)).bit_length()))
        self._insert(hashes, slots, _never)

    def _reserve(self, bits: int) -> None:
        """Empty places, 2 to the power of `bits`."""
        self._shift, self._mask = np.uint64(64 - bits), (1 << bits) - 1
        self._slots: Ints = np.full(1 << bits, _EMPTY, np.int64)
        self._hashes: Hashes = np.empty(1 << bits, np.uint64)
        self._filled = 0


def _never(slots: Ints, rows: Ints) -> Bools:
    return np.zeros(len(slots), np.bool_)
