"""Who waits for a savepoint, and how each of them gets an answer: the path, or why there is none.

Wishes come from any thread and are answered in the conductor's. An answer is given once; what is asked for after the end of the job is
answered by whoever asks.
"""

from __future__ import annotations

import queue
import re
from pathlib import Path
from typing import Any

from penstock.errors import Fix, JobError

__all__ = ["Failures", "Wishes"]

_NUMBERS = re.compile(r"0x[0-9a-fA-F]+|\d+")


class Failures:
    """How often in a row an attempt has failed without a checkpoint in between, and whether in the same way. An address or a port in
    the text makes it no other way."""

    def __init__(self) -> None:
        self.last, self.times, self.alike = "", 0, 0

    def note(self, error: str) -> None:
        """Another attempt has failed."""
        self.times += 1
        self.alike = self.alike + 1 if _NUMBERS.sub("#", error) == _NUMBERS.sub("#", self.last) else 1
        self.last = error

    def forget(self) -> None:
        """A checkpoint was published."""
        self.last, self.times, self.alike = "", 0, 0

    @property
    def hopeless(self) -> bool:
        """Whether the next attempt will most likely fail as well."""
        return self.alike > 1 or self.times > 2

    def refusal(self, job: str) -> JobError:
        """The answer to those who wait for a savepoint of such a job."""
        what, _, _ = self.last.partition("\n")  # the status has all of it
        return JobError(
            f"no savepoint can be taken: the job {job!r} has failed {self.times} times in a row, at last with: {what}",
            fix=Fix("job.hopeless", "Stop the job, mend that, and start it again: it goes on from its newest checkpoint"),
        )


class Wishes:
    """Savepoints that somebody waits for, by request."""

    def __init__(self) -> None:
        self._waiting: dict[str, tuple[Path, queue.SimpleQueue[Any]]] = {}

    def add(self, request: str, path: Path) -> queue.SimpleQueue[Any]:
        """Somebody asks; where the answer will be."""
        answer: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._waiting[request] = (path, answer)
        return answer

    def take(self, request: str) -> tuple[Path, queue.SimpleQueue[Any]] | None:
        """A wish that is about to be answered; None if it was."""
        return self._waiting.pop(request, None)

    def refuse(self, error: Exception) -> None:
        """Answer all with an error."""
        for request in list(self._waiting):
            if (wish := self.take(request)) is not None:
                wish[1].put(error)
