"""One coordinator at a time, and the lock of a dead one is free."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.checkpoints.lock import hold
from penstock.errors import HeldError, StorageError

HOLDER = """
import sys, time
from penstock.checkpoints.lock import hold
lock = hold(sys.argv[1], {"runner": "continuous", "host": "x", "started": "now"})
print("held", flush=True)
time.sleep(60)
"""


def test_the_second_holder_is_refused_with_the_first_ones_identity(tmp_path: Path) -> None:
    about = f"pid {os.getpid()} on host here since 2026-01-01T00:00:00Z, runner local"
    lock = hold(tmp_path / "job", {"runner": "local", "host": "here", "started": "2026-01-01T00:00:00Z"})
    with lock, pytest.raises(HeldError, match=about):
        hold(tmp_path / "job", {"runner": "local"})
    hold(tmp_path / "job", {"runner": "local"}).release()


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        with pytest.raises(HeldError, match=f"pid {process.pid} on host x since now, runner continuous"):
            hold(tmp_path, {"runner": "local"})
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
    hold(tmp_path, {"runner": "local"}).release()


def test_a_forked_child_does_not_keep_the_lock(tmp_path: Path) -> None:
    lock = hold(tmp_path, {"runner": "local"})
    read, write = os.pipe()
    ready, tell = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(tell, b"x")
        os.read(read, 1)
        os._exit(0)
    try:
        os.read(ready, 1)
        lock.release()
        hold(tmp_path, {"runner": "local"}).release()
    finally:
        os.write(write, b"x")
        os.waitpid(child, 0)
        for pipe in (read, write, ready, tell):
            os.close(pipe)


def test_releasing_twice_does_no_harm_and_the_file_is_private(tmp_path: Path) -> None:
    lock = hold(tmp_path / "job", {"runner": "local"})
    assert stat.S_IMODE(lock.path.stat().st_mode) == 0o600
    lock.release()
    lock.release()
    assert lock.path.exists()


def test_a_link_in_place_of_the_lock_is_refused(tmp_path: Path) -> None:
    (tmp_path / "lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StorageError, match="cannot lock"):
        hold(tmp_path, {"runner": "local"})
    assert not (tmp_path / "elsewhere").exists()
