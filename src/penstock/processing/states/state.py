"""`State`, the base of what a process function declares per key: how values get from its table to a row and back.

A bound state speaks of the *current key*. It works on the keys of one batch at a time (`Scope`): the first use in a batch reads
the values of all its keys at once, what changed is written back at once when the batch is done. So a state costs a list access per
row, and its table is asked twice per batch.

1. Every change notes how to undo it (`scope.journal`): a row whose function raises leaves no trace.
2. With `ttl` a value is forgotten so long after it was last written. The time is the row's or timer's own and never before the
   watermark, or the time of day (`clock="processing"`).
3. A map, and a list that forgets (`ttl`), is one value: it is read and written as a whole, once per batch in which it changed. Any
   other list stands apart from its row once it is long (`long`): to append to it costs what is appended.
4. The vectorised form (`get_many` and the like) gives what the rows would have given one by one: of a key that stands in a batch
   several times, the earlier rows first, and each row by its own time.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from penstock.errors import Fix, PlanError, RowError
from penstock.eventtime import micros
from penstock.exact import exactly
from penstock.expr.listed import Listed
from penstock.processing.states.long import Store
from penstock.processing.states.scope import ABSENT, Keys, Scope
from penstock.processing.values import ValueType, stored_values
from penstock.schema import to_array

VALUE = "value"
EXPIRES = {"event": "__expires", "processing": "__expires_processing"}
"""The column that says when a value is forgotten, by clock: a time of the one means nothing to the other."""
CLOCKS = tuple(EXPIRES)


class State:
    """Base of the declared states."""

    kind: ClassVar[str] = "value"

    def __init__(self, ttl: Any = None, clock: str | None = None) -> None:
        if clock is not None and clock not in CLOCKS:
            raise PlanError(
                f"clock={clock!r} is not known", fix=Fix("state.clock", 'Write: clock="event", or clock="processing"')
            )
        if clock is not None and ttl is None:
            raise PlanError(
                "clock= says whose time ttl= is, and there is no ttl=",
                fix=Fix("state.ttl", 'Leave clock= out, or say both. Write: ttl="1h"'),
            )
        self.ttl = None if ttl is None else micros(ttl, "ttl")
        if self.ttl is not None and self.ttl <= 0:
            raise PlanError(f"ttl={ttl!r} would forget everything at once", fix=Fix("state.ttl-positive", 'Write: ttl="1h"'))
        self.clock = clock
        self.name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def fields(self) -> list[pa.Field]:
        """The columns of its values in its table."""
        raise NotImplementedError

    @property
    def keeps(self) -> str:
        """What its columns hold, as far as their names and types do not say."""
        return ""

    def timed(self, default: str) -> State:
        """The same, by a clock that is known: what was declared, or else the one that the stream goes by."""
        state = copy.copy(self)
        if self.ttl is not None and self.clock is None:
            state.clock = default
        return state

    @property
    def expires(self) -> str | None:
        """The column that says when a value is forgotten."""
        return None if self.ttl is None else EXPIRES[self.clock or "event"]

    def columns(self) -> list[pa.Field]:
        """All columns of its table but the key."""
        return [*self.fields(), *([pa.field(self.expires, pa.int64())] if self.expires is not None else [])]

    def defaults(self) -> dict[str, Any]:
        """Of columns that hold classes, what fields are that were added to a class since: see `ValueType`."""
        return {VALUE: self._kind.defaults} if [f.name for f in self.fields()] == [VALUE] else {}

    @property
    def listed(self) -> Listed | None:
        """What its values are, if long ones stand apart from their rows."""
        return None

    def bound(self, table: Any, scope: Scope, apart: Store | None = None) -> Any:
        """A copy that works. `apart`: where long values are, if it is `listed`."""
        assert (self.listed is None) == (apart is None), "long lists need their tables"
        state = copy.copy(self)
        state._table, state._scope, state._apart = table, scope, apart
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
    _apart: Store | None = None
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
            self._expires = rows.column(self.expires).to_pylist()
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

    # -- the vectorised form

    def clear_many(self, keys: Keys) -> None:
        """Vectorised: forget the values of keys."""
        self._settle()
        self._table.delete_many(keys.columns)

    def _settle(self) -> None:
        """What the row by row form has changed is written before the vectorised form looks."""
        self._flush()

    def _get_rows(self, keys: Keys) -> tuple[Any, pa.RecordBatch]:
        """Which keys have a value, and the rows of the table."""
        self._settle()
        found, rows = self._table.get_many(keys.columns)
        if self.expires is not None:
            expires = rows.column(self.expires)
            gone = expires.is_valid().to_numpy(zero_copy_only=False) & (expires.fill_null(0).to_numpy() <= self._times(keys))
            found = found & ~gone
        return found, rows

    def _put_rows(self, keys: Keys, arrays: list[pa.Array]) -> None:
        """Write values; of a key that stands there twice the last counts."""
        if self.ttl is not None:
            arrays = [*arrays, pa.array(np.broadcast_to(self._times(keys) + self.ttl, len(keys)), pa.int64())]
        self._table.put_many(keys.columns, pa.RecordBatch.from_arrays(arrays, names=[f.name for f in self.columns()]))

    def _fitting(self, values: Any, keys: Keys, field: pa.Field) -> pa.Array:
        """A column that was given, one value per key, in the type of `field`."""
        if isinstance(values, pa.ChunkedArray):
            values = values.combine_chunks()
        try:
            column = exactly(values, field.type) if isinstance(values, pa.Array) else pa.array(values, field.type)
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise RowError(f"state {self.name!r}: {error}") from None
        if len(column) != len(keys):
            raise RowError(f"state {self.name!r}: {len(column)} values for {len(keys)} keys")
        if column.null_count and not field.nullable:
            raise RowError(
                f"state {self.name!r}: a null, and it holds none", fix=Fix("state.clear_many", "Forget a key with clear_many")
            )
        return column

    def _by_row(self, keys: Keys) -> Iterator[Any]:
        """The same as if each row came by itself: a state whose current key is that of the first row, of the second, and so on.

        It is another copy, with a scope of its own: rows have a current key here, the function that called has none.
        """
        self._settle()
        each_once, of = keys.distinct()
        state, scope = copy.copy(self), Scope()
        scope.keys, scope.now = each_once, self._scope.now
        state._scope = scope
        state._begin()
        for row, at in enumerate(of.tolist()):
            scope.at = at
            if keys.moments is not None:
                scope.moment = int(keys.moments[row])
            yield state
            scope.journal.clear()
        state._flush()
