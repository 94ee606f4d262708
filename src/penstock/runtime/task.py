"""A task is a function of its events: `Task.handle(event)` yields what the runner must do.

It joins three things: `protocol.TaskCore` (when to snapshot, how far time is), the operators of one stage, and their state.
Runners differ only in where events come from and who carries out the actions.

1. The runner exhausts one `handle` before it reports the next event. It may stop pulling for a while: that is back-pressure.
2. A snapshot happens between events, never within one. Abandoning an iterator kills the attempt.
3. Rows move depth first through the operators of the stage; what leaves the stage is an `Emit` per target task.
4. Only this module calls operators.
5. Event time need not move with every read: where the runner asks for that (`gathers`) it is passed on when the runner says
   `TimeGathered`. To tell it later makes no row late. A split that was idle holds others back again at once, or they would pass it.
6. An operator that asks for calls (`AsyncMap`) keeps time and the end waiting behind its rows in flight. A barrier does not wait,
   except where nobody will be there to answer: in tasks that end with the epoch (`Site.drains`), and once all input has ended.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from penstock.operators.aggregate import JOINED_ROWS, PartialAggregate
from penstock.operators.async_map import Answer, AsyncMap
from penstock.operators.operator import LATE, MAIN, PASS, Origin, Out
from penstock.operators.time import AssignTime
from penstock.operators.write import Write
from penstock.plan.logical import AssignTime as AssignTimeNode
from penstock.plan.logical import Read as ReadNode
from penstock.plan.physical import Exchange, Stage
from penstock.protocol.messages import (
    SOURCES,
    TIME_MAX,
    TIME_MIN,
    Aborted,
    Ack,
    Action,
    AdvanceTime,
    Arrived,
    Call,
    CallDone,
    CallsDone,
    Completed,
    Decline,
    EdgeIdle,
    Emit,
    End,
    EndEdge,
    Event,
    Forward,
    Freeze,
    GiveUp,
    Hold,
    Idle,
    Keep,
    Message,
    Order,
    Overdue,
    Overtook,
    Paused,
    Process,
    Read,
    Recorded,
    Release,
    SourcesEnded,
    SplitAssigned,
    SplitEnded,
    SplitIdle,
    SplitsAssigned,
    Store,
    Stored,
    StoreFailed,
    TaskAck,
    TimeGathered,
    TimeReached,
    Trigger,
    Watermark,
)
from penstock.protocol.task import TaskCore
from penstock.protocol.watermarks import Minimum
from penstock.runtime.assemble import Site, assemble, op_errors, restored_time
from penstock.runtime.dealing import Dealer
from penstock.runtime.wiring import below, column_texts, entrances, input_channels, routes, task_name, untimed
from penstock.state.timers import TimerTable
from penstock.tracebacks import Within


@dataclass(slots=True)
class SplitState:
    """How far one split has been read. `time`: of one that has ended, how far its event time was before."""

    position: Any
    ended: bool = False
    time: int = TIME_MIN


class Task:
    """One parallel copy of a stage."""

    def __init__(self, stage: Stage, site: Site) -> None:
        self.stage, self.site = stage, site
        self.name = task_name(stage.id, site.index)
        self.channels = input_channels(stage, site.index, site.parallelism)
        self.consumed: dict[str, str] = {}
        self._edges = {exchange.id: exchange for exchange in stage.incoming}
        aligned = [c.number for c in self.channels if not self._edges[c.exchange].keys]
        self._core = TaskCore({c.number: c.exchange for c in self.channels}, sources=bool(stage.sources), aligned=aligned)
        self._ops = assemble(stage, site)
        self._clocked = {op: operator for op, operator in self._ops.items() if operator.clocked}
        self._within = {op.id: Within(op.who) for op in stage.ops}
        self._labels = {op.id: f"{op.kind} {op.name}" for op in stage.ops}
        self._outs = routes(stage)
        self._dealer = Dealer(site.index, site.parallelism, site.plan.max_parallelism)
        self._times: dict[int, Minimum[object]] = {
            op.id: Minimum(entrances(stage, op.id), restored_time(op.name, site)) for op in stage.ops
        }
        for op, edge in untimed(stage):
            self._times[op].end(edge)
        self._open_inputs: dict[int, set[object]] = {op.id: set(entrances(stage, op.id)) for op in stage.ops}
        self._untold = {op for op, minimum in self._times.items() if minimum.time > TIME_MIN}  # restored times, not yet passed on
        self._sources = {op.name: op for op in stage.sources}
        self._source_errors = {op.name: op_errors(op) for op in stage.sources}
        self._clocks: dict[int, Minimum[tuple[str, str]]] = {op.id: Minimum() for op in stage.ops if op.kind == "time"}
        self._clocks_of = {name: sorted(set(below(stage, op.id)) & set(self._clocks)) for name, op in self._sources.items()}
        self._gathering = {name for name in self._sources if self._clocks_of[name] and self.joins(name)}
        self._splits: dict[tuple[str, str], SplitState] = {}
        self._prepared: dict[
            int, dict[str, list[Any]]
        ] = {}  # epoch -> sink -> committables, until an epoch that holds them is published
        self._acks: dict[int, tuple[TaskAck, Mapping[str, Any]]] = {}
        self._kept: dict[int, list[Any]] = {}  # edge -> rows in flight that are being recorded
        self._callers = {op: operator for op, operator in self._ops.items() if isinstance(operator, AsyncMap)}
        for op, caller in self._callers.items():
            caller.time = self._times[op].time
        self._holders = {op: operator for op, operator in self._ops.items() if isinstance(operator, PartialAggregate)}
        self._waiting: set[int] = set()  # holders behind whose rows event time waits
        self._ending: set[int] = set()  # callers whose input has ended and whose rows in flight have not
        self._later: list[Order] = []  # what waits until no row is in flight
        self.gathers = False  # whether the watermarks of splits wait until `TimeGathered`
        self._gathered: dict[tuple[str, str], None] = {}  # splits whose watermarks wait, in the order of their first read
        self._rows: dict[str, int] = defaultdict(int)

    def handle(self, event: Event) -> Iterator[Action]:
        """What to do now that this happened."""
        if self.holding and not isinstance(event, Read | TimeGathered):
            yield from self._release()
        match event:
            case Arrived() | Trigger() | SourcesEnded() | Overdue() | Overtook() | Aborted():
                yield from self._obey_all(self._core.handle(event), event.input if isinstance(event, Arrived) else SOURCES)
            case Read(source, split, payload, position, bad):
                yield from self._read(source, split, payload, position, bad)
            case SplitsAssigned(splits):
                yield from self._assigned(splits)
            case TimeGathered():
                yield from self._tell_gathered()
            case SplitEnded(source, split):
                yield from self._tell_gathered()
                state = self._splits[source, split]
                state.ended, state.time = True, self.split_time(source, split)
                yield from self._split_time(source, split, TIME_MAX)
            case Paused():
                pass  # what was held is released
            case SplitIdle(source, split):
                yield from self._tell_gathered()
                for op in self._clocks_of[source]:
                    if self._clocks[op].rest((source, split)):
                        yield from self._tell_time(op, self._clocks[op])
            case Stored(epoch, handles, in_flight):
                ack, frozen = self._acks.pop(epoch)
                for key, stored in handles.items():
                    self._state(key).stored(frozen[key], stored)
                states = {key: [h.to_json() for h in stored] for key, stored in handles.items()}
                yield Ack(epoch, replace(ack, states=states, in_flight=[self._entry(*written) for written in in_flight.items()]))
            case StoreFailed(epoch, error):
                del self._acks[epoch]
                yield Decline(epoch, error)
            case Completed(epoch):  # what an aborted one prepared goes with the next
                self._prepared = {e: prepared for e, prepared in self._prepared.items() if e > epoch}
            case TimeReached(now):
                yield from self._clock(now)
            case CallsDone(calls):
                yield from self._answered(calls)
        for op, caller in self._callers.items():
            for asked in caller.asked():
                yield Call((op, asked.number), asked.work, asked.timeout, asked.delay)

    def clock_of(self, source: str) -> AssignTimeNode | None:
        """How the splits of this source tell the time, if they do: the runner needs to know when they are idle or ahead."""
        for op in self.stage.ops:
            if op.id in self._clocks_of[source]:
                assert isinstance(op.node, AssignTimeNode), "only with_watermark makes time"
                return op.node
        return None

    def joins(self, source: str) -> bool:
        """Whether pieces that wait in a split of this source may be read as one. Not where rows say how far time is, which counts from the
        next read on; and not where splits keep pace with others, which is looked at between two reads."""
        clock, node = self.clock_of(source), self._sources[source].node
        assert isinstance(node, ReadNode), "sources are read"
        return node.source.joined and (clock is None or (clock.punctuated is None and clock.align is None))

    def idle_after(self, source: str) -> int | None:
        """How long a split of this source may be silent before it holds back nobody."""
        clock = self.clock_of(source)
        return None if clock is None else clock.idle_after

    def split_time(self, source: str, split: str) -> int:
        """The watermark of one split."""
        clocks = self._clocks_of[source]
        return self._clocks[clocks[0]].of((source, split)) if clocks else TIME_MIN

    @property
    def ended(self) -> bool:
        """Whether all input has ended, and no call is under way."""
        return self._core.ended and not self.calling

    @property
    def recording(self) -> tuple[int, Collection[int]]:
        """The last snapshot, and the inputs that still owe its barrier: what they deliver until then is recorded."""
        return self._core.last_epoch, self._core.recording

    @property
    def calling(self) -> bool:
        """Whether rows are in flight: calls are under way, or about to be."""
        return any(caller.busy for caller in self._callers.values())

    @property
    def holding(self) -> bool:
        """Whether rows that were read are held back. It must be told of something before long: of another read, or of a pause."""
        return any(operator.holding for operator in self._holders.values())

    @property
    def gathering(self) -> bool:
        """Whether watermarks of splits wait to be passed on."""
        return bool(self._gathered)

    @property
    def ready(self) -> bool:
        """Whether it can take rows. If not, it can take anything else."""
        return all(caller.ready for caller in self._callers.values())

    @property
    def rows_max(self) -> int | None:
        """How many rows it wants at a time, if it matters: those that wait for a call wait here, and in snapshots."""
        return max((caller.capacity for caller in self._callers.values()), default=None)

    @property
    def rows_joined(self) -> int:
        """How many rows of several messages it may be given as one."""
        return min(JOINED_ROWS, self.rows_max or JOINED_ROWS)

    def beside(self, input: int) -> list[int]:
        """The other inputs whose rows, where they wait, may be processed together with those of this one."""
        if not self._core.plain(input):
            return []
        exchange = self.channels[input].exchange
        return [c.number for c in self.channels if c.exchange == exchange and c.number != input and self._core.plain(c.number)]

    def watermark(self) -> int:
        """How far time is here, for people: the least of the stage's operators that have a time."""
        times = [m.time for m in self._times.values()] + [m.time for m in self._clocks.values()]
        known = [time for time in times if time > TIME_MIN]
        return min(known, default=TIME_MIN)

    def counters(self) -> dict[str, int]:
        """Rows read, in, out, late and dead so far in this attempt, as "kind name.what"."""
        counts = dict(self._rows)
        for op, operator in self._ops.items():
            counts.update({f"{self._labels[op]}.{what}": n for what, n in operator.counters.items()})
        return counts

    def close(self) -> None:
        """Let go of files. What was not prepared is worth nothing, so not being able to (a full disk) must not hide why we close."""
        for operator in self._ops.values():
            with contextlib.suppress(OSError):
                operator.close()
            for state in operator.states.values():
                state.close()

    @property
    def clocked(self) -> bool:
        """Whether anything here goes by the clock: then `TimeReached` comes before whatever else happens at that time."""
        return bool(self._clocked)

    @property
    def wake_at(self) -> int | None:
        """When the clock matters next, if nothing else happens."""
        # Not before the clock has passed the time the operator has seen: after a restore, that of another machine.
        times = [max(at, op.now + 1) for op in self._clocked.values() if (at := op.wake_at) is not None]
        return min(times, default=None)

    # Orders from the protocol.

    def _obey_all(self, orders: Sequence[Order], input: int) -> Iterator[Action]:
        for number, order in enumerate(orders):
            if isinstance(order, Forward) and self.calling and (self.site.drains or self._core.ended):
                self._later += [*orders[number:], Release(input)]
                yield Hold(input)
                return
            yield from self._obey(order)

    def _obey(self, order: Order) -> Iterator[Action]:
        match order:
            case Process(edge, payload):
                exchange = self._edges[edge]
                yield from self._process(exchange.target, payload, None, exchange.input)
            case AdvanceTime(edge, time):
                yield from self._advance(self._edges[edge].target, ("edge", edge), time)
            case EdgeIdle(edge):
                yield from self._rest(self._edges[edge].target, ("edge", edge))
            case EndEdge(edge):
                if edge == SOURCES:
                    for op in self._sources.values():
                        yield from self._end(op.id, SOURCES)
                else:
                    yield from self._end(self._edges[edge].target, ("edge", edge))
            case Forward(message):
                for exchange in self.stage.outgoing:
                    yield from self._send_all(exchange, message)
            case Freeze(epoch, recording):
                self._freeze(epoch)
                if not recording:
                    yield from self._store(epoch)
            case Keep(edge, payload):
                self._kept.setdefault(edge, []).append(payload)
            case Recorded(epoch):
                yield from self._store(epoch)
            case GiveUp(epoch):
                del self._acks[epoch]
                self._kept = {}
            case Hold() | Release():
                yield order

    def _read(self, source: str, split: str, payload: Any, position: Any, bad: Any) -> Iterator[Action]:
        op = self._sources[source]
        origin = Origin(source, split, position)
        self._splits[source, split].position = position
        self._rows[f"{self._labels[op.id]}.read"] += (payload.num_rows if payload is not None else 0) + len(bad)
        for port, letters in self._source_errors[source].undecoded(bad, origin):
            yield from self._deliver(op.id, port, letters, origin)
        if payload is not None and payload.num_rows:
            yield from self._process(op.id, payload, origin)
        clocks = self._clocks_of[source]
        if self.gathers and source in self._gathering and not any(self._clocks[c].is_idle((source, split)) for c in clocks):
            self._gathered[source, split] = None
            return
        for clock in clocks:
            time = self._read_time(clock, (source, split))
            if time is not None:
                yield from self._split_time(source, split, time)

    def _process(self, op: int, batch: pa.RecordBatch, origin: Origin | None, input: int = 0) -> Iterator[Action]:
        operator = self._ops[op]
        self._rows[f"{self._labels[op]}.in"] += batch.num_rows
        with self._within[op]:
            for port, rows in operator.receive(input, batch, origin):
                yield from self._deliver(op, port, rows, origin)

    def _sent(self, op: int, sent: Iterator[Out]) -> Iterator[Action]:
        """Pass on what an operator sends of itself."""
        with self._within[op]:
            for port, rows in sent:
                yield from self._deliver(op, port, rows, None)

    def _release(self) -> Iterator[Action]:
        for op, operator in self._holders.items():
            yield from self._sent(op, operator.release())

    def _deliver(self, op: int, port: str, rows: pa.RecordBatch, origin: Origin | None) -> Iterator[Action]:
        if port == PASS and op in self._waiting:
            self._waiting.discard(op)
            yield from self._tell_time(op, self._times[op])
        if not rows.num_rows:
            return
        if not port.startswith(LATE):  # counted by the operator, which also knows of late rows that nobody reads
            self._rows[f"{self._labels[op]}.{'out' if port == MAIN else port}"] += rows.num_rows
        for link in self._outs.links.get((op, port), ()):
            yield from self._process(link.target, rows, origin, link.input)
        for exchange in self._outs.exchanges.get((op, port), ()):
            yield from self._send(exchange, rows)

    def _send(self, exchange: Exchange, rows: pa.RecordBatch) -> Iterator[Action]:
        for target, message in self._dealer.deal(exchange, rows):
            yield Emit(exchange.id, target, message)

    def _send_all(self, exchange: Exchange, message: Message) -> Iterator[Action]:
        for target in [self.site.index] if exchange.keys is None else range(self.site.parallelism):
            yield Emit(exchange.id, target, message)

    # Time.

    def _clock(self, now: int) -> Iterator[Action]:
        """The time of day. It never goes back, whatever the machine's clock does."""
        for op, operator in self._clocked.items():
            if now > operator.now:
                operator.now = now
                yield from self._sent(op, operator.on_time(now))

    def _assigned(self, splits: Sequence[SplitAssigned]) -> Iterator[Action]:
        for split in splits:
            key = (split.source, split.split)
            self._splits[key] = SplitState(split.position, split.ended, split.time)
            for op in self._clocks_of[split.source]:
                self._clocks[op].add(key, TIME_MAX if split.ended else split.time, idle=split.idle and not split.ended)
        for op, clock in self._clocks.items():
            clock.settle()
            yield from self._tell_time(op, clock)

    def _split_time(self, source: str, split: str, time: int) -> Iterator[Action]:
        for op in self._clocks_of[source]:
            if self._clocks[op].advance((source, split), time):
                yield from self._tell_time(op, self._clocks[op])

    def _read_time(self, clock: int, split: tuple[str, str]) -> int | None:
        """How far the rows that were read say that a split is; None if there was none yet."""
        operator = self._ops[clock]
        assert isinstance(operator, AssignTime), "clocks are operators that assign time"
        return operator.times.get(split)

    def _tell_gathered(self) -> Iterator[Action]:
        """Pass on the watermarks that waited: of all splits at once, so that none gets ahead of one that also has moved."""
        gathered, self._gathered = self._gathered, {}
        for op, clock in self._clocks.items():
            mine = [split for split in gathered if op in self._clocks_of[split[0]]]
            for split in mine:
                time = self._read_time(op, split)
                if time is not None:
                    clock.note(split, time)
            if mine and clock.settle():
                yield from self._tell_time(op, clock)

    def _advance(self, op: int, entrance: object, time: int) -> Iterator[Action]:
        # A time that was restored is news to whoever reads this operator, even if it stands still: others must not wait for it
        # to move.
        if self._times[op].advance(entrance, time) or op in self._untold:
            self._untold.discard(op)
            yield from self._time_changed(op)

    def _rest(self, op: int, entrance: object) -> Iterator[Action]:
        if self._times[op].rest(entrance):
            yield from self._time_changed(op)

    def _time_changed(self, op: int) -> Iterator[Action]:
        minimum = self._times[op]
        if op in self._clocks:
            return  # this operator makes time of its own
        if op in self._callers:
            self._callers[op].mark(minimum.time, idle=minimum.idle)
            yield from self._pass(op)
            return
        if not minimum.idle:
            yield from self._sent(op, self._ops[op].advance(minimum.time))
        if self._ops[op].holding:
            self._waiting.add(op)
            return
        yield from self._tell_time(op, minimum)

    def _tell_time(self, op: int, time: Minimum[Any]) -> Iterator[Action]:
        """Pass the time of an operator on to what reads it."""
        for link in self._outs.readers.get(op, ()):
            yield from self._rest(link, op) if time.idle else self._advance(link, op, time.time)
        if time.time < TIME_MAX or time.idle:  # the end says so itself
            for exchange in self._outs.leaving.get(op, ()):
                yield from self._send_all(exchange, Idle() if time.idle else Watermark(time.time))

    def _end(self, op: int, entrance: object) -> Iterator[Action]:
        """One of the operator's inputs has ended; with the last one, so has the operator: first event time, then the clock."""
        self._open_inputs[op].discard(entrance)
        if entrance != SOURCES:
            yield from self._advance(op, entrance, TIME_MAX)
        if self._open_inputs[op]:
            return
        if op in self._clocked:
            yield from self._sent(op, self._ops[op].on_time(TIME_MAX))
        yield from self._sent(op, self._ops[op].end())
        if op in self._callers and self._callers[op].busy:
            self._ending.add(op)
            return
        yield from self._over(op)

    def _over(self, op: int) -> Iterator[Action]:
        for link in self._outs.readers.get(op, ()):
            yield from self._end(link, op)
        for exchange in self._outs.leaving.get(op, ()):
            yield from self._send_all(exchange, End())

    # Calls.

    def _answered(self, calls: Sequence[CallDone]) -> Iterator[Action]:
        answers: dict[int, list[Answer]] = defaultdict(list)
        for done in calls:
            answers[done.call[0]].append(Answer(done.call[1], done.result, done.error))
        for op, caller in self._callers.items():
            yield from self._sent(op, caller.on_results(answers.get(op, ())))
            yield from self._pass(op)
        if self._later and not self.calling:
            later, self._later = self._later, []
            for order in later:
                yield from self._obey(order)

    def _pass(self, op: int) -> Iterator[Action]:
        """Let time, rest and the end through where no row in flight is before them."""
        caller = self._callers[op]
        if caller.passed():
            told: Minimum[object] = Minimum((), caller.time)
            if caller.time > TIME_MIN:
                yield from self._tell_time(op, told)
            if caller.idle:
                told.idle = True
                yield from self._tell_time(op, told)
        if op in self._ending and not caller.busy:
            self._ending.discard(op)
            yield from self._over(op)

    # Snapshots.

    def _freeze(self, epoch: int) -> None:
        frozen: dict[str, Any] = {}
        floors: dict[str, Any] = {}
        prepared: dict[str, list[Any]] = {}
        for op, operator in self._ops.items():
            for name, state in operator.states.items():
                frozen[f"{operator.name}/{name}"] = state.freeze(epoch)
                if isinstance(state, TimerTable):
                    floors[f"{operator.name}/{name}"] = state.floors_json()
            if isinstance(operator, Write):
                with self._within[op]:
                    prepared[operator.name] = list(operator.prepare(epoch))
        self._prepared[epoch] = prepared
        ack = TaskAck(
            uid=self.site.uid,
            consumed=dict(self.consumed),
            splits=self._split_states(),
            watermarks={op.name: self._time_out(op.id) for op in self.stage.ops if self._ops[op.id].states},
            floors=floors,
            committables={
                sink: [c for e in sorted(self._prepared) for c in self._prepared[e].get(sink, ())] for sink in prepared
            },
            wake_at=self.wake_at,
            counters=self.counters(),
            ended=self.ended,
        )
        self._acks[epoch] = (ack, frozen)

    def _store(self, epoch: int) -> Iterator[Action]:
        ack, frozen = self._acks[epoch]
        kept, self._kept = self._kept, {}
        if frozen or kept:
            yield Store(epoch, frozen, kept)
        else:
            del self._acks[epoch]
            yield Ack(epoch, ack)

    def _entry(self, edge: int, file: Mapping[str, Any]) -> dict[str, Any]:
        """Rows in flight as a manifest names them: by the step, and the key groups, that they were on their way to."""
        exchange, groups = self._edges[edge], self.site.groups
        step = {"step": self._ops[exchange.target].name, "input": exchange.input, "columns": column_texts(exchange.schema)}
        return {**step, "first_group": groups.start, "last_group": groups.stop - 1, **file}

    def _time_out(self, op: int) -> int:
        """How far time is for whoever reads an operator."""
        return self._callers[op].time if op in self._callers else self._times[op].time

    def _split_states(self) -> dict[str, dict[str, Any]]:
        states: dict[str, dict[str, Any]] = {}
        for (source, split), state in self._splits.items():
            clocks = [self._clocks[op] for op in self._clocks_of[source]]
            states.setdefault(source, {})[split] = {
                "position": state.position,
                "watermark": state.time if state.ended else clocks[0].of((source, split)) if clocks else TIME_MIN,
                "idle": bool(clocks) and clocks[0].is_idle((source, split)),
                "ended": state.ended,
            }
        return states

    def _state(self, key: str) -> Any:
        operator, _, state = key.rpartition("/")
        return next(o for o in self._ops.values() if o.name == operator and state in o.states).states[state]
