"""The fixes of what a Spark with executors on other machines is told."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import penstock as pen
from fixes.applying import argument, shown
from penstock.protocol.messages import Stamp
from penstock.runners.options import resolve
from penstock.runners.spark import sign as signs
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


def test_the_storage_that_the_fix_writes_is_an_option_and_no_temporary_folder(tmp_path: Path) -> None:
    (storage,) = argument(shown("storage.missing_on_a_cluster", sign(tmp_path, given=False).check))
    assert resolve("job", {"storage": storage}).storage == storage
    pen.MicroBatch(storage=storage)
