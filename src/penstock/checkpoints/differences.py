"""Why a checkpoint does not fit a pipeline: each reason with what to do about it, the most basic one first.

1. Options must mean something: what they name must be there. From the newest checkpoint, a name that is not there any more was
   dropped or renamed by an earlier start; it is a mistake only if something else does not fit.
2. State without a step is lost in silence, so it must be said that it may be; a step without state starts empty.
3. State is only as good as what it was computed with: keys, window parameters, columns, `max_parallelism` and the hash.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from penstock.checkpoints.envelope import Json, canonical
from penstock.checkpoints.facts import Refuse, RestoreFacts, call, call_without, what
from penstock.checkpoints.manifest import Columns, Manifest, OperatorEntry, StateEntry
from penstock.checkpoints.naming import (
    Name,
    dropping,
    formerly,
    is_aggregate,
    is_dropped,
    moved,
    named,
    states_of,
    stored_names,
    wanted_names,
)
from penstock.errors import Fix

__all__ = ["differences", "mistakes", "nothing_to_change", "unknown_names", "unsettled"]


# --- options


def nothing_to_change(facts: RestoreFacts) -> Iterator[Refuse]:
    """Who starts empty has no names to map."""
    if facts.request == "none" and (facts.rename or facts.drop or facts.start_over_time or facts.start_empty):
        yield Refuse(
            "the job is to start empty, and rename, drop and start_over_time say what becomes of a checkpoint",
            Fix("restore.none-with-options", 'Write: restore="none", or ' + call(replace(facts, request="latest"))),
        )


def unsettled(manifest: Manifest, facts: RestoreFacts) -> Iterator[Refuse]:
    """Output was promised to a sink that is not there."""
    for entry in manifest.pending:
        if entry.sink not in facts.pipeline.sinks:
            yield Refuse(
                f"epoch {entry.epoch} is published and its rows for sink {entry.sink!r} are not confirmed, "
                f"and this pipeline has no such sink. Its sinks: {_list(facts.pipeline.sinks)}",
                Fix("restore.sink-removed", "Start it once with the sink, stop it, then remove the sink"),
            )


def unknown_names(manifest: Manifest, facts: RestoreFacts) -> Iterator[Refuse]:
    """Options name what the checkpoint does not have."""
    known = list(stored_names(manifest, facts))
    for option, names in (("rename", tuple(facts.rename)), ("drop", facts.drop)):
        for name in names:
            if name in known:
                continue
            text = f"Leave it out. Write: {call_without(facts, name)}"
            if close := difflib.get_close_matches(name, known, n=1):
                meant = {close[0]: facts.rename[name]} if option == "rename" else [close[0]]
                text = f"Name what is there. Write: {call_without(facts, name, **{option: meant})}"
            yield Refuse(
                f"{option} names {name!r}, and {what(facts)} has no such step. It has: {_list(known)}",
                Fix("restore.unknown-name", text),
            )


def mistakes(manifest: Manifest, facts: RestoreFacts) -> Iterator[Refuse]:
    """Options contradict each other, or the pipeline."""
    known, wanted = stored_names(manifest, facts), wanted_names(facts)
    targets = set(wanted)
    for old, new in facts.rename.items():
        if old not in known:
            continue
        if new not in targets:
            yield Refuse(
                f"rename says that {old!r} is now {new!r}, and this pipeline has no such step. It has: {_list(targets)}",
                Fix("restore.rename-target", f"Write: {call(facts, rename={old: _nearest(new, sorted(targets))})}"),
            )
        if old in facts.drop:
            alone, gone = call_without(facts, old, rename={old: new}), call_without(facts, old, drop=[old])
            yield Refuse(
                f"{old!r} is both renamed and dropped, and it can be one of them",
                Fix("restore.renamed-and-dropped", f"Choose one. Write: {alone}, or {gone}"),
            )
        if new in wanted and not is_dropped(facts, known[old]):
            yield from _elsewhere(known[old], new, known, wanted, facts)
    aggregates = [each for each, parts in wanted.items() if len(parts) > 1 and parts[0] in _aggregating(facts)]
    for name in facts.start_empty:
        if name not in aggregates:
            nearest = _nearest(name, [each for each in aggregates if each not in known])
            yield Refuse(
                f"start_empty names {name!r}, and this pipeline has no such aggregate. It has: {_list(aggregates)}",
                Fix("restore.start-empty-name", f"Write: {call_without(facts, name, start_empty=[nearest])}"),
            )
    left = [moved(facts.rename, parts) for parts in known.values() if not is_dropped(facts, parts)]
    for name in dict.fromkeys(left):
        if left.count(name) > 1:
            one = next(each for each, parts in known.items() if moved(facts.rename, parts) == name and each not in facts.rename)
            yield Refuse(
                f"after rename, {what(facts)} has {name!r} twice",
                Fix("restore.same-name", f"Drop one of them. Write: {dropping(facts, one)}"),
            )


def _aggregating(facts: RestoreFacts) -> set[str]:
    return {step.name for step in facts.pipeline.steps if is_aggregate(step)}


def _elsewhere(
    old: Name, new: str, known: Mapping[str, Name], wanted: Mapping[str, Name], facts: RestoreFacts
) -> Iterator[Refuse]:
    """What is in a step or a state stays in it."""
    text, parent = ".".join(old), old[:-1]
    place = moved(facts.rename, parent) if parent else ""
    if ".".join(wanted[new][:-1]) == place:
        return
    taken = {moved(facts.rename, parts) for name, parts in known.items() if name != text}
    there = [name for name, parts in wanted.items() if ".".join(parts[:-1]) == place and name not in taken]
    if f"{place}.{old[-1]}" in there:
        there = []  # it is what it was
    said = call_without(facts, text, rename={text: _nearest(new, there)}) if there else call_without(facts, text)
    stays = f"what is in {'.'.join(parent)!r} stays in it" if parent else "it is a step or a source"
    now = f", and that is {place!r} now" if parent and place != ".".join(parent) else ""
    yield Refuse(
        f"rename says that {text!r} is now {new!r}, and {stays}{now}",
        Fix("restore.renamed-elsewhere", f"{'Name what it is there' if there else 'Leave it out'}. Write: {said}"),
    )


# --- the pipeline as a whole


def differences(manifest: Manifest, facts: RestoreFacts) -> Iterator[Refuse]:
    """Why this manifest, options applied, does not fit this pipeline."""
    yield from _as_a_whole(manifest, facts)
    yield from _states(manifest, facts)
    yield from _positions(manifest, facts)
    yield from _in_flight(manifest, facts)


def _as_a_whole(manifest: Manifest, facts: RestoreFacts) -> Iterator[Refuse]:
    """Another pipeline, a finished one, or keys that are divided in another way."""
    pipeline, found = facts.pipeline, what(facts)
    steps = [step.name for step in pipeline.steps]
    kept = [operator.name for operator in _stateful(manifest)] + [source.name for source in manifest.sources]
    if manifest.pipeline != pipeline.name and kept and not set(kept) & (set(steps) | set(pipeline.sources)):
        yield Refuse(
            f"{found} is of pipeline {manifest.pipeline!r}, and this is {pipeline.name!r}: no step or source "
            f"has the same name. It has {_list(kept)}; this pipeline has {_list([*steps, *pipeline.sources])}",
            Fix("restore.other-pipeline", f"Give the folder of a savepoint of {pipeline.name!r}"),
        )
    if manifest.finished and pipeline.closes and not facts.start_over_time:
        yield Refuse(
            f"{found} is finished: its input had ended and all windows were closed, so event time is at its "
            "end and every further row would be late",
            Fix(
                "restore.finished",
                "Keep the state and begin event time anew, or start empty and write to another place. A run with finish=False "
                "closes no window, so that the next run goes on. "
                f'Write: restore={call(facts, start_over_time=True)}, or restore="none"',
            ),
        )
    if manifest.max_parallelism != pipeline.max_parallelism:
        yield Refuse(
            f"{found} was made with max_parallelism={manifest.max_parallelism}, and this pipeline has "
            f"{pipeline.max_parallelism}: its state is divided by that number. The parallelism itself may change freely",
            Fix(
                "restore.max-parallelism",
                f'Write: pen.Pipeline("{pipeline.name}", max_parallelism={manifest.max_parallelism})',
            ),
        )
    if manifest.hash_id != pipeline.hash_id:
        yield Refuse(
            f"{found} divides keys by {manifest.hash_id!r}, and this Penstock by {pipeline.hash_id!r}",
            Fix("restore.hash", f"Use the version of Penstock that wrote it: {manifest.penstock}"),
        )


def _stateful(manifest: Manifest) -> list[OperatorEntry]:
    return [operator for operator in manifest.operators if operator.states]


def _states(manifest: Manifest, facts: RestoreFacts) -> Iterator[Refuse]:
    """State without a step, or with one that it does not fit."""
    steps = {step.name: step for step in facts.pipeline.steps}
    for operator in _stateful(manifest):
        if operator.name in steps:
            yield from _step(operator, steps[operator.name], facts, manifest)
        else:
            yield Refuse(
                f"{what(facts)} has state of step {operator.name!r}, and this pipeline has no such step. "
                f"Its stateful steps: {_list(steps)}",
                Fix("restore.step-removed", _renamed_or_removed((operator.name,), list(steps), facts, manifest)),
                _drops(facts, operator.name),
            )


def _positions(manifest: Manifest, facts: RestoreFacts) -> Iterator[Refuse]:
    """Positions without a source, or with one of another kind."""
    sources = facts.pipeline.sources
    for source in manifest.sources:
        if source.name not in sources:
            if source.splits:
                yield Refuse(
                    f"{what(facts)} has positions of source {source.name!r}, and this pipeline has no such source. "
                    f"Its sources: {_list(sources)}",
                    Fix("restore.source-removed", _renamed_or_removed((source.name,), list(sources), facts, manifest)),
                    _drops(facts, source.name),
                )
        elif source.kind != sources[source.name]:
            yield Refuse(
                f"source {source.name!r} was {source.kind!r} in {what(facts)} and is {sources[source.name]!r} now: "
                "its positions mean nothing there",
                Fix(
                    "restore.source-kind",
                    f"Read the new source from its beginning. Write: {dropping(facts, formerly(facts.rename, (source.name,)))}",
                ),
                _drops(facts, source.name),
            )


def _in_flight(manifest: Manifest, facts: RestoreFacts) -> Iterator[Refuse]:
    """Rows that were on their way to a step fit only that step, as it was."""
    for entry in manifest.in_flight:
        now = facts.pipeline.edges.get((entry.step, entry.input))
        if now == entry.columns:
            continue
        found = "which has no such input now" if now is None else f"which takes columns ({_texts(now)}) now"
        yield Refuse(
            f"{what(facts)} holds rows in flight, on their way to step {entry.step!r} with columns ({_texts(entry.columns)}), "
            f"{found}",
            Fix(
                "restore.in-flight",
                "Run the pipeline once more as it was, and stop with a savepoint first: neither a savepoint nor the last "
                "checkpoint of a job that is stopped holds rows in flight. Then change it",
            ),
        )


def _texts(columns: Columns) -> str:
    return ", ".join(f"{name} {type_}{'' if nullable else ' not null'}" for name, type_, nullable in columns)


# --- steps and their states


def _step(old: OperatorEntry, new: OperatorEntry, facts: RestoreFacts, manifest: Manifest) -> Iterator[Refuse]:
    if old.version > new.version:
        yield Refuse(
            f"step {new.name!r} has state of version {old.version}, and this Penstock knows {new.version}",
            Fix("restore.later-version", "Use a later version of Penstock"),
        )
    for reason in _changed(old, new, facts):
        yield _begin_anew(reason, new.name, facts)
    states = {state.name: state for state in new.states}
    keeps = _told(new)
    for state in old.states:
        of = named(old, state.name)
        full = f"{old.name}.{state.name if of is None else of}"
        if state.name not in states and of not in (None, state.name):
            if of in states and of in _told(old) and state.handles:
                yield _whole_now((old.name, of), facts)
            continue  # what it is a part of is gone, which is said of that
        if state.name not in states:
            reason = f"{what(facts)} has state {full!r}, and step {new.name!r} keeps no such state now. It keeps: {_list(keeps)}"
            if of is None:
                yield _begin_anew(reason, new.name, facts)
                continue
            fresh = [f"{new.name}.{name}" for name in keeps] if of in _told(old) else []
            text = _renamed_or_removed((old.name, of), fresh, facts, manifest)
            yield Refuse(reason, Fix("restore.state-removed", text), _drops(facts, old.name, of))
            continue
        for reason in _changed_state(new.name, f"{old.name}.{state.name}", state, states[state.name], facts):
            if of is None:
                yield _begin_anew(reason, new.name, facts)
                continue
            said = dropping(facts, formerly(facts.rename, (old.name, of)))
            yield Refuse(
                reason, Fix("restore.state-changed", f"Put it back, or drop it. Write: {said}"), _drops(facts, old.name, of)
            )


def _begin_anew(reason: str, step: str, facts: RestoreFacts) -> Refuse:
    """Of most steps one table means nothing without the others: they are kept or dropped together."""
    said = dropping(facts, formerly(facts.rename, (step,)))
    return Refuse(
        reason, Fix("restore.step-changed", f"Put it back, or start the step empty. Write: {said}"), _drops(facts, step)
    )


def _drops(facts: RestoreFacts, *name: str) -> tuple[tuple[str, str], ...]:
    return (("drop", formerly(facts.rename, name)),)


def _told(operator: OperatorEntry) -> list[str]:
    """The states that the class of a process function has."""
    return [name for _, name in states_of(operator) if "-" not in name]


def _whole_now(name: Name, facts: RestoreFacts) -> Refuse:
    """Long lists stand apart from their keys, and the state that has their name now would not look there."""
    return Refuse(
        f"state {'.'.join(name)!r} has long lists in {what(facts)}, each in pieces, and now keeps each value as a whole: "
        "it is a ListState with ttl=, or no ListState",
        Fix("restore.list-whole", f"Put it back as it was, or drop it. Write: {dropping(facts, formerly(facts.rename, name))}"),
        _drops(facts, *name),
    )


def _changed(old: OperatorEntry, new: OperatorEntry, facts: RestoreFacts) -> Iterator[str]:
    """Why a step cannot read its old state."""
    step, found = f"step {new.name!r}", what(facts)
    if old.kind != new.kind:
        yield f"{step} was a {old.kind} in {found} and is a {new.kind} now: one cannot read the other's state"
    if old.version < new.version:
        yield f"{step} has state of version {old.version}, and this Penstock writes {new.version} and cannot convert it"
    if old.keys != new.keys:
        yield (
            f"{step} was keyed by {_keys(old)} in {found} and is keyed by {_keys(new)} now: its state would be under the wrong keys"
        )
    if canonical(old.shape) != canonical(new.shape):
        yield f"{step} had {_params(old.shape, new.shape)} in {found} and has {_params(new.shape, old.shape)} now"


def _changed_state(step: str, name: str, old: StateEntry, new: StateEntry, facts: RestoreFacts) -> Iterator[str]:
    """Why a state cannot be what it was."""
    found = what(facts)
    if old.kind != new.kind:
        yield f"state {name!r} was a {old.kind} in {found} and is a {new.kind} now"
    if old.changes != new.changes:
        yield f"state {name!r} was kept for {old.changes} rows in {found} and is kept for {new.changes} rows now"
    before, after = _columns(old), _columns(new)
    if before != after and f"{step}.{new.name}" not in facts.pipeline.wanted:  # otherwise see `columns`
        yield f"state {name!r} has columns ({_list(before)}) in {found} and ({_list(after)}) now"


# --- words


def _renamed_or_removed(name: Name, now: Sequence[str], facts: RestoreFacts, manifest: Manifest) -> str:
    new, old = [other for other in now if other not in stored_names(manifest, facts)], formerly(facts.rename, name)
    removed = dropping(facts, old)
    if not new:
        return f"Say that it was removed. Write: {removed}"
    renamed = call(facts, rename={old: _nearest(old, new)})
    return f"Say that it was renamed, or that it was removed. Write: {renamed}, or {removed}"


def _nearest(name: str, names: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.0)
    return close[0] if close else "..."


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
