"""A small world around the shipped protocol: everything that can happen next, and what must never be true.

The classes under test are the ones that run in production: `TaskCore`, `Minimum`, `Coordinator` and the generators of `terms`.
Around them this module puts the least that makes them a job: two workers, each with a source task and perhaps a target task;
exchange channels; a store and a sink, which survive crashes; and coordinator hosts, which do not. A source has a few numbered
rows; a target folds the rows it gets into its state and gives them to the sink.

`World.successors` lists every choice the environment has, as worlds. The rules of the model, and why it loses nothing:

1. One step is one store operation, one commit, one message taken from a channel, one event heard by a coordinator. A crash can
   come between any two.
2. What a process does within itself (sending, queueing) happens in the step that caused it: nobody can see it earlier, and a
   crash just after undoes it.
3. A commit and its answer are one step. A coordinator that dies between them is the same as one that dies just after: the sink
   keeps, the coordinator forgets.
4. Once a successor's term file exists, the old attempt's tasks stand still. Whatever they would do later they could have done
   before: no step of theirs depends on the successor, and the old coordinator cannot begin another epoch. What it has begun (a
   publish, a commit, a collection) goes on beside its successor: a zombie.
5. Of the acknowledgements in flight when an attempt ends, at most one is delivered later, to whoever is in charge then.
6. Steps that commute with all others go first, alone. If each input of a target is waiting to be read or held, and none would
   complete an alignment, that target moves. An acknowledgement that is not an epoch's last is heard, where it can neither be
   declined nor outlive its attempt. The only claimer reads which terms there are: nobody else creates any.
7. `epochs` bounds the run: the trigger of that epoch and of later ones is delivered to a source after its end.
8. An epoch is overdue at a target at any moment after its worker has heard the trigger: how long anybody waits is not modelled.
   From then on its barriers may overtake the rows before them.

Parts are copied before they are changed, so that worlds share what they have in common.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import replace

from penstock.protocol import coordinator as co
from penstock.protocol import terms
from penstock.protocol.messages import (
    Aborted,
    Barrier,
    Batch,
    Completed,
    Message,
    Stamp,
    Trigger,
)
from penstock.testing.parts import (
    CODEC,
    EMPTY,
    LINEAGE,
    SETTINGS,
    WORKERS,
    Call,
    Host,
    Letter,
    Manifest,
    Returned,
    Row,
    Scope,
    Source,
    Target,
    manifest_of,
    next_op,
    parse,
    require,
)
from penstock.testing.tasks import Choice, Tasks, show, step


class World(Tasks):
    """One state of everything. `successors` is the only way on."""

    memo: dict[Call, terms.Op | Returned]
    hits: set[tuple[str, str]]

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.memo, self.hits = {}, set()
        self.hosts: dict[int, Host] = {1: Host(1)}
        self.births = 1
        self.stamp: Stamp | None = None  # of the tasks
        self.sources: dict[int, Source] = {}
        self.targets: dict[int, Target] = {}
        self.channels: dict[tuple[int, int], tuple[Message, ...]] = {}
        self.origins: tuple[tuple[tuple[int, int], str], ...] = ()  # whose run a channel holds, where it is not the first
        self.control: dict[int, tuple[Trigger | Completed | Aborted, ...]] = {}
        self.acks: dict[str, Letter] = {}  # of the running attempt, by task
        self.late: Letter | None = None
        self.store: dict[str, bytes] = {}
        self.sink: tuple[tuple[int, tuple[Row, ...]], ...] = ()
        self.truth: tuple[Manifest, ...] = ()  # every checkpoint that ever became true
        self.top = (0, 0)  # the highest slot ever written, and its term
        self.terms = 0  # how many were ever created
        self.finished = False
        self.doing = ""  # the choice being carried out, for whoever must report that it went wrong
        self.mourned = False  # a coordinator died; somebody starts another once nobody is left who can finish the job
        self.disk: int | None = None  # the number of what outlives crashes, once known
        self.left = (scope.crashes, scope.zombies, scope.hiccups, scope.collections, scope.late, scope.reruns, scope.overdue)

    # --- going on ---------------------------------------------------------------------------------------------------

    def successors(self) -> Iterator[tuple[str, World]]:
        """Every next world, with the choice that leads there. No ordinary choice left: the job must be done."""
        self.doing = ""
        choices = self._eager() or list(self._choices())
        if all(fault for _, fault, _ in choices):
            self.check_done()
        for name, _, act in choices:
            self.doing = name
            world = self.copy()
            act(world)
            yield from world._settled(name)

    def copy(self) -> World:
        """A world that shares its parts with this one."""
        copy = object.__new__(type(self))
        copy.__dict__.update(self.__dict__)
        for name in ("hosts", "sources", "targets", "channels", "control", "acks", "store"):
            setattr(copy, name, dict(getattr(self, name)))
        return copy

    def key(self, identify: Callable[[Hashable], int]) -> tuple[int, ...]:
        """Equal for equal worlds. `identify` numbers the parts."""
        parts: list[int] = []
        running: tuple[Host | Source | Target, ...] = (*self.hosts.values(), *self.sources.values(), *self.targets.values())
        for part in running:
            if part.id is None:
                part.id = identify((type(part).__name__, part.key()))
            parts.append(part.id)
        parts.append(identify((tuple(self.channels.items()), self.origins, tuple(self.control.items()))))
        parts.append(identify((self.late and self.late.text, self.stamp, *sorted(letter.text for letter in self.acks.values()))))
        if self.disk is None:
            self.disk = identify((tuple(sorted(self.store.items())), self.sink, self.truth, self.top, self.terms))
        parts.append(self.disk)
        parts.append(identify((self.left, self.finished, self.births, self.mourned)))
        return tuple(parts)

    def _settled(self, name: str) -> Iterator[tuple[str, World]]:
        """Forget what can have no effect any more; choose which acknowledgement, if any, outlives its attempt."""
        newest = self.terms
        for birth, host in list(self.hosts.items()):
            past = host.coordinator is not None and (host.halted or host.coordinator.stamp.term < newest)
            if past and not host.calls and host.commit is None:
                del self.hosts[birth]
        if self.mourned and not self.finished and not any(h.claim is None or h.claim.term == newest for h in self.hosts.values()):
            self.mourned = False
            self._boot()
        orphans = [letter for letter in self.acks.values() if letter.event.stamp != self.stamp]
        if orphans:
            self.acks = {task: letter for task, letter in self.acks.items() if letter.event.stamp == self.stamp}
        for letter in orphans if self.left[4] else ():
            world = self.copy()
            world.spend(4)
            world.late = letter
            yield f"{name}; {letter.event.task}'s ack of epoch {letter.event.epoch} stays under way", world
        yield name, self

    def _eager(self) -> list[Choice]:
        """Steps that commute with everything else (rule 6)."""
        if self.left[5]:
            return []
        claiming = [host for host in self.hosts.values() if host.claim is None]
        if len(claiming) == 1:
            op = next_op(claiming[0].calls[0], self.memo)
            if isinstance(op, terms.Read) and not any(isinstance(answer, bool) for answer in claiming[0].calls[0].answers):
                return [self._store_choice(claiming[0].birth, op)]
        if not self.left[2] and not (self.left[4] and (self.left[0] or self.left[1])):
            for birth, host in self.hosts.items():
                hearer = host.coordinator
                for task, letter in self.acks.items() if hearer is not None else ():
                    assert hearer is not None
                    if letter.event.stamp == hearer.stamp and hearer.clone().handle(host.now, letter.event) == ():
                        return [self._receipt(birth, task)]
        for j, target in self.targets.items() if not self.left[6] else ():
            if target.core.recording or target.replaying:
                continue
            heads = {i: self.channels[i, j][0] if self.channels[i, j] else None for i in WORKERS if i not in target.held}
            completing = len(target.held) + 1 == len(WORKERS) and any(isinstance(m, Barrier) for m in heads.values())
            if heads and None not in heads.values() and not completing:
                return [self._arrival(i, j) for i in heads]
        return []

    def _choices(self) -> Iterator[Choice]:
        yield from self._task_choices()
        for birth, host in self.hosts.items():
            yield from self._host_choices(birth, host)
        if self.left[0]:
            for w in WORKERS:
                if w in self.sources:
                    yield f"worker {w} dies", True, step(World._kill_worker, w)
            for birth in self.hosts:
                yield f"coordinator {birth} dies", True, step(World._kill_host, birth)
        if self.left[1] and not self.finished:
            yield "another coordinator starts", True, World._take_over

    # --- coordinators -----------------------------------------------------------------------------------------------

    def _host_choices(self, birth: int, host: Host) -> Iterator[Choice]:
        who = f"coordinator {birth}"
        if host.calls:
            yield from self._store_choices(birth, host)
        if host.commit is not None:
            epoch = host.commit.pending.epoch
            yield f"{who} commits epoch {epoch}", False, step(World._commit, birth, True, True)
            if self.left[2]:
                yield f"{who} commits epoch {epoch}, the answer is lost", True, step(World._commit, birth, True, False)
                yield f"{who} is told to commit epoch {epoch} later", True, step(World._commit, birth, False, False)
        coordinator = host.coordinator
        if coordinator is None or coordinator.stamp.term < self.terms:
            return  # rule 4: nothing new is begun
        for event in host.inbox:
            yield f"{who} hears {type(event).__name__}", False, step(World._hears, birth, event)
        for task, letter in self.acks.items():
            if letter.event.stamp.term == coordinator.stamp.term:
                yield self._receipt(birth, task)
                if self.left[2]:
                    yield f"{task} declines epoch {letter.event.epoch}", True, step(World._decline, birth, task)
        if self.late is not None:
            yield f"{who} gets {self.late.event.task}'s ack of {self.late.event.stamp}", True, step(World._late, birth)
        due = coordinator.wake_at()
        if due is not None and due <= host.now:
            yield f"{who} looks at the clock", False, lambda world: world._tell(birth, co.Ticked())
        if (
            self.left[2]
            and coordinator.phase is co.Phase.RUNNING
            and coordinator.in_flight
            and due == host.now + SETTINGS.timeout
        ):
            yield f"{who} gives up epoch {coordinator.in_flight}", True, step(World._time_out, birth)
        claim = host.claim
        if (
            self.left[3]
            and not host.calls
            and claim
            and claim.newest
            and claim.newest.seq == claim.head
            and claim.newest.term == claim.term
        ):
            yield f"{who} collects old slots", True, step(World._collect, birth)

    def _host(self, birth: int) -> Host:
        host = self.hosts[birth] = self.hosts[birth].clone()
        return host

    def _tell(self, birth: int, event: co.Event) -> None:
        """Report an event to a coordinator and carry out what it asks for."""
        host = self._host(birth)
        assert host.coordinator is not None
        self.hits.add((f"Coordinator {host.coordinator.phase.value}", type(event).__name__))
        for effect in host.coordinator.handle(host.now, event):
            self._carry_out(host, effect)

    def _carry_out(self, host: Host, effect: co.Effect) -> None:
        match effect:
            case co.BeginAttempt(stamp):
                if stamp.term == self.terms:
                    self._begin(host, stamp)
            case co.EndAttempt(stamp):
                self._end_attempt(stamp)
            case co.TellAborted(stamp, epoch) if stamp == self.stamp and self.scope.overdue:
                self.control = {w: (*m, Aborted(epoch)) if w in self.targets else m for w, m in self.control.items()}
            case co.TriggerEpoch(stamp, epoch, finish) if stamp == self.stamp:
                self.control = {w: (*messages, Trigger(epoch, finish)) for w, messages in self.control.items()}
            case co.TellCompleted(stamp, epoch) if stamp == self.stamp:
                self.control = {w: (*m, Completed(epoch)) if w in self.targets else m for w, m in self.control.items()}
            case co.Publish():
                assert host.claim is not None
                host.calls += (Call("publish", (host.claim, manifest_of(effect, self.scope).to_text())),)
            case co.Commit():
                assert host.commit is None, "one commit at a time"
                host.commit = effect
            case co.Halt(outcome, reason):
                require(
                    outcome in (co.Outcome.FINISHED, co.Outcome.SUPERSEDED),
                    "progress",
                    f"coordinator {host.birth} gave up: {reason}",
                )
                if outcome is co.Outcome.FINISHED:
                    self.finished = True
                    self.check_output()

    def _begin(self, host: Host, stamp: Stamp) -> None:
        """Start tasks from the newest checkpoint that this host knows."""
        assert host.claim is not None
        start = parse(host.claim.newest.body) if host.claim.newest else EMPTY
        newest = self.truth[-1] if self.truth else EMPTY
        require(
            start.epoch == newest.epoch,
            "restore",
            f"term {stamp.term} goes on from epoch {start.epoch}; epoch {newest.epoch} is published",
        )
        require(not start.finished, "restore", f"term {stamp.term} runs on after the last checkpoint")
        owed = [m.epoch for m in self.truth if m.fresh and m.epoch not in dict(self.sink)]
        require(not owed, "restore", f"term {stamp.term} begins an attempt before epochs {owed} are committed")
        uid = f"{stamp.term}.{stamp.attempt}"
        targets = range(self.scope.targets)
        self.stamp = stamp
        self.sources = {i: Source(i, start.positions[i], f"source {i} {uid}") for i in WORKERS}
        self.targets = {j: Target(j, *start.states[j], uid, len(start.in_flight[j])) for j in targets}
        self.channels = {(i, j): () for i in WORKERS for j in targets}
        self.control, self.origins = dict.fromkeys(WORKERS, ()), ()
        for j in targets:
            for row in start.in_flight[j]:
                self.send(0, j, Batch(row, 1, 1))
        host.inbox = (co.Running(stamp),)

    def _end_attempt(self, stamp: Stamp | None) -> None:
        if stamp == self.stamp:
            self.stamp, self.sources, self.targets, self.channels, self.control, self.origins = None, {}, {}, {}, {}, ()

    def _hears(self, birth: int, event: co.Event) -> None:
        host = self._host(birth)
        host.inbox = tuple(e for e in host.inbox if e != event)
        self._tell(birth, event)

    def _receipt(self, birth: int, task: str) -> Choice:
        name = f"coordinator {birth} gets {task}'s ack of epoch {self.acks[task].event.epoch}"
        return name, False, lambda world: world._tell(birth, world.acks.pop(task).event)

    def _late(self, birth: int) -> None:
        """The word of an attempt that is over is worth a look at the clock, no more."""
        letter, self.late = self.late, None
        host = self.hosts[birth]
        assert letter is not None
        assert host.coordinator is not None
        unmoved = host.coordinator.clone()
        unmoved.handle(host.now, co.Ticked(epoch=False))
        self._tell(birth, letter.event)
        moved = self.hosts[birth].coordinator
        assert moved is not None
        require(moved.key() == unmoved.key(), "stale", f"coordinator {birth} hears {letter.text}")

    def _decline(self, birth: int, task: str) -> None:
        self.spend(2)
        ack = self.acks.pop(task).event
        self._tell(birth, co.Declined(ack.stamp, ack.epoch, task, "no room"))

    def _time_out(self, birth: int) -> None:
        self.spend(2)
        self._host(birth).now += SETTINGS.timeout
        self._tell(birth, co.Ticked())

    def _kill_worker(self, w: int) -> None:
        self.spend(0)
        assert self.stamp is not None
        del self.sources[w], self.control[w]
        if self.targets.pop(w, None):
            self.channels = {(i, j): waiting for (i, j), waiting in self.channels.items() if j != w}
        for birth, host in self.hosts.items():
            if host.coordinator is not None and host.coordinator.stamp == self.stamp:
                self._host(birth).inbox = (*host.inbox, co.AttemptFailed(self.stamp, f"worker {w} is gone"))

    def _kill_host(self, birth: int) -> None:
        self.spend(0)
        host = self.hosts.pop(birth)
        if host.coordinator is not None:
            self._end_attempt(host.coordinator.stamp)
        self.mourned = True

    def _take_over(self) -> None:
        self.spend(1)
        self._boot()

    def _boot(self) -> None:
        self.births += 1
        self.hosts[self.births] = Host(self.births)

    # --- the store and the sink -------------------------------------------------------------------------------------

    def _store_choices(self, birth: int, host: Host) -> Iterator[Choice]:
        call = host.calls[0]
        op: object = call.args[0] if call.kind == "collect" else next_op(call, self.memo)
        name, *_ = choice = self._store_choice(birth, op)
        yield choice
        if self.left[2] and call.kind == "publish" and isinstance(op, terms.Create):
            for done in (True, False):
                yield f"{name} fails{', but is done' if done else ''}", True, step(World._publish_fails, birth, done)

    def _store_choice(self, birth: int, op: object) -> Choice:
        return f"coordinator {birth}: {show(op)}", False, step(World._store_step, birth)

    def _store_step(self, birth: int) -> None:
        host = self._host(birth)
        call, *others = host.calls
        if call.kind == "collect":
            self.delete(call.args[0])
            host.calls = (*([Call("collect", call.args[1:])] if call.args[1:] else []), *others)
            return
        op = next_op(call, self.memo)
        assert not isinstance(op, Returned)
        call = replace(call, answers=(*call.answers, self._operate(op)))
        after = next_op(call, self.memo)
        if not isinstance(after, Returned):
            host.calls = (call, *others)
            return
        host.calls = tuple(others)
        match call.kind, after.value:
            case "claim", terms.Claim() as claim:
                host.claim = claim
                start = parse(claim.newest.body) if claim.newest else EMPTY
                tasks = [*(f"source {i}" for i in WORKERS), *(f"target {j}" for j in range(self.scope.targets))]
                host.coordinator = co.Coordinator(
                    lineage=LINEAGE,
                    term=claim.term,
                    tasks=tasks,
                    epoch=start.epoch,
                    pending=start.pending,
                    finished=start.finished,
                    settings=SETTINGS,
                )
                self._tell(birth, co.Booted())
            case "claim", _:
                del self.hosts[birth]
            case "publish", terms.Claim() as claim:
                host.claim = claim
                self._tell(birth, co.Published(parse(call.args[1]).epoch))
            case "publish", _:
                self._tell(birth, co.Superseded())

    def _operate(self, op: terms.Op) -> bool | bytes | None:
        match op:
            case terms.Create(path, data):
                if path in self.store:
                    return False
                self.store[path], self.disk = data, None
                if path.startswith("terms/"):
                    self.terms = max(self.terms, int(path[6:]))
                    self._end_attempt(self.stamp)  # rule 4
                else:
                    self._appended(CODEC.decode(data, path))
                return True
            case terms.Read(path):
                return self.store.get(path)
            case terms.Write(path, data):
                self.store[path], self.disk = data, None
                return None

    def _publish_fails(self, birth: int, done: bool) -> None:
        self.spend(2)
        host = self._host(birth)
        call, *others = host.calls
        op = next_op(call, self.memo)
        if done and isinstance(op, terms.Create):
            self._operate(op)
        host.calls = tuple(others)
        self._tell(birth, co.PublishFailed(parse(call.args[1]).epoch, "no answer"))

    def _collect(self, birth: int) -> None:
        """Name the head, then delete what is below it."""
        self.spend(3)
        host = self._host(birth)
        assert host.claim is not None
        old = tuple(sorted(path for path in self.store if path.startswith("log/") and path < terms.slot_path(host.claim.head)))
        host.calls = (Call("note", (host.claim,)), *self.deletions(old))

    def deletions(self, paths: tuple[str, ...]) -> tuple[Call, ...]:
        """What a collection deletes, one name at a time."""
        return (Call("collect", paths),) if paths else ()

    def delete(self, path: str) -> None:
        """Forget a name of the store."""
        self.store.pop(path, None)
        self.disk = None
        require(terms.slot_path(self.top[0]) in self.store, "collection", f"{path} was needed")

    def _commit(self, birth: int, done: bool, answered: bool) -> None:
        host = self._host(birth)
        assert host.commit is not None
        pending, host.commit = host.commit.pending, None
        if done:
            self.show(pending)
        if answered:
            self._tell(birth, co.Committed(pending.epoch, pending.sink))
        else:
            self.spend(2)
            self._tell(birth, co.CommitDelayed(pending.epoch, pending.sink))

    def show(self, pending: co.Pending) -> None:
        """The sink: an epoch that it has is not added again."""
        true = {m.epoch: m.fresh for m in self.truth}
        require(pending.epoch in true, "commit", f"epoch {pending.epoch} is committed without a checkpoint")
        require(
            true[pending.epoch] == pending.committables,
            "commit",
            f"epoch {pending.epoch} is committed as {pending.committables}, its checkpoint says {true[pending.epoch]}",
        )
        if pending.epoch not in dict(self.sink):
            missing = [e for e, rows in true.items() if e < pending.epoch and rows and e not in dict(self.sink)]
            require(not missing, "commit", f"epoch {pending.epoch} is committed before {missing}")
            self.sink, self.disk = (*self.sink, (pending.epoch, pending.committables)), None

    # --- what must hold ---------------------------------------------------------------------------------------------

    def _appended(self, record: terms.Record) -> None:
        """A log slot was created. If it is the next one, what it says is true from now on."""
        if record.seq <= self.top[0]:
            return  # a deleted slot, created again by one who slept: nobody may believe it
        require(record.seq == self.top[0] + 1, "log", f"slot {record.seq} after slot {self.top[0]}")
        require(record.term >= self.top[1], "log", f"term {record.term} after term {self.top[1]}")
        self.top = (record.seq, record.term)
        if record.kind == terms.CHECKPOINT:
            manifest = parse(record.body)
            last = self.truth[-1].epoch if self.truth else 0
            require(manifest.epoch > last, "log", f"epoch {manifest.epoch} is published after epoch {last}")
            require(
                not (self.truth and self.truth[-1].finished), "log", f"epoch {manifest.epoch} is published after the last one"
            )
            self.truth = (*self.truth, manifest)
            check_cut(self.truth)

    def check_output(self) -> None:
        """Every row is committed once."""
        rows = sorted(row for _, rows in self.sink for row in rows)
        expected = [(i, n) for i in WORKERS for n in range(1, self.scope.rows[i] + 1)]
        require(rows == expected, "output", f"committed were {rows}, expected {expected}")

    def check_done(self) -> None:
        """Nothing more happens by itself: then the job has finished."""
        require(self.finished, "progress", "nothing more can happen, and the job has not finished")
        self.check_output()


def check_cut(truth: tuple[Manifest, ...]) -> None:
    """The newest checkpoint holds the rows before its positions and no others, each once: in its states and in all output so far,
    or in flight."""
    newest = truth[-1]
    before = [(i, n) for i in WORKERS for n in range(1, newest.positions[i] + 1)]
    folded = sorted(row for rows, _ in newest.states for row in rows)
    in_flight = [row for rows in newest.in_flight for row in rows]
    held = f"its states hold {folded}" + (f", and {in_flight} are in flight" if in_flight else "")
    require(sorted([*folded, *in_flight]) == before, "cut", f"epoch {newest.epoch} has read {before} and {held}")
    output = sorted(row for manifest in truth for row in manifest.fresh)
    require(output == folded, "cut", f"epoch {newest.epoch}: {held}, and the output up to it is {output}")
    for rows in newest.in_flight:
        for i in WORKERS:
            own = [row for row in rows if row[0] == i]
            require(own == sorted(own), "cut", f"epoch {newest.epoch}: {own} are in flight in another order than they were sent")
