"""Where a running task keeps its tables: a choice of the run, never of the pipeline.

Snapshots are the same whatever was chosen, so a job may be stopped with one and go on with the other.

1. `Columnar`  changes in memory over the files of the last snapshot. The default.
2. `RocksDB`   the same, and a working copy of the whole state in RocksDB to find rows in that are not in memory.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import ConfigError, Fix, RunnerError

__all__ = ["Backend", "Columnar", "RocksDB", "backend_of", "require", "size_bytes"]

_UNITS = {"": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40}
CACHE_LEAST = 8 << 20


@dataclass(frozen=True, slots=True)
class Columnar:
    """Sorted Arrow runs, mapped, with an overlay in memory."""

    def __str__(self) -> str:
        return "columnar"


@dataclass(frozen=True, slots=True)
class RocksDB:
    """Keep tables in RocksDB while the job runs: `pen.Continuous(state=pen.RocksDB(cache="1GB", path="/mnt/fast"))`.

    Args:
        cache: Memory for blocks and write buffers, of all tables in one process together.
        path: A folder on a fast local disk. Left out: the machine's folder for temporary files.
    """

    cache: str | int = "256MB"
    path: str | Path | None = None

    def __post_init__(self) -> None:
        if self.cache_bytes < CACHE_LEAST:
            raise ConfigError(
                f"RocksDB(cache={self.cache!r}) is too little to work with; expected at least 8MB",
                fix=Fix("rocksdb.cache", 'Write: cache="8MB"'),
            )

    @property
    def cache_bytes(self) -> int:
        """`cache` as a number."""
        return size_bytes(self.cache, "cache")

    def __str__(self) -> str:
        place = "" if self.path is None else f", path={self.path}"
        return f"rocksdb (cache={self.cache}{place})"


Backend = Columnar | RocksDB


def backend_of(value: object, origin: str = "argument") -> Backend:
    """What the option `state` means; `origin` is where it was said.

    >>> backend_of("rocksdb")
    RocksDB(cache='256MB', path=None)
    """
    if isinstance(value, Columnar | RocksDB):
        return value
    if value == "columnar":
        return Columnar()
    if value == "rocksdb":
        return RocksDB()
    raise ConfigError(
        f'state={value!r} ({origin}) is not known; expected "columnar", "rocksdb" or a pen.RocksDB',
        fix=Fix(
            "state.backend",
            'Write: state="columnar", or state="rocksdb", or state=pen.RocksDB(cache="1GB", path="/mnt/fast")',
        ),
    )


def require(backend: Backend) -> None:
    """Say what to install, instead of a bare ImportError."""
    if isinstance(backend, RocksDB):
        try:
            import rocksdict  # noqa: F401
        except ImportError:
            raise RunnerError(
                'state="rocksdb" needs the package rocksdict, which is not installed',
                fix=Fix("rocksdb.missing", "Install it: pip install 'penstock[rocksdb]'"),
            ) from None


def size_bytes(value: str | int, what: str) -> int:
    """A size as a number of bytes.

    >>> size_bytes("1.5GB", "cache"), size_bytes(4096, "cache")
    (1610612736, 4096)
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(i?B)?\s*", str(value), re.IGNORECASE)
    if match is None:
        raise ConfigError(
            f"{what}={value!r} is not a size; expected a number of bytes, or a number with a unit: KB, MB, GB or TB",
            fix=Fix("size.text", f'Write: {what}="256MB", or {what}="1GB"'),
        )
    unit = f"{match[2].upper()}B" if match[2] else ""
    return round(float(match[1]) * _UNITS[unit])
