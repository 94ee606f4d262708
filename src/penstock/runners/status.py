"""What a job says of itself."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.protocol import coordinator as c

__all__ = ["STATES", "Status"]


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


STATES = {
    c.Phase.RECOVERING: "starting",
    c.Phase.STARTING: "starting",
    c.Phase.RUNNING: "running",
    c.Phase.WAITING: "restarting",
    c.Phase.HALTED: "halting",
}
