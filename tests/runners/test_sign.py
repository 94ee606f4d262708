"""The sign of an attempt: tasks that do not see it are on another file system than the driver."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import PenstockError, RunnerError
from penstock.passing import Fate, fate_of
from penstock.protocol.messages import Stamp
from penstock.runners.spark import sign as signs
from penstock.runners.spark.sign import Sign


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signs, "SEEN_WITHIN_S", 0.2)


def sign(job_dir: Path, *, term: int = 2, attempt: int = 1, word: str = "word", given: bool = True) -> Sign:
    return Sign(job_dir, Stamp("line", term, attempt), word, given)


def test_a_sign_is_seen_as_long_as_the_attempt_goes_on_and_leaves_nothing(tmp_path: Path) -> None:
    mine = sign(tmp_path)
    assert not mine.is_up()
    mine.put_up()
    mine.check()
    assert mine.is_up()
    mine.take_down()
    assert not mine.is_up()
    assert list(tmp_path.iterdir()) == []


def test_storage_that_is_not_there_or_is_another_one_is_refused(tmp_path: Path) -> None:
    mine = sign(tmp_path / "mine")
    with pytest.raises(RunnerError, match=r"is not shared: a worker on .* does not see what the driver has written there"):
        mine.check()
    sign(tmp_path / "mine", word="of the same job somewhere else").put_up()
    with pytest.raises(RunnerError, match="is not shared"):
        mine.check()
    with pytest.raises(RunnerError, match="does not see the temporary folder of this job, which has no storage"):
        sign(tmp_path / "none", given=False).check()


@pytest.mark.parametrize(
    ("code", "text", "fate"),
    [
        (errno.ENOTCONN, "cannot read .*: ENOTCONN", Fate.PASSING),
        (errno.ESTALE, "cannot read .*: ESTALE", Fate.PASSING),
        (errno.EACCES, "may not read what the driver has written to ", Fate.FINAL),
    ],
)
def test_storage_that_cannot_be_read_is_not_said_to_be_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, text: str, fate: Fate
) -> None:
    mine = sign(tmp_path)
    mine.put_up()

    def unreadable(*_: Any, **__: Any) -> int:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", unreadable)
        assert not mine.is_up()
        with pytest.raises(PenstockError, match=text) as caught:
            mine.check()
    assert fate_of(caught.value) is fate
    mine.check()


def test_signs_of_killed_drivers_go_and_a_successors_stays(tmp_path: Path) -> None:
    for term, attempt in ((1, 4), (2, 1), (3, 1)):
        sign(tmp_path, term=term, attempt=attempt).put_up()
    sign(tmp_path, term=2, attempt=2).put_up()
    assert sorted(path.name for path in (tmp_path / "signs").iterdir()) == ["2-2", "3-1"]
    sign(tmp_path, term=2, attempt=2).take_down()
    assert sorted(path.name for path in (tmp_path / "signs").iterdir()) == ["3-1"]
