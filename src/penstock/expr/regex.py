"""Regular expressions for `extract`: any pattern becomes one with a single, named group, as Arrow wants it.

Group 0 is all that the pattern matched.

Arrow uses RE2: no look-around and no back-references, and in return time that is linear in the text. A
pattern it cannot run is refused when the plan is made.
"""

from __future__ import annotations

import functools
import re

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import Fix, PlanError

__all__ = ["named_group"]

# An escape, a character class, or the opening of a group with what makes it special.
_PIECE = re.compile(r"\\.|\[\^?\]?(?:\\.|\[:\w+:\]|[^\]\\])*\]|\((?:\?P?<\w+>|\?)?", re.DOTALL)


@functools.cache
def named_group(pattern: str, group: int = 1) -> str:
    """`pattern` with that group named, the others not capturing; a `PlanError` if it cannot run."""
    seen = 0

    def rename(match: re.Match[str]) -> str:
        nonlocal seen
        piece = match.group()
        if not piece.startswith("(") or piece == "(?":
            return piece
        seen += 1
        return "(?P<found>" if seen == group else "(?:"

    renamed = _PIECE.sub(rename, pattern)
    if group > seen == 0:
        raise PlanError(
            f"extract({pattern!r}) has no group to return",
            fix=Fix("regex.group", f"Put parentheses around it. Write: ({pattern})"),
        )
    if group > seen:
        raise PlanError(
            f"extract({pattern!r}) is asked for group {group}, and has {seen}",
            fix=Fix("regex.groups", f"Groups are counted from 1; 0 is the whole match. Write: {seen}"),
        )
    if group == 0:
        renamed = f"(?P<found>{renamed})"
    try:
        pc.extract_regex(pa.array([""]), renamed)
    except pa.ArrowInvalid as error:
        raise PlanError(f"extract({pattern!r}) is not a pattern that can be run: {error}") from error
    return renamed
