"""The fixes of steps that order rows."""

from __future__ import annotations

from typing import Any

import pytest

import penstock as pen
from fixes.applying import argument, shown
from penstock import sinks, sources


def best(**options: Any) -> Any:
    rows = pen.Pipeline("fixes").read(
        sources.memory(
            [{"k": "a", "price": price, "at": 2} for price in (1, None, 3)], schema="k string, price bigint, at bigint"
        )
    )
    return rows.key_by("k").top(3, name="best", **options)


def test_what_to_order_by() -> None:
    [by] = argument(shown("top.by", lambda: best(by=[])))
    best(by=by)


def test_a_direction_for_each_column() -> None:
    [ascending] = argument(shown("top.ascending", lambda: best(by=["price", "at"], ascending=[True])))
    assert ascending == [True, False]
    best(by=["price", "at"], ascending=ascending)
    [ascending] = argument(shown("top.ascending", lambda: best(by="price", ascending="yes")))
    best(by="price", ascending=ascending)


def test_a_direction_is_said_once() -> None:
    text = shown("top.directions", lambda: best(by=["price desc", "at"], ascending=[False, True]))
    assert argument(text) == [["price desc", "at asc"]]
    text = shown("top.directions", lambda: best(by="price asc", ascending=False))
    assert argument(text) == ["price asc"]
    assert best(by="price asc")._node.ascending == (True,)


NULLS = [
    ("price nulls last", {}, [3, 1, None]),
    ("price asc nulls last", {}, [1, 3, None]),
    ("price nulls first", {}, [None, 3, 1]),
    ("price asc nulls first", {}, [None, 1, 3]),
    (["price nulls first", "at desc"], {"ascending": [True, False]}, [None, 1, 3]),
]


@pytest.mark.parametrize(("by", "options", "expected"), NULLS)
def test_null_comes_last_unless_it_is_ordered_by_before(by: Any, options: dict[str, Any], expected: list[int | None]) -> None:
    text = shown("top.nulls", lambda: best(by=by, **options))
    assert ("Leave ascending= out" in text) == bool(options)
    (instead,) = argument(text)
    with sinks.memory("nulls") as out:
        best(by=instead).write(out).run(pen.Local(restarts=0))
        assert [row["price"] for row in sorted(out.rows(), key=lambda row: row["rank"])] == expected
