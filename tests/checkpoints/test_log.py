"""The log on a real store: publishing, taking over, and refusing what is damaged."""

from __future__ import annotations

from pathlib import Path

import pytest
from checkpoint_samples import manifest

from penstock.checkpoints.log import Log, RecordCodec
from penstock.checkpoints.storage import LocalStore, MemoryStore, OutcomeUnknown, Store
from penstock.errors import CorruptError, StorageError, SupersededError
from penstock.protocol.terms import slot_path, term_path

HOLDER = {"pid": 1, "host": "here"}


@pytest.fixture(params=["local", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return LocalStore(tmp_path / "job") if request.param == "local" else MemoryStore()


def published(store: Store, epochs: int) -> Log:
    log = Log(store)
    log.claim(HOLDER)
    for epoch in range(1, epochs + 1):
        log.publish(manifest(epoch, log.term))
    return log


def test_what_is_published_is_what_the_next_claim_starts_from(store: Store) -> None:
    published(store, 3)
    log = Log(store)
    assert log.claim(HOLDER).term == 2
    newest = log.newest()
    assert newest is not None
    assert newest.manifest == manifest(3)
    log.publish(manifest(4, 2))
    again = Log(store).read_newest()
    assert again is not None
    assert again.manifest.epoch == 4
    assert [found.manifest.epoch for found in log.history()] == [4, 3, 2, 1]


def test_an_empty_store_has_nothing_to_start_from(store: Store) -> None:
    assert Log(store).read_newest() is None
    assert Log(store).holder() is None
    log = Log(store)
    log.claim(HOLDER)
    assert log.newest() is None
    holder = log.holder()
    assert holder is not None
    assert holder["host"] == "here"


def test_the_old_coordinator_cannot_publish_after_a_take_over(store: Store) -> None:
    old = published(store, 1)
    new = Log(store)
    new.claim(HOLDER)
    for _ in range(2):
        with pytest.raises(SupersededError):
            old.publish(manifest(2, 1))
    new.publish(manifest(2, 2))


def test_a_coordinator_can_ask_whether_somebody_has_taken_over(store: Store) -> None:
    old = published(store, 1)
    old.check_held()
    new = Log(store)
    new.claim(HOLDER)
    new.check_held()
    with pytest.raises(SupersededError, match=term_path(2)):
        old.check_held()


def test_the_old_coordinator_cannot_publish_into_slots_that_were_deleted(store: Store) -> None:
    old = published(store, 1)
    new = Log(store)
    new.claim(HOLDER)
    for epoch in range(2, 8):
        found = new.publish(manifest(epoch, 2))
        new.truncate(found.slot)
    assert store.read(slot_path(3)) is None
    with pytest.raises(SupersededError, match=term_path(2)):
        old.publish(manifest(2, 1))
    assert store.read(slot_path(3)) is not None
    newest = Log(store).read_newest()
    assert newest is not None
    assert newest.manifest.epoch == 7
    assert [found.manifest.epoch for found in new.history()] == [7]
    new.truncate(newest.slot)  # takes the junk along
    assert store.list("log") == [slot_path(newest.slot)]


def test_a_damaged_newest_slot_is_refused_and_never_skipped() -> None:
    store = MemoryStore()
    published(store, 2)
    path = slot_path(3)
    whole = store.files[path]
    for damaged in [whole[:cut] for cut in range(0, len(whole), 7)] + [b"", whole.replace(b'"epoch":2', b'"epoch":3')]:
        store.files[path] = damaged
        with pytest.raises(CorruptError, match=path):
            Log(store).read_newest()
        with pytest.raises(CorruptError, match=path):
            Log(store).claim(HOLDER)
    assert term_path(2) not in store.files  # refused before anything was claimed


def test_a_gap_is_named_and_not_filled() -> None:
    store = MemoryStore()
    published(store, 3)
    del store.files[slot_path(3)]
    with pytest.raises(CorruptError, match=rf"{slot_path(3)} is missing, and {slot_path(4)} exists"):
        Log(store).claim(HOLDER)
    assert slot_path(3) not in store.files


def test_a_slot_of_another_log_breaks_the_chain() -> None:
    store, other = MemoryStore(), MemoryStore()
    published(store, 2)
    published(other, 2)
    store.files[slot_path(3)] = other.files[slot_path(3)]
    with pytest.raises(CorruptError, match=f"{slot_path(3)}.*chain"):
        Log(store).read_newest()


def test_a_slot_under_another_name_is_refused() -> None:
    store = MemoryStore()
    published(store, 2)
    store.files[slot_path(3)] = store.files[slot_path(2)]
    with pytest.raises(CorruptError, match="holds the record of slot 2"):
        Log(store).read_newest()


def test_a_declined_write_lets_the_next_epoch_be_published() -> None:
    store = MemoryStore()
    log = published(store, 1)

    def full(op: str, path: str) -> None:
        raise StorageError("cannot write: ENOSPC")

    store.before_effect = full
    with pytest.raises(StorageError, match="ENOSPC"):
        log.publish(manifest(2))
    store.before_effect = None
    log.publish(manifest(3))
    assert [found.manifest.epoch for found in log.history()] == [3, 1]


def test_after_an_unknown_outcome_only_a_new_claim_goes_on() -> None:
    store = MemoryStore()
    log = published(store, 1)

    def unknown(op: str, path: str) -> None:
        raise OutcomeUnknown("EIO")

    store.after_effect = unknown
    with pytest.raises(OutcomeUnknown):
        log.publish(manifest(2))
    store.after_effect = None
    with pytest.raises(SupersededError, match="epoch 2 was published is unknown"):
        log.publish(manifest(2))
    again = Log(store)
    again.claim(HOLDER)
    newest = again.newest()
    assert newest is not None
    assert newest.manifest.epoch == 2


def test_a_manifest_of_another_term_or_an_old_epoch_is_a_mistake() -> None:
    log = published(MemoryStore(), 2)
    with pytest.raises(AssertionError, match="term"):
        log.publish(manifest(3, 9))
    with pytest.raises(AssertionError, match="epoch 2 after 2"):
        log.publish(manifest(2, 1))
    log.publish(manifest(1, 1, lineage="other"))  # another lineage counts anew


def test_every_slot_survives_only_unaltered() -> None:
    store = MemoryStore()
    published(store, 1)
    codec = RecordCodec()
    data = store.files[slot_path(2)]
    assert codec.encode(codec.decode(data, "x")) == data
    for index in range(len(data)):
        flipped = bytearray(data)
        flipped[index] ^= 1
        with pytest.raises(CorruptError):
            codec.decode(bytes(flipped), "x")
