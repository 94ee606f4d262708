"""The parts of the small world that `world` puts around the protocol: its scope, its store's records, sources, targets and hosts.

Each is the least that makes the shipped classes a job. They are copied before they are changed.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from penstock.protocol import coordinator as co
from penstock.protocol import terms
from penstock.protocol.messages import TIME_MIN, TaskAck
from penstock.protocol.task import TaskCore
from penstock.protocol.watermarks import Minimum

LINEAGE: Final = "job"
SINK: Final = "out"
WORKERS: Final = (0, 1)
SETTINGS: Final = co.Settings(interval=0, timeout=1, declines_max=3, restarts_max=3, backoff=0, backoff_max=0)

Row = tuple[int, int]  # (source, number); its event time is its number


class Violation(AssertionError):
    """An invariant does not hold."""

    def __init__(self, invariant: str, detail: str) -> None:
        super().__init__(f"{invariant}: {detail}")
        self.invariant = invariant


def require(holds: bool, invariant: str, detail: str) -> None:
    """An invariant of the world."""
    if not holds:
        raise Violation(invariant, detail)


@dataclass(frozen=True, slots=True)
class Scope:
    """How large the world is and how often each kind of fault may happen on one path."""

    name: str
    targets: int = 1  # tasks that read both sources: 2 or 4 channels
    rows: tuple[int, int] = (1, 1)  # per source
    epochs: int = 2
    crashes: int = 0  # of a worker or a coordinator
    zombies: int = 0  # successors to a coordinator that is alive
    hiccups: int = 0  # a time-out, a decline, a storage error (done or not), a commit put off or its answer lost
    collections: int = 0  # of old log slots
    late: int = 0  # acknowledgements delivered after their attempt
    overdue: int = 0  # snapshots that a target takes before all barriers have come
    reruns: int = 0  # a source task run again within an epoch, as Spark does when its output is lost; makes epochs micro-batches


@dataclass(frozen=True, slots=True)
class Codec:
    """Log records as JSON."""

    def encode(self, record: terms.Record, /) -> bytes:
        return json.dumps([record.seq, record.term, record.kind, record.body, record.previous]).encode()

    def decode(self, data: bytes, path: str, /) -> terms.Record:
        return terms.Record(*json.loads(data))

    def checksum(self, data: bytes, /) -> str:
        return f"{zlib.crc32(data):08x}"


CODEC: Final = Codec()


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a checkpoint says."""

    epoch: int
    positions: tuple[int, ...]  # rows read, by source
    states: tuple[tuple[tuple[Row, ...], int], ...]  # rows seen and event time, by target
    pending: tuple[co.Pending, ...]
    finished: bool
    in_flight: tuple[tuple[Row, ...], ...] = ((), ())  # rows sent and not yet seen, by target

    @property
    def fresh(self) -> tuple[Row, ...]:
        """The rows that this epoch itself adds to the output."""
        return tuple(row for p in self.pending if p.epoch == self.epoch for row in p.committables)

    def to_text(self) -> str:
        pending = [[p.epoch, p.sink, p.committables] for p in self.pending]
        return json.dumps([self.epoch, self.positions, self.states, pending, self.finished, self.in_flight])


EMPTY: Final = Manifest(0, (0, 0), (((), TIME_MIN), ((), TIME_MIN)), (), False)


@cache
def parse(text: str) -> Manifest:
    """The manifest in a log record."""
    epoch, positions, states, pending, finished, in_flight = json.loads(text)
    seen = tuple((rows_of(rows), time) for rows, time in states)
    owed = tuple(co.Pending(e, sink, rows_of(rows)) for e, sink, rows in pending)
    return Manifest(epoch, tuple(positions), seen, owed, finished, tuple(rows_of(rows) for rows in in_flight))


def rows_of(pairs: Sequence[Sequence[int]]) -> tuple[Row, ...]:
    """Rows from JSON."""
    return tuple((i, n) for i, n in pairs)


@dataclass(frozen=True, slots=True)
class Call:
    """A store protocol under way: which, with what, and what the store has answered so far."""

    kind: str  # claim, publish, note; collect is the world's own
    args: tuple[Any, ...]
    answers: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Returned:
    """A store protocol is over."""

    value: Any


def next_op(call: Call, memo: dict[Call, terms.Op | Returned]) -> terms.Op | Returned:
    """The operation after these answers. A generator cannot be copied, so it is run again from its start."""
    if call not in memo:
        protocols: dict[str, Callable[..., terms.Steps[Any]]] = {
            "claim": terms.claim_term,
            "publish": terms.publish,
            "note": terms.note_head,
        }
        steps = protocols[call.kind](*call.args, CODEC)
        try:
            op = next(steps)
            for answer in call.answers:
                op = steps.send(answer)
            memo[call] = op
        except StopIteration as end:
            memo[call] = Returned(end.value)
    return memo[call]


class Letter:
    """An acknowledgement under way."""

    __slots__ = ("event", "text")

    def __init__(self, event: co.Acked) -> None:
        self.event, self.text = event, repr(event)


class Source:
    """A source task: reads its rows, deals them to the targets, tells them the time."""

    __slots__ = ("core", "id", "index", "position", "uid")

    def __init__(self, index: int, position: int, uid: str) -> None:
        self.core = TaskCore({}, sources=True)
        self.index, self.position, self.uid = index, position, uid
        self.id: int | None = None

    def clone(self) -> Source:
        copy = object.__new__(Source)
        copy.core, copy.index, copy.position, copy.uid, copy.id = self.core.clone(), self.index, self.position, self.uid, None
        return copy

    def key(self) -> Hashable:
        return (self.core.key(), self.index, self.position, self.uid)


class Target:
    """A target task: its state is the rows it has seen; its output are the rows of the epoch.

    `kept` are rows in flight that are being recorded, for the acknowledgement `unsaid`; `replaying` is how many rows at the front
    of its first channel were in flight in the checkpoint it started from: until they are seen, no other channel is read.
    """

    __slots__ = (
        "clock",
        "core",
        "fresh",
        "held",
        "id",
        "index",
        "kept",
        "origins",
        "prepared",
        "replaying",
        "seen",
        "told",
        "uid",
        "unsaid",
    )

    def __init__(self, index: int, seen: tuple[Row, ...], time: int, uid: str, replaying: int = 0) -> None:
        self.core = TaskCore(dict.fromkeys(WORKERS, 0), sources=False)
        self.clock: Minimum[int] = Minimum([0], time)
        self.index, self.seen, self.uid = index, seen, uid
        self.fresh: tuple[Row, ...] = ()
        self.prepared: tuple[tuple[int, tuple[Row, ...]], ...] = ()
        self.held: frozenset[int] = frozenset()
        self.origins: tuple[tuple[int, str], ...] = ()
        self.kept: tuple[Row, ...] = ()
        self.unsaid: TaskAck | None = None
        self.replaying = replaying
        self.told = 0  # the last epoch it could call overdue
        self.id: int | None = None

    def clone(self) -> Target:
        copy = object.__new__(Target)
        for name in Target.__slots__:
            setattr(copy, name, getattr(self, name))
        copy.core, copy.clock, copy.id = self.core.clone(), self.clock.clone(), None
        return copy

    def key(self) -> Hashable:
        held = tuple(sorted(self.held))
        doing = (self.fresh, self.prepared, held, self.origins, self.kept, repr(self.unsaid), self.replaying, self.told)
        return (self.core.key(), self.clock.key(), self.index, self.seen, self.uid, *doing)


class Host:
    """A coordinator's process: the coordinator and what it is waiting for."""

    __slots__ = ("birth", "calls", "claim", "commit", "coordinator", "id", "inbox", "now")

    def __init__(self, birth: int) -> None:
        self.birth = birth
        self.coordinator: co.Coordinator | None = None
        self.claim: terms.Claim | None = None
        self.calls: tuple[Call, ...] = (Call("claim", (f"holder {birth}",)),)
        self.commit: co.Commit | None = None
        self.inbox: tuple[co.Event, ...] = ()
        self.now = 0
        self.id: int | None = None

    @property
    def halted(self) -> bool:
        return self.coordinator is not None and self.coordinator.phase is co.Phase.HALTED

    def clone(self) -> Host:
        copy = object.__new__(Host)
        copy.birth, copy.claim, copy.calls, copy.commit, copy.inbox = self.birth, self.claim, self.calls, self.commit, self.inbox
        copy.coordinator, copy.now, copy.id = self.coordinator and self.coordinator.clone(), self.now, None
        return copy

    def key(self) -> Hashable:
        return (
            self.birth,
            self.coordinator and self.coordinator.key(),
            self.claim,
            self.calls,
            self.commit,
            self.inbox,
            self.now,
        )


def manifest_of(publish: co.Publish, scope: Scope) -> Manifest:
    acks = publish.acks
    tasks = 2 + scope.targets
    require(len(acks) == tasks, "cut", f"epoch {publish.epoch} has the parts of {sorted(acks)} only")
    positions = tuple(acks[f"source {i}"].splits["in"][str(i)]["position"] for i in WORKERS)
    states = tuple(acks[f"target {j}"].states["fold"] for j in range(scope.targets))
    in_flight = tuple(rows_of(acks[f"target {j}"].in_flight) for j in range(scope.targets))
    return Manifest(publish.epoch, positions, states, publish.pending, publish.finished, in_flight)
