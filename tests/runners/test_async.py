"""map_async on the runners: results once, at any parallelism and in any runner, although calls are under way when the job stops."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import penstock as pen
from penstock import sinks, sources
from penstock.errors import JobError
from penstock.runners.conductor import Conductor
from penstock.testing import Simulated, simulator
from unplaced import unplaced

START = datetime(2026, 1, 1, tzinfo=UTC)
SCHEMA = "id bigint not null, k string not null, at timestamp not null"
ROWS = [{"id": n, "k": f"k{n % 5}", "at": START + timedelta(seconds=n)} for n in range(60)]


@dataclass
class Order:
    id: int
    k: str


@dataclass
class Scored:
    id: int
    k: str
    score: int


async def score(order: Order) -> Scored:
    await asyncio.sleep(0.001 * (order.id % 3))
    return Scored(order.id, order.k, order.id * 10)


async def stamped(order: Order) -> Scored:
    await asyncio.sleep(0.001)
    return Scored(order.id, order.k, time.time_ns() // 1_000_000)


async def behind_a_gate(order: Order, *, folder: str) -> Scored:
    """Waits while there is a gate, and writes down that it was called."""
    with open(f"{folder}/calls.log", "a") as log:
        log.write(f"{order.id}\n")
    while os.path.exists(f"{folder}/gate"):
        await asyncio.sleep(0.005)
    return await score(order)


def wait_until(true: Callable[[], bool], within_s: float = 60.0) -> None:
    until = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.01)


@pytest.fixture
def out(request: pytest.FixtureRequest) -> Iterator[Any]:
    sink = sinks.memory("".join(c for c in request.node.name if c.isalnum()))
    yield sink
    sink.clear()


def ids(out: Any) -> list[int]:
    return sorted(row["id"] for row in out.rows())


def read(p: pen.Pipeline, **more: Any) -> pen.Stream:
    return p.read(sources.memory(ROWS, schema=SCHEMA, splits=3, batch=4, name="orders", **more))


# --- in this process ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ordered", [True, False])
def test_results_of_a_local_job_and_their_order(out: Any, ordered: bool) -> None:
    p = pen.Pipeline("orders")
    p.read(sources.memory(ROWS, schema=SCHEMA)).map_async(score, capacity=7, ordered=ordered).write(out)
    p.run(pen.Local())
    assert Counter((row["id"], row["score"]) for row in out.rows()) == Counter((n, n * 10) for n in range(60))
    assert not ordered or [row["id"] for row in out.rows()] == list(range(60))


def test_no_more_calls_are_under_way_than_each_task_may_have(out: Any) -> None:
    now, most, lock = 0, 0, threading.Lock()

    async def counted(order: Order) -> Scored:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        await asyncio.sleep(0.005)
        with lock:
            now -= 1
        return Scored(order.id, order.k, 0)

    p = pen.Pipeline("orders")
    read(p).map_async(counted, capacity=4, ordered=False).write(out)
    p.run(pen.Local(parallelism=2))
    assert most == 8, "both tasks use what they may, and no more"
    assert ids(out) == list(range(60))


def test_answers_wake_the_job_at_once(out: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def soon(order: Order) -> Scored:
        await asyncio.sleep(0.001)
        return Scored(order.id, order.k, 0)

    wait = Conductor._wait
    monkeypatch.setattr(Conductor, "_wait", lambda self, micros: wait(self, 100 * micros))
    p = pen.Pipeline("orders")
    p.read(sources.memory(ROWS, schema=SCHEMA)).map_async(soon, capacity=1).write(out)
    began = time.monotonic()
    p.run(pen.Local(snapshot_every="10m"))
    assert time.monotonic() - began < 30  # 60 calls of 1 ms, one after the other; who is not woken now looks every 2 s


def test_calls_that_fail_or_take_too_long_are_repeated_and_then_set_aside(out: Any) -> None:
    attempts: Counter[int] = Counter()

    async def unreliable(order: Order) -> Scored:
        attempts[order.id] += 1
        if order.id % 10 == 3:
            await asyncio.sleep(30)
        if order.id % 10 == 4 or (order.id % 10 == 5 and attempts[order.id] < 3):
            raise ConnectionError("no route")
        return Scored(order.id, order.k, 0)

    dead = sinks.memory("async-dead")
    p = pen.Pipeline("orders")
    policy = pen.retry(3, then="dead-letter", delay="1ms")
    read(p).with_watermark("at", delay="1m").map_async(unreliable, timeout="20ms", on_error=policy, name="score").write(out)
    p.dead_letters.write(dead)
    p.run(pen.Local(parallelism=2))
    assert ids(out) == [n for n in range(60) if n % 10 not in (3, 4)]
    letters = Counter((row["step"], row["source"], unplaced(row["error"])) for row in dead.rows())
    assert letters == {("score", "orders", "no answer within 20ms"): 6, ("score", "orders", "ConnectionError: no route"): 6}
    assert all(attempts[n] == (3 if n % 10 in (3, 4, 5) else 1) for n in range(60))
    dead.clear()


def test_a_call_that_fails_for_good_fails_the_job(out: Any) -> None:
    async def broken(order: Order) -> Scored:
        raise ConnectionError("no route")

    p = pen.Pipeline("orders")
    read(p).map_async(broken, on_error=pen.retry(2, delay="1ms")).write(out)
    with pytest.raises(JobError, match=r"step 'broken' \(.*\) cannot process a row.*no route"):
        p.run(pen.Local())
    assert out.rows() == []


def test_the_watermark_waits_for_calls_so_nothing_becomes_late(out: Any) -> None:
    late = sinks.memory("async-late")
    p = pen.Pipeline("orders")
    timed = read(p).with_watermark("at", delay="0s").map_async(score, capacity=5, ordered=False)
    counts = timed.key_by("k").window(pen.tumbling("10s")).aggregate(n=pen.count(), total="sum(score)", name="counts")
    counts.write(out)
    counts.late.write(late)
    p.run(pen.Local(parallelism=2))
    assert late.rows() == []
    assert Counter({(r["k"], r["window_start"]): r["n"] for r in out.rows()}) == Counter(
        (r["k"], r["at"].replace(second=r["at"].second // 10 * 10)) for r in ROWS
    )


def test_finishing_a_job_waits_for_its_calls(out: Any, tmp_path: Path) -> None:
    (tmp_path / "gate").touch()
    p = pen.Pipeline("orders")
    gated = partial(behind_a_gate, folder=str(tmp_path))
    p.read(endless(), name="orders").map_async(gated, timeout="1m", name="score").write(out)
    job = p.start(pen.Local(parallelism=2, snapshot_every="20ms"))
    wait_until(lambda: called(tmp_path) >= 20)
    threading.Timer(0.2, (tmp_path / "gate").unlink).start()
    job.stop(finish=True, timeout="30s")
    assert job.status().state == "finished"
    assert ids(out) == sorted({int(line) for line in (tmp_path / "calls.log").read_text().split()})


def endless() -> Any:
    def row(index: Any, seed: int) -> dict[str, Any]:
        return {"id": index, "k": [f"k{n % 5}" for n in index.tolist()]}

    return sources.generate(row, schema="id bigint not null, k string not null", rate=400, splits=2)


def called(folder: Path) -> int:
    log = folder / "calls.log"
    return len(log.read_text().split()) if log.exists() else 0


# --- with faults --------------------------------------------------------------------------------------------------------


async def same(row: pen.Row) -> pen.Row:
    if row.v % 7 == 0:
        await asyncio.sleep(0)
    return row


def with_calls(rows: list[dict[str, Any]], name: str) -> Any:
    """The simulator's pipeline, with calls before and behind its exchange."""
    half, schema = len(rows) // 2, "k string, v bigint, at timestamp"
    windows, totals = sinks.memory(f"{name}-windows"), sinks.memory(f"{name}-totals")
    windows.clear()
    totals.clear()
    p = pen.Pipeline("simulated", max_parallelism=16)
    left = p.read(sources.memory(rows[:half], schema=schema, splits=2, name="left")).with_watermark("at", delay="3s")
    right = p.read(sources.memory(rows[half:], schema=schema, splits=1, name="right")).with_watermark("at", delay="3s")
    both = left.map_async(same, capacity=3, name="left-calls").union(right.map_async(same, capacity=2, ordered=False, name="r"))
    counts = both.key_by("k").window(pen.tumbling("6s")).aggregate(n="count(*)", total="sum(v)", name="windows")
    counts.map_async(same_counts, capacity=2, ordered=False).write(windows, name="windows")
    both.filter("v > 20").key_by("k").aggregate(n="count(*)", name="totals").write(totals, name="totals")
    return p, windows, totals


async def same_counts(row: pen.Row) -> pen.Row:
    return row


@pytest.mark.parametrize("seed", range(12))
def test_every_schedule_is_exactly_once_under_faults(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulator, "build", with_calls)
    first = simulator.Simulation(seed).run()
    if seed < 2:
        assert simulator.Simulation(seed).run().trace == first.trace, "a seed repeats"


# --- stopped with calls under way, and restored elsewhere ------------------------------------------------------------------


def by_value() -> None:
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])


def runner_of(name: str, parallelism: int, storage: Path, request: pytest.FixtureRequest) -> Any:
    common: dict[str, Any] = {"parallelism": parallelism, "storage": str(storage), "snapshot_every": "100ms"}
    if name == "local":
        return pen.Local(**common)
    if name == "simulated":
        return Simulated(seed=parallelism, **common)
    spark = request.getfixturevalue("spark")
    by_value()
    return {"micro-batch": pen.MicroBatch, "continuous": pen.Continuous}[name](spark, **common)


def pipeline(folder: Path, *, ordered: bool) -> pen.Pipeline:
    """Orders from a file, scored, counted by key: only whoever has all of them once has the counts right."""
    p = pen.Pipeline("orders")
    rows = p.read(sources.files(str(folder / "in" / "*.json"), schema=SCHEMA, watch="20ms", splits=3, name="orders"))
    rows = rows.with_watermark("at", delay="0s")
    scored = rows.map_async(partial(behind_a_gate, folder=str(folder)), capacity=100, ordered=ordered, timeout="2m", name="score")
    scored.write(sinks.files(folder / "out" / "rows", format="json"), name="rows")
    counts = scored.key_by("k").window(pen.tumbling("20s")).aggregate(n=pen.count(), total="sum(score)", name="counts")
    counts.write(sinks.files(folder / "out" / "counts", format="json"), name="counts")
    return p


def write_orders(folder: Path, first: int, last: int) -> None:
    import json

    (folder / "in").mkdir(exist_ok=True)
    for number in range(3):
        mine = [row for row in ROWS[first:last] if row["id"] % 3 == number]
        lines = "".join(json.dumps({**row, "at": row["at"].isoformat()}) + "\n" for row in mine)
        (folder / "in" / f".{first}-{number}").write_text(lines)
        (folder / "in" / f".{first}-{number}").rename(folder / "in" / f"{first}-{number}.json")


def committed(folder: Path) -> list[dict[str, Any]]:
    import json

    return [json.loads(line) for path in sorted(folder.glob("epoch=*/part-*")) for line in path.read_text().splitlines()]


def in_flight(job: pen.Job) -> int:
    manifest = job.conductor.manifest
    states = [s for op in manifest.operators if op.name == "score" for s in op.states] if manifest else []
    return sum(int(handle["rows"]) for state in states for handle in state.handles)


def rows_read(job: pen.Job) -> int:
    manifest = job.conductor.manifest
    return sum(n for key, n in manifest.counters.items() if key.endswith(".read")) if manifest else 0


CHAINS = [
    [("local", 2), ("simulated", 3), ("local", 1)],
    pytest.param([("continuous", 2), ("micro-batch", 1), ("continuous", 3), ("local", 2)], marks=pytest.mark.spark),
    pytest.param([("micro-batch", 2), ("local", 3), ("continuous", 1), ("micro-batch", 2)], marks=pytest.mark.spark),
]


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("chain", CHAINS)
def test_results_are_sent_once_although_jobs_stop_with_calls_under_way(
    chain: list[tuple[str, int]], ordered: bool, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    gate, step = tmp_path / "gate", 60 // len(chain)
    for leg, (name, parallelism) in enumerate(chain):
        last = leg == len(chain) - 1
        if name == "simulated":
            gate.unlink(missing_ok=True)  # there each call is run to its end at once
        else:
            gate.touch()
        write_orders(tmp_path, leg * step, 60 if last else (leg + 1) * step)
        before = called(tmp_path)
        job = pipeline(tmp_path, ordered=ordered).start(runner_of(name, parallelism, tmp_path / "storage", request))
        wait_until(lambda before=before: called(tmp_path) > before)  # type: ignore[misc]
        if name in ("local", "continuous") and not last:
            wait_until(lambda job=job, leg=leg: rows_read(job) >= (leg + 1) * step)  # type: ignore[misc]
            job.stop(timeout="60s")
            assert in_flight(job) >= step, "rows in flight are in the snapshot, which waited for none of them"
            assert all(row["id"] < leg * step for row in committed(tmp_path / "out" / "rows"))
        else:
            gate.unlink(missing_ok=True)
            wait_until(lambda job=job, leg=leg: rows_read(job) >= min(60, (leg + 1) * step))  # type: ignore[misc]
            job.stop(finish=last, timeout="60s")
    rows = committed(tmp_path / "out" / "rows")
    assert sorted((row["id"], row["score"]) for row in rows) == [(n, n * 10) for n in range(60)]
    found = {(row["k"], row["window_start"]): (row["n"], row["total"]) for row in committed(tmp_path / "out" / "counts")}
    assert sum(n for n, _ in found.values()) == 60
    assert sum(total for _, total in found.values()) == sum(n * 10 for n in range(60))
    assert called(tmp_path) > 60, "calls under way at a stop were made again"
    assert {int(line) for line in (tmp_path / "calls.log").read_text().split()} == set(range(60))


@pytest.mark.spark
def test_a_continuous_job_is_woken_by_answers(out: Any, request: pytest.FixtureRequest) -> None:
    spark = request.getfixturevalue("spark")
    by_value()
    p = pen.Pipeline("orders")
    p.read(sources.memory(ROWS, schema=SCHEMA)).map_async(stamped, capacity=1).write(out)
    job = p.run(pen.Continuous(spark, parallelism=1))
    assert [row["id"] for row in out.rows()] == list(range(60))
    assert job.status().restarts == 0
    times = [row["score"] for row in out.rows()]
    assert max(times) - min(times) < 3000  # 60 calls, one after the other; who is not woken looks every 100 ms


@pytest.mark.spark
@pytest.mark.parametrize("runner", ["Batch", "MicroBatch", "Continuous"])
def test_calls_before_and_behind_an_exchange(runner: str, out: Any, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    spark = request.getfixturevalue("spark")
    by_value()
    p = pen.Pipeline("orders")
    once = read(p).map_async(score, capacity=5, ordered=False).drop_duplicates("id", name="seen").select("id", "k")
    once.map_async(score, capacity=2, name="again").write(out)
    p.run(getattr(pen, runner)(spark, parallelism=2, storage=str(tmp_path)))
    assert ids(out) == list(range(60))
