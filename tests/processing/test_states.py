"""Each kind of state, by itself: what it gives, what it refuses, what it undoes, and when it forgets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest

import penstock as pen
from penstock import col
from penstock.errors import PlanError, RowError
from penstock.processing.states import Keys
from processing.states import Bench

pytestmark = pytest.mark.usefixtures("backend")

DISK = pytest.mark.parametrize("disk", [False, True], ids=["memory", "disk"])


@dataclass
class Visit:
    pages: list[str]
    counts: dict[str, int]


class Pair(NamedTuple):
    a: int
    b: float | None


@DISK
def test_a_value_is_of_its_key(disk: bool) -> None:
    bench = Bench(pen.ValueState(int))
    bench.at(0).set(1)
    bench.at(1).set(2)
    bench.batch(disk)
    assert [bench.at(n).get() for n in range(3)] == [1, 2, None]
    bench.at(0).clear()
    assert not bench.at(0).exists
    bench.batch(disk)
    assert [bench.at(n).exists for n in range(3)] == [False, True, False]


@DISK
def test_a_value_is_copied_when_set_and_made_anew_by_get(disk: bool) -> None:
    bench = Bench(pen.ValueState(Visit))
    visit = Visit(["/"], {"/": 1})
    bench.at(0).set(visit)
    visit.pages.append("/lost")
    bench.batch(disk)
    bench.at(0).get().counts["/"] = 99
    assert bench.at(0).get() == Visit(["/"], {"/": 1})
    assert bench.at(0).get() is not bench.at(0).get()


def test_a_default_stands_where_nothing_is() -> None:
    bench = Bench(pen.ValueState(Visit, default=Visit([], {})))
    bench.at(0).get().pages.append("/lost")
    assert bench.at(0).get() == Visit([], {})
    assert not bench.at(0).exists
    assert Bench(pen.ValueState(float, default=1)).at(0).get() == 1.0
    with pytest.raises(RowError, match="value: expected bigint, and found str 'x'"):
        pen.ValueState(int, default="x")  # type: ignore[arg-type]


@DISK
def test_none_is_a_value_where_it_is_declared(disk: bool) -> None:
    bench = Bench(pen.ValueState(int | None, default=5))
    bench.at(0).set(None)
    bench.batch(disk)
    assert (bench.at(0).exists, bench.at(0).get(), bench.at(1).get()) == (True, None, 5)
    with pytest.raises(RowError, match=r"it: expected bigint, and found None\n  To allow it"):
        Bench(pen.ValueState(int)).at(0).set(None)


@DISK
def test_a_list_grows_and_is_nothing_when_empty(disk: bool) -> None:
    bench = Bench(pen.ListState(Pair))
    bench.at(0).append(Pair(1, None))
    bench.at(0).extend([Pair(2, 2), {"a": 3, "b": 3}])
    bench.batch(disk)
    bench.at(0).append(Pair(4, 4.0))
    assert list(bench.at(0)) == [Pair(1, None), Pair(2, 2.0), Pair(3, 3.0), Pair(4, 4.0)]
    assert (len(bench.at(0)), len(bench.at(1)), bench.at(1).get()) == (4, 0, [])
    bench.at(0).get().clear()
    assert len(bench.at(0)) == 4
    bench.at(0).set([])
    assert not bench.at(0).exists


@DISK
def test_lists_and_maps_of_classes_with_maps_are_written_again_after_they_were_read(disk: bool) -> None:
    bench = Bench(pen.ListState(Visit))
    bench.at(0).append(Visit([], {"a": 1}))
    bench.batch(disk)
    bench.at(0).append(Visit([], {"b": 2}))
    bench.batch(disk)
    assert [visit.counts for visit in bench.at(0)] == [{"a": 1}, {"b": 2}]
    names = Bench(pen.MapState(str, Visit))
    names.at(0).set("x", Visit([], {"a": 1}))
    names.batch(disk)
    names.at(0).set("y", Visit([], {}))
    names.batch(disk)
    assert names.at(0).get("x").counts == {"a": 1}


def test_a_list_is_not_made_of_a_text_or_a_set() -> None:
    bench = Bench(pen.ListState(str), name="words")
    with pytest.raises(RowError, match="words: expected array<string not null>, and found str 'abc'"):
        bench.at(0).extend("abc")
    with pytest.raises(RowError, match="words: expected array<string not null>, and found set"):
        bench.at(0).set({"a"})
    with pytest.raises(RowError, match="words: expected string, and found int 1"):
        bench.at(0).append(1)


@DISK
def test_a_map_keeps_the_order_of_its_keys(disk: bool) -> None:
    bench = Bench(pen.MapState(str, float))
    for name in "cab":
        bench.at(0).set(name, 1)
    bench.batch(disk)
    bench.at(0).set("a", 2)
    bench.at(0).remove("c")
    bench.at(0).remove("not there")
    bench.at(0).set("c", 3)
    bench.batch(disk)
    state = bench.at(0)
    assert list(state.items()) == [("a", 2.0), ("b", 1.0), ("c", 3.0)]
    assert (list(state.keys()), list(state.values())) == (["a", "b", "c"], [2.0, 1.0, 3.0])
    assert ("a" in state, "z" in state, len(state), state.get("z"), state.get("z", 7)) == (True, False, 3, None, 7)
    for name in "abc":
        state.remove(name)
    assert not state.exists
    with pytest.raises(RowError, match=r"it.key: expected string, and found int 1"):
        state.set(1, 1.0)
    with pytest.raises(RowError, match="it: expected double, and found str 'x'"):
        state.set("x", "x")


@DISK
def test_values_are_reduced_and_aggregated(disk: bool) -> None:
    most, mean = Bench(pen.ReducingState(max, int)), Bench(pen.AggregatingState(col("value").mean(), float))
    assert (most.at(0).get(), mean.at(0).get()) == (None, None)
    for value in (3, 9, 6):
        most.at(0).add(value)
        mean.at(0).add(value)
        most.batch(disk)
        mean.batch(disk)
    assert (most.at(0).get(), mean.at(0).get()) == (9, 6.0)
    mean.at(0).add(0)
    assert mean.at(0).get() == 4.5
    mean.at(0).clear()
    assert mean.at(0).get() is None
    fields = Bench(pen.AggregatingState(col("a").sum(), Pair))
    fields.at(1).add(Pair(2, None))
    fields.at(1).add(Pair(3, 1.0))
    assert fields.at(1).get() == 5


def test_what_a_reducing_function_returns_must_fit() -> None:
    bench = Bench(pen.ReducingState(lambda a, b: f"{a}{b}", int))
    bench.at(0).add(1)
    with pytest.raises(RowError, match="it: expected bigint, and found str '12'"):
        bench.at(0).add(2)


CHANGES: list[tuple[Any, Callable[[Any], None], Callable[[Any], None]]] = [
    (pen.ValueState(int), lambda s: s.set(1), lambda s: s.set(2)),
    (pen.ValueState(int), lambda s: s.set(1), lambda s: s.clear()),
    (pen.ValueState(int, ttl="1m"), lambda s: s.set(1), lambda s: s.set(2)),
    (pen.ListState(int), lambda s: s.set([1]), lambda s: (s.append(2), s.extend([3, 4]))),
    (pen.ListState(int, ttl="1m"), lambda s: s.set([1]), lambda s: s.append(2)),
    (pen.ListState(int), lambda s: s.append(1), lambda s: (s.set([]), s.append(5))),
    (pen.MapState(str, int), lambda s: s.set("a", 1), lambda s: (s.set("a", 2), s.set("b", 3), s.remove("a"))),
    (pen.MapState(str, int), lambda s: s.set("a", 1), lambda s: s.clear()),
    (pen.ReducingState(max, int), lambda s: s.add(1), lambda s: s.add(2)),
    (pen.AggregatingState(col("value").sum(), int), lambda s: s.add(1), lambda s: (s.add(2), s.add(3))),
]


def shown(state: Any) -> Any:
    return list(state.items()) if isinstance(state, pen.MapState) else state.get()


@DISK
@pytest.mark.parametrize("number", range(len(CHANGES)))
def test_what_is_undone_leaves_no_trace(number: int, disk: bool) -> None:
    declared, first, then = CHANGES[number]
    bench = Bench(declared)
    first(bench.at(0))
    bench.batch(disk)
    before = shown(bench.at(0))
    for key in (0, 1):
        then(bench.at(key))
    bench.scope.undo()
    assert (shown(bench.at(0)), bench.at(1).exists) == (before, False)
    bench.batch(disk)
    assert (shown(bench.at(0)), bench.at(1).exists) == (before, False)


@DISK
@pytest.mark.parametrize("clock", ["event", "processing"])
def test_a_value_is_forgotten_so_long_after_it_was_last_written(clock: str, disk: bool) -> None:
    bench = Bench(pen.ValueState(int, ttl="10us", default=-1, clock=clock))

    def get(time: int) -> Any:
        bench.scope.now, bench.scope.moment = (time, 0) if clock == "processing" else (0, time)
        return bench.at(0).get()

    get(100)
    bench.at(0).set(1)
    bench.batch(disk)
    assert [get(time) for time in (100, 109, 110, 105)] == [1, 1, -1, 1]
    get(105)
    bench.at(0).set(2)
    bench.batch(disk)
    assert [get(time) for time in (114, 115)] == [2, -1]
    assert not bench.at(0).exists


@DISK
def test_a_list_that_was_forgotten_starts_anew(disk: bool) -> None:
    bench = Bench(pen.ListState(int, ttl="10us"))
    bench.at(0).append(1)
    bench.batch(disk)
    bench.scope.moment = 9
    bench.at(0).append(2)
    bench.batch(disk)
    bench.scope.moment = 18
    assert bench.at(0).get() == [1, 2]
    bench.scope.moment = 19
    bench.at(0).append(3)
    assert bench.at(0).get() == [3]


@DISK
def test_the_vectorised_form_reads_and_writes_the_same_state(disk: bool) -> None:
    bench = Bench(pen.ValueState(int, default=7))
    bench.at(0).set(1)
    keys = bench.keys("b", "a", "c", "a")
    assert bench.state.get_many(keys).to_pylist() == [7, 1, 7, 1]
    bench.state.set_many(keys, pa.array([2, 3, 4, 5], pa.int32()))
    bench.batch(disk)
    assert [bench.at(n).get() for n in range(3)] == [5, 2, 4]
    bench.state.clear_many(keys.take([0, 0]))
    assert bench.state.get_many(keys).to_pylist() == [7, 5, 4, 5]
    with pytest.raises(RowError, match="state 'it': 1 values for 4 keys"):
        bench.state.set_many(keys, [1])
    with pytest.raises(RowError, match=r"state 'it': a null, and it holds none\n  Forget a key with clear_many"):
        bench.state.set_many(keys, [1, None, 2, 3])


def test_in_the_vectorised_form_each_row_has_its_own_time() -> None:
    bench = Bench(pen.ValueState(Pair, ttl="10us", default=Pair(0, None)))

    def keys(*times: int) -> Keys:
        return Keys(pa.record_batch({"k": ["a", "b"]}), np.array(times))

    bench.state.set_many(keys(100, 200), [{"a": 1, "b": 1.0}, {"a": 2, "b": None}])
    assert bench.state.get_many(keys(109, 210)).to_pylist() == [{"a": 1, "b": 1.0}, {"a": 0, "b": None}]
    assert bench.state.get_many(keys(110, 209)).to_pylist() == [{"a": 0, "b": None}, {"a": 2, "b": None}]


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (
            lambda: pen.ValueState(int, ttl="1m", clock="sun"),
            'clock=\'sun\' is not known\n  Write: clock="event", or clock="processing"',
        ),
        (lambda: pen.ValueState(int, clock="event"), "clock= says whose time ttl= is, and there is no ttl="),
        (lambda: pen.ValueState(int, ttl="0s"), "ttl='0s' would forget everything at once\n  Write: ttl=\"1h\""),
        (lambda: pen.ValueState(set[int]), "value: set is not a type of columns"),
        (lambda: pen.ValueState(int | str), "could be several types"),
        (
            lambda: pen.MapState(list[str], int),
            "keys of a MapState are plain values, and list[str] is not\n  Write: pen.MapState(str, int)",
        ),
        (lambda: pen.MapState(str | None, int), "keys of a MapState are plain values"),
        (lambda: pen.BroadcastState(Pair, int), "keys of a BroadcastState are plain values"),
        (lambda: pen.ReducingState(3, int), "a ReducingState needs a function of two values, and got 3"),
        (lambda: pen.AggregatingState(col("value"), int), "an AggregatingState needs an aggregate, and got"),
    ],
)
def test_a_declaration_that_cannot_work_is_refused(make: Callable[[], Any], text: str) -> None:
    with pytest.raises(PlanError) as raised:
        make()
    assert text in str(raised.value)


def test_a_state_of_a_function_that_does_not_run_says_so() -> None:
    state = pen.ValueState(int)
    state.name = "n"
    with pytest.raises(RowError, match="state 'n' belongs to a process function that is not running"):
        state.get()
