"""The simulated runner: the same tasks, driven in an order drawn from a seed, on a clock of its own.

It is the local runner with other choices: which task goes next, how many rows a read gives, how full a queue may be, all from
one `random.Random(seed)`. So two runs with one seed do the same, whatever the machine does, and different seeds try different
interleavings. Faults are `testing.simulator`'s business.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import Any

from penstock.checkpoints.storage import Store, open_store
from penstock.plan.physical import PhysicalPlan
from penstock.protocol.messages import Event, Stamp
from penstock.runners.calls import SimulatedCalls
from penstock.runners.conductor import Conductor
from penstock.runners.cut import StartPoint
from penstock.runners.local import Local, LocalAttempts
from penstock.runners.loop import Seat
from penstock.runners.options import Options
from penstock.runners.pace import Pace
from penstock.runners.queues import Queue
from penstock.runners.world import World
from penstock.runtime.task import Task

START_US = 1_700_000_000_000_000


class Clock:
    """Simulated time: it moves when the simulation says so."""

    def __init__(self, now: int = START_US) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now

    def advance(self, micros: int) -> None:
        """Let time pass."""
        assert micros >= 0, "time does not go back"
        self.now += micros


class Simulated(Local):
    """Run in a random but repeatable order: `pipeline.run(testing.Simulated(seed=7))`."""

    name = "simulated"

    def __init__(self, seed: int = 0, **options: Any) -> None:
        super().__init__(**options)
        self.seed = seed

    def conductor(self, plan: PhysicalPlan, options: Options, restore: Any) -> Conductor:
        """A conductor in a world of its own."""
        rng, clock = random.Random(self.seed), Clock()

        def pause(micros: int) -> None:
            clock.advance(micros)
            time.sleep(0.0002)  # somebody outside may want to say something

        return Conductor(
            plan,
            options,
            runner=self.name,
            parallelism=self.parallelism(options),
            restore=restore,
            make_attempts=lambda conductor: SimulatedAttempts(conductor, rng, clock),
            world=simulated_world(rng, clock, open_store, pause),
        )


def simulated_world(rng: random.Random, clock: Clock, storage: Callable[[Any], Store], pause: Callable[[int], None]) -> World:
    """A world whose names are drawn from the seed too."""
    return World(clock, lambda: f"{rng.getrandbits(64):016x}", storage, pause)


class SimulatedAttempts(LocalAttempts):
    """Attempts whose tasks take turns at random. `observe` sees every event a task is given."""

    def __init__(
        self,
        conductor: Conductor,
        rng: random.Random,
        clock: Clock,
        observe: Callable[[Task, Event], None] | None = None,
    ) -> None:
        super().__init__(conductor)
        self._rng, self._clock, self._observe = rng, clock, observe

    def pace(self) -> Pace:
        """How long work takes must not matter here."""
        options = self._conductor.options
        return Pace(options.latency, options.watermark_every, lambda: 0.0)

    def join_s(self) -> float:
        """Nor how long reading does."""
        return 0.0

    def due_at(self, now: int) -> int | None:
        """Its clock moves with each step."""
        return None

    def begin(self, stamp: Stamp, start: StartPoint) -> None:
        """Start with other sizes every time: of reads and of queues."""
        super().begin(stamp, start)
        assert self._loop is not None
        queue_bytes, rows_max = self._rng.choice((64, 512, 4096)), self._rng.choice((1, 3, 7, 50))
        for seat in self._loop.seats:
            seat.rows_max = rows_max
            seat.clock = lambda: 0.0  # how long a row takes must not matter here
            seat.observe = self._observe
            seat.calls = SimulatedCalls(self._rng, self._clock)
            for queue in seat.inputs:
                assert isinstance(queue, Queue)
                queue.bytes_max = queue_bytes

    def _awake(self, seats: Sequence[Seat]) -> list[Seat]:
        """Those that may be drawn."""
        return list(seats)

    def step(self, now: int) -> bool:
        """Let some tasks, drawn at random, do one thing each."""
        loop, stamp = self._loop, self._stamp
        if loop is None or stamp is None:
            return False
        seats = self._awake(loop.seats)
        self._rng.shuffle(seats)
        self._clock.advance(self._rng.randrange(1, 2000))
        progress = False
        try:
            for seat in seats[: self._rng.randrange(1, len(loop.seats) + 1)]:
                progress |= seat.step(self._clock())
            # Nothing done by those drawn does not mean that nothing can be done.
            progress = progress or any(seat.step(self._clock()) for seat in seats)
        except Exception as error:
            self._fail(stamp, error)
            return True
        self._report(stamp)
        if not progress:
            self._look_if_drained(stamp)
        return progress
