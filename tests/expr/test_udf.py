"""Functions of a user's own in expressions: what is annotated as a class is returned as one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

import penstock as pen
from penstock.expr import col, evaluate


@dataclass
class Leaf:
    x: int
    name: str | None = None


class Pair(NamedTuple):
    left: Leaf
    right: Leaf | None


@dataclass
class Tree:
    leaves: list[Leaf]
    named: dict[str, Leaf]


BATCH = pa.record_batch({"n": [1, None, 3]})


def leaf(n: int) -> Leaf:
    return Leaf(n)


def leaf_or_none(n: int) -> Leaf | None:
    return Leaf(n, "odd") if n == 1 else None


def leaves(n: int) -> list[Leaf]:
    return [Leaf(n), Leaf(-n, "other")]


def pair(n: int) -> Pair:
    return Pair(Leaf(n), None)


def tree(n: int) -> Tree:
    return Tree([Leaf(n)], {"a": Leaf(n)})


@pytest.mark.parametrize(
    ("function", "first"),
    [
        (leaf, {"x": 1, "name": None}),
        (leaf_or_none, {"x": 1, "name": "odd"}),
        (leaves, [{"x": 1, "name": None}, {"x": -1, "name": "other"}]),
        (pair, {"left": {"x": 1, "name": None}, "right": None}),
        (tree, {"leaves": [{"x": 1, "name": None}], "named": [("a", {"x": 1, "name": None})]}),
    ],
)
def test_a_udf_returns_the_class_that_it_is_annotated_with(function: Any, first: Any) -> None:
    found = evaluate(pen.udf(function)(col("n")), BATCH)
    assert found.errors is None, found.reason
    assert found.values.to_pylist()[:2] == [first, None]


def test_an_instance_that_does_not_fit_is_an_error_of_its_row() -> None:
    def wrong(n: int) -> Leaf:
        return Leaf("one" if n == 1 else n)  # type: ignore[arg-type]

    found = evaluate(pen.udf(wrong)(col("n")), BATCH)
    assert found.errors is not None
    assert found.errors.to_pylist() == [True, False, False]
    assert "x: expected bigint, and found str" in found.reason
    assert found.values.to_pylist()[2] == {"x": 3, "name": None}
