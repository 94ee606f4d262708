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

__all__ = ["java_pattern", "named_group", "splitting"]

# A text that is quoted, an escape, a character class, or the opening of a group with what makes it special.
_PIECE = re.compile(r"\\Q.*?(?:\\E|\Z)|\\.|\[\^?\]?(?:\\.|\[:\w+:\]|[^\]\\])*\]|\((?:\?P?<\w+>|\?)?", re.DOTALL)


@functools.cache
def java_pattern(pattern: str) -> str:
    """`pattern` for Arrow, with the meaning that it has in Java: "." is no end of any line, and \\s a vertical tab too.

    What means something else in RE2 is a `PlanError`.
    """
    dot_is_all = re.match(r"\(\?[a-z]*s", pattern) is not None

    def translate(match: re.Match[str]) -> str:
        piece = match.group()
        _refuse_other_meanings(pattern, piece, match.start())
        if piece == ".":
            return piece if dot_is_all else r"[^\n\r\x{85}\x{2028}\x{2029}]"
        if piece.startswith("["):
            return re.sub(r"\\.", lambda inner: _SPACES.get(inner.group(), inner.group()), piece)
        return {r"\s": r"[\t-\r ]", r"\S": r"[^\t-\r ]"}.get(piece, piece)

    return re.sub(rf"{_FLAGS}|{_PIECE.pattern}|\.", translate, pattern, flags=re.DOTALL)


_SPACES = {r"\s": r"\t-\r ", r"\S": r"\x{0}-\x{8}\x{E}-\x{1F}!-\x{10FFFF}"}
_FLAGS = r"\(\?[a-zA-Z-]+[:)]"
_OTHERWISE = (r"\v", r"\0", r"\C")
"""Escapes that mean something in both: a vertical tab or all vertical blanks, a zero or an octal number, a byte or nothing."""


def _refuse_other_meanings(pattern: str, piece: str, position: int) -> None:
    """Raise a `PlanError` if this piece of a pattern is not read as Java reads it."""
    found = None
    if piece.startswith("[") and not piece.startswith(r"\["):
        inner = re.sub(r"\\[^vQ0C]", "", piece[1:])
        found = next((mark for mark in ("&&", "[", r"\Q", *_OTHERWISE) if mark in inner), None)
        found = found and f"{found!r} inside of brackets"
    elif piece.startswith(_OTHERWISE):
        found = repr(piece)
    elif re.fullmatch(_FLAGS, piece) and (set(piece) - set("(?ims-:)") or ("s" in piece and position)):
        raise PlanError(f"the pattern {pattern!r} has {piece!r}, and its flags can be i and m, and s at the beginning")
    if found:
        raise PlanError(f"the pattern {pattern!r} has {found}, which is not read here as Java reads it")


def splitting(pattern: str) -> None:
    """Raise a `PlanError` unless texts can be split by the pattern."""
    try:
        matches_nothing = pc.match_substring_regex(pa.array([""]), java_pattern(pattern))[0].as_py()
    except pa.ArrowInvalid as error:
        raise PlanError(f"split({pattern!r}) is not a pattern that can be run: {error}") from error
    if matches_nothing:
        quoted = "".join("\\\\" + mark if mark in r".^$*+?{}[]\|()" else mark for mark in pattern)
        raise PlanError(
            f"split by {pattern!r}, which is a pattern here and also matches where nothing is",
            fix=Fix("regex.split", f"To split by the characters themselves, write: '{quoted}'"),
        )


@functools.cache
def named_group(pattern: str, group: int = 1) -> str:
    """`pattern` with that group named, the others not capturing; a `PlanError` if it cannot run."""
    java_pattern(pattern)  # says what is wrong with it as the user wrote it
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
    renamed = java_pattern(renamed)
    if group == 0:
        renamed = f"(?P<found>{renamed})"
    try:
        pc.extract_regex(pa.array([""]), renamed)
    except pa.ArrowInvalid as error:
        raise PlanError(f"extract({pattern!r}) is not a pattern that can be run: {error}") from error
    return renamed
