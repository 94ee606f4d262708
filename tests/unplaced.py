"""Errors of dead letters without the line of the user's function, for tests in which it does not matter."""

from __future__ import annotations

import re

PLACE = re.compile(r" \((?:at|by) [\w.]+\.py:\d+ in [^()]+\)(?=$|\n)")


def unplaced(error: str) -> str:
    """`KeyError: 'bad'` of `KeyError: 'bad' (at ads.py:24 in price)`."""
    return PLACE.sub("", error)
