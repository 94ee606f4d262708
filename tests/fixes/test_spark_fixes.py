"""The fixes of what is wrong with a Spark, or with its session, before the first row: of `penstock.runners`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import penstock as pen
from fixes.applying import argument, code_of, evaluate, shown
from fixes.test_state_fixes import LETTERS, counts, installs
from penstock.runners.spark import session as sessions

RUNNERS = [pen.MicroBatch, pen.Batch, pen.Continuous]


def started(spark: Any, setting: str) -> Any:
    """The same session, as it is if its Spark was started with one more setting, `key=value`."""
    context, (key, _, value) = spark.sparkContext, setting.partition("=")
    with_it = SimpleNamespace(
        _jsc=context._jsc,
        master=context.master,
        startTime=context.startTime,
        getConf=lambda: context.getConf().set(key, value),
    )
    return SimpleNamespace(_jsparkSession=spark._jsparkSession, sparkContext=with_it)


# --- sessions

CONNECT = SimpleNamespace()  # a session of Spark Connect has no Java behind it
STOPPED = SimpleNamespace(_jsparkSession=object(), sparkContext=SimpleNamespace(_jsc=None))


@pytest.mark.spark
@pytest.mark.parametrize("runner", RUNNERS)
def test_a_job_that_was_given_a_spark_connect_session_runs_on_a_spark_in_its_own_process(spark: Any, runner: Any) -> None:
    from pyspark.sql import SparkSession

    (code,) = code_of(shown("spark.connect", lambda: counts(runner(CONNECT, parallelism=2))))
    assert counts(runner(evaluate(code, SparkSession=SparkSession), parallelism=2)) == LETTERS


@pytest.mark.spark
@pytest.mark.parametrize("runner", RUNNERS)
def test_a_session_that_was_stopped_is_left_out_or_made_anew(spark: Any, runner: Any) -> None:
    from pyspark.sql import SparkSession

    text = shown("spark.stopped", lambda: counts(runner(STOPPED, parallelism=2)))
    assert text.startswith("Leave spark= out")
    (code,) = code_of(text)
    assert counts(runner(parallelism=2)) == LETTERS
    assert counts(runner(evaluate(code, SparkSession=SparkSession), parallelism=2)) == LETTERS


SUBMITTED = """
from pyspark.sql import SparkSession
import penstock as pen
from fixes.applying import code_of, evaluate, shown
from fixes.test_state_fixes import LETTERS, counts

spark = SparkSession.builder.getOrCreate()
assert counts(pen.MicroBatch(spark, parallelism=1)) == LETTERS
spark.stop()
(code,) = code_of(shown("spark.stopped", lambda: counts(pen.MicroBatch(spark))))
assert counts(pen.MicroBatch(evaluate(code), parallelism=1)) == LETTERS
print("submitted, stopped, and started again")
"""


@pytest.mark.spark
@pytest.mark.slow
def test_a_program_that_is_submitted_has_spark_in_its_own_process_until_it_stops_it(tmp_path: Path) -> None:
    import pyspark

    (command,) = {word.strip(",") for word in connect_fix().split() if word.startswith("spark-")}
    program = tmp_path / "program.py"
    program.write_text(SUBMITTED)
    submit = Path(pyspark.__file__).parent / "bin" / command
    done = subprocess.run(
        [submit, "--master", "local[2]", program],
        env={
            **os.environ,
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "SPARK_LOCAL_IP": "127.0.0.1",
        },
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert "submitted, stopped, and started again" in done.stdout, done.stderr


def connect_fix() -> str:
    return shown("spark.connect", lambda: sessions.check_session(CONNECT, slots=1))


# --- Spark itself


def test_the_package_that_spark_needs_is_installed_by_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    for runner in RUNNERS:
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, "pyspark", None)
            text = shown("spark.missing", lambda runner=runner: counts(runner()))
        assert "pyspark" in installs(text)
    sessions.require_pyspark()


@pytest.mark.spark
def test_executors_stay_with_the_setting_that_is_proposed(spark: Any) -> None:
    comes_and_goes = started(spark, "spark.dynamicAllocation.enabled=true")
    text = shown("spark.dynamic", lambda: counts(pen.Continuous(comes_and_goes, parallelism=2)))
    flag, setting = text.partition(": ")[2].split()
    assert flag == "--conf"
    sessions.check_session(started(spark, setting), slots=2)


@pytest.mark.spark
@pytest.mark.parametrize("runner", [pen.MicroBatch, pen.Batch])
def test_executors_elsewhere_need_a_storage(spark: Any, runner: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sessions, "hosts_of", lambda spark: {"localhost", "node7"})
    (storage,) = argument(shown("cluster.no_storage", lambda: counts(runner(spark, parallelism=2))))
    assert runner(storage=storage).options("letters").storage == storage
    assert counts(runner(spark, parallelism=2, storage=str(tmp_path))) == LETTERS  # a mount like that one


# --- state that a runner cannot keep


@pytest.mark.spark
@pytest.mark.parametrize("runner", [pen.MicroBatch, pen.Batch])
def test_a_runner_whose_tasks_end_keeps_columns_and_another_keeps_rocksdb(spark: Any, runner: Any) -> None:
    columnar, other = code_of(shown("rocksdb.runner", lambda: counts(runner(spark, parallelism=2, state="rocksdb"))))
    assert counts(runner(spark, parallelism=2, **evaluate(f"dict({columnar})"))) == LETTERS
    assert counts(evaluate(other)) == LETTERS
