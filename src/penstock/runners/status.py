"""What a job says of itself."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from penstock.checkpoints.manifest import CountedFrom
from penstock.protocol import coordinator as c

__all__ = ["STATES", "Status", "incomplete"]


@dataclass(frozen=True, slots=True)
class Status:
    """How a job is doing. `state`: starting, running, restarting, finished, stopped, failed, cancelled or superseded."""

    pipeline: str
    runner: str
    state: str
    epoch: int
    attempt: int
    term: int
    lineage: str
    restarts: int
    watermark: str
    guarantee: tuple[str, ...]
    error: str | None
    epoch_age_s: float
    incomplete: tuple[str, ...] = ()
    """Aggregates that were added while windows were open, and lack what these had seen before."""


def incomplete(counted_from: Iterable[CountedFrom]) -> tuple[str, ...]:
    """Steps whose windows are not whole yet, each with the epoch from which on they are."""
    return tuple(
        f"{each.step}.{each.aggregate} counts from epoch {each.epoch} on: windows that were open then lack what came before"
        for each in counted_from
    )


STATES = {
    c.Phase.RECOVERING: "starting",
    c.Phase.STARTING: "starting",
    c.Phase.RUNNING: "running",
    c.Phase.WAITING: "restarting",
    c.Phase.HALTED: "halting",
}
