"""Who may publish: terms, log slots, and why a coordinator that slept through its replacement does no harm.

A coordinator can be paused for an hour between any two instructions and then go on, believing that it is in
charge. Clocks and leases cannot prevent that; they only make it rare. What can: a store in which **a name can
be created once** (`Create` says whether it was us). Everything below rests on that and on reading what was
written before.

Three kinds of names::

    terms/00000007       one per coordinator that ever started: its holder. Created, never deleted, no gaps.
    log/0000000041.json  slots: TermStart or Checkpoint, with the predecessor's checksum. Created, later deleted.
    heads/00000007.json  written by term 7 alone: "slot 41 exists". Replaced as term 7 goes on, never deleted.

**Taking over.** Create `terms/t+1`; walk the log to its first free slot; create TermStart there. If the old
coordinator took that slot in between, look again. The newest Checkpoint below the own TermStart is what the
new term starts from, also one that the old coordinator slipped in: it is published, so it must be committed.

**Publishing.** Create the next slot. Taken: somebody else's TermStart is in it; we are superseded. Created:
*then* read `terms/own+1`. Present: superseded as well, and nothing may be committed. Absent: whoever takes
over later will create its term after this read, walk the log after that, and so find our slot. Therefore what
was committed is never forgotten.

**Why the read after the put.** Old slots are deleted. A coordinator paused at head 10 while its successor
wrote 11..30 and deleted 1..28 finds slot 11 free and creates it. But slot 11 can only have been written and
deleted by a later term, whose term file came first and stays: the read sees it. The same holds for a claimer
that was paused in its claim.

**Why heads are per term.** Such a record in a deleted slot is junk, and a walk that began near it would end
at it and mistake it for the head of the log. One shared HEAD file, written late by a third paused
coordinator, could point there. So:

1. A term deletes slots only below a slot it has named in `heads/<own>`, durably, before (`note_head`, then
   delete).
2. So every deleted slot, and all junk, lies below the head file of the newest term that has one. A walk
   starts there.
3. That file may move while we walk: look at it again afterwards. Unmoved past us: what we walked was never
   deleted. Moved: walk again.
4. The terms of the log never go down: a claimer that meets a higher term in the log is superseded.

The functions are generators: they yield `Create`, `Read` and `Write`, and are sent the result. A disk, a
simulator and an exhaustive explorer drive the same code, and may stop or interleave it between any two
operations.

**Unknown outcomes.** A `Create` may be cut off after it took effect. Asked again it answers False; if the
name then holds our bytes, the earlier call was ours. Holders must differ for this to be sound: put something
unique into each (`Log` does).
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar

from penstock.errors import CorruptError

__all__ = [
    "CHECKPOINT",
    "HEAD",
    "TERM_START",
    "Claim",
    "Codec",
    "Create",
    "Head",
    "Op",
    "Read",
    "Record",
    "Steps",
    "Superseded",
    "Write",
    "claim_term",
    "find_head",
    "find_newest",
    "find_term",
    "head_path",
    "note_head",
    "publish",
    "slot_path",
    "still_held",
    "term_path",
]

TERM_START = "term"
CHECKPOINT = "checkpoint"
HEAD = "head"


@dataclass(frozen=True, slots=True)
class Create:
    """Create `path` holding `data`, durably, unless it exists. Answer: whether this call created it."""

    path: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Read:
    """Answer: the bytes of `path`, or None if there is no such name."""

    path: str


@dataclass(frozen=True, slots=True)
class Write:
    """Replace `path` as a whole, durably. Used only for names with a single writer. Answer: None."""

    path: str
    data: bytes


Op: TypeAlias = Create | Read | Write
T = TypeVar("T")
Steps: TypeAlias = Generator[Op, Any, T]  # what is sent in is the answer to the operation yielded


@dataclass(frozen=True, slots=True)
class Record:
    """One record of the log.

    `body` is opaque here: the holder of a TermStart, the manifest of a Checkpoint.
    """

    seq: int
    term: int
    kind: str
    body: str
    previous: str  # checksum of the record in slot seq - 1; "" in slot 1


class Codec(Protocol):
    """Records to bytes and back. `decode` raises CorruptError naming `path`."""

    def encode(self, record: Record, /) -> bytes: ...

    def decode(self, data: bytes, path: str, /) -> Record: ...

    def checksum(self, data: bytes, /) -> str: ...


@dataclass(frozen=True, slots=True)
class Head:
    """Where the log ends: its last slot (0: empty), that record's term and checksum, and the newest Checkpoint."""

    slot: int
    term: int
    checksum: str
    newest: Record | None


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to put the next record into slot `head + 1`; the newest Checkpoint (its `seq` is its slot)."""

    term: int
    head: int
    checksum: str
    newest: Record | None


@dataclass(frozen=True, slots=True)
class Superseded:
    """Another coordinator has taken over from `term`. Whatever was put, nothing may be committed."""

    term: int
    reason: str


@dataclass(frozen=True, slots=True)
class _Hint:
    """What the newest head file says: the walk starts at `slot`, whose record has `checksum`.

    Slot 0: there is no head file.
    """

    slot: int
    checksum: str


@dataclass(frozen=True, slots=True)
class _Broken:
    """Corruption, or a deletion under our feet: the next look at the heads tells which."""

    message: str


def term_path(term: int) -> str:
    """`terms/00000007`."""
    return f"terms/{term:08d}"


def slot_path(slot: int) -> str:
    """`log/0000000041.json`."""
    return f"log/{slot:010d}.json"


def head_path(term: int) -> str:
    """`heads/00000007.json`."""
    return f"heads/{term:08d}.json"


def find_term(hint: int = 0) -> Steps[int]:
    """The highest term ever claimed (0: none).

    Terms have no gaps and are never deleted, so doubling steps find the end.
    """
    low = hint if hint > 0 and (yield Read(term_path(hint))) is not None else 0
    step = 1
    while (yield Read(term_path(low + step))) is not None:
        low += step
        step *= 2
    high = low + step
    while high - low > 1:
        middle = (low + high) // 2
        if (yield Read(term_path(middle))) is not None:
            low = middle
        else:
            high = middle
    return low


def _read_hint(codec: Codec, top: int) -> Steps[_Hint]:
    """The head file of the newest term up to `top` that has one."""
    for term in range(top, 0, -1):
        path = head_path(term)
        data = yield Read(path)
        if data is None:
            continue  # this term deleted nothing (rule 1), so it cannot have made holes
        record = codec.decode(data, path)
        if record.kind != HEAD or record.term != term or record.seq < 1:
            raise CorruptError(f"{path}: found a {record.kind} record of term {record.term}, expected the head of term {term}")
        return _Hint(record.seq, record.previous)
    return _Hint(0, "")


def _walk(codec: Codec, hint: _Hint) -> Steps[Head | _Broken]:
    """Read from the hint upward to the first free slot, checking the chain."""
    head = Head(0, 0, "", None)
    slot = max(hint.slot, 1)
    while True:
        path = slot_path(slot)
        data = yield Read(path)
        if data is None:
            if slot == hint.slot:
                return _Broken(f"{path} is missing, and a head file says it was written. It was lost: restore it from a copy")
            return head
        record = codec.decode(data, path)
        if record.kind not in (TERM_START, CHECKPOINT):
            raise CorruptError(f"{path}: a {record.kind!r} record cannot be in the log")
        if record.seq != slot:
            raise CorruptError(f"{path}: holds the record of slot {record.seq}, so it was renamed or copied")
        checksum = codec.checksum(data)
        if slot == hint.slot and checksum != hint.checksum:
            return _Broken(f"{path}: not the record its head file names (checksum {checksum}, expected {hint.checksum})")
        if slot != hint.slot and record.previous != head.checksum:
            return _Broken(
                f"{path}: the chain is broken: it follows {record.previous or 'nothing'}, "
                f"and slot {slot - 1} has checksum {head.checksum or 'nothing'}"
            )
        if record.term < head.term:
            return _Broken(f"{path}: term {record.term} after term {head.term}")
        head = Head(slot, record.term, checksum, record if record.kind == CHECKPOINT else head.newest)
        slot += 1


def find_head(codec: Codec, top: int) -> Steps[Head]:
    """Where the log ends, given that `top` is the highest term.

    Raises CorruptError for a log that cannot have come about.
    """
    hint = yield from _read_hint(codec, top)
    while True:
        found = yield from _walk(codec, hint)
        again = yield from _read_hint(codec, top)
        assert again.slot >= hint.slot, f"a head moved back from {hint.slot} to {again.slot}: it has two writers"
        if isinstance(found, Head) and again.slot <= found.slot:
            return found
        if again == hint:
            assert isinstance(found, _Broken), f"walked from {hint.slot} to below it"
            raise CorruptError(found.message)
        hint = again


def find_newest(codec: Codec) -> Steps[Head]:
    """Where the log ends, for a reader that claims nothing (status pages).

    True at some moment during the call.
    """
    top = yield from find_term()
    while True:
        error: CorruptError | None = None
        head: Head | None = None
        try:
            head = yield from find_head(codec, top)
        except CorruptError as found:
            error = found  # perhaps only a newer term that deletes while we read
        newer = yield from find_term(top)
        if newer == top:
            if error is not None:
                raise error
            assert head is not None, "neither a head nor an error"
            return head
        top = newer


def claim_term(holder: str, codec: Codec, hint: int = 0) -> Steps[Claim | Superseded]:
    """Become the coordinator: take the next term, then close the log of the old one with a TermStart.

    Args:
        holder: JSON text that no other claimer uses (a random number is in it); shown to whoever asks who is
        in charge.
        hint: a term that probably exists; any number is safe.
    """
    term = (yield from find_term(hint)) + 1
    while not (yield from _created(term_path(term), holder.encode())):
        term += 1
    while True:
        try:
            head = yield from find_head(codec, term - 1)
        except CorruptError:
            # If we slept and a later term deleted what we were reading, the log is not corrupt: we are late.
            if (yield Read(term_path(term + 1))) is not None:
                return _superseded(term)
            raise
        if head.term > term:
            return _superseded(term)
        assert head.term < term, f"slot {head.slot} is of term {term}, which is only being claimed"
        start = Record(head.slot + 1, term, TERM_START, holder, head.checksum)
        data = codec.encode(start)
        if not (yield from _created(slot_path(start.seq), data)):
            continue  # the old coordinator, or a claimer before us, won this slot
        # Earlier terms cannot have deleted this slot: since our term exists they put one record at most and delete
        # none they put (rule 3 covers the rest). A later term can have: then its term file is there.
        if (yield Read(term_path(term + 1))) is not None:
            return _superseded(term)
        return Claim(term, start.seq, codec.checksum(data), head.newest)


def publish(claim: Claim, body: str, codec: Codec) -> Steps[Claim | Superseded]:
    """Put a Checkpoint into the next slot.

    A Claim as the answer, and nothing else, means: this epoch may be committed.
    """
    record = Record(claim.head + 1, claim.term, CHECKPOINT, body, claim.checksum)
    data = codec.encode(record)
    if not (yield from _created(slot_path(record.seq), data)):
        return Superseded(claim.term, f"{slot_path(record.seq)} was written by another coordinator")
    if (yield Read(term_path(claim.term + 1))) is not None:
        return _superseded(claim.term)
    return Claim(claim.term, record.seq, codec.checksum(data), record)


def still_held(claim: Claim) -> Steps[Claim | Superseded]:
    """Whether nobody has taken over. A yes is old when it arrives: only `publish` proves anything."""
    if (yield Read(term_path(claim.term + 1))) is not None:
        return _superseded(claim.term)
    return claim


def note_head(claim: Claim, codec: Codec) -> Steps[None]:
    """Name the published head in our own head file.

    Must be done before any slot below it is deleted (rule 1).
    """
    assert claim.newest is not None, "nothing was published"
    assert claim.newest.seq == claim.head, "the head is not a Checkpoint: only a term that published may delete"
    assert claim.newest.term == claim.term, "the head is not ours"
    head = Record(claim.head, claim.term, HEAD, "null", claim.checksum)
    yield Write(head_path(claim.term), codec.encode(head))


def _created(path: str, data: bytes) -> Steps[bool]:
    """Create, and where the name exists, find out whether it was us whose answer got lost."""
    if (yield Create(path, data)):
        return True
    found = yield Read(path)
    return bool(found == data)


def _superseded(term: int) -> Superseded:
    return Superseded(term, f"term {term} was superseded: {term_path(term + 1)} exists")
