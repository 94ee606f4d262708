"""Names of pipelines, sources, sinks and steps: they become file names and identities, so few characters are allowed."""

from __future__ import annotations

import re

from penstock.api.where import user_line
from penstock.errors import BadNameError

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def check_name(name: str, what: str) -> str:
    """`name`, if it can be the name of `what`."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise BadNameError(
            f"{name!r} cannot be the name of {what}: letters, digits, '.', '_' and '-' are allowed,"
            " starting with a letter or digit, 128 at most",
            where=user_line(),
        )
    return name
