"""From a physical stage to operators with their state: the only place that knows both plan and operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.connectors.connector import SinkContext
from penstock.operators import aggregate, function, project, time
from penstock.operators.operator import Errors, Operator
from penstock.operators.reduce import Reduce
from penstock.operators.write import Write
from penstock.plan import logical
from penstock.plan.logical import DEAD_SCHEMA
from penstock.plan.physical import WINDOW_COLUMN, Op, PhysicalPlan, Stage, accumulators
from penstock.state.keygroups import canonical_type, group_range
from penstock.state.runs import Files, Handle
from penstock.state.table import KeyedTable, StateSpec
from penstock.state.timers import TimerTable


@dataclass(frozen=True, slots=True)
class Restored:
    """What the tasks of an attempt start from: every shard's handles; each task picks what touches its key groups."""

    states: Mapping[str, Sequence[Any]] = field(default_factory=dict)  # "operator/state" -> handles as JSON
    floors: Mapping[str, Sequence[Sequence[int]]] = field(default_factory=dict)  # "operator/state" -> [[first, last, floor], ...]
    watermarks: Mapping[str, Sequence[Sequence[int]]] = field(default_factory=dict)  # operator -> [[first, last, time], ...]


@dataclass(frozen=True, slots=True)
class Site:
    """Where a task lives: which one it is, whose word it speaks, and what storage it has."""

    plan: PhysicalPlan
    parallelism: int
    index: int
    lineage: str
    uid: str
    job_dir: Path
    files: Files
    restored: Restored = Restored()

    @property
    def groups(self) -> range:
        """The key groups the task owns."""
        return group_range(self.index, self.parallelism, self.plan.max_parallelism)


def assemble(stage: Stage, site: Site) -> dict[int, Operator]:
    """The operators of one task of a stage, by operator id."""
    return {op.id: BUILDERS[op.kind](op, stage, site) for op in stage.ops}


def op_errors(op: Op) -> Errors:
    """What the step does with bad rows, by the user's choice."""
    return Errors(op.name, getattr(op.node, "on_error", "fail"), DEAD_SCHEMA)


def plain(op: Op, stage: Stage, site: Site) -> Operator:
    """Rows pass unchanged: a source's way in, a union."""
    return Operator(op.name)


def project_op(op: Op, stage: Stage, site: Site) -> Operator:
    node = op.node
    assert isinstance(node, logical.Project)
    columns = [(name, expr) for name, expr in node.columns if name in op.columns]
    return project.Project(op.name, columns, [node.schema.field(name) for name, _ in columns], op_errors(op))


def filter_op(op: Op, stage: Stage, site: Site) -> Operator:
    node = op.node
    assert isinstance(node, logical.Filter)
    return project.Filter(op.name, node.condition, op_errors(op))


def split_op(op: Op, stage: Stage, site: Site) -> Operator:
    node = op.node
    assert isinstance(node, logical.Split)
    return project.Split(op.name, node.conditions, op_errors(op))


def rows_op(op: Op, stage: Stage, site: Site) -> Operator:
    node = op.node
    assert isinstance(node, logical.MapRows)
    return function.RowMap(op.name, node.function, op_errors(op))


def batches_op(op: Op, stage: Stage, site: Site) -> Operator:
    node = op.node
    assert isinstance(node, logical.MapBatches)
    return function.BatchMap(op.name, node.function, node.output)


def time_op(op: Op, stage: Stage, site: Site) -> Operator:
    node = op.node
    assert isinstance(node, logical.AssignTime)
    return time.AssignTime(op.name, node.column, node.delay, op_errors(op))


def partial_op(op: Op, stage: Stage, site: Site) -> Operator:
    node = op.node
    assert isinstance(node, logical.Aggregate | logical.WindowAggregate)
    return aggregate.PartialAggregate(op.name, node.by, node.shape, accumulators(node), op_errors(op))


def aggregate_op(op: Op, stage: Stage, site: Site) -> Operator:
    node = op.node
    assert isinstance(node, logical.Aggregate | logical.WindowAggregate)
    folded = accumulators(node)
    shared: dict[str, Any] = {
        "by": node.by_fields,
        "accumulators": folded,
        "errors": op_errors(op),
        "table": table(op, "accumulators", key_schema(node), pa.schema(folded.fields), site),
        "partial": logical.ROWS_COLUMN in op.columns,
        "max_parallelism": site.plan.max_parallelism,
    }
    if isinstance(node, logical.WindowAggregate):
        return aggregate.WindowAggregate(op.name, node.schema, node.window, timers(op, key_schema(node), site), **shared)
    return aggregate.RunningAggregate(op.name, node.schema, **shared)


def reduce_op(op: Op, stage: Stage, site: Site) -> Operator:
    node = op.node
    assert isinstance(node, logical.Reduce | logical.WindowReduce)
    return Reduce(
        op.name,
        node.by,
        node.function,
        node.row_schema,
        node.schema,
        op_errors(op),
        table(op, "rows", key_schema(node), reduce_values(node), site),
        shape=node.shape,
        timers=timers(op, key_schema(node), site) if node.shape else None,
        max_parallelism=site.plan.max_parallelism,
    )


def reduce_values(node: logical.Keyed) -> pa.Schema:
    """The folded row as state: named apart from the key columns."""
    return pa.schema([pa.field(f"row.{f.name}", f.type) for f in node.row_schema])


def write_op(op: Op, stage: Stage, site: Site) -> Operator:
    node = op.node
    assert isinstance(node, logical.Write)
    return Write(op.name, node.sink.writer(sink_context(node, site.lineage, site.uid, site.job_dir)), node.schema)


def sink_context(node: logical.Write, lineage: str, uid: str, job_dir: Path) -> SinkContext:
    """What a writer or a committer of this sink is told."""
    return SinkContext(node.name, lineage, uid, job_dir, node.schema, node.keys)


def key_schema(node: logical.Keyed) -> pa.Schema:
    """The key of a step's state: canonical key types, and the window's start."""
    fields = [pa.field(f.name, canonical_type(f.type)) for f in node.by_fields]
    return pa.schema([*fields, pa.field(WINDOW_COLUMN, pa.int64())] if node.shape else fields)


def route_columns(keys: pa.Schema) -> int:
    """How many key columns decide the key group: all but the window."""
    return len([name for name in keys.names if name != WINDOW_COLUMN])


def table(op: Op, state: str, keys: pa.Schema, values: pa.Schema, site: Site) -> KeyedTable:
    """A keyed state as the snapshot left it."""
    spec = StateSpec(state, keys, values, route_columns(keys))
    return KeyedTable.open(spec, site.groups, site.plan.max_parallelism, handles(op, state, site), site.files)


def timers(op: Op, keys: pa.Schema, site: Site) -> TimerTable:
    """Timers as the snapshot left them."""
    floors = site.restored.floors.get(f"{op.name}/timers", ())
    return TimerTable.open(
        keys,
        site.groups,
        site.plan.max_parallelism,
        handles(op, "timers", site),
        site.files,
        floors=floors,
        route_columns=route_columns(keys),
    )


def handles(op: Op, state: str, site: Site) -> list[Handle]:
    """The runs of one state that touch this task's key groups."""
    every = [Handle.from_json(entry) for entry in site.restored.states.get(f"{op.name}/{state}", ())]
    return [h for h in every if h.first_group < site.groups.stop and h.last_group >= site.groups.start]


BUILDERS: dict[str, Callable[[Op, Stage, Site], Operator]] = {
    "source": plain,
    "union": plain,
    "project": project_op,
    "filter": filter_op,
    "split": split_op,
    "rows": rows_op,
    "batches": batches_op,
    "time": time_op,
    "partial": partial_op,
    "aggregate": aggregate_op,
    "window_aggregate": aggregate_op,
    "reduce": reduce_op,
    "window_reduce": reduce_op,
    "write": write_op,
}
"""The registry of operators: every kind the planner can ask for."""
