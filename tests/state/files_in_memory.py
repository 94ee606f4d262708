"""`Files` for tests: a dict, which can be told to fail. And where real files are fastest."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from penstock.errors import StorageError


class FilesInMemory:
    def __init__(self) -> None:
        self.contents: dict[str, pa.Buffer] = {}
        self.fail_after: int | None = None
        self.opened: list[str] = []
        self._names = 0

    def name(self) -> str:
        self._names += 1
        return f"state/{self._names:06}.arrow"

    def write(self, path: str, data: pa.Buffer) -> None:
        assert path not in self.contents, f"{path} was written twice"
        if self.fail_after is not None:
            if self.fail_after == 0:
                raise StorageError("the disk is full")
            self.fail_after -= 1
        self.contents[path] = data

    def open(self, path: str) -> pa.Buffer:
        self.opened.append(path)
        return self.contents[path]


def memory_folder() -> str | None:
    """Where files are in memory, if anywhere."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None
