"""Regular expressions for `extract`: any pattern becomes one with a single, named group, as Arrow wants it.

Arrow uses RE2: no look-around and no back-references, and in return time that is linear in the text. A
pattern it cannot run is refused when the plan is made.
"""

from __future__ import annotations

import functools
import re

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import PlanError

__all__ = ["first_group"]

# An escape, a character class, or the opening of a group with what makes it special.
_PIECE = re.compile(r"\\.|\[\^?\]?(?:\\.|\[:\w+:\]|[^\]\\])*\]|\((?:\?P?<\w+>|\?)?", re.DOTALL)


@functools.cache
def first_group(pattern: str) -> str:
    """`pattern` with its first group named, the others not capturing; a `PlanError` if it cannot run."""
    seen = 0

    def rename(match: re.Match[str]) -> str:
        nonlocal seen
        piece = match.group()
        if not piece.startswith("(") or piece == "(?":
            return piece
        seen += 1
        return "(?P<found>" if seen == 1 else "(?:"

    renamed = _PIECE.sub(rename, pattern)
    if seen == 0:
        raise PlanError(f"extract({pattern!r}) has no group to return. Put parentheses around it: ({pattern})")
    try:
        pc.extract_regex(pa.array([""]), renamed)
    except pa.ArrowInvalid as error:
        raise PlanError(f"extract({pattern!r}) is not a pattern that can be run: {error}") from error
    return renamed
