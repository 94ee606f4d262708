"""How type checkers see states: a value of `pen.ValueState(int)` is an int or None, of `pen.ValueState(int, default=0)` an int.

    n = pen.ValueState(int)                      # n.get() is int | None
    n = pen.ValueState(int, default=0)           # n.get() is int
    n: pen.ValueState[int] = pen.ValueState(int)    # the same as the first, written out

1. What `get` gives where there is none is a second parameter of `ValueState`: None unless said otherwise, and `Never` with a default.
   It is covariant, so both of the above are a `ValueState[int]`.
2. What an aggregate gives is known when it runs. It is `Any`, unless the second parameter of `AggregatingState` says it.
3. Parameters with defaults are newer than Python 3.11, which has nothing to do with them when it runs: there a class in brackets is
   the class.
4. `type[T]` is every checker's; `TypeForm[T]` is what `int | None` is, for those that know it (mypy 2).
"""

from __future__ import annotations

from types import GenericAlias
from typing import TYPE_CHECKING, Any, Generic

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    T = TypeVar("T")
    Missing = TypeVar("Missing", covariant=True, default=None)
    Result = TypeVar("Result", default=Any)

    class WithMissing(Generic[T, Missing]):
        """Of values, and of what there is where there is none."""

    class WithResult(Generic[T, Result]):
        """Of what goes in, and of what comes out."""

else:
    from typing import TypeVar

    T, Missing, Result = TypeVar("T"), TypeVar("Missing"), TypeVar("Result")

    class WithMissing:
        __class_getitem__ = classmethod(GenericAlias)

    class WithResult:
        __class_getitem__ = classmethod(GenericAlias)
