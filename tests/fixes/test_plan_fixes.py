"""The fixes of `penstock.plan.physical`: of a pipeline as a whole."""

from __future__ import annotations

import penstock as pen
from fixes.applying import argument, shown
from penstock import sinks, sources


def numbers(p: pen.Pipeline, name: str = "numbers") -> pen.Stream:
    return p.read(sources.memory([{"n": 1}], schema="n bigint"), name=name)


def test_of_two_sinks_of_one_name_one_gets_another() -> None:
    def pipeline(**other: str) -> pen.Pipeline:
        p = pen.Pipeline("p")
        rows = numbers(p)
        return rows.write(sinks.discard(name="out")) and rows.write(sinks.discard(name="out"), **other)

    (name,) = argument(shown("plan.same-name", lambda: pipeline().plan()))
    pipeline(name=name).plan()
