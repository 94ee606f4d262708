"""What the driver says to the tasks of an epoch, and what it hears of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from penstock.connectors.connector import Began
from penstock.passing import Fate
from penstock.plan.physical import PhysicalPlan
from penstock.protocol.messages import SplitAssigned, Stamp, TaskAck
from penstock.runners import align
from penstock.runners.spark.sign import Sign
from penstock.runtime.assemble import Restored

__all__ = ["EpochOrder", "Facts", "Report", "SplitOrder"]


@dataclass(frozen=True, slots=True)
class Facts:
    """What stays the same for an attempt: broadcast once, then cached in each Python worker."""

    plan: PhysicalPlan
    parallelism: int
    stamp: Stamp
    job_dir: Path
    sign: Sign
    watermark_every: int = 0  # microseconds


@dataclass(frozen=True, slots=True)
class SplitOrder:
    """A split to read, since when it has been silent, and where and when the attempt began with it."""

    assigned: SplitAssigned
    active_at: int
    began: Began
    wait_us: int = 0  # how long a reader is waited for that has nothing yet
    over: bool = False  # it said in this attempt that it has ended, and is not read again, though it may have more in a later run

    @property
    def key(self) -> tuple[str, str]:
        """Its name among all splits."""
        return self.assigned.source, self.assigned.split


@dataclass(frozen=True, slots=True)
class EpochOrder:
    """What an epoch starts from and how far it may go. `now` is stamped once, by the driver, for all tasks."""

    epoch: int
    now: int
    finish: bool
    rows_max: int  # per task
    read_us_max: int | None
    restored: Restored
    splits: Sequence[Sequence[SplitOrder]]  # by task
    keep_open: bool = False  # splits that say they have ended have only nothing more now
    time_of_day: int | None = None  # what operators are told, if a test says so
    slowest: Mapping[str, align.Slowest] | None = None  # of each source task, at the last checkpoint; None: splits do not wait
    drains: bool = False  # whether everything there is shall be read, and so a source that ends until it has


@dataclass(frozen=True, slots=True)
class Report:
    """What one task told the driver."""

    task: str
    say: str  # "ack", "decline" or "failed"
    ack: TaskAck | None = None
    error: str = ""
    fate: str = Fate.PASSING.value  # of the error
    trace: str = ""
    rows: int = 0  # that were read
    more: bool = False  # whether the budget was used up before the splits were
    active: Sequence[Sequence[str]] = ()  # (source, split) that had rows, or that there was no time for
    over: Sequence[Sequence[str]] = ()  # (source, split) that said that they have ended
    watermark: int = 0
    took_us: int = 0  # by the clock, from the task's making to its answer

    def to_json(self) -> dict[str, Any]:
        """As a control frame."""
        value = {f.name: getattr(self, f.name) for f in fields(self)}
        value["ack"] = self.ack and {f.name: getattr(self.ack, f.name) for f in fields(TaskAck)}
        return value

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Report:
        """Back."""
        return Report(**{**value, "ack": value["ack"] and TaskAck(**value["ack"])})
