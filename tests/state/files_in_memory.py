"""`Files` for tests: a dict, which can be told to fail; tables that do not last; and where real files are fastest."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa

from penstock.errors import StorageError
from penstock.state.runs import Run
from penstock.state.spec import StateSpec
from penstock.state.table import SLOTS_MAX, KeyedTable


class FilesInMemory:
    def __init__(self) -> None:
        self.contents: dict[str, pa.Buffer] = {}
        self.fail_after: int | None = None
        self.opened: list[str] = []
        self._names = 0

    def name(self) -> str:
        self._names += 1
        return f"state/{self._names:06}.arrow"

    def write(self, path: str, *pieces: pa.Buffer, read_soon: bool = True) -> None:
        assert path not in self.contents, f"{path} was written twice"
        if self.fail_after is not None:
            if self.fail_after == 0:
                raise StorageError("the disk is full")
            self.fail_after -= 1
        self.contents[path] = pa.py_buffer(b"".join(memoryview(piece) for piece in pieces))

    def open(self, path: str) -> pa.Buffer:
        self.opened.append(path)
        return self.contents[path]


class PassingTable(KeyedTable):
    """A table of a task that ends with its epoch: nothing is loaded that is not asked for."""

    def __init__(
        self, spec: StateSpec, groups: range, max_parallelism: int, runs: Iterable[Run] = (), *, slots_max: int = SLOTS_MAX
    ) -> None:
        super().__init__(spec, groups, max_parallelism, runs, slots_max=slots_max, lasting=False)


def memory_folder() -> str | None:
    """Where files are in memory, if anywhere."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None
