"""The shell around `protocol.Coordinator`: one thread per job that carries out its effects, in every runner.

It owns the job directory (lock, log, state files), the committers, and the attempt under way. Everything that happens elsewhere
(acks from workers, the user's wish to stop) is posted to its inbox and handled here, one event after the other: nothing else
touches the coordinator.

What differs between runners is behind `Attempts`: how tasks are started, triggered and stopped.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from penstock.checkpoints.lock import Lock, hold
from penstock.checkpoints.manifest import Manifest
from penstock.checkpoints.repository import Repository, open_savepoint
from penstock.checkpoints.restore import Conclude, ForkFrom, Refuse, RestoreFacts, Resume, StartEmpty, decide_restore
from penstock.checkpoints.storage import OutcomeUnknown
from penstock.connectors.connector import Committer, Receiver, Source, SourceContext
from penstock.errors import Fix, HeldError, JobError, PenstockError, RestoreError, RunnerError, StorageError, SupersededError
from penstock.eventtime import time_text
from penstock.plan.guarantee import guarantees
from penstock.plan.logical import Read, Write
from penstock.plan.physical import PhysicalPlan
from penstock.protocol import coordinator as c
from penstock.protocol.messages import TIME_MIN, Aborted, Completed, Stamp
from penstock.runners.commits import Answer, Commits
from penstock.runners.cut import StartPoint, manifest_of, pipeline_facts, start_from, task_names
from penstock.runners.faults import reach
from penstock.runners.options import Options
from penstock.runners.world import Crash, World
from penstock.runtime.assemble import sink_context
from penstock.tracebacks import describe

log = logging.getLogger("penstock")


class Attempts(Protocol):
    """How a runner runs one attempt after another. Called in the conductor's thread."""

    def begin(self, stamp: Stamp, start: StartPoint) -> None:
        """Start the tasks; post `Running` once all are there, `AttemptFailed` if one is lost."""

    def end(self, stamp: Stamp) -> None:
        """Stop them; return when they can do no more harm."""

    def trigger(self, stamp: Stamp, epoch: int, finish: bool, aligned: bool) -> None:
        """Tell the source tasks; `aligned`: no task may call the epoch overdue."""

    def tell(self, stamp: Stamp, event: Completed | Aborted) -> None:
        """Tell all tasks."""

    def step(self, now: int) -> bool:
        """Work for a little while, if the work is done in this thread. False if there is nothing to do."""

    def wants_epoch(self) -> bool:
        """Whether a snapshot now would hold anything new."""

    def close(self) -> None:
        """The job is over."""


@dataclass(frozen=True, slots=True)
class Restore:
    """What to start from, by a pipeline that has changed: `pen.Restore("latest", rename={"old": "new"}, drop=["gone"])`.

    Args:
        path: the folder of a savepoint, or "latest" for the newest checkpoint of the job.
        rename: old name to new, of steps, of sources, and of states as "step.state".
        drop: what is to be forgotten, by the same names.
        start_over_time: event time begins anew; with it, a job that had finished can go on.
    """

    path: str | Path
    rename: dict[str, str] | None = None
    drop: tuple[str, ...] | list[str] = ()
    start_over_time: bool = False


@dataclass(frozen=True, slots=True)
class Status:
    """How a job is doing. `state`: starting, running, restarting, finished, stopped, failed, cancelled or superseded."""

    pipeline: str
    runner: str
    state: str
    epoch: int
    attempt: int
    term: int
    lineage: str
    restarts: int
    watermark: str
    guarantee: tuple[str, ...]
    error: str | None
    epoch_age_s: float


STORAGE = Fix("start.storage", 'Write: storage="checkpoints", a folder that is made if it is not there')

STATES = {
    c.Phase.RECOVERING: "starting",
    c.Phase.STARTING: "starting",
    c.Phase.RUNNING: "running",
    c.Phase.WAITING: "restarting",
    c.Phase.HALTED: "halting",
}


class Conductor:
    """Runs one job from claim to halt. `post` and `call` may be used from any thread.

    Args:
        interval: From the beginning of an epoch to the next, at least, in µs; left out, what the options say. The attempts may say no
        for longer (`wants_epoch`).
    """

    def __init__(
        self,
        plan: PhysicalPlan,
        options: Options,
        *,
        runner: str,
        parallelism: int,
        restore: Any,
        make_attempts: Callable[[Conductor], Attempts],
        world: World = World(),  # noqa: B008 - frozen
        epoch_timeout: int = 60_000_000,
        interval: int | None = None,
    ) -> None:
        self.plan, self.options, self.runner, self.parallelism = plan, options, runner, parallelism
        self.world, self.clock = world, world.clock
        self.job_dir, self._temporary = job_directory(plan.name, options.storage)
        self.start = StartPoint()
        self.lineage = ""
        self.parent: tuple[str, int] | None = None
        self.outcome: c.Halt | None = None
        self.cancelled = False
        self.error: BaseException | None = None
        self.manifest: Manifest | None = None
        self.epochs_published = 0
        self.replayed = 0
        self.last_publish_us = 0
        self.times: dict[str, int] = {}  # watermarks of tasks, as last heard
        self.counters: dict[str, dict[str, int]] = {}  # task -> counters, as last heard
        self.begun = threading.Event()  # storage is claimed, and what to start from decided; or it never will be (`booted`)
        self.booted = False
        self.halted = threading.Event()
        self._restore = restore
        self._began = 0  # the epoch that the job began from
        self._epoch_timeout = epoch_timeout
        self._interval = options.snapshot_every if interval is None else interval
        self._make_attempts = make_attempts
        self._inbox: queue.SimpleQueue[c.Event | Callable[[], None]] = queue.SimpleQueue()
        self._core: c.Coordinator | None = None
        self._committers: dict[str, Committer] = {}
        self._receivers: list[Receiver] = []
        self._savepoints: dict[str, tuple[Path, queue.SimpleQueue[Any]]] = {}
        self._reboot = False
        self._refusal: Refuse | None = None  # why a finished job cannot go on, said once its last output is committed
        self._shown = False  # whether a sink showed something it had not shown before
        self._commits: Commits | None = None
        self._lock: Lock | None = None
        self._repository: Repository | None = None
        self._attempts: Attempts | None = None

    # From any thread.

    def post(self, event: c.Event) -> None:
        """Report something to the coordinator."""
        self._inbox.put(event)

    def call(self, action: Callable[[], None]) -> None:
        """Do something in the conductor's thread."""
        self._inbox.put(action)

    def wake(self) -> None:
        """Have a look at the tasks now."""
        self._inbox.put(lambda: None)

    def cancel(self) -> None:
        """Stop at once; whatever was published is committed at the next start."""
        self.cancelled = True
        self._inbox.put(lambda: None)

    def savepoint(self, path: str | Path) -> queue.SimpleQueue[Any]:
        """Ask for a savepoint; the answer is the path, or an exception."""
        request, answer = self.world.fresh_id(), queue.SimpleQueue()  # type: ignore[var-annotated]
        self._savepoints[request] = (Path(path), answer)
        self.post(c.SavepointAsked(request))
        if self.halted.is_set():
            self._refuse_savepoints()
        return answer

    def status(self) -> Status:
        """How the job is doing."""
        core = self._core
        state = "starting"
        if self.halted.is_set():
            state = self.outcome.outcome.value if self.outcome else "failed" if self.error else "cancelled"
        elif core is not None:
            state = STATES[core.phase]
        watermark = min(self.times.values(), default=TIME_MIN)
        return Status(
            pipeline=self.plan.name,
            runner=self.runner,
            state=state,
            epoch=core.epoch if core else 0,
            attempt=core.attempt if core else 0,
            term=core.stamp.term if core else 0,
            lineage=self.lineage,
            restarts=max(0, core.attempt - 1) if core else 0,
            watermark=time_text(watermark),
            guarantee=tuple(guarantees(self.plan, self.runner)),
            error=describe(self.error) if self.error else (self.outcome.reason or None) if self.outcome else None,
            epoch_age_s=round(max(0, self.clock() - self.last_publish_us) / 1e6, 3) if self.last_publish_us else -1.0,
        )

    # The conductor's thread.

    def run(self) -> None:
        """From claim to halt; never raises, see `error`."""
        try:
            self._lock = hold(self.job_dir, self._holder())
            while True:
                self._reboot = False
                self._boot()
                if self._refusal is None:  # else it is still open whether there is anything to do
                    self.booted = True
                    self.begun.set()
                self._conduct()
                self._end_commits()
                if not self._reboot:
                    break
            concluded = self.outcome is None or self.outcome.outcome is c.Outcome.FINISHED
            if self._refusal is not None and concluded and not self._shown and not self.cancelled:
                self.outcome = None
                raise self._refusal.error()  # all had been committed: there was nothing to conclude
        except Crash as crash:
            self.error = crash
        except BaseException as error:
            self.error = error
            if not isinstance(error, PenstockError):
                log.exception("the job %s failed", self.plan.name)
        finally:
            try:
                self._close()
            except Crash as crash:
                self.error = crash
            except BaseException as error:
                if self.outcome is None or self.outcome.outcome not in (c.Outcome.FAILED, c.Outcome.SUPERSEDED):
                    self.error = self.error or error  # why a job failed says more than what went wrong then
                log.exception("the job %s could not be closed", self.plan.name)
            finally:  # whatever happens: somebody waits for this
                if self._lock is not None:
                    self._lock.release()
                self.halted.set()
                self.begun.set()
            self._refuse_savepoints()

    def _holder(self) -> dict[str, Any]:
        started = time.strftime("%Y-%m-%d %H:%M:%S")
        return {"pid": os.getpid(), "host": socket.gethostname(), "started": started, "runner": self.runner}

    def _boot(self) -> None:
        """Claim a term, decide what to start from, settle what is pending."""
        store = self.world.open_store(self.job_dir)
        store.probe()
        self._repository = Repository(store, self.plan.name, keep=self.options.keep)
        claim = self._repository.claim(self._holder())
        pending, epoch = self._decide(self._repository)
        parent = self.parent[0] if self.parent else None
        self._committers = {
            op.name: op.node.sink.committer(sink_context(op.node, self.lineage, f"{claim.term}", self.job_dir, parent=parent))
            for op in self.plan.writes
            if isinstance(op.node, Write)
        }
        who = {op.name: op.who for op in self.plan.writes}
        self._commits = Commits(self._committers, self._committed, beside=self.world.pause is None, who=who)
        self._check_sinks(epoch)
        self._sweep_sinks(pending)
        self._start_receivers()
        settings = c.Settings(
            interval=self._interval,
            timeout=self._epoch_timeout,
            restarts_max=self.options.restarts,
            backoff=self.options.backoff,
        )
        self._core = c.Coordinator(
            lineage=self.lineage,
            term=claim.term,
            tasks=task_names(self.plan, self.parallelism),
            epoch=epoch,
            pending=pending,
            finished=self._refusal is not None,
            settings=settings,
        )
        if self._attempts is None:
            self._attempts = self._make_attempts(self)

    def _decide(self, repository: Repository) -> tuple[list[c.Pending], int]:
        options = self._restore if isinstance(self._restore, Restore) else Restore(self._restore)
        newest = repository.newest()
        if self._published_since(newest):
            options = Restore("latest")  # a reboot goes on from what was published since
        request, savepoint, source = str(options.path), None, None
        if request not in ("latest", "none"):
            request = "savepoint"
            savepoint, source = open_savepoint(options.path)
        decision = decide_restore(
            RestoreFacts(
                pipeline=pipeline_facts(self.plan),
                newest=newest,
                new_lineage=self.world.fresh_id(),
                request=request,
                savepoint=savepoint,
                path=str(options.path),
                rename=options.rename or {},
                drop=tuple(options.drop),
                start_over_time=options.start_over_time,
            )
        )
        match decision:
            case Refuse():
                raise decision.error()
            case Resume(manifest):
                self._began = manifest.epoch
                self.lineage, self.parent, self.start, self.manifest = (
                    manifest.lineage,
                    manifest.parent,
                    start_from(manifest),
                    manifest,
                )
                return pending_of(manifest), manifest.epoch
            case Conclude(manifest, refusal):
                self.lineage, self.parent, self.manifest, self._refusal = manifest.lineage, manifest.parent, manifest, refusal
                return pending_of(manifest), manifest.epoch
            case StartEmpty(lineage, settle):
                self._settle(settle)
                self._began, self.lineage, self.start = 0, lineage, StartPoint()
                return [], 0
            case ForkFrom(manifest, lineage, parent, settle):
                assert source is not None
                self._settle(settle)
                adopted = repository.adopt(manifest, source, 0)
                self._began = adopted.epoch
                self.lineage, self.parent, self.start = lineage, parent, start_from(adopted)
                return [], adopted.epoch

    def _published_since(self, newest: Manifest | None) -> bool:
        """Whether a checkpoint is newer than what this job began from."""
        return newest is not None and newest.lineage == self.lineage and newest.epoch > self._began

    def _settle(self, manifest: Manifest | None) -> None:
        """Commit what another lineage published and did not confirm: it was promised."""
        for pending in pending_of(manifest) if manifest else ():
            op = next(op for op in self.plan.writes if op.name == pending.sink)
            assert isinstance(op.node, Write)
            assert manifest is not None
            committer = op.node.sink.committer(sink_context(op.node, manifest.lineage, "settle", self.job_dir))
            committer.commit(pending.epoch, pending.committables, 0)
            committer.close()

    def _check_sinks(self, epoch: int) -> None:
        """Refuse to write beside another history of outputs."""
        for name, committer in self._committers.items():
            found = committer.committed()
            if found is None or found[0] == self.lineage or (self.parent and found[0] == self.parent[0] and found[1] <= epoch):
                continue
            raise RestoreError(
                f"sink {name!r} holds epoch {found[1]} of another run of this pipeline (lineage {found[0]}),"
                f" and this one would start at epoch {epoch + 1}.\n"
                "  Go on with the storage of that run, or write to another place"
            )

    def _sweep_sinks(self, pending: Sequence[c.Pending]) -> None:
        """Remove what tasks of earlier attempts prepared and nobody published. While no task runs."""
        for name, committer in self._committers.items():
            committer.sweep([entry for p in pending if p.sink == name for entry in p.committables])

    def _start_receivers(self) -> None:
        if self._receivers:
            return
        for op in self.plan.reads:
            assert isinstance(op.node, Read)
            receiver = op.node.source.receiver(SourceContext(op.name, self.job_dir, op.columns))
            if receiver is not None:
                receiver.start()
                self._receivers.append(receiver)

    def _conduct(self) -> None:
        core, attempts = self._core, self._attempts
        assert core is not None
        assert attempts is not None
        self._handle(c.Booted())
        while core.phase is not c.Phase.HALTED:
            if self.cancelled:
                attempts.end(core.stamp)
                return
            for receiver in self._receivers:
                receiver.check()
            busy = self._drain()
            busy |= attempts.step(self.clock())
            wake_at = core.wake_at()
            now = self.clock()
            if wake_at is not None and now >= wake_at:
                wanted = core.phase is c.Phase.RUNNING and core.in_flight is None and attempts.wants_epoch()
                self._handle(c.Ticked(wanted))
                wake_at = core.wake_at()
                busy |= wake_at is None or wake_at > now
            if not busy:
                # Due, and nothing came of it: no epoch is wanted. A look now and then is enough; news wake us at once.
                self._wait(2_000 if wake_at is None else min(wake_at - now, 20_000) if wake_at > now else 20_000)

    def _drain(self) -> bool:
        busy = False
        while True:
            try:
                item = self._inbox.get_nowait()
            except queue.Empty:
                return busy
            busy = True
            self._take(item)

    def _wait(self, micros: int) -> None:
        if self.world.pause is not None:
            self.world.pause(micros)
            return
        with contextlib.suppress(queue.Empty):
            self._take(self._inbox.get(timeout=micros / 1e6))

    def _take(self, item: c.Event | Callable[[], None]) -> None:
        if callable(item):
            item()
            return
        if isinstance(item, c.Acked):
            self.counters[item.task] = dict(item.ack.counters)
        if isinstance(item, c.AttemptFailed):
            log.warning("attempt %d of %s failed: %s", item.stamp.attempt, self.plan.name, item.error)
        self._handle(item)

    def _handle(self, event: c.Event) -> None:
        """Let the coordinator react, and carry out what it asks for; answers are handled before anything else."""
        assert self._core is not None
        events = [event]
        while events:
            for effect in self._core.handle(self.clock(), events.pop(0)):
                answer = self._carry_out(effect)
                if answer is not None:
                    events.append(answer)

    def _carry_out(self, effect: c.Effect) -> c.Event | None:
        attempts = self._attempts
        assert attempts is not None
        match effect:
            case c.BeginAttempt(stamp):
                return self._begin(stamp)
            case c.EndAttempt(stamp):
                attempts.end(stamp)
            case c.TriggerEpoch(stamp, epoch, finish, aligned):
                attempts.trigger(stamp, epoch, finish, aligned)
            case c.Publish():
                return self._publish(effect)
            case c.Commit(pending):
                assert self._commits is not None
                assert self._core is not None
                return self._commits.begin(pending, self._core.attempt)
            case c.TellCompleted(stamp, epoch):
                attempts.tell(stamp, Completed(epoch))
                self._collect(epoch)
            case c.TellAborted(stamp, epoch, reason):
                log.warning("epoch %d of %s was aborted: %s", epoch, self.plan.name, reason)
                attempts.tell(stamp, Aborted(epoch))
            case c.TakeSavepoint(request):
                self._take_savepoint(request)
            case c.Halt():
                self.outcome = None if self._reboot else effect
        return None

    def _begin(self, stamp: Stamp) -> c.Event | None:
        assert self._repository is not None
        assert self._attempts is not None
        try:
            # A coordinator that slept while another took over finds its files gone: more attempts would not help.
            self._repository.log.check_held()
        except SupersededError:
            return c.Superseded()
        self._repository.sweep((stamp.term, stamp.attempt))
        if self.manifest is not None:
            self.start = start_from(self.manifest)
        self.times, self.counters = {}, {}
        try:
            self._attempts.begin(stamp, self.start)
        except (StorageError, RestoreError, RunnerError) as error:
            return c.AttemptFailed(stamp, str(error), fatal=True)
        return None

    def _publish(self, publish: c.Publish) -> c.Event:
        assert self._repository is not None
        reach("publish.before", publish.epoch)
        manifest = manifest_of(
            publish,
            plan=self.plan,
            parallelism=self.parallelism,
            start=self.start,
            parent=self.parent,
            runner=self.runner,
            now=self.clock(),
        )
        try:
            self._repository.publish(manifest)
        except SupersededError:
            return c.Superseded()
        except OutcomeUnknown as error:
            # Whether it is there can only be told by looking again, as a successor would: with a new term.
            log.warning("%s; starting over with a new term", error)
            self._reboot = True
            return c.Superseded()
        except StorageError as error:
            return c.PublishFailed(publish.epoch, str(error))
        reach("publish.after", publish.epoch)
        self.manifest = manifest
        self.epochs_published += 1
        self.last_publish_us = self.clock()
        return c.Published(publish.epoch)

    def _collect(self, epoch: int) -> None:
        """Delete what the new checkpoint made superfluous. Not being able to is no reason to stop."""
        assert self._repository is not None
        reach("collect.before", epoch)
        try:
            self._repository.collect()
            for op in self.plan.reads:
                assert isinstance(op.node, Read)
                for _, entry in start_from(self.manifest).splits.get(op.name, {}).items():
                    op.node.source.collect(entry.position, SourceContext(op.name, self.job_dir, op.columns))
        except StorageError as error:
            log.warning("old checkpoints of %s could not be deleted: %s", self.plan.name, error)

    def _committed(self, commits: Commits, answer: Answer) -> None:
        """From the thread of commits."""

        def take() -> None:
            if commits is not self._commits:
                return  # of the term before: what it committed is looked up again
            if isinstance(answer, BaseException):
                raise answer
            self._handle(answer)

        self.call(take)

    def _end_commits(self) -> None:
        if self._commits is not None:
            self._commits.finish()
            self._shown |= self._commits.shown

    def _take_savepoint(self, request: str) -> None:
        assert self._repository is not None
        assert self.manifest is not None, "a savepoint follows a published epoch"
        path, answer = self._savepoints.pop(request)
        try:
            self._repository.write_savepoint(replace(self.manifest, pending=()), self.world.open_store(path))
            answer.put(path)
        except PenstockError as error:
            answer.put(error)

    def _refuse_savepoints(self) -> None:
        for _, answer in self._savepoints.values():
            answer.put(JobError(f"the job {self.plan.name!r} ended before the savepoint was taken"))
        self._savepoints.clear()

    def _close(self) -> None:
        if isinstance(self.error, Crash):
            return
        self._end_commits()
        for receiver in self._receivers:
            with contextlib.suppress(Exception):
                receiver.stop()
        hidden = self._close_committers()
        if self._attempts is not None:
            self._attempts.close()
        if self._repository is not None and self.error is None and hidden is None and not self.cancelled:
            with contextlib.suppress(PenstockError, OSError):
                self._repository.sweep_all()
                if self.outcome is not None and self.outcome.outcome in (c.Outcome.FINISHED, c.Outcome.STOPPED):
                    # Only right after a publish of our own: names of staged rows do not tell ours from a successor's.
                    self._sweep_sinks(self._core.pending if self._core else ())
                    if self._core is not None and not self._core.pending:
                        self._repository.mark_settled()
        if self._temporary and not isinstance(self.error, HeldError):
            shutil.rmtree(self.job_dir, ignore_errors=True)
        if hidden is not None:
            raise hidden

    def _close_committers(self) -> PenstockError | OSError | None:
        """Let sinks show what they have gathered; why one of them could not."""
        hidden: PenstockError | OSError | None = None
        for name, committer in self._committers.items():
            try:
                committer.close()
            except (PenstockError, OSError) as error:
                hidden = hidden or error
            except Exception as error:
                log.warning("sink %s could not be closed: %s: %s", name, type(error).__name__, error)
        return hidden


def pending_of(manifest: Manifest) -> list[c.Pending]:
    """What a checkpoint lists as not yet committed."""
    return [c.Pending(p.epoch, p.sink, tuple(p.committables)) for p in manifest.pending]


def job_directory(name: str, storage: str | None) -> tuple[Path, bool]:
    """The job's own folder; without storage one that is removed at the end."""
    if storage is None:
        return Path(tempfile.mkdtemp(prefix=f"penstock-{name}-")), True
    path = Path(storage.removeprefix("file://")).absolute() / name
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise StorageError(f"storage={storage!r} is no folder that can be written to: {error}", fix=STORAGE) from error
    return path, False


def source_of(plan: PhysicalPlan, name: str) -> Source:
    """A source by its name in the plan."""
    node = next(op.node for op in plan.reads if op.name == name)
    assert isinstance(node, Read)
    return node.source
