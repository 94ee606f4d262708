"""Long lists of an aggregate or a `ListState`, put back into its rows: for whoever reads a saved state as values to start from.

A key with many values has null where its list would be (in a `ListState` an empty list), and its values stand in tables beside it,
`NAME-chunks` (in the order they came), and `NAME-counts` where they are counted. What is counted in rows that stay are the numbers of
an exact quantile: their identity says which they are (`expr.listed`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.state.columns import key_list

CHUNK, ENTRIES, VALUE, COUNT = "__chunk", "__values", "__value", "__count"


@dataclass(frozen=True, slots=True)
class Lists:
    """The lists that stand apart, by key."""

    by_key: Mapping[Any, list[Any]]

    @classmethod
    def of(cls, keys: list[str], chunks: Iterator[pa.RecordBatch], counts: Iterator[pa.RecordBatch] | None) -> Lists:
        """From the rows of the tables; `counts`: of what is counted."""
        found: dict[Any, list[Any]] = defaultdict(list)
        if counts is not None:
            for rows in counts:
                ordinals = rows.column(VALUE).to_numpy()
                values = np.where(ordinals < 0, ordinals ^ np.int64(2**63 - 1), ordinals).view(np.float64).tolist()
                for key, value, count in zip(key_list(rows.select(keys)), values, rows.column(COUNT).to_pylist()):
                    found[key].append({"value": value, "count": count})
            return cls(found)
        pieces: dict[Any, list[tuple[int, list[Any]]]] = defaultdict(list)
        for rows in chunks:
            numbers, lists = rows.column(CHUNK).to_pylist(), rows.column(ENTRIES).to_pylist()
            for key, number, values in zip(key_list(rows.select(keys)), numbers, lists):
                pieces[key].append((number, values))
        return cls({key: [v for _, values in sorted(parts, key=lambda p: p[0]) for v in values] for key, parts in pieces.items()})

    def put_back(self, keys: pa.RecordBatch, column: pa.Array) -> pa.Array:
        """The column with the lists of these keys where it has none."""
        lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
        if lengths.all():
            return column
        pairs = zip(key_list(keys), column.to_pylist())
        return pa.array([value or self.by_key.get(key, []) for key, value in pairs], column.type)
