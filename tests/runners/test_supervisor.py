"""No job ends without an outcome: an exception at every call of those who look after it, one run for each. (In `make conformance`; in
every run of the tests at every third call.)

The conductor's thread and the threads beside it (of commits, of collecting, of the line to the workers, of the Spark job, of epochs) are
looked at in three runs, where Spark is played by a few lines. What must hold of each: the job is over within some seconds, `status` and
`wait` say how, and if they say that it finished, every row is there once.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

import penstock as pen
from penstock import sinks, sources
from penstock.runners import batch, collecting, commits, conductor, job, local, publishing, settling, wishes
from penstock.runners.continuous import control, driver
from penstock.runners.options import resolve
from penstock.runners.spark import epochs
from penstock.runners.spark.levels import Level
from penstock.runners.spark.mail import SCHEMA
from runners.injecting import Injector, ends

EVERY = 1 if os.environ.get("PENSTOCK_CONFORMANCE") == "full" else 3
WITHIN_S = 20.0
ROWS = 60
ENDS = {"finished", "stopped", "failed", "superseded", "cancelled"}
SHARED: tuple[ModuleType, ...] = (conductor, commits, collecting, publishing, settling, wishes, job)


pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Hundreds of jobs fail here, each with a traceback."""
    logging.disable(logging.CRITICAL)
    raising, logging.raiseExceptions = logging.raiseExceptions, False
    monkeypatch.setattr(threading, "excepthook", lambda arguments: None)
    yield
    logging.disable(logging.NOTSET)
    logging.raiseExceptions = raising


def numbers(name: str, rate: int | None = 300) -> pen.Pipeline:
    pipeline = pen.Pipeline(name)
    rows = pipeline.read(sources.generate(lambda index, seed: {"n": index}, rows=ROWS, rate=rate, splits=1, schema="n bigint"))
    rows.write(sinks.memory(name))
    return pipeline


def check(running: pen.Job, name: str) -> None:
    """How a job has ended, whatever has happened to it."""
    assert running.conductor.halted.wait(WITHIN_S), "nobody hears of its end"
    status = running.status()
    assert status.state in ENDS, status
    raised = ""
    try:
        running.wait(timeout="10s")
    except pen.PenstockError as error:
        raised = str(error)
    said = f"{status.state}, {status.error!r}, and raised was {raised!r}"
    assert bool(raised) == (status.error is not None), said
    assert bool(raised) or status.state in ("finished", "stopped", "cancelled"), said
    if status.state == "finished" and status.error is None:
        assert sorted(row["n"] for row in sinks.memory(name).rows()) == list(range(ROWS))


def walk(injector: Injector, run: Callable[[], None], least: int) -> None:
    """Run with an exception at each call that was seen."""
    with injector.noting():
        thread = threading.Thread(target=run)
        thread.start()
        thread.join(WITHIN_S)
    calls = sorted(injector.seen)
    assert len(calls) >= least, "the run is too short, or nothing was noted"
    calls = calls[::EVERY]
    wrong, raised = {}, 0
    for call in calls:
        found = ends(run, call, injector, WITHIN_S)
        raised += injector.raised
        if found is not None:
            wrong[call] = found
    assert not wrong, "\n".join(f"{call}: {found}" for call, found in wrong.items())
    assert raised > len(calls) * 0.8, "most calls come again in another run"


# --- Local ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_exception_at_any_call_of_a_local_job_ends_it_with_an_outcome(tmp_path: Path) -> None:
    turn = iter(range(100_000))

    def run() -> None:
        name = f"local{next(turn)}"
        runner = pen.Local(parallelism=1, storage=tmp_path / name, snapshot_every="20ms", restarts=2, backoff="1ms")
        try:
            first = numbers(name).start(runner)
        except pen.PenstockError:
            return  # it never began, and says why
        time.sleep(0.05)
        began = time.monotonic()
        with contextlib.suppress(pen.JobError):
            first.savepoint(tmp_path / name / "savepoint", timeout="10s")
        assert time.monotonic() - began < 9, "whoever waits for a savepoint is told"
        first.cancel()
        assert first.status().state in ENDS
        try:
            second = numbers(name).start(runner)  # goes on from what was published
        except pen.PenstockError:
            return
        check(second, name)

    walk(Injector(*SHARED, local), run, least=150)


# --- Continuous: Spark is a function that fails -----------------------------------------------------------------------------------


class Dead(Exception):
    """Of a Spark that is gone: it cannot say what it is."""

    def __str__(self) -> str:
        raise ConnectionRefusedError(111, "Connection refused")


class Stage:
    """As much of an RDD as a barrier stage needs."""

    def __init__(self, collect: Callable[[], Any]) -> None:
        self.collect = collect

    def barrier(self) -> Stage:
        return self

    def mapPartitions(self, function: Any) -> Stage:
        return self


def fake_spark(collect: Callable[[], Any]) -> Any:
    context = SimpleNamespace(
        _gateway=SimpleNamespace(proc=SimpleNamespace(poll=lambda: None)),
        master="local[4]",
        environment={},
        setJobGroup=lambda *args, **more: None,
        cancelJobGroup=lambda group: None,
        parallelize=lambda rows, slices: Stage(collect),
    )
    return SimpleNamespace(sparkContext=context)


@pytest.fixture
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark.InheritableThread", threading.Thread)
    monkeypatch.setattr(driver, "wait_for_slots", lambda spark, wanted: None)
    monkeypatch.setattr(driver, "EXIT_S", 0.05)
    monkeypatch.setattr(driver, "CANCEL_S", 0.05)
    monkeypatch.setattr(driver, "NOTICE_S", 0.05)


@pytest.mark.slow
@pytest.mark.parametrize("error", [Dead(), None], ids=["failed", "returned"])
def test_an_exception_at_any_call_beside_a_spark_job_that_ends_is_an_outcome(
    tmp_path: Path, no_spark: None, error: Exception | None
) -> None:
    turn = iter(range(100_000))

    def collect() -> list[Any]:
        if error is not None:
            raise error
        return []

    spark = fake_spark(collect)

    def run() -> None:
        name = f"continuous{next(turn)}"
        options = resolve(name, {"storage": str(tmp_path / name), "restarts": 1, "backoff": "1ms", "parallelism": 1})
        check(
            pen.Job(
                conductor.Conductor(
                    numbers(name).plan(),
                    options,
                    runner="continuous",
                    parallelism=1,
                    restore="latest",
                    make_attempts=lambda conducting: driver.ContinuousAttempts(conducting, spark),
                )
            ),
            name,
        )

    walk(Injector(driver, control), run, least=40)


# --- epochs as Spark jobs: Spark is a loop ----------------------------------------------------------------------------------------


class Ticks:
    """As much of a DataFrame as `run_epoch` needs: partitions, and a function over each."""

    def __init__(self, partitions: list[list[pa.RecordBatch]]) -> None:
        self.partitions = partitions

    def mapInArrow(self, level: Level, schema: Any) -> Ticks:
        return Ticks([list(level(iter(batches))) for batches in self.partitions])

    def repartitionById(self, parallelism: int, column: str) -> Ticks:
        rows = pa.Table.from_batches([batch for batches in self.partitions for batch in batches], SCHEMA).to_pylist()
        random.Random(1).shuffle(rows)
        parts = [[row for row in rows if row[column] == target] for target in range(parallelism)]
        return Ticks([[pa.RecordBatch.from_pylist(part, SCHEMA)] for part in parts])

    def select(self, column: str) -> Ticks:
        return self

    def collect(self) -> list[tuple[bytes]]:
        return [(row["payload"],) for batches in self.partitions for batch in batches for row in batch.to_pylist()]


class Broadcast:
    def __init__(self, value: Any) -> None:
        self.value = value

    def destroy(self) -> None:
        pass


@pytest.mark.slow
def test_an_exception_at_any_call_of_a_job_of_epochs_ends_it_with_an_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn = iter(range(100_000))
    monkeypatch.setattr(epochs, "check_workers", lambda spark: None)
    monkeypatch.setattr(epochs, "check_hosts", lambda spark, conducting: None)
    monkeypatch.setattr(batch, "quiet_session", lambda spark: spark)
    ticks = Ticks([[pa.record_batch({"task": pa.array([0], pa.int32())})]])
    monkeypatch.setattr(batch, "task_rows", lambda session, tasks: ticks)
    monkeypatch.setattr("pyspark.serializers.CloudPickleSerializer.dumps", lambda self, value: pickle.dumps(id_of(value)))
    monkeypatch.setattr("pyspark.serializers.CloudPickleSerializer.loads", lambda self, data: KEPT[pickle.loads(data)])
    spark = fake_spark(list)
    spark.sparkContext.broadcast = Broadcast

    def run() -> None:
        name = f"batch{next(turn)}"
        options = resolve(name, {"storage": str(tmp_path / name), "restarts": 2, "backoff": "1ms", "parallelism": 1})

        def attempts(conducting: conductor.Conductor) -> epochs.EpochAttempts:
            return epochs.EpochAttempts(
                conducting,
                spark,
                lambda stamp: batch.JobThread(spark, conducting),
                epochs.Budget(100_000, 20),
                until_drained=True,
            )

        running = pen.Job(
            conductor.Conductor(
                numbers(name, None).plan(),
                options,
                runner="batch",
                parallelism=1,
                restore="latest",
                make_attempts=attempts,
                epoch_timeout=2_000_000,
                interval=0,
            )
        )
        check(running, name)

    walk(Injector(epochs, batch), run, least=60)


KEPT: dict[int, Any] = {}


def id_of(value: Any) -> int:
    """Functions of this file travel by reference: there is one process."""
    KEPT[id(value)] = value
    return id(value)
