"""The life of an epoch: trigger, acknowledge, publish, commit; and of an attempt: begin, fail, begin again.

Theory. An epoch becomes true at one moment: when its checkpoint is published (a log slot created, see `terms`). Before that
nothing of it may be visible outside; after that all of it
must become visible, whatever crashes. Hence:

1. Nothing is true until its answer arrives: `Publish` is an effect, and only the event `Published` lets anything be committed.
   Never both in one step.
2. At most one epoch is in flight. Its number was never used before in this attempt.
3. A snapshot counts only if every task acknowledged it and every task read what the acknowledged attempts of its upstream tasks
   wrote (`consumed` uids).
4. Commits happen in order of epochs, one at a time per coordinator, and are retried until the sink confirms. What is
   unconfirmed is `pending`; each published checkpoint carries it, so a successor repeats it. One epoch is committed while the next
   goes on, but no third one begins: who commits slowly holds back the rest, instead of falling behind further and further. A commit
   that failed and may pass is slow, too; it is given up when its tries or `commit_patience` are used up.
5. An attempt fails as a whole. A new one begins only when nothing is being published (its outcome decides from where) and
   nothing waits to be committed.
6. Acknowledgements of another attempt are not heard (`Stamp.accepts`).
7. A coordinator that learns of a later term halts at once and commits nothing more.
8. What somebody keeps (a savepoint, the last checkpoint of a job that is stopped) has no rows in flight.

The runner reports events with its clock (`now`, microseconds, monotone) and carries out the effects in order.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from penstock.protocol.acks import in_flight, torn_reads
from penstock.protocol.messages import Pending as Pending
from penstock.protocol.messages import Stamp, TaskAck
from penstock.protocol.retrying import Failing
from penstock.protocol.settings import Settings as Settings


class Phase(enum.Enum):
    """Where the coordinator is."""

    RECOVERING = "recovering"  # committing what a predecessor left, before the first attempt
    WAITING = "waiting"  # for the back-off to pass
    STARTING = "starting"  # an attempt was begun; its tasks are not all there yet
    RUNNING = "running"
    HALTED = "halted"


# --- events
# --------------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Booted:
    """The term is claimed and the newest checkpoint read."""


@dataclass(frozen=True, slots=True)
class Running:
    """Every task of the attempt is there."""

    stamp: Stamp


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time passes. `epoch`: and an epoch may begin if it is due; a runner says no while a snapshot would hold nothing new."""

    epoch: bool = True


@dataclass(frozen=True, slots=True)
class Acked:
    """A task stored its part."""

    stamp: Stamp
    epoch: int
    task: str
    ack: TaskAck


@dataclass(frozen=True, slots=True)
class Declined:
    """A task could not store its part."""

    stamp: Stamp
    epoch: int
    task: str
    reason: str


@dataclass(frozen=True, slots=True)
class InputEnded:
    """All sources of the attempt have ended: the last epoch need not wait for its time."""

    stamp: Stamp


@dataclass(frozen=True, slots=True)
class Drained:
    """Sources have nothing more now, though there may be more another day: the job is to stop. `epoch`: the first that holds all that was
    read. `finish`: and windows are to close. Of one attempt only: another has to read what was not published again."""

    stamp: Stamp
    epoch: int
    finish: bool = False


@dataclass(frozen=True, slots=True)
class Published:
    """The checkpoint is durable, and no later term was seen after it became so."""

    epoch: int


@dataclass(frozen=True, slots=True)
class PublishFailed:
    """Storage answered with an error: whether the checkpoint is there is unknown."""

    epoch: int
    error: str


@dataclass(frozen=True, slots=True)
class Superseded:
    """A later term exists."""


@dataclass(frozen=True, slots=True)
class Committed:
    """The sink shows the epoch (now or already)."""

    epoch: int
    sink: str


@dataclass(frozen=True, slots=True)
class CommitDelayed:
    """Not now; ask again later. `error`: something was wrong that may pass; `tries`: and how often that is to be tried (0: patiently)."""

    epoch: int
    sink: str
    error: str = ""
    tries: int = 0


@dataclass(frozen=True, slots=True)
class CommitFailed:
    """The sink refuses for good."""

    epoch: int
    sink: str
    error: str


@dataclass(frozen=True, slots=True)
class AttemptFailed:
    """A task, its process or its channel is gone. `tries`: after how many such failures without a new checkpoint the job is given up."""

    stamp: Stamp
    error: str
    fatal: bool = False  # trying again cannot help
    tries: int = 0  # 0: `restarts_max` is the limit


@dataclass(frozen=True, slots=True)
class StopAsked:
    """The user wants the job to stop after one more epoch; `finish`: and its windows to close."""

    finish: bool = False


@dataclass(frozen=True, slots=True)
class SavepointAsked:
    """The user wants an epoch to keep."""

    request: str


Event = (
    Booted
    | Running
    | Ticked
    | Acked
    | Declined
    | InputEnded
    | Drained
    | Published
    | PublishFailed
    | Superseded
    | Committed
    | CommitDelayed
    | CommitFailed
    | AttemptFailed
    | StopAsked
    | SavepointAsked
)


# --- effects
# -------------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BeginAttempt:
    """Start tasks from the newest published checkpoint, after making sure that the last attempt's are gone or fenced."""

    stamp: Stamp


@dataclass(frozen=True, slots=True)
class EndAttempt:
    """Stop this attempt's tasks."""

    stamp: Stamp


@dataclass(frozen=True, slots=True)
class TriggerEpoch:
    """Tell every source task. `aligned`: and no task may call it overdue, since somebody keeps this one."""

    stamp: Stamp
    epoch: int
    finish: bool
    aligned: bool = False


@dataclass(frozen=True, slots=True)
class Publish:
    """Make this the newest checkpoint, by create-if-absent; answer Published, PublishFailed or Superseded."""

    stamp: Stamp
    epoch: int
    acks: Mapping[str, TaskAck]
    pending: tuple[Pending, ...]
    finished: bool


@dataclass(frozen=True, slots=True)
class Commit:
    """Make this epoch visible in this sink; answer Committed, CommitDelayed or CommitFailed."""

    pending: Pending


@dataclass(frozen=True, slots=True)
class TellCompleted:
    """Tell every task that the epoch is published."""

    stamp: Stamp
    epoch: int


@dataclass(frozen=True, slots=True)
class TellAborted:
    """Tell every task that the epoch will not be published."""

    stamp: Stamp
    epoch: int
    reason: str


@dataclass(frozen=True, slots=True)
class TakeSavepoint:
    """Copy the newest checkpoint, which is committed, for the user who asked."""

    request: str
    epoch: int


class Outcome(enum.Enum):
    """How a job ended."""

    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"
    SUPERSEDED = "superseded"


@dataclass(frozen=True, slots=True)
class Halt:
    """The job is over, for this coordinator."""

    outcome: Outcome
    reason: str = ""


Effect = BeginAttempt | EndAttempt | TriggerEpoch | Publish | Commit | TellCompleted | TellAborted | TakeSavepoint | Halt


# --- the machine
# ---------------------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class InFlight:
    """The epoch under way."""

    epoch: int
    since: int
    finish: bool
    savepoints: tuple[str, ...]
    acks: dict[str, TaskAck] = field(default_factory=dict)
    publishing: Publish | None = None
    tries: int = 1


class Coordinator:
    """Decides when epochs begin, when they count, and when the job restarts or ends.

    Args:
        epoch: the newest published one (0: none).
        pending: what that checkpoint lists as not yet committed.
        finished: whether that checkpoint is a job's last. Then only its output is committed, and no attempt is begun.
        tasks: the names of all tasks of an attempt.
    """

    __slots__ = (
        "_asked",
        "_begin_at",
        "_commit_at",
        "_committing",
        "_declines",
        "_drained",
        "_failing",
        "_failure",
        "_flight",
        "_granted",
        "_halting",
        "_input_ended",
        "_lineage",
        "_next_epoch",
        "_next_trigger",
        "_restarts",
        "_settings",
        "_stop",
        "_tasks",
        "_term",
        "_tried",
        "attempt",
        "epoch",
        "pending",
        "phase",
        "trouble",
    )

    def __init__(
        self,
        *,
        lineage: str,
        term: int,
        tasks: Sequence[str],
        epoch: int = 0,
        pending: Sequence[Pending] = (),
        finished: bool = False,
        settings: Settings = Settings(),  # noqa: B008 - frozen
    ) -> None:
        assert tasks, "a job has tasks"
        self._lineage, self._term, self._tasks, self._settings = lineage, term, tuple(tasks), settings
        self.phase = Phase.RECOVERING
        self.attempt = 0
        self.epoch = epoch
        self.pending = list(pending)
        self._next_epoch = epoch + 1
        self._next_trigger = 0
        self._begin_at = 0
        self._flight: InFlight | None = None
        self._committing: Pending | None = None
        self._failure: AttemptFailed | None = None
        self._halting: Halt | None = Halt(Outcome.FINISHED) if finished else None
        self._stop: StopAsked | None = None
        self._asked: tuple[str, ...] = ()  # savepoints wished for
        self._granted: tuple[str, ...] = ()  # savepoints whose epoch is published, to be taken once it is committed
        self._commit_at = 0
        self._failing = Failing()  # the commit
        self._input_ended = False
        self._drained: Drained | None = None
        self._declines = 0
        self._restarts = 0
        self._tried = 0  # of the restarts, those after a failure with a limit of its own
        self.trouble = ""  # what went wrong last and has not been made good since; for people

    @property
    def stamp(self) -> Stamp:
        """Of the attempt under way."""
        return Stamp(self._lineage, self._term, self.attempt)

    @property
    def in_flight(self) -> int | None:
        """The epoch under way, if any."""
        return self._flight.epoch if self._flight else None

    def handle(self, now: int, event: Event) -> tuple[Effect, ...]:
        """What to do now that this happened."""
        if self.phase is Phase.HALTED:
            return ()  # whatever comes now comes too late
        effects = self._react(now, event)
        halted = any(isinstance(effect, Halt) for effect in effects)
        return effects if halted else effects + self._go_on(now, begin=isinstance(event, Ticked) and event.epoch)

    def wake_at(self) -> int | None:
        """When a tick would change something, at the latest."""
        if self.phase is Phase.HALTED or (self._flight is not None and self._flight.publishing is not None):
            return None
        times = [self._commit_at] if self.pending and self._committing is None else []
        if self.phase is Phase.WAITING and not self.pending:
            times.append(self._begin_at)
        if self.phase is Phase.RUNNING and self._flight is not None:
            times.append(self._flight.since + self._settings.timeout)
        elif self.phase is Phase.RUNNING and not self._settling:
            times.append(self._next_trigger)
        return min(times, default=None)

    # Reactions to single events.

    def _react(self, now: int, event: Event) -> tuple[Effect, ...]:
        match event:
            case Booted() | Ticked():
                return self._time_out(now)
            case Running(stamp):
                if self.stamp.accepts(stamp) and self.phase is Phase.STARTING:
                    self.phase = Phase.RUNNING
                    self._next_trigger = now + self._settings.interval
                return ()
            case Acked(stamp, epoch, task, ack):
                return self._acked(stamp, epoch, task, ack)
            case Declined(stamp, epoch, task, reason):
                if self._hears(stamp, epoch):
                    return self._abort(now, f"{task} declined: {reason}")
                return ()
            case InputEnded(stamp):
                self._input_ended = self._input_ended or self.stamp.accepts(stamp)
                return ()
            case Drained(stamp):
                self._drained = event if self.stamp.accepts(stamp) else self._drained
                return ()
            case Published(epoch):
                return self._published(now, epoch)
            case PublishFailed(epoch, error):
                return self._publish_failed(epoch, error)
            case Superseded():
                return self._halt(Halt(Outcome.SUPERSEDED, "another coordinator has taken over this job"))
            case Committed() | CommitDelayed() | CommitFailed():
                return self._commit_answered(now, event)
            case AttemptFailed(stamp):
                if self.stamp.accepts(stamp) and self._failure is None and self.phase in (Phase.STARTING, Phase.RUNNING):
                    self._failure = event
                return ()
            case StopAsked():
                self._stop = event
                return ()
            case SavepointAsked(request):
                self._asked += (request,)
                return ()

    def _hears(self, stamp: Stamp, epoch: int) -> bool:
        flight = self._flight
        return self.stamp.accepts(stamp) and flight is not None and flight.epoch == epoch and flight.publishing is None

    def _acked(self, stamp: Stamp, epoch: int, task: str, ack: TaskAck) -> tuple[Effect, ...]:
        if not self._hears(stamp, epoch):
            return ()
        flight = self._flight
        assert flight is not None
        assert task in self._tasks, f"an acknowledgement from {task!r}, which is no task of this job"
        flight.acks.setdefault(task, ack)
        if len(flight.acks) < len(self._tasks):
            return ()
        torn = torn_reads(flight.acks)
        if torn:
            self._failure = AttemptFailed(stamp, f"epoch {epoch} mixes attempts: {torn}")
            return ()
        fresh = tuple(
            Pending(epoch, sink, tuple(entry for t in self._tasks for entry in flight.acks[t].committables.get(sink, ())))
            for sink in sorted({sink for a in flight.acks.values() for sink, entries in a.committables.items() if entries})
        )
        finished = all(a.ended for a in flight.acks.values())
        assert not (finished and in_flight(flight.acks)), "where all has ended nothing is in flight"
        flight.publishing = Publish(stamp, epoch, dict(flight.acks), (*self.pending, *fresh), finished)
        return (flight.publishing,)

    def _published(self, now: int, epoch: int) -> tuple[Effect, ...]:
        flight = self._flight
        assert flight is not None, f"epoch {epoch} was published but is not in flight"
        assert flight.publishing is not None, f"epoch {epoch} was published unasked"
        assert flight.epoch == epoch, f"epoch {epoch} was published while {flight.epoch} is in flight"
        self._flight = None
        self.epoch = epoch
        self.pending = list(flight.publishing.pending)
        self._declines = self._restarts = self._tried = 0
        if not self._failing.tries:
            self.trouble = ""
        self._next_trigger = max(flight.since + self._settings.interval, now)
        if flight.publishing.finished:
            self._halting = Halt(Outcome.FINISHED)
        elif self._stops_with(epoch) and not in_flight(flight.publishing.acks):
            self._halting = Halt(Outcome.STOPPED)
        self._granted += flight.savepoints
        return (TellCompleted(flight.publishing.stamp, epoch),)

    def _stops_with(self, epoch: int) -> bool:
        """Whether this epoch is the last one, and windows stay open: any that is published after the wish to stop, if no rows are in flight
        in it; where the sources were to be drained, one that holds all they had."""
        if self._stop is not None:
            return not self._stop.finish
        return self._drained is not None and not self._drained.finish and epoch >= self._drained.epoch

    def _publish_failed(self, epoch: int, error: str) -> tuple[Effect, ...]:
        flight = self._flight
        assert flight is not None
        assert flight.publishing is not None
        # The slot may hold our record although storage said no. The same bytes put again either find themselves or find room.
        if flight.tries > self._settings.declines_max:
            return self._halt(Halt(Outcome.FAILED, f"epoch {epoch} cannot be published: {error}"))
        flight.tries += 1
        return (flight.publishing,)

    def _commit_answered(self, now: int, event: Committed | CommitDelayed | CommitFailed) -> tuple[Effect, ...]:
        commit = self._committing
        assert commit is not None, f"{event} answers no commit"
        assert (commit.epoch, commit.sink) == (event.epoch, event.sink), f"{event} answers {commit}"
        self._committing = None
        match event:
            case Committed():
                self.pending = [pending for pending in self.pending if pending != commit]
                if self._failing.tries:
                    self._failing, self.trouble = Failing(), ""
            case CommitDelayed(error=""):
                self._commit_at = now + self._settings.backoff
            case CommitDelayed():
                return self._commit_again(now, event)
            case CommitFailed(epoch, sink, error):
                return self._halt(Halt(Outcome.FAILED, f"sink {sink!r} refuses epoch {epoch}: {error}"))
        return ()

    def _commit_again(self, now: int, failed: CommitDelayed) -> tuple[Effect, ...]:
        """What may pass is asked for again after a growing pause, until its tries or our patience are used up."""
        self._failing = self._failing.again(now)
        spent_s, what = (now - self._failing.since) // 1_000_000, f"epoch {failed.epoch}"
        self.trouble = f"sink {failed.sink!r} has been trying {what} for {spent_s} s: {failed.error}"
        if self._failing.given_up(now, failed.tries, self._settings.commit_patience):
            tried = f"sink {failed.sink!r} could not commit {what}, tried {self._failing.tries} times in {spent_s} s"
            return self._halt(Halt(Outcome.FAILED, f"{tried}: {failed.error}"))
        self._commit_at = now + self._failing.pause(self._settings.backoff, self._settings.backoff_max)
        return ()

    def _time_out(self, now: int) -> tuple[Effect, ...]:
        flight = self._flight
        if flight and flight.publishing is None and now >= flight.since + self._settings.timeout:
            missing = sorted(set(self._tasks) - set(flight.acks))
            return self._abort(now, f"no acknowledgement from {', '.join(missing)} in time")
        return ()

    def _abort(self, now: int, reason: str) -> tuple[Effect, ...]:
        flight = self._flight
        assert flight is not None
        assert flight.publishing is None, "what is being published cannot be aborted"
        self._flight = None
        self._asked = flight.savepoints + self._asked
        self._declines += 1
        self._next_trigger = now + self._settings.interval
        self.trouble = f"epoch {flight.epoch} was aborted: {reason}"
        if self._declines > self._settings.declines_max:
            self._failure = AttemptFailed(self.stamp, f"{self._declines} epochs in a row failed; the last: {reason}")
        return (TellAborted(self.stamp, flight.epoch, reason),)

    # What can go on now, whatever the event was.

    def _go_on(self, now: int, *, begin: bool = False) -> tuple[Effect, ...]:
        if self._flight is not None and self._flight.publishing is not None:
            return ()  # its outcome decides everything else
        if self._failure is not None:
            return self._fail(now, self._failure)
        if self.pending and self._committing is None and now >= self._commit_at:
            self._committing = self.pending[0]
            return (Commit(self.pending[0]),)
        if not self.pending:
            ending = self._all_committed(now)
            if ending:
                return ending
        return self._trigger(now, begin=begin) if self.phase is Phase.RUNNING else ()

    @property
    def _settling(self) -> bool:
        """Whether something waits for all commits: the end, or a savepoint. No epoch is begun meanwhile."""
        return self._halting is not None or bool(self._granted)

    @property
    def _behind(self) -> bool:
        """Whether an epoch waits for the commit of an earlier one, which is under way or has failed."""
        slow = self.pending[0] if self._failing.tries else self._committing
        return slow is not None and self.pending[-1].epoch > slow.epoch

    def _all_committed(self, now: int) -> tuple[Effect, ...]:
        if self._granted:
            taken = tuple(TakeSavepoint(request, self.epoch) for request in self._granted)
            self._granted = ()
            return taken + self._go_on(now)
        if self._halting is not None:
            return self._halt(self._halting)
        if self.phase is Phase.RECOVERING or (self.phase is Phase.WAITING and now >= self._begin_at):
            if self._stop is not None and not self._stop.finish:
                return self._halt(Halt(Outcome.STOPPED))
            return self._begin()
        return ()

    def _begin(self) -> tuple[Effect, ...]:
        self.attempt += 1
        self.phase = Phase.STARTING
        self._next_epoch = self.epoch + 1
        self._input_ended = False
        self._drained = None
        self._declines = 0
        return (BeginAttempt(self.stamp),)

    def _fail(self, now: int, failure: AttemptFailed) -> tuple[Effect, ...]:
        if self._flight is not None:
            self._asked = self._flight.savepoints + self._asked
        self._failure, self._flight = None, None
        self._restarts += 1
        self._tried += failure.tries > 0
        self.trouble = failure.error
        if failure.fatal or (failure.tries and self._tried >= failure.tries):
            return self._halt(Halt(Outcome.FAILED, failure.error))
        if self._restarts > (most := self._settings.restarts_max):
            count = f" ({most} restarts without a new checkpoint)" if most else ""
            what, line_end, details = failure.error.partition("\n")
            return self._halt(Halt(Outcome.FAILED, what + count + line_end + details))
        self.phase = Phase.WAITING
        self._begin_at = now + min(self._settings.backoff * 2 ** (self._restarts - 1), self._settings.backoff_max)
        return (EndAttempt(self.stamp),)

    def _trigger(self, now: int, *, begin: bool) -> tuple[Effect, ...]:
        ending = self._stop or self._drained
        hurried = ending is not None or self._input_ended or bool(self._asked)
        due = begin and now >= self._next_trigger and not self._behind
        if self._flight is not None or self._settling or not (due or hurried):
            return ()
        finish = ending is not None and ending.finish
        aligned = ending is not None or bool(self._asked)  # the last one, and savepoints
        self._flight = InFlight(self._next_epoch, now, finish, self._asked)
        self._asked = ()
        self._next_epoch += 1
        return (TriggerEpoch(self.stamp, self._flight.epoch, finish, aligned),)

    def _halt(self, halt: Halt) -> tuple[Effect, ...]:
        ended = (EndAttempt(self.stamp),) if self.phase in (Phase.STARTING, Phase.RUNNING) else ()
        self.phase = Phase.HALTED
        return (*ended, halt)

    # For those who explore and check.

    def clone(self) -> Coordinator:
        """An independent copy."""
        copy = object.__new__(Coordinator)
        for name in Coordinator.__slots__:
            setattr(copy, name, getattr(self, name))
        copy.pending = list(self.pending)
        if self._flight is not None:
            copy._flight = replace(self._flight, acks=dict(self._flight.acks))
        return copy

    def key(self) -> tuple[object, ...]:
        """Equal for equal states."""
        flight = self._flight
        return (
            self.phase,
            self.attempt,
            self.epoch,
            tuple((p.epoch, p.sink, p.committables) for p in self.pending),
            flight
            and (
                flight.epoch,
                flight.since,
                flight.finish,
                flight.savepoints,
                tuple(sorted((t, repr(a)) for t, a in flight.acks.items())),
                flight.publishing is not None,
                flight.tries,
            ),
            self._committing and (self._committing.epoch, self._committing.sink),
            self._failure is not None,
            self._halting,
            self._stop,
            self._asked,
            self._granted,
            self._next_epoch,
            self._declines,
            self._restarts,
            self._tried,
            self._failing,
            self._input_ended,
            self._drained,
            (self._next_trigger, self._begin_at, self._commit_at),
        )
