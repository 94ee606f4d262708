"""Joins in time against a reference that knows nothing of state: nested loops over all rows that were not late."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import penstock as pen
from operators.two_inputs import CUTS, PARALLELISMS, Build, Ran, Row, S, Step, counted, plain, run, scripts
from runtime.rig import Collect

HOWS = ("inner", "left", "right", "full", "semi", "anti")
FOREVER = 2**63 - 1
RELAXED = {"deadline": None, "derandomize": True, "suppress_health_check": list(HealthCheck)}

# --- reference --------------------------------------------------------------------------------------------------------


def outcome(left: Row | None, right: Row | None, how: str, **more: Any) -> Row:
    """A row of the result."""
    row = left or {"k": right["k"], "v": None, "at": None} if right else left
    assert row is not None
    found = dict(row)
    if how not in ("semi", "anti"):
        found |= {f"{name}_right": right[name] if right else None for name in ("v", "at")}
    return found | more


def split_late(script: list[Step], late: Any) -> tuple[list[tuple[int, str, Row]], dict[str, list[Row]]]:
    """Rows that were taken, with the watermark they met, and the late ones of each side."""
    now, taken, aside = -(2**63), [], {"l": [], "r": []}
    for what, value in script:
        if what == "watermark":
            now = value
        elif what in ("l", "r"):
            if late(value["at"], now):
                aside[what].append(value)
            else:
                taken.append((now, what, value))
    return taken, aside


def interval_reference(script: list[Step], lower: int, upper: int, how: str, until: int = FOREVER) -> list[Row]:
    """What must have been sent once the watermark is at `until`."""
    taken, _ = split_late(script, lambda at, now: at <= now)
    lefts, rights = ([row for _, side, row in taken if side == which] for which in "lr")
    sent: list[Row] = []

    def matches(a: Row, b: Row) -> bool:
        return a["k"] is not None and a["k"] == b["k"] and lower <= b["at"] - a["at"] <= upper

    for a in lefts:
        found = [b for b in rights if matches(a, b)]
        if how not in ("semi", "anti"):
            sent += [outcome(a, b, how, time=max(a["at"], b["at"])) for b in found]
        if how == "semi" and found:
            sent.append(outcome(a, None, how))
        sure = a["at"] if a["k"] is None else a["at"] + upper
        if how in ("left", "full", "anti") and not found and (sure <= until or a["k"] is None):
            sent.append(outcome(a, None, how, time=max(a["at"], sure)))
    for b in rights:
        sure = b["at"] if b["k"] is None else b["at"] - lower
        if how in ("right", "full") and not any(matches(a, b) for a in lefts) and (sure <= until or b["k"] is None):
            sent.append(outcome(None, b, how, time=max(b["at"], sure)))
    return sent


def windows_of(at: int, size: int, every: int) -> Iterator[int]:
    start = at // every * every
    while start > at - size:
        yield start
        start -= every


def window_reference(script: list[Step], size: int, every: int, how: str, until: int = FOREVER) -> list[Row]:
    taken, _ = split_late(script, lambda at, now: max(windows_of(at, size, every)) + size - 1 <= now)
    placed: dict[tuple[Any, int], dict[str, list[Row]]] = {}
    for now, side, row in taken:
        for start in windows_of(row["at"], size, every):
            if start + size - 1 > now:
                placed.setdefault((row["k"], start), {"l": [], "r": []})[side].append(row)
    sent = []
    for (key, start), sides in placed.items():
        if start + size - 1 > until:
            continue
        more = {"window_start": start, "window_end": start + size, "time": start + size - 1}
        met = key is not None and bool(sides["l"]) and bool(sides["r"])
        if met and how not in ("semi", "anti"):
            sent += [outcome(a, b, how, **more) for a in sides["l"] for b in sides["r"]]
        if (met and how == "semi") or (not met and how in ("left", "full", "anti")):
            sent += [outcome(a, None, how, **more) for a in sides["l"]]
        if not met and how in ("right", "full"):
            sent += [outcome(None, b, how, **more) for b in sides["r"]]
    return sent


# --- plans ------------------------------------------------------------------------------------------------------------


def join(how: str, **options: Any) -> Build:
    def build(left: pen.Stream, right: pen.Stream, to: Any) -> None:
        both = left.join(right, on="k", how=how, name="both", **options)
        # The time of "semi" depends on which match came first.
        shown = both if how == "semi" and "within" in options else both.with_columns(time=pen.event_time())
        shown.write(to("out"))
        both.late.write(to("late"))
        both.late_right.write(to("late-right"))

    return build


def seconds(value: int) -> str:
    return f"{value}us"


BOUNDS = [(0, 5 * S), (-2 * S, 3 * S), (-5 * S, 0), (0, 0), (2 * S, 6 * S), (-6 * S, -2 * S), (-1, 1)]


@pytest.mark.parametrize("how", HOWS)
def test_an_interval_join_gives_what_nested_loops_give(how: str) -> None:
    @settings(max_examples=60, **RELAXED)  # type: ignore[arg-type]
    @given(scripts(), CUTS, PARALLELISMS, st.sampled_from(BOUNDS))
    def check(script: list[Step], cuts: list[int], parallelisms: tuple[int, ...], bounds: tuple[int, int]) -> None:
        lower, upper = bounds
        ran = run(join(how, within=(seconds(lower), seconds(upper))), script, cuts, parallelisms)
        assert counted(ran.rows()) == counted(interval_reference(script, lower, upper, how))
        _, late = split_late(script, lambda at, now: at <= now)
        assert counted(ran.rows("late")) == counted(late["l"])
        assert counted(ran.rows("late-right")) == counted(late["r"])
        assert ran.counters["interval_join both.late"] == len(late["l"])
        assert ran.counters["kept"] == 0
        check_marks(ran, script, lambda part, until: interval_reference(part, lower, upper, how, until))

    check()


@pytest.mark.parametrize("how", HOWS)
def test_a_window_join_gives_what_nested_loops_give(how: str) -> None:
    @settings(max_examples=40, **RELAXED)  # type: ignore[arg-type]
    @given(scripts(), CUTS, PARALLELISMS, st.sampled_from([(5, 5), (10, 5), (5, 2), (7, 3)]))
    def check(script: list[Step], cuts: list[int], parallelisms: tuple[int, ...], shape: tuple[int, int]) -> None:
        size, every = shape[0] * S, shape[1] * S
        window = pen.tumbling(seconds(size)) if size == every else pen.sliding(seconds(size), every=seconds(every))
        ran = run(join(how, window=window), script, cuts, parallelisms)
        assert counted(ran.rows()) == counted(window_reference(script, size, every, how))
        _, late = split_late(script, lambda at, now: max(windows_of(at, size, every)) + size - 1 <= now)
        assert counted(ran.rows("late")) == counted(late["l"])
        assert counted(ran.rows("late-right")) == counted(late["r"])
        assert ran.counters["kept"] == 0
        check_marks(ran, script, lambda part, until: window_reference(part, size, every, how, until))

    check()


def check_marks(ran: Ran, script: list[Step], reference: Any) -> None:
    """After each watermark everything was sent that could be, and no more."""
    places = [number for number, (what, _) in enumerate(script) if what == "watermark"]
    for place, (time, marks) in zip(places, ran.marks):
        sent = [plain(row) for row in ran.sinks["out"].rows[: marks["out"]]]
        assert counted(sent) == counted(reference(script[: place + 1], time))


# --- cases worth a name -----------------------------------------------------------------------------------------------


def row(key: str | None, number: int, at: int) -> Row:
    return {"k": key, "v": number, "at": at}


def test_bounds_are_inclusive() -> None:
    script = [("l", row("a", 1, 10 * S)), ("r", row("a", 2, 10 * S)), ("r", row("a", 3, 15 * S)), ("r", row("a", 4, 15 * S + 1))]
    ran = run(join("inner", within=("0s", "5s")), script)
    assert sorted(r["v_right"] for r in ran.rows()) == [2, 3]


def test_a_row_without_a_match_is_sent_when_none_can_come_and_not_before() -> None:
    script = [("l", row("a", 1, 10 * S)), ("watermark", 15 * S - 1), ("watermark", 15 * S)]
    ran = run(join("left", within=("0s", "5s")), script)
    assert [marks["out"] for _, marks in ran.marks] == [0, 1, 1]


def test_a_row_at_the_watermark_is_late_and_the_next_moment_is_not() -> None:
    script = [("watermark", 10 * S), ("l", row("a", 1, 10 * S)), ("l", row("a", 2, 10 * S + 1))]
    ran = run(join("left", within=("0s", "5s")), script)
    assert [r["v"] for r in ran.rows()] == [2]
    assert [r["v"] for r in ran.rows("late")] == [1]


def test_results_of_a_join_are_in_time_for_the_window_behind_it() -> None:
    def build(left: pen.Stream, right: pen.Stream, to: Any) -> None:
        both = left.join(right, on="k", how="full", within=("-3s", "5s"), name="both")
        counts = both.window(pen.tumbling("4s")).aggregate(n=pen.count(), name="counts")
        counts.write(to("out"))
        counts.late.write(to("late"))

    @settings(max_examples=30, **RELAXED)  # type: ignore[arg-type]
    @given(scripts(), CUTS, PARALLELISMS)
    def check(script: list[Step], cuts: list[int], parallelisms: tuple[int, ...]) -> None:
        ran = run(build, script, cuts, parallelisms)
        assert ran.rows("late") == []
        assert sum(r["n"] for r in ran.rows()) == len(interval_reference(script, -3 * S, 5 * S, "full"))

    check()


def test_only_the_columns_in_use_are_kept() -> None:
    p = pen.Pipeline("test")
    left, right = two_streams(p)
    both = left.join(right, on="k", within=("0s", "5s"), name="both")
    both.select("k", "v_right").write(Collect())
    (op,) = p.plan().stateful
    assert [layout.values.names for layout in op.node.states() if layout.name.endswith("_rows")] == [
        ["__time"],
        ["row.v", "__time"],
    ]
    assert {op.name: op.columns for op in p.plan().reads} == {"left": ("k", "at"), "right": ("k", "v", "at")}


def test_a_stream_can_be_joined_with_itself() -> None:
    def build(left: pen.Stream, right: pen.Stream, to: Any) -> None:
        left.join(left, on="k", within=("1s", "5s"), name="both").select("v", "v_right").write(to("out"))
        right.write(to("right"))

    script = [("l", row("a", n, n * S)) for n in range(4)]
    assert counted(run(build, script).rows()) == counted([{"v": a, "v_right": b} for b in range(4) for a in range(b)])


def test_keys_may_have_other_names_and_types_of_the_same_kind() -> None:
    def build(left: pen.Stream, right: pen.Stream, to: Any) -> None:
        other = right.select("v", id=pen.col("v").cast("int"))
        both = left.select("k", "v").join(other, on={"v": "id"}, how="full", within=("-1h", "1h"), name="both")
        assert both.schema.names == ["k", "v", "v_right"]
        both.write(to("out"))

    script = [("l", row("a", 7, 0)), ("r", row("b", 7, 0)), ("r", row("b", 8, 0))]
    found = run(build, script).rows()
    assert counted(found) == counted([{"k": "a", "v": 7, "v_right": 7}, {"k": None, "v": 8, "v_right": 8}])


# --- what is refused --------------------------------------------------------------------------------------------------


def two_streams(p: pen.Pipeline) -> tuple[pen.Stream, pen.Stream]:
    from operators.two_inputs import SCHEMA
    from runtime.rig import Hand

    left, right = (p.read(Hand(name=name, schema=SCHEMA)).with_watermark("at", delay="0s") for name in ("left", "right"))
    return left, right


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, 'within="forever"'),
        ({"within": "5m"}, 'within=("-5m", "5m")'),
        ({"within": ("5s", "1s")}, 'The lower bound comes first. Write: within=("1s", "5s")'),
        ({"within": ("0s", "1s"), "how": "outer"}, "how='outer'"),
        ({"within": ("0s", "1s"), "name": None}, ".join(…, on='k', name=\"k-join\")"),
        ({"within": ("0s", "1s"), "on": {"k": "v"}}, 'with_columns(v=col("v").cast("string"))'),
        ({"within": ("0s", "1s"), "on": "nothing"}, "no column 'nothing'"),
        ({"window": pen.session("1m")}, "session"),
        ({"window": pen.tumbling("1m", clock="processing")}, "processing"),
        ({"window": pen.tumbling("1m"), "within": ("0s", "1s")}, "Leave one of them out"),
    ],
)
def test_what_cannot_be_joined_is_refused_with_the_fix(options: dict[str, Any], message: str) -> None:
    left, right = two_streams(pen.Pipeline("test"))
    with pytest.raises(pen.PlanError) as error:
        left.join(right, **{"on": "k", "name": "both"} | options)
    assert message in str(error.value)


def test_streams_whose_rows_change_or_have_no_time_are_refused_with_the_fix() -> None:
    p = pen.Pipeline("test")
    left, right = two_streams(p)
    updates = left.key_by("k").aggregate(n=pen.count(), name="n")
    with pytest.raises(pen.PlanError, match='emit="retract"'):
        right.join(updates, on="k", within=("0s", "1s"), name="both")
    withdrawn = left.key_by("k").window(pen.running(), emit="retract").aggregate(n=pen.count(), name="m")
    with pytest.raises(pen.PlanError, match='within="forever"'):
        right.join(withdrawn, on="k", within=("0s", "1s"), name="both")
    with pytest.raises(pen.PlanError, match="the left side has none"):
        p.read(_hand()).join(right, on="k", within=("0s", "1s"), name="both")
    with pytest.raises(pen.PlanError, match="streams of one pipeline"):
        pen.Pipeline("x").read(_hand()).join(right, on="k", within="forever", name="both")


def _hand() -> Any:
    from operators.two_inputs import SCHEMA
    from runtime.rig import Hand

    return Hand(name="hand", schema=SCHEMA)
