"""`map_async`: an awaited function of each row. It has state without a key: the rows whose results have not been sent.

The step stands in the stage of its input, without an exchange. Which task holds a row in flight after a restore is decided by
the key group of its lane (`operators.async_map`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from penstock.errors import Fix
from penstock.eventtime import duration_text
from penstock.functions import RowFunction
from penstock.plan.keyed import Stateful, StateLayout
from penstock.plan.logical import Node, Used

LANE = [pa.field("__lane", pa.int64()), pa.field("__n", pa.int64())]
ORIGIN = [pa.field(name, pa.string()) for name in ("__source", "__split", "__position")]


@dataclass(frozen=True, eq=False, kw_only=True)
class AsyncMap(Stateful):
    """Each row becomes what an async function returns. Times in microseconds."""

    input: Node
    function: RowFunction
    capacity: int
    ordered: bool
    timeout: int
    attempts: int = 1
    delay: int = 0
    kind = "async_map"
    verb = "map_async"

    def __post_init__(self) -> None:
        if self.capacity < 1:
            raise self.error(f"capacity={self.capacity} lets no call begin", fix=Fix("async.no-call", "Write: capacity=1"))
        if self.timeout < 1:
            raise self.error(
                f'timeout="{duration_text(self.timeout)}" leaves no time to answer',
                fix=Fix("async.timeout", 'Write: timeout="5s"'),
            )
        if self.input.changes == "update":
            raise self.error(
                "a function may change the key by which rows of this stream replace earlier ones",
                fix=Fix(
                    "async.of-updates", "Call it before the rows are aggregated; what comes behind can be changed by with_columns"
                ),
            )
        if self.input.changes == "retract" and not self.ordered:
            raise self.error(
                "rows of this stream can be withdrawn, and ordered=False might send what withdraws a row before the row",
                fix=Fix("async.ordered", "Leave ordered=False out"),
            )
        self._like(self.input, self.function.output)
        self._set(keys=())

    @property
    def inputs(self) -> tuple[Node, ...]:
        return (self.input,)

    def needs(self, used: Used) -> list[set[str]]:
        return [set(self.function.columns)]

    def states(self) -> Sequence[StateLayout]:
        read = [pa.field(name, self.input.schema.field(name).type) for name in self.function.columns]
        hidden = [pa.field(f.name, f.type) for f in self.input.hidden]
        return [StateLayout("rows", pa.schema(LANE), pa.schema([*read, *hidden, *ORIGIN]), 1)]

    def text(self) -> str:
        order = "" if self.ordered else ", unordered"
        tries = f", {self.attempts} attempts" if self.attempts > 1 else ""
        return (
            f"map_async {self.function.name} capacity {self.capacity}{order}, timeout {duration_text(self.timeout)}{tries}"
            f" name={self.name}"
        )
