"""MicroBatch: the same results as an independent count, through stops, kills, other parallelisms and other runners."""

from __future__ import annotations

import datetime as dt
import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

import penstock as pen
from penstock import sinks, sources
from penstock.checkpoints.repository import open_savepoint
from penstock.protocol.messages import Aborted, Stamp
from penstock.runners import microbatch
from penstock.runners.cut import start_from
from penstock.runners.spark import epochs
from penstock.runners.spark.epochs import Budget

pytestmark = pytest.mark.spark

START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
SCHEMA = "user string, n bigint, at timestamp"


@pytest.fixture(scope="module", autouse=True)
def settings_stay(spark: Any) -> Iterator[None]:
    """Whatever runs here, the user's session keeps its settings."""
    before = dict(spark.conf.getAll)
    yield
    assert dict(spark.conf.getAll) == before


def rows(count: int, *, first: int = 0, users: int = 7) -> list[dict[str, Any]]:
    """Rows a second apart, out of order by less than 5 s."""
    rng = random.Random(first)
    made = [{"user": f"u{i % users}", "n": i, "at": START + dt.timedelta(seconds=i)} for i in range(first, first + count)]
    return sorted(made, key=lambda row: row["n"] + rng.random() * 4)


def write_json(folder: Path, name: str, made: list[dict[str, Any]], extra: str = "") -> None:
    folder.mkdir(exist_ok=True)
    lines = [json.dumps({**row, "at": row["at"].isoformat()}) + "\n" for row in made]
    (folder / f".{name}").write_text("".join(lines) + extra)
    (folder / f".{name}").rename(folder / f"{name}.json")


def minutes(made: list[dict[str, Any]]) -> Counter[tuple[str, dt.datetime]]:
    return Counter((row["user"], row["at"].replace(second=0)) for row in made)


def counted(out: Any) -> Counter[tuple[str, dt.datetime]]:
    found = [(row["user"], row["window_start"].astimezone(dt.UTC)) for row in out.rows()]
    assert len(found) == len(set(found)), "a window came out twice"
    return Counter({key: row["c"] for key, row in zip(found, out.rows())})


def windows(stream: Any, name: str = "minutes") -> Any:
    return stream.key_by("user").window(pen.tumbling("1m")).aggregate(c=pen.count(), s="sum(n)", name=name)


def per_minute(source: Any, out: Any, *, idle_after: Any = None) -> pen.Pipeline:
    pipeline = pen.Pipeline("ads")
    windows(pipeline.read(source, name="in").with_watermark("at", delay="5s", idle_after=idle_after)).write(out)
    return pipeline


def totals_of(source: Any, out: Any) -> pen.Pipeline:
    pipeline = pen.Pipeline("ads")
    pipeline.read(source, name="in").key_by("user").aggregate(c=pen.count(), s="sum(n)", name="totals").write(out)
    return pipeline


def until(condition: Callable[[], bool], job: pen.Job, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert not job.done, job.status()
        assert time.monotonic() < deadline, job.status()
        time.sleep(0.02)


def total(out: Any) -> int:
    return sum(row["c"] for row in out.rows())


@pytest.fixture
def out(request: pytest.FixtureRequest) -> Any:
    sink = sinks.memory("".join(c for c in request.node.name if c.isalnum()))
    yield sink
    sink.clear()


@pytest.mark.parametrize("parallelism", [2, 3])
def test_windows_and_totals_equal_an_independent_count(spark: Any, out: Any, tmp_path: Path, parallelism: int) -> None:
    made = rows(600)
    totals = sinks.memory(f"totals{parallelism}")
    pipeline = pen.Pipeline("ads")
    read = pipeline.read(sources.memory(made, schema=SCHEMA, splits=3, batch=50)).with_watermark("at", delay="5s")
    windows(read).write(out)
    read.key_by("user").aggregate(c=pen.count(), s="sum(n)", name="totals").write(totals)
    runner = pen.MicroBatch(spark, parallelism=parallelism, storage=tmp_path, rows_per_epoch=150, snapshot_every="10ms")
    job = pipeline.run(runner)
    assert counted(out) == minutes(made)
    assert {row["user"]: (row["c"], row["s"]) for row in totals.rows()} == {
        user: (len(ns), sum(ns)) for user in {r["user"] for r in made} for ns in [[r["n"] for r in made if r["user"] == user]]
    }
    status = job.status()
    assert (status.state, status.restarts) == ("finished", 0)
    assert status.epoch >= 2
    assert next(row["read"] for row in job.metrics() if row["step"] == "source memory") == len(made)
    assert not (tmp_path / "ads" / "spark").exists()
    totals.clear()


def test_two_levels_of_exchange(spark: Any, out: Any) -> None:
    made = rows(400)
    pipeline = pen.Pipeline("levels")
    read = pipeline.read(sources.memory(made, schema=SCHEMA, splits=2, batch=64)).with_watermark("at", delay="5s")
    per_user = windows(read)
    per_user.key_by("window_start").aggregate(users=pen.count(), c="sum(c)", name="everybody").write(out)
    assert max(stage.level for stage in pipeline.plan().stages) == 2
    pipeline.run(pen.MicroBatch(spark, parallelism=2, rows_per_epoch=100, snapshot_every="10ms"))
    found = {row["window_start"].astimezone(dt.UTC): (row["users"], row["c"]) for row in out.rows()}
    expected = minutes(made)
    assert found == {
        start: (len(users), sum(users))
        for start in {start for _, start in expected}
        for users in [[count for (_, other), count in expected.items() if other == start]]
    }


def test_two_sinks_late_rows_and_dead_letters(spark: Any, out: Any, tmp_path: Path) -> None:
    made = rows(200)
    behind = [{"user": "late", "n": -1, "at": START}] * 3
    write_json(tmp_path / "in", "0", made, extra="this is no JSON\n")
    write_json(tmp_path / "in", "1", behind)
    late, dead, raw = sinks.memory("late"), sinks.memory("dead"), sinks.memory("raw")
    pipeline = pen.Pipeline("outputs", on_error="dead-letter")
    source = sources.files(tmp_path / "in", schema=SCHEMA, splits=1)
    read = pipeline.read(source).with_watermark("at", delay="5s")
    counts = windows(read)
    counts.write(out)
    counts.late.write(late)
    read.filter("n % 2 = 0").write(raw)
    pipeline.dead_letters.write(dead)
    pipeline.run(pen.MicroBatch(spark, parallelism=2, rows_per_epoch=100, snapshot_every="10ms"))
    assert counted(out) == minutes(made)
    assert [row["user"] for row in late.rows()] == ["late"] * 3
    assert [row["record"] for row in dead.rows()] == ["this is no JSON"]
    assert sorted(row["n"] for row in raw.rows()) == list(range(0, 200, 2))
    for sink in (late, dead, raw):
        sink.clear()


def test_stop_and_go_on_at_another_parallelism(spark: Any, out: Any, tmp_path: Path) -> None:
    made = rows(300), rows(300, first=300)
    write_json(tmp_path / "in", "0", made[0])
    source = sources.files(tmp_path / "in", schema=SCHEMA, watch="50ms", splits=2)

    def runner(parallelism: int) -> pen.MicroBatch:
        return pen.MicroBatch(spark, parallelism=parallelism, storage=tmp_path / "store", snapshot_every="50ms")

    with totals_of(source, out).start(runner(3)) as job:
        until(lambda: total(out) == 300, job)
    assert job.status().state == "stopped"
    assert not (tmp_path / "store" / "ads" / "spark").exists()
    write_json(tmp_path / "in", "1", made[1])
    with totals_of(source, out).start(runner(2)) as job:
        until(lambda: total(out) == 600, job)
        job.stop(finish=True)
    assert job.status().state == "finished"
    assert {row["user"]: row["s"] for row in out.rows()} == {
        f"u{u}": sum(r["n"] for part in made for r in part if r["user"] == f"u{u}") for u in range(7)
    }


def test_an_idle_job_publishes_nothing_and_still_answers(spark: Any, out: Any, tmp_path: Path) -> None:
    write_json(tmp_path / "in", "0", rows(50))
    source = sources.files(tmp_path / "in", schema=SCHEMA, watch="50ms", splits=2)
    runner = pen.MicroBatch(spark, parallelism=2, storage=tmp_path / "store", snapshot_every="50ms")
    with totals_of(source, out).start(runner) as job:
        until(lambda: total(out) == 50, job)
        time.sleep(0.3)
        epoch = job.status().epoch
        time.sleep(1.0)
        assert job.status().epoch == epoch
        assert job.savepoint(tmp_path / "kept").exists()
        write_json(tmp_path / "in", "1", rows(50, first=50))
        until(lambda: total(out) == 100, job)


def test_a_silent_split_holds_windows_back_until_it_is_idle(spark: Any, out: Any, tmp_path: Path) -> None:
    made = rows(200)
    write_json(tmp_path / "in", "0", made)  # one file: the other split stays silent
    source = sources.files(tmp_path / "in", schema=SCHEMA, watch="50ms", splits=2)
    with per_minute(source, out, idle_after="700ms").start(pen.MicroBatch(spark, parallelism=2, snapshot_every="50ms")) as job:
        until(lambda: bool(out.rows()), job)
        assert set(counted(out)) <= {key for key in minutes(made) if key[1] <= made[-1]["at"]}
        job.cancel()


def test_silence_is_counted_on_by_the_next_attempt(spark: Any, out: Any, tmp_path: Path) -> None:
    write_json(tmp_path / "in", "0", rows(50))
    source = sources.files(tmp_path / "in", schema=SCHEMA, watch="50ms", splits=2)
    kept = tmp_path / "kept"
    runner = pen.MicroBatch(spark, parallelism=2, storage=tmp_path / "store", snapshot_every="50ms")
    with per_minute(source, out, idle_after="1h").start(runner) as job:
        until(lambda: job.status().epoch > 0, job)
        time.sleep(0.7)
        job.savepoint(kept)
        job.cancel()
    start = start_from(open_savepoint(kept)[0])
    silences = [start.silence("in", split) for split in start.splits["in"]]
    assert len(silences) == 2
    assert all(500_000 < silence < 60_000_000 for silence in silences)  # since the first epoch, or since the start


def test_a_rate_is_kept_although_readers_live_for_one_epoch_only(spark: Any, out: Any) -> None:
    def make(index: Any, seed: int) -> dict[str, Any]:
        return {"user": ["u"] * len(index), "n": index}

    pipeline = totals_of(sources.generate(make, schema="user string, n bigint", rate=1000, splits=2), out)
    with pipeline.start(pen.MicroBatch(spark, parallelism=2, snapshot_every="50ms")) as job:
        until(lambda: total(out) > 0, job)
        began, before = time.monotonic(), total(out)
        time.sleep(2.0)
        passed, read = time.monotonic() - began, total(out) - before
        job.cancel()
    assert 0.3 * passed * 1000 < read < 3 * passed * 1000


@pytest.mark.parametrize("way", ["storage", "savepoint"])
def test_from_local_to_microbatch_and_back(spark: Any, out: Any, tmp_path: Path, way: str) -> None:
    made = [rows(200, first=200 * i) for i in range(3)]
    (tmp_path / "in").mkdir()
    source = sources.files(tmp_path / "in", schema=SCHEMA, format="json", watch="20ms", splits=1)
    runners: list[Callable[[Path], Any]] = [
        lambda store: pen.Local(storage=store, snapshot_every="50ms"),
        lambda store: pen.MicroBatch(spark, parallelism=3, storage=store, snapshot_every="50ms"),
        lambda store: pen.Local(parallelism=2, storage=store, snapshot_every="50ms"),
    ]
    restore: Any = "latest"
    for i, runner in enumerate(runners):
        write_json(tmp_path / "in", str(i), made[i])
        store = tmp_path / ("store" if way == "storage" else f"store{i}")
        with per_minute(source, out).start(runner(store), restore=restore) as job:
            done = 200 * (i + 1)
            until(lambda done=done: total(out) >= done - 100, job)
            if way == "savepoint":
                restore = job.savepoint(tmp_path / f"savepoint{i}")
            job.stop(finish=i == 2)
    assert counted(out) == minutes([row for part in made for row in part])


def test_a_killed_python_worker_costs_nothing_but_time(
    spark: Any, out: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = rows(400)
    marker = str(tmp_path / "killed")

    def kill_once(batch: pa.RecordBatch) -> pa.RecordBatch:
        if 250 in batch.column("n").to_pylist() and not os.path.exists(marker):
            open(marker, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return batch

    pipeline = pen.Pipeline("killed")
    read = pipeline.read(sources.memory(made, schema=SCHEMA, splits=2, batch=32)).map_batches(kill_once, schema=SCHEMA)
    windows(read.with_watermark("at", delay="5s")).write(out)
    job = pipeline.run(pen.MicroBatch(spark, parallelism=2, rows_per_epoch=100, snapshot_every="10ms", backoff="10ms"))
    assert os.path.exists(marker)
    assert job.status().attempt == 2
    assert "a Python worker of Spark has died" in caplog.text
    assert counted(out) == minutes(made)


def test_an_epoch_that_cannot_be_stored_is_run_again(
    spark: Any, out: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made, state = rows(60), str(tmp_path / "stored" / "state")

    def break_storage_once(batch: pa.RecordBatch) -> pa.RecordBatch:
        if os.path.isfile(state):
            os.unlink(state)
        elif not os.path.exists(state):
            open(state, "w").close()  # a file where tasks of the next level want to make a folder
        return batch

    pipeline = pen.Pipeline("stored")
    read = pipeline.read(sources.memory(made, schema=SCHEMA)).map_batches(break_storage_once, schema=SCHEMA)
    read.key_by("user").aggregate(c=pen.count(), name="totals").write(out)
    job = pipeline.run(pen.MicroBatch(spark, parallelism=2, storage=tmp_path, snapshot_every="10ms"))
    assert "epoch 1 of stored was aborted" in caplog.text
    assert (job.status().epoch, job.status().attempt) == (2, 1)
    assert total(out) == 60


def test_a_row_that_cannot_be_processed_ends_the_job_at_once(spark: Any, out: Any) -> None:
    pipeline = pen.Pipeline("bad")
    pipeline.read(sources.memory([{"n": 1}, {"n": 0}])).select(x="10 % n").write(out)
    with pytest.raises(pen.JobError, match="cannot process a row"):
        pipeline.run(pen.MicroBatch(spark, parallelism=2))


def test_what_was_published_and_not_committed_is_committed_at_the_next_start(spark: Any, tmp_path: Path) -> None:
    seen: list[int] = []
    broken = [True]

    def save(batches: pa.RecordBatchReader, epoch: pen.Epoch) -> None:
        if broken[0]:
            raise RuntimeError("the webhook is down")
        seen.extend(batches.read_all().column("n").to_pylist())

    made = rows(60)
    pipeline = pen.Pipeline("repair")
    pipeline.read(sources.memory(made, schema=SCHEMA, splits=2)).write(sinks.foreach_batch(save, idempotent=True, name="hook"))
    runner = pen.MicroBatch(spark, parallelism=2, storage=tmp_path, rows_per_epoch=20, snapshot_every="10ms")
    with pytest.raises(pen.JobError, match="webhook"):
        pipeline.run(runner)
    assert not (tmp_path / "repair" / "spark").exists()
    broken[0] = False
    pipeline.run(runner)
    assert sorted(seen) == list(range(60))


def test_each_epoch_is_one_batch_and_one_job(spark: Any, out: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[int] = []
    queries: list[microbatch.TickQuery] = []
    run, start = epochs.run_epoch, microbatch.TickQuery.start

    def counting(ticks: Any, facts: Any, order: Any, **sizes: Any) -> Any:
        ran.append(order.epoch)
        assert len(list((tmp_path / "ads" / "spark").iterdir())) == 1
        return run(ticks, facts, order, **sizes)

    def noting(query: microbatch.TickQuery, serve: Any) -> None:
        queries.append(query)
        start(query, serve)

    monkeypatch.setattr(epochs, "run_epoch", counting)
    monkeypatch.setattr(microbatch.TickQuery, "start", noting)
    source = sources.memory(rows(120), schema=SCHEMA, splits=2, batch=16)
    job = totals_of(source, out).run(
        pen.MicroBatch(spark, parallelism=2, storage=tmp_path, rows_per_epoch=20, snapshot_every="1ms")
    )
    assert ran == list(range(1, job.status().epoch + 1))
    assert job.conductor.epochs_published == len(ran)
    (query,) = queries
    assert query._batch + 1 in (len(ran), len(ran) + 1)  # the next one may have been waiting
    assert not spark.streams.active


def test_the_first_epoch_begins_at_once_and_while_rows_wait_one_follows_the_other(
    spark: Any, out: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Budget, "START", 20)
    monkeypatch.setattr(Budget, "MOST", 20)
    source = sources.memory(rows(120), schema=SCHEMA, splits=2, batch=16)
    job = totals_of(source, out).run(pen.MicroBatch(spark, parallelism=2, snapshot_every="1h"))
    assert job.conductor.epochs_published >= 3
    assert max(row["c"] for row in out.rows()) == 18


def test_so_many_rows_per_epoch_are_so_many_per_interval(spark: Any, out: Any) -> None:
    source = sources.memory(rows(120), schema=SCHEMA, splits=2, batch=16)
    runner = pen.MicroBatch(spark, parallelism=2, rows_per_epoch=20, snapshot_every="700ms")
    began = time.monotonic()
    job = totals_of(source, out).run(runner)
    assert job.conductor.epochs_published >= 3
    assert time.monotonic() - began >= 0.7 * 2


def test_an_epoch_that_was_given_up_is_not_repeated_before_its_time(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [5_000_000]
    conductor: Any = SimpleNamespace(clock=lambda: now[0], manifest=None)
    monkeypatch.setattr(epochs, "check_hosts", lambda spark, conductor: None)
    monkeypatch.setattr(epochs, "check_workers", lambda spark: None)
    monkeypatch.setattr(epochs, "Probes", lambda conductor: None)
    attempts = epochs.EpochAttempts(conductor, spark, lambda stamp: None, Budget(1_000_000), every=1_000_000)  # type: ignore[arg-type, return-value]
    attempt = SimpleNamespace(due_at=0, more=True, give_up=lambda: None, settle=lambda: None)
    attempts._attempt = attempt  # type: ignore[assignment]
    assert attempts.wants_epoch()
    attempts.tell(Stamp("line", 1, 1), Aborted(1))
    assert not attempts.wants_epoch()
    now[0] += 1_000_000
    assert attempts.wants_epoch()


def test_the_budget_follows_the_time_epochs_take() -> None:
    budget = Budget(1_000_000)
    budget.learn(100_000, 50_000, used_up=False)
    assert budget.rows == Budget.START
    budget.learn(600_000, 300_000, used_up=True)  # 300 ms are Spark's: 700 ms are left for work
    assert budget.rows == Budget.START * 7 // 3
    quick = Budget(1_000_000)
    quick.learn(110_000, 10_000, used_up=True)  # ninety times as many would fit, if ten milliseconds told
    assert quick.rows == Budget.START * 16
    for _ in range(20):
        budget.learn(100_000_000, 99_000_000, used_up=True)
    assert budget.rows == Budget.LEAST
    fixed = Budget(1_000_000, 7)
    fixed.learn(1, 1, used_up=True)
    assert (fixed.rows, fixed.read_us_max) == (7, None)
