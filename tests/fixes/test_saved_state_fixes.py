"""The fixes of `penstock.plan.inherited`: a state that starts from one that another job left."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import penstock as pen
from fixes.applying import code_of, shown
from fixes.streams import Streams, arguments
from penstock import col, sinks, sources
from penstock.api.stream import Stream


@dataclass
class Line:
    user: str


class Left(pen.ProcessFunction):
    """What the other job keeps."""

    n = pen.ValueState(int)
    fresh = pen.ValueState(int, ttl="1h", clock="processing")

    def on_row(self, row: Line, ctx: pen.Context) -> None:
        self.n.set(1)
        self.fresh.set(1)


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Path:
    storage = tmp_path_factory.mktemp("left")
    p = pen.Pipeline("other")
    rows = p.read(sources.memory([{"user": "ann", "price": 3}], schema="user string, price bigint"))
    rows.key_by("user").process(Left(), name="kept", schema=Line).write(sinks.discard(name="a"))
    several = rows.key_by("user").aggregate(total="sum(price)", n=pen.count(), mean="avg(price)", name="totals")
    several.write(sinks.discard(name="b"))
    rows.key_by("user").reduce(lambda a, b: a, name="newest").write(sinks.discard(name="c"))
    p.run(pen.Local(storage=storage))
    return storage / "other"


def start(state: Any, left: Path, step: str, saved: str | None = None, key: str = "user") -> Stream:
    class Counted(pen.ProcessFunction):
        mine = state

        def on_row(self, row: Line, ctx: pen.Context) -> None: ...

    initial = {"mine": pen.from_savepoint(left, step=step, state=saved)}
    return Streams().left.key_by(key).process(Counted(), name="counted", initial=initial)


def test_both_jobs_key_by_the_same_columns(left: Path) -> None:
    text = shown("saved-state.keys", lambda: start(pen.ValueState(int), left, "kept", "n", key="id"))
    assert text == "Key by columns of the same names and types"
    start(pen.ValueState(int), left, "kept", "n", key="user")


def test_both_states_forget_alike(left: Path) -> None:
    (code,) = code_of(shown("saved-state.ttl", lambda: start(pen.ValueState(int), left, "kept", "fresh")))
    start(pen.ValueState(int, **arguments(code)), left, "kept", "fresh")


def test_an_aggregate_is_taken_over_by_the_same_aggregate(left: Path) -> None:
    text = shown("saved-state.aggregate", lambda: start(pen.ValueState(float), left, "totals", "mean"))
    assert "an AggregatingState of the same aggregate" in text
    start(pen.AggregatingState(col("value").mean(), int), left, "totals", "mean")


def test_several_columns_are_taken_over_by_a_class(left: Path) -> None:
    @dataclass
    class Newest:
        price: int | None

    assert "a class with such fields" in shown("saved-state.class", lambda: start(pen.ValueState(int), left, "newest"))
    start(pen.ValueState(Newest), left, "newest")
