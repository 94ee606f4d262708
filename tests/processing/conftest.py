"""Both kinds of tables under the contract of states and timers."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.state.backend import Columnar, RocksDB
from runtime.rig import Rig


@pytest.fixture(params=["columnar", "rocksdb"])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What tasks keep their state in."""
    fast = "/dev/shm" if Path("/dev/shm").is_dir() else None  # opening a database waits for the disk several times
    with tempfile.TemporaryDirectory(dir=fast) as folder:
        monkeypatch.setattr(Rig, "backend", Columnar() if request.param == "columnar" else RocksDB(path=folder))
        yield
