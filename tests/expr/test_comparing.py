"""What a condition compares."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.expr import Expr, col, comparisons, lit, parse

INT, TEXT = pa.int64(), pa.string()


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (col("n") > 3, [("n", "greater", 3, INT)]),
        (lit(3) > col("n"), [("n", "less", 3, INT)]),
        (lit("a") == col("w"), [("w", "equal", "a", TEXT)]),
        (
            parse("n between 1 and 2 and w <> 'x'"),
            [("n", "greater_equal", 1, INT), ("n", "less_equal", 2, INT), ("w", "not_equal", "x", TEXT)],
        ),
        (col("n") > col("m"), None),
        (col("n") + 1 > 3, None),
        ((col("n") > 3) | (col("n") < 1), None),
        ((col("n") > 3) & (col("n") + 1 > 3), None),
        (~(col("n") > 3), None),
        (col("yes"), None),
    ],
)
def test_comparisons_of_columns_with_literals_are_found_if_there_is_nothing_else(condition: Expr, expected: object) -> None:
    assert comparisons(condition) == expected
