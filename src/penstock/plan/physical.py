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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from penstock.connectors.connector import Bound
from penstock.errors import Fix, PlanError
from penstock.plan.bounds import source_bounds
from penstock.plan.keyed import Keyed, Stateful
from penstock.plan.logical import (
    DEAD_SCHEMA,
    AssignTime,
    DeadLetters,
    Filter,
    Node,
    Port,
    Project,
    Read,
    Write,
    schema_words,
    walk,
)

Needed = Mapping[int, Mapping[str, set[str]]]
"""By node and port: the columns that somebody uses."""


@dataclass(frozen=True, slots=True)
class Link:
    """Rows leaving `port` of operator `source` go to operator `target` of the same stage, as its input number `input`."""

    source: int
    port: str
    target: int
    input: int = 0


@dataclass(frozen=True, slots=True)
class Exchange:
    """Rows leaving `port` of operator `source` go to another stage: by key group, to the task of the same number (`keys` is None),
    or to every task (`keys` is empty)."""

    id: int
    source: int
    port: str
    target: int
    keys: tuple[str, ...] | None
    schema: pa.Schema
    input: int = 0
    source_stage: int = -1
    target_stage: int = -1


@dataclass(frozen=True, slots=True)
class Op:
    """One operator: `kind` says which, `node` what the user asked of it. `name` is its identity in snapshots where it keeps anything."""

    id: int
    kind: str
    name: str
    node: Node
    columns: tuple[str, ...] = ()  # of a source: what to decode; of a projection: what to make; of a filter: what to pass on;
    # of a keyed step: what it gets
    bounds: tuple[Bound, ...] = ()  # of a source: what the rows have in common that are not dropped at once

    @property
    def who(self) -> str:
        """As errors name it: with the line of the user's program, since not every name was given by the user."""
        what = self.kind if self.kind == "source" else "sink" if self.kind == "write" else "step"
        return f"{what} {self.name!r}" + (f" ({self.node.where})" if self.node.where else "")


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
        """All operators with state that snapshots hold."""
        return tuple(op for stage in self.stages for op in stage.ops if isinstance(op.node, Stateful) and op.kind != "partial")


_IN_A_NOTEBOOK = "In a notebook, run the cells again that make the pipeline and its streams"


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
        # Sources and steps are found by name in one place, sinks in another.
        for kind, group, space in (("source", Read, "in"), ("sink", Write, "out"), ("step", Stateful, "in")):
            if isinstance(node, group):
                name = getattr(node, "name", "")
                other = seen.setdefault((space, name), node)
                if other is not node:
                    both = f"two {kind}s are" if isinstance(other, group) else "a source and a step are both"
                    raise node.error(
                        f"{both} called {name!r} (the other: {other.where or 'same line'})",
                        fix=Fix(
                            "plan.same-name", f'{_IN_A_NOTEBOOK}; otherwise give one of them another name. Write: name="{name}-2"'
                        ),
                    )
        if isinstance(node, AssignTime):
            check_time_at_source(node)
    check_one_clock(nodes)
    sent = any(getattr(node, "on_error", "") == "dead-letter" for node in nodes)
    read = next((node for node in nodes if isinstance(node, DeadLetters)), None)
    if read is not None and not sent:
        raise read.error(
            "no step sends dead letters, so there is nothing to read",
            fix=Fix("dead-letters.none", 'Say it at the pipeline, or at a step. Write: on_error="dead-letter"'),
        )
    if sent and read is None:
        raise PlanError(
            'on_error="dead-letter" sends bad rows to the dead-letter output, and nothing reads that',
            fix=Fix(
                "dead-letters.unread",
                "Give them a sink. Write: pipeline.dead_letters.write(sinks.console()), or pipeline.dead_letters.write(sinks.discard())",
            ),
        )
    return nodes


def check_time_at_source(node: AssignTime) -> None:
    """Watermarks are kept per split, so event time is set where splits are still known."""
    for above in walk((node.input,)):
        if isinstance(above, Stateful):
            step = "key_by" if isinstance(above, Keyed) else above.verb
            raise node.error(
                f"with_watermark works per split of a source, so it comes before {step}",
                fix=Fix("watermark.late", "Say it right after read"),
            )


def check_one_clock(nodes: tuple[Node, ...]) -> None:
    """A split has one watermark, which a snapshot stores with its position: two would be mixed up at a restore."""
    clocks: dict[int, AssignTime] = {}
    for node in nodes:
        if isinstance(node, AssignTime):
            for read in (above for above in walk((node,)) if isinstance(above, Read)):
                other = clocks.setdefault(id(read), node)
                if other is not node:
                    raise node.error(
                        f"source {read.name!r} would have two watermarks (the other: {other.where or 'same line'})",
                        fix=Fix(
                            "watermark.two",
                            "Say with_watermark once and use its stream twice, or read the source twice, with another name."
                            f' Write: name="{read.name}-2"',
                        ),
                    )


def require(nodes: tuple[Node, ...]) -> Needed:
    """Which columns of each node's outputs somebody uses."""
    needed: dict[int, dict[str, set[str]]] = {id(node): defaultdict(set) for node in nodes}
    for node in reversed(nodes):
        used = needed[id(node)]
        if isinstance(node, Port):
            needed[id(node.input)][node.port] |= used["main"]
            continue
        for input, columns in zip(node.inputs, node.needs(used), strict=True):
            needed[id(input)]["main"] |= columns
    return needed


def lower(nodes: tuple[Node, ...], needed: Needed) -> tuple[list[Op], list[Link], list[Exchange]]:
    """Nodes to operators, and what joins them."""
    ops: list[Op] = []
    links: list[Link] = []
    exchanges: list[Exchange] = []
    made: dict[int, tuple[int, str]] = {}  # node -> (operator, port) its rows leave by
    late_read = {id(node.input) for node in nodes if isinstance(node, Port) and node.port.startswith("late")}

    def add(kind: str, node: Node, name: str, columns: Sequence[str] = (), bounds: Sequence[Bound] = ()) -> int:
        ops.append(Op(len(ops), kind, name, node, tuple(columns), tuple(bounds)))
        return len(ops) - 1

    def lower_keyed(node: Keyed) -> int:
        ways = []
        for input, by in node.sides:
            source, port = made[id(input)]
            schema = row_schema(input, needed[id(input)]["main"])
            # Late rows that somebody reads must arrive as they are.
            if (folded := node.partial()) is not None and id(node) not in late_read:
                partial = add("partial", node, f"{node.name}:partial")
                links.append(Link(source, port, partial))
                source, port, schema = partial, "main", folded
            ways.append((source, port, by, schema))
        columns = [name for *_, schema in ways for name in schema.names] if len(ways) == 1 else []
        target = add(node.kind, node, node.name, columns)
        for number, (source, port, by, schema) in enumerate(ways):
            exchanges.append(Exchange(len(exchanges), source, port, target, by, schema, number))
        return target

    for node in nodes:
        if isinstance(node, Port):
            made[id(node)] = (made[id(node.input)][0], node.port)
        elif isinstance(node, Keyed):
            made[id(node)] = (lower_keyed(node), "main")
        else:
            used = needed[id(node)]["main"]
            columns = [f for f in node.schema.names if f in used] if isinstance(node, Read | Filter) else []
            bounds = source_bounds(node, nodes) if isinstance(node, Read) else ()
            if isinstance(node, Project):
                columns = [name for name, _ in node.kept(used)]
            inputs = dead_outputs(ops) if isinstance(node, DeadLetters) else [made[id(input)] for input in node.inputs]
            target = add(node.kind, node, getattr(node, "name", "") or f"{node.kind}-{len(ops)}", columns, bounds)
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
    """Rows of a node as they cross an exchange: the columns in use, and the hidden ones."""
    return pa.schema([*(f for f in node.schema if f.name in columns), *node.hidden])


def place(ops: list[Op], links: list[Link], exchanges: list[Exchange], needed: Needed) -> tuple[Stage, ...]:
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


def port_schema(op: Op, port: str, needed: Needed) -> pa.Schema:
    """The rows of one output as they cross an exchange: the columns in use."""
    if port == "dead":
        return DEAD_SCHEMA
    return row_schema(op.node.output(port), needed[id(op.node)][port])


def fingerprint(nodes: tuple[Node, ...]) -> str:
    """Changes whenever the meaning might have."""
    number = {id(node): i for i, node in enumerate(nodes)}
    lines = [
        f"{i} {node.text()} {[number[id(x)] for x in node.inputs]} {schema_words(node.schema)}" for i, node in enumerate(nodes)
    ]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:32]
