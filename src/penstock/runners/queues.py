"""Channels within one process, and what is taken from them at a time.

Where load is low, or most rows were folded into a few before the exchange, messages are small, and what each costs on its way through
a task is more than what its rows cost. So rows that wait together are taken together. Where rows take long a batch is taken piece by piece:
a snapshot is taken between two events, and should not wait for a hundred thousand rows of a slow sink. Both are allowed because how rows
are cut into batches never changes a result.

Of watermarks that wait one behind the other, or with nothing but rows between them, only the last counts: a row that is taken before a
watermark that was sent before it is at worst less late.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Protocol

import pyarrow as pa

from penstock.protocol.messages import Barrier, Batch, Message, Watermark

__all__ = ["ROOM", "Outlet", "Queue", "size_of", "take_rows"]

QUEUE_BYTES_MAX = 1024 * 1024
MARKER_BYTES = 64
ROOM = 4
"""How many times its mark an outlet may hold so that a task whose snapshot is overdue can finish the event it is at."""


class Outlet(Protocol):
    """Where a task's messages for one target go."""

    @property
    def full(self) -> bool:
        """Whether the task must wait."""

    @property
    def crammed(self) -> bool:
        """Whether it must wait even if its snapshot is overdue."""

    def push(self, message: Message) -> None:
        """Take a message; allowed even when full, since an event may emit several."""


class Queue:
    """A channel within one process: ordered and bounded."""

    __slots__ = ("_barriers", "_bytes", "_messages", "bytes_max", "taken")

    def __init__(self, bytes_max: int = QUEUE_BYTES_MAX) -> None:
        self._messages: deque[Message] = deque()
        self._bytes = 0
        self._barriers = 0
        self.bytes_max = bytes_max
        self.taken = 0  # messages, since the beginning

    @property
    def full(self) -> bool:
        """Whether the sender must wait."""
        return self._bytes >= self.bytes_max

    @property
    def crammed(self) -> bool:
        """Whether even an overdue sender must wait."""
        return self._bytes >= self.bytes_max * ROOM

    def push(self, message: Message) -> None:
        """Add at the end."""
        if isinstance(message, Watermark) and self._messages and isinstance(self._messages[-1], Watermark):
            self._messages[-1] = message
            self.taken += 1
            return
        self._messages.append(message)
        self._bytes += size_of(message)
        self._barriers += isinstance(message, Barrier)

    def pop(self) -> Message:
        """Take from the front."""
        message = self._messages.popleft()
        self._bytes -= size_of(message)
        self._barriers -= isinstance(message, Barrier)
        self.taken += 1
        return message

    def pop_through(self, room: int, *, first: bool) -> list[Batch]:
        """Take the rows at the front that fit, with those behind watermarks. The last of these watermarks stays, at the front.

        Args:
            first: whether the rows at the front are taken even if they do not fit.
        """
        taken: list[Batch] = []
        time: Watermark | None = None
        while self._messages:
            front = self._messages[0]
            if isinstance(front, Batch):
                if front.rows > room and not (first and not taken):
                    break
                taken.append(front)
                room -= front.rows
            elif isinstance(front, Watermark):
                time = front
            else:
                break
            self.pop()
        if time is not None:
            self._messages.appendleft(time)
            self._bytes += MARKER_BYTES
            self.taken -= 1
        return taken

    def pop_rows(self, rows: int) -> Batch:
        """Take so many of the rows at the front; the others stay there. It counts as taken when the last of them is."""
        front = self._messages[0]
        assert isinstance(front, Batch), "rows are at the front"
        assert 0 < rows < front.rows, "less than all of them"
        first, rest = front.payload.slice(0, rows), front.payload.slice(rows)
        size = front.bytes * rows // front.rows
        self._messages[0] = left = Batch(rest, front.rows - rows, front.bytes - size)
        self._bytes += size_of(left) - size_of(front)
        return Batch(first, rows, size)

    def overtake(self, epoch: int) -> list[Message] | None:
        """Take out the barrier of `epoch`: what waits before it, and stays. None if it is not there.

        Barriers of earlier epochs before it are dropped: those were given up.
        """
        if not self._barriers:
            return None
        barrier = Barrier(epoch)
        try:
            at = self._messages.index(barrier)
        except ValueError:
            return None
        ahead: list[Message] = [message for message in islice(self._messages, at) if not isinstance(message, Barrier)]
        gone = at + 1 - len(ahead)
        self._messages = deque([*ahead, *islice(self._messages, at + 1, None)])
        self._bytes -= gone * MARKER_BYTES
        self._barriers -= gone
        self.taken += gone
        return ahead

    def __len__(self) -> int:
        return len(self._messages)

    @property
    def rows(self) -> int | None:
        """How many rows are at the front; None if there is nothing, or no rows."""
        front = self._messages[0] if self._messages else None
        return front.rows if isinstance(front, Batch) else None

    @property
    def bytes(self) -> int:
        """How much waits here."""
        return self._bytes


def size_of(message: Message) -> int:
    """What a message counts against a bound."""
    return max(message.bytes, MARKER_BYTES) if isinstance(message, Batch) else MARKER_BYTES


def take_rows(queues: Sequence[Queue], rows_max: int) -> Batch:
    """The rows at the front of the first queue, and as many as fit of those that wait behind them and in the other queues."""
    taken: list[Batch] = []
    room = rows_max
    for queue in queues:
        found = queue.pop_through(room, first=not taken)
        taken += found
        room -= sum(batch.rows for batch in found)
    assert taken, "there are rows in the first queue"
    if len(taken) == 1:
        return taken[0]
    payload = pa.concat_batches([message.payload for message in taken])
    return Batch(payload, payload.num_rows, sum(message.bytes for message in taken))
