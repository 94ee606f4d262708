"""What is read at a time: the pieces that a reader hands out, joined where they are small and more of them wait.

A batch costs half a millisecond on its way whatever it holds. A reader cuts where it suits it: where a file ends, or what a server sent.
Ten thousand files of a thousand rows would so cost ten times what their rows cost. Joining is allowed because how rows are cut into batches
never changes a result, and a snapshot is taken between two reads.

Whether more waits is known only by asking. Of a split that has nothing more, as at low load, that is asked at one read in `TRIED_EVERY`.
"""

from __future__ import annotations

import time
from dataclasses import replace

import pyarrow as pa

from penstock.connectors.connector import Chunk, Reader

__all__ = ["JOIN_S", "Gatherer"]

JOIN_S = 0.05
"""For so long at most: meanwhile nobody looks at orders and sockets."""
JOINED_BYTES_MAX = 16 * 1024 * 1024
TRICKLE = 4
"""A piece this much smaller than the one before it is what has come in the meantime: the reader has no more."""
TRIED_EVERY = 16
GROWTH = 4
"""How many times the rows of the last read a read may have: what rows cost is seen before there are many of them."""


class Gatherer:
    """Reads one split.

    Args:
        within_s: for how long pieces are gathered; 0: each is read as it comes.
    """

    __slots__ = ("_alone", "_reach", "_reader", "_within_s")

    def __init__(self, reader: Reader, within_s: float) -> None:
        self._reader, self._within_s = reader, within_s
        self._alone = 0  # how many pieces from here are not joined
        self._reach = 0  # how many rows are enough

    def read(self, rows_max: int) -> Chunk | None:
        """What there is now, at most about `rows_max` rows; None if nothing."""
        until = time.perf_counter() + self._within_s
        chunk = self._reader.poll(rows_max)
        if chunk is None or chunk.batch is None or not self._within_s:
            return chunk
        if self._alone:
            self._alone -= 1
            return chunk
        pieces, rows = [chunk.batch], chunk.batch.num_rows
        room, most, size = min(rows_max, self._reach) - rows, rows, 0
        while most <= room and size < JOINED_BYTES_MAX and not (chunk.bad or chunk.ended) and time.perf_counter() < until:
            piece = self._reader.poll(room)
            if piece is None or (piece.batch is None and not (piece.bad or piece.ended)):
                self._alone = TRIED_EVERY - 1
                break
            chunk = piece
            if piece.batch is None:
                break
            pieces.append(piece.batch)
            size += piece.batch.nbytes
            rows, before = piece.batch.num_rows, rows
            room, most = room - rows, max(most, rows)
            if rows * TRICKLE < before:
                self._alone = TRIED_EVERY - 1
                break
        batch = pieces[0] if len(pieces) == 1 else pa.concat_batches(pieces)
        self._reach = GROWTH * batch.num_rows
        return chunk if chunk.batch is batch else replace(chunk, batch=batch)
