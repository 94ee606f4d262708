"""Alignment: what one process knows of a group, and that the runners keep splits together."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock as pen
from penstock import sinks
from penstock.connectors.connector import Chunk, Reader, Source, SourceContext
from penstock.protocol.messages import TIME_MIN
from penstock.runners.align import Alignment
from penstock.testing import Simulated

S = 1_000_000


def test_a_group_of_one_never_waits() -> None:
    alignment = Alignment()
    alignment.hear("g", "a", 100)
    assert not alignment.ahead("g", 100, 0)
    alignment.leave("g", "a")
    assert not alignment.ahead("g", 100, 0)


def test_exactly_the_drift_is_not_too_far() -> None:
    alignment = Alignment()
    alignment.hear("g", "a", 100)
    assert not alignment.ahead("g", 110, 10)
    assert alignment.ahead("g", 111, 10)


def test_groups_do_not_know_of_each_other() -> None:
    alignment = Alignment()
    alignment.hear("g", "a", 100)
    alignment.hear("h", "b", 500)
    assert alignment.own(["g", "h", "i"]) == {"g": 100, "h": 500, "i": None}
    assert not alignment.ahead("h", 500, 0)


def test_the_slowest_is_right_after_any_history() -> None:
    rng = random.Random(7)
    alignment, times = Alignment(), dict[str, int]()
    for _ in range(2000):
        split = rng.choice("abcdef")
        if rng.random() < 0.2:
            alignment.leave("g", split)
            times.pop(split, None)
        else:
            times[split] = max(times.get(split, 0), rng.randrange(1000))
            alignment.hear("g", split, times[split])
        assert alignment.own(["g"]) == {"g": min(times.values(), default=None)}


def test_processes_that_have_not_spoken_may_be_anywhere() -> None:
    alignment = Alignment(["1", "2"])
    alignment.hear("g", "a", 100)
    assert alignment.ahead("g", 100, 50)
    alignment.announced({"0": {"g": 100}, "1": {"g": 90}})
    assert alignment.ahead("g", 100, 50)
    assert not alignment.ahead("g", TIME_MIN, 50)  # who has given no time is asked for one
    alignment.announced({"0": {"g": 100}, "1": {"g": 90}, "2": {"g": None}})
    assert not alignment.ahead("g", 100, 50)


def test_nobody_waits_for_his_own_old_news() -> None:
    alignment = Alignment(["1"])
    alignment.hear("g", "a", 100)
    alignment.announced({"0": {"g": 100}, "1": {"g": 5000}})
    alignment.hear("g", "a", 4000)
    assert not alignment.ahead("g", 4000, 50)
    assert alignment.ahead("g", 5051, 1000)


# --- the runners --------------------------------------------------------------------------------------------------------

ROWS, STEP_S, DRIFT_S = 120, 10, 300


@dataclass(frozen=True)
class Logged(Source):
    """Rows `STEP_S` apart in two splits, `pace` at a time. Whoever reads writes down how far; by anybody, in order."""

    name: str
    log: str
    pace: int
    silent: bool = False  # the second split has no rows and never ends
    schema = pa.schema([("n", pa.int64()), ("at", pa.timestamp("us", tz="UTC"))])
    bounded = True

    def splits(self) -> tuple[str, ...]:
        return "0", "1"

    def open(self, split: str, position: Any, context: SourceContext) -> Reader:
        looks = context.began is not None and context.began.now_us is None  # the driver, whether there are rows
        return LoggedReader(self, split, position or 0, context.columns, logs=not looks)

    def describe(self) -> str:
        return "logged"


class LoggedReader(Reader):
    def __init__(self, source: Logged, split: str, position: int, columns: tuple[str, ...], *, logs: bool) -> None:
        self._source, self._split, self._position, self._columns, self._logs = source, split, position, columns, logs
        self._silent = source.silent and split == "1"

    def poll(self, rows_max: int) -> Chunk | None:
        if self._silent:
            return None
        first = self._position
        last = self._position = min(first + min(self._source.pace, rows_max), ROWS)
        if first < last and self._logs:
            with open(self._source.log, "a") as log:
                log.write(f"{self._source.name}/{self._split} {(last - 1) * STEP_S}\n")
        rows = pa.record_batch(
            {"n": pa.array(range(first, last), pa.int64()), "at": pa.array([n * STEP_S * S for n in range(first, last)])}
        ).cast(self._source.schema)
        return Chunk(rows.select(list(self._columns)), last, ended=last == ROWS)

    def backlog(self) -> bool:
        return not self._silent and self._position < ROWS


def pair(log: Path, *, align: bool = True, **quiet: Any) -> pen.Pipeline:
    """Two sources that nothing joins but their group: each its own tasks, and its own sink."""
    p = pen.Pipeline("pair")
    group = {"align": "pair", "drift": f"{DRIFT_S}s"} if align else {}
    sources = [Logged("fast", str(log), 10), Logged("slow", str(log), 2, **quiet)]
    for source in sources:
        stream = p.read(source, name=source.name).with_watermark("at", delay="0s", idle_after="1s", **group)
        stream.select("n").write(sinks.memory(f"{log.parent.name}-{source.name}"), name=source.name)
    return p


def lead(log: Path) -> int:
    """By how much any split ever was ahead of the slowest that had not ended, when it was read."""
    times = dict.fromkeys(["fast/0", "fast/1", "slow/0", "slow/1"], -1)
    most = 0
    for line in log.read_text().splitlines():
        split, at = line.split()
        times[split] = int(at)
        most = max(most, int(at) - min(times.values()))
        if int(at) == (ROWS - 1) * STEP_S:
            del times[split]
    return most


def written(log: Path) -> list[tuple[str, int]]:
    return [(side, row["n"]) for side in ("fast", "slow") for row in sinks.memory(f"{log.parent.name}-{side}").rows()]


def together(log: Path, runner: Any) -> None:
    """Run, and check that nothing is lost and nobody ran ahead by more than the drift and one read."""
    pair(log).run(runner)
    assert sorted(written(log)) == [(side, n) for side in ("fast", "slow") for n in range(ROWS) for _ in range(2)]
    assert 0 < lead(log) <= DRIFT_S + 10 * STEP_S


@pytest.mark.parametrize("parallelism", [1, 2])
def test_local_keeps_sources_together(tmp_path: Path, parallelism: int) -> None:
    together(tmp_path / "log", pen.Local(parallelism=parallelism))


@pytest.mark.parametrize("seed", range(3))
def test_simulated_keeps_sources_together(tmp_path: Path, seed: int) -> None:
    together(tmp_path / "log", Simulated(seed, parallelism=2))


def test_without_alignment_the_fast_one_runs_ahead(tmp_path: Path) -> None:
    pair(tmp_path / "log", align=False).run(pen.Local())
    assert lead(tmp_path / "log") > 700


def test_a_silent_split_is_waited_for_until_it_is_idle_and_no_longer(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with pair(log, silent=True).start(pen.Local()):
        began = time.monotonic()
        while len(log.read_text().splitlines() if log.exists() else ()) < 2 * ROWS / 10 + ROWS / 2:
            assert time.monotonic() - began < 30, "it waits for ever"
            time.sleep(0.02)
    assert time.monotonic() - began > 0.8


@pytest.mark.spark
def test_micro_batches_keep_sources_together(spark: Any, tmp_path: Path) -> None:
    together(tmp_path / "log", pen.MicroBatch(spark, parallelism=2, snapshot_every="20ms"))


@pytest.mark.spark
def test_continuous_workers_keep_sources_together(spark: Any, tmp_path: Path) -> None:
    together(tmp_path / "log", pen.Continuous(spark, parallelism=2, snapshot_every="200ms"))


@pytest.mark.spark
def test_a_batch_reads_all_there_is_without_waiting(spark: Any, tmp_path: Path) -> None:
    pair(tmp_path / "log").run(pen.Batch(spark, parallelism=2))
    assert len(written(tmp_path / "log")) == 4 * ROWS
