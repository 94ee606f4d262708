"""Partial rows of several large reads that go on as one, and time behind them."""

from __future__ import annotations

import queue
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock as pen
from penstock import sinks, sources
from penstock.operators import aggregate
from penstock.plan.physical import PhysicalPlan
from penstock.protocol.messages import Batch, Emit, Message, Paused, Read, SplitEnded, SplitIdle, Trigger, Watermark
from runtime.rig import Collect, Rig, hand, table

S = 1_000_000


@pytest.fixture(autouse=True)
def any_read_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aggregate, "HELD_ROWS_MIN", 1)
    for every in ("TRIED_EVERY", "TRIED_EVERY_LARGE"):
        monkeypatch.setattr(aggregate, every, 1)  # folding one row saves nothing


def counting(out: Collect, *, windows: bool = True) -> PhysicalPlan:
    p = pen.Pipeline("test")
    keyed = hand(p).with_watermark("at", delay="0s").key_by("k")
    counts = (keyed.window(pen.tumbling("10s")) if windows else keyed).aggregate(n=pen.count(), name="counts")
    counts.write(out)
    return p.plan()


def at(*seconds: float, key: str = "a") -> pa.RecordBatch:
    return table([{"k": key, "at": int(second * S)} for second in seconds])


class Source:
    """The task that reads, and what it sends, in words: numbers of rows, and times."""

    def __init__(self, **options: Any) -> None:
        self.out = Collect("out")
        self.rig = Rig(counting(self.out, **options))
        self.task = self.rig.reader("hand", "s0")

    def reads(self, *seconds: float) -> list[Any]:
        columns = list(self.rig.plan.reads[0].columns)
        return self.hears(Read("hand", "s0", at(*seconds).select(columns), 0))

    def hears(self, event: Any) -> list[Any]:
        return [word(each.message) for each in self.rig.tell(self.task, event) if isinstance(each, Emit)]


def word(message: Message) -> Any:
    match message:
        case Batch(payload=rows):
            return {f"rows of {start // S}": n for start, n in zip(rows["__window"].to_pylist(), rows["__rows"].to_pylist())}
        case Watermark(time):
            return f"time {(time + 1) / S:g}"
    return type(message).__name__


def test_four_reads_are_sent_as_one_and_time_after_them() -> None:
    source = Source()
    assert [source.reads(second, second) for second in (1, 2, 12, 13)] == [[], [], [], []]
    assert source.reads(14) == [{"rows of 0": 4, "rows of 10": 4}, "time 13"]
    assert source.task.holding


@pytest.mark.parametrize(
    "event",
    [Paused(), Trigger(1), SplitIdle("hand", "s0"), SplitEnded("hand", "s0")],
    ids=lambda event: type(event).__name__,
)
def test_whatever_else_happens_first_lets_them_go(event: Any) -> None:
    source = Source()
    assert source.reads(1, 2) == []
    sent = source.hears(event)
    assert sent[:2] == [{"rows of 0": 2}, "time 2"]
    assert not source.task.holding


def test_a_row_of_a_window_that_has_ended_meanwhile_goes_behind_the_time_that_ended_it() -> None:
    source = Source()
    assert source.reads(1) == []
    assert source.reads(25) == []
    assert source.reads(2, 26) == [{"rows of 0": 1, "rows of 20": 1}, "time 25"]
    assert source.hears(Paused()) == [{"rows of 0": 1, "rows of 20": 1}, "time 26"]
    assert source.rig.counters()["window_aggregate counts.late"] == 1
    source.rig.end()
    assert [row["n"] for row in source.out.rows] == [1, 2]


def test_a_small_read_goes_at_once_behind_what_was_held(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source()
    assert source.reads(1) == []
    monkeypatch.setattr(aggregate, "HELD_ROWS_MIN", 2)
    assert source.reads(3) == [{"rows of 0": 1}, "time 1", {"rows of 0": 1}, "time 3"]


def test_nothing_is_said_of_time_that_did_not_move() -> None:
    source = Source()
    assert source.reads(5) == []
    assert source.hears(Paused()) == [{"rows of 0": 1}, "time 5"]
    assert source.reads(4) == []
    assert source.hears(Paused()) == [{"rows of 0": 1}]


def test_running_results_are_not_held_back() -> None:
    out = Collect("out")
    rig = Rig(counting(out, windows=False))
    rig.feed(at(1), 1)
    assert [row["n"] for row in out.rows] == [1]


def test_what_is_read_and_not_followed_by_more_is_not_kept_waiting(tmp_path: Path) -> None:
    fired = queue.SimpleQueue[int]()

    def tell(n: int) -> int:
        fired.put(n)
        return n

    (tmp_path / "rows.csv").write_text("k,at\na,1970-01-01T00:00:01Z\na,1970-01-01T00:00:02Z\na,1970-01-01T00:00:12Z\n")
    p = pen.Pipeline("held")
    events = p.read(sources.files(tmp_path, schema="k string, at timestamp", watch="1h", splits=1))
    counts = events.with_watermark("at", delay="0s").key_by("k").window(pen.tumbling("10s")).aggregate(n=pen.count(), name="n")
    counts.select(n=pen.udf(returns="bigint")(tell)(pen.col("n"))).write(sinks.memory("held"))
    job = p.start(pen.Local(snapshot_every="1h"))  # so that no barrier comes
    try:
        assert fired.get(timeout=20) == 2
    finally:
        job.cancel()
