"""Which rows belong together: few and many are told apart alike."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.operators import groups
from penstock.operators.groups import Groups, group_pairs, group_rows, numbered, ranks

KINDS = {
    "text": (pa.string(), st.sampled_from(["", "a", "b", "aa"])),
    "number": (pa.int64(), st.integers(-2, 2)),
    "flag": (pa.bool_(), st.booleans()),
    "time": (pa.timestamp("us", tz="UTC"), st.integers(0, 2)),
    "double": (pa.float64(), st.sampled_from([0.5, float("nan"), 1.0])),
}


def same(ours: Groups, theirs: Groups) -> None:
    for name in ("of", "first", "count", "rank"):
        assert getattr(ours, name).tolist() == getattr(theirs, name).tolist(), name


@pytest.mark.parametrize("names", [["text"], ["number", "text"], ["time", "flag", "number"], ["double", "text"], []])
@given(data=st.data())
def test_few_rows_are_grouped_as_many_are(names: list[str], data: st.DataObject) -> None:
    rows = data.draw(st.integers(0, 20))
    drawn: dict[str, Any] = {
        name: data.draw(st.lists(st.none() | KINDS[name][1], min_size=rows, max_size=rows)) for name in [*names, "number"]
    }
    batch = pa.RecordBatch.from_arrays([pa.array(v, KINDS[n][0]) for n, v in drawn.items()], names=list(drawn))
    few = group_rows(batch, names)
    with mock.patch.object(groups, "FEW", -1):
        same(few, group_rows(batch, names))


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(-2, 2)), max_size=20))
def test_few_numbers_are_grouped_as_many_are(pairs: list[tuple[int, int]]) -> None:
    codes, others = np.array([a for a, _ in pairs], np.int64), np.array([b for _, b in pairs], np.int64)
    few, both, rank = numbered(codes), group_pairs(codes, others), ranks(codes)
    with mock.patch.object(groups, "FEW", -1):
        same(few, numbered(codes))
        same(both, group_pairs(codes, others))
        assert rank.tolist() == ranks(codes).tolist()
