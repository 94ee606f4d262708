"""Names of pipelines, sources, sinks and steps: they become file names and identities in checkpoints, so few characters are allowed."""

from __future__ import annotations

import re

from penstock.errors import BadNameError

__all__ = ["NAME", "check_name"]

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def check_name(name: object, what: str, *, where: str | None = None) -> str:
    """`name`, if it can be the name of `what`; else a BadNameError that says what is allowed.

    >>> check_name("ad-counts", "a pipeline")
    'ad-counts'
    """
    if not isinstance(name, str) or not NAME.fullmatch(name):
        shown = repr(name) if len(repr(name)) <= 200 else repr(name)[:200] + "…"
        raise BadNameError(
            f"{shown} cannot be the name of {what}: letters, digits, '.', '_' and '-' are allowed,"
            " starting with a letter or digit, 128 at most",
            where=where,
        )
    return name
