"""Fixtures for tests of tables."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from files_in_memory import PassingTable, memory_folder

from penstock.state.rocksdb import RocksTable
from penstock.state.table import KeyedTable


@pytest.fixture(params=[KeyedTable, PassingTable, RocksTable], ids=["columnar", "passing", "rocksdb"])
def kind(request: pytest.FixtureRequest, fast_folder: Path, monkeypatch: pytest.MonkeyPatch) -> type[KeyedTable]:
    """Each kind of table; what it keeps on disk goes with the test."""
    monkeypatch.setattr(tempfile, "tempdir", str(fast_folder))
    table: type[KeyedTable] = request.param
    return table


@pytest.fixture
def fast_folder() -> Iterator[Path]:
    """A folder in memory if there is such a thing: opening a database waits for the disk several times."""
    with tempfile.TemporaryDirectory(dir=memory_folder()) as folder:
        yield Path(folder)
