"""A sink that keeps nothing: rows are computed, counted by the job, and forgotten.

It is a sink like any other, so a stream without readers still runs. Nothing can be there twice, so it takes away from no guarantee.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from penstock.connectors.connector import Committer, Json, Sink, SinkContext, Verdict, Writer
from penstock.names import check_name

__all__ = ["Discard", "discard"]


@dataclass(frozen=True)
class Discard(Sink):
    """Takes every stream."""

    name: str
    kind: str = field(init=False, default="transactional")
    accepts: frozenset[str] = field(init=False, default=frozenset({"append", "update", "retract"}))

    def writer(self, context: SinkContext) -> Writer:
        return _Writer()

    def committer(self, context: SinkContext) -> Committer:
        return _Committer()

    def describe(self) -> str:
        return "discard, transactional"


def discard(*, name: str = "discard") -> Discard:
    """See `penstock.sinks.discard`."""
    return Discard(check_name(name, "a sink"))


class _Writer(Writer):
    def write(self, batch: pa.RecordBatch) -> None:
        pass

    def prepare(self, epoch: int) -> Sequence[Json]:
        return []


class _Committer(Committer):
    def commit(self, epoch: int, committables: Sequence[Json], attempt: int) -> Verdict:
        return Verdict.DONE
