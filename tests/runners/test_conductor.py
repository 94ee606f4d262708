"""The end of a job: whoever waits for it hears of it, whatever goes wrong on the way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock as pen
from penstock import sinks, sources
from penstock.connectors.connector import SinkContext
from penstock.errors import CorruptError
from penstock.runners.conductor import Conductor

SCHEMA = pa.schema([("n", pa.int64())])


def numbers() -> pen.Pipeline:
    return pen.Pipeline("numbers").read(sources.memory([{"n": 1}])).select(x="10 % n").write(sinks.memory("closing"))


def broken_close(conductor: Any) -> None:
    raise MemoryError("no room to close anything")


def test_a_job_that_cannot_be_closed_ends_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Conductor, "_close", broken_close)
    job = numbers().start(pen.Local())
    assert job.conductor.halted.wait(30), "nobody would ever hear of its end"
    with pytest.raises(pen.JobError, match="MemoryError: no room"):
        job.wait()


def test_what_made_a_job_fail_is_told_rather_than_what_went_wrong_when_it_was_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Conductor, "_close", broken_close)
    bad = pen.Pipeline("bad").read(sources.memory([{"n": 0}])).select(x="10 % n").write(sinks.memory("closing"))
    job = bad.start(pen.Local())
    assert job.conductor.halted.wait(30)
    with pytest.raises(pen.JobError, match="cannot process a row"):
        job.wait()


def test_a_sink_that_cannot_show_what_it_has_gathered_ends_the_job_with_that_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gathered = sinks.files(tmp_path / "out", roll=100)

    def close(self: Any) -> None:
        raise CorruptError("a gathered part is not what was prepared")

    with monkeypatch.context() as patch:
        patch.setattr(type(gathered.committer(SinkContext("out", "l", "u", tmp_path, SCHEMA))), "close", close)
        job = (
            pen.Pipeline("gathers").read(sources.memory([{"n": 1}])).write(gathered).start(pen.Local(storage=tmp_path / "store"))
        )
        with pytest.raises(CorruptError, match="gathered part"):
            job.wait()
    assert not list(tmp_path.glob("out/epoch=*"))
