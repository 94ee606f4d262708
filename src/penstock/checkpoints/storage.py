"""A folder of immutable files in which a name can be created once.

Everything durable goes through the few methods of `Store`. What it promises:

1. `create` is atomic and exclusive: of any number of callers one gets True, and whoever sees the name sees
   all of its bytes, also after a power cut. Order of writes on a local disk: temporary file, fsync, `os.link`
   to the name, fsync of the folder. The link is what fails if the name exists (a rename would replace it).
2. `write` is atomic but not exclusive, for names with one writer: temporary file, fsync, rename, fsync of the
   folder.
3. What was read was written as a whole; there is no append and no update.
4. `list` may be stale. It serves garbage collection and error messages, never a decision about what is true.
5. Paths are relative, and stay inside: each part is checked, and no symbolic link is followed below the root.

Folders are 0700 and files 0600: state holds the users' data, and other people have accounts too. A file being
written is called `<name>.<random>.tmp`, so that the garbage collector can tell by its name whose it was.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn, Protocol
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from penstock.checkpoints.direct import write_past_cache
from penstock.errors import ConfigError, Fix, MissingError, StorageError, UnavailableError

__all__ = [
    "LocalStore",
    "MemoryStore",
    "OutcomeUnknown",
    "Store",
    "check_path",
    "folder_of",
    "is_temporary",
    "open_store",
]

_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._=-]{0,199}")  # "." and ".." begin with a dot, so they never match
# Two letters or more: "C:" is not a scheme. Without "//" neither is what a folder may be called, as "run-2026-01-31T12:30".
_SCHEME = re.compile(r"([A-Za-z](?:[A-Za-z0-9+]+(?=:)|[A-Za-z0-9+.-]+(?=://))):")

_LARGE = 1 << 20
"""From so many bytes on it is worth its while to write past the page cache."""

_MEANING = {
    errno.EACCES: "this user may not do that there",
    errno.EPERM: "this user may not do that there",
    errno.ENOTDIR: "a file or a symbolic link is where a folder should be",
    errno.ELOOP: "it is a symbolic link, which is never followed here",
}
"""What an error of the operating system means here, where its own words do not say it."""

_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS)
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
FREE_SPACE = Fix("storage.space", "Free some space on that file system")
LOCAL_DISK = Fix("storage.links", "Use a local disk")

_FOR_GOOD = (errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG)
"""Something else stands where a file of ours should be, or a name cannot be one here. Anything else may pass."""


class OutcomeUnknown(StorageError):
    """The name may or may not have been created. Only a new claim, which reads the log, can tell."""


class Store(Protocol):
    """A folder of immutable files. Paths are relative to it, with `/` between parts."""

    @property
    def url(self) -> str:
        """Where it is, for messages."""

    def create(self, path: str, data: bytes) -> bool:
        """Create `path` holding `data` unless the name exists; whether this call did.

        Durable when it returns.
        """

    def read(self, path: str) -> bytes | None:
        """All bytes of `path`, or None if there is no such name."""

    def write(self, path: str, *pieces: bytes | pa.Buffer, read_soon: bool = True) -> None:
        """Write `path` as a whole, durably: these pieces, one after the other. Only for names that nobody else writes.

        Args:
            read_soon: Whether anybody will read it, unless something breaks.
        """

    def open(self, path: str) -> pa.Buffer:
        """The bytes of `path` without copying them, or MissingError if there is no such name: a checkpoint says that there is."""

    def list(self, prefix: str) -> list[str]:
        """Paths of the files in the folder `prefix`, sorted; perhaps stale. Unfinished files are included."""

    def delete(self, path: str) -> None:
        """Remove `path` if it is there."""

    def probe(self) -> None:
        """Try everything once, and raise StorageError saying what does not work here."""


def check_path(path: str) -> str:
    """`path` if it is relative and stays inside, else StorageError."""
    if not isinstance(path, str) or not all(_PART.fullmatch(part) for part in path.split("/")):
        raise StorageError(
            f"path {_shown(path)} is refused: expected a relative path like state/0001.arrow (letters, "
            "digits, '.', '_', '=', '-'; "
            "no part empty or beginning with '.')"
        )
    return path


def is_temporary(path: str) -> bool:
    """Whether this is a file somebody was still writing."""
    return path.endswith(".tmp")


def open_store(url: str | Path) -> Store:
    """The store at a path or a `file://` URL. Nothing is created until something is written."""
    return LocalStore(folder_of(url))


def folder_of(url: str | Path) -> Path:
    """The folder that a path or a `file://` URL speaks of."""
    if isinstance(url, Path):
        return Path(os.path.abspath(url))
    if not url:
        raise ConfigError(
            "storage is empty, and should be a path or a URL",
            fix=Fix("storage.empty", 'Write: storage="/var/lib/penstock", or storage="file:///var/lib/penstock"'),
        )
    scheme = _SCHEME.match(url)
    if scheme is None:
        return Path(os.path.abspath(url))
    if scheme[1].lower() != "file":
        raise ConfigError(
            f"storage {url!r}: there is no store for {scheme[1]!r}, only for file:///path and for a plain path",
            fix=Fix("storage.scheme", 'Mount it as a folder, and give the path of that. Write: storage="/mnt/penstock"'),
        )
    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost") or not parts.path.startswith("/") or parts.query or parts.fragment:
        raise ConfigError(
            f"storage {url!r}: expected three slashes and an absolute path",
            fix=Fix("storage.url", 'Write: storage="file:///var/lib/penstock"'),
        )
    return Path(unquote(parts.path))


class LocalStore:
    """A folder on a disk of this machine (or any file system with hard links and fsync that means it)."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(os.path.abspath(root))

    @property
    def url(self) -> str:
        return str(self.root)

    def create(self, path: str, data: bytes) -> bool:
        with self._folder(path, make=True) as (folder, name):
            temporary = self._write_temporary(folder, name, path, data)
            try:
                os.link(temporary, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
            except FileExistsError:
                return False
            except OSError as error:
                self._refuse("create", path, error)
            finally:
                # From here on the name exists or not; a leftover second name is swept later and does no harm.
                with contextlib.suppress(OSError):
                    os.unlink(temporary, dir_fd=folder)
            try:
                os.fsync(folder)
            except OSError as error:
                # Asking fsync again would prove nothing: it may have dropped the dirty page and report
                # success.
                raise OutcomeUnknown(self._told("create", path, error)[0]) from error
            return True

    def read(self, path: str) -> bytes | None:
        try:
            with self._opened(path) as file:
                return _read_all(file)
        except FileNotFoundError:
            return None
        except OSError as error:
            self._refuse("read", path, error)

    def write(self, path: str, *pieces: bytes | pa.Buffer, read_soon: bool = True) -> None:
        with self._folder(path, make=True) as (folder, name):
            temporary = self._write_temporary(folder, name, path, *pieces, read_soon=read_soon)
            try:
                os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
                os.fsync(folder)
            except OSError as error:
                with contextlib.suppress(OSError):
                    os.unlink(temporary, dir_fd=folder)
                self._refuse("write", path, error)

    def open(self, path: str) -> pa.Buffer:
        try:
            with self._opened(path) as file:
                if os.fstat(file).st_size == 0:
                    return pa.py_buffer(b"")  # nothing to map
                return pa.py_buffer(mmap.mmap(file, 0, access=mmap.ACCESS_READ))
        except OSError as error:
            self._refuse("open", path, error)

    def list(self, prefix: str) -> list[str]:
        prefix = check_path(prefix.rstrip("/"))
        try:
            with self._folder(f"{prefix}/x") as (folder, _), os.scandir(folder) as entries:
                return sorted(
                    f"{prefix}/{entry.name}"
                    for entry in entries
                    if entry.is_file(follow_symlinks=False) and _PART.fullmatch(entry.name)
                )
        except FileNotFoundError:
            return []
        except OSError as error:
            self._refuse("list", prefix, error)

    def delete(self, path: str) -> None:
        try:
            with self._folder(path) as (folder, name):
                os.unlink(name, dir_fd=folder)
        except FileNotFoundError:
            return
        except OSError as error:
            self._refuse("delete", path, error)

    def probe(self) -> None:
        path = f"probe-{secrets.token_hex(8)}"
        try:
            first = self.create(path, b"penstock")
            second = self.create(path, b"other")
            found = self.read(path)
        finally:
            with contextlib.suppress(StorageError):
                self.delete(path)
        if not first or second or found != b"penstock":
            raise StorageError(
                f"storage {self.url} cannot be used: creating a name twice must fail the second time and change nothing, "
                f"and was found to answer {first}, then {second}, holding {found!r}",
                fix=LOCAL_DISK,
            )

    @contextlib.contextmanager
    def _folder(self, path: str, *, make: bool = False) -> Iterator[tuple[int, str]]:
        """The folder of `path`, opened part by part so that no link is followed, and the last part's name."""
        *folders, name = check_path(path).split("/")
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        try:
            try:
                folder = os.open(self.root, flags)  # the root itself may be a link: the user chose it
            except FileNotFoundError:
                if not make:
                    raise
                _make_folders(self.root)
                folder = os.open(self.root, flags)
        except OSError as error:
            if make:
                self._refuse("make the folder of", path, error)
            raise
        try:
            for part in folders:
                try:
                    inner = self._enter(folder, part, flags | os.O_NOFOLLOW, make=make)
                except OSError as error:
                    if make:
                        self._refuse("make the folder of", path, error)
                    raise
                os.close(folder)
                folder = inner
            yield folder, name
        finally:
            os.close(folder)

    @staticmethod
    def _enter(folder: int, part: str, flags: int, *, make: bool) -> int:
        try:
            return os.open(part, flags, dir_fd=folder)
        except FileNotFoundError:
            if not make:
                raise
        with contextlib.suppress(FileExistsError):  # another process made it in between
            os.mkdir(part, 0o700, dir_fd=folder)
        os.fsync(folder)  # else a power cut could lose the folder with the durable file in it
        return os.open(part, flags, dir_fd=folder)

    @contextlib.contextmanager
    def _opened(self, path: str) -> Iterator[int]:
        with self._folder(path) as (folder, name):
            # O_NONBLOCK: a pipe planted under the name must not hang us.
            file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=folder)
        try:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                raise StorageError(f"{self.root / path} is not a plain file")
            yield file
        finally:
            os.close(file)

    def _write_temporary(self, folder: int, name: str, path: str, *pieces: bytes | pa.Buffer, read_soon: bool = True) -> str:
        temporary = f"{name}.{secrets.token_hex(8)}.tmp"
        try:
            file = os.open(
                temporary,
                os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC,
                0o600,
                dir_fd=folder,
            )
            try:
                views = [memoryview(piece).cast("B") for piece in pieces]
                if not read_soon and sum(map(len, views)) >= _LARGE:
                    write_past_cache(file, views)
                else:
                    for rest in views:
                        while rest:
                            rest = rest[os.write(file, rest[: 1 << 30]) :]
                os.fsync(file)
            finally:
                os.close(file)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(temporary, dir_fd=folder)
            self._refuse("write", path, error)
        return temporary

    def _told(self, doing: str, path: str, error: OSError) -> tuple[str, Fix | None]:
        """What to say about a failure, and what to do about it if we know."""
        code = error.errno or 0
        meaning, fix = _MEANING.get(code, ""), FREE_SPACE if code in _NO_SPACE else None
        if doing == "create" and code in _NO_LINKS:
            meaning, fix = "this file system has no hard links, and publishing a checkpoint needs them", LOCAL_DISK
        name = errno.errorcode.get(code, str(code))
        return f"cannot {doing} {self.root / path}: {name} ({os.strerror(code)})" + (f", {meaning}" if meaning else ""), fix

    def _refuse(self, doing: str, path: str, error: OSError) -> NoReturn:
        kind: type[StorageError] = StorageError if error.errno in _FOR_GOOD else UnavailableError
        if doing == "open" and error.errno == errno.ENOENT:
            kind = MissingError  # whoever opens a file knows its name from a checkpoint
        text, fix = self._told(doing, path, error)
        raise kind(text, fix=fix) from error


class MemoryStore:
    """The same promises in a dictionary, for tests and simulation.

    `before_effect(op, path)` is called before each effect (create, write, delete) and `after_effect` after
    it: raise there to crash. `journal` lists the effects that took place.
    """

    def __init__(
        self,
        files: dict[str, bytes] | None = None,
        *,
        before_effect: Callable[[str, str], None] | None = None,
        after_effect: Callable[[str, str], None] | None = None,
    ) -> None:
        self.files: dict[str, bytes] = dict(files or {})
        self.journal: list[tuple[str, str]] = []
        self.before_effect = before_effect
        self.after_effect = after_effect

    @property
    def url(self) -> str:
        return "memory:"

    @contextlib.contextmanager
    def _effect(self, op: str, path: str) -> Iterator[None]:
        if self.before_effect is not None:
            self.before_effect(op, path)
        yield
        self.journal.append((op, path))
        if self.after_effect is not None:
            self.after_effect(op, path)

    def create(self, path: str, data: bytes) -> bool:
        with self._effect("create", check_path(path)):
            created = path not in self.files
            if created:
                self.files[path] = bytes(data)
        return created

    def read(self, path: str) -> bytes | None:
        return self.files.get(check_path(path))

    def write(self, path: str, *pieces: bytes | pa.Buffer, read_soon: bool = True) -> None:
        with self._effect("write", check_path(path)):
            self.files[path] = b"".join(memoryview(piece) for piece in pieces)

    def open(self, path: str) -> pa.Buffer:
        if check_path(path) not in self.files:
            raise MissingError(f"cannot open {self.url}{path}: ENOENT (No such file or directory)")
        return pa.py_buffer(self.files[path])

    def list(self, prefix: str) -> list[str]:
        folder = check_path(prefix.rstrip("/")) + "/"
        return sorted(path for path in self.files if path.startswith(folder) and "/" not in path[len(folder) :])

    def delete(self, path: str) -> None:
        with self._effect("delete", check_path(path)):
            self.files.pop(path, None)

    def probe(self) -> None:
        return


def _read_all(file: int) -> bytes:
    """To the end of the file: one read may return less than was asked for."""
    pieces = []
    while piece := os.read(file, 1 << 20):
        pieces.append(piece)
    return b"".join(pieces)


def _make_folders(path: Path) -> None:
    """`path` and the missing folders above it, each readable by this user only."""
    if not path.parent.exists():
        _make_folders(path.parent)
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
