"""A bound state for tests, with keys a, b and c, and a way to the disk and back."""

from __future__ import annotations

from itertools import count
from typing import Any

import pyarrow as pa

from penstock.checkpoints.storage import MemoryStore
from penstock.expr.listed import tables_of
from penstock.operators.values import ValueStore
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
        tables = [(name, [], declared.columns()), *([] if declared.listed is None else tables_of(name, declared.listed))]
        self.tables = {
            each: KeyedTable(StateSpec(each, pa.schema([("k", pa.string()), *keys]), pa.schema(list(values)), 1), ALL, 128)
            for each, keys, values in tables
        }
        self.epoch = 0
        self.state = self.bound()
        if self.state.ttl is not None and self.state.clock is None:
            self.state.clock = "event"

    def bound(self) -> Any:
        listed = self.declared.listed
        apart = None if listed is None else ValueStore(self.declared.name, listed, self.tables)
        return self.declared.bound(self.tables[self.declared.name], self.scope, apart)

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
            self.epoch += 1
            for name, table in self.tables.items():
                handles = store(table.freeze(self.epoch), self.files, lambda: f"{next(NAMES)}.arrow")
                self.tables[name] = KeyedTable.open(table.spec, ALL, 128, handles, self.files)
            clock = self.state.clock
            self.state = self.bound()
            self.state.clock = clock
