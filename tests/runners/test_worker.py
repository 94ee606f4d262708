"""A worker's loop, without Spark and without a driver."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any

from penstock.runners.continuous.worker import Worker


class Done(Worker):
    """Its tasks have ended, and nothing will ever happen again. It notes what it had said when it lay down."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.naps: list[tuple[float, list[str]]] = []
        task = SimpleNamespace(ended=True, wake_at=None)
        seat: Any = SimpleNamespace(task=task, overdue_at=None, reading=False, blocked=False)
        self.loop: Any = SimpleNamespace(seats=[seat], step=lambda now, until: False)
        self.line: Any = SimpleNamespace(orders=deque(), say=lambda what, **more: self.said.append(what))
        self.pulse: Any = SimpleNamespace(working=False, rounds=0)
        self.wires: Any = SimpleNamespace(turn=self.turn, lost_for=lambda: 0.0)
        self._exiting = self._told_end = False
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
