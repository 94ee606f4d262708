"""Which guarantee a source, a runner and a sink really give together; never more than that.

| source | sink | label |
|---|---|---|
| replayable | transactional | exactly-once |
| replayable | idempotent by key or token | effectively-once |
| replayable | neither | at-least-once |
| cannot be read again | any | at-most-once: what was in flight in a crash is gone |
"""

from __future__ import annotations

from penstock.plan.logical import DeadLetters, Read, Write, walk
from penstock.plan.physical import PhysicalPlan

LABELS = {"transactional": "exactly-once", "idempotent": "effectively-once", "at-least-once": "at-least-once"}


def label(source_replayable: bool, sink_kind: str) -> str:
    """The label of one source and sink."""
    return LABELS[sink_kind] if source_replayable else "at-most-once"


def guarantees(plan: PhysicalPlan, runner: str) -> list[str]:
    """One line per sink and source that feeds it."""
    lines = []
    for write in (node for node in plan.nodes if isinstance(node, Write)):
        above = list(walk((write,)))
        if any(isinstance(node, DeadLetters) for node in above):  # they may come from anywhere
            above = list(plan.nodes)
        for read in (node for node in above if isinstance(node, Read)):
            text = label(read.source.replayable, write.sink.kind)
            lines.append(
                f"{text:<16} {read.name} ({read.source.describe()}) -> {runner} -> {write.name} ({write.sink.describe()})"
            )
    return lines
