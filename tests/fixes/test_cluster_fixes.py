"""The fixes of what a Spark with executors on other machines is told."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import penstock as pen
from fixes.applying import argument, code_of, evaluate, shown
from penstock.errors import RunnerError
from penstock.protocol.messages import Stamp
from penstock.runners.options import resolve
from penstock.runners.spark import session as sessions
from penstock.runners.spark import sign as signs
from penstock.runners.spark.epochs import parallelism_of
from penstock.runners.spark.sign import Sign


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signs, "SEEN_WITHIN_S", 0.1)


def sign(job_dir: Path, *, given: bool) -> Sign:
    return Sign(job_dir, Stamp("line", 1, 1), "word", given)


def test_storage_that_is_mounted_where_the_fix_says_is_seen(tmp_path: Path) -> None:
    driver, worker = sign(tmp_path / "driver" / "job", given=True), sign(tmp_path / "worker" / "job", given=True)
    driver.put_up()
    text = shown("storage.not_shared", worker.check)
    (folder,) = re.findall(r"at (/\S+)", text)
    Path(folder).symlink_to(tmp_path / "driver", target_is_directory=True)
    worker.check()


def test_workers_of_another_user_are_told_whose_they_should_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = sign(tmp_path, given=True)
    mine.put_up()

    def denied(*_: Any, **__: Any) -> int:
        raise PermissionError(errno.EACCES, "Permission denied")

    with monkeypatch.context() as another_user:
        another_user.setattr(os, "open", denied)
        assert shown("storage.denied", mine.check) == "Run the workers as the user that runs the driver"
    mine.check()


def test_the_storage_that_the_fix_writes_is_an_option_and_no_temporary_folder(tmp_path: Path) -> None:
    (storage,) = argument(shown("storage.missing_on_a_cluster", sign(tmp_path, given=False).check))
    assert resolve("job", {"storage": storage}).storage == storage
    pen.MicroBatch(storage=storage)


class Spark:
    """A Spark of some kind, as far as slots are concerned: `busy` of them run something."""

    def __init__(self, master: str = "spark://host-m:7077", *, slots: int = 2, busy: int = 0, **settings: str) -> None:
        self.slots, self.busy, self.settings = slots, busy, settings
        self._jsparkSession = object()
        self.sparkContext = SimpleNamespace(
            master=master,
            startTime=0,
            _jsc=object(),
            getConf=lambda: SimpleNamespace(get=lambda key, default: settings.get(key.replace(".", "_"), default)),
        )


@pytest.fixture(autouse=True)
def _counted(monkeypatch: pytest.MonkeyPatch) -> None:
    info = SimpleNamespace
    monkeypatch.setattr(sessions, "SLOTS_WAIT_S", 0.1)
    monkeypatch.setattr(sessions, "slots_of", lambda spark: spark.slots)
    monkeypatch.setattr(sessions, "hosts_of", lambda spark: {"host-a"} if spark.sparkContext.master == "yarn" else {"localhost"})
    monkeypatch.setattr(sessions, "executors", lambda spark: [info(numRunningTasks=lambda: spark.busy)])
    monkeypatch.setattr(sessions, "held_slots", lambda spark, groups: len(groups))


@pytest.mark.parametrize(
    ("master", "option"),
    [
        ("local[2]", '--master "local[5]"'),
        ("local-cluster[2,1,1024]", '--master "local-cluster[5,1,1024]"'),
        ("spark://host-m:7077", "--total-executor-cores 5"),
        ("yarn", "--num-executors 5 --executor-cores 1"),
        ("k8s://https://k8s:6443", "--num-executors 5 --executor-cores 1"),
    ],
)
def test_a_spark_that_is_too_small_is_told_how_one_of_its_kind_is_made_larger(master: str, option: str) -> None:
    text = shown("slots.too_few", lambda: sessions.check_session(Spark(master), slots=5))
    assert text == f"Use parallelism=2, or start Spark with 5 cores: {option}"
    if master != "yarn":
        sessions.check_session(Spark(master), slots=2)
        sessions.check_session(Spark(master, slots=5), slots=5)


def test_slots_that_other_jobs_hold_are_left_to_them() -> None:
    text = shown("slots.busy", lambda: sessions.wait_for_slots(Spark(slots=3, busy=2), 2, within_s=0.1))
    assert text == "Use parallelism=1, or start Spark with more cores: --total-executor-cores 4"
    sessions.wait_for_slots(Spark(slots=3, busy=2), 1, within_s=0.1)
    sessions.wait_for_slots(Spark(slots=4, busy=2), 2, within_s=0.1)


def test_slots_that_the_jobs_own_lost_attempt_holds_are_called_that() -> None:
    lost = Spark(slots=2, busy=1)
    with pytest.raises(RunnerError) as caught:
        sessions.wait_for_slots(lost, 2, within_s=0.1, earlier=["attempt 1"])
    assert "1 is held by an earlier attempt of this job, on an executor that does not answer" in caught.value.message
    assert "busy" not in caught.value.message
    text = shown("slots.held", lambda: sessions.wait_for_slots(lost, 2, within_s=0.1, earlier=["attempt 1"]))
    (cores,) = re.findall(r"--total-executor-cores (\d+)$", text)
    sessions.wait_for_slots(Spark(slots=int(cores), busy=1), 2, within_s=0.1, earlier=["attempt 1"])


def test_with_dynamic_allocation_the_parallelism_that_is_given_is_taken() -> None:
    spark = Spark(spark_dynamicAllocation_enabled="true")
    (parallelism,) = argument(shown("slots.dynamic", lambda: parallelism_of(spark)))
    for runner in (pen.MicroBatch, pen.Batch):
        assert runner(parallelism=parallelism).options("job").parallelism == 4


def test_on_several_hosts_the_runner_that_is_proposed_can_be_made() -> None:
    (code,) = code_of(shown("cluster.several_hosts", lambda: sessions.check_session(Spark("yarn"), slots=2)))
    assert isinstance(evaluate(code), pen.MicroBatch)
