"""Runs one job through its faults: start, kill, wait for a new epoch, go on; then let the input end and look at what is there.

What counts as recovered: an epoch published by a later attempt or term than the one that was hit; or, where Spark repeats a lost
task by itself, two more epochs of the same attempt (the first may have been complete when the signal came).

Rows replayed by a kill: rows read between the kill and that epoch which somebody had read before the kill (`reads`).
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from soak import inventory, oracle
from soak.driver import NAME, RATE, RAW_EVERY, TALLY_S
from soak.life import GONE_S, Life, SoakError, wait_for
from soak.plan import RANDOM, RESTORE, JobPlan, Step
from soak.reads import Reads
from soak.source import SPLITS

RECOVER_S = 180.0
TAKEN_S = 90.0
RESTORE_S = 15.0  # from a worker's death to the next attempt's first step
BUSY_S = 0.1  # who has read within this time is at work


@dataclass(slots=True)
class Kill:
    """One delivered signal, and what came of it: a line of the log."""

    at: float
    job: str
    runner: str
    master: str
    kind: str
    pid: int
    point: str
    epoch: int
    before: str  # term/attempt
    after: str = ""
    recovered_s: float = -1.0
    replayed: int = 0
    note: str = ""

    def line(self) -> str:
        """For people."""
        when = time.strftime("%H:%M:%S", time.localtime(self.at))
        return (
            f"{when} {self.runner:<10} {self.master:<23} {self.kind:<13} pid {self.pid:<7} {self.point:<15} epoch {self.epoch:<5} "
            f"{self.before:>6} -> {self.after:<6} {self.recovered_s:6.2f} s  replayed {self.replayed:<5} {self.note}"
        ).rstrip()


@dataclass(slots=True)
class Result:
    """What became of a job."""

    plan: JobPlan
    kills: list[Kill] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)  # empty: exactly once
    left: list[str] = field(default_factory=list)  # what should have been removed. Empty: nothing of ours was left
    sparks: list[str] = field(default_factory=list)  # what Spark left: no fault of ours, and no secret either
    rows: int = 0
    read: int = 0
    took_s: float = 0.0


class Harness:
    """One job. `run` never raises for what the job did wrong: that is in the result."""

    def __init__(self, plan: JobPlan, folder: Path, rng: random.Random, token: str, log: Path, code: Path) -> None:
        self._plan, self._folder, self._rng, self._token, self._log, self._code = plan, folder, rng, token, log, code
        self._seed = rng.randrange(1 << 16)
        self._result = Result(plan)
        self._lives: list[Life] = []
        (folder / "reads").mkdir(parents=True)
        self._reads = Reads(folder / "reads")
        self._fault = folder / "fault"
        self._since = 0.0  # the last recovery: strays of earlier attempts have ended, and what is read is read by one attempt

    def run(self) -> Result:
        """The whole life of the job."""
        began = time.monotonic()
        try:
            self._start()
            for step in self._plan.steps:
                self._take(step)
            self._finish()
        except SoakError as error:
            self._result.wrong.append(f"{error}; driver: {self._life.words()}" if self._lives else str(error))
        finally:
            for life in self._lives:
                self._put_down(life)
        self._result.took_s = time.monotonic() - began
        return self._result

    @property
    def _life(self) -> Life:
        return self._lives[-1]

    def _start(self) -> Life:
        life = Life(self._plan, self._folder, len(self._lives), self._seed, self._token, self._code)
        self._lives.append(life)
        self._reads.drivers.add(life.pid)
        life.await_epochs()
        return life

    def _put_down(self, life: Life) -> None:
        """Make an end, whatever state it is in."""
        for each in life.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(each.pid, signal.SIGKILL)
        life.process.wait(GONE_S)
        shutil.rmtree(life.tmp, ignore_errors=True)

    def _bury(self, life: Life, when: str, *, killed: bool) -> None:
        """A life has ended: note what it left."""
        found = life.bury(killed=killed)
        self._result.left += [f"{when}: {what}" for what in found.ours]
        self._result.sparks += [f"{when}: {what}" for what in found.sparks]

    # Steps.

    def _take(self, step: Step) -> None:
        time.sleep(self._rng.uniform(0.1, 0.6))
        match step:
            case Step("worker" | "driver", point) if point == RESTORE:
                self._in_restore(step)
            case Step("worker", point):
                self._recover(self._kill_worker() if point == RANDOM else self._at_point(step))
            case Step("executor"):
                self._recover(self._kill_executor())
            case Step("driver", point):
                kill = self._kill_driver() if point == RANDOM else self._at_point(step)
                self._restart(kill)
            case Step("zombie"):
                self._zombie_worker()
            case Step("zombie driver"):
                self._zombie_driver()
            case _:
                raise AssertionError(f"{step} is no step")

    def _kill_worker(self) -> Kill:
        pid = self._busy_worker()
        kill = self._note("worker", pid)
        os.kill(pid, signal.SIGKILL)
        return kill

    def _busy_worker(self) -> int:
        """A Python worker that is reading rows right now."""

        def busy() -> list[int]:
            readers = self._reads.readers(time.time() - BUSY_S)
            alive = {each.pid for each in inventory.workers(self._life.processes())} if readers else set()
            return sorted(readers & alive)

        return self._rng.choice(wait_for(busy, TAKEN_S, "a worker at work"))

    def _kill_executor(self) -> Kill:
        """Of the executor whose worker is reading rows."""

        def busy() -> int | None:
            worker = inventory.process(self._busy_worker())
            daemon = inventory.process(worker.parent) if worker else None
            executor = inventory.process(daemon.parent) if daemon else None
            return executor.pid if executor and executor.kind == "executor" else None

        kill = self._note("executor", wait_for(busy, TAKEN_S, "an executor at work"))
        os.kill(kill.pid, signal.SIGKILL)
        self._life.hurt = True
        return kill

    def _kill_driver(self) -> Kill:
        self._busy_worker()
        kill = self._note("driver", self._life.pid)
        self._life.kill()
        return kill

    def _plan_fault(self, point: str) -> None:
        """Leave the order for whoever reaches the point next, in a later epoch than now."""
        wanted = {"point": point, "epoch": 0 if point == RESTORE else self._life.last["epoch"] + 2, "signal": "KILL"}
        Path(f"{self._fault}.new").write_text(json.dumps(wanted))
        os.rename(f"{self._fault}.new", self._fault)

    def _is_taken(self, within_s: float) -> bool:
        until = time.monotonic() + within_s
        while not (taken := Path(f"{self._fault}.taken").exists()) and time.monotonic() < until:
            time.sleep(0.01)
        return taken

    def _taken(self, kind: str, point: str) -> Kill:
        """Wait until somebody has followed the order."""
        taken = Path(f"{self._fault}.taken")
        wait_for(taken.exists, TAKEN_S, f"somebody at {point}")
        by = json.loads(taken.read_text())
        taken.unlink()
        kill = self._note(kind, by["pid"], point)
        kill.at, kill.epoch = by["at"], by["epoch"]
        kill.before = self._attempt_at(by["at"])
        return kill

    def _at_point(self, step: Step) -> Kill:
        self._plan_fault(step.point)
        return self._taken(step.kind, step.point)

    def _in_restore(self, step: Step) -> None:
        """A worker is lost, and on the way back another one, or the driver."""
        self._plan_fault(RESTORE)
        first = self._kill_worker()
        while not self._is_taken(RESTORE_S):
            self._recover(first)  # it had just finished its task, and nobody had to restore anything
            first = self._kill_worker()
        second = self._taken(step.kind, RESTORE)
        if step.kind == "driver":
            self._restart(first, second)
        else:
            self._recover(first, second)

    def _restart(self, *kills: Kill) -> None:
        """The driver is dead; see its JVM dead too, and start again."""
        self._life.kill()
        self._bury(self._life, f"after driver {self._life.pid} was killed", killed=True)
        self._start()
        self._recover(*kills)

    def _zombie_worker(self) -> None:
        pid = self._busy_worker()
        born = inventory.process(pid)
        kill = self._note("zombie", pid)
        os.kill(pid, signal.SIGSTOP)
        self._await_recovery(kill)
        now = inventory.process(pid)
        woken = now is not None and now.born == (born and born.born)
        if woken:
            os.kill(pid, signal.SIGCONT)
        kill.note = "woken" if woken else "ended by Spark while it was stopped"
        if woken and self._plan.runner == "continuous":  # its driver is gone for it; a worker of micro-batches may be used again
            wait_for(lambda: inventory.process(pid) is None, GONE_S, f"the end of zombie {pid}")
            kill.note = "woken, and ended itself"
        self._unharmed(kill)

    def _zombie_driver(self) -> None:
        """A driver stops, and its lock is lost as if it were on another machine; a second one takes over; the first wakes."""
        old = self._life
        kill = self._note("zombie driver", old.pid)
        os.kill(old.pid, signal.SIGSTOP)
        lock = self._folder / "store" / NAME / "lock"
        os.rename(lock, f"{lock}.lost")
        self._start()
        self._await_recovery(kill)
        os.kill(old.pid, signal.SIGCONT)
        wait_for(lambda: not old.alive(), 2 * GONE_S, f"the end of zombie driver {old.pid}")
        kill.note = f"woken, and ended as {old.last['state']}"
        if old.last["state"] == "finished" or old.process.returncode == 0:
            self._result.wrong.append(f"zombie driver {old.pid} says it finished")
        self._bury(old, f"after zombie driver {old.pid}", killed=False)
        os.unlink(f"{lock}.lost")
        self._unharmed(kill)

    def _unharmed(self, kill: Kill) -> None:
        """A zombie has woken: the attempt that took over must go on as if nothing were."""
        self._await_more(2)
        now = f"{self._life.last['term']}/{self._life.last['attempt']}"
        if now != kill.after:
            self._result.wrong.append(f"{kill.kind} {kill.pid} did harm when it woke: {kill.after} became {now}")
        self._tell(kill)

    # Recovery.

    def _note(self, kind: str, pid: int, point: str = RANDOM) -> Kill:
        last, plan = self._life.last, self._plan
        before = f"{last['term']}/{last['attempt']}"
        return Kill(time.time(), plan.name, plan.runner, plan.master, kind, pid, point, last["epoch"], before)

    def _attempt_at(self, at: float) -> str:
        known = [line for line in self._life.lines if line["at"] <= at] or [self._life.last]
        return f"{known[-1]['term']}/{known[-1]['attempt']}"

    def _recover(self, *kills: Kill) -> None:
        for kill in kills:
            self._await_recovery(kill)
        for kill in kills:
            self._tell(kill)

    def _await_recovery(self, kill: Kill) -> None:
        line = wait_for(lambda: self._recovery(kill), RECOVER_S, f"a new epoch after {kill.kind} {kill.pid} ({kill.point})")
        kill.after, kill.recovered_s = f"{line['term']}/{line['attempt']}", line["at"] - kill.at
        kill.replayed = self._reads.replayed(kill.at, line["at"], self._since)

    def _recovery(self, kill: Kill) -> dict[str, Any] | None:
        """The status line that shows the first epoch published after a kill, if there is one."""
        life = self._life
        if not life.alive():
            raise SoakError(f"driver {life.pid} ended with {life.process.returncode} after {kill.kind} {kill.pid}")
        term, attempt = (int(part) for part in kill.before.split("/"))
        began: dict[tuple[int, int], int] = {}  # attempt -> the epoch it started from
        for line in list(life.lines):
            now = (line["term"], line["attempt"])
            start = began.setdefault(now, line["epoch"])
            if line["at"] > kill.at and now > (term, attempt) and line["epoch"] > start:
                return line
            if line["at"] > kill.at and now == (term, attempt) and line["epoch"] >= kill.epoch + 2:
                return line
        return None

    def _await_more(self, epochs: int) -> None:
        wanted = self._life.last["epoch"] + epochs
        wait_for(lambda: self._life.last["epoch"] >= wanted, RECOVER_S, f"epoch {wanted}")

    def _tell(self, kill: Kill) -> None:
        self._result.kills.append(kill)
        self._since = time.time()
        print(kill.line(), flush=True)
        with open(self._log, "a") as log:
            log.write(json.dumps(asdict(kill)) + "\n")

    # The end.

    def _finish(self) -> None:
        """Let the input end, and compare."""
        self._fault.unlink(missing_ok=True)
        life, result = self._life, self._result
        wait_for(lambda: self._reads.all_read(self._since), RECOVER_S, "rows of every split")
        result.rows = self._reads.rows(self._since) + int(RATE) + self._rng.randrange(SPLITS)
        (self._folder / "end.new").write_text(str(result.rows))
        os.rename(self._folder / "end.new", self._folder / "end")
        wait_for(lambda: not life.alive(), RECOVER_S, "the end of the job")
        if life.process.returncode != 0 or life.last["state"] != "finished":
            raise SoakError(f"the job ended with {life.process.returncode}")
        self._bury(life, "after the end", killed=life.hurt)
        self._reads.look()
        result.read = sum(note.rows for note in self._reads.notes)
        out = self._folder / "out"
        result.wrong += oracle.check(out, result.rows, self._seed, RAW_EVERY, TALLY_S * 1_000_000)
        job_dir = self._folder / "store" / NAME
        result.left += [
            f"unreferenced: {path}" for path in inventory.unreferenced(job_dir, [out / "counts", out / "totals", out / "raw"])
        ]
