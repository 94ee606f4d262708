"""A continuous job loses its workers, and soon after that Spark's Java process, while Spark tells of the first loss.

    python jvm_dies_after_a_failed_attempt.py 0.35       # seconds between the two

The job must end with an outcome that names the Java process. (It stayed in "starting" for ever: the thread that was about to report the
failed attempt asked Java for the words of its error, and ended with another error that nobody heard.)
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import penstock as pen
from penstock import sinks, sources

WITHIN_S = 60.0


def make(index: int, seed: int) -> dict[str, int]:
    return {"id": index, "v": index % 10}


def job(folder: Path) -> None:
    """The job, in a process of its own. Each new state is a line."""
    pipeline = pen.Pipeline("orphan")
    rows = pipeline.read(sources.generate(make, schema="id bigint, v bigint", rate=200, splits=2))
    rows.key_by("v").aggregate(n=pen.count(), name="c").write(sinks.files(folder / "out", format="json", change="c"))
    running = pipeline.start(pen.Continuous(parallelism=2, storage=folder / "store", snapshot_every="1s"))
    said = ""
    while not running.done:
        status = running.status()
        if (now := f"{status.state} {status.epoch}") != said:
            said = now
            print(now, flush=True)
        time.sleep(0.05)
    status = running.status()
    print(f"ended: {status.state}: {status.error}", flush=True)


def children(process: int) -> list[int]:
    found: list[int] = []
    for file in Path(f"/proc/{process}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += [int(pid) for pid in file.read_text().split()]
    return found


def named(processes: list[int], text: str) -> list[int]:
    found = []
    for process in processes:
        with contextlib.suppress(OSError):
            if text in Path(f"/proc/{process}/cmdline").read_text():
                found.append(process)
    return found


def kill(*processes: int) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def main(delay_s: float) -> None:
    child = subprocess.Popen([sys.executable, __file__, "job"], stdout=subprocess.PIPE, text=True)
    lines: list[str] = []

    def listen() -> None:
        assert child.stdout is not None
        for line in child.stdout:
            lines.append(line.rstrip())

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    while "running 3" not in lines:
        time.sleep(0.02)
    (java,) = named(children(child.pid), "java")
    (daemon,) = named(children(java), "daemon")
    kill(children(daemon)[0], daemon)
    until = time.monotonic() + 20
    while time.monotonic() < until and not (new := [pid for pid in named(children(java), "daemon") if pid != daemon]):
        time.sleep(0.002)
    kill(*new)  # the second attempt fails as well
    time.sleep(delay_s)
    kill(java)
    since = time.monotonic()
    while child.poll() is None and time.monotonic() - since < WITHIN_S:
        time.sleep(0.05)
    if child.poll() is None:
        kill(child.pid)
        print(f"no outcome within {WITHIN_S:.0f} s after {lines[-1]!r}")
        return
    listener.join()
    print(*lines[next(number for number, line in enumerate(lines) if line.startswith("ended")) :], sep="\n")


if __name__ == "__main__":
    if sys.argv[1] == "job":
        job(Path.cwd())
    else:
        main(float(sys.argv[1]))
