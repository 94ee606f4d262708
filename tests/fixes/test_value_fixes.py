"""The fixes of names of columns, and of values that do not fit their column."""

from __future__ import annotations

from typing import Any

import pytest

import penstock as pen
from fixes.applying import code_of, evaluate, shown
from penstock import sources


@pytest.mark.parametrize("name", [None, "", 3, "\ud800"])
def test_a_column_gets_a_name(name: Any) -> None:
    stream = pen.Pipeline("p").read(sources.memory([{"n": 1}]))
    (code,) = code_of(shown("column.name", lambda: stream.select(pen.col("n").alias(name))))
    assert stream.select(evaluate(code)).schema.names == ["total"]
    for broken in (
        lambda: stream.rename({"n": name}),
        lambda: sources.memory([{name: 1}]),
        lambda: stream.key_by("n").aggregate(pen.count().alias(name), name="x"),
    ):
        shown("column.name", broken)
