"""`KeyedTable` against a dict: whatever is done in whatever order, through freezes, failures, crashes and rescales."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from files_in_memory import FilesInMemory
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.errors import CorruptError, PlanError, StorageError
from penstock.state import history, keygroups
from penstock.state import table as table_module
from penstock.state.history import Frozen, store
from penstock.state.keygroups import group_range, groups_of, hash_keys
from penstock.state.runs import Handle, forget_validated
from penstock.state.table import KeyedTable, StateSpec

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


# -- one thing at a time


def test_what_was_put_is_found_row_by_row() -> None:
    table = KeyedTable(COUNTS, ALL, 128)
    table.put_many(ads(1, None, 3), counts(10, 20, None))
    found, values = table.get_many(ads(3, 4, None, 1, 1))
    assert found.tolist() == [True, False, True, True, True]
    assert values.to_pydict() == {"n": [None, None, 20, 10, 10]}


def test_of_a_key_that_is_put_twice_the_last_wins() -> None:
    table = KeyedTable(COUNTS, ALL, 128)
    table.put_many(ads(1, 2, 1), counts(10, 20, 30))
    table.put_many(ads(2, 2), counts(21, 22))
    assert sorted(contents(table)) == [(1, 30), (2, 22)]


def test_a_deleted_key_stays_deleted_through_freezes() -> None:
    files = FilesInMemory()
    table = KeyedTable(COUNTS, ALL, 128)
    table.put_many(ads(1, 2), counts(10, 20))
    saved(table, files)
    table.delete_many(ads(1, 5))
    handles = saved(table, files)
    for each in (table, KeyedTable.open(COUNTS, ALL, 128, handles, files)):
        assert contents(each) == [(2, 20)]
        assert each.get_many(ads(1, 5))[0].tolist() == [False, False]
        each.put_many(ads(1), counts(11))
        assert sorted(contents(each)) == [(1, 11), (2, 20)]


def test_a_key_deleted_before_any_freeze_leaves_no_trace() -> None:
    table = KeyedTable(COUNTS, ALL, 128)
    table.put_many(ads(1), counts(10))
    table.delete_many(ads(1, 2))
    assert table.freeze(1).runs == ()


def test_nothing_changed_means_no_new_run() -> None:
    files = FilesInMemory()
    table = KeyedTable(COUNTS, ALL, 128)
    table.put_many(ads(1), counts(10))
    first = saved(table, files)
    table.get_many(ads(1, 2))
    assert saved(table, files, 2) == first
    assert len(files.contents) == 1


def test_a_freeze_holds_only_what_changed() -> None:
    table = KeyedTable(COUNTS, ALL, 128)
    table.put_many(ads(*range(1_000)), counts(*range(1_000)))
    table.freeze(1)
    table.put_many(ads(7, 8), counts(0, 0))
    assert [run.rows for run in table.freeze(2).runs] == [2, 1_000]


def test_a_frozen_state_does_not_see_later_changes() -> None:
    files = FilesInMemory()
    table = KeyedTable(COUNTS, ALL, 128)
    table.put_many(ads(1), counts(10))
    frozen = table.freeze(1)
    table.put_many(ads(1, 2), counts(11, 20))
    table.delete_many(ads(1))
    handles = store(frozen, files, files.name)
    assert contents(KeyedTable.open(COUNTS, ALL, 128, handles, files)) == [(1, 10)]


def test_a_scan_sees_the_table_as_of_its_call() -> None:
    table = KeyedTable(COUNTS, ALL, 128)
    table.put_many(ads(1), counts(10))
    scan = table.scan()
    table.put_many(ads(1, 2), counts(11, 20))
    assert [batch.to_pydict() for batch in scan] == [{"ad": [1], "n": [10]}]


def test_a_failed_store_is_part_of_the_next_one() -> None:
    files = FilesInMemory()
    table = KeyedTable(COUNTS, ALL, 128)
    table.put_many(ads(1), counts(10))
    files.fail_after = 0
    with pytest.raises(StorageError):
        saved(table, files)
    files.fail_after = None
    table.put_many(ads(2), counts(20))
    handles = saved(table, files, 2)
    assert len(handles) == 2
    assert sorted(contents(KeyedTable.open(COUNTS, ALL, 128, handles, files))) == [(1, 10), (2, 20)]


def test_stored_may_come_late_and_out_of_order() -> None:
    files = FilesInMemory()
    table = KeyedTable(COUNTS, ALL, 128)
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


def test_runs_stay_few() -> None:
    files = FilesInMemory()
    table = KeyedTable(COUNTS, ALL, 128)
    for epoch in range(100):
        table.put_many(ads(*range(epoch, epoch + 10)), counts(*[epoch] * 10))
        table.delete_many(ads(epoch - 5))
        handles = saved(table, files, epoch)
        assert len(handles) <= history.RUNS_MAX
    assert sorted(contents(KeyedTable.open(COUNTS, ALL, 128, handles, files))) == sorted(contents(table))
    assert len(contents(table)) == 14


def test_a_merge_of_newer_runs_does_not_forget_that_a_key_was_deleted() -> None:
    files = FilesInMemory()
    table = KeyedTable(COUNTS, ALL, 128)
    table.put_many(ads(*range(1_000)), counts(*range(1_000)))
    saved(table, files)
    for epoch in range(history.RUNS_MAX):
        table.delete_many(ads(epoch))
        handles = saved(table, files, epoch)
    assert [handle.rows for handle in handles] == [history.RUNS_MAX, 1_000]
    again = KeyedTable.open(COUNTS, ALL, 128, handles, files)
    assert not again.get_many(ads(*range(history.RUNS_MAX)))[0].any()
    assert len(contents(again)) == 1_000 - history.RUNS_MAX


def test_slots_of_deleted_keys_are_used_again() -> None:
    table = KeyedTable(COUNTS, ALL, 128)
    for epoch in range(50):
        batch = ads(*range(epoch * 10, epoch * 10 + 10))
        table.put_many(batch, counts(*range(10)))
        table.freeze(epoch)
        table.delete_many(batch)
        table.freeze(epoch)
    assert table._used <= 20
    assert table._index == {}


def test_the_same_batch_of_keys_may_be_used_across_a_freeze() -> None:
    table = KeyedTable(COUNTS, ALL, 128)
    batch = ads(1, 2)
    table.put_many(batch, counts(10, 20))
    table.delete_many(batch)
    table.freeze(1)
    assert table.get_many(batch)[0].tolist() == [False, False]
    table.put_many(batch, counts(11, 21))
    table.freeze(2)
    table.put_many(ads(3), counts(30))
    assert sorted(contents(table)) == [(1, 11), (2, 21), (3, 30)]


def test_beyond_slots_max_the_overlay_is_emptied_and_nothing_is_lost() -> None:
    table = KeyedTable(COUNTS, ALL, 128, slots_max=10)
    table.put_many(ads(*range(11)), counts(*range(11)))
    table.freeze(1)
    assert table._index == {}
    found, values = table.get_many(ads(5, 5, 3, 99))
    assert found.tolist() == [True, True, True, False]
    assert values.to_pydict() == {"n": [5, 5, 3, None]}
    assert len(table._index) == 2


def test_a_table_without_values_is_a_set() -> None:
    files = FilesInMemory()
    spec = StateSpec("seen", pa.schema([("id", pa.string())]), pa.schema([]))
    nothing = pa.RecordBatch.from_arrays([], schema=pa.schema([]))
    ids = pa.record_batch({"id": ["a", "b"]})
    table = KeyedTable(spec, ALL, 128)
    table.put_many(ids, nothing)
    again = KeyedTable.open(spec, ALL, 128, saved(table, files), files)
    for each in (table, again):
        found, values = each.get_many(pa.record_batch({"id": ["b", "c"]}))
        assert found.tolist() == [True, False]
        assert values.num_rows == 2
    assert sorted(contents(again)) == [("a",), ("b",)]


def test_a_key_of_another_task_is_refused() -> None:
    with pytest.raises(AssertionError, match="another task"):
        KeyedTable(COUNTS, range(0), 128).put_many(ads(1), counts(1))


def test_hashes_may_be_given() -> None:
    table = KeyedTable(COUNTS, ALL, 128)
    table.put_many(ads(1, 2), counts(1, 2), hash_keys(ads(1, 2)))
    table.freeze(1)
    table._empty()
    assert table.get_many(ads(2, 1, 3), hash_keys(ads(2, 1, 3)))[1].to_pydict() == {"n": [2, 1, None]}


def test_windows_live_in_the_group_of_their_key() -> None:
    spec = StateSpec("w", pa.schema([("ad", pa.int64()), ("start", pa.int64())]), COUNTS.values, route_columns=1)
    table = KeyedTable(spec, ALL, 128)
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
def test_every_type_survives_memory_and_files(type: pa.DataType, values: list[Any]) -> None:
    files = FilesInMemory()
    is_key = not (pa.types.is_floating(type) or pa.types.is_nested(type) or pa.types.is_duration(type))
    key_type = type if is_key and type != pa.int8() else pa.int64()
    keys = pa.record_batch({"k": pa.array(values if key_type == type else range(len(values)), key_type)})
    rows = pa.record_batch({"v": pa.array(values, type)})
    # A slice, because arrays that do not start at 0 are where conversions go wrong.
    doubled = pa.record_batch({"v": pa.concat_arrays([rows.column(0)] * 2)}).slice(len(values))
    spec = StateSpec("x", pa.schema([("k", key_type)]), pa.schema([("v", type)]))
    table = KeyedTable(spec, ALL, 128)
    table.put_many(keys, doubled)
    handles = saved(table, files)
    reopened = KeyedTable.open(spec, ALL, 128, handles, files)
    for each in (table, reopened):
        found, got = each.get_many(keys)
        assert found.all()
        assert got.equals(rows)
    reopened.delete_many(keys.slice(1))
    assert len(contents(KeyedTable.open(spec, ALL, 128, saved(reopened, files), files))) == 1


def test_a_spec_says_what_is_wrong_with_it() -> None:
    with pytest.raises(PlanError, match="must be cast to int64"):
        StateSpec("x", pa.schema([("k", pa.int32())]), pa.schema([]))
    with pytest.raises(PlanError, match="float"):
        StateSpec("x", pa.schema([("k", pa.float32())]), pa.schema([]))
    with pytest.raises(PlanError, match="two columns are called 'k'"):
        StateSpec("x", pa.schema([("k", pa.int64())]), pa.schema([("k", pa.int64())]))


def test_a_damaged_file_is_noticed_when_the_table_is_opened() -> None:
    files = FilesInMemory()
    table = KeyedTable(COUNTS, ALL, 128)
    table.put_many(ads(1), counts(10))
    (handle,) = saved(table, files)
    data = bytearray(files.contents[handle.path].to_pybytes())
    data[-100] ^= 1
    files.contents[handle.path] = pa.py_buffer(bytes(data))
    forget_validated()
    with pytest.raises(CorruptError, match=handle.path):
        KeyedTable.open(COUNTS, ALL, 128, [handle], files)


# -- everything at once

MAX_PARALLELISM = 8
SPEC = StateSpec(
    "all",
    pa.schema([("k", pa.string()), ("w", pa.int64())]),
    pa.schema([("n", pa.int64()), ("s", pa.string())]),
    route_columns=1,
)
some_key = st.tuples(st.sampled_from(["a", "b", "c", "dd", "ee", "", None]), st.sampled_from([0, 1, None]))
some_value = st.tuples(st.none() | st.integers(0, 5), st.sampled_from(["x", "", None]))
Key, Value = tuple[Any, ...], tuple[Any, ...]


def key_batch(keys: list[Key]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([dict(zip(SPEC.keys.names, key)) for key in keys], SPEC.keys)


def value_batch(values: list[Value]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([dict(zip(SPEC.values.names, value)) for value in values], SPEC.values)


class Tables(RuleBasedStateMachine):
    """The tables of all tasks of one operator, against one dict."""

    hashes_max: int | None = None

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(history, "RUNS_MAX", 2)
        self.patch.setattr(table_module, "SCAN_ROWS", 2)
        if self.hashes_max is not None:
            real, few = hash_keys, np.uint64(self.hashes_max)
            self.patch.setattr(keygroups, "hash_keys", lambda keys, seeds=None: real(keys, seeds) % few)
        self.files = FilesInMemory()
        self.model: dict[Key, Value] = {}
        self.epoch = 0
        self.waiting: list[tuple[list[Frozen], dict[Key, Value]]] = []
        self.checkpoint: tuple[list[Handle], dict[Key, Value]] = ([], {})

    def teardown(self) -> None:
        self.patch.undo()

    @initialize(parallelism=st.integers(1, 4), slots_max=st.sampled_from([0, 3, 1_000]))
    def start(self, parallelism: int, slots_max: int) -> None:
        self.slots_max = slots_max
        self.restore(parallelism)

    def opened(self, handles: list[Handle], parallelism: int) -> list[KeyedTable]:
        ranges = [group_range(task, parallelism, MAX_PARALLELISM) for task in range(parallelism)]
        handles = [Handle.from_json(handle.to_json()) for handle in handles]
        return [
            KeyedTable.open(SPEC, groups, MAX_PARALLELISM, handles, self.files, slots_max=self.slots_max) for groups in ranges
        ]

    def routed(self, keys: list[Key]) -> list[tuple[KeyedTable, list[int]]]:
        if not keys:
            return []
        groups = groups_of(keygroups.hash_keys(key_batch(keys).select([0])), MAX_PARALLELISM).tolist()
        rows = [(table, [i for i, g in enumerate(groups) if g in table.groups]) for table in self.tables]
        return [(table, mine) for table, mine in rows if mine]

    @rule(rows=st.lists(st.tuples(some_key, some_value), max_size=8), read_first=st.booleans())
    def put(self, rows: list[tuple[Key, Value]], read_first: bool) -> None:
        for table, mine in self.routed([key for key, _ in rows]):
            keys = key_batch([rows[i][0] for i in mine])
            if read_first:
                table.get_many(keys)
            table.put_many(keys, value_batch([rows[i][1] for i in mine]))
        self.model |= dict(rows)

    @rule(keys=st.lists(some_key, max_size=8), read_first=st.booleans())
    def delete(self, keys: list[Key], read_first: bool) -> None:
        for table, mine in self.routed(keys):
            batch = key_batch([keys[i] for i in mine])
            if read_first:
                table.get_many(batch)
            table.delete_many(batch)
        for key in keys:
            self.model.pop(key, None)

    @rule(keys=st.lists(some_key, max_size=8))
    def get(self, keys: list[Key]) -> None:
        for table, mine in self.routed(keys):
            found, values = table.get_many(key_batch([keys[i] for i in mine]))
            for i, there, value in zip(mine, found.tolist(), values.to_pylist()):
                assert there == (keys[i] in self.model)
                assert tuple(value.values()) == self.model.get(keys[i], (None, None))

    @rule()
    def freeze(self) -> None:
        self.epoch += 1
        self.waiting.append(([table.freeze(self.epoch) for table in self.tables], dict(self.model)))

    @precondition(lambda self: self.waiting)
    @rule(pick=st.integers(0, 5), tell=st.booleans())
    def store(self, pick: int, tell: bool) -> None:
        """Store some frozen state, perhaps not the latest; the task may or may not hear of it."""
        frozen, model = self.waiting.pop(pick % len(self.waiting))
        handles = []
        for table, each in zip(self.tables, frozen):
            mine = store(each, self.files, self.files.name)
            if tell:
                table.stored(each, mine)
            handles += mine
        self.checkpoint = (handles, model)
        self.compare(self.opened(handles, 1), model)

    @rule()
    def checkpoint_now(self) -> None:
        self.freeze()
        frozen, model = self.waiting.pop()
        handles = [store(each, self.files, self.files.name) for each in frozen]
        for table, each, mine in zip(self.tables, frozen, handles):
            table.stored(each, mine)
        self.checkpoint = ([handle for mine in handles for handle in mine], model)

    @rule(number=st.integers(0, 9))
    def load(self, number: int) -> None:
        """Enough rows at once that later runs are small beside this one."""
        self.put([((key, w), (number, None)) for key in ("a", "b", "c", "dd", "ee", "f", "g", "") for w in range(3)], False)

    @precondition(lambda self: self.waiting)
    @rule(after=st.integers(0, 2))
    def fail_to_store(self, after: int) -> None:
        frozen, _ = self.waiting.pop()
        self.files.fail_after = after
        for each in frozen:
            try:
                store(each, self.files, self.files.name)
            except StorageError:
                break
        self.files.fail_after = None

    @rule(parallelism=st.integers(1, 4))
    def restore(self, parallelism: int) -> None:
        """A crash, and a new start with perhaps another number of tasks."""
        handles, model = self.checkpoint
        self.tables = self.opened(handles, parallelism)
        self.model = dict(model)
        self.waiting = []

    def compare(self, tables: list[KeyedTable], model: dict[Key, Value]) -> None:
        rows = [row for table in tables for row in contents(table)]
        assert len(rows) == len(model)
        assert {row[:2]: row[2:] for row in rows} == model
        assert sum(table.rows_estimate for table in tables) >= len(model)

    @invariant()
    def the_tables_hold_what_the_dict_holds(self) -> None:
        if hasattr(self, "tables"):
            self.compare(self.tables, self.model)


class CollidingTables(Tables):
    """The same with three hashes for all keys."""

    hashes_max = 3


often = settings(max_examples=80, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
TestTables = Tables.TestCase
TestTables.settings = often
TestCollidingTables = CollidingTables.TestCase
TestCollidingTables.settings = often
