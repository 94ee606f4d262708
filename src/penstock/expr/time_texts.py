"""Texts as dates and timestamps without a format: `cast(text as timestamp)`, as Spark 4 reads them.

A date is a year of four to seven digits, then a month and a day of one or two, of which the last may be missing: '2026', '2026-1'. What
follows behind a blank or a T is not looked at. A timestamp goes on with hour, minute, second and up to six digits of a fraction
that count, and with a zone: Z, +01:00, UTC, Europe/Berlin. Blanks around either do not count. Years may have a sign.

A time alone ('12:30') means the current day to Spark. That would be another moment each time it is computed, so it is none here.
"""

from __future__ import annotations

import functools
import re
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from penstock.expr.time_formats import DAY_US, civil_days

__all__ = ["BLANKS", "days_of_text", "micros_of_text"]

BLANKS = "".join(map(chr, range(33))) + "\x7f"
"""The characters around a text that a cast takes no notice of; other spaces of Unicode are not among them."""

_DATE = re.compile(r"([+-]?[0-9]{4,7})(?:-([0-9]{1,2})(?:-([0-9]{1,2})(?:[ T].*)?)?)?", re.DOTALL)
_TIMESTAMP = re.compile(
    r"([+-]?[0-9]{4,6})(?:-([0-9]{1,2})(?:-([0-9]{1,2})"
    r"(?:[ T]([0-9]{1,2})(?::([0-9]{1,2})(?::([0-9]{1,2})(?:\.([0-9]*))?(?P<zone>[^0-9.].*)?)?)?)?)?)?",
    re.DOTALL,
)
_OFFSET = re.compile(
    r"(?:UTC|GMT|UT)?(?:([+-])(?:([0-9]{1,2})(?::([0-9]{1,2}))?|([0-9]{1,2}):([0-9]{2}):([0-9]{2})|([0-9]{2})([0-9]{2})([0-9]{2})?))?"
)
_MOST_DAYS = 2_147_483_647
_FIRST_DAY, _LAST_DAY, _DAYS_OF_400_YEARS = -719_162, 2_932_896, 146_097
_SHORT = {  # java.time.ZoneId.SHORT_IDS
    "ACT": "Australia/Darwin",
    "AET": "Australia/Sydney",
    "AGT": "America/Argentina/Buenos_Aires",
    "ART": "Africa/Cairo",
    "AST": "America/Anchorage",
    "BET": "America/Sao_Paulo",
    "BST": "Asia/Dhaka",
    "CAT": "Africa/Harare",
    "CNT": "America/St_Johns",
    "CST": "America/Chicago",
    "CTT": "Asia/Shanghai",
    "EAT": "Africa/Addis_Ababa",
    "ECT": "Europe/Paris",
    "EST": "-05:00",
    "HST": "-10:00",
    "IET": "America/Indiana/Indianapolis",
    "IST": "Asia/Kolkata",
    "JST": "Asia/Tokyo",
    "MIT": "Pacific/Apia",
    "MST": "-07:00",
    "NET": "Asia/Yerevan",
    "NST": "Pacific/Auckland",
    "PLT": "Asia/Karachi",
    "PNT": "America/Phoenix",
    "PRT": "America/Puerto_Rico",
    "PST": "America/Los_Angeles",
    "SST": "Pacific/Guadalcanal",
    "VST": "Asia/Ho_Chi_Minh",
}


def days_of_text(text: str) -> int:
    """The days since 1970-01-01; a ValueError for a text that is no date."""
    match = _DATE.fullmatch(text.strip(BLANKS))
    if match is None:
        raise ValueError(text)
    days = civil_days(int(match[1]), int(match[2] or 1), int(match[3] or 1))
    if abs(days) > _MOST_DAYS:
        raise ValueError(text)
    return days


def micros_of_text(text: str, *, zoned: bool) -> int:
    """The microseconds since 1970, of UTC, or without `zoned` of the clock that the text shows; a ValueError for any other text."""
    match = _TIMESTAMP.fullmatch(text.strip(BLANKS))
    if match is None:
        raise ValueError(text)
    hour, minute, second = (int(match[index] or 0) for index in (4, 5, 6))
    if hour > 23 or minute > 59 or second > 59:
        raise ValueError(text)
    days = civil_days(int(match[1]), int(match[2] or 1), int(match[3] or 1))
    micros = days * DAY_US + ((hour * 60 + minute) * 60 + second) * 1_000_000 + int((match[7] or "").ljust(6, "0")[:6])
    if match["zone"] is not None:
        offset = _offset_us(match["zone"].strip(BLANKS), micros)
        micros -= offset if zoned else 0
    if not -(2**63) <= micros < 2**63:
        raise ValueError(text)
    return micros


def _offset_us(zone: str, local: int) -> int:
    """How far a zone is ahead of UTC when its clocks show `local`."""
    zone = _SHORT.get(zone, zone)
    match = _OFFSET.fullmatch(zone)
    if zone in ("Z", "UTC", "GMT", "UT") or (match is not None and match[1] is not None):
        return 0 if match is None else _fixed(match)
    day, rest = divmod(local, DAY_US)
    if not _FIRST_DAY <= day <= _LAST_DAY:  # the years of Python; the calendar and the rules of zones repeat after 400 years
        first = _FIRST_DAY if day < 0 else _LAST_DAY + 1 - _DAYS_OF_400_YEARS
        day = first + (day - first) % _DAYS_OF_400_YEARS
    clock = datetime(1970, 1, 1) + timedelta(days=day, microseconds=rest)
    offset = _region(zone).utcoffset(clock)
    assert offset is not None, "a zone of the database knows its offset"
    return offset // timedelta(microseconds=1)


def _fixed(match: re.Match[str]) -> int:
    hour, minute, second = (
        int(match[2] or match[4] or match[7] or 0),
        int(match[3] or match[5] or match[8] or 0),
        int(match[6] or match[9] or 0),
    )
    total = (hour * 60 + minute) * 60 + second
    if minute > 59 or second > 59 or total > 18 * 3600:
        raise ValueError(match.group())
    return (-total if match[1] == "-" else total) * 1_000_000


@functools.cache
def _region(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (KeyError, OSError) as error:  # there is no such zone, or no such file
        raise ValueError(name) from error
