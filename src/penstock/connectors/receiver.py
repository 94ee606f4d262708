"""A receiver: the part of a source that must live in one place for the whole job, because its peer speaks only once.

In micro-batches tasks come and go, so the receiver lives in the driver; in the continuous runner it lives where the
coordinator puts it.

1. The runner calls `source.receiver(context)` once per job, and `start()` on what it gets (None: the source has no receiver).
2. A receiver writes to the source's journal in the job directory. `source.open` never starts one: its readers only
   read the journal.
3. `stop()` makes what was received durable and leaves the end open: a later receiver goes on behind it.
4. What goes wrong in a receiver's thread is raised by `check()`, which the runner calls now and then.
"""

from __future__ import annotations

import abc

__all__ = ["Receiver"]


class Receiver(abc.ABC):
    """Receives rows into a journal, in a thread of its own."""

    @abc.abstractmethod
    def start(self) -> None:
        """Begin. Does nothing if the journal already holds the end."""

    @abc.abstractmethod
    def stop(self) -> None:
        """Stop receiving; returns once everything received is durable."""

    @property
    @abc.abstractmethod
    def ended(self) -> bool:
        """Whether the peer said that there is no more."""

    @abc.abstractmethod
    def check(self) -> None:
        """Raise what went wrong, if something did."""
