"""What a job takes from outside: the time, fresh names, storage. Real ones here; the simulator brings its own."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from penstock.checkpoints.storage import Store, open_store


def wall_clock() -> int:
    """Microseconds since 1970."""
    return time.time_ns() // 1000


def random_id() -> str:
    """A name nobody else has."""
    return secrets.token_hex(8)


@dataclass(frozen=True, slots=True)
class World:
    """Clock, names and storage of a job. `pause(micros)`: what to do when there is nothing to do; None: wait for the inbox."""

    clock: Callable[[], int] = wall_clock
    fresh_id: Callable[[], str] = random_id
    open_store: Callable[[str | Path], Store] = open_store
    pause: Callable[[int], None] | None = None


class Crash(BaseException):
    """The process is gone, in a simulation: nothing may be tidied up on the way out."""
