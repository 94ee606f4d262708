"""`ListState` and `MapState`: many values per key, read and written as one."""

from __future__ import annotations

from collections.abc import ItemsView, Iterable, Iterator, KeysView, ValuesView
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import Fix, PlanError
from penstock.processing.states.scope import ABSENT, Keys
from penstock.processing.states.state import VALUE, State
from penstock.processing.values import ValueType, several, stored_values, written
from penstock.schema import to_array

if TYPE_CHECKING:
    from typing_extensions import TypeForm

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")
Default = TypeVar("Default")


class ListState(State, Generic[T]):
    """A list per key: `recent = pen.ListState(Order)`. One value: see the module's rule 3."""

    kind = "list"

    @overload
    def __init__(self, type: type[T], *, ttl: str | timedelta | None = None, clock: str | None = None) -> None: ...
    @overload
    def __init__(self, type: TypeForm[T], *, ttl: str | timedelta | None = None, clock: str | None = None) -> None: ...
    def __init__(self, type: Any, *, ttl: str | timedelta | None = None, clock: str | None = None) -> None:
        super().__init__(ttl, clock)
        self._kind = ValueType("item", type)

    def fields(self) -> list[pa.Field]:
        return [pa.field(VALUE, pa.list_(self._kind.field), nullable=False)]

    def get(self) -> list[T]:
        """A copy of the list; empty if there is none."""
        plain, make = self._peek(), self._kind.make
        if plain is ABSENT:
            return []
        return list(plain) if make is None else [make(item) for item in plain]

    def __iter__(self) -> Iterator[T]:
        return iter(self.get())

    def __len__(self) -> int:
        plain = self._peek()
        return 0 if plain is ABSENT else len(plain)

    def append(self, value: T) -> None:
        """Add one at the end."""
        self._append(self._kind.plain(value))

    def _append(self, item: Any) -> None:
        plain = self._peek()
        if plain is ABSENT:
            self._poke([item])
            return
        plain.append(item)
        self._touched((plain.pop,))

    def extend(self, values: Iterable[T]) -> None:
        """Add several at the end."""
        for value in several(values, self.fields()[0].type, self.name):
            self.append(value)

    def set(self, values: Iterable[T]) -> None:
        """Another list instead; an empty one is none."""
        items = [self._kind.plain(value) for value in several(values, self.fields()[0].type, self.name)]
        if items:
            self._poke(items)
        else:
            self.clear()

    def get_many(self, keys: Keys) -> pa.Array:
        """Vectorised: the list of each key, in a column of lists."""
        found, rows = self._get_rows(keys)
        return pc.if_else(pa.array(found), rows.column(VALUE), pa.scalar([], self.fields()[0].type))

    def set_many(self, keys: Keys, lists: pa.Array) -> None:
        """Vectorised: another list for each key, of a column of lists; of a key that stands there twice the last counts."""
        column = self._fitting(lists, keys, self.fields()[0])
        for state, items in zip(self._by_row(keys), stored_values(column)):
            state.set(items)

    def append_many(self, keys: Keys, values: pa.Array) -> None:
        """Vectorised: add one value at the end of each key's list, those of a key in the order of the rows."""
        column = self._fitting(values, keys, self._kind.field)
        for state, item in zip(self._by_row(keys), stored_values(column)):
            state._append(item)


class MapState(State, Generic[K, V]):
    """A mapping per key: `seen = pen.MapState(str, int)`. One value: see the module's rule 3."""

    kind = "map"

    @overload
    def __init__(self, key: type[K], value: type[V], *, ttl: str | timedelta | None = None, clock: str | None = None) -> None: ...
    @overload
    def __init__(
        self, key: TypeForm[K], value: TypeForm[V], *, ttl: str | timedelta | None = None, clock: str | None = None
    ) -> None: ...
    def __init__(self, key: Any, value: Any, *, ttl: str | timedelta | None = None, clock: str | None = None) -> None:
        super().__init__(ttl, clock)
        self._key, self._kind = ValueType("key", key), ValueType(VALUE, value)
        if pa.types.is_nested(self._key.field.type) or self._key.field.nullable:
            raise PlanError(
                f"keys of a MapState are plain values, and {written(key)} is not",
                fix=Fix("map-state.key", f"Write: pen.MapState(str, {written(value)})"),
            )

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

    @overload
    def get(self, key: K) -> V | None: ...
    @overload
    def get(self, key: K, default: V) -> V: ...
    @overload
    def get(self, key: K, default: Default) -> V | Default: ...
    def get(self, key: K, default: Any = None) -> Any:
        """The value under a key of the map."""
        plain = self._plain().get(self._key.plain(key), ABSENT)
        return default if plain is ABSENT else self._object(plain)

    def set(self, key: K, value: V) -> None:
        """Put a value under a key of the map."""
        self._set(self._key.plain(key), self._kind.plain(value))

    def _set(self, at: Any, plain: Any) -> None:
        entries = self._peek()
        if entries is ABSENT:
            self._poke({at: plain})
            return
        undo = (entries.__setitem__, at, entries[at]) if at in entries else (entries.__delitem__, at)
        entries[at] = plain
        self._touched(undo)

    def remove(self, key: K) -> None:
        """Take a key out of the map, if it is in it."""
        entries, at = self._plain(), self._key.plain(key)
        if at not in entries:
            return
        rest = {k: v for k, v in entries.items() if k != at}
        self._poke(rest or ABSENT)

    def __contains__(self, key: K) -> bool:
        return self._key.plain(key) in self._plain()

    def __len__(self) -> int:
        return len(self._plain())

    def _objects(self) -> dict[Any, Any]:
        return {key: self._object(plain) for key, plain in self._plain().items()}

    def keys(self) -> KeysView[K]:
        """The keys of the map, in the order in which they were first set."""
        return self._objects().keys()

    def values(self) -> ValuesView[V]:
        """Its values."""
        return self._objects().values()

    def items(self) -> ItemsView[K, V]:
        """Both."""
        return self._objects().items()

    def get_many(self, keys: Keys, names: pa.Array) -> pa.Array:
        """Vectorised: what the map of each key has under each name; null where it has nothing."""
        column = self._fitting(names, keys, self._key.field)
        found = [state._plain().get(name) for state, name in zip(self._by_row(keys), stored_values(column))]
        return to_array(found, self._kind.field.with_nullable(True))

    def set_many(self, keys: Keys, names: pa.Array, values: pa.Array) -> None:
        """Vectorised: put each value under each name into the map of each key, in the order of the rows."""
        columns = self._fitting(names, keys, self._key.field), self._fitting(values, keys, self._kind.field)
        for state, name, plain in zip(self._by_row(keys), *map(stored_values, columns)):
            state._set(name, plain)

    def remove_many(self, keys: Keys, names: pa.Array) -> None:
        """Vectorised: take each name out of the map of each key."""
        column = self._fitting(names, keys, self._key.field)
        for state, name in zip(self._by_row(keys), stored_values(column)):
            state.remove(name)
