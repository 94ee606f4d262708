"""The fixes of where a running task keeps its tables: of `penstock.state`."""

from __future__ import annotations

import shlex
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from packaging.requirements import Requirement

import penstock as pen
from fixes.applying import argument, shown
from penstock import sinks, sources
from penstock.state.backend import Columnar, RocksDB
from penstock.state.packing import Packing

PROJECT = Path(__file__).parents[2] / "pyproject.toml"


def counts(runner: Any) -> dict[str, int]:
    """How often each letter is there, counted by a job with this runner."""
    p, out = pen.Pipeline("letters"), sinks.memory("letters")
    out.clear()
    rows = p.read(sources.memory([{"letter": letter} for letter in "abacab"]))
    rows.key_by("letter").aggregate(n=pen.count(), name="counts").write(out)
    p.run(runner)
    return {row["letter"]: row["n"] for row in out.rows()}


LETTERS = {"a": 3, "b": 2, "c": 1}


def installs(text: str) -> list[str]:
    """The packages that the command of a fix, `pip install 'penstock[extra]'`, adds to Penstock's own.

    They are installed here: a test runs with what the command would have brought.
    """
    pip, install, wanted = shlex.split(text.partition(": ")[2])
    assert (pip, install) == ("pip", "install")
    ours = Requirement(wanted)
    project = tomllib.loads(PROJECT.read_text())["project"]
    assert ours.name == project["name"]
    found = [Requirement(each) for extra in ours.extras for each in project["optional-dependencies"][extra]]
    assert all(version(each.name) in each.specifier for each in found)
    return [each.name for each in found]


def test_each_backend_that_is_proposed_is_one(tmp_path: Path) -> None:
    backends = argument(shown("state.backend", lambda: pen.Local(state="leveldb").options("letters")))
    assert [pen.Local(state=each).options("letters").state for each in backends] == [
        Columnar(),
        RocksDB(),
        RocksDB(cache="1GB", path="/mnt/fast"),
    ]
    *named, made = backends
    for each in (*named, RocksDB(made.cache, tmp_path)):  # there may be no such disk here
        assert counts(pen.Local(state=each, restarts=0)) == LETTERS


def test_a_cache_of_the_least_size_is_enough(tmp_path: Path) -> None:
    (cache,) = argument(shown("rocksdb.cache", lambda: pen.RocksDB(cache="1MB")))
    assert counts(pen.Local(state=pen.RocksDB(cache=cache, path=tmp_path), restarts=0)) == LETTERS


@pytest.mark.parametrize("size", ["much", "1 PB", True, None])
def test_a_size_has_a_unit(size: Any) -> None:
    sizes = argument(shown("size.text", lambda: pen.RocksDB(cache=size)))
    assert [pen.RocksDB(cache=each).cache_bytes for each in sizes] == [256 << 20, 1 << 30]


def test_the_package_that_rocksdb_needs_is_installed_by_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "rocksdict", None)
        text = shown("rocksdb.missing", lambda: counts(pen.Local(state="rocksdb", restarts=0)))
    assert installs(text) == ["rocksdict"]
    assert counts(pen.Local(state="rocksdb", restarts=0)) == LETTERS


def last(type: pa.DataType, value: Any, state: Any) -> list[Any]:
    """The last value of a type, which a job kept in its state."""
    p, out = pen.Pipeline("kept"), sinks.memory("kept")
    out.clear()
    schema = pa.schema([("k", pa.int64()), ("v", type)])
    p.read(sources.memory([{"k": 1, "v": value}], schema=schema)).key_by("k").aggregate(v="last(v)", name="last").write(out)
    p.run(pen.Local(state=state, restarts=0))
    return [row["v"] for row in out.rows()]


def test_a_type_that_rocksdb_does_not_keep_is_kept_in_columns_or_is_another() -> None:
    text = shown("rocksdb.type", lambda: Packing([pa.list_view(pa.int64())]))
    with pytest.raises(pen.JobError) as caught:
        last(pa.list_view(pa.int64()), [1, 2], "rocksdb")
    assert f"\n  {text}" in str(caught.value)
    (state,) = argument(text)
    assert last(pa.list_view(pa.int64()), [1, 2], state) == [[1, 2]]
    assert last(pa.list_(pa.int64()), [1, 2], "rocksdb") == [[1, 2]]
