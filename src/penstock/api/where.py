"""Which line of the user's own program is running: errors and explain() point there."""

from __future__ import annotations

import os
import sys
from pathlib import Path

_PACKAGE = str(Path(__file__).resolve().parent.parent) + os.sep


def user_line() -> str:
    """The nearest line outside Penstock, as "ads.py:24"."""
    frame = sys._getframe(1)
    while frame is not None:
        if not frame.f_code.co_filename.startswith(_PACKAGE):
            return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
        if frame.f_back is None:
            break
        frame = frame.f_back
    return ""
