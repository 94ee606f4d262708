"""What older commits wrote restores with the right answer, in every runner: from the newest checkpoint and from a savepoint.

The files and the pipelines are in `golden/checkpoints`; the answers are computed there without Penstock.
"""

from __future__ import annotations

import copy
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock as pen
from conformance import data, source
from golden.checkpoints import answers, goldens, pipelines
from golden.checkpoints.pipelines import GOLDEN
from penstock.checkpoints.log import Log
from penstock.checkpoints.repository import open_savepoint
from penstock.checkpoints.storage import open_store
from penstock.testing import Simulated

FULL = os.environ.get("PENSTOCK_CONFORMANCE") == "full"

START = [
    (commit, name, kind)
    for commit in goldens.COMMITS
    for name in GOLDEN
    for kind in ("latest", "savepoint")
    if kind == "latest" or goldens.has_savepoint(commit, name)
]
IN_PROCESS = [("local", 1, "savepoint"), ("local", 3, "latest"), ("simulated", 2, ""), ("local", 2, "in full")]
ON_SPARK = [("micro-batch", 3), ("continuous", 2), ("batch", 1)]
FEW = {  # each golden once, and each runner from either
    ("aggregates", "savepoint", "continuous"),
    ("windows", "latest", "micro-batch"),
    ("joins", "latest", "continuous"),
    ("process", "savepoint", "micro-batch"),
    ("calls", "latest", "continuous"),
    ("pending", "latest", "batch"),
    ("in-flight", "latest", "micro-batch"),
    ("files", "latest", "continuous"),
    ("joins", "savepoint", "batch"),
}


@pytest.fixture
def tmp() -> Iterator[Path]:
    """A folder in memory, if there is one: each restore writes hundreds of small files, each to be safe on disk."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as folder:
        yield Path(folder)


@pytest.fixture
def make_runner(request: pytest.FixtureRequest) -> Any:
    """Runners by name; Spark starts with the first that needs it."""

    def make(name: str, parallelism: int, storage: Path) -> Any:
        if name == "simulated":
            return Simulated(seed=parallelism, parallelism=parallelism, storage=storage, snapshot_every="200ms")
        if name == "local":
            return pen.Local(parallelism=parallelism, storage=storage, snapshot_every="200ms")
        from pyspark import cloudpickle

        spark = request.getfixturevalue("spark")
        for module in (pipelines, source, data):
            cloudpickle.register_pickle_by_value(module)
        kind = {"micro-batch": pen.MicroBatch, "continuous": pen.Continuous, "batch": pen.Batch}[name]
        return kind(spark, parallelism=parallelism, storage=storage)

    return make


def restored(commit: str, name: str, kind: str, runner: Any, tmp: Path) -> dict[str, Any]:
    """Go on from a golden checkpoint to the end of the input; what is expected of `out`."""
    told = goldens.unpack(commit, name, tmp)
    pipeline = GOLDEN[name].pipeline(told["input"], tmp / "out", tmp)
    job = pipeline.start(runner, restore="latest" if kind == "latest" else tmp / "savepoint")
    job.wait(timeout="240s")
    if not GOLDEN[name].files:
        opened = [line.split() for line in (tmp / "opened.log").read_text().splitlines()]
        assert all(int(line[3]) for line in opened), f"the job began anew: {opened}"
    expected: dict[str, Any] = told["expected"]
    return expected


def storage_of(kind: str, tmp: Path) -> Path:
    return tmp / ("storage" if kind == "latest" else "storage-of-its-own")


def check_restore(commit: str, name: str, kind: str, runner: str, parallelism: int, make_runner: Any, tmp: Path) -> None:
    expected = restored(commit, name, kind, make_runner(runner, parallelism, storage_of(kind, tmp)), tmp)
    goldens.check(tmp / "out", expected)


@pytest.mark.parametrize(
    ("commit", "name", "kind", "runner", "parallelism"),
    [(*start, *runner) for start in START for *runner, only in IN_PROCESS if FULL or only in ("", start[2])],
)
def test_an_old_checkpoint_goes_on_with_the_right_answer(
    commit: str, name: str, kind: str, runner: str, parallelism: int, make_runner: Any, tmp: Path
) -> None:
    check_restore(commit, name, kind, runner, parallelism, make_runner, tmp)


@pytest.mark.spark
@pytest.mark.parametrize(
    ("commit", "name", "kind", "runner", "parallelism"),
    [(*start, *runner) for start in START for runner in ON_SPARK if FULL or (*start[1:], runner[0]) in FEW],
)
def test_an_old_checkpoint_goes_on_with_the_right_answer_on_spark(
    commit: str, name: str, kind: str, runner: str, parallelism: int, make_runner: Any, tmp: Path
) -> None:
    check_restore(commit, name, kind, runner, parallelism, make_runner, tmp)


@pytest.mark.parametrize(("commit", "name", "kind"), START)
def test_an_old_checkpoint_holds_something_of_everything(commit: str, name: str, kind: str, tmp: Path) -> None:
    goldens.unpack(commit, name, tmp)
    if kind == "savepoint":
        manifest, _ = open_savepoint(tmp / "savepoint")
    else:
        newest = Log(open_store(tmp / "storage" / name)).read_newest()
        assert newest is not None
        manifest = newest.manifest
    states = [state for op in manifest.operators for state in op.states]
    assert {state.name for state in states if state.handles} == {state.name for state in states}, (
        "a state of no step holds anything"
    )
    assert not manifest.finished
    assert (len({entry.sink for entry in manifest.pending}) == 3) == (name == "pending")
    assert (len({entry.step for entry in manifest.in_flight}) >= 2) == (name == "in-flight")


@pytest.mark.parametrize("name", GOLDEN)
@pytest.mark.parametrize("commit", goldens.COMMITS)
def test_the_answers_are_those_that_plain_python_gives(commit: str, name: str, tmp: Path) -> None:
    told = goldens.unpack(commit, name, tmp)
    assert told["expected"] == answers.expected(name, told["input"])


def test_a_wrong_answer_is_noticed(make_runner: Any, tmp: Path) -> None:
    expected = restored(goldens.COMMITS[0], "pending", "latest", make_runner("local", 2, tmp / "storage"), tmp)
    for folder in expected:
        for change in (lambda row: row.update(n=row.get("n", 0) + 1), lambda row: row.clear()):
            wrong = copy.deepcopy(expected)
            change(wrong[folder]["rows"][-1])
            with pytest.raises(AssertionError, match=f"{folder}: .* 1 missing, 1 too many"):
                goldens.check(tmp / "out", wrong)
    goldens.check(tmp / "out", expected)
