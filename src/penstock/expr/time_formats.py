"""Text as a date or a timestamp by a format: `to_date(text, 'dd/MM/yyyy')`.

The letters are those of Spark that stand for numbers. A format becomes one regular expression whose groups are the
numbers, and the numbers become microseconds, whole columns at a time.

1. Letters: yyyy, yy (2000 to 2099), MM, dd, HH, mm, ss, each of exactly so many digits; M, d, H, m, s of one or more; S to
   SSSSSSSSS, up to so many digits of a fraction. Letters in quotes and all other characters stand for themselves, in upper
   or lower case.
2. What is not said is that of 1970-01-01 00:00:00. There is no zone but UTC.
3. A text that does not follow the format to its end, or says a day that is not, is an error of its row.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import Fix, PlanError
from penstock.expr.rowwise import Evaluated, masked

__all__ = ["DAY_US", "Format", "civil_days", "time_format"]

DAY_US = 86_400_000_000
MOST_DAYS = 106_751_990  # of which the microseconds fit in 64 bits
_LETTERS = {
    "yyyy": ("y", r"-?[0-9]{4}|[+-][0-9]{5,6}"),
    "yy": ("z", r"[0-9]{2}"),
    **{letter * 2: (letter, r"[0-9]{2}") for letter in "MdHms"},
    **{letter: (letter, r"[0-9]{1,18}") for letter in "MdHms"},
    **{"S" * digits: ("S", rf"[0-9]{{1,{digits}}}") for digits in range(1, 10)},
}
_PIECE = re.compile(r"'((?:[^']|'')*)'|([A-Za-z])\2*|[^A-Za-z]", re.DOTALL)
_RANGES = {"M": (1, 12), "d": (1, 31), "H": (0, 23), "m": (0, 59), "s": (0, 59)}


@dataclass(frozen=True, slots=True)
class Format:
    """A format that was understood: the pattern that texts must match, and its groups in order."""

    text: str
    pattern: str
    fields: tuple[str, ...]

    def parse(self, texts: pa.Array, reason: str) -> Evaluated:
        """Microseconds since 1970 for each text; texts that do not follow the format are bad."""
        found = pc.extract_regex(texts, self.pattern)
        matched = pc.is_valid(found)
        numbers = {name: _numbers(pc.struct_field(found, name), name) for name in self.fields}
        year = numbers.get("y", numbers["z"] + 2000 if "z" in numbers else np.full(len(texts), 1970))
        month, day = (numbers.get(name, np.ones(len(texts), np.int64)) for name in "Md")
        good = np.asarray(matched).copy()
        for name, (low, high) in _RANGES.items():
            if name in numbers:
                good &= (numbers[name] >= low) & (numbers[name] <= high)
        month = np.where(good, month, 1)
        days = days_from_civil(year, month, day)
        good &= (day <= days_in_month(year, month)) & (np.abs(days) <= MOST_DAYS)
        hour, minute, second, fraction = (numbers.get(name, np.zeros(len(texts), np.int64)) for name in "HmsS")
        micros = np.where(good, days, 0) * DAY_US + np.where(good, (hour * 60 + minute) * 60 + second, 0) * 1_000_000 + fraction
        values = pc.if_else(pc.is_valid(texts), pa.array(micros, pa.int64()), pa.scalar(None, pa.int64()))
        return masked(values, pc.and_(pc.is_valid(texts), pa.array(~good)), reason)


@functools.cache
def time_format(name: str, text: str) -> Format:
    """The format that a text says; a `PlanError` naming the letters that there are if it has others."""
    pattern, fields, last = "", [], ""
    position = 0
    while position < len(text):
        match = _PIECE.match(text, position)
        piece = match.group() if match else text[position]
        if match is None or piece in "[]#{}'":
            raise _unknown(name, text, piece)
        position = match.end()
        if match[2] is None:
            literal = piece[1:-1].replace("''", "'") or "'" if piece.startswith("'") else piece
            pattern, last = pattern + re.escape(literal), ""
            continue
        if piece not in _LETTERS:
            raise _unknown(name, text, piece)
        field, digits = _LETTERS[piece]
        if field in fields or (last and len(last) == 1) or (last and "S" in piece + last and last != "ss"):
            raise _unknown(name, text, piece)
        fields.append(field)
        pattern, last = pattern + f"(?P<{field}>{digits})", piece
    if not fields:
        raise _unknown(name, text, text)
    return Format(text, rf"(?is)\A(?:{pattern})\z", tuple(fields))


def _unknown(name: str, text: str, piece: str) -> PlanError:
    return PlanError(
        f"{name} does not know {piece!r} where it stands in the format {text!r}",
        fix=Fix(
            "sql.format",
            f"A format has yyyy, MM, dd, HH, mm, ss, SSSSSS, each once, and marks between. Write: {name}(x, 'yyyy-MM-dd')",
        ),
    )


def _numbers(texts: Any, name: str) -> npt.NDArray[np.int64]:
    filled = pc.fill_null(texts, "0")
    if name == "S":  # digits of a fraction: "5" is half a second
        filled = pc.utf8_slice_codeunits(pc.utf8_rpad(filled, 6, "0"), 0, 6)
    found: npt.NDArray[np.int64] = pc.utf8_ltrim(filled, "+").cast(pa.int64()).to_numpy(zero_copy_only=False)
    return found


def days_from_civil(year: Any, month: Any, day: Any) -> Any:
    """The days since 1970-01-01 of dates of the Gregorian calendar, of any year; Howard Hinnant's algorithm."""
    shifted = year - (month <= 2)
    era = shifted // 400
    of_era = shifted - era * 400
    of_year = (153 * (month + np.where(month > 2, -3, 9)) + 2) // 5 + day - 1
    return era * 146097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719468


def days_in_month(year: Any, month: Any) -> Any:
    """How many days months have."""
    leap = (year % 4 == 0) & ((year % 100 != 0) | (year % 400 == 0))
    return np.array([31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31])[month - 1] + (leap & (month == 2))


def civil_days(year: int, month: int, day: int) -> int:
    """The days since 1970-01-01 of one date of any year; a ValueError if there is no such day."""
    if not 1 <= month <= 12 or not 1 <= day <= int(days_in_month(year, month)):
        raise ValueError(f"{year}-{month}-{day}")
    return int(days_from_civil(year, month, day))
