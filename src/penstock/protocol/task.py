"""When one task snapshots and how far its time is: barriers and watermarks on many inputs.

Theory. Barrier *n* reaches a task on each of its inputs at a different moment. What came before it belongs to snapshot *n*,
what comes after does not; so an input that has delivered its barrier is **held** (not read) until all others have delivered
theirs. Then, between two events, the task is exactly at the cut: it sends the barrier on,
freezes its state, and reads on. A task that reads source splits has one more input, `SOURCES`, whose barrier is the
coordinator's trigger.

Rules.
1. `held` is empty exactly when no epoch is being aligned.
2. Only one epoch is aligned at a time: a held input cannot deliver the next barrier, and the coordinator has one epoch in flight.
3. Inputs that have ended still deliver barriers (`End` closes the rows, not the channel). So alignment never asks who has ended.
4. Epochs only grow. Which ones were aborted does not matter here: a barrier that was sent arrives everywhere.
5. Time of an edge is the minimum over its channels; rows on an idle channel wake it before they are processed.

`handle(event)` returns orders for the task around it (`runtime.Task`), in the order they must be carried out.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.protocol.messages import (
    SOURCES,
    TIME_MAX,
    AdvanceTime,
    Arrived,
    Barrier,
    Batch,
    EdgeIdle,
    End,
    EndEdge,
    Forward,
    Freeze,
    Hold,
    Idle,
    Order,
    Process,
    Release,
    SourcesEnded,
    Trigger,
    Watermark,
)
from penstock.protocol.watermarks import Minimum


class TaskCore:
    """Barriers, ends and watermarks of one task.

    Args:
        inputs: the edge each input channel belongs to.
        sources: whether the task reads splits of its own.
    """

    __slots__ = ("_edges", "_ended", "_inputs", "_times", "ended_edges", "epoch", "held", "last_epoch")

    def __init__(self, inputs: Mapping[int, int], *, sources: bool) -> None:
        assert inputs or sources, "a task without inputs and without sources would never do anything"
        self._edges = dict(inputs)
        self._inputs = tuple(inputs) + ((SOURCES,) if sources else ())
        self._times = {edge: Minimum([i for i, e in inputs.items() if e == edge]) for edge in sorted(set(inputs.values()))}
        self._ended: set[int] = set()
        self.held: list[int] = []
        self.epoch: int | None = None
        self.last_epoch = 0
        self.ended_edges: set[int] = set()

    @property
    def ended(self) -> bool:
        """Whether every input has ended."""
        return len(self._ended) == len(self._inputs)

    def handle(self, event: Arrived | Trigger | SourcesEnded) -> tuple[Order, ...]:
        """What to do now that this happened."""
        match event:
            case Arrived(input, message):
                assert input in self._edges, f"there is no input {input}"
                assert input not in self.held, f"input {input} was read while held"
                return self._arrived(input, message)
            case Trigger(epoch, finish):
                assert SOURCES in self._inputs, "only a task with sources is triggered"
                ending = self._end_sources() if finish else ()
                return ending + self._barrier(SOURCES, epoch)
            case SourcesEnded():
                return self._end_sources()

    def _arrived(self, input: int, message: object) -> tuple[Order, ...]:
        edge = self._edges[input]
        match message:
            case Batch(payload):
                assert input not in self._ended, f"rows after the end on input {input}"
                woken = self._time_orders(edge, self._times[edge].wake(input)) if self._times[edge].is_idle(input) else ()
                return (*woken, Process(edge, payload))
            case Watermark(time):
                return self._time_orders(edge, self._times[edge].advance(input, time))
            case Idle():
                return self._time_orders(edge, self._times[edge].rest(input))
            case Barrier(epoch):
                return self._barrier(input, epoch)
            case End():
                return self._end(input, edge)
        raise AssertionError(f"not a message: {message!r}")

    def _time_orders(self, edge: int, changed: bool) -> tuple[Order, ...]:
        if not changed or edge in self.ended_edges:
            return ()
        minimum = self._times[edge]
        return (EdgeIdle(edge),) if minimum.idle else (AdvanceTime(edge, minimum.time),)

    def _barrier(self, input: int, epoch: int) -> tuple[Order, ...]:
        assert input not in self.held, f"barrier {epoch} on input {input}, which is held"
        assert self.epoch in (None, epoch), f"barrier {epoch} while aligning {self.epoch}"
        assert epoch > self.last_epoch, f"barrier {epoch} after {self.last_epoch}"
        self.epoch = epoch
        self.held.append(input)
        if len(self.held) < len(self._inputs):
            return (Hold(input),)
        released = tuple(Release(i) for i in self.held if i != input)
        self.held, self.epoch, self.last_epoch = [], None, epoch
        # The barrier goes first: downstream may align while we freeze.
        return (Forward(Barrier(epoch)), Freeze(epoch), *released)

    def _end(self, input: int, edge: int) -> tuple[Order, ...]:
        assert input not in self._ended, f"input {input} ended twice"
        self._ended.add(input)
        orders = self._time_orders(edge, self._times[edge].end(input))
        if all(i in self._ended for i, e in self._edges.items() if e == edge):
            assert self._times[edge].time == TIME_MAX, "an ended edge has reached the end of time"
            self.ended_edges.add(edge)
            orders += (EndEdge(edge),)
        return orders

    def _end_sources(self) -> tuple[Order, ...]:
        if SOURCES in self._ended:
            return ()
        self._ended.add(SOURCES)
        self.ended_edges.add(SOURCES)
        return (EndEdge(SOURCES),)

    def clone(self) -> TaskCore:
        """An independent copy."""
        copy = object.__new__(TaskCore)
        copy._edges, copy._inputs = self._edges, self._inputs
        copy._times = {edge: minimum.clone() for edge, minimum in self._times.items()}
        copy._ended, copy.ended_edges = set(self._ended), set(self.ended_edges)
        copy.held, copy.epoch, copy.last_epoch = list(self.held), self.epoch, self.last_epoch
        return copy

    def key(self) -> tuple[object, ...]:
        """Equal for equal states."""
        times = tuple(minimum.key() for minimum in self._times.values())
        return (times, tuple(sorted(self._ended)), tuple(sorted(self.held)), self.epoch, self.last_epoch)

    def check(self) -> None:
        """The invariants that hold between any two events."""
        assert bool(self.held) == (self.epoch is not None), "held inputs and an epoch under alignment come together"
        assert len(self.held) < len(self._inputs), "with all inputs held the snapshot must have been taken"
        assert self.epoch is None or self.epoch > self.last_epoch, "epochs grow"
