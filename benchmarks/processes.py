"""How much memory processes have: a system's peak is the most that all its processes had at one moment.

1. Counted is what belongs to the processes: anonymous and shared memory (`RssAnon + RssShmem`). Mapped files are not: libraries,
   Java archives, and the input of the case that reads from memory.
2. Memory that forked processes share is counted for each of them: Python's workers are, if anything, made to look larger.
3. For Penstock and Structured Streaming it is the driver's Python, its Java, and all workers; for Flink the one Java process;
   for Bytewax its two processes.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

EVERY_S = 0.2
COUNTED = ("RssAnon:", "RssShmem:")


@dataclass(slots=True)
class Peak:
    """The most so far, in bytes."""

    bytes: int = 0


@contextmanager
def watched(process: int) -> Iterator[Peak]:
    """Watch a process and all that come of it while the block runs."""
    peak, over = Peak(), threading.Event()

    def watch() -> None:
        while True:
            peak.bytes = max(peak.bytes, sum(map(memory_of, family(process))))
            if over.wait(EVERY_S):
                return

    thread = threading.Thread(target=watch, daemon=True, name="memory")
    thread.start()
    try:
        yield peak
    finally:
        over.set()
        thread.join()


def memory_of(process: int) -> int:
    """Bytes of one process; none if it is gone."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(COUNTED))


def family(process: int) -> list[int]:
    """The process, its children, their children, and so on."""
    found, todo = [], [process]
    while todo:
        parent = todo.pop()
        found.append(parent)
        try:
            for task in Path(f"/proc/{parent}/task").iterdir():
                todo += map(int, (task / "children").read_text().split())
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found
