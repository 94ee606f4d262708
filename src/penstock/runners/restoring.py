"""`Restore`: what a user says about the checkpoint to start from, by a program that has changed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["Restore"]


@dataclass(frozen=True, slots=True)
class Restore:
    """What to start from, by a pipeline that has changed: `pen.Restore("latest", rename={"old": "new"}, drop=["gone"])`.

    Args:
        path: the folder of a savepoint, or "latest" for the newest checkpoint of the job.
        rename: old name to new, of steps, of sources, of states as "step.state", of the fields of their classes as
            "step.state.field", and of aggregates as "step.aggregate".
        drop: what is to be forgotten, by the same names.
        start_over_time: event time begins anew; with it, a job that had finished can go on.
        start_empty: aggregates that are new in a step that never closes, as "step.aggregate": they count from here on.
    """

    path: str | Path
    rename: dict[str, str] | None = None
    drop: tuple[str, ...] | list[str] = ()
    start_over_time: bool = False
    start_empty: tuple[str, ...] | list[str] = ()
