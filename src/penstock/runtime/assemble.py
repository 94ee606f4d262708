"""From a physical stage to operators with their state: the only place that knows both plan and operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.connectors.connector import SinkContext
from penstock.operators import (
    aggregate,
    async_map,
    counting,
    dedupe,
    function,
    inverse,
    join_asof,
    join_forever,
    join_interval,
    join_window,
    lookup,
    panes,
    process,
    project,
    sessions,
    slicedpanes,
    sliding,
    time,
    top,
)
from penstock.operators.joining import Joined, Side
from penstock.operators.operator import Errors, Operator
from penstock.operators.reduce import Reduce
from penstock.operators.write import Write
from penstock.plan import joins, keyed, logical
from penstock.plan.async_map import AsyncMap
from penstock.plan.dedupe import DropDuplicates
from penstock.plan.logical import DEAD_SCHEMA
from penstock.plan.lookup import Lookup
from penstock.plan.physical import Op, PhysicalPlan, Stage
from penstock.plan.process import Process
from penstock.plan.top import Top, WindowTop
from penstock.protocol.messages import TIME_MIN
from penstock.state.backend import Backend, Columnar, RocksDB
from penstock.state.convert import Conversion, Converter
from penstock.state.keygroups import canonical_keys, group_range, groups_of, hash_keys
from penstock.state.rocksdb import RocksTable
from penstock.state.runfile import Files, Handle
from penstock.state.spec import StateSpec
from penstock.state.table import KeyedTable
from penstock.state.timers import TimerTable
from penstock.tracebacks import Within
from penstock.windows import CountSliding, CountTumbling, Sliding, Tumbling


@dataclass(frozen=True, slots=True)
class Restored:
    """What the tasks of an attempt start from: every shard's handles; each task picks what touches its key groups."""

    states: Mapping[str, Sequence[Any]] = field(default_factory=dict)  # "operator/state" -> handles as JSON
    floors: Mapping[str, Sequence[Sequence[int]]] = field(default_factory=dict)  # "operator/state" -> [[first, last, floor], ...]
    watermarks: Mapping[str, Sequence[Sequence[int]]] = field(default_factory=dict)  # operator -> [[first, last, time], ...]
    in_flight: Sequence[Mapping[str, Any]] = ()  # rows to be processed before any others, as entries of the manifest
    conversions: Mapping[str, Conversion] = field(default_factory=dict)  # "operator/state" that was stored in other columns


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
    drains: bool = False  # whether its tasks end with each epoch, so that no call may outlive one, and no table
    backend: Backend = Columnar()

    @property
    def groups(self) -> range:
        """The key groups the task owns."""
        return group_range(self.index, self.parallelism, self.plan.max_parallelism)


def assemble(stage: Stage, site: Site) -> dict[int, Operator]:
    """The operators of one task of a stage, by operator id."""
    made = {}
    for op in stage.ops:
        with Within(op.who):  # sinks open their writers
            made[op.id] = BUILDERS[op.kind](op, stage, site)
    return made


def op_errors(op: Op) -> Errors:
    """What the step does with bad rows, by the user's choice."""
    return Errors(op.name, getattr(op.node, "on_error", "fail"), DEAD_SCHEMA, op.node.where)


def plain(op: Op, stage: Stage, site: Site) -> Operator:
    """Rows pass unchanged: a source's way in."""
    return Operator(op.name)


def project_op(op: Op, stage: Stage, site: Site) -> Operator:
    node = op.node
    assert isinstance(node, logical.Project)
    columns = [(name, expr) for name, expr in node.columns if name in op.columns]
    fields = [node.schema.field(name) for name, _ in columns]
    return project.Project(op.name, columns, fields, op_errors(op), deletes=node.changes == "update")


def filter_op(op: Op, stage: Stage, site: Site) -> Operator:
    node = op.node
    assert isinstance(node, logical.Filter)
    return project.Filter(op.name, node.condition, op_errors(op), op.columns, deletes=node.changes == "update")


def split_op(op: Op, stage: Stage, site: Site) -> Operator:
    node = op.node
    assert isinstance(node, logical.Split)
    return project.Split(op.name, node.conditions, op_errors(op))


def rows_op(op: Op, stage: Stage, site: Site) -> Operator:
    node = op.node
    assert isinstance(node, logical.MapRows)
    return function.RowMap(op.name, node.function, op_errors(op), deletes=node.changes == "update", attempts=node.attempts)


def batches_op(op: Op, stage: Stage, site: Site) -> Operator:
    node = op.node
    assert isinstance(node, logical.MapBatches)
    return function.BatchMap(op.name, node.function, node.made)


def async_op(op: Op, stage: Stage, site: Site) -> Operator:
    node = op.node
    assert isinstance(node, AsyncMap)
    rules = async_map.Rules(node.capacity, node.ordered, node.timeout, node.attempts, node.delay)
    return async_map.AsyncMap(op.name, node.function, rules, op_errors(op), open_states(op, node, site)["rows"])


def time_op(op: Op, stage: Stage, site: Site) -> Operator:
    node = op.node
    assert isinstance(node, logical.AssignTime)
    return time.AssignTime(
        op.name, node.at, op_errors(op), delay=node.delay, punctuated=node.punctuated, max_ahead=node.max_ahead
    )


def partial_op(op: Op, stage: Stage, site: Site) -> Operator:
    node = op.node
    assert isinstance(node, keyed.Aggregate | keyed.WindowAggregate)
    slices = node.slices if isinstance(node, keyed.WindowAggregate) else None
    return aggregate.PartialAggregate(op.name, node.by, slices, node.accumulators, op_errors(op), tasks=site.parallelism)


def aggregate_op(op: Op, stage: Stage, site: Site) -> Operator:
    node = op.node
    assert isinstance(node, keyed.Aggregate)
    return aggregate.RunningAggregate(op.name, node.schema, **shared(op, node, site))


def shared(op: Op, node: keyed.Aggregating, site: Site) -> dict[str, Any]:
    """What every aggregate is told."""
    return {
        "by": node.by_fields,
        "accumulators": node.accumulators,
        "errors": op_errors(op),
        "states": open_states(op, node, site),
        "partial": logical.ROWS_COLUMN in op.columns,
        "max_parallelism": site.plan.max_parallelism,
    }


def window_op(op: Op, stage: Stage, site: Site) -> Operator:
    node = op.node
    assert isinstance(node, keyed.WindowAggregate)
    common = shared(op, node, site)
    match node.operator:
        case "window_aggregate":
            assert isinstance(node.window, Tumbling)
            return aggregate.WindowAggregate(op.name, node.schema, node.window, node.lateness, **common)
        case "sliding_aggregate" | "inverse_aggregate":
            assert isinstance(node.window, Sliding)
            kind = inverse.InverseSliding if node.operator == "inverse_aggregate" else sliding.SlidingAggregate
            return kind(op.name, node.schema, node.window, node.lateness, **common)
        case "count_aggregate":
            assert isinstance(node.window, CountTumbling | CountSliding)
            return counting.CountAggregate(op.name, node.schema, node.window, **common)
        case _:
            hidden = tuple(f.name for f in node.hidden)
            retracts = node.input.changes == "retract"
            rules = panes.Rules(node.window, node.lateness, node.firing, node.emit, retracts, hidden)
            general = slicedpanes.SlicedPanes if slicedpanes.in_slices(rules) else panes.PaneAggregate
            operator = sessions.SessionAggregate if node.window.merging else general
            return operator(op.name, node.schema, rules, **common)


def reduce_op(op: Op, stage: Stage, site: Site) -> Operator:
    node = op.node
    assert isinstance(node, keyed.Reduce | keyed.WindowReduce)
    states = open_states(op, node, site)
    return Reduce(
        op.name,
        node.by,
        node.function,
        node.row_schema,
        node.schema,
        op_errors(op),
        states["rows"],
        shape=node.window if isinstance(node, keyed.WindowReduce) else None,
        bounds=[f.name for f in node.bounds] if isinstance(node, keyed.WindowReduce) else (),
        timers=states.get("timers"),
        max_parallelism=site.plan.max_parallelism,
    )


def union_op(op: Op, stage: Stage, site: Site) -> Operator:
    return project.Union(op.name, op.node.hidden)


def as_rows_op(op: Op, stage: Stage, site: Site) -> Operator:
    node = op.node
    assert isinstance(node, logical.AsRows)
    return project.AsRows(op.name, node.op, node.added)


def joined_rows(node: joins.Joining) -> Joined:
    """How a join's result rows are put together, of the columns that somebody uses."""
    sides = []
    for keys, kept, named in zip((node.left_keys, node.right_keys), node.kept, node.named):
        names = {column: name for name, column in named}
        sides.append(Side(keys, kept, tuple(names[column] for column in kept)))
    return Joined(node.left_keys, (sides[0], sides[1]), pa.schema([*node.schema, *node.hidden]))


def join_op(op: Op, stage: Stage, site: Site) -> Operator:
    node = op.node
    assert isinstance(node, joins.Joining)
    common = (op.name, joined_rows(node), node.how)
    states, groups = open_states(op, node, site), site.plan.max_parallelism
    match node:
        case joins.IntervalJoin():
            return join_interval.IntervalJoin(*common, node.lower, node.upper, states, max_parallelism=groups)
        case joins.WindowJoin():
            assert isinstance(node.window, Tumbling | Sliding)
            names = [f.name for f in node.bounds]
            return join_window.WindowJoin(*common, node.window, names, states, max_parallelism=groups)
        case joins.AsofJoin():
            return join_asof.AsofJoin(*common, node.tolerance, states, max_parallelism=groups)
        case joins.ForeverJoin():
            return join_forever.ForeverJoin(*common, states, max_parallelism=groups)
    raise AssertionError(f"no operator for {node.kind}")


def top_op(op: Op, stage: Stage, site: Site) -> Operator:
    node = op.node
    assert isinstance(node, Top)
    order = tuple(zip(node.order_columns, node.order, node.ascending, strict=True))
    rules = top.Rules(tuple(node.by_fields), node.kept, node.count, order, node.schema)
    common = (op_errors(op), open_states(op, node, site))
    if not isinstance(node, WindowTop):
        return top.Top(op.name, rules, *common, max_parallelism=site.plan.max_parallelism)
    assert isinstance(node.window, Tumbling | Sliding)
    return top.WindowTop(op.name, rules, node.window, *common, max_parallelism=site.plan.max_parallelism)


def dedupe_op(op: Op, stage: Stage, site: Site) -> Operator:
    node = op.node
    assert isinstance(node, DropDuplicates)
    states = open_states(op, node, site)
    return dedupe.DropDuplicates(op.name, node.by, node.within, states, max_parallelism=site.plan.max_parallelism)


def lookup_op(op: Op, stage: Stage, site: Site) -> Operator:
    node = op.node
    assert isinstance(node, Lookup)
    table, pairs = node.table, {column: name for name, column in node.on}
    uid = f"{table.uid} {site.lineage}"
    source = lookup.TableSource(table.name, uid, table.source, table.key, node.kept, table.refresh, site.job_dir)
    names = {column: name for name, column in node.named}
    fields = [node.schema.field(names[column]) for column in node.kept]
    return lookup.Lookup(op.name, source, [pairs[key] for key in table.key], node.how, fields)


def process_op(op: Op, stage: Stage, site: Site) -> Operator:
    node = op.node
    assert isinstance(node, Process)
    tables = open_states(op, node, site)
    if op.name not in site.restored.watermarks:  # no snapshot knows the step
        load_initial(node, tables, site)
    inputs = [process.Input(by, node.columns(i), node.spec.callbacks[i]) for i, (_, by) in enumerate(node.sides)]
    return process.Process(
        op.name,
        node.spec,
        inputs,
        node.by_fields,
        op_errors(op),
        tables,
        timed=node.timed,
        ordered=node.order is not None,
        signed=node.signed,
        stores_broadcast=site.index == 0,
        max_parallelism=site.plan.max_parallelism,
        watermark=restored_time(op.name, site),
    )


def load_initial(node: Process, tables: Mapping[str, Any], site: Site) -> None:
    """Fill states with the values they start from: those of the task's own keys."""
    for name, initial in node.initial.items():
        for keys, values in initial.batches(site.groups, site.plan.max_parallelism):
            keys = canonical_keys(keys, keys.schema.names)
            groups = groups_of(hash_keys(keys), site.plan.max_parallelism)
            mine = pa.array((groups >= site.groups.start) & (groups < site.groups.stop))
            keys = keys.filter(mine)
            tables[name].put_many(keys, values.filter(mine))
            if node.wakes is not None and keys.num_rows:
                load_timers(keys, tables, *node.wakes)


def load_timers(keys: pa.RecordBatch, tables: Mapping[str, Any], clock: str, name: str) -> None:
    """Have these keys woken by this clock as soon as it moves."""
    timers, due, rows = tables[f"{clock}-timers"], tables[f"{clock}-due"], keys.num_rows
    places = keys.append_column("__timer", pa.array([name] * rows, pa.string()))
    at_once = np.full(rows, TIME_MIN + 1)
    columns = [pa.array(at_once), pa.array(np.zeros(rows, np.int64)), pa.array(np.zeros(rows, np.int64))]
    timers.put_many(places, pa.RecordBatch.from_arrays(columns, names=timers.spec.values.names))
    due.add(at_once, places)


def write_op(op: Op, stage: Stage, site: Site) -> Operator:
    node = op.node
    assert isinstance(node, logical.Write)
    return Write(op.name, node.sink.writer(sink_context(node, site.lineage, site.uid, site.job_dir)), node.sink_schema)


def sink_context(node: logical.Write, lineage: str, uid: str, job_dir: Path, *, parent: str | None = None) -> SinkContext:
    """What a writer or a committer of this sink is told."""
    return SinkContext(node.name, lineage, uid, job_dir, node.sink_schema, node.keys, node.changes, node.change, parent=parent)


def open_states(op: Op, node: keyed.Stateful, site: Site) -> dict[str, Any]:
    """The states of a step as the snapshot left them: tables and timers by name."""
    return {layout.name: open_state(op, layout, site) for layout in node.states()}


def open_state(op: Op, layout: keyed.StateLayout, site: Site) -> KeyedTable | TimerTable:
    """One state as the snapshot left it."""
    max_parallelism = site.plan.max_parallelism
    groups = range(max_parallelism) if layout.broadcast else site.groups
    found = handles(op, layout.name, site, groups)
    if layout.values is not None:
        spec = StateSpec(layout.name, layout.keys, layout.values, layout.route, layout.expires)
        conversion = site.restored.conversions.get(f"{op.name}/{layout.name}")
        convert = None if conversion is None else Converter(layout.wanted, conversion)
        if isinstance(site.backend, RocksDB) and not layout.broadcast:  # which is in memory as a whole anyway
            return RocksTable.open(spec, groups, max_parallelism, found, site.files, convert=convert, settings=site.backend)
        return KeyedTable.open(spec, groups, max_parallelism, found, site.files, convert=convert, lasting=not site.drains)
    floors = site.restored.floors.get(f"{op.name}/{layout.name}", ())
    return TimerTable.open(
        layout.keys, site.groups, max_parallelism, found, site.files, floors=floors, route_columns=layout.route
    )


def restored_time(name: str, site: Site) -> int:
    """How far an operator's time was in the snapshot: the least over the key groups we took over."""
    times = [
        t for first, last, t in site.restored.watermarks.get(name, ()) if first < site.groups.stop and last >= site.groups.start
    ]
    return min(times, default=TIME_MIN)


def handles(op: Op, state: str, site: Site, groups: range) -> list[Handle]:
    """The runs of one state that touch these key groups."""
    every = [Handle.from_json(entry) for entry in site.restored.states.get(f"{op.name}/{state}", ())]
    return [h for h in every if h.first_group < groups.stop and h.last_group >= groups.start]


BUILDERS: dict[str, Callable[[Op, Stage, Site], Operator]] = {
    "source": plain,
    "union": union_op,
    "as_rows": as_rows_op,
    "project": project_op,
    "filter": filter_op,
    "split": split_op,
    "rows": rows_op,
    "batches": batches_op,
    "async_map": async_op,
    "time": time_op,
    "partial": partial_op,
    "aggregate": aggregate_op,
    "window_aggregate": window_op,
    "sliding_aggregate": window_op,
    "inverse_aggregate": window_op,
    "count_aggregate": window_op,
    "pane_aggregate": window_op,
    "reduce": reduce_op,
    "window_reduce": reduce_op,
    "interval_join": join_op,
    "window_join": join_op,
    "asof_join": join_op,
    "forever_join": join_op,
    "top": top_op,
    "window_top": top_op,
    "drop_duplicates": dedupe_op,
    "lookup": lookup_op,
    "process": process_op,
    "write": write_op,
}
"""The registry of operators: every kind the planner can ask for."""
