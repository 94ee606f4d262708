"""The peer Bytewax: a dataflow in Python (`bytewaxflow.py`), one function call per event, in two processes.

The clock runs from the first line that is read, so the start of its processes is not counted, to the last result. Its progress is
what was read, not what is safe: Bytewax runs here without recovery, which only makes it faster.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from pathlib import Path

from benchmarks import install, processes
from benchmarks.measure import Run, difference
from benchmarks.workload import WINDOW_US, Counts, Input, expected, write_ads

PROCESSES = 2
WAITS_S = (20, 40, 1_000)
SECONDS_MAX = 300


def run(events: Input) -> Run:
    """Count the events in files. A run that lost some, because one process was far ahead of the other, is repeated with more patience:
    with the last of `WAITS_S` no row is late."""
    for wait_s in WAITS_S:
        found = run_once(events, wait_s)
        if found.verified:
            break
    return found


def run_once(events: Input, wait_s: int) -> Run:
    """Count the events in files, with windows that wait so many seconds of event time."""
    python = install.bytewax()
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as scratch:
        out, ads = Path(scratch), Path(scratch, "ads.csv")
        write_ads(ads)
        flow = Path(__file__).parent / "bytewaxflow.py"
        where = {"BENCHMARK_FOLDER": str(events.folder), "BENCHMARK_OUT": scratch, "BENCHMARK_ADS": str(ads)}
        environment = {**os.environ, **where, "BENCHMARK_WAIT_S": str(wait_s), "PYTHONPATH": str(flow.parent)}
        command = [str(python), "-m", "bytewax.testing", "bytewaxflow:flow", "-p", str(PROCESSES), "-w", "1"]
        used = processes.run_to_its_end("Bytewax", command, SECONDS_MAX, env=environment, cwd=scratch)
        counts, ended = results(out)
        problem = difference(counts, expected(events.rows))
        return Run(events.rows, progress(out, ended, events.rows), not problem, problem, used.memory, used.cpu_s)


def results(out: Path) -> tuple[Counts, float]:
    """What the dataflow counted, and when its last result came."""
    counts: Counts = Counter()
    ended = 0.0
    for file in out.glob("result-*"):
        for line in file.read_text().splitlines():
            at, campaign, window, views = line.split()
            counts[campaign, int(window) * WINDOW_US] += int(views)
            ended = max(ended, float(at))
    return counts, ended


def progress(out: Path, ended: float, rows: int) -> list[tuple[float, int]]:
    """(seconds since the first line was read, lines read) of all partitions together."""
    marks: list[tuple[float, int, str]] = []
    for file in out.glob("progress-*"):
        for line in file.read_text().splitlines():
            at, read = line.split()
            marks.append((float(at), int(read), file.name))
    marks.sort()
    began = marks[0][0]
    done: dict[str, int] = {}
    found = []
    for when, lines, partition in marks:
        done[partition] = lines
        found.append((when - began, sum(done.values())))
    return [*found, (ended - began, rows)]
