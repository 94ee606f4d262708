"""What a job starts from, decided without reading or writing anything.

The runner gathers the facts (what was asked, what storage holds, what the pipeline is), `decide_restore`
answers with one of five decisions, and the runner carries it out. Each refusal is a sentence with its fix,
given before the first row is read.

1. `restore="none"`: **StartEmpty**, in a new lineage. `"latest"` with no checkpoint: the same. `"latest"`:
   **Resume**, in the same lineage. A savepoint: **ForkFrom**, a new lineage with (lineage, epoch) of the
   savepoint as its parent.
2. Whatever is started, what storage has published and not confirmed is committed first (`settle`): it was
   promised.
3. State is found by the name of its step. State nobody asks for is refused (it would be lost in silence), a
   step without state starts empty.
4. State is only as good as what it was computed with: keys, window parameters, columns, `max_parallelism` and
   the hash must be the same.
5. Rows in flight are rows of the steps they were on their way to: those must still be there and take the same columns.
6. A finished checkpoint is at the end of event time, so every further row would be late: refused, unless
   event time starts over. One whose commits are unconfirmed is **Concluded**: they are committed, and that is all.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from penstock.checkpoints.envelope import Json, canonical
from penstock.checkpoints.manifest import HASH_ID, Columns, Manifest, OperatorEntry, SourceEntry, StateEntry

__all__ = [
    "Conclude",
    "Decision",
    "ForkFrom",
    "PipelineFacts",
    "Refuse",
    "RestoreFacts",
    "Resume",
    "StartEmpty",
    "decide_restore",
]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreFacts:
    """What was asked and what was found.

    Args:
        request: "latest", "none" or "savepoint"; with the last, `savepoint` is its manifest and `path` where
        it is.
        new_lineage: a random name, used if a new history of outputs begins.
        rename: old name to new, of steps, sources, or states as "step.state"; `drop` names them likewise.
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


@dataclass(frozen=True, slots=True)
class StartEmpty:
    """Begin with nothing, in `lineage`, once the pending epochs of `settle` are committed."""

    lineage: str
    settle: Manifest | None = None


@dataclass(frozen=True, slots=True)
class Resume:
    """Go on from `manifest` in its own lineage, once its pending epochs are committed."""

    manifest: Manifest


@dataclass(frozen=True, slots=True)
class ForkFrom:
    """Begin from a savepoint's `manifest` in a new `lineage`, once what `settle` has pending is committed."""

    manifest: Manifest
    lineage: str
    parent: tuple[str, int]
    settle: Manifest | None = None


@dataclass(frozen=True, slots=True)
class Conclude:
    """The job had finished, perhaps but for committing what `manifest` lists as pending: do that, and end.

    `refusal` is what to say if that had been done already.
    """

    manifest: Manifest
    refusal: str


@dataclass(frozen=True, slots=True)
class Refuse:
    """Do not start. `message` is the text of a RestoreError."""

    message: str


Decision: TypeAlias = StartEmpty | Resume | ForkFrom | Conclude | Refuse


def decide_restore(facts: RestoreFacts) -> Decision:
    """What to start from."""
    assert facts.request in ("latest", "none", "savepoint"), f"unknown request {facts.request!r}"
    assert (facts.savepoint is not None) == (facts.request == "savepoint"), "a savepoint goes with the request for one"
    unsettled = facts.newest if facts.newest is not None and facts.newest.pending else None
    if unsettled is not None:
        for message in _unsettled(unsettled, facts.pipeline):
            return Refuse(message)
    if unsettled is not None and unsettled.finished and facts.request == "latest" and not facts.start_over_time:
        return Conclude(unsettled, next(_differences(unsettled, facts)))
    chosen = facts.savepoint if facts.request == "savepoint" else facts.newest
    if facts.request == "none" or chosen is None:
        return StartEmpty(facts.new_lineage, unsettled)
    for message in _mistakes(chosen, facts):
        return Refuse(message)
    manifest = _with_options(chosen, facts)
    for message in _differences(manifest, facts):
        return Refuse(message)
    if facts.start_over_time:
        manifest = _started_over(manifest)
    if facts.request == "latest":
        return Resume(manifest)
    return ForkFrom(manifest, facts.new_lineage, (chosen.lineage, chosen.epoch), unsettled)


def _unsettled(manifest: Manifest, pipeline: PipelineFacts) -> Iterator[str]:
    for entry in manifest.pending:
        if entry.sink not in pipeline.sinks:
            yield (
                f"epoch {entry.epoch} is published and its rows for sink {entry.sink!r} are not confirmed, "
                "and this pipeline has no such sink. "
                f"Its sinks: {_list(pipeline.sinks)}.\n  Start it once with the sink, stop it, then remove "
                "the sink"
            )


def _mistakes(manifest: Manifest, facts: RestoreFacts) -> Iterator[str]:
    """Options that do not mean anything."""
    known = set(_names(manifest))
    targets = set(facts.pipeline.sources)
    for step in facts.pipeline.steps:
        targets |= {step.name, *(f"{step.name}.{state.name}" for state in step.states)}
    for option, names in (("rename", tuple(facts.rename)), ("drop", facts.drop)):
        for name in names:
            if name not in known:
                yield (
                    f"{option} names {name!r}, and {_what(facts)} has no such step. It has: "
                    f"{_list(_names(manifest))}{_close(name, known)}"
                )
    for old, new in facts.rename.items():
        if new not in targets:
            yield (
                f"rename says that {old!r} is now {new!r}, and this pipeline has no such step. It has: "
                f"{_list(targets)}{_close(new, targets)}"
            )
        if old in facts.drop:
            yield f"{old!r} is both renamed and dropped: choose one"
        if "." in old and not _is_step(manifest, old) and old.split(".")[0] in facts.rename:
            yield f"{old!r} is renamed, and so is its step. Rename the step alone, or keep its name"
    left = [facts.rename.get(name, name) for name in _names(manifest) if name not in facts.drop]
    for name in left:
        if left.count(name) > 1:
            yield (f"after rename, {_what(facts)} has {name!r} twice. Drop one of them: {_restore(facts, drop=[name])}")


def _differences(manifest: Manifest, facts: RestoreFacts) -> Iterator[str]:
    """Why this manifest does not fit this pipeline; the most basic reason first."""
    yield from _as_a_whole(manifest, facts)
    yield from _states(manifest, facts)
    yield from _positions(manifest, facts)
    yield from _in_flight(manifest, facts)


def _as_a_whole(manifest: Manifest, facts: RestoreFacts) -> Iterator[str]:
    """Another pipeline, a finished one, or keys that are divided in another way."""
    pipeline, what = facts.pipeline, _what(facts)
    steps = [step.name for step in pipeline.steps]
    kept = [operator.name for operator in _stateful(manifest)] + [source.name for source in manifest.sources]
    if manifest.pipeline != pipeline.name and kept and not set(kept) & (set(steps) | set(pipeline.sources)):
        yield (
            f"{what} is of pipeline {manifest.pipeline!r}, and this is {pipeline.name!r}: no step or source "
            "has the same name. "
            f"It has {_list(kept)}; this pipeline has {_list([*steps, *pipeline.sources])}.\n  Restore a "
            f"savepoint of {pipeline.name!r}"
        )
    if manifest.finished and not facts.start_over_time:
        yield (
            f"{what} is finished: its input had ended and all windows were closed, so event time is at its "
            "end and every further row would be late.\n"
            '  To start empty: restore="none". To keep the state and start event time over: '
            f"{_restore(facts, start_over_time=True)}"
        )
    if manifest.max_parallelism != pipeline.max_parallelism:
        yield (
            f"{what} was made with max_parallelism={manifest.max_parallelism}, and this pipeline has "
            f"{pipeline.max_parallelism}: "
            "its state is divided by that number.\n"
            f"  Write: pen.Pipeline({pipeline.name!r}, max_parallelism={manifest.max_parallelism}). The "
            "parallelism itself may change freely"
        )
    if manifest.hash_id != pipeline.hash_id:
        yield (
            f"{what} divides keys by {manifest.hash_id!r}, and this Penstock by {pipeline.hash_id!r}. Use "
            "the version of Penstock that wrote it "
            f"({manifest.penstock})"
        )


def _stateful(manifest: Manifest) -> list[OperatorEntry]:
    return [operator for operator in manifest.operators if operator.states]


def _states(manifest: Manifest, facts: RestoreFacts) -> Iterator[str]:
    """State without a step, or with one that it does not fit."""
    steps = {step.name: step for step in facts.pipeline.steps}
    for operator in _stateful(manifest):
        if operator.name in steps:
            yield from _step(operator, steps[operator.name], facts)
        else:
            yield _unknown(
                operator.name,
                f"state of step {operator.name!r}",
                "step",
                "stateful steps",
                list(steps),
                facts,
                manifest,
            )


def _positions(manifest: Manifest, facts: RestoreFacts) -> Iterator[str]:
    """Positions without a source, or with one of another kind."""
    pipeline = facts.pipeline
    for source in manifest.sources:
        if source.name not in pipeline.sources:
            if source.splits:
                positions = f"positions of source {source.name!r}"
                yield _unknown(source.name, positions, "source", "sources", list(pipeline.sources), facts, manifest)
        elif source.kind != pipeline.sources[source.name]:
            yield (
                f"source {source.name!r} was {source.kind!r} in {_what(facts)} and is "
                f"{pipeline.sources[source.name]!r} now: its positions mean nothing there.\n"
                "  Give the new source another name, and drop the old one: "
                f"{_restore(facts, drop=[source.name])}"
            )


def _in_flight(manifest: Manifest, facts: RestoreFacts) -> Iterator[str]:
    """Rows that were on their way to a step fit only that step, as it was."""
    for entry in manifest.in_flight:
        now = facts.pipeline.edges.get((entry.step, entry.input))
        if now == entry.columns:
            continue
        found = "which has no such input now" if now is None else f"which takes columns ({_texts(now)}) now"
        yield (
            f"{_what(facts)} holds rows in flight, on their way to step {entry.step!r} with columns ({_texts(entry.columns)}), "
            f"{found}.\n  Run the pipeline once more as it was, and stop it or take a savepoint: neither holds rows in flight. "
            "Then change it"
        )


def _texts(columns: Columns) -> str:
    return ", ".join(f"{name} {type_}{'' if nullable else ' not null'}" for name, type_, nullable in columns)


def _step(old: OperatorEntry, new: OperatorEntry, facts: RestoreFacts) -> Iterator[str]:
    what = f"step {new.name!r}"
    fix = f"\n  Put it back, or start the step empty: {_restore(facts, drop=[new.name])}"
    if old.kind != new.kind:
        yield (f"{what} was a {old.kind} in {_what(facts)} and is a {new.kind} now: one cannot read the other's state.{fix}")
    if old.version > new.version:
        yield (
            f"{what} has state of version {old.version}, and this Penstock knows {new.version}. Use a later version of Penstock"
        )
    if old.version < new.version:
        yield (f"{what} has state of version {old.version}, and this Penstock writes {new.version} and cannot convert it.{fix}")
    if old.keys != new.keys:
        yield (
            f"{what} was keyed by {_keys(old)} in {_what(facts)} and is keyed by {_keys(new)} now: its state "
            f"would be under the wrong keys.{fix}"
        )
    if canonical(old.params) != canonical(new.params):
        yield (
            f"{what} had {_params(old.params, new.params)} in {_what(facts)} and has {_params(new.params, old.params)} now.{fix}"
        )
    states = {state.name: state for state in new.states}
    for state in old.states:
        full = f"{old.name}.{state.name}"
        if state.name not in states:
            yield (
                f"{_what(facts)} has state {full!r}, and {what} keeps no such state now. It keeps: "
                f"{_list(states)}.\n"
                "  If it was renamed: "
                f"{_restore(facts, rename={full: f'{new.name}.{_nearest(state.name, list(states))}'})}. "
                f"If it was removed: {_restore(facts, drop=[full])}"
            )
        else:
            yield from _state(full, state, states[state.name], facts)


def _state(name: str, old: StateEntry, new: StateEntry, facts: RestoreFacts) -> Iterator[str]:
    fix = f"\n  Put it back, or drop it: {_restore(facts, drop=[name])}"
    if old.kind != new.kind:
        yield f"state {name!r} was a {old.kind} in {_what(facts)} and is a {new.kind} now.{fix}"
    if old.changes != new.changes:
        yield (f"state {name!r} was kept for {old.changes} rows in {_what(facts)} and is kept for {new.changes} rows now.{fix}")
    before, after = _columns(old), _columns(new)
    if before != after:
        yield (
            f"state {name!r} has columns ({_list(before)}) in {_what(facts)} and ({_list(after)}) now; "
            f"columns are not converted yet.{fix}"
        )


def _with_options(manifest: Manifest, facts: RestoreFacts) -> Manifest:
    """The manifest under the names of this pipeline, without what is dropped."""
    rename, drop = facts.rename, facts.drop
    operators = []
    for operator in manifest.operators:
        if operator.name in drop:
            continue
        states = []
        for state in operator.states:
            full = f"{operator.name}.{state.name}"
            if full not in drop or _is_step(manifest, full):
                renamed = rename.get(full, full) if not _is_step(manifest, full) else full
                states.append(replace(state, name=renamed.rpartition(".")[2] if renamed != full else state.name))
        operators.append(replace(operator, name=rename.get(operator.name, operator.name), states=tuple(states)))
    sources: list[SourceEntry] = [
        replace(source, name=rename.get(source.name, source.name)) for source in manifest.sources if source.name not in drop
    ]
    in_flight = tuple(replace(e, step=rename.get(e.step, e.step)) for e in manifest.in_flight if e.step not in drop)
    cut = manifest.cut if in_flight else "aligned"
    return replace(manifest, operators=tuple(operators), sources=tuple(sources), in_flight=in_flight, cut=cut)


def _started_over(manifest: Manifest) -> Manifest:
    """The same state and positions with event time unset: no floors, no watermarks, no split ended."""
    operators = tuple(
        replace(operator, watermarks=(), states=tuple(replace(state, floors=()) for state in operator.states))
        for operator in manifest.operators
    )
    sources = tuple(
        replace(
            source,
            splits={id: replace(split, watermark=None, ended=False) for id, split in source.splits.items()},
        )
        for source in manifest.sources
    )
    return replace(manifest, operators=operators, sources=sources, finished=False)


def _names(manifest: Manifest) -> list[str]:
    """Everything `rename` and `drop` can speak of."""
    names = []
    for operator in manifest.operators:
        if operator.states:
            names += [operator.name, *(f"{operator.name}.{state.name}" for state in operator.states)]
    return names + [source.name for source in manifest.sources]


def _is_step(manifest: Manifest, name: str) -> bool:
    return any(operator.name == name for operator in manifest.operators)


def _unknown(name: str, has: str, one: str, many: str, now: Sequence[str], facts: RestoreFacts, manifest: Manifest) -> str:
    new = [other for other in now if other not in _names(manifest)]
    renamed = f"If it was renamed: {_restore(facts, rename={name: _nearest(name, new)})}. " if new else ""
    return (
        f"{_what(facts)} has {has}, and this pipeline has no such {one}. Its {many}: {_list(now)}.\n"
        f"  {renamed}If it was removed: {_restore(facts, drop=[name])}"
    )


def _what(facts: RestoreFacts) -> str:
    return "the savepoint" if facts.request == "savepoint" else "the newest checkpoint"


def _restore(facts: RestoreFacts, **options: Json) -> str:
    """The call that would fix it, as the user would write it."""
    said = ", ".join(f"{name}={_literal(value)}" for name, value in options.items())
    return f"pen.Restore({'path' if facts.request == 'savepoint' else _literal('latest')}, {said})"


def _literal(value: Json) -> str:
    """Python, with double quotes as in the documentation."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_literal(key)}: {_literal(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_literal(item) for item in value) + "]"
    return f'"{value}"' if isinstance(value, str) else repr(value)


def _nearest(name: str, names: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.0)
    return close[0] if close else "..."


def _close(name: str, names: set[str]) -> str:
    close = difflib.get_close_matches(name, sorted(names), n=1)
    return f". Did you mean {close[0]!r}?" if close else ""


def _list(names: Iterator[str] | Sequence[str] | Mapping[str, Json] | set[str]) -> str:
    return ", ".join(sorted(names) if isinstance(names, set) else names) or "none"


def _keys(operator: OperatorEntry) -> str:
    return ", ".join(f"{column} ({type_})" for column, type_ in operator.keys) or "nothing"


def _columns(state: StateEntry) -> list[str]:
    return [f"{column.name} {column.type}{'' if column.nullable else ' not null'}" for column in state.schema]


def _params(mine: Json, other: Json) -> str:
    """The parameters that differ."""
    if not isinstance(mine, Mapping) or not isinstance(other, Mapping):
        return f"parameters {canonical(mine).decode()}"
    differing = sorted(name for name in {*mine, *other} if name not in mine or name not in other or mine[name] != other[name])
    return ", ".join(f"{name}={mine[name]!r}" if name in mine else f"no {name}" for name in differing)
