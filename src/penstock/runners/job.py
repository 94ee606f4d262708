"""`Job`: a running pipeline in the user's hands."""

from __future__ import annotations

import contextlib
import queue
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from penstock.errors import FunctionError, JobError, PenstockError, RetriableError, StorageError
from penstock.eventtime import micros
from penstock.protocol import coordinator as c
from penstock.runners.conductor import Conductor
from penstock.runners.control import ControlSocket
from penstock.runners.status import Status
from penstock.tracebacks import describe

SLICE_S = 1.0


class Job:
    """A started pipeline. As a context manager, leaving the block stops it; an exception cancels it."""

    def __init__(self, conductor: Conductor) -> None:
        self._conductor = conductor
        self._control: ControlSocket | None = None
        attachable = conductor.options.storage is not None and conductor.world.pause is None  # and no simulation
        if attachable:
            self._control = ControlSocket(self, conductor.job_dir)
            conductor.call(self._control.open)  # in the conductor's thread, once it holds the job's lock
        self._thread = threading.Thread(target=self._run, name=f"penstock-{conductor.plan.name}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._conductor.run()
        finally:
            self._conductor.halted.set()  # it is: nobody conducts any more
            self._conductor.begun.set()
            if self._control is not None:
                self._control.close()

    @property
    def name(self) -> str:
        """The pipeline's name."""
        return self._conductor.plan.name

    @property
    def conductor(self) -> Conductor:
        """What runs it; for tools and tests."""
        return self._conductor

    def status(self) -> Status:
        """State, epoch, watermark, restarts, guarantee."""
        return self._conductor.status()

    def metrics(self) -> list[dict[str, Any]]:
        """A row per step: rows read, in, out, late and dead, over all tasks of the attempt as last reported."""
        rows: dict[str, dict[str, Any]] = {}
        for counters in list(self._conductor.counters.values()):
            for key, count in counters.items():
                step, _, what = key.rpartition(".")
                row = rows.setdefault(step, {"step": step})
                row[what] = row.get(what, 0) + count
        return list(rows.values())

    def savepoint(self, path: str | Path, *, timeout: Any = "5m") -> Path:
        """A self-contained folder to start from again; the job goes on. Returns once its epoch is committed."""
        until = time.monotonic() + micros(timeout, "timeout") / 1e6
        answer = self._conductor.savepoint(path)
        while (left := until - time.monotonic()) > 0:
            ended = self.done  # then the answer is there, or will never be
            try:
                result = answer.get(timeout=min(left, SLICE_S))
                break
            except queue.Empty:
                if ended:
                    raise JobError(f"the job {self.name!r} ended before the savepoint was taken") from None
        else:
            raise JobError(f"no savepoint within {timeout}{self._trouble()}")
        raise_from_result(result)
        assert isinstance(result, Path), "the answer is an exception or the path"
        return result

    def stop(self, *, finish: bool = False, timeout: Any = None) -> None:
        """One last snapshot, committed; can be resumed. `finish=True` also closes every window, and is the end."""
        self._conductor.post(c.StopAsked(finish))
        self.wait(timeout=timeout)

    def wait_until_begun(self) -> None:
        """Until it is decided what the job starts from. Raises what kept it from beginning: storage, a restore, a sink."""
        self._conductor.begun.wait()
        if not self._conductor.booted:
            self._thread.join()
            self._raise_if_failed()

    def cancel(self) -> None:
        """Stop at once. The next start commits what was published."""
        self._conductor.cancel()
        self._thread.join()

    def wait(self, *, timeout: Any = None) -> None:
        """Until the job has ended. Raises what made it fail; JobError if it is still running after `timeout`."""
        self._conductor.halted.wait(None if timeout is None else micros(timeout, "timeout") / 1e6)
        if not self._conductor.halted.is_set():
            raise JobError(f"the job {self.name!r} is still running after {timeout}{self._trouble()}")
        self._thread.join()
        self._raise_if_failed()

    @property
    def done(self) -> bool:
        """Whether it has ended."""
        return self._conductor.halted.is_set()

    def _trouble(self) -> str:
        """What is in the way, for those who have waited long enough."""
        trouble = self._conductor.trouble
        return f"; what went wrong last: {trouble}" if trouble else ""

    def _raise_if_failed(self) -> None:
        error, outcome = self._conductor.error, self._conductor.outcome
        functions = isinstance(error, FunctionError | RetriableError) and not isinstance(error, StorageError)
        if isinstance(error, PenstockError) and not functions:  # what code of the user's raised does not say whose it is
            raise error
        if error is not None:
            raise JobError(f"the job {self.name!r} failed: {describe(error)}") from error
        if outcome is not None and outcome.outcome in (c.Outcome.FAILED, c.Outcome.SUPERSEDED):
            raise JobError(f"the job {self.name!r} {outcome.outcome.value}: {outcome.reason}")

    def __enter__(self) -> Job:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.done:
            if kind is None:
                self._raise_if_failed()
        elif kind is None:
            self.stop()
        else:
            self.cancel()


def raise_from_result(result: object) -> None:
    """Raise an answer that is an exception."""
    if isinstance(result, BaseException):
        raise result


@contextlib.contextmanager
def graceful_interrupt(job: Job) -> Iterator[None]:
    """Within: the first Ctrl-C asks the job to stop after one more snapshot, the second cancels it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    asked = False

    def interrupted(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            job.conductor.cancel()
        else:
            asked = True
            print("stopping after one more snapshot (Ctrl-C again: at once)")
            job.conductor.post(c.StopAsked())

    before = signal.signal(signal.SIGINT, interrupted)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
