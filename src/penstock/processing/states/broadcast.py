"""`BroadcastState`: not by key, but the same on every task."""

from __future__ import annotations

import copy
from collections.abc import ItemsView
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

import pyarrow as pa

from penstock.errors import Fix, PlanError, RowError
from penstock.processing.states.scope import ABSENT, Scope
from penstock.processing.states.state import VALUE
from penstock.processing.values import ValueType, stored_values, written
from penstock.schema import to_array

if TYPE_CHECKING:
    from typing_extensions import TypeForm

K = TypeVar("K")
V = TypeVar("V")
Default = TypeVar("Default")


class BroadcastState(Generic[K, V]):
    """The same on every task: `limits = pen.BroadcastState(str, float)`. Written in `on_broadcast` only, read everywhere.

    It is held in memory as a whole.
    """

    kind = "broadcast"

    @overload
    def __init__(self, key: type[K], value: type[V]) -> None: ...
    @overload
    def __init__(self, key: TypeForm[K], value: TypeForm[V]) -> None: ...
    def __init__(self, key: Any, value: Any) -> None:
        self.name = ""
        self._key, self._kind = ValueType("key", key), ValueType(VALUE, value)
        if pa.types.is_nested(self._key.field.type) or self._key.field.nullable:
            raise PlanError(
                f"keys of a BroadcastState are plain values, and {written(key)} is not",
                fix=Fix("broadcast-state.key", f"Write: pen.BroadcastState(str, {written(value)})"),
            )

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @property
    def key_field(self) -> pa.Field:
        """The column of its keys."""
        return self._key.field

    @property
    def value_field(self) -> pa.Field:
        """The column of its values."""
        return self._kind.field

    def defaults(self) -> dict[str, Any]:
        """What fields are that were added to the class of its values since."""
        return {VALUE: self._kind.defaults}

    def bound(self, table: Any, scope: Scope) -> Any:
        """A copy that works."""
        state = copy.copy(self)
        state._table, state._scope = table, scope
        state._key, state._kind = self._key.called(f"{self.name}.key"), self._kind.called(self.name)
        state._entries = {}
        for rows in table.scan():
            keys = rows.column("key").cast(self._key.field.type)
            state._entries.update(zip(stored_values(keys), stored_values(rows.column(VALUE))))
        return state

    _table: Any
    _scope: Scope
    _entries: dict[Any, Any]

    def _object(self, plain: Any) -> Any:
        return plain if self._kind.make is None else self._kind.make(plain)

    @overload
    def get(self, key: K) -> V | None: ...
    @overload
    def get(self, key: K, default: V) -> V: ...
    @overload
    def get(self, key: K, default: Default) -> V | Default: ...
    def get(self, key: K, default: Any = None) -> Any:
        """The value under a key."""
        plain = self._entries.get(key, ABSENT)
        return default if plain is ABSENT else self._object(plain)

    def __contains__(self, key: K) -> bool:
        return key in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def items(self) -> ItemsView[K, V]:
        """Keys and values, in the order of keys."""
        return {key: self._object(self._entries[key]) for key in sorted(self._entries)}.items()

    def set(self, key: K, value: V) -> None:
        """Put a value under a key."""
        self._check()
        at, plain = self._key.plain(key), self._kind.plain(value)
        undo = (self._write, at, self._entries.get(at, ABSENT))
        self._write(at, plain)
        self._scope.journal.append(undo)

    def remove(self, key: K) -> None:
        """Take a key out, if it is there."""
        self._check()
        at = self._key.plain(key)
        if at in self._entries:
            undo = (self._write, at, self._entries[at])
            self._write(at, ABSENT)
            self._scope.journal.append(undo)

    def _check(self) -> None:
        if not self._scope.may_broadcast:
            raise RowError(
                f"{self.name!r} is the same on every task, so only on_broadcast may change it, which runs on every task"
            )

    def _write(self, key: Any, plain: Any) -> None:
        stored = to_array([key], self._key.field).cast(self._table.spec.keys.field(0).type)
        keys = pa.RecordBatch.from_arrays([stored], names=["key"])
        if plain is ABSENT:
            del self._entries[key]
            self._table.delete_many(keys)
        else:
            self._entries[key] = plain
            self._table.put_many(keys, pa.RecordBatch.from_arrays([to_array([plain], self._kind.field)], names=[VALUE]))
