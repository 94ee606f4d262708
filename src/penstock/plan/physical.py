"""From what the user wrote to what runs: operators in stages, stages joined by exchanges.

Passes, in order: `collect` the nodes, `require` (which columns each node's readers use), `lower` (nodes to operators; a keyed
step gets an exchange before it, and where it pays a partial step before that), `place` (operators into stages).

1. A **stage** is a connected piece of the operator graph between exchanges; a task runs one copy of all of it. Nothing here
   depends on the parallelism.
2. An **exchange** carries the rows of one operator output to another stage: to the task that owns their key group, or, where a
   deeper operator (a union, the dead letters) reads a shallower one, forward to the task of the same number. So stages never
   form a cycle.
3. Operators of a stage are in topological order, so rows only ever move forward in the list.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from penstock.errors import PlanError
from penstock.expr import Accumulators, Expr
from penstock.plan.logical import (
    DEAD_SCHEMA,
    ROWS_COLUMN,
    TIME_COLUMN,
    TIME_TYPE,
    Aggregate,
    AssignTime,
    DeadLetters,
    Filter,
    Keyed,
    MapBatches,
    MapRows,
    Node,
    Port,
    Project,
    Read,
    Reduce,
    Split,
    Union,
    WindowAggregate,
    WindowReduce,
    Write,
    schema_words,
    walk,
)

WINDOW_COLUMN = "__window"


@dataclass(frozen=True, slots=True)
class Link:
    """Rows leaving `port` of operator `source` go to operator `target` of the same stage."""

    source: int
    port: str
    target: int


@dataclass(frozen=True, slots=True)
class Exchange:
    """Rows leaving `port` of operator `source` go to another stage: by key group, or (no `keys`) to the task of the same number."""

    id: int
    source: int
    port: str
    target: int
    keys: tuple[str, ...] | None
    schema: pa.Schema
    source_stage: int = -1
    target_stage: int = -1


@dataclass(frozen=True, slots=True)
class Op:
    """One operator: `kind` says which, `node` what the user asked of it. `name` is its identity in snapshots where it keeps anything."""

    id: int
    kind: str
    name: str
    node: Node
    columns: tuple[str, ...] = ()  # of a source: what to decode; of a projection: what to make; of a keyed step: what it gets


@dataclass(frozen=True, slots=True)
class Stage:
    """What one task runs."""

    id: int
    level: int
    ops: tuple[Op, ...]
    links: tuple[Link, ...]
    incoming: tuple[Exchange, ...]
    outgoing: tuple[Exchange, ...]

    @property
    def sources(self) -> tuple[Op, ...]:
        """The operators that read splits."""
        return tuple(op for op in self.ops if op.kind == "source")


@dataclass(frozen=True, slots=True)
class PhysicalPlan:
    """Everything a runner needs to know of a pipeline."""

    name: str
    max_parallelism: int
    stages: tuple[Stage, ...]
    fingerprint: str
    nodes: tuple[Node, ...] = field(repr=False)

    @property
    def levels(self) -> int:
        """How many exchanges lie one after the other, plus one."""
        return 1 + max(stage.level for stage in self.stages)

    @property
    def reads(self) -> tuple[Op, ...]:
        """All source operators."""
        return tuple(op for stage in self.stages for op in stage.ops if op.kind == "source")

    @property
    def writes(self) -> tuple[Op, ...]:
        """All sink operators."""
        return tuple(op for stage in self.stages for op in stage.ops if op.kind == "write")

    @property
    def stateful(self) -> tuple[Op, ...]:
        """All operators with keyed state."""
        return tuple(op for stage in self.stages for op in stage.ops if op.kind in STATEFUL)


STATEFUL = frozenset({"aggregate", "window_aggregate", "reduce", "window_reduce"})

KINDS: dict[type[Node], str] = {
    Read: "source",
    Project: "project",
    Filter: "filter",
    MapRows: "rows",
    MapBatches: "batches",
    Union: "union",
    DeadLetters: "union",
    Split: "split",
    AssignTime: "time",
    Aggregate: "aggregate",
    WindowAggregate: "window_aggregate",
    Reduce: "reduce",
    WindowReduce: "window_reduce",
    Write: "write",
}


def compile_plan(name: str, roots: Sequence[Node], *, max_parallelism: int = 128) -> PhysicalPlan:
    """All passes."""
    nodes = collect(tuple(roots))
    needed = require(nodes)
    stages = place(*lower(nodes, needed), needed)
    return PhysicalPlan(name, max_parallelism, stages, fingerprint(nodes), nodes)


def collect(roots: tuple[Node, ...]) -> tuple[Node, ...]:
    """The nodes in the order rows pass them; names must tell them apart."""
    nodes = tuple(walk(roots))
    seen: dict[tuple[str, str], Node] = {}
    for node in nodes:
        for kind, group in (("source", Read), ("sink", Write), ("step", Keyed)):
            if isinstance(node, group):
                name = getattr(node, "name", "")
                other = seen.setdefault((kind, name), node)
                if other is not node:
                    raise node.error(
                        f"two {kind}s are called {name!r} (the other: {other.where or 'same line'}). Give one of them name="
                    )
        if isinstance(node, AssignTime):
            check_time_at_source(node)
    check_one_clock(nodes)
    if any(getattr(node, "on_error", "") == "dead-letter" for node in nodes) and not any(
        isinstance(n, DeadLetters) for n in nodes
    ):
        raise PlanError(
            'on_error="dead-letter" sends bad rows to the dead-letter output, and nothing reads that.'
            " Write: pipeline.dead_letters.write(...)"
        )
    return nodes


def check_time_at_source(node: AssignTime) -> None:
    """Watermarks are kept per split, so event time is set where splits are still known."""
    for above in walk((node.input,)):
        if isinstance(above, Keyed):
            raise node.error("with_watermark works per split of a source, so it comes before key_by. Say it right after read")


def check_one_clock(nodes: tuple[Node, ...]) -> None:
    """A split has one watermark, which a snapshot stores with its position: two would be mixed up at a restore."""
    clocks: dict[int, AssignTime] = {}
    for node in nodes:
        if isinstance(node, AssignTime):
            for read in (above for above in walk((node,)) if isinstance(above, Read)):
                other = clocks.setdefault(id(read), node)
                if other is not node:
                    raise node.error(
                        f"source {read.name!r} would have two watermarks (the other: {other.where or 'same line'})."
                        " Say with_watermark once and use its stream twice, or read the source twice, each with a name="
                    )


def require(nodes: tuple[Node, ...]) -> dict[int, set[str]]:
    """Which columns of each node's output somebody uses."""
    needed: dict[int, set[str]] = defaultdict(set)
    for node in reversed(nodes):
        mine = needed[id(node)]
        match node:
            case Write() | MapBatches() | Reduce() | WindowReduce():
                needed[id(node.inputs[0])] |= set(node.inputs[0].schema.names)
            case Project():
                made = kept_columns(node, mine)
                needed[id(node.input)] |= {c for _, expr in made for c in expr.columns()} - {TIME_COLUMN}
            case Filter():
                needed[id(node.input)] |= mine | (node.condition.columns() - {TIME_COLUMN})
            case MapRows():
                kept = mine if node.function.kind == "filter" else set()
                needed[id(node.input)] |= kept | set(node.function.columns)
            case Split():
                needed[id(node.input)] |= mine | ({c for _, e in node.conditions for c in e.columns()} - {TIME_COLUMN})
            case AssignTime():
                needed[id(node.input)] |= mine | {node.column}
            case Port(port="late"):
                assert isinstance(node.input, Keyed)
                needed[id(node.input.input)] |= mine
            case Aggregate() | WindowAggregate():
                used = {c for _, aggregate in node.aggregates for c in aggregate.columns()} - {TIME_COLUMN}
                needed[id(node.input)] |= set(node.by) | used
            case _:
                for input in node.inputs:
                    needed[id(input)] |= mine
    return needed


def kept_columns(node: Project, needed: set[str]) -> list[tuple[str, Expr]]:
    """What a projection must make: what somebody uses, and whatever can fail, since its bad rows are somebody's business."""
    return [(name, expr) for name, expr in node.columns if name in needed or expr.columns() != {expr.text()}]


def lower(nodes: tuple[Node, ...], needed: dict[int, set[str]]) -> tuple[list[Op], list[Link], list[Exchange]]:
    """Nodes to operators, and what joins them."""
    ops: list[Op] = []
    links: list[Link] = []
    exchanges: list[Exchange] = []
    made: dict[int, tuple[int, str]] = {}  # node -> (operator, port) its rows leave by
    late_read = {id(node.input) for node in nodes if isinstance(node, Port) and node.port == "late"}

    def add(kind: str, node: Node, name: str, columns: Sequence[str] = ()) -> int:
        ops.append(Op(len(ops), kind, name, node, tuple(columns)))
        return len(ops) - 1

    for node in nodes:
        if isinstance(node, Port):
            made[id(node)] = (made[id(node.input)][0], node.port)
            continue
        columns = [f for f in node.schema.names if f in needed[id(node)]] if isinstance(node, Read) else []
        if isinstance(node, Project):
            columns = [name for name, _ in kept_columns(node, needed[id(node)])]
        if isinstance(node, Keyed):
            source, port = made[id(node.input)]
            if isinstance(node, Aggregate | WindowAggregate) and id(node) not in late_read:
                partial = add("partial", node, f"{node.name}:partial")
                links.append(Link(source, port, partial))
                source, port, schema = partial, "main", partial_schema(node)
            else:
                schema = row_schema(node.input, needed[id(node.input)])
            target = add(KINDS[type(node)], node, node.name, schema.names)
            exchanges.append(Exchange(len(exchanges), source, port, target, node.by, schema))
        else:
            inputs = dead_outputs(ops) if isinstance(node, DeadLetters) else [made[id(input)] for input in node.inputs]
            target = add(KINDS[type(node)], node, getattr(node, "name", "") or f"{KINDS[type(node)]}-{len(ops)}", columns)
            links += [Link(source, port, target) for source, port in inputs]
        made[id(node)] = (target, "main")
    return ops, links, exchanges


def dead_outputs(ops: list[Op]) -> list[tuple[int, str]]:
    """The dead-letter outputs of the operators that have one."""
    return [
        (op.id, "dead")
        for op in ops
        if getattr(op.node, "on_error", "fail") == "dead-letter" and op.kind not in ("write", "union")
    ]


def row_schema(node: Node, columns: set[str]) -> pa.Schema:
    """Rows of a node as they cross an exchange: the columns in use, and event time."""
    fields = [f for f in node.schema if f.name in columns]
    return pa.schema([*fields, pa.field(TIME_COLUMN, TIME_TYPE)] if node.timed else fields)


def accumulators(node: Aggregate | WindowAggregate) -> Accumulators:
    """The vectorised form of a step's aggregates."""
    return Accumulators(node.aggregates, node.input.schema)


def partial_schema(node: Aggregate | WindowAggregate) -> pa.Schema:
    """Partial aggregates as they cross an exchange."""
    window = [pa.field(WINDOW_COLUMN, pa.int64(), nullable=False)] if node.shape else []
    rows = pa.field(ROWS_COLUMN, pa.int64(), nullable=False)
    return pa.schema([*node.by_fields, *window, *accumulators(node).fields, rows])


def place(ops: list[Op], links: list[Link], exchanges: list[Exchange], needed: dict[int, set[str]]) -> tuple[Stage, ...]:
    """Operators into stages. An operator stands as deep as its deepest input; rows from shallower ones are forwarded."""
    depth = [0] * len(ops)
    for op in ops:  # topological order
        depth[op.id] = max(
            [depth[e.source] + 1 for e in exchanges if e.target == op.id]
            + [depth[k.source] for k in links if k.target == op.id]
            + [0]
        )
    links = gather(ops, links, depth)
    near = [link for link in links if depth[link.source] == depth[link.target]]
    far = [link for link in links if depth[link.source] < depth[link.target]]
    exchanges = exchanges + [
        Exchange(len(exchanges) + i, k.source, k.port, k.target, None, port_schema(ops[k.source], k.port, needed))
        for i, k in enumerate(far)
    ]
    stage_of = connected(len(ops), near)
    placed = [replace(e, source_stage=stage_of[e.source], target_stage=stage_of[e.target]) for e in exchanges]
    return tuple(
        Stage(
            s,
            next(depth[op.id] for op in ops if stage_of[op.id] == s),
            tuple(op for op in ops if stage_of[op.id] == s),
            tuple(link for link in near if stage_of[link.source] == s),
            tuple(e for e in placed if e.target_stage == s),
            tuple(e for e in placed if e.source_stage == s),
        )
        for s in range(max(stage_of) + 1)
    )


def gather(ops: list[Op], links: list[Link], depth: list[int]) -> list[Link]:
    """Where several operators of one depth are read by the same deeper one, unite them first: one exchange instead of many."""
    far: dict[tuple[int, int], list[Link]] = defaultdict(list)
    for link in links:
        if depth[link.source] < depth[link.target]:
            far[depth[link.source], link.target].append(link)
    for (level, target), several in far.items():
        if len(several) > 1:
            links = [link for link in links if link not in several]
            ops.append(Op(len(ops), "union", f"gather-{len(ops)}", ops[target].node))
            depth.append(level)
            links += [Link(link.source, link.port, ops[-1].id) for link in several] + [Link(ops[-1].id, "main", target)]
    return links


def connected(count: int, links: list[Link]) -> list[int]:
    """The number of the connected piece each operator lies in."""
    piece = list(range(count))
    for link in links:
        a, b = sorted((piece[link.source], piece[link.target]))
        piece = [a if p == b else p for p in piece]
    order = sorted(set(piece))
    return [order.index(p) for p in piece]


def port_schema(op: Op, port: str, needed: dict[int, set[str]]) -> pa.Schema:
    """The rows of one output as they cross an exchange: the columns in use."""
    if port == "dead":
        return DEAD_SCHEMA
    if port == "late":
        return pa.schema([f for f in row_schema(op.node.inputs[0], set(op.columns)) if f.name in op.columns])
    return row_schema(op.node, needed[id(op.node)])


def fingerprint(nodes: tuple[Node, ...]) -> str:
    """Changes whenever the meaning might have."""
    number = {id(node): i for i, node in enumerate(nodes)}
    lines = [
        f"{i} {node.text()} {[number[id(x)] for x in node.inputs]} {schema_words(node.schema)}" for i, node in enumerate(nodes)
    ]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:32]
