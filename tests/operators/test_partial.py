"""What is folded before the exchange, and what is not worth it."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.expr import Accumulators, count
from penstock.operators.aggregate import HELD_ROWS_MIN, TRIED_EVERY, TRIED_EVERY_LARGE, PartialAggregate
from penstock.operators.operator import Errors

ROWS = pa.schema({"k": pa.int64()})


@pytest.fixture
def partial() -> PartialAggregate:
    return PartialAggregate("n", ["k"], None, Accumulators([("n", count())], ROWS), Errors("n", "fail", pa.schema([])))


def sent(partial: PartialAggregate, keys: list[int]) -> list[tuple[int, int]]:
    batch = pa.record_batch({"k": pa.array(keys, pa.int64())})
    return [(row["k"], row["n.n"]) for _, rows in partial.process(batch, None) for row in rows.to_pylist()]


def test_rows_of_one_key_are_always_folded(partial: PartialAggregate) -> None:
    assert all(sent(partial, [1] * 5) == [(1, 5)] for _ in range(3 * TRIED_EVERY))


def test_rows_whose_keys_differ_are_sent_as_they_are_until_a_batch_is_tried_again(partial: PartialAggregate) -> None:
    assert sorted(sent(partial, [1, 2, 3])) == [(1, 1), (2, 1), (3, 1)]  # folded, to no avail
    assert all(sent(partial, [1, 1]) == [(1, 1), (1, 1)] for _ in range(TRIED_EVERY - 1))
    assert sent(partial, [1, 1]) == [(1, 2)]
    assert sent(partial, [1, 1]) == [(1, 2)]


def test_large_batches_whose_keys_differ_are_tried_less_often(partial: PartialAggregate) -> None:
    assert len(sent(partial, list(range(HELD_ROWS_MIN)))) == HELD_ROWS_MIN
    assert all(sent(partial, [1, 1]) == [(1, 1), (1, 1)] for _ in range(TRIED_EVERY_LARGE - 1))
    assert sent(partial, [1, 1]) == [(1, 2)]
