"""Who is connected to whom in a stage: read off the plan once, when a task is made."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock.operators.operator import TIME_COLUMN
from penstock.plan.physical import Exchange, Link, Stage
from penstock.protocol.messages import SOURCES


@dataclass(frozen=True, slots=True)
class InputChannel:
    """Input `number` of a task: what task `source` of the upstream stage sends over an exchange."""

    number: int
    exchange: int
    source: int


def input_channels(stage: Stage, index: int, parallelism: int) -> list[InputChannel]:
    """The channels into task `index` of a stage, numbered the same way by everybody."""
    ends = [(e.id, s) for e in stage.incoming for s in ([index] if e.keys is None else range(parallelism))]
    return [InputChannel(number, exchange, source) for number, (exchange, source) in enumerate(ends)]


def task_name(stage: int, index: int) -> str:
    """How an attempt calls its tasks."""
    return f"stage {stage} task {index}"


def column_texts(schema: pa.Schema) -> list[list[Any]]:
    """The columns of an exchange, for comparing them across restarts."""
    return [[field.name, str(field.type), field.nullable] for field in schema]


@dataclass(frozen=True, slots=True)
class Routes:
    """Where each operator's rows and time go."""

    links: Mapping[tuple[int, str], list[Link]]  # (operator, port) -> where its rows go within the stage
    exchanges: Mapping[tuple[int, str], list[Exchange]]
    readers: Mapping[int, list[int]]  # operator -> operators of the stage that read any of its ports
    leaving: Mapping[int, list[Exchange]]  # operator -> exchanges that carry any of its ports


def routes(stage: Stage) -> Routes:
    """The wiring of a stage."""
    links: dict[tuple[int, str], list[Link]] = defaultdict(list)
    exchanges: dict[tuple[int, str], list[Exchange]] = defaultdict(list)
    readers: dict[int, list[int]] = defaultdict(list)
    leaving: dict[int, list[Exchange]] = defaultdict(list)
    for link in stage.links:
        links[link.source, link.port].append(link)
        if link.target not in readers[link.source]:
            readers[link.source].append(link.target)
    for exchange in stage.outgoing:
        exchanges[exchange.source, exchange.port].append(exchange)
        leaving[exchange.source].append(exchange)
    return Routes(links, exchanges, readers, leaving)


def entrances(stage: Stage, op: int) -> list[object]:
    """Where an operator's rows come in: operators of the stage, exchanges, the splits."""
    upstream: list[object] = list(dict.fromkeys(link.source for link in stage.links if link.target == op))
    edges: list[object] = [("edge", e.id) for e in stage.incoming if e.target == op]
    return upstream + edges + ([SOURCES] if any(s.id == op for s in stage.sources) else [])


def untimed(stage: Stage) -> list[tuple[int, object]]:
    """Inputs that have no time where another input of the same operator has: they hold nobody back."""
    timed = {e.target for e in stage.incoming if TIME_COLUMN in e.schema.names}
    return [
        (e.target, ("edge", e.id))
        for e in stage.incoming
        if e.keys == () and e.target in timed and TIME_COLUMN not in e.schema.names
    ]


def below(stage: Stage, op: int) -> set[int]:
    """The operators of the stage that rows of this one can reach."""
    reached = {op}
    for link in stage.links:  # links go forward, and are in topological order of their targets
        if link.source in reached:
            reached.add(link.target)
    return reached
