"""The fixes of steps that order rows."""

from __future__ import annotations

from typing import Any

import penstock as pen
from fixes.applying import argument, shown
from penstock import sources


def best(**options: Any) -> pen.Stream:
    rows = pen.Pipeline("fixes").read(
        sources.memory([{"k": "a", "price": 1, "at": 2}], schema="k string, price bigint, at bigint")
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
