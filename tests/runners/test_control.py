"""The control socket: who may ask, what is answered, and that nothing is left behind."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock as pen
from penstock import sinks, sources
from penstock.errors import BadNameError, ConfigError, HeldError, JobError, StorageError
from penstock.runners import control


def numbers(index: Any, seed: int) -> dict[str, Any]:
    return {"n": index, "key": index % 3}


def endless(name: str) -> pen.Pipeline:
    return (
        pen.Pipeline(name)
        .read(sources.generate(numbers, schema="n bigint not null, key bigint not null", rate=2_000))
        .key_by("key")
        .aggregate(n=pen.count(), name="counts")
        .write(sinks.memory(name))
    )


def start(name: str, storage: Path, **options: Any) -> pen.Job:
    job: pen.Job = endless(name).start(pen.Local(storage=storage, snapshot_every="100ms", **options))
    wait_until(lambda: (storage / name / control.FILE).exists() and job.status().epoch > 0)
    return job


def wait_until(true: Callable[[], bool], within_s: float = 20.0) -> None:
    until = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.01)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[pen.Job]:
    started = start("ctl", tmp_path)
    yield started
    if not started.done:
        started.cancel()


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Of a job that runs through all tests of what must do no harm."""
    folder = tmp_path_factory.mktemp("shared")
    started = start("ctl", folder)
    yield folder
    assert started.status().state == "running"
    started.cancel()


def told(tmp_path: Path, name: str = "ctl") -> dict[str, Any]:
    found: dict[str, Any] = json.loads((tmp_path / name / control.FILE).read_text())
    return found


def raw(path: str, data: bytes, *, half_close: bool = False) -> bytes:
    """Send bytes as they are; everything that comes back until the job hangs up or is silent."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        line.settimeout(5)
        line.connect(path)
        line.sendall(data)
        if half_close:
            line.shutdown(socket.SHUT_WR)
        return line.makefile("rb").readline()


def test_an_attached_job_has_what_the_job_has(job: pen.Job, tmp_path: Path) -> None:
    attached = pen.attach("ctl", tmp_path)
    status = attached.status()
    assert (status.pipeline, status.runner, status.state) == ("ctl", "local", "running")
    assert status.epoch >= 1
    assert status.guarantee == job.status().guarantee
    assert {row["step"] for row in attached.metrics()} == {row["step"] for row in job.metrics()}
    assert not attached.done
    with pytest.raises(JobError, match="still running after 100ms"):
        attached.wait(timeout="100ms")


def test_a_savepoint_taken_from_outside_can_be_started_from(
    job: pen.Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attached = pen.attach("ctl", storage=tmp_path)
    monkeypatch.chdir(tmp_path)
    assert attached.savepoint("saved") == tmp_path / "saved"
    with pytest.raises(StorageError, match="already holds a savepoint"):
        attached.savepoint(tmp_path / "saved")
    with pytest.raises(ConfigError, match="s3"):
        attached.savepoint("s3://bucket/x")
    attached.stop()
    again = endless("ctl").start(pen.Local(storage=tmp_path / "other"), restore=tmp_path / "saved")
    wait_until(lambda: again.status().epoch > 0)
    again.cancel()


def test_stop_from_outside_is_a_last_snapshot_and_an_end(job: pen.Job, tmp_path: Path) -> None:
    pen.attach("ctl", tmp_path).stop(timeout="20s")
    wait_until(lambda: job.done)
    assert job.status().state == "stopped"


def test_finish_from_outside_is_the_end_for_good(job: pen.Job, tmp_path: Path) -> None:
    pen.attach("ctl", tmp_path).stop(finish=True)
    job.wait(timeout="10s")
    assert job.status().state == "finished"


def test_cancel_from_outside_ends_it_at_once(job: pen.Job, tmp_path: Path) -> None:
    attached = pen.attach("ctl", tmp_path)
    attached.cancel()
    job.wait(timeout="10s")
    assert job.status().state == "cancelled"
    assert attached.done


def test_waiting_outside_sees_how_it_ended(job: pen.Job, tmp_path: Path) -> None:
    attached = pen.attach("ctl", tmp_path)
    seen: list[BaseException | None] = []

    def wait() -> None:
        try:
            attached.wait()
            seen.append(None)
        except JobError as error:
            seen.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    time.sleep(0.2)
    job.stop()
    waiter.join(10)
    assert seen == [None]


def test_files_are_private_and_go_at_the_end(job: pen.Job, tmp_path: Path) -> None:
    about = told(tmp_path)
    assert stat.S_IMODE((tmp_path / "ctl" / control.FILE).stat().st_mode) == 0o600
    assert stat.S_IMODE(os.stat(about["path"]).st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "ctl").stat().st_mode) == 0o700
    assert len(bytes.fromhex(about["token"])) == 32
    job.stop()
    assert not list((tmp_path / "ctl").glob("control*"))
    assert not os.path.exists(about["path"])


@pytest.mark.parametrize("token", ["", "0" * 64, "ä", None, 7, ["x"]])
def test_a_wrong_token_is_answered_and_nothing_is_done(storage: Path, token: object) -> None:
    for verb in ("status", "metrics", "stop", "cancel", "savepoint", "wait"):
        request = {"token": token, "verb": verb, "args": {"path": str(storage / "stolen")}}
        answer = json.loads(raw(told(storage)["path"], json.dumps(request).encode() + b"\n"))
        assert answer == {"ok": False, "kind": "JobError", "error": "wrong token: nothing was done"}
    assert pen.attach("ctl", storage).status().state == "running"
    assert not (storage / "stolen").exists()


def test_the_token_of_another_job_opens_nothing(job: pen.Job, tmp_path: Path) -> None:
    other = start("other", tmp_path)
    request = {"token": told(tmp_path, "other")["token"], "verb": "cancel", "args": {}}
    assert not json.loads(raw(told(tmp_path)["path"], json.dumps(request).encode() + b"\n"))["ok"]
    assert job.status().state == "running"
    other.cancel()


@pytest.mark.parametrize(
    "data",
    [
        b"\n",
        b"{\n",
        b"[1]\n",
        b"null\n",
        b'"x"\n',
        b"\xff\xfe\n",
        b"[" * 60_000 + b"\n",
        b"x" * (control.REQUEST_BYTES_MAX + 10) + b"\n",
    ],
    ids=["empty", "cut", "list", "null", "text", "bytes", "deep", "long"],
)
def test_what_is_no_request_is_refused_and_does_no_harm(storage: Path, data: bytes) -> None:
    answer = json.loads(raw(told(storage)["path"], data))
    assert not answer["ok"]
    assert pen.attach("ctl", storage).status().state == "running"


@pytest.mark.parametrize(
    ("verb", "args"),
    [
        ("reboot", {}),
        (None, {}),
        ("stop", {"finish": "yes"}),
        ("stop", {"finish": True, "more": 1}),
        ("status", {"x": 1}),
        ("status", []),
        ("savepoint", {"path": "relative/path", "timeout": "1s"}),
        ("savepoint", {"path": "/a\0b", "timeout": "1s"}),
        ("savepoint", {"path": 7, "timeout": "1s"}),
        ("wait", {"within_s": "1"}),
    ],
)
def test_requests_that_mean_nothing_are_refused(storage: Path, verb: object, args: object) -> None:
    about = told(storage)
    request = {"token": about["token"], "verb": verb, "args": args}
    assert not json.loads(raw(about["path"], json.dumps(request).encode() + b"\n"))["ok"]
    assert pen.attach("ctl", storage).status().state == "running"


def test_more_connections_than_allowed_are_turned_away_and_the_others_go_on(storage: Path) -> None:
    about = told(storage)
    lines = []
    for _ in range(control.CONNECTIONS_MAX):
        line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        line.connect(about["path"])
        lines.append(line)
    wait_until(lambda: sum(t.name == "penstock-control-request" for t in threading.enumerate()) == control.CONNECTIONS_MAX)
    with pytest.raises(JobError, match="others are talking"):
        pen.attach("ctl", storage).status()
    for line in lines:
        line.close()
    wait_until(lambda: not any(t.name == "penstock-control-request" for t in threading.enumerate()))
    assert pen.attach("ctl", storage).status().state == "running"


def test_a_silent_connection_does_not_hold_up_the_end(job: pen.Job, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        line.connect(told(tmp_path)["path"])
        began = time.monotonic()
        job.stop()
        assert time.monotonic() - began < control.DRAIN_S


def test_a_path_too_long_for_a_socket_gets_a_short_one(tmp_path: Path) -> None:
    storage = tmp_path / ("long-" * 20)
    job = start("ctl", storage)
    about = told(storage)
    assert len(about["path"]) <= control.PATH_BYTES_MAX
    assert not Path(about["path"]).is_relative_to(storage)
    assert stat.S_IMODE(Path(about["path"]).parent.stat().st_mode) == 0o700
    assert pen.attach("ctl", storage).status().state == "running"
    job.stop()
    assert not Path(about["path"]).parent.exists()


def test_a_second_start_of_the_same_job_does_not_hide_the_first(job: pen.Job, tmp_path: Path) -> None:
    before = told(tmp_path)
    with pytest.raises(HeldError):
        endless("ctl").run(pen.Local(storage=tmp_path))
    assert told(tmp_path) == before
    assert pen.attach("ctl", tmp_path).status().state == "running"


def test_without_storage_nothing_listens() -> None:
    with endless("ctl").start(pen.Local()) as job:
        wait_until(lambda: job.status().state == "running")
        assert not list(job.conductor.job_dir.glob("control*"))


def test_no_running_job_is_said_with_what_storage_knows(tmp_path: Path) -> None:
    with pytest.raises(JobError, match=r"no job 'ctl' is running here\. Storage .* has no checkpoint of it\. Jobs there: none"):
        pen.attach("ctl", tmp_path)
    job = start("ctl", tmp_path)
    job.stop()
    epoch = job.status().epoch
    with pytest.raises(JobError, match=rf"no job 'ctl' is running here\. Its newest published epoch is {epoch}, by runner local"):
        pen.attach("ctl", tmp_path)
    with pytest.raises(JobError, match="Jobs there: ctl"):
        pen.attach("else", tmp_path)


@pytest.mark.parametrize("folder", ["short", "long-" * 20])
def test_what_a_killed_job_left_behind_counts_as_none_and_is_replaced(folder: str) -> None:
    place = tempfile.TemporaryDirectory(prefix="p")  # pytest's own may be too long for the address of a socket
    tmp_path = Path(place.name) / folder
    program = f"""
import sys, time
sys.path[:0] = {sys.path!r}
from test_control import start
from pathlib import Path
start("ctl", Path({str(tmp_path)!r}))
print("up", flush=True)
time.sleep(60)
"""
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, env=env) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        attached = pen.attach("ctl", tmp_path)
        assert attached.status().state == "running"
        old = told(tmp_path)
        process.kill()
        process.wait()
    with pytest.raises(JobError, match=r"no job 'ctl' is running here\. Its newest published epoch is"):
        pen.attach("ctl", tmp_path)
    with pytest.raises(JobError, match="no job 'ctl' is running"):
        attached.status()
    job = start("ctl", tmp_path)
    wait_until(lambda: told(tmp_path) != old)
    assert not os.path.exists(old["path"])
    assert Path(old["path"]).parent.exists() == (folder == "short")
    assert len(list((tmp_path / "ctl").glob("control-*.sock"))) == (folder == "short")
    attached = pen.attach("ctl", tmp_path)
    wait_until(lambda: attached.status().state == "running")  # it answers as soon as it holds the lock
    job.cancel()


def test_names_that_lead_elsewhere_are_refused(tmp_path: Path) -> None:
    for name in ("..", "../x", "a/b", "/etc", "a\0b", "", ".hidden", "%2e%2e", "．．"):
        with pytest.raises(BadNameError):
            pen.attach(name, tmp_path)


def test_control_of_a_link_is_refused(tmp_path: Path) -> None:
    job = start("ctl", tmp_path)
    (tmp_path / "evil").mkdir()
    (tmp_path / "evil" / control.FILE).symlink_to(tmp_path / "ctl" / control.FILE)
    with pytest.raises(JobError, match="cannot read"):
        pen.attach("evil", tmp_path)
    job.cancel()


def test_storage_must_be_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("PENSTOCK_STORAGE", raising=False)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="where is the storage"):
        pen.attach("ctl")
    job = start("ctl", tmp_path)
    monkeypatch.setenv("PENSTOCK_STORAGE", str(tmp_path))
    assert pen.attach("ctl").status().state == "running"
    job.cancel()
