"""`StateSpec`: what a table of keyed state holds."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from penstock.errors import PlanError
from penstock.state import keygroups
from penstock.state.runfile import GROUP, HASH, OP, run_schema

__all__ = ["StateSpec"]


@dataclass(frozen=True, slots=True)
class StateSpec:
    """What a table holds.

    Args:
        keys: What a row is found by; canonical key types.
        route_columns: How many of the first key columns decide the key group; None for all.
        expires: The value column (int64, µs) that says when a row is gone; None: rows stay until they are deleted.
    """

    name: str
    keys: pa.Schema
    values: pa.Schema
    route_columns: int | None = None
    expires: str | None = None

    def __post_init__(self) -> None:
        assert len(self.keys) > 0, f"state {self.name!r} has no key columns"
        assert self.route_columns is None or 1 <= self.route_columns <= len(self.keys), "route_columns is out of range"
        if self.expires is not None:
            assert self.expires in self.values.names, f"state {self.name!r} has no value {self.expires!r} to expire by"
            assert self.values.field(self.expires).type == pa.int64(), "rows expire at a number of microseconds"
        for field in self.keys:
            canonical = keygroups.canonical_type(field.type)
            if field.type != canonical:
                raise PlanError(f"state {self.name!r}: key {field.name!r} is {field.type}; it must be cast to {canonical}")
        names = [GROUP, HASH, *self.keys.names, OP, *self.values.names]
        for name in names:
            if names.count(name) > 1:
                raise PlanError(f"state {self.name!r}: two columns are called {name!r}; rename one")

    @property
    def schema(self) -> pa.Schema:
        """The schema of its runs."""
        return run_schema(self.keys, self.values)
