"""Which line of the user's own program is running: errors and explain() point there. In a notebook, which cell."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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


@dataclass(frozen=True, slots=True)
class CellRun:
    """One run of a notebook's cell."""

    number: int  # what stands in In[…]: another one for each run
    cell: str | None  # the same one for each run, however the cell was edited; None where the notebook does not say

    def is_rerun_of(self, other: CellRun) -> bool | None:
        """Whether this is a later run of the same cell; None where that cannot be told."""
        if self.number == other.number:
            return False
        return None if self.cell is None or other.cell is None else self.cell == other.cell


def cell_run() -> CellRun | None:
    """The run of a cell that is under way; None outside of notebooks and IPython."""
    ipython = sys.modules.get("IPython")
    shell: Any = ipython.get_ipython() if ipython is not None and hasattr(ipython, "get_ipython") else None
    number = getattr(shell, "execution_count", None)
    if not isinstance(number, int):
        return None
    request = shell.get_parent() if hasattr(shell, "get_parent") else None  # what the notebook sent; a terminal sends nothing
    metadata = request.get("metadata") if isinstance(request, dict) else None
    cell = metadata.get("cellId") if isinstance(metadata, dict) else None
    return CellRun(number, cell if isinstance(cell, str) else None)
