"""Both plans as text, and what the pipeline really guarantees."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.plan.guarantee import guarantees
from penstock.plan.logical import Node, walk
from penstock.plan.physical import Op, PhysicalPlan


def explain_node(node: Node) -> str:
    """The steps up to a node, inputs first."""
    nodes = list(walk((node,)))
    return "\n".join(node_lines(nodes))


def explain_plan(plan: PhysicalPlan, runner: Mapping[str, object] | None = None) -> str:
    """Logical plan, physical plan, guarantee and, if a runner is given, its options with where each value comes from."""
    lines = [f"pipeline {plan.name}", "", "logical plan", *("  " + line for line in node_lines(list(plan.nodes)))]
    lines += ["", f"physical plan (max parallelism {plan.max_parallelism})"]
    for stage in plan.stages:
        lines.append(f"  stage {stage.id}, level {stage.level}")
        lines += [f"    {op_text(op)}" for op in stage.ops]
        for exchange in stage.outgoing:
            way = (
                "forward"
                if exchange.keys is None
                else f"by key group of {', '.join(exchange.keys)}"
                if exchange.keys
                else "to every task"
            )
            columns = ", ".join(exchange.schema.names)
            lines.append(f"    -> stage {exchange.target_stage} {way}: {columns}")
    lines += ["", *(f"guarantee  {text}" for text in guarantees(plan, str(runner["name"]) if runner else "any runner"))]
    if runner:
        lines += ["", "options", *(f"  {name} = {value}" for name, value in runner.items() if name != "name")]
    return "\n".join(lines)


def node_lines(nodes: list[Node]) -> list[str]:
    """One numbered line per node: what, from which, at which line of the user's."""
    number = {id(node): i for i, node in enumerate(nodes)}
    lines = []
    for i, node in enumerate(nodes):
        inputs = f" <- {', '.join(str(number[id(n)]) for n in node.inputs)}" if node.inputs else ""
        lines.append(f"{i:>2} {node.text()}{inputs}" + (f"  [{node.where}]" if node.where else ""))
    return lines


def op_text(op: Op) -> str:
    """One line for an operator of the physical plan."""
    decoded = f" columns {', '.join(op.columns)}" if op.kind == "source" else ""
    skipped = f" where {' and '.join(bound.text() for bound in op.bounds)}" if op.bounds else ""
    return f"{op.kind} {op.name}{decoded}{skipped}"
