"""Who carries out calls: in one event loop per process, side by side, each answered once and in time."""

from __future__ import annotations

import asyncio
import random
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from penstock.protocol.messages import Call, CallDone
from penstock.runners.calls import LoopCalls, SimulatedCalls, shared_loop
from unplaced import unplaced

S = 1_000_000


def call(number: int, work: Callable[[], Awaitable[Any]], *, timeout: int = 10 * S, delay: int = 0) -> Call:
    return Call((0, number), work, timeout, delay)


def answers_of(calls: LoopCalls, count: int) -> dict[int, CallDone]:
    found: dict[int, CallDone] = {}
    while len(found) < count:
        for done in calls.wait():
            assert done.call[1] not in found, "a call is answered once"
            found[done.call[1]] = done
    return found


def test_calls_run_side_by_side_and_wake_whoever_waits() -> None:
    woken = threading.Semaphore(0)
    calls = LoopCalls(woken.release)
    together = 0
    met = asyncio.Event()

    async def meet() -> int:
        nonlocal together
        together += 1
        if together == 50:
            met.set()
        await met.wait()
        return together

    for number in range(50):
        calls.begin(call(number, meet))
    assert woken.acquire(timeout=10)
    assert {done.result for done in answers_of(calls, 50).values()} == {50}


def test_a_call_that_takes_too_long_has_failed_even_if_it_does_not_let_itself_be_cancelled() -> None:
    calls = LoopCalls()

    async def stubborn() -> None:
        until = time.monotonic() + 0.5
        while time.monotonic() < until:
            try:
                await asyncio.sleep(0.1)
            except asyncio.CancelledError:
                continue

    async def sleepy() -> None:
        await asyncio.sleep(60)

    began = time.monotonic()
    calls.begin(call(0, stubborn, timeout=20_000))
    calls.begin(call(1, sleepy, timeout=20_000))
    assert {done.error for done in answers_of(calls, 2).values()} == {"no answer within 20ms"}
    assert time.monotonic() - began < 0.4
    calls.begin(call(0, stubborn, timeout=20_000))  # again, while the first still runs
    assert answers_of(calls, 1)[0].error == "no answer within 20ms"
    time.sleep(0.6)
    assert calls.answers() == []


def test_whatever_a_call_raises_is_its_answer() -> None:
    calls = LoopCalls()

    async def raises() -> None:
        raise ConnectionError("no route")

    async def exits() -> None:
        sys.exit(3)

    async def cancels() -> None:
        raise asyncio.CancelledError

    async def times_out() -> None:
        raise TimeoutError("of its own")

    for number, work in enumerate((raises, exits, cancels, times_out)):
        calls.begin(call(number, work))
    errors = {number: unplaced(done.error or "") for number, done in answers_of(calls, 4).items()}
    assert errors == {
        0: "ConnectionError: no route",
        1: "RuntimeError: SystemExit: 3",
        2: "CancelledError",
        3: "TimeoutError: of its own",
    }
    assert shared_loop().is_running()


def test_a_call_begins_after_its_delay() -> None:
    calls = LoopCalls()

    async def now() -> float:
        return time.monotonic()

    began = time.monotonic()
    calls.begin(call(0, now, delay=50_000))
    assert answers_of(calls, 1)[0].result >= began + 0.045


def test_closing_cancels_what_is_under_way_and_nobody_is_told() -> None:
    calls = LoopCalls()
    cancelled, begun = threading.Event(), threading.Event()

    async def patient() -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            cancelled.set()

    calls.begin(call(0, patient))
    calls.begin(call(1, patient, delay=30_000))
    assert begun.wait(10)
    calls.close()
    assert cancelled.wait(10)
    time.sleep(0.06)
    assert calls.answers() == []


@pytest.mark.parametrize("seed", range(3))
def test_a_seed_decides_when_simulated_calls_end(seed: int) -> None:
    def run() -> list[tuple[int, Any, str | None]]:
        now = 0
        calls = SimulatedCalls(random.Random(seed), lambda: now)

        async def square(n: int) -> int:
            await asyncio.sleep(0)
            if n == 7:
                raise ValueError(n)
            return n * n

        for number in range(10):
            calls.begin(call(number, lambda number=number: square(number), delay=number % 2 * 10_000))  # type: ignore[misc]
        assert calls.answers() == []
        found = []
        while len(found) < 10:
            now += 500
            found += [(done.call[1], done.result, done.error) for done in calls.answers()]
        return found

    first = run()
    assert first == run()
    assert [number for number, *_ in first] != sorted(number for number, *_ in first)
    number, result, error = sorted(first)[7]
    assert (number, result, unplaced(error)) == (7, None, "ValueError: 7")
    assert sorted(first)[3] == (3, 9, None)


def test_a_simulated_call_that_never_ends_fails_in_time() -> None:
    now = 0
    calls = SimulatedCalls(random.Random(1), lambda: now)
    calls.begin(call(0, lambda: asyncio.sleep(60), timeout=5_000))
    now = S
    assert calls.answers() == [CallDone((0, 0), error="no answer within 5ms")]
