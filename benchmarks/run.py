"""Run the benchmarks and write down what came out: `python -m benchmarks.run`, or `make bench`.

    python -m benchmarks.run                    # all of it, forty minutes; writes results/ and docs/benchmarks.md
    python -m benchmarks.run --quick            # five minutes; prints only, and leaves out what takes longer
    python -m benchmarks.run --case files --system microbatch --system flink
    python -m benchmarks.run --case load --pipeline count --rate 100   # of the load sweep any pipeline at any rate, see load.py

1. Each system of each case runs in a process of its own: its Java starts fresh, warms up on a smaller input (not counted), then
   runs the case several times. The median is the result.
2. A run whose counts are not all right is no result: the command fails and publishes nothing.
3. The document is written only by a full run, so that all its figures are of one machine, one commit and one hour.
4. Flink, Bytewax, DuckDB and decoders of JSON are fetched at first use, see `install.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import install, load, plots, report, scaling
from benchmarks.loadjobs import LOADS
from benchmarks.state import PARTS
from benchmarks.systems import THROUGHPUT
from benchmarks.workload import Input

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results"
PICTURES = ROOT / "docs" / "pictures" / "benchmarks"
FILES = 20
LATENCY = {"latency-50k": 50_000, "latency-500k": 500_000}
"""Rows per second."""
CASES: dict[str, tuple[str, ...]] = {
    **THROUGHPUT,
    **dict.fromkeys(LATENCY, ("continuous", "flink")),
    "recovery": ("continuous",),
    "backpressure": ("continuous",),
    "scaling": scaling.PARTS,
    "windows": ("local",),
    "values": ("local",),
    "json": ("decoders",),
    "state": PARTS,
    "load": load.SYSTEMS,
}
"""Which systems are compared in each. Those of the scaling and the state case are their parts."""
NOT_QUICK = {
    *(("generated", system) for system in ("microbatch", "structured-streaming", "flink-two-phase")),
    *(("memory", system) for system in THROUGHPUT["memory"]),
    *(("latency-500k", system) for system in ("continuous", "flink")),
    ("backpressure", "continuous"),
    *(("scaling", part) for part in ("parallelism", "exchanged", "functions", "batch", "channels")),
    *(("state", part) for part in ("snapshots", "functions", "transform-with-state")),
    *(("load", system) for system in load.SYSTEMS if not load.chosen("quick", system)),
}
"""What says nothing at a size that takes seconds, or what another case says too; run when the case is named."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much of everything."""

    generated_rows: int
    rows_per_file: int
    python_rows_per_file: int  # of 14 million events in all, Bytewax counted too few
    runs: int
    latency_s: float
    kills: int
    backpressure_s: float
    backpressure_aligned: bool
    scaling_scale: float
    windows_scale: float
    values_scale: float
    json_scale: float
    state_scale: float
    load_warm_s: float
    load_s: float
    timeout_s: float


FULL = Sizes(
    generated_rows=200_000_000,
    rows_per_file=800_000,
    python_rows_per_file=400_000,
    runs=3,
    latency_s=10,
    kills=30,
    backpressure_s=13,
    backpressure_aligned=True,
    scaling_scale=1.0,
    windows_scale=0.5,
    values_scale=1.0,
    json_scale=1.0,
    state_scale=1.0,
    load_warm_s=2.5,
    load_s=6.0,
    timeout_s=600,
)
QUICK = Sizes(
    generated_rows=20_000_000,
    rows_per_file=50_000,
    python_rows_per_file=50_000,
    runs=1,
    latency_s=9,
    kills=3,
    backpressure_s=4,
    backpressure_aligned=False,
    scaling_scale=0.1,
    windows_scale=0.1,
    values_scale=0.2,
    json_scale=0.25,
    state_scale=0.1,
    load_warm_s=2.0,
    load_s=3.0,
    timeout_s=200,
)
SIZES = {"full": FULL, "quick": QUICK}
WARM_UP = 4  # the warm-up has a quarter of the events


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.run",
        description="Throughput, latency, recovery, back-pressure, scaling and cores at steady rates beside peers.",
    )
    parser.add_argument(
        "--quick", action="store_const", dest="size", const="quick", default="full", help="smaller and less certain"
    )
    parser.add_argument("--case", choices=CASES, action="append", help="only this one; may be said several times")
    known = sorted({system for systems in CASES.values() for system in systems})
    parser.add_argument("--system", choices=known, action="append", help="only this one; may be said several times")
    parser.add_argument("--pipeline", choices=LOADS, action="append", help="of the load case only this one")
    parser.add_argument("--rate", choices=load.RATES, action="append", help="of the load case only this rate")
    parser.add_argument("--child", nargs=4, metavar=("CASE", "SYSTEM", "FOLDER", "OUT"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        case, system, folder, out = args.child
        points = load.chosen(args.size, system, args.pipeline, args.rate) if case == "load" else []
        Path(out).write_text(json.dumps(one(case, system, SIZES[args.size], Path(folder), points)))
        return
    began, average = time.monotonic(), os.getloadavg()[0]
    wanted = chosen(args.case or list(CASES), args.system)
    if args.size == "quick" and not args.case:
        wanted = [pair for pair in wanted if pair not in NOT_QUICK]
    named = [*(f"--pipeline={name}" for name in args.pipeline or ()), *(f"--rate={rate}" for rate in args.rate or ())]
    wanted = [
        (case, system) for case, system in wanted if case != "load" or load.chosen(args.size, system, args.pipeline, args.rate)
    ]
    for reason in load.left_out(args.pipeline, args.rate, args.system or load.SYSTEMS):
        print(f"left out: {reason}", flush=True)
    results = all_of(args.size, wanted, named)
    command = " ".join(["python -m benchmarks.run", *sys.argv[1:]])
    text = report.markdown(results, command=command, took_s=time.monotonic() - began, load=average)
    print(text)
    wrong = [f"{r['case']} {r['system']}: {r['note']}" for r in results if not r["verified"]]
    if wrong:
        sys.exit("not verified, so not published:\n  " + "\n  ".join(wrong))
    if args.size == "full" and not args.case and not args.system and not named:
        publish(results, text, average)


def chosen(cases: list[str], systems: list[str] | None) -> list[tuple[str, str]]:
    """Every case with every system that is wanted."""
    return [(case, system) for case in cases for system in CASES[case] if not systems or system in systems]


def all_of(size: str, pairs: list[tuple[str, str]], named: Sequence[str] = ()) -> list[dict[str, Any]]:
    """One after the other. Peers are fetched first: nothing is worse than to learn at the end that one cannot be had."""
    try:
        if any(system.startswith("flink") or system == "parallelism" for _, system in pairs):
            install.flink()
        if any(system == "bytewax" for _, system in pairs):
            install.bytewax()
        if any(case == "values" or system == "decoders" for case, system in pairs):
            install.decoders()
    except install.Unavailable as problem:
        sys.exit(str(problem))
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as scratch:
        for case in sorted({case for case, _ in pairs} & (THROUGHPUT.keys() - {"generated"})):
            for events in inputs(case, SIZES[size], Path(scratch)):
                if not events.folder.exists():
                    write_files(events)
        return [child(case, system, size, Path(scratch), named) for case, system in pairs]


def inputs(case: str, sizes: Sizes, scratch: Path) -> tuple[Input, Input]:
    """What is counted, and what to warm up with."""
    per_file = sizes.python_rows_per_file if case == "python" else sizes.rows_per_file
    rows = sizes.generated_rows if case == "generated" else FILES * per_file
    return Input(rows, scratch / f"events-{rows}"), Input(rows // WARM_UP, scratch / f"events-{rows // WARM_UP}")


def write_files(events: Input) -> None:
    """JSON lines, once for all systems."""
    from benchmarks.workload import write_json

    events.folder.mkdir()
    written = write_json(events.folder, FILES, events.rows // FILES)
    print(f"wrote {FILES} files with {events.rows:,} lines of {written / events.rows:.0f} bytes", flush=True)


def child(case: str, system: str, size: str, scratch: Path, named: Sequence[str]) -> dict[str, Any]:
    """One system of one case, in a process of its own."""
    out = scratch / f"{case}-{system}.json"
    command = [sys.executable, "-m", "benchmarks.run", *(["--quick"] if size == "quick" else [])]
    began = time.monotonic()
    command += [*named, "--child", case, system, str(scratch), str(out)]
    quiet = {**os.environ, "PYTHONWARNINGS": "ignore::FutureWarning"}  # of Spark about pandas
    subprocess.run(command, check=True, timeout=SIZES[size].timeout_s, cwd=ROOT, env=quiet)
    result: dict[str, Any] = json.loads(out.read_text())
    print(f"{case:12} {system:22} {report.headline(result)}  ({time.monotonic() - began:.0f} s)", flush=True)
    return {"case": case, "system": system, **result}


def one(case: str, system: str, sizes: Sizes, scratch: Path, points: Sequence[load.Point] = ()) -> dict[str, Any]:
    """In that process: warm up, run, sum up."""
    from benchmarks import backpressure, latency, nested, recovery, state, systems, values, windows
    from benchmarks.measure import summary

    if case == "recovery":
        return recovery.run(sizes.kills)
    if case == "backpressure":
        return backpressure.run(sizes.backpressure_s, aligned_too=sizes.backpressure_aligned)
    if case == "scaling":
        return scaling.run(system, runs=sizes.runs, scale=sizes.scaling_scale)
    if case == "state":
        return state.run(system, runs=sizes.runs, scale=sizes.state_scale)
    if case == "windows":
        return windows.run(sizes.runs, sizes.windows_scale)
    if case == "values":
        return values.run(sizes.runs, sizes.values_scale)
    if case == "json":
        return nested.run(5, sizes.json_scale)
    if case == "load":
        return load.run(system, points, sizes.load_warm_s, sizes.load_s)
    if case in LATENCY:
        return latency.run_system(system, LATENCY[case], sizes.latency_s, sizes.runs)
    found = systems.throughput(case, system, *inputs(case, sizes, scratch), sizes.runs)
    return {**summary([run.to_json() for run in found]), "note": "; ".join(run.note for run in found if run.note)}


def publish(results: list[dict[str, Any]], text: str, load: float) -> None:
    """Write the figures where people look for them."""
    RESULTS.mkdir(exist_ok=True)
    for old in RESULTS.glob("*.json"):
        old.unlink()
    for case in CASES:
        found = [result for result in results if result["case"] == case]
        (RESULTS / f"{case}.json").write_text(
            json.dumps({**report.circumstances(), "load": load, "results": found}, indent=2) + "\n"
        )
    PICTURES.mkdir(exist_ok=True)
    for name, svg in plots.draw(results).items():
        (PICTURES / name).write_text(svg)
    (ROOT / "docs" / "benchmarks.md").write_text(text)


if __name__ == "__main__":
    main()
