"""The store: once-only names, durable order, and nothing outside the folder."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest

from penstock.checkpoints.storage import LocalStore, MemoryStore, OutcomeUnknown, Store, check_path, folder_of, open_store
from penstock.errors import ConfigError, StorageError

BAD_PATHS = [
    "", "/", "/etc/passwd", "..", "../x", "a/../b", "a/..", "./a", "a/.", "a//b", "a/", ".hidden", "a/.hidden",
    "a\\b", "a\0b", "a b",     "%2e%2e/x", "..%2fx", "a/\u2025/b", "a\n", "\u202e", "~/x", "a/" + "b" * 201, "C:\\x",
]  # fmt: skip


@pytest.fixture(params=["local", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return LocalStore(tmp_path / "job") if request.param == "local" else MemoryStore()


def test_a_name_is_created_once_and_keeps_its_first_bytes(store: Store) -> None:
    assert store.create("log/1", b"first") is True
    assert store.create("log/1", b"second") is False
    assert store.read("log/1") == b"first"


def test_what_is_missing_reads_as_none_and_opens_as_an_error_naming_it(store: Store) -> None:
    assert store.read("state/x.arrow") is None
    with pytest.raises(StorageError, match=r"state/x\.arrow.*ENOENT"):
        store.open("state/x.arrow")
    assert store.list("state") == []
    store.delete("state/x.arrow")


def test_written_files_are_read_opened_listed_and_deleted(store: Store) -> None:
    store.write("state/b", b"12")
    store.write("state/a", b"")
    store.write("state/b", b"123")
    assert store.list("state/") == ["state/a", "state/b"]
    assert store.open("state/b").to_pybytes() == b"123"
    assert store.open("state/a").size == 0
    store.delete("state/b")
    store.delete("state/b")
    assert store.list("state") == ["state/a"]


def test_an_opened_file_stays_readable_after_it_is_deleted(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.write("a", b"x" * 10_000)
    opened = store.open("a")
    store.delete("a")
    assert opened.to_pybytes() == b"x" * 10_000


@pytest.mark.parametrize("path", BAD_PATHS)
def test_a_path_that_could_leave_the_folder_is_refused_everywhere(store: Store, path: str) -> None:
    for use in (store.read, store.open, store.delete, lambda p: store.create(p, b""), lambda p: store.write(p, b"")):
        with pytest.raises(StorageError, match="is refused"):
            use(path)


def test_a_symbolic_link_is_never_followed(tmp_path: Path) -> None:
    outside, root = tmp_path / "outside", tmp_path / "job"
    outside.mkdir()
    (outside / "secret").write_bytes(b"secret")
    root.mkdir()
    (root / "folder").symlink_to(outside)
    (root / "file").symlink_to(outside / "secret")
    store = LocalStore(root)
    for path in ("folder/secret", "file"):
        with pytest.raises(StorageError, match="symbolic link"):
            store.read(path)
        with pytest.raises(StorageError, match="symbolic link"):
            store.open(path)
    for path in ("folder/new", "folder/secret"):
        with pytest.raises(StorageError):
            store.write(path, b"x")
        with pytest.raises(StorageError):
            store.create(path, b"x")
        with pytest.raises(StorageError):
            store.delete(path)
    with pytest.raises(StorageError):
        store.list("folder")
    assert store.create("file", b"x") is False
    assert sorted(os.listdir(outside)) == ["secret"]
    assert (outside / "secret").read_bytes() == b"secret"


def test_a_pipe_under_a_name_does_not_hang_us(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StorageError, match="not a plain file"):
        LocalStore(tmp_path).read("pipe")


def test_folders_and_files_are_for_this_user_only(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "deep" / "job")
    before = os.umask(0)
    try:
        store.create("log/1", b"x")
        store.write("state/1", b"x")
    finally:
        os.umask(before)
    for path in (tmp_path / "deep").rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    assert stat.S_IMODE((tmp_path / "deep").stat().st_mode) == 0o700


def test_data_is_durable_before_its_name_is_visible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def note(name: str) -> None:
        real: Any = getattr(os, name)

        def noted(*args: Any, **kwargs: Any) -> Any:
            kind = "folder" if name == "fsync" and stat.S_ISDIR(os.fstat(args[0]).st_mode) else "file"
            calls.append(f"{name} {kind}" if name == "fsync" else name)
            return real(*args, **kwargs)

        monkeypatch.setattr(os, name, noted)

    store = LocalStore(tmp_path)
    for name in ("write", "fsync", "link", "rename"):
        note(name)
    store.create("x", b"1")
    assert calls == ["write", "fsync file", "link", "fsync folder"]
    calls.clear()
    store.write("y", b"1")
    assert calls == ["write", "fsync file", "rename", "fsync folder"]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EIO])
@pytest.mark.parametrize("call", ["write", "fsync", "link", "rename"])
def test_every_failure_names_errno_and_path_and_leaves_no_temporary_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, call: str
) -> None:
    store = LocalStore(tmp_path)

    def fail(*args: Any, **kwargs: Any) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, call, fail)
    for use in (store.create, store.write):
        if (use == store.create and call == "rename") or (use == store.write and call == "link"):
            continue
        with pytest.raises(StorageError, match=rf"{tmp_path}/x.*{errno.errorcode[code]}") as caught:
            use("x", b"1")
        assert not isinstance(caught.value, OutcomeUnknown)
    assert os.listdir(tmp_path) == []


def test_a_failed_sync_of_the_folder_is_an_unknown_outcome(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.fsync

    def fail(file: int) -> None:
        if stat.S_ISDIR(os.fstat(file).st_mode):
            raise OSError(errno.EIO, "io")
        real(file)

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OutcomeUnknown, match="EIO"):
        LocalStore(tmp_path).create("x", b"1")


def test_a_full_disk_declines_and_leaves_nothing_behind(tmp_path: Path) -> None:
    mount = tmp_path / "small"
    mount.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(mount)], capture_output=True, check=False)
    if done.returncode != 0:
        reason = "needs root and mount(8): a real ENOSPC comes from a small tmpfs"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    try:
        store = LocalStore(mount / "job")
        store.probe()
        store.write("state/small", b"x" * 1000)
        for use in (store.write, store.create):
            with pytest.raises(StorageError, match=r"state/large.*ENOSPC.*\n  Free some space"):
                use("state/large", b"x" * 1_000_000)
        assert store.list("state") == ["state/small"]
        assert store.create("state/next", b"fits") is True
    finally:
        subprocess.run(["umount", str(mount)], check=True)


def test_the_probe_passes_on_a_good_disk_and_leaves_nothing(tmp_path: Path) -> None:
    LocalStore(tmp_path / "new").probe()
    assert os.listdir(tmp_path / "new") == []


def test_the_probe_refuses_a_file_system_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise OSError(errno.EPERM, "no")

    monkeypatch.setattr(os, "link", fail)
    with pytest.raises(StorageError, match=r"no hard links.*\n  Use a local disk"):
        LocalStore(tmp_path).probe()


def test_the_probe_refuses_a_path_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="ENOTDIR"):
        LocalStore(tmp_path / "file").probe()


def test_stores_are_opened_by_path_or_file_url(tmp_path: Path) -> None:
    assert open_store(tmp_path).url == str(tmp_path)
    assert open_store(str(tmp_path)).url == str(tmp_path)
    assert open_store(f"file://{tmp_path}/a%20b").url == f"{tmp_path}/a b"
    assert folder_of("run-2026-01-31T12:30/a").parent.name == "run-2026-01-31T12:30"
    for url in ("s3://bucket/x", "hdfs://host/x", "memory:x", "git+ssh-2://x"):
        with pytest.raises(ConfigError, match="only for file:///path and for a plain path"):
            open_store(url)
    for url in ("file://host/x", "file:x", ""):
        with pytest.raises(ConfigError):
            open_store(url)


def test_the_memory_store_can_crash_before_and_after_each_effect() -> None:
    class Crash(Exception):
        pass

    def crash(op: str, path: str) -> None:
        raise Crash(op, path)

    before, after = MemoryStore(before_effect=crash), MemoryStore(after_effect=crash)
    for store in (before, after):
        with pytest.raises(Crash):
            store.create("a", b"x")
    assert before.files == {}
    assert before.journal == []
    assert after.files == {"a": b"x"}
    assert after.journal == [("create", "a")]


def test_a_good_path_is_returned_as_it_is() -> None:
    assert check_path("staging/out/epoch=5/_epoch.json") == "staging/out/epoch=5/_epoch.json"
