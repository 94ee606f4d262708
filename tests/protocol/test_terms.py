"""Terms and slots, with every interleaving of coordinators at every store operation."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import pytest

from penstock.errors import CorruptError
from penstock.protocol.terms import (
    CHECKPOINT,
    Claim,
    Create,
    Head,
    Read,
    Record,
    Superseded,
    Write,
    claim_term,
    find_newest,
    find_term,
    head_path,
    note_head,
    publish,
    slot_path,
    term_path,
)


class PlainCodec:
    """Records as text; the checksum of a record is its text, so that a mix-up cannot hide."""

    def encode(self, record: Record) -> bytes:
        return f"{record.seq}|{record.term}|{record.kind}|{record.body}|{hash_of(record.previous)}".encode()

    def decode(self, data: bytes, path: str) -> Record:
        try:
            seq, term, kind, body, previous = data.decode().split("|")
            return Record(int(seq), int(term), kind, body, previous)
        except ValueError:
            raise CorruptError(f"{path}: not a record") from None

    def checksum(self, data: bytes) -> str:
        return hash_of(data.decode())


def hash_of(text: str) -> str:
    """Short and different for different records: seq, term, kind and body, without the predecessor."""
    return text.replace("|", "/").rsplit("/", 1)[0] if "|" in text else text


CODEC = PlainCodec()
Store = dict[str, bytes]


@dataclass(frozen=True)
class Delete:
    path: str


@dataclass(frozen=True)
class Commit:
    """Not a store operation: the moment at which a coordinator believes it may commit, and does."""

    term: int
    slot: int
    body: str


@dataclass(frozen=True)
class Claimed:
    term: int
    newest: int


def perform(store: Store, op: Any) -> Any:
    match op:
        case Create(path, data):
            if path in store:
                return False
            store[path] = data
            return True
        case Read(path):
            return store.get(path)
        case Write(path, data):
            store[path] = data
        case Delete(path):
            store.pop(path, None)
    return None


def finish(store: Store, steps: Generator[Any, Any, Any], answer: Any = None) -> Any:
    while True:
        try:
            op = steps.send(answer)
        except StopIteration as end:
            return end.value
        answer = perform(store, op)


def coordinator(name: str, epochs: int, *, collects: bool) -> Generator[Any, Any, None]:
    """Claim, then publish, commit and (keeping one checkpoint) collect, `epochs` times. Stops when superseded."""
    claim = yield from claim_term(name, CODEC)
    if isinstance(claim, Superseded):
        return
    yield Claimed(claim.term, claim.newest.seq if claim.newest else 0)
    yield from in_charge(name, claim, epochs, collects=collects)


def in_charge(name: str, claim: Claim, epochs: int, *, collects: bool) -> Generator[Any, Any, None]:
    """The rest of a coordinator's life, after its claim."""
    oldest = claim.newest.seq if claim.newest else 1
    for epoch in range(epochs):
        outcome = yield from publish(claim, f"{name}{epoch}", CODEC)
        if isinstance(outcome, Superseded):
            return
        claim = outcome
        yield Commit(claim.term, claim.head, f"{name}{epoch}")
        if collects:
            yield from note_head(claim, CODEC)
            for slot in range(oldest, claim.head):
                yield Delete(slot_path(slot))
            oldest = claim.head


def place(steps: Any) -> tuple[Any, ...]:
    """Where a suspended generator stands: each frame's instruction and variables. Equal places behave alike from here on."""
    found = []
    while steps is not None:
        frame = steps.gi_frame
        found.append((frame.f_code.co_name, frame.f_lasti, repr(sorted(frame.f_locals.items(), key=lambda item: item[0]))))
        steps = steps.gi_yieldfrom
    return tuple(found)


class Explorer:
    """All interleavings of some coordinators at every operation, each reachable state visited once."""

    def __init__(self, makers: list[Any], store: Store) -> None:
        self.makers = makers
        self.start = store
        self.states = 0
        self.commits_seen: set[int] = set()
        self.checked: set[Any] = set()

    def run(self) -> None:
        seen = set()
        empty: tuple[Any, ...] = tuple(() for _ in self.makers)
        stack: list[tuple[Store, tuple[Any, ...], tuple[Any, ...]]] = [(self.start, empty, ())]
        while stack:
            store, histories, marks = stack.pop()
            now = [self.replay(index, history) for index, history in enumerate(histories)]
            state = (frozenset(store.items()), marks, *(where for _, where in now))
            if state in seen:
                continue
            seen.add(state)
            self.check(store, marks)
            for index, (op, _) in enumerate(now):
                if op is None:
                    continue
                after, changed = marks, dict(store)
                if isinstance(op, (Commit, Claimed)):
                    answer, after = None, tuple(sorted((*marks, op), key=repr))
                else:
                    answer = perform(changed, op)
                history = (*histories[index], answer)
                stack.append((changed, (*histories[:index], history, *histories[index + 1 :]), after))
        self.states = len(seen)

    def replay(self, index: int, history: tuple[Any, ...]) -> tuple[Any, Any]:
        """The next operation of a coordinator that was given these answers, and where it stands. None: it has ended."""
        steps = self.makers[index]()
        try:
            op = next(steps)
            for answer in history:
                op = steps.send(answer)
        except StopIteration:
            return None, None
        return op, place(steps)

    def check(self, store: Store, marks: tuple[Any, ...]) -> None:
        key = (frozenset(store.items()), marks)
        if key in self.checked:
            return
        self.checked.add(key)
        commits = [mark for mark in marks if isinstance(mark, Commit)]
        slots = [commit.slot for commit in commits]
        assert len(set(slots)) == len(slots), f"a slot was committed twice: {commits}"
        for commit in commits:
            for claim in marks:
                if isinstance(claim, Claimed) and claim.term > commit.term:
                    assert claim.newest >= commit.slot, f"term {claim.term} started without {commit}: {marks}"
        self.commits_seen.add(len(commits))
        # A crash of everybody, here: whoever comes next must find every commit, and a log that hangs together.
        head = finish(dict(store), find_newest(CODEC))
        newest = head.newest.seq if head.newest else 0
        assert newest >= max(slots, default=0), f"a fresh reader finds {newest}, committed are {slots}"
        if newest:
            assert slot_path(newest) in store
        claim = finish(dict(store), claim_term("next", CODEC))
        assert isinstance(claim, Claim)
        assert (claim.newest.seq if claim.newest else 0) == newest


def test_two_coordinators_at_every_operation_never_lose_or_repeat_a_commit() -> None:
    explorer = Explorer([lambda: coordinator("a", 2, collects=False), lambda: coordinator("b", 2, collects=False)], {})
    explorer.run()
    assert explorer.states > 800
    assert explorer.commits_seen == {0, 1, 2, 3, 4}


def test_two_coordinators_that_delete_old_slots_never_lose_or_repeat_a_commit() -> None:
    explorer = Explorer([lambda: coordinator("a", 2, collects=True), lambda: coordinator("b", 2, collects=True)], {})
    explorer.run()
    assert explorer.states > 1_000
    assert 4 in explorer.commits_seen


def grown(epochs: int) -> Store:
    """A store in which an earlier term has run, collected, and died."""
    store: Store = {}
    finish(store, coordinator("old", epochs, collects=True))
    return store


def test_a_coordinator_in_charge_and_two_that_take_over_never_lose_or_repeat_a_commit() -> None:
    store = grown(1)
    claim = paused_before_publishing(store, "a")
    explorer = Explorer(
        [
            lambda: in_charge("a", claim, 1, collects=True),
            lambda: coordinator("b", 1, collects=True),
            lambda: coordinator("c", 1, collects=False),
        ],
        store,
    )
    explorer.run()
    assert explorer.states > 10_000
    assert 3 in explorer.commits_seen


def paused_before_publishing(store: Store, name: str) -> Claim:
    claim = finish(store, claim_term(name, CODEC))
    assert isinstance(claim, Claim)
    return claim


def run_collecting(store: Store, name: str, epochs: int) -> None:
    finish(store, coordinator(name, epochs, collects=True))


def test_a_paused_coordinator_whose_next_slot_was_deleted_may_not_commit() -> None:
    store: Store = {}
    paused = paused_before_publishing(store, "a")
    run_collecting(store, "b", 5)
    assert slot_path(paused.head + 1) not in store
    assert isinstance(finish(store, publish(paused, "late", CODEC)), Superseded)
    assert slot_path(paused.head + 1) in store  # the junk is there ...
    head = finish(store, find_newest(CODEC))
    assert head.newest.body == "b4"  # ... and nobody takes it for the head


def test_a_claimer_that_slept_before_its_term_start_is_superseded() -> None:
    store = grown(2)
    steps = claim_term("a", CODEC)
    op = steps.send(None)
    while not (isinstance(op, Create) and op.path.startswith("log/")):
        op = steps.send(perform(store, op))
    run_collecting(store, "b", 3)
    assert op.path not in store  # written by b, and deleted
    assert isinstance(finish(store, steps, perform(store, op)), Superseded)
    assert finish(store, find_newest(CODEC)).newest.body == "b2"


def test_junk_below_the_head_is_not_found_even_if_an_old_head_file_comes_late() -> None:
    store: Store = {}
    first = finish(store, publish(paused_before_publishing(store, "a"), "a0", CODEC))
    second = paused_before_publishing(store, "b")
    run_collecting(store, "c", 4)
    finish(store, publish(second, "late", CODEC))  # junk in a deleted slot
    finish(store, note_head(first, CODEC))  # a third sleeper names its own head at last
    assert finish(store, find_newest(CODEC)).newest.body == "c3"
    claim = finish(store, claim_term("d", CODEC))
    assert claim.newest.body == "c3"


def test_a_checkpoint_slipped_in_during_the_take_over_is_what_the_new_term_starts_from() -> None:
    store: Store = {}
    old = paused_before_publishing(store, "a")
    steps = claim_term("b", CODEC)
    op, slipped = steps.send(None), None
    while True:
        answer = perform(store, op)
        if isinstance(op, Create) and op.path == term_path(2):
            slipped = finish(store, publish(old, "slipped", CODEC))
        try:
            op = steps.send(answer)
        except StopIteration as end:
            claim = end.value
            break
    assert isinstance(slipped, Superseded)  # it may not commit ...
    assert claim.newest.body == "slipped"  # ... and its successor will
    assert claim.newest.kind == CHECKPOINT


def test_a_create_whose_answer_was_lost_is_recognised_by_its_bytes() -> None:
    store: Store = {}
    claim = paused_before_publishing(store, "a")
    steps = publish(claim, "x", CODEC)
    perform(store, steps.send(None))  # it took effect, and the process heard nothing
    again = finish(store, publish(claim, "x", CODEC))
    assert isinstance(again, Claim)
    assert again.head == claim.head + 1


def test_another_record_in_our_slot_means_superseded() -> None:
    store: Store = {}
    claim = paused_before_publishing(store, "a")
    finish(store, publish(claim, "x", CODEC))
    assert isinstance(finish(store, publish(claim, "y", CODEC)), Superseded)


@pytest.mark.parametrize("highest", [0, 1, 2, 3, 7, 8, 9, 100])
@pytest.mark.parametrize("hint", [0, 1, 5, 8, 1000])
def test_the_highest_term_is_found_whatever_the_hint(highest: int, hint: int) -> None:
    store = {term_path(term): b"x" for term in range(1, highest + 1)}
    assert finish(store, find_term(hint)) == highest


def test_an_empty_store_has_an_empty_log() -> None:
    assert finish({}, find_newest(CODEC)) == Head(0, 0, "", None)


def test_a_lost_head_slot_is_named() -> None:
    store = grown(3)
    newest = finish(store, find_newest(CODEC)).slot
    del store[slot_path(newest)]
    with pytest.raises(CorruptError, match=slot_path(newest)):
        finish(store, find_newest(CODEC))
    with pytest.raises(CorruptError, match=slot_path(newest)):
        finish(store, claim_term("b", CODEC))


def test_a_record_from_elsewhere_in_the_chain_is_named() -> None:
    store: Store = {}
    claim = paused_before_publishing(store, "a")
    finish(store, publish(claim, "x", CODEC))
    store[slot_path(2)] = CODEC.encode(Record(2, 1, CHECKPOINT, "x", "other"))
    with pytest.raises(CorruptError, match=r"log/0000000002\.json.*chain"):
        finish(store, find_newest(CODEC))


def test_a_head_file_of_another_term_is_named() -> None:
    store = grown(2)
    store[head_path(2)] = store[head_path(1)]
    store[term_path(2)] = b"x"
    with pytest.raises(CorruptError, match=r"heads/00000002\.json"):
        finish(store, find_newest(CODEC))


def test_only_a_term_that_published_may_name_a_head() -> None:
    claim = paused_before_publishing({}, "a")
    with pytest.raises(AssertionError, match="nothing was published"):
        finish({}, note_head(claim, CODEC))
