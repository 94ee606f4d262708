"""What is kept, what is deleted, and savepoints; with a crash at every effect."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from checkpoint_samples import PENDING, manifest, step, write_file

from penstock.checkpoints.manifest import Manifest
from penstock.checkpoints.repository import SAVEPOINT, Repository, open_savepoint, read_savepoint, state_path
from penstock.checkpoints.storage import LocalStore, MemoryStore, Store
from penstock.errors import CorruptError, RestoreError, StorageError
from penstock.protocol.terms import slot_path

HOLDER = {"pid": 1}


def claimed(store: Store, keep: int = 2) -> Repository:
    repository = Repository(store, "ads", keep=keep)
    repository.claim(HOLDER)
    return repository


def run_epoch(repository: Repository, epoch: int, attempt: int = 1) -> Manifest:
    """Write one file, keep the file of the epoch before, publish."""
    term = repository.log.term
    newest = repository.newest()
    kept = list(newest.handles())[-1:] if newest else []
    new = write_file(repository.store, state_path(term, attempt, epoch, f"u{epoch}"), b"rows %d" % epoch)
    found = manifest(epoch, term, attempt=attempt, handles=(*kept, new))
    repository.publish(found)
    return found


def assert_loadable(store: Store) -> Manifest:
    """Whoever comes next can claim, and finds every file of the newest checkpoint."""
    again = claimed(store)
    newest = again.newest()
    assert newest is not None
    for handle in newest.handles():
        assert store.open(handle["path"]).size == handle["bytes"]
    return newest


def test_only_the_newest_checkpoints_and_their_files_stay() -> None:
    store = MemoryStore()
    repository = claimed(store, keep=2)
    for epoch in range(1, 7):
        run_epoch(repository, epoch)
        repository.collect()
    kept = [found.manifest.epoch for found in repository.log.history()]
    assert kept == [6, 5]
    assert store.list("state") == [state_path(1, 1, epoch, f"u{epoch}") for epoch in (4, 5, 6)]
    assert store.list("log") == [slot_path(6), slot_path(7)]
    assert store.list("terms") == ["terms/00000001"]


def test_a_file_shared_by_many_checkpoints_goes_with_the_last() -> None:
    store = MemoryStore()
    repository = claimed(store, keep=1)
    shared = write_file(store, state_path(1, 1, 1, "base"))
    for epoch in range(1, 5):
        repository.publish(manifest(epoch, handles=(shared,)))
        repository.collect()
        assert store.read(shared["path"]) is not None
    repository.publish(manifest(5))
    repository.collect()
    assert store.read(shared["path"]) is None


def test_a_sweep_deletes_unreachable_files_of_earlier_attempts_only() -> None:
    store = MemoryStore()
    first = claimed(store)
    live = run_epoch(first, 1).files()
    orphan = state_path(1, 1, 2, "orphan")
    store.write(orphan, b"x")
    second = claimed(store)
    mine, unfinished = state_path(2, 1, 2, "mine"), state_path(1, 1, 2, "u") + ".00ff.tmp"
    for path in (mine, unfinished, "state/notes.txt", "log/0000000009.json.00ff.tmp"):
        store.write(path, b"x")
    assert second.sweep(before=(2, 1)) == 2
    assert store.list("state") == sorted([*live, mine, "state/notes.txt"])
    assert "log/0000000009.json.00ff.tmp" not in store.files
    assert second.sweep(before=(2, 2)) == 1
    assert store.list("state") == sorted([*live, "state/notes.txt"])


def test_a_clean_end_leaves_only_what_is_reachable() -> None:
    store = MemoryStore()
    repository = claimed(store, keep=1)
    run_epoch(repository, 1)
    newest = run_epoch(repository, 2)
    store.write(state_path(1, 1, 3, "orphan"), b"x")
    repository.sweep_all()
    assert store.list("state") == list(newest.files())
    idle = claimed(store, keep=1)  # published nothing: may delete no slot
    idle.sweep_all()
    assert assert_loadable(store) == newest


class Crash(Exception):
    pass


class Countdown:
    """Raises at the n-th effect."""

    def __init__(self, effects: int) -> None:
        self.left = effects

    def __call__(self, op: str, path: str) -> None:
        self.left -= 1
        if self.left < 0:
            raise Crash(op, path)


def a_life(store: MemoryStore, target: MemoryStore, published: list[Manifest]) -> None:
    """Claim, publish, collect, savepoint, take over, publish, sweep. `published`: what may have been committed."""
    for _ in range(2):
        repository = claimed(store, keep=1)
        repository.sweep(before=(repository.log.term, 1))
        newest = repository.newest()
        for epoch in range(newest.epoch + 1 if newest else 1, newest.epoch + 3 if newest else 3):
            published.append(run_epoch(repository, epoch))
            repository.collect()
        if target.read(SAVEPOINT) is None and published:
            repository.write_savepoint(published[-1], target)
        repository.sweep_all()


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_crash_at_any_effect_leaves_the_newest_checkpoint_loadable(when: str) -> None:
    effects = 0
    while True:
        store, target = MemoryStore(), MemoryStore()
        countdown = Countdown(effects)
        for each in (store, target):
            setattr(each, f"{when}_effect", countdown)
        published: list[Manifest] = []
        try:
            a_life(store, target, published)
            crashed = False
        except Crash:
            crashed = True
        for each in (store, target):
            each.before_effect = each.after_effect = None
        if published:
            assert assert_loadable(store).epoch >= published[-1].epoch
        if SAVEPOINT in target.files:
            read_savepoint(target)
        else:
            with pytest.raises(RestoreError):
                read_savepoint(target)
        a_life(store, target, published)  # and life goes on
        newest = assert_loadable(store)
        assert newest == published[-1]
        assert store.list("state") == list(newest.files())
        if not crashed:
            break
        effects += 1
    assert effects > 20


def test_a_crash_in_the_recovery_from_any_crash_leaves_the_newest_checkpoint_loadable() -> None:
    pairs = 0
    for first in range(26):
        second = 0
        crashed = True
        while crashed:
            store, target = MemoryStore(), MemoryStore()
            published: list[Manifest] = []
            for effects in (first, second):
                store.before_effect = Countdown(effects)
                try:
                    a_life(store, target, published)
                    crashed = False
                except Crash:
                    crashed = True
            store.before_effect = None
            if published:
                assert assert_loadable(store).epoch >= published[-1].epoch
            second += 1
            pairs += 1
    assert pairs > 500


def test_a_savepoint_can_be_moved_and_outlives_the_job(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "job")
    repository = claimed(store)
    found = run_epoch(repository, 1)
    repository.write_savepoint(found, LocalStore(tmp_path / "save"))
    shutil.rmtree(tmp_path / "job")
    shutil.move(tmp_path / "save", tmp_path / "moved")
    again, files = open_savepoint(tmp_path / "moved")
    assert again == found
    assert files.open(found.files()[0]).to_pybytes() == b"rows 1"
    with pytest.raises(StorageError, match="already holds a savepoint"):
        repository.write_savepoint(found, files)


def test_a_savepoint_never_carries_committables() -> None:
    repository = claimed(MemoryStore())
    with pytest.raises(AssertionError, match="no committables"):
        repository.write_savepoint(manifest(pending=PENDING), MemoryStore())


def test_no_savepoint_and_an_unfinished_one_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(RestoreError, match="there is no savepoint"):
        open_savepoint(tmp_path / "nowhere")
    LocalStore(tmp_path).write("state/x.arrow", b"x")
    with pytest.raises(RestoreError, match="never finished"):
        open_savepoint(tmp_path)
    assert not (tmp_path / "nowhere").exists()


def test_a_missing_or_short_file_of_a_savepoint_is_named() -> None:
    store, target = MemoryStore(), MemoryStore()
    repository = claimed(store)
    found = run_epoch(repository, 1)
    repository.write_savepoint(found, target)
    path = found.files()[0]
    target.files[path] = b"ro"
    with pytest.raises(CorruptError, match=f"{path} has 2 bytes"):
        read_savepoint(target)
    del target.files[path]
    with pytest.raises(CorruptError, match=path):
        read_savepoint(target)


def test_an_altered_file_is_not_copied_into_a_savepoint() -> None:
    store, target = MemoryStore(), MemoryStore()
    repository = claimed(store)
    found = run_epoch(repository, 1)
    store.files[found.files()[0]] = b"rows 2"
    with pytest.raises(CorruptError, match="was altered"):
        repository.write_savepoint(found, target)
    assert SAVEPOINT not in target.files


def test_files_stay_while_a_savepoint_copies_them() -> None:
    store, target = MemoryStore(), MemoryStore()
    repository = claimed(store, keep=1)
    found = run_epoch(repository, 1)

    def meanwhile(op: str, path: str) -> None:
        target.before_effect = None
        repository.publish(manifest(2))
        repository.collect()

    target.before_effect = meanwhile
    repository.write_savepoint(found, target)
    assert read_savepoint(target) == found
    assert store.read(found.files()[0]) is not None
    repository.publish(manifest(3))
    repository.collect()
    assert store.list("state") == []


def test_an_adopted_savepoint_has_files_of_our_own_that_survive_until_they_expire() -> None:
    store, saved = MemoryStore(), MemoryStore()
    origin = claimed(MemoryStore())
    found = run_epoch(origin, 1)
    origin.write_savepoint(found, saved)
    repository = claimed(store, keep=1)
    adopted = repository.adopt(found, saved, attempt=1)
    assert adopted.files() != found.files()
    assert repository.sweep(before=(1, 5)) == 0
    assert store.list("state") == list(adopted.files())
    repository.publish(manifest(2, lineage="fork", operators=(step(handles=()),)))
    repository.collect()
    assert store.list("state") == []
    assert saved.list("state") == list(found.files())


def test_a_folder_of_another_pipeline_is_refused() -> None:
    store = MemoryStore()
    run_epoch(claimed(store), 1)
    with pytest.raises(RestoreError, match="checkpoints of pipeline 'ads', not of 'other'"):
        Repository(store, "other").claim(HOLDER)
