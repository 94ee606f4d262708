"""`ListState` and `MapState`: many values per key, read and written as one."""

from __future__ import annotations

from collections.abc import ItemsView, Iterable, Iterator, KeysView, ValuesView
from typing import Any, Generic, TypeVar

import pyarrow as pa

from penstock.errors import PlanError
from penstock.processing.states.scope import ABSENT
from penstock.processing.states.state import VALUE, State
from penstock.processing.values import ValueType, several

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")


class ListState(State, Generic[T]):
    """A list per key: `recent = pen.ListState(Order)`. One value: see the module's rule 3."""

    kind = "list"

    def __init__(self, type: Any, *, ttl: Any = None, clock: str | None = None) -> None:
        super().__init__(ttl, clock)
        self._kind = ValueType("item", type)

    def fields(self) -> list[pa.Field]:
        return [pa.field(VALUE, pa.list_(self._kind.field), nullable=False)]

    def get(self) -> list[Any]:
        """A copy of the list; empty if there is none."""
        plain, make = self._peek(), self._kind.make
        if plain is ABSENT:
            return []
        return list(plain) if make is None else [make(item) for item in plain]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.get())

    def __len__(self) -> int:
        plain = self._peek()
        return 0 if plain is ABSENT else len(plain)

    def append(self, value: Any) -> None:
        """Add one at the end."""
        plain, item = self._peek(), self._kind.plain(value)
        if plain is ABSENT:
            self._poke([item])
            return
        plain.append(item)
        self._touched((plain.pop,))

    def extend(self, values: Iterable[Any]) -> None:
        """Add several at the end."""
        for value in several(values, self.fields()[0].type, self.name):
            self.append(value)

    def set(self, values: Iterable[Any]) -> None:
        """Another list instead; an empty one is none."""
        items = [self._kind.plain(value) for value in several(values, self.fields()[0].type, self.name)]
        if items:
            self._poke(items)
        else:
            self.clear()


class MapState(State, Generic[K, V]):
    """A mapping per key: `seen = pen.MapState(str, int)`. One value: see the module's rule 3."""

    kind = "map"

    def __init__(self, key: Any, value: Any, *, ttl: Any = None, clock: str | None = None) -> None:
        super().__init__(ttl, clock)
        self._key, self._kind = ValueType("key", key), ValueType(VALUE, value)
        if pa.types.is_nested(self._key.field.type) or self._key.field.nullable:
            raise PlanError(f"keys of a MapState are plain values, and {key} is not. Write: pen.MapState(str, …)")

    def _name_types(self) -> None:
        super()._name_types()
        self._key = self._key.called(f"{self.name}.key")

    def fields(self) -> list[pa.Field]:
        return [pa.field(VALUE, pa.map_(self._key.field.type, self._kind.field), nullable=False)]

    def _plain(self) -> dict[Any, Any]:
        plain = self._peek()
        return {} if plain is ABSENT else plain

    def _object(self, plain: Any) -> Any:
        return plain if self._kind.make is None else self._kind.make(plain)

    def get(self, key: Any, default: Any = None) -> Any:
        """The value under a key of the map."""
        plain = self._plain().get(self._key.plain(key), ABSENT)
        return default if plain is ABSENT else self._object(plain)

    def set(self, key: Any, value: Any) -> None:
        """Put a value under a key of the map."""
        entries, at, plain = self._peek(), self._key.plain(key), self._kind.plain(value)
        if entries is ABSENT:
            self._poke({at: plain})
            return
        undo = (entries.__setitem__, at, entries[at]) if at in entries else (entries.__delitem__, at)
        entries[at] = plain
        self._touched(undo)

    def remove(self, key: Any) -> None:
        """Take a key out of the map, if it is in it."""
        entries, at = self._plain(), self._key.plain(key)
        if at not in entries:
            return
        rest = {k: v for k, v in entries.items() if k != at}
        self._poke(rest or ABSENT)

    def __contains__(self, key: Any) -> bool:
        return self._key.plain(key) in self._plain()

    def __len__(self) -> int:
        return len(self._plain())

    def _objects(self) -> dict[Any, Any]:
        return {key: self._object(plain) for key, plain in self._plain().items()}

    def keys(self) -> KeysView[Any]:
        """The keys of the map, in the order in which they were first set."""
        return self._objects().keys()

    def values(self) -> ValuesView[Any]:
        """Its values."""
        return self._objects().values()

    def items(self) -> ItemsView[Any, Any]:
        """Both."""
        return self._objects().items()
