"""Files written past the page cache have the same bytes as any other."""

from __future__ import annotations

import errno
import itertools
import os
import random
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.checkpoints import direct, storage
from penstock.checkpoints.direct import BLOCK, STAGE_BYTES
from penstock.checkpoints.storage import LocalStore

MEBIBYTE = 1 << 20
LENGTHS = [MEBIBYTE, MEBIBYTE + 1, MEBIBYTE + BLOCK, 3 * MEBIBYTE - 1, 2 * STAGE_BYTES, 2 * STAGE_BYTES + BLOCK + 7]


def pieces_of(data: bytes, seed: int) -> list[pa.Buffer]:
    """In pieces of any length, some of them empty."""
    rng = random.Random(seed)
    cuts = sorted([0, 0, len(data), *(rng.randrange(len(data)) for _ in range(9))])
    return [pa.py_buffer(data[a:b]) for a, b in itertools.pairwise(cuts)]


@pytest.mark.parametrize("length", LENGTHS)
def test_all_pieces_arrive_whatever_their_lengths(tmp_path: Path, length: int) -> None:
    store, data = LocalStore(tmp_path), random.Random(length).randbytes(length)
    for seed in range(3):
        store.write(f"state/{seed}", *pieces_of(data, seed), read_soon=False)
        assert store.read(f"state/{seed}") == data
    assert sorted(os.listdir(tmp_path / "state")) == ["0", "1", "2"]


def test_large_files_that_nobody_reads_soon_go_past_the_cache_and_others_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    went: list[int] = []
    monkeypatch.setattr(storage, "write_past_cache", lambda file, pieces: went.append(sum(map(len, pieces))))
    store = LocalStore(tmp_path)
    store.write("a", bytes(MEBIBYTE), bytes(5), read_soon=False)
    store.write("b", bytes(MEBIBYTE - 1), read_soon=False)
    store.write("c", bytes(MEBIBYTE))
    assert went == [MEBIBYTE + 5]
    assert store.read("c") == bytes(MEBIBYTE)


def refusing_direct_writes(file: int, data: memoryview) -> int:
    """As a file system that takes the flag, and refuses when it is written to."""
    if direct.fcntl.fcntl(file, direct.fcntl.F_GETFL) & os.O_DIRECT:
        raise OSError(errno.EINVAL, "Invalid argument")
    return WRITE(file, data)


def at_most_a_block(file: int, data: memoryview) -> int:
    """As a file system that is interrupted all the time."""
    return WRITE(file, data[:BLOCK])


WRITE = os.write


@pytest.mark.parametrize("write", [refusing_direct_writes, at_most_a_block])
def test_a_file_system_may_refuse_or_write_less_than_it_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: object
) -> None:
    monkeypatch.setattr(os, "write", write)
    data = random.Random(1).randbytes(STAGE_BYTES + 3 * BLOCK + 17)
    LocalStore(tmp_path).write("a", data, read_soon=False)
    assert (tmp_path / "a").read_bytes() == data


def test_a_fork_has_a_stage_of_its_own() -> None:
    stage = direct._stages.mine
    stage[:1] = b"a"
    child = os.fork()
    if not child:
        stage[:1] = b"b"
        os._exit(0)
    os.waitpid(child, 0)
    assert bytes(stage[:1]) == b"a"


def test_a_file_system_may_not_know_the_flag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(file: int, command: int, flags: int = 0) -> int:
        if command == direct.fcntl.F_SETFL:
            raise OSError(errno.EINVAL, "Invalid argument")
        return 0

    monkeypatch.setattr(direct.fcntl, "fcntl", refuse)
    data = random.Random(2).randbytes(2 * MEBIBYTE + 1)
    LocalStore(tmp_path).write("a", data, read_soon=False)
    assert (tmp_path / "a").read_bytes() == data
