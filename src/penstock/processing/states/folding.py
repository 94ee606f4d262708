"""`ReducingState` and `AggregatingState`: what the values of a key were folded into."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import Fix, PlanError, RowError
from penstock.exact import exactly_batch
from penstock.expr import Accumulators, Aggregate
from penstock.processing.states.scope import ABSENT, Keys
from penstock.processing.states.state import VALUE, State
from penstock.processing.states.typed import Result, T, WithResult
from penstock.processing.values import ValueType, stored_values
from penstock.schema import is_record_class, to_array, to_schema, to_values

if TYPE_CHECKING:
    from typing_extensions import TypeForm

OWNER = "__owner"


class ReducingState(State, Generic[T]):
    """Values folded by a function of two: `most = pen.ReducingState(max, int)`."""

    kind = "reducing"

    @overload
    def __init__(
        self, function: Callable[[T, T], T], type: type[T], *, ttl: str | timedelta | None = None, clock: str | None = None
    ) -> None: ...
    @overload
    def __init__(
        self, function: Callable[[T, T], T], type: TypeForm[T], *, ttl: str | timedelta | None = None, clock: str | None = None
    ) -> None: ...
    def __init__(
        self, function: Callable[[T, T], T], type: Any, *, ttl: str | timedelta | None = None, clock: str | None = None
    ) -> None:
        super().__init__(ttl, clock)
        if not callable(function):
            raise PlanError(
                f"a ReducingState needs a function of two values, and got {function!r}",
                fix=Fix("reducing-state.function", "Write: pen.ReducingState(max, int)"),
            )
        self._function, self._kind = function, ValueType(VALUE, type)

    def fields(self) -> list[pa.Field]:
        return [self._kind.field]

    def _object(self, plain: Any) -> Any:
        return plain if self._kind.make is None else self._kind.make(plain)

    def get(self) -> T | None:
        """What the values so far were folded into; None if there were none."""
        plain = self._peek()
        return None if plain is ABSENT else self._object(plain)

    def add(self, value: T) -> None:
        """Fold one more value in."""
        self._add(self._kind.plain(value))

    def _add(self, new: Any) -> None:
        plain = self._peek()
        if plain is not ABSENT:
            new = self._kind.plain(self._function(self._object(plain), self._object(new)))
        self._poke(new)

    def get_many(self, keys: Keys) -> pa.Array:
        """Vectorised: what the values of each key were folded into; null where there were none."""
        found, rows = self._get_rows(keys)
        return pc.if_else(pa.array(found), rows.column(VALUE), pa.scalar(None, self._kind.field.type))

    def add_many(self, keys: Keys, values: pa.Array) -> None:
        """Vectorised: fold a value into each key, those of a key in the order of the rows."""
        column = self._fitting(values, keys, self._kind.field)
        for state, new in zip(self._by_row(keys), stored_values(column)):
            state._add(new)


class AggregatingState(State, WithResult[T, Result]):
    """An aggregate per key: `spent = pen.AggregatingState(col("value").sum(), float)`.

    `type` is what `add` takes; the aggregate sees it as the column `value`, or, if it is a class with fields, as the columns of its
    fields. `add` is cheap. `get` folds what was added to this key since; what is left is folded when the batch is done.
    """

    kind = "aggregating"

    @overload
    def __init__(
        self, aggregate: Aggregate, type: type[T], *, ttl: str | timedelta | None = None, clock: str | None = None
    ) -> None: ...
    @overload
    def __init__(
        self, aggregate: Aggregate, type: TypeForm[T], *, ttl: str | timedelta | None = None, clock: str | None = None
    ) -> None: ...
    def __init__(self, aggregate: Aggregate, type: Any, *, ttl: str | timedelta | None = None, clock: str | None = None) -> None:
        super().__init__(ttl, clock)
        if not isinstance(aggregate, Aggregate):
            raise PlanError(
                f"an AggregatingState needs an aggregate, and got {aggregate!r}",
                fix=Fix("aggregating-state.aggregate", 'Write: pen.AggregatingState(pen.col("value").sum(), int)'),
            )
        self._whole = is_record_class(type)
        self._kind = ValueType(VALUE, type)
        self._input = to_schema(type) if self._whole else pa.schema([self._kind.field])
        self._accumulators = Accumulators([(VALUE, aggregate)], self._input)

    def fields(self) -> list[pa.Field]:
        return [pa.field(f.name, f.type) for f in self._accumulators.fields]

    @property
    def keeps(self) -> str:
        return self._accumulators.keeps.get(VALUE, "")

    def _decode(self, rows: pa.RecordBatch) -> list[Any]:
        self._rows = rows.select([f.name for f in self.fields()])
        return [[row] for row in range(rows.num_rows)]

    # A plain value is a list: the row of accumulators it starts from (None: from nothing), then the values added since.

    def _begin(self) -> None:
        super()._begin()
        self._unverified: list[Any] = []

    def _verify(self) -> None:
        # Whether an expression can be evaluated is known when it is.
        added, self._unverified = self._unverified, []
        self._folded([[None, *added]])

    def add(self, value: T) -> None:
        """Add one value."""
        self._add(self._kind.plain(value))

    def _add(self, new: Any) -> None:
        plain = self._peek()
        self._unverified.append(new)
        self._scope.journal.append((self._unverified.pop,))
        if plain is ABSENT:
            self._poke([None, new])
            return
        plain.append(new)
        self._touched((plain.pop,))

    def get(self) -> Result | None:
        """The aggregate of the values so far; None if there were none."""
        plain = self._peek()
        if plain is ABSENT:
            return None
        folded = self._folded([plain])
        return to_values(self._accumulators.finish(folded)[0])[0]  # type: ignore[no-any-return]

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
        kept = [(i, plain[0]) for i, plain in enumerate(plains) if plain[0] is not None]
        old = self._rows.take(pa.array([row for _, row in kept], pa.int64())) if kept else None
        return self._merged(arrays, owners, old, [i for i, _ in kept])

    def _merged(self, arrays: list[pa.Array], owners: Any, old: pa.RecordBatch | None, had: Any) -> pa.RecordBatch:
        """The accumulators of owners 0, 1, 2…: those that they `had`, with inputs that were added."""
        batch = pa.RecordBatch.from_arrays([*arrays, pa.array(owners, pa.int64())], names=[*self._input.names, OWNER])
        fresh, bad = self._accumulators.partial(batch, [OWNER])
        if bad is not None and bad.any():
            raise RowError(f"{self.name}: the input of its aggregate cannot be computed")
        names = [field.name for field in self._accumulators.fields]
        parts = [fresh.select([*names, OWNER])]
        if old is not None:
            parts.append(old.append_column(OWNER, pa.array(had, pa.int64())).select([*names, OWNER]))
        whole = pa.concat_batches([exactly_batch(part, parts[0].schema) for part in reversed(parts)])
        merged = self._accumulators.merge(whole, [OWNER])
        order = np.argsort(merged.column(OWNER).to_numpy(), kind="stable")
        return merged.take(pa.array(order)).select(names)

    def _encode(self, values: list[Any]) -> list[pa.Array]:
        return list(self._folded(values).columns)

    def get_many(self, keys: Keys) -> pa.Array:
        """Vectorised: the aggregate of each key; null where nothing was added."""
        found, rows = self._get_rows(keys)
        there = pa.array(found)
        some = rows.select([f.name for f in self.fields()]).filter(there)
        results = self._accumulators.finish(some)[0]
        at = np.cumsum(found) - 1
        return results.take(pa.array(at, mask=~found))

    def add_many(self, keys: Keys, values: pa.Array) -> None:
        """Vectorised: add a value to each key: of a class, a column of structs."""
        column = self._fitting(values, keys, self._kind.field)
        if self.ttl is not None:  # whether a value is forgotten before the next is added differs from row to row
            for state, new in zip(self._by_row(keys), stored_values(column)):
                state._add(new)
            return
        each_once, of = keys.distinct()
        found, old = self._get_rows(Keys(each_once))
        arrays = column.flatten() if self._whole else [column]
        had = np.flatnonzero(found)
        folded = self._merged(arrays, of, old.take(pa.array(had)), had)
        self._put_rows(Keys(each_once), list(folded.columns))
