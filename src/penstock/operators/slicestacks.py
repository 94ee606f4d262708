"""The slices of the window that closed last, as two stacks: each slice is merged about three times, not once per window.

The windows of a step close one after the other, and of sixty slices fifty-nine stay. What has been put together is kept: behind
the *turn*, for each slice the sum from it to the turn; after it, one sum of all that came since. A window is then two parts, and
the next one needs no more than its new slice. When the last slice behind the turn goes, those after it are summed from their end
to their beginning, and the turn is where they end.

A cache and no state: what is in it stands in the table as well. It holds all slices that the table has between the start of the
next window and `upto`, each with the number of its key. A row that falls into one of these makes it worthless.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.expr import Accumulators
from penstock.state.columns import gathered, key_list
from penstock.state.keygroups import hash_keys

__all__ = ["Numbered", "SliceStacks"]

Ints = np.ndarray[Any, np.dtype[np.int64]]
Hashes = np.ndarray[Any, np.dtype[np.uint64]]


@dataclass(frozen=True, slots=True)
class Numbered:
    """A row of accumulators for each of some keys, which go by number, in ascending order."""

    numbers: Ints
    values: pa.RecordBatch


@dataclass(frozen=True, slots=True)
class _Slice:
    """A slice: where it starts, whose keys are in it, and its accumulators; behind the turn, with all up to there."""

    start: int
    numbers: Ints
    sum: Numbered


class SliceStacks:
    """The slices of all keys from a window's start on, while all keys close their windows together."""

    def __init__(self, accumulators: Accumulators, upto: int) -> None:
        self.upto = upto
        self._accumulators = accumulators
        self._numbers: dict[Any, int] = {}
        self._keys: pa.RecordBatch | None = None
        self._hashes: Hashes = np.empty(0, np.uint64)
        self._behind: list[_Slice] = []  # from the turn backwards: the earliest is last
        self._since: list[_Slice] = []
        self._since_sum: Numbered | None = None

    # -- keys by number

    def number(self, keys: pa.RecordBatch) -> Ints:
        """The numbers of keys; those not seen before get one."""
        before, numbers = len(self._numbers), self._numbers
        found = np.fromiter((numbers.setdefault(key, len(numbers)) for key in key_list(keys)), np.int64, keys.num_rows)
        if len(numbers) > before:
            rows = np.empty(len(numbers) - before, np.int64)
            fresh = np.flatnonzero(found >= before)
            rows[found[fresh] - before] = fresh
            new = gathered(keys, rows)
            self._keys = new if self._keys is None else pa.concat_batches([self._keys, new])
            self._hashes = np.concatenate([self._hashes, hash_keys(new)])
        return found

    def distinct(self, keys: pa.RecordBatch) -> Ints:
        """The numbers of keys, each once, in ascending order."""
        found = self.number(keys)
        some = np.zeros(len(self._numbers), np.bool_)
        some[found] = True
        return np.flatnonzero(some)

    def keys_of(self, numbers: Ints) -> tuple[pa.RecordBatch, Hashes]:
        """Keys by number, and their hashes."""
        assert self._keys is not None, "no key has a number yet"
        return gathered(self._keys, numbers), self._hashes[numbers]

    # -- slices

    def add(self, start: int, numbers: Ints, values: pa.RecordBatch) -> None:
        """A slice later than all that are here, of keys that each stand in one row."""
        if len(numbers):
            order = np.argsort(numbers)
            if not np.array_equal(order, np.arange(len(order))):
                numbers, values = numbers[order], gathered(values, order)
            part = Numbered(numbers, values)
            self._since.append(_Slice(start, numbers, part))
            self._since_sum = part if self._since_sum is None else self._together(self._since_sum, part)

    def whole(self) -> Numbered:
        """All slices that are here, together."""
        parts = [*(each.sum for each in self._behind[-1:]), *([self._since_sum] if self._since_sum else [])]
        assert parts, "a window that closes has something in it"
        return parts[0] if len(parts) == 1 else self._together(*parts)

    def numbers(self) -> Ints:
        """The keys that have anything here."""
        parts = [*(each.sum.numbers for each in self._behind[-1:]), *([self._since_sum.numbers] if self._since_sum else [])]
        if len(parts) == 2:
            return parts[0] if np.array_equal(parts[0], parts[1]) else np.union1d(parts[0], parts[1])
        return parts[0] if parts else np.empty(0, np.int64)

    def drop(self, before: int) -> list[tuple[int, Ints]]:
        """Forget the slices that start before this time; where they start, and the numbers of their keys."""
        gone: list[tuple[int, Ints]] = []
        while True:
            if not self._behind:
                self._turn()
            if not self._behind or self._behind[-1].start >= before:
                return gone
            last = self._behind.pop()
            gone.append((last.start, last.numbers))

    @property
    def worn(self) -> bool:
        """Whether most of the keys it has numbers for are gone."""
        return len(self._numbers) > 1_000 + 4 * len(self.numbers())

    def _turn(self) -> None:
        for each in reversed(self._since):
            later = self._behind[-1].sum if self._behind else None
            sum = each.sum if later is None else self._together(each.sum, later)
            self._behind.append(_Slice(each.start, each.numbers, sum))
        self._since, self._since_sum = [], None

    def _together(self, earlier: Numbered, later: Numbered) -> Numbered:
        if np.array_equal(earlier.numbers, later.numbers):  # as mostly: the same keys, second after second
            found = np.ones(len(earlier.numbers), np.bool_)
            return Numbered(earlier.numbers, self._accumulators.combine(earlier.values, found, later.values))
        both = [each.values.append_column("number", pa.array(each.numbers)) for each in (earlier, later)]
        merged = self._accumulators.merge(both, ["number"])
        numbers = merged.column("number").to_numpy()
        order = np.argsort(numbers)
        return Numbered(numbers[order], gathered(merged.drop_columns(["number"]), order))
