"""Dictionaries mean what their texts mean: in expressions, which are evaluated once per value, and in grouping."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.expr import Accumulators, Evaluated, Evaluator, coalesce, col, count, lit, udf, when

CALLS: list[str] = []


@udf
def shouted(word: str) -> str:
    CALLS.append(word)
    return word.upper()


@udf
def number(word: str) -> int:
    return int(word)


EXPRESSIONS: list[Any] = [
    col("w"),
    col("w") == "a",
    col("w") != "b",
    col("w").str.upper(),
    col("w").str.length(),
    col("w").is_null(),
    coalesce(col("w"), lit("none")),
    when(col("w") == "a", lit(1)).otherwise(lit(None)),
    shouted(col("w")),
    number(col("w")),
    col("w").cast("int"),
    col("w") == col("v"),
]

words = st.lists(st.one_of(st.none(), st.sampled_from(["a", "b", "12", "", "é"])), max_size=8)


@pytest.mark.parametrize("expr", EXPRESSIONS, ids=str)
@given(words, st.lists(st.sampled_from(["a", "b", "12", "", "é", "unused"]), max_size=12))
def test_an_expression_of_a_dictionary_is_that_of_its_texts(expr: Any, texts: list[str | None], pool: list[str]) -> None:
    plain = pa.array(texts, pa.string())
    # With values that no row has, and with values that stand twice.
    values = pool + [text for text in texts if text is not None]
    numbers = pa.array([None if text is None else values.index(text) for text in texts], pa.int32())
    encoded = pa.DictionaryArray.from_arrays(numbers, pa.array(values, pa.string()))
    other = pa.array(["a"] * len(texts), pa.string())
    wanted = Evaluator(expr)(pa.record_batch({"w": plain, "v": other}))
    found = Evaluator(expr)(pa.record_batch({"w": encoded, "v": other}))
    assert found.values.to_pylist() == wanted.values.to_pylist()

    def bad(errors: Any) -> list[bool]:
        return errors.to_pylist() if errors is not None else [False] * len(texts)

    assert bad(found.errors) == bad(wanted.errors)


def test_a_function_is_called_once_for_each_value() -> None:
    encoded = pa.array(["a", "b", "a", "a", "b"]).dictionary_encode()
    CALLS.clear()
    found = Evaluator(shouted(col("w")))(pa.record_batch({"w": encoded}))
    assert found.values.to_pylist() == ["A", "B", "A", "A", "B"]
    assert CALLS == ["a", "b"]


@pytest.mark.parametrize("values", [["a", "b"], ["a", "b", "a"], ["a", None, "b"]], ids=["once each", "twice", "a null"])
def test_rows_are_grouped_by_what_their_numbers_stand_for(values: list[str | None]) -> None:
    numbers = pa.array([0, 1, 2, 0, None] if len(values) == 3 else [0, 1, 1, 0, None], pa.int32())
    encoded = pa.DictionaryArray.from_arrays(numbers, pa.array(values, pa.string()))
    batch = pa.record_batch({"k": encoded, "n": [1, 2, 3, 4, 5]})
    rows = Accumulators([("n", count()), ("t", col("n").sum())], batch.schema).partial(batch, ["k"])[0]
    wanted: dict[Any, tuple[int, int]] = {}
    for key, n in zip(encoded.to_pylist(), [1, 2, 3, 4, 5]):
        before = wanted.get(key, (0, 0))
        wanted[key] = (before[0] + 1, before[1] + n)
    found = list(zip(rows.column("k").to_pylist(), zip(rows.column("n.n").to_pylist(), rows.column("t.sum").to_pylist())))
    assert dict(found) == wanted
    assert len(found) == len(wanted)


CONDITIONS: list[Any] = [col("w") == "a", col("w") != "b", col("w").is_null(), number(col("w")) > 3, col("w") == col("v")]


@pytest.mark.parametrize("condition", CONDITIONS, ids=str)
@given(words, st.lists(st.sampled_from(["a", "b", "12", "", "é", "unused"]), max_size=12))
def test_rows_for_which_a_condition_is_true_are_those_of_its_values(
    condition: Any, texts: list[str | None], pool: list[str]
) -> None:
    values = pool + [text for text in texts if text is not None]
    numbers = pa.array([None if text is None else values.index(text) for text in texts], pa.int32())
    encoded = pa.DictionaryArray.from_arrays(numbers, pa.array(values, pa.string()))
    batch = pa.record_batch({"w": encoded, "v": pa.array(["a"] * len(texts), pa.string())})
    found, plain = Evaluator(condition).where_true(batch), Evaluator(condition)(batch)
    if isinstance(found, Evaluated):
        assert found.values.to_pylist() == plain.values.to_pylist()
    else:
        assert plain.errors is None
        assert found.tolist() == [row for row, value in enumerate(plain.values.to_pylist()) if value]


def test_rows_are_had_of_a_dictionary_only_and_its_values_are_looked_at_once() -> None:
    plain = pa.record_batch({"w": pa.array(["a", "b", "a"], pa.string())})
    encoded = pa.record_batch({"w": plain.column(0).dictionary_encode()})
    condition = Evaluator(shouted(col("w")) == "A")
    assert isinstance(condition.where_true(plain), Evaluated)
    CALLS.clear()
    found = condition.where_true(encoded)
    assert not isinstance(found, Evaluated)
    assert found.tolist() == [0, 2]
    assert sorted(CALLS) == ["a", "b"]


def test_a_condition_that_fails_for_a_value_is_not_evaluated_again() -> None:
    batch = pa.record_batch({"w": pa.array(["7", "x", "7"], pa.string()).dictionary_encode()})
    CALLS.clear()
    found = Evaluator(number(shouted(col("w"))) > 3).where_true(batch)
    assert isinstance(found, Evaluated)
    assert found.errors.to_pylist() == [False, True, False]
    assert sorted(CALLS) == ["7", "x"]
