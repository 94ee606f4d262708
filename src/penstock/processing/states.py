"""The states a process function declares. A declaration is a value of the class; a running function has bound copies of it.

A bound state speaks of the *current key*. It works on the keys of one batch at a time (`Scope`): the first use in a batch reads
the values of all its keys at once, what changed is written back at once when the batch is done. So a state costs a list access per
row, and its table is asked twice per batch.

1. Every change notes how to undo it (`scope.journal`): a row whose function raises leaves no trace.
2. With `ttl` a value is forgotten so long after it was last written. The time is the row's or timer's own and never before the
   watermark, or the time of day (`clock="processing"`).
3. A list, a map is one value: it is read and written as a whole, once per batch in which it changed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, ValuesView
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import pyarrow as pa

from penstock.errors import PlanError, RowError
from penstock.eventtime import micros
from penstock.expr import Accumulators, Aggregate
from penstock.functions import encoder_for
from penstock.processing.values import ValueType, several, stored_values
from penstock.schema import is_record_class, to_array, to_schema, to_values

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")

VALUE, EXPIRES = "value", "__expires"
EXPIRES_FIELD = pa.field(EXPIRES, pa.int64())
CLOCKS = ("event", "processing")


class _Absent:
    def __repr__(self) -> str:
        return "absent"


ABSENT: Any = _Absent()


class Keys:
    """The keys of a batch's rows, for the vectorised form: `state.get_many(keys)`."""

    __slots__ = ("columns", "moments")

    def __init__(self, columns: pa.RecordBatch, moments: np.ndarray[Any, Any] | None = None) -> None:
        self.columns = columns
        """The key columns, in canonical types, a row per row of the batch."""
        self.moments = moments
        """The event time of each row, as expiry sees it."""

    def __len__(self) -> int:
        return int(self.columns.num_rows)

    def take(self, rows: Any) -> Keys:
        """The keys of some rows."""
        rows = rows if isinstance(rows, pa.Array) else pa.array(rows, pa.int64())
        moments = None if self.moments is None else self.moments[rows.to_numpy(zero_copy_only=False)]
        return Keys(self.columns.take(rows), moments)


class Scope:
    """What all states of a function share while a batch is worked on."""

    def __init__(self) -> None:
        self.keys: pa.RecordBatch = pa.RecordBatch.from_arrays([], names=[])  # each key once
        self.at = 0  # the current one
        self.journal: list[tuple[Any, ...]] = []  # (function, arguments…) that undo what was done, to be called last first
        self.moment = 0  # event time now, as expiry sees it
        self.now = 0  # the time of day
        self.may_broadcast = False

    def undo(self) -> None:
        """Undo all since the journal was last cleared."""
        while self.journal:
            function, *arguments = self.journal.pop()
            function(*arguments)


class State:
    """Base of the declared states."""

    kind: ClassVar[str] = "value"

    def __init__(self, ttl: Any = None, clock: str | None = None) -> None:
        if clock is not None and clock not in CLOCKS:
            raise PlanError(f"clock={clock!r} is not known. Write one of {', '.join(map(repr, CLOCKS))}")
        if clock is not None and ttl is None:
            raise PlanError("clock= says whose time ttl= is, and there is no ttl=")
        self.ttl = None if ttl is None else micros(ttl, "ttl")
        if self.ttl is not None and self.ttl <= 0:
            raise PlanError(f"ttl={ttl!r} would forget everything at once. It must be positive")
        self.clock = clock
        self.name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def fields(self) -> list[pa.Field]:
        """The columns of its values in its table."""
        raise NotImplementedError

    def columns(self) -> list[pa.Field]:
        """All columns of its table but the key."""
        return [*self.fields(), *([EXPIRES_FIELD] if self.ttl is not None else [])]

    def bound(self, table: Any, scope: Scope) -> Any:
        """A copy that works."""
        state = copy.copy(self)
        state._table, state._scope = table, scope
        state._name_types()
        state._begin()
        return state

    def _name_types(self) -> None:
        """Have errors name the state."""
        if hasattr(self, "_kind"):
            self._kind = self._kind.called(self.name)

    # -- of a batch

    _kind: ValueType

    _table: Any = None
    _scope = Scope()
    _values: list[Any] | None = None
    _expires: list[Any]
    _changed: set[int]
    _prepared: tuple[list[int], pa.RecordBatch | None, list[int]] | None

    def _begin(self) -> None:
        """Other keys now."""
        self._values, self._changed, self._prepared = None, set(), None

    def _read(self) -> list[Any]:
        """The plain values of the batch's keys; read when they are first needed."""
        if self._table is None:
            raise RowError(f"state {self.name!r} belongs to a process function that is not running")
        if not self._scope.keys.num_rows:
            raise RowError(
                f"state {self.name!r} is by key, and there is none here: on_broadcast and on_batch have no current key"
            )
        found, rows = self._table.get_many(self._scope.keys)
        values = self._decode(rows)
        for row in np.flatnonzero(~found).tolist():
            values[row] = ABSENT
        if self.ttl is not None:
            self._expires = rows.column(EXPIRES).to_pylist()
        self._values = values
        return values

    def _decode(self, rows: pa.RecordBatch) -> list[Any]:
        return stored_values(rows.column(VALUE))

    def _encode(self, values: list[Any]) -> list[pa.Array]:
        return [to_array(values, self.fields()[0])]

    def _time(self) -> int:
        return self._scope.now if self.clock == "processing" else self._scope.moment

    def _times(self, keys: Keys) -> Any:
        return self._scope.now if self.clock == "processing" else keys.moments

    def _peek(self) -> Any:
        """The plain value of the current key, or ABSENT."""
        values, at = self._values, self._scope.at
        if values is None:
            values = self._read()
        if self.ttl is not None and values[at] is not ABSENT:
            expires = self._expires[at]
            if expires is not None and expires <= self._time():
                return ABSENT
        return values[at]

    def _poke(self, plain: Any) -> None:
        """Set the plain value of the current key, or ABSENT."""
        values, at = self._values, self._scope.at
        if values is None:
            values = self._read()
        if self.ttl is not None:
            self._scope.journal.append((self._expires.__setitem__, at, self._expires[at]))
            self._expires[at] = self._time() + self.ttl
        self._scope.journal.append((values.__setitem__, at, values[at]))
        values[at] = plain
        self._changed.add(at)

    def _touched(self, undo: tuple[Any, ...]) -> None:
        """The value of the current key was changed in place."""
        at = self._scope.at
        self._scope.journal.append(undo)
        self._changed.add(at)
        if self.ttl is not None:
            self._scope.journal.append((self._expires.__setitem__, at, self._expires[at]))
            self._expires[at] = self._time() + self.ttl

    def _verify(self) -> None:
        """Raise if what the current row did cannot be stored; only asked where that is known only later."""

    def _prepare(self) -> None:
        """What changed, as columns."""
        if not self._changed or self._values is None:
            return
        changed, values = sorted(self._changed), self._values
        put = [at for at in changed if values[at] is not ABSENT]
        gone = [at for at in changed if values[at] is ABSENT]
        rows = None
        if put:
            arrays = self._encode([values[at] for at in put])
            if self.ttl is not None:
                arrays.append(pa.array([self._expires[at] for at in put], pa.int64()))
            rows = pa.RecordBatch.from_arrays(arrays, names=[field.name for field in self.columns()])
        self._prepared = put, rows, gone

    def _flush(self) -> None:
        """Write back what changed."""
        if self._prepared is None:
            self._prepare()
        if self._prepared is not None:
            (put, rows, gone), keys = self._prepared, self._scope.keys
            if rows is not None:
                self._table.put_many(keys if len(put) == keys.num_rows else keys.take(pa.array(put)), rows)
            if gone:
                self._table.delete_many(keys.take(pa.array(gone)))
        self._begin()

    def clear(self) -> None:
        """Forget the value of this key."""
        if self._peek() is not ABSENT:
            self._poke(ABSENT)

    @property
    def exists(self) -> bool:
        """Whether this key has a value."""
        return self._peek() is not ABSENT

    def clear_many(self, keys: Keys) -> None:
        """Vectorised: forget the values of keys."""
        self._settle()
        self._table.delete_many(keys.columns)

    def _settle(self) -> None:
        """What the row by row form has changed is written before the vectorised form looks."""
        self._flush()


class ValueState(State, Generic[T]):
    """One value per key: `small = pen.ValueState(float, ttl="1h")`.

    Args:
        type: of the values: a Python type, a dataclass, a NamedTuple, `list[T]`, `T | None`…
        default: what `get` gives where there is none.
        ttl: forget a value so long after it was last set.
        clock: whose time `ttl` is: "event" (the default where the stream has event time) or "processing".
    """

    timing_out: bool = False
    """In `map_with_state`: whether the function is called because the key was silent for the length of the timeout."""

    def __init__(self, type: Any, *, default: T | None = None, ttl: Any = None, clock: str | None = None) -> None:
        super().__init__(ttl, clock)
        self._kind = ValueType(VALUE, type)
        self.default = None if default is None else self._kind.plain(default)

    def fields(self) -> list[pa.Field]:
        return [self._kind.field]

    def get(self) -> Any:
        """The value of this key; `default` (None, unless declared) if there is none."""
        values = self._values
        plain = values[self._scope.at] if values is not None and self.ttl is None else self._peek()
        if plain is ABSENT:
            plain = self.default
        make = self._kind.make
        return plain if make is None else make(plain)

    def set(self, value: Any) -> None:
        """Set the value of this key. It is copied."""
        plain = self._kind.plain(value)
        values = self._values
        if values is None or self.ttl is not None:
            self._poke(plain)
            return
        at = self._scope.at
        self._scope.journal.append((values.__setitem__, at, values[at]))
        values[at] = plain
        self._changed.add(at)

    def get_many(self, keys: Keys) -> pa.Array:
        """Vectorised: the value of each key; `default` (null, unless declared) where there is none."""
        self._settle()
        found, rows = self._table.get_many(keys.columns)
        values = rows.column(VALUE)
        if self.ttl is not None:
            expires = rows.column(EXPIRES)
            gone = expires.is_valid().to_numpy(zero_copy_only=False) & (expires.fill_null(0).to_numpy() <= self._times(keys))
            if (gone & found).any():
                found = found & ~gone
                values = pa.array(values.to_pylist(), values.type, mask=~found)
        if self.default is None or found.all():
            return values
        default = to_array([self.default], self._kind.field)[0]
        if pa.types.is_nested(values.type):
            return pa.array([v if f else self.default for v, f in zip(values.to_pylist(), found.tolist())], values.type)
        return pa.compute.if_else(pa.array(found), values, default)

    def set_many(self, keys: Keys, values: pa.Array) -> None:
        """Vectorised: set the value of each key; of a key that stands there twice the last counts."""
        self._settle()
        if isinstance(values, pa.ChunkedArray):
            values = values.combine_chunks()
        if not isinstance(values, pa.Array):
            values = pa.array(values, self._kind.field.type)
        if len(values) != len(keys):
            raise RowError(f"state {self.name!r}: {len(values)} values for {len(keys)} keys")
        if values.null_count and not self._kind.field.nullable:
            raise RowError(f"state {self.name!r}: a null, and it holds none. Forget a key with clear_many")
        arrays = [values.cast(self._kind.field.type)]
        if self.ttl is not None:
            arrays.append(pa.array(np.broadcast_to(self._times(keys) + self.ttl, len(values)), pa.int64()))
        self._table.put_many(keys.columns, pa.RecordBatch.from_arrays(arrays, names=[f.name for f in self.columns()]))


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


class ReducingState(State, Generic[T]):
    """Values folded by a function of two: `most = pen.ReducingState(max, int)`."""

    kind = "reducing"

    def __init__(self, function: Callable[[Any, Any], Any], type: Any, *, ttl: Any = None, clock: str | None = None) -> None:
        super().__init__(ttl, clock)
        if not callable(function):
            raise PlanError(
                f"a ReducingState needs a function of two values, and got {function!r}. Write: pen.ReducingState(max, int)"
            )
        self._function, self._kind = function, ValueType(VALUE, type)

    def fields(self) -> list[pa.Field]:
        return [self._kind.field]

    def _object(self, plain: Any) -> Any:
        return plain if self._kind.make is None else self._kind.make(plain)

    def get(self) -> Any:
        """What the values so far were folded into; None if there were none."""
        plain = self._peek()
        return None if plain is ABSENT else self._object(plain)

    def add(self, value: Any) -> None:
        """Fold one more value in."""
        plain, new = self._peek(), self._kind.plain(value)
        if plain is not ABSENT:
            new = self._kind.plain(self._function(self._object(plain), self._object(new)))
        self._poke(new)


class AggregatingState(State):
    """An aggregate per key: `spent = pen.AggregatingState(col("value").sum(), float)`.

    `type` is what `add` takes; the aggregate sees it as the column `value`, or, if it is a class with fields, as the columns of its
    fields. `add` is cheap. `get` folds what was added to this key since; what is left is folded when the batch is done.
    """

    kind = "aggregating"

    def __init__(self, aggregate: Aggregate, type: Any, *, ttl: Any = None, clock: str | None = None) -> None:
        super().__init__(ttl, clock)
        if not isinstance(aggregate, Aggregate):
            raise PlanError(
                f'an AggregatingState needs an aggregate, and got {aggregate!r}. Write: pen.AggregatingState(col("value").sum(), int)'
            )
        self._whole = is_record_class(type)
        self._kind = ValueType(VALUE, type)
        self._input = to_schema(type) if self._whole else pa.schema([self._kind.field])
        self._accumulators = Accumulators([(VALUE, aggregate)], self._input)

    def fields(self) -> list[pa.Field]:
        return [pa.field(f"value.{i}", f.type) for i, f in enumerate(self._accumulators.fields)]

    def _decode(self, rows: pa.RecordBatch) -> list[Any]:
        names = [field.name for field in self._accumulators.fields]
        self._rows = rows.select([f.name for f in self.fields()]).rename_columns(names)
        return [[row] for row in range(rows.num_rows)]

    # A plain value is a list: the row of accumulators it starts from (None: from nothing), then the values added since.

    def _begin(self) -> None:
        super()._begin()
        self._unverified: list[Any] = []

    def _verify(self) -> None:
        # Whether an expression can be evaluated is known when it is.
        added, self._unverified = self._unverified, []
        self._folded([[None, *added]])

    def add(self, value: Any) -> None:
        """Add one value."""
        plain, new = self._peek(), self._kind.plain(value)
        self._unverified.append(new)
        self._scope.journal.append((self._unverified.pop,))
        if plain is ABSENT:
            self._poke([None, new])
            return
        plain.append(new)
        self._touched((plain.pop,))

    def get(self) -> Any:
        """The aggregate of the values so far; None if there were none."""
        plain = self._peek()
        if plain is ABSENT:
            return None
        folded = self._folded([plain])
        return to_values(self._accumulators.finish(folded)[0])[0]

    def _folded(self, plains: list[list[Any]]) -> pa.RecordBatch:
        """The accumulators of some keys, with what was added."""
        added = [value for plain in plains for value in plain[1:]]
        owners = [i for i, plain in enumerate(plains) for _ in plain[1:]]
        values = added if not self._whole else [[value[f.name] for value in added] for f in self._input]
        arrays = (
            [to_array(values, self._input.field(0))]
            if not self._whole
            else [to_array(column, f) for column, f in zip(values, self._input)]
        )
        batch = pa.RecordBatch.from_arrays([*arrays, pa.array(owners, pa.int64())], names=[*self._input.names, "__owner"])
        fresh, bad = self._accumulators.partial(batch, ["__owner"])
        if bad is not None and bad.any():
            raise RowError(f"{self.name}: the input of its aggregate cannot be computed")
        names = [field.name for field in self._accumulators.fields]
        kept = [(i, plain[0]) for i, plain in enumerate(plains) if plain[0] is not None]
        old = self._rows.take(pa.array([row for _, row in kept], pa.int64())) if kept else None
        parts = [fresh.select([*names, "__owner"])]
        if old is not None:
            parts.append(old.append_column("__owner", pa.array([i for i, _ in kept], pa.int64())).select([*names, "__owner"]))
        whole = pa.concat_batches([part.cast(parts[0].schema) for part in reversed(parts)])
        merged = self._accumulators.merge(whole, ["__owner"])
        order = np.argsort(merged.column("__owner").to_numpy(), kind="stable")
        return merged.take(pa.array(order)).select(names)

    def _encode(self, values: list[Any]) -> list[pa.Array]:
        return list(self._folded(values).columns)


class BroadcastState(Generic[K, V]):
    """The same on every task: `limits = pen.BroadcastState(str, float)`. Written in `on_broadcast` only, read everywhere.

    It is held in memory as a whole.
    """

    kind = "broadcast"

    def __init__(self, key: Any, value: Any) -> None:
        self.name = ""
        self._key, self._kind = ValueType("key", key), ValueType(VALUE, value)
        if pa.types.is_nested(self._key.field.type) or self._key.field.nullable:
            raise PlanError(f"keys of a BroadcastState are plain values, and {key} is not. Write: pen.BroadcastState(str, …)")

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

    def get(self, key: Any, default: Any = None) -> Any:
        """The value under a key."""
        plain = self._entries.get(key, ABSENT)
        return default if plain is ABSENT else self._object(plain)

    def __contains__(self, key: Any) -> bool:
        return key in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def items(self) -> ItemsView[Any, Any]:
        """Keys and values, in the order of keys."""
        return {key: self._object(self._entries[key]) for key in sorted(self._entries)}.items()

    def set(self, key: Any, value: Any) -> None:
        """Put a value under a key."""
        self._check()
        at, plain = self._key.plain(key), self._kind.plain(value)
        undo = (self._write, at, self._entries.get(at, ABSENT))
        self._write(at, plain)
        self._scope.journal.append(undo)

    def remove(self, key: Any) -> None:
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


class Output:
    """A declared side output: `suspects = pen.Output(Payment)`, `ctx.emit(row, to=self.suspects)`, `stream.side("suspects")`."""

    def __init__(self, type: Any) -> None:
        self.name = ""
        # Read here, once: a worker may not know the modules that annotations speak of.
        self.schema, self.encoder = encoder_for(type, to_schema(type))

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name
