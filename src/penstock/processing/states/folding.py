"""`ReducingState` and `AggregatingState`: what the values of a key were folded into."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa

from penstock.errors import PlanError, RowError
from penstock.expr import Accumulators, Aggregate
from penstock.processing.states.scope import ABSENT
from penstock.processing.states.state import VALUE, State
from penstock.processing.values import ValueType
from penstock.schema import is_record_class, to_array, to_schema, to_values

T = TypeVar("T")


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
        return [pa.field(f.name, f.type) for f in self._accumulators.fields]

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
