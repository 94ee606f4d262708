"""A sink that calls a function with the rows of each committed epoch.

1. The function runs at commit, in the coordinator's process (on Spark: the driver), after the epoch is durable.
2. In doubt it is called again: with the same rows and the same token, also after a restart, in every runner. The token
   is a hash of lineage, sink and epoch; a receiver that remembers tokens makes it exactly once, which is what
   `idempotent=True` claims.
3. What the function raises fails the commit, which is tried three times in all, or for longer if it is a `RetriableError`. It is not called
   for epochs without rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pyarrow as pa
import xxhash

from penstock.connectors.connector import Committer, Sink, SinkContext, Writer
from penstock.connectors.staged import StagedCommitter, StagedWriter
from penstock.errors import RAISED, FunctionError
from penstock.names import check_name

__all__ = ["Epoch", "ForeachBatch", "foreach_batch"]


@dataclass(frozen=True, slots=True)
class Epoch:
    """Which commit this is. `token` is the same in every attempt, and differs between sinks, epochs and lineages."""

    number: int
    attempt: int
    token: str


Call = Callable[[pa.RecordBatchReader, Epoch], object]


@dataclass(frozen=True)
class ForeachBatch(Sink):
    """Calls `call(rows, epoch)`."""

    name: str
    call: Call
    kind: str
    accepts: frozenset[str] = field(init=False, default=frozenset({"append", "update", "retract"}))

    def writer(self, context: SinkContext) -> Writer:
        return StagedWriter(context)

    def committer(self, context: SinkContext) -> Committer:
        return _Calls(context, self.call)

    def describe(self) -> str:
        return f"foreach_batch, {self.kind}"


def foreach_batch(call: Call, *, idempotent: bool = False, name: str | None = None) -> ForeachBatch:
    """See `penstock.sinks.foreach_batch`."""
    given = getattr(call, "__name__", "foreach_batch").strip("<>") if name is None else name
    return ForeachBatch(check_name(given, "a sink"), call, "idempotent" if idempotent else "at-least-once")


class _Calls(StagedCommitter):
    def __init__(self, context: SinkContext, call: Call) -> None:
        super().__init__(context)
        self._call = call

    def deliver(self, epoch: int, rows: pa.RecordBatchReader, attempt: int) -> None:
        try:
            self._call(rows, Epoch(epoch, attempt, _token(self.context, epoch)))
        except RAISED as error:  # whatever a user's function raises
            raise FunctionError(f"{type(error).__name__}: {error}") from error


def _token(context: SinkContext, epoch: int) -> str:
    return str(xxhash.xxh3_128_hexdigest(f"{context.lineage}\0{context.name}\0{epoch}".encode()))
