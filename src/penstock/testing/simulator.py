"""Seeded simulation of a whole job under faults: the real tasks, state, log and coordinator; simulated time, storage and
misfortune.

A seed decides everything: how tasks take turns, how rows are batched, at which parallelism each incarnation of the coordinator
runs, and which faults strike when. What survives a crash is what would survive one: storage, and what sinks have shown. After
the last fault the job must finish, and its committed output must equal a plain count of the input.

    python -m penstock.testing.simulator --seeds 2000        # prints a summary; a failing seed is printed with the command that
    repeats it python -m penstock.testing.simulator --seed 7            # one seed again, one line per event

Safety (rows lost, doubled, wrong) and progress (not finished in so many steps) are reported apart.
"""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import os
import random
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from penstock import sinks, sources
from penstock.api.keyed import tumbling
from penstock.api.pipeline import Pipeline
from penstock.checkpoints.storage import MemoryStore, OutcomeUnknown, Store, open_store
from penstock.connectors.memorysink import MemorySink
from penstock.errors import ChannelError, RestoreError, StorageError, UnavailableError
from penstock.protocol import coordinator as c
from penstock.protocol.messages import Aborted, Ack, Completed, Decline, Event, Stamp
from penstock.runners import faults
from penstock.runners.conductor import Conductor
from penstock.runners.loop import Seat
from penstock.runners.options import resolve
from penstock.runners.simulated import Clock, SimulatedAttempts, simulated_world
from penstock.runners.world import Crash
from penstock.runtime.task import Task

FAULTS = (
    "worker-crash",  # a task raises in the middle of something: the attempt fails
    "process-crash",  # coordinator and tasks are gone at a named point of the protocol
    "crash-before-effect",  # … right before storage does something
    "crash-after-effect",  # … right after it
    "storage-full",  # storage refuses
    "outcome-unknown",  # storage says no, and has done it
    "late-ack",  # an acknowledgement of a dead attempt arrives
    "double-ack",  # an acknowledgement arrives twice
)
PATIENCE = (*("never",) * 6, "0s", "5ms")
"""How long a snapshot waits for barriers. Where it does not wait for ever, the tasks behind exchanges are slow."""
STEPS_MAX = 60_000
SLOW = 0.4  # how often slow tasks get a turn
ROWS = 40
BASE = datetime(2026, 1, 1, tzinfo=UTC)


class Stuck(AssertionError):
    """The job does not finish although nothing goes wrong any more."""


@dataclass
class Report:
    """What one seed did."""

    seed: int
    trace: str = ""
    epochs: int = 0
    recoveries: int = 0
    unaligned: int = 0  # checkpoints with rows in flight
    replayed: int = 0  # recoveries that went on from one
    struck: Counter[str] = field(default_factory=Counter)
    lines: list[str] = field(default_factory=list)


def patience_of(seed: int) -> tuple[str, random.Random]:
    """How long snapshots wait in this schedule. By a generator of its own, so that the others stay what they are."""
    pressure = random.Random(f"pressure {seed}")
    return pressure.choice(PATIENCE), pressure


class Misfortune:
    """The faults planned for one seed: each waits for its moment, counted in occasions for its kind, and strikes once.

    One of them is always a crash, so that nearly every schedule recovers from something.
    """

    def __init__(self, rng: random.Random, count: int) -> None:
        kinds = [rng.choice(CRASHES), *(rng.choice(FAULTS) for _ in range(count))]
        self._left: dict[str, list[int]] = {kind: [] for kind in FAULTS}
        for kind in kinds:
            self._left[kind].append(rng.randrange(1, OCCASIONS[kind]))
        self.struck: Counter[str] = Counter()

    def strikes(self, kind: str) -> bool:
        """Whether a fault of this kind strikes at this occasion for it."""
        waiting = self._left[kind]
        if not waiting:
            return False
        waiting[0] -= 1
        if waiting[0] > 0:
            return False
        waiting.pop(0)
        self.struck[kind] += 1
        return True


CRASHES = ("worker-crash", "process-crash", "crash-before-effect", "crash-after-effect")

OCCASIONS = {
    "worker-crash": 60,
    "process-crash": 40,
    "crash-before-effect": 20,
    "crash-after-effect": 20,
    "storage-full": 15,
    "outcome-unknown": 4,
    "late-ack": 2,
    "double-ack": 6,
}
"""Within how many occasions for it a fault strikes."""


def input_rows(seed: int) -> list[dict[str, Any]]:
    """The rows of the simulated job: keys, values, and times out of order by less than the delay."""
    rng = random.Random(seed)
    return [
        {"k": rng.choice("abcde"), "v": rng.randrange(100), "at": BASE + timedelta(seconds=i - rng.random() * 2)}
        for i in range(ROWS)
    ]


def build(rows: list[dict[str, Any]], name: str) -> tuple[Pipeline, MemorySink, MemorySink]:
    """Two sources, a union, windows and a running count, two sinks."""
    half = len(rows) // 2
    schema = "k string, v bigint, at timestamp"
    windows, totals = sinks.memory(f"{name}-windows"), sinks.memory(f"{name}-totals")
    windows.clear()
    totals.clear()
    p = Pipeline("simulated", max_parallelism=16)
    left = p.read(sources.memory(rows[:half], schema=schema, splits=2, name="left")).with_watermark("at", delay="3s")
    right = p.read(sources.memory(rows[half:], schema=schema, splits=1, name="right")).with_watermark("at", delay="3s")
    both = left.union(right)
    both.key_by("k").window(tumbling("6s")).aggregate(n="count(*)", total="sum(v)", name="windows").write(windows, name="windows")
    both.filter("v > 20").key_by("k").aggregate(n="count(*)", name="totals").write(totals, name="totals")
    return p, windows, totals


def expected_rows(rows: list[dict[str, Any]]) -> tuple[dict[Any, Any], dict[str, int]]:
    """The answer, by plain Python."""
    windows: dict[Any, list[int]] = {}
    for row in rows:
        seconds = (row["at"] - BASE) // timedelta(seconds=6)
        entry = windows.setdefault((row["k"], BASE + seconds * timedelta(seconds=6)), [0, 0])
        entry[0] += 1
        entry[1] += row["v"]
    totals = Counter(row["k"] for row in rows if row["v"] > 20)
    return {key: tuple(entry) for key, entry in windows.items()}, dict(totals)


class Simulation:
    """One seed."""

    def __init__(self, seed: int, *, keep_lines: bool = False) -> None:
        self.seed, self._keep_lines = seed, keep_lines
        self.rng = random.Random(seed)
        self.clock = Clock()
        self.report = Report(seed)
        self.misfortune = Misfortune(self.rng, self.rng.randrange(2, 6))
        self.patience, self.pressure = patience_of(seed)
        self._digest = hashlib.sha256()
        self._steps = 0
        self._thread: int | None = None  # that runs it
        self._acks: list[tuple[Stamp, int, str, Any]] = []
        self.store = MemoryStore(before_effect=self._before_effect, after_effect=self._after_effect)
        self._folder = Path(tempfile.mkdtemp(prefix="penstock-sim-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None))

    def run(self) -> Report:
        """Incarnations of the coordinator one after the other, until one finishes; then the verdict."""
        rows = input_rows(self.seed)
        pipeline, windows, totals = build(rows, f"sim-{self.seed}-{os.getpid()}")
        self._thread = threading.get_ident()
        faults.hook = self._reached
        try:
            while True:
                conductor = self._conductor(pipeline)
                conductor.run()
                self.report.recoveries += max(0, conductor.status().attempt - 1)
                self.report.epochs = conductor.status().epoch
                finished = conductor.outcome is not None and conductor.outcome.outcome is c.Outcome.FINISHED
                if finished or isinstance(conductor.error, RestoreError):
                    break  # even if it crashed while tidying up; or it finds that it had finished before
                if isinstance(conductor.error, Crash | StorageError):
                    # Storage that fails while a term is claimed fails the start: somebody starts the job again.
                    self._line("coordinator", f"gone: {type(conductor.error).__name__}")
                    self.report.recoveries += 1
                elif conductor.error is not None:
                    raise conductor.error
                else:
                    raise AssertionError(f"seed {self.seed}: the job gave up: {conductor.outcome}")
            self._judge(rows, windows.rows(), totals.rows())
        finally:
            faults.hook = None
            shutil.rmtree(self._folder, ignore_errors=True)
            self.report.trace, self.report.struck = self._digest.hexdigest(), self.misfortune.struck
        return self.report

    def _conductor(self, pipeline: Pipeline) -> Conductor:
        options = resolve(
            "simulated",
            {
                "storage": str(self._folder),
                "snapshot_every": "6ms" if self.patience == "never" else "25ms",
                "backoff": "5ms",
                "restarts": 50,
                "unaligned_after": self.patience,
                "keep": self.rng.choice((1, 2, 3)),
            },
            environ={},
            file=Path("no such file"),
        )
        return Conductor(
            pipeline.plan(),
            options,
            runner="simulated",
            parallelism=self.rng.choice((1, 2, 3)),
            restore="latest",
            make_attempts=lambda conductor: SimulatedJob(conductor, self),
            world=simulated_world(self.rng, self.clock, self._open_store, self._pause),
        )

    def _open_store(self, path: Any) -> Store:
        return self.store if str(path).startswith(str(self._folder)) else open_store(path)

    def _pause(self, micros: int) -> None:
        self.clock.advance(micros)
        self._count()

    def _count(self) -> None:
        self._steps += 1
        if self._steps > STEPS_MAX:
            raise Stuck(f"seed {self.seed}: not finished after {STEPS_MAX} steps")

    # Where faults strike.

    def observe(self, task: Task, event: Event) -> None:
        """A task is about to handle an event."""
        self._count()
        self._line(task.name, summary(event))
        if self.misfortune.strikes("worker-crash"):
            self._line(task.name, "crashes")
            raise ChannelError("a simulated worker crash")

    def _reached(self, point: str, epoch: int) -> None:
        if threading.get_ident() != self._thread:
            return  # some other job of this process: what it does must not change a schedule
        self._line("point", f"{point} {epoch}")
        if self.misfortune.strikes("process-crash"):
            raise Crash

    def _before_effect(self, op: str, path: str) -> None:
        self._line("storage", f"{op} {path.split('/')[0]}")
        if self.misfortune.strikes("crash-before-effect"):
            raise Crash
        if op != "delete" and self.misfortune.strikes("storage-full"):
            raise UnavailableError(f"cannot {op} {path}: ENOSPC (simulated)")

    def _after_effect(self, op: str, path: str) -> None:
        if self.misfortune.strikes("crash-after-effect"):
            raise Crash
        if op == "create" and path.startswith("log/") and self.misfortune.strikes("outcome-unknown"):
            raise OutcomeUnknown(f"{op} {path}: EIO (simulated)")

    def acked(self, conductor: Conductor, stamp: Stamp, task: Task, action: Ack | Decline) -> None:
        """A task acknowledged: remember it for later trouble, and perhaps say it twice."""
        if isinstance(action, Ack):
            self._acks.append((stamp, action.epoch, task.name, action.ack))
            if self.misfortune.strikes("double-ack"):
                conductor.post(c.Acked(stamp, action.epoch, task.name, action.ack))

    def began(self, conductor: Conductor, stamp: Stamp) -> None:
        """A new attempt: an acknowledgement of a dead one may still come in."""
        old = [entry for entry in self._acks if entry[0] != stamp]
        if old and self.misfortune.strikes("late-ack"):
            conductor.post(c.Acked(*self.rng.choice(old)))

    # The verdict.

    def _judge(self, rows: list[dict[str, Any]], windows: list[dict[str, Any]], totals: list[dict[str, Any]]) -> None:
        expected_windows, expected_totals = expected_rows(rows)
        found = [((row["k"], row["window_start"]), (row["n"], row["total"])) for row in windows]
        twice = [key for key, count in Counter(key for key, _ in found).items() if count > 1]
        assert not twice, f"seed {self.seed}: windows committed twice: {twice[:3]}"
        assert dict(found) == expected_windows, f"seed {self.seed}: windows differ: {difference(dict(found), expected_windows)}"
        last = {row["k"]: row["n"] for row in totals}
        assert last == expected_totals, f"seed {self.seed}: totals differ: {difference(last, expected_totals)}"

    def _line(self, who: str, what: str) -> None:
        line = f"{self.clock() % 10**10:>10} {who:<16} {what}"
        self._digest.update(line.encode())
        if self._keep_lines:
            self.report.lines.append(line)


class SimulatedJob(SimulatedAttempts):
    """Attempts under a simulation's eyes."""

    def __init__(self, conductor: Conductor, simulation: Simulation) -> None:
        super().__init__(conductor, simulation.rng, simulation.clock, simulation.observe)
        self._simulation = simulation

    def begin(self, stamp: Stamp, start: Any) -> None:
        """Begin, and let the past interfere."""
        super().begin(stamp, start)
        for seat in self._loop.seats if self._loop else ():
            seat.rows_max = self._simulation.rng.choice((1, 2, 3))
        self._simulation.report.replayed += bool(start.restored.in_flight)
        self._simulation.began(self._conductor, stamp)

    def _awake(self, seats: Sequence[Seat]) -> list[Seat]:
        """Under pressure, those behind an exchange seldom get a turn: what is sent to them waits."""
        if self._simulation.patience == "never" or self._simulation.pressure.random() < SLOW:
            return list(seats)
        return [seat for seat in seats if not seat.inputs]

    def tell(self, stamp: Stamp, event: Completed | Aborted) -> None:
        """Count what was published."""
        manifest = self._conductor.manifest
        self._simulation.report.unaligned += isinstance(event, Completed) and manifest is not None and bool(manifest.in_flight)
        super().tell(stamp, event)

    def _answer(self, task: Task, action: Ack | Decline) -> None:
        super()._answer(task, action)
        assert self._stamp is not None
        self._simulation.acked(self._conductor, self._stamp, task, action)


def summary(event: Event) -> str:
    """An event in a few words, the same in every run."""
    name = type(event).__name__
    message = getattr(event, "message", None)
    detail = type(message).__name__ if message is not None else ""
    epoch = getattr(message, "epoch", getattr(event, "epoch", ""))
    return f"{name} {getattr(event, 'input', '')} {detail} {epoch}".rstrip()


def difference(found: dict[Any, Any], expected: dict[Any, Any]) -> str:
    """The first few differences."""
    keys = [key for key in {**expected, **found} if found.get(key) != expected.get(key)]
    return ", ".join(f"{key}: found {found.get(key)}, expected {expected.get(key)}" for key in keys[:3])


def run_seed(seed: int) -> Report:
    """One seed, for a pool."""
    try:
        return Simulation(seed).run()
    except BaseException as error:
        raise RuntimeError(
            f"{type(error).__name__}: {error}\n  Repeat: python -m penstock.testing.simulator --seed {seed}"
        ) from None


def run_seeds(seeds: range, processes: int = 2) -> Iterator[Report]:
    """Many seeds, in the order of the seeds."""
    with multiprocessing.get_context("forkserver").Pool(processes) as pool:
        yield from pool.imap(run_seed, seeds, chunksize=8)


def summarise(reports: list[Report], seconds: float, say: Callable[[str], None] = print) -> None:
    """What all seeds did, in a few lines."""
    struck: Counter[str] = Counter()
    for report in reports:
        struck += report.struck
    unaligned, replayed = (sum(getattr(report, name) for report in reports) for name in ("unaligned", "replayed"))
    rich = sum(report.epochs >= 3 and report.recoveries >= 1 for report in reports)
    digest = hashlib.sha256("".join(report.trace for report in reports).encode()).hexdigest()[:16]
    say(
        f"{len(reports)} schedules in {seconds:.0f} s; 3 epochs and a recovery in {100 * rich / len(reports):.0f}%; traces {digest}"
    )
    say(f"  {unaligned} checkpoints with rows in flight; {replayed} attempts went on from one")
    for kind in FAULTS:
        say(f"  {kind:<20} {struck[kind]}")


def main(arguments: list[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description="Simulate a job under faults.")
    parser.add_argument("--seeds", type=int, default=200, help="how many seeds, from --first")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, help="one seed, with one line per event")
    options = parser.parse_args(arguments)
    if options.seed is not None:
        simulation = Simulation(options.seed, keep_lines=True)
        try:
            simulation.run()
        finally:
            print("\n".join(simulation.report.lines))
        print(f"seed {options.seed}: exactly once; {dict(simulation.report.struck)}")
        return 0
    began = time.monotonic()
    reports = []
    for report in run_seeds(range(options.first, options.first + options.seeds)):
        reports.append(report)
        if len(reports) % 200 == 0:
            print(f"{len(reports)} schedules, all exactly once", file=sys.stderr)
    summarise(reports, time.monotonic() - began)
    return 0


if __name__ == "__main__":
    sys.exit(main())
