"""`Index`: from a key's hash to its slot, for whole batches of keys at a time.

A table of *places*, twice as many as keys or more. The highest bits of a hash say which place to try first, and from there
further places are tried, 1, 2, 3, … apart, until the key is found or a place is empty. All keys of a batch try a place in the
same few numpy steps; those that are not done try their next one. Most are done after one, so a batch costs some ten steps
per key of C, and none of Python.

1. A place is **empty**, **gone** (its key was removed: search goes on behind it) or holds a slot and its **tag**, the upper half of
   the hash. Both are one number, so that to look at a place among millions is to wait for memory once. It holds the slot plus one,
   so that fresh memory, which is zero, is empty places.
2. Two keys may share a tag. The index knows tags and slots only; whether a slot holds the key that is asked for is for
   the caller's `equal` to say. `find` asks it of all keys at once; tags are for `insert`, and for making room.
3. Equal keys have equal hashes, so they try the same places in the same order. That is why keys that occur twice in one
   `insert` meet, and get one slot.
4. At most half of the places are not empty, so every search ends, soon. The lowest bits of a hash decide the key group,
   and a task has only some groups: they would leave places unused, the highest do not.
5. A tag says where to look first in a table of any size, so room is made without asking for hashes. Places stand nearly in
   the order of tags, so what moves goes from one piece of memory to another, in steps small enough for the cache.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from penstock.state.columns import SPAN_FEW, Rows, span

__all__ = ["Equal", "Index", "never"]

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]
Halves = npt.NDArray[np.int32]
Hashes = npt.NDArray[np.uint64]

Equal = Callable[[Ints, Rows], Bools]
"""Whether the key in `slots[i]` is the key of row `rows[i]` of the batch that is asked for. Where `slots[i]` is none, say anything."""

_EMPTY, _GONE = -1, -2
_BITS_MIN = 6
_MOVED_PLACES = 65_536
"""How many places are moved to a larger table at a time."""
_TAG, _NO_SLOT = np.uint64(0xFFFF_FFFF_0000_0000), np.uint64(0xFFFF_FFFF)

assert sys.byteorder == "little", "halves of numbers are looked at in place"


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
        places = self._first(hashes)
        # Nearly all keys are where they are looked for first. So all are compared at once: to look at tags before would be one more pass.
        found = _slots(self._held.take(places, mode="clip"))
        if len(found) <= SPAN_FEW and span(found)[1] == _EMPTY == span(found)[0]:  # few keys, all of them new
            return found
        elsewhere = ~equal(found, slice(None))
        elsewhere |= found < 0
        todo = np.flatnonzero(elsewhere)
        here, places, step = found[todo], places[todo], 0
        found[todo] = -1
        while len(others := np.flatnonzero(here != _EMPTY)):
            step += 1
            todo, places = todo[others], (places[others] + step) & self._mask
            here = _slots(self._held[places])
            hit = equal(here, todo)
            hit &= here >= 0
            found[todo[hit]] = here[hit]
            here[hit] = _EMPTY  # as where nothing is: there is no need to look further
        return found

    def insert(self, hashes: Hashes, slots: Ints, equal: Equal) -> Ints:
        """Add keys that are not there: row i in `slots[i]`, which holds its key already. A key that occurs twice gets one of its slots.

        Returns:
            The slot of each key.
        """
        assert not len(slots) or slots.max() < (1 << 31) - 1, "a slot that does not fit in half a place"
        self.make_room(len(slots))
        return self._insert((hashes & _TAG) | (slots + 1).view(np.uint64), equal)

    def remove(self, hashes: Hashes, slots: Ints) -> None:
        """Take out the keys in these slots."""
        places, step = self._first(hashes), 0
        self._count -= len(slots)
        while len(slots):
            here = _slots(self._held[places])
            hit = here == slots
            self._held[places[hit]] |= _NO_SLOT
            others = np.flatnonzero(~hit)
            assert (here[others] != _EMPTY).all(), "a slot that is not in the index"
            step += 1
            slots, places = slots[others], (places[others] + step) & self._mask

    def _first(self, hashes: Hashes) -> Ints:
        """The place to try first, of hashes or of what places hold."""
        return (hashes >> self._shift).view(np.int64)

    def _insert(self, new: Hashes, equal: Equal) -> Ints:
        """Give each a place: a tag and a slot, as places hold them."""
        result = _slots(new)
        todo, places, step = np.arange(len(new)), self._first(new), 0
        while len(todo):
            before = _slots(self._held[places])
            free = np.flatnonzero(before < 0)
            self._held[places[free]] = new[free]  # where several want a place, one of them gets it
            held = self._held[places]
            won = held == new
            self._filled += int(np.count_nonzero(before[won] == _EMPTY))
            self._count += int(np.count_nonzero(won))
            others = np.flatnonzero(~won)
            todo, new, held, places = todo[others], new[others], held[others], places[others]
            rows = np.flatnonzero(_tags(held) == _tags(new))
            if len(rows):
                slots = _slots(held[rows])
                same = equal(slots, todo[rows])
                result[todo[rows[same]]] = slots[same]
                others = np.ones(len(todo), np.bool_)
                others[rows[same]] = False
                todo, new, places = todo[others], new[others], places[others]
            step += 1
            places = (places + step) & self._mask
        return result

    def make_room(self, count: int) -> None:
        """For so many keys more."""
        if 2 * (self._filled + count) <= len(self._held):
            return
        before = self._held
        self._reserve(max(_BITS_MIN, int(3 * (self._count + count)).bit_length()))
        self._count = 0
        for start in range(0, len(before), _MOVED_PLACES):
            held = before[start : start + _MOVED_PLACES]
            self._insert(held[_slots(held) >= 0], never)

    def _reserve(self, bits: int) -> None:
        """Empty places, 2 to the power of `bits`."""
        assert bits <= 32, "more places than tags can tell apart"
        self._shift, self._mask = np.uint64(64 - bits), (1 << bits) - 1
        self._held: Hashes = np.zeros(1 << bits, np.uint64)
        self._filled = 0


def _slots(held: Hashes) -> Ints:
    """The slots of places; _EMPTY or _GONE where there is none."""
    return held.view(np.int32)[0::2] - np.int64(1)


def _tags(held: Hashes) -> Halves:
    """The tags, as a view."""
    return held.view(np.int32)[1::2]


def never(slots: Ints, rows: Rows) -> Bools:
    """Of keys that all differ, none is another."""
    return np.zeros(len(slots), np.bool_)
