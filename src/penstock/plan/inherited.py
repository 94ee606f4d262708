"""Values that a state starts from, as another job left them: whether they fit, and how they become the state's own.

What was saved is a table of key columns and value columns (`checkpoints.saved` reads it). It fits a state if

1. it is by the same key columns: the same names, of the same types;
2. its column `value` is of the state's type, or narrower (a 32-bit integer fits a state of integers); or, where a state holds a
   class, there is such a column for each of its fields;
3. both forget by the same clock, or neither does. Each value then keeps the time at which it is forgotten.

An aggregate is saved as its accumulators, `value.sum` and `value.n` of a mean. An AggregatingState with the same accumulators goes
on from them. Any other state takes those that are a value by themselves: a count, a sum, the least, the greatest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import pyarrow as pa

from penstock.errors import Fix, PlanError
from penstock.exact import exactly
from penstock.processing.states import EXPIRES, VALUE, AggregatingState, State
from penstock.state.keygroups import canonical_type

__all__ = ["Inherited", "SavedState"]

PLAIN = tuple(f"{VALUE}.{kind}" for kind in ("n", "sum", "min", "max"))
"""Accumulators that are their aggregate's value, if they stand alone."""

Convert = Callable[[pa.RecordBatch], pa.Array]


@runtime_checkable
class SavedState(Protocol):
    """A state of some step, as a savepoint or the storage of a job has it."""

    @property
    def about(self) -> str:
        """Which one it is, for messages."""

    @property
    def columns(self) -> tuple[pa.Schema, pa.Schema] | None:
        """Its key columns and its value columns; None if nothing is saved of it."""

    def read(self, groups: range, max_parallelism: int) -> Iterator[pa.RecordBatch]:
        """Its rows: at least those of the key groups."""


@dataclass(frozen=True, eq=False)
class Inherited:
    """The first values of `state` are those of `saved`. A PlanError says why they cannot be."""

    state: State
    keys: tuple[pa.Field, ...]
    saved: SavedState

    def __post_init__(self) -> None:
        if self.saved.columns is not None:
            keys, values = self.saved.columns
            self._check_keys(keys)
            self._check_expiry(values)
            self._converts(keys, values)

    def batches(self, groups: range, max_parallelism: int) -> Iterator[tuple[pa.RecordBatch, pa.RecordBatch]]:
        """Keys and values as the state's table holds them."""
        if self.saved.columns is None:
            return
        converts = self._converts(*self.saved.columns)
        names = [key.name for key in self.keys]
        alike = names == self.saved.columns[0].names  # the order of columns decides about key groups
        for rows in self.saved.read(groups if alike else range(max_parallelism), max_parallelism):
            values = [convert(rows) for convert in converts]
            if nulls := [name for name, column in _parts(values[0], self.state.fields()[0]) if column.null_count]:
                raise self._error(f"that has a null in {', '.join(nulls)}, and this holds none")
            if self.state.expires is not None:
                there = self.state.expires in rows.schema.names
                values.append(rows.column(self.state.expires) if there else pa.nulls(rows.num_rows, pa.int64()))
            yield rows.select(names), pa.RecordBatch.from_arrays(values, names=[f.name for f in self.state.columns()])

    def _error(self, why: str, *, fix: Fix | None = None) -> PlanError:
        return PlanError(f"state {self.state.name!r} cannot start from {self.saved.about}: {why}", fix=fix)

    def _check_keys(self, keys: pa.Schema) -> None:
        ours = {key.name: canonical_type(key.type) for key in self.keys}
        theirs = {key.name: key.type for key in keys}
        if ours != theirs:
            raise self._error(
                f"that is by {_list(theirs)}, and this is by {_list(ours)}",
                fix=Fix("saved-state.keys", "Key by columns of the same names and types"),
            )

    def _check_expiry(self, values: pa.Schema) -> None:
        for clock, column in EXPIRES.items():
            if column in values.names and self.state.expires != column:
                ours = "never does" if self.state.expires is None else "does so by the other clock"
                raise self._error(
                    f"that forgets by {clock} time, and this {ours}",
                    fix=Fix("saved-state.ttl", f'Declare both alike. Write: ttl="1h", clock="{clock}"'),
                )

    def _converts(self, keys: pa.Schema, values: pa.Schema) -> list[Convert]:
        """What makes the state's columns of those that are saved."""
        there = {field.name: field.type for field in values if field.name not in EXPIRES.values()}
        wanted = self.state.fields()
        if isinstance(self.state, AggregatingState):
            if there != {field.name: field.type for field in wanted}:
                raise self._error(
                    f"that is saved as {_list(there)}, and its own aggregate as {_list({f.name: f.type for f in wanted})}"
                )
            return [_column(field.name, field.type) for field in wanted]
        kind, alone = wanted[0].type, next(iter(there)) if len(there) == 1 else None
        if alone == VALUE or alone in PLAIN:
            if not fits(there[alone], kind):
                raise self._error(f"that holds {there[alone]}, and this holds {kind}")
            return [_column(alone, kind)]
        if any(name.startswith(f"{VALUE}.") for name in there):
            raise self._error(
                f"that is an aggregate, saved as {_list(there)}",
                fix=Fix("saved-state.aggregate", "Declare an AggregatingState of the same aggregate, and start that"),
            )
        if not pa.types.is_struct(kind):
            raise self._error(
                f"that has the columns {_list(there)}, and this holds {kind}",
                fix=Fix("saved-state.class", "Declare the state to hold a class with such fields"),
            )
        known = {**there, **{key.name: key.type for key in keys}}
        for field in kind:
            if field.name not in known or not fits(known[field.name], field.type):
                raise self._error(f"that has the columns {_list(there)}, and this needs {field.name} ({field.type})")
        return [_struct(kind)]


def fits(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether every value of one type is one of the other, and means the same."""
    t = pa.types
    if t.is_signed_integer(found) and t.is_signed_integer(wanted):
        return bool(found.bit_width <= wanted.bit_width)
    if t.is_floating(found) and t.is_floating(wanted):
        return bool(found.bit_width <= wanted.bit_width)
    if t.is_struct(found) and t.is_struct(wanted):
        names = [field.name for field in found] == [field.name for field in wanted]
        return names and all(fits(a.type, b.type) for a, b in zip(found, wanted))
    if t.is_list(found) and t.is_list(wanted):
        return fits(found.value_type, wanted.value_type)
    if t.is_map(found) and t.is_map(wanted):
        return fits(found.key_type, wanted.key_type) and fits(found.item_type, wanted.item_type)
    return bool(found == wanted)


def _parts(column: pa.Array, field: pa.Field) -> Iterator[tuple[str, pa.Array]]:
    """What may hold no null: the column itself, and the fields of a class."""
    if not field.nullable:
        yield field.name, column
    if pa.types.is_struct(field.type):
        yield from ((inner.name, column.field(inner.name)) for inner in field.type if not inner.nullable)


def _column(name: str, kind: pa.DataType) -> Convert:
    return lambda rows: exactly(rows.column(name), kind)


def _struct(kind: pa.DataType) -> Convert:
    def convert(rows: pa.RecordBatch) -> pa.Array:
        return pa.StructArray.from_arrays([exactly(rows.column(f.name), f.type) for f in kind], fields=list(kind))

    return convert


def _list(columns: dict[str, pa.DataType]) -> str:
    return ", ".join(f"{name} ({kind})" for name, kind in columns.items())
