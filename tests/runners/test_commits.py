"""Commits beside everything else: what a slow one holds back, what it does not, and what becomes of one that fails."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.soak.life import wait_for

import penstock as pen
from penstock import sinks, sources
from penstock.checkpoints.repository import Repository
from penstock.checkpoints.storage import OutcomeUnknown
from penstock.connectors.connector import Committer, Verdict
from penstock.errors import FunctionError, JobError, RetriableError, StorageError
from penstock.protocol import coordinator as c
from penstock.runners.commits import Answer, Commits

PENDING = c.Pending(3, "out", ({"part": 1},))


class Scripted(Committer):
    """Does what it is told to."""

    def __init__(self, outcome: Verdict | BaseException) -> None:
        self.outcome = outcome
        self.threads: list[int] = []

    def commit(self, epoch: int, committables: Any, attempt: int) -> Verdict:
        self.threads.append(threading.get_ident())
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return self.outcome


BROKEN = ZeroDivisionError("not a committer's")


class Bottomless(BaseException):
    """What not even a library raises."""


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize(
    ("outcome", "answer", "shown"),
    [
        (Verdict.DONE, c.Committed(3, "out"), True),
        (Verdict.ALREADY, c.Committed(3, "out"), False),
        (Verdict.RETRY, c.CommitDelayed(3, "out"), False),
        (StorageError("full"), c.CommitFailed(3, "out", "full"), False),
        (OSError("gone"), c.CommitDelayed(3, "out", "OSError: gone"), False),
        (RetriableError("not yet"), c.CommitDelayed(3, "out", "not yet"), False),
        (FunctionError("it raised"), c.CommitDelayed(3, "out", "it raised", tries=3), False),
        (BROKEN, c.CommitDelayed(3, "out", "ZeroDivisionError: not a committer's", tries=3), False),
    ],
)
def test_what_a_committer_says_is_the_answer(beside: bool, outcome: Any, answer: c.Event, shown: bool) -> None:
    heard: list[Answer] = []
    commits = Commits({"out": Scripted(outcome)}, lambda _, said: heard.append(said), beside=beside)
    now = commits.begin(PENDING, 1)
    commits.finish()
    assert (now is None) == beside, "the answer comes where it is waited for"
    assert [first_lines(said) for said in (heard if beside else [now])] == [answer]
    assert commits.shown is shown


def first_lines(said: Any) -> Any:
    """An answer without the traceback in it."""
    return replace(said, error=said.error.partition("\n")[0]) if getattr(said, "error", "") else said


def test_what_no_committer_should_raise_is_an_answer_as_well() -> None:
    heard: list[Answer] = []
    error = Bottomless()
    commits = Commits({"out": Scripted(error)}, lambda _, said: heard.append(said), beside=True)
    commits.begin(PENDING, 1)
    commits.finish()
    assert heard == [error]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_of_commits_that_ends_without_an_answer_is_missed() -> None:
    def answer(commits: Commits, said: Answer) -> None:
        raise MemoryError("no room for an answer")

    commits = Commits({"out": Scripted(Verdict.DONE)}, answer, beside=True)
    commits.begin(PENDING, 1)
    wait_for(lambda: missed(commits), 10, "the thread is missed")


def missed(commits: Commits) -> bool:
    try:
        commits.check()
    except JobError as error:
        return "without an answer" in str(error)
    return False


def test_all_commits_are_made_in_one_thread_which_is_not_ours() -> None:
    committer = Scripted(Verdict.DONE)
    commits = Commits({"out": committer}, lambda _, said: None, beside=True)
    for _ in range(3):
        commits.begin(PENDING, 1)
    commits.finish()
    assert len(committer.threads) == 3
    assert len(set(committer.threads)) == 1
    assert threading.get_ident() not in committer.threads


# --- in a job


class Gate:
    """A `foreach_batch` function that waits to be let go on, from the second call on."""

    def __init__(self) -> None:
        self.entered, self.opened = threading.Event(), threading.Event()
        self.seen: list[int] = []
        self.epochs: list[int] = []

    def __call__(self, batches: pa.RecordBatchReader, epoch: pen.Epoch) -> None:
        if self.epochs:
            self.entered.set()
            assert self.opened.wait(60)
        self.seen.extend(batches.read_all().column("i").to_pylist())
        self.epochs.append(epoch.number)


@pytest.fixture
def gate() -> Iterator[Gate]:
    made = Gate()
    yield made
    made.opened.set()


def counting(save: Callable[..., object], rows: int | None = None) -> pen.Pipeline:
    pipeline = pen.Pipeline("slow")
    numbers = sources.generate(lambda index, seed: {"i": index}, rows=rows, rate=20_000, splits=1, schema="i bigint")
    pipeline.read(numbers).write(sinks.foreach_batch(save, idempotent=True, name="hook"))
    return pipeline


def local(storage: Path) -> pen.Local:
    return pen.Local(parallelism=1, storage=storage, snapshot_every="50ms")


def check_whole(gate: Gate) -> None:
    assert sorted(gate.seen) == list(range(len(gate.seen))), "each row once"
    assert gate.epochs == sorted(set(gate.epochs)), "in order, each once"


def test_while_an_epoch_is_committed_the_next_is_published_and_a_third_waits(gate: Gate, tmp_path: Path) -> None:
    job = counting(gate).start(local(tmp_path))
    assert gate.entered.wait(60)
    first = job.status().epoch
    time.sleep(1.0)  # twenty intervals
    assert len(gate.epochs) == 1, "the commit is under way all the time"
    assert first < job.status().epoch <= first + 2, "the next was published; if it was under way already, one more"
    gate.opened.set()
    wait_for(lambda: len(gate.epochs) > 5, 60, "epochs go on")
    job.stop()
    check_whole(gate)


def test_a_savepoint_waits_for_the_commits_before_it(gate: Gate, tmp_path: Path) -> None:
    job = counting(gate).start(local(tmp_path / "job"))
    assert gate.entered.wait(60)
    taken: list[Any] = []
    asking = threading.Thread(target=lambda: taken.append(job.savepoint(tmp_path / "kept")))
    asking.start()
    asking.join(0.3)
    assert not taken
    gate.opened.set()
    asking.join(60)
    assert taken == [tmp_path / "kept"]
    job.stop()
    check_whole(gate)


def test_a_job_that_is_cancelled_waits_for_the_commit_under_way(gate: Gate, tmp_path: Path) -> None:
    job = counting(gate).start(local(tmp_path))
    assert gate.entered.wait(60)
    threading.Timer(0.3, gate.opened.set).start()
    job.cancel()
    assert len(gate.epochs) == 2
    counting(gate, rows=20_000).run(local(tmp_path))
    assert len(gate.seen) == 20_000
    check_whole(gate)


def test_a_function_that_fails_ends_the_job_with_its_error(tmp_path: Path) -> None:
    def save(batches: pa.RecordBatchReader, epoch: pen.Epoch) -> None:
        raise RuntimeError("the webhook is down")

    with pytest.raises(pen.JobError, match="webhook"):
        counting(save, 100).run(local(tmp_path))


def test_a_new_term_does_not_hear_the_commits_of_the_one_before(
    gate: Gate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish, failed = Repository.publish, threading.Event()

    def unsure(self: Repository, manifest: Any) -> None:
        publish(self, manifest)
        if gate.entered.is_set() and not failed.is_set():
            failed.set()
            gate.opened.set()  # so that its answer comes when nobody waits for it
            raise OutcomeUnknown("the answer of the storage was lost")

    monkeypatch.setattr(Repository, "publish", unsure)
    job = counting(gate, 10_000).start(local(tmp_path))
    job.wait()
    assert failed.is_set()
    assert job.status().term == 2
    assert len(gate.seen) == 10_000
    check_whole(gate)
