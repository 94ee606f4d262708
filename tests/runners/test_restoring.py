"""What `restore=` and `pen.Restore` may be given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import penstock as pen
from penstock import sinks, sources
from penstock.runners.restoring import asked


def test_a_name_alone_is_a_list_of_one() -> None:
    restore = pen.Restore("latest", drop="old", start_empty="totals.most")
    assert (restore.drop, restore.start_empty) == (("old",), ("totals.most",))
    assert restore == pen.Restore("latest", drop=("old",), start_empty=("totals.most",))


@pytest.mark.parametrize("given", ["latest", "none", "some/folder", Path("some/folder"), pen.Restore("latest")])
def test_a_word_a_folder_or_a_restore_is_taken(given: Any) -> None:
    restore = asked(given)
    assert restore is given or restore.path == given


@pytest.mark.parametrize("given", [None, "", 5, {"old": "new"}, b"latest", ["latest"]])
def test_what_is_nothing_to_start_from_is_refused_before_anything_starts(given: Any, tmp_path: Path) -> None:
    p = pen.Pipeline("p")
    p.read(sources.memory([1], schema=int)).write(sinks.memory("restoring"))
    for start in (p.run, p.start):
        with pytest.raises(pen.ConfigError) as caught:
            start(pen.Local(storage=tmp_path / "storage"), restore=given)
        assert caught.value.message.startswith(f"{given!r} is nothing to start from: expected ")
    assert not (tmp_path / "storage").exists()


@pytest.mark.parametrize(
    "given",
    [
        {"rename": "old"},
        {"rename": ["old", "new"]},
        {"rename": {"old": None}},
        {"drop": None},
        {"drop": {"old": "new"}},
        {"drop": [1]},
        {"drop": b"old"},
        {"start_empty": 5},
        {"drop": ""},
        {"start_over_time": "no"},
    ],
)
def test_an_option_of_another_kind_is_refused_where_it_is_written(given: dict[str, Any]) -> None:
    with pytest.raises(pen.ConfigError, match=f"^{next(iter(given))}="):
        pen.Restore("latest", **given)
