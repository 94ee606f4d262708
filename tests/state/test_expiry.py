"""Rows that expire: hidden at once, dropped in time, buried where an older run still holds the key. In both backends."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from files_in_memory import FilesInMemory
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.state import history
from penstock.state.history import store
from penstock.state.runfile import DELETE, PUT, Handle
from penstock.state.runs import Expiry, Run, merge_runs
from penstock.state.spec import StateSpec
from penstock.state.table import KeyedTable

Kind = type[KeyedTable]
ALL = range(128)
SPEC = StateSpec(
    "seen", pa.schema([("k", pa.int64())]), pa.schema([("until", pa.int64()), ("tags", pa.list_(pa.string()))]), expires="until"
)


def keys(*values: int) -> pa.RecordBatch:
    return pa.record_batch({"k": pa.array(values, pa.int64())})


def rows(*until: int | None) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"until": until, "tags": [[str(u)] for u in until]}, SPEC.values)


def contents(table: KeyedTable) -> dict[int, Any]:
    return {row["k"]: row["until"] for batch in table.scan() for row in batch.to_pylist()}


def found(table: KeyedTable, *values: int) -> list[bool]:
    there: list[bool] = table.get_many(keys(*values))[0].tolist()
    return there


def saved(table: KeyedTable, files: FilesInMemory) -> list[Handle]:
    frozen = table.freeze(1)
    handles = store(frozen, files, files.name)
    table.stored(frozen, handles)
    return handles


def test_a_row_is_gone_once_the_horizon_reaches_it(kind: Kind) -> None:
    table = kind(SPEC, ALL, 128)
    table.put_many(keys(1, 2, 3), rows(10, 11, None))
    table.horizon = 10
    assert found(table, 1, 2, 3) == [False, True, True]
    assert table.get_many(keys(1))[1].to_pylist() == [{"until": None, "tags": None}]
    assert contents(table) == {2: 11, 3: None}


def test_the_horizon_does_not_fall(kind: Kind) -> None:
    table = kind(SPEC, ALL, 128)
    table.put_many(keys(1), rows(10))
    table.horizon = 10
    table.horizon = 5
    assert table.horizon == 10
    assert found(table, 1) == [False]


def test_a_table_whose_rows_stay_has_no_horizon(kind: Kind) -> None:
    table = kind(StateSpec("n", SPEC.keys, SPEC.values), ALL, 128)
    with pytest.raises(AssertionError, match="do not expire"):
        table.horizon = 10


@pytest.mark.parametrize("when", ["before any freeze", "after one", "after a restart"])
def test_an_expired_row_is_hidden_wherever_it_stands(kind: Kind, when: str) -> None:
    files = FilesInMemory()
    table = kind(SPEC, ALL, 128)
    table.put_many(keys(1, 2), rows(10, 20))
    if when != "before any freeze":
        handles = saved(table, files)
    if when == "after a restart":
        table = kind.open(SPEC, ALL, 128, handles, files)
    table.horizon = 10
    assert found(table, 1, 2) == [False, True]
    assert contents(table) == {2: 20}


def test_a_row_that_expired_can_be_put_again(kind: Kind) -> None:
    table = kind(SPEC, ALL, 128)
    table.put_many(keys(1), rows(10))
    table.freeze(1)
    table.horizon = 10
    assert found(table, 1) == [False]
    table.put_many(keys(1), rows(20))
    table.freeze(2)
    assert contents(table) == {1: 20}


def test_a_newer_row_that_expired_hides_an_older_one_that_has_not(kind: Kind) -> None:
    files = FilesInMemory()
    table = kind(SPEC, ALL, 128)
    table.put_many(keys(1), rows(100))
    saved(table, files)
    table.put_many(keys(1), rows(10))
    table.horizon = 10
    handles = saved(table, files)
    assert contents(table) == {}
    again = kind.open(SPEC, ALL, 128, handles, files)
    assert found(again, 1) == [False], "it was buried, not left out"


def test_rows_that_expire_before_any_freeze_leave_no_trace(kind: Kind) -> None:
    table = kind(SPEC, ALL, 128)
    table.put_many(keys(1), rows(10))
    table.horizon = 10
    assert table.freeze(1).runs == ()
    assert len(table._overlay) == 0


def test_the_overlay_lets_go_of_expired_rows_at_a_freeze(kind: Kind) -> None:
    table = kind(SPEC, ALL, 128)
    for epoch in range(50):
        batch = keys(*range(epoch * 10, epoch * 10 + 10))
        table.put_many(batch, rows(*[epoch] * 10))
        table.freeze(epoch)
        table.horizon = epoch
    table.freeze(99)
    assert len(table._overlay) == 0
    assert table._overlay.used <= 20
    assert found(table, *range(500)) == [False] * 500
    assert len(table._overlay) == 0, "nor does asking bring them back"


def test_compaction_drops_what_has_expired(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "RUNS_MAX", 1)
    files = FilesInMemory()
    table = kind(SPEC, ALL, 128)
    table.put_many(keys(1, 2), rows(10, 20))
    saved(table, files)
    table.put_many(keys(3), rows(30))
    table.horizon = 10
    assert [handle.rows for handle in saved(table, files)] == [2]


def test_a_merge_buries_what_an_older_run_may_hold() -> None:
    table = KeyedTable(SPEC, ALL, 128)
    table.put_many(keys(1, 2), rows(10, 20))
    run = Run.of(table.freeze(1).runs[0].batch)
    expiry = Expiry("until", 10)
    buried = merge_runs([run], ALL, drop_deletes=False, expiry=expiry)
    by_key = {row["k"]: row for row in buried.to_pylist()}
    assert (by_key[1]["__op"], by_key[1]["until"], by_key[1]["tags"]) == (DELETE, None, None)
    assert (by_key[2]["__op"], by_key[2]["until"], by_key[2]["tags"]) == (PUT, 20, ["20"])
    assert merge_runs([run], ALL, drop_deletes=True, expiry=expiry).column("k").to_pylist() == [2]


def test_the_horizon_of_a_frozen_state_is_that_of_its_freeze(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "RUNS_MAX", 1)
    files = FilesInMemory()
    table = KeyedTable(SPEC, ALL, 128)
    table.put_many(keys(1), rows(10))
    table.freeze(1)
    table.put_many(keys(2), rows(20))
    table.horizon = 5
    frozen = table.freeze(2)
    table.horizon = 50
    assert sum(handle.rows for handle in store(frozen, files, files.name)) == 2


key, until = st.integers(0, 5), st.none() | st.integers(0, 8)
step = st.one_of(
    st.tuples(st.just("put"), key, until),
    st.tuples(st.just("delete"), key, st.none()),
    st.tuples(st.just("expire"), st.integers(0, 8), st.none()),
    st.tuples(st.just("freeze"), st.booleans(), st.none()),
)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(step, max_size=25), data=st.data())
def test_what_is_seen_does_not_depend_on_when_files_are_merged(
    monkeypatch: pytest.MonkeyPatch, steps: list[tuple[str, Any, Any]], data: st.DataObject
) -> None:
    """One table freezes and merges at every chance, one now and then, one never; one is opened anew from files each time."""
    files = FilesInMemory()
    eager, some, never = (KeyedTable(SPEC, ALL, 128) for _ in range(3))
    anew = KeyedTable(SPEC, ALL, 128)
    for what, first, second in steps:
        for table in (eager, some, never, anew):
            match what:
                case "put":
                    table.put_many(keys(first), rows(second))
                case "delete":
                    table.delete_many(keys(first))
                case "expire":
                    table.horizon = first
        monkeypatch.setattr(history, "RUNS_MAX", 1)
        saved(eager, files)
        horizon, handles = anew.horizon, saved(anew, files)
        anew = KeyedTable.open(SPEC, ALL, 128, handles, files)
        anew.horizon = horizon
        monkeypatch.setattr(history, "RUNS_MAX", 3)
        if what == "freeze":
            saved(some, files) if first else some.freeze(1)
        expected, asked = contents(never), data.draw(key)
        for table in (eager, some, anew):
            assert contents(table) == expected
            assert found(table, asked) == found(never, asked) == [asked in expected]
