"""The times and limits that a coordinator goes by."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Settings:
    """Times in microseconds."""

    interval: int = 1_000_000
    timeout: int = 60_000_000
    declines_max: int = 3  # in a row, before the attempt is given up
    restarts_max: int = 10  # in a row without a new checkpoint, before the job is given up
    backoff: int = 1_000_000
    backoff_max: int = 60_000_000
    commit_patience: int = 900_000_000  # for how long a commit that may pass is tried
