"""Tables of both backends, one thing at a time; `test_table_model.py` does everything at once."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from files_in_memory import FilesInMemory, PassingTable
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.errors import CorruptError, PlanError, StorageError
from penstock.state import history
from penstock.state import overlay as overlay_module
from penstock.state.history import Frozen, store
from penstock.state.keygroups import groups_of, hash_keys
from penstock.state.near import Near
from penstock.state.runfile import Handle, forget_validated
from penstock.state.spec import StateSpec
from penstock.state.table import KeyedTable

Kind = type[KeyedTable]
ALL = range(128)
COUNTS = StateSpec("n", pa.schema([("ad", pa.int64())]), pa.schema([("n", pa.int64())]))


def ads(*values: int | None) -> pa.RecordBatch:
    return pa.record_batch({"ad": pa.array(values, pa.int64())})


def counts(*values: int | None) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(values, pa.int64())})


def contents(table: KeyedTable) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for batch in table.scan() for row in batch.to_pylist()]


def saved(table: KeyedTable, files: FilesInMemory, epoch: int = 1) -> list[Handle]:
    frozen = table.freeze(epoch)
    handles = store(frozen, files, files.name)
    table.stored(frozen, handles)
    return handles


def test_what_was_put_is_found_row_by_row(kind: Kind) -> None:
    table = kind(COUNTS, ALL, 128)
    table.put_many(ads(1, None, 3), counts(10, 20, None))
    found, values = table.get_many(ads(3, 4, None, 1, 1))
    assert found.tolist() == [True, False, True, True, True]
    assert values.to_pydict() == {"n": [None, None, 20, 10, 10]}


def test_of_a_key_that_is_put_twice_the_last_wins(kind: Kind) -> None:
    table = kind(COUNTS, ALL, 128)
    table.put_many(ads(1, 2, 1), counts(10, 20, 30))
    table.put_many(ads(2, 2), counts(21, 22))
    assert sorted(contents(table)) == [(1, 30), (2, 22)]


def test_a_deleted_key_stays_deleted_through_freezes(kind: Kind) -> None:
    files = FilesInMemory()
    table = kind(COUNTS, ALL, 128)
    table.put_many(ads(1, 2), counts(10, 20))
    saved(table, files)
    table.delete_many(ads(1, 5))
    handles = saved(table, files)
    for each in (table, kind.open(COUNTS, ALL, 128, handles, files)):
        assert contents(each) == [(2, 20)]
        assert each.get_many(ads(1, 5))[0].tolist() == [False, False]
        each.put_many(ads(1), counts(11))
        assert sorted(contents(each)) == [(1, 11), (2, 20)]


def test_a_key_deleted_before_any_freeze_leaves_no_trace(kind: Kind) -> None:
    table = kind(COUNTS, ALL, 128)
    table.put_many(ads(1), counts(10))
    table.delete_many(ads(1, 2))
    assert table.freeze(1).runs == ()


def test_nothing_changed_means_no_new_run(kind: Kind) -> None:
    files = FilesInMemory()
    table = kind(COUNTS, ALL, 128)
    table.put_many(ads(1), counts(10))
    first = saved(table, files)
    table.get_many(ads(1, 2))
    assert saved(table, files, 2) == first
    assert len(files.contents) == 1


def test_a_freeze_holds_only_what_changed(kind: Kind) -> None:
    table = kind(COUNTS, ALL, 128)
    table.put_many(ads(*range(1_000)), counts(*range(1_000)))
    table.freeze(1)
    table.put_many(ads(7, 8), counts(0, 0))
    assert [run.rows for run in table.freeze(2).runs] == [2, 1_000]


def test_when_most_keys_changed_a_run_of_all_takes_the_place_of_the_others(kind: Kind) -> None:
    table = kind(COUNTS, ALL, 128)
    for epoch in range(1, 5):
        table.put_many(ads(*range(1_000)), counts(*range(epoch, 1_000 + epoch)))
        assert [run.rows for run in table.freeze(epoch).runs] == [1_000]
    table.put_many(ads(*range(200, 1_000)), counts(*range(800)))
    table.delete_many(ads(0))
    assert [run.rows for run in table.freeze(5).runs] == [999]


def test_a_key_deleted_before_a_run_of_all_does_not_come_back_with_an_older_snapshot(kind: Kind) -> None:
    files = FilesInMemory()
    table = kind(COUNTS, ALL, 128)
    table.put_many(ads(1, 2), counts(10, 20))
    older = table.freeze(1)
    table.put_many(ads(2), counts(21))
    table.delete_many(ads(1))
    newer = table.freeze(2)
    assert [run.rows for run in newer.runs] == [1]
    table.stored(older, store(older, files, files.name))
    assert contents(table) == [(2, 21)]
    table.put_many(ads(3), counts(30))
    assert sorted(contents(kind.open(COUNTS, ALL, 128, saved(table, files, 3), files))) == [(2, 21), (3, 30)]


def test_runs_never_have_many_more_rows_than_there_are_keys(kind: Kind) -> None:
    files = FilesInMemory()
    table = kind(COUNTS, ALL, 128)
    table.put_many(ads(*range(1_000)), counts(*[0] * 1_000))
    rows = []
    for epoch in range(1, 20):
        first = 211 * epoch % 700
        table.put_many(ads(*range(first, first + 300)), counts(*[epoch] * 300))
        rows.append(sum(handle.rows for handle in saved(table, files, epoch)))
    # Once a third of the keys has changed three times, all are written; a table that does not know all of them merges instead.
    assert max(rows) < (2_000 if table._lasting else 1_000 + 8 * 300)
    assert len(set(rows)) > 2
    assert len(contents(table)) == 1_000


def test_few_changes_never_freeze_all_keys_however_often_they_come(kind: Kind) -> None:
    table = kind(COUNTS, ALL, 128)
    table.put_many(ads(*range(1_000)), counts(*[0] * 1_000))
    table.freeze(1)
    for epoch in range(2, 60):
        table.put_many(ads(*range(100)), counts(*[epoch] * 100))
        assert table.freeze(epoch).runs[0].rows == 100


@pytest.mark.parametrize("slots_max", [1, 1_000])
def test_a_table_that_was_restored_searches_its_runs_unless_there_was_room_for_all_of_it(kind: Kind, slots_max: int) -> None:
    files = FilesInMemory()
    table = kind(COUNTS, ALL, 128)
    table.put_many(ads(1, 2, 3), counts(10, 20, 30))
    again = kind.open(COUNTS, ALL, 128, saved(table, files), files, slots_max=slots_max)
    again.put_many(ads(1, 2), counts(11, 21))
    frozen = again.freeze(2)
    assert [run.rows for run in frozen.runs] == ([3] if kind is KeyedTable and slots_max > 1 else [2, 3])
    again.stored(frozen, store(frozen, files, files.name))
    assert again.get_many(ads(3))[1].to_pydict() == {"n": [30]}
    assert sorted(contents(again)) == [(1, 11), (2, 21), (3, 30)]


def test_files_without_order_are_written_again_in_order_once_they_are_searched() -> None:
    files = FilesInMemory()
    table = KeyedTable(COUNTS, ALL, 128)
    table.put_many(ads(*range(1_000)), counts(*range(1_000)))
    (handle,) = saved(table, files)
    halves = [PassingTable.open(COUNTS, groups, 128, [handle], files) for groups in (range(64), range(64, 128))]
    for half in halves:
        (again,) = saved(half, files, 2)
        assert again.path != handle.path
        assert again.rows == len(contents(half)) < 1_000
        assert saved(half, files, 3) == [again]
        assert saved(PassingTable.open(COUNTS, half.groups, 128, [again], files), files, 4) == [again]
        assert [row for row in contents(half) if not half.get_many(ads(row[0]))[0].all()] == []
    assert sorted(row for half in halves for row in contents(half)) == [(n, n) for n in range(1_000)]


def test_a_table_that_searches_no_runs_holds_no_copy_of_them(kind: Kind) -> None:
    files = FilesInMemory()
    table = kind(COUNTS, ALL, 128)
    table.put_many(ads(*range(100)), counts(*range(100)))
    again = kind.open(COUNTS, ALL, 128, saved(table, files), files)
    for each in (table, again):
        assert len(contents(each)) == 100
        assert [run._loaded is None for run in each._history.runs] == [not each._searches]


def test_texts_that_do_not_fit_in_one_arrow_column_are_frozen_as_several_runs(
    kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overlay_module, "TEXT_BYTES_MAX", 1_000)
    files = FilesInMemory()
    spec = StateSpec("t", pa.schema([("k", pa.string())]), pa.schema([("n", pa.int64()), ("text", pa.string())]))
    table = kind(spec, ALL, 128)
    keys = pa.record_batch({"k": [f"k{i}" for i in range(50)]})
    texts = [None if i % 7 == 0 else chr(97 + i % 26) * (i % 13 * 30) for i in range(50)]
    table.put_many(keys, pa.record_batch({"n": range(50), "text": pa.array(texts, pa.string())}))
    rows = sorted((f"k{i}", i, texts[i]) for i in range(50))
    assert sorted(contents(table)) == rows
    frozen = table.freeze(1)
    assert len(frozen.runs) > 5
    assert sum(run.rows for run in frozen.runs) == 50
    handles = store(frozen, files, files.name)
    table.stored(frozen, handles)
    assert sorted(contents(kind.open(spec, ALL, 128, handles, files))) == rows


MIXED = pa.record_batch(
    {
        "whole": pa.array([1, None, 3], pa.int64()),
        "yes": pa.array([True, False, None]),
        "text": pa.array(["short", None, "longer than what stands in a view"]),
        "boxed": pa.array([[1], None, [2, 3]], pa.list_(pa.int64())),
    }
)


@pytest.mark.parametrize("deleted", [[], [2], [1, 2, 3]])
def test_all_keys_are_frozen_as_copies_whatever_their_columns_are(deleted: list[int], kind: Kind) -> None:
    table = kind(StateSpec("mixed", COUNTS.keys, MIXED.schema), ALL, 128)
    table.put_many(ads(1, 2, 3), MIXED)
    frozen, files = table.freeze(1), FilesInMemory()
    assert sum(run.rows for run in frozen.runs) == 3
    table.put_many(ads(1, 2, 3), MIXED.take(pa.array([2, 0, 1])))
    table.delete_many(ads(*deleted))
    later = table.freeze(2)
    for state, values, gone in ((frozen, [0, 1, 2], []), (later, [2, 0, 1], deleted)):
        opened = kind.open(table.spec, ALL, 128, store(state, files, files.name), files)
        found, rows = opened.get_many(ads(1, 2, 3))
        assert found.tolist() == [ad not in gone for ad in (1, 2, 3)]
        wanted = MIXED.take(pa.array([None if ad in gone else row for ad, row in zip((1, 2, 3), values)], pa.int64()))
        assert rows.to_pylist() == wanted.to_pylist()


def test_a_frozen_state_does_not_see_later_changes(kind: Kind) -> None:
    files = FilesInMemory()
    table = kind(COUNTS, ALL, 128)
    table.put_many(ads(1), counts(10))
    frozen = table.freeze(1)
    table.put_many(ads(1, 2), counts(11, 20))
    table.delete_many(ads(1))
    handles = store(frozen, files, files.name)
    assert contents(kind.open(COUNTS, ALL, 128, handles, files)) == [(1, 10)]


def test_a_scan_sees_the_table_as_of_its_call(kind: Kind) -> None:
    table = kind(COUNTS, ALL, 128)
    table.put_many(ads(1), counts(10))
    scan = table.scan()
    table.put_many(ads(1, 2), counts(11, 20))
    assert [batch.to_pydict() for batch in scan] == [{"ad": [1], "n": [10]}]


def test_a_failed_store_is_part_of_the_next_one(kind: Kind) -> None:
    files = FilesInMemory()
    table = kind(COUNTS, ALL, 128)
    table.put_many(ads(1), counts(10))
    files.fail_after = 0
    with pytest.raises(StorageError):
        saved(table, files)
    files.fail_after = None
    table.put_many(ads(2), counts(20))
    handles = saved(table, files, 2)
    assert len(handles) == 2
    assert sorted(contents(kind.open(COUNTS, ALL, 128, handles, files))) == [(1, 10), (2, 20)]


def test_stored_may_come_late_and_out_of_order(kind: Kind) -> None:
    files = FilesInMemory()
    table = kind(COUNTS, ALL, 128)
    frozen: list[tuple[Frozen, list[Handle]]] = []
    for number in range(12):
        table.put_many(ads(number, 100), counts(number, number))
        each = table.freeze(number)
        frozen.append((each, store(each, files, files.name)))
    for number in (5, 2, 11, 8):
        table.stored(*frozen[number])
        assert len(contents(table)) == 13
    assert table.get_many(ads(100))[1].to_pydict() == {"n": [11]}
    assert all(run.handle is not None for run in table.freeze(99).runs)


def test_runs_stay_few(kind: Kind) -> None:
    files = FilesInMemory()
    table = kind(COUNTS, ALL, 128)
    for epoch in range(100):
        table.put_many(ads(*range(epoch, epoch + 10)), counts(*[epoch] * 10))
        table.delete_many(ads(epoch - 5))
        handles = saved(table, files, epoch)
        assert len(handles) <= history.RUNS_MAX
    assert sorted(contents(kind.open(COUNTS, ALL, 128, handles, files))) == sorted(contents(table))
    assert len(contents(table)) == 14


def test_a_merge_of_newer_runs_does_not_forget_that_a_key_was_deleted(kind: Kind) -> None:
    files = FilesInMemory()
    table = kind(COUNTS, ALL, 128)
    table.put_many(ads(*range(1_000)), counts(*range(1_000)))
    saved(table, files)
    for epoch in range(history.RUNS_MAX):
        table.delete_many(ads(epoch))
        handles = saved(table, files, epoch)
    assert [handle.rows for handle in handles] == [history.RUNS_MAX, 1_000]
    again = kind.open(COUNTS, ALL, 128, handles, files)
    assert not again.get_many(ads(*range(history.RUNS_MAX)))[0].any()
    assert len(contents(again)) == 1_000 - history.RUNS_MAX


def test_slots_of_deleted_keys_are_used_again(kind: Kind) -> None:
    table = kind(COUNTS, ALL, 128)
    for epoch in range(50):
        batch = ads(*range(epoch * 10, epoch * 10 + 10))
        table.put_many(batch, counts(*range(10)))
        table.freeze(epoch)
        table.delete_many(batch)
        table.freeze(epoch)
    assert table._overlay.used <= 20
    assert len(table._overlay) == 0


def test_the_same_batch_of_keys_may_be_used_across_a_freeze(kind: Kind) -> None:
    table = kind(COUNTS, ALL, 128)
    batch = ads(1, 2)
    table.put_many(batch, counts(10, 20))
    table.delete_many(batch)
    table.freeze(1)
    assert table.get_many(batch)[0].tolist() == [False, False]
    table.put_many(batch, counts(11, 21))
    table.freeze(2)
    table.put_many(ads(3), counts(30))
    assert sorted(contents(table)) == [(1, 11), (2, 21), (3, 30)]


def test_beyond_slots_max_the_overlay_is_emptied_and_nothing_is_lost(kind: Kind) -> None:
    table = kind(COUNTS, ALL, 128, slots_max=10)
    table.put_many(ads(*range(11)), counts(*range(11)))
    table.freeze(1)
    found, values = table.get_many(ads(5, 5, 3, 99))
    assert found.tolist() == [True, True, True, False]
    assert values.to_pydict() == {"n": [5, 5, 3, None]}
    assert len(table._overlay) == 2


def test_a_table_without_values_is_a_set(kind: Kind) -> None:
    files = FilesInMemory()
    spec = StateSpec("seen", pa.schema([("id", pa.string())]), pa.schema([]))
    nothing = pa.RecordBatch.from_arrays([], schema=pa.schema([]))
    ids = pa.record_batch({"id": ["a", "b"]})
    table = kind(spec, ALL, 128)
    table.put_many(ids, nothing)
    again = kind.open(spec, ALL, 128, saved(table, files), files)
    for each in (table, again):
        found, values = each.get_many(pa.record_batch({"id": ["b", "c"]}))
        assert found.tolist() == [True, False]
        assert values.num_rows == 2
    assert sorted(contents(again)) == [("a",), ("b",)]


def test_a_key_of_another_task_is_refused(kind: Kind) -> None:
    with pytest.raises(AssertionError, match="another task"):
        kind(COUNTS, range(0), 128).put_many(ads(1), counts(1))


def test_hashes_may_be_given(kind: Kind) -> None:
    table = kind(COUNTS, ALL, 128)
    table.put_many(ads(1, 2), counts(1, 2), hash_keys(ads(1, 2)))
    table.freeze(1)
    table._empty()
    assert table.get_many(ads(2, 1, 3), hash_keys(ads(2, 1, 3)))[1].to_pydict() == {"n": [2, 1, None]}


def test_windows_live_in_the_group_of_their_key(kind: Kind) -> None:
    spec = StateSpec("w", pa.schema([("ad", pa.int64()), ("start", pa.int64())]), COUNTS.values, route_columns=1)
    table = kind(spec, ALL, 128)
    windows = pa.record_batch({"ad": [7] * 50, "start": list(range(50))})
    table.put_many(windows, counts(*range(50)))
    (run,) = table.freeze(1).runs
    assert set(run.groups.tolist()) == set(groups_of(hash_keys(ads(7)), 128).tolist())
    assert len(set(run.hashes.tolist())) == 50
    table._empty()
    found, values = table.get_many(windows, hash_keys(ads(*[7] * 50)))
    assert found.all()
    assert values.to_pydict() == {"n": list(range(50))}


@pytest.mark.parametrize(
    ("type", "values"),
    [
        (pa.bool_(), [True, False, None]),
        (pa.string(), ["", "héé", None]),
        (pa.binary(), [b"", b"\xff", None]),
        (pa.date32(), [datetime.date(2026, 1, 1), datetime.date(1, 1, 1), None]),
        (pa.timestamp("us", "UTC"), [datetime.datetime(2026, 1, 1, 0, 0, 0, 1, datetime.UTC), None]),
        (pa.decimal128(38, 2), [decimal.Decimal("1.20"), decimal.Decimal("-99.99"), None]),
        (pa.float64(), [1.5, float("inf"), -0.0, None]),
        (pa.int8(), [-128, 127, None]),
        (pa.duration("ms"), [datetime.timedelta(seconds=1), None]),
        (pa.list_(pa.int64()), [[1, 2], [3, 4], [], None]),
        (pa.struct([("a", pa.int64())]), [{"a": 1}, {"a": None}, None]),
    ],
    ids=str,
)
def test_every_type_survives_memory_and_files(kind: Kind, type: pa.DataType, values: list[Any]) -> None:
    files = FilesInMemory()
    is_key = not (pa.types.is_floating(type) or pa.types.is_nested(type) or pa.types.is_duration(type))
    key_type = type if is_key and type != pa.int8() else pa.int64()
    keys = pa.record_batch({"k": pa.array(values if key_type == type else range(len(values)), key_type)})
    rows = pa.record_batch({"v": pa.array(values, type)})
    # A slice, because arrays that do not start at 0 are where conversions go wrong.
    doubled = pa.record_batch({"v": pa.concat_arrays([rows.column(0)] * 2)}).slice(len(values))
    spec = StateSpec("x", pa.schema([("k", key_type)]), pa.schema([("v", type)]))
    table = kind(spec, ALL, 128)
    table.put_many(keys, doubled)
    handles = saved(table, files)
    reopened = kind.open(spec, ALL, 128, handles, files)
    for each in (table, reopened):
        found, got = each.get_many(keys)
        assert found.all()
        assert got.equals(rows)
    reopened.delete_many(keys.slice(1))
    assert len(contents(kind.open(spec, ALL, 128, saved(reopened, files), files))) == 1


def test_a_spec_says_what_is_wrong_with_it() -> None:
    with pytest.raises(PlanError, match="must be cast to int64"):
        StateSpec("x", pa.schema([("k", pa.int32())]), pa.schema([]))
    with pytest.raises(PlanError, match="float"):
        StateSpec("x", pa.schema([("k", pa.float32())]), pa.schema([]))
    with pytest.raises(PlanError, match="two columns are called 'k'"):
        StateSpec("x", pa.schema([("k", pa.int64())]), pa.schema([("k", pa.int64())]))


def test_a_damaged_file_is_noticed_when_the_table_is_opened(kind: Kind) -> None:
    files = FilesInMemory()
    table = kind(COUNTS, ALL, 128)
    table.put_many(ads(1), counts(10))
    (handle,) = saved(table, files)
    data = bytearray(files.contents[handle.path].to_pybytes())
    data[-100] ^= 1
    files.contents[handle.path] = pa.py_buffer(bytes(data))
    forget_validated()
    with pytest.raises(CorruptError, match=handle.path):
        kind.open(COUNTS, ALL, 128, [handle], files)


@pytest.mark.parametrize("rows", [100, 5_000])
def test_small_and_large_batches_of_keys_agree(rows: int, kind: Kind) -> None:
    """Small ones are looked up in another way than large ones."""
    table = kind(COUNTS, ALL, 128)
    everything = ads(*range(5_000))
    for start in range(0, 5_000, rows):
        table.put_many(everything.slice(start, rows), counts(*range(start, start + rows)))
    for some in (everything, everything.slice(17, 100), ads(4_999, 5_000, 0)):
        for _ in range(2):
            found, values = table.get_many(pa.record_batch(some.columns, schema=some.schema))
            wanted = [key if key < 5_000 else None for key in some.column(0).to_pylist()]
            assert values.column(0).to_pylist() == wanted
            assert found.tolist() == [key is not None for key in wanted]
    table.delete_many(everything.slice(0, 10))
    assert not table.get_many(ads(*range(10)))[0].any()
    table.put_many(ads(7_000, 7_001), counts(1, 2))  # in slots of deleted keys
    assert table.get_many(ads(7_001, 3))[1].to_pydict() == {"n": [2, None]}


@pytest.mark.parametrize("few", [0, 512])
def test_rows_that_share_their_key_are_told_apart(kind: Kind, few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlay_module, "FEW", few)
    table = kind(COUNTS, ALL, 128)
    others = range(100, 120)  # where most rows repeat, all are said to
    table.put_many(ads(1, 2, 3, None, *others), counts(*[1] * 24))
    for keys in (ads(1, 2, 3), ads(), ads(None, 1), ads(1, 2, 9)):
        assert table.repeats(keys) is None
    for keys, shared in (([1, 2, 1], [True, False, True]), ([3, None, 2, None], [False, True, False, True])):
        found = table.repeats(ads(*keys, *others))
        assert found is not None
        assert found.tolist() == [*shared, *[False] * 20] if not few else found.all()
        many = table.repeats(ads(*keys))
        assert many is not None
        assert many.all()
    found = table.repeats(ads(8, 8, 1, 9))  # not there: the same or not
    assert found is not None
    assert found[:2].all()


def test_keys_that_equal_each_other_are_forgotten_without_harm() -> None:
    near = Near()
    near.learn([0.0], np.array([1]))
    near.learn([-0.0], np.array([2]))
    near.forget(np.array([1]))
    near.forget(np.array([2]))
    assert near.find([0.0]) == [-1]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    batches=st.lists(st.lists(st.tuples(st.integers(0, 12), st.integers(-50, 50)), max_size=30), max_size=6),
    few=st.sampled_from([0, 512]),
    deleted=st.sets(st.integers(0, 12)),
)
def test_a_key_that_occurs_several_times_gets_all_that_is_given_for_it(
    kind: Kind, batches: list[list[tuple[int, int]]], few: int, deleted: set[int]
) -> None:
    spec = StateSpec("s", pa.schema({"ad": pa.int64()}), pa.schema({"n": pa.int64(), "least": pa.int64()}))
    table, wanted = kind(spec, ALL, 128), dict[int, tuple[int, int]]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(overlay_module, "FEW", few)
        for epoch, batch in enumerate(batches):
            known = set(wanted)
            for key, value in batch:
                n, least = wanted.get(key, (0, 2**63 - 1))
                wanted[key] = n + value, min(least, value)
            given = pa.array([value for _, value in batch], pa.int64())
            keys = ads(*[key for key, _ in batch])
            changed = table.change_many(keys, [given, given], [np.add, np.minimum])
            assert changed is not None
            rows = range(len(batch)) if changed.rows is None else changed.rows.tolist()
            found = [batch[row][0] for row in rows]
            assert sorted(found) == sorted({key for key, _ in batch})
            assert changed.found.tolist() == [key in known for key in found]
            assert list(zip(*(array.to_pylist() for array in changed.values))) == [wanted[key] for key in found]
            if epoch == 1:
                table.delete_many(ads(*deleted))
                wanted = {key: row for key, row in wanted.items() if key not in deleted}
            table.freeze(epoch)
    assert sorted(contents(table)) == sorted((key, *row) for key, row in wanted.items())
    table.close()


def test_whole_numbers_are_changed_where_they_stand(kind: Kind) -> None:
    spec = StateSpec("s", pa.schema({"ad": pa.int64()}), pa.schema({"n": pa.int64(), "most": pa.int64()}))
    table = kind(spec, ALL, 128)
    table.put_many(ads(1, 2), pa.record_batch({"n": [1, 2**62], "most": [5, -5]}))
    how = [np.add, np.maximum]

    def change(keys: pa.RecordBatch, n: list[Any], most: list[Any]) -> list[Any] | None:
        changed = table.change_many(keys, [pa.array(n, pa.int64()), pa.array(most, pa.int64())], how)
        if changed is None:
            return None
        rows = [] if changed.rows is None else [changed.rows.tolist()]
        return [*rows, changed.found.tolist(), *(array.to_pylist() for array in changed.values)]

    assert change(ads(2, 1), [1, 2], [-9, 9]) == [[True, True], [2**62 + 1, 3], [-5, 9]]
    assert change(ads(1, 2, 7), [1, 2**62, 1], [1, 1, 1]) is None, "a sum does not fit"
    assert change(ads(1, 7), [1, None], [1, 1]) is None, "a value is null"
    assert sorted(contents(table)) == [(1, 3, 9), (2, 2**62 + 1, -5)], "nothing was done"
    frozen = table.freeze(1)
    assert change(ads(1, 3), [1, 2**61], [0, -1]) == [[True, False], [4, 2**61], [9, -1]]
    assert table.get_many(ads(1, 2, 3))[1].to_pydict() == {"n": [4, 2**62 + 1, 2**61], "most": [9, -5, -1]}
    assert frozen.runs[0].batch.column("n").to_pylist() in ([3, 2**62 + 1], [2**62 + 1, 3]), "what was frozen stays"
    table.delete_many(ads(2))
    assert change(ads(2), [1], [1]) == [[False], [1], [1]], "a key that was deleted begins anew"
    files = FilesInMemory()
    again = table = kind.open(spec, ALL, 128, saved(table, files, 2), files)
    assert change(ads(5, 2, 1), [1, 1, 1], [0, 0, 0]) == [[False, True, True], [1, 2, 5], [0, 1, 9]], "also of what is in runs"
    again.put_many(ads(6), pa.record_batch({"n": pa.array([None], pa.int64()), "most": [1]}))
    assert change(ads(1), [1], [1]) is None, "there are nulls"
    assert sorted(contents(again), key=str) == sorted([(1, 5, 9), (2, 2, 1), (3, 2**61, -1), (5, 1, 0), (6, None, 1)], key=str)
