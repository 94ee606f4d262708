"""What a runner is to the conductor: attempts to run the tasks, one after another."""

from __future__ import annotations

from typing import Protocol

from penstock.protocol.messages import Aborted, Completed, Stamp
from penstock.runners.cut import StartPoint

__all__ = ["Attempts"]


class Attempts(Protocol):
    """How a runner runs one attempt after another. Called in the conductor's thread."""

    def begin(self, stamp: Stamp, start: StartPoint) -> None:
        """Start the tasks; post `Running` once all are there, `AttemptFailed` if one is lost."""

    def end(self, stamp: Stamp) -> None:
        """Stop them; return when they can do no more harm."""

    def trigger(self, stamp: Stamp, epoch: int, finish: bool, aligned: bool) -> None:
        """Tell the source tasks; `aligned`: no task may call the epoch overdue."""

    def tell(self, stamp: Stamp, event: Completed | Aborted) -> None:
        """Tell all tasks."""

    def step(self, now: int) -> bool:
        """Work for a little while, if the work is done in this thread; elsewhere see that those who do it are still there. False if there
        is nothing to do."""

    def due_at(self, now: int) -> int | None:
        """When there is something to do if nothing happens before; None: not before something happens."""

    def wants_epoch(self) -> bool:
        """Whether a snapshot now would hold anything new."""

    def close(self) -> None:
        """The job is over."""
