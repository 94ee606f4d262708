"""The fixes of errors that a user's function, a start or a restore brings about."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import penstock as pen
from fixes.applying import evaluate, shown
from penstock import sinks, sources
from penstock.cli import app
from penstock.connectors.connector import BadRecord, SourceContext
from penstock.operators.operator import Errors, Origin
from penstock.plan.logical import DEAD_SCHEMA
from penstock.runners.listing import jobs_in
from penstock.runners.spark import ship


def broken(row: pen.Row) -> int:
    raise ValueError("no")


def test_rows_that_cannot_be_processed_are_set_aside_as_the_fix_says() -> None:
    errors = Errors("rows-1", "fail", DEAD_SCHEMA)
    text = shown("rows.set_aside", lambda: list(errors.undecoded([BadRecord(1, "no number", "x")], Origin("s", "0", 1))))
    with pytest.raises(pen.JobError) as caught:
        pen.Pipeline("p").read(sources.memory([1], schema=int)).map(broken).write(sinks.memory("no")).run(pen.Local(restarts=0))
    assert f"\n  {text}\n" in str(caught.value)

    made, _, read = text.partition(": ")[2].partition(" and ")
    pipeline, letters = evaluate(made.replace("...", "'p'")), sinks.memory("set-aside")
    pipeline.read(sources.memory([1], schema=int)).map(broken).write(sinks.memory("good"))
    evaluate(read.replace("...", "letters"))
    pipeline.run(pen.Local(restarts=0))
    assert [row["step"] for row in letters.rows()] == ["rows-1"]


def lane(source: Any) -> Any:
    reader = source.open("0", None, SourceContext(source.name, Path(), tuple(source.schema.names)))
    return reader.poll(100)


@pytest.mark.parametrize(
    "make",
    [
        lambda n, seed: {"user": "ann" if n % 2 else "bob"},
        lambda n, seed: {"user": f"user {n}"},
        lambda n, seed: {"user": n.bit_length()},
        lambda n, seed: "ann",
        lambda n, seed: [n],
    ],
)
def test_a_function_that_expects_one_number_is_given_one_as_the_fix_says(make: Any) -> None:
    text = shown("generate.one_row", lambda: lane(sources.generate(make, schema="user string", rows=3)))
    names: dict[str, Any] = {}
    exec(f"{text.partition('write: ')[2]}: return {{'user': 'ann' if index % 2 else 'bob'}}", names)
    chunk = lane(sources.generate(names["make"], schema="user string", rows=4, splits=1))
    assert chunk.batch.to_pydict() == {"user": ["bob", "ann", "bob", "ann"]}


def test_a_folder_is_made_for_a_storage_that_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").write_text("")
    pipeline = pen.Pipeline("p").read(sources.memory([1], schema=int)).write(sinks.memory("started"))
    text = shown("start.storage", lambda: pipeline.start(pen.Local(storage="taken")))
    storage = evaluate(text.partition("=")[2].partition(",")[0])
    pipeline.run(pen.Local(storage=storage))
    assert (tmp_path / storage / "p").is_dir()


def test_workers_that_run_the_python_of_the_fix_are_let_in() -> None:
    ours = ship.identity(by_content=False)
    text = shown("workers.python", lambda: ship.check_identity(ours, "penstock 1 on Python 3.9", "python3.9 on node7"))
    python = text.partition("PYSPARK_PYTHON=")[2]
    code = "from penstock.runners.spark import ship; print(ship.identity(by_content=False))"
    theirs = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    ship.check_identity(ours, theirs.stdout.strip(), ship.place())


def test_the_storage_of_a_list_of_jobs_is_named_as_the_fix_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PENSTOCK_STORAGE", raising=False)
    text = shown("jobs.storage", lambda: jobs_in(None))
    rows = pen.Pipeline("p").read(sources.memory([1], schema=int))
    rows.write(sinks.memory("listed")).run(pen.Local(storage="checkpoints"))
    command = text.partition("(")[2].partition(")")[0].split()
    assert "finished" in CliRunner().invoke(app, command[1:]).stdout
    name, _, value = text.partition("Write: ")[2].partition("=")
    monkeypatch.setenv(name, evaluate(value))
    assert [job.name for job in jobs_in(None)] == ["p"]
