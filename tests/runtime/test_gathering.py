"""Watermarks that are gathered: a task passes them on when the runner says so, and no row is late for that."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

import penstock as pen
from penstock import sinks, sources
from penstock.protocol.messages import Emit, Read, SplitEnded, SplitIdle, TimeGathered, Trigger, Watermark
from penstock.runners.pace import BUSY, CALM, LEAST_US, WINDOW_US, Pace
from penstock.testing import Simulated
from runtime.rig import Collect, Rig, hand, table

S = 1_000_000


class Gathering:
    """A task that reads two splits, and the times that it sends."""

    def __init__(self) -> None:
        p = pen.Pipeline("test")
        stream = hand(p, names=("s0", "s1")).with_watermark("at", delay="0s", idle_after="1s")
        stream.key_by("k").window(pen.session("10s")).aggregate(n=pen.count(), name="counts").write(Collect("out"))
        self.rig = Rig(p.plan())
        self.task = self.rig.reader("hand", "s0")
        self.task.gathers = True

    def reads(self, split: str, second: int) -> list[float]:
        rows = table([{"k": "a", "at": second * S}]).select(list(self.rig.plan.reads[0].columns))
        return self.hears(Read("hand", split, rows, second))

    def hears(self, event: Any) -> list[float]:
        """The times that are sent, in seconds."""
        sent = [each.message for each in self.rig.tell(self.task, event) if isinstance(each, Emit)]
        return [(message.time + 1) / S for message in sent if isinstance(message, Watermark)]


def test_time_waits_until_it_was_gathered() -> None:
    source = Gathering()
    assert [source.reads("s0", 1), source.reads("s1", 2), source.reads("s0", 5), source.reads("s1", 4)] == [[], [], [], []]
    assert source.task.gathering
    assert source.hears(TimeGathered()) == [4]
    assert not source.task.gathering
    assert source.hears(TimeGathered()) == []


def test_a_split_that_was_idle_holds_others_back_at_once() -> None:
    source = Gathering()
    source.reads("s0", 1)
    assert source.hears(SplitIdle("hand", "s1")) == [1]
    assert source.reads("s1", 3) == [], "it is behind nobody, and time has not moved"
    source.reads("s0", 9)
    source.reads("s1", 4)
    assert source.hears(TimeGathered()) == [4], "else rows of s1 that are in order would come late"


@pytest.mark.parametrize("event", [SplitIdle("hand", "s1"), SplitEnded("hand", "s1")], ids=["idle", "ended"])
def test_what_was_gathered_is_told_before_a_split_rests_or_ends(event: Any) -> None:
    source = Gathering()
    source.reads("s0", 5)
    source.reads("s1", 3)
    assert source.hears(event) == [3, 5]


def test_a_barrier_does_not_wait_for_time() -> None:
    source = Gathering()
    source.reads("s0", 5)
    source.reads("s1", 3)
    assert source.hears(Trigger(1)) == []
    assert source.hears(TimeGathered()) == [3]


# --- whole jobs: rows within their split's bound are never late, however time is gathered


def disordered(rng: random.Random, rows: int, delay: int) -> list[dict[str, Any]]:
    """Rows whose times go back by at most `delay` seconds."""
    time, made = 0, []
    for number in range(rows):
        time += rng.choice((0, 0, 1, 1, 2, 30))
        made.append({"k": rng.choice("abc"), "at": max(0, time - rng.randrange(delay + 1)) * S, "n": number})
    return made


@pytest.mark.parametrize("seed", range(6))
def test_no_row_within_its_bound_is_late_and_none_is_lost(seed: int) -> None:
    rng = random.Random(seed)
    delay = rng.choice((0, 3, 20))
    out, late = sinks.memory(f"gathered-{seed}"), sinks.memory(f"gathered-late-{seed}")
    p = pen.Pipeline(f"gathered-{seed}")
    streams = []
    for name in ("a", "b"):
        source = sources.memory(
            pa.Table.from_pylist(disordered(rng, 150, delay)),
            schema="k string, at bigint, n bigint",
            splits=1,
            batch=4,
            name=name,
        )
        object.__setattr__(source, "joined", True)  # else it is a script, of which each batch moves time
        rows = p.read(source).with_columns(at="cast(at / 1000000 as timestamp)").with_watermark("at", delay=f"{delay}s")
        streams.append(rows)
    counts = streams[0].union(streams[1]).key_by("k").window(pen.tumbling("10s")).aggregate(n=pen.count(), name="counts")
    counts.late.write(late)
    counts.write(out)
    job = p.run(Simulated(seed, parallelism=2, snapshot_every="20ms", watermark_every=rng.choice(("1ms", "4ms", "20ms"))))
    assert late.rows() == []
    assert sum(row["n"] for row in out.rows()) == 300
    assert job.status().state == "finished"


# --- how often splits are read


def paced(shares: list[float], latency: int = 8_000) -> list[int]:
    """The gaps between reads after windows in which so much of the time was spent at work."""
    worked, now, gaps = [0.0], 0, []
    pace = Pace(latency, 20_000, lambda: worked[0])
    pace.look(now)
    for share in shares:
        now += WINDOW_US
        worked[0] += share * WINDOW_US / 1e6
        pace.look(now)
        gaps.append(pace.every)
    return gaps


def test_a_busy_process_gathers_for_longer_up_to_the_latency() -> None:
    assert paced([BUSY + 0.1] * 5) == [2_000, 4_000, 8_000, 8_000, 8_000]


def test_a_calm_process_reads_often_again() -> None:
    assert paced([1.0, 1.0, (BUSY + CALM) / 2, CALM - 0.05, 0.0, 0.0]) == [2_000, 4_000, 4_000, 2_000, LEAST_US, LEAST_US]


def test_reads_fall_on_multiples_of_the_gap() -> None:
    pace = Pace(5_000, 20_000, lambda: 0.0)
    assert [pace.next_read(now) for now in (5_000, 5_001, 5_999)] == [6_000, 6_000, 6_000]
