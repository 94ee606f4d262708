"""Files that survive a power cut: what must be synced, and in which order.

A file is safe once its bytes are synced *and* the directory that names it is. A rename is atomic for readers at once,
but durable only after the directory is synced. So everything here ends with a sync of a directory.

1. `write_file`: temporary name, bytes, sync, rename, sync of the directory. Readers see all or nothing.
2. `make_dirs`: each directory that is created is synced into its parent.
3. `Hashed`: a file that computes the checksum of what is written meanwhile, and syncs before it closes.
"""

from __future__ import annotations

import io
import os
from pathlib import Path

import xxhash

__all__ = ["Hashed", "file_checksum", "make_dirs", "sync_dir", "write_file"]


def sync_dir(path: Path) -> None:
    """Make the names in `path` durable."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_dirs(path: Path) -> None:
    """Create `path` and its parents, durably. Directories that exist are left alone."""
    missing = []
    current = path
    while not current.exists():
        missing.append(current)
        current = current.parent
    for folder in reversed(missing):
        folder.mkdir(exist_ok=True)
        sync_dir(folder.parent)


def write_file(path: Path, data: bytes) -> None:
    """Put `data` at `path`, whole or not at all."""
    temporary = path.with_name(f".{path.name}.tmp")
    with open(temporary, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.rename(temporary, path)
    sync_dir(path.parent)


def file_checksum(path: Path) -> str:
    """The checksum of a whole file, read in pieces."""
    digest = xxhash.xxh64()
    with open(path, "rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return str(digest.hexdigest())


class Hashed(io.RawIOBase):
    """A file opened for writing once, from start to end. `size` and `checksum` are of everything written."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._file = open(path, "xb", buffering=1 << 18)  # noqa: SIM115 (closed by `seal`)
        self._digest = xxhash.xxh64()
        self.size = 0

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        view = memoryview(data).cast("B")  # type: ignore[arg-type]
        if self._file.closed:
            return len(view)  # abandoned: pyarrow's writers still write a footer when they are collected
        self._digest.update(view)
        self._file.write(view)
        self.size += len(view)
        return len(view)

    def tell(self) -> int:
        return self.size

    @property
    def checksum(self) -> str:
        return str(self._digest.hexdigest())

    def seal(self) -> None:
        """Sync and close: after this the bytes are safe, once the directory is synced too."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def abandon(self) -> None:
        """Close without a promise: the file is about to be removed."""
        self._file.close()
