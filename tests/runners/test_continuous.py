"""The continuous runner: the same rows as any other, through kills, at any parallelism, and nothing left behind."""

from __future__ import annotations

import glob
import json
import os
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as pen
from penstock import sinks, sources
from penstock.connectors.adevents import AD_EVENT, ad_events, campaign_of
from penstock.connectors.connector import Chunk, Reader, Source, SourceContext
from penstock.errors import DecodeError, JobError, RunnerError
from penstock.protocol import coordinator as c
from penstock.protocol.messages import Barrier, Batch, Stamp, TaskAck
from penstock.runners.continuous import driver
from penstock.runners.continuous.channel import Wires
from penstock.runners.continuous.control import ControlServer
from penstock.runners.continuous.greeting import Credentials
from penstock.runners.continuous.wire import ack_json
from penstock.runners.queues import Queue
from penstock.runners.spark.frames import Decoder, control_of, encode_control
from penstock.schema import to_schema

STAMP = Stamp("abc", 1, 2)
SCHEMA = pa.schema([("n", pa.int64())])


def numbered(index: Any, seed: int) -> dict[str, Any]:
    return {"id": index, "key": index % 7, "at": index * 1_000}


NUMBERED = "id bigint not null, key bigint not null, at bigint not null"


def wait_until(true: Callable[[], bool], within_s: float = 30.0) -> None:
    until = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.02)


def committed(path: Path) -> list[dict[str, Any]]:
    found = [pq.ParquetFile(file).read() for file in sorted(glob.glob(f"{path}/epoch=*/part-*"))]
    return pa.concat_tables(found).to_pylist() if found else []


# --- without Spark: who is let in ---------------------------------------------------------------------------------------


@pytest.fixture
def control() -> Iterator[tuple[ControlServer, list[c.Event]]]:
    events: list[c.Event] = []
    server = ControlServer(Credentials("t" * 64, STAMP), 1, "code 1", post=events.append)
    server.start()
    yield server, events
    server.close()


def hello(token: str = "t" * 64, stamp: Stamp = STAMP, **more: Any) -> dict[str, Any]:
    said = {"worker": 0, "uid": "u", "pid": 1, "address": ["127.0.0.1", 1], "identity": "code 1"}
    return {**Credentials(token, stamp).greeting(**said), **more}


def is_closed(sock: socket.socket) -> bool:
    sock.settimeout(5)
    try:
        return sock.recv(100) == b""
    except ConnectionError:
        return True


@pytest.mark.parametrize(
    "greeting",
    [
        encode_control(hello(token="x" * 64), 0),
        encode_control(hello(token=""), 0),
        encode_control(hello(stamp=Stamp("abc", 1, 1)), 0),
        encode_control(hello(stamp=Stamp("abd", 1, 2)), 0),
        encode_control(hello(worker=1), 0),
        encode_control({**hello(), "token": 7}, 0),
        encode_control({"say": "ready"}, 0),
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        bytes(64),
    ],
)
def test_the_driver_hangs_up_on_whoever_has_not_the_attempts_token(
    control: tuple[ControlServer, list[c.Event]], greeting: bytes
) -> None:
    server, events = control
    with socket.create_connection(server.address) as sock:
        sock.sendall(greeting)
        assert is_closed(sock)
    wait_until(lambda: server.refused == 1)
    assert events == []
    assert not server.complete


def test_an_answer_of_another_attempt_is_not_heard(control: tuple[ControlServer, list[c.Event]]) -> None:
    server, events = control
    with socket.create_connection(server.address) as sock:
        sock.sendall(encode_control(hello(), 0))
        (frame,) = Decoder().feed(sock.recv(1000))
        assert control_of(frame) == {"say": "peers", "peers": [{"address": ["127.0.0.1", 1], "uid": "u"}]}
        for number, attempt in ((1, 1), (2, 2)):
            said = {
                "say": "ack",
                "stamp": ["abc", 1, attempt],
                "epoch": 5,
                "task": "stage 0 task 0",
                "ack": ack_json(TaskAck("u")),
            }
            sock.sendall(encode_control(said, number))
        wait_until(lambda: bool(events))
        assert events == [c.Acked(STAMP, 5, "stage 0 task 0", TaskAck("u"))]
        assert server.stale == 1


def test_a_worker_with_other_code_ends_the_job(control: tuple[ControlServer, list[c.Event]]) -> None:
    server, events = control
    with socket.create_connection(server.address) as sock:
        sock.sendall(encode_control(hello(identity="code 2"), 0))
        wait_until(lambda: bool(events))
        assert isinstance(events[0], c.AttemptFailed)
        assert events[0].fatal
        assert "code 1" in events[0].error
        assert "code 2" in events[0].error


def test_a_lost_and_a_silent_worker_fail_the_attempt_once() -> None:
    events: list[c.Event] = []
    server = ControlServer(Credentials("t" * 64, STAMP), 2, "code 1", post=events.append, silent_s=0.3)
    server.start()
    with socket.create_connection(server.address) as silent, socket.create_connection(server.address) as lost:
        silent.sendall(encode_control(hello(), 0))
        wait_until(lambda: len(events) == 1)
        lost.sendall(encode_control(hello(worker=1), 0))
    time.sleep(0.1)
    server.close()
    assert events == [c.AttemptFailed(STAMP, "worker 0 (process 1) was silent for 0 s")]


def test_a_data_port_lets_in_only_awaited_peers_of_the_attempt() -> None:
    ours, theirs = Credentials("t" * 64, STAMP), Credentials("x" * 64, STAMP)
    receiver, queue = Wires(ours), Queue()
    receiver.expect((0, 1, 0), queue, SCHEMA)
    receiver.answer()
    strangers = [Wires(theirs), Wires(Credentials("t" * 64, Stamp("abc", 1, 1))), Wires(ours), Wires(ours)]
    channels = [(0, 1, 0), (0, 1, 0), (0, 2, 0), (0, 1, 0)]
    ends = []
    for stranger, channel in zip(strangers, channels, strict=True):
        ends.append(stranger.connect(channel, receiver.address))
        ends[-1].push(Barrier(1))
        for _ in range(20):
            receiver.turn(0.01)
    assert receiver.refused == 3
    assert len(queue) == 1, "only the last one is a peer, and for a channel that is awaited"
    again = Wires(ours)
    again.connect((0, 1, 0), receiver.address)
    for _ in range(20):
        receiver.turn(0.01)
    assert receiver.refused == 4, "a channel has one sender"
    for wires in [*strangers, again, receiver]:
        wires.close()


def test_a_channel_is_full_until_its_reader_has_taken_some() -> None:
    credentials = Credentials("t" * 64, STAMP)
    receiver, sender = Wires(credentials, bytes_max=50_000), Wires(credentials, bytes_max=50_000)
    queue = Queue(50_000)
    queue.push(Barrier(1))  # of an earlier life: nothing that the sender knows of
    receiver.expect((0, 1, 0), queue, SCHEMA)
    receiver.answer()
    outlet = sender.connect((0, 1, 0), receiver.address)
    rows = pa.record_batch({"n": np.arange(1000)})
    sent = 0

    def turn() -> None:
        sender.turn(0.0)
        receiver.turn(0.0)

    def send(turns: int) -> None:
        nonlocal sent
        for _ in range(turns):
            if not outlet.full:
                outlet.push(Batch(rows, rows.num_rows, rows.nbytes))
                sent += 1
            turn()

    send(300)
    assert outlet.full
    assert not outlet.crammed
    assert len(queue) == sent + 1, "all that was sent is there, none of it in between"
    assert queue.bytes < 2 * 50_000 + rows.nbytes + 1000, "and it is no more than may be under way"
    outlet.push(Barrier(9))
    for _ in range(20):
        turn()
    assert outlet.full
    assert queue.overtake(9) is not None, "a barrier gets through"
    while len(queue) > 2:
        queue.pop()
    send(300)
    assert outlet.full, "there was room again"
    assert sent > 20
    while len(queue):
        queue.pop()
        turn()
    wait_until(lambda: turn() or not outlet.full)
    sender.close()
    receiver.close()


def test_barriers_pass_between_two_workers_whose_channels_to_each_other_are_full() -> None:
    credentials = Credentials("t" * 64, STAMP)
    workers, queues = [Wires(credentials, bytes_max=50_000) for _ in range(2)], [Queue(50_000), Queue(50_000)]
    for me in (0, 1):
        workers[me].expect((0, 1 - me, me), queues[me], SCHEMA)
        workers[me].answer()
    outlets = [workers[me].connect((0, me, 1 - me), workers[1 - me].address) for me in (0, 1)]
    rows = pa.record_batch({"n": np.arange(1000)})

    def turn() -> bool:
        for wires in workers:
            wires.turn(0.0)
        return False

    while not all(outlet.full for outlet in outlets):
        for outlet in outlets:
            if not outlet.full:
                outlet.push(Batch(rows, rows.num_rows, rows.nbytes))
    for outlet in outlets:
        outlet.push(Barrier(1))
    found: dict[int, int] = {}

    def look() -> bool:
        turn()
        for me in (0, 1):
            if me not in found and (ahead := queues[me].overtake(1)) is not None:
                found[me] = len(ahead)
        return len(found) == 2

    wait_until(look)
    assert all(outlet.full for outlet in outlets), "nothing was taken but the barriers"
    assert all(found[me] == len(queues[me]) > 10 for me in (0, 1)), "and they came past all rows"
    for wires in workers:
        wires.close()


@pytest.mark.parametrize("bytes_max", [4096, 50_000])
def test_a_reader_that_has_taken_all_is_sent_more_however_small_its_rows_are_beside_their_frames(bytes_max: int) -> None:
    credentials = Credentials("t" * 64, STAMP)
    receiver, sender = Wires(credentials, bytes_max=bytes_max), Wires(credentials, bytes_max=bytes_max)
    rows = pa.record_batch({f"c{n}": [True] for n in range(100)})  # 100 bytes of values in a frame of almost 6,000
    queue = Queue(bytes_max)
    receiver.expect((0, 1, 0), queue, rows.schema)
    receiver.answer()
    outlet = sender.connect((0, 1, 0), receiver.address)
    sent = taken = 0
    deadline = time.monotonic() + 30
    while taken < 200:
        assert time.monotonic() < deadline, f"nothing moves: {sent} sent, {taken} taken"
        if sent < 200 and not outlet.full:
            outlet.push(Batch(rows, 1, rows.nbytes))
            sent += 1
        sender.turn(0.0)
        receiver.turn(0.0)
        while len(queue):
            queue.pop()
            taken += 1
    sender.close()
    receiver.close()


def test_a_receiver_that_takes_what_was_never_sent_is_no_peer() -> None:
    credentials = Credentials("t" * 64, STAMP)
    sender = Wires(credentials)
    with socket.create_server(("127.0.0.1", 0)) as server:
        outlet = sender.connect((0, 1, 0), server.getsockname())
        other, _ = server.accept()
        outlet.push(Barrier(1))
        other.sendall((2).to_bytes(8, "little"))
        with pytest.raises(DecodeError, match="took 2 messages, and 1 were sent"):
            sender.turn(1.0)
        other.close()
    sender.close()


def test_a_sender_whose_receiver_is_gone_says_so() -> None:
    credentials = Credentials("t" * 64, STAMP)
    sender = Wires(credentials)
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender.connect((0, 1, 0), server.getsockname())
        other, _ = server.accept()
        assert sender.lost_for() == 0.0
        other.close()
        wait_until(lambda: sender.turn(0.01) or sender.lost_for() > 0)
    sender.close()


# --- with Spark ---------------------------------------------------------------------------------------------------------


@pytest.mark.spark
@pytest.mark.parametrize("parallelism", [2, 3])
def test_windows_count_like_an_independent_count(spark: Any, parallelism: int) -> None:
    rows = 120_000
    out = sinks.memory(f"windows-{parallelism}")
    p = pen.Pipeline("ad-counts")
    (
        p.read(sources.generate(ad_events, schema=AD_EVENT, rows=rows, splits=4))
        .filter("event_type = 'view'")
        .with_columns(campaign=pen.udf(campaign_of, returns=str)(pen.col("ad_id")))
        .with_watermark("at", delay="100ms")
        .key_by("campaign")
        .window(pen.tumbling("500ms"))
        .aggregate(n=pen.count(), name="counts")
        .write(out)
    )
    p.run(pen.Continuous(spark, parallelism=parallelism, snapshot_every="300ms"))
    events = ad_events(np.arange(rows), 0)
    kinds, ads, at = (events[name].to_pylist() for name in ("event_type", "ad_id", "at"))
    expected = Counter(
        (campaign_of(ad), int(when.timestamp() * 1000) // 500 * 500)
        for kind, ad, when in zip(kinds, ads, at, strict=True)
        if kind == "view"
    )
    found = {(row["campaign"], round(row["window_start"].timestamp() * 1000)): row["n"] for row in out.rows()}
    assert found == dict(expected)
    assert len(out.rows()) == len(expected)


@pytest.mark.spark
def test_a_running_aggregate_and_a_user_function_of_this_module(spark: Any) -> None:
    out = sinks.memory("running")
    p = pen.Pipeline("running")
    (
        p.read(sources.generate(numbered, schema=NUMBERED, rows=50_000, splits=3))
        .map(lambda row: {"key": row.key, "twice": row.id * 2}, schema="key bigint not null, twice bigint not null")
        .key_by("key")
        .aggregate(n=pen.count(), total="sum(twice)", name="totals")
        .write(out)
    )
    job = p.run(pen.Continuous(spark, parallelism=2, snapshot_every="200ms"))
    assert job.status().state == "finished"
    expected = [{"key": k, "n": len(range(k, 50_000, 7)), "total": 2 * sum(range(k, 50_000, 7))} for k in range(7)]
    assert sorted(out.rows(), key=lambda row: row["key"]) == expected


@dataclass(frozen=True)
class Gated(Source):
    """Generated rows, the second half of which waits for a file: so that no job ends before what is to happen to it has happened."""

    name: str
    rows: int
    rate: float
    gate: str
    schema = to_schema(NUMBERED)
    bounded = True

    def splits(self) -> tuple[str, ...]:
        return ("0", "1", "2")

    def open(self, split: str, position: Any, context: SourceContext) -> Reader:
        rows = sources.generate(numbered, schema=NUMBERED, rows=self.rows, rate=self.rate, splits=3, name=self.name)
        return GatedReader(rows.open(split, position, context), position or 0, self.rows // 6, Path(self.gate))


class GatedReader(Reader):
    def __init__(self, reader: Reader, position: int, half: int, gate: Path) -> None:
        self._reader, self._position, self._half, self._gate = reader, position, half, gate

    def poll(self, rows_max: int) -> Chunk | None:
        if not self._gate.exists():
            rows_max = min(rows_max, self._half - self._position)
            if rows_max <= 0:
                return None
        chunk = self._reader.poll(rows_max)
        self._position = self._position if chunk is None else chunk.position
        return chunk

    def backlog(self) -> bool:
        return self._reader.backlog()


def counting(name: str, out: Path, rows: int, rate: int, gate: Path) -> pen.Pipeline:
    p = pen.Pipeline(name)
    (
        p.read(Gated("generate", rows, rate, str(gate)))
        .select("id", "key")
        .key_by("key")
        .aggregate(n=pen.count(), total="sum(id)", name="totals")
        .write(sinks.memory(name))
    )
    p.read(Gated("copy", rows, rate, str(gate)), name="copy").write(sinks.files(out), name="rows")
    return p


def check_counts(name: str, out: Path, rows: int) -> None:
    ids = [row["id"] for row in committed(out)]
    assert len(ids) == len(set(ids)), "a row was written twice"
    assert set(ids) == set(range(rows)), "a row is missing"
    found = {row["key"]: (row["n"], row["total"]) for row in sinks.memory(name).rows()}
    assert found == {k: (len(range(k, rows, 7)), sum(range(k, rows, 7))) for k in range(7)}


@pytest.mark.spark
def test_a_killed_worker_costs_nothing_but_time(spark: Any, tmp_path: Path) -> None:
    rows = 60_000
    p = counting("killed", tmp_path / "rows", rows, 20_000, tmp_path / "gate")
    job = p.start(pen.Continuous(spark, parallelism=2, storage=tmp_path / "store", snapshot_every="300ms", backoff="100ms"))
    wait_until(lambda: job.conductor.epochs_published >= 2)
    os.kill(job.conductor._attempts.server.processes()[1], signal.SIGKILL)
    (tmp_path / "gate").touch()
    job.wait(timeout="60s")
    assert job.status().restarts == 1
    assert job.conductor.replayed > 0
    check_counts("killed", tmp_path / "rows", rows)


@pytest.mark.spark
@pytest.mark.parametrize("point", ["barrier.aligned", "ack.before"])
def test_a_worker_killed_at_a_point_of_the_protocol(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    fault = tmp_path / "fault"
    fault.write_text(json.dumps({"point": point, "epoch": 3, "signal": "KILL"}))
    monkeypatch.setenv("PENSTOCK_FAULT_FILE", str(fault))
    name = f"point-{point}"
    p = counting(name, tmp_path / "rows", 20_000, 10_000, tmp_path / "fault.taken")
    job = p.run(pen.Continuous(spark, parallelism=2, storage=tmp_path / "store", snapshot_every="200ms", backoff="100ms"))
    assert (tmp_path / "fault.taken").exists()
    assert job.status().restarts == 1
    check_counts(name, tmp_path / "rows", 20_000)


@pytest.mark.spark
def test_stop_and_go_on_at_another_parallelism(spark: Any, tmp_path: Path) -> None:
    rows = 30_000
    for parallelism in (2, 3):
        p = counting("moved", tmp_path / "rows", rows, 15_000, tmp_path / "gate")
        job = p.start(pen.Continuous(spark, parallelism=parallelism, storage=tmp_path / "store", snapshot_every="200ms"))
        if parallelism == 2:
            wait_until(lambda job=job: job.conductor.epochs_published >= 2)
            job.stop()
            assert job.status().state == "stopped"
            (tmp_path / "gate").touch()
        else:
            job.wait(timeout="60s")
    check_counts("moved", tmp_path / "rows", rows)


def fail_at_4000(row: Any) -> bool:
    if row.id == 4000:
        raise ValueError("no row like this one, please")
    return True


@pytest.mark.spark
def test_an_error_of_the_users_function_is_shown(spark: Any) -> None:
    p = pen.Pipeline("failing")
    p.read(sources.generate(numbered, schema=NUMBERED, rows=10_000)).filter(fail_at_4000).write(sinks.memory("failing"))
    with pytest.raises(JobError, match="ValueError: no row like this one, please"):
        p.run(pen.Continuous(spark, parallelism=2))


@pytest.mark.spark
def test_too_few_slots_are_said_at_once(spark: Any) -> None:
    p = pen.Pipeline("large")
    p.read(sources.generate(numbered, schema=NUMBERED, rows=10)).write(sinks.memory("large"))
    began = time.monotonic()
    with pytest.raises(RunnerError) as error:
        p.run(pen.Continuous(spark, parallelism=9))
    assert time.monotonic() - began < 2
    assert str(error.value) == (
        "Continuous needs 9 slots at the same time, and this Spark has 4 (local[4])\n"
        '  Use parallelism=4, or start Spark with 9 cores: --master "local[9]"'
    )


def skewed(index: Any, seed: int) -> dict[str, Any]:
    heavy = np.where(index % 100 == 0, index % 700 // 100 + 1, 0)  # 99 of 100 rows have the same one
    pad = pa.array([f"{number:0>200}" for number in index.tolist()])
    return {"id": index, "heavy": heavy, "pad": pad, "at": pa.array(index * 500).view(pa.timestamp("us", "UTC"))}


SKEWED = "id bigint not null, heavy bigint not null, pad string not null, at timestamp not null"


@pytest.mark.spark
def test_full_channels_in_both_directions_do_not_deadlock(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_CHANNEL_BYTES", "4096")
    rows = 30_000
    p = pen.Pipeline("narrow")
    singles = (
        p.read(sources.generate(skewed, schema=SKEWED, rows=rows, splits=30))
        .with_watermark("at", delay="1s")
        .key_by("id", "heavy", "pad")
        .window(pen.tumbling("1s"))
        .aggregate(n=pen.count(), name="singles")
    )
    totals = (
        singles.key_by("heavy")
        .window(pen.tumbling("10s"))
        .aggregate(n="sum(n)", rows=pen.count(), last="max(pad)", name="totals")
    )
    totals.write(sinks.memory("narrow"))
    totals.late.write(sinks.memory("narrow-late"))  # so that rows themselves cross the second exchange, not sums of them
    job = p.start(pen.Continuous(spark, parallelism=3, snapshot_every="200ms"))
    wait_until(lambda: job.conductor._attempts is not None and job.conductor._attempts.server is not None)
    server = job.conductor._attempts.server
    job.wait(timeout="60s")
    counts: Counter[int] = Counter()
    for row in sinks.memory("narrow").rows():
        assert row["n"] == row["rows"]
        counts[row["heavy"]] += row["rows"]
    assert counts == Counter(skewed(np.arange(rows), 0)["heavy"].tolist())
    assert sinks.memory("narrow-late").table() is None
    assert min(beat["stalls"] for beat in server.beats.values()) > 10, "channels were full, in all directions, again and again"


def open_ports() -> dict[int, set[str]]:
    """Ports that listen or are connected, with the local addresses they are bound to."""
    ports: dict[int, set[str]] = {}
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:] + Path("/proc/net/tcp6").read_text().splitlines()[1:]:
        _, local, _, state = line.split()[:4]
        if state in ("01", "0A"):
            address, _, port = local.rpartition(":")
            ports.setdefault(int(port, 16), set()).add(address)
    return ports


@pytest.mark.spark
def test_nothing_is_left_and_nothing_listens_beyond_this_machine(spark: Any, tmp_path: Path) -> None:
    p = counting("tidy", tmp_path / "rows", 1_000_000, 10_000, tmp_path / "gate")
    others = set(threading.enumerate())  # of jobs of other tests
    job = p.start(pen.Continuous(spark, parallelism=3, snapshot_every="200ms"))
    wait_until(lambda: job.conductor.epochs_published >= 1)
    server = job.conductor._attempts.server
    mine = {server.address[1]} | {line.hello["address"][1] for line in server._lines.values()}
    assert len(mine) == 4
    during = open_ports()
    assert all(during[port] <= {"0100007F"} for port in mine), "loopback only"
    directory = job.conductor.job_dir
    job.cancel()
    wait_until(lambda: not mine & set(open_ports()), within_s=5)
    # The loop for calls to outside services lives as long as the process.
    left = set(threading.enumerate()) - others
    assert {t.name for t in left if t.name.startswith("penstock")} <= {"penstock-calls"}
    assert not directory.exists(), "without storage nothing is kept"
    # The slots are free again at once: the next job starts.
    again = pen.Pipeline("tidy-again")
    again.read(sources.generate(numbered, schema=NUMBERED, rows=10)).write(sinks.memory("tidy-again"))
    again.run(pen.Continuous(spark, parallelism=4))
    assert len(sinks.memory("tidy-again").rows()) == 10


class Leaves(ControlServer):
    """Whose workers are gone as soon as they are told to exit."""

    def dismiss(self) -> None:
        super().dismiss()
        self.wait_until_gone(10)


@pytest.mark.spark
def test_a_job_whose_workers_leave_at_once_is_not_cancelled(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    cancelled: list[str] = []
    monkeypatch.setattr(driver, "ControlServer", Leaves)
    monkeypatch.setattr(spark.sparkContext, "cancelJobGroup", cancelled.append)
    p = pen.Pipeline("leaving")
    p.read(sources.generate(numbered, schema=NUMBERED, rows=10)).write(sinks.memory("leaving"))
    p.run(pen.Continuous(spark, parallelism=2))
    assert len(sinks.memory("leaving").rows()) == 10
    assert cancelled == []


@pytest.mark.spark
def test_a_function_that_cannot_travel_is_refused_in_words(spark: Any) -> None:
    lock = threading.Lock()
    p = pen.Pipeline("stuck-here")
    rows = p.read(sources.generate(numbered, schema=NUMBERED, rows=10))
    rows.filter(lambda row: lock is not None).write(sinks.memory("stuck-here"))
    with pytest.raises(JobError, match=r"cannot be sent to workers: .*lock"):
        p.run(pen.Continuous(spark, parallelism=2))
