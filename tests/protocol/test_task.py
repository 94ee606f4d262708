"""One task's barriers, ends and time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

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
    Process,
    Recorded,
    Release,
    SourcesEnded,
    Trigger,
    Watermark,
)
from penstock.protocol.task import TaskCore


def row(name: str) -> Batch:
    return Batch(name, 1, 1)


@pytest.fixture
def core() -> Iterator[TaskCore]:
    """A task with two inputs of one edge."""
    task = TaskCore({0: 0, 1: 0}, sources=False)
    yield task
    task.check()


def test_a_held_input_waits_for_the_others(core: TaskCore) -> None:
    assert core.handle(Arrived(0, Barrier(1))) == (Hold(0),)
    assert core.handle(Arrived(1, row("before"))) == (Process(0, "before"),)
    assert core.handle(Arrived(1, Barrier(1))) == (Forward(Barrier(1)), Freeze(1), Release(0))
    assert core.handle(Arrived(0, row("after"))) == (Process(0, "after"),)


def test_reading_a_held_input_is_refused(core: TaskCore) -> None:
    core.handle(Arrived(0, Barrier(1)))
    with pytest.raises(AssertionError, match="read while held"):
        core.handle(Arrived(0, row("too early")))


def test_epochs_only_grow(core: TaskCore) -> None:
    core.handle(Arrived(0, Barrier(2)))
    core.handle(Arrived(1, Barrier(2)))
    with pytest.raises(AssertionError, match="barrier 1 on input 0 after 2"):
        core.handle(Arrived(0, Barrier(1)))
    with pytest.raises(AssertionError, match="barrier 2 on input 1 after 2"):
        core.handle(Arrived(1, Barrier(2)))


def test_a_later_epoch_gives_up_an_earlier_one(core: TaskCore) -> None:
    core.handle(Arrived(0, Barrier(2)))
    assert core.handle(Arrived(1, Barrier(3))) == (Release(0), Hold(1)), "whoever sent it knows that 2 was aborted"
    assert core.handle(Arrived(0, Barrier(3))) == (Forward(Barrier(3)), Freeze(3), Release(1))


def test_a_trigger_gives_up_the_epoch_before_it() -> None:
    core = TaskCore({0: 0}, sources=True)
    core.handle(Trigger(1))
    assert core.handle(Trigger(2)) == (Release(SOURCES), Hold(SOURCES))
    assert core.handle(Arrived(0, Barrier(1))) == (), "it was given up"
    core.check()
    assert core.handle(Arrived(0, Barrier(2))) == (Forward(Barrier(2)), Freeze(2), Release(SOURCES))


def test_the_number_of_an_aborted_epoch_may_be_left_out(core: TaskCore) -> None:
    for epoch in (1, 4):
        core.handle(Arrived(0, Barrier(epoch)))
        assert Freeze(epoch) in core.handle(Arrived(1, Barrier(epoch)))


def test_ended_inputs_still_deliver_barriers(core: TaskCore) -> None:
    core.handle(Arrived(0, End()))
    assert core.handle(Arrived(1, Barrier(1))) == (Hold(1),)
    assert core.handle(Arrived(0, Barrier(1))) == (Forward(Barrier(1)), Freeze(1), Release(1))
    assert core.handle(Arrived(1, End())) == (AdvanceTime(0, TIME_MAX), EndEdge(0))
    assert core.ended
    core.handle(Arrived(0, Barrier(2)))
    assert Freeze(2) in core.handle(Arrived(1, Barrier(2)))


def test_rows_after_the_end_are_refused(core: TaskCore) -> None:
    core.handle(Arrived(0, End()))
    with pytest.raises(AssertionError, match="rows after the end"):
        core.handle(Arrived(0, row("late")))


def test_time_is_the_least_of_the_channels(core: TaskCore) -> None:
    assert core.handle(Arrived(0, Watermark(10))) == ()
    assert core.handle(Arrived(1, Watermark(5))) == (AdvanceTime(0, 5),)
    assert core.handle(Arrived(1, Watermark(7))) == (AdvanceTime(0, 7),)
    assert core.handle(Arrived(1, Watermark(6))) == ()


def test_an_idle_channel_is_left_out_and_woken_by_rows(core: TaskCore) -> None:
    core.handle(Arrived(0, Watermark(10)))
    assert core.handle(Arrived(1, Idle())) == (AdvanceTime(0, 10),)
    assert core.handle(Arrived(1, row("awake"))) == (Process(0, "awake"),)
    assert core.handle(Arrived(0, Watermark(20))) == (), "channel 1 counts again and has said nothing"


def test_an_edge_is_idle_when_all_its_channels_are(core: TaskCore) -> None:
    core.handle(Arrived(0, Idle()))
    assert core.handle(Arrived(1, Idle())) == (EdgeIdle(0),)
    woken = core.handle(Arrived(0, row("awake")))
    assert isinstance(woken[0], AdvanceTime), "the edge is told to be awake before the rows are processed"
    assert woken[1:] == (Process(0, "awake"),)


def test_edges_have_times_and_ends_of_their_own() -> None:
    core = TaskCore({0: 0, 1: 1}, sources=False)
    assert core.handle(Arrived(0, Watermark(5))) == (AdvanceTime(0, 5),)
    assert core.handle(Arrived(1, End())) == (AdvanceTime(1, TIME_MAX), EndEdge(1))
    assert not core.ended
    assert core.handle(Arrived(0, Barrier(1))) == (Hold(0),)
    core.check()


def test_a_source_task_snapshots_on_its_trigger() -> None:
    core = TaskCore({}, sources=True)
    assert core.handle(Trigger(1)) == (Forward(Barrier(1)), Freeze(1))
    assert core.handle(SourcesEnded()) == (EndEdge(SOURCES),)
    assert core.handle(Trigger(2)) == (Forward(Barrier(2)), Freeze(2))
    assert core.ended


def test_a_finishing_trigger_ends_the_sources_before_the_snapshot() -> None:
    core = TaskCore({}, sources=True)
    assert core.handle(Trigger(1, finish=True)) == (EndEdge(SOURCES), Forward(Barrier(1)), Freeze(1))
    assert core.handle(Trigger(2, finish=True)) == (Forward(Barrier(2)), Freeze(2)), (
        "asked again after an abort, it has ended already"
    )
    assert core.handle(SourcesEnded()) == ()


def test_own_sources_are_one_more_input() -> None:
    core = TaskCore({0: 0}, sources=True)
    assert core.handle(Trigger(1)) == (Hold(SOURCES),)
    assert core.handle(Arrived(0, Barrier(1))) == (Forward(Barrier(1)), Freeze(1), Release(SOURCES))
    assert core.handle(Arrived(0, Barrier(2))) == (Hold(0),)
    assert core.handle(Trigger(2)) == (Forward(Barrier(2)), Freeze(2), Release(0))


def test_only_a_task_with_sources_is_triggered(core: TaskCore) -> None:
    with pytest.raises(AssertionError, match="only a task with sources"):
        core.handle(Trigger(1))


# --- overdue ----------------------------------------------------------------------------------------------------------


def test_an_overdue_snapshot_is_taken_at_once_and_records_what_is_in_flight(core: TaskCore) -> None:
    core.handle(Arrived(0, Barrier(1)))
    assert core.handle(Overdue(1)) == (Forward(Barrier(1)), Freeze(1, recording=True), Release(0))
    assert core.handle(Arrived(0, row("after"))) == (Process(0, "after"),)
    assert core.handle(Arrived(1, row("in flight"))) == (Keep(0, "in flight"), Process(0, "in flight"))
    core.check()
    assert core.handle(Arrived(1, Barrier(1))) == (Recorded(1),)
    assert core.handle(Arrived(1, row("after"))) == (Process(0, "after"),)


def test_a_task_that_has_seen_no_barrier_is_overdue_all_the_same(core: TaskCore) -> None:
    assert core.handle(Overdue(1)) == (Forward(Barrier(1)), Freeze(1, recording=True))
    assert core.handle(Arrived(0, Barrier(1))) == ()
    assert core.handle(Arrived(1, Barrier(1))) == (Recorded(1),)


def test_a_barrier_ahead_of_rows_records_them_before_they_are_processed(core: TaskCore) -> None:
    core.handle(Arrived(0, Barrier(1)))
    core.handle(Overdue(1))
    core.handle(Arrived(1, row("first")))
    waiting = [row("second"), Watermark(7), row("third")]
    assert core.handle(Overtook(1, 1, waiting)) == (Keep(0, "second"), Keep(0, "third"), Recorded(1))
    assert core.handle(Arrived(1, row("second"))) == (Process(0, "second"),), "it is not recorded twice"


def test_a_barrier_overtakes_only_where_rows_are_recorded(core: TaskCore) -> None:
    with pytest.raises(AssertionError, match="and 0 was frozen"):
        core.handle(Overtook(0, 1, [row("lost")]))
    core.handle(Arrived(0, Barrier(1)))
    core.handle(Overdue(1))
    with pytest.raises(AssertionError, match="which is not recorded"):
        core.handle(Overtook(0, 1, [row("of the next epoch")]))


def test_what_is_aligned_in_time_is_not_overdue(core: TaskCore) -> None:
    for input in (0, 1):
        core.handle(Arrived(input, Barrier(1)))
    assert core.handle(Overdue(1)) == ()
    assert core.handle(Overdue(2)) != ()
    assert core.handle(Overdue(2)) == (), "once is enough"


def test_an_overdue_snapshot_waits_for_inputs_that_must_align() -> None:
    core = TaskCore({0: 0, 1: 0, 2: 1}, sources=True, aligned=[2])
    core.handle(Arrived(0, Barrier(1)))
    assert core.handle(Overdue(1)) == ()
    assert core.handle(Trigger(1)) == (Hold(SOURCES),)
    assert core.handle(Arrived(1, row("before"))) == (Process(0, "before"),)
    assert core.handle(Arrived(2, Barrier(1))) == (
        Forward(Barrier(1)),
        Freeze(1, recording=True),
        Release(0),
        Release(SOURCES),
    )
    assert core.recording == {1}
    core.check()


def test_where_all_input_has_ended_nothing_is_in_flight_and_barriers_are_awaited(core: TaskCore) -> None:
    for input in (0, 1):
        core.handle(Arrived(input, End()))
    assert core.handle(Overdue(1)) == ()
    assert core.handle(Arrived(0, Barrier(1))) == (Hold(0),)
    assert core.handle(Arrived(1, Barrier(1))) == (Forward(Barrier(1)), Freeze(1), Release(0))


@pytest.mark.parametrize("sign", [Aborted(1), Overdue(2), Arrived(0, Barrier(2))])
def test_a_recording_is_given_up_when_its_epoch_was(core: TaskCore, sign: Event) -> None:
    core.handle(Arrived(0, Barrier(1)))
    core.handle(Overdue(1))
    assert core.handle(sign)[0] == GiveUp(1)  # type: ignore[arg-type]
    core.check()
    assert Recorded(1) not in core.handle(Arrived(1, Barrier(1))), "too late for it"
    core.check()


def test_an_epoch_that_came_to_nothing_holds_up_none_after_it(core: TaskCore) -> None:
    core.handle(Arrived(0, Barrier(1)))
    core.handle(Aborted(1))
    assert core.handle(Overdue(2)) == (Release(0), Forward(Barrier(2)), Freeze(2, recording=True))
    assert core.handle(Arrived(1, Barrier(1))) == ()
    assert core.handle(Arrived(1, row("in flight"))) == (Keep(0, "in flight"), Process(0, "in flight"))
    core.check()


def test_a_clone_is_independent_and_equal(core: TaskCore) -> None:
    core.handle(Arrived(0, Barrier(1)))
    copy = core.clone()
    assert copy.key() == core.key()
    copy.handle(Arrived(1, Barrier(1)))
    assert copy.key() != core.key()
    assert core.held == [0]


def test_a_clone_records_on_its_own(core: TaskCore) -> None:
    core.handle(Overdue(1))
    copy = core.clone()
    copy.handle(Arrived(1, Barrier(1)))
    assert core.recording == {0, 1}
    assert copy.key() != core.key()


def schedules(
    core: TaskCore, inputs: dict[int, tuple[Message, ...]], seen: tuple[Order, ...] = ()
) -> Iterator[tuple[Order, ...]]:
    """The orders of every schedule in which no held input is read."""
    if not any(inputs.values()):
        yield seen
    for input, waiting in inputs.items():
        if waiting and input not in core.held:
            after = core.clone()
            orders = after.handle(Arrived(input, waiting[0]))
            after.check()
            yield from schedules(after, {**inputs, input: waiting[1:]}, (*seen, *orders))


def test_every_schedule_of_three_inputs_and_two_epochs_cuts_at_the_barriers() -> None:
    """Input 0 has rows in each epoch, input 1 ends in the first, input 2 has nothing but barriers."""
    inputs: dict[int, tuple[Message, ...]] = {
        0: (row("a1"), Barrier(1), row("a2"), Barrier(2), End()),
        1: (row("b1"), End(), Barrier(1), Barrier(2)),
        2: (Barrier(1), row("c2"), Barrier(2), End()),
    }
    found = 0
    for orders in schedules(TaskCore(dict.fromkeys(inputs, 0), sources=False), inputs):
        found += 1
        first, second = orders.index(Freeze(1)), orders.index(Freeze(2))
        rows = [
            {o.payload for o in part if isinstance(o, Process)}
            for part in (orders[:first], orders[first:second], orders[second:])
        ]
        assert rows == [{"a1", "b1"}, {"a2", "c2"}, set()]
        assert orders[first - 1] == Forward(Barrier(1)), "the barrier is sent just before the freeze"
        holds, releases = [
            {o.input for o in orders[:first] if isinstance(o, Hold)},
            {o.input for o in orders[first:second] if isinstance(o, Release)},
        ]
        assert holds == releases
        assert orders.count(EndEdge(0)) == 1
    assert found == 3600, "the number of schedules; a change must be explained"
