"""Results as words: one line while running, and the document with its tables."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
NAMES = {
    "continuous": "Penstock Continuous",
    "microbatch": "Penstock MicroBatch",
    "structured-streaming": "Structured Streaming",
}
TITLES = {
    "generated": "Ad counts, generated rows",
    "files": "Ad counts, JSON files",
}
PEER = "structured-streaming"
BUSY = 1.0

INTRODUCTION = """\
# Benchmarks

All figures below are of one run of one command, which writes this page.

The work is the Yahoo streaming benchmark's: of ad events keep the views, look up the ad's campaign (1,000 ads, 100 campaigns) and
count per campaign in windows of ten seconds of event time. Every system gets the same Spark with two slots, and is restarted and
warmed up first. Every count of every campaign and window was compared with a count made without any of them. *Whole* is from the
start of the job to its last commit, *steady* leaves out the first fifth. Figures are medians; the spread is between the fastest
and the slowest run.
"""

LATENCY = """\
A running count per key over 100 keys. Each row has a moment at which it is due; latency is from then to when its count is known,
in the task that counts, after one exchange between processes. Every row is measured.
"""

WINDOWS = """\
Processor time in one process, no Spark. A window that overlaps 59 others beside one of the same size that overlaps none, on the same rows
(100 keys, 100 thousand rows per second of event time); and a million sessions that stay open beside ten thousand, each key in turn.
"""


STATE = """\
A count per key: what is there is read, and one more is written. For a table alone and for pipelines (two tasks, exactly once) beside
Spark's `transformWithState` from Python with RocksDB. All counts were checked.
"""
PARTS = {
    "tables": "A table alone, batches of 64 thousand keys, processor time",
    "large": "A large table and its snapshots",
    "job": "A pipeline over many keys, snapshots every second",
    "snapshots": "A pipeline with snapshots and without",
    "functions": "Functions of the user's",
    "transform-with-state": "Spark's transformWithState",
}


def headline(result: dict[str, Any]) -> str:
    """A result in a few words."""
    if "comparisons" in result:
        found = ", ".join(f"{each['name']} {each['ratio']}x" for each in result["comparisons"])
    elif "figures" in result:
        found = "".join(f"\n    {what}: {figure}" for what, figure in result["figures"].items())
    elif "p99_ms" in result:
        found = f"p50 {result['p50_ms']} ms, p99 {result['p99_ms']} ms, p99.9 {result['p999_ms']} ms"
    else:
        found = f"{result['whole'] / 1e6:6.2f}M events/s whole, {result['steady'] / 1e6:6.2f}M steady"
    return found + ("" if result["verified"] else f"  NOT VERIFIED: {result['note']}")


def markdown(results: list[dict[str, Any]], *, command: str, took_s: float, load: float) -> str:
    """The document. `load` is the load average before the start: a busy machine makes other figures."""
    about = circumstances()
    lines = [INTRODUCTION, f"    {command}", ""]
    lines.append(f"{about['date']}, commit {about['commit']}, {about['machine']}; the command took {took_s / 60:.1f} minutes.")
    lines.append(
        f"Load average before the start: {load:.1f}." + (" **The machine was busy with other work.**" if load > BUSY else "")
    )
    for case, title in TITLES.items():
        found = [result for result in results if result["case"] == case]
        if found:
            lines += ["", f"## {title}", "", *throughput(found)]
    found = [result for result in results if result["case"] == "latency"]
    if found:
        lines += ["", f"## Latency at {found[0]['rate']:,} rows per second", "", LATENCY, *latency(found)]
    found = [result for result in results if result["case"] == "windows"]
    if found:
        lines += ["", "## What windows cost", "", WINDOWS, *comparisons(found[0])]
    found = [result for result in results if result["case"] == "state"]
    if found:
        lines += ["", "## Keyed state", "", STATE, *state(found)]
    return "\n".join(lines) + "\n"


def throughput(results: list[dict[str, Any]]) -> list[str]:
    """A table with a row per system."""
    peer = next((result for result in results if result["system"] == PEER), None)
    rows = results[0]["runs"][0]["rows"]
    lines = [f"{rows:,} events, exactly once.", ""]
    lines += ["| system | events/s, whole | events/s, steady | whole, to peer | steady, to peer | commits | runs | spread |"]
    lines += ["|---|---|---|---|---|---|---|---|"]
    for result in results:
        ratios = [f"{result[what] / peer[what]:.2f}x" if peer else "" for what in ("whole", "steady")]
        rates = [f"{result[what] / 1e6:.2f}M" for what in ("whole", "steady")]
        counts = [str(result["commits"]), str(len(result["runs"])), f"{result['spread']:.0%}"]
        lines.append("| " + " | ".join([NAMES[result["system"]], *rates, *ratios, *counts]) + " |")
    return lines


def latency(results: list[dict[str, Any]]) -> list[str]:
    """A table with a row per system."""
    lines = ["| system | p50 | p99 | p99.9 | max | rows measured | commits |", "|---|---|---|---|---|---|---|"]
    for result in results:
        times = [f"{result[what]:.2f} ms" for what in ("p50_ms", "p99_ms", "p999_ms", "max_ms")]
        lines.append(
            "| " + " | ".join([NAMES[result["system"]], *times, f"{result['measured']:,}", str(result["commits"])]) + " |"
        )
    return lines


def comparisons(result: dict[str, Any]) -> list[str]:
    """A table with a row per comparison."""
    lines = ["| | ns per row | ns per row | ratio |", "|---|---|---|---|"]
    for each in result["comparisons"]:
        costs = [f"{label}: {cost:,}" for label, cost in each["ns_per_row"].items()]
        lines.append("| " + " | ".join([each["name"], *costs, f"{each['ratio']:.2f}x"]) + " |")
    return lines


def state(results: list[dict[str, Any]]) -> list[str]:
    """How many keys a second, and a table per part."""
    rates = {name: rate for result in results for name, rate in result["rates"].items()}
    peer = rates.get("transformWithState")
    lines = ["| | keys/s | to transformWithState |", "|---|---|---|"]
    lines += [f"| {name} | {rate:,} | {f'{rate / peer:,.0f}x' if peer else ''} |" for name, rate in rates.items()]
    for result in results:
        lines += ["", f"### {PARTS[result['system']]}", "", "| | |", "|---|---|"]
        lines += [f"| {what} | {figure} |" for what, figure in result["figures"].items()]
    return lines


def circumstances() -> dict[str, str]:
    """When, what and where: what a figure means nothing without."""
    return {"date": datetime.date.today().isoformat(), "commit": commit(), "machine": machine()}


def commit() -> str:
    """The commit, and whether the tree differs from it."""
    head = git("rev-parse", "--short=10", "HEAD")
    return f"{head} with changes" if git("status", "--porcelain", "src", "benchmarks/*.py") else head


def git(*words: str) -> str:
    """What git says; nothing where there is none."""
    try:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True, timeout=20).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def machine() -> str:
    """Processor, cores, memory, and the versions that matter."""
    import pyarrow
    import pyspark

    model = next(
        (line.partition(":")[2].strip() for line in text_of("/proc/cpuinfo").splitlines() if "model name" in line),
        platform.machine(),
    )
    kib = next((int(line.split()[1]) for line in text_of("/proc/meminfo").splitlines() if line.startswith("MemTotal")), 0)
    versions = f"Python {platform.python_version()}, Spark {pyspark.__version__}, Arrow {pyarrow.__version__}"
    return f"{os.cpu_count()} cores of {model}, {kib / 2**20:.0f} GiB, {versions}"


def text_of(path: str) -> str:
    """A file's text, if there is one."""
    try:
        return Path(path).read_text()
    except OSError:
        return ""
