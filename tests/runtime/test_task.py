"""One task and its actions: what it does, in which order, and what it says of itself in a snapshot."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

import penstock as pen
from penstock import col
from penstock.connectors.connector import BadRecord
from penstock.errors import RowError, StorageError
from penstock.plan.physical import PhysicalPlan
from penstock.protocol.messages import (
    TIME_MAX,
    TIME_MIN,
    Aborted,
    Ack,
    Arrived,
    Barrier,
    Batch,
    Completed,
    Decline,
    Emit,
    End,
    Hold,
    Idle,
    Read,
    Release,
    SourcesEnded,
    SplitAssigned,
    SplitEnded,
    SplitIdle,
    SplitsAssigned,
    Store,
    Stored,
    StoreFailed,
    Trigger,
    Watermark,
)
from penstock.runtime import dealing
from penstock.runtime.assemble import Restored
from penstock.runtime.task import Task
from penstock.runtime.wiring import input_channels, task_name
from penstock.state.history import store
from penstock.state.keygroups import canonical_keys, groups_of, hash_keys, owner
from runtime.rig import NAMES, Collect, Rig, hand, one_task, table

S = 1_000_000


def counting(
    out: Collect | None = None, *, late: Collect | None = None, splits: tuple[str, ...] = ("s0",), delay: str = "0s"
) -> PhysicalPlan:
    """Rows per key and 10 seconds: stage 0 reads, stage 1 counts and writes."""
    p = pen.Pipeline("counting")
    timed = hand(p, names=splits).with_watermark("at", delay=delay, idle_after="1s")
    counts = timed.key_by("k").window(pen.tumbling("10s")).aggregate(n=pen.count(), name="counts")
    counts.write(out or Collect())
    if late is not None:
        counts.late.write(late)
    return p.plan()


def chained() -> PhysicalPlan:
    """Three stages: the middle one has state and sends on."""
    p = pen.Pipeline("chained")
    fine = hand(p).with_watermark("at", delay="0s").key_by("k").window(pen.tumbling("10s")).aggregate(n=pen.count(), name="fine")
    fine.key_by("k").window(pen.tumbling("1m")).aggregate(total="sum(n)", name="coarse").write(Collect())
    return p.plan()


def at(key: str | None, *times: float) -> pa.RecordBatch:
    return table({"k": key, "at": int(t * S)} for t in times)


def message(plan: PhysicalPlan, key: str, *times: float) -> Batch:
    """Rows as they cross the exchange into stage 1, made by the plan's own stage 0."""
    upstream = one_task(plan, 0)
    list(upstream.handle(SplitsAssigned([SplitAssigned("hand", "s0", None)])))
    columns = list(plan.reads[0].columns)
    emitted = list(upstream.handle(Read("hand", "s0", at(key, *times).select(columns), 1)))
    return next(a.message for a in emitted if isinstance(a, Emit) and isinstance(a.message, Batch))


def key_owned_by(task: int, parallelism: int, *, but: tuple[str, ...] = ()) -> str:
    """A key whose group the task owns."""
    for number in range(1000):
        key = f"key-{number}"
        groups = groups_of(hash_keys(canonical_keys(pa.record_batch({"k": [key]}), ["k"])), 128)
        if owner(groups, parallelism, 128)[0] == task and key not in but:
            return key
    raise AssertionError("no such key")


def answered(task: Task, action: Store) -> Stored:
    names = (f"state/{number}.arrow" for number in NAMES)
    return Stored(action.epoch, {key: store(f, task.site.files, lambda: next(names)) for key, f in action.frozen.items()})


# --- barriers ---------------------------------------------------------------------------------------------------------


def test_the_barrier_is_sent_on_before_the_state_is_handed_over_to_be_stored() -> None:
    plan = chained()
    task = one_task(plan, 1)
    list(task.handle(Arrived(0, message(plan, "a", 1))))
    actions = list(task.handle(Arrived(0, Barrier(1))))
    assert [type(a) for a in actions] == [Emit, Store]
    assert actions[0] == Emit(plan.stages[1].outgoing[0].id, 0, Barrier(1))
    assert sorted(actions[1].frozen) == ["fine/accumulators", "fine/timers"]


def test_an_input_that_delivered_its_barrier_is_held_until_the_others_have() -> None:
    plan = chained()
    task = one_task(plan, 1, parallelism=2)
    assert list(task.handle(Arrived(1, Barrier(1)))) == [Hold(1)]
    actions = list(task.handle(Arrived(0, Barrier(1))))
    edge = plan.stages[1].outgoing[0].id
    assert actions[:2] == [Emit(edge, 0, Barrier(1)), Emit(edge, 1, Barrier(1))]
    assert isinstance(actions[2], Store)
    assert actions[3:] == [Release(1)]


def test_a_task_without_state_acknowledges_at_once_and_tells_every_task_behind_it() -> None:
    plan = counting()
    task = one_task(plan, 0, parallelism=3, index=1)
    list(task.handle(SplitsAssigned([])))
    actions = list(task.handle(Trigger(4)))
    assert [(a.target, a.message) for a in actions[:3]] == [(t, Barrier(4)) for t in range(3)]
    assert isinstance(actions[3], Ack)
    assert actions[3].epoch == 4
    assert len(actions) == 4


def test_rows_before_the_barrier_are_in_the_snapshot_and_rows_after_it_are_not() -> None:
    plan = counting()
    task = one_task(plan, 1)
    list(task.handle(Arrived(0, message(plan, "a", 1, 2))))
    (frozen,) = [a for a in task.handle(Arrived(0, Barrier(1))) if isinstance(a, Store)]
    list(task.handle(Arrived(0, message(plan, "a", 3))))
    (ack,) = [a.ack for a in task.handle(answered(task, frozen)) if isinstance(a, Ack)]
    again = Task(plan.stages[1], replace(task.site, uid="new", restored=Restored(ack.states, ack.floors)))
    out = next(op.node.sink for op in plan.writes)
    list(again.handle(Arrived(0, End())))
    assert [row["n"] for row in out.rows] == [2]


def test_an_ended_task_still_takes_part_in_snapshots_and_says_that_it_has_ended() -> None:
    rig = Rig(counting())
    before = rig.barrier(1)
    assert not any(ack.ended for ack in before.acks.values())
    rig.end()
    after = rig.barrier(2)
    assert all(ack.ended for ack in after.acks.values())


def test_finish_ends_the_input_and_takes_the_snapshot_after_the_windows_fired() -> None:
    out = Collect()
    rig = Rig(counting(out))
    rig.feed(at("a", 1), 1)
    task = rig.tasks[task_name(0, 0)]
    actions = rig.tell(task, Trigger(1, finish=True))
    assert [type(a.message) for a in actions if isinstance(a, Emit)] == [End, Barrier]
    assert [row["n"] for row in out.rows] == [1]
    assert out.prepared == [(1, 1)]
    assert all(ack.ended for ack in rig.acks[1].values())


# --- what an ack says -------------------------------------------------------------------------------------------------


def test_an_ack_names_positions_times_floors_committables_counters_and_whom_it_read() -> None:
    out = Collect()
    rig = Rig(counting(out, splits=("s0", "s1"), delay="1s"))
    rig.feed(at("a", 1, 3), {"row": 2}, split="s0")
    rig.feed(at("b", 13), 7, split="s1")
    rig.feed(at("b", 14), 8, split="s0")
    cut = rig.barrier(1)
    reading, keyed = cut.acks[task_name(0, 0)], cut.acks[task_name(1, 0)]
    assert reading.uid == "uid-0-0"
    assert reading.splits == {
        "hand": {
            "s0": {"position": 8, "watermark": 13 * S - 1, "idle": False, "ended": False},
            "s1": {"position": 7, "watermark": 12 * S - 1, "idle": False, "ended": False},
        }
    }
    assert reading.states == reading.watermarks == reading.committables == {}
    assert keyed.consumed == {task_name(0, 0): "uid-0-0"}
    assert keyed.watermarks == {"counts": 12 * S - 1}
    assert keyed.floors == {"counts/timers": [[0, 127, 12 * S - 1]]}
    assert keyed.committables == {"out": [{"epoch": 1, "rows": 1, "uid": "uid-1-0"}]}
    assert set(keyed.states) == {"counts/accumulators", "counts/timers"}
    assert all(type(handle) is dict for handles in keyed.states.values() for handle in handles)
    assert keyed.splits == {}
    assert reading.counters["source hand.read"] == 4
    assert keyed.counters["window_aggregate counts.out"] == keyed.counters["write out.in"] == 1


def test_a_snapshot_without_news_names_the_same_files_and_no_committables() -> None:
    rig = Rig(counting())
    rig.feed(at("a", 1), 1)
    first, second = rig.barrier(1), rig.barrier(2)
    assert first.restored == second.restored
    assert second.acks[task_name(1, 0)].committables == {"out": []}


def test_what_an_aborted_epoch_prepared_goes_with_the_next_until_one_is_completed() -> None:
    out = Collect()
    p = pen.Pipeline("plain")
    hand(p).write(out)
    rig = Rig(p.plan())
    (task,) = rig.tasks.values()

    def committables(epoch: int) -> list[int]:
        rig.feed(at("a", epoch), epoch)
        return [c["epoch"] for c in rig.barrier(epoch).acks[task.name].committables["out"]]

    assert committables(1) == [1]
    rig.tell(task, Aborted(1))
    assert committables(2) == [1, 2]
    rig.tell(task, Aborted(2))
    assert committables(3) == [1, 2, 3]
    rig.tell(task, Completed(3))
    assert committables(4) == [4]
    assert committables(5) == [4, 5], "nobody has said yet what became of epoch 4"
    rig.tell(task, Completed(4))
    assert committables(6) == [5, 6]


def test_a_state_that_could_not_be_stored_is_declined_and_whole_in_the_next_snapshot() -> None:
    plan = counting()
    task = one_task(plan, 1)
    list(task.handle(Arrived(0, message(plan, "a", 1))))
    assert [type(a) for a in task.handle(Arrived(0, Barrier(1)))] == [Store]
    assert list(task.handle(StoreFailed(1, "the disk is full"))) == [Decline(1, "the disk is full")]
    list(task.handle(Aborted(1)))
    list(task.handle(Arrived(0, message(plan, "b", 2))))
    (frozen,) = list(task.handle(Arrived(0, Barrier(2))))
    (ack,) = [a.ack for a in task.handle(answered(task, frozen)) if isinstance(a, Ack)]
    assert sum(handle["rows"] for handle in ack.states["counts/accumulators"]) == 2
    assert sum(handle["rows"] for handle in ack.states["counts/timers"]) == 2


def test_counters_are_of_the_attempt_and_count_late_rows_one_by_one_through_partial_aggregates() -> None:
    rig = Rig(counting(), own_time=True)
    rig.feed(at("a", 1, 2), 2)
    rig.watermark(10 * S - 1)
    rig.feed(at("a", 1, 2, 3), 5)
    assert rig.counters()["window_aggregate counts.late"] == 3
    assert rig.counters()["partial counts:partial.in"] == 5
    cut = rig.barrier(1)
    again = Rig(rig.plan, cut=cut, files=rig.files)
    assert again.counters().get("window_aggregate counts.late", 0) == 0


# --- the end ----------------------------------------------------------------------------------------------------------


def test_the_end_fires_every_window_once_and_comes_after_the_rows() -> None:
    out = Collect()
    rig = Rig(counting(out))
    rig.feed(at("a", 1, 2, 31), 3)
    rig.feed(at("b", 1000), 4)
    rig.end()
    assert sorted((r["k"], r["n"]) for r in out.rows) == [("a", 1), ("a", 2), ("b", 1)]
    emitted = [a.message for name, a in rig.log if name == task_name(0, 0) and isinstance(a, Emit)]
    assert [type(m) for m in emitted].count(End) == 1
    assert isinstance(emitted[-1], End)
    rig.barrier(1)
    assert len(out.rows) == 3


def test_a_middle_stage_sends_the_rows_of_its_last_windows_before_its_end() -> None:
    plan = chained()
    task = one_task(plan, 1)
    list(task.handle(Arrived(0, message(plan, "a", 1))))
    sent = [a.message for a in task.handle(Arrived(0, End())) if isinstance(a, Emit)]
    assert [type(m) for m in sent] == [Batch, End]
    assert task.ended


def test_a_task_ends_only_with_the_last_of_its_inputs() -> None:
    plan = chained()
    task = one_task(plan, 1, parallelism=2)
    list(task.handle(Arrived(0, Watermark(5))))
    assert not [a for a in task.handle(Arrived(0, End())) if isinstance(a, Emit)]
    assert not task.ended
    sent = [(a.target, a.message) for a in task.handle(Arrived(1, End())) if isinstance(a, Emit)]
    assert sent == [(0, End()), (1, End())]
    assert task.ended


def test_the_end_of_sources_is_told_once() -> None:
    task = one_task(counting(), 0)
    list(task.handle(SplitsAssigned([SplitAssigned("hand", "s0", None)])))
    list(task.handle(SplitEnded("hand", "s0")))
    assert [a.message for a in task.handle(SourcesEnded())] == [End()]
    assert list(task.handle(SourcesEnded())) == []


# --- time -------------------------------------------------------------------------------------------------------------


def test_a_source_task_without_splits_is_idle() -> None:
    task = one_task(counting(), 0, parallelism=2, index=1)
    assert [(a.target, a.message) for a in task.handle(SplitsAssigned([]))] == [(0, Idle()), (1, Idle())]


def test_a_source_task_without_splits_does_not_hold_back_the_others() -> None:
    out = Collect()
    rig = Rig(counting(out), parallelism=2)
    rig.feed(at("a", 1), 1)
    rig.feed(at("a", 9.999999), 2)
    assert out.rows == []
    rig.feed(at("a", 10), 3)
    assert [row["n"] for row in out.rows] == [2]


def test_a_silent_split_holds_time_back_until_it_is_idle_and_counts_again_once_it_speaks() -> None:
    task = one_task(counting(splits=("s0", "s1")), 0)
    columns = list(task.stage.sources[0].columns)

    def times(event: Any) -> list[Any]:
        return [a.message for a in task.handle(event) if isinstance(a, Emit) and not isinstance(a.message, Batch)]

    list(task.handle(SplitsAssigned([SplitAssigned("hand", "s0", None), SplitAssigned("hand", "s1", None)])))
    assert times(Read("hand", "s0", at("a", 5).select(columns), 1)) == []
    assert times(SplitIdle("hand", "s1")) == [Watermark(5 * S - 1)]
    assert times(SplitIdle("hand", "s0")) == [Idle()]
    assert times(Read("hand", "s1", at("a", 2).select(columns), 1)) == [Watermark(5 * S - 1)], "awake, and time never goes back"
    assert times(Read("hand", "s1", at("a", 9).select(columns), 2)) == [Watermark(9 * S - 1)]
    (ack,) = [a.ack for a in task.handle(Trigger(1)) if isinstance(a, Ack)]
    assert {split: s["idle"] for split, s in ack.splits["hand"].items()} == {"s0": True, "s1": False}


def test_an_ended_split_does_not_close_the_windows_of_an_idle_one() -> None:
    out, late = Collect("out"), Collect("late")
    rig = Rig(counting(out, late=late, splits=("s0", "s1")), parallelism=2)
    rig.feed(at("a", 1), 1, split="s0")
    rig.feed(at("a", 1), 1, split="s1")
    rig.tell(rig.reader("hand", "s1"), SplitIdle("hand", "s1"))
    rig.tell(rig.reader("hand", "s0"), SplitEnded("hand", "s0"))
    rig.tell(rig.tasks[task_name(0, 0)], SourcesEnded())
    rig.feed(at("a", 2), 2, split="s1")
    assert late.rows == []
    rig.tell(rig.reader("hand", "s1"), SplitEnded("hand", "s1"))
    rig.tell(rig.tasks[task_name(0, 1)], SourcesEnded())
    assert [row["n"] for row in out.rows] == [3]


def test_a_restored_split_goes_on_at_its_own_time() -> None:
    task = one_task(counting(splits=("s0", "s1")), 0)
    assigned = [SplitAssigned("hand", "s0", 5, time=7 * S), SplitAssigned("hand", "s1", 6, time=9 * S)]
    assert [a.message for a in task.handle(SplitsAssigned(assigned))] == [Watermark(7 * S)]
    columns = list(task.stage.sources[0].columns)
    sent = [a.message for a in task.handle(Read("hand", "s0", at("a", 3).select(columns), 6)) if isinstance(a.message, Watermark)]
    assert sent == [], "an older row does not turn time back"
    (ack,) = [a.ack for a in task.handle(Trigger(1)) if isinstance(a, Ack)]
    assert {split: s["watermark"] for split, s in ack.splits["hand"].items()} == {"s0": 7 * S, "s1": 9 * S}


def test_an_ended_split_stays_ended_after_a_restore_and_holds_nobody_back() -> None:
    out = Collect()
    rig = Rig(counting(out, splits=("s0", "s1")))
    rig.feed(at("a", 1), 1, split="s0")
    rig.tell(rig.reader("hand", "s1"), SplitEnded("hand", "s1"))
    cut = rig.barrier(1)
    assert cut.splits["hand"]["s1"]["ended"]
    again = Rig(rig.plan, cut=cut, files=rig.files)
    again.feed(at("a", 12), 2, split="s0")
    assert [row["n"] for row in out.rows] == [1]
    assert again.barrier(2).splits["hand"]["s1"]["ended"]


def test_the_time_of_a_restored_task_never_goes_back() -> None:
    out, late = Collect("out"), Collect("late")
    plan = counting(out, late=late)
    rig = Rig(plan, own_time=True)
    rig.feed(at("a", 1), 1)
    rig.watermark(20 * S)
    again = Rig(plan, cut=rig.barrier(1), files=rig.files, own_time=True)
    assert again.tasks[task_name(1, 0)].watermark() == 20 * S
    again.watermark(3 * S)
    assert again.tasks[task_name(1, 0)].watermark() == 20 * S
    again.feed(at("b", 5), 2)
    assert len(late.rows) == 1
    assert again.barrier(2).acks[task_name(1, 0)].watermarks == {"counts": 20 * S}


@pytest.mark.parametrize(
    ("row_us", "watermark_us", "is_late"),
    [
        (10 * S - 1, 10 * S - 1, True),  # the last moment of the window has passed
        (0, 10 * S - 1, True),
        (10 * S - 1, 10 * S - 2, False),  # one microsecond before it has
        (0, 10 * S - 2, False),  # older than the watermark, but its window is open
        (10 * S, 10 * S - 1, False),  # first moment of the next window
        (10 * S, 10 * S, False),
        (-1, -1, True),
        (-1, -2, False),
        (-10 * S, -1, True),
        (-10 * S - 1, -10 * S - 1, True),
        (0, -1, False),
    ],
)
@pytest.mark.parametrize("read_late", [False, True], ids=["partial", "late is read"])
def test_a_row_is_late_exactly_once_the_last_moment_of_its_window_has_passed(
    row_us: int, watermark_us: int, is_late: bool, read_late: bool
) -> None:
    out, late = Collect("out"), Collect("late")
    rig = Rig(counting(out, late=late if read_late else None), own_time=True)
    rig.watermark(watermark_us)
    rig.feed(table([{"k": "a", "at": row_us}]), 1)
    assert rig.counters().get("window_aggregate counts.late", 0) == int(is_late)
    assert len(late.rows) == int(is_late and read_late)
    rig.end()
    assert len(out.rows) == int(not is_late)


def test_a_window_fires_exactly_at_its_last_moment() -> None:
    out = Collect()
    rig = Rig(counting(out), own_time=True)
    rig.feed(at("a", 0, 9.999999), 2)
    rig.watermark(10 * S - 2)
    assert out.rows == []
    rig.watermark(10 * S - 1)
    assert [(r["n"], r["window_start"].timestamp(), r["window_end"].timestamp()) for r in out.rows] == [(2, 0.0, 10.0)]


def test_a_window_that_has_fired_stays_closed_for_its_own_key_group_after_a_rescale() -> None:
    out, late = Collect("out"), Collect("late")
    plan = counting(out, late=late)
    ahead, behind = key_owned_by(0, 2), key_owned_by(1, 2)
    rig = Rig(plan, 2, own_time=True)
    rig.feed(table([{"k": ahead, "at": 1 * S}, {"k": behind, "at": 1 * S}]), 2)
    task = rig.tasks[task_name(1, 0)]
    for channel in task.channels:
        rig.tell(task, Arrived(channel.number, Watermark(10 * S - 1)))
    assert [row["k"] for row in out.rows] == [ahead]
    cut = rig.barrier(1)
    assert cut.restored.floors["counts/timers"] == [[0, 63, 10 * S - 1]]

    one = Rig(plan, 1, cut=cut, files=rig.files, own_time=True)
    assert one.tasks[task_name(1, 0)].watermark() == TIME_MIN, "time is the least of the two"
    one.feed(table([{"k": ahead, "at": 2 * S}, {"k": behind, "at": 2 * S}]), 4)
    assert [row["k"] for row in late.rows] == [ahead]

    two = Rig(plan, 2, cut=one.barrier(2), files=rig.files, own_time=True)
    two.feed(table([{"k": ahead, "at": 3 * S}, {"k": behind, "at": 3 * S}]), 6)
    assert [row["k"] for row in late.rows] == [ahead, ahead]
    two.end()
    assert [(row["k"], row["n"]) for row in out.rows] == [(ahead, 1), (behind, 3)]


def test_time_of_a_task_with_two_inputs_is_the_least_of_both() -> None:
    plan = chained()
    task = one_task(plan, 1, parallelism=2)
    assert list(task.handle(Arrived(0, Watermark(50)))) == []
    sent = list(task.handle(Arrived(1, Watermark(20))))
    assert [a.message for a in sent] == [Watermark(20), Watermark(20)]
    assert [a.message for a in task.handle(Arrived(1, Idle()))] == [Watermark(50), Watermark(50)]
    assert [a.message for a in task.handle(Arrived(0, Idle()))] == [Idle(), Idle()]


def test_the_end_of_time_is_never_sent_as_a_watermark() -> None:
    rig = Rig(counting(splits=("s0", "s1")))
    rig.feed(at("a", 1), 1, split="s0")
    rig.end()
    times = [a.message.time for _, a in rig.log if isinstance(a, Emit) and isinstance(a.message, Watermark)]
    assert TIME_MAX not in times
    assert times == sorted(times)


# --- frames and routes ------------------------------------------------------------------------------------------------


def wide_plan() -> PhysicalPlan:
    p = pen.Pipeline("wide")
    hand(p).select("k", "s").key_by("k").reduce(lambda a, b: a, name="first").write(Collect())
    return p.plan()


def sent_batches(plan: PhysicalPlan, rows: list[dict[str, Any]], parallelism: int = 1) -> list[tuple[int, Batch]]:
    task = one_task(plan, 0, parallelism=parallelism)
    list(task.handle(SplitsAssigned([SplitAssigned("hand", "s0", None)])))
    batch = table(rows).select(list(plan.reads[0].columns))
    return [(a.target, a.message) for a in task.handle(Read("hand", "s0", batch, 1)) if isinstance(a, Emit)]


def test_frames_are_cut_at_the_limit_and_keep_every_row_in_order() -> None:
    rows = [{"k": str(n), "s": "x" * 1024} for n in range(9 * 1024)]
    sent = [m for _, m in sent_batches(wide_plan(), rows)]
    assert len(sent) >= 3
    assert all(m.bytes <= dealing.FRAME_BYTES_MAX for m in sent)
    assert [k for m in sent for k in m.payload.column("k").to_pylist()] == [row["k"] for row in rows]
    assert sum(m.rows for m in sent) == len(rows)


def test_frames_keep_the_limit_however_uneven_rows_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dealing, "FRAME_BYTES_MAX", 10_000)
    rows = [{"k": str(n), "s": "x" * (8_000 if n < 10 else 1)} for n in range(1000)]
    sent = [m for _, m in sent_batches(wide_plan(), rows)]
    assert max(m.bytes for m in sent) <= 10_000
    assert [k for m in sent for k in m.payload.column("k").to_pylist()] == [row["k"] for row in rows]


def test_a_row_larger_than_a_frame_travels_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dealing, "FRAME_BYTES_MAX", 1_000)
    sent = [m for _, m in sent_batches(wide_plan(), [{"k": "a", "s": "x" * 5_000}, {"k": "b", "s": "y"}])]
    assert [m.rows for m in sent] == [1, 1]


def test_rows_go_to_the_task_that_owns_their_key_group_in_their_order() -> None:
    rows = [{"k": f"k{n % 17}", "s": str(n)} for n in range(200)] + [{"k": None, "s": "null"}]
    sent = sent_batches(wide_plan(), rows, parallelism=3)
    assert sorted({target for target, _ in sent}) == [0, 1, 2]
    for target, m in sent:
        groups = groups_of(hash_keys(canonical_keys(m.payload, ["k"])), 128)
        assert set(owner(groups, 3, 128).tolist()) == {target}
        texts = [int(s) for s in m.payload.column("s").to_pylist() if s != "null"]
        assert texts == sorted(texts)


def test_input_channels_are_numbered_the_same_way_by_everybody() -> None:
    plan = chained()
    found = [(c.number, c.source) for c in input_channels(plan.stages[1], 1, 3)]
    assert found == [(0, 0), (1, 1), (2, 2)]
    assert input_channels(plan.stages[0], 0, 3) == []


# --- rows that cannot be processed ------------------------------------------------------------------------------------


def failing_plan(on_error: str, dead: Collect | None = None, out: Collect | None = None) -> PhysicalPlan:
    p = pen.Pipeline("failing", on_error=on_error)
    hand(p).with_watermark("at", delay="0s").with_columns(ratio=10 / col("i")).select("k", "ratio").write(out or Collect())
    if dead is not None:
        p.dead_letters.write(dead)
    return p.plan()


def test_a_bad_row_stops_a_job_that_fails_on_errors_and_the_error_names_the_step_and_the_row() -> None:
    rig = Rig(failing_plan("fail"))
    with pytest.raises(RowError) as caught:
        rig.feed(table([{"k": "a", "i": 1, "at": 0}, {"k": "b", "i": 0, "at": 0}]), 2)
    text = str(caught.value)
    assert "of source 'hand', split 's0'" in text
    assert "'i': 0" in text
    assert "'k': 'b'" in text
    assert 'pen.Pipeline(..., on_error="dead-letter")' in text


def test_a_row_without_event_time_stops_a_job_that_fails_on_errors() -> None:
    rig = Rig(failing_plan("fail"))
    with pytest.raises(RowError, match="the event time 'at' is null"):
        rig.feed(table([{"k": "a", "i": 1, "at": None}]), 1)


def test_bad_rows_become_dead_letters_with_step_place_error_record_and_time() -> None:
    dead, out = Collect("dead"), Collect("out")
    rig = Rig(failing_plan("dead-letter", dead, out))
    rig.feed(table([{"k": "a", "i": 0, "at": 5 * S}, {"k": "b", "i": 1, "at": None}, {"k": "c", "i": 5, "at": 6 * S}]), 3)
    assert [row["k"] for row in out.rows] == ["c"]
    by_record = {row["record"].split("'k': '")[1][0]: row for row in dead.rows}
    assert set(by_record) == {"a", "b"}
    assert by_record["a"]["event_time"].timestamp() == 5
    assert "division by zero" in by_record["a"]["error"].lower()
    assert by_record["b"]["event_time"] is None
    assert by_record["b"]["error"] == "the event time 'at' is null"
    for row in dead.rows:
        assert (row["source"], row["split"], row["position"]) == ("hand", "s0", "3")
    counters = rig.counters()
    assert sum(n for key, n in counters.items() if key.endswith(".dead")) == 2
    assert counters["source hand.read"] == 3


def test_a_dead_letter_says_only_what_is_wrong_with_its_own_row() -> None:
    dead = Collect("dead")
    p = pen.Pipeline("failing", on_error="dead-letter")
    hand(p).select(a="10 / j", b="cast(s as bigint)").write(Collect())
    p.dead_letters.write(dead)
    rig = Rig(p.plan())
    rig.feed(table([{"j": 0, "s": "1"}, {"j": 1, "s": "no"}, {"j": 0, "s": "no"}, {"j": 1, "s": "1"}]), 4)
    zero, bad_cast, both = (row["error"] for row in dead.rows)
    assert zero != bad_cast
    assert both == f"{zero}; {bad_cast}"


def test_a_record_that_could_not_be_decoded_is_a_dead_letter_at_its_own_position() -> None:
    dead = Collect("dead")
    rig = Rig(failing_plan("dead-letter", dead))
    rig.feed(table([{"k": "a", "i": 1, "at": 0}]), 9, bad=(BadRecord(4, "no JSON", "{oops"), BadRecord(8, "not an object", "[]")))
    assert [(r["step"], r["position"], r["error"], r["record"]) for r in dead.rows] == [
        ("hand", "4", "no JSON", "{oops"),
        ("hand", "8", "not an object", "[]"),
    ]
    assert rig.counters()["source hand.read"] == 3


def test_a_record_that_could_not_be_decoded_stops_a_job_that_fails_on_errors() -> None:
    rig = Rig(failing_plan("fail"))
    with pytest.raises(RowError, match=r"source 'hand' \(.*\), split 's0', position 4: no JSON\. The record: \{oops"):
        rig.feed(None, 9, bad=(BadRecord(4, "no JSON", "{oops"),))


def test_a_restored_state_of_another_shape_is_refused() -> None:
    rig = Rig(counting())
    rig.feed(at("a", 1), 1)
    cut = rig.barrier(1)
    p = pen.Pipeline("counting")
    timed = hand(p).with_watermark("at", delay="0s")
    timed.key_by("k").window(pen.tumbling("10s")).aggregate(n=pen.count(), low="min(s)", name="counts").write(Collect())
    with pytest.raises(StorageError, match="no run of this state"):
        Rig(p.plan(), cut=cut, files=rig.files)
