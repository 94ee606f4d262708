"""A cluster on this machine: executors in processes of their own, one of which may have another file system than the driver.

Each program runs in a process of its own, since a process has one Spark. Workers of the executor that is to be on "another host" are
started in a mount namespace in which something else lies over the storage; where that is not allowed, the tests say so.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from penstock.runners.control import newest_in
from penstock.runners.spark import session as sessions

FULL = os.environ.get("PENSTOCK_CONFORMANCE") == "full"
"""Three processes of Java take half a minute to start: the other runners have their turn in `make conformance`."""
PROGRAM = """
import sys
from pyspark.sql import SparkSession
import penstock as pen
from penstock import sinks, sources

kind, storage = sys.argv[1:]
spark = SparkSession.builder.master("local-cluster[2,1,1024]").config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.setLogLevel("OFF")

def numbers(index, seed):
    return {"n": index}

runner = {"microbatch": pen.MicroBatch, "batch": pen.Batch, "continuous": pen.Continuous}[kind]
out = sinks.memory("out")
p = pen.Pipeline("shared")
rows = p.read(sources.generate(numbers, schema="n bigint not null", rows=1000, splits=4))
rows.key_by("n % 7 as k").aggregate(n=pen.count(), name="totals").write(out)
options = {} if storage == "none" else {"storage": storage}
try:
    job = p.run(runner(spark, restarts=0, **options) if kind != "batch" else runner(spark, **options))
    print("rows", sum(row["n"] for row in out.rows()), "tasks", job.conductor.parallelism, flush=True)
except pen.PenstockError as error:
    print("refused:", " | ".join(str(error).splitlines()), flush=True)
spark.stop()
"""


@functools.cache
def no_namespaces() -> str:
    """Why there can be no other file system here; empty if there can."""
    if shutil.which("unshare") is None:
        return "there is no unshare on this machine"
    tried = subprocess.run(["unshare", "-m", "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, text=True, check=False)
    return "" if tried.returncode == 0 else f"this process may not mount: {tried.stderr.strip()}"


def run(folder: Path, kind: str, *, hidden: Path | None = None, storage: str = "none") -> str:
    """What the program prints. `hidden`: a folder that the workers of one executor do not see."""
    program, python = folder / "program.py", folder / "python"
    program.write_text(PROGRAM)
    other = f'unshare -m sh -c \'mount -t tmpfs none {hidden} && exec "$0" "$@"\'' if hidden else ""
    python.write_text(
        textwrap.dedent(f"""\
            #!/bin/sh
            if [ -n "{hidden or ""}" ] && mkdir {folder}/taken 2>/dev/null; then
                exec {other} {sys.executable} "$@"
            fi
            exec {sys.executable} "$@"
            """)
    )
    python.chmod(0o755)
    done = subprocess.run(
        [sys.executable, str(program), kind, storage],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "PYSPARK_PYTHON": str(python),
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "SPARK_SCALA_VERSION": "2.13",
            "SPARK_LOCAL_IP": "127.0.0.1",
            "TMPDIR": str(folder / "tmp"),
        },
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith(("rows", "refused"))]
    assert len(lines) == 1, done.stdout
    return lines[0]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tmp").mkdir()
    (tmp_path / "storage").mkdir()
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*(["microbatch"] if FULL else []), "continuous"])
def test_a_cluster_that_shares_its_storage_is_used_as_a_whole(folder: Path, kind: str) -> None:
    assert run(folder, kind, storage=str(folder / "storage")) == "rows 1000 tasks 2"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["microbatch", *(["batch"] if FULL else []), "continuous"])
def test_storage_that_one_executor_does_not_share_is_refused_by_the_first_task_that_runs_there(folder: Path, kind: str) -> None:
    if reason := no_namespaces():
        pytest.skip(reason)
    storage = folder / "storage"
    said = run(folder, kind, storage=str(storage), hidden=storage)
    assert f"storage {storage} is not shared: a worker on " in said
    assert f"Mount the same file system at {storage}" in said
    if kind == "continuous":  # which has a task on each executor from the start; epochs may go without one that joins late
        assert newest_in(storage / "shared") is None, "an epoch was published"


@pytest.mark.slow
def test_without_storage_an_executor_that_does_not_see_the_temporary_folder_is_named(folder: Path) -> None:
    if reason := no_namespaces():
        pytest.skip(reason)
    said = run(folder, "microbatch", hidden=folder / "tmp")
    assert "does not see the temporary folder of this job, which has no storage" in said
    assert 'Write: storage="/mnt/shared"' in said


@pytest.mark.spark
def test_slots_that_a_group_of_jobs_holds_are_counted(spark: Any, tmp_path: Path) -> None:
    gate, context = tmp_path / "gate", spark.sparkContext

    def wait(number: int) -> int:
        while not gate.exists():
            time.sleep(0.05)
        return number

    def job() -> None:
        context.setJobGroup("penstock-lost-1-1", "an earlier attempt", interruptOnCancel=True)
        context.parallelize(range(2), 2).map(wait).collect()

    thread = threading.Thread(target=job)
    thread.start()
    try:
        until = time.monotonic() + 20
        while sessions.held_slots(spark, ["penstock-lost-1-1"]) < 2:
            assert time.monotonic() < until
            time.sleep(0.05)
        assert sessions.held_slots(spark, ["penstock-other-1-1"]) == 0
        assert sessions.free_slots(spark) == 2
    finally:
        gate.touch()
        thread.join()
