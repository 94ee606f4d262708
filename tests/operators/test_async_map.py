"""map_async: the operator alone against what it promises, and in tasks that are stopped with calls under way."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import penstock as pen
from penstock.errors import PlanError, RowError
from penstock.functions import RowFunction
from penstock.operators.async_map import Answer, AsyncMap, InFlightTable, Rules, lane_of
from penstock.operators.operator import Errors, Origin
from penstock.plan.async_map import LANE, ORIGIN
from penstock.plan.logical import DEAD_SCHEMA, TIME_FIELD
from penstock.protocol.messages import Emit, End, Watermark
from penstock.state.keygroups import group_range
from penstock.state.spec import StateSpec
from penstock.state.table import KeyedTable
from runtime.rig import Collect, Cut, Rig, hand, table

S = 1_000_000
RELAXED: dict[str, Any] = {"deadline": None, "derandomize": True, "suppress_health_check": list(HealthCheck)}
INPUT = pa.schema([pa.field("n", pa.int64())])


@dataclass
class Numbered:
    n: int


async def same(row: Numbered) -> int:
    return row.n


def spec() -> StateSpec:
    return StateSpec("rows", pa.schema(LANE), pa.schema([pa.field("n", pa.int64()), TIME_FIELD, *ORIGIN]), 1)


def made(*, table: KeyedTable | None = None, on_error: str = "fail", **rules: Any) -> AsyncMap:
    options = {"capacity": 3, "ordered": True, "timeout": 5 * S, "attempts": 1, "delay": 100_000, **rules}
    function = RowFunction.of(same, "map_async", INPUT)
    return AsyncMap(
        "same", function, Rules(**options), Errors("same", on_error, DEAD_SCHEMA), table or KeyedTable(spec(), range(128), 128)
    )


def batch(*numbers: int | None, first: int = 0) -> pa.RecordBatch:
    times = pa.array([(n or 0) * S for n in numbers], pa.int64()).cast(TIME_FIELD.type)
    return pa.RecordBatch.from_arrays([pa.array(numbers, pa.int64()), times], schema=pa.schema([*INPUT, TIME_FIELD]))


def values(outs: Any, port: str = "main") -> list[Any]:
    return [row for out, rows in outs if out == port for row in rows.column(0 if port == "main" else "record").to_pylist()]


# --- the operator alone ----------------------------------------------------------------------------------------------------


@st.composite
def lives(draw: st.DrawFn) -> tuple[int, bool, list[tuple[str, int]]]:
    """Capacity, order, and what happens: so many rows come, a mark comes, the i-th call under way ends."""
    steps = draw(st.lists(st.tuples(st.sampled_from(["rows", "mark", "answer", "answer"]), st.integers(0, 7)), max_size=40))
    return draw(st.integers(1, 5)), draw(st.booleans()), steps


@settings(max_examples=300, **RELAXED)
@given(lives())
def test_results_keep_their_place_among_rows_and_marks(life: tuple[int, bool, list[tuple[str, int]]]) -> None:
    capacity, ordered, steps = life
    operator = made(capacity=capacity, ordered=ordered)
    under_way: dict[int, int] = {}  # call -> row
    rows, sent, marks = 0, list[int](), dict[int, int]()  # marks: time -> how many rows came before it
    passed = 0  # the last time that was let through

    def look(outs: Any) -> None:
        nonlocal passed
        before = marks.get(passed, 0)
        behind = next((came for time, came in marks.items() if time > passed), None)
        sent.extend(values(outs))
        if operator.passed():
            assert operator.time > passed
            passed = operator.time
            assert set(range(marks[passed])) <= set(sent), "a mark leaves after all rows before it"
        elif behind is not None:
            assert all(row < behind for row in sent), "a row after a mark leaves after it"
        assert before <= len(sent)
        for asked in operator.asked():
            under_way[asked.number] = asked.work.args[0].n  # type: ignore[attr-defined]
        assert len(under_way) <= capacity
        assert operator.busy == (len(sent) < rows)

    for what, n in [*steps, *[("answer", 0)] * 300]:
        if what == "rows":
            outs = list(operator.process(batch(*range(rows, rows + n)), None))
            rows += n
            look(outs)
        elif what == "mark":
            time = len(marks) + 1
            marks[time] = rows
            operator.mark(time, idle=False)
            look([])
        elif under_way:
            call = list(under_way)[n % len(under_way)]
            look(list(operator.on_results([Answer(call, under_way.pop(call))])))
    assert sorted(sent) == list(range(rows))
    assert not ordered or sent == sorted(sent)
    assert not operator.busy
    assert operator.ready
    assert passed == len(marks)


def test_only_a_few_calls_are_under_way_and_the_rest_waits() -> None:
    operator = made(capacity=2)
    assert list(operator.process(batch(0, 1, 2), None)) == []
    assert [asked.number for asked in operator.asked()] == [0, 1]
    assert not operator.ready
    assert values(operator.on_results([Answer(1, 1)])) == []
    assert operator.asked() == [], (
        "in order, a row that is done and not sent counts too: what waits behind a slow call has a bound"
    )
    assert values(operator.on_results([Answer(0, 0)])) == [0, 1]
    assert [asked.number for asked in operator.asked()] == [2]
    assert operator.ready


def test_results_of_one_segment_leave_as_answers_come() -> None:
    operator = made(ordered=False)
    list(operator.process(batch(0, 1, 2), None))
    assert values(operator.on_results([Answer(2, 2)])) == [2]
    assert values(operator.on_results([Answer(1, 1)])) == [1]


def test_rest_comes_after_the_time_it_began_at() -> None:
    operator = made()
    list(operator.process(batch(0), None))
    operator.mark(7, idle=False)
    operator.mark(7, idle=True)
    assert not operator.passed()
    operator.asked()
    list(operator.on_results([Answer(0, 0)]))
    assert operator.passed()
    assert (operator.time, operator.idle) == (7, True)


def test_a_call_is_repeated_each_time_after_twice_the_delay_and_then_the_row_is_set_aside() -> None:
    operator = made(attempts=4, on_error="dead-letter")
    list(operator.process(batch(5), Origin("orders", "p0", 17)))
    waits = []
    for _ in range(4):
        (asked,) = operator.asked()
        waits.append(asked.delay)
        outs = list(operator.on_results([Answer(asked.number, error="ConnectionError: no route")]))
    assert waits == [0, 100_000, 200_000, 400_000]
    ((port, letters),) = [out for out in outs if out[1].num_rows]
    assert port == "dead"
    (letter,) = letters.to_pylist()
    assert (letter["step"], letter["source"], letter["split"], letter["position"]) == ("same", "orders", "p0", "17")
    assert (letter["error"], letter["record"]) == ("ConnectionError: no route", "{'n': 5}")
    assert letter["event_time"].timestamp() == 5
    assert not operator.busy
    assert operator.counters == {"calls": 4, "retries": 3}


def test_a_call_that_succeeds_in_the_end_is_like_any_other() -> None:
    operator = made(attempts=3)
    list(operator.process(batch(5, 6), None))
    operator.asked()
    assert values(operator.on_results([Answer(0, error="x"), Answer(1, 6)])) == []
    operator.asked()
    assert values(operator.on_results([Answer(0, 5)])) == [5, 6]


def test_a_call_that_fails_stops_the_job_if_nobody_says_otherwise() -> None:
    operator = made()
    list(operator.process(batch(5), None))
    operator.asked()
    with pytest.raises(RowError, match=r"step 'same' cannot process a row: no answer within 5s. The row: \{'n': 5\}"):
        list(operator.on_results([Answer(0, error="no answer within 5s")]))


def test_what_does_not_fit_the_schema_is_set_aside_at_once() -> None:
    operator = made(attempts=3, on_error="dead-letter", ordered=False)
    list(operator.process(batch(1, 2), None))
    operator.asked()
    outs = list(operator.on_results([Answer(0, "one"), Answer(1, 2)]))
    assert values(outs) == [2]
    assert values(outs, "dead") == ["{'n': 1}"]
    assert operator.asked() == []


def test_a_row_that_the_function_cannot_take_is_never_asked_for() -> None:
    operator = made(on_error="dead-letter")
    outs = list(operator.process(batch(None, 1), None))
    assert values(outs, "dead") == ["{'n': None}"]
    assert len(operator.asked()) == 1


@pytest.mark.parametrize("max_parallelism", [1, 7, 128, 32768])
def test_every_task_has_a_lane_of_its_own(max_parallelism: int) -> None:
    parallelism = min(max_parallelism, 50)
    lanes = {lane_of(group_range(task, parallelism, max_parallelism), max_parallelism) for task in range(parallelism)}
    assert len(lanes) == parallelism


def test_rows_that_come_and_go_between_two_snapshots_are_never_written() -> None:
    operator = made()
    state = operator.states["rows"]
    assert isinstance(state, InFlightTable)
    for n in range(5):
        list(operator.process(batch(n), None))
        operator.asked()
        list(operator.on_results([Answer(n, n)]))
    list(operator.process(batch(9), None))
    assert sum(run.rows for run in state.freeze(1).runs) == 1


# --- in tasks: stopped with calls under way, and restored at any parallelism --------------------------------------------


async def doubled(row: pen.Row) -> pen.Row:
    if row.j == 3:
        raise ValueError(f"three: {row.i}")
    return row.replace(i=row.i * 2)


def build(sinks: dict[str, Collect], *, ordered: bool) -> Any:
    p = pen.Pipeline("test", on_error="dead-letter", max_parallelism=16)
    timed = hand(p, names=("s0", "s1")).with_watermark("at", delay="0s", idle_after="1s")
    calls = timed.map_async(doubled, capacity=3, ordered=ordered, on_error=pen.retry(2, then="dead-letter"))
    calls.select("i", "k").write(sinks.setdefault("rows", Collect("rows")), name="rows")
    again = calls.key_by("k").window(pen.tumbling("4s")).aggregate(total="sum(i)", n=pen.count(), name="windows")
    again.write(sinks.setdefault("windows", Collect("windows")), name="windows")
    again.late.select("i").write(sinks.setdefault("late", Collect("late")), name="late")
    p.dead_letters.write(sinks.setdefault("dead", Collect("dead")), name="dead")
    return p.plan()


SCRIPTS = st.lists(st.tuples(st.sampled_from(["s0", "s1", "answer", "answer", "cut", "cut to"]), st.integers(0, 9)), max_size=30)


@pytest.mark.parametrize("ordered", [True, False])
def test_rows_in_flight_survive_a_cut_and_a_rescale(ordered: bool) -> None:
    @settings(max_examples=60, **RELAXED)
    @given(SCRIPTS)
    def check(script: list[tuple[str, int]]) -> None:
        sinks: dict[str, Collect] = {}
        plan = build(sinks, ordered=ordered)
        rig, positions, epoch = Rig(plan, 2, answering=False), {"s0": 0, "s1": 0}, 0
        rows = []
        for what, n in script:
            if what in positions:
                fresh = [
                    {"k": "ab"[i % 2], "i": 100 * i + (what == "s1"), "j": i % 4, "at": i * S}
                    for i in range(positions[what], positions[what] + n)
                ]
                rows += fresh
                positions[what] += n
                rig.feed(table(fresh), positions[what], split=what)
            elif what == "answer" and rig.calls:
                rig.answer(n % len(rig.calls))
            elif what.startswith("cut"):
                epoch += 1
                before = {name: len(sink.rows) for name, sink in sinks.items()}
                cut: Cut = rig.barrier(epoch)
                assert before == {name: len(sink.rows) for name, sink in sinks.items()}, "a snapshot waits for no call"
                if what == "cut to":
                    rig = Rig(plan, (1, 2, 3)[n % 3], cut=cut, files=rig.files, answering=False)
        rig.end()
        assert all(task.ended for task in rig.tasks.values()) or rig.calls
        while rig.calls:
            rig.answer(len(rig.calls) - 1)
        assert all(ack.ended for ack in (rig.barrier(epoch + 1).acks).values())
        good = [row for row in rows if row["j"] != 3]
        assert Counter(row["i"] for row in sinks["rows"].rows) == Counter(2 * row["i"] for row in good)
        assert Counter(row["record"] for row in sinks["dead"].rows).total() == len(rows) - len(good)
        assert {row["source"] for row in sinks["dead"].rows} <= {"hand"}
        assert sinks["late"].rows == [], "no row within the bound is late"
        expected: Counter[Any] = Counter()
        for row in good:
            expected[row["k"], row["at"] // (4 * S)] += 2 * row["i"]
        found = {(row["k"], int(row["window_start"].timestamp()) // 4): row["total"] for row in sinks["windows"].rows}
        assert found == dict(expected)

    check()


def test_the_end_waits_for_calls_and_so_does_the_last_barrier() -> None:
    sinks: dict[str, Collect] = {}
    rig = Rig(build(sinks, ordered=True), answering=False)
    rig.feed(table([{"k": "a", "i": 1, "j": 0, "at": 5 * S}]), 1)
    rig.log.clear()
    rig.end()
    assert not any(isinstance(action, Emit) and isinstance(action.message, Watermark | End) for _, action in rig.log)
    source = next(task for task in rig.tasks.values() if task.stage.sources)
    assert not source.ended
    with pytest.raises(AssertionError, match="every task has acknowledged"):
        rig.barrier(1)
    rig.answer(0)
    assert source.ended
    assert all(ack.ended for ack in rig.acks[1].values())
    assert sorted(rig.acks[1]) == sorted(rig.tasks)
    assert [row["total"] for row in sinks["windows"].rows] == [2]


def test_rows_that_can_be_withdrawn_keep_their_sign_and_their_order() -> None:
    out = Collect()
    p = pen.Pipeline("test")
    counts = hand(p).key_by("k").window(pen.running(), emit="retract").aggregate(n=pen.count(), name="counts")
    counts.map_async(plus_one).write(out)
    rig = Rig(p.plan(), answering=False)
    for position in range(3):
        rig.feed(table([{"k": "a"}]), position + 1)
    while rig.calls:
        rig.answer(len(rig.calls) - 1)
    assert [(row["value"], row["change"]) for row in out.rows] == [(2, 1), (2, -1), (3, 1), (3, -1), (4, 1)]


async def plus_one(row: pen.Row) -> int:
    return int(row.n) + 1


# --- what the plan refuses ----------------------------------------------------------------------------------------------


def refused(build: Any) -> str:
    with pytest.raises(PlanError) as caught:
        build()
    assert caught.value.where is not None
    return str(caught.value).partition(": ")[2]


def test_what_cannot_be_meant_is_refused() -> None:
    p = pen.Pipeline("test")
    rows = hand(p)
    assert refused(lambda: rows.map_async(lambda row: row)).startswith(
        "map_async awaits what it is given, and <lambda> is no async"
    )
    assert refused(lambda: rows.map_async(doubled, capacity=0)) == "capacity=0 lets no call begin\n  Write: capacity=1"
    assert "leaves no time to answer" in refused(lambda: rows.map_async(doubled, timeout="0s"))
    assert 'timeout=5 has no unit\n  If seconds are meant, say so. Write: timeout="5s"' in refused(
        lambda: rows.map_async(doubled, timeout=5)
    )
    assert "is not known" in refused(lambda: rows.map_async(doubled, on_error="ignore"))
    counts = rows.key_by("k").aggregate(n=pen.count(), name="n")
    assert "a function may change the key" in refused(lambda: counts.map_async(doubled))
    changes = rows.key_by("k").window(pen.running(), emit="retract").aggregate(n=pen.count(), name="m")
    assert "Leave ordered=False out" in refused(lambda: changes.map_async(plus_one, ordered=False))
    late = rows.map_async(doubled).with_watermark("at", delay="0s")
    late.write(Collect())
    assert "it comes before map_async" in refused(p.plan)


def test_a_step_is_called_after_its_function_and_two_need_two_names() -> None:
    p = pen.Pipeline("test")
    hand(p).map_async(doubled).map_async(doubled).write(Collect())
    assert refused(p.plan).startswith("two steps are called 'doubled'")
    q = pen.Pipeline("test")
    hand(q).map_async(doubled).map_async(doubled, name="again").write(Collect())
    assert [op.name for op in q.plan().stateful] == ["doubled", "again"]
