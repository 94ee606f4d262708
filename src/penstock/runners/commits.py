"""Commits, one at a time, beside everything else: meanwhile the next epoch is computed, and tasks are heard.

The coordinator asks for a commit and hears its answer before it asks for the next. What is not confirmed is listed in every checkpoint
that is published meanwhile, so nothing has to be remembered here: what is cut off, a successor repeats.

What a committer raises is judged by `passing`: a connection that was dropped is asked for again, a table that is gone ends the job.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Mapping

from penstock.connectors.connector import Committer, Verdict
from penstock.errors import JobError
from penstock.passing import Fate, fate_of
from penstock.protocol import coordinator as c
from penstock.runners.faults import reach
from penstock.tracebacks import Within, describe

log = logging.getLogger("penstock")

__all__ = ["Answer", "Commits"]

log = logging.getLogger("penstock")

Answer = c.Committed | c.CommitDelayed | c.CommitFailed | BaseException
"""What became of a commit; an exception: something that no committer should raise."""


class Commits:
    """The commits of one term, all in the same thread.

    Args:
        answer: called from that thread.
        who: the sinks as errors name them.
        beside: otherwise there is no thread, and `begin` itself answers, as a simulation wants it.
    """

    def __init__(
        self,
        committers: Mapping[str, Committer],
        answer: Callable[[Commits, Answer], None],
        *,
        beside: bool,
        who: Mapping[str, str] | None = None,
    ) -> None:
        self._who = who or {}
        self._committers, self._answer, self._beside = committers, answer, beside
        self._asked: queue.SimpleQueue[tuple[c.Pending, int] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._failing: c.Pending | None = None  # what failed last
        self.shown = False  # whether a sink showed something it had not shown before

    def begin(self, pending: c.Pending, attempt: int) -> c.Event | None:
        """Commit; the answer comes now or later."""
        if not self._beside:
            return self._commit(pending, attempt)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="penstock-commits", daemon=True)
            self._thread.start()
        self._asked.put((pending, attempt))
        return None

    def check(self) -> None:
        """Raise if the thread has ended by itself: nobody would ever hear of the commit that was asked for."""
        if self._thread is not None and not self._thread.is_alive():
            self._thread = None
            raise JobError("the thread that commits has ended without an answer")

    def finish(self) -> None:
        """Wait for the one under way. Its answer may come too late for anybody to care."""
        if self._thread is not None:
            self._asked.put(None)
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while (asked := self._asked.get()) is not None:
            answer: Answer
            try:
                answer = self._commit(*asked)
            except BaseException as error:
                answer = error
            self._answer(self, answer)

    def _commit(self, pending: c.Pending, attempt: int) -> c.Committed | c.CommitDelayed | c.CommitFailed:
        reach("commit.before", pending.epoch)
        try:
            with Within(self._who.get(pending.sink, f"sink {pending.sink!r}")):
                verdict = self._committers[pending.sink].commit(pending.epoch, pending.committables, attempt)
        except Exception as error:
            fate, reason = fate_of(error), describe(error, named=False)
            if self._failing != pending:  # once: the next tries may go wrong in the same way, and the status says so
                log.warning("sink %r could not commit epoch %d: %s", pending.sink, pending.epoch, reason)
            self._failing = pending
            if fate is Fate.FINAL:
                return c.CommitFailed(pending.epoch, pending.sink, reason)
            return c.CommitDelayed(pending.epoch, pending.sink, reason, fate.tries)
        reach("commit.after", pending.epoch)
        if verdict is Verdict.RETRY:
            return c.CommitDelayed(pending.epoch, pending.sink)
        self.shown |= verdict is Verdict.DONE
        return c.Committed(pending.epoch, pending.sink)
