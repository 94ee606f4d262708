"""Changes of state: each restored with the right answer or refused in so many words, in every runner.

All changes that can be kept are steps of one pipeline, so a runner restores them in one job; a refusal starts none.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as pen
from changes import programs
from changes.programs import CHANGES, REFUSED, Refused, pipeline, restored
from conformance import data, source
from conformance.oracle import by_epoch
from golden.checkpoints import goldens
from golden.checkpoints.write import make_rows, rows_read
from penstock import sinks, sources
from penstock.runners import faults
from penstock.testing import Simulated

ROWS = {split: make_rows(77 + number, split) for number, split in enumerate("ab")}
READ = {row["id"] for rows in ROWS.values() for row in rows[: len(rows) // 2]}


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """In memory, if that is possible: many small files, each to be safe on disk."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as found:
        yield Path(found)


@pytest.fixture(scope="module")
def before(folder: Path) -> Path:
    """What the old version of all steps leaves in the middle of the input: a storage, a savepoint, and what it had sent."""
    made = folder / "before"
    stopped(CHANGES, made)
    return made


@pytest.fixture(scope="module")
def refused(folder: Path) -> Path:
    made = folder / "refused"
    stopped(REFUSED, made)
    return made


def stopped(changes: Any, made: Path) -> None:
    made.mkdir()
    (made / "gate").write_text("0")
    job = pipeline(changes, "old", ROWS, made / "out", made).start(
        pen.Local(parallelism=2, storage=made / "storage", snapshot_every="50ms")
    )
    began = time.monotonic()
    while rows_read(job.conductor.manifest) < len(READ):
        assert time.monotonic() < began + 30, job.status()
        time.sleep(0.01)
    job.savepoint(made / "savepoint")
    job.stop(timeout="60s")


@pytest.fixture
def make_runner(request: pytest.FixtureRequest) -> Any:
    def make(name: str, storage: Path) -> Any:
        if name == "local":
            return pen.Local(parallelism=3, storage=storage)
        if name == "rocksdb":
            return pen.Local(parallelism=1, storage=storage, state="rocksdb")
        if name == "simulated":
            return Simulated(seed=1, parallelism=1, storage=storage, snapshot_every="200ms")
        from pyspark import cloudpickle

        spark = request.getfixturevalue("spark")
        for module in (programs, source, data):
            cloudpickle.register_pickle_by_value(module)
        return {"micro-batch": pen.MicroBatch, "continuous": pen.Continuous}[name](spark, parallelism=3, storage=storage)

    return make


ON_SPARK = [pytest.param(name, marks=pytest.mark.spark) for name in ("micro-batch", "continuous")]


def check(change: programs.Change, before: Path, out: Path) -> str:
    """What differs in the output of a step, if anything does. What the old version had sent stands, without what is new."""
    assert change.gives is not None
    by_key: dict[str, tuple[list[Any], list[Any]]] = defaultdict(lambda: ([], []))
    for rows in ROWS.values():
        for row in rows:
            by_key[row["k"]][row["id"] not in READ].append(row)
    expected = [row for k, rows in by_key.items() for row in change.gives(k, *rows)]
    names = sorted(expected[0])
    old, new = by_epoch(str(before / "out" / change.name)), by_epoch(str(out / change.name))
    if change.name in ("running", "aggregate-renamed", "aggregate-wider"):
        return goldens.compared(goldens.shown(goldens.standing(new, "latest", ["k"]), names), goldens.shown(expected, names))
    standing: Counter[str] = Counter()
    for rows in (old, new):
        for row in rows:
            (text,) = goldens.shown([row], names)
            standing[text] += row["change"]
    if change.name == "panes":
        return goldens.compared(+standing, goldens.shown(expected, names))
    sent = {identity(row) for row in old}
    found = goldens.shown(new, names)
    return goldens.compared(found, goldens.shown([row for row in expected if identity(row) not in sent], names))


def identity(row: Any) -> str:
    """Which window or key a row is of."""
    start = goldens.plain(row["window_start"]) if "window_start" in row else row.get("ids") or row.get("text")
    return json.dumps([row["k"], start])


@pytest.mark.parametrize(
    ("runner", "start"),
    [
        ("local", "latest"),
        ("local", "savepoint"),
        ("simulated", "latest"),
        ("simulated", "savepoint"),
        ("rocksdb", "savepoint"),
        pytest.param("micro-batch", "latest", marks=pytest.mark.spark),
        pytest.param("continuous", "savepoint", marks=pytest.mark.spark),
    ],
)
def test_state_that_grew_is_restored_and_goes_on_in_a_second_start_of_the_same_program(
    before: Path, folder: Path, make_runner: Any, runner: str, start: str
) -> None:
    made = folder / f"{runner}-{start}"
    made.mkdir()
    storage = made / "storage"
    if start == "latest":
        copy(before / "storage", storage)
    new = pipeline(CHANGES, "new", ROWS, made / "out", made)
    restore = restored(CHANGES, "latest" if start == "latest" else before / "savepoint")
    (made / "gate").write_text("0")
    new.start(make_runner(runner, storage), restore=restore).stop(timeout="240s")
    (made / "gate").unlink()
    # The same program again, with the line it has: what was said is done, and drops, renames and begins nothing a second time.
    new.start(make_runner(runner, storage), restore=restored(CHANGES, "latest")).wait(timeout="240s")
    wrong = {change.name: text for change in CHANGES if (text := check(change, before, made / "out"))}
    assert wrong == {}, "\n".join(f"{name}: {text}" for name, text in wrong.items())


def copy(source: Path, target: Path) -> None:
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.sock", "control*"))


@pytest.mark.parametrize("runner", ["local", *ON_SPARK])
@pytest.mark.parametrize("change", REFUSED, ids=lambda change: change.name)
def test_what_cannot_be_kept_is_refused_before_the_first_row(
    refused: Path, tmp_path: Path, make_runner: Any, runner: str, change: Refused
) -> None:
    copy(refused / "storage", tmp_path / "storage")
    changed = [Refused(each.name, each.old, each.new if each is change else each.old, "", "") for each in REFUSED]
    pipe = pipeline(changed, "new", ROWS, tmp_path / "out", tmp_path)
    with pytest.raises(pen.RestoreError) as error:
        pipe.start(make_runner(runner, tmp_path / "storage")).wait(timeout="120s")
    assert error.value.message == change.message
    assert error.value.fix is not None
    assert error.value.fix.text == change.fix
    assert not (tmp_path / "opened.log").exists(), "something was read"


def windows(*, more: bool) -> pen.Pipeline:
    """Windows of a thousand rows' time, over numbers that come for ever."""

    def rows(index: Any, seed: int) -> dict[str, Any]:
        return {"k": index % 3, "v": index, "at": np.datetime64("2026-01-01", "us") + index * np.timedelta64(1, "ms")}

    p = pen.Pipeline("windows")
    stream = p.read(sources.generate(rows, schema="k bigint, v bigint, at timestamp", rate=2000, name="numbers"))
    keyed = stream.with_watermark("at", delay="0s").key_by("k").window(pen.tumbling("1s"))
    aggregates: dict[str, Any] = {"n": pen.count(), **({"most": pen.col("v").max()} if more else {})}
    keyed.aggregate(**aggregates, name="counts").write(sinks.foreach_batch(ignored, idempotent=True), name="out")
    return p


def ignored(rows: Any, epoch: pen.Epoch) -> None: ...


def test_status_names_what_counts_from_the_restore_until_the_windows_of_then_have_closed(tmp_path: Path) -> None:
    def start(*, more: bool) -> pen.Job:
        return windows(more=more).start(pen.Local(storage=tmp_path, snapshot_every="20ms"))

    def until(job: pen.Job, what: Any) -> None:
        began = time.monotonic()
        while not what():
            assert time.monotonic() < began + 60, job.status()
            time.sleep(0.002)

    job = start(more=False)
    until(job, lambda: job.conductor.epochs_published >= 5)
    job.stop()
    assert job.status().incomplete == ()
    job = start(more=True)
    job.stop()  # at once: the next start still knows
    job = start(more=True)
    (told,) = job.status().incomplete
    assert told.startswith("counts.most counts from epoch ")
    assert "windows that were open then" in told
    until(job, lambda: not job.status().incomplete)
    job.stop()
    assert start_and_look(start(more=True)) == ()


def start_and_look(job: pen.Job) -> tuple[str, ...]:
    with job:
        return job.status().incomplete


def test_a_first_attempt_that_fails_after_the_restore_is_followed_by_one_that_converts_again(
    before: Path, folder: Path, make_runner: Any
) -> None:
    made = folder / "second attempt"
    made.mkdir()
    copy(before / "storage", made / "storage")
    attempts = []

    def fail(point: str, epoch: int) -> None:
        if point == "store.before":
            attempts.append(epoch)
            if len(attempts) == 1:
                raise OSError("not this time")

    faults.hook = fail
    try:
        runner = pen.Local(parallelism=3, storage=made / "storage", backoff="10ms")
        pipeline(CHANGES, "new", ROWS, made / "out", made).run(runner, restore=restored(CHANGES, "latest"))
    finally:
        faults.hook = None
    assert len(attempts) > 1
    assert {change.name: text for change in CHANGES if (text := check(change, before, made / "out"))} == {}


def kept(rows: int, out: Any, **aggregates: Any) -> pen.Pipeline:
    def made(index: Any, seed: int) -> dict[str, Any]:
        return {"k": index % 2, "v": index}

    numbers = sources.generate(made, schema="k bigint, v bigint", rate=1_000_000, rows=rows, splits=1, name="numbers")
    p = pen.Pipeline("kept")
    return p.read(numbers).key_by("k").aggregate(n=pen.count(), **aggregates, name="kept").write(out, name="out")


def latest(out: Any) -> dict[int, Any]:
    return {row["k"]: row for row in out.rows()}


def test_many_values_of_a_key_go_where_their_aggregate_goes(tmp_path: Path) -> None:
    """They stand in tables of their own, which are renamed and dropped with it."""
    ids, different = pen.col("v").collect(), pen.col("v").count_distinct()
    one, two, three, four = (sinks.memory(f"many-values-{number}") for number in range(4))
    runner = pen.Local(parallelism=2, storage=tmp_path)
    kept(400, one, ids=ids, different=different).run(runner)
    with pytest.raises(pen.RestoreError) as error:
        kept(600, two, everything=ids, different=different).run(runner)
    assert error.value.fix is not None
    assert error.value.fix.id == "restore.aggregate-removed"
    renamed = pen.Restore("latest", rename={"kept.ids": "kept.everything"})
    kept(600, two, everything=ids, different=different).run(runner, restore=renamed)
    assert latest(two)[1] == {"k": 1, "n": 300, "everything": list(range(1, 600, 2)), "different": 300}
    kept(800, three, different=different).run(runner, restore=pen.Restore("latest", drop=["kept.everything"]))
    assert latest(three)[0] == {"k": 0, "n": 400, "different": 400}
    again = pen.Restore("latest", start_empty=["kept.ids"])
    kept(1000, four, ids=ids, different=different).run(runner, restore=again)
    assert latest(four)[0] == {"k": 0, "n": 500, "ids": list(range(800, 1000, 2)), "different": 500}
