"""What a connector is: a `Source` that can be read again from a position, a `Sink` that prepares and commits.

1. A **source** has a fixed set of **splits**. Rows of one split have an order; a **position** (JSON) says how far it was read.
   `open(split, position)` gives the rows after that position, the same rows every time: that is what "replayable" means.
   Nothing about a split depends on the parallelism.
2. A **reader** is polled and never blocks. Each `Chunk` carries rows and the position after them, so any chunk boundary can be
   a snapshot.
3. A **writer** lives in a task. It writes where no reader looks; `prepare(epoch)` makes what was written durable and describes
   it by **committables** (JSON).
4. A **committer** lives beside the coordinator. `commit` is called once the epoch is published, again after a crash, and is
   idempotent by (lineage, sink, epoch).

Sources and sinks are values: immutable, picklable, and nothing is opened until a task asks.
"""

from __future__ import annotations

import abc
import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

__all__ = [
    "BadRecord",
    "Began",
    "Bound",
    "Chunk",
    "Committer",
    "Json",
    "Reader",
    "Sink",
    "SinkContext",
    "Source",
    "SourceContext",
    "Verdict",
    "Writer",
]

Json = Any  # what json.dumps takes: None, bool, int, str, list, dict


@dataclass(frozen=True, slots=True)
class BadRecord:
    """One record that could not be decoded: where it stood, why, and a sample of it."""

    position: Json
    error: str
    record: str


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows of one split and the position after them. `ended`: this split will never have more."""

    batch: pa.RecordBatch | None
    position: Json
    bad: tuple[BadRecord, ...] = ()
    ended: bool = False


@dataclass(slots=True)
class Began:
    """When and where an attempt began with a split, for readers that may be opened anew in every epoch; times in microseconds
    since 1970.

    A source whose rows become due as time passes counts from there. `now_us` is the time of the epoch, which stands still while
    it is read; None: the clock's. A reader that stays open looks here in each epoch: it is set anew.
    """

    at_us: int
    position: Json
    now_us: int | None = None


@dataclass(frozen=True, slots=True)
class Bound:
    """What a column of every useful row meets: `comparison` is one of = < <= > >=, and `value` is of the column's type."""

    column: str
    comparison: str
    value: Any

    def text(self) -> str:
        """For explain()."""
        return f"{self.column} {self.comparison} {self.value!r}"


@dataclass(frozen=True, slots=True)
class SourceContext:
    """Where a reader lives. `job_dir` is the job's own folder (journals); `columns` are those the pipeline uses, in schema order.

    Rows that do not meet all `bounds` are filtered out by the pipeline: a reader may leave them out, all, some or none.
    """

    name: str
    job_dir: Path
    columns: tuple[str, ...]
    began: Began | None = None  # None: with this very reader
    bounds: tuple[Bound, ...] = ()


class Reader(abc.ABC):
    """The rows of one split after a position.

    A reader that must wait for an outside system does so in a thread of its own, and says None meanwhile. Where tasks live for an
    epoch only, it is given some time, and stays open for the next one. A run that ends when nothing is left (`finish=False`, Batch)
    waits for it: if the source ends, until it says so, and otherwise until it was silent for a second.
    """

    prompt: bool = False  # whether the first poll has whatever there is: such readers are opened anew in each epoch

    @abc.abstractmethod
    def poll(self, rows_max: int) -> Chunk | None:
        """The next rows, at most about `rows_max`, or None if there is nothing now. Never blocks."""

    def backlog(self) -> bool:
        """Whether the next poll would have something: an idle split has none."""
        return True

    def due_at(self) -> int | None:
        """When the next poll may have something, in microseconds since 1970: until then nobody asks. None: that is not known, and so
        the reader is asked every millisecond, and less often where nothing happens. Called after a poll that had few rows or none.
        """
        return None

    def close(self) -> None:
        """Let go of files and sockets."""


class Receiver(Protocol):
    """Takes in what an outside system sends, for readers to find."""

    def start(self) -> None:
        """Begin."""

    def stop(self) -> None:
        """End; what was taken in stays."""

    def check(self) -> None:
        """Raise what went wrong, if anything did."""


class Source(abc.ABC):
    """Where rows come from."""

    name: str
    schema: pa.Schema
    bounded: bool = False
    replayable: bool = True
    skips: bool = False  # whether readers make use of bounds
    joined: bool = True  # whether pieces that wait may become one batch; otherwise batches are as readers cut them

    @abc.abstractmethod
    def splits(self) -> tuple[str, ...]:
        """The ids of all splits; the same at every start, or a superset."""

    @abc.abstractmethod
    def open(self, split: str, position: Json, context: SourceContext) -> Reader:
        """A reader of `split` from `position` (None: from its start). Batches hold `context.columns` only."""

    def receiver(self, context: SourceContext) -> Receiver | None:
        """What must run once per job, beside the coordinator, for readers to find anything; None: nothing."""
        return None

    def collect(self, position: Json, context: SourceContext) -> None:
        """Let go of what lies before `position`, which is part of a published checkpoint."""

    def describe(self) -> str:
        """A few words for explain() and labels: "files, replayable"."""
        return f"{type(self).__name__}, {'replayable' if self.replayable else 'cannot be read again'}"


class Verdict(enum.Enum):
    """What became of a commit."""

    DONE = "done"
    ALREADY = "already"  # an earlier call had done it
    RETRY = "retry"  # not now; nothing is known to be wrong


@dataclass(frozen=True, slots=True)
class SinkContext:
    """Where a writer or committer lives. `uid` is unique per task attempt and makes names that nobody else writes."""

    name: str
    lineage: str
    uid: str
    job_dir: Path
    schema: pa.Schema
    keys: tuple[str, ...] = ()  # of an update stream: a row replaces the earlier row with the same keys
    changes: str = "append"  # append, update or retract
    change: str | None = None  # the column that says -1 where a row is deleted or withdrawn, if rows can be
    options: dict[str, Json] = field(default_factory=dict)
    parent: str | None = None  # the lineage that this one was forked from; only a job's own committers are told


class Writer(abc.ABC):
    """Writes one task's rows of one sink where no reader looks yet."""

    @abc.abstractmethod
    def write(self, batch: pa.RecordBatch) -> None:
        """Take rows of the epoch under way."""

    @abc.abstractmethod
    def prepare(self, epoch: int) -> Sequence[Json]:
        """Make the epoch's rows durable; describe them. Nothing written: an empty list."""

    def close(self) -> None:
        """Let go, leaving nothing that was not prepared."""


class Committer(abc.ABC):
    """Makes prepared epochs visible, outside tasks, once each."""

    @abc.abstractmethod
    def commit(self, epoch: int, committables: Sequence[Json], attempt: int) -> Verdict:
        """Make `epoch` visible. Called again after a crash, with the same committables."""

    def committed(self) -> tuple[str, int] | None:
        """(lineage, epoch) of the newest commit the outside shows, if it can be told. Lets a restore notice that the sink is ahead."""
        return None

    def sweep(self, keep: Sequence[Json]) -> None:
        """Remove what was prepared and will never be committed: everything but `keep`. Called while no writer lives."""

    def close(self) -> None:
        """The job stops: show what was gathered, and let go."""


class Sink(abc.ABC):
    """Where rows go."""

    name: str
    kind: str = "transactional"  # transactional | idempotent | at-least-once
    accepts: frozenset[str] = frozenset({"append"})  # kinds of streams: append, update, retract
    change_name: str = "change"  # of the column that says so
    wants_change: bool = False  # whether to say of every row whether it is withdrawn, also where none can be

    @abc.abstractmethod
    def writer(self, context: SinkContext) -> Writer:
        """A writer for one task attempt."""

    @abc.abstractmethod
    def committer(self, context: SinkContext) -> Committer:
        """The committer, beside the coordinator."""

    def describe(self) -> str:
        """A few words for explain() and labels: "files, transactional"."""
        return f"{type(self).__name__}, {self.kind}"
