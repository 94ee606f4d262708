"""The shell around `protocol.Coordinator`: one thread per job that carries out its effects, in every runner.

It owns the job directory (lock, log, state files), the committers, and the attempt under way. Everything that happens elsewhere
(acks from workers, the user's wish to stop) is posted to its inbox and handled here, one event after the other: nothing else
touches the coordinator.

What differs between runners is behind `Attempts`: how tasks are started, triggered and stopped.

A job always ends with an outcome. What is raised in this thread ends it; what other threads (of commits, of an attempt) meet comes in
as an event, and a thread that ended without a word is missed here (`Commits.check`, `Attempts.step`). What becomes of an error is
decided by `passing`.
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
from dataclasses import replace
from pathlib import Path
from typing import Any

from penstock.checkpoints.lock import Lock, hold
from penstock.checkpoints.manifest import Manifest
from penstock.checkpoints.repository import Repository, open_savepoint
from penstock.checkpoints.restore import Conclude, ForkFrom, Refuse, RestoreFacts, Resume, StartEmpty, decide_restore
from penstock.checkpoints.storage import folder_of
from penstock.connectors.connector import Committer, Receiver, Source, SourceContext
from penstock.errors import Fix, HeldError, JobError, PenstockError, RestoreError, RunnerError, StorageError, SupersededError
from penstock.eventtime import time_text
from penstock.passing import Fate, fate_of, pause_us, text_of
from penstock.plan.guarantee import guarantees
from penstock.plan.logical import Read, Write
from penstock.plan.physical import PhysicalPlan
from penstock.protocol import coordinator as c
from penstock.protocol.messages import TIME_MIN, Aborted, Completed, Stamp
from penstock.runners.attempts import Attempts
from penstock.runners.collecting import Collecting
from penstock.runners.commits import Answer, Commits
from penstock.runners.cut import StartPoint, manifest_of, pipeline_facts, start_from, stored_columns, task_names
from penstock.runners.faults import reach
from penstock.runners.options import Options
from penstock.runners.publishing import Publishing
from penstock.runners.restoring import Restore, asked
from penstock.runners.settling import Ancestors, ancestors_of, check_sinks, pending_of, settle
from penstock.runners.status import STATES, Status, incomplete
from penstock.runners.wishes import Failures, Wishes
from penstock.runners.world import Crash, World
from penstock.runtime.assemble import sink_context
from penstock.tracebacks import Within, describe

log = logging.getLogger("penstock")

NAP_MIN_US = 100
STORAGE = Fix("start.storage", 'Write: storage="checkpoints", a folder that is made if it is not there')


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
        self.ancestors: Ancestors = ()
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
        self._restore = asked(restore)
        self._began = 0  # the epoch that the job began from
        self._epoch_timeout = epoch_timeout
        self._interval = options.snapshot_every if interval is None else interval
        self._make_attempts = make_attempts
        self._inbox: queue.SimpleQueue[c.Event | Callable[[], None]] = queue.SimpleQueue()
        self._core: c.Coordinator | None = None
        self._committers: dict[str, Committer] = {}
        self._within: dict[str, Within] = {}  # who is blamed for what a sink raises
        self._receivers: list[tuple[Within, Receiver]] = []
        self._wishes = Wishes()
        self._reboot = False
        self._refusal: Refuse | None = None  # why a finished job cannot go on, said once its last output is committed
        self._shown = False  # whether a sink showed something it had not shown before
        self._commits: Commits | None = None
        self._collecting = Collecting(beside=world.pause is None)
        self._publishing: Publishing | None = None
        self._failures = Failures()
        self._obstacle = ""  # what is in the way of a start
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
        request = self.world.fresh_id()
        answer = self._wishes.add(request, Path(path))
        self.call(lambda: self._wish(request))
        if self.halted.is_set():
            self._refuse_savepoints()
        return answer

    @property
    def trouble(self) -> str:
        """What went wrong last and was not made good since; empty if all is well."""
        publishing = self._publishing.trouble if self._publishing is not None else ""
        return self._obstacle or publishing or (self._core.trouble if self._core is not None else "")

    def status(self) -> Status:
        """How the job is doing. `error` is why it ended, or what went wrong last, as long as no new checkpoint made it good."""
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
            error=self._said(),
            epoch_age_s=round(max(0, self.clock() - self.last_publish_us) / 1e6, 3) if self.last_publish_us else -1.0,
            incomplete=incomplete((self.start if self.manifest is None else self.manifest).counted_from),
        )

    def _said(self) -> str | None:
        if self.error is not None:
            return describe(self.error)
        return (self.outcome.reason if self.outcome is not None else "" if self.halted.is_set() else self.trouble) or None

    # The conductor's thread.

    def run(self) -> None:
        """From claim to halt; never raises, see `error`."""
        try:
            self._lock = hold(self.job_dir, self._holder())
            while True:
                again, self._reboot = self._reboot, False
                if again:
                    self._boot_again()
                else:
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
                try:
                    if self._lock is not None:
                        self._lock.release()
                finally:
                    self.halted.set()
                    self.begun.set()
                    self._refuse_savepoints()

    def _holder(self) -> dict[str, Any]:
        started = time.strftime("%Y-%m-%d %H:%M:%S")
        return {"pid": os.getpid(), "host": socket.gethostname(), "started": started, "runner": self.runner}

    def _boot_again(self) -> None:
        """Start over with a new term, in the middle of a job: what may pass is tried again, as often as attempts are."""
        tries = 0
        while True:
            try:
                self._boot()
                return
            except Exception as error:
                tries += 1
                if fate_of(error) is not Fate.PASSING or tries > self.options.restarts:
                    raise
                self._obstacle = f"a new term cannot begin: {text_of(error)}"
                log.warning("%s: %s", self.plan.name, self._obstacle)
            if not self._pause(pause_us(tries, self.options.backoff) / 1e6):
                return  # cancelled: nothing is conducted any more

    def _pause(self, seconds: float) -> bool:
        """Wait while nobody conducts; what comes in meanwhile stays in the inbox. False once the job is cancelled."""
        until = time.monotonic() + seconds
        while not self.cancelled and self.world.pause is None and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, 0.05))
        if self.world.pause is not None:
            self.world.pause(int(seconds * 1e6))
        return not self.cancelled

    def _boot(self) -> None:
        """Claim a term, decide what to start from, settle what is pending."""
        store = self.world.open_store(self.job_dir)
        store.probe()
        self._repository = Repository(store, self.plan.name, keep=self.options.keep)
        claim = self._repository.claim(self._holder())
        pending, epoch = self._decide(self._repository)
        parent = self.ancestors[0][0] if self.ancestors else None
        who = {op.name: op.who for op in self.plan.writes}
        self._within = {name: Within(text) for name, text in who.items()}
        self._committers = {}
        for op in self.plan.writes:
            assert isinstance(op.node, Write)
            context = sink_context(op.node, self.lineage, f"{claim.term}", self.job_dir, parent=parent)
            with self._within[op.name]:
                self._committers[op.name] = op.node.sink.committer(context)
        self._commits = Commits(self._committers, self._committed, beside=self.world.pause is None, who=who)
        check_sinks(self._committers, self._within, self.lineage, self.ancestors, epoch)
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
        self._publishing = Publishing(self._repository, self.clock, self.options.backoff)
        self._obstacle = ""

    def _decide(self, repository: Repository) -> tuple[list[c.Pending], int]:
        options = self._restore
        newest = repository.newest()
        if self._published_since(newest):
            options = Restore("latest")  # a reboot goes on from what was published since
        request, savepoint, source = str(options.path), None, None
        if request not in ("latest", "none"):
            request = "savepoint"
            savepoint, source = open_savepoint(options.path)
        facts, chosen = pipeline_facts(self.plan), newest if savepoint is None else savepoint
        changed = bool(options.rename or options.drop)
        decision = decide_restore(
            RestoreFacts(
                pipeline=facts,
                newest=newest,
                new_lineage=self.world.fresh_id(),
                request=request,
                savepoint=savepoint,
                path=str(options.path),
                rename=options.rename or {},
                drop=tuple(options.drop),
                start_over_time=options.start_over_time,
                start_empty=tuple(options.start_empty),
                stored=stored_columns(facts, chosen, source or repository.store, changed=changed),
            )
        )
        match decision:
            case Refuse():
                raise decision.error()
            case Resume(manifest, conversions, done):
                if done:
                    log.info("%s: was done before and is left out: %s", self.plan.name, "; ".join(each.text() for each in done))
                self._began = manifest.epoch
                self.lineage, self.ancestors = manifest.lineage, ancestors_of(manifest)
                self.start, self.manifest = start_from(manifest, conversions), manifest
                return pending_of(manifest), manifest.epoch
            case Conclude(manifest, refusal):
                self.lineage, self.ancestors = manifest.lineage, ancestors_of(manifest)
                self.manifest, self._refusal = manifest, refusal
                return pending_of(manifest), manifest.epoch
            case StartEmpty(lineage, unsettled, applied):
                self._settle(unsettled)
                self._began, self.lineage, self.start = 0, lineage, StartPoint(applied=applied)
                return [], 0
            case ForkFrom(manifest, lineage, parent, unsettled, conversions):
                assert source is not None
                self._settle(unsettled)
                adopted = repository.adopt(manifest, source, 0)
                self._began = adopted.epoch
                self.lineage, self.ancestors, self.start = (
                    lineage,
                    (parent, *ancestors_of(manifest)),
                    start_from(adopted, conversions),
                )
                return [], adopted.epoch

    def _published_since(self, newest: Manifest | None) -> bool:
        """Whether a checkpoint is newer than what this job began from."""
        return newest is not None and newest.lineage == self.lineage and newest.epoch > self._began

    def _settle(self, manifest: Manifest | None) -> None:
        """Commit what another lineage published and did not confirm: it was promised."""
        if manifest is not None:
            settle(manifest, self.plan, self.job_dir, pause=self._pause, trouble=self._say_obstacle)
            assert self._repository is not None
            with contextlib.suppress(PenstockError, OSError):
                self._repository.mark_settled()  # its sinks may go now, even if this start is refused after all

    def _say_obstacle(self, text: str) -> None:
        self._obstacle = text

    def _sweep_sinks(self, pending: Sequence[c.Pending]) -> None:
        """Remove what tasks of earlier attempts prepared and nobody published. While no task runs."""
        for name, committer in self._committers.items():
            with self._within[name]:
                committer.sweep([entry for p in pending if p.sink == name for entry in p.committables])

    def _start_receivers(self) -> None:
        if self._receivers:
            return
        for op in self.plan.reads:
            assert isinstance(op.node, Read)
            with (within := Within(op.who)):
                receiver = op.node.source.receiver(SourceContext(op.name, self.job_dir, op.columns))
                if receiver is not None:
                    receiver.start()
                    self._receivers.append((within, receiver))

    def _conduct(self) -> None:
        core, attempts = self._core, self._attempts
        if self.cancelled:
            return
        assert core is not None
        assert attempts is not None
        self._handle(c.Booted())
        while core.phase is not c.Phase.HALTED:
            if self.cancelled:
                attempts.end(core.stamp)
                return
            for within, receiver in self._receivers:
                with within:
                    receiver.check()
            if self._commits is not None:
                self._commits.check()
            busy = self._drain()
            busy |= attempts.step(self.clock())
            busy |= self._publish_again()
            waiting = self._publishing is not None and self._publishing.waiting
            wake_at = self._publishing.again_at if self._publishing is not None and waiting else core.wake_at()
            now = self.clock()
            if wake_at is not None and now >= wake_at and not waiting:
                wanted = core.phase is c.Phase.RUNNING and core.in_flight is None and attempts.wants_epoch()
                self._handle(c.Ticked(wanted))
                wake_at = core.wake_at()
                busy |= wake_at is None or wake_at > now
            if not busy:
                # Due, and nothing came of it: no epoch is wanted. A look now and then is enough; news wake us at once.
                wait = 2_000 if wake_at is None else min(wake_at - now, 20_000) if wake_at > now else 20_000
                due_at = attempts.due_at(now)
                self._wait(wait if due_at is None else min(wait, max(due_at - now, NAP_MIN_US)))

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
            how = "in the same way" if item.error == self._failures.last else item.error
            log.warning("attempt %d of %s failed: %s", item.stamp.attempt, self.plan.name, how)
        self._handle(item)

    def _wish(self, request: str) -> None:
        """Somebody wants a savepoint. Nobody is kept waiting for a job that fails again and again."""
        if self._failures.hopeless:
            self._wishes.refuse(self._failures.refusal(self.plan.name))
        else:
            self._handle(c.SavepointAsked(request))

    def _attempt_ended(self) -> None:
        """If this attempt failed just as the last did, those who wait for savepoints hear why there is none."""
        if self._core is not None and self._core.phase is c.Phase.WAITING:
            self._failures.note(self._core.trouble)
            if self._failures.hopeless:
                self._wishes.refuse(self._failures.refusal(self.plan.name))

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
                self._attempt_ended()
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
            self._repository.sweep((stamp.term, stamp.attempt))
            if self.manifest is not None and self.manifest.epoch > self.start.epoch:
                self.start = start_from(self.manifest)
            self.times, self.counters = {}, {}
            self._attempts.begin(stamp, self.start)
        except SupersededError:
            return c.Superseded()
        except Exception as error:
            fate = fate_of(error)
            if fate is Fate.FINAL and not isinstance(error, StorageError | RestoreError | RunnerError):
                raise  # a mistake: its traceback says more than its text
            reason = describe(error)
            log.warning("attempt %d of %s could not begin: %s", stamp.attempt, self.plan.name, reason)
            return c.AttemptFailed(stamp, reason, fate is Fate.FINAL, fate.tries)
        return None

    def _publish(self, publish: c.Publish) -> c.Event | None:
        assert self._publishing is not None
        reach("publish.before", publish.epoch)

        def make() -> Manifest:
            return manifest_of(
                publish,
                plan=self.plan,
                parallelism=self.parallelism,
                start=self.start,
                ancestors=self.ancestors,
                runner=self.runner,
                now=self.clock(),
            )

        return self._published(self._publishing.put(publish, make))

    def _publish_again(self) -> bool:
        """Put a checkpoint again that storage could not take, if it is time."""
        assert self._publishing is not None
        answer = self._published(self._publishing.again())
        if answer is not None:
            self._handle(answer)
        return answer is not None

    def _published(self, answer: c.Event | None) -> c.Event | None:
        """What a look at the log has answered."""
        assert self._publishing is not None
        self._reboot |= self._publishing.unknown  # as a successor would: with a new term
        if isinstance(answer, c.Published):
            reach("publish.after", answer.epoch)
            self._failures.forget()
            self.manifest = self._publishing.manifest
            self.epochs_published += 1
            self.last_publish_us = self.clock()
        return answer

    def _collect(self, epoch: int) -> None:
        """Delete what the new checkpoint made superfluous. Not being able to is no reason to stop."""
        assert self._repository is not None
        reach("collect.before", epoch)
        try:
            self._repository.collect()
        except (StorageError, OSError) as error:
            log.warning("old checkpoints of %s could not be deleted: %s", self.plan.name, text_of(error))
        read = start_from(self.manifest).splits
        self._collecting.begin(
            {
                op.name: (
                    source_of(self.plan, op.name),
                    SourceContext(op.name, self.job_dir, op.columns),
                    [entry.position for entry in read.get(op.name, {}).values()],
                )
                for op in self.plan.reads
            }
        )

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
        if (wish := self._wishes.take(request)) is None:
            return  # whoever asked was told that there would be none
        path, answer = wish
        try:
            self._repository.write_savepoint(replace(self.manifest, pending=()), self.world.open_store(path))
            answer.put(path)
        except (PenstockError, OSError) as error:
            answer.put(error)

    def _refuse_savepoints(self) -> None:
        self._wishes.refuse(JobError(f"the job {self.plan.name!r} ended before the savepoint was taken"))

    def _close(self) -> None:
        if isinstance(self.error, Crash):
            return
        self._end_commits()
        self._collecting.finish()
        for _, receiver in self._receivers:
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
                with self._within[name]:
                    committer.close()
            except (PenstockError, OSError) as error:
                hidden = hidden or error
            except Exception as error:
                log.warning("sink %s could not be closed: %s: %s", name, type(error).__name__, error)
        return hidden


def job_directory(name: str, storage: str | None) -> tuple[Path, bool]:
    """The job's own folder; without storage one that is removed at the end."""
    if storage is None:
        return Path(tempfile.mkdtemp(prefix=f"penstock-{name}-")), True
    path = folder_of(storage) / name
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
