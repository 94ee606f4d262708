"""The sign of an attempt: a file in the job's folder that is there as long as the attempt is.

    <job_dir>/signs/<term>-<attempt>        a word that nobody else knows

The driver puts it up before the first task, and takes it down when the attempt ends. Every task must see it, and that it holds the
right word, before it does anything else. So storage that workers do not share with the driver is noticed at the start, on every
host, also on one that joins later, and not only when output is missing. What a task keeps beyond its own end (`spark.kept`) it keeps as
long as the sign is up.
"""

from __future__ import annotations

import contextlib
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from penstock.checkpoints.storage import open_store
from penstock.errors import Fix, RunnerError, StorageError
from penstock.protocol.messages import Stamp

__all__ = ["Sign"]

FOLDER = "signs"
SEEN_WITHIN_S = 3.0  # a network file system may be late

_seen: set[Sign] = set()


@dataclass(frozen=True, slots=True)
class Sign:
    """Where it is, and what it says. `given`: whether the user chose the storage."""

    job_dir: Path
    stamp: Stamp
    word: str
    given: bool

    @property
    def path(self) -> str:
        """Below the job's folder."""
        return f"{FOLDER}/{self.stamp.term}-{self.stamp.attempt}"

    def put_up(self) -> None:
        """In the driver, before any task. Signs of drivers that were killed go; that of a successor stays."""
        store = open_store(self.job_dir)
        for other in store.list(FOLDER):
            term = other.removeprefix(f"{FOLDER}/").partition("-")[0]
            if term.isdigit() and int(term) <= self.stamp.term:
                store.delete(other)
        store.write(self.path, self.word.encode())

    def take_down(self) -> None:
        """In the driver, when the attempt is over."""
        with contextlib.suppress(StorageError, OSError):
            open_store(self.job_dir).delete(self.path)
            (self.job_dir / FOLDER).rmdir()  # unless a successor's is there

    def is_up(self) -> bool:
        """Whether the attempt goes on, as far as can be told from here."""
        try:
            return self._is_read()
        except StorageError:
            return False

    def check(self) -> None:
        """In a task: raise RunnerError unless this process sees what the driver wrote, or why it could not even look: that may pass."""
        until = time.monotonic() + SEEN_WITHIN_S
        while True:
            refusal: RunnerError | StorageError
            try:
                if self._is_read():
                    return
                refusal = self._refusal()
            except StorageError as error:
                refusal = self._denial() if isinstance(error.__cause__, PermissionError) else error
            if time.monotonic() > until:
                raise refusal
            time.sleep(0.1)

    def _is_read(self) -> bool:
        return open_store(self.job_dir).read(self.path) == self.word.encode()

    def check_once(self) -> None:
        """The same, for tasks that follow each other in one process."""
        if self not in _seen:
            self.check()
            _seen.add(self)

    def _denial(self) -> RunnerError:
        return RunnerError(
            f"a worker on {socket.gethostname()} may not read what the driver has written to {self.job_dir}",
            fix=Fix("storage.denied", "Run the workers as the user that runs the driver"),
        )

    def _refusal(self) -> RunnerError:
        host = socket.gethostname()
        if self.given:
            folder = self.job_dir.parent
            return RunnerError(
                f"storage {folder} is not shared: a worker on {host} does not see what the driver has written there",
                fix=Fix("storage.not_shared", f"Mount the same file system at {folder} on the driver's host and on every other"),
            )
        return RunnerError(
            f"a worker on {host} does not see the temporary folder of this job, which has no storage ({self.job_dir})",
            fix=Fix("storage.missing_on_a_cluster", 'Give a folder that all hosts mount. Write: storage="/mnt/shared"'),
        )
