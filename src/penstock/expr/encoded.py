"""Columns of texts as dictionaries: each value once, and a number per row.

A source may give a column of texts that way: there are few values, and to copy a number costs less than to copy a text. It means
the same, so every operator takes either form; here is what is gained by it.

1. An expression of one column is a function of its values: it is evaluated once per value, not once per row. The user's own
   functions too, as in Spark: a function of its arguments may be called once for equal ones.
2. Rows are grouped by their numbers, if no value stands twice.
3. Nulls are no values. Where there are any, or more values than rows, it is as if the column were not encoded.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.expr.rowwise import Evaluated

__all__ = ["numbers_of", "once_per_value", "per_row", "true_rows"]


def once_per_value(array: pa.DictionaryArray, evaluate: Callable[[pa.Array], Evaluated]) -> Evaluated | None:
    """What `evaluate` makes of each value. None if that would not pay."""
    values, numbers = array.dictionary, array.indices
    return None if numbers.null_count or len(values) > len(numbers) else evaluate(values)


def per_row(array: pa.DictionaryArray, found: Evaluated) -> Evaluated:
    """What was made of each value, for each row."""
    numbers, made = array.indices, found.values
    if found.errors is not None:  # of a value that no row has, they are nobody's
        return Evaluated(made.take(numbers), found.errors.take(numbers), found.reason)
    if made.null_count:
        return Evaluated(made.take(numbers))
    if pa.types.is_boolean(made.type):  # which numpy takes several times faster
        return Evaluated(pa.array(np.asarray(made)[numbers.to_numpy()]))
    if pa.types.is_string(made.type) or pa.types.is_binary(made.type):
        return Evaluated(pa.DictionaryArray.from_arrays(numbers, made, safe=False))
    return Evaluated(made.take(numbers))


def true_rows(array: pa.DictionaryArray, found: Evaluated) -> npt.NDArray[np.int64]:
    """The rows whose value was found to be true, without a value for each row."""
    true = np.asarray(found.values.fill_null(False))
    return np.flatnonzero(true.take(array.indices.to_numpy(), mode="clip"))


def numbers_of(array: pa.DictionaryArray) -> tuple[pa.Array, pa.Array] | None:
    """A number for each row, equal where the values are, and the values by number. None if it has nulls among its values."""
    values, numbers = array.dictionary, array.indices
    if values.null_count:
        return None
    unique = values.dictionary_encode()
    if len(unique.dictionary) == len(values):
        return numbers, values
    return unique.indices.take(numbers), unique.dictionary
