"""A worker's line to the driver: heartbeats, answers and orders, in a thread of their own.

The thread goes on while the worker's loop is deep in a user's function. So the driver can tell a worker that is busy from one
that is gone, and a worker notices in milliseconds that its driver is gone, whatever it is doing.

1. Losing the driver ends the process at once (`os._exit`): nobody would hear it any more, and a successor may be running already.
2. So does an order to exit that the loop does not follow within `EXIT_S`.
3. Every `BEAT_S` a beat: how many rounds of work the loop has done, whether it is in one now, and what it last said about itself.
   The same number while busy for `stuck_after` means that something never returns; then its stack is sent along.
4. Orders are put in `orders`, and the loop is woken.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from typing import Any

from penstock.errors import DecodeError
from penstock.passing import Fate
from penstock.runners.spark.frames import Decoder, control_of, encode_control

BEAT_S = 0.5
EXIT_S = 3.0
CONNECT_S = 10.0
STUCK_S = 300.0


class Pulse:
    """What the loop shows of itself. Written by the loop, read by the line's thread; each field on its own."""

    __slots__ = ("about", "rounds", "rows_read", "working")

    def __init__(self, rows_read: Callable[[], int]) -> None:
        self.rows_read = rows_read
        self.rounds = 0
        self.working = False
        self.about: dict[str, Any] = {}


class DriverLine(threading.Thread):
    """The line. Made and started in the worker's main thread; `say` may be called from any."""

    def __init__(
        self, address: tuple[str, int], hello: dict[str, Any], pulse: Pulse, wake: Callable[[], None], *, stuck_s: float
    ) -> None:
        super().__init__(name="penstock-line", daemon=True)
        self.orders: deque[dict[str, Any]] = deque()
        self._pulse, self._wake, self._stuck_s = pulse, wake, stuck_s
        self._loop_thread = threading.get_ident()
        self._saying: deque[dict[str, Any]] = deque([hello])
        self._number = 0
        self._bytes = b""
        self._decoder = Decoder()
        self._over = self._told_stuck = False
        self._exit_by: float | None = None
        self._seen = (0, time.monotonic())  # rounds, and since when they are so many
        self._socket = socket.create_connection(address, timeout=CONNECT_S)
        self._socket.setblocking(False)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._wake_read, self._wake_write = socket.socketpair()
        for end in (self._wake_read, self._wake_write):
            end.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._socket, selectors.EVENT_READ, "driver")
        self._selector.register(self._wake_read, selectors.EVENT_READ, "wake")

    def say(self, what: str, **more: Any) -> None:
        """Tell the driver something."""
        self._saying.append({"say": what, **more})
        self._nudge()

    def hang_up(self) -> None:
        """The worker is done: send what waits, and end the thread."""
        self._saying.append(self._state())
        self._over = True
        self._nudge()
        self.join(EXIT_S)
        self._wake_write.close()

    def run(self) -> None:
        """Until the end of the worker, or of the driver."""
        beat_at = time.monotonic()
        try:
            while True:
                now = time.monotonic()
                if now >= beat_at:
                    self._beat(now)
                    beat_at = now + BEAT_S
                over = self._over  # before the last words are sent: what is said later is not waited for
                self._send()
                if over and not self._bytes:
                    return
                for key, _ in self._selector.select(max(0.0, beat_at - time.monotonic())):
                    if key.data == "wake":
                        self._wake_read.recv(4096)
                    else:
                        self._hear()
                if self._exit_by is not None and time.monotonic() > self._exit_by:
                    os._exit(1)
        except (OSError, DecodeError):
            if not self._over:
                os._exit(1)
        finally:
            self._selector.close()
            self._socket.close()
            self._wake_read.close()

    def _nudge(self) -> None:
        with contextlib.suppress(OSError):  # full: it will wake anyway. Closed: the end
            self._wake_write.send(b"w")

    def _beat(self, now: float) -> None:
        pulse, (rounds, since) = self._pulse, self._seen
        if pulse.rounds != rounds or not pulse.working:
            self._seen = (pulse.rounds, now)
        elif now - since > self._stuck_s and not self._told_stuck:
            self._told_stuck = True
            error = f"a step has not returned for {self._stuck_s:.0f} s"
            self._saying.append({"say": "failed", "error": error, "trace": self._stack(), "fate": Fate.PASSING.value})
        self._saying.append(self._state())

    def _stack(self) -> str:
        """Where the loop is, from its own first call on."""
        frame = sys._current_frames().get(self._loop_thread)
        calls = traceback.extract_stack(frame)
        return "".join(traceback.format_list([c for c in calls if "pyspark" not in c.filename and "<frozen" not in c.filename]))

    def _state(self) -> dict[str, Any]:
        pulse = self._pulse
        return {"say": "beat", "rounds": pulse.rounds, "working": pulse.working, "read": pulse.rows_read(), **pulse.about}

    def _send(self) -> None:
        while self._saying:
            self._bytes += encode_control(self._saying.popleft(), self._number)
            self._number += 1
        if self._bytes:
            with contextlib.suppress(BlockingIOError):
                self._bytes = self._bytes[self._socket.send(self._bytes) :]
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._bytes else 0)
        if self._selector.get_key(self._socket).events != events:
            self._selector.modify(self._socket, events, "driver")

    def _hear(self) -> None:
        try:
            data = self._socket.recv(65536)
        except BlockingIOError:
            return
        if not data:
            raise ConnectionResetError("the driver is gone")
        for frame in self._decoder.feed(data):
            order = control_of(frame)
            if order["say"] == "exit" and self._exit_by is None:
                self._exit_by = time.monotonic() + EXIT_S
            self.orders.append(order)
            self._wake()
