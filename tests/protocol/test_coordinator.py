"""The life of epochs and attempts, as one coordinator decides it."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.protocol import coordinator as co
from penstock.protocol.coordinator import (
    Acked,
    AttemptFailed,
    BeginAttempt,
    Booted,
    Commit,
    CommitDelayed,
    CommitFailed,
    Committed,
    Coordinator,
    Declined,
    Drained,
    Effect,
    EndAttempt,
    Halt,
    InputEnded,
    Outcome,
    Pending,
    Phase,
    Publish,
    Published,
    PublishFailed,
    Running,
    SavepointAsked,
    Settings,
    StopAsked,
    Superseded,
    TakeSavepoint,
    TellAborted,
    TellCompleted,
    Ticked,
    TriggerEpoch,
    torn_reads,
)
from penstock.protocol.messages import Stamp, TaskAck

SETTINGS = Settings(interval=10, timeout=100, declines_max=2, restarts_max=3, backoff=8, backoff_max=20, commit_patience=90)
ROWS = (("part", 1),)


class Job:
    """A coordinator with a clock, which has heard what it needs to run."""

    def __init__(self, **more: Any) -> None:
        self.now = 0
        self.machine = Coordinator(lineage="job", term=4, tasks=["a", "b"], settings=SETTINGS, **more)

    def hear(self, event: co.Event, *, after: int = 0) -> tuple[Effect, ...]:
        self.now += after
        return self.machine.handle(self.now, event)

    @property
    def stamp(self) -> Stamp:
        return self.machine.stamp

    def run(self) -> Job:
        self.hear(Booted())
        self.hear(Running(self.stamp))
        return self

    def trigger(self) -> int:
        """Let time pass until the next epoch is asked for."""
        effects = self.hear(Ticked(), after=SETTINGS.interval)
        [epoch] = [e.epoch for e in effects if isinstance(e, TriggerEpoch)]
        return epoch

    def ack(self, task: str, *, epoch: int | None = None, stamp: Stamp | None = None, **more: Any) -> tuple[Effect, ...]:
        number = epoch or self.machine.in_flight
        assert number is not None
        return self.hear(Acked(stamp or self.stamp, number, task, TaskAck(f"uid of {task}", **more)))

    def publish(self, *, ended: bool = False, **committables: Any) -> tuple[Effect, ...]:
        """Acknowledge the epoch in flight and let it become durable."""
        epoch = self.machine.in_flight
        assert epoch is not None
        self.ack("a", ended=ended)
        self.ack("b", ended=ended, committables=committables)
        return self.hear(Published(epoch))


def test_an_attempt_begins_at_once_when_nothing_is_pending() -> None:
    job = Job()
    assert job.hear(Booted()) == (BeginAttempt(Stamp("job", 4, 1)),)
    assert job.machine.phase is Phase.STARTING


def test_what_a_predecessor_left_is_committed_before_the_first_attempt() -> None:
    left = [Pending(3, "out", ROWS), Pending(4, "out", ROWS)]
    job = Job(epoch=4, pending=left)
    assert job.hear(Booted()) == (Commit(left[0]),)
    assert job.hear(Committed(3, "out")) == (Commit(left[1]),)
    assert job.hear(Committed(4, "out")) == (BeginAttempt(job.stamp),)
    job.hear(Running(job.stamp))
    assert job.trigger() == 5


def test_a_finished_checkpoint_is_committed_and_not_run_on() -> None:
    job = Job(epoch=4, pending=[Pending(4, "out", ROWS)], finished=True)
    assert job.hear(Booted()) == (Commit(Pending(4, "out", ROWS)),)
    assert job.hear(Committed(4, "out")) == (Halt(Outcome.FINISHED),)


def test_an_epoch_is_triggered_after_the_interval() -> None:
    job = Job().run()
    assert job.hear(Ticked(), after=9) == ()
    assert job.machine.wake_at() == 10
    assert job.hear(Ticked(), after=1) == (TriggerEpoch(job.stamp, 1, False),)
    assert job.machine.wake_at() == 10 + SETTINGS.timeout


def test_only_a_tick_that_allows_it_begins_an_epoch() -> None:
    job = Job().run()
    assert job.hear(Ticked(epoch=False), after=50) == ()
    assert job.hear(Ticked()) == (TriggerEpoch(job.stamp, 1, False),)


def test_nothing_is_committed_before_the_publish_is_answered() -> None:
    job = Job().run()
    job.trigger()
    assert job.ack("a") == ()
    [publish] = job.ack("b", committables={"out": ROWS})
    assert isinstance(publish, Publish)
    assert publish.pending == (Pending(1, "out", ROWS),)
    assert job.hear(Ticked(), after=1000) == (), "nor is it given up: its outcome is unknown"
    assert job.hear(Published(1)) == (TellCompleted(job.stamp, 1), Commit(Pending(1, "out", ROWS)))


def test_a_task_acknowledges_once() -> None:
    job = Job().run()
    job.trigger()
    assert job.ack("a") == ()
    assert job.ack("a") == (), "a duplicate is not another task's"
    [publish] = job.ack("b")
    assert isinstance(publish, Publish)
    assert job.ack("b") == (), "and one that comes while publishing changes nothing"


def test_late_acks_are_not_heard() -> None:
    job = Job().run()
    job.trigger()
    job.ack("a")
    assert job.ack("b", stamp=Stamp("job", 4, 0)) == (), "another attempt"
    assert job.ack("b", stamp=Stamp("job", 3, 1)) == (), "another term"
    assert job.ack("b", stamp=Stamp("other", 4, 1)) == (), "another lineage"
    assert job.ack("b", epoch=7) == (), "another epoch"
    [publish] = job.ack("b")
    assert isinstance(publish, Publish)


def test_an_ack_of_an_aborted_epoch_is_not_heard() -> None:
    job = Job().run()
    job.trigger()
    job.ack("a")
    assert job.hear(Declined(job.stamp, 1, "b", "full")) == (TellAborted(job.stamp, 1, "b declined: full"),)
    assert job.trigger() == 2, "its number is not used again"
    assert job.ack("b", epoch=1) == ()
    assert job.ack("b") == ()


def test_an_epoch_without_all_acks_in_time_is_aborted() -> None:
    job = Job().run()
    job.trigger()
    job.ack("a")
    assert job.hear(Ticked(epoch=False), after=99) == ()
    assert job.hear(Ticked(epoch=False), after=1) == (TellAborted(job.stamp, 1, "no acknowledgement from b in time"),)


def test_too_many_declines_in_a_row_fail_the_attempt() -> None:
    job = Job().run()
    for _ in range(2):
        epoch = job.trigger()
        assert EndAttempt(job.stamp) not in job.hear(Declined(job.stamp, epoch, "a", "full"))
    epoch = job.trigger()
    assert EndAttempt(job.stamp) in job.hear(Declined(job.stamp, epoch, "a", "full"))
    assert job.machine.phase is Phase.WAITING


def test_a_published_epoch_forgives_the_declines_before() -> None:
    job = Job().run()
    for _ in range(4):
        job.hear(Declined(job.stamp, job.trigger(), "a", "full"))
        job.trigger()
        job.publish()
    assert job.machine.phase is Phase.RUNNING


def test_a_failed_publish_is_tried_again_with_the_same_bytes() -> None:
    job = Job().run()
    job.trigger()
    job.ack("a")
    [publish] = job.ack("b", committables={"out": ROWS})
    for _ in range(SETTINGS.declines_max):
        assert job.hear(PublishFailed(1, "no answer")) == (publish,)
    assert job.hear(Published(1))[0] == TellCompleted(job.stamp, 1)


def test_a_publish_that_always_fails_ends_the_job() -> None:
    job = Job().run()
    job.trigger()
    job.ack("a")
    job.ack("b")
    effects: tuple[Effect, ...] = ()
    for _ in range(SETTINGS.declines_max + 1):
        effects = job.hear(PublishFailed(1, "no answer"))
    assert effects == (EndAttempt(job.stamp), Halt(Outcome.FAILED, "epoch 1 cannot be published: no answer"))


def test_a_failure_while_publishing_waits_for_the_outcome() -> None:
    job = Job().run()
    job.trigger()
    job.ack("a")
    job.ack("b", committables={"out": ROWS})
    assert job.hear(AttemptFailed(job.stamp, "gone")) == ()
    first = job.stamp
    assert job.hear(Published(1)) == (TellCompleted(first, 1), EndAttempt(first))
    assert job.hear(Ticked()) == (Commit(Pending(1, "out", ROWS)),)
    assert job.hear(Committed(1, "out"), after=8) == (BeginAttempt(Stamp("job", 4, 2)),)
    job.hear(Running(job.stamp))
    assert job.trigger() == 2


def test_a_failed_attempt_is_begun_again_after_a_growing_pause() -> None:
    job = Job().run()
    for pause in (8, 16, 20):
        assert job.hear(AttemptFailed(job.stamp, "gone")) == (EndAttempt(job.stamp),)
        assert job.machine.wake_at() == job.now + pause
        assert job.hear(Ticked(), after=pause - 1) == ()
        assert job.hear(Ticked(), after=1) == (BeginAttempt(job.stamp),)
        job.hear(Running(job.stamp))
    effects = job.hear(AttemptFailed(job.stamp, "gone"))
    assert effects == (
        EndAttempt(job.stamp),
        Halt(Outcome.FAILED, "gone (3 restarts without a new checkpoint)"),
    )


def test_a_published_epoch_forgives_the_restarts_before() -> None:
    job = Job().run()
    for _ in range(5):
        job.hear(AttemptFailed(job.stamp, "gone"))
        job.hear(Ticked(), after=8)
        job.hear(Running(job.stamp))
        job.trigger()
        job.publish()
    assert job.machine.phase is Phase.RUNNING


def test_a_failure_that_trying_again_cannot_help_ends_the_job() -> None:
    job = Job().run()
    effects = job.hear(AttemptFailed(job.stamp, "wrong type", fatal=True))
    assert effects == (EndAttempt(job.stamp), Halt(Outcome.FAILED, "wrong type"))


def test_a_failure_with_so_many_tries_ends_the_job_with_the_last_whatever_else_failed() -> None:
    job = Job()
    job.hear(Booted())
    for tries in (3, 0, 3):
        assert job.hear(AttemptFailed(job.stamp, "price", tries=tries)) == (EndAttempt(job.stamp),)
        assert job.machine.trouble == "price"
        job.hear(Ticked(), after=100)
    *_, halt = job.hear(AttemptFailed(job.stamp, "price", tries=3))
    assert halt == Halt(Outcome.FAILED, "price")


def test_a_published_epoch_forgives_the_tries_and_the_trouble_before() -> None:
    job = Job()
    job.hear(Booted())
    for _ in range(4):
        job.hear(AttemptFailed(job.stamp, "price", tries=2))
        job.hear(Ticked(), after=100)
        assert job.machine.trouble == "price"
        job.hear(Running(job.stamp))
        job.trigger()
        job.publish()
        assert job.machine.trouble == ""


def test_the_failure_of_an_older_attempt_is_not_heard() -> None:
    job = Job().run()
    old = job.stamp
    job.hear(AttemptFailed(old, "gone"))
    job.hear(Ticked(), after=8)
    job.hear(Running(job.stamp))
    assert job.hear(AttemptFailed(old, "gone")) == ()
    assert job.machine.phase is Phase.RUNNING


def test_epochs_of_a_failed_attempt_are_numbered_from_the_published_one() -> None:
    job = Job().run()
    job.trigger()
    job.publish()
    job.trigger()
    job.hear(AttemptFailed(job.stamp, "gone"))
    job.hear(Ticked(), after=8)
    job.hear(Running(job.stamp))
    assert job.trigger() == 2


def test_a_snapshot_that_mixes_attempts_fails_the_attempt() -> None:
    job = Job().run()
    job.trigger()
    job.ack("a")
    assert job.ack("b", consumed={"a": "another uid"}) == (EndAttempt(job.stamp),)
    assert torn_reads({"a": TaskAck("x"), "b": TaskAck("y", {"a": "x"})}) == ""


def test_unconfirmed_epochs_are_carried_by_the_next_checkpoint() -> None:
    job = Job().run()
    job.trigger()
    job.publish(out=ROWS)
    assert job.trigger() == 2, "the commit of epoch 1 is under way"
    job.ack("a")
    [publish] = job.ack("b", committables={"out": ROWS})
    assert isinstance(publish, Publish)
    assert publish.pending == (Pending(1, "out", ROWS), Pending(2, "out", ROWS))


def test_one_epoch_goes_on_while_another_is_committed_and_a_third_waits() -> None:
    job = Job().run()
    job.trigger()
    job.publish(out=ROWS)
    assert job.trigger() == 2
    job.publish(out=ROWS)
    assert job.hear(Ticked(), after=10 * SETTINGS.interval) == (), "the commit of epoch 1 is still under way, and that of 2 waits"
    assert job.hear(Committed(1, "out")) == (Commit(Pending(2, "out", ROWS)),)
    assert job.hear(Ticked()) == (TriggerEpoch(job.stamp, 3, False),)


def test_epochs_go_on_while_a_sink_says_later() -> None:
    job = Job().run()
    job.trigger()
    job.publish(out=ROWS)
    job.trigger()
    job.publish(out=ROWS)
    job.hear(CommitDelayed(1, "out"))
    assert job.hear(Ticked(), after=SETTINGS.interval) == (Commit(Pending(1, "out", ROWS)),)
    job.hear(CommitDelayed(1, "out"))
    assert job.hear(Ticked()) == (TriggerEpoch(job.stamp, 3, False),)


def test_a_delayed_commit_is_asked_for_again_and_holds_back_the_next_attempt() -> None:
    job = Job(epoch=1, pending=[Pending(1, "out", ROWS)])
    job.hear(Booted())
    assert job.hear(CommitDelayed(1, "out")) == ()
    assert job.machine.wake_at() == SETTINGS.backoff
    assert job.hear(Ticked(), after=7) == ()
    assert job.hear(Ticked(), after=1) == (Commit(Pending(1, "out", ROWS)),)
    assert job.hear(Committed(1, "out")) == (BeginAttempt(job.stamp),)


def test_a_delayed_commit_is_due_even_while_an_epoch_is_in_flight() -> None:
    job = Job().run()
    job.trigger()
    job.publish(out=ROWS)
    job.trigger()
    job.hear(CommitDelayed(1, "out"))
    assert job.machine.wake_at() == job.now + SETTINGS.backoff


def failing(job: Job, epoch: int = 1, **more: Any) -> tuple[Effect, ...]:
    return job.hear(CommitDelayed(epoch, "out", "connection refused", **more))


def test_a_commit_that_failed_and_may_pass_is_asked_for_again_after_a_growing_pause() -> None:
    job = Job(epoch=1, pending=[Pending(1, "out", ROWS)])
    job.hear(Booted())
    for pause in (8, 16, 20):
        assert failing(job) == ()
        assert job.machine.wake_at() == job.now + pause
        assert job.hear(Ticked(), after=pause - 1) == ()
        assert job.hear(Ticked(), after=1) == (Commit(Pending(1, "out", ROWS)),)
    assert "sink 'out' has been trying epoch 1" in job.machine.trouble
    assert "connection refused" in job.machine.trouble
    assert isinstance(job.hear(Committed(1, "out"))[0], BeginAttempt)
    assert job.machine.trouble == ""


def test_patience_with_a_commit_ends_and_so_does_the_job() -> None:
    job = Job(epoch=1, pending=[Pending(1, "out", ROWS)])
    job.hear(Booted())
    failing(job)
    halted: tuple[Effect, ...] = ()
    while not halted:
        assert job.now <= SETTINGS.commit_patience + SETTINGS.backoff_max
        job.hear(Ticked(), after=20)
        halted = failing(job)
    assert job.now >= SETTINGS.commit_patience
    (halt,) = halted
    assert isinstance(halt, Halt)
    assert halt.outcome is Outcome.FAILED
    assert "connection refused" in halt.reason


def test_a_commit_with_so_many_tries_has_no_more() -> None:
    job = Job(epoch=1, pending=[Pending(1, "out", ROWS)])
    job.hear(Booted())
    for _ in range(2):
        assert failing(job, tries=3) == ()
        assert job.hear(Ticked(), after=20) == (Commit(Pending(1, "out", ROWS)),)
    (halt,) = failing(job, tries=3)
    assert isinstance(halt, Halt)
    assert "tried 3 times" in halt.reason


def test_a_commit_that_was_made_forgives_the_tries_before() -> None:
    job = Job(epoch=2, pending=[Pending(1, "out", ROWS), Pending(2, "out", ROWS)])
    job.hear(Booted())
    for epoch in (1, 2):
        for _ in range(2):
            assert failing(job, epoch, tries=3) == ()
            assert job.hear(Ticked(), after=20) == (Commit(Pending(epoch, "out", ROWS)),)
        job.hear(Committed(epoch, "out"))
    assert job.machine.phase is Phase.STARTING


def test_while_a_commit_fails_one_epoch_goes_on_and_no_third_begins() -> None:
    job = Job().run()
    job.trigger()
    job.publish(out=ROWS)
    begun: list[int] = []
    for _ in range(12):
        for effect in job.hear(Ticked(), after=SETTINGS.interval // 2):
            if isinstance(effect, TriggerEpoch):
                begun.append(effect.epoch)
                job.publish(out=ROWS)
        if job.machine._committing is not None:
            failing(job)
    assert begun == [2]


def test_a_refused_commit_ends_the_job() -> None:
    job = Job().run()
    job.trigger()
    job.publish(out=ROWS)
    effects = job.hear(CommitFailed(1, "out", "no such table"))
    assert effects == (EndAttempt(job.stamp), Halt(Outcome.FAILED, "sink 'out' refuses epoch 1: no such table"))


def test_the_last_epoch_ends_the_job_once_it_is_committed() -> None:
    job = Job().run()
    job.hear(InputEnded(job.stamp))
    job.ack("a", ended=True)
    [publish] = job.ack("b", ended=True, committables={"out": ROWS})
    assert isinstance(publish, Publish)
    assert publish.finished
    assert job.hear(Published(1))[1:] == (Commit(Pending(1, "out", ROWS)),)
    assert job.hear(Committed(1, "out")) == (EndAttempt(job.stamp), Halt(Outcome.FINISHED))


def test_the_end_of_the_input_hurries_the_last_epoch() -> None:
    job = Job().run()
    assert job.hear(InputEnded(Stamp("job", 4, 9))) == ()
    assert job.hear(InputEnded(job.stamp)) == (TriggerEpoch(job.stamp, 1, False),)


def test_stopping_takes_one_more_epoch() -> None:
    job = Job().run()
    assert job.hear(StopAsked()) == (TriggerEpoch(job.stamp, 1, False, aligned=True),)
    job.publish(out=ROWS)
    assert job.hear(Committed(1, "out")) == (EndAttempt(job.stamp), Halt(Outcome.STOPPED))


def test_stopping_while_an_epoch_is_in_flight_takes_that_one() -> None:
    job = Job().run()
    job.trigger()
    assert job.hear(StopAsked()) == ()
    assert job.publish()[-1] == Halt(Outcome.STOPPED)


def test_an_epoch_with_rows_in_flight_is_not_the_last_one() -> None:
    job = Job().run()
    job.trigger()
    job.hear(StopAsked())
    job.ack("a")
    job.ack("b", in_flight=[{"step": "counts"}])
    assert job.hear(Published(1))[-1] == TriggerEpoch(job.stamp, 2, False, aligned=True)
    assert job.publish()[-1] == Halt(Outcome.STOPPED)


def test_drained_sources_stop_the_job_with_the_epoch_that_holds_all_they_had() -> None:
    job = Job().run()
    job.trigger()
    assert job.hear(Drained(job.stamp, 2)) == ()
    assert job.publish()[-1] == TriggerEpoch(job.stamp, 2, False, aligned=True), "rows may have been read after the first was cut"
    assert job.publish()[-1] == Halt(Outcome.STOPPED)


def test_the_epoch_in_flight_is_the_last_one_if_it_holds_all_the_sources_had() -> None:
    job = Job().run()
    job.hear(Drained(job.stamp, job.trigger()))
    assert job.publish()[-1] == Halt(Outcome.STOPPED)


@pytest.mark.parametrize("finish", [False, True])
def test_what_a_failed_attempt_had_drained_is_read_again(finish: bool) -> None:
    job = Job().run()
    job.hear(Drained(job.stamp, job.trigger(), finish))
    job.hear(AttemptFailed(job.stamp, "lost"))
    job.hear(Ticked(), after=SETTINGS.backoff)
    job.hear(Running(job.stamp))
    assert job.hear(Ticked(), after=SETTINGS.interval) == (TriggerEpoch(job.stamp, 1, False),), "neither the end nor in a hurry"
    job.publish()
    assert job.machine.phase is Phase.RUNNING


def test_drained_sources_may_close_windows_with_one_more_epoch() -> None:
    job = Job().run()
    job.hear(Drained(job.stamp, job.trigger(), True))
    assert job.publish()[-1] == TriggerEpoch(job.stamp, 2, True, aligned=True)
    assert job.publish(ended=True)[-1] == Halt(Outcome.FINISHED)


def test_that_sources_of_an_older_attempt_were_drained_is_not_heard() -> None:
    job = Job().run()
    old = job.stamp
    job.hear(AttemptFailed(old, "lost"))
    job.hear(Ticked(), after=SETTINGS.backoff)
    job.hear(Running(job.stamp))
    assert job.hear(Drained(old, 1)) == ()


def test_stopping_before_an_attempt_begins_needs_no_epoch() -> None:
    job = Job(epoch=1, pending=[Pending(1, "out", ROWS)])
    job.hear(Booted())
    assert job.hear(StopAsked()) == ()
    assert job.hear(Committed(1, "out")) == (Halt(Outcome.STOPPED),)


def test_finishing_asks_the_tasks_to_end() -> None:
    job = Job().run()
    job.trigger()
    job.hear(StopAsked(finish=True))
    assert job.publish()[-1] == TriggerEpoch(job.stamp, 2, True, aligned=True), "the epoch in flight was not asked to end"
    assert job.publish(ended=True)[-1] == Halt(Outcome.FINISHED)


def test_a_savepoint_is_granted_only_after_its_commits() -> None:
    job = Job().run()
    job.trigger()
    job.hear(SavepointAsked("mine"))
    assert TakeSavepoint("mine", 1) not in job.publish(), "the epoch in flight began before the wish"
    assert job.machine.in_flight == 2
    effects = job.publish(out=ROWS)
    assert effects == (TellCompleted(job.stamp, 2), Commit(Pending(2, "out", ROWS)))
    assert job.hear(Committed(2, "out")) == (TakeSavepoint("mine", 2),)
    assert job.machine.phase is Phase.RUNNING


def test_a_savepoint_outlives_a_failed_attempt() -> None:
    job = Job().run()
    assert job.hear(SavepointAsked("mine")) == (TriggerEpoch(job.stamp, 1, False, aligned=True),)
    job.hear(AttemptFailed(job.stamp, "gone"))
    job.hear(Ticked(), after=8)
    assert job.hear(Running(job.stamp)) == (TriggerEpoch(job.stamp, 1, False, aligned=True),)
    assert job.publish() == (TellCompleted(job.stamp, 1), TakeSavepoint("mine", 1))


def test_a_superseded_coordinator_does_nothing_more() -> None:
    job = Job().run()
    job.trigger()
    job.ack("a")
    job.ack("b", committables={"out": ROWS})
    effects = job.hear(Superseded())
    assert effects[0] == EndAttempt(job.stamp)
    assert isinstance(effects[1], Halt)
    assert effects[1].outcome is Outcome.SUPERSEDED
    assert job.hear(Published(1)) == ()
    assert job.hear(Ticked(), after=1000) == ()
    assert job.machine.wake_at() is None


def test_a_clone_is_independent_and_equal() -> None:
    job = Job().run()
    job.trigger()
    copy = job.machine.clone()
    assert copy.key() == job.machine.key()
    job.ack("a")
    assert copy.key() != job.machine.key()


@pytest.mark.parametrize(
    "event", [Running(Stamp("job", 4, 1)), Ticked(), StopAsked(), SavepointAsked("x"), AttemptFailed(Stamp("job", 4, 1), "")]
)
def test_who_has_halted_hears_nothing(event: co.Event) -> None:
    job = Job(finished=True)
    assert job.hear(Booted()) == (Halt(Outcome.FINISHED),)
    assert job.hear(event) == ()
