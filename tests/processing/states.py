"""A bound state for tests, with keys a, b and c, and a way to the disk and back."""

from __future__ import annotations

from itertools import count
from typing import Any

import pyarrow as pa

from penstock.checkpoints.storage import MemoryStore
from penstock.processing.states import Keys, Scope
from penstock.state.history import store
from penstock.state.spec import StateSpec
from penstock.state.table import KeyedTable

ALL = range(128)
NAMES = count()


class Bench:
    """One state. `at` chooses the current key; `batch` ends a batch."""

    def __init__(self, declared: Any, name: str = "it", keys: tuple[str | None, ...] = ("a", "b", "c")) -> None:
        declared.name = name
        self.declared, self.scope, self.files = declared, Scope(), MemoryStore()
        self.scope.keys = self.keys(*keys).columns
        self.spec = StateSpec(name, pa.schema([("k", pa.string())]), pa.schema(declared.columns()))
        self.table = KeyedTable(self.spec, ALL, 128)
        self.state = declared.bound(self.table, self.scope)
        if self.state.ttl is not None and self.state.clock is None:
            self.state.clock = "event"

    def keys(self, *keys: str | None) -> Keys:
        return Keys(pa.record_batch({"k": pa.array(keys, pa.string())}))

    def at(self, key: int) -> Any:
        self.scope.at = key
        return self.state

    def batch(self, disk: bool = False) -> None:
        """Write what changed; through the disk, if wanted."""
        self.state._flush()
        self.scope.journal.clear()
        if disk:
            handles = store(self.table.freeze(1), self.files, lambda: f"{next(NAMES)}.arrow")
            self.table = KeyedTable.open(self.spec, ALL, 128, handles, self.files)
            clock = self.state.clock
            self.state = self.declared.bound(self.table, self.scope)
            self.state.clock = clock
