"""Windows of the transcripts' own, for `pen.WindowShape`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from penstock.windows import WindowShape


@dataclass(frozen=True)
class Months(WindowShape):
    """Calendar months, in UTC."""

    def assign(self, at: datetime) -> list[tuple[datetime, datetime]]:
        first = at.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        return [(first, (first + timedelta(days=32)).replace(day=1))]


@dataclass(frozen=True)
class Nested(WindowShape):
    """Ten seconds, and the minute around them: windows with one start and two ends."""

    def assign(self, at: datetime) -> list[tuple[datetime, datetime]]:
        minute = at.replace(second=0, microsecond=0)
        ten = minute + timedelta(seconds=at.second // 10 * 10)
        return [(ten, ten + timedelta(seconds=10)), (minute, minute + timedelta(minutes=1))]
