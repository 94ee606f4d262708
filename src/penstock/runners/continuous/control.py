"""The driver's end of the lines to its workers: who is there, what they say, and what they are told. One server for each attempt,
in a thread of its own.

1. A connection is nobody until it has shown the attempt's token and stamp (`greeting`). Others are hung up on and counted; nothing
   else happens.
2. When all workers are there, each is told where the others are. When all say they are ready, the attempt is running.
3. A line that breaks, a worker silent for `SILENT_S`, a worker that says it failed: each fails the attempt, once. Whoever is
   first names the reason.
4. How far each worker's splits are (`runners.align`) is told to all, as often as it changes and no more than every `ALIGN_S`.
5. What is heard is posted to the conductor with its stamp; nothing is decided here.
"""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from penstock.errors import DecodeError, RunnerError
from penstock.passing import Fate, text_of
from penstock.protocol import coordinator as c
from penstock.protocol.messages import Stamp
from penstock.runners.continuous.greeting import GREETING_S, STRANGERS_MAX, Credentials, Introduction, is_worth_telling, worker_in
from penstock.runners.continuous.wire import ack_of, stamp_of
from penstock.runners.spark.frames import FRAME_BYTES_MAX, control_of, encode_control
from penstock.runners.spark.ship import check_identity

log = logging.getLogger("penstock")

SILENT_S = 5.0
TURN_S = 0.25
ALIGN_S = 0.05


@dataclass(slots=True, eq=False)
class Line:
    """One connection: first a stranger's, then a worker's."""

    socket: socket.socket
    says: Introduction
    since: float
    heard: float
    worker: int | None = None
    hello: dict[str, Any] = field(default_factory=dict)
    number: int = 0
    unsent: bytearray = field(default_factory=bytearray)
    ready: bool = False
    ended: bool = False
    drained: int | None = None  # the last epoch it had begun when it had nothing left to read


class ControlServer(threading.Thread):
    """Listens to the workers of one attempt.

    Args:
        post: takes events for the coordinator.
        hear: is shown every beat: worker, beat.
    """

    def __init__(
        self,
        credentials: Credentials,
        workers: int,
        identity: str,
        *,
        post: Callable[[c.Event], None],
        hear: Callable[[int, dict[str, Any]], None] = lambda worker, beat: None,
        silent_s: float = SILENT_S,
    ) -> None:
        super().__init__(name="penstock-control", daemon=True)
        self.credentials, self.workers, self.identity = credentials, workers, identity
        self.refused = 0  # connections of strangers
        self.stale = 0  # answers of other attempts
        self.failed = False
        self.ending = self.closing = False
        self.beats: dict[int, dict[str, Any]] = {}  # worker -> what it last said about itself
        self._post, self._hear_beat, self._silent_s = post, hear, silent_s
        self._lines: dict[int, Line] = {}  # by worker
        self._strangers: list[Line] = []
        self._orders: deque[dict[str, Any]] = deque()
        self._running = self._input_ended = False
        self._slowest: dict[str, dict[str, int | None]] = {}  # worker -> group -> time
        self._announce_at: float | None = None  # if there is something to announce
        self._announced_at = 0.0
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self._listener.setblocking(False)
        self._wake_read, self._wake_write = socket.socketpair()
        for end in (self._wake_read, self._wake_write):
            end.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, "listener")
        self._selector.register(self._wake_read, selectors.EVENT_READ, "wake")

    @property
    def stamp(self) -> Stamp:
        """Of the attempt."""
        return self.credentials.stamp

    @property
    def address(self) -> tuple[str, int]:
        """Where workers connect to."""
        host, port = self._listener.getsockname()[:2]
        return str(host), int(port)

    # From any thread.

    def tell(self, say: str, **more: Any) -> None:
        """Tell all workers."""
        self._orders.append({"say": say, **more})
        with contextlib.suppress(OSError):
            self._wake_write.send(b"w")

    @property
    def complete(self) -> bool:
        """Whether all workers are there."""
        return len(self._lines) == self.workers

    def processes(self) -> list[int]:
        """The process ids of the workers that are there."""
        return [int(line.hello["pid"]) for line in list(self._lines.values())]

    def dismiss(self) -> None:
        """Tell workers to exit. From here on it is no failure when they are gone."""
        self.ending = True
        self.tell("exit")

    def wait_until_gone(self, timeout_s: float) -> None:
        """Until no worker is connected, and all they said is heard."""
        until = time.monotonic() + timeout_s
        while self._lines and time.monotonic() < until:
            time.sleep(0.005)

    def close(self) -> None:
        """Hang up; workers that still listen end themselves."""
        self.closing = True
        with contextlib.suppress(OSError):
            self._wake_write.send(b"w")
        if self.is_alive():
            self.join()
        self._wake_write.close()

    def fail(self, error: str, *, fatal: bool = False, tries: int = 0) -> None:
        """The attempt has failed; only the first reason counts."""
        if not self.failed and not self.ending and not self.closing:
            self._post(c.AttemptFailed(self.stamp, error, fatal, tries))
            self.failed = True

    # The thread.

    def run(self) -> None:
        """Until closed. If it ends otherwise, that fails the attempt: nobody else hears the workers."""
        try:
            self._listen()
        except Exception as error:
            log.exception("the line to the workers of attempt %d broke", self.stamp.attempt)
            self.fail(f"the line to the workers broke: {text_of(error)}")
        finally:
            for line in [*self._lines.values(), *self._strangers]:
                line.socket.close()
            for end in (self._listener, self._wake_read):
                end.close()
            self._selector.close()

    def _listen(self) -> None:
        while not self.closing:
            for key, mask in self._selector.select(TURN_S if self._announce_at is None else ALIGN_S):
                if key.data == "listener":
                    self._accept()
                elif key.data == "wake":
                    with contextlib.suppress(BlockingIOError):
                        self._wake_read.recv(4096)
                else:
                    self._attend(key.data, mask)
            self._announce()
            self._pass_on()
            self._look_at_the_clock()

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError:
            return
        if len(self._strangers) >= STRANGERS_MAX:
            self._drop(self._strangers[0], "made room for another one")  # the oldest
        sock.setblocking(False)
        line = Line(sock, Introduction(self.credentials), time.monotonic(), time.monotonic())
        self._strangers.append(line)
        self._selector.register(sock, selectors.EVENT_READ, line)

    def _attend(self, line: Line, mask: int) -> None:
        if line.socket.fileno() < 0:
            return  # dropped in this very turn
        if line.worker is None:
            self._listen_to(line)
            return
        try:
            if mask & selectors.EVENT_WRITE:
                self._send(line)
            if mask & selectors.EVENT_READ:
                data = line.socket.recv(262_144)
                if not data:
                    raise ConnectionResetError
                line.heard = time.monotonic()
                for frame in line.says.decoder.feed(data):
                    self._heard(line, line.worker, control_of(frame))
        except BlockingIOError:
            pass
        except DecodeError as error:
            self._drop(line, f"sent what is no message: {error}")
        except OSError:
            self._drop(line, "was lost")

    def _listen_to(self, stranger: Line) -> None:
        try:
            greeting = stranger.says.hear(stranger.socket.recv(stranger.says.need))
        except BlockingIOError:
            return
        except Exception:  # whatever it is, it is the stranger's
            self._drop(stranger, "is not one of ours")
            return
        if greeting is not None:
            self._greet(stranger, greeting)

    def _drop(self, line: Line, what: str) -> None:
        self._selector.unregister(line.socket)
        line.socket.close()
        if line.worker is None:
            self.refused += 1
            if is_worth_telling(self.refused):
                log.warning("a connection to the driver was refused: it %s (%d so far)", what, self.refused)
            self._strangers.remove(line)
            return
        self._lines.pop(line.worker, None)
        self.fail(f"worker {line.worker} (process {line.hello.get('pid')}) {what}")

    def _heard(self, line: Line, worker: int, said: dict[str, Any]) -> None:
        match said:
            case {"say": "beat", "read": int()}:
                self.beats[worker] = said
                self._hear_beat(worker, said)
            case {"say": "ack" | "decline", "stamp": stamp} if not self.stamp.accepts(stamp_of(stamp)):
                self.stale += 1
            case {"say": "ack", "epoch": int(epoch), "task": str(task), "ack": ack}:
                self._post(c.Acked(self.stamp, epoch, task, ack_of(ack)))
            case {"say": "decline", "epoch": int(epoch), "task": str(task), "reason": str(reason)}:
                self._post(c.Declined(self.stamp, epoch, task, reason))
            case {"say": "align", "slowest": dict(slowest)}:
                self._slowest[str(worker)] = slowest
                self._announce_at = self._announced_at + ALIGN_S
            case {"say": "ready"}:
                line.ready = True
                if not self._running and self.complete and all(each.ready for each in self._lines.values()):
                    self._running = True
                    self._post(c.Running(self.stamp))
            case {"say": "ended"}:
                line.ended = True
                if not self._input_ended and self.complete and all(each.ended for each in self._lines.values()):
                    self._input_ended = True
                    self._post(c.InputEnded(self.stamp))
            case {"say": "drained", "epoch": int(epoch)}:
                line.drained = epoch
                known = [each.drained for each in self._lines.values() if each.drained is not None]
                if self.complete and len(known) == self.workers:
                    self._post(c.Drained(self.stamp, 1 + max(known)))
            case {"say": "failed", "error": str(error), "trace": str(trace), "fate": "passing" | "three-tries" | "final" as word}:
                # Whoever conducts tells the user, once; of Penstock's own frames only who looks for a mistake of ours wants to know.
                log.debug("worker %d failed: %s\n%s", worker, error, trace)
                fate = Fate(word)
                self.fail(error, fatal=fate is Fate.FINAL, tries=fate.tries)
            case _:
                raise DecodeError(f"it says {said['say']!r}, which is not known here")

    def _greet(self, line: Line, hello: dict[str, Any]) -> None:
        worker = worker_in(hello, self.workers)
        if worker is None or worker in self._lines:
            self._drop(line, "is not one of ours")
            return
        try:
            check_identity(self.identity, str(hello.get("identity")), str(hello.get("place")))
        except RunnerError as error:
            self.fail(str(error), fatal=True)
        self._strangers.remove(line)
        line.worker, line.hello = worker, hello
        line.says.decoder.bytes_max = FRAME_BYTES_MAX
        line.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._lines[worker] = line
        if self.complete:
            everyone = [self._lines[each].hello for each in range(self.workers)]
            peers = [{"address": hello["address"], "uid": hello["uid"]} for hello in everyone]
            self._orders.append({"say": "peers", "peers": peers})

    def _announce(self) -> None:
        now = time.monotonic()
        if self._announce_at is not None and now >= self._announce_at:
            self._announce_at, self._announced_at = None, now
            self._orders.append({"say": "align", "slowest": dict(self._slowest)})

    def _pass_on(self) -> None:
        while self._orders:
            order = self._orders.popleft()
            for line in list(self._lines.values()):
                line.unsent += encode_control(order, line.number)
                line.number += 1
        for line in list(self._lines.values()):
            if line.unsent:
                try:
                    self._send(line)
                except OSError:
                    self._drop(line, "was lost")

    def _send(self, line: Line) -> None:
        with contextlib.suppress(BlockingIOError):
            del line.unsent[: line.socket.send(line.unsent)]
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if line.unsent else 0)
        if self._selector.get_key(line.socket).events != events:
            self._selector.modify(line.socket, events, line)

    def _look_at_the_clock(self) -> None:
        now = time.monotonic()
        for line in [line for line in self._strangers if now - line.since > GREETING_S]:
            self._drop(line, "did not say who it is")
        for line in list(self._lines.values()):
            if now - line.heard > self._silent_s:
                self._drop(line, f"was silent for {self._silent_s:.0f} s")
