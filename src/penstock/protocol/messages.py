"""The vocabulary of the protocol: messages between tasks, events into a task, orders and actions out of it.

A **message** travels in a channel, in order. An **event** is a fact, told to a task by its runner. `TaskCore` answers an event
with **orders** to the task around it; the task answers with **actions** for the runner. All are frozen; payloads are opaque.
They are made once per message, never per row.

Times are integers in microseconds. A watermark `t` says: nothing more with event time <= t (Flink's convention).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

TIME_MIN: Final = -(2**63)
TIME_MAX: Final = 2**63 - 1

SOURCES: Final = -1
"""The input number that stands for a task's own source splits: its barrier is the trigger."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """Whose word this is. Everything that crosses a process boundary carries one; a stamp that differs from ours is stale."""

    lineage: str
    term: int
    attempt: int

    def accepts(self, other: Stamp) -> bool:
        """The one place that decides staleness: only our own attempt is heard."""
        return self == other


# --- messages: what travels in a channel
# ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows. The payload is Arrow to everybody but the protocol."""

    payload: Any
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Watermark:
    """Nothing more with event time <= `time` in this channel."""

    time: int


@dataclass(frozen=True, slots=True)
class Idle:
    """This channel holds back nobody's time until it speaks again."""


@dataclass(frozen=True, slots=True)
class Barrier:
    """Everything before it belongs to snapshot `epoch`, everything after does not."""

    epoch: int


@dataclass(frozen=True, slots=True)
class End:
    """No more rows, and time is over. Barriers may still follow."""


Message = Batch | Watermark | Idle | Barrier | End


# --- events: facts a runner reports to a task
# ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Arrived:
    """A message came out of input channel `input`."""

    input: int
    message: Message


@dataclass(frozen=True, slots=True)
class SplitAssigned:
    """One split to read from `position`; `time` is its watermark so far."""

    source: str
    split: str
    position: Any
    time: int = TIME_MIN
    idle: bool = False
    ended: bool = False


@dataclass(frozen=True, slots=True)
class SplitsAssigned:
    """All the splits the task is to read: a source task's first event. Together, so that no split's time runs ahead of another's."""

    splits: Sequence[SplitAssigned]


@dataclass(frozen=True, slots=True)
class Read:
    """Rows of a split, and the position after them. `bad` are records that could not be decoded."""

    source: str
    split: str
    payload: Any
    position: Any
    bad: Sequence[Any] = ()


@dataclass(frozen=True, slots=True)
class Paused:
    """There is nothing to read at the moment."""


@dataclass(frozen=True, slots=True)
class TimeGathered:
    """The watermarks of splits that were read since the last time are to be passed on now."""


@dataclass(frozen=True, slots=True)
class SplitEnded:
    """This split will never have more rows."""

    source: str
    split: str


@dataclass(frozen=True, slots=True)
class SourcesEnded:
    """None of the task's splits will ever have more rows."""


@dataclass(frozen=True, slots=True)
class SplitIdle:
    """Nothing was read from this split, nor waiting in it, for `idle_after`."""

    source: str
    split: str


@dataclass(frozen=True, slots=True)
class Trigger:
    """The coordinator asks the source tasks for snapshot `epoch`. `finish`: this is also the end of the input."""

    epoch: int
    finish: bool = False


@dataclass(frozen=True, slots=True)
class Overdue:
    """Snapshot `epoch` has waited long enough for barriers: take it now, and record what is still on its way."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Overtook:
    """The barrier of `epoch` is there on input `input`, ahead of these messages, which stay where they are and arrive later."""

    input: int
    epoch: int
    ahead: Sequence[Message]


@dataclass(frozen=True, slots=True)
class TimeReached:
    """The runner's clock, in microseconds since 1970."""

    now: int


@dataclass(frozen=True, slots=True)
class CallDone:
    """How one call ended: with a result, or an error in words."""

    call: tuple[int, int]
    result: Any = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class CallsDone:
    """Calls have ended. None at all: a task that was restored with calls to make is to make them now."""

    calls: Sequence[CallDone]


@dataclass(frozen=True, slots=True)
class Stored:
    """The runner wrote what `Store` asked for; `handles` are by (operator, state), files of `in_flight` by incoming edge."""

    epoch: int
    handles: Mapping[str, Any]
    in_flight: Mapping[int, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StoreFailed:
    """The runner could not write it."""

    epoch: int
    error: str


@dataclass(frozen=True, slots=True)
class Completed:
    """Snapshot `epoch` is published."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Aborted:
    """Snapshot `epoch` will never be published; what it holds belongs to the next one."""

    epoch: int


Event = (
    Arrived
    | SplitsAssigned
    | Read
    | Paused
    | TimeGathered
    | SplitEnded
    | SplitIdle
    | SourcesEnded
    | Trigger
    | Overdue
    | Overtook
    | TimeReached
    | CallsDone
    | Stored
    | StoreFailed
    | Completed
    | Aborted
)


# --- orders: what TaskCore tells the task around it
# ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Process:
    """Run these rows of incoming edge `edge` through the operators."""

    edge: int
    payload: Any


@dataclass(frozen=True, slots=True)
class AdvanceTime:
    """Event time of incoming edge `edge` has reached `time`."""

    edge: int
    time: int


@dataclass(frozen=True, slots=True)
class EdgeIdle:
    """All channels of the edge are idle: it holds back nobody."""

    edge: int


@dataclass(frozen=True, slots=True)
class EndEdge:
    """Every channel of the edge has ended. `SOURCES` stands for the task's own splits."""

    edge: int


@dataclass(frozen=True, slots=True)
class Freeze:
    """Snapshot now: everything processed so far and nothing else belongs to the states of `epoch`.

    `recording`: rows in flight belong to it too. They follow as `Keep`, up to `Recorded` or `GiveUp`.
    """

    epoch: int
    recording: bool = False


@dataclass(frozen=True, slots=True)
class Keep:
    """These rows were in flight on incoming edge `edge`: they belong to the snapshot being recorded."""

    edge: int
    payload: Any


@dataclass(frozen=True, slots=True)
class Recorded:
    """All that was in flight is kept: snapshot `epoch` is complete."""

    epoch: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Snapshot `epoch` was aborted before all that was in flight had come: forget what was kept of it."""

    epoch: int


# --- actions: what a task asks its runner to do (Hold, Release and Forward come straight from TaskCore)
# ------------------------------------


@dataclass(frozen=True, slots=True)
class Forward:
    """Send this marker on every output channel."""

    message: Message


@dataclass(frozen=True, slots=True)
class Hold:
    """Do not read input channel `input` (or the splits, if SOURCES) until it is released."""

    input: int


@dataclass(frozen=True, slots=True)
class Release:
    """Read it again."""

    input: int


Order = Process | AdvanceTime | EdgeIdle | EndEdge | Freeze | Keep | Recorded | GiveUp | Forward | Hold | Release


@dataclass(frozen=True, slots=True)
class Emit:
    """Send a message on one output channel: edge `edge`, to task `target` of the next stage."""

    edge: int
    target: int
    message: Message


@dataclass(frozen=True, slots=True)
class Store:
    """Write these frozen states (immutable; a writer thread may do it), then answer Stored or StoreFailed.

    `in_flight`: rows by incoming edge, to be written beside them.
    """

    epoch: int
    frozen: Mapping[str, Any]
    in_flight: Mapping[int, Sequence[Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Call:
    """Do some work outside, then answer CallDone. Nothing waits for it; `call` is (operator, number).

    `payload` is opaque: who carries it out knows what to do with it. It begins after `delay`, and has failed if it has not ended
    `timeout` later (microseconds). A task may ask for a call again once it has failed.
    """

    call: tuple[int, int]
    payload: Any
    timeout: int
    delay: int = 0


@dataclass(frozen=True, slots=True)
class TaskAck:
    """One task's part of a snapshot, JSON throughout except that `states` holds handles.

    `consumed` names, per upstream task, the uid whose output this task read: a snapshot counts only if these are the uids that
    were acknowledged.
    """

    uid: str
    consumed: Mapping[str, str] = field(default_factory=dict)
    splits: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # source -> split -> {position, watermark, idle, ended}
    watermarks: Mapping[str, int] = field(default_factory=dict)  # operator -> event time reached
    states: Mapping[str, Any] = field(default_factory=dict)  # "operator/state" -> list of handles as JSON
    floors: Mapping[str, Any] = field(default_factory=dict)  # "operator/state" -> [[first group, last group, floor], ...]
    in_flight: Sequence[Any] = field(default_factory=list)  # rows that were sent and not yet processed: entries of the manifest
    committables: Mapping[str, Sequence[Any]] = field(default_factory=dict)  # sink -> committables
    counters: Mapping[str, int] = field(default_factory=dict)
    wake_at: int | None = None
    ended: bool = False


@dataclass(frozen=True, slots=True)
class Ack:
    """This task's part of `epoch` is stored."""

    epoch: int
    ack: TaskAck


@dataclass(frozen=True, slots=True)
class Decline:
    """This task cannot store its part of `epoch`; it goes on running."""

    epoch: int
    reason: str


Action = Emit | Hold | Release | Store | Ack | Decline | Call


@dataclass(frozen=True, slots=True)
class Pending:
    """A published epoch's output to one sink, not yet confirmed as committed."""

    epoch: int
    sink: str
    committables: tuple[Any, ...]
