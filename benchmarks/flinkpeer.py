"""The peer Flink: a Java job on the DataStream API (`benchmarks/flink/`), in the best configuration that is still honest.

One Java process with a cluster in it, two slots, object reuse, heap state, exactly-once checkpoints as often as Penstock's. The
process is warmed up by a smaller input on the same cluster. The clock runs from the submission of the job, so neither Java's start
nor the cluster's is counted, and it ends when the last result reaches the sink: Flink need not wait for its last checkpoint.

`flink` is written as one writes it: keyed windows with an aggregate function. `flink-two-phase` counts in front of the exchange
too, by an operator of its own (`LocalCounts.java`), as Flink SQL would.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks import install, processes
from benchmarks.measure import Run, difference
from benchmarks.workload import Counts, Input, expected, write_ads

SYSTEMS = {"flink": "one", "flink-two-phase": "two"}
HEAP = ("-Xms2g", "-Xmx2g", "-XX:+UseParallelGC")
OPENED = ("util", "lang", "nio", "util.concurrent")
SECONDS_MAX = 500


def run(
    system: str, case: str, events: Input, warm_up: Input, *, runs: int, snapshot_every: str, parallelism: int = 2
) -> list[Run]:
    """Count events that are `generated`, or JSON lines from `memory` or `files`."""
    words = {"case": case, "phases": SYSTEMS[system], "runs": runs, "snapshot_every": snapshot_every, "buffer_timeout": "100ms"}
    words |= {"rows": events.rows, "folder": events.folder, "warm_rows": warm_up.rows, "warm_folder": warm_up.folder}
    found, peak = java({**words, "parallelism": parallelism})
    return [as_run(each, events.rows, peak) for each in found["runs"]]


def as_run(said: dict[str, Any], rows: int, memory: int) -> Run:
    """What the job said of a run."""
    counts: Counts = Counter({(campaign, start): views for campaign, start, views in said["counts"]})
    problem = difference(counts, expected(rows))
    return Run(rows, commits_of(said["commits"], said["ended"], rows), not problem, problem, memory, said["cpu_s"])


def commits_of(checkpoints: list[list[float]], ended: float, rows: int) -> list[tuple[float, int]]:
    """Complete checkpoints as commits; the last result stands for the last one, however long that takes."""
    return [(at, int(covered)) for at, covered in checkpoints if at < ended] + [(ended, rows)]


def latency(rate: int, seconds: float, warm_s: float) -> dict[str, Any]:
    """A running count per key; how late each row was counted."""
    rows = int(rate * seconds) // 2 * 2
    words = {"case": "latency", "rate": rate, "rows": rows, "warm_s": warm_s, "snapshot_every": "1s", "buffer_timeout": "0ms"}
    found, peak = java({**words, "parallelism": 2})
    (said,) = found["runs"]
    counted = said.pop("counted")
    note = "" if counted == rows else f"{counted} rows were counted instead of {rows}"
    return {"rate": rate, "seconds": seconds, "verified": not note, "note": note, "memory": peak, **said}


def java(words: dict[str, Any], seconds_max: float = SECONDS_MAX) -> tuple[dict[str, Any], int]:
    """Run the job; what it wrote down, and the most memory it had."""
    classes = install.flink()
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as scratch:
        ads = Path(scratch, "ads.csv")
        write_ads(ads)
        out = Path(scratch, "out.json")
        words = {**words, "ads": ads, "scratch": scratch, "out": out}
        opened = [f"--add-opens=java.base/java.{package}=ALL-UNNAMED" for package in OPENED]
        command = ["java", *HEAP, *opened, "-Dlog4j2.configurationFile=log4j2.properties", "-cp", classes, "Main"]
        command += [f"{name}={value}" for name, value in words.items()]
        environment = {**os.environ, "TZ": "UTC"}
        used = processes.run_to_its_end("Flink's job", command, seconds_max, stdout=subprocess.DEVNULL, env=environment)
        return json.loads(out.read_text()), used.memory
