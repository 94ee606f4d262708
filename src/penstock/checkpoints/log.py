"""The published checkpoints, in order: `protocol.terms` carried out against a store.

`protocol.terms` decides and says why it is safe; this module reads, writes, and turns answers into
exceptions.

1. `claim` first, then `publish` as often as there are epochs. When `publish` returns, the epoch may be
   committed; if it raises, it may not.
2. SupersededError is final: the process must stop, without committing.
3. After StorageError nothing was published and the next epoch may be tried, except after `OutcomeUnknown`:
   then only a new claim can tell, so this log refuses to go on.
4. A slot that is corrupt, out of chain or missing below a later one is refused with the file's name, as long as
   what is newest depends on it. Nothing is skipped: an older checkpoint would be a rewind behind the sinks.
5. What lies before the newest checkpoint is kept for people only. A damaged record there is logged, and it and
   those below it count as gone.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from penstock.checkpoints.envelope import UNALIGNED, Envelope, Json, canonical, checksum, seal, unseal
from penstock.checkpoints.manifest import Manifest
from penstock.checkpoints.storage import OutcomeUnknown, Store
from penstock.errors import ConfigError, CorruptError, Fix, SupersededError
from penstock.protocol import terms
from penstock.protocol.terms import Claim, Create, Head, Read, Record, Steps, Superseded, Write

__all__ = ["Log", "Published", "RecordCodec", "drive"]

log = logging.getLogger("penstock")

DAMAGED = Fix(
    "log.damaged",
    "Put that file back from a copy of the storage, or start from a savepoint with another storage. "
    'Write: pipeline.run(pen.Local(storage="elsewhere"), restore="savepoint")',
)

_SLOT = re.compile(r"log/([0-9]{10,18})\.json")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Published:
    """A checkpoint and the slot it is in."""

    slot: int
    manifest: Manifest


class RecordCodec:
    """Log records in envelopes: what `protocol.terms` calls a Codec. `body` is canonical JSON text.

    A manifest is checked in full as soon as its slot is read, so that a walk over the log cannot pass a
    checkpoint nobody can load.
    """

    def encode(self, record: Record) -> bytes:
        body = json.loads(record.body)
        requires = (UNALIGNED,) if record.kind == terms.CHECKPOINT and body["cut"] == UNALIGNED else ()
        return seal(Envelope(record.kind, record.seq, record.term, record.previous, body), requires)

    def decode(self, data: bytes, path: str) -> Record:
        found = unseal(data, path)
        if found.kind == terms.CHECKPOINT:
            Manifest.from_json(found.body, path, lenient=found.lenient)
        try:
            body = canonical(found.body, "body").decode()
        except ConfigError as error:
            raise CorruptError(f"{path}: {error}") from None
        return Record(found.seq, found.term, found.kind, body, found.previous)

    def checksum(self, data: bytes) -> str:
        return checksum(data)


def drive(store: Store, steps: Steps[T]) -> T:
    """Carry out the operations of a protocol function and return its answer."""
    answer: bool | bytes | None = None
    while True:
        try:
            op = steps.send(answer)
        except StopIteration as end:
            value: T = end.value
            return value
        match op:
            case Create(path, data):
                answer = store.create(path, data)
            case Read(path):
                answer = store.read(path)
            case Write(path, data):
                store.write(path, data)
                answer = None


class Log:
    """The log of one job. `store` is the job's own folder."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.codec = RecordCodec()
        self._claim: Claim | None = None
        self._newest: Published | None = None
        self._lost: str | None = None  # why this log may not publish any more

    @property
    def term(self) -> int:
        """The claimed term."""
        assert self._claim is not None, "nothing is claimed"
        return self._claim.term

    def claim(self, holder: Mapping[str, Json]) -> Claim:
        """Take over the job. SupersededError: somebody took over from us meanwhile; CorruptError: the log is damaged.

        Args:
            holder: who we are, for people (pid, host, runner).
        """
        self._head()  # looks for gaps first: a TermStart put into one would hide it for ever
        text = canonical({**holder, "nonce": secrets.token_hex(16)}, "holder").decode()
        self._claim, self._lost = None, None
        with _advising():
            self._claim = self._held(drive(self.store, terms.claim_term(text, self.codec)))
        self._newest = _published(self._claim.newest)
        return self._claim

    def newest(self) -> Published | None:
        """The checkpoint to go on from: the newest when we claimed, or the last published since."""
        assert self._claim is not None, "nothing is claimed"
        return self._newest

    def publish(self, manifest: Manifest) -> Published:
        """Publish a checkpoint. When this returns, its epoch may be committed, and not before."""
        assert self._claim is not None, "nothing is claimed"
        if self._lost is not None:
            raise SupersededError(
                f"{self._lost}, and this process may publish no more",
                fix=Fix("log.new-term", "Start the job again: it takes over with a new term"),
            )
        assert manifest.term == self._claim.term, f"a manifest of term {manifest.term} under term {self._claim.term}"
        before = self._newest
        if before is not None and before.manifest.lineage == manifest.lineage:
            assert manifest.epoch > before.manifest.epoch, f"epoch {manifest.epoch} after {before.manifest.epoch}"
        try:
            self._claim = self._held(drive(self.store, terms.publish(self._claim, manifest.to_text(), self.codec)))
        except OutcomeUnknown as error:
            self._lost = f"whether epoch {manifest.epoch} was published is unknown ({error.message})"
            raise
        self._newest = Published(self._claim.head, manifest)
        return self._newest

    def check_held(self) -> None:
        """SupersededError if somebody has taken over: cheaper to know before work is begun than when it cannot be published."""
        assert self._claim is not None, "nothing is claimed"
        self._held(drive(self.store, terms.still_held(self._claim)))

    def truncate(self, below: int) -> int:
        """Delete the slots below `below`; how many. Only what this term has published above lets it do so."""
        assert self._claim is not None, "nothing is claimed"
        assert self._lost is None, f"truncating after {self._lost}"
        assert below <= self._claim.head, f"truncating to {below} above the head {self._claim.head}"
        drive(self.store, terms.note_head(self._claim, self.codec))
        old = [slot for slot in self._listed() if slot < below]
        for slot in old:
            self.store.delete(terms.slot_path(slot))
        return len(old)

    def read_newest(self) -> Published | None:
        """The newest published checkpoint, without claiming anything: for status pages and commands."""
        return _published(self._head().newest)

    def holder(self) -> dict[str, Json] | None:
        """Who claimed the highest term; None if nobody ever did. It may be long gone."""
        term = drive(self.store, terms.find_term())
        data = self.store.read(terms.term_path(term)) if term else None
        try:
            found = json.loads(data) if data is not None else None
        except (ValueError, RecursionError):
            raise CorruptError(f"{terms.term_path(term)} does not name its holder") from None
        return found if isinstance(found, dict) else None

    def history(self) -> list[Published]:
        """The checkpoints that are still there, newest first, each proved by the chain from the head."""
        found: list[Published] = []
        head = self._head()
        slot, expected = head.slot, head.checksum
        while slot > 0:
            path = terms.slot_path(slot)
            data = self.store.read(path)
            if data is None:
                break  # deleted: what is below is deleted or junk
            try:
                record = self.codec.decode(data, path)
            except CorruptError as error:
                if not found:
                    raise  # the newest checkpoint is at stake
                log.warning("an older checkpoint cannot be used any more, and is not needed: %s", error)
                break
            if self.codec.checksum(data) != expected:
                break  # junk that a superseded coordinator put into a deleted slot: see protocol.terms
            if record.kind == terms.CHECKPOINT:
                published = _published(record)
                assert published is not None, "a checkpoint record holds a manifest"
                found.append(published)
            slot, expected = slot - 1, record.previous
        return found

    def _head(self) -> Head:
        """The head, after making sure that nothing is beyond it."""
        with _advising():
            return self._found_head()

    def _found_head(self) -> Head:
        head = drive(self.store, terms.find_newest(self.codec))
        while True:
            beyond = [slot for slot in self._listed() if slot > head.slot]
            if not beyond:
                return head
            # Either a coordinator is publishing while we look, and the head moves, or slots in between are
            # lost.
            again = drive(self.store, terms.find_newest(self.codec))
            if again.slot == head.slot:
                missing, found = terms.slot_path(head.slot + 1), terms.slot_path(beyond[0])
                raise CorruptError(f"{missing} is missing, and {found} exists: it was lost")
            head = again

    def _listed(self) -> list[int]:
        return sorted(int(match[1]) for path in self.store.list("log") if (match := _SLOT.fullmatch(path)))

    def _held(self, outcome: Claim | Superseded) -> Claim:
        if isinstance(outcome, Superseded):
            self._lost = outcome.reason
            raise SupersededError(f"another coordinator has taken over this job in {self.store.url}: {outcome.reason}")
        return outcome


@contextlib.contextmanager
def _advising() -> Iterator[None]:
    """Within: an error about a damaged log says what can be done."""
    try:
        yield
    except CorruptError as error:
        if error.fix is not None:
            raise
        raise CorruptError(error.message, fix=DAMAGED) from error


def _published(record: Record | None) -> Published | None:
    """The checkpoint in a record the codec has checked: fields it passed over are passed over here."""
    if record is None:
        return None
    return Published(record.seq, Manifest.from_json(json.loads(record.body), terms.slot_path(record.seq), lenient=True))
