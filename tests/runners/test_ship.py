"""Workers run the very code the driver runs, or the job says so before it reads a row."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.errors import RunnerError
from penstock.runners.spark import daemon, session, ship


@pytest.mark.spark
def test_workers_that_run_the_same_code_are_let_in(spark: Any) -> None:
    ship.check_workers(spark, tasks=2)


@pytest.mark.spark
def test_workers_that_run_other_code_are_refused_and_both_are_named(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = ship.ship(spark)
    monkeypatch.setattr(ship, "ship", lambda spark: "penstock 9 (elsewhere) on Python 3.11")
    with pytest.raises(RunnerError, match="different code") as caught:
        ship.check_workers(spark)
    assert "Driver: penstock 9 (elsewhere)" in str(caught.value)
    assert f"Worker: {ours}, by {ship.place()}" in str(caught.value)
    assert f"\n  {ship.same_python().text}" in str(caught.value)


@pytest.mark.spark
def test_workers_without_the_package_are_refused_in_a_line(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*, by_content: bool) -> str:
        raise ModuleNotFoundError("No module named 'penstock'")

    monkeypatch.setattr(ship, "ship", lambda spark: "ours")
    monkeypatch.setattr(ship, "identity", missing)  # as the worker sees it
    with pytest.raises(RunnerError) as caught:
        ship.check_workers(spark)
    said = f"the workers' Python cannot import what it needs: {spark.sparkContext.pythonExec} on "
    assert str(caught.value).startswith(said)
    assert caught.value.message.endswith(": ModuleNotFoundError: No module named 'penstock'")


def test_what_was_wrong_is_found_in_pages_of_text() -> None:
    text = "An error occurred\n at a\n  [PYTHON_VERSION_MISMATCH] Python in worker has 3.9\n at b"
    assert ship.job_error(RuntimeError(text)) == "[PYTHON_VERSION_MISMATCH] Python in worker has 3.9"
    assert ship.job_error(RuntimeError("first\nsecond")) == "first"
    assert ship.job_error(RuntimeError()) == "RuntimeError"
    py4j = "An error occurred while calling o47.collect.\n: org.apache.spark.SparkException: Job aborted\n\tat a"
    assert ship.job_error(RuntimeError(py4j)) == "org.apache.spark.SparkException: Job aborted"


LOST = "Job aborted due to stage failure: Lost task 0.0 in stage 0.0 (TID 0) (node7 executor 3): "
SPARK = SimpleNamespace(sparkContext=SimpleNamespace(pythonExec="python3.9", master="spark://a:7077"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            LOST
            + 'java.io.IOException: Cannot run program "/no/python": Exec failed, error: 2 (No such file or directory) \n at a',
            "the workers' Python cannot be started: /no/python on node7: No such file or directory",
        ),
        (
            LOST + 'java.io.IOException: Cannot run program "/no/python" (in directory "."): error=13, Permission denied\n at a',
            "the workers' Python cannot be started: /no/python on node7: Permission denied",
        ),
        (
            LOST
            + "PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.9 than that in driver:"
            " 3.11, PySpark cannot run with different minor versions.\n at a",
            f"driver and workers run different Pythons. Driver: 3.11, by {ship.place()}. Worker: 3.9, by python3.9 on node7",
        ),
        (
            LOST + "PythonException: Traceback\n  File x\nModuleNotFoundError: No module named 'pyarrow'\n\n at a",
            "the workers' Python cannot import what it needs: python3.9 on node7: ModuleNotFoundError: No module named 'pyarrow'",
        ),
        (
            LOST + "SparkException: \nError from python worker:\n  Illegal instruction\nPYTHONPATH was: /x",
            "the workers' Python ends when it is started: python3.9 on node7: Illegal instruction",
        ),
        (
            LOST
            + "SparkException: EOFException occurred while reading the port number from pyspark.daemon's stdout and terminated with"
            " code: 1..\n at a",
            "the workers' Python ends when it is started, without a word, with code 1: python3.9 on node7",
        ),
        (
            LOST + "SparkException: EOFException occurred while reading the port number from pyspark.daemon's stdout\n at a",
            "the workers' Python ends when it is started, without a word: python3.9 on node7",
        ),
        (
            LOST + "SparkException: \nBad data in pyspark.daemon's standard output. Invalid port number/socket path:\n"
            "  1466264675 (0x57656c63)\nPython command to execute the daemon was:\n  python3.9 -m pyspark.daemon\n at a",
            "the workers' Python prints something when it is started, where Spark reads a number: python3.9 on node7: 'Welc' …",
        ),
    ],
)
def test_workers_that_cannot_start_are_told_with_interpreter_and_host(text: str, said: str) -> None:
    trouble = ship.worker_trouble(text, SPARK)
    assert trouble is not None
    assert trouble.message == said


def test_other_failures_of_a_spark_job_are_no_trouble_of_workers() -> None:
    assert ship.worker_trouble(LOST + "java.lang.OutOfMemoryError: heap", SPARK) is None


OTHER_PYTHON = """
import os, sys
os.environ["PYSPARK_PYTHON"] = sys.argv[1]
import penstock as pen
from penstock import sinks, sources
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").config("spark.log.level", "OFF").getOrCreate()
for runner in (pen.Continuous(spark, parallelism=1), pen.MicroBatch(spark, parallelism=1)):
    try:
        pen.Pipeline("w").read(sources.memory([1], schema=int)).write(sinks.memory("w")).run(runner)
    except pen.PenstockError as error:
        print(type(error).__name__, error)
"""


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "said"),
    [
        (None, "the workers' Python cannot be started: "),
        ("exit 1", "the workers' Python ends when it is started, without a word"),
        ("echo Welcome", "the workers' Python prints something when it is started, where Spark reads a number: "),
    ],
)
def test_a_python_that_cannot_be_started_is_one_error_and_no_more_attempts(script: str | None, said: str, tmp_path: Path) -> None:
    python = tmp_path / "python"
    if script is not None:
        python.write_text(f'#!/bin/sh\n{script}\nexec "{sys.executable}" "$@"\n')
        python.chmod(0o755)
    code = [sys.executable, "-c", OTHER_PYTHON, str(python)]
    ended = subprocess.run(code, capture_output=True, text=True, timeout=240, check=False)
    assert ended.stdout.count(said) == 2, ended.stdout + ended.stderr
    assert ended.stdout.count(f": {python} on ") == 2, ended.stdout
    assert ended.stdout.count(ship.same_python().text) == 2
    assert "attempt 2 of w failed" not in ended.stderr


def test_the_package_travels_with_all_its_sources(tmp_path: Path) -> None:
    with zipfile.ZipFile(ship.package_zip(tmp_path / "penstock.zip")) as archive:
        names = set(archive.namelist())
        assert archive.read("penstock/runners/spark/ship.py") == Path(ship.__file__).read_bytes()
    assert {"penstock/__init__.py", "penstock/py.typed", "penstock/protocol/coordinator.py"} <= names
    assert not [name for name in names if "__pycache__" in name]


@pytest.mark.spark
def test_workers_are_forks_of_a_process_that_has_imported_what_they_need(spark: Any) -> None:
    ship.check_workers(spark)
    parents = spark.sparkContext.parallelize([0], 1).map(lambda _: os.getppid()).collect()
    command = Path(f"/proc/{parents[0]}/cmdline").read_text().split("\0")
    assert session.DAEMON in command
    threads = [file.read_text().strip() for file in Path(f"/proc/{parents[0]}/task").glob("*/comm")]
    assert len(threads) <= 2, "but for one of Arrow's allocator there are none: they would be missing in the workers"


def test_a_worker_that_java_has_hung_up_on_ends_without_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        raise BrokenPipeError(32, "Broken pipe")
    except OSError:
        daemon.print_failure()
    assert capsys.readouterr() == ("", "")
    try:
        raise ValueError("something else")
    except ValueError:
        daemon.print_failure()
    assert "ValueError: something else" in capsys.readouterr().err


def test_without_an_installed_package_workers_come_from_sparks_own_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    assert session.forks() == {"spark.python.daemon.module": daemon.__name__}

    def missing(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", missing)
    assert session.forks() == {}


ENDING = """
import os, time
from penstock.runners.spark import session, ship

spark = session.make_session(2)
ship.check_workers(spark, tasks=2)
java = spark.sparkContext._gateway.proc.pid
assert session.daemons_of(java), "the workers are kept for the next job"
session.dismiss_workers(os.getppid(), java)  # another process: as a fork of ours would
assert session.daemons_of(java)
session.dismiss_workers(os.getpid(), java)
while session.daemons_of(java):
    time.sleep(0.01)
print("all gone")
"""


@pytest.mark.spark
def test_workers_end_without_a_word_with_the_process_that_made_their_spark() -> None:
    ended = subprocess.run([sys.executable, "-c", ENDING], capture_output=True, text=True, timeout=120, check=False)
    assert ended.stdout == "all gone\n", ended.stderr
    assert "Error" not in ended.stderr


def test_sockets_whose_paths_would_be_too_long_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/tmp")
    assert session.sockets() == {"spark.python.unix.domain.socket.enabled": "true"}
    monkeypatch.setattr(tempfile, "tempdir", "/tmp/" + "a" * 60)
    assert session.sockets() == {"spark.python.unix.domain.socket.enabled": "false"}
