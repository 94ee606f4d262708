"""Snapshots that do not wait for back-pressure: what a seat does when an epoch is overdue, and where rows in flight go on."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as pen
from penstock import sinks, sources
from penstock.checkpoints.envelope import UNALIGNED
from penstock.checkpoints.log import Log
from penstock.checkpoints.manifest import Manifest
from penstock.checkpoints.repository import open_savepoint
from penstock.checkpoints.restore import Refuse, RestoreFacts, decide_restore
from penstock.checkpoints.storage import MemoryStore, open_store
from penstock.connectors.connector import Chunk, Reader, Source, SourceContext
from penstock.errors import ConfigError, CorruptError, RestoreError
from penstock.protocol.messages import (
    Aborted,
    Ack,
    Arrived,
    Barrier,
    Batch,
    Event,
    Idle,
    Message,
    Overdue,
    Overtook,
    Stamp,
    Store,
    Watermark,
)
from penstock.runners import faults
from penstock.runners.conductor import Conductor
from penstock.runners.continuous.channel import CHANNEL_BYTES, UNDER_WAY
from penstock.runners.cut import pipeline_facts
from penstock.runners.inflight import read_rows
from penstock.runners.local import store_states
from penstock.runners.loop import Seat
from penstock.runners.options import resolve
from penstock.runners.queues import ROOM, Queue
from penstock.runners.world import Crash
from penstock.runtime.assemble import Restored, Site
from penstock.runtime.task import Task
from penstock.state.keygroups import canonical_keys, groups_of, hash_keys
from penstock.testing import Simulated
from runtime.rig import Collect, hand, table

NOTHING = Restored()
GROUPS = 8
KEYS = [f"k{n}" for n in range(40)]
S = 1_000_000


def batch(*keys: str) -> Batch:
    rows = table([{"k": key, "i": int(key[1:])} for key in keys]).select(["k", "i"])
    return Batch(rows, rows.num_rows, rows.nbytes)


def groups(keys: Iterable[str]) -> list[int]:
    rows = table([{"k": key} for key in keys]).select(["k"])
    found: list[int] = groups_of(hash_keys(canonical_keys(rows, ["k"])), GROUPS).tolist()
    return found


MINE = [key for key, group in zip(KEYS, groups(KEYS), strict=True) if group < GROUPS // 2]
"""Keys of task 0 of 2."""
A, B, C, D, E, NEXT, *_ = MINE


def keys_of(batches: Iterable[Batch]) -> list[str]:
    return [key for each in batches for key in each.payload.column("k").to_pylist()]


# --- queues -----------------------------------------------------------------------------------------------------------


def test_a_barrier_is_taken_out_ahead_of_what_waits_before_it() -> None:
    queue, first, second, after = Queue(), batch(A), batch(B), batch(C)
    for message in (first, Watermark(3), second, Barrier(2), after):
        queue.push(message)
    assert queue.overtake(1) is None
    assert queue.overtake(2) == [first, Watermark(3), second]
    assert queue.overtake(2) is None, "it is gone"
    assert [queue.pop() for _ in range(len(queue))] == [first, Watermark(3), second, after]
    assert queue.bytes == 0


def test_barriers_of_epochs_that_were_given_up_are_dropped_on_the_way() -> None:
    queue = Queue()
    for message in (Barrier(1), batch(A), Barrier(2), Barrier(3), Barrier(4)):
        queue.push(message)
    assert len(queue.overtake(3) or ()) == 1
    queue.pop()
    assert queue.pop() == Barrier(4)
    assert queue.bytes == 0


def test_a_full_queue_is_not_yet_crammed() -> None:
    queue = Queue(100)
    queue.push(Batch(None, 1, 150))
    assert queue.full
    assert not queue.crammed
    queue.push(Batch(None, 1, 100 * (ROOM - 1)))
    assert queue.crammed


# --- seats ------------------------------------------------------------------------------------------------------------


class Bench:
    """Task 0 of 2 in a stage with two inputs, and an outlet that is full as soon as anything is in it."""

    def __init__(
        self,
        parallelism: int = 2,
        index: int = 0,
        restored: Restored = NOTHING,
        files: Any = None,
        *,
        outlet_bytes: int = 1,
    ) -> None:
        p = pen.Pipeline("bench", max_parallelism=GROUPS)
        firsts = hand(p).select("k", "i").drop_duplicates("k", name="firsts")
        firsts.key_by("i").aggregate(n=pen.count(), name="n").write(Collect())
        plan = p.plan()
        self.files = MemoryStore() if files is None else files
        stage = next(stage for stage in plan.stages if any(op.name == "firsts" for op in stage.ops))
        self.task = Task(stage, Site(plan, parallelism, index, "lineage", "uid", Path("unused"), self.files, restored))
        self.outlet = Queue(outlet_bytes)
        self.inputs = [Queue(1000) for _ in self.task.channels]
        self.acks: list[Ack] = []
        self.events: list[Event] = []
        self.names = count()
        edge = stage.outgoing[0].id
        self.seat = Seat(
            self.task,
            inputs=self.inputs,
            outlets={(edge, target): self.outlet for target in range(parallelism)},
            answer=lambda task, action: self.acks.append(action),  # type: ignore[arg-type]
            store=self._store,
        )
        self.seat.observe = lambda task, event: self.events.append(event)

    def _store(self, seat: Seat, action: Store) -> None:
        seat.post(store_states(action, self.files, Stamp("lineage", 1, 1), lambda: f"{next(self.names)}"))

    def put(self, input: int, *messages: Message) -> None:
        for message in messages:
            self.inputs[input].push(message)

    def run(self, now: int) -> None:
        while self.seat.step(now):
            pass

    def drain(self) -> list[Message]:
        return [self.outlet.pop() for _ in range(len(self.outlet))]

    def go_on(self, now: int) -> None:
        """Until nothing waits, with somebody who reads."""
        while self.seat.step(now) or len(self.outlet):
            self.drain()


def overdue(events: Iterable[Event]) -> list[Event]:
    return [event for event in events if isinstance(event, Overdue | Overtook)]


def in_flight(bench: Bench, parallelism: int = 1) -> list[list[str]]:
    """The keys that each task of another attempt would begin with."""
    restored = Restored(in_flight=bench.acks[-1].ack.in_flight)
    tasks = [Bench(parallelism, index, restored, bench.files).task for index in range(parallelism)]
    return [keys_of(rows for _, rows in read_rows(task)) for task in tasks]


def test_an_overdue_snapshot_does_not_wait_for_room() -> None:
    bench = Bench()
    bench.outlet.push(Watermark(0))
    bench.put(0, batch(B), Watermark(5), batch(C), Barrier(1))
    bench.put(1, batch(D))
    bench.seat.trigger(1, finish=False, overdue_at=10)
    bench.run(9)
    assert bench.events == [], "it waits for room, as long as it may"
    bench.run(10)
    assert [type(event) for event in bench.events] == [Overdue, Overtook]
    assert Barrier(1) in bench.drain()
    bench.outlet.push(Watermark(0))
    assert bench.acks == [], "the second input owes its barrier"
    bench.put(1, batch(E), Barrier(1), batch(NEXT))
    bench.run(10)
    assert len(bench.acks) == 1
    assert in_flight(bench) == [[B, C, D, E]], "as each input delivered them"
    bench.drain()
    bench.go_on(11)
    found = keys_of(e.message for e in bench.events if isinstance(e, Arrived) and isinstance(e.message, Batch))
    assert [key for key in found if key in (B, C)] == [B, C]
    assert [key for key in found if key not in (B, C)] == [D, E, NEXT]
    assert len(overdue(bench.events)) == 3
    assert len(bench.acks) == 1


def test_rows_that_are_processed_before_their_barrier_is_there_are_recorded_too() -> None:
    bench = Bench()
    bench.put(0, batch(A))
    bench.go_on(0)
    bench.put(0, Barrier(1), batch(NEXT))
    bench.put(1, batch(D))
    bench.seat.trigger(1, finish=False, overdue_at=0)
    bench.go_on(0)
    bench.put(1, batch(E), Barrier(1))
    bench.go_on(0)
    assert in_flight(bench) == [[D, E]]
    restored = Restored(states=bench.acks[0].ack.states)
    again = Bench(2, 0, restored, bench.files)
    again.put(0, batch(A, D, E))
    again.go_on(0)
    assert again.task.counters()["drop_duplicates firsts.out"] == 2, "the state knows only what was processed before the cut"


def test_what_is_aligned_in_time_is_never_overdue() -> None:
    bench = Bench()
    bench.seat.trigger(1, finish=False, overdue_at=10)
    for input in (0, 1):
        bench.put(input, Barrier(1))
    bench.go_on(9)
    assert len(bench.acks) == 1
    bench.go_on(20)
    assert overdue(bench.events) == []


def test_an_event_under_way_is_finished_first() -> None:
    bench = Bench(outlet_bytes=128)
    bench.put(0, batch(*MINE), Idle(), batch(NEXT))
    bench.seat.trigger(1, finish=False, overdue_at=5)
    bench.run(4)
    assert bench.seat.busy, "rows for one task fill the outlet, those for the other wait"
    bench.run(5)
    assert overdue(bench.events) == [Overdue(1)]
    assert not bench.seat.busy
    assert bench.outlet.full
    assert len(bench.inputs[0]) == 2, "no new event is begun"


def test_an_event_that_sends_too_much_is_not_finished_for_a_snapshot() -> None:
    bench = Bench(outlet_bytes=1)
    bench.put(0, batch(*MINE))
    bench.seat.trigger(1, finish=False, overdue_at=5)
    bench.run(4)
    bench.run(5)
    assert bench.seat.busy
    assert overdue(bench.events) == [], "a snapshot is taken between events"
    bench.drain()
    bench.run(5)
    bench.drain()
    bench.run(5)
    assert overdue(bench.events) == [Overdue(1)]


def test_an_event_before_which_the_time_was_told_is_under_way_too() -> None:
    bench = Bench(outlet_bytes=128)
    bench.outlet.push(Batch(None, 1, 128))  # what became due at that time
    bench.seat._next = Arrived(0, batch(A))  # out of its queue already: if it were not handled first, nothing would record it
    bench.put(0, Barrier(1))
    bench.put(1, batch(D), Barrier(1))
    bench.seat.trigger(1, finish=False, overdue_at=5)
    bench.run(4)
    assert bench.events == []
    bench.run(5)
    assert [type(event) for event in bench.events][:4] == [Arrived, Overdue, Overtook, Overtook]
    assert in_flight(bench) == [[D]]


def test_an_aborted_epoch_leaves_nothing_behind() -> None:
    bench = Bench()
    bench.put(0, batch(A))
    bench.seat.trigger(1, finish=False, overdue_at=0)
    bench.go_on(0)
    bench.seat.post(Aborted(1))
    bench.go_on(0)
    for input in (0, 1):
        bench.put(input, Barrier(1))
    bench.go_on(0)
    assert bench.acks == []
    bench.seat.trigger(2, finish=False, overdue_at=7)
    bench.seat.post(Aborted(2))
    bench.go_on(9)
    assert overdue(bench.events) == [Overdue(1)], "nobody waits for an epoch that was aborted before"


@pytest.mark.parametrize("keyed", [True, False])
def test_only_what_goes_by_key_may_be_in_flight(keyed: bool) -> None:
    p = pen.Pipeline("ways", max_parallelism=GROUPS)
    rows = hand(p).select("k", "i")
    firsts = rows.drop_duplicates("k", name="firsts")
    deeper = firsts if keyed else firsts.union(rows)  # `rows` are forwarded, past the exchange
    deeper.write(Collect())
    plan = p.plan()
    stage = next(stage for stage in plan.stages if any(op.name == "firsts" for op in stage.ops))
    assert {edge.keys is None for edge in stage.incoming} == ({False} if keyed else {False, True})
    task = Task(stage, Site(plan, 2, 0, "lineage", "uid", Path("unused"), MemoryStore(), NOTHING))
    by_key = {channel.number for channel in task.channels if channel.exchange == 0}
    forward = {channel.number for channel in task.channels} - by_key
    list(task.handle(Overdue(1)))
    if keyed:
        assert task.recording == (1, by_key)
        return
    assert task.recording == (0, set()), "it waits for the barrier of what is forwarded"
    for number in forward:
        list(task.handle(Arrived(number, Barrier(1))))
    assert task.recording == (1, by_key), "and for no other"


# --- rows in flight, restored ---------------------------------------------------------------------------------------------


def recorded() -> Bench:
    """Task 0 of 1, with all keys in flight on one input."""
    bench = Bench(1)
    bench.outlet.push(Watermark(0))
    for key in KEYS:
        bench.put(0, batch(key, key))
    bench.put(0, Barrier(1))
    bench.seat.trigger(1, finish=False, overdue_at=0)
    bench.run(0)
    return bench


@pytest.mark.parametrize("parallelism", [1, 2, 3, 8])
def test_rows_in_flight_go_to_whoever_owns_their_keys_now(parallelism: int) -> None:
    bench = recorded()
    found = in_flight(bench, parallelism)
    assert sorted(key for keys in found for key in keys) == sorted(KEYS * 2)
    for keys in found:
        assert keys == [key for key in KEYS for _ in range(2) if key in keys], "in the order in which they were sent"
    entries = bench.acks[0].ack.in_flight
    for index, keys in enumerate(found):
        task = Bench(parallelism, index).task
        assert all(group in task.site.groups for group in groups(keys))
    assert [entry["rows"] for entry in entries] == [80]


def test_rows_in_flight_come_before_all_that_any_channel_delivers() -> None:
    first = recorded()
    bench = Bench(2, 0, Restored(in_flight=first.acks[0].ack.in_flight), first.files)
    bench.seat.replay(read_rows(bench.task))
    bench.put(0, batch(A))
    bench.put(1, batch(B))
    bench.go_on(0)
    found = keys_of(e.message for e in bench.events if isinstance(e, Arrived) and isinstance(e.message, Batch))
    assert found[:-2] == [key for key in MINE for _ in range(2)]
    assert sorted(found[-2:]) == sorted([A, B])


def test_a_snapshot_taken_while_they_are_replayed_holds_the_rest_of_them() -> None:
    first = recorded()
    bench = Bench(1, 0, Restored(in_flight=first.acks[0].ack.in_flight), first.files)
    bench.names = count(100)
    bench.seat.replay(read_rows(bench.task))
    bench.seat.step(0)
    bench.drain()
    bench.seat.trigger(2, finish=False, overdue_at=1)
    bench.put(0, batch("k99"), Barrier(2))
    bench.seat.step(0)  # ends the event under way
    bench.outlet.push(Watermark(0))
    bench.run(1)
    (again,) = in_flight(bench)
    assert again == [*[key for key in KEYS for _ in range(2)][2:], "k99"]


def test_a_file_of_rows_in_flight_that_was_altered_is_refused() -> None:
    bench = recorded()
    (entry,) = bench.acks[0].ack.in_flight
    data = bytearray(bench.files.files[entry["path"]])
    data[len(data) // 2] ^= 1
    bench.files.files[entry["path"]] = bytes(data)
    with pytest.raises(CorruptError, match="rows in flight cannot be trusted"):
        in_flight(bench)


# --- jobs -----------------------------------------------------------------------------------------------------------------

ROWS = 60


def pipeline(name: str, *, renamed: str = "totals", extra: bool = False) -> pen.Pipeline:
    rows = [{"k": "abcde"[n % 5], "v": n} for n in range(ROWS)]
    p = pen.Pipeline(name, max_parallelism=16)
    stream = p.read(sources.memory(rows, schema="k string, v bigint", splits=3, name="in"))
    aggregates = {"n": pen.count(), "total": "sum(v)", **({"most": "max(v)"} if extra else {})}
    stream.key_by("k").aggregate(**aggregates, name=renamed).write(sinks.memory(name), name="out")
    return p


def run_to_unaligned(name: str, storage: Path) -> Manifest:
    """Run until a checkpoint with rows in flight is published, and crash right there."""
    for seed in range(100):
        sinks.memory(name).clear()
        runner = Simulated(seed, parallelism=2, storage=storage / str(seed), snapshot_every="2ms", unaligned_after="0s")
        p = pipeline(name)
        conductor = runner.conductor(p.plan(), runner.options(name), "latest")

        def crash(point: str, epoch: int, conductor: Conductor = conductor) -> None:
            if point == "collect.before" and conductor.manifest is not None and conductor.manifest.in_flight:
                raise Crash

        faults.hook = crash
        try:
            conductor.run()
        finally:
            faults.hook = None
        if isinstance(conductor.error, Crash):
            assert conductor.manifest is not None
            (storage / str(seed)).rename(storage / "store")
            return conductor.manifest
    raise AssertionError("no seed has rows in flight in a checkpoint")


def check(name: str) -> None:
    found = {row["k"]: (row["n"], row["total"]) for row in sinks.memory(name).rows()}
    assert found == {"abcde"[k]: (ROWS // 5, sum(range(k, ROWS, 5))) for k in range(5)}


@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_another_runner_goes_on_from_it_at_any_parallelism(tmp_path: Path, parallelism: int) -> None:
    name = f"unaligned-{parallelism}"
    manifest = run_to_unaligned(name, tmp_path)
    assert manifest.cut == UNALIGNED
    assert set(manifest.files()) >= {entry.path for entry in manifest.in_flight}
    job = pipeline(name).run(pen.Local(parallelism=parallelism, storage=tmp_path / "store", keep=1))
    assert job.status().state == "finished"
    check(name)
    left = {path.name for path in (tmp_path / "store" / name / "state").iterdir()}
    assert not left & {Path(entry.path).name for entry in manifest.in_flight}, "its files were collected"


@pytest.mark.spark
@pytest.mark.parametrize("runner", [pen.MicroBatch, pen.Batch, pen.Continuous])
def test_so_does_every_runner_on_spark(spark: Any, tmp_path: Path, runner: Any) -> None:
    name = f"unaligned-{runner.__name__}"
    run_to_unaligned(name, tmp_path)
    pipeline(name).run(runner(spark, parallelism=3, storage=tmp_path / "store"))
    check(name)


def test_an_older_reader_would_refuse_it(tmp_path: Path) -> None:
    run_to_unaligned("unaligned-old", tmp_path)
    slots = [json.loads(slot.read_bytes().partition(b"\n")[2]) for slot in sorted((tmp_path / "store").glob("*/log/*.json"))]
    cuts = {slot["body"]["cut"]: slot["requires"] for slot in slots if slot["kind"] == "checkpoint"}
    assert cuts[UNALIGNED] == [UNALIGNED]
    assert cuts.get("aligned", []) == []


def test_a_pipeline_that_takes_other_rows_is_refused_with_the_way_out(tmp_path: Path) -> None:
    run_to_unaligned("unaligned-other", tmp_path)
    with pytest.raises(RestoreError) as error:
        pipeline("unaligned-other", renamed="sums").run(pen.Local(storage=tmp_path / "store"))
    assert "state of step 'totals'" in str(error.value)
    facts = pipeline_facts(pipeline("unaligned-other").plan())
    newest = Log(open_store(tmp_path / "store" / "unaligned-other")).read_newest()
    assert newest is not None
    (edge,) = facts.edges
    other = replace(facts, edges={edge: (("k", "string", True),)})
    decision = decide_restore(RestoreFacts(pipeline=other, newest=newest.manifest, new_lineage="x"))
    assert isinstance(decision, Refuse)
    assert decision.message.startswith(
        "the newest checkpoint holds rows in flight, on their way to step 'totals' with columns (k"
    )
    assert decision.message.endswith("which takes columns (k string) now")
    assert decision.fix.text.startswith("Run the pipeline once more as it was, and stop with a savepoint first")
    gone = decide_restore(RestoreFacts(pipeline=replace(facts, edges={}), newest=newest.manifest, new_lineage="x"))
    assert isinstance(gone, Refuse)
    assert "which has no such input now" in gone.message


def test_savepoints_and_the_last_checkpoint_have_nothing_in_flight(tmp_path: Path) -> None:
    rows = sources.generate(lambda index, seed: {"k": index % 5}, schema="k bigint not null", rate=20_000, splits=3)
    p = pen.Pipeline("kept")
    p.read(rows).key_by("k").aggregate(n=pen.count(), name="n").write(sinks.memory("kept"))
    job = p.start(pen.Local(parallelism=2, storage=tmp_path / "store", snapshot_every="5ms", unaligned_after="0s"))
    manifest, _ = open_savepoint(job.savepoint(tmp_path / "saved"))
    assert manifest.cut == "aligned"
    job.stop()
    assert job.conductor.manifest is not None
    assert job.conductor.manifest.cut == "aligned"


# --- under real pressure ---------------------------------------------------------------------------------------------------

PIECE = 500  # rows of a read, so that a batch behind the exchange takes about 50 ms
SLOW_S = 0.0002  # a row
FLOOD = 100_000


@dataclass(frozen=True)
class Flood(Source):
    """Numbers, as fast as anybody takes them, in small batches."""

    name: str
    rows: int
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("pad", pa.string(), nullable=False)])
    bounded = True

    def splits(self) -> tuple[str, ...]:
        return ("0", "1", "2", "3")

    def open(self, split: str, position: Any, context: SourceContext) -> Reader:
        return FloodReader(range(int(split), self.rows, 4), position or 0, context.columns)


class FloodReader(Reader):
    def __init__(self, ids: Sequence[int], position: int, columns: Sequence[str]) -> None:
        self._ids, self._position, self._columns = ids, position, columns

    def poll(self, rows_max: int) -> Chunk | None:
        ids = self._ids[self._position : self._position + min(rows_max, PIECE)]
        self._position += len(ids)
        columns = {"id": pa.array(ids, pa.int64()), "pad": pa.array([f"{number:0>100}" for number in ids])}
        rows = pa.RecordBatch.from_arrays([columns[name] for name in self._columns], names=list(self._columns))
        return Chunk(rows, self._position, ended=self._position == len(self._ids))

    def backlog(self) -> bool:
        return self._position < len(self._ids)


def slowly(rows: pa.RecordBatch) -> pa.RecordBatch:
    time.sleep(rows.num_rows * SLOW_S)
    return rows


def written(path: Path) -> list[int]:
    return [number for file in sorted(path.glob("epoch=*/part-*")) for number in pq.ParquetFile(file).read()["id"].to_pylist()]


def memory_mb(process: int) -> int:
    status = Path(f"/proc/{process}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) // 1024


def flood(name: str, rows: int, out: Path) -> pen.Pipeline:
    p = pen.Pipeline(name)
    (
        p.read(Flood("numbers", rows))
        .drop_duplicates("id", name="seen")
        .map_batches(slowly, schema="id bigint not null, pad string not null")
        .write(sinks.files(out), name="rows")
    )
    return p


def check_flood(path: Path, rows: int) -> None:
    ids = written(path)
    assert len(ids) == len(set(ids)), "a row was written twice"
    assert set(ids) == set(range(rows)), "a row is missing"


@pytest.mark.spark
@pytest.mark.parametrize("point", ["store.between", "store.after", "ack.before"])
def test_a_worker_killed_while_it_hands_in_rows_in_flight(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    fault = tmp_path / "fault"
    fault.write_text(json.dumps({"point": point, "epoch": 3, "signal": "KILL"}))
    monkeypatch.setenv("PENSTOCK_FAULT_FILE", str(fault))
    rows = 30_000
    runner = pen.Continuous(
        spark, parallelism=2, storage=tmp_path / "store", snapshot_every="200ms", unaligned_after="0s", backoff="100ms", keep=1000
    )
    job = flood(f"killed-{point}", rows, tmp_path / "rows").run(runner)
    assert (tmp_path / "fault.taken").exists()
    assert job.status().restarts == 1
    slots = [json.loads(slot.read_bytes().partition(b"\n")[2])["body"] for slot in (tmp_path / "store").glob("*/log/*.json")]
    before = [slot for slot in slots if slot.get("epoch") == 2 and slot.get("in_flight")]
    assert before, "the attempt after it began with rows in flight"
    check_flood(tmp_path / "rows", rows)


@pytest.mark.spark
@pytest.mark.slow
def test_epochs_complete_under_back_pressure_and_a_kill_loses_nothing(spark: Any, tmp_path: Path) -> None:
    p = flood("flood", FLOOD, tmp_path / "rows")
    runner = pen.Continuous(
        spark, parallelism=2, storage=tmp_path / "store", snapshot_every="1s", unaligned_after="100ms", backoff="100ms"
    )
    job = p.start(runner)
    conductor = job.conductor
    published: dict[int, float] = {}
    unaligned: list[Manifest] = []
    most_mb, killed_at = 0, None
    while not job.done:
        manifest = conductor.manifest
        if manifest is not None and manifest.epoch not in published:
            published[manifest.epoch] = time.monotonic()
            if manifest.in_flight:
                unaligned.append(manifest)
        processes = conductor._attempts.server.processes() if conductor._attempts and conductor._attempts.server else []
        if killed_at is None and len(unaligned) == 3:
            killed_at = manifest.epoch
            os.kill(processes[1], signal.SIGKILL)
        for process in processes:
            with contextlib.suppress(OSError, IndexError):
                most_mb = max(most_mb, memory_mb(process))
        time.sleep(0.02)
    job.wait(timeout="60s")
    assert job.status().restarts == 1
    check_flood(tmp_path / "rows", FLOOD)
    gaps = [later - earlier for (a, earlier), later in zip(published.items(), list(published.values())[1:]) if a != killed_at]
    held = max(sum(entry.bytes for entry in manifest.in_flight) for manifest in unaligned)
    print(
        f"{len(published)} epochs, {len(unaligned)} with rows in flight, at most {held / 1e6:.1f} MB; "
        f"gaps {statistics.median(gaps):.2f} s, at most {max(gaps):.2f} s; workers at most {most_mb} MB"
    )
    assert len(unaligned) > 3, "some of them after the kill"
    assert len(unaligned) >= len(published) - 2, "all but the last ones, when the sources had ended"
    assert statistics.median(gaps) < 2.0, f"an epoch takes more than two intervals: {gaps}"
    assert held <= 4 * UNDER_WAY * ROOM * CHANNEL_BYTES, "what is recorded is bounded by what four channels hold"
    assert most_mb < 400


# --- the option -----------------------------------------------------------------------------------------------------------


def options(value: Any = None, **environ: str) -> Any:
    return resolve("p", {} if value is None else {"unaligned_after": value}, environ=environ, file=Path("no such file"))


def test_the_option_is_a_duration_or_never() -> None:
    assert options().unaligned_after == 10 * S
    assert options("0s").unaligned_after == 0
    assert options("never").unaligned_after is None
    assert options(PENSTOCK_UNALIGNED_AFTER="never").unaligned_after is None
    assert options("250ms", PENSTOCK_UNALIGNED_AFTER="never").describe()["unaligned_after"] == "250ms  (argument)"
    assert options("never").describe()["unaligned_after"] == "never  (argument)"
    with pytest.raises(ConfigError, match="unaligned_after='soon' is not a duration"):
        options("soon")
    with pytest.raises(ConfigError, match="must be more than nothing"):
        options(timedelta(seconds=-1))
