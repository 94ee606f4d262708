"""When one task snapshots and how far its time is: barriers and watermarks on many inputs.

Theory. Barrier *n* reaches a task on each of its inputs at a different moment. What came before it belongs to snapshot *n*,
what comes after does not; so an input that has delivered its barrier is **held** (not read) until all others have delivered
theirs. Then, between two events, the task is exactly at the cut: it sends the barrier on,
freezes its state, and reads on. A task that reads source splits has one more input, `SOURCES`, whose barrier is the
coordinator's trigger.

Under back-pressure a barrier waits as long as the rows before it. So a task that is told that the epoch is `Overdue` does not
wait: it sends the barrier on and freezes at once, wherever it is (Chandy and Lamport's snapshot, with every task as its
initiator). The rows that others sent before their barriers, and that it had not processed when it froze, are **in flight**: it
records them, in order, beside its state, until the barrier has come on every input. They are processed like any others.

Rules.
1. `held` is empty exactly when no epoch is being aligned.
2. Only one epoch is aligned or recorded at a time. The coordinator has one in flight, so the sign of a later one (a barrier, a
   trigger) says that the earlier one was aborted: it is given up.
3. Inputs that have ended still deliver barriers (`End` closes the rows, not the channel). So alignment never asks who has ended.
4. Epochs only grow, on every input. A barrier that comes after its snapshot was taken or given up ends a recording, or nothing.
5. Time of an edge is the minimum over its channels; rows on an idle channel wake it before they are processed.
6. Rows on an `aligned` input are never recorded: an overdue snapshot waits for those barriers. Nor is one recorded once all input
   has ended: nothing but barriers can be on the way.
7. Only rows are recorded. How far time was, and what has ended, the tasks of the next attempt tell each other anew, from where the
   sources go on: later than it was told before, never earlier than the rows in flight are processed.

`handle(event)` returns orders for the task around it (`runtime.Task`), in the order they must be carried out.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from penstock.protocol.messages import (
    SOURCES,
    TIME_MAX,
    Aborted,
    AdvanceTime,
    Arrived,
    Barrier,
    Batch,
    EdgeIdle,
    End,
    EndEdge,
    Forward,
    Freeze,
    GiveUp,
    Hold,
    Idle,
    Keep,
    Order,
    Overdue,
    Overtook,
    Process,
    Recorded,
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
        aligned: the inputs whose rows are never recorded.
    """

    __slots__ = (
        "_aligned",
        "_edges",
        "_ended",
        "_inputs",
        "_overdue",
        "_passed",
        "_times",
        "ended_edges",
        "epoch",
        "held",
        "last_epoch",
        "recording",
    )

    def __init__(self, inputs: Mapping[int, int], *, sources: bool, aligned: Collection[int] = ()) -> None:
        assert inputs or sources, "a task without inputs and without sources would never do anything"
        self._edges = dict(inputs)
        self._inputs = tuple(inputs) + ((SOURCES,) if sources else ())
        self._aligned = frozenset(aligned) | ({SOURCES} if sources else set())
        self._times = {edge: Minimum([i for i, e in inputs.items() if e == edge]) for edge in sorted(set(inputs.values()))}
        self._ended: set[int] = set()
        self._passed = dict.fromkeys(self._inputs, 0)  # the last barrier of each input
        self._overdue = 0  # the last epoch that was
        self.held: list[int] = []
        self.epoch: int | None = None  # being aligned
        self.last_epoch = 0  # frozen
        self.recording: set[int] = set()  # inputs that owe the barrier of `last_epoch`, of which a recording is under way
        self.ended_edges: set[int] = set()

    @property
    def ended(self) -> bool:
        """Whether every input has ended."""
        return len(self._ended) == len(self._inputs)

    def plain(self, input: int) -> bool:
        """Whether rows of this input need nothing but to be processed: then it does not matter which of several plain ones they are of."""
        return input not in self.recording and not self._times[self._edges[input]].is_idle(input)

    def handle(self, event: Arrived | Trigger | SourcesEnded | Overdue | Overtook | Aborted) -> tuple[Order, ...]:
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
            case Overdue(epoch):
                if epoch <= max(self.last_epoch, self._overdue) or (self.epoch is not None and epoch < self.epoch):
                    return ()
                self._overdue = epoch
                return self._supersede(epoch) + self._cut_short(epoch)
            case Overtook(input, epoch, ahead):
                assert epoch == self.last_epoch, f"barrier {epoch} overtook rows, and {self.last_epoch} was frozen"
                assert input in self.recording, f"a barrier overtook rows on input {input}, which is not recorded"
                kept = tuple(Keep(self._edges[input], message.payload) for message in ahead if isinstance(message, Batch))
                return kept + self._barrier(input, epoch)
            case Aborted(epoch):
                return self._give_up() if self.recording and epoch == self.last_epoch else ()

    def _arrived(self, input: int, message: object) -> tuple[Order, ...]:
        edge = self._edges[input]
        match message:
            case Batch(payload):
                assert input not in self._ended, f"rows after the end on input {input}"
                woken = self._time_orders(edge, self._times[edge].wake(input)) if self._times[edge].is_idle(input) else ()
                kept = (Keep(edge, payload),) if input in self.recording else ()
                return (*kept, *woken, Process(edge, payload))
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
        assert epoch > self._passed[input], f"barrier {epoch} on input {input} after {self._passed[input]}"
        self._passed[input] = epoch
        if epoch <= self.last_epoch:
            return self._owed(input, epoch)
        if self.epoch is not None and epoch < self.epoch:
            return ()  # given up here before it came
        given_up = self._supersede(epoch)
        assert input not in self.held, f"barrier {epoch} on input {input}, which is held"
        self.epoch = epoch
        self.held.append(input)
        if len(self.held) == len(self._inputs):
            return given_up + self._cut(epoch, input)
        return given_up + (self._cut_short(epoch, input) or (Hold(input),))

    def _supersede(self, epoch: int) -> tuple[Order, ...]:
        """Give up what is under way for an earlier epoch."""
        given_up = self._give_up() if self.recording else ()
        if self.epoch is not None and self.epoch < epoch:
            given_up += tuple(Release(i) for i in self.held)
            self.held, self.epoch = [], None
        return given_up

    def _give_up(self) -> tuple[Order, ...]:
        self.recording = set()
        return (GiveUp(self.last_epoch),)

    def _cut(self, epoch: int, input: int | None = None) -> tuple[Order, ...]:
        """Freeze here. `input` has just delivered its barrier, and was not told to hold."""
        released = tuple(Release(i) for i in self.held if i != input)
        self.recording = set(self._inputs) - set(self.held)
        self.held, self.epoch, self.last_epoch = [], None, epoch
        # The barrier goes first: downstream may align while we freeze.
        return (Forward(Barrier(epoch)), Freeze(epoch, bool(self.recording)), *released)

    def _cut_short(self, epoch: int, input: int | None = None) -> tuple[Order, ...]:
        """Freeze before all barriers have come, if it is time and nothing forbids it."""
        if self._overdue != epoch or self.ended or not self._aligned <= set(self.held):
            return ()
        return self._cut(epoch, input)

    def _owed(self, input: int, epoch: int) -> tuple[Order, ...]:
        """A barrier that came after the snapshot: what was in flight on this input is known now."""
        if epoch < self.last_epoch or input not in self.recording:
            return ()
        self.recording.remove(input)
        return () if self.recording else (Recorded(epoch),)

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
        copy._edges, copy._inputs, copy._aligned = self._edges, self._inputs, self._aligned
        copy._times = {edge: minimum.clone() for edge, minimum in self._times.items()}
        copy._ended, copy.ended_edges = set(self._ended), set(self.ended_edges)
        copy._passed, copy._overdue, copy.recording = dict(self._passed), self._overdue, set(self.recording)
        copy.held, copy.epoch, copy.last_epoch = list(self.held), self.epoch, self.last_epoch
        return copy

    def key(self) -> tuple[object, ...]:
        """Equal for equal states."""
        times = tuple(minimum.key() for minimum in self._times.values())
        barriers = (tuple(sorted(self.held)), self.epoch, self.last_epoch, tuple(self._passed.values()))
        return (times, tuple(sorted(self._ended)), *barriers, self._overdue, tuple(sorted(self.recording)))

    def check(self) -> None:
        """The invariants that hold between any two events."""
        assert bool(self.held) == (self.epoch is not None), "held inputs and an epoch under alignment come together"
        assert len(self.held) < len(self._inputs), "with all inputs held the snapshot must have been taken"
        assert self.epoch is None or self.epoch > self.last_epoch, "epochs grow"
        assert all(self._passed[i] == self.epoch for i in self.held), "who is held has delivered the barrier"
        assert not (self.held and self.recording), "an epoch is given up before the next is aligned"
        assert not self.recording & self._aligned, "rows of an aligned input are not recorded"
        owing = {i for i in self._inputs if self._passed[i] < self.last_epoch}
        assert self.recording in (set(), owing), "recorded are the inputs that owe the barrier, all of them"
