"""What processes use: memory and processor time of one and all that come of it.

1. **Memory** is the most that all of them had at one moment. Counted is what belongs to the processes: anonymous and shared memory
   (`RssAnon + RssShmem`). Mapped files are not: libraries, Java archives, and the input of the case that reads from memory. Memory
   that forked processes share is counted for each of them: Python's workers are, if anything, made to look larger. But when Java
   starts a program (Spark has `chmod` run for every batch), that process has all of Java's memory as its own for a moment: it is not
   counted, or Java would count twice.
2. **Processor time** is of all their threads. Other work on the machine changes it much less than the time on the clock.
3. For Penstock and Structured Streaming these are the driver's Python, its Java, and all workers; for Flink the one Java process; for
   Bytewax its two processes.
"""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

EVERY_S = 0.2
LOOKS = 5  # so many times the same processes are looked at: to find out who is there takes milliseconds
COUNTED = ("RssAnon:", "RssShmem:")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class Used:
    """So far: the most memory in bytes, and processor time in seconds."""

    memory: int = 0
    before: dict[int, float] = field(default_factory=dict)
    seconds: dict[int, float] = field(default_factory=dict)
    members: list[int] = field(default_factory=list)
    looks: int = 0

    @property
    def cpu_s(self) -> float:
        """Since the watching began."""
        return sum(self.seconds.values()) - sum(self.before.values())

    def look(self, process: int) -> None:
        """Look at the process and its family once."""
        if self.looks % LOOKS == 0:
            self.members = family(process)
        self.looks += 1
        self.memory = max(self.memory, sum(map(memory_of, self.members)))
        for member in self.members:
            self.seconds[member] = max(cpu_of(member), self.seconds.get(member, 0.0))


@contextmanager
def watched(process: int) -> Iterator[Used]:
    """Watch a process and all that come of it while the block runs."""
    used = Used()
    used.look(process)
    used.before = dict(used.seconds)
    with looking(lambda: used.look(process), EVERY_S):
        yield used


@contextmanager
def looking(look: Callable[[], None], every_s: float) -> Iterator[None]:
    """Look again and again while the block runs, in a thread of its own, and once more when it is over."""
    over = threading.Event()

    def watch() -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)  # of this thread: it must not push aside what it watches
        while not over.wait(every_s):
            look()

    thread = threading.Thread(target=watch, daemon=True, name="watch")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        look()


def run_to_its_end(what: str, command: Sequence[str], seconds_max: float, **options: Any) -> Used:
    """Run a command, and tell what it used. It is killed if it takes longer; `options` are those of `subprocess.Popen`."""
    with subprocess.Popen(command, **options) as job:
        try:
            with watched(job.pid) as used:
                code = job.wait(seconds_max)
        finally:
            job.kill()
    if code:
        raise RuntimeError(f"{what} failed with {code}: see above")
    return used


def memory_of(process: int) -> int:
    """Bytes of one process; none if it is gone."""
    return sum(int(line.split()[1]) * 1024 for line in text_of(process, "status").splitlines() if line.startswith(COUNTED))


def cpu_of(process: int) -> float:
    """Processor seconds of one process; none if it is gone."""
    words = text_of(process, "stat").rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / TICKS_PER_S if words else 0.0


def cpu_of_all(members: Sequence[int]) -> float:
    """Processor seconds of processes and of those that they have started and seen end: nothing is lost with a process that is gone."""
    words = [text_of(member, "stat").rpartition(")")[2].split() for member in members]
    return sum(sum(map(int, each[11:15])) for each in words if each) / TICKS_PER_S


def family(process: int) -> list[int]:
    """The process, its children, their children, and so on; but for those that Java has not finished starting."""
    found, todo = [], [process]
    while todo:
        parent = todo.pop()
        found.append(parent)
        try:
            tasks = os.listdir(f"/proc/{parent}/task")
        except FileNotFoundError:
            continue
        for task in tasks:
            children = map(int, text_of(parent, f"task/{task}/children").split())
            todo += [child for child in children if not starting(child, parent)]
    return found


def starting(child: int, parent: int) -> bool:
    """Whether a child of Java is still Java itself: it shares its parent's memory until it becomes the program that was asked for."""
    program = text_of(child, "cmdline")
    return Path(program.partition("\0")[0]).name == "java" and program == text_of(parent, "cmdline")


def text_of(process: int, name: str) -> str:
    """What the system says of a process; nothing if it is gone."""
    try:
        return Path(f"/proc/{process}/{name}").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
