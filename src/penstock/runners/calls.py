"""Who carries out the calls that tasks ask for: one event loop per process, in a thread of its own; or, simulated, nobody but a seed.

1. The loop lives as long as the process, whatever becomes of jobs, attempts and tasks: what a user's function keeps from call to
   call (a session, a pool of connections) belongs to one loop and stays usable.
2. Nothing here waits for a call, and a call that does not end by itself has failed when its time is over, even if it ignores that
   it was cancelled.
3. Each call is answered once, unless its task is closed: then what is under way is cancelled, and nobody is told.
"""

from __future__ import annotations

import asyncio
import os
import queue
import random
import threading
from collections.abc import Callable
from typing import Any, Protocol

from penstock.eventtime import duration_text
from penstock.protocol.messages import Call, CallDone
from penstock.tracebacks import told

__all__ = ["Calls", "LoopCalls", "SimulatedCalls"]

SPREAD_US = 5_000


class Calls(Protocol):
    """The calls of one task. Used from the task's thread."""

    def begin(self, call: Call) -> None:
        """Carry it out, some time."""

    def answers(self) -> list[CallDone]:
        """The calls that have ended since."""

    def close(self) -> None:
        """Nobody wants to know any more."""


class LoopCalls:
    """Calls in the event loop of this process. `wake` is called there when one has ended."""

    def __init__(self, wake: Callable[[], None] | None = None) -> None:
        self._wake = wake
        self._ended: queue.SimpleQueue[CallDone] = queue.SimpleQueue()
        # Touched by the loop's thread only.
        self._under_way: dict[tuple[int, int], asyncio.Task[Any]] = {}
        self._closed = False
        self._used = False

    def begin(self, call: Call) -> None:
        """Carry it out."""
        loop, self._used = shared_loop(), True
        if call.delay:
            loop.call_soon_threadsafe(loop.call_later, call.delay / 1e6, self._start, loop, call)
        else:
            loop.call_soon_threadsafe(self._start, loop, call)

    def answers(self) -> list[CallDone]:
        """The calls that have ended since."""
        answers = []
        while not self._ended.empty():
            answers.append(self._ended.get())
        return answers

    def wait(self) -> list[CallDone]:
        """The same, and at least one. There must be a call under way: each ends in time."""
        return [self._ended.get(), *self.answers()]

    def close(self) -> None:
        """Cancel what is under way."""
        self._closed = True
        if self._used:
            shared_loop().call_soon_threadsafe(self._cancel)

    # In the loop's thread.

    def _start(self, loop: asyncio.AbstractEventLoop, call: Call) -> None:
        if self._closed:
            return
        task = loop.create_task(carry_out(call))
        late = loop.call_later(call.timeout / 1e6, self._expired, call, task)
        self._under_way[call.call] = task
        task.add_done_callback(lambda task: self._ends(call, task, late))

    def _expired(self, call: Call, task: asyncio.Task[Any]) -> None:
        if self._under_way.get(call.call) is task:
            del self._under_way[call.call]
            task.cancel()
            self._tell(CallDone(call.call, error=no_answer(call)))

    def _ends(self, call: Call, task: asyncio.Task[Any], late: asyncio.TimerHandle) -> None:
        late.cancel()
        done = outcome(call, task)
        if self._under_way.get(call.call) is not task:
            return  # too late, or of a call that was begun anew
        del self._under_way[call.call]
        if not self._closed:
            self._tell(done)

    def _tell(self, done: CallDone) -> None:
        self._ended.put(done)
        if self._wake is not None:
            self._wake()

    def _cancel(self) -> None:
        for task in list(self._under_way.values()):
            task.cancel()


class SimulatedCalls:
    """Calls whose answers come in an order, and after a time, that a seed decides. Each is run to its end when it is begun, alone."""

    def __init__(self, rng: random.Random, clock: Callable[[], int]) -> None:
        self._rng, self._clock = rng, clock
        self._ended: list[tuple[int, CallDone]] = []  # when, and how

    def begin(self, call: Call) -> None:
        """Carry it out now; what it gives is known later."""
        due = self._clock() + call.delay + self._rng.randrange(1, SPREAD_US)
        self._ended.append((due, run_now(call)))

    def answers(self) -> list[CallDone]:
        """Those whose time has come."""
        now = self._clock()
        due = sorted((each for each in self._ended if each[0] <= now), key=lambda each: each[0])
        self._ended = [each for each in self._ended if each[0] > now]
        return [done for _, done in due]

    def close(self) -> None:
        """Nothing is under way."""


def run_now(call: Call) -> CallDone:
    """A call, run to its end in this thread."""
    if not hasattr(_private, "loop"):
        _private.loop = asyncio.new_event_loop()

    loop: asyncio.AbstractEventLoop = _private.loop
    task = loop.create_task(carry_out(call))
    loop.run_until_complete(asyncio.wait({task}, timeout=call.timeout / 1e6))
    if task.done():
        return outcome(call, task)
    task.cancel()
    loop.run_until_complete(asyncio.wait({task}, timeout=0.001))
    return CallDone(call.call, error=no_answer(call))


def outcome(call: Call, task: asyncio.Task[Any]) -> CallDone:
    """How a call ended whose task is done."""
    if task.cancelled():
        return CallDone(call.call, error="CancelledError")
    error = task.exception()
    return CallDone(call.call, error=told(error)) if error else CallDone(call.call, task.result())


async def carry_out(call: Call) -> Any:
    """Await what a call is about. What would end a process ends only the call."""
    try:
        return await call.payload()
    except (KeyboardInterrupt, SystemExit) as error:
        raise RuntimeError(f"{type(error).__name__}: {error}") from error


def no_answer(call: Call) -> str:
    """What is wrong with a call that took too long."""
    return f"no answer within {duration_text(call.timeout)}"


_shared: tuple[int, asyncio.AbstractEventLoop] | None = None  # the process it belongs to, and the loop
_starting = threading.Lock()
_private = threading.local()


def shared_loop() -> asyncio.AbstractEventLoop:
    """The event loop of this process, which runs in a thread of its own from the first time on."""
    global _shared
    with _starting:
        if _shared is None or _shared[0] != os.getpid():
            loop = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, name="penstock-calls", daemon=True).start()
            _shared = (os.getpid(), loop)
        return _shared[1]
