"""What of a checkpoint users can name, and what it is called now.

    step                a step or a source
    step.state          a state of a process function, with all that belongs to it
    step.state.field    a field of the class that it holds; of a class in that, `step.state.field.inner`
    step.aggregate      an aggregate of a step, with all that it keeps

1. The tables of any other step are its own: `counts` of a window of so many rows is no name for users, who may call an aggregate so.
   Such a step is kept or dropped as a whole. What a process function has besides the states of its class goes together too: `TOGETHER`.
2. A name is a tuple of its parts, since steps and aggregates may have dots in theirs. What is renamed takes what is in it along:
   `rename={"a": "b", "a.n": "b.c"}` says what `a.n` is called within `b`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa

from penstock.checkpoints.envelope import Json
from penstock.checkpoints.facts import RestoreFacts, call_without
from penstock.checkpoints.manifest import Manifest, OperatorEntry
from penstock.state.convert import Path, paths

__all__ = [
    "Name",
    "Table",
    "dropping",
    "formerly",
    "is_aggregate",
    "is_dropped",
    "is_step",
    "moved",
    "named",
    "place_of",
    "states_of",
    "stored_names",
    "table_of",
    "wanted_names",
]

Name = tuple[str, ...]

VALUE, ENTRIES, SENT = "value", "__values", "__sent."
CHUNKS = "-chunks"
APART = ("sizes", "chunks", "counts")
"""What the tables of an aggregate or a list with many values per key are called, behind its name."""

TOGETHER = {
    "order-buckets": "order-rows",
    "order-due": "order-rows",
    "event-due": "event-timers",
    "processing-due": "processing-timers",
}
"""Of a process function: tables that mean nothing without each other. Names of states that a class has are without a dash."""


def named(operator: OperatorEntry, table: str) -> str | None:
    """The state or aggregate that a table belongs to: what becomes of it becomes of the table. None: it is the step's own."""
    owned, _, kind = table.rpartition("-")
    if operator.kind == "process":
        return owned if kind in APART else TOGETHER.get(table, table)
    return owned if kind in APART and is_aggregate(operator) else None


def is_aggregate(operator: OperatorEntry) -> bool:
    """Whether it is a step with aggregates."""
    return operator.kind.endswith("aggregate")


def is_step(manifest: Manifest, name: str) -> bool:
    """Whether it is the name of a step, dots and all."""
    return any(operator.name == name for operator in manifest.operators)


@dataclass(frozen=True, slots=True)
class Table:
    """What the columns of a table are called. `grows`: see `state.convert.Wanted`."""

    step: str
    table: str
    grows: str
    goes_with: str | None = None  # of tables of functions that hold no classes

    @property
    def whole(self) -> Name:
        """What can be dropped of it as a whole: a state of a function, otherwise only the step."""
        state = self.table.removesuffix(CHUNKS) if self.grows == "fields" else self.goes_with
        return (self.step,) if state is None else (self.step, state)

    def aggregate(self, path: Path) -> str | None:
        """The aggregate that a column belongs to, if there are aggregates and it is of one."""
        column = path[0].removeprefix(SENT)
        if self.grows != "aggregates" or column.startswith("__"):
            return None
        return column if path[0].startswith(SENT) else column.rpartition(".")[0]

    def name(self, path: Path) -> Name | None:
        """What a user calls it; None for what is no business of users."""
        if self.grows == "aggregates" and len(path) == 1 and (aggregate := self.aggregate(path)) is not None:
            return self.step, aggregate
        if self.grows == "fields" and len(path) > 1 and path[0] in (VALUE, ENTRIES):
            return *self.whole, *path[1:]
        return None

    def names(self, columns: pa.Schema | None) -> Iterator[Name]:
        """All of its columns' names."""
        return (name for path in paths(columns or ()) if (name := self.name(path)) is not None)


def table_of(operator: OperatorEntry, table: str) -> Table:
    """A table as it is stored."""
    of, kept = named(operator, table), operator.kind == "process"
    grows = "fields" if kept and of is not None and "-" not in of else "aggregates" if is_aggregate(operator) else ""
    return Table(operator.name, table, grows, of if kept else None)


def stored_names(manifest: Manifest, facts: RestoreFacts) -> dict[str, Name]:
    """Everything that `rename` and `drop` can speak of, by what the user writes."""
    names: list[Name] = []
    for operator in manifest.operators:
        if operator.states:
            names += [(operator.name,), *states_of(operator)]
    names += [(source.name,) for source in manifest.sources]
    for operator in manifest.operators:
        for state in operator.states:
            names += table_of(operator, state.name).names(facts.stored.get(f"{operator.name}.{state.name}"))
    return _by_text(names)


def wanted_names(facts: RestoreFacts) -> dict[str, Name]:
    """What of the pipeline can be called so: a state of a function only if its class has it."""
    names: list[Name] = [(source,) for source in facts.pipeline.sources]
    for step in facts.pipeline.steps:
        names += [(step.name,), *(name for name in states_of(step) if "-" not in name[1])]
        for state in step.states:
            if wanted := facts.pipeline.wanted.get(f"{step.name}.{state.name}"):
                names += Table(step.name, state.name, wanted.grows).names(wanted.values)
    return _by_text(names)


def states_of(operator: OperatorEntry) -> list[Name]:
    """The states of a process function that can be dropped."""
    own = (named(operator, state.name) for state in operator.states) if operator.kind == "process" else ()
    return [(operator.name, name) for name in dict.fromkeys(own) if name is not None]


def _by_text(names: list[Name]) -> dict[str, Name]:
    found: dict[str, Name] = {}
    for name in names:
        found.setdefault(".".join(name), name)
    return found


# --- what was said of names


def moved(rename: Mapping[str, str], name: Name) -> str:
    """What it is called now: as was said of it, or of what it is in."""
    text = ".".join(name)
    if text in rename or len(name) == 1:
        return rename.get(text, text)
    return f"{moved(rename, name[:-1])}.{name[-1]}"


def formerly(rename: Mapping[str, str], name: Name) -> str:
    """What was called before what is called so now."""
    text = ".".join(name)
    for old, new in rename.items():
        if new == text:
            return old
    return text if len(name) == 1 else f"{formerly(rename, name[:-1])}.{name[-1]}"


def dropping(facts: RestoreFacts, name: str, **more: Json) -> str:
    """What the user should write to forget it, whatever was said of it."""
    return call_without(facts, name, drop=[name], **more)


def is_dropped(facts: RestoreFacts, name: Name) -> bool:
    """Whether it, or what it is in, is to be forgotten."""
    return any(".".join(name[:parts]) in facts.drop for parts in range(1, len(name) + 1))


def place_of(manifest: Manifest, facts: RestoreFacts, operator: OperatorEntry, table: str) -> tuple[str, str] | None:
    """The step and the name of a table after what was said; None if it is dropped."""
    step, of = facts.rename.get(operator.name, operator.name), named(operator, table)
    if operator.name in facts.drop:
        return None
    if of is None or is_step(manifest, f"{operator.name}.{of}"):
        return step, table
    if is_dropped(facts, (operator.name, of)):
        return None
    rest = table.removeprefix(of) if table.startswith(of) else None
    new = moved(facts.rename, (operator.name, of)).removeprefix(f"{step}.")
    return step, table if rest is None else new + rest
