"""Every transcript (`golden/transcripts`) played by tasks alone and on every runner."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock as pen
from penstock.testing import Simulated
from transcripts import build, drivers, judge, script, shapes, source
from transcripts.script import Transcript

TRANSCRIPTS = script.load()
FILES = (
    "boundaries",
    "calendar",
    "chains",
    "counts",
    "custom",
    "emit",
    "panes",
    "processing",
    "running",
    "sessions",
    "sliding",
    "triggers",
)

each = pytest.mark.parametrize("number", range(len(TRANSCRIPTS)), ids=[t.name for t in TRANSCRIPTS])

Played = tuple[build.Result, judge.Outcome]


def test_no_transcript_is_missing() -> None:
    assert {file.stem for file in script.FOLDER.glob("*.yaml")} == set(FILES)
    assert len(TRANSCRIPTS) >= 60


# --- tasks alone
# ----------------------------------------------------------------------------------------------------------------------------------


@each
def test_played_by_hand(number: int) -> None:
    by_hand(TRANSCRIPTS[number], rows_max=1000, parallelisms=[1])


@each
def test_played_by_hand_row_by_row_with_a_restore_before_each_step(number: int) -> None:
    by_hand(TRANSCRIPTS[number], rows_max=1, parallelisms=[1, 3, 2])


def by_hand(transcript: Transcript, **how: Any) -> None:
    judge.judge(transcript, *drivers.by_hand(transcript, **how))


# --- jobs of many transcripts
# ----------------------------------------------------------------------------------------------------------------------------------

GROUPS = {
    "short": [i for i, t in enumerate(TRANSCRIPTS) if not t.clocked and len(t.steps) <= 5],
    "long": [i for i, t in enumerate(TRANSCRIPTS) if not t.clocked and len(t.steps) > 5],
    "clocked": [i for i, t in enumerate(TRANSCRIPTS) if t.clocked],
}
"""Transcripts that share a job: what each phase costs grows with the job, so those with many steps are apart."""


def played(name: str, runner: Callable[[Path], Any], tmp: Path, *, at_once: bool = False) -> dict[int, Played]:
    """What a runner makes of each transcript."""
    found: dict[int, Played] = {}
    for group, members in {"all": [*range(len(TRANSCRIPTS))]}.items() if at_once else GROUPS.items():
        folder = tmp / f"{name}-{group}"
        folder.mkdir()
        play = drivers.Play(folder.name, [TRANSCRIPTS[i] for i in members], folder, at_once=at_once)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PENSTOCK_TIME_FILE", str(play.clock))
            outcomes = play.run(runner(folder))
        found |= dict(zip(members, zip(play.results, outcomes)))
    return found


@pytest.fixture(scope="module")
def tmp() -> Iterator[Path]:
    """A folder in memory, if there is one: jobs here write thousands of small files, each to be safe on disk."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def shipped(spark: Any) -> Iterator[Any]:
    """Spark, with these modules sent along."""
    from pyspark import cloudpickle

    modules = (build, drivers, judge, script, shapes, source)
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    yield spark
    for module in modules:
        cloudpickle.unregister_pickle_by_value(module)


@pytest.fixture(scope="module")
def local(tmp: Path) -> dict[int, Played]:
    return played("local", lambda folder: pen.Local(storage=folder, snapshot_every="5ms", restarts=0), tmp)


@pytest.fixture(scope="module")
def simulated(tmp: Path) -> dict[int, Played]:
    options = {"parallelism": 2, "snapshot_every": "50ms", "restarts": 0}
    return played("simulated", lambda folder: Simulated(seed=3, storage=folder, **options), tmp)


@pytest.fixture(scope="module")
def micro_batch(shipped: Any, tmp: Path) -> dict[int, Played]:
    options = {"parallelism": 2, "snapshot_every": "10ms", "restarts": 0}
    return played("micro-batch", lambda folder: pen.MicroBatch(shipped, storage=folder, **options), tmp)


@pytest.fixture(scope="module")
def continuous(shipped: Any, tmp: Path) -> dict[int, Played]:
    options = {"parallelism": 2, "snapshot_every": "50ms", "restarts": 0}
    return played("continuous", lambda folder: pen.Continuous(shipped, storage=folder, **options), tmp)


@pytest.fixture(scope="module")
def batch(shipped: Any, tmp: Path) -> dict[int, Played]:
    return played("batch", lambda folder: pen.Batch(shipped, parallelism=2, storage=folder), tmp, at_once=True)


RUNNERS = [
    "local",
    pytest.param("simulated", marks=pytest.mark.slow),
    pytest.param("micro_batch", marks=pytest.mark.spark),
    pytest.param("continuous", marks=pytest.mark.spark),
]


@pytest.mark.parametrize("runner", RUNNERS)
@each
def test_played_on_a_runner(runner: str, number: int, request: pytest.FixtureRequest) -> None:
    judge.judge(TRANSCRIPTS[number], *request.getfixturevalue(runner)[number])


@pytest.mark.spark
@each
def test_a_batch_loses_no_row(number: int, batch: dict[int, Played]) -> None:
    judge.conserved(TRANSCRIPTS[number], *batch[number], watermarks=False)
