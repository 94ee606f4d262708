"""Fixtures for tests of tables."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from penstock.state.rocksdb import RocksTable
from penstock.state.table import KeyedTable


@pytest.fixture(params=[KeyedTable, RocksTable], ids=["columnar", "rocksdb"])
def kind(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> type[KeyedTable]:
    """Each kind of table; what it keeps on disk goes with the test."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    table: type[KeyedTable] = request.param
    return table
