"""`Row`: one row as a function without annotations sees it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from penstock.errors import Fix, PenstockError
from penstock.schema import no_such_column

__all__ = ["ReadOnlyError", "Row", "row_of"]


class ReadOnlyError(PenstockError, AttributeError):
    """A column of a row was set or deleted. Python expects an AttributeError where that cannot be done."""


class Row:
    """One row, read-only: `row.price`, `row["price"]`, `row.replace(price=2)`, `row.to_dict()`.

    >>> Row(user="ann", price=3).replace(price=2)
    Row(user='ann', price=2)
    """

    __slots__ = ("_values",)
    _values: dict[str, Any]

    def __init__(self, /, **values: Any) -> None:
        object.__setattr__(self, "_values", values)

    def __getattr__(self, name: str) -> Any:
        try:
            return object.__getattribute__(self, "_values")[name]
        except KeyError:
            raise AttributeError(no_such_column(name, self._values)) from None

    def __getitem__(self, name: str) -> Any:
        try:
            return self._values[name]
        except KeyError:
            raise KeyError(no_such_column(name, self._values)) from None

    def __setattr__(self, name: str, value: Any) -> None:
        raise ReadOnlyError(
            f"{name!r} cannot be set: a row is read-only, and row.replace makes another one",
            fix=Fix("row.read-only", f"Write: row.replace({name}={value!r})"),
        )

    def __delattr__(self, name: str) -> None:
        raise ReadOnlyError(f"{name!r} cannot be deleted: a row is read-only")

    def replace(self, **values: Any) -> Row:
        """The same row with other values in some columns."""
        for name in values:
            if name not in self._values:
                raise KeyError(no_such_column(name, self._values))
        return Row(**{**self._values, **values})

    def to_dict(self) -> dict[str, Any]:
        """The values by column, as a new dictionary."""
        return dict(self._values)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._values.values())

    def __len__(self) -> int:
        return len(self._values)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Row):
            return NotImplemented
        return list(self._values.items()) == list(other._values.items())

    def __hash__(self) -> int:
        return hash(tuple(self._values.items()))

    def __repr__(self) -> str:
        return f"Row({', '.join(f'{name}={value!r}' for name, value in self._values.items())})"

    def __reduce__(self) -> tuple[Any, ...]:
        return row_of, (self._values,)


def row_of(values: dict[str, Any]) -> Row:
    """A row of these very values: what `Row(**values)` gives, without the copy."""
    row = object.__new__(Row)
    object.__setattr__(row, "_values", values)
    return row
