"""The tasks of the small world: sources that read and deal rows, targets that fold them, and the channels between them.

`Tasks` is the half of `World` that knows nothing of coordinators, stores and sinks; see there for the rules of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from penstock.protocol import coordinator as co
from penstock.protocol import terms
from penstock.protocol.messages import (
    Aborted,
    AdvanceTime,
    Arrived,
    Barrier,
    Batch,
    Completed,
    End,
    EndEdge,
    Forward,
    Freeze,
    GiveUp,
    Hold,
    Keep,
    Message,
    Order,
    Overdue,
    Overtook,
    Process,
    Recorded,
    Release,
    SourcesEnded,
    Stamp,
    TaskAck,
    Trigger,
    Watermark,
)
from penstock.testing.parts import SINK, WORKERS, Letter, Manifest, Row, Scope, Source, Target, require

Choice = tuple[str, bool, Callable[[Any], None]]  # what, whether it is a fault, and how (a method of a world, to be called later)


def step(method: Callable[..., None], *args: object) -> Callable[[Any], None]:
    """Call this method of a world later."""
    return lambda world: method(world, *args)


class Tasks:
    """What the tasks of one attempt are at, and what they can do next."""

    scope: Scope
    hits: set[tuple[str, str]]
    left: tuple[int, ...]
    stamp: Stamp | None  # of the tasks
    sources: dict[int, Source]
    targets: dict[int, Target]
    channels: dict[tuple[int, int], tuple[Message, ...]]
    origins: tuple[tuple[tuple[int, int], str], ...]  # whose run a channel holds, where it is not the first
    control: dict[int, tuple[Trigger | Completed | Aborted, ...]]
    acks: dict[str, Letter]  # of the running attempt, by task
    truth: tuple[Manifest, ...]

    def spend(self, budget: int) -> None:
        """One fault, or the like, less on this path."""
        self.left = tuple(n - 1 if i == budget else n for i, n in enumerate(self.left))

    def _arrival(self, i: int, j: int) -> Choice:
        return f"target {j} gets {show(self.channels[i, j][0])} from source {i}", False, step(Tasks._deliver, i, j)

    def _task_choices(self) -> Iterator[Choice]:
        published = self.truth[-1].epoch if self.truth else 0
        for i, source in self.sources.items():
            if self.scope.reruns and source.core.last_epoch > published:
                pass  # micro-batches: no source goes on before the epoch is decided
            elif source.position < self.scope.rows[i]:
                yield f"source {i} reads row {source.position + 1}", False, step(Tasks._read, i)
            elif not source.core.ended:
                yield f"source {i} ends", False, step(Tasks._end, i)
            if self.left[5]:
                yield from self._rerun_choices(i, source)
        for w, messages in self.control.items():
            ready = messages and (
                not isinstance(messages[0], Trigger) or messages[0].epoch < self.scope.epochs or self.sources[w].core.ended
            )
            if ready:
                yield f"worker {w} hears {show(messages[0])}", False, step(Tasks._hear, w)
        for (i, j), waiting in self.channels.items():
            if waiting and i not in self.targets[j].held and (not self.targets[j].replaying or i == 0):
                yield self._arrival(i, j)
        for j, target in self.targets.items():
            yield from self._overdue_choices(j, target)

    def _overdue_choices(self, j: int, target: Target) -> Iterator[Choice]:
        core, epoch = target.core, target.told
        if self.left[6] and epoch > core.last_epoch and not core.ended:
            yield f"epoch {epoch} is overdue at target {j}", False, step(Tasks._overdue, j, epoch)
        barrier = Barrier(core.last_epoch)
        for i in sorted(core.recording):
            if barrier in self.channels[i, j][1:]:
                yield f"target {j} finds {barrier} of source {i} behind other messages", False, step(Tasks._overtake, i, j)

    def _overdue(self, j: int, epoch: int) -> None:
        self.spend(6)
        target = self.targets[j] = self.targets[j].clone()
        self._obey(target, self._heard(target, Overdue(epoch)))

    def _overtake(self, i: int, j: int) -> None:
        """Take a barrier out of a channel, and those of epochs before it, which were given up."""
        target = self.targets[j] = self.targets[j].clone()
        epoch = target.core.last_epoch
        at = self.channels[i, j].index(Barrier(epoch))
        ahead = tuple(m for m in self.channels[i, j][:at] if not isinstance(m, Barrier))
        self.channels[i, j] = ahead + self.channels[i, j][at + 1 :]
        self._obey(target, self._heard(target, Overtook(i, epoch, ahead)))

    def _read(self, i: int) -> None:
        source = self.sources[i] = self.sources[i].clone()
        source.position += 1
        self._send_row(i, source.position, range(self.scope.targets))

    def _send_row(self, i: int, number: int, targets: Sequence[int]) -> None:
        for j in targets:
            if number % self.scope.targets == j:
                self.send(i, j, Batch((i, number), 1, 1))
            self.send(i, j, Watermark(number))

    def _end(self, i: int) -> None:
        source = self.sources[i] = self.sources[i].clone()
        for order in self._heard(source, SourcesEnded()):
            if isinstance(order, EndEdge):
                for j in range(self.scope.targets):
                    self.send(i, j, End())

    def _hear(self, w: int) -> None:
        message, *rest = self.control[w]
        self.control[w] = tuple(rest)
        if isinstance(message, Completed):
            target = self.targets[w] = self.targets[w].clone()
            target.prepared = tuple((e, rows) for e, rows in target.prepared if e > message.epoch)
            return
        if isinstance(message, Aborted):
            target = self.targets[w] = self.targets[w].clone()
            self._obey(target, self._heard(target, message))
            return
        if w in self.targets and self.left[6]:
            target = self.targets[w] = self.targets[w].clone()
            target.told = message.epoch
        source = self.sources[w] = self.sources[w].clone()
        for order in self._heard(source, message):
            match order:
                case Forward(marker):
                    for j in range(self.scope.targets):
                        self.send(w, j, marker)
                case Freeze(epoch):
                    self._acknowledge(epoch, f"source {w}", self._source_ack(source))

    def _source_ack(self, source: Source) -> TaskAck:
        return TaskAck(source.uid, splits={"in": {str(source.index): {"position": source.position}}}, ended=source.core.ended)

    def send(self, i: int, j: int, message: Message) -> None:
        """Put a message into a channel."""
        if (i, j) in self.channels:
            self.channels[i, j] = (*self.channels[i, j], message)

    def _deliver(self, i: int, j: int) -> None:
        message, *rest = self.channels[i, j]
        self.channels[i, j] = tuple(rest)
        target = self.targets[j] = self.targets[j].clone()
        target.replaying = max(0, target.replaying - 1)
        self._obey(target, self._heard(target, Arrived(i, message)))

    def _obey(self, target: Target, orders: Sequence[Order]) -> None:
        j, told = target.index, target.clock.time
        for order in orders:
            match order:
                case Process(_, row):
                    require(
                        target.clock.time < row[1], "time", f"row {row} is late at target {j}, which is at {target.clock.time}"
                    )
                    later = [seen for seen in target.seen if seen > row and seen[0] == row[0]]
                    require(not later, "order", f"row {row} comes to target {j} after {later}")
                    target.seen = tuple(sorted((*target.seen, row)))
                    target.fresh = (*target.fresh, row)
                case AdvanceTime(edge, time):
                    target.clock.advance(edge, time)
                    require(target.clock.time >= told, "time", f"target {j} goes back from {told} to {target.clock.time}")
                case Hold(input):
                    target.held |= {input}
                case Release(input):
                    target.held -= {input}
                case Freeze(epoch, recording):
                    ack = self._freeze(target, epoch)
                    if recording:
                        target.unsaid, target.kept = ack, ()
                    else:
                        self._acknowledge(epoch, f"target {j}", ack)
                case Keep(_, row):
                    target.kept = (*target.kept, row)
                case Recorded(epoch):
                    assert target.unsaid is not None
                    self._acknowledge(epoch, f"target {j}", replace(target.unsaid, in_flight=target.kept))
                    target.unsaid, target.kept = None, ()
                case GiveUp():
                    target.unsaid, target.kept = None, ()
        target.core.check()

    def _freeze(self, target: Target, epoch: int) -> TaskAck:
        target.prepared = (*target.prepared, (epoch, target.fresh))
        target.fresh = ()
        state = self.save(target, epoch, (target.seen, target.clock.time))
        rows = tuple(sorted(row for _, rows in target.prepared for row in rows))
        known = dict(self.origins)
        consumed = {f"source {i}": known.get((i, target.index), f"source {i} {target.uid}") for i in WORKERS}
        return TaskAck(target.uid, consumed, states={"fold": state}, committables={SINK: rows}, ended=target.core.ended)

    def save(self, target: Target, epoch: int, state: tuple[tuple[Row, ...], int]) -> tuple[tuple[Row, ...], int]:
        """Store a state under a name of its own; what a reader of that name will find."""
        return state

    def _acknowledge(self, epoch: int, task: str, ack: TaskAck) -> None:
        assert self.stamp is not None
        self.acks[task] = Letter(co.Acked(self.stamp, epoch, task, ack))

    def _heard(
        self, task: Source | Target, event: Arrived | Trigger | SourcesEnded | Overdue | Overtook | Aborted
    ) -> tuple[Order, ...]:
        core = task.core
        where = ("aligning" if core.held else "recording" if core.recording else "free") + (", ended" if core.ended else "")
        self.hits.add((f"{type(task).__name__} {where}", type(event.message if isinstance(event, Arrived) else event).__name__))
        return core.handle(event)

    def _rerun_choices(self, i: int, source: Source) -> Iterator[Choice]:
        epoch = source.core.last_epoch
        acked = self.acks.get(f"source {i}")
        if not epoch or self.truth or acked is None:
            return
        unread = tuple(
            j for j in self.targets if any(isinstance(m, Barrier) for m in self.channels[i, j]) and not self.targets[j].seen
        )
        for position in range(self.scope.rows[i] + 1):
            if position != source.position and not source.core.ended and unread:
                name = f"source {i} runs again, to row {position}"
                yield name, True, step(Tasks._rerun, i, position, unread)

    def _rerun(self, i: int, position: int, unread: tuple[int, ...]) -> None:
        """The output of this source for `unread` was lost before it was read, and is made anew, from other rows."""
        self.spend(5)
        source = self.sources[i] = self.sources[i].clone()
        source.position, source.uid = position, f"{source.uid} again"
        epoch = source.core.last_epoch
        self.origins = tuple(((i, j), source.uid) for j in unread)
        for j in unread:
            self.channels[i, j] = ()
        for number in range(1, position + 1):
            self._send_row(i, number, unread)
        for j in unread:
            self.send(i, j, Barrier(epoch))
        self._acknowledge(epoch, f"source {i}", self._source_ack(source))


def show(thing: object) -> str:
    """A message, an operation or a name in a few words."""
    match thing:
        case Batch(payload):
            return f"row {payload}"
        case terms.Create(path) | terms.Read(path) | terms.Write(path):
            return f"{type(thing).__name__} {path}"
        case str():
            return f"Delete {thing}"
        case _:
            return str(thing)
