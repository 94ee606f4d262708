"""A name that is given is taken, or refused: an empty one never means the default."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import penstock as pen
from penstock import sinks, sources
from penstock.errors import BadNameError


def stream() -> pen.Stream:
    return pen.Pipeline("p").read(sources.memory([{"n": 1}]))


async def later(row: pen.Row) -> int:
    return 1


@pytest.mark.parametrize(
    "build",
    [
        lambda: sources.memory([{"n": 1}], name=""),
        lambda: sources.files(Path(__file__).parent, format="csv", schema="n bigint", name=""),
        lambda: sources.socket("localhost", 1, name=""),
        lambda: sources.generate(lambda index: {"n": index}, schema="n bigint", name=""),
        lambda: sinks.files("out", name=""),
        lambda: sinks.memory(""),
        lambda: sinks.console(name=""),
        lambda: pen.Pipeline(""),
        lambda: pen.Pipeline("p").read(sources.memory([{"n": 1}]), name=""),
        lambda: stream().map_async(later, schema=int, name=""),
        lambda: stream().write(sinks.memory("out"), name=""),
        lambda: stream().key_by("n").aggregate(c=pen.count(), name=""),
    ],
)
def test_an_empty_name_is_refused(build: Callable[[], Any]) -> None:
    with pytest.raises(BadNameError, match="'' cannot be the name of"):
        build()
