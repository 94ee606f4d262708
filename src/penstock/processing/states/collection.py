"""`ListState` and `MapState`: many values per key."""

from __future__ import annotations

from collections.abc import ItemsView, Iterable, Iterator, KeysView, ValuesView
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import Fix, PlanError
from penstock.expr.listed import INLINE, Items, Listed, put_at
from penstock.processing.states.long import Long
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
    """A list per key: `recent = pen.ListState(Order)`.

    `append`, `extend` and `len` cost the same however long the list is; `get` and `for` read all of it. With `ttl=` it is one value,
    which is forgotten as a whole, and read and written as a whole.
    """

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

    @property
    def listed(self) -> Listed | None:
        return Items(VALUE, self._kind.field) if self.ttl is None else None

    # -- of a batch

    _stood: dict[int, Long]
    """The lists that stand apart, as they were when the batch began."""
    _unread: dict[int, Long]
    """Those of which no items were read."""
    _asked: int
    """So many items of them somebody asked for."""
    _grown: tuple[list[int], pa.Array] | None
    """The keys whose lists grow apart from their rows, and by what."""

    def _begin(self) -> None:
        super()._begin()
        self._stood, self._unread, self._asked, self._grown = {}, {}, 0, None

    def _decode(self, rows: pa.RecordBatch) -> list[Any]:
        values = super()._decode(rows)
        away = _empty(rows.column(VALUE))
        if self._apart is not None and len(away):
            sizes = self._apart.sizes(self._scope.keys.take(pa.array(away))).tolist()
            for at, size in zip(away.tolist(), sizes):
                values[at] = ABSENT
                if size:
                    values[at] = self._stood[at] = Long(size)
            self._unread = self._stood.copy()
        return values

    def _encode(self, values: list[Any]) -> list[pa.Array]:
        return super()._encode([[] if self._is_long(value) else value for value in values])

    def _is_long(self, plain: Any) -> bool:
        return self._apart is not None and (type(plain) is Long or len(plain) > INLINE)

    def _prepare(self) -> None:
        super()._prepare()
        if self._prepared is None or self._values is None:
            return
        put, values = self._prepared[0], self._values
        added = {at: items for at in put if self._is_long(values[at]) and (items := _added(values[at]))}
        self._grown = list(added), to_array(list(added.values()), self.fields()[0])

    def _flush(self) -> None:
        if self._prepared is None:
            self._prepare()
        if self._apart is not None and self._grown is not None and self._values is not None:
            keys, values, (grown, lists) = self._scope.keys, self._values, self._grown
            gone = sorted(at for at in self._stood if type(values[at]) is not Long)
            if gone:
                self._apart.drop(keys.take(pa.array(gone)))
            if grown:
                self._apart.take_in(keys.take(pa.array(grown)), lists)
        super()._flush()

    def _items(self) -> list[Any]:
        """The plain items of the current key."""
        plain = self._peek()
        if plain is ABSENT:
            return []
        if type(plain) is not Long:
            return list(plain)
        if not plain.asked:
            plain.asked = True
            self._asked += plain.stored
        if plain.items is None:
            self._read_list(plain)
        assert plain.items is not None, "it was read"
        return [*plain.items, *plain.added]

    def _read_list(self, asked: Long) -> None:
        """Read the list of the current key, and those of some other keys, since to read each by itself costs many times as much."""
        assert self._apart is not None, "something stands apart"
        wanted, room = {self._scope.at: asked}, self._asked  # as many as somebody asked for: half of it is of no use at worst
        for at, each in self._unread.items():
            if each.stored <= room and each is not asked:
                wanted[at], room = each, room - each.stored
        lists = stored_values(self._apart.lists(self._scope.keys.take(pa.array(list(wanted)))))
        for (at, each), items in zip(wanted.items(), lists):
            assert len(items) == each.stored, "the chunks of a list have as many items as it has"
            each.items = items
            del self._unread[at]

    # -- of a key

    def get(self) -> list[T]:
        """A copy of the list; empty if there is none."""
        items, make = self._items(), self._kind.make
        return items if make is None else [make(item) for item in items]

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
        items = plain.added if type(plain) is Long else plain
        items.append(item)
        self._touched((items.pop,))

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
        lists = pc.if_else(pa.array(found), rows.column(VALUE), pa.scalar([], self.fields()[0].type))
        away = _empty(rows.column(VALUE))
        if self._apart is None or not len(away):
            return lists
        return put_at(lists, away, self._apart.lists(keys.columns.take(pa.array(away))))

    def clear_many(self, keys: Keys) -> None:
        """Vectorised: forget the lists of keys."""
        _, rows = self._get_rows(keys)
        away = _empty(rows.column(VALUE))
        if self._apart is not None and len(away):
            self._apart.drop(keys.columns.take(pa.array(away)))
        super().clear_many(keys)

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


def _empty(lists: pa.Array) -> np.ndarray[Any, Any]:
    """The rows that have an empty list: it stands apart."""
    return np.flatnonzero(pc.list_value_length(lists).fill_null(1).to_numpy(zero_copy_only=False) == 0)


def _added(plain: Any) -> list[Any]:
    """What is to be written of a long list."""
    items: list[Any] = plain.added if type(plain) is Long else plain
    return items


class MapState(State, Generic[K, V]):
    """A mapping per key: `seen = pen.MapState(str, int)`. One value: see `state`, rule 3."""

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
