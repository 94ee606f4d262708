"""State whose columns are not what they were: what of it can be kept, what must be said first, and what cannot be.

1. Whatever is not named the same is found by what `rename` says (`naming`). What is gone is dropped only if `drop` says so.
2. A field that is new needs a default, or may be None. An aggregate that is new begins empty: in windows it is whole again
   once those that were open have closed (`CountedFrom`); one that never ends would be wrong for good, so it must be said.
3. The types decide, as `state.convert` compares them; nothing is read for it but the columns of a file of each state.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from penstock.checkpoints.facts import Refuse, RestoreFacts, call, call_without, what
from penstock.checkpoints.manifest import CountedFrom, Manifest, OperatorEntry
from penstock.checkpoints.naming import SENT, Name, Table, dropping, formerly, is_dropped, moved, place_of, table_of
from penstock.errors import Fix
from penstock.state.convert import Conversion, Difference, Path, Wanted, differences, paths

__all__ = ["Comparison", "compare"]


@dataclass(slots=True)
class Comparison:
    """What comes of a comparison.

    Args:
        conversions: "step/state" to how its rows are brought into the columns of now.
        added: (step, aggregate) of those that begin empty.
    """

    refusals: list[Refuse] = field(default_factory=list)
    conversions: dict[str, Conversion] = field(default_factory=dict)
    added: list[tuple[str, str]] = field(default_factory=list)

    def counted_from(self, manifest: Manifest) -> tuple[CountedFrom, ...]:
        """The aggregates that lack rows of windows open in `manifest`."""
        steps = {operator.name: operator for operator in manifest.operators}
        found = (_counted_from(steps[step], aggregate, manifest.epoch) for step, aggregate in self.added)
        return tuple(each for each in found if each is not None)


def compare(manifest: Manifest, facts: RestoreFacts) -> Comparison:
    """The columns of each state as stored with those of the pipeline."""
    found = Comparison()
    steps = {step.name: step for step in facts.pipeline.steps}
    for operator in manifest.operators:
        now = steps.get(facts.rename.get(operator.name, operator.name))
        if now is not None and operator.kind == now.kind:
            found.refusals += _kept(operator, now, facts)
        for state in operator.states:
            place = place_of(manifest, facts, operator, state.name)
            if place is None:
                continue
            step, name = place
            stored, wanted = facts.stored.get(f"{operator.name}.{state.name}"), facts.pipeline.wanted.get(f"{step}.{name}")
            if stored is None or wanted is None:
                continue  # nothing is held, or there is no such state: then something else was said
            before, after = table_of(operator, state.name), Table(step, name, wanted.grows)
            conversion = _conversion(before, after, stored, facts)
            # What is gone may be what is new under another name: that is said first.
            different = sorted(
                differences(stored, wanted, conversion), key=lambda each: ("removed", "changed", "added").index(each.what)
            )
            found.refusals += _refusals(before, after, different, stored, wanted, facts)
            if different or conversion != Conversion() or not _same(stored, wanted.values):
                found.conversions[f"{step}/{name}"] = conversion
            if wanted.grows == "aggregates" and not wanted.endless:
                new = dict.fromkeys(
                    after.aggregate(each.path) for each in different if each.what == "added" and len(each.path) == 1
                )
                found.added += [(step, each) for each in new if each and (step, each) not in found.added]
    return found


def _same(stored: pa.Schema, wanted: pa.Schema) -> bool:
    """Whether a file has just these columns; which of them may be null is not said in files."""
    return [(each.name, each.type) for each in stored] == [(each.name, each.type) for each in wanted]


def _conversion(before: Table, after: Table, stored: pa.Schema, facts: RestoreFacts) -> Conversion:
    """What the user said of this state."""
    renamed, dropped = {}, set()
    now: dict[Path, Path] = {}  # where each column and field is
    for path in paths(stored):
        name = before.name(path)
        here = (*now[path[:-1]], path[-1]) if path[:-1] in now else path
        if name is not None and is_dropped(facts, name):
            dropped.add(path)
        elif name is not None and ".".join(name) in facts.rename:
            here = _renamed(here, name, after, facts)
            renamed[here] = path
        now[path] = here
    return Conversion(renamed, frozenset(dropped))


def _renamed(path: Path, name: Name, state: Table, facts: RestoreFacts) -> Path:
    """Where it is now, if what it is in is at the same place as before."""
    if state.grows != "aggregates":
        return (*path[:-1], facts.rename[".".join(name)].rpartition(".")[2])
    new = moved(facts.rename, name).removeprefix(f"{state.step}.")
    return (f"{SENT}{new}",) if path[0].startswith(SENT) else (f"{new}.{path[0].rpartition('.')[2]}",)


# --- refusals


def _refusals(
    before: Table, after: Table, different: list[Difference], stored: pa.Schema, wanted: Wanted, facts: RestoreFacts
) -> Iterator[Refuse]:
    if wanted.grows == "aggregates" and all(after.aggregate(each.path) for each in different):
        yield from _aggregates(before, after, different, wanted, facts)
        return
    for each in different:
        if each.what == "added" and each.path[0].startswith("__expires"):
            continue  # what forgets from now on has forgotten nothing yet
        if len(each.path) == 1:
            whole, of = ".".join(before.whole), "it" if len(before.whole) > 1 else "the step"
            yield Refuse(
                f"state '{before.step}.{before.table}' has columns ({_list(stored)}) in {what(facts)} and ({_list(wanted.values)}) now",
                Fix("restore.state-columns", f"Put it back, or drop {of}. Write: {dropping(facts, whole)}"),
                (("drop", whole),),
            )
            return
        yield from _field(before, after, each, stored, wanted, facts)


def _field(
    before: Table, after: Table, each: Difference, stored: pa.Schema, wanted: Wanted, facts: RestoreFacts
) -> Iterator[Refuse]:
    name = ".".join([*(before if each.what == "removed" else after).whole, *each.path[1:]])
    found = what(facts)
    if each.what == "added":
        assert each.new is not None, "what is added is there now"
        yield Refuse(
            f"field {name!r} ({each.new.type}) is new, and nothing says what it is for values from {found}",
            Fix(
                "restore.field-added",
                f"Give it a default in its class, or declare it as T | None, or drop the state. "
                f"Write: {dropping(facts, '.'.join(before.whole))}",
            ),
            (("drop", ".".join(before.whole)),),
        )
    elif each.what == "removed":
        assert each.old is not None, "what is removed was there"
        parent = moved(facts.rename, (*before.whole, *each.path[1:-1]))
        now = [name for name in after.names(wanted.values) if ".".join(name[:-1]) == parent]
        taken = {moved(facts.rename, name) for name in before.names(stored)}
        new = [text for text in map(".".join, now) if text not in taken]
        yield Refuse(
            f"{found} has field {name!r} ({each.old.type}), and its class has no such field now. "
            f"It has: {', '.join(name[-1] for name in now)}",
            Fix("restore.field-removed", _renamed_or_removed(name, new, facts)),
            (("drop", name),),
        )
    else:
        assert each.old is not None, "what changed was there"
        assert each.new is not None, "and is there now"
        old = formerly(facts.rename, (*after.whole, *each.path[1:]))
        yield Refuse(
            f"field {name!r} is {_typed(each.old)} in {found} and {_typed(each.new)} now, which does not hold all of its values",
            Fix("restore.field-changed", f"Put it back, or let it begin with its default. Write: {dropping(facts, old)}"),
            (("drop", old),),
        )


def _aggregates(
    before: Table, after: Table, different: list[Difference], wanted: Wanted, facts: RestoreFacts
) -> Iterator[Refuse]:
    """Aggregates of a step: each is told once, however many columns it has."""
    kinds: dict[str, set[str]] = {}
    for each in different:
        aggregate = (before if each.what == "removed" else after).aggregate(each.path) or ""
        if each.what == "removed":
            aggregate = moved(facts.rename, (before.step, aggregate)).removeprefix(f"{after.step}.")
        kinds.setdefault(aggregate, set()).add(each.what if len(each.path) == 1 else "changed")
    now = dict.fromkeys(after.aggregate((column,)) or "" for column in wanted.values.names if not column.startswith("__"))
    added = [f"{after.step}.{aggregate}" for aggregate, whats in kinds.items() if whats == {"added"}]
    for aggregate, whats in kinds.items():
        name, found = f"{after.step}.{aggregate}", what(facts)
        if wanted.endless and whats != {"removed"} and aggregate in wanted.from_start():
            yield _withdrawn(after.step, aggregate, wanted, facts)
        elif whats == {"added"}:
            if wanted.endless and name not in facts.start_empty:
                yield Refuse(
                    f"{found} has no aggregate {name!r}, and {after.step!r} never closes: "
                    "it would be wrong for good, since it counts only from here on",
                    Fix("restore.aggregate-added", f"Say that it may. Write: {call(facts, start_empty=[name])}"),
                    (("start_empty", name),),
                )
        elif whats == {"removed"}:
            old = formerly(facts.rename, (after.step, aggregate))
            yield Refuse(
                f"{found} has aggregate {old!r}, and step {after.step!r} has no such aggregate now. It has: {', '.join(now)}",
                Fix("restore.aggregate-removed", _renamed_or_removed(old, added, facts)),
                (("drop", old),),
            )
        else:
            old = formerly(facts.rename, (after.step, aggregate))
            told = [f"{_typed(each.old)} and is {_typed(each.new)} now" for each in different if each.old and each.new]
            differ = f"it was {told[0]}" if told else ""
            yield _another(f"aggregate {name!r}", differ, old, name if wanted.endless else None, facts)


def _kept(old: OperatorEntry, new: OperatorEntry, facts: RestoreFacts) -> Iterator[Refuse]:
    """Aggregates whose columns are called as they were, and hold something else. Old checkpoints do not say what."""
    if not any(state.handles for state in old.states):
        return
    what_it_is = "state" if old.kind == "process" else "aggregate"
    wanted = [facts.pipeline.wanted.get(f"{new.name}.{state.name}") for state in new.states]
    endless = any(each is not None and each.endless for each in wanted)
    for aggregate, kept in old.keeps.items():
        parts = (old.name, aggregate)
        name = moved(facts.rename, parts)
        now = new.keeps.get(name.removeprefix(f"{new.name}."), kept)
        if now == kept or is_dropped(facts, parts):
            continue
        differ = f"it kept {kept}, and keeps {now} now"
        yield _another(f"{what_it_is} {name!r}", differ, ".".join(parts), name if endless else None, facts)


def _another(who: str, differ: str, old: str, empty: str | None, facts: RestoreFacts) -> Refuse:
    """`empty`: what begins here and never closes."""
    said = dropping(facts, old, **({} if empty is None else {"start_empty": [empty]}))
    return Refuse(
        f"{who} is another one now: what {what(facts)} keeps of it cannot be gone on from" + (f" ({differ})" if differ else ""),
        Fix("restore.aggregate-changed", f"Put it back, or begin it anew. Write: {said}"),
        (("drop", old), *(() if empty is None else (("start_empty", empty),))),
    )


def _withdrawn(step: str, aggregate: str, wanted: Wanted, facts: RestoreFacts) -> Refuse:
    """It cannot begin alone: the steps before it still withdraw what came before."""
    name, steps = f"{step}.{aggregate}", [*wanted.from_start()[aggregate], step]
    drop = [formerly(facts.rename, (each,)) for each in steps]
    anew = call_without(facts, name, drop=drop)
    return Refuse(
        f"{what(facts)} has nothing that aggregate {name!r} can go on from, and {step!r} never closes: rows that came before "
        "would be withdrawn from it that it never had, so it would be wrong for good",
        Fix(
            "restore.aggregate-withdrawn",
            "Take what keeps its values, such as min, max or collect, or count in windows, where those that open later are right, "
            f"or begin it anew together with the steps that withdraw rows. Write: {anew}",
        ),
        tuple(("drop", each) for each in drop),
    )


def _renamed_or_removed(name: str, new: list[str], facts: RestoreFacts) -> str:
    removed = dropping(facts, name)
    if not new:
        return f"Say that it was removed. Write: {removed}"
    (nearest,) = difflib.get_close_matches(name, new, n=1, cutoff=0.0)
    return f"Say that it was renamed, or that it was removed. Write: {call(facts, rename={name: nearest})}, or {removed}"


def _typed(field: pa.Field) -> str:
    return f"{field.type}{'' if field.nullable else ' not null'}"


def _list(schema: pa.Schema) -> str:
    return ", ".join(f"{each.name} {_typed(each)}" for each in schema)


# --- what is not whole yet


def _counted_from(operator: OperatorEntry, aggregate: str, epoch: int) -> CountedFrom | None:
    """Until when windows close that are open: the last of their timers."""
    if not any(state.handles for state in operator.states):
        return None
    params = operator.params if isinstance(operator.params, dict) else {}
    due = [int(handle["max_due"]) for state in operator.states if state.name == "timers" for handle in state.handles]
    known = due and params.get("clock", "event") == "event" and not any(state.name == "sessions" for state in operator.states)
    # A timer of a pane may be for its end, before the lateness; one of slices is for the next of the windows that they lie in.
    more = {"pane_aggregate": "lateness", "sliding_aggregate": "size", "inverse_aggregate": "size"}.get(operator.kind, "")
    return CountedFrom(operator.name, aggregate, epoch, max(due) + params.get(more, 0) if known else None)
