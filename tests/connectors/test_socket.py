"""Lines from a real server on the loopback, with and without a journal."""

from __future__ import annotations

import socket as net
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import sources
from penstock.connectors.connector import Reader
from penstock.connectors.socket import Socket
from penstock.errors import HeldError, JobError

from .reading import check_resume, context, read


class Server:
    """Sends `data` to each of the connections it is told to expect; closes after it unless told to stay."""

    def __init__(self) -> None:
        self.listener = net.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        self.release = threading.Event()
        self.threads: list[threading.Thread] = []

    def serve(self, data: bytes, *, stay: bool = False) -> None:
        def run() -> None:
            connection, _ = self.listener.accept()
            with connection:
                connection.sendall(data)
                if stay:
                    self.release.wait(5)

        self.threads.append(threading.Thread(target=run, daemon=True))
        self.threads[-1].start()

    def close(self) -> None:
        self.release.set()
        self.listener.close()


@pytest.fixture
def server() -> Iterator[Server]:
    found = Server()
    yield found
    found.close()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.005)


def receive_all(source: Socket, job_dir: Path) -> None:
    receiver = source.receiver(context(source, job_dir))
    assert receiver is not None
    receiver.start()
    until(lambda: receiver.ended or bool(receiver.check()))
    receiver.stop()


DATA = b"to be\r\nor not\n\nto b\xff\xff\n" + "thät is\nlast".encode()
ROWS = ["to be", "or not", "", "thät is", "last"]


def test_lines_are_journalled_and_read_to_the_end(server: Server, tmp_path: Path) -> None:
    source = sources.socket("127.0.0.1", server.port)
    assert source.replayable
    assert "exactly once after receipt" in source.describe()
    assert read(source, job_dir=tmp_path).rows == []
    server.serve(DATA)
    receive_all(source, tmp_path)
    seen = read(source, job_dir=tmp_path)
    assert [row["value"] for row in seen.rows] == ROWS
    assert seen.ended
    assert [(bad.record, bad.position["row"]) for bad in seen.bad] == [("to b\\xff\\xff", 3)]
    for rows_max in (1, 2, 3):
        check_resume(source, rows_max=rows_max, again_max=2, job_dir=tmp_path)


def test_a_receiver_does_not_start_again_after_the_end(server: Server, tmp_path: Path) -> None:
    source = sources.socket("127.0.0.1", server.port, connect_s=0.1)
    server.serve(b"one\n")
    receive_all(source, tmp_path)
    server.close()
    receive_all(source, tmp_path)  # would fail if it tried to connect
    assert [row["value"] for row in read(source, job_dir=tmp_path).rows] == ["one"]


def test_a_stopped_receiver_leaves_the_end_open_and_the_next_goes_on(server: Server, tmp_path: Path) -> None:
    source = sources.socket("127.0.0.1", server.port)
    server.serve(b"one\ntwo\nhalf a li", stay=True)
    receiver = source.receiver(context(source, tmp_path))
    assert receiver is not None
    receiver.start()
    other = source.receiver(context(source, tmp_path))
    assert other is not None
    with pytest.raises(HeldError):
        other.start()
    until(lambda: len(read(source, job_dir=tmp_path).rows) == 2)
    receiver.stop()
    first = read(source, job_dir=tmp_path)
    assert not first.ended
    server.serve(b"three\n")
    receive_all(source, tmp_path)
    rest = read(source, position=first.positions[-1], job_dir=tmp_path)
    assert [row["value"] for row in rest.rows] == ["three"]
    assert rest.ended
    source.collect(rest.positions[-1], context(source, tmp_path))


def poll_all(reader: Reader) -> tuple[list[str], Any]:
    rows: list[str] = []
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        chunk = reader.poll(2)
        if chunk is None:
            time.sleep(0.005)
            continue
        rows += chunk.batch["value"].to_pylist() if chunk.batch is not None else []
        if chunk.ended:
            reader.close()
            return rows, chunk.position
    raise AssertionError("the end never came")


def test_without_a_journal_rows_come_directly_and_positions_count(server: Server, tmp_path: Path) -> None:
    source = sources.socket("127.0.0.1", server.port, journal=False)
    assert not source.replayable
    assert source.receiver(context(source, tmp_path)) is None
    server.serve(DATA)
    assert poll_all(source.open("0", None, context(source, tmp_path))) == (ROWS, 6)
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_starts_late_is_waited_for(tmp_path: Path) -> None:
    with net.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    source = sources.socket("127.0.0.1", port, journal=False)
    reader = source.open("0", None, context(source, tmp_path))
    assert reader.poll(1) is None
    time.sleep(0.1)
    late = Server.__new__(Server)
    late.listener = net.create_server(("127.0.0.1", port))
    late.release, late.threads = threading.Event(), []
    late.serve(b"here\n")
    assert poll_all(reader) == (["here"], 1)
    late.close()


@pytest.mark.parametrize("journal", [True, False])
def test_a_server_that_never_starts_is_an_error_that_says_so(tmp_path: Path, journal: bool) -> None:
    with net.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    source = sources.socket("127.0.0.1", port, journal=journal, connect_s=0.2)

    def run() -> None:
        if journal:
            receive_all(source, tmp_path)
        else:
            poll_all(source.open("0", None, context(source, tmp_path)))

    with pytest.raises(JobError, match=r"(?s)could not be reached for 0.2 s.*\n  Start the server .* nc -lk"):
        run()
