"""Times and durations as text: "2026-01-31 12:00:00" and "10s".

Text without a zone is UTC. Spark's time zone setting never matters: every runner reads the same moment.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta

from penstock.errors import Fix, PlanError

__all__ = ["duration_us", "parse_date", "parse_timestamp", "time_unit"]

_DATE = r"\d{4}-\d{1,2}-\d{1,2}"
_TIMESTAMP = re.compile(
    rf"(?P<date>{_DATE})(?:[ T](?P<time>\d\d:\d\d(?::\d\d)?)"
    r"(?:\.(?P<fraction>\d{1,9}))?\s?(?P<zone>Z|UTC|[+-]\d\d:?\d\d)?)?"
)
_DURATION = re.compile(r"(\d+)\s*([a-zµ]+)")
_UNITS_US = {
    **dict.fromkeys(("us", "µs", "microsecond", "microseconds"), 1),
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), 1_000),
    **dict.fromkeys(("s", "second", "seconds"), 1_000_000),
    **dict.fromkeys(("m", "minute", "minutes"), 60_000_000),
    **dict.fromkeys(("h", "hour", "hours"), 3_600_000_000),
    **dict.fromkeys(("d", "day", "days"), 86_400_000_000),
}

_TIME_UNITS = {
    "year": ("year", "yyyy", "yy"),
    "quarter": ("quarter",),
    "month": ("month", "mon", "mm"),
    "week": ("week",),
    "day": ("day", "dd"),
    "hour": ("hour",),
    "minute": ("minute",),
    "second": ("second",),
    "millisecond": ("millisecond",),
    "microsecond": ("microsecond",),
}
_DATE_UNITS = ("year", "quarter", "month", "week")


def time_unit(name: str, word: str) -> str:
    """The unit that a word stands for in `date_trunc` and `trunc`, where Spark has several: year, yyyy and yy are the same.

    For a word that is no unit Spark's answer is null for every row; here it is an error of the plan.
    """
    found = next((unit for unit, words in _TIME_UNITS.items() if word.lower() in words), None)
    if found is None:
        raise PlanError(
            f"{name} knows no unit {word!r}",
            fix=Fix(
                "sql.unit", "Units are year, quarter, month, week, day, hour, minute, second. Write: date_trunc('month', at)"
            ),
        )
    if name == "trunc" and found not in _DATE_UNITS:
        raise PlanError(
            f"trunc gives a date, and goes to year, quarter, month or week, not to {word!r}",
            fix=Fix("sql.trunc", f"Write: date_trunc('{found}', at)"),
        )
    return found


def parse_date(text: str) -> date | None:
    """The date that a text says, or None."""
    text = text.strip()
    if not re.fullmatch(_DATE, text):
        return None
    try:
        return date(*map(int, text.split("-")))
    except ValueError:
        return None


def parse_timestamp(text: str) -> datetime | None:
    """The moment that a text says, in UTC, or None."""
    match = _TIMESTAMP.fullmatch(text.strip())
    day = parse_date(match["date"]) if match else None
    if match is None or day is None:
        return None
    zone = "+00:00" if match["zone"] in (None, "Z", "UTC") else match["zone"]
    fraction = (match["fraction"] or "").ljust(6, "0")[:6]
    try:
        moment = datetime.fromisoformat(f"{day.isoformat()}T{match['time'] or '00:00'}{zone}")
        return moment.astimezone(UTC).replace(microsecond=int(fraction))
    except (ValueError, OverflowError):
        return None


def duration_us(value: str | timedelta) -> int:
    """The microseconds of a duration: "250ms", "10s", "5m", "1h", "7d", "10 seconds" or a timedelta."""
    if isinstance(value, timedelta):
        found = value // timedelta(microseconds=1)
    else:
        match = _DURATION.fullmatch(value.strip().lower()) if isinstance(value, str) else None
        if match is None or match[2] not in _UNITS_US:
            raise PlanError(
                f"{value!r} is not a duration",
                fix=Fix("expr.duration", 'It is a timedelta, or a whole number and a unit: "250ms", "10s", "5m", "1h", "7d"'),
            )
        found = int(match[1]) * _UNITS_US[match[2]]
    if found <= 0:
        raise PlanError(f"{value!r} is not a duration: it must be longer than nothing")
    return found
