"""Writes the golden checkpoints of one commit: `PYTHONPATH=<that commit>/src:tests python tests/golden/checkpoints/write.py COMMIT`.

For each pipeline one archive `<COMMIT>/<pipeline>.tar.gz`: `storage`, the storage folder as the job left it; `savepoint`, if it
took one before it was stopped; `out`, what was committed by then; and one file `<pipeline>.json` with all input and the expected
answer, which `answers` computes without Penstock. How the jobs end:

- most are stopped when half of each split was read ("latest"), after a savepoint was taken;
- `pending` is cut off when output is published and not committed;
- `in-flight` is cut off when the newest checkpoint is unaligned and holds rows on their way;
- `files` is cut off in the middle of a file.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
import tarfile
import tempfile
import time
from decimal import Decimal
from pathlib import Path
from typing import Any

import penstock as pen
from golden.checkpoints import answers, pipelines
from golden.checkpoints.pipelines import GOLDEN, STOPS, Golden
from penstock.runners import faults
from penstock.runners.world import Crash
from penstock.testing import Simulated

HERE = Path(__file__).parent
SPLITS, KEYS, ROWS = ("a", "b"), 3, 60
WORDS = ("barrier", "stream", "epoch", "task")
START_US = 1_767_225_600_000_000  # 2026-01-01 00:00:00 UTC

Rows = dict[str, dict[str, list[dict[str, Any]]]]


def make_rows(seed: int, split: str) -> list[dict[str, Any]]:
    """The rows of one split, a second apart and up to two seconds out of order; its keys are in no other, and no value is twice."""
    rng = random.Random(seed)
    values = rng.sample(range(-500, 500), ROWS)
    return [
        {
            "id": f"{split}{n}",
            "k": f"{split}-{rng.randrange(KEYS)}",
            "v": None if rng.random() < 0.1 else values[n],
            "x": values[n] / 8,
            "flag": rng.random() < 0.4,
            "small": rng.randrange(4),
            "price": str(Decimal(rng.randrange(10_000)) / 100),
            "maybe": None,
            "text": " ".join(rng.choice(WORDS) for _ in range(rng.randrange(3))),
            "at": START_US + n * 1_000_000 + rng.randrange(2_000_000),
        }
        for n in range(ROWS)
    ]


def main(commit: str) -> None:
    target = HERE / commit
    target.mkdir(exist_ok=True)
    for number, golden in enumerate(GOLDEN.values()):
        rows = {
            source: {split: make_rows(1000 * number + 10 * i + j, split) for j, split in enumerate(SPLITS)}
            for i, source in enumerate(golden.sources)
        }
        with tempfile.TemporaryDirectory() as folder:
            made = Path(folder)
            WRITERS.get(golden.name, write_stopped)(golden, rows, made)
            with tarfile.open(target / f"{golden.name}.tar.gz", "w:gz") as archive:
                for part in ("storage", "savepoint", "out"):
                    if (made / part).exists():
                        archive.add(made / part, part, filter=anonymous)
        expected = answers.expected(golden.name, rows)
        (target / f"{golden.name}.json").write_text(compact({"input": rows, "expected": expected}))
        print(golden.name, (target / f"{golden.name}.tar.gz").stat().st_size, (target / f"{golden.name}.json").stat().st_size)


def compact(value: dict[str, Any]) -> str:
    """JSON with a line for each row."""
    text = json.dumps(value, default=str)
    return text.replace("}, {", "},\n{") + "\n"


def anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Without who wrote it and when, and without locks and sockets."""
    if entry.name.endswith(("/lock", ".sock")):
        return None
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    return entry


def write_stopped(golden: Golden, rows: Rows, made: Path) -> None:
    """To the middle of each split; then a savepoint, then stop. The time of day is one in 2001, and moves by two seconds."""
    (made / "time").write_text(str(answers.CLOCK_US))
    os.environ["PENSTOCK_TIME_FILE"] = str(made / "time")
    pipelines.HOLDS = True
    try:
        (made / "gate").write_text("0")
        p = golden.pipeline(rows, made / "out", made)
        job = p.start(pen.Local(parallelism=2, storage=made / "storage", snapshot_every="50ms"))
        for stage in range(STOPS // 2):  # in steps, so that what is held comes from several epochs
            (made / "gate").write_text(str(stage))
            while rows_read(job.conductor.manifest) < sum(
                ROWS * (stage + 1) // STOPS for splits in rows.values() for _ in splits
            ):
                assert not job.done, job.wait()
                time.sleep(0.01)
        (made / "time").write_text(str(answers.CLOCK_US + 2_000_000))
        time.sleep(0.5)  # for calls that are answered, and for what happens every second
        job.savepoint(made / "savepoint")
        job.stop(timeout="60s")
    finally:
        pipelines.HOLDS = False
        del os.environ["PENSTOCK_TIME_FILE"]


def rows_read(manifest: Any) -> int:
    return sum(n for key, n in manifest.counters.items() if key.endswith(".read")) if manifest else 0


def write_pending(golden: Golden, rows: Rows, made: Path) -> None:
    """To a published epoch with output in every sink that is not committed, with some committed before it."""

    def crash(point: str, epoch: int, manifest: Any) -> bool:
        sinks = {entry.sink for entry in manifest.pending}
        return point == "commit.before" and rows_read(manifest) >= 40 and len(sinks) == 3 and not manifest.finished

    simulate(golden, rows, made, crash, unaligned_after=None)


def write_in_flight(golden: Golden, rows: Rows, made: Path) -> None:
    """To a checkpoint with rows in flight to two steps."""

    def crash(point: str, epoch: int, manifest: Any) -> bool:
        states = [state.handles for op in manifest.operators for state in op.states]
        return point == "collect.before" and all(states) and len({entry.step for entry in manifest.in_flight}) >= 2

    simulate(golden, rows, made, crash, unaligned_after="0s")


def write_files(golden: Golden, rows: Rows, made: Path) -> None:
    """To a checkpoint at which both lanes have read a file and are in the middle of another."""

    def crash(point: str, epoch: int, manifest: Any) -> bool:
        positions = [split.position for source in manifest.sources for split in source.splits.values()]
        inside = [position for position in positions if position and position["done"] and position["offset"]]
        return point == "collect.before" and len(inside) == 2

    simulate(golden, rows, made, crash)


def simulate(golden: Golden, rows: Rows, made: Path, crash: Any, **options: Any) -> None:
    """Under one seed after the other, until one comes to the point at which `crash` says yes, and ends there."""
    for seed in range(1000):
        for part in ("storage", "out"):
            shutil.rmtree(made / part, ignore_errors=True)
        p = golden.pipeline(rows, made / "out", made)
        runner = Simulated(seed, parallelism=2, storage=made / "storage", snapshot_every="3ms", **options)
        conductor = runner.conductor(p.plan(), runner.options(golden.name), "latest")

        def hook(point: str, epoch: int, conductor: Any = conductor) -> None:
            if conductor.manifest is not None and crash(point, epoch, conductor.manifest):
                raise Crash

        faults.hook = hook
        try:
            conductor.run()
        finally:
            faults.hook = None
        if isinstance(conductor.error, Crash):
            return
    raise AssertionError(f"no seed of {golden.name} comes to the point")


WRITERS = {"pending": write_pending, "in-flight": write_in_flight, "files": write_files}

if __name__ == "__main__":
    main(sys.argv[1])
