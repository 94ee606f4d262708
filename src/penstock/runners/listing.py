"""The jobs of a storage: each folder with a log is one, running or not, if a job can be called so. Looking claims and changes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from penstock.checkpoints.storage import folder_of
from penstock.errors import ConfigError, Fix, JobError, PenstockError
from penstock.eventtime import time_text
from penstock.names import NAME
from penstock.runners.control import attach, newest_in
from penstock.runners.options import resolve

__all__ = ["Listed", "jobs_in"]

NAME_IT = Fix(
    "jobs.storage",
    'Say it to the command (penstock jobs --storage checkpoints), or to all of them. Write: PENSTOCK_STORAGE="checkpoints"',
)


@dataclass(frozen=True, slots=True)
class Listed:
    """A job as a list shows it. `state` is the job's own word, or "not running", "finished", "unreadable"."""

    name: str
    state: str
    epoch: int | None = None
    runner: str = ""
    at: str = ""  # when the newest checkpoint was made, UTC
    error: str = ""


def jobs_in(storage: str | Path | None) -> list[Listed]:
    """All jobs of a storage, by name. Left out: what environment and penstock.toml say."""
    chosen = resolve("", {} if storage is None else {"storage": str(storage)}).storage
    if chosen is None:
        raise ConfigError("no storage is named whose jobs could be listed", fix=NAME_IT)
    folder = folder_of(chosen)
    if not folder.is_dir():
        raise ConfigError(f"there is no folder {folder}, and so no job in it")
    return [looked_at(path.parent, folder) for path in sorted(folder.glob("*/log")) if NAME.fullmatch(path.parent.name)]


def looked_at(job_dir: Path, storage: Path) -> Listed:
    """One of them: what it says of itself if it is running, else what its newest checkpoint says."""
    try:
        newest = newest_in(job_dir)
    except PenstockError as error:
        return Listed(job_dir.name, "unreadable", error=error.message)
    except OSError as error:
        return Listed(job_dir.name, "unreadable", error=str(error))
    epoch, runner = (None, "") if newest is None else (newest.epoch, newest.runner)
    at = "" if newest is None else time_text(newest.created_us)
    try:
        status = attach(job_dir.name, storage).status()
        return Listed(job_dir.name, status.state, status.epoch, status.runner, at, status.error or "")
    except (JobError, OSError):
        return Listed(job_dir.name, "finished" if newest is not None and newest.finished else "not running", epoch, runner, at)
