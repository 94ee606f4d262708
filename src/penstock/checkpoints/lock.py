"""One coordinator at a time on one machine: a lock that the operating system takes back when its holder dies.

The lock is a courtesy. It turns "you started the job twice" into a sentence that names the other process,
before anything happens. Safety does not rest on it (another machine does not see it): that is the business of
`protocol.terms`.

1. `flock` on `<job folder>/lock`. The file stays when the lock is released: removing it would let two
   processes lock two files of one name.
2. Its content is for people and may be old; whether the lock is held is only what `flock` says::

       {"host":"build-7","pid":4711,"runner":"continuous","started":"2026-11-15T10:34:51Z"}

3. A forked child shares its parent's lock and would keep it after the parent's death, so a child lets go at
   once.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shlex
import socket
import weakref
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

from penstock.errors import Fix, HeldError, StorageError

__all__ = ["Lock", "hold"]


class Lock:
    """A lock that is held until `release`, or until this process is gone."""

    def __init__(self, path: Path, file: int) -> None:
        self.path = path
        self._file: int | None = file
        _held.add(self)

    def release(self) -> None:
        """Let go. Letting go twice does no harm."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
        _held.discard(self)

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.release()


_held: weakref.WeakSet[Lock] = weakref.WeakSet()


def _let_go_in_child() -> None:
    for lock in list(_held):
        lock.release()


os.register_at_fork(after_in_child=_let_go_in_child)


def hold(job_dir: str | Path, holder: Mapping[str, Any]) -> Lock:
    """Lock the job folder, or raise HeldError naming who holds it.

    Args:
        holder: who we are: `runner`, and anything else JSON can say. `pid`, `host` and `started` are filled
        in if left out.
    """
    path = Path(job_dir) / "lock"
    about = {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "started": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        **holder,
    }
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StorageError(f"cannot lock {path}: {error.strerror}") from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(file, 0)
        os.pwrite(file, json.dumps(about, sort_keys=True).encode() + b"\n", 0)
    except BlockingIOError:
        other = _describe(file)
        os.close(file)
        name, storage = path.parent.name, str(path.parent.parent)
        raise HeldError(
            f"this job is already running: {other}",
            fix=Fix(
                "lock.held",
                f"Stop it first, penstock stop {name} --storage {shlex.quote(storage)}, or attach to it. "
                f"Write: pen.attach({json.dumps(name)}, storage={json.dumps(storage, ensure_ascii=False)})",
            ),
        ) from None
    except OSError as error:
        os.close(file)
        raise StorageError(f"cannot lock {path}: {error.strerror}") from error
    return Lock(path, file)


def _describe(file: int) -> str:
    """ "pid 123 on host x since 2026-…, runner continuous".

    The holder may be writing this very moment, so anything may be missing.
    """
    about: Any = None
    with contextlib.suppress(ValueError, RecursionError, OSError):
        about = json.loads(os.pread(file, 1 << 16, 0))
    if not isinstance(about, dict):
        return "its holder has not said who it is"
    return (
        f"pid {about.get('pid', 'unknown')} on host {about.get('host', 'unknown')} since "
        f"{about.get('started', 'unknown')}, "
        f"runner {about.get('runner', 'unknown')}"
    )
