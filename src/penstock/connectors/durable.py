"""Files that survive a power cut: what must be synced, and in which order.

A file is safe once its bytes are synced *and* the directory that names it is. A rename is atomic for readers at once,
but durable only after the directory is synced. So everything here ends with a sync of a directory.

1. `write_file`: temporary name, bytes, sync, rename, sync of the directory. Readers see all or nothing.
2. `make_dirs`: each directory that is created is synced into its parent.
3. `Hashed`: a file that computes the checksum of what is written meanwhile, and syncs before it closes.
4. What the system refuses names the path (`naming`): that a disk is full helps nobody who does not know which.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator
from pathlib import Path

import xxhash

__all__ = ["Hashed", "file_checksum", "make_dirs", "naming", "sync_dir", "write_file"]


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Within: an error of the system that names no file, as those of writing and syncing, names this one."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def sync_dir(path: Path) -> None:
    """Make the names in `path` durable."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with naming(path):
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
    with naming(path), open(temporary, "wb") as file:
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
        self._path = path
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
        with naming(self._path):
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
        with naming(self._path):
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()

    def abandon(self) -> None:
        """Close without a promise: the file is about to be removed, so that what was buffered finds no room does not matter."""
        with contextlib.suppress(OSError):
            self._file.close()
