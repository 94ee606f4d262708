"""Strangers on a job's ports: whatever anybody says before it is known ends its own connection, and nothing else.

`PENSTOCK_GREETINGS` is how many greetings go through the parsers, and `PENSTOCK_STRANGERS` how many go over sockets to the ports of a
running job (`make strangers`: a million and 20,000); a test of every change takes fewer.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as pen
from penstock import sinks, sources
from penstock.connectors.socket import _decode
from penstock.errors import DecodeError
from penstock.protocol import coordinator as c
from penstock.runners.continuous import channel, control
from penstock.runners.continuous.channel import Wires
from penstock.runners.continuous.control import ControlServer
from penstock.runners.continuous.greeting import Credentials, Introduction, channel_in, worker_in
from penstock.runners.control import ControlSocket, read_control
from penstock.runners.queues import Queue
from penstock.runners.spark.frames import encode_control
from runners.greetings import STAMP, TOKEN, Grammar, right_greeting

STRANGERS = int(os.environ.get("PENSTOCK_STRANGERS", "4000"))
GREETINGS = int(os.environ.get("PENSTOCK_GREETINGS", "60000"))
OURS = Credentials(TOKEN, STAMP)
SCHEMA = pa.schema([("n", pa.int64())])
SURROGATE = {"say": "hello", "token": "\ud800"}


def test_no_greeting_raises_anything_but_a_refusal() -> None:
    """To a data port and to the driver's: a greeting is heard, or refused, and there is no third."""
    grammar = Grammar(20261118)
    heard = refused = unfinished = channels = workers = 0
    for _ in range(GREETINGS * 3 // 4):
        says = Introduction(OURS)
        try:
            for piece in grammar.pieces():
                greeting = says.hear(piece)
                if greeting is not None:
                    break
        except DecodeError:
            refused += 1
            continue
        if greeting is None:
            unfinished += 1
            continue
        heard += 1
        assert greeting["token"] == TOKEN, "nobody is heard without the token"
        channels += channel_in(greeting) == (0, 1, 0)
        workers += worker_in(greeting, 1) == 0
    assert min(heard, refused, unfinished, channels, workers) > GREETINGS // 200, "the grammar reaches every outcome"


def test_no_request_raises_or_does_anything_without_the_token(tmp_path: Path) -> None:
    """To the control socket of a job."""
    asked: list[str] = []

    class Nobody:
        name = "nobody"

        def __getattr__(self, name: str) -> Any:
            asked.append(name)
            raise AssertionError(f"a stranger reached {name}")

    door = ControlSocket(Nobody(), tmp_path)  # type: ignore[arg-type]
    grammar = Grammar(20261119, knows_token=False)
    for _ in range(GREETINGS // 4):
        answer, stay = door._answer(grammar.line())
        assert answer["ok"] is False
        assert not stay
    assert asked == []


def test_a_job_without_a_thread_to_spare_answers_again_when_it_has_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    door = ControlSocket(SimpleNamespace(name="busy"), tmp_path)  # type: ignore[arg-type]
    door.open()
    told = read_control(tmp_path)
    assert told is not None

    def no_thread(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    def answer() -> bytes:
        with socket.socket(socket.AF_UNIX) as line:
            line.settimeout(5)
            line.connect(told["path"])
            try:  # whoever cannot be served may be hung up on before or after a word
                line.sendall(b"{}\n")
                return line.recv(1000)
            except ConnectionError:
                return b""

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_thread)
        assert answer() == b""
    assert b"wrong token" in answer()
    door.close()


def test_a_token_that_no_encoding_has_is_a_wrong_token() -> None:
    assert not OURS.accepts(SURROGATE)
    with pytest.raises(DecodeError, match="no process of this attempt"):
        Introduction(OURS).hear(encode_control(SURROGATE, 0))
    assert Introduction(OURS).hear(right_greeting()) is not None


@pytest.mark.parametrize("flag", [True, 1.0, "1", None, 1 << 80])
def test_a_channel_and_a_worker_are_whole_numbers(flag: Any) -> None:
    assert channel_in({"exchange": 0, "source": flag, "target": 0}) in (None, (0, 1 << 80, 0))
    assert worker_in({"worker": flag, "address": ["h", 1], "uid": "u", "pid": 1}, 2) is None


def closed(sock: socket.socket) -> bool:
    sock.settimeout(5)
    try:
        return sock.recv(100) == b""
    except ConnectionError:
        return True


def server_of(events: list[c.Event]) -> ControlServer:
    server = ControlServer(OURS, 1, "code 1", post=events.append)
    server.start()
    return server


def test_a_lone_surrogate_ends_its_own_connection_to_the_driver() -> None:
    events: list[c.Event] = []
    server = server_of(events)
    for _ in range(7):
        with socket.create_connection(server.address) as stranger:
            stranger.sendall(encode_control(SURROGATE, 0))
            assert closed(stranger)
    with socket.create_connection(server.address) as worker:
        worker.sendall(right_greeting())
        worker.settimeout(5)
        assert b"peers" in worker.recv(1000), "the driver listens as before"
        assert events == []
        assert server.refused == 7
        server.dismiss()
    server.close()


def test_what_only_a_bug_could_raise_ends_the_strangers_connection_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def bug(self: Introduction, data: bytes) -> None:
        raise ZeroDivisionError

    events: list[c.Event] = []
    server = server_of(events)
    wires = Wires(OURS)
    wires.answer()
    with monkeypatch.context() as patch:
        patch.setattr(Introduction, "hear", bug)
        for address in (server.address, wires.address):
            with socket.create_connection(address) as stranger:
                stranger.sendall(b"x")
                for _ in range(5):
                    wires.turn(0.01)
                assert closed(stranger)
    assert (server.refused, wires.refused, events) == (1, 1, [])
    assert server.is_alive()
    server.close()
    wires.close()


def test_a_worker_is_heard_while_strangers_hold_more_connections_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (control, channel):
        monkeypatch.setattr(module, "STRANGERS_MAX", 8)
    events: list[c.Event] = []
    server = server_of(events)
    silent = [socket.create_connection(server.address) for _ in range(20)]
    with socket.create_connection(server.address) as worker:
        worker.sendall(right_greeting())
        worker.settimeout(5)
        assert b"peers" in worker.recv(1000)
        server.dismiss()
    server.close()

    receiver, queue = Wires(OURS), Queue()
    receiver.expect((0, 1, 0), queue, SCHEMA)
    receiver.answer()
    silent += [socket.create_connection(receiver.address) for _ in range(20)]
    with socket.create_connection(receiver.address) as peer:
        peer.sendall(right_greeting())
        for _ in range(60):
            receiver.turn(0.01)
        assert [inbound.channel for inbound in receiver._inbound] == [(0, 1, 0)]
        assert len(receiver._strangers) <= 8
    receiver.close()
    for sock in silent:
        sock.close()


def test_a_thousand_refusals_are_ten_lines_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    wires = Wires(OURS)
    wires.answer()
    with caplog.at_level(logging.WARNING, logger="penstock"):
        for _ in range(1_000):
            with socket.create_connection(wires.address) as stranger:
                stranger.sendall(bytes(32))
                for _ in range(2):
                    wires.turn(0.05)
    wires.close()
    assert wires.refused == 1_000
    assert len(caplog.records) == 10


def test_the_control_port_says_why_if_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[c.Event] = []
    server = ControlServer(OURS, 1, "code 1", post=events.append)
    monkeypatch.setattr(server, "_announce", lambda: 1 // 0)
    server.start()
    server.join(5)
    assert events == [
        c.AttemptFailed(STAMP, "the line to the workers broke: ZeroDivisionError: integer division or modulo by zero")
    ]
    server._wake_write.close()


def test_whatever_a_server_sends_is_a_row_or_a_bad_record() -> None:
    """The socket source and its receiver: each line is decoded, or told of; none of them raises."""
    grammar = Grammar(20261120)
    lines = [line for _ in range(GREETINGS // 20) for line in (grammar.connection() + grammar.line()).split(b"\n")]
    batch, bad = _decode(lines, list(range(len(lines))), ("value",))
    assert batch is not None
    assert batch.num_rows + len(bad) == len(lines)
    assert min(batch.num_rows, len(bad)) > len(lines) // 100


# --- beside a running job -----------------------------------------------------------------------------------------------


def numbered(index: Any, seed: int) -> dict[str, Any]:
    return {"id": index, "key": index % 7}


class Crowd:
    """Strangers in threads, who all speak to the same ports in turn. `answered` counts those that were hung up on or told off."""

    def __init__(self, ports: list[tuple[str, int] | str], many: int) -> None:
        self.answered = self.unheard = 0
        self._ports = ports
        self._threads = [threading.Thread(target=self._speak, args=(seed, many // 4), daemon=True) for seed in range(4)]
        for thread in self._threads:
            thread.start()

    @property
    def speaking(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    def _speak(self, seed: int, many: int) -> None:
        grammar = Grammar(seed, knows_token=False)
        open_ends: list[socket.socket] = []
        for number in range(many):
            port = self._ports[(number + seed) % len(self._ports)]
            sock = socket.socket(socket.AF_UNIX if isinstance(port, str) else socket.AF_INET)
            sock.settimeout(10)
            try:
                sock.connect(port)
                sock.sendall(grammar.line() if isinstance(port, str) else grammar.connection())
                if number % 10 == 0 and not isinstance(port, str):
                    open_ends.append(sock)  # neither speaks on nor goes
                    continue
                sock.shutdown(socket.SHUT_WR)
                sock.recv(1000)
                self.answered += 1
            except TimeoutError:
                self.unheard += 1
            except OSError:  # hung up on before all was said
                self.answered += 1
            if len(open_ends) > 50:
                open_ends.pop(0).close()
            sock.close()
        for sock in open_ends:
            sock.close()


@pytest.mark.spark
@pytest.mark.slow
def test_strangers_on_all_ports_of_a_running_job_change_nothing(spark: Any, tmp_path: Path) -> None:
    p = pen.Pipeline("besieged")
    rows = p.read(sources.generate(numbered, schema="id bigint not null, key bigint not null", rate=5_000, splits=2))
    rows.key_by("key").aggregate(n=pen.count(), total="sum(id)", name="totals").write(sinks.memory("besieged"))
    rows.write(sinks.files(tmp_path / "rows"), name="rows")
    job = p.start(pen.Continuous(spark, parallelism=2, storage=tmp_path / "store", snapshot_every="200ms"))
    until = time.monotonic() + 30
    while job.conductor.epochs_published < 1:
        assert time.monotonic() < until
        time.sleep(0.05)
    server = job.conductor._attempts.server
    told = read_control(tmp_path / "store" / "besieged")
    assert told is not None
    data = [(host, port) for host, port in (line.hello["address"] for line in server._lines.values())]
    assert len(data) == 2
    crowd = Crowd([server.address, *data, told["path"]], STRANGERS)
    published, at, longest = job.conductor.epochs_published, time.monotonic(), 0.0
    while crowd.speaking:
        time.sleep(0.02)
        if job.conductor.epochs_published > published:
            published, at = job.conductor.epochs_published, time.monotonic()
        longest = max(longest, time.monotonic() - at)
    assert longest < 5, "no epoch for seconds"
    assert (job.status().state, job.status().restarts) == ("running", 0)
    assert crowd.answered > STRANGERS // 2
    assert crowd.unheard == 0
    assert server.refused > STRANGERS // 8
    job.stop(timeout="30s")
    found = [pq.ParquetFile(file).read() for file in (tmp_path / "rows").glob("epoch=*/part-*")]
    ids = [row for table in found for row in table.column("id").to_pylist()]
    assert len(ids) == len(set(ids)) > 0
    totals = {row["key"]: (row["n"], row["total"]) for row in sinks.memory("besieged").rows()}
    counts, sums = Counter(n % 7 for n in ids), Counter[int]()
    for n in ids:
        sums[n % 7] += n
    assert totals == {key: (counts[key], sums[key]) for key in counts}
