"""`TimerTable` against a list: each timer fires once, in order, through freezes, failures, crashes and rescales."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from files_in_memory import FilesInMemory
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.errors import CorruptError, StorageError
from penstock.state import history
from penstock.state import timers as timers_module
from penstock.state.history import Frozen, store
from penstock.state.keygroups import group_range, groups_of, hash_keys
from penstock.state.runfile import Handle, forget_validated
from penstock.state.timers import NEVER, TimerTable

KEYS = pa.schema([("ad", pa.int64())])
ALL = range(128)


def ads(*values: int | None) -> pa.RecordBatch:
    return pa.record_batch({"ad": pa.array(values, pa.int64())})


def add(timers: TimerTable, *rows: tuple[int, int | None]) -> None:
    timers.add(np.array([due for due, _ in rows], np.int64), ads(*(ad for _, ad in rows)))


def fire(timers: TimerTable, time: int) -> list[tuple[Any, ...]]:
    rows = [tuple(row.values()) for batch in timers.due(time) for row in batch.to_pylist()]
    timers.advance(time)
    return rows


def saved(timers: TimerTable, files: FilesInMemory, epoch: int = 1) -> list[Handle]:
    frozen = timers.freeze(epoch)
    handles = store(frozen, files, files.name)
    timers.stored(frozen, handles)
    return handles


def reopened(timers: TimerTable, handles: list[Handle], files: FilesInMemory) -> TimerTable:
    return TimerTable.open(KEYS, ALL, 128, handles, files, floors=timers.floors_json())


# -- one thing at a time


def test_timers_fire_in_order_of_due_and_only_once() -> None:
    timers = TimerTable(KEYS, ALL, 128)
    add(timers, (30, 1), (10, 2))
    add(timers, (20, 3), (10, None), (40, 4))
    assert timers.next_due == 10
    fired = fire(timers, 30)
    assert [due for due, _ in fired] == [10, 10, 20, 30]
    assert sorted(fired[:2], key=str) == [(10, 2), (10, None)]
    assert fire(timers, 30) == []
    assert timers.next_due == 40
    assert fire(timers, 99) == [(40, 4)]
    assert timers.next_due is None


def test_a_timer_added_while_timers_fire_fires_too_if_it_is_due() -> None:
    timers = TimerTable(KEYS, ALL, 128)
    add(timers, (10, 1))
    fired = []
    for batch in timers.due(20):
        fired += batch.column("ad").to_pylist()
        if 2 not in fired:
            add(timers, (15, 2), (25, 3))
    timers.advance(20)
    assert fired == [1, 2]
    assert timers.next_due == 25


def test_many_timers_come_in_bounded_batches_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timers_module, "BATCH_ROWS", 100)
    timers = TimerTable(KEYS, ALL, 128)
    dice = np.random.default_rng(0)
    for _ in range(40):
        timers.add(dice.integers(0, 50, 60), ads(*dice.integers(0, 1_000, 60).tolist()))
    batches = list(timers.due(40))
    due = [value for batch in batches for value in batch.column("__due").to_pylist()]
    assert max(batch.num_rows for batch in batches) <= 100
    assert due == sorted(due)
    left = [value for batch in timers.due(60) for value in batch.column("__due").to_pylist()]
    assert min(left) == 41
    assert len(due) + len(left) == 2_400


def test_many_small_additions_become_few_chunks() -> None:
    timers = TimerTable(KEYS, ALL, 128)
    for number in range(1_000):
        add(timers, (number + 1, number))
    assert len(timers._heap) < 3 * 16
    assert fire(timers, 10_000) == [(number + 1, number) for number in range(1_000)]


def test_a_timer_at_or_below_the_floor_is_refused() -> None:
    timers = TimerTable(KEYS, ALL, 128)
    fire(timers, 10)
    with pytest.raises(AssertionError, match="floor"):
        add(timers, (10, 1))


def test_time_does_not_pass_timers_that_were_not_taken() -> None:
    timers = TimerTable(KEYS, ALL, 128)
    add(timers, (10, 1))
    with pytest.raises(AssertionError, match="not taken"):
        timers.advance(10)


def test_a_timer_belongs_to_the_group_of_its_first_columns() -> None:
    schema = pa.schema([("ad", pa.int64()), ("start", pa.int64())])
    timers = TimerTable(schema, ALL, 128, route_columns=1)
    rows = pa.record_batch({"ad": [7, 7], "start": [1, 2]})
    timers.add(np.array([5, 6]), rows)
    timers.add(np.array([7, 8]), rows, hash_keys(ads(7, 7)))
    (run,) = timers.freeze(1).runs
    assert set(run.groups.tolist()) == set(groups_of(hash_keys(ads(7)), 128).tolist())


def test_floors_are_compact_and_only_rise() -> None:
    timers = TimerTable(KEYS, range(4, 10), 128, floors=[[0, 5, 50], [6, 6, 20], [8, 200, 20]])
    assert timers.floor_of(np.array([4, 5, 6, 7, 8, 9])).tolist() == [50, 50, 20, NEVER, 20, 20]
    assert timers.floors_json() == [[4, 5, 50], [6, 6, 20], [8, 9, 20]]
    timers.advance(30)
    assert timers.floors_json() == [[4, 5, 50], [6, 9, 30]]
    timers.advance(10)
    assert timers.floors_json() == [[4, 5, 50], [6, 9, 30]]


@pytest.mark.parametrize("floor", [[1, 2], [2, 1, 5], [-1, 2, 5], [0, 1, 2**63], ["0", 1, 2], [0, 1, True], 7], ids=str)
def test_floors_that_were_not_written_by_us_are_refused(floor: Any) -> None:
    with pytest.raises(CorruptError, match="floor"):
        TimerTable(KEYS, ALL, 128, floors=[floor])


def test_what_has_fired_stays_fired_after_a_restore() -> None:
    files = FilesInMemory()
    timers = TimerTable(KEYS, ALL, 128)
    add(timers, *((due, due) for due in range(1, 20)))
    saved(timers, files)
    fire(timers, 5)
    handles = saved(timers, files, 2)
    for each in (reopened(timers, handles, files), timers):
        assert fire(each, 8) == [(6, 6), (7, 7), (8, 8)]


def test_a_file_is_not_opened_before_its_time() -> None:
    files = FilesInMemory()
    timers = TimerTable(KEYS, ALL, 128)
    add(timers, (10, 1), (20, 2))
    handles = saved(timers, files)
    files.opened.clear()
    again = reopened(timers, handles, files)
    assert again.next_due == 10
    assert fire(again, 9) == []
    assert saved(again, files, 2) == handles
    assert files.opened == []
    assert fire(again, 10) == [(10, 1)]
    assert len(files.opened) == 1


def test_runs_that_have_fired_are_dropped_unread() -> None:
    files = FilesInMemory()
    timers = TimerTable(KEYS, ALL, 128)
    add(timers, (10, 1))
    saved(timers, files)
    add(timers, (20, 2))
    assert len(saved(timers, files, 2)) == 2
    fire(timers, 15)
    assert [handle.min_due for handle in saved(timers, files, 3)] == [20]
    fire(timers, 20)
    assert saved(timers, files, 4) == []


def test_runs_stay_few_and_lose_what_has_fired() -> None:
    files = FilesInMemory()
    timers = TimerTable(KEYS, ALL, 128)
    for epoch in range(60):
        add(timers, *((epoch + ahead, epoch) for ahead in (1, 2, 3, 500)))
        fire(timers, epoch)
        handles = saved(timers, files, epoch)
        assert len(handles) <= history.RUNS_MAX
    assert sum(handle.rows for handle in handles) < 60 + 60
    # Every timer 500 ahead, and of the last three epochs (time is 59) those due at 60, 61 and 62.
    assert len(fire(reopened(timers, handles, files), 9_999)) == 60 + 3 + 2 + 1


def test_after_a_rescale_each_timer_is_judged_by_the_floor_of_its_own_group() -> None:
    files = FilesInMemory()
    one = TimerTable(KEYS, ALL, 128)
    add(one, *((due, ad) for ad in range(40) for due in (10, 20, 30)))
    handles = saved(one, files)
    halves = [group_range(task, 2, 128) for task in (0, 1)]
    keys = {ad: groups_of(hash_keys(ads(ad)), 128)[0] for ad in range(40)}
    mine = [{ad for ad, group in keys.items() if group in half} for half in halves]
    two = [TimerTable.open(KEYS, half, 128, handles, files, floors=[]) for half in halves]
    assert set(fire(two[0], 20)) == {(due, ad) for ad in mine[0] for due in (10, 20)}
    assert set(fire(two[1], 10)) == {(10, ad) for ad in mine[1]}
    frozen = [table.freeze(2) for table in two]
    handles = [handle for each in frozen for handle in store(each, files, files.name)]
    again = TimerTable.open(KEYS, ALL, 128, handles, files, floors=[floor for each in frozen for floor in each.floors])
    assert len(again.freeze(3).runs) == 2
    fired = fire(again, 25)
    assert set(fired) == {(20, ad) for ad in mine[1]}
    fired = fire(again, 30)
    assert Counter(fired) == Counter((30, ad) for ad in range(40))


def test_a_run_with_one_group_that_has_not_fired_is_kept() -> None:
    files = FilesInMemory()
    timers = TimerTable(KEYS, ALL, 128)
    add(timers, (10, 1), (10, 2))
    first, last = sorted(groups_of(hash_keys(ads(1, 2)), 128).tolist())
    again = TimerTable.open(KEYS, ALL, 128, saved(timers, files), files, floors=[[0, last - 1, 50]])
    assert first < last
    handles = saved(again, files, 2)
    assert len(handles) == 1
    assert len(fire(again, 10)) == 1


def test_a_late_store_keeps_what_fired_after_the_freeze() -> None:
    files = FilesInMemory()
    timers = TimerTable(KEYS, ALL, 128)
    for number in range(history.RUNS_MAX + 1):
        add(timers, (10, number))
        frozen = timers.freeze(number)
    fire(timers, 10)
    handles = store(frozen, files, files.name)
    assert len(handles) == 1
    again = TimerTable.open(KEYS, ALL, 128, handles, files, floors=frozen.floors)
    assert len(fire(again, 10)) == history.RUNS_MAX + 1


def test_a_damaged_file_is_noticed_when_it_is_opened() -> None:
    files = FilesInMemory()
    timers = TimerTable(KEYS, ALL, 128)
    add(timers, (10, 1), (20, 2))
    handles = saved(timers, files)
    data = files.contents[handles[0].path].to_pybytes()
    for at in range(0, len(data), 7):
        files.contents[handles[0].path] = pa.py_buffer(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        forget_validated()
        with pytest.raises(CorruptError, match=handles[0].path):
            fire(reopened(timers, handles, files), 10)


# -- everything at once

MAX_PARALLELISM = 8
Timer = tuple[int, int | None]
some_rows = st.lists(st.tuples(st.integers(1, 30), st.sampled_from([*range(12), None])), max_size=10)


class Timers(RuleBasedStateMachine):
    """The timers of all tasks of one operator, against one bag of timers and the floor of each group."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(history, "RUNS_MAX", 2)
        self.patch.setattr(timers_module, "BATCH_ROWS", 5)
        self.patch.setattr(timers_module, "_FAN_IN", 3)
        self.files = FilesInMemory()
        self.bag: Counter[Timer] = Counter()
        self.floors = [NEVER] * MAX_PARALLELISM
        self.waiting: list[tuple[list[Frozen], Counter[Timer], list[int]]] = []
        self.checkpoint: tuple[list[Handle], list[Any], Counter[Timer], list[int]] = ([], [], Counter(), self.floors)

    def teardown(self) -> None:
        self.patch.undo()

    @initialize(parallelism=st.integers(1, 4))
    def start(self, parallelism: int) -> None:
        self.restore(parallelism)

    def group_of(self, ad: int | None) -> int:
        return int(groups_of(hash_keys(ads(ad)), MAX_PARALLELISM)[0])

    @rule(rows=some_rows)
    def add(self, rows: list[Timer]) -> None:
        """Due some time after the floor of the timer's group."""
        for table in self.tables:
            mine = [(ahead, ad) for ahead, ad in rows if self.group_of(ad) in table.groups]
            timers = [(max(self.floors[self.group_of(ad)], 0) + ahead, ad) for ahead, ad in mine]
            add(table, *timers)
            self.bag.update(timers)

    @rule(task=st.integers(0, 3), step=st.integers(0, 25))
    def fire(self, task: int, step: int) -> None:
        """One task's time advances; the others' does not."""
        table = self.tables[task % len(self.tables)]
        time = max(0, min(self.floors[group] for group in table.groups)) + step
        fired = fire(table, time)
        wanted = [timer for timer in self.bag.elements() if timer[0] <= time and self.group_of(timer[1]) in table.groups]
        assert [due for due, _ in fired] == sorted(due for due, _ in wanted)
        assert Counter(fired) == Counter(wanted)
        self.bag -= Counter(wanted)
        for group in table.groups:
            self.floors[group] = max(self.floors[group], time)

    @rule()
    def freeze(self) -> None:
        self.waiting.append(([table.freeze(0) for table in self.tables], self.bag.copy(), list(self.floors)))

    @precondition(lambda self: self.waiting)
    @rule(pick=st.integers(0, 5), tell=st.booleans())
    def store(self, pick: int, tell: bool) -> None:
        frozen, bag, floors = self.waiting.pop(-1 - pick % len(self.waiting))
        handles, floors_list = [], []
        for table, each in zip(self.tables, frozen):
            mine = store(each, self.files, self.files.name)
            if tell:
                table.stored(each, mine)
            handles += mine
            floors_list += each.floors
        self.checkpoint = (handles, floors_list, bag, floors)

    @rule()
    def checkpoint_now(self) -> None:
        self.freeze()
        self.store(0, True)

    @precondition(lambda self: self.waiting)
    @rule()
    def fail_to_store(self) -> None:
        self.files.fail_after = 0
        for each in self.waiting.pop()[0]:
            try:
                store(each, self.files, self.files.name)
            except StorageError:
                break
        self.files.fail_after = None

    @rule(parallelism=st.integers(1, 4))
    def restore(self, parallelism: int) -> None:
        handles, floors_list, bag, floors = self.checkpoint
        handles = [Handle.from_json(handle.to_json()) for handle in handles]
        ranges = [group_range(task, parallelism, MAX_PARALLELISM) for task in range(parallelism)]
        self.tables = [
            TimerTable.open(KEYS, groups, MAX_PARALLELISM, handles, self.files, floors=floors_list) for groups in ranges
        ]
        self.bag, self.floors, self.waiting = bag.copy(), list(floors), []

    @rule(parallelism=st.integers(1, 4))
    def rescale(self, parallelism: int) -> None:
        self.checkpoint_now()
        self.restore(parallelism)

    @rule(rows=some_rows.filter(bool), parallelism=st.integers(1, 4), steps=st.lists(st.integers(0, 40), max_size=4))
    def add_rescale_and_fire(self, rows: list[Timer], parallelism: int, steps: list[int]) -> None:
        """Left to chance alone this sequence is rare, and it is the interesting one."""
        self.add(rows)
        self.rescale(parallelism)
        for task, step in enumerate(steps):
            self.fire(task, step)

    @invariant()
    def floors_and_next_due_are_right(self) -> None:
        if not hasattr(self, "tables"):
            return
        for table in self.tables:
            groups = np.array(table.groups, np.int32)
            assert table.floor_of(groups).tolist() == [self.floors[group] for group in table.groups]
            mine = [due for due, ad in self.bag if self.group_of(ad) in table.groups]
            if mine:
                assert table.next_due is not None
                assert table.next_due <= min(mine)


TestTimers = Timers.TestCase
TestTimers.settings = settings(
    max_examples=100, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
