"""Own keyed logic: `process`, with `connect` and `broadcast` for a second input, and its short forms."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.api.arguments import at_line, need_name
from penstock.api.where import user_line
from penstock.errors import Fix, PlanError
from penstock.eventtime import micros
from penstock.plan.inherited import Inherited, SavedState
from penstock.plan.process import Process
from penstock.processing.function import ProcessFunction, Spec, read_spec, row_type
from penstock.processing.initial import Initial, initial_table
from penstock.processing.withstate import EVERY, INITIAL, MapWithState, UpdateStateByKey, hints_of, name_of
from penstock.schema import to_schema

if TYPE_CHECKING:
    from penstock.api.keyed import KeyedStream
    from penstock.api.stream import Stream


class BroadcastStream:
    """Rows that go to every task: `payments.key_by("card").connect(limits.broadcast())`."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream


class Processable:
    """What a process function can be run over: one stream by key, or two."""

    def _sides(self) -> tuple[KeyedStream, KeyedStream | BroadcastStream | None]:
        raise NotImplementedError

    def process(
        self,
        function: ProcessFunction,
        *,
        name: str | None = None,
        schema: Any = None,
        order: str | None = None,
        initial: Mapping[str, Any] | None = None,
    ) -> Stream:
        """Run your own logic per key: `process(SmallThenLarge(), name="fraud")`.

        It has `on_row`, or `on_left` and `on_right` for two streams by key, or `on_row` and `on_broadcast`.

        Args:
            schema: of the rows it sends, where the annotations of its callbacks do not say it.
            order: "event-time": rows wait for the watermark and come in order of time. Left out: as they come.
            initial: values its states start from, where no snapshot has any: `{"limit": table}`, a table or files with the key
                columns and a column `value`, or a column per field; or what another job left: `pen.from_savepoint(…)`.
        """
        return process(*self._sides(), function, name=name, schema=schema, order=order, initial=initial)


class ConnectedStreams(Processable):
    """Two inputs of one process function."""

    def __init__(self, left: KeyedStream, right: KeyedStream | BroadcastStream) -> None:
        self._left, self._right = left, right

    def _sides(self) -> tuple[KeyedStream, KeyedStream | BroadcastStream]:
        return self._left, self._right


def process(
    keyed: KeyedStream,
    other: KeyedStream | BroadcastStream | None,
    function: ProcessFunction,
    *,
    name: str | None,
    schema: Any = None,
    order: str | None = None,
    initial: Mapping[str, Any] | None = None,
    emits: str = "append",
    wakes: tuple[str, str] | None = None,
) -> Stream:
    """Build the node."""
    stream = keyed._stream
    inputs, kinds = [stream.schema], ["row"]
    if other is not None:
        inputs.append(other._stream.schema)
        kinds = ["row", "broadcast"] if isinstance(other, BroadcastStream) else ["left", "right"]
    clock = "event" if stream._node.timed else "processing"
    spec = at_line(lambda: read_spec(function, inputs, kinds, schema, clock=clock))
    name = need_name(name, "process", f"{spec.name}()", keyed._by)
    return stream._then(
        Process(
            where=user_line(),
            name=name,
            main=stream._node,
            by=keyed._by,
            other=None if other is None else other._stream._node,
            other_by=() if other is None or isinstance(other, BroadcastStream) else other._by,
            spec=spec,
            order=order,
            emits=emits,
            wakes=wakes,
            initial=at_line(lambda: initials(spec, stream.schema, keyed._by, initial or {})),
            on_error=stream._on_error,
        )
    )


def initials(spec: Spec, schema: pa.Schema, by: tuple[str, ...], given: Mapping[str, Any]) -> dict[str, Initial]:
    """What states start from, by name."""
    found: dict[str, Initial] = {}
    for name, source in given.items():
        if name not in spec.states:
            raise PlanError(f"initial= names a state {name!r}, and {spec.name} declares {', '.join(spec.states) or 'none'}")
        state, keys = spec.states[name], tuple(schema.field(key) for key in by)
        found[name] = Inherited(state, keys, source) if isinstance(source, SavedState) else initial_table(source, state, keys)
    return found


def map_with_state(
    keyed: KeyedStream,
    function: Callable[[Any, Any], Any],
    *,
    state: Any,
    timeout: Any,
    clock: str | None,
    initial: Any,
    schema: Any,
    name: str | None,
) -> Stream:
    """As `MapWithState`."""
    if clock is None:
        clock = "event" if keyed._stream._node.timed else "processing"
    mapper = at_line(lambda: MapWithState(function, state, None if timeout is None else micros(timeout, "timeout"), clock))
    returns = at_line(lambda: hints_of(function)).get("return") if schema is None else schema
    if returns is None:
        raise PlanError(
            f"cannot tell what {name_of(function)} returns",
            fix=Fix("state-function.returns", "Annotate it, -> Visit | None, or say it: schema=Visit"),
            where=user_line(),
        )
    name = need_name(name, "map_with_state", name_of(function), keyed._by)
    return process(
        keyed,
        None,
        mapper,
        name=name,
        schema=returns if isinstance(returns, str | pa.Schema) else at_line(lambda: row_type(returns)),
        initial={} if initial is None else {"state": initial},
        wakes=None if timeout is None else (clock, INITIAL),
    )


def update_state_by_key(
    keyed: KeyedStream, function: Callable[[list[Any], Any], Any], *, state: Any, every: Any, initial: Any, name: str | None
) -> Stream:
    """As `UpdateStateByKey`."""
    by, input = keyed._by, keyed._stream.schema
    step = at_line(lambda: micros(every, "every"))
    updater = at_line(lambda: UpdateStateByKey(function, state, step, input, by))
    name = need_name(name, "update_state_by_key", name_of(function), by)
    made = pa.schema([*(input.field(key) for key in by), *to_schema(state)])
    first = {} if initial is None else {"state": initial}
    return process(keyed, None, updater, name=name, schema=made, initial=first, emits="update", wakes=("processing", EVERY))
