"""Runs a case through a chain of runners, stopping at the gate between them, and checks each cut and the final answer."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import penstock as pen
from conformance import oracle
from conformance.cases import Case
from conformance.source import Gated
from penstock.checkpoints.manifest import Manifest

RunnerFactory = Callable[..., Any]

DEADLINE_S = 240  # for a busy machine; the slowest takes about a minute on an idle one


@dataclass(frozen=True)
class Leg:
    """One run of the chain: which runner, how parallel; `by`: how the next leg takes over ("stop" or "savepoint")."""

    runner: str
    parallelism: int
    by: str = "stop"
    state: Any = None


def run_chain(case: Case, legs: Sequence[Leg], make_runner: RunnerFactory, tmp: Path) -> None:
    """Each leg but the last runs up to its gate and hands over; the last runs to the end. Then the oracle judges."""
    out, folder = tmp / "out", tmp / "gate"
    folder.mkdir(parents=True)
    storage, restore = tmp / "storage-0", "latest"
    for number, leg in enumerate(legs):
        last = number == len(legs) - 1
        gate = folder / "gate"
        if last:
            gate.unlink(missing_ok=True)
        else:
            gate.write_text(str(number))
        (folder / "opened.log").unlink(missing_ok=True)
        pipeline, sources = case.pipeline(out, folder, stops=len(legs))
        options = {} if leg.state is None else {"state": leg.state}
        runner = make_runner(leg.runner, parallelism=leg.parallelism, storage=str(storage), last=last, **options)
        job = pipeline.start(runner, restore=restore)
        restore = "latest"
        before = job_start(job)
        if last:
            job.wait(timeout=f"{DEADLINE_S}s")
        else:
            wait_for_rows(job, sum(s.expected(number) for s in sources))
            if leg.runner == "batch":
                job.wait(timeout=f"{DEADLINE_S}s")  # it ends by itself, with what is there
            if leg.by == "savepoint":
                if leg.runner == "batch":  # … so somebody else takes the savepoint of what it left
                    again, _ = case.pipeline(out, folder, stops=len(legs))
                    job = again.start(make_runner("local", parallelism=1, storage=str(storage), last=False))
                savepoint = tmp / f"savepoint-{number}"
                job.savepoint(savepoint)
                job.cancel()
                storage, restore = tmp / f"storage-{number + 1}", str(savepoint)
            else:
                job.stop(timeout=f"{DEADLINE_S}s")
            check_cut(case, job.conductor.manifest, sources)
        check_opened(folder, before)
    oracle.check(case.name, case.inputs, str(out))
    shutil.rmtree(tmp, ignore_errors=True)


def job_start(job: pen.Job) -> dict[tuple[str, str], int]:
    """From where the job starts: source and split to position."""
    deadline = time.monotonic() + DEADLINE_S
    while job.status().attempt == 0 and not job.done and time.monotonic() < deadline:
        time.sleep(0.005)
    start = job.conductor.start
    return {(source, split): entry.position or 0 for source, splits in start.splits.items() for split, entry in splits.items()}


def rows_read(manifest: Manifest | None) -> int:
    """How many rows the published epochs have read."""
    return sum(n for key, n in manifest.counters.items() if key.endswith(".read")) if manifest else 0


def wait_for_rows(job: pen.Job, expected: int) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while rows_read(job.conductor.manifest) < expected:
        if job.done:
            job.wait()
            raise AssertionError(f"the job ended with {rows_read(job.conductor.manifest)} rows read, expected {expected}")
        assert time.monotonic() < deadline, (
            f"{rows_read(job.conductor.manifest)} rows read in time, expected {expected}: {job.status()}"
        )
        time.sleep(0.01)
    assert rows_read(job.conductor.manifest) == expected


def check_cut(case: Case, manifest: Manifest | None, sources: list[Gated]) -> None:
    """At a cut every split is mid-way, state is held, and with windows a timer is pending."""
    assert manifest is not None
    assert not manifest.finished
    splits = {(s.name, split): entry for s in manifest.sources for split, entry in s.splits.items()}
    for source in sources:
        for split, rows in source.rows.items():
            position = splits[source.name, split].position
            assert 0 < position < len(rows), f"split {split} of {source.name} is at {position} of {len(rows)}, not mid-way"
    if case.stateful:
        held = [h for op in manifest.operators for s in op.states if s.kind == "value" for h in s.handles]
        assert sum(int(h["rows"]) for h in held) > 0, "no state is held at the cut"
    if case.timers:
        timers = [h for op in manifest.operators for s in op.states if s.kind == "timer" for h in s.handles]
        reached = min(w[2] for op in manifest.operators for w in op.watermarks)
        assert any(int(h["max_due"]) > reached for h in timers), "no timer is pending at the cut"


def check_opened(folder: Path, before: dict[tuple[str, str], int]) -> None:
    """No split was opened below the position it was restored to."""
    if not before:
        return
    opened = [line.split() for line in (folder / "opened.log").read_text().splitlines()]
    assert opened, "nothing was opened"
    for _, source, split, position, _ in opened:
        assert int(position) >= before[source, split], f"split {split} was opened at {position}, below {before[source, split]}"
