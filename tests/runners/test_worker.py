"""A worker's loop, without Spark and without a driver."""

from __future__ import annotations

import socket
import time
from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.runners.continuous import link
from penstock.runners.continuous.worker import Worker
from penstock.runners.pace import Pace
from penstock.runners.spark.frames import Decoder, control_of


class Done(Worker):
    """Its tasks have ended, and nothing will ever happen again. It notes what it had said when it lay down."""

    def __init__(self, *, finish: bool = True) -> None:
        self.said: list[str] = []
        self.naps: list[tuple[float, list[str]]] = []
        task = SimpleNamespace(ended=finish, wake_at=None)
        seat: Any = SimpleNamespace(task=task, drained=not finish, epoch=7)
        self.spec: Any = SimpleNamespace(finish=finish, latency=5_000)
        self.pace = Pace(5_000, 20_000)
        self.loop: Any = SimpleNamespace(
            seats=[seat], step=lambda now, until: False, due_at=lambda now, latency: None, quiet=False, wake=lambda: None
        )
        self.line: Any = SimpleNamespace(orders=deque(), say=lambda what, **more: self.said.append(what))
        self.pulse: Any = SimpleNamespace(working=False, rounds=0)
        self.wires: Any = SimpleNamespace(turn=self.turn, lost_for=lambda: 0.0)
        self._exiting = self._told_end = self._told_drained = False
        self._groups = []
        self._stored = deque()

    def turn(self, nap_s: float) -> bool:
        self.naps.append((nap_s, list(self.said)))
        self._exiting = len(self.naps) == 3
        return False

    def _tell_about(self) -> None: ...


def test_the_end_of_the_input_is_told_before_the_first_nap_and_once() -> None:
    worker = Done()
    worker._work()
    assert worker.naps == [(0.1, ["ended"])] * 3


def test_a_job_that_is_to_end_no_time_tells_that_nothing_is_left_to_read() -> None:
    worker = Done(finish=False)
    worker._work()
    assert worker.naps == [(0.1, ["drained"])] * 3


def test_a_worker_that_is_told_to_exit_does_not_lie_down_again() -> None:
    worker = Done()
    worker.line.orders.append({"say": "exit"})
    worker._work()
    assert worker.naps == []


def test_a_workers_last_words_do_not_wait_for_its_next_beat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "BEAT_S", 60.0)
    listener = socket.create_server(("127.0.0.1", 0))
    pulse = link.Pulse(lambda: 7)
    line = link.DriverLine(listener.getsockname()[:2], {"say": "hello"}, pulse, lambda: None, stuck_s=60)
    line.start()
    driver, _ = listener.accept()
    driver.settimeout(10)
    line.say("ended")
    pulse.rounds = 3
    began = time.monotonic()
    line.hang_up()
    assert time.monotonic() - began < link.EXIT_S / 2
    assert not line.is_alive()
    data = b"".join(iter(lambda: driver.recv(4096), b""))
    said = [control_of(frame) for frame in Decoder().feed(data)]
    assert [each["say"] for each in said] == ["hello", "beat", "ended", "beat"]
    assert (said[-1]["rounds"], said[-1]["read"]) == (3, 7)
    driver.close()
    listener.close()
