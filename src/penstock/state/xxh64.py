"""XXH64 over whole columns: one hash per row, each row with its own seed.

XXH64 mixes its input in 8-byte words, then a 4-byte word, then single bytes; only inputs of 32 bytes or more
take another road, with four lanes. So short inputs of *different* lengths can share the same numpy steps: each
step works on the rows that are long enough for it. Long inputs, and few, go through the xxhash package, one by one.

1. All arithmetic is on uint64 arrays and wraps, as the algorithm wants.
2. Words are little-endian, whatever the machine.
3. The seed is a row's own: hashing several columns is feeding the result of one as the seed of the next.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import xxhash

__all__ = ["hash_bytes", "hash_words_4", "hash_words_8"]

U64 = npt.NDArray[np.uint64]

_P1 = np.uint64(0x9E3779B185EBCA87)
_P2 = np.uint64(0xC2B2AE3D27D4EB4F)
_P3 = np.uint64(0x165667B19E3779F9)
_P4 = np.uint64(0x85EBCA77C2B2AE63)
_P5 = np.uint64(0x27D4EB2F165667C5)

_SHORT = 32
"""Inputs of this many bytes or more use XXH64's four lanes."""


_FEW = 32
"""So many inputs are faster one by one than in fifty numpy steps."""


# The steps work in place, on arrays of their own: a fresh one for each would go through memory twenty times instead of through the cache.


def _rotate(x: U64, bits: int) -> U64:
    high = x << np.uint64(bits)
    x >>= np.uint64(64 - bits)
    x |= high
    return x


def _mix_8(h: U64, word: U64) -> U64:
    mixed = _rotate(word * _P2, 31)
    mixed *= _P1
    mixed ^= h
    mixed = _rotate(mixed, 27)
    mixed *= _P1
    mixed += _P4
    return mixed


def _mix_4(h: U64, word: U64) -> U64:
    mixed = word * _P1
    mixed ^= h
    mixed = _rotate(mixed, 23)
    mixed *= _P2
    mixed += _P3
    return mixed


def _finish(h: U64) -> U64:
    h ^= h >> np.uint64(33)
    h *= _P2
    h ^= h >> np.uint64(29)
    h *= _P3
    h ^= h >> np.uint64(32)
    return h


def hash_words_8(words: U64, seeds: U64) -> U64:
    """Hash each 8-byte word."""
    return _finish(_mix_8(seeds + (_P5 + np.uint64(8)), words))


def hash_words_4(words: npt.NDArray[np.uint32], seeds: U64) -> U64:
    """Hash each 4-byte word."""
    return _finish(_mix_4(seeds + (_P5 + np.uint64(4)), words.astype(np.uint64)))


def hash_bytes(data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64], seeds: U64) -> U64:
    """Hash each `data[start:end]`."""
    lengths = ends - starts
    h = seeds + _P5 + lengths.astype(np.uint64)
    at = starts.copy()
    short = (lengths < _SHORT) & (len(lengths) > _FEW)
    # Overlapping views: word i starts at byte i. They are unaligned, which numpy's indexing copes with.
    for _ in range(3):
        rows = np.flatnonzero(short & (ends - at >= 8))
        if not len(rows):
            break
        words = np.ndarray((len(data) - 7,), "<u8", data, strides=(1,))
        h[rows] = _mix_8(h[rows], words[at[rows]].astype(np.uint64))
        at[rows] += 8
    rows = np.flatnonzero(short & (ends - at >= 4))
    if len(rows):
        halves = np.ndarray((len(data) - 3,), "<u4", data, strides=(1,))
        h[rows] = _mix_4(h[rows], halves[at[rows]].astype(np.uint64))
        at[rows] += 4
    for _ in range(3):
        rows = np.flatnonzero(short & (ends > at))
        if not len(rows):
            break
        h[rows] = _rotate(h[rows] ^ (data[at[rows]].astype(np.uint64) * _P5), 11) * _P1
        at[rows] += 1
    h = _finish(h)
    long = np.flatnonzero(~short)
    if len(long):
        view = data.data
        spans = zip(starts[long].tolist(), ends[long].tolist(), seeds[long].tolist())
        h[long] = np.fromiter((xxhash.xxh64_intdigest(view[a:b], s) for a, b, s in spans), np.uint64, len(long))
    return h
