"""Tables against a dict: whatever is done in whatever order, through freezes, failures, crashes, rescales and other backends."""

from __future__ import annotations

import dataclasses
import tempfile
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from files_in_memory import FilesInMemory, PassingTable, memory_folder
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.errors import StorageError
from penstock.state import history, keygroups
from penstock.state import overlay as overlay_module
from penstock.state import runs as runs_module
from penstock.state import table as table_module
from penstock.state.history import Frozen, store
from penstock.state.keygroups import group_range, groups_of, hash_keys
from penstock.state.rocksdb import RocksTable
from penstock.state.runfile import Handle
from penstock.state.runs import NEVER
from penstock.state.spec import StateSpec
from penstock.state.table import KeyedTable

MAX_PARALLELISM = 8
SPEC = StateSpec(
    "all",
    pa.schema([("k", pa.string()), ("w", pa.int64())]),
    pa.schema([("n", pa.int64()), ("s", pa.string())]),
    route_columns=1,
)
some_key = st.tuples(
    st.sampled_from(["a", "b", "c", "dd", "thirteen byte", "thirteen bytf", "", None]), st.sampled_from([0, 1, None])
)
some_value = st.tuples(st.none() | st.integers(0, 5), st.sampled_from(["x", "more than twelve bytes", "", None]))
some_kind = st.integers(0, 1)
Key, Value = tuple[Any, ...], tuple[Any, ...]


@dataclasses.dataclass(frozen=True)
class Model:
    """What tables should hold: rows, and the horizon that hides some of them."""

    rows: dict[Key, Value]
    horizon: int


def close(tables: list[KeyedTable]) -> None:
    for table in tables:
        table.close()


def contents(table: KeyedTable) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for batch in table.scan() for row in batch.to_pylist()]


def key_batch(keys: list[Key]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([dict(zip(SPEC.keys.names, key)) for key in keys], SPEC.keys)


def value_batch(values: list[Value]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([dict(zip(SPEC.values.names, value)) for value in values], SPEC.values)


class Tables(RuleBasedStateMachine):
    """The tables of all tasks of one operator, against one dict."""

    hashes_max: int | None = None
    spec = SPEC
    kinds: tuple[type[KeyedTable], ...] = (KeyedTable, PassingTable)

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(history, "RUNS_MAX", 2)
        self.patch.setattr(table_module, "SCAN_ROWS", 2)
        self.patch.setattr(runs_module, "MERGE_ROWS", 2)
        if self.hashes_max is not None:
            real, few = hash_keys, np.uint64(self.hashes_max)
            self.patch.setattr(keygroups, "hash_keys", lambda keys, seeds=None: real(keys, seeds) % few)
        self.place = tempfile.TemporaryDirectory(dir=memory_folder())
        self.patch.setattr(tempfile, "tempdir", self.place.name)
        self.files = FilesInMemory()
        self.rows: dict[Key, Value] = {}
        self.horizon = NEVER
        self.epoch = 0
        self.tables: list[KeyedTable] = []
        self.waiting: list[tuple[list[Frozen], Model]] = []
        self.checkpoint: tuple[list[Handle], Model] = ([], Model({}, NEVER))

    def teardown(self) -> None:
        close(self.tables)
        self.patch.undo()
        self.place.cleanup()

    @property
    def model(self) -> Model:
        return Model(dict(self.rows), self.horizon)

    @initialize(
        parallelism=st.integers(1, 4),
        kind=some_kind,
        slots_max=st.sampled_from([0, 3, 1_000]),
        few=st.sampled_from([0, 3, 1_000]),
        whole=st.sampled_from([0.0, 1.5, 100.0]),
        limits=st.tuples(st.sampled_from([0, 8]), st.sampled_from([0, 1 << 20]), st.sampled_from([3, 1 << 20])),
    )
    def start(self, parallelism: int, kind: int, slots_max: int, few: int, whole: float, limits: tuple[int, int, int]) -> None:
        self.slots_max = slots_max
        self.patch.setattr(overlay_module, "FEW", few)
        self.patch.setattr(table_module, "WHOLE_MAX", whole)
        self.patch.setattr(table_module, "PAUSE_MAX", limits[0])
        self.patch.setattr(runs_module, "UNSORTED_BYTES_MAX", limits[1])
        self.patch.setattr(overlay_module, "TEXT_BYTES_MAX", limits[2])
        self.restore(parallelism, kind)

    def opened(self, handles: list[Handle], parallelism: int, horizon: int, kind: int) -> list[KeyedTable]:
        ranges = [group_range(task, parallelism, MAX_PARALLELISM) for task in range(parallelism)]
        handles = [Handle.from_json(handle.to_json()) for handle in handles]
        table = self.kinds[kind % len(self.kinds)]
        tables = [
            table.open(self.spec, groups, MAX_PARALLELISM, handles, self.files, slots_max=self.slots_max) for groups in ranges
        ]
        self.raise_horizon(tables, horizon)
        return tables

    def raise_horizon(self, tables: list[KeyedTable], horizon: int) -> None:
        for table in tables if self.spec.expires is not None else ():
            table.horizon = horizon

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
        self.rows |= dict(rows)

    @rule(keys=st.lists(some_key, max_size=8), read_first=st.booleans())
    def delete(self, keys: list[Key], read_first: bool) -> None:
        for table, mine in self.routed(keys):
            batch = key_batch([keys[i] for i in mine])
            if read_first:
                table.get_many(batch)
            table.delete_many(batch)
        for key in keys:
            self.rows.pop(key, None)

    @rule(keys=st.lists(some_key, max_size=8))
    def get(self, keys: list[Key]) -> None:
        model = self.seen(self.model)
        for table, mine in self.routed(keys):
            found, values = table.get_many(key_batch([keys[i] for i in mine]))
            for i, there, value in zip(mine, found.tolist(), values.to_pylist()):
                assert there == (keys[i] in model)
                assert tuple(value.values()) == model.get(keys[i], (None, None))

    def seen(self, model: Model) -> dict[Key, Value]:
        """What is there for a reader."""
        if self.spec.expires is None:
            return model.rows
        return {key: value for key, value in model.rows.items() if value[0] is None or value[0] > model.horizon}

    @rule()
    def freeze(self) -> None:
        self.epoch += 1
        self.waiting.append(([table.freeze(self.epoch) for table in self.tables], self.model))

    @precondition(lambda self: self.waiting)
    @rule(pick=st.integers(0, 5), tell=st.booleans(), kind=some_kind)
    def store(self, pick: int, tell: bool, kind: int) -> None:
        """Store some frozen state, perhaps not the latest; the task may or may not hear of it."""
        frozen, model = self.waiting.pop(pick % len(self.waiting))
        handles = []
        for table, each in zip(self.tables, frozen):
            mine = store(each, self.files, self.files.name)
            if tell:
                table.stored(each, mine)
            handles += mine
        self.checkpoint = (handles, model)
        again = self.opened(handles, 1, model.horizon, kind)
        self.compare(again, model)
        close(again)

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

    @rule(parallelism=st.integers(1, 4), kind=some_kind)
    def restore(self, parallelism: int, kind: int) -> None:
        """A crash, and a new start with perhaps another number of tasks, or of another kind."""
        close(self.tables)
        handles, model = self.checkpoint
        self.tables = self.opened(handles, parallelism, model.horizon, kind)
        self.rows, self.horizon = dict(model.rows), model.horizon
        self.waiting = []

    @rule(parallelism=st.integers(1, 4), kind=some_kind)
    def rescale(self, parallelism: int, kind: int) -> None:
        self.checkpoint_now()
        self.restore(parallelism, kind)

    def compare(self, tables: list[KeyedTable], model: Model) -> None:
        rows, seen = [row for table in tables for row in contents(table)], self.seen(model)
        assert len(rows) == len(seen)
        assert {row[:2]: row[2:] for row in rows} == seen
        assert sum(table.rows_estimate for table in tables) >= len(seen)

    @invariant()
    def the_tables_hold_what_the_dict_holds(self) -> None:
        self.compare(self.tables, self.model)


class CollidingTables(Tables):
    """The same with three hashes for all keys."""

    hashes_max = 3


class ExpiringTables(Tables):
    """The same with rows that expire, at a time that only moves on."""

    spec = dataclasses.replace(SPEC, expires="n")

    @rule(by=st.integers(1, 2))
    def expire(self, by: int) -> None:
        self.horizon = max(self.horizon, -1) + by
        self.raise_horizon(self.tables, self.horizon)


class MixedTables(ExpiringTables):
    """The same, and each restore may be into the other kind of table."""

    kinds = (KeyedTable, RocksTable)


class CollidingMixedTables(MixedTables):
    """All of it."""

    hashes_max = 3


often = settings(max_examples=80, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
# Each opens databases, some milliseconds at a time.
seldom = settings(often, max_examples=40)
TestTables = Tables.TestCase
TestTables.settings = often
TestCollidingTables = CollidingTables.TestCase
TestCollidingTables.settings = often
TestExpiringTables = ExpiringTables.TestCase
TestExpiringTables.settings = often
TestMixedTables = MixedTables.TestCase
TestMixedTables.settings = seldom
TestCollidingMixedTables = CollidingMixedTables.TestCase
TestCollidingMixedTables.settings = seldom
