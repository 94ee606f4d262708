"""The fixes of `checkpoints` and of the control socket: where a job is kept, what may be stored there, and who reads it."""

from __future__ import annotations

import errno
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

import penstock as pen
from fixes.applying import argument, code_of, evaluate, shown
from fixes.test_restore_fixes import counts, numbers
from penstock import cli, sinks
from penstock.checkpoints import envelope
from penstock.checkpoints import log as logs
from penstock.checkpoints.log import Log
from penstock.checkpoints.manifest import Manifest
from penstock.checkpoints.repository import SAVEPOINT, Repository
from penstock.checkpoints.storage import LocalStore, MemoryStore, OutcomeUnknown, open_store
from penstock.connectors.connector import Chunk, Json, Reader, Source, SourceContext
from penstock.runners import control
from penstock.runners.job import graceful_interrupt
from penstock.runners.listing import jobs_in


def wait_until(true: Callable[[], bool], within_s: float = 20.0) -> None:
    until = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.01)


def started(storage: Path, name: str = "j", **options: Any) -> pen.Job:
    """A job that has published something since it started."""
    job = counts(name=name).start(pen.Local(storage=storage, snapshot_every="20ms"), **options)
    wait_until(lambda: job.conductor.epochs_published > 1)
    return job


# What can be stored.


@dataclass(frozen=True)
class Positioned(Source):
    """One row, and the position that is told behind it."""

    position: Json
    name: str = "positioned"
    schema: pa.Schema = field(default_factory=lambda: pa.schema([pa.field("n", pa.int64(), nullable=False)]))

    def splits(self) -> tuple[str, ...]:
        return ("0",)

    def open(self, split: str, position: Json, context: SourceContext) -> Reader:
        return _Positioned(self)


class _Positioned(Reader):
    def __init__(self, source: Positioned) -> None:
        self._source = source

    def poll(self, rows_max: int) -> Chunk | None:
        return Chunk(pa.record_batch([pa.array([1])], schema=self._source.schema), self._source.position, ended=True)


def stored(position: Json) -> None:
    """A job runs whose source is at that position, and it is kept in its checkpoint as it stands."""
    rows = sinks.memory("positioned")
    rows.clear()
    pen.Pipeline("p").read(Positioned(position)).write(rows).run(pen.Local(restarts=0))
    assert rows.rows() == [{"n": 1}]


def test_a_number_that_is_too_large_is_stored_as_text() -> None:
    assert shown("stored.integer", lambda: stored(1 << 64)) == "Store it as text"
    stored(str(1 << 64))


def test_a_fraction_is_stored_as_text_or_in_a_smaller_unit() -> None:
    text = shown("stored.value", lambda: stored({"at": 1.5}))
    assert text == "Store it as text, or a fraction as a whole number of a smaller unit"
    stored({"at": "1.5"})
    stored({"at_ms": 1500})


def test_what_a_later_version_wrote_is_read_by_that_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seal = envelope.seal
    features = envelope.FEATURES | {"later"}
    with monkeypatch.context() as later:
        later.setattr(envelope, "FEATURES", features)
        later.setattr(logs, "seal", lambda record, requires: seal(record, (*requires, "later")))
        started(tmp_path).stop()
    text = shown("record.later-version", lambda: started(tmp_path))
    assert text == "Use the version of Penstock that wrote it, or a later one"
    monkeypatch.setattr(envelope, "FEATURES", features)
    started(tmp_path).stop()


def test_a_format_of_a_later_version_is_read_by_that_version(monkeypatch: pytest.MonkeyPatch) -> None:
    fields = {"body": {}, "kind": "checkpoint", "previous": "", "requires": [], "seq": 1, "term": 1}
    payload = envelope.canonical({**fields, "format_version": 2, "min_reader_version": 2})
    data = envelope._first_line(payload) + payload
    shown("record.later-version", lambda: envelope.unseal(data, "log/1.json"))
    monkeypatch.setattr(envelope, "FORMAT_VERSION", 2)
    assert envelope.unseal(data, "log/1.json").seq == 1


# Where it is stored.


@pytest.mark.parametrize("broken", ["", "s3://bucket/x", "file://host/x", "file:x"])
def test_each_storage_that_is_proposed_can_be_opened(broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for take in (open_store, started, lambda storage: pen.attach("j", storage), jobs_in):

        def taken(take: Any = take) -> Any:
            return take(broken)

        if broken == "":
            text = shown("storage.empty", taken)
        elif broken.startswith("s3"):
            text = shown("storage.scheme", taken)
        else:
            text = shown("storage.url", taken)
        for storage in argument(text):
            assert Path(open_store(storage).url).parent in (Path("/var/lib"), Path("/mnt"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("way", ["command", "code"])
def test_a_job_that_is_running_is_stopped_or_attached_to(tmp_path: Path, way: str) -> None:
    storage = tmp_path / "with a 'quote'"
    job = started(storage)
    text = shown("lock.held", lambda: started(storage))
    if way == "command":
        command = shlex.split(text.partition(", ")[2].partition(", or attach")[0])
        assert command[0] == "penstock"
        assert CliRunner().invoke(cli.app, command[1:]).exit_code == 0
    else:
        (code,) = code_of(text)
        attached = evaluate(code)
        assert attached.status().state == "running"
        attached.stop()
    job.wait(timeout="20s")
    started(storage).stop()


def test_a_job_whose_folder_was_renamed_goes_on_under_its_old_name_or_another_starts_elsewhere(tmp_path: Path) -> None:
    job = started(tmp_path / "storage", name="old")
    job.stop()
    epoch = job.status().epoch
    (tmp_path / "storage" / "old").rename(tmp_path / "storage" / "new")
    text = shown("storage.other-pipeline", lambda: started(tmp_path / "storage", name="new"))
    assert text == "Use another storage, or rename the folder back to 'old'"
    started(tmp_path / "another", name="new").stop()
    (tmp_path / "storage" / "new").rename(tmp_path / "storage" / "old")
    again = started(tmp_path / "storage", name="old")
    again.stop()
    assert again.status().epoch > epoch


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)], capture_output=True, check=False)
    if mounted.returncode != 0:
        reason = "needs root and mount(8): a real ENOSPC comes from a small tmpfs"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_disk_on_which_space_was_freed_takes_files_again(small_disk: Path) -> None:
    store = LocalStore(small_disk / "job")
    (small_disk / "ballast").write_bytes(b"x" * 40_000)
    text = shown("storage.space", lambda: store.write("state/1", b"x" * 40_000))
    assert text == "Free some space on that file system"
    (small_disk / "ballast").unlink()
    store.write("state/1", b"x" * 40_000)
    assert store.read("state/1") == b"x" * 40_000


def test_a_local_disk_has_the_links_that_another_file_system_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = os.link
    (tmp_path / "remote").mkdir()
    remote = (tmp_path / "remote").stat().st_ino

    def without_links(*arguments: Any, **options: Any) -> None:
        if os.fstat(options["dst_dir_fd"]).st_ino == remote:
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))
        link(*arguments, **options)

    monkeypatch.setattr(os, "link", without_links)
    assert shown("storage.links", lambda: LocalStore(tmp_path / "remote").probe()) == "Use a local disk"
    LocalStore(tmp_path / "local").probe()


def test_a_local_disk_creates_a_name_once_where_another_file_system_replaces_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Replacing(LocalStore):
        def create(self, path: str, data: bytes) -> bool:
            self.write(path, data)
            return True

    assert shown("storage.links", lambda: Replacing(tmp_path / "remote").probe()) == "Use a local disk"
    LocalStore(tmp_path / "local").probe()


# The log.


def test_a_job_that_lost_sight_of_its_log_goes_on_with_a_new_term(monkeypatch: pytest.MonkeyPatch) -> None:
    store, made = MemoryStore(), manifests(3)
    log = Log(store)
    log.claim({"pid": 1})
    log.publish(made[0])

    def unknown(op: str, path: str) -> None:
        raise OutcomeUnknown("EIO")

    store.after_effect = unknown
    with pytest.raises(OutcomeUnknown):
        log.publish(made[1])
    store.after_effect = None
    text = shown("log.new-term", lambda: log.publish(made[1]))
    assert text == "Start the job again: it takes over with a new term"
    again = Log(store)
    again.claim({"pid": 2})
    newest = again.newest()
    assert newest is not None
    assert newest.manifest.epoch == 2
    again.publish(manifests(3, again.term)[-1])


def manifests(count: int, term: int = 1) -> list[Manifest]:
    """Of one run, with a new epoch each."""
    return [
        Manifest(
            pipeline="j",
            lineage="abc",
            epoch=epoch,
            term=term,
            attempt=1,
            runner="local",
            created_us=1,
            processing_time_us=1,
            fingerprint="f",
            max_parallelism=128,
            penstock=pen.__version__,
        )
        for epoch in range(1, count + 1)
    ]


# Savepoints.


def test_a_savepoint_goes_into_a_folder_of_its_own(tmp_path: Path) -> None:
    job = started(tmp_path / "storage")
    job.savepoint(tmp_path / "saved")
    assert shown("savepoint.taken", lambda: job.savepoint(tmp_path / "saved")) == "Choose another folder"
    saved = job.savepoint(tmp_path / "another")
    job.stop()
    started(tmp_path / "fresh", restore=saved).stop()


def test_a_savepoint_beside_another_that_was_quicker_goes_into_another_folder() -> None:
    repository, quick, slow = Repository(MemoryStore(), "j"), MemoryStore(), MemoryStore()
    repository.claim({"pid": 1})
    (made,) = manifests(1)
    repository.publish(made)
    quick.before_effect = lambda op, path: quick.files.setdefault(path, b"{}") and None
    assert shown("savepoint.taken", lambda: repository.write_savepoint(made, quick)) == "Choose another folder"
    repository.write_savepoint(made, slow)


def test_a_savepoint_that_was_cut_off_is_taken_again(tmp_path: Path) -> None:
    job = started(tmp_path / "storage")
    job.savepoint(tmp_path / "cut")
    (tmp_path / "cut" / SAVEPOINT).unlink()
    text = shown("savepoint.unfinished", lambda: started(tmp_path / "fresh", restore=tmp_path / "cut"))
    assert text == "Take another savepoint, and give its folder"
    saved = job.savepoint(tmp_path / "another")
    job.stop()
    started(tmp_path / "fresh", restore=saved).stop()


def test_a_folder_that_a_savepoint_wrote_can_be_started_from(tmp_path: Path) -> None:
    job = started(tmp_path / "storage")
    text = shown("savepoint.none", lambda: started(tmp_path / "fresh", restore=tmp_path))
    assert text == "Give the folder that job.savepoint(...) wrote"
    saved = evaluate("job.savepoint(tmp_path / 'saved')", job=job, tmp_path=tmp_path)
    job.stop()
    started(tmp_path / "fresh", restore=saved).stop()


# State of another job.


@dataclass
class Line:
    k: int


class Kept(pen.ProcessFunction):
    n = pen.ValueState(int, default=0)
    last = pen.ValueState(int, default=0)

    def on_row(self, row: Line, ctx: pen.Context) -> None:
        self.n.set(self.n.get() + 1)
        self.last.set(row.k)


def kept() -> pen.Pipeline:
    p = pen.Pipeline("other")
    p.read(numbers()).select("k").key_by("k").process(Kept(), name="kept", schema=Line).write(sinks.discard())
    return p


@pytest.fixture
def other(tmp_path: Path) -> Path:
    job = kept().start(pen.Local(storage=tmp_path / "left", snapshot_every="20ms"))
    wait_until(lambda: job.status().epoch > 1)
    job.stop()
    return tmp_path / "left"


def rows(saved: Any) -> list[dict[str, Any]]:
    return [row for batch in saved.read(range(128), 128) for row in batch.to_pylist()]


def test_one_of_several_states_is_named(other: Path) -> None:
    (state,) = argument(shown("saved-state.which", lambda: pen.from_savepoint(other / "other", step="kept")))
    assert {row["k"] for row in rows(pen.from_savepoint(other / "other", step="kept", state=state))} == {0, 1, 2}


def test_the_folder_of_a_job_in_its_storage_can_be_copied(other: Path) -> None:
    (code,) = code_of(shown("saved-state.job", lambda: pen.from_savepoint(other, step="kept", state="n")))
    assert len(rows(pen.from_savepoint(evaluate(code), step="kept", state="n"))) == 3


def test_state_of_a_job_that_has_gone_on_is_taken_from_a_savepoint(other: Path, tmp_path: Path) -> None:
    saved = pen.from_savepoint(other / "other", step="kept", state="n")
    job = kept().start(pen.Local(storage=other, snapshot_every="10ms", keep=1))
    wait_until(lambda: not any((other / "other" / handle["path"]).exists() for handle in saved.handles))
    text = shown("saved-state.gone", lambda: rows(saved))
    assert text == "If its job has gone on since, take a savepoint of it, and start from that"
    taken = job.savepoint(tmp_path / "saved")
    job.stop()
    assert len(rows(pen.from_savepoint(taken, step="kept", state="n"))) == 3


# A job in another process.


def test_the_storage_of_a_job_is_named_in_each_of_the_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PENSTOCK_STORAGE", raising=False)
    text = shown("control.storage", lambda: pen.attach("j"))
    (storage,) = argument(text)
    job = started(tmp_path / storage)
    assert pen.attach("j", storage=storage).status().state == "running"
    flags, variable = (part.partition(")")[0] for part in text.split("(")[1:])
    assert CliRunner().invoke(cli.app, ["status", "j", *flags.split()]).exit_code == 0
    monkeypatch.setenv(*variable.split("="))
    assert pen.attach("j").status().state == "running"
    job.stop()


def test_a_job_whose_control_file_is_damaged_is_stopped_by_ctrl_c_and_writes_it_anew(tmp_path: Path) -> None:
    job = started(tmp_path)
    (tmp_path / "j" / control.FILE).write_text("{")
    text = shown("control.damaged", lambda: pen.attach("j", tmp_path))
    assert text == "Stop the job with Ctrl-C; the next start writes the file anew"
    with graceful_interrupt(job):
        signal.raise_signal(signal.SIGINT)
        job.wait(timeout="20s")
    assert job.status().state == "stopped"
    again = started(tmp_path)
    wait_until(lambda: (tmp_path / "j" / control.FILE).read_text() != "{")
    assert pen.attach("j", tmp_path).status().state == "running"
    again.stop()
