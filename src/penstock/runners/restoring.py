"""`Restore`: what a user says about the checkpoint to start from, by a program that has changed."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.errors import ConfigError, Fix, brief

__all__ = ["Restore", "asked"]


@dataclass(frozen=True, slots=True)
class Restore:
    """What to start from, by a pipeline that has changed: `pen.Restore("latest", rename={"old": "new"}, drop=["gone"])`.

    Args:
        path: the folder of a savepoint, or "latest" for the newest checkpoint of the job.
        rename: old name to new, of steps, of sources, of states as "step.state", of the fields of their classes as
            "step.state.field", and of aggregates as "step.aggregate".
        drop: what is to be forgotten, by the same names; one name may stand alone.
        start_over_time: event time begins anew; with it, a job that had finished can go on.
        start_empty: aggregates that are new in a step that never closes, as "step.aggregate": they count from here on.
    """

    path: str | Path
    rename: dict[str, str] | None = None
    drop: str | tuple[str, ...] | list[str] = ()
    start_over_time: bool = False
    start_empty: str | tuple[str, ...] | list[str] = ()

    def __post_init__(self) -> None:
        """Refuse what cannot be meant; a name that stands alone becomes a list of one."""
        if not isinstance(self.path, str | os.PathLike) or not str(self.path):
            raise ConfigError(
                f'{brief(self.path)} is nothing to start from: expected "latest", "none" or the folder of a savepoint',
                fix=Fix(
                    "restore.path", 'Leave it out to go on from the newest checkpoint. Write: restore="latest", or restore="none"'
                ),
            )
        if self.rename is not None and not (
            isinstance(self.rename, Mapping) and _are_names([*self.rename, *self.rename.values()])
        ):
            raise ConfigError(
                f"rename={brief(self.rename)} does not say what is called what: expected old names with new ones",
                fix=Fix("restore.rename", f'Write: rename={{{_name(self.rename)}: "new"}}'),
            )
        for option in ("drop", "start_empty"):
            given = getattr(self, option)
            names = (given,) if isinstance(given, str) else given
            if not isinstance(names, Collection) or isinstance(names, Mapping | bytes) or not _are_names(names):
                raise ConfigError(
                    f"{option}={brief(given)} is no list of names", fix=Fix("restore.names", f"Write: {option}=[{_name(given)}]")
                )
            object.__setattr__(self, option, names)
        if not isinstance(self.start_over_time, bool):
            raise ConfigError(
                f"start_over_time={brief(self.start_over_time)} is neither true nor false",
                fix=Fix("restore.start-over-time", "Write: start_over_time=True, or start_over_time=False"),
            )


def asked(restore: Any) -> Restore:
    """What `start(restore=…)` was given."""
    return restore if isinstance(restore, Restore) else Restore(restore)


def _are_names(given: Collection[Any]) -> bool:
    return all(isinstance(each, str) and each for each in given)


def _name(given: Any) -> str:
    """A name to show in the place of what was given: its first, if it has one."""
    several = [given] if isinstance(given, str) or not isinstance(given, Collection) else list(given)
    return next(
        (f'"{each}"' for each in several if isinstance(each, str) and each.isprintable() and '"' not in each and each), '"old"'
    )
