"""What may pass does not end a job, what will happen again ends it at once, and whoever waits is told what is in the way."""

from __future__ import annotations

import builtins
import errno
import logging
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.soak.life import wait_for

import penstock as pen
from penstock import sinks, sources
from penstock.checkpoints.repository import Repository
from penstock.connectors import durable, filesink, staged
from penstock.connectors.connector import (
    Chunk,
    Committer,
    Json,
    Reader,
    Sink,
    SinkContext,
    Source,
    SourceContext,
    Verdict,
    Writer,
)
from penstock.connectors.staged import StagedCommitter, StagedWriter
from penstock.errors import UnavailableError

FULL = OSError(errno.ENOSPC, "No space left on device")


def local(storage: Path, **more: Any) -> pen.Local:
    return pen.Local(**{"parallelism": 1, "storage": storage, "snapshot_every": "20ms", "backoff": "1ms", **more})


def numbers(rows: int | None = 100, rate: int = 2_000) -> Source:
    return sources.generate(lambda index, seed: {"n": index}, rows=rows, rate=rate, splits=1, schema="n bigint")


class Saving:
    """A function of `foreach_batch` that raises what it is told to, then saves."""

    def __init__(self, *errors: Exception) -> None:
        self.errors, self.calls, self.saved = list(errors), 0, []  # type: ignore[var-annotated]

    def __call__(self, batches: pa.RecordBatchReader, epoch: pen.Epoch) -> None:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        self.saved += batches.read_all().column("n").to_pylist()


def saving(save: Callable[..., object], rows: int | None = 100) -> pen.Pipeline:
    pipeline = pen.Pipeline("saving")
    pipeline.read(numbers(rows)).write(sinks.foreach_batch(save, name="hook"))
    return pipeline


# --- commits


def test_a_connection_that_is_dropped_during_a_commit_does_not_end_the_job(tmp_path: Path) -> None:
    sink = Hesitant(says=[ConnectionResetError(errno.ECONNRESET, "reset")] * 5)
    job = hesitating(sink, 100).run(local(tmp_path))
    assert sorted(sink.kept) == list(range(100))
    assert job.status().restarts == 0
    assert job.status().error is None


def test_while_a_commit_is_tried_again_the_status_says_why_and_no_epochs_pile_up(tmp_path: Path) -> None:
    save = Saving(*[pen.RetriableError("the connection was reset")] * 10_000)
    job = saving(save, None).start(local(tmp_path, backoff="5ms"))
    wait_for(lambda: job.status().error is not None, 30, "the status says what is wrong")
    assert "sink 'hook' has been trying epoch" in str(job.status().error)
    epoch = job.status().epoch
    time.sleep(0.5)  # twenty-five intervals
    assert job.status().epoch <= epoch + 2
    with pytest.raises(pen.JobError, match=r"no savepoint within 50ms; what went wrong last: sink 'hook' .*reset"):
        job.savepoint(tmp_path / "kept", timeout="50ms")
    save.errors.clear()
    wait_for(lambda: job.status().error is None and job.status().epoch > epoch + 5, 30, "the job goes on")
    job.stop()
    assert sorted(save.saved) == list(range(len(save.saved)))


def test_a_function_of_the_users_has_three_tries_to_commit(tmp_path: Path) -> None:
    save = Saving(*[RuntimeError("the webhook is down")] * 2)
    saving(save).run(local(tmp_path / "passes"))
    assert sorted(save.saved) == list(range(100))
    save = Saving(*[RuntimeError("the webhook is down")] * 3)
    with pytest.raises(pen.JobError, match=r"sink 'hook' could not commit epoch 1, tried 3 times .*the webhook is down"):
        saving(save).run(local(tmp_path / "fails"))
    assert save.calls == 3


def test_a_mark_that_finds_no_room_is_written_later_without_another_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, refusals = staged.write_mark, [FULL] * 4

    def write_mark(*args: Any) -> None:
        if refusals:
            raise refusals.pop()
        write(*args)

    monkeypatch.setattr(staged, "write_mark", write_mark)
    save = Saving()
    saving(save).run(local(tmp_path))
    assert not refusals
    assert sorted(save.saved) == list(range(100)), "each row was handed over once"


def test_a_full_disk_under_a_sinks_folder_is_told_with_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, mode: str, **more: Any) -> Any:
        return builtins.open("/dev/full", "wb", **more)

    monkeypatch.setattr(durable, "open", full, raising=False)
    pipeline = pen.Pipeline("full")
    pipeline.read(numbers()).write(sinks.files(tmp_path / "out", format="json"))
    with pytest.raises(pen.JobError, match=rf"No space left on device: '{tmp_path}/out/_staging/.*/part-.*json'"):
        pipeline.run(local(tmp_path / "storage", restarts=1))


def test_a_full_disk_under_the_log_of_checkpoints_does_not_end_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish, refusals = Repository.publish, [UnavailableError("cannot create log/0000000002.json: ENOSPC")] * 6

    def full(self: Repository, manifest: Any) -> None:
        if refusals:
            raise refusals.pop()
        publish(self, manifest)

    monkeypatch.setattr(Repository, "publish", full)
    save = Saving()
    job = saving(save).run(local(tmp_path))
    assert job.status().restarts == 0
    assert sorted(save.saved) == list(range(100))


# --- what another run left


@dataclass(frozen=True)
class Hesitant(Sink):
    """Rows for `kept`; its committer says "not now", or raises, as often as `says` has it."""

    name: str = "hesitant"
    says: list[Any] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)

    def writer(self, context: SinkContext) -> Writer:
        return StagedWriter(context)

    def committer(self, context: SinkContext) -> Committer:
        return _Hesitating(context, self)

    def __reduce__(self) -> Any:
        raise TypeError("stays here")


class _Hesitating(StagedCommitter):
    def __init__(self, context: SinkContext, sink: Hesitant) -> None:
        super().__init__(context)
        self._sink = sink

    def commit(self, epoch: int, committables: Sequence[Json], attempt: int) -> Verdict:
        if self._sink.says:
            said = self._sink.says.pop(0)
            if isinstance(said, Exception):
                raise said
            return Verdict.RETRY
        return super().commit(epoch, committables, attempt)

    def committed(self) -> None:
        """It shows nothing that could be in the way."""

    def deliver(self, epoch: int, rows: pa.RecordBatchReader, attempt: int) -> None:
        self._sink.kept.extend(rows.read_all().column("n").to_pylist())


def hesitating(sink: Hesitant, rows: int | None = None) -> pen.Pipeline:
    pipeline = pen.Pipeline("hesitating")
    pipeline.read(numbers(rows)).write(sink)
    return pipeline


@pytest.mark.parametrize("said", ["not now", TimeoutError("no answer")], ids=["retry", "time-out"])
def test_an_epoch_of_another_run_is_not_lost_when_its_sink_says_later(tmp_path: Path, said: Any) -> None:
    first = Hesitant(says=["not now"] * 1_000_000)
    job = hesitating(first).start(local(tmp_path))
    wait_for(lambda: job.status().epoch > 0, 30, "an epoch is published")
    job.cancel()
    assert first.kept == []
    second = Hesitant(says=[said] * 3)
    job = hesitating(second).start(local(tmp_path), restore="none")
    assert not second.says
    assert second.kept.count(0) == 1, "what was promised is committed before the job begins"
    wait_for(lambda: second.kept.count(0) == 2, 30, "and this run began anew")
    job.stop()


@pytest.mark.parametrize("restore", ["latest", "none"])
def test_what_was_published_is_shown_in_the_folder_that_it_was_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restore: str
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    with monkeypatch.context() as patch:
        patch.setattr(filesink._FileCommitter, "commit", lambda *rest: Verdict.RETRY)
        job = evens(tmp_path, one).start(local(tmp_path))
        wait_for(lambda: job.status().epoch > 1, 30, "an epoch is published")
        job.cancel()
    assert list(one.glob("epoch=*")) == []
    job = evens(tmp_path, two).start(local(tmp_path), restore=restore)
    wait_for(lambda: list(two.glob("epoch=*")) != [], 30, "this run shows something")
    job.stop()
    assert list(one.glob("epoch=*")) != []


def test_a_start_that_is_refused_after_it_has_settled_owes_nothing(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    job = evens(tmp_path, one).start(local(tmp_path))
    wait_for(lambda: list(one.glob("epoch=*")) != [], 30, "it shows something")
    job.cancel()
    with pytest.raises(pen.RestoreError, match="of another run of this pipeline"):
        evens(tmp_path, one).start(local(tmp_path), restore="none")
    shutil.rmtree(one)
    evens(tmp_path, two).start(local(tmp_path), restore="none").stop()


def evens(storage: Path, out: Path, condition: str = "n % 2 = 0") -> pen.Pipeline:
    pipeline = pen.Pipeline("evens")
    pipeline.read(numbers(None)).filter(condition).write(sinks.files(out, format="json", name="out"))
    return pipeline


def test_a_fork_of_a_fork_goes_on_beside_what_the_first_run_wrote(tmp_path: Path) -> None:
    """The run in between wrote nothing, so what the sink shows is of the run before it."""
    out, storage = tmp_path / "out", tmp_path / "storage"
    first = evens(storage, out).start(local(storage))
    wait_for(lambda: list(out.glob("epoch=*")) != [], 30, "the first run shows something")
    first.savepoint(tmp_path / "first")
    first.cancel()
    second = evens(storage, out, "n < 0").start(local(storage), restore=pen.Restore(tmp_path / "first"))
    second.savepoint(tmp_path / "second")
    second.cancel()
    third = evens(storage, out, "n < 0").start(local(storage), restore=pen.Restore(tmp_path / "second"))
    third.savepoint(tmp_path / "third")
    third.cancel()
    fourth = evens(storage, out).start(local(storage), restore=pen.Restore(tmp_path / "third"))
    before = len(list(out.glob("epoch=*")))
    wait_for(lambda: len(list(out.glob("epoch=*"))) > before, 30, "the last run shows something")
    fourth.stop()
    again = evens(storage, out).start(local(storage))  # its ancestors are in its own checkpoints
    again.stop()


# --- sources


@dataclass(frozen=True)
class Slow(Source):
    """Counts, and lets nobody who collects go on before `open_`."""

    name: str
    entered: threading.Event
    opened: threading.Event
    schema: pa.Schema = field(default_factory=lambda: pa.schema([pa.field("n", pa.int64(), nullable=False)]))

    def splits(self) -> tuple[str, ...]:
        return ("0",)

    def open(self, split: str, position: Json, context: SourceContext) -> Reader:
        return Counting(position or 0, self.schema)

    def collect(self, position: Json, context: SourceContext) -> None:
        self.entered.set()
        self.opened.wait(60)
        raise ConnectionResetError("and then it fails")


class Counting(Reader):
    def __init__(self, at: int, schema: pa.Schema) -> None:
        self._at, self._schema = at, schema

    def poll(self, rows_max: int) -> Chunk | None:
        self._at += 1
        return Chunk(pa.record_batch([pa.array([self._at])], schema=self._schema), self._at)


def test_a_source_that_is_slow_to_let_go_of_what_is_read_holds_up_nobody(tmp_path: Path) -> None:
    source = Slow("slow", threading.Event(), threading.Event())
    pipeline = pen.Pipeline("forgetting")
    pipeline.read(source).write(sinks.memory("forgetting"))
    job = pipeline.start(local(tmp_path))
    try:
        assert source.entered.wait(30)
        epoch = job.status().epoch
        wait_for(lambda: job.status().epoch > epoch + 5, 30, "epochs go on")
        source.opened.set()
        job.stop(timeout="30s")
    finally:
        source.opened.set()
        job.cancel()
    assert job.status().error is None


# --- failing again and again


@dataclass(frozen=True)
class Broken(Source):
    name: str = "broken"
    schema: pa.Schema = field(default_factory=lambda: pa.schema([("n", pa.int64())]))

    def splits(self) -> tuple[str, ...]:
        return ("0",)

    def open(self, split: str, position: Json, context: SourceContext) -> Reader:
        raise ConnectionRefusedError(errno.ECONNREFUSED, f"<Connection object at {time.monotonic_ns():#x}>: nobody listens")


def broken() -> pen.Pipeline:
    pipeline = pen.Pipeline("broken")
    pipeline.read(Broken()).write(sinks.memory("broken"))
    return pipeline


def test_a_job_that_fails_in_the_same_way_again_and_again_says_so(tmp_path: Path) -> None:
    job = broken().start(local(tmp_path, backoff="100ms", restarts=1000))
    wait_for(lambda: job.status().restarts > 0, 30, "it was tried again")
    assert "nobody listens" in str(job.status().error)
    began = time.monotonic()
    with pytest.raises(pen.JobError, match=r"has failed \d+ times in a row, at last with: .*nobody listens"):
        job.savepoint(tmp_path / "kept")
    assert time.monotonic() - began < 30
    with pytest.raises(pen.JobError, match=r"still running after 10ms; what went wrong last: .*nobody listens"):
        job.wait(timeout="10ms")
    job.cancel()


def test_a_function_that_raises_is_tried_three_times_and_a_row_that_cannot_be_computed_once(tmp_path: Path) -> None:
    calls: list[int] = []

    def price(row: pen.Row) -> dict[str, int]:
        calls.append(row.n)
        raise KeyError("price")

    pipeline = pen.Pipeline("prices")
    pipeline.read(sources.memory([{"n": 1}])).map(price, schema="n bigint").write(sinks.memory("prices"))
    with pytest.raises(pen.JobError, match="price"):
        pipeline.run(local(tmp_path / "function"))
    assert len(calls) == 3
    job = None
    bad = pen.Pipeline("bad").read(sources.memory([{"n": 0}])).select(x="10 % n").write(sinks.memory("bad"))
    job = bad.start(local(tmp_path / "row"))
    with pytest.raises(pen.JobError, match="cannot process a row"):
        job.wait()
    assert job.status().restarts == 0


# --- damage


def totals() -> pen.Pipeline:
    pipeline = pen.Pipeline("totals")
    rows = pipeline.read(numbers(None))
    rows.select("n % 7 AS k", "n").key_by("k").aggregate(n=pen.count(), name="totals").write(sinks.memory("totals"))
    return pipeline


DAMAGE: dict[str, Callable[[Path], Any]] = {
    "flipped": lambda path: path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:]),
    "cut short": lambda path: path.write_bytes(path.read_bytes()[:-9]),
    "empty": lambda path: path.write_bytes(b""),
    "gone": lambda path: path.unlink(),
    "another": lambda path: path.write_bytes(b"x" * path.stat().st_size),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damaged_state_ends_the_job_at_once(tmp_path: Path, kind: str) -> None:
    job = totals().start(local(tmp_path))
    wait_for(lambda: job.status().epoch > 2, 30, "there is state")
    job.stop()
    for path in (tmp_path / "totals" / "state").iterdir():
        DAMAGE[kind](path)
    began = time.monotonic()
    with pytest.raises(pen.PenstockError, match="state"):
        totals().start(local(tmp_path, backoff="30s")).wait()
    assert time.monotonic() - began < 25, "nobody waits for damage to pass"


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], str]]:
    with caplog.at_level(logging.WARNING, "penstock"):
        yield lambda: caplog.text


def test_an_older_checkpoint_that_is_damaged_does_not_keep_a_job_from_going_on(
    tmp_path: Path, warnings: Callable[[], str]
) -> None:
    job = totals().start(local(tmp_path, keep=5))
    wait_for(lambda: job.status().epoch > 12, 30, "there are older checkpoints")
    job.stop()
    slots = sorted((tmp_path / "totals" / "log").glob("*.json"))
    DAMAGE["flipped"](slots[1])
    job = totals().start(local(tmp_path, keep=5))
    wait_for(lambda: job.status().error is None and job.status().state == "running", 30, "it goes on")
    job.stop()
    assert "an older checkpoint cannot be used any more, and is not needed" in warnings()
    assert slots[1].name in warnings()
