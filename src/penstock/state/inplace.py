"""Whole numbers that change where they stand: sums, counts, least and greatest values, for all rows of a batch at once.

A row whose slot no other row has is changed in three steps of numpy: read, change, write. Rows that share a slot must each have their
effect, which `ufunc.at` sees to, one row after the other.
"""

from __future__ import annotations

import numpy as np

from penstock.state.columns import Bools, Ints, Rows, span

__all__ = ["adds_up", "change"]

KNOWN = (np.add, np.minimum, np.maximum)


def change(
    values: Ints, slots: Ints, before: Ints, given: Ints, how: np.ufunc, *, found: Bools | None, shared: Rows | None
) -> Ints:
    """Each of `values[slots]` becomes `how` of what stood there (`before`) and all that is given for it; of those alone where nothing was.

    Args:
        found: For each row, whether something was there; None if so for all.
        shared: The rows whose slot others have too; None if none has.

    Returns:
        For each row what stands in its slot then.

    Example:
        >>> counts = np.array([5, 0])
        >>> change(counts, np.array([0, 1, 0]), np.array([5, 0, 5]), np.ones(3, int), np.add, found=None, shared=np.array([0, 2])).tolist()
        [7, 1, 7]
        >>> counts.tolist()
        [7, 1]
    """
    assert how in KNOWN, f"{how} is not known to be right for rows that share a slot"
    if isinstance(shared, slice):  # nothing was written yet
        if found is not None:
            values[slots] = np.where(found, before, _begin(how, given))
        how.at(values, slots, given)
        return values[slots]
    new: Ints = how(before, given) if found is None else np.where(found, how(before, given), given)
    values[slots] = new
    if shared is not None:
        slots, before, given = slots[shared], before[shared], given[shared]
        values[slots] = before if found is None else np.where(found[shared], before, _begin(how, given))
        how.at(values, slots, given)
        new[shared] = values[slots]
    return new


def _begin(how: np.ufunc, given: Ints) -> Ints:
    """What a slot begins with where nothing was: what changes no sum; of least and greatest, the last that is given."""
    return np.zeros_like(given) if how is np.add else given


def adds_up(old: Ints, given: Ints) -> bool:
    """Whether no sum of one that is there and any of those given can leave 64 bits."""
    if not len(given):
        return True
    (least, most), (low, high) = span(old), span(given)
    return max(most, -least) + len(given) * max(high, -low) < 1 << 63
