"""The process that writes files of JSON lines while a job watches their folder: `python -m benchmarks.loadfeed FOLDER RATE SECONDS`.

Ten times a second a file appears in `FOLDER/in`, complete, with the lines that became due since the one before it; none if there are
none. The first moment is the start of the schedule. In the end `FOLDER/fed` says how many lines there were. It is a process of its own,
so that what it costs is not counted as the job's.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.loadjobs import line
from benchmarks.loadsource import US, Schedule, begin

EVERY_S = 0.1
WAIT_S = 60.0
ROOT = Path(__file__).parent.parent


def command(folder: Path, schedule: Schedule) -> list[str]:
    """Its command line; run it in `ROOT`."""
    return [sys.executable, "-m", "benchmarks.loadfeed", str(folder), str(schedule.rate), str(schedule.whole_s)]


@contextlib.contextmanager
def feeding(folder: Path, schedule: Schedule) -> Iterator[int]:
    """Feeds a folder while the block runs; the id of the process."""
    with subprocess.Popen(command(folder, schedule), cwd=ROOT) as feeder:
        try:
            yield feeder.pid
        finally:
            feeder.kill()


def fed(folder: Path) -> int:
    """How many lines there are, once all are there."""
    until = time.monotonic() + WAIT_S
    while not (folder / "fed").exists():
        if time.monotonic() > until:
            raise TimeoutError(f"{folder}: not fed within {WAIT_S:.0f} s")
        time.sleep(EVERY_S)
    return int((folder / "fed").read_text())


def feed(folder: Path, schedule: Schedule) -> None:
    """Write files until the schedule is over."""
    (folder / "in").mkdir(exist_ok=True)
    start_us = begin(folder)
    written, moment = 0, 0
    while (moment + 1) * EVERY_S <= schedule.whole_s:
        moment += 1
        time.sleep(max(0.0, start_us / US + moment * EVERY_S - time.time()))
        due = schedule.due(moment * EVERY_S)
        if due > written:
            new = folder / "in" / f".{moment:06d}.json"
            new.write_text("".join(map(line, range(written, due))))
            new.rename(new.with_name(f"{moment:06d}.json"))
        written = due
    (folder / ".fed").write_text(str(written))
    (folder / ".fed").rename(folder / "fed")


if __name__ == "__main__":
    feed(Path(sys.argv[1]), Schedule(float(sys.argv[2]), 0.0, float(sys.argv[3])))
