"""Triggers as written, and the machine against an evaluator of one trigger at a time, which knows no arrays."""

from __future__ import annotations

import copy
import json
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import PlanError
from penstock.operators.triggering import BIG, Machine, compile_trigger
from penstock.triggers import (
    EACH_ROW,
    AfterAll,
    AfterAny,
    AfterCount,
    AfterEach,
    AfterTime,
    AfterWatermark,
    Repeatedly,
    Trigger,
    after_all,
    after_any,
    after_count,
    after_each,
    after_time,
    after_watermark,
    repeatedly,
    trigger_of,
)

ROWS_MAX, WAIT_MAX = 40, 40
"""Beyond these the evaluator is not asked: larger than all counts and delays in the trees below, added up."""


# -- the evaluator


class One:
    """One trigger of one window: what the words of `triggers.py` say, as a small object."""

    def __init__(self, trigger: Trigger) -> None:
        self.trigger = trigger
        self.reset()

    def reset(self) -> None:
        self.done = self.on_time = False
        self.count = self.turn = 0
        self.due: int | None = None
        if isinstance(self.trigger, AfterWatermark):
            self.early = One(Repeatedly(self.trigger.early)) if self.trigger.early else None
            self.late = One(Repeatedly(self.trigger.late or EACH_ROW))
        else:
            self.parts = [One(part) for part in self.trigger.parts]

    def active(self, passed: bool) -> list[One]:
        """The parts that rows go to."""
        if isinstance(self.trigger, AfterWatermark):
            if not passed:
                return [self.early] if self.early else []
            return [self.late] if self.on_time else []
        if isinstance(self.trigger, AfterEach):
            return self.parts[self.turn : self.turn + 1]
        return self.parts

    def add(self, rows: int, now: int, passed: bool) -> None:
        if rows == 0 or self.done:
            return
        self.count += rows
        if isinstance(self.trigger, AfterTime) and self.due is None:
            self.due = now + self.trigger.delay
        for part in self.active(passed):
            part.add(rows, now, passed)

    def ready(self, now: int, passed: bool) -> bool:
        if self.done:
            return False
        match self.trigger:
            case AfterCount(rows):
                return self.count >= rows
            case AfterTime():
                return self.due is not None and self.due <= now
            case AfterAll():
                return all(part.done or part.ready(now, passed) for part in self.parts)
            case AfterWatermark() if passed and not self.on_time:
                return True
        return any(part.ready(now, passed) for part in self.active(passed))

    def fire(self, now: int, passed: bool) -> None:
        assert self.ready(now, passed)
        if isinstance(self.trigger, AfterWatermark) and passed and not self.on_time:
            self.on_time = True
            return
        for part in [part for part in self.active(passed) if part.ready(now, passed)]:
            part.fire(now, passed)
        match self.trigger:
            case AfterCount() | AfterTime():
                self.done = True
            case AfterAny():
                self.done = any(part.done for part in self.parts)
            case AfterAll():
                self.done = all(part.done for part in self.parts)
            case AfterEach():
                self.turn += self.parts[self.turn].done
                self.done = self.turn == len(self.parts)
            case Repeatedly() if self.parts[0].done:
                self.parts[0].reset()

    # what the machine says without trying, found by trying

    def needs(self, now: int, passed: bool) -> int:
        trial = copy.deepcopy(self)
        for rows in range(ROWS_MAX):
            if trial.ready(now, passed):
                return rows
            trial.add(1, now, passed)
        return BIG

    def wakes(self, now: int, passed: bool) -> int | None:
        return next((wait for wait in range(WAIT_MAX) if self.ready(now + wait, passed)), None)


def merged(ones: list[One], passed: bool) -> One:
    """One window made of several."""
    out = One(ones[0].trigger)
    alive = [one for one in ones if not one.done]
    if not alive:
        return copy.deepcopy(ones[0])
    match out.trigger:
        case AfterCount():
            out.count = sum(one.count for one in alive)
        case AfterTime():
            out.due = min((one.due for one in alive if one.due is not None), default=None)
        case AfterEach():
            out.turn = min(one.turn for one in alive)
            out.parts[out.turn] = merged([one.parts[out.turn] for one in alive if one.turn == out.turn], passed)
        case AfterWatermark():
            before, after = [one for one in alive if not one.on_time], [one for one in alive if one.on_time]
            if passed and after:
                out.on_time, out.late = True, merged([one.late for one in after], passed)
            elif before and out.early:
                out.early = merged([one.early for one in before if one.early], passed)
        case _:
            out.parts = [merged([one.parts[i] for one in alive], passed) for i in range(len(out.parts))]
    return out


# -- trees of triggers

leaves = st.one_of(st.integers(1, 4).map(after_count), st.integers(1, 6).map(AfterTime))


def several(parts: st.SearchStrategy[Trigger]) -> st.SearchStrategy[Trigger]:
    lists = st.lists(parts, min_size=1, max_size=3)
    turns = st.tuples(st.lists(parts.filter(lambda part: not part.endless), max_size=2), parts)
    return st.one_of(
        parts.map(repeatedly),
        lists.map(lambda parts: after_any(*parts)),
        lists.map(lambda parts: after_all(*parts)),
        turns.map(lambda parts: after_each(*parts[0], parts[1])),
    )


plain = st.recursive(leaves, several, max_leaves=4)
watermarks = st.builds(AfterWatermark, st.none() | plain, st.none() | plain)
trees = st.one_of(plain, watermarks, st.recursive(st.one_of(leaves, watermarks), several, max_leaves=3))


class Pairs:
    """The machine and one evaluator per column, in step."""

    def __init__(self, trigger: Trigger, columns: int) -> None:
        self.machine: Machine = compile_trigger(trigger)
        self.state = self.machine.fresh(columns)
        self.ones = [One(trigger) for _ in range(columns)]
        self.passed = np.zeros(columns, np.bool_)
        self.now = -3

    def check(self) -> None:
        assert self.state.shape == (self.machine.width, len(self.ones))
        assert self.state.dtype == np.int64
        flags = self.passed.tolist()
        needs = self.machine.needs(self.state, self.now, self.passed)
        assert needs.tolist() == [one.needs(self.now, flag) for one, flag in zip(self.ones, flags)]
        due = self.machine.due(self.state, self.passed)
        waits = [None if time == BIG else max(time - self.now, 0) for time in due.tolist()]
        assert waits == [one.wakes(self.now, flag) for one, flag in zip(self.ones, flags)]
        assert ((needs == 0) == (due <= self.now)).all()
        assert self.machine.finished(self.state).tolist() == [one.done for one in self.ones]

    def add(self, rows: list[int]) -> None:
        self.machine.add(self.state, np.array(rows, np.int64), self.now, self.passed)
        for one, count, flag in zip(self.ones, rows, self.passed.tolist()):
            one.add(count, self.now, flag)

    def fire(self, wanted: list[bool]) -> None:
        mask = (self.machine.needs(self.state, self.now, self.passed) == 0) & np.array(wanted, np.bool_)
        self.machine.fired(self.state, self.now, self.passed, mask)
        for one, fires, flag in zip(self.ones, mask.tolist(), self.passed.tolist()):
            if fires:
                one.fire(self.now, flag)

    def merge(self, groups: list[int], passed: list[bool]) -> None:
        n = max(groups) + 1
        self.passed = np.array(passed[:n], np.bool_)
        self.state = self.machine.merge(self.state, np.array(groups, np.int64), n, self.passed)
        self.ones = [
            merged([one for one, group in zip(self.ones, groups) if group == g], passed[g])
            if g in groups
            else One(self.ones[0].trigger)
            for g in range(n)
        ]


def lived(data: st.DataObject, pairs: Pairs, steps: int) -> None:
    """Let something happen to the columns, a few times."""
    columns = len(pairs.ones)
    for _ in range(data.draw(st.integers(0, steps))):
        flags = st.lists(st.booleans(), min_size=columns, max_size=columns)
        match data.draw(st.sampled_from(["rows", "rows", "time", "watermark", "fire"])):
            case "rows":
                pairs.add(data.draw(st.lists(st.integers(0, 3), min_size=columns, max_size=columns)))
            case "time":
                pairs.now += data.draw(st.integers(1, 4))
            case "watermark":
                pairs.passed |= np.array(data.draw(flags), np.bool_)
            case "fire":
                pairs.fire(data.draw(flags))
        pairs.check()
        if data.draw(st.booleans()):
            pairs.fire([True] * columns)
            pairs.check()


@given(st.data(), trees, st.integers(1, 3))
@settings(max_examples=300, deadline=None)
def test_the_machine_fires_as_one_trigger_at_a_time_would(data: st.DataObject, trigger: Trigger, columns: int) -> None:
    pairs = Pairs(trigger, columns)
    pairs.check()
    lived(data, pairs, 12)


@given(st.data(), trees, st.integers(1, 4))
@settings(max_examples=200, deadline=None)
def test_merged_windows_go_on_as_merged_triggers_would(data: st.DataObject, trigger: Trigger, columns: int) -> None:
    pairs = Pairs(trigger, columns)
    lived(data, pairs, 6)
    groups = data.draw(st.lists(st.integers(0, 2), min_size=columns, max_size=columns))
    pairs.merge(groups, data.draw(st.lists(st.booleans(), min_size=3, max_size=3)))
    pairs.check()
    lived(data, pairs, 6)


@given(st.data(), trees)
@settings(max_examples=200, deadline=None)
def test_a_window_merged_with_nothing_stays_as_it_is(data: st.DataObject, trigger: Trigger) -> None:
    pairs = Pairs(trigger, 2)
    lived(data, pairs, 8)
    pairs.state = pairs.machine.merge(pairs.state, np.array([1, 0]), 2, pairs.passed[::-1].copy())
    pairs.passed, pairs.ones = pairs.passed[::-1].copy(), pairs.ones[::-1]
    pairs.check()


@given(st.data(), trees, st.integers(0, 3))
@settings(max_examples=300, deadline=None)
def test_jumping_over_a_period_is_firing_each_time(data: st.DataObject, trigger: Trigger, jumps: int) -> None:
    pairs = Pairs(trigger, 2)
    lived(data, pairs, 8)
    needs = pairs.machine.needs(pairs.state, pairs.now, pairs.passed).tolist()
    period = pairs.machine.period(pairs.state, pairs.now, pairs.passed).tolist()
    total = [n + jumps * p if p and n < BIG else 0 for n, p in zip(needs, period)]
    known = np.array([bool(p) and n < BIG for n, p in zip(needs, period)], np.bool_)
    pairs.machine.add(pairs.state, np.array(total, np.int64), pairs.now, pairs.passed)
    pairs.machine.fired(pairs.state, pairs.now, pairs.passed, known)
    for one, flag, n, p, jumping in zip(pairs.ones, pairs.passed.tolist(), needs, period, known.tolist()):
        for rows in [n] + [p] * jumps if jumping else []:
            assert one.needs(pairs.now, flag) == rows
            one.add(rows, pairs.now, flag)
            one.fire(pairs.now, flag)
    pairs.check()


@pytest.mark.parametrize(
    ("trigger", "period"),
    [
        (100, 100),
        (after_watermark(early=100), 100),
        (repeatedly(after_any(after_count(100), after_time("5s"))), 100),
        (after_any(100, "5s"), 100),
        (after_watermark(early=after_any(after_count(7), after_time("5s"))), 7),
        (repeatedly(after_all(after_count(3), after_count(5))), 5),
        (after_each(100), 100),
        (after_count(100), 0),
        (after_watermark(), 0),
        ("5s", 0),
        (after_any(100, 70), 0),
        (repeatedly(after_all(1, after_count(2))), 0),
        (repeatedly(after_each(after_count(1), after_count(2))), 0),
    ],
)
def test_common_triggers_have_a_period(trigger: Any, period: int) -> None:
    machine = compile_trigger(trigger_of(trigger))
    assert machine.period(machine.fresh(1), 0, np.array([False])).tolist() == [period]


# -- stories


def told(trigger: Any, *story: Any) -> list[str]:
    """What a single window does: a number is rows that come one by one, "5s" time that passes, "watermark" the watermark."""
    machine, passed, now = compile_trigger(trigger_of(trigger)), np.array([False]), 0
    state, waiting, sent = machine.fresh(1), 0, []

    def look() -> None:
        nonlocal waiting
        if machine.needs(state, now, passed)[0] == 0:
            sent.append(f"{waiting}@{now // 1_000_000}")
            machine.fired(state, now, passed, np.array([True]))
            waiting = 0

    for step in story:
        if step == "watermark":
            passed[:] = True
            look()
        elif isinstance(step, str):
            now += after_time(step).delay
            look()
        else:
            for _ in range(step):
                machine.add(state, np.array([1]), now, passed)
                waiting += 1
                look()
    return sent


def test_the_default_fires_at_the_watermark_and_then_on_each_late_row() -> None:
    assert told(after_watermark(), 5, "9s", "watermark", "1s", 2) == ["5@9", "1@10", "1@10"]
    assert told(after_watermark(), "watermark") == ["0@0"]


def test_early_and_late_firings_repeat() -> None:
    assert told(after_watermark(early="5s", late=2), 3, "4s", "1s", "9s", 1, "5s", "watermark", 5) == [
        *("3@5", "1@19"),  # early
        "0@19",
        *("2@19", "2@19"),  # late
    ]
    assert told(after_watermark(early=after_count(2)), 5) == ["2@0", "2@0"]
    assert told(after_watermark(early=after_each(after_count(1), after_count(3))), 8) == ["1@0", "3@0", "1@0", "3@0"]


def test_an_early_delay_that_is_running_ends_with_the_on_time_firing() -> None:
    machine = compile_trigger(after_watermark(early="5s"))
    state, passed = machine.fresh(1), np.array([False])
    machine.add(state, np.array([1]), 0, passed)
    assert machine.due(state, passed).tolist() == [5_000_000]
    passed[:] = True
    machine.fired(state, 1, passed, np.array([True]))
    assert machine.due(state, passed).tolist() == [BIG]


def test_a_time_runs_from_the_first_row_and_not_without_one() -> None:
    assert told("5s", "20s", 1, "4s", 1, "1s", "20s", 1, "5s") == ["2@25", "1@50"]


def test_any_repeats_only_if_told_to_or_if_its_parts_do() -> None:
    assert told(after_any(after_count(2), after_time("5s")), 1, "5s", 9) == ["1@5"]
    assert told(repeatedly(after_any(after_count(2), after_time("5s"))), 1, "5s", 3, "5s") == ["1@5", "2@5", "1@10"]
    # The delay goes on when the count fires; it is up to the operator not to send that there is nothing new.
    assert told(after_any(2, "5s"), 1, "4s", 1, "1s", 1, "5s") == ["2@4", "0@5", "1@10"]


def test_all_waits_for_the_last_and_each_takes_turns() -> None:
    assert told(after_all(after_count(2), after_time("5s")), 9, "5s", 9, "9s") == ["9@5"]
    assert told(after_all(after_count(2), after_time("5s")), 1, "5s", 9, "9s") == ["2@5"]
    assert told(after_each(after_count(1), "60s"), 3, "60s", 2, "60s") == ["1@0", "2@60", "2@120"]


def test_a_finished_trigger_never_fires_again() -> None:
    machine = compile_trigger(after_count(2))
    state, passed = machine.fresh(1), np.array([True])
    machine.add(state, np.array([2]), 0, passed)
    machine.fired(state, 0, passed, np.array([True]))
    machine.add(state, np.array([1000]), 0, passed)
    assert machine.finished(state).tolist() == [True]
    assert machine.needs(state, 10**15, passed).tolist() == [BIG]


def test_a_period_is_not_known_where_something_else_is_about_to_fire() -> None:
    machine = compile_trigger(after_any(100, "5s"))
    state, passed = machine.fresh(1), np.array([False])
    machine.add(state, np.array([40]), 0, passed)
    assert machine.period(state, 4_999_999, passed).tolist() == [100]
    assert machine.period(state, 5_000_000, passed).tolist() == [0]


def filled(machine: Machine, *rows: int, passed: bool = False) -> Any:
    """The state of one window that got rows, and fired whenever it was ready."""
    state, flag = machine.fresh(1), np.array([passed])
    for count in rows:
        machine.add(state, np.array([count]), 0, flag)
        machine.fired(state, 0, flag, machine.needs(state, 0, flag) == 0)
    return state


def joined(machine: Machine, *states: Any, passed: bool) -> Any:
    groups = np.zeros(len(states), np.int64)
    return machine.merge(np.concatenate(states, axis=1), groups, 1, np.array([passed]))


def test_counts_of_merged_windows_add_up_and_the_earliest_delay_counts() -> None:
    machine = compile_trigger(repeatedly(after_any(after_count(10), after_time("5s"))))
    passed = np.array([False])
    early, late, empty = machine.fresh(1), machine.fresh(1), machine.fresh(1)
    machine.add(early, np.array([3]), 1_000_000, passed)
    machine.add(late, np.array([4]), 2_000_000, passed)
    state = joined(machine, late, early, empty, passed=False)
    assert machine.needs(state, 3_000_000, passed).tolist() == [3]
    assert machine.due(state, passed).tolist() == [6_000_000]


def test_a_merged_trigger_is_finished_only_if_all_were() -> None:
    for trigger in (after_count(2), after_any(after_count(2), after_count(3)), after_each(after_count(2))):
        machine = compile_trigger(trigger)
        assert machine.finished(joined(machine, filled(machine, 2), filled(machine, 2), passed=False)).tolist() == [True]
        assert machine.finished(joined(machine, filled(machine, 2), filled(machine, 1), passed=False)).tolist() == [False]


def test_a_merged_window_takes_the_turn_of_the_one_that_is_behind() -> None:
    machine, passed = compile_trigger(after_each(after_count(2), after_count(5))), np.array([False])
    state = joined(machine, filled(machine, 2, 3), filled(machine, 1), passed=False)
    assert machine.needs(state, 0, passed).tolist() == [1]
    machine.add(state, np.array([1]), 0, passed)
    machine.fired(state, 0, passed, ~passed)
    assert machine.needs(state, 0, passed).tolist() == [5]  # not 2: what the other had counted for it was sent, or will be


def test_a_merged_window_that_the_watermark_has_not_passed_fires_on_time_again() -> None:
    machine, passed = compile_trigger(after_watermark(early=4, late=3)), np.array([True])
    sent = filled(machine, 0, 2, passed=True)
    state = joined(machine, sent, filled(machine, 1), passed=False)
    assert machine.needs(state, 0, ~passed).tolist() == [3]
    assert machine.needs(state, 0, passed).tolist() == [0]
    machine.fired(state, 0, passed, passed)
    assert machine.needs(state, 0, passed).tolist() == [3]  # the on-time firing sent the late rows from before


def test_a_merged_window_that_fired_on_time_before_does_not_do_so_twice() -> None:
    machine, passed = compile_trigger(after_watermark(late=3)), np.array([True])
    state = joined(machine, machine.fresh(1), filled(machine, 0, 2, passed=True), passed=True)
    assert machine.needs(state, 0, passed).tolist() == [1]


def test_firing_what_is_not_ready_is_a_mistake_of_ours() -> None:
    machine = compile_trigger(after_count(2))
    with pytest.raises(AssertionError, match="only what is ready fires"):
        machine.fired(machine.fresh(1), 0, np.array([True]), np.array([True]))


# -- as written, as stored, as refused


@pytest.mark.parametrize(
    ("trigger", "text"),
    [
        (after_watermark(), "after_watermark()"),
        (after_watermark(early="5s", late=1), 'after_watermark(early="5s", late=1)'),
        (after_watermark(late=after_count(3)), "after_watermark(late=after_count(3))"),
        (trigger_of(timedelta(minutes=1)), '"1m"'),
        (trigger_of(100), "100"),
        (repeatedly(after_any(after_count(100), after_time("5s"))), 'repeatedly(after_any(after_count(100), after_time("5s")))'),
        (after_each(after_count(1), after_all(3, "1h")), 'after_each(after_count(1), after_all(3, "1h"))'),
    ],
)
def test_triggers_say_what_the_user_wrote_and_evaluate_to_themselves(trigger: Trigger, text: str) -> None:
    assert trigger.text() == text
    assert trigger_of(eval(text)) == trigger
    assert hash(trigger_of(eval(text))) == hash(trigger)
    assert json.loads(json.dumps(trigger.params())) == trigger.params()


def test_the_parameters_of_different_triggers_differ_and_defaults_are_written_out() -> None:
    assert after_watermark().params() == after_watermark(late=1).params()
    different = [after_watermark(), after_watermark(early=1), after_any(1, 2), after_all(1, 2), after_count(1), trigger_of(1)]
    assert len({json.dumps(trigger.params()) for trigger in different}) == len(different)
    assert after_any(1, 2) != after_all(1, 2)


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda: after_count(0), "after_count(0) never fires"),
        (lambda: after_count(True), "after_count(True) never fires"),
        (lambda: trigger_of(-3), "after_count(-3) never fires"),
        (lambda: after_time("0s"), "after_time needs a positive delay, not 0us\n  To fire at each row, count."),
        (lambda: after_time(5), 'delay=5 has no unit\n  If seconds are meant, say so. Write: delay="5s"'),
        (lambda: trigger_of("soon"), "delay='soon' is not a duration"),
        (lambda: trigger_of(True), "True is not a trigger"),
        (lambda: trigger_of(2.5), "2.5 is not a trigger"),
        (lambda: trigger_of(None), "None is not a trigger"),
        (lambda: after_any(), "after_any() never fires: it has no parts"),
        (lambda: after_each(), "after_each() never fires: it has no parts"),
        (lambda: after_watermark(early=after_watermark()), "early=after_watermark() waits for the watermark itself"),
        (lambda: after_watermark(late=after_any(1, after_watermark())), "late=after_any(1, after_watermark()) waits"),
        (lambda: after_each("5s", 3), 'in after_each, "5s" never finishes, so what follows it never begins'),
        (lambda: after_each(3, "5s"), "Write it last, or once: after_count(3)"),
        (lambda: after_each(after_watermark(), "5s"), "after_watermark() never finishes"),
    ],
)
def test_triggers_that_mean_nothing_are_refused_with_the_fix(write: Any, message: str) -> None:
    with pytest.raises(PlanError) as caught:
        write()
    assert message in str(caught.value)
