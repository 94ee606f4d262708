"""Run the benchmarks and write down what came out: `python -m benchmarks.run`, or `make bench`.

    python -m benchmarks.run                    # all of it, some ten minutes; writes results/ and docs/benchmarks.md
    python -m benchmarks.run --quick            # two minutes; prints only
    python -m benchmarks.run --case files --system microbatch

1. Each system of each case runs in a process of its own: its Java starts fresh, warms up on a smaller input (not counted), then
   runs the case several times. The median is the result.
2. A run whose counts are not all right is no result: the command fails and publishes nothing.
3. The document is written only by a full run, so that all its figures are of one machine, one commit and one hour.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.state import PARTS

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results"
FILES = 20
CASES = ("generated", "files", "latency", "windows", "state")
SYSTEMS_OF = {"latency": ("continuous",), "windows": ("local",), "state": PARTS}
"""Of cases that not all systems are compared in. Those of the state case are its parts."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much of everything."""

    generated_rows: int
    rows_per_file: int
    runs: int
    latency_s: float
    windows_scale: float
    state_scale: float
    timeout_s: float


FULL = Sizes(
    generated_rows=120_000_000, rows_per_file=400_000, runs=3, latency_s=45, windows_scale=1.0, state_scale=1.0, timeout_s=600
)
QUICK = Sizes(
    generated_rows=20_000_000, rows_per_file=50_000, runs=1, latency_s=12, windows_scale=0.1, state_scale=0.1, timeout_s=200
)
SIZES = {"full": FULL, "quick": QUICK}

LATENCY_RATE = 50_000


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.run", description="Throughput and latency beside Structured Streaming."
    )
    parser.add_argument(
        "--quick", action="store_const", dest="size", const="quick", default="full", help="smaller and less certain"
    )
    parser.add_argument("--case", choices=CASES, action="append", help="only this one; may be said several times")
    parser.add_argument(
        "--system",
        action="append",
        help="only this one: continuous, microbatch, structured-streaming; or a part of the state case",
    )
    parser.add_argument("--child", nargs=4, metavar=("CASE", "SYSTEM", "FOLDER", "OUT"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        case, system, folder, out = args.child
        Path(out).write_text(json.dumps(one(case, system, SIZES[args.size], Path(folder))))
        return
    began, load = time.monotonic(), os.getloadavg()[0]
    results = all_of(args.size, args.case or CASES, args.system)
    command = " ".join(["python -m benchmarks.run", *sys.argv[1:]])
    text = report.markdown(results, command=command, took_s=time.monotonic() - began, load=load)
    print(text)
    wrong = [f"{r['case']} {r['system']}: {r['note']}" for r in results if not r["verified"]]
    if wrong:
        sys.exit("not verified, so not published:\n  " + "\n  ".join(wrong))
    if args.size == "full" and not args.case and not args.system:
        publish(results, text, load)


def all_of(size: str, cases: tuple[str, ...] | list[str], systems: list[str] | None) -> list[dict[str, Any]]:
    """Every case with every system, one after the other."""
    from benchmarks.systems import SYSTEMS

    results = []
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as scratch:
        folder = Path(scratch, "events")
        if "files" in cases:
            write_files(folder, SIZES[size].rows_per_file)
        for case in cases:
            for system in SYSTEMS_OF.get(case, SYSTEMS):
                if not systems or system in systems:
                    results.append(child(case, system, size, folder, Path(scratch)))
    return results


def write_files(folder: Path, rows_per_file: int) -> None:
    """The input of the files case, once for all systems."""
    from benchmarks.workload import write_json

    folder.mkdir()
    written = write_json(folder, FILES, rows_per_file)
    print(f"wrote {FILES} files with {FILES * rows_per_file:,} lines of {written / FILES / rows_per_file:.0f} bytes", flush=True)


def child(case: str, system: str, size: str, folder: Path, scratch: Path) -> dict[str, Any]:
    """One system of one case, in a process of its own."""
    out = scratch / f"{case}-{system}.json"
    command = [sys.executable, "-m", "benchmarks.run", *(["--quick"] if size == "quick" else [])]
    began = time.monotonic()
    command += ["--child", case, system, str(folder), str(out)]
    quiet = {**os.environ, "PYTHONWARNINGS": "ignore::FutureWarning"}  # of Spark about pandas
    subprocess.run(command, check=True, timeout=SIZES[size].timeout_s, cwd=ROOT, env=quiet)
    result: dict[str, Any] = json.loads(out.read_text())
    print(f"{case:10} {system:22} {report.headline(result)}  ({time.monotonic() - began:.0f} s)", flush=True)
    return {"case": case, "system": system, **result}


def one(case: str, system: str, sizes: Sizes, folder: Path) -> dict[str, Any]:
    """In that process: warm up, run, sum up."""
    from benchmarks import latency, state, systems, windows
    from benchmarks.measure import summary

    if case == "state":
        return state.run(system, runs=sizes.runs, scale=sizes.state_scale)
    if case == "windows":
        return windows.run(sizes.runs, sizes.windows_scale)
    if case == "latency":
        with tempfile.TemporaryDirectory(prefix="penstock-bench-") as scratch:
            return latency.run(LATENCY_RATE, sizes.latency_s, Path(scratch))
    spark = systems.session()
    runs = []
    if case == "generated":
        systems.run_generated(system, spark, sizes.generated_rows // 4)
        for _ in range(sizes.runs):
            runs.append(systems.run_generated(system, spark, sizes.generated_rows).to_json())
    else:
        rows = FILES * sizes.rows_per_file
        warm_up(system, spark, sizes.rows_per_file // 4)
        for _ in range(sizes.runs):
            runs.append(systems.run_files(system, spark, folder, rows).to_json())
    found = summary(runs)
    return {**found, "note": "; ".join(run["note"] for run in runs if run["note"])}


def warm_up(system: str, spark: Any, rows_per_file: int) -> None:
    """The files case on files of its own."""
    from benchmarks import systems
    from benchmarks.workload import write_json

    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as scratch:
        write_json(Path(scratch), FILES, rows_per_file)
        systems.run_files(system, spark, Path(scratch), FILES * rows_per_file)


def publish(results: list[dict[str, Any]], text: str, load: float) -> None:
    """Write the figures where people look for them."""
    RESULTS.mkdir(exist_ok=True)
    for case in CASES:
        found = [result for result in results if result["case"] == case]
        (RESULTS / f"{case}.json").write_text(
            json.dumps({**report.circumstances(), "load": load, "results": found}, indent=2) + "\n"
        )
    (ROOT / "docs" / "benchmarks.md").write_text(text)


if __name__ == "__main__":
    main()
