"""The working copy in RocksDB: that it says what the runs say, and that nothing of it stays behind."""

from __future__ import annotations

import gc
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import pytest
from files_in_memory import FilesInMemory

from penstock.errors import ConfigError, RunnerError
from penstock.state import rocksdb
from penstock.state.backend import Columnar, RocksDB, backend_of, require, size_bytes
from penstock.state.history import store
from penstock.state.rocksdb import PREFIX, RocksTable
from penstock.state.spec import StateSpec
from penstock.state.table import KeyedTable

ALL = range(128)
SPEC = StateSpec("n", pa.schema([("k", pa.int64())]), pa.schema([("n", pa.int64())]), expires="n")


def keys(*values: int) -> pa.RecordBatch:
    return pa.record_batch({"k": pa.array(values, pa.int64())})


def numbers(*values: int | None) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(values, pa.int64())})


def folders(place: Path) -> list[str]:
    return sorted(path.name for path in place.iterdir() if PREFIX in path.name)


def copied(table: RocksTable) -> int:
    return len(list(table._db.keys()))


def table_at(place: Path) -> RocksTable:
    return RocksTable(SPEC, ALL, 128, settings=RocksDB(cache="8MB", path=place))


def test_snapshots_of_both_backends_are_the_same_bytes(fast_folder: Path) -> None:
    rocks, columnar = table_at(fast_folder), KeyedTable(SPEC, ALL, 128)
    files = FilesInMemory()
    for epoch in range(12):
        written = []
        for table in (rocks, columnar):
            table.put_many(keys(*range(epoch, epoch + 20)), numbers(*range(20)))
            table.delete_many(keys(epoch, epoch + 3))
            table.horizon = epoch // 2
            handles = store(frozen := table.freeze(epoch), files, files.name)
            table.stored(frozen, handles)
            written.append([(handle.rows, handle.checksum) for handle in handles])
        assert written[0] == written[1]
    rocks.close()


def test_what_is_not_in_memory_is_found_in_the_copy(fast_folder: Path) -> None:
    table = table_at(fast_folder)
    table.put_many(keys(1, 2, 3), numbers(10, 20, None))
    table.freeze(1)
    table._empty()
    found, values = table.get_many(keys(3, 9, 1, 1))
    assert found.tolist() == [True, False, True, True]
    assert values.to_pydict() == {"n": [None, None, 10, 10]}
    table.delete_many(keys(1))
    table.freeze(2)
    assert copied(table) == 2
    table.close()


def test_a_closed_table_leaves_nothing_behind(fast_folder: Path) -> None:
    table = table_at(fast_folder)
    assert len(folders(fast_folder)) == 1
    table.close()
    table.close()
    assert folders(fast_folder) == []


def test_a_forgotten_table_leaves_nothing_behind(fast_folder: Path) -> None:
    table = table_at(fast_folder)
    assert len(folders(fast_folder)) == 1
    del table
    gc.collect()
    assert folders(fast_folder) == []


def test_a_table_that_cannot_be_filled_leaves_nothing_behind(fast_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = KeyedTable(SPEC, ALL, 128)
    table.put_many(keys(1), numbers(1))
    runs = table.freeze(1).runs

    def full(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(RocksTable, "_write", full)
    with pytest.raises(OSError, match="no space"):
        RocksTable(SPEC, ALL, 128, runs, settings=RocksDB(path=fast_folder))
    gc.collect()
    assert folders(fast_folder) == []


def test_the_folder_of_a_killed_process_is_removed_by_the_next(fast_folder: Path) -> None:
    code = f"""
import os, sys
sys.path[:0] = {sys.path!r}
from pathlib import Path
from test_rocksdb import table_at
table = table_at(Path({str(fast_folder)!r}))
os.kill(os.getpid(), 9)
"""
    subprocess.run([sys.executable, "-c", code], check=False, timeout=60)
    (left,) = folders(fast_folder)
    with_owner = table_at(fast_folder)
    (ours,) = folders(fast_folder)
    assert ours != left
    other = table_at(fast_folder)
    assert len(folders(fast_folder)) == 2, "those whose owner lives stay"
    with_owner.close()
    other.close()


def test_without_a_path_it_is_among_temporary_files(fast_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(fast_folder))
    table = RocksTable(SPEC, ALL, 128)
    assert len(folders(fast_folder)) == 1
    table.close()


def test_expired_rows_leave_the_copy(fast_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rocksdb, "SWEEP_ROWS", 10)
    table = table_at(fast_folder)
    for epoch in range(100):
        table.put_many(keys(*range(epoch * 10, epoch * 10 + 10)), numbers(*[epoch + 3] * 10))
        table.horizon = epoch
        table.freeze(epoch)
    assert copied(table) < 100, "30 are alive"
    table.close()


@pytest.mark.parametrize(
    ("text", "size"), [("8MB", 8 << 20), ("1GB", 1 << 30), ("1.5 gib", 3 << 29), ("512K", 1 << 19), ("77", 77), (5, 5)]
)
def test_a_size_is_a_number_and_a_unit(text: str | int, size: int) -> None:
    assert size_bytes(text, "cache") == size


def test_what_is_no_size_is_refused() -> None:
    with pytest.raises(ConfigError, match="cache='much' is not a size"):
        RocksDB(cache="much")
    with pytest.raises(ConfigError, match="at least 8MB"):
        RocksDB(cache="1MB")


def test_a_backend_is_known_by_its_name() -> None:
    assert backend_of("columnar") == Columnar()
    assert str(backend_of("rocksdb")) == "rocksdb (cache=256MB)"
    assert backend_of(RocksDB("1GB", "/mnt")) == RocksDB("1GB", "/mnt")
    with pytest.raises(ConfigError, match=r"state='leveldb' \(argument\) is not known"):
        backend_of("leveldb")


def test_a_missing_package_is_named_with_the_line_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    require(Columnar())
    with pytest.raises(RunnerError, match=r"pip install 'penstock\[rocksdb\]'"):
        require(RocksDB())
