"""How `map_async` is written: what may be awaited, and what the step is called. The method of `Stream` calls this."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from penstock.api.arguments import at_line
from penstock.api.where import user_line
from penstock.errors import Fix, PlanError
from penstock.eventtime import micros
from penstock.functions import RowFunction
from penstock.names import check_name
from penstock.plan.async_map import AsyncMap
from penstock.policy import Policy

if TYPE_CHECKING:
    from penstock.api.stream import Stream


def map_async(
    stream: Stream,
    function: Callable[..., Any],
    *,
    capacity: int,
    ordered: bool,
    timeout: Any,
    policy: Policy,
    schema: Any,
    name: str | None,
) -> Stream:
    """See `Stream.map_async`."""
    called = getattr(function, "__name__", type(function).__name__)
    if not inspect.iscoroutinefunction(function) and not inspect.iscoroutinefunction(type(function).__call__):
        raise PlanError(
            f"map_async awaits what it is given, and {called} is no async function",
            fix=Fix(
                "async.function", f"Write async before its def, async def {named(called)}(…), or use map instead of map_async"
            ),
            where=user_line(),
        )
    if not isinstance(capacity, int) or isinstance(capacity, bool):
        raise PlanError(
            f"capacity={capacity!r} is no number of calls", fix=Fix("async.capacity", "Write: capacity=100"), where=user_line()
        )
    row_function = at_line(lambda: RowFunction.of(function, "map_async", stream.schema, schema))
    node = AsyncMap(
        where=user_line(),
        name=at_line(lambda: check_name(row_function.name if name is None else name, "a step")),
        input=stream._node,
        function=row_function,
        capacity=capacity,
        ordered=ordered,
        timeout=at_line(lambda: micros(timeout, "timeout")),
        on_error=policy.then,
        attempts=policy.attempts,
        delay=policy.delay,
    )
    return stream._then(node)


def named(called: str) -> str:
    """A name to write after `def`."""
    return called if called.isidentifier() else "score"
