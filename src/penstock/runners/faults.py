"""Named points of the protocol where a test can kill or freeze the process that reaches them.

A test drops a file (its path in `PENSTOCK_FAULT_FILE`) saying `{"point": "publish.before", "epoch": 3, "signal": "KILL"}`. The
first process that reaches the point at that epoch or later takes the file (an atomic rename, so it happens once), notes who it
was in `<file>.taken`, and sends itself the signal. Without the variable a point costs one comparison.

A test can also set the time of day that operators see: microseconds in the file that `PENSTOCK_TIME_FILE` names. Nobody else goes
by it.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable

POINTS = (
    "restore.before",
    "source.read",
    "barrier.aligned",
    "store.before",
    "store.between",
    "compact.merged",
    "store.after",
    "ack.before",
    "publish.before",
    "publish.after",
    "commit.before",
    "commit.after",
    "collect.before",
)

_FILE = os.environ.get("PENSTOCK_FAULT_FILE")
_TIME_FILE: str | None = None

hook: Callable[[str, int], None] | None = None
"""Set by the simulator: called instead, and may raise."""


def plan(file: str | None, time_file: str | None = None) -> None:
    """Where faults are planned; for processes that were started before the variable was set."""
    global _FILE, _TIME_FILE
    _FILE, _TIME_FILE = file, time_file


def planned() -> str | None:
    """Where faults are planned, if they are."""
    return _FILE or os.environ.get("PENSTOCK_FAULT_FILE")


def time_file() -> str | None:
    """Where the time of day is set, if it is."""
    return _TIME_FILE or os.environ.get("PENSTOCK_TIME_FILE")


def time_of_day(now: int) -> int:
    """What operators are told that the time is."""
    file = time_file()
    if file is None:
        return now
    with open(file) as handle:
        return int(handle.read() or 0)


def reach(point: str, epoch: int) -> None:
    """Say that this point is reached."""
    if hook is not None:
        hook(point, epoch)
    elif _FILE is not None:
        _look(_FILE, point, epoch)


def _look(file: str, point: str, epoch: int) -> None:
    assert point in POINTS, f"{point!r} is no named point"
    try:
        with open(file) as handle:
            wanted = json.load(handle)
        if wanted["point"] != point or epoch < wanted["epoch"]:
            return
        os.rename(file, f"{file}.taking-{os.getpid()}")
    except (FileNotFoundError, json.JSONDecodeError):
        return  # nothing planned, or another process was faster
    taken = {**wanted, "pid": os.getpid(), "epoch": epoch, "at": time.time()}
    with open(f"{file}.taking-{os.getpid()}", "w") as handle:
        json.dump(taken, handle)
        handle.flush()
        os.fsync(handle.fileno())
    os.rename(f"{file}.taking-{os.getpid()}", f"{file}.taken")
    os.kill(os.getpid(), getattr(signal, f"SIG{wanted.get('signal', 'KILL')}"))
