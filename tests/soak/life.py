"""One life of a driver: the process, what it says, its JVM, and a temporary folder of its own. A job may need several."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from soak import inventory
from soak.plan import JobPlan

TESTS = Path(__file__).parents[1]
START_S = 240.0  # a JVM on a busy machine takes its time
GONE_S = 20.0
TIDY_S = 3.0  # for files, once all processes are gone


@dataclass(frozen=True, slots=True)
class Left:
    """What a driver left behind, by whose it is: ours is wrong, Spark's is told."""

    ours: list[str]
    sparks: list[str]


class SoakError(Exception):
    """Something did not happen in time, or should not have happened."""


def wait_for(true: Callable[[], Any], within_s: float, what: str) -> Any:
    """The first answer that is not false; SoakError saying what was waited for if there is none in time."""
    until = time.monotonic() + within_s
    while not (answer := true()):
        if time.monotonic() > until:
            raise SoakError(f"{what}: not within {within_s:.0f} s")
        time.sleep(0.01)
    return answer


def copy_code(folder: Path) -> Path:
    """The code under test as it is now: what is edited while a soak runs must not reach half of its processes."""
    for package in (TESTS.parent / "src" / "penstock", TESTS / "soak"):
        shutil.copytree(package, folder / package.name, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def spark_home(folder: Path) -> Path:
    """Spark's own folder by links, so that what executors leave beside the program (`work`) is left here."""
    import pyspark

    home = folder / "home"
    home.mkdir()
    for entry in Path(pyspark.__file__).parent.iterdir():
        if entry.name != "work":
            (home / entry.name).symlink_to(entry)
    return home


class Life:
    """A driver process, started now."""

    def __init__(self, plan: JobPlan, folder: Path, number: int, seed: int, token: str, code: Path) -> None:
        self.number, self.token = number, f"{token}-{number}"
        self.tmp = folder / f"tmp-{number}"
        self.tmp.mkdir()
        self.lines: list[dict[str, Any]] = []
        self.ports: set[tuple[str, int]] = set()
        self.hurt = False  # whether an executor was killed: its files stay
        command = [sys.executable, "-m", "soak.driver", "--folder", str(folder), "--runner", plan.runner, "--master", plan.master]
        command += ["--seed", str(seed)]
        for key, value in plan.conf.items():
            command += ["--conf", f"{key}={value}"]
        if plan.runner == "microbatch" and plan.master.startswith("local["):
            command += ["--epoch-timeout", "8"]
        environment = {
            **os.environ,
            "PYTHONPATH": str(code),
            "TMPDIR": str(self.tmp),
            "SPARK_HOME": str(spark_home(self.tmp)),
            "PENSTOCK_FAULT_FILE": str(folder / "fault"),
            inventory.TOKEN: self.token,
        }
        self.errors = folder / f"driver-{number}.err"
        with open(self.errors, "wb") as errors:
            self.process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=errors, cwd=self.tmp.parent)
        self.pid = self.process.pid
        self._jvm: int | None = None
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            try:
                self.lines.append(json.loads(line))
            except ValueError:
                continue  # something else printed

    @property
    def last(self) -> dict[str, Any]:
        """How the job was when it last said so."""
        return (
            self.lines[-1] if self.lines else {"state": "starting", "epoch": 0, "term": 0, "attempt": 0, "at": 0.0, "error": None}
        )

    def alive(self) -> bool:
        """Whether the driver is there."""
        return self.process.poll() is None

    def processes(self) -> list[inventory.Process]:
        """Everything this life has started and that still lives, itself included."""
        return inventory.processes(self.token)

    def await_epochs(self, count: int = 1) -> None:
        """Until the job has published so many epochs in this life."""
        wait_for(lambda: self.last.get("published", 0) >= count or self._dead(), START_S, f"epoch {count} of driver {self.pid}")
        found = self.processes()
        jvm = inventory.jvm_of(found, self.pid)
        self._jvm = jvm.pid if jvm else None
        self.ports |= inventory.listening({each.pid for each in found})

    def _dead(self) -> bool:
        if not self.alive():
            raise SoakError(f"driver {self.pid} ended with {self.process.returncode}: {self.words()}")
        return False

    def words(self) -> str:
        """Its last words."""
        text = self.errors.read_text(errors="replace").strip().splitlines()
        return f"{self.last}; " + " | ".join(text[-3:])

    def kill(self) -> None:
        """SIGKILL to the driver and its JVM, at once."""
        for pid in (self.pid, self._jvm):
            if pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self.process.wait(GONE_S)
        self._reader.join(GONE_S)

    def bury(self, *, killed: bool) -> Left:
        """Wait until nothing of it lives; what was left behind, by name. Leftovers are ended and removed: each is told once."""
        left: list[str] = []
        try:
            wait_for(lambda: not self.processes(), GONE_S, "all processes gone")
        except SoakError:
            for each in self.processes():
                left.append(f"process {each.pid} ({each.kind}): {each.command[:80]}")
                with contextlib.suppress(ProcessLookupError):
                    os.kill(each.pid, signal.SIGKILL)
        open_now = {(address, port) for address, port, _ in inventory.listeners()}
        if left:
            left += [f"port {port} still listens on {address}" for address, port in sorted(self.ports & open_now)]
        names = self._temporary(killed)
        sparks = [name for name in names if inventory.is_sparks_socket(self.tmp / name)]
        left += [f"temporary {name}" for name in names if name not in sparks]
        left += inventory.named_after({self.pid, self._jvm or self.pid})
        shutil.rmtree(self.tmp, ignore_errors=True)
        return Left(left, [f"temporary {name}" for name in sparks])

    def _temporary(self, killed: bool) -> list[str]:
        """What stays in the temporary folder: whoever removes it may have another name than ours in its environment, or none."""
        with contextlib.suppress(SoakError):
            wait_for(lambda: not inventory.temporary(self.tmp, killed=killed), TIDY_S, "an empty temporary folder")
        return inventory.temporary(self.tmp, killed=killed)
