"""Seats: which splits are read, when one is idle, and when it waits for others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

import penstock as pen
from penstock.checkpoints.manifest import SplitEntry
from penstock.connectors.connector import Chunk, Reader
from penstock.protocol.messages import Ack, Event, Read, SplitAssigned, SplitEnded, SplitIdle, SplitsAssigned
from penstock.runners.align import Alignment
from penstock.runners.cut import StartPoint
from penstock.runners.loop import Seat, open_readers
from penstock.runners.pace import Pace
from penstock.runners.queues import Queue
from runtime.rig import Collect, hand, one_task, table

S = 1_000_000


@dataclass
class Fed(Reader):
    """Rows that the test puts there, one batch per poll."""

    waiting: list[pa.RecordBatch] = field(default_factory=list)
    asked: int = 0
    over: bool = False

    def poll(self, rows_max: int) -> Chunk | None:
        self.asked += 1
        if self.waiting:
            return Chunk(self.waiting.pop(0), self.asked, ended=self.over and not self.waiting)
        return Chunk(None, self.asked, ended=True) if self.over else None

    def backlog(self) -> bool:
        return bool(self.waiting)

    def put(self, *times: float) -> None:
        self.waiting += [table([{"k": "a", "at": int(t * S)}]).select(["k", "at"]) for t in times]


class Bench:
    """One source seat, its splits, and a clock in seconds."""

    def __init__(
        self,
        splits: Sequence[str] = ("s0", "s1"),
        *,
        alignment: Alignment | None = None,
        assigned: Sequence[SplitAssigned] = (),
        start: StartPoint = StartPoint(),  # noqa: B008 - frozen
        **options: Any,
    ) -> None:
        p = pen.Pipeline("bench")
        stream = hand(p, names=tuple(splits)).with_watermark("at", **{"delay": "0s", "idle_after": "10s", **options})
        stream.key_by("k").aggregate(n=pen.count(), name="n").write(Collect())
        plan = p.plan()
        self.events: list[Event] = []
        self.acks: list[Ack] = []
        self.outlet = Queue(1)  # full as soon as anything is in it
        edge = plan.stages[0].outgoing[0].id
        self.seat = Seat(
            one_task(plan, 0),
            inputs=[],
            outlets={(edge, 0): self.outlet},
            answer=lambda task, action: self.acks.append(action),  # type: ignore[arg-type]
            store=lambda seat, action: None,
            alignment=alignment,
        )
        self.seat.observe = lambda task, event: self.events.append(event)
        self.readers = {split: Fed() for split in splits}
        every = list(assigned) or [SplitAssigned("hand", split, None) for split in splits]
        open_readers(self.seat, every, lambda source, split, position: self.readers[split], 0, start.silence)
        self.seat.post(SplitsAssigned(every))

    def run(self, until: float, *, drain: bool = True, since: float | None = None) -> None:
        """A step every tenth of a second."""
        self.now = since if since is not None else getattr(self, "now", 0.0)
        while self.now < until:
            self.now = round(self.now + 0.1, 1)
            for _ in range(4):
                while drain and len(self.outlet):
                    self.outlet.pop()
                self.seat.step(round(self.now * S))

    def idle(self) -> list[str]:
        return [event.split for event in self.events if isinstance(event, SplitIdle)]

    def read(self, split: str) -> int:
        return sum(isinstance(event, Read) and event.split == split for event in self.events)


# --- idleness ---------------------------------------------------------------------------------------------------------


def test_a_silent_split_is_idle_after_a_while_and_one_that_speaks_is_not() -> None:
    bench = Bench()
    for second in range(15):
        bench.readers["s0"].put(second)
        bench.run(second + 1)
    assert bench.idle() == ["s1"]


def test_time_in_which_an_outlet_was_full_is_no_silence() -> None:
    bench = Bench()
    bench.readers["s0"].put(1)
    bench.run(1)
    bench.readers["s0"].put(2)
    bench.run(60, drain=False)  # the row fills the outlet: nobody is asked for a minute
    assert bench.seat.blocked
    bench.run(68)
    assert bench.idle() == []
    bench.run(72)
    assert sorted(bench.idle()) == ["s0", "s1"]


def test_a_job_that_is_often_behind_still_notices_a_silent_split() -> None:
    bench = Bench()
    for second in range(60):  # half of each second its outlet is full
        bench.readers["s0"].put(second)
        bench.run(second + 0.5, drain=False)
        bench.run(second + 1)
    assert bench.idle() == ["s1"]
    when = next(i for i, event in enumerate(bench.events) if isinstance(event, SplitIdle))
    read = sum(isinstance(event, Read) for event in bench.events[:when])
    assert 15 <= read <= 25  # ten seconds of asking took about twenty


def test_time_in_which_sources_were_held_for_a_barrier_is_no_silence() -> None:
    bench = Bench()
    bench.run(1)
    bench.seat._held.add(-1)  # SOURCES
    bench.run(60)
    bench.seat._held.discard(-1)
    bench.run(68)
    assert bench.idle() == []
    bench.run(72)
    assert sorted(bench.idle()) == ["s0", "s1"]


def test_an_idle_split_that_speaks_again_is_active_and_may_become_idle_again() -> None:
    bench = Bench(("s0",))
    bench.run(11)
    assert bench.idle() == ["s0"]
    bench.readers["s0"].put(5)
    bench.run(12)
    assert not bench.seat.task._clocks[1].is_idle(("hand", "s0"))
    bench.run(23)
    assert bench.idle() == ["s0", "s0"]


def test_silence_goes_on_across_a_restart_and_the_time_between_does_not_count() -> None:
    bench = Bench()
    bench.readers["s0"].put(1)
    bench.run(4)
    bench.seat.trigger(1, finish=False)
    bench.run(4.1)
    (ack,) = bench.acks
    found = {split: state["last_active_us"] / S for split, state in ack.ack.splits["hand"].items()}
    assert found == {"s0": 0.1, "s1": 0}
    entries = {split: SplitEntry(None, last_active_us=round(at * S)) for split, at in found.items()}
    later = Bench(start=StartPoint(1, splits={"hand": entries}, taken_us=round(4.1 * S)))
    later.run(5)  # its clock starts at 0 again: hours may have passed
    assert later.idle() == []
    later.run(5.9)
    assert later.idle() == ["s1"]
    later.run(6)
    assert later.idle() == ["s1", "s0"]


def test_a_checkpoint_that_does_not_say_when_a_split_was_active_starts_its_silence_anew() -> None:
    assert StartPoint(1, splits={"hand": {"s0": SplitEntry(None)}}, taken_us=7).silence("hand", "s0") == 0
    assert StartPoint().silence("hand", "s0") == 0


# --- alignment --------------------------------------------------------------------------------------------------------

GROUP = {"align": "g", "drift": "60s"}


def test_a_split_too_far_ahead_waits_until_the_slowest_has_caught_up() -> None:
    bench = Bench(**GROUP)
    bench.readers["s0"].put(1000, 1050, 1100, 1150, 1200)
    bench.readers["s1"].put(990)
    bench.run(1)
    assert (bench.read("s0"), bench.read("s1")) == (3, 1)  # 1050 was within a minute of 990, and 1100 was read on its way past
    bench.readers["s1"].put(1050)
    bench.run(2)
    assert bench.read("s0") == 4
    bench.readers["s1"].put(2000)
    bench.run(3)
    assert bench.read("s0") == 5


def test_a_split_that_has_given_no_time_yet_is_waited_for_until_it_is_idle() -> None:
    bench = Bench(**GROUP)
    bench.readers["s0"].put(*range(1000, 2000, 100))
    bench.run(9.5)
    assert bench.read("s0") == 1
    bench.run(11)
    assert bench.idle() == ["s1"]
    assert bench.read("s0") == 10


def test_a_split_that_waits_for_others_is_not_idle() -> None:
    bench = Bench(**GROUP)
    bench.readers["s0"].put(1000, 2000)
    for second in range(40):
        bench.readers["s1"].put(second)
        bench.run(second + 1)
    assert bench.idle() == []
    assert bench.read("s0") == 1


def test_an_ended_split_is_not_waited_for() -> None:
    bench = Bench(**GROUP)
    bench.readers["s0"].put(*range(1000, 2000, 100))
    bench.readers["s1"].put(1)
    bench.readers["s1"].over = True
    bench.run(1)
    assert any(isinstance(event, SplitEnded) for event in bench.events)
    assert bench.read("s0") == 10


def test_an_idle_split_that_speaks_again_is_waited_for_again() -> None:
    bench = Bench(**GROUP)
    bench.readers["s0"].put(1000)
    bench.run(10.5)
    bench.readers["s1"].put(500)
    bench.run(10.7)
    bench.readers["s0"].put(1100, 1200)
    bench.run(12)
    assert bench.read("s0") == 1
    bench.readers["s1"].put(1190)
    bench.run(13)
    assert bench.read("s0") == 3


def test_seats_of_one_process_share_what_they_know() -> None:
    alignment = Alignment()
    fast, slow = Bench(("s0",), alignment=alignment, **GROUP), Bench(("s1",), alignment=alignment, **GROUP)
    fast.readers["s0"].put(1000, 1100, 1200)
    slow.readers["s1"].put(1000)
    for bench in (fast, slow, fast):
        bench.run(bench.seat._stepped_at / S + 1)
    assert fast.read("s0") == 2
    slow.readers["s1"].put(1100)
    slow.run(2)
    fast.run(3)
    assert fast.read("s0") == 3


def test_splits_that_were_restored_are_aligned_from_the_start() -> None:
    assigned = [SplitAssigned("hand", "s0", 1, 1000 * S), SplitAssigned("hand", "s1", 1, 10 * S)]
    bench = Bench(assigned=assigned, **GROUP)
    bench.readers["s0"].put(1001)
    bench.run(1)
    assert bench.read("s0") == 0


def test_a_split_that_gave_few_rows_is_looked_at_again_on_the_next_beat() -> None:
    bench = Bench(["s0"])
    bench.seat.pace = Pace(1_000, 20_000)
    reader = bench.readers["s0"]
    asked = []
    for now in (5_300, 5_900, 6_000, 6_400, 6_999, 7_700, 7_999, 8_000):
        before = reader.asked
        while bench.seat.step(now):
            pass
        asked.append(reader.asked > before)
    assert asked == [True, False, True, False, False, True, False, True]
    assert bench.seat.read_at() == 9_000


def test_a_clock_that_is_set_back_keeps_no_split_waiting() -> None:
    bench = Bench(["s0"], idle_after="2h")
    bench.seat.pace = Pace(1_000, 20_000)
    reader = bench.readers["s0"]
    for now in (3_600_000_000, 5_000):
        before = reader.asked
        while bench.seat.step(now):
            pass
        assert reader.asked > before
