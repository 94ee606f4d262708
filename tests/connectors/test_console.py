"""The console sink shows the rows that matter."""

from __future__ import annotations

import pytest

import penstock as pen
from penstock import sinks, sources

NUMBERS = [{"n": n} for n in range(30)]


def shown(capsys: pytest.CaptureFixture[str]) -> tuple[list[int], str]:
    """The values of the last column, and the caption."""
    lines = capsys.readouterr().out.splitlines()
    cells = [line.strip("│").split("│")[-1].strip() for line in lines if line.startswith("│")]
    return [int(cell) for cell in cells if cell], next(line.strip() for line in lines if " rows" in line)


def test_the_newest_rows_of_an_update_stream_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    p = pen.Pipeline("newest")
    rows = p.read(sources.memory(NUMBERS, schema="n bigint", batch=4))
    rows.key_by("n").aggregate(last="max(n)", name="last").write(sinks.console(rows=5))
    p.run(pen.Local())
    values, caption = shown(capsys)
    assert (values, caption) == ([25, 26, 27, 28, 29], "the newest 5 of 30 rows")


def test_the_first_rows_of_other_streams_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    p = pen.Pipeline("first")
    p.read(sources.memory(NUMBERS, schema="n bigint", batch=4)).write(sinks.console(rows=5))
    p.run(pen.Local())
    assert shown(capsys) == ([0, 1, 2, 3, 4], "5 of 30 rows")
