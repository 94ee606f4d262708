"""Lists that are too long for their key's row: how a `ListState` holds one while a batch is worked on.

Up to `INLINE` items a list is in the row. Beyond that the row has an empty list, which says "look apart" (an empty list is no value,
so nothing else is stored as one), and the items are in chunks, in tables of their own. Whoever runs the function passes in what reads
and writes these.

1. Appending looks at no chunk, and `len` at none. Whoever asks for the items reads those of this key.
2. A list goes apart when it is written. Nothing moves back but what is set anew. So a row of an older checkpoint, whose list may be of
   any length, is like any other.
3. What changes in a batch is in `added`, so undoing is what it is for a list in a row.
"""

from __future__ import annotations

from typing import Any, Protocol

import pyarrow as pa

__all__ = ["Long", "Store"]


class Store(Protocol):
    """The lists of one state that stand apart; `operators.values` has it. Keys that are given to be changed are there once."""

    def sizes(self, keys: pa.RecordBatch) -> Any:
        """How many items each key has; 0 if none stand apart."""

    def lists(self, keys: pa.RecordBatch) -> pa.ListArray:
        """All items of each key."""

    def take_in(self, keys: pa.RecordBatch, lists: pa.ListArray) -> Any:
        """Add items behind those that are there."""

    def drop(self, keys: pa.RecordBatch) -> None:
        """Forget all items of keys."""


class Long:
    """The plain value of a long list."""

    __slots__ = ("added", "asked", "items", "stored")

    def __init__(self, stored: int) -> None:
        self.stored = stored
        """How many items stand apart."""
        self.items: list[Any] | None = None
        """These, once they were read."""
        self.asked = False
        """Whether somebody asked for them: they may be read ahead."""
        self.added: list[Any] = []
        """What was appended since."""

    def __len__(self) -> int:
        return self.stored + len(self.added)
