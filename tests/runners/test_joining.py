"""Batches that wait together become one event, and nothing but rows that may be processed together does."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock as pen
from penstock import sinks, sources
from penstock.checkpoints.storage import MemoryStore
from penstock.protocol.messages import Arrived, Barrier, Batch, Event, Idle, Overdue, Watermark
from penstock.runners.loop import Seat, rows_of
from penstock.runners.queues import Queue, take_rows
from penstock.runtime.assemble import Site
from penstock.runtime.task import Task
from penstock.state.keygroups import groups_of, hash_keys
from runtime.rig import Collect, hand, table

GROUPS = 8

KEY = next(key for key in "abcdefgh" if groups_of(hash_keys(pa.record_batch({"k": [key]})), GROUPS)[0] < GROUPS // 2)
"""Of the first of two tasks."""


def batch(*numbers: int) -> Batch:
    rows = table([{"k": KEY, "i": number} for number in numbers]).select(["k", "i"])
    return Batch(rows, rows.num_rows, rows.nbytes)


def numbers(message: Any) -> list[int]:
    found: list[int] = message.payload.column("i").to_pylist()
    return found


# --- queues


def filled(*messages: Any) -> Queue:
    queue = Queue()
    for message in messages:
        queue.push(message)
    return queue


def test_rows_that_wait_are_taken_in_order_queue_by_queue() -> None:
    queues = [filled(batch(1), batch(2)), filled(), filled(batch(3, 4))]
    taken = take_rows(queues, 100)
    assert numbers(taken) == [1, 2, 3, 4]
    assert taken.rows == 4
    assert [len(queue) for queue in queues] == [0, 0, 0]
    assert [queue.bytes for queue in queues] == [0, 0, 0]


def test_what_stands_behind_a_barrier_or_rest_is_not_taken() -> None:
    queues = [filled(batch(1), Idle(), batch(2)), filled(Barrier(1), batch(3))]
    assert numbers(take_rows(queues, 100)) == [1]
    assert [len(queue) for queue in queues] == [2, 2]


def test_of_watermarks_between_rows_that_are_taken_the_last_stays() -> None:
    queue = filled(batch(1), Watermark(5), batch(2), Watermark(7), Watermark(8), batch(3, 4), Barrier(1))
    assert numbers(take_rows([queue], 2)) == [1, 2]
    assert (queue.taken, len(queue), queue.pop()) == (4, 3, Watermark(8))
    assert numbers(take_rows([queue], 2)) == [3, 4]
    assert queue.pop() == Barrier(1)
    assert (queue.taken, queue.bytes) == (7, 0), "seven messages were put in"


def test_a_watermark_behind_another_takes_its_place() -> None:
    queue = filled(Watermark(5), Watermark(7), Idle(), Watermark(9))
    assert [queue.pop() for _ in range(3)] == [Watermark(7), Idle(), Watermark(9)]
    assert (queue.taken, queue.bytes) == (4, 0)


def test_no_more_is_taken_than_was_asked_for_unless_the_first_alone_is_more() -> None:
    queues = [filled(batch(1, 2), batch(3, 4, 5)), filled(batch(6))]
    assert numbers(take_rows(queues, 4)) == [1, 2, 6]
    assert numbers(take_rows(queues, 2)) == [3, 4, 5]


def test_a_batch_can_be_taken_piece_by_piece() -> None:
    queue = filled(batch(1, 2, 3, 4, 5), Barrier(1))
    size = queue.bytes
    assert numbers(queue.pop_rows(2)) == [1, 2]
    assert (len(queue), queue.rows, queue.taken) == (2, 3, 0), "the message is not taken before its last row"
    assert queue.bytes < size
    assert [numbers(message) for message in queue.overtake(1) or ()] == [[3, 4, 5]]
    assert numbers(queue.pop()) == [3, 4, 5]
    assert queue.bytes == 0
    assert queue.taken == 2


# --- seats


class Bench:
    """A task with two inputs of one exchange, and the events it is given."""

    def __init__(self) -> None:
        p = pen.Pipeline("bench", max_parallelism=GROUPS)
        firsts = hand(p).select("k", "i").drop_duplicates("k", name="firsts")
        firsts.key_by("i").aggregate(n=pen.count(), name="n").write(Collect())
        plan = p.plan()
        stage = next(stage for stage in plan.stages if any(op.name == "firsts" for op in stage.ops))
        self.task = Task(stage, Site(plan, 2, 0, "lineage", "uid", Path("unused"), MemoryStore()))
        self.inputs = [Queue() for _ in self.task.channels]
        self.events: list[Event] = []
        edge = stage.outgoing[0].id
        self.seat = Seat(
            self.task,
            inputs=self.inputs,
            outlets={(edge, target): Queue() for target in range(2)},
            answer=lambda task, action: None,
            store=lambda seat, action: None,
        )
        self.seat.clock = lambda: 0.0  # how long a row takes must not matter here
        self.seat.observe = lambda task, event: self.events.append(event)

    def run(self) -> list[list[int]]:
        """The numbers of the rows of each event."""
        while self.seat.step(0):
            pass
        return [
            numbers(event.message) for event in self.events if isinstance(event, Arrived) and isinstance(event.message, Batch)
        ]


def put(bench: Bench, input: int, *messages: Any) -> None:
    for message in messages:
        bench.inputs[input].push(message)


def test_rows_of_both_inputs_are_one_event() -> None:
    bench = Bench()
    put(bench, 0, batch(1), batch(2))
    put(bench, 1, batch(3))
    assert bench.run() == [[1, 2, 3]]


def test_a_held_input_gives_nothing() -> None:
    bench = Bench()
    put(bench, 0, Barrier(1), batch(1))
    put(bench, 1, batch(2))
    assert bench.run() == [[2]]
    put(bench, 1, Barrier(1), batch(3))
    joined = bench.run()[1:]
    assert [sorted(each) for each in joined] == [[1, 3]]


def test_an_input_that_was_idle_is_woken_by_its_own_rows() -> None:
    bench = Bench()
    put(bench, 1, Idle())
    bench.run()
    put(bench, 0, batch(1))
    put(bench, 1, batch(2), batch(3))
    assert bench.run() == [[1], [2, 3]]


def test_rows_are_joined_while_a_snapshot_is_awaited_too() -> None:
    bench = Bench()
    bench.seat.trigger(1, finish=False, overdue_at=1_000)
    put(bench, 0, batch(1), batch(2))
    put(bench, 1, batch(3), Barrier(1), batch(4))
    assert bench.run() == [[1, 2, 3]]


def test_rows_that_are_recorded_are_not_joined_with_those_of_another_input() -> None:
    bench = Bench()
    put(bench, 0, Barrier(1))
    bench.seat.post(Overdue(1))
    put(bench, 1, batch(1))
    put(bench, 0, batch(2))
    bench.run()
    assert bench.task.recording == (1, {1})
    put(bench, 0, batch(4))
    put(bench, 1, batch(5))
    assert not [each for each in bench.run() if {4, 5} <= set(each)]


class SlowRows:
    """A clock for a seat whose rows take `row_s` each."""

    def __init__(self, bench: Bench, row_s: float) -> None:
        self.row_s, self.now, self.rows, self.begun = row_s, 0.0, 0, False
        bench.seat.clock = self
        bench.seat.observe = lambda task, event: self.see(bench, event)

    def see(self, bench: Bench, event: Event) -> None:
        bench.events.append(event)
        self.rows = rows_of(event)

    def __call__(self) -> float:
        self.begun = not self.begun
        self.now += 0.0 if self.begun else self.rows * self.row_s
        return self.now


def test_rows_that_take_long_are_taken_in_pieces_until_they_no_longer_do() -> None:
    bench = Bench()
    clock = SlowRows(bench, 0.008)
    put(bench, 0, batch(*range(100)))
    assert [len(each) for each in bench.run()] == [100], "it says how slow they are"
    put(bench, 0, batch(*range(100, 125)))
    assert [len(each) for each in bench.run()] == [100, 12, 12, 1]
    clock.row_s = 0.000_001
    put(bench, 0, batch(*range(200, 300)))
    assert [len(each) for each in bench.run()][4:] == [12, 88]


# --- results


@pytest.mark.parametrize(("window", "times"), [(None, 1), (pen.tumbling("1s"), 1), (pen.sliding("2s", every="1s"), 2)])
def test_partial_counts_of_several_batches_are_all_counted(window: Any, times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each split has every key in every batch, so what is joined has a key several times."""
    monkeypatch.setitem(Seat.__init__.__kwdefaults__, "rows_max", 10)
    keys, rounds = 5, 200
    rows = [{"k": n % keys, "at": datetime.fromtimestamp(n / 1_000, UTC)} for n in range(keys * rounds)]
    name = f"joined-{type(window).__name__}"
    p = pen.Pipeline(name)
    stream = p.read(sources.memory(rows, schema="k bigint, at timestamp", splits=4, name="in")).with_watermark("at", delay="1h")
    keyed = stream.key_by("k")
    counted = (
        keyed.aggregate(n=pen.count(), total="sum(k)", name="n")
        if window is None
        else keyed.window(window).aggregate(n=pen.count(), name="n")
    )
    counted.write(sinks.memory(name))
    sinks.memory(name).clear()
    p.run(pen.Local(parallelism=3))
    found = sinks.memory(name).rows()
    if window is None:
        assert {row["k"]: (row["n"], row["total"]) for row in found} == {k: (rounds, k * rounds) for k in range(keys)}
    else:
        assert sum(row["n"] for row in found) == times * keys * rounds
