"""Real kills against real Spark jobs, and proof that every row still counted once: `python tests/soak/soak.py --short`.

See docs/internals/soak.md for what it does and how to read its log.
"""

from __future__ import annotations

import argparse
import random
import secrets
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])  # this is a module of the package `soak`

from soak import plan
from soak.harness import Harness, Result
from soak.life import copy_code
from soak.report import Verdict, summary

REPLAYED_SHARE = 0.8  # of the kills must have cost something, or the kills prove little


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    """What the user wants."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument(
        "--short", action="store_true", help="the full plan once: every kind of kill, every point twice (default)"
    )
    options.add_argument("--kills", type=int, help="so many kills: part of the plan, or the plan again and again")
    options.add_argument("--minutes", type=float, help="the plan again and again for so long")
    options.add_argument("--runner", choices=["continuous", "microbatch"])
    options.add_argument("--master", choices=["local", "local-cluster"])
    options.add_argument("--kinds", help="only these kinds of kills, such as worker,zombie")
    options.add_argument("--seed", type=int, default=1, help="of the order and the moments")
    options.add_argument("--log", type=Path, help="the log, one line of JSON per kill; left out: beside the jobs")
    options.add_argument("--folder", type=Path, help="where jobs live; left out: a temporary folder, removed if all is well")
    return options.parse_args(given)


def jobs(wanted: argparse.Namespace, rng: random.Random) -> Iterator[plan.JobPlan]:
    """The jobs to run, one after the other."""
    kinds = set(wanted.kinds.split(",")) if wanted.kinds else None
    chosen = plan.choose(plan.full(), runner=wanted.runner, master=wanted.master, kinds=kinds)
    if wanted.kills is not None:
        yield from plan.rounds(chosen, wanted.kills, rng)
        return
    until = time.monotonic() + (wanted.minutes or 0) * 60
    while True:
        yield from plan.shuffled(chosen, rng)
        if time.monotonic() >= until:
            return


def judge(results: list[Result]) -> Verdict:
    """What is wrong with the whole run, and what it left."""
    wrong = [f"{result.plan.name}: {what}" for result in results for what in result.wrong]
    planned, kills = sum(result.plan.kills for result in results), [kill for result in results for kill in result.kills]
    if len(kills) < planned or not kills:
        wrong.append(f"{len(kills)} kills were delivered, {planned} were planned")
    replayed = sum(kill.replayed > 0 for kill in kills)
    if replayed < REPLAYED_SHARE * len(kills):
        wrong.append(f"only {replayed} of {len(kills)} kills cost any row: they came at moments that prove little")
    return Verdict(tuple(wrong), tuple(f"{result.plan.name}: {what}" for result in results for what in result.left))


def main(given: list[str] | None = None) -> int:
    """Run, and say what came of it."""
    wanted, began = arguments(given), time.monotonic()
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # so that jobs are put down
    rng = random.Random(wanted.seed)
    folder = wanted.folder or Path(tempfile.mkdtemp(prefix="penstock-soak-"))
    folder.mkdir(parents=True, exist_ok=True)
    log = wanted.log or folder / "kills.jsonl"
    code = copy_code(folder / "code")
    token, results = secrets.token_hex(8), []
    for number, job in enumerate(jobs(wanted, rng)):
        print(f"--- job {number}: {job.name} on {job.master} {job.conf or ''}, {job.kills} kills", flush=True)
        harness = Harness(job, folder / f"{number}-{job.name}", rng, f"{token}-{number}", log, code)
        results.append(harness.run())
        print(f"    {results[-1].took_s:.0f} s, {results[-1].rows} rows, {results[-1].read} read", flush=True)
        for what in results[-1].wrong:
            print(f"    WRONG: {what}", flush=True)
        for what in results[-1].left:
            print(f"    LEFT: {what}", flush=True)
    verdict = judge(results)
    print(summary(results, verdict, time.monotonic() - began))
    if not verdict.good or wanted.folder:
        print(f"jobs and log: {folder}")
    else:
        shutil.rmtree(folder)
    return 0 if verdict.good else 1


if __name__ == "__main__":
    sys.exit(main())
