"""`ValueState`: one value per key."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, overload

import pyarrow as pa
import pyarrow.compute as pc

from penstock.processing.states.scope import ABSENT, Keys
from penstock.processing.states.state import VALUE, State
from penstock.processing.states.typed import Missing, T, WithMissing
from penstock.processing.values import ValueType
from penstock.schema import to_array

if TYPE_CHECKING:
    from typing import Never

    from typing_extensions import TypeForm


class ValueState(State, WithMissing[T, Missing]):
    """One value per key: `small = pen.ValueState(float, ttl="1h")`.

    Args:
        type: of the values: a Python type, a dataclass, a NamedTuple, `list[T]`, `T | None`…
        default: what `get` gives where there is none.
        ttl: forget a value so long after it was last set.
        clock: whose time `ttl` is: "event" (the default where the stream has event time) or "processing".
    """

    timing_out: bool = False
    """In `map_with_state`: whether the function is called because the key was silent for the length of the timeout."""

    @overload
    def __init__(
        self: ValueState[T, Never], type: type[T], *, default: T, ttl: str | timedelta | None = None, clock: str | None = None
    ) -> None: ...
    @overload
    def __init__(
        self: ValueState[T, None],
        type: type[T],
        *,
        default: None = None,
        ttl: str | timedelta | None = None,
        clock: str | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self: ValueState[T, Never], type: TypeForm[T], *, default: T, ttl: str | timedelta | None = None, clock: str | None = None
    ) -> None: ...
    @overload
    def __init__(
        self: ValueState[T, None],
        type: TypeForm[T],
        *,
        default: None = None,
        ttl: str | timedelta | None = None,
        clock: str | None = None,
    ) -> None: ...
    def __init__(self, type: Any, *, default: Any = None, ttl: str | timedelta | None = None, clock: str | None = None) -> None:
        super().__init__(ttl, clock)
        self._kind = ValueType(VALUE, type)
        self.default = None if default is None else self._kind.plain(default)

    def fields(self) -> list[pa.Field]:
        return [self._kind.field]

    def get(self) -> T | Missing:
        """The value of this key; `default` (None, unless declared) if there is none."""
        values = self._values
        plain = values[self._scope.at] if values is not None and self.ttl is None else self._peek()
        if plain is ABSENT:
            plain = self.default
        make = self._kind.make
        return plain if make is None else make(plain)  # type: ignore[no-any-return]

    def set(self, value: T) -> None:
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
        found, rows = self._get_rows(keys)
        default = (
            pa.scalar(None, self._kind.field.type) if self.default is None else to_array([self.default], self._kind.field)[0]
        )
        return pc.if_else(pa.array(found), rows.column(VALUE), default)

    def set_many(self, keys: Keys, values: pa.Array) -> None:
        """Vectorised: set the value of each key; of a key that stands there twice the last counts."""
        self._settle()
        self._put_rows(keys, [self._fitting(values, keys, self._kind.field)])
