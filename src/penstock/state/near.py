"""`Near`: the slots of keys that come in small batches, for which a step in Python per key is less than the index's steps."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import repeat
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Near"]

Ints = npt.NDArray[np.int64]

KEYS_MAX = 16_384


class Near:
    """Slots by key, of some of the keys that have one; and keys by slot, so that those of keys that are gone can be forgotten.

    Example:
        >>> near = Near()
        >>> near.learn(["a", "b"], np.array([7, -1]))
        >>> near.find(["b", "a"])
        [-1, 7]
        >>> near.forget(np.array([7]))
        >>> near.find(["a"])
        [-1]
    """

    def __init__(self) -> None:
        self._slots: dict[Any, int] = {}
        self._keys: dict[int, Any] = {}

    def __len__(self) -> int:
        return len(self._slots)

    def find(self, keys: list[Any]) -> list[int]:
        """The slot of each key; -1 if it is not known."""
        return list(map(self._slots.get, keys, repeat(-1)))

    def learn(self, keys: Iterable[Any], slots: Ints) -> None:
        """These keys have these slots; -1 for none."""
        if len(self._slots) > KEYS_MAX:
            self._slots, self._keys = {}, {}
        for key, slot in zip(keys, slots.tolist()):
            if slot >= 0:
                self._slots[key], self._keys[slot] = slot, key

    def forget(self, slots: Ints) -> None:
        """The keys that have these slots are gone."""
        if 2 * len(slots) > len(self._keys):  # to keep the others is less work
            known = np.fromiter(self._keys, np.int64, len(self._keys))
            self._keys = {slot: self._keys[slot] for slot in known[~np.isin(known, slots)].tolist()}
            self._slots = {key: slot for slot, key in self._keys.items()}
            return
        for slot in slots.tolist():
            if slot in self._keys:
                self._slots.pop(self._keys.pop(slot), None)  # a key that equals another, as -0.0 does 0.0, may be gone already
