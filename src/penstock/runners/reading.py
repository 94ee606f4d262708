"""What is read at a time: the pieces that a reader hands out, joined where they are small and more of them wait.

A batch costs half a millisecond on its way whatever it holds. A reader cuts where it suits it: where a file ends, or what a server sent.
Ten thousand files of a thousand rows would so cost ten times what their rows cost. Joining is allowed because how rows are cut into batches
never changes a result, and a snapshot is taken between two reads.
"""

from __future__ import annotations

import time
from dataclasses import replace

import pyarrow as pa

from penstock.connectors.connector import Chunk, Reader

__all__ = ["JOIN_S", "read"]

JOIN_S = 0.05
"""For so long at most: meanwhile nobody looks at orders and sockets."""
JOINED_BYTES_MAX = 16 * 1024 * 1024
TRICKLE = 4
"""A piece this much smaller than the one before it is what has come in the meantime: the reader has no more."""


def read(reader: Reader, rows_max: int, within_s: float) -> Chunk | None:
    """What a reader has now: the pieces that it hands out within some time, at most about `rows_max` rows; 0: the next piece only."""
    until = time.perf_counter() + within_s if within_s else 0.0
    chunk = reader.poll(rows_max)
    if chunk is None or chunk.batch is None or not within_s:
        return chunk
    pieces, rows, size = [chunk.batch], chunk.batch.num_rows, chunk.batch.nbytes
    room, most = rows_max - rows, rows
    while most <= room and size < JOINED_BYTES_MAX and not (chunk.bad or chunk.ended) and time.perf_counter() < until:
        piece = reader.poll(room)
        if piece is None or (piece.batch is None and not (piece.bad or piece.ended)):
            break
        chunk = piece
        if piece.batch is None:
            break
        pieces.append(piece.batch)
        size += piece.batch.nbytes
        rows, before = piece.batch.num_rows, rows
        room, most = room - rows, max(most, rows)
        if rows * TRICKLE < before:
            break
    return chunk if len(pieces) == 1 and chunk.batch is pieces[0] else replace(chunk, batch=pa.concat_batches(pieces))
