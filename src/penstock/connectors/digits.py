"""Whole numbers of eight to eighteen digits, all of one length: times and identifiers, as programs write them, read eight digits at a time.

The eight bytes of eight digits are one number of 64 bits, the first digit lowest. A multiplication adds ten times a digit to the one behind
it, all four pairs at once; the next makes two fours of the pairs, the last one eight. It is what Arrow's conversion from text does digit by
digit, several times faster and without making the texts first.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from penstock.connectors.linemarks import Pieces

__all__ = ["numbers"]

DIGITS_MIN, DIGITS_MAX = 8, 18
_ZEROS = np.uint64(0x3030303030303030)
_TO_128, _FROM_128 = np.uint64(0x7676767676767676), np.uint64(0x8080808080808080)  # 10 and more become 128 and more

Words = npt.NDArray[np.uint64]


def numbers(texts: Pieces) -> npt.NDArray[np.int64] | None:
    """The numbers they are; None if one is none, or has a zero first."""
    digits = texts.itemsize
    if not DIGITS_MIN <= digits <= DIGITS_MAX:
        return None
    result = np.zeros(len(texts), np.int64)
    for at in range(0, digits, 8):
        count = min(8, digits - at)
        words: Words = np.ndarray((len(texts),), np.uint64, texts, at + count - 8, texts.strides)
        words = words[:1] if (words == words[0]).all() else words  # as the first digits of times mostly are
        words = words ^ _ZEROS
        if (((words + _TO_128) | words) & _FROM_128).any():
            return None  # a byte beyond 9, which is not a digit
        if not at and not (words & np.uint64(0xFF)).all():
            return None
        if count < 8:
            words &= np.uint64((1 << 64) - (1 << 8 * (8 - count)))  # digits that were read before
        result = result * 10**count + _value(words)
    return result


def _value(digits: Words) -> npt.NDArray[np.int64]:
    """The number that eight digits make, a byte each."""
    pairs = (digits * np.uint64(0xA01)) >> np.uint64(8) & np.uint64(0x00FF00FF00FF00FF)
    fours = (pairs * np.uint64(0x640001)) >> np.uint64(16) & np.uint64(0x0000FFFF0000FFFF)
    return ((fours * np.uint64(0x271000000001)) >> np.uint64(32)).view(np.int64)
