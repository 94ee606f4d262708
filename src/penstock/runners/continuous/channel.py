"""Channels between workers: one TCP connection for each (exchange, source task, target task), none of which is ever waited for.

Two workers send to each other at the same time, through tasks that form no cycle but connections that do. One blocking `send` in
a loop with one thread, and both would wait for ever. So:

1. Sockets are non-blocking. What the kernel does not take stays in the channel's own queue.
2. What is under way is bounded from end to end: a receiver says, on the same connection, how many messages its task has taken;
   above a mark of bytes sent and not yet taken the channel is **full**, and the task that feeds it is not run. That is
   back-pressure, per channel.
3. A receiver reads whatever is there, since the sender keeps to the bound. So the wire itself is never clogged: a barrier that is
   sent into a full channel is in the receiver's queue a moment later, behind the rows.
4. Every connection begins with a greeting: the job's token and whose channel this is (`greeting`). Anybody else is counted and hung up
   on, and nothing else happens.
5. A peer that goes away is not an error here. The driver sees it too, knows why, and ends the attempt; only if it does not
   (`lost_for`) the worker complains itself.
"""

from __future__ import annotations

import contextlib
import logging
import select
import selectors
import socket
import struct
import time
from collections import deque
from dataclasses import dataclass

import pyarrow as pa

from penstock.errors import DecodeError
from penstock.protocol.messages import Message
from penstock.runners.continuous.greeting import (
    GREETING_S,
    STRANGERS_MAX,
    Channel,
    Credentials,
    Introduction,
    channel_in,
    is_worth_telling,
)
from penstock.runners.queues import ROOM, Queue, size_of
from penstock.runners.spark.frames import (
    FRAME_BYTES_MAX,
    Decoder,
    encode,
    encode_control,
    message_of,
)

log = logging.getLogger("penstock")

CHANNEL_BYTES = 1024 * 1024  # the mark of a queue
UNDER_WAY = 2  # marks that a channel holds: a queue at each end
SEGMENT_BYTES = 64 * 1024  # of TCP on the loopback interface
KERNEL_BYTES_MAX = 1 << 30  # that it can be asked for; what it gives is mostly a few mebibytes
STAGE_BYTES = 256 * 1024  # what one read takes at most, if it does not go straight into a frame
PIECES_MAX = 64  # buffers in one system call
TAKEN = struct.Struct("<Q")  # what a receiver says: messages taken so far
WORD = 8  # it says so whenever this part of the mark was taken
EXACT_S = 0.01  # in shorter waits a part of a millisecond matters
SELECT_MAX = 1024  # of the descriptors that `select` takes


class Outbound:
    """The sending end of a channel: an `Outlet` for a task."""

    __slots__ = (
        "_bytes",
        "_bytes_max",
        "_number",
        "_pieces",
        "_selector",
        "_sizes",
        "_socket",
        "_taken",
        "_told",
        "_waiting",
        "channel",
        "gone",
        "stalls",
    )

    def __init__(
        self, sock: socket.socket, selector: selectors.BaseSelector, channel: Channel, hello: bytes, bytes_max: int
    ) -> None:
        self.channel = channel
        self.gone = False
        self.stalls = 0  # how often it became full
        self._socket, self._selector, self._bytes_max = sock, selector, bytes_max
        self._pieces: deque[memoryview] = deque([memoryview(hello)])
        self._bytes = 0  # sent, or to be sent, and not yet taken
        self._sizes: deque[int] = deque()  # of the messages that are not yet taken
        self._taken, self._told = 0, b""  # messages; and the beginning of what the receiver says next
        self._number = 1
        self._waiting = False  # for the kernel to have room
        selector.register(sock, selectors.EVENT_READ, self)

    @property
    def full(self) -> bool:
        """Whether the task must wait."""
        return self._bytes >= self._bytes_max

    @property
    def crammed(self) -> bool:
        """Whether it must wait even if its snapshot is overdue."""
        return self._bytes >= self._bytes_max * ROOM

    def push(self, message: Message) -> None:
        """Send a message, or keep it until it can be sent."""
        size = 0
        for piece in encode(message, self._number):
            view = memoryview(piece)
            self._pieces.append(view)
            size += view.nbytes
        self._sizes.append(size)
        self._bytes += size
        self._number += 1
        if not self._waiting:
            self.flush()
        self.stalls += self.full

    def flush(self) -> None:
        """Give the kernel what it takes now."""
        if self.gone:
            return
        try:
            while self._pieces:
                sent = self._socket.sendmsg([self._pieces[i] for i in range(min(len(self._pieces), PIECES_MAX))])
                while sent:
                    first = self._pieces[0]
                    if sent < first.nbytes:
                        self._pieces[0] = first[sent:]
                        break
                    sent -= first.nbytes
                    self._pieces.popleft()
        except BlockingIOError:
            pass
        except OSError:
            self.close()  # the peer is gone; what waits here stays, so the task stops at the mark
            return
        if bool(self._pieces) != self._waiting:
            self._waiting = bool(self._pieces)
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._waiting else 0)
            self._selector.modify(self._socket, events, self)

    def hear(self) -> None:
        """What the receiver says: how many messages were taken so far. The last word counts."""
        try:
            data = self._socket.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        told = self._told + data
        whole = len(told) // TAKEN.size * TAKEN.size
        self._told = told[whole:]
        if whole:
            (taken,) = TAKEN.unpack(told[whole - TAKEN.size : whole])
            if not self._taken <= taken <= self._taken + len(self._sizes):
                raise DecodeError(f"a peer says that it took {taken} messages, and {self._number - 1} were sent")
            while self._taken < taken:
                self._bytes -= self._sizes.popleft()
                self._taken += 1

    def close(self) -> None:
        """Hang up."""
        if not self.gone:
            self.gone = True
            self._selector.unregister(self._socket)
            self._socket.close()


@dataclass(slots=True)
class Awaited:
    """An input that a peer will connect to, and where its messages go. `before`: how many others are taken from there first."""

    queue: Queue
    schema: pa.Schema
    before: int
    connected: bool = False


class Inbound:
    """The receiving end of a channel."""

    __slots__ = ("_bytes_max", "_decoder", "_left", "_saying", "_selector", "_socket", "_told", "awaited", "channel", "gone")

    def __init__(
        self,
        sock: socket.socket,
        selector: selectors.BaseSelector,
        channel: Channel,
        awaited: Awaited,
        decoder: Decoder,
        bytes_max: int,
    ) -> None:
        self.channel, self.awaited = channel, awaited
        self.gone = False
        self._socket, self._selector, self._decoder, self._bytes_max = sock, selector, decoder, bytes_max
        self._told = 0  # messages taken, as the sender knows
        self._left = 0  # bytes in the queue when it was told, and all that came since
        self._saying = b""

    def read(self, stage: memoryview) -> None:
        """Take what is there, once; `stage` is where small frames are received."""
        try:
            if self._decoder.missing >= len(stage):
                count = self._socket.recv_into(self._decoder.room())
                frames = self._decoder.took(count) if count else []
            else:
                count = self._socket.recv_into(stage)
                frames = self._decoder.feed(stage[:count])
        except BlockingIOError:
            return
        except OSError:
            count, frames = 0, []
        for frame in frames:
            message = message_of(frame, self.awaited.schema)
            self.awaited.queue.push(message)
            self._left += size_of(message)
        if not count:
            self.close()

    def attend(self) -> None:
        """Tell the sender what was taken, if it is enough to be worth it."""
        queue = self.awaited.queue
        if self.gone or (not self._saying and self._left - queue.bytes < self._bytes_max // WORD):
            return
        taken = queue.taken - self.awaited.before
        if not self._saying and taken > self._told:
            self._saying, self._told, self._left = TAKEN.pack(taken), taken, queue.bytes
        try:
            while self._saying:
                self._saying = self._saying[self._socket.send(self._saying) :]
        except BlockingIOError:
            pass
        except OSError:
            self.close()

    def close(self) -> None:
        """Hang up."""
        if not self.gone:
            self.gone = True
            self._selector.unregister(self._socket)
            self._socket.close()


@dataclass(slots=True)
class Stranger:
    """A connection that has not said who it is."""

    socket: socket.socket
    says: Introduction
    since: float


class Wires:
    """All connections of one worker to its peers, and one to wake it by."""

    def __init__(self, credentials: Credentials, *, host: str = "127.0.0.1", bytes_max: int = CHANNEL_BYTES) -> None:
        self.refused = 0
        self._credentials, self._bytes_max = credentials, bytes_max
        self._selector = selectors.DefaultSelector()
        epoll = self._selector.fileno() if isinstance(self._selector, selectors.EpollSelector) else SELECT_MAX
        self._epoll = epoll if epoll < SELECT_MAX else None
        self._awaited: dict[Channel, Awaited] = {}
        self._inbound: list[Inbound] = []
        self._outbound: list[Outbound] = []
        self._strangers: dict[int, Stranger] = {}
        self._stage = memoryview(bytearray(STAGE_BYTES))
        self._lost_at: float | None = None
        self._listener = socket.socket()
        self._tune(self._listener)
        self._listener.bind((host, 0))
        self._listener.listen(4096)
        self._listener.setblocking(False)
        self._wake_read, self._wake_write = socket.socketpair()
        self._wake_read.setblocking(False)
        self._wake_write.setblocking(False)
        self._selector.register(self._wake_read, selectors.EVENT_READ, self._wake_read)

    @property
    def address(self) -> tuple[str, int]:
        """Where peers connect to."""
        host, port = self._listener.getsockname()[:2]
        return str(host), int(port)

    def wake(self) -> None:
        """End the `turn` under way, or the next one. From any thread."""
        with contextlib.suppress(OSError):  # full: it will wake anyway. Closed: nobody sleeps
            self._wake_write.send(b"w")

    def expect(self, channel: Channel, queue: Queue, schema: pa.Schema) -> None:
        """A peer will connect to this input. What is in the queue now is not the peer's."""
        self._awaited[channel] = Awaited(queue, schema, len(queue))

    def answer(self) -> None:
        """All inputs are known now: let peers in. Those that connected earlier wait in the kernel."""
        self._selector.register(self._listener, selectors.EVENT_READ, None)

    def connect(self, channel: Channel, address: tuple[str, int]) -> Outbound:
        """The sending end of a channel to a peer that listens already."""
        sock = socket.socket()
        self._tune(sock)
        sock.settimeout(GREETING_S)
        sock.connect(address)
        sock.setblocking(False)
        exchange, source, target = channel
        hello = encode_control(self._credentials.greeting(exchange=exchange, source=source, target=target), 0)
        outbound = Outbound(sock, self._selector, channel, hello, self._bytes_max * UNDER_WAY)
        self._outbound.append(outbound)
        outbound.flush()
        return outbound

    def turn(self, timeout_s: float) -> bool:
        """Move what can be moved; wait for something to move for at most `timeout_s`. True if something did."""
        for inbound in self._inbound:
            inbound.attend()
        moved = False
        if 0 < timeout_s < EXACT_S and self._epoll is not None:
            select.select([self._epoll], [], [], timeout_s)  # epoll itself waits for whole milliseconds
            timeout_s = 0
        for key, events in self._selector.select(timeout_s):
            moved = True
            match key.data:
                case Inbound() as inbound:
                    inbound.read(self._stage)
                case Outbound() as outbound:
                    if events & selectors.EVENT_READ:
                        outbound.hear()
                    if events & selectors.EVENT_WRITE:
                        outbound.flush()
                case Stranger() as stranger:
                    self._listen_to(stranger)
                case None:
                    self._accept()
                case _:
                    with contextlib.suppress(BlockingIOError):
                        self._wake_read.recv(4096)
        if self._strangers:
            self._lose_patience()
        return moved

    def stalls(self) -> int:
        """How often a channel to a peer was full."""
        return sum(outbound.stalls for outbound in self._outbound)

    def lost_for(self) -> float:
        """Since when, in seconds, a peer has been gone; 0 if none is."""
        if self._lost_at is None:
            if not any(end.gone for end in self._ends):
                return 0.0
            self._lost_at = time.monotonic()
        return time.monotonic() - self._lost_at

    def close(self) -> None:
        """Hang up everywhere."""
        for end in self._ends:
            end.close()
        for stranger in self._strangers.values():
            stranger.socket.close()
        for sock in (self._listener, self._wake_read, self._wake_write):
            sock.close()
        self._selector.close()

    @property
    def _ends(self) -> list[Inbound | Outbound]:
        return [*self._inbound, *self._outbound]

    def _tune(self, sock: socket.socket) -> None:
        """Before connecting or listening: that is when window and segment sizes are agreed on. Accepted connections inherit.

        The kernel takes all that may be under way. Otherwise a message goes in pieces, and after each both ends wait until the other, busy
        with rows, looks at its sockets again.
        """
        kernel_bytes = min(max(4096, self._bytes_max * UNDER_WAY), KERNEL_BYTES_MAX)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, kernel_bytes)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, kernel_bytes)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if kernel_bytes < 4 * SEGMENT_BYTES:
            # A window that does not hold some segments makes TCP wait for delayed acknowledgements.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, max(512, kernel_bytes // 4))

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError:
            return
        if len(self._strangers) >= STRANGERS_MAX:
            self._refuse(next(iter(self._strangers.values())))  # the oldest
        sock.setblocking(False)
        stranger = Stranger(sock, Introduction(self._credentials), time.monotonic())
        self._strangers[sock.fileno()] = stranger
        self._selector.register(sock, selectors.EVENT_READ, stranger)

    def _listen_to(self, stranger: Stranger) -> None:
        if stranger.socket.fileno() < 0:
            return  # it made room for another one in this very turn
        try:
            greeting = stranger.says.hear(stranger.socket.recv(stranger.says.need))
        except BlockingIOError:
            return
        except Exception:  # whatever it is, it is the stranger's
            self._refuse(stranger)
            return
        if greeting is None:
            return
        channel = channel_in(greeting)
        awaited = self._awaited.get(channel) if channel else None
        if channel is None or awaited is None or awaited.connected:
            self._refuse(stranger)
            return
        del self._strangers[stranger.socket.fileno()]
        awaited.connected = True
        decoder = stranger.says.decoder
        decoder.bytes_max = FRAME_BYTES_MAX
        inbound = Inbound(stranger.socket, self._selector, channel, awaited, decoder, self._bytes_max)
        self._inbound.append(inbound)
        self._selector.modify(stranger.socket, selectors.EVENT_READ, inbound)

    def _refuse(self, stranger: Stranger) -> None:
        self.refused += 1
        if is_worth_telling(self.refused):
            log.warning("a connection to a data port was refused: it is no peer of this attempt (%d so far)", self.refused)
        del self._strangers[stranger.socket.fileno()]
        self._selector.unregister(stranger.socket)
        stranger.socket.close()

    def _lose_patience(self) -> None:
        now = time.monotonic()
        for stranger in [s for s in self._strangers.values() if now - s.since > GREETING_S]:
            self._refuse(stranger)
