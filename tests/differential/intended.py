"""Where SQL here is meant to differ from Spark: at most ten differences, each with its reason, told to users in docs/guide/functions.md.

A form that meets one names it, as its `intent`. Where the value has another type, the form has a text of its own for Spark that
says what is meant; where single rows differ, `explains` tells whether the difference is this one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np

__all__ = ["ERROR", "INTENDED", "Intended"]

ERROR = "an error"
"""What stands for a value where there is none."""

Rows = Callable[[list[Any], Any, Any], bool]


@dataclass(frozen=True)
class Intended:
    """A difference: its reason, and which rows it explains, from the inputs, our value and Spark's."""

    reason: str
    explains: Rows = lambda inputs, ours, theirs: False


def _same_number(inputs: list[Any], ours: Any, theirs: Any) -> bool:
    if isinstance(ours, Decimal) and isinstance(theirs, Decimal):
        return float(ours) == float(theirs)
    both = isinstance(ours, str) and isinstance(theirs, str) and len(ours) <= len(theirs)
    said = {float(text) for text in (ours, theirs)} if both else set()
    return len(said) == 1 or {float(np.float32(value)) for value in said} == {inputs[0]}


def _ends_a_line(inputs: list[Any], ours: Any, theirs: Any) -> bool:
    return ours == "" and inputs[0][-1:] in tuple("\n\r\u0085\u2028\u2029")


def _time_alone(inputs: list[Any], ours: Any, theirs: Any) -> bool:
    return ours in (None, ERROR) and re.match(r"T[0-9]|[0-9]{1,2}:", inputs[0].strip()) is not None


def _beyond(inputs: list[Any], ours: Any, theirs: Any) -> bool:
    """Times that Python does not have come as numbers; years are numbers, and their texts have a sign or are the year 0000."""
    if isinstance(theirs, str):
        return ours in (None, ERROR) and re.match(r"[+-]|0000", theirs) is not None
    return ours in (None, ERROR) and isinstance(theirs, int) and not 1 <= theirs <= 9999


def _close(inputs: list[Any], ours: Any, theirs: Any) -> bool:
    return isinstance(ours, float) and isinstance(theirs, float) and abs(ours - theirs) <= 1e-9 * max(abs(ours), abs(theirs), 1.0)


INTENDED: dict[str, Intended] = {
    "literals": Intended(
        "A whole number in a text is a bigint, and 1.5 a double, as in Python. Beside a column a whole number takes the type of the column."
    ),
    "decimals": Intended(
        "A quotient or a mean of decimals is a double, and a sum of them has 38 digits; a percentile of any number is a double: "
        "so it is in the state that was written before.",
        _close,
    ),
    "negated decimals": Intended(
        "-x of a decimal is exact. Spark rounds it to 34 digits.",
        lambda inputs, ours, theirs: bool(ours == inputs[0].copy_negate()),
    ),
    "text of doubles": Intended(
        "A double as text, and as a decimal, has the fewest digits that say it. "
        "Spark's text depends on the version of Java, and before 19 may be longer.",
        _same_number,
    ),
    "end of a text": Intended(
        "$ is the end of the text. In Spark it is also the place before a line break at the end.", _ends_a_line
    ),
    "times alone": Intended(
        "'12:30' is no timestamp. In Spark it is that time of the current day, another moment whenever a job is run again.",
        _time_alone,
    ),
    "clocks without zones": Intended("date_trunc of a timestamp_ntz is a timestamp_ntz. In Spark it becomes a timestamp."),
    "times beyond the calendar": Intended(
        "A date or a timestamp outside of the years 0001 to 9999 is an error of its row, as `cast(milliseconds as timestamp)` mostly is. "
        "Spark goes on to the year 294247, and takes what is later for the last timestamp that there is.",
        _beyond,
    ),
    "fields by name": Intended(
        "A cast of a struct finds the fields by their names. In Spark it takes them by their places, whatever they are called."
    ),
    "sums of doubles": Intended(
        "Doubles are added in another order, so that the last digits differ, as between two runs of Spark.", _close
    ),
}
