"""What a decision about a restore goes by: the pipeline as it is now, what was asked, what storage holds. And how a refusal is put.

A refusal ends in the call that the user should write. It repeats what the user had written already, so that it can be copied
whole: whoever is told to drop a second thing must not lose the first.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from penstock.checkpoints.envelope import Json
from penstock.checkpoints.manifest import HASH_ID, Columns, Manifest, OperatorEntry
from penstock.errors import Fix, RestoreError
from penstock.state.convert import Wanted

__all__ = ["PipelineFacts", "Refuse", "RestoreFacts", "call", "call_without", "what"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineFacts:
    """The pipeline as it is now.

    `steps`: those with state (their entries without handles); sources and sinks: name to kind.
    """

    name: str
    max_parallelism: int
    hash_id: str = HASH_ID
    steps: tuple[OperatorEntry, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict)
    sinks: Mapping[str, str] = field(default_factory=dict)
    edges: Mapping[tuple[str, int], Columns] = field(default_factory=dict)  # (keyed step, input) -> what comes in
    closes: bool = True  # whether its end closes anything (windows, timers); otherwise it may be run again after it finished
    wanted: Mapping[str, Wanted] = field(default_factory=dict)  # "step.state" -> its columns


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreFacts:
    """What was asked and what was found.

    Args:
        request: "latest", "none" or "savepoint"; with the last, `savepoint` is its manifest and `path` where
        it is.
        new_lineage: a random name, used if a new history of outputs begins.
        rename: old name to new, of steps, sources, states as "step.state", fields as "step.state.field" and aggregates as
        "step.aggregate"; `drop` names them likewise.
        start_empty: aggregates that are new in a step that never closes, as "step.aggregate".
        stored: "step.state" to the columns of its files, where the step keeps others now.
    """

    pipeline: PipelineFacts
    newest: Manifest | None
    new_lineage: str
    request: str = "latest"
    savepoint: Manifest | None = None
    path: str = ""
    rename: Mapping[str, str] = field(default_factory=dict)
    drop: tuple[str, ...] = ()
    start_over_time: bool = False
    start_empty: tuple[str, ...] = ()
    stored: Mapping[str, pa.Schema] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Refuse:
    """Do not start: what a RestoreError says, and what to do about it.

    `asks`: what the fix would have the user say, as ("drop", "step.state").
    """

    message: str
    fix: Fix
    asks: tuple[tuple[str, str], ...] = ()

    def error(self) -> RestoreError:
        """As it is raised."""
        return RestoreError(self.message, fix=self.fix)


def what(facts: RestoreFacts) -> str:
    """What the job would start from, in words."""
    return "the savepoint" if facts.request == "savepoint" else "the newest checkpoint"


def call(facts: RestoreFacts, **more: Json) -> str:
    """What the user should write: what was written, and more."""
    return call_without(facts, "", **more)


def call_without(facts: RestoreFacts, name: str, **more: Json) -> str:
    """What the user wrote, but for what was said of `name`, and more."""
    rename = {**{old: new for old, new in facts.rename.items() if old != name}, **more.get("rename", {})}
    drop = list(dict.fromkeys([*(each for each in facts.drop if each != name), *more.get("drop", ())]))
    over = facts.start_over_time or more.get("start_over_time", False)
    empty = list(dict.fromkeys([*(each for each in facts.start_empty if each != name), *more.get("start_empty", ())]))
    said: dict[str, Json] = {"rename": rename, "drop": drop, "start_over_time": over, "start_empty": empty}
    return _call(facts, {option: value for option, value in said.items() if value})


def _call(facts: RestoreFacts, said: Mapping[str, Json]) -> str:
    where = _literal(facts.path if facts.request == "savepoint" else facts.request)
    return f"pen.Restore({', '.join([where, *(f'{name}={_literal(value)}' for name, value in said.items())])})"


def _literal(value: Json) -> str:
    """Python, with double quotes as in the documentation."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_literal(key)}: {_literal(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_literal(item) for item in value) + "]"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)
