"""Between acknowledgements and checkpoints: what the tasks of one epoch said, as a manifest; and a manifest as the start of new
tasks.

Nothing parallelism-shaped survives the way: tasks become ranges of key groups, splits are named, and a new attempt deals both
out anew.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from penstock.checkpoints.manifest import (
    AppliedEntry,
    Columns,
    CountedFrom,
    FieldEntry,
    InFlightEntry,
    Manifest,
    OperatorEntry,
    PendingEntry,
    SinkEntry,
    SourceEntry,
    SplitEntry,
    StateEntry,
    columns_of,
)
from penstock.checkpoints.restore import PipelineFacts
from penstock.plan.keyed import Stateful, StateLayout
from penstock.plan.logical import AssignTime, Node, Read, Write
from penstock.plan.physical import Op, PhysicalPlan
from penstock.plan.process import Process
from penstock.protocol.coordinator import Publish
from penstock.protocol.messages import TIME_MIN, SplitAssigned, TaskAck
from penstock.runtime.assemble import Restored
from penstock.runtime.wiring import column_texts, task_name
from penstock.state.convert import Conversion
from penstock.state.keygroups import group_range
from penstock.state.runfile import OP, Files, stored_schema
from penstock.tracebacks import Within


@dataclass(frozen=True, slots=True)
class StartPoint:
    """What an attempt begins from."""

    epoch: int = 0
    restored: Restored = Restored()
    splits: Mapping[str, Mapping[str, SplitEntry]] = field(default_factory=dict)  # source -> split
    counters: Mapping[str, int] = field(default_factory=dict)
    taken_us: int = 0  # when the snapshot was taken
    counted_from: tuple[CountedFrom, ...] = ()
    applied: tuple[AppliedEntry, ...] = ()  # what was said of names on the way here

    def silence(self, source: str, split: str) -> int:
        """How long a split had been silent then. Time in which nobody could read it, such as since then, does not count."""
        entry = self.splits.get(source, {}).get(split)
        return 0 if entry is None or entry.last_active_us is None else max(0, self.taken_us - entry.last_active_us)

    def assigned(self, op: Op, task: int, parallelism: int) -> list[SplitAssigned]:
        """The splits of a source that this task reads: dealt out in order of their names."""
        assert isinstance(op.node, Read)
        known = self.splits.get(op.name, {})
        with Within(op.who):
            every = sorted({*op.node.source.splits(), *known})
        fresh = SplitEntry(None)
        return [
            SplitAssigned(
                op.name, split, entry.position, TIME_MIN if entry.watermark is None else entry.watermark, entry.idle, entry.ended
            )
            for split in every[task::parallelism]
            for entry in [known.get(split, fresh)]
        ]


def start_from(manifest: Manifest | None, conversions: Mapping[str, Conversion] | None = None) -> StartPoint:
    """A checkpoint as a start; None: from nothing. `conversions`: of states that are in other columns there."""
    if manifest is None:
        return StartPoint()
    states = {f"{op.name}/{s.name}": list(s.handles) for op in manifest.operators for s in op.states}
    floors = {f"{op.name}/{s.name}": [list(f) for f in s.floors] for op in manifest.operators for s in op.states}
    watermarks = {op.name: [list(w) for w in op.watermarks] for op in manifest.operators}
    splits = {source.name: dict(source.splits) for source in manifest.sources}
    restored = Restored(states, floors, watermarks, [entry.to_json() for entry in manifest.in_flight], conversions or {})
    counters, taken = dict(manifest.counters), manifest.processing_time_us
    return StartPoint(manifest.epoch, restored, splits, counters, taken, manifest.counted_from, manifest.applied)


def task_names(plan: PhysicalPlan, parallelism: int) -> list[str]:
    """All tasks of an attempt."""
    return [task_name(stage.id, index) for stage in plan.stages for index in range(parallelism)]


def manifest_of(
    publish: Publish,
    *,
    plan: PhysicalPlan,
    parallelism: int,
    start: StartPoint,
    ancestors: Sequence[tuple[str, int]],
    runner: str,
    now: int,
) -> Manifest:
    """The checkpoint an epoch's acknowledgements make."""
    acks = publish.acks
    in_flight = tuple(InFlightEntry.of(entry) for _, ack in sorted(acks.items()) for entry in ack.in_flight)
    counters = Counter(start.counters)
    for ack in acks.values():
        counters.update(ack.counters)
    operators = tuple(operator_entry(op, plan, parallelism, acks) for op in plan.stateful)
    return Manifest(
        pipeline=plan.name,
        lineage=publish.stamp.lineage,
        parent=next(iter(ancestors), None),
        ancestors=tuple(ancestors[1:]),
        term=publish.stamp.term,
        attempt=publish.stamp.attempt,
        epoch=publish.epoch,
        runner=runner,
        created_us=now,
        processing_time_us=now,
        fingerprint=plan.fingerprint,
        max_parallelism=plan.max_parallelism,
        finished=publish.finished,
        cut="unaligned" if in_flight else "aligned",
        operators=operators,
        sources=tuple(source_entry(op, acks) for op in plan.reads),
        sinks=tuple(SinkEntry(op.name, sink_kind(op)) for op in plan.writes),
        pending=tuple(PendingEntry(p.epoch, p.sink, tuple(p.committables)) for p in publish.pending),
        in_flight=in_flight,
        counters=dict(counters),
        counted_from=still_open(start.counted_from, operators),
        applied=start.applied,
    )


def operator_entry(op: Op, plan: PhysicalPlan, parallelism: int, acks: Mapping[str, TaskAck]) -> OperatorEntry:
    """What a step's tasks hold, by key groups."""
    stage = next(stage for stage in plan.stages if op in stage.ops)
    tasks = [(group_range(i, parallelism, plan.max_parallelism), acks[task_name(stage.id, i)]) for i in range(parallelism)]
    empty = step_entry(op)
    return OperatorEntry(
        empty.name,
        empty.kind,
        empty.version,
        empty.keys,
        empty.inputs,
        empty.params,
        tuple(
            StateEntry(
                state.name,
                state.kind,
                state.schema,
                tuple(handle for _, ack in tasks for handle in ack.states.get(f"{op.name}/{state.name}", ())),
                tuple(tuple(floor) for _, ack in tasks for floor in ack.floors.get(f"{op.name}/{state.name}", ())),
            )
            for state in empty.states
        ),
        tuple((groups.start, groups.stop - 1, ack.watermarks[op.name]) for groups, ack in tasks if len(groups)),
    )


def step_entry(op: Op) -> OperatorEntry:
    """A step as a checkpoint knows it, without what it holds."""
    node = op.node
    assert isinstance(node, Stateful)
    layouts = node.states()
    routed = list(layouts[0].keys)[: layouts[0].route]
    return OperatorEntry(
        op.name,
        op.kind,
        keys=tuple((f.name, str(f.type)) for f in routed if not f.name.startswith("__")),
        inputs=tuple(getattr(n, "name", "") or n.text() for n in node.inputs),
        params=node.params(),
        states=tuple(
            StateEntry(each.name, "timer" if each.values is None else "value", field_entries([*each.keys, *(each.values or ())]))
            for each in layouts
        ),
    )


def field_entries(fields: Sequence[pa.Field]) -> tuple[FieldEntry, ...]:
    """Columns with ids that stay when a column is renamed."""
    return tuple(FieldEntry(i + 1, f.name, str(f.type), f.nullable) for i, f in enumerate(fields))


def source_entry(op: Op, acks: Mapping[str, TaskAck]) -> SourceEntry:
    """How far each split of a source was read."""
    splits: dict[str, Any] = {}
    for ack in acks.values():
        for split, state in ack.splits.get(op.name, {}).items():
            assert split not in splits, f"two tasks read split {split!r} of {op.name!r}"
            watermark = None if state["watermark"] == TIME_MIN else state["watermark"]
            splits[split] = SplitEntry(
                state["position"],
                watermark=watermark,
                idle=state["idle"],
                last_active_us=state.get("last_active_us"),
                ended=state["ended"],
            )
    return SourceEntry(op.name, source_kind(op), splits)


def source_kind(op: Op) -> str:
    """What kind of source it is: its positions fit no other."""
    assert isinstance(op.node, Read)
    return type(op.node.source).__name__


def sink_kind(op: Op) -> str:
    """What kind of sink it is: its committables fit no other."""
    assert isinstance(op.node, Write)
    return type(op.node.sink).__name__


def pipeline_facts(plan: PhysicalPlan) -> PipelineFacts:
    """The pipeline as the decision about a restore sees it."""
    return PipelineFacts(
        name=plan.name,
        max_parallelism=plan.max_parallelism,
        steps=tuple(step_entry(op) for op in plan.stateful),
        sources={op.name: source_kind(op) for op in plan.reads},
        sinks={op.name: sink_kind(op) for op in plan.writes},
        edges=edges_of(plan),
        wanted={f"{op.name}.{layout.name}": wanted for op, layout in _layouts(plan) if (wanted := layout.wanted) is not None},
        closes=closes_at_end(plan),
    )


def closes_at_end(plan: PhysicalPlan) -> bool:
    """Whether the end of the input is more than that no row comes: event time goes to its end, windows close, timers fire."""
    if any(isinstance(node, AssignTime) for node in plan.nodes):
        return True
    return any(op.kind == "count_aggregate" or has_timers(op.node) for op in plan.stateful)


def has_timers(node: Node) -> bool:
    """Whether a step waits for times. A process function knows the time of day in any case."""
    if isinstance(node, Process):
        return bool(node.spec.timers)
    return isinstance(node, Stateful) and any(layout.values is None for layout in node.states())


def _layouts(plan: PhysicalPlan) -> Iterator[tuple[Op, StateLayout]]:
    for op in plan.stateful:
        assert isinstance(op.node, Stateful)
        yield from ((op, layout) for layout in op.node.states())


def stored_columns(facts: PipelineFacts, manifest: Manifest | None, files: Files, *, changed: bool) -> dict[str, pa.Schema]:
    """What a checkpoint holds in other columns than the pipeline: "step.state" to its value columns, by one of its files, since a
    manifest has their types only as text. `changed`: something was said of their names."""
    if manifest is None:
        return {}
    now = {f"{step.name}.{state.name}": state.schema for step in facts.steps for state in step.states}
    then = {f"{op.name}.{state.name}": state for op in manifest.operators for state in op.states}
    if not changed and all(now.get(name) == state.schema for name, state in then.items()):
        return {}
    found = {}
    for name, state in then.items():
        if state.kind == "value" and state.handles:
            columns = stored_schema(str(state.handles[0]["path"]), files)
            nullable = {each.name: each.nullable for each in state.schema}
            values = list(columns)[columns.names.index(OP) + 1 :]
            found[name] = pa.schema([each.with_nullable(nullable.get(each.name, True)) for each in values])
    return found


def still_open(counted_from: Sequence[CountedFrom], operators: Sequence[OperatorEntry]) -> tuple[CountedFrom, ...]:
    """The aggregates that lack rows in windows that were open when they were added, and still are."""
    times = {op.name: min((time for *_, time in op.watermarks), default=TIME_MIN) for op in operators}
    return tuple(each for each in counted_from if each.until is None or times.get(each.step, TIME_MIN) < each.until)


def edges_of(plan: PhysicalPlan) -> dict[tuple[str, int], Columns]:
    """The columns of what can be in flight: on the way to a keyed step, by its input number."""
    return {
        (next(op.name for op in stage.ops if op.id == edge.target), edge.input): columns_of(column_texts(edge.schema))
        for stage in plan.stages
        for edge in stage.incoming
        if edge.keys
    }
