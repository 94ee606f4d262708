"""`Output`: a side output that a process function declares."""

from __future__ import annotations

from typing import Any, Generic, TypeVar, overload

from penstock.functions import encoder_for
from penstock.schema import to_schema

T = TypeVar("T")


class Output(Generic[T]):
    """A declared side output: `suspects = pen.Output(Payment)`, `ctx.emit(row, to=self.suspects)`, `stream.side("suspects")`."""

    @overload
    def __init__(self, type: type[T]) -> None: ...
    @overload
    def __init__(self: Output[Any], type: Any) -> None: ...
    def __init__(self, type: Any) -> None:
        self.name = ""
        # Read here, once: a worker may not know the modules that annotations speak of.
        self.schema, self.encoder = encoder_for(type, to_schema(type))

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name
