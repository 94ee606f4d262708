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
    "local": "Penstock Local",
    "continuous-100ms": "Penstock Continuous, latency 100 ms",
    "structured-streaming": "Structured Streaming",
    "flink": "Flink",
    "flink-two-phase": "Flink, two-phase",
    "flink-latency": "Flink, buffer timeout 0",
    "bytewax": "Bytewax",
}
TITLES = {
    "generated": "Ad counts, generated rows",
    "memory": "Ad counts, JSON lines from memory",
    "files": "Ad counts, JSON files",
    "python": "Ad counts, JSON files, a Python function called for every event",
}
LATENCIES = ("latency-50k", "latency-500k")
PEERS = ("structured-streaming", "flink", "flink-two-phase", "bytewax")
BUSY = 1.0
SNAPSHOTS_S = 0.75  # of one a second: fewer are told

INTRODUCTION = """\
# Benchmarks

All figures below are of one run of one command, which writes this page.

The work is the Yahoo streaming benchmark's: of ad events keep the views, look up the ad's campaign (1,000 ads, 100 campaigns) and
count per campaign in windows of ten seconds of event time. All systems have two slots on the same machine, one after the other, and
are restarted and warmed up first. Every count of every campaign and window was compared with a count made without any of them.
*Whole* is from the start of the job to its last commit, *steady* leaves out the first fifth. Figures are medians; the spread is
between the fastest and the slowest run. *Memory* is the most that all processes of a system had at one moment, without mapped files:
for Penstock and Structured Streaming the driver's Python, Java and all workers. So is processor time, which other work on the machine
changes least.

Peers are given the better end of every doubt. **Structured Streaming** has the same Spark, with the garbage collector that Java
chooses by itself, no Python per row and a broadcast join. **Flink** is a job in Java on the DataStream API, with object reuse, heap
state and exactly-once checkpoints as often as Penstock's snapshots; neither its start nor its last checkpoint is counted. *Two-phase*
has an operator of its own that counts in front of the exchange. **Bytewax** runs in two processes, without recovery; its start is not
counted either. Generated texts are each one of a few: Java's events refer to them, Penstock's batches have numbers into a dictionary
of them. Neither copies a text.
"""

LATENCY = """\
A running count per key over 100 keys, exactly once with a snapshot every second. Each row has a moment at which it is due; latency is
from then to when its count is known, in the task that counts, after one exchange. Every row is measured, but for those of the start;
percentiles are the medians of three runs.
Flink runs with a buffer timeout of 0.
"""

RECOVERY = """\
Ad counts at 200 thousand generated events a second, a snapshot every second. One of the two worker processes gets SIGKILL at a random
moment, again and again; a restart waits 100 ms. Afterwards every count was compared with one made from the numbers of the rows read.
"""

BACKPRESSURE = """\
A running count per key behind an exchange, two tasks, a snapshot every second. First with a sink that keeps up, which says how many
rows a second the source can give; then with one that sleeps for every row, so that all channels are full. The aim is a checkpoint
within two intervals. Memory is that of the workers, and its growth from the second quarter of a run to its last. In the end each job
was stopped, and exactly the rows that were read had been committed, each once and with its count.
"""

SCALING = """\
How cost grows with one thing at a time. All but the first and the last are a count per key in pipelines with a snapshot every second,
keys in no order; processor time is of all workers. Where a batch has a key many times, its rows are counted before they are sent: few
keys make fewer updates than rows, and cost less. One task and two take turns, and are compared by the medians of each, and each run of
two with the run of one before it. Tasks that know nothing of each other are processes that each count everything by themselves: what
they gain by a second one is what the machine has to give. Every count was checked.
"""
CURVES = {
    "parallelism": "Tasks: ad counts, generated events",
    "keys": "Keys: the same rows over more of them",
    "exchanged": "Keys, with nothing counted before it is sent",
    "functions": "Keys, with a Python function and its state per row",
    "batch": "Batches: rows that a source hands out at a time, 100,000 keys",
    "channels": "Channels: more tasks on two cores, 100,000 keys",
    "state": "State: a table alone, the same number of changes between two snapshots",
}
UNITS = {
    "parallelism": "ns per event on the clock",
    "keys": "ns of processor time per row",
    "exchanged": "ns of processor time per row",
    "functions": "ns of processor time per row",
    "batch": "ns of processor time per row",
    "channels": "ns of processor time per row",
    "state": "ms of pause per snapshot",
}

VALUES = """\
Exact counts of different values of four hot keys, sent anew with each batch of 16,384 rows, with a snapshot every second; processor time
in one process, no Spark. Half of the rows bring a value that the key has not had. Beside it DuckDB, which is asked once for all of it
when all rows are there, with one thread.
"""
WINDOWS = """\
Processor time in one process, no Spark. A window that overlaps 59 others beside one of the same size that overlaps none, on the same
rows (100 keys; a million rows per second of event time, and a hundred thousand: fewer rows share what a window costs when it closes);
and a million sessions that stay open beside ten thousand, each key in turn.
"""


JSON = """\
Lines of 290 bytes with records inside, half of them with one that may be missing, from memory into columns; five fields are wanted. One
core, processor time, the best of five. The schema of Penstock is dataclasses with required fields, or the same with all nullable.
polars leaves times as text; msgspec makes instances and no columns.
"""

STATE = """\
A count per key: what is there is read, and one more is written. For a table alone and for pipelines (two tasks, exactly once) beside
Spark's `transformWithState` from Python with RocksDB. All counts were checked. What snapshots cost is told with the standard error of the
mean over all that were looked at (`benchmarks/traced.py` says how).
"""
PARTS = {
    "tables": "A table alone, batches of 64 thousand keys, processor time",
    "large": "A large table and its snapshots",
    "job": "A pipeline over many keys, snapshots every second",
    "snapshots": "A pipeline with snapshots and without",
    "functions": "Functions of the user's",
    "transform-with-state": "Spark's transformWithState",
}


LOAD = """\
Cores in use at a steady rate: processor time of all processes of a job per second. The pipelines are a running count over 100 keys;
16 aggregates of one stream; sessions over 50 thousand keys, a count in windows and duplicates dropped; an interval join of two streams; a
process function with state and timers; and a running count of JSON lines from files that appear in a folder. Two tasks, exactly once, a
snapshot every second; where there were far fewer, it says how many. A flood is as many rows as the system takes, which stand beside its
cores. *Behind* is a system that has more rows waiting at the end than one second brings. All results were checked. Rows of Flink may
wait 100 ms for others, its default, or do not wait; those of Penstock's continuous runner may wait 5 ms, its default, or 100 ms.
"""
LATE = """\
How late rows of the running count were, from the moment at which each is due: when its count was known, and when that was committed.
Memory is the most that all processes had at one of three looks, with what earlier jobs have left to Java.
"""


def headline(result: dict[str, Any]) -> str:
    """A result in a few words."""
    if "loads" in result:
        cores = [each["cores"] for each in result["loads"]]
        found = f"{len(cores)} points, {min(cores):.2f} to {max(cores):.2f} cores"
    elif "points" in result:
        found = ", ".join(f"{each['name']}: {each['cost']:,.2f}" for each in result["points"])
    elif "comparisons" in result:
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
    if any(result["case"] in TITLES for result in results):
        lines += ["", "![events per second of all systems](pictures/benchmarks/throughput.svg)"]
    found = [result for result in results if result["case"] in LATENCIES]
    if found:
        lines += ["", "## Latency", "", LATENCY, *latency(found), "", "![latency](pictures/benchmarks/latency.svg)"]
    found = [result for result in results if result["case"] == "recovery"]
    if found:
        lines += ["", "## Recovery", "", RECOVERY, *plain(found[0]["figures"])]
    found = [result for result in results if result["case"] == "backpressure"]
    if found:
        lines += ["", "## Back-pressure", "", BACKPRESSURE, *table(found[0]["points"])]
    found = [result for result in results if result["case"] == "scaling"]
    if found:
        lines += ["", "## Scaling", "", SCALING, *scaling(found), "", "![how cost grows](pictures/benchmarks/scaling.svg)"]
    found = [result for result in results if result["case"] == "windows"]
    if found:
        lines += ["", "## What windows cost", "", WINDOWS, *comparisons(found[0])]
    found = [result for result in results if result["case"] == "values"]
    if found:
        lines += ["", "## Many values of few keys", "", VALUES, *plain(found[0]["figures"])]
    found = [result for result in results if result["case"] == "json"]
    if found:
        lines += ["", "## Nested JSON", "", JSON, *plain(found[0]["figures"])]
    found = [result for result in results if result["case"] == "state"]
    if found:
        lines += ["", "## Keyed state", "", STATE, *state(found)]
    found = [result for result in results if result["case"] == "load"]
    if found:
        lines += ["", "## Cores at real rates", "", LOAD, *loads(found), "", "![cores by rate](pictures/benchmarks/load.svg)"]
    return "\n".join(lines) + "\n"


def loads(results: list[dict[str, Any]]) -> list[str]:
    """A table with a row per pipeline and rate and a column per system: cores; and below it how late rows are."""
    systems = [result["system"] for result in results]
    cells: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    for result in results:
        for each in result["loads"]:
            cells.setdefault((each["pipeline"], each["rate"]), {})[result["system"]] = each
    order = list(dict.fromkeys(pipeline for pipeline, _ in cells))
    rows = sorted(cells.items(), key=lambda cell: (order.index(cell[0][0]), rate_of(cell[0][1])))
    lines = ["| pipeline | rows/s | " + " | ".join(NAMES[system] for system in systems) + " |", "|" + "---|" * (len(systems) + 2)]
    for (pipeline, rate), found in rows:
        texts = [load_cell(found[system]) if system in found else "" for system in systems]
        lines.append("| " + " | ".join([pipeline, rate_text(rate), *texts]) + " |")
    late = [
        (pipeline, rate, system, each) for (pipeline, rate), found in rows for system, each in found.items() if "p50_ms" in each
    ]
    if late:
        heads = ["pipeline", "rows/s", "system", "counted p50", "p99", "committed p50", "p99", "snapshots/s", "memory"]
        lines += ["", LATE, "| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
        for pipeline, rate, system, each in late:
            times = [f"{each[what]:,.1f} ms" for what in ("p50_ms", "p99_ms")]
            times += [f"{each[what]:,.0f} ms" if what in each else "" for what in ("committed_p50_ms", "committed_p99_ms")]
            texts = [pipeline, rate_text(rate), NAMES[system], *times, f"{each['epochs_s']:.2f}", mebibytes(each)]
            lines.append("| " + " | ".join(texts) + " |")
    return lines


def load_cell(found: dict[str, Any]) -> str:
    """Cores of one point, and what else one has to know to read them."""
    notes = []
    if "waiting" not in found:
        notes.append(f"{found['rows_s'] / 1e6:.2f}M rows/s")
    elif found["waiting"][1] - found["waiting"][0] > rate_of(found["rate"]):
        notes.append("behind")
    if found["rows_s"] and found["epochs_s"] < SNAPSHOTS_S:
        notes.append(f"{found['epochs_s']:.2f} snapshots/s")
    return f"{found['cores']:.2f}" + (f" ({', '.join(notes)})" if notes else "")


def rate_of(rate: str) -> float:
    """Rows per second; a flood is more than any number."""
    return float("inf") if rate == "flood" else float(rate)


def rate_text(rate: str) -> str:
    """A rate in a table."""
    return rate if rate == "flood" else f"{int(rate):,}"


def throughput(results: list[dict[str, Any]]) -> list[str]:
    """A table with a row per system."""
    peers = [result for result in results if result["system"] in PEERS]
    rows = results[0]["runs"][0]["rows"]
    lines = [f"{rows:,} events, exactly once. Ratios are of whole runs, and steady.", ""]
    heads = ["system", "events/s, whole", "steady", *(f"to {NAMES[peer['system']]}" for peer in peers)]
    heads += ["processor time per event", "memory", "commits", "runs", "spread"]
    lines += ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for result in results:
        rates = [f"{result[what] / 1e6:.2f}M" for what in ("whole", "steady")]
        ratios = [", ".join(f"{result[what] / peer[what]:.2f}x" for what in ("whole", "steady")) for peer in peers]
        counts = [
            f"{result['cpu_ns']:,} ns",
            mebibytes(result),
            str(result["commits"]),
            str(len(result["runs"])),
            f"{result['spread']:.0%}",
        ]
        lines.append("| " + " | ".join([NAMES[result["system"]], *rates, *ratios, *counts]) + " |")
    return lines


def latency(results: list[dict[str, Any]]) -> list[str]:
    """A table with a row per rate and system."""
    heads = ["rows/s", "system", "p50", "p99", "p99.9", "max", "rows measured", "commits", "memory"]
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for result in results:
        times = [f"{result[what]:.2f} ms" for what in ("p50_ms", "p99_ms", "p999_ms", "max_ms")]
        counts = [f"{result['measured']:,}", str(result["commits"]), mebibytes(result)]
        lines.append("| " + " | ".join([f"{result['rate']:,}", NAMES[result["system"]], *times, *counts]) + " |")
    return lines


def mebibytes(result: dict[str, Any]) -> str:
    """How much memory a system had."""
    return f"{result['memory'] / 2**20:,.0f} MiB"


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
        lines += ["", f"### {PARTS[result['system']]}", "", *plain(result["figures"])]
    return lines


def plain(figures: dict[str, str]) -> list[str]:
    """A table with a row per figure."""
    return ["| | |", "|---|---|", *(f"| {what} | {figure} |" for what, figure in figures.items())]


def scaling(results: list[dict[str, Any]]) -> list[str]:
    """A table per curve."""
    lines: list[str] = []
    for result in results:
        lines += ["", f"### {CURVES[result['system']]}", "", *table(result["points"])]
    return lines[1:]


def table(points: list[dict[str, Any]]) -> list[str]:
    """A row per point."""
    heads = ["", *points[0]["figures"]]
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    return lines + ["| " + " | ".join([point["name"], *point["figures"].values()]) + " |" for point in points]


def circumstances() -> dict[str, str]:
    """When, what and where: what a figure means nothing without."""
    return {"date": datetime.date.today().isoformat(), "commit": commit(), "machine": machine()}


def commit() -> str:
    """The commit, and whether the tree differs from it."""
    head = git("rev-parse", "--short=10", "HEAD")
    return f"{head} with changes" if git("status", "--porcelain", "src", "benchmarks/*.py", "benchmarks/flink") else head


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
