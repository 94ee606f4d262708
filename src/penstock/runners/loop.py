"""Driving tasks in one thread: seats, bounded queues, and what to do next.

A **seat** is a task with what surrounds it: its input queues, its outlets, the readers of its splits, and the iterator of the
event it is working on. A `Loop` holds the seats of one process. No call here blocks.

1. A seat is runnable only while every outlet is below its mark. Otherwise its iterator is not pulled and its inputs are not read:
   that is back-pressure, all the way to the source. Only what sends no rows (`is_urgent`) is handled all the same.
2. A held input is not read. Others are.
3. Seats are tried sinks first and work off what waits for them, so rows leave before new ones come in; sources read only when the
   stage has nothing else to do.
4. A split is idle when it has been silent for `idle_after` by a clock that stands still while no split can be read: a job that
   is behind does not take waiting rows for silence.
5. A split too far ahead of its group (`align`) is not read, and not silent either.
6. Calls that a task asks for are somebody else's (`Calls`); their answers come before other input. A task that is not `ready` gets
   no rows, but anything else: so barriers do not wait for calls.
7. The graph of tasks has no cycle and a task without outlets is always runnable, so as long as there is work some seat can run.
8. An epoch that is overdue does not wait for room. The event under way is finished beyond the mark (up to `ROOM`), since a
   snapshot is taken between events. And where a barrier is in an input's queue it is taken out, ahead of the rows before it.
9. Rows that were in flight in the snapshot stand at the front of the queues. Until they are gone nothing else is taken from any.
10. A split that gave few rows is left alone for a while, and watermarks go out once in a while: see `pace`.
11. Small batches that wait together, in one queue or in several of one exchange, become one event, and where rows take long a batch
    becomes several: see `queues`.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from penstock.connectors.connector import Chunk, Reader
from penstock.protocol.messages import (
    SOURCES,
    TIME_MIN,
    Aborted,
    Ack,
    Action,
    Arrived,
    Batch,
    Call,
    CallsDone,
    Completed,
    Decline,
    Emit,
    Event,
    Hold,
    Message,
    Overdue,
    Overtook,
    Paused,
    Read,
    Release,
    SourcesEnded,
    SplitAssigned,
    SplitEnded,
    SplitIdle,
    Store,
    Stored,
    StoreFailed,
    TaskAck,
    TimeGathered,
    TimeReached,
    Trigger,
)
from penstock.runners import align
from penstock.runners.calls import Calls, LoopCalls
from penstock.runners.faults import reach, time_of_day
from penstock.runners.pace import Pace
from penstock.runners.queues import Outlet, Queue, take_rows
from penstock.runners.reading import Gatherer
from penstock.runtime.task import Task
from penstock.tracebacks import Within

SLICE_S = 0.05
"""A round of work that takes longer comes to its end, so that orders and sockets are looked at."""
EVENT_S = 0.1
"""Rows are taken in pieces that take about as long: snapshots are taken between two of them."""
SLOW_S = 0.05
"""Only events that take longer say that rows are slow: of others it may be what a batch costs, not its rows."""
ROWS_MAX = 131_072
"""What a source is asked for at a time. Under load a batch costs about half a millisecond whatever it holds: of so many rows, 4 ns each."""
QUIET_US = 1_000_000
"""A split of which nobody knows whether it has more has none if it gave none for so long."""
QUIET_ROUNDS = 50
DEADLINE_US = 1_000
"""Deadlines are met within so long."""
PACED_ROWS = 4096
"""A read of fewer rows than this costs more than its rows; see `pace`."""


class SplitReader:
    """One split being read, since when it has been silent, and the group it keeps pace with."""

    __slots__ = (
        *(
            "active_at",
            "drift",
            "empty",
            "ended",
            "gatherer",
            "group",
            "idle",
            "known",
            "paced",
            "poll_at",
            "reader",
            "source",
            "split",
        ),
    )

    def __init__(
        self, source: str, split: str, reader: Reader, active_at: int, *, idle: bool = False, join_s: float = 0.0
    ) -> None:
        self.source, self.split, self.reader = source, split, reader
        self.gatherer = Gatherer(reader, join_s)
        self.active_at, self.idle, self.ended = active_at, idle, False  # by the seat's clock
        self.empty = False  # whether it gave nothing when it was asked last, or has nothing for a while
        self.poll_at = 0  # not before
        # Whether it is left alone for a while after a read of few rows; not if the cuts of its reader are its meaning.
        self.paced = True
        self.known = False  # whether its reader says that it has nothing before `poll_at`
        self.group: str | None = None
        self.drift = 0

    @property
    def key(self) -> tuple[str, str]:
        """Its name among all splits."""
        return self.source, self.split


class Seat:
    """One task and what surrounds it.

    Args:
        answer: takes the task's acks and declines.
        store: writes frozen states and sooner or later calls `post` with Stored or StoreFailed.
        pace: how often splits are read and watermarks passed on; shared by the seats of a process. None: as often as possible.
        join_s: for how long what a reader hands out in small pieces is gathered, while more of it waits.
        alignment: what the seats of a process know of the groups of splits; shared by them.
        wake: called, from another thread, when a call has ended.
        keep_open: whether a split that says it has ended may have more rows in a later run. Then no split waits for others either: all
        that is there is read.
    """

    def __init__(
        self,
        task: Task,
        *,
        inputs: Sequence[Queue],
        outlets: dict[tuple[int, int], Outlet],
        answer: Callable[[Task, Ack | Decline], None],
        store: Callable[[Seat, Store], None],
        rows_max: int = ROWS_MAX,
        pace: Pace | None = None,
        join_s: float = 0.0,
        alignment: align.Alignment | None = None,
        wake: Callable[[], None] | None = None,
        keep_open: bool = False,
    ) -> None:
        self.keep_open = keep_open
        self.observe: Callable[[Task, Event], None] | None = None  # sees every event the task is given
        self.task, self.inputs, self.outlets, self.rows_max = task, list(inputs), outlets, rows_max
        self.pace, self.join_s = pace, join_s
        task.gathers = pace is not None
        self.alignment = alignment or align.Alignment()
        self.calls: Calls = LoopCalls(wake)
        self.splits: list[SplitReader] = []
        self.has_sources = bool(task.stage.sources)
        self.sources_ended = False
        self.rows_read = 0
        self.epoch = 0  # of the last trigger
        self._frozen = 0  # the last epoch whose cut was reached
        self._overdue_at: int | None = None  # when the last epoch has waited long enough
        self._late = False  # it has, and the task is still to be told
        self._replaying: Counter[int] = Counter()  # by input: how many messages at the front were in flight in the snapshot
        self.clock: Callable[[], float] = time.perf_counter
        self._rows = 0  # of the event under way
        self._spent_s = 0.0  # on it so far
        self._row_s = 0.0  # how long a row takes, if that is long
        self._answer, self._store = answer, store
        self._held: set[int] = set()
        self._events: deque[Event] = deque()
        self._iterator: Iterator[Action] | None = None
        self._told = TIME_MIN  # the time of day, if the task goes by it
        self._next: Event | None = None  # what happens at that time
        self._stepped_at = 0
        self._could_read = True
        self._kept_us = 0  # how long splits could not be read
        self._next_input = 0
        self._next_split = 0
        self._tell_at = 0  # when watermarks that were gathered are passed on
        self.within = {op.name: Within(op.who) for op in task.stage.sources}
        self._idle_after = {op.name: task.idle_after(op.name) for op in task.stage.sources}
        self._ending_sources = {op.name for op in task.stage.sources if op.node.source.bounded}  # type: ignore[attr-defined]
        if task.calling:
            self.post(CallsDone(()))  # restored

    def post(self, event: Event) -> None:
        """Tell the task something as soon as it is free."""
        if isinstance(event, Aborted) and event.epoch == self.epoch:
            self._overdue_at = None
        self._events.append(event)

    def replay(self, rows: Iterable[tuple[int, Batch]]) -> None:
        """Put rows that were in flight in the snapshot before all that is to come."""
        for number, batch in rows:
            self.inputs[number].push(batch)
            self._replaying[number] += 1

    @property
    def overdue_at(self) -> int | None:
        """When a look at the clock matters, even if nothing else happens."""
        return self._overdue_at

    @property
    def waiting(self) -> int:
        """How many events and messages wait to be handled."""
        return len(self._events) + (self._next is not None) + sum(len(queue) for queue in self.inputs)

    @property
    def tell_at(self) -> int | None:
        """When watermarks are to be passed on, if some wait."""
        return self._tell_at if self.task.gathering else None

    @property
    def reading(self) -> bool:
        """Whether splits are to be read, now or soon."""
        return self.has_sources and not self.sources_ended and SOURCES not in self._held and self.task.ready

    def read_at(self, least: int = 0) -> int:
        """When a split is to be read next; 0 if it is time, or was. `least`: those of which that is not known wait until then."""
        times = (split.poll_at if split.known else max(split.poll_at, least) for split in self.splits if not split.ended)
        return min(times, default=0)

    @property
    def drained(self) -> bool:
        """Whether its splits have nothing more now, and no call is under way."""
        return not self.task.calling and all(split.ended or self._is_empty(split) for split in self.splits)

    def _is_empty(self, split: SplitReader) -> bool:
        """Whether a split that gave nothing has nothing. A reader that is not prompt may have asked and wait for the answer: if its
        source ends, until it says so; else for some time.
        """
        if not split.empty:
            return False
        quiet = self._silence(split) >= QUIET_US
        return quiet or not self._backlog(split) if split.reader.prompt else quiet and split.source not in self._ending_sources

    @property
    def blocked(self) -> bool:
        """Whether an outlet is full; of an overdue task in the middle of an event, whether one is crammed.

        An event that was taken from its queue, and before which the time was told, has begun.
        """
        if self._late and (self._iterator is not None or self._next is not None):
            return any(outlet.crammed for outlet in self.outlets.values())
        return any(outlet.full for outlet in self.outlets.values())

    @property
    def busy(self) -> bool:
        """Whether an event is being worked on."""
        return self._iterator is not None

    def step(self, now: int) -> bool:
        """Do one thing, if there is one to do and room for its result. True if something was done."""
        if self._overdue_at is not None and now >= self._overdue_at:
            self._hurry()
        blocked = self.blocked
        self._pass_time(now, could_read=not blocked and SOURCES not in self._held and self.task.ready)
        if blocked and self._iterator is not None:
            return False
        at_once = False
        if self._iterator is None:
            event = self._urgent_event() if blocked else self._next_event(now)
            if event is None:
                return False
            if self.observe is not None:
                self.observe(self.task, event)
            self._iterator = self.task.handle(event)
            self._rows, self._spent_s = rows_of(event), 0.0
            at_once = is_urgent(event)
            if isinstance(event, Overdue):
                self._late = False
        self._pull(to_the_end=at_once)
        return True

    def _hurry(self) -> None:
        """The epoch is overdue: tell the task as soon as it is between two events."""
        self._overdue_at, self._late = None, True
        self._events.append(Overdue(self.epoch))

    def _urgent_event(self) -> Event | None:
        """What need not wait for room."""
        while self._events and isinstance(self._events[0], TimeGathered):
            self._events.popleft()  # windows that it fires would need room, and it can be told later
        if self._next is not None:
            event, self._next = (self._next, None) if is_urgent(self._next) else (None, self._next)
            return event
        if not self._events:
            return self._overtaken()
        return self._events.popleft() if is_urgent(self._events[0]) else None

    def _overtaken(self) -> Event | None:
        """A barrier that is owed, if it has come as far as the queue."""
        epoch, owing = self.task.recording
        for number in sorted(owing):
            ahead = self.inputs[number].overtake(epoch)
            if ahead is not None:
                return Overtook(number, epoch, ahead)
        return None

    def _pass_time(self, now: int, *, could_read: bool) -> None:
        if now < self._stepped_at:  # the machine's clock was set back: what waits for a time would wait for as long again
            self._tell_at = 0
            for split in self.splits:
                split.poll_at = 0
        if not self._could_read:
            self._kept_us += now - self._stepped_at
        self._stepped_at, self._could_read = now, could_read

    def _silence(self, split: SplitReader) -> int:
        """How long a split has had nothing to say, though it was asked."""
        return self._stepped_at - self._kept_us - split.active_at

    def _speaks(self, split: SplitReader) -> None:
        split.active_at = self._stepped_at - self._kept_us

    def _pull(self, *, to_the_end: bool) -> None:
        assert self._iterator is not None
        began = self.clock()
        for action in self._iterator:
            self._carry_out(action)
            if self.blocked and not to_the_end:
                self._spent_s += self.clock() - began
                return  # go on once there is room
        self._iterator = None
        self._spent_s += self.clock() - began
        if self._rows:
            row_s = self._spent_s / self._rows
            self._row_s = row_s if self._spent_s > SLOW_S else min(self._row_s, row_s)

    @property
    def _rows_fit(self) -> int:
        """How many rows an event should have at most, as it seems now."""
        return max(1, int(EVENT_S / self._row_s)) if self._row_s > EVENT_S / ROWS_MAX else ROWS_MAX

    def _carry_out(self, action: Action) -> None:
        match action:
            case Emit(edge, target, message):
                self.outlets[edge, target].push(message)
            case Hold(input):
                self._held.add(input)
            case Release(input):
                self._held.discard(input)
            case Call():
                self.calls.begin(action)
            case Store(epoch):
                self._aligned(epoch)
                self._store(self, action)
            case Ack(epoch) | Decline(epoch):
                self._aligned(epoch)
                reach("ack.before", epoch)
                self._answer(self.task, Ack(epoch, self._dated(action.ack)) if isinstance(action, Ack) else action)

    def _dated(self, ack: TaskAck) -> TaskAck:
        """With when each split was last active: whoever goes on from here counts its silence on."""
        splits = {source: dict(found) for source, found in ack.splits.items()}
        for split in self.splits:
            last_active_us = self._stepped_at - self._silence(split)
            splits[split.source][split.split] = {**splits[split.source][split.split], "last_active_us": last_active_us}
        return replace(ack, splits=splits)

    def _aligned(self, epoch: int) -> None:
        if epoch > self._frozen:
            self._frozen = epoch
            if epoch == self.epoch:
                self._overdue_at = None
            reach("barrier.aligned", epoch)

    def _next_event(self, now: int) -> Event | None:
        if self._next is not None:
            event, self._next = self._next, None
            return event
        waiting = self._waiting_event(now)
        return self._with_time(waiting, time_of_day(now)) if self.task.clocked else waiting

    def _with_time(self, event: Event | None, now: int) -> Event | None:
        """Tell the time before whatever happens at that time, and when the task wants to know it."""
        if now <= self._told or (event is None and now < (self.task.wake_at or now + 1)):
            return event
        self._told, self._next = now, event
        return TimeReached(now)

    def _waiting_event(self, now: int) -> Event | None:
        if self._events:
            return self._events.popleft()
        if (overtaken := self._overtaken()) is not None:
            return overtaken
        ready = True
        if self.task.calling:
            answers = self.calls.answers()
            if answers:
                return CallsDone(answers)
            ready = self.task.ready
        for turn in range(len(self.inputs)):
            number = (self._next_input + turn) % len(self.inputs)
            if self._replaying and not self._replaying[number]:
                continue
            if number not in self._held and len(self.inputs[number]) and (ready or self.inputs[number].rows is None):
                self._next_input = number + 1
                return Arrived(number, self._take(number))
        return self._next_read(now) if ready and self.has_sources and SOURCES not in self._held else None

    def _take(self, number: int) -> Message:
        """What is at the front of an input; rows with others that wait and may be processed together with them.

        Also while an epoch is under way: its barrier waits for those rows in any case, and together they take less time.
        """
        queue = self.inputs[number]
        if self._replaying:
            self._replaying -= Counter([number])  # forgets those that are at 0
        elif queue.rows is not None and queue.rows > self._rows_fit:
            return queue.pop_rows(self._rows_fit)
        elif queue.rows is not None:
            beside = [self.inputs[other] for other in self.task.beside(number) if other not in self._held]
            return take_rows([queue, *beside], min(self.task.rows_joined, self._rows_fit))
        return queue.pop()

    def _next_read(self, now: int) -> Event | None:
        if self.sources_ended:
            return None
        if self.pace is not None and self.task.gathering and now >= self._tell_at:
            self._tell_at = now + self.pace.watermark_every
            return TimeGathered()
        for turn in range(len(self.splits)):
            number = (self._next_split + turn) % len(self.splits)
            event = self._poll(self.splits[number], now)
            if event is not None:
                self._next_split = number + 1
                return event
        if all(split.ended for split in self.splits) and self._bounded() and not self.keep_open:
            self.sources_ended = True
            return SourcesEnded()
        return Paused() if self.task.holding else None

    def _bounded(self) -> bool:
        """A task without splits of a source has ended only if that source ever ends."""
        having = {split.source for split in self.splits}
        return all(op.name in having or op.node.source.bounded for op in self.task.stage.sources)  # type: ignore[attr-defined]

    def _poll(self, split: SplitReader, now: int) -> Event | None:
        if split.ended or now < split.poll_at or self._waits(split):
            return None
        reach("source.read", self.epoch)
        rows_max = min(self.rows_max, self.task.rows_max or self.rows_max, self._rows_fit)
        rows_max = rows_max if split.group is None else min(rows_max, align.ROWS_MAX)
        with self.within[split.source]:
            chunk = split.gatherer.read(rows_max)
        split.empty = chunk is None
        if self.pace is not None and (chunk is None or (split.paced and few(chunk))):
            self._leave_alone(split, now)
        if chunk is not None and (chunk.batch is not None or chunk.bad):
            split.idle = False
            self._speaks(split)
            if chunk.ended:
                self._over(split)
            self.rows_read += chunk.batch.num_rows if chunk.batch is not None else 0
            return Read(split.source, split.split, chunk.batch, chunk.position, chunk.bad)
        if chunk is not None and chunk.ended:
            self._over(split)
            return Read(split.source, split.split, None, chunk.position)
        idle_after = self._idle_after[split.source]
        if idle_after is not None and not split.idle and self._silence(split) >= idle_after and not self._backlog(split):
            split.idle = True
            self._leave(split)
            return SplitIdle(split.source, split.split)
        return None

    def _leave_alone(self, split: SplitReader, now: int) -> None:
        """Say when a split that gave few rows or none is read again."""
        assert self.pace is not None, "nothing else says when"
        with self.within[split.source]:
            due_at = split.reader.due_at()
        idle_after = self._idle_after[split.source]
        if due_at is not None and idle_after is not None and not split.idle:
            due_at = min(due_at, now + max(0, idle_after - self._silence(split)))  # to see that it is idle
        split.known = due_at is not None
        split.empty |= due_at is not None and due_at > now
        split.poll_at = max(self.pace.next_read(now), due_at or 0)

    def _backlog(self, split: SplitReader) -> bool:
        with self.within[split.source]:
            return split.reader.backlog()

    def _waits(self, split: SplitReader) -> bool:
        """Whether a split is too far ahead of others of its group."""
        if split.group is None:
            return False
        time = self.task.split_time(split.source, split.split)
        if not split.idle:
            self.alignment.hear(split.group, split.key, time)
        if not self.alignment.ahead(split.group, time, split.drift):
            return False
        self._speaks(split)  # it might, if we asked
        return True

    def _over(self, split: SplitReader) -> None:
        split.ended = True
        if not self.keep_open:
            self._events.append(SplitEnded(split.source, split.split))
        self._leave(split)

    def _leave(self, split: SplitReader) -> None:
        if split.group is not None:
            self.alignment.leave(split.group, split.key)

    def trigger(self, epoch: int, *, finish: bool, overdue_at: int | None = None) -> None:
        """An epoch begins; a source task snapshots before the splits are read again. At `overdue_at` it no longer waits for room."""
        self.epoch, self._overdue_at = epoch, overdue_at
        if not self.has_sources:
            return
        if finish:
            self.sources_ended = True
        elif self.task.gathering:
            self._events.append(TimeGathered())
        self._events.append(Trigger(epoch, finish))

    def close(self) -> None:
        """Let go of readers and writers."""
        for split in self.splits:
            split.reader.close()
        self.calls.close()
        self.task.close()


def few(chunk: Chunk) -> bool:
    """Whether a read gave so few rows that it costs more than they do."""
    return chunk.batch is None or chunk.batch.num_rows < PACED_ROWS


def rows_of(event: Event) -> int:
    """How many rows an event has."""
    match event:
        case Arrived(_, Batch(_, rows)):
            return rows
        case Read(payload=payload) if payload is not None:
            return int(payload.num_rows)
    return 0


def is_urgent(event: Event) -> bool:
    """Whether a snapshot may wait for this event, and it makes the task send markers at most."""
    if isinstance(event, Trigger):
        return not event.finish
    return isinstance(event, Overdue | Overtook | Aborted | Completed | Stored | StoreFailed)


class Loop:
    """The seats of one process, deepest stage first."""

    def __init__(self, seats: Sequence[Seat]) -> None:
        self.seats = sorted(seats, key=lambda seat: -seat.task.stage.level)
        self._quiet_rounds = 0  # without work, in a row

    @property
    def quiet(self) -> bool:
        """Whether there has been nothing to do for a while."""
        return self._quiet_rounds >= QUIET_ROUNDS

    def wake(self) -> None:
        """Something happened outside."""
        self._quiet_rounds = 0

    def due_at(self, now: int, latency: int) -> int | None:
        """When there is something to do if nothing happens before. Sources that do not know when they have rows are looked at often,
        and while nothing happens every `latency`.
        """
        deadlines = [at for seat in self.seats for at in (seat.task.wake_at, seat.overdue_at, seat.tell_at) if at is not None]
        times = [max(min(deadlines), now + DEADLINE_US)] if deadlines else []
        least = now + latency if self.quiet else 0
        times += [seat.read_at(least) for seat in self.seats if seat.reading and not seat.blocked]
        return min(times, default=None)

    def step(self, now: int, until: float | None = None) -> bool:
        """One round over all seats: each works off what waits for it now, then sources read once. True if any did something.

        Once `until` (of `time.monotonic`) has passed, each does one thing more at most: slow steps must not keep orders waiting.

        One message each would not do: a batch read becomes several messages for every task of the next stage, so queues would
        always be full and barriers late. Working until nothing waits would not do either: a task that others keep busy would keep
        its own source from ever being read, and with it everybody's time.
        """
        progress = False
        for seat in self.seats:
            for _ in range(max(1, seat.waiting)):
                if not seat.step(now):
                    break
                progress = True
                if until is not None and time.monotonic() > until:
                    break
        self._quiet_rounds = 0 if progress else self._quiet_rounds + 1
        return progress

    def close(self) -> None:
        """Let go of everything."""
        for seat in self.seats:
            seat.close()


def open_readers(
    seat: Seat,
    splits: Sequence[SplitAssigned],
    open_reader: Callable[[str, str, Any], Reader],
    now: int,
    silence: Callable[[str, str], int] = lambda source, split: 0,
) -> None:
    """Open the splits of a `SplitsAssigned` that are not over. `silence`: how long each was silent when the snapshot was taken."""
    for assigned in splits:
        if assigned.ended:
            continue
        source, split = assigned.source, assigned.split
        with seat.within[source]:
            reader = open_reader(source, split, assigned.position)
        joins = seat.task.joins(source)
        join_s = seat.join_s if joins else 0.0
        opened = SplitReader(source, split, reader, now - silence(source, split), idle=assigned.idle, join_s=join_s)
        opened.paced = joins
        clock = seat.task.clock_of(source)
        if clock is not None and clock.align is not None and not seat.keep_open:
            assert clock.drift is not None, "the plan asks for both"
            opened.group, opened.drift = clock.align, clock.drift
            if not assigned.idle:
                seat.alignment.hear(clock.align, opened.key, assigned.time)
        seat.splits.append(opened)
