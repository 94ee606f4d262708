"""Points at equal distances on the line of time: where windows begin, slices of them, and hours of a wall clock.

Every window is found by this one step, for whole columns of times (or of row numbers, for windows by count).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["Ints", "at_or_after", "at_or_before"]

Ints = npt.NDArray[np.int64]


def at_or_before(times: Ints, step: int, offset: int = 0) -> Ints:
    """The last point of the grid `offset`, `offset + step`, ... (and back from there) that no time comes before.

    >>> at_or_before(np.array([-1, 0, 9, 10]), 10)
    array([-10,   0,   0,  10])
    """
    points: Ints = (times - offset) // step * step + offset  # `%` would take numpy four times as long
    return points


def at_or_after(times: Ints, step: int, offset: int = 0) -> Ints:
    """The first point of the grid that no time comes after.

    >>> at_or_after(np.array([-1, 0, 1, 10]), 10, offset=3)
    array([ 3,  3,  3, 13])
    """
    return at_or_before(times + (step - 1), step, offset)
