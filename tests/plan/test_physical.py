"""From nodes to stages: where exchanges go, what crosses them, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

import penstock as pen
from penstock import col
from penstock.errors import PlanError
from penstock.plan.physical import PhysicalPlan, Stage
from runtime.rig import Collect, Hand, hand


@dataclass
class SaidText:
    s: str | None


def kinds(stage: Stage) -> list[str]:
    return [op.kind for op in stage.ops]


def planned(build: Callable[[pen.Pipeline, pen.Stream], None], *, on_error: str = "fail") -> PhysicalPlan:
    p = pen.Pipeline("test", on_error=on_error)
    build(p, hand(p))
    return p.plan()


def timed(s: pen.Stream) -> pen.Stream:
    return s.with_watermark("at", delay="5s")


def counted(s: pen.Stream, name: str, *keys: str) -> pen.Stream:
    return s.key_by(*keys).window(pen.tumbling("10s")).aggregate(n=pen.count(), name=name)


# --- stages ---


def test_steps_without_a_key_are_one_stage() -> None:
    plan = planned(lambda p, s: s.filter("i > 0").select("k").write(Collect()) and None)
    assert [kinds(stage) for stage in plan.stages] == [["source", "filter", "project", "write"]]
    assert plan.levels == 1
    assert [(k.source, k.target) for k in plan.stages[0].links] == [(0, 1), (1, 2), (2, 3)]


def test_a_keyed_step_begins_a_stage_behind_an_exchange_by_its_key() -> None:
    plan = planned(lambda p, s: counted(timed(s), "counts", "k").write(Collect()) and None)
    assert [kinds(stage) for stage in plan.stages] == [["source", "time", "partial"], ["window_aggregate", "write"]]
    (exchange,) = plan.stages[0].outgoing
    assert plan.stages[1].incoming == (exchange,)
    assert (exchange.keys, exchange.source_stage, exchange.target_stage) == (("k",), 0, 1)
    assert [stage.level for stage in plan.stages] == [0, 1]
    assert plan.levels == 2


def test_each_further_key_is_a_further_level() -> None:
    def build(p: pen.Pipeline, s: pen.Stream) -> None:
        counted(counted(timed(s), "fine", "k", "j"), "coarse", "k").write(Collect())

    plan = planned(build)
    assert [stage.level for stage in plan.stages] == [0, 1, 2]
    assert [op.name for op in plan.stateful] == ["fine", "coarse"]


def test_two_keyed_steps_of_one_stream_are_two_stages_and_the_source_is_read_once() -> None:
    def build(p: pen.Pipeline, s: pen.Stream) -> None:
        t = timed(s)
        counted(t, "a", "k").write(Collect("a"))
        counted(t, "b", "j").write(Collect("b"))

    plan = planned(build)
    assert len(plan.reads) == 1
    assert [(s.level, kinds(s)[0]) for s in plan.stages] == [(0, "source"), (1, "window_aggregate"), (1, "window_aggregate")]
    assert [e.keys for e in plan.stages[0].outgoing] == [("k",), ("j",)]


def test_streams_that_never_meet_are_stages_of_their_own() -> None:
    p = pen.Pipeline("test")
    p.read(Hand("one")).write(Collect("one"))
    p.read(Hand("two")).write(Collect("two"))
    assert [[op.name for op in stage.ops] for stage in p.plan().stages] == [["one", "one"], ["two", "two"]]


def test_operators_stand_in_topological_order_and_links_go_forward() -> None:
    def build(p: pen.Pipeline, s: pen.Stream) -> None:
        parts = s.split({"a": "i > 0"})
        parts["a"].union(parts.rest, s).filter("j > 0").write(Collect())

    plan = planned(build)
    for stage in plan.stages:
        order = [op.id for op in stage.ops]
        assert all(order.index(k.source) < order.index(k.target) for k in stage.links)
    ports = sorted(k.port for k in plan.stages[0].links)
    assert ports == ["a", "main", "main", "main", "main", "rest"]


# --- forward edges ---


def test_a_union_of_a_shallow_and_a_deep_stream_forwards_the_shallow_one_to_the_task_of_the_same_number() -> None:
    def build(p: pen.Pipeline, s: pen.Stream) -> None:
        t = timed(s)
        counts = counted(t, "counts", "k").select("k", "n")
        counts.union(t.select("k", n=pen.lit(1).cast("bigint"))).write(Collect())

    plan = planned(build)
    assert [kinds(stage) for stage in plan.stages] == [
        ["source", "time", "partial", "project"],
        ["window_aggregate", "project", "union", "write"],
    ]
    keyed, forward = plan.stages[0].outgoing
    assert keyed.keys == ("k",)
    assert forward.keys is None
    assert forward.schema.names == ["k", "n", "__time"]


def test_several_shallow_streams_read_by_one_deeper_step_are_gathered_into_one_forward_edge() -> None:
    def build(p: pen.Pipeline, s: pen.Stream) -> None:
        t = timed(s)
        counts = counted(t, "counts", "k").select("k", "n")
        one, two = (t.filter(f"i > {n}").select("k", n=pen.lit(1).cast("bigint")) for n in (1, 2))
        counts.union(one, two).write(Collect())

    plan = planned(build)
    assert [e.keys for e in plan.stages[0].outgoing] == [("k",), None]
    (gather,) = [op for op in plan.stages[0].ops if op.name.startswith("gather")]
    assert gather.kind == "union"
    assert len([k for k in plan.stages[0].links if k.target == gather.id]) == 2


def test_dead_letters_of_all_levels_meet_in_one_place() -> None:
    def build(p: pen.Pipeline, s: pen.Stream) -> None:
        counts = counted(timed(s).filter("10 / i > 1"), "counts", "k")
        counts.select(m="10 / n").write(Collect())
        p.dead_letters.write(Collect("dead"))

    plan = planned(build, on_error="dead-letter")
    (dead,) = [op for stage in plan.stages for op in stage.ops if op.kind == "union" and not op.name.startswith("gather")]
    forward = [e for stage in plan.stages for e in stage.outgoing if e.keys is None]
    assert [e.target for e in forward] == [dead.id]
    assert forward[0].schema.names == ["step", "source", "split", "position", "error", "record", "event_time"]


def test_dead_letters_that_nobody_sends_are_refused() -> None:
    p = pen.Pipeline("test")
    p.read(Hand(name="rows")).write(Collect("out"))
    p.dead_letters.write(Collect("dead"))
    with pytest.raises(PlanError, match="no step sends dead letters"):
        p.plan()


def test_the_dead_letters_may_be_written_before_the_steps_they_come_from() -> None:
    p = pen.Pipeline("test", on_error="dead-letter")
    p.dead_letters.write(Collect("dead"))
    hand(p).filter("10 / i > 1").write(Collect())
    plan = p.plan()
    assert len([k for stage in plan.stages for k in stage.links if k.port == "dead"]) == 2


# --- columns ---


@pytest.mark.parametrize(
    ("build", "columns"),
    [
        (lambda s: s.select("k"), ("k",)),
        (lambda s: s.filter("i > 0").select("k"), ("k", "i")),
        (lambda s: s.map(lambda row: 1, schema=int), ("k", "i", "j", "s", "x", "b", "at")),
        (lambda s: s.split({"a": "b"})["a"].select("s"), ("s", "b")),
        (lambda s: s.select("k", "i").union(s.select("k", "i")), ("k", "i")),
        (lambda s: s.key_by("k").aggregate(n=pen.count(where=col("j") > 0), m="sum(x)", name="a"), ("k", "j", "x")),
        (lambda s: s.key_by(word="s").aggregate(n=pen.count(), name="a"), None),
        (lambda s: timed(s).key_by("k").window(pen.tumbling("1s")).aggregate(n=pen.count(), name="a"), ("k", "at")),
        (lambda s: s.select("k", "i").key_by("k").reduce(lambda a, b: a, name="a"), ("k", "i")),
    ],
)
def test_a_source_is_asked_only_for_columns_that_are_used(
    build: Callable[[pen.Stream], pen.Stream], columns: tuple[str, ...] | None
) -> None:
    plan = planned(lambda p, s: build(s).write(Collect()) and None)
    assert plan.reads[0].columns == (columns or plan.reads[0].columns)


def test_a_function_reads_only_the_fields_of_the_class_it_takes() -> None:
    plan = planned(lambda p, s: s.map(shouted).write(Collect()) and None)
    assert plan.reads[0].columns == ("s",)


def test_a_filter_passes_on_only_the_columns_that_are_used_behind_it() -> None:
    plan = planned(lambda p, s: s.filter("i > 0").filter("j > 0").select("k").write(Collect()) and None)
    assert [op.columns for op in plan.stages[0].ops if op.kind == "filter"] == [("k", "j"), ("k",)]


def shouted(said: SaidText) -> str:
    return (said.s or "").upper()


def test_only_columns_in_use_and_event_time_cross_an_exchange_of_rows() -> None:
    def build(p: pen.Pipeline, s: pen.Stream) -> None:
        counts = counted(timed(s), "counts", "k")
        counts.write(Collect())
        counts.late.select("s").write(Collect("late"))

    (exchange,) = planned(build).stages[0].outgoing
    assert exchange.schema.names == ["k", "s", "__time"]


# --- two phases ---


def test_rows_are_combined_before_the_exchange_unless_somebody_reads_the_late_ones() -> None:
    def plain(p: pen.Pipeline, s: pen.Stream) -> None:
        counted(timed(s), "counts", "k").write(Collect())

    def late(p: pen.Pipeline, s: pen.Stream) -> None:
        counts = counted(timed(s), "counts", "k")
        counts.write(Collect())
        counts.late.write(Collect("late"))

    assert "partial" in kinds(planned(plain).stages[0])
    assert planned(plain).stages[0].outgoing[0].schema.names == ["k", "__window", "n.n", "__rows"]
    assert "partial" not in kinds(planned(late).stages[0])


def test_a_running_aggregate_is_combined_too_and_a_reduce_is_not() -> None:
    running = planned(lambda p, s: s.key_by("k").aggregate(n=pen.count(), name="a").write(Collect()) and None)
    assert running.stages[0].outgoing[0].schema.names == ["k", "n.n", "__rows"]
    reduced = planned(lambda p, s: s.key_by("k").reduce(lambda a, b: a, name="a").write(Collect()) and None)
    assert kinds(reduced.stages[0]) == ["source"]


# --- refused ---


@pytest.mark.parametrize("what", ["source", "sink", "step"])
def test_two_things_of_one_name_are_refused(what: str) -> None:
    p = pen.Pipeline("test")
    names = {"source": ("one", "two"), "sink": ("one", "two"), "step": ("three", "four"), what: ("same", "same")}
    for number in range(2):
        stream = p.read(Hand(names["source"][number]))
        stream.key_by("k").aggregate(n=pen.count(), name=names["step"][number]).write(Collect(names["sink"][number]))
    with pytest.raises(
        PlanError, match=rf"two {what}s are called 'same' \(the other: test_physical\.py:\d+\)\n.* give one of them another name"
    ):
        p.plan()


def test_a_sink_may_be_called_like_a_step_and_a_source_may_not() -> None:
    p = pen.Pipeline("same")
    p.read(Hand("other")).key_by("k").aggregate(n=pen.count(), name="same").write(Collect("same"))
    assert [op.name for op in p.plan().stateful] == ["same"]
    p = pen.Pipeline("same")
    p.read(Hand("same")).key_by("k").aggregate(n=pen.count(), name="same").write(Collect("same"))
    with pytest.raises(PlanError, match="a source and a step are both called 'same'"):  # a restore finds both by name
        p.plan()


def test_event_time_after_a_key_is_refused() -> None:
    def build(p: pen.Pipeline, s: pen.Stream) -> None:
        windows = counted(timed(s), "counts", "k")
        mapped = windows.select("n", at="window_start")
        assert mapped.schema.names == ["n", "at"]
        mapped.with_watermark("at", delay="1s").write(Collect())

    with pytest.raises(PlanError, match=r"this stream has event time already\n  Say with_watermark once, right after read"):
        planned(build)


def test_event_time_after_an_untimed_key_is_refused() -> None:
    def build(p: pen.Pipeline, s: pen.Stream) -> None:
        s.key_by("k").reduce(lambda a, b: a, name="r").with_watermark("at", delay="1s").write(Collect())

    with pytest.raises(PlanError, match=r"with_watermark needs final rows\n  Say it right after read"):
        planned(build)


def test_two_clocks_for_the_splits_of_one_source_are_refused() -> None:
    def build(p: pen.Pipeline, s: pen.Stream) -> None:
        counted(s.with_watermark("at", delay="1s"), "a", "k").write(Collect("a"))
        counted(s.with_watermark("at", delay="1h"), "b", "k").write(Collect("b"))

    with pytest.raises(PlanError, match="source 'hand' would have two watermarks"):
        planned(build)


def test_dead_letters_that_nobody_reads_are_refused() -> None:
    with pytest.raises(
        PlanError,
        match=r'on_error="dead-letter" sends bad rows .* and nothing reads that\n.* Write: pipeline\.dead_letters\.write',
    ):
        planned(lambda p, s: s.write(Collect()) and None, on_error="dead-letter")


def test_a_pipeline_that_writes_nothing_is_refused() -> None:
    with pytest.raises(PlanError, match="pipeline 'test' writes nothing"):
        planned(lambda p, s: None)


# --- fingerprint ---


def test_the_fingerprint_changes_with_the_meaning_and_only_with_it() -> None:
    def plan(size: str, condition: str = "i > 0") -> str:
        def build(p: pen.Pipeline, s: pen.Stream) -> None:
            timed(s).filter(condition).key_by("k").window(pen.tumbling(size)).aggregate(n=pen.count(), name="a").write(Collect())

        return planned(build).fingerprint

    assert plan("10s") == plan("10s")
    assert plan("10s") == plan("10 seconds")
    assert len({plan("10s"), plan("11s"), plan("10s", "i > 1")}) == 3
