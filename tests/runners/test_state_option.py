"""The option `state`: who takes it, who refuses it and why, and what is said if a package is missing."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import penstock as pen
from penstock import sinks, sources
from penstock.errors import ConfigError, RunnerError
from penstock.state.backend import Columnar, RocksDB
from penstock.testing import Simulated


def counting() -> tuple[pen.Pipeline, Any]:
    p, out = pen.Pipeline("count"), sinks.memory("latest")
    rows = [{"word": word} for word in "abacab"]
    p.read(sources.memory(rows)).key_by("word").aggregate(n=pen.count(), name="counts").write(out)
    return p, out


def latest(out: Any) -> dict[str, int]:
    return {row["word"]: row["n"] for row in out.rows()}


def test_tables_are_columnar_unless_said_otherwise() -> None:
    assert pen.Local().options("count").state == Columnar()


def test_the_nearest_word_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_STATE", "rocksdb")
    assert pen.Local().options("count").state == RocksDB()
    assert pen.Local(state="columnar").options("count").state == Columnar()
    monkeypatch.setenv("PENSTOCK_STATE", "leveldb")
    with pytest.raises(ConfigError, match=r"state='leveldb' \(PENSTOCK_STATE\)"):
        pen.Local().options("count")


def test_explain_shows_it() -> None:
    shown = pen.Local(state=pen.RocksDB(cache="1GB", path="/mnt/fast")).describe()
    assert shown["state"] == "rocksdb (cache=1GB, path=/mnt/fast)  (argument)"


@pytest.mark.parametrize("runner", [pen.Local, Simulated])
def test_a_pipeline_counts_in_rocksdb_and_leaves_nothing_behind(runner: Any, tmp_path: Path) -> None:
    p, out = counting()
    p.run(runner(parallelism=2, state=pen.RocksDB(cache="8MB", path=tmp_path)))
    assert latest(out) == {"a": 3, "b": 2, "c": 1}
    assert list(tmp_path.iterdir()) == []


def test_a_failed_attempt_leaves_nothing_behind(tmp_path: Path) -> None:
    p = pen.Pipeline("fails")
    rows = p.read(sources.memory([{"n": 0}]))
    rows.key_by("n").aggregate(c=pen.count(), name="counts").write(sinks.memory("counts"))
    rows.map(fail, schema="n bigint").write(sinks.memory("nothing"), name="nothing")
    with pytest.raises(pen.JobError):
        p.run(pen.Local(state=pen.RocksDB(path=tmp_path), restarts=1, backoff="1ms"))
    assert list(tmp_path.iterdir()) == []


def fail(row: Any) -> dict[str, int]:
    raise ValueError("no")


@pytest.mark.parametrize("runner", [pen.MicroBatch, pen.Batch])
def test_runners_whose_tasks_end_with_their_epoch_refuse_rocksdb(runner: Any) -> None:
    p, _ = counting()
    with pytest.raises(ConfigError, match=rf"(?s)cannot be used by {runner.__name__}.*end with their epoch.*pen\.Continuous"):
        p.run(runner(state="rocksdb"))


def test_a_missing_package_is_said_before_anything_is_touched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    p, _ = counting()
    with pytest.raises(RunnerError, match=r"pip install 'penstock\[rocksdb\]'"):
        p.run(pen.Local(state="rocksdb", storage=str(tmp_path)))
    assert list(tmp_path.iterdir()) == []
