"""State whose columns are not what they were: what of it can be kept, what must be said first, and what cannot be.

    step.state          a state of a process function, and everything in it
    step.state.field    a field of the class that it holds; of a class in that, `step.state.field.inner`
    step.aggregate      an aggregate of a step, with all that it keeps

1. Whatever is not named the same is found by what `rename` says. What is gone is dropped only if `drop` says so.
2. A field that is new needs a default, or may be None. An aggregate that is new begins empty: in windows it is whole again
   once those that were open have closed (`CountedFrom`); one that never ends would be wrong for good, so it must be said.
3. The types decide, as `state.convert` compares them; nothing is read for it but the columns of a file of each state.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from penstock.checkpoints.facts import Refuse, RestoreFacts, call, what
from penstock.checkpoints.manifest import CountedFrom, Manifest, OperatorEntry
from penstock.errors import Fix
from penstock.state.convert import Conversion, Difference, Path, Wanted, differences, paths

__all__ = ["Comparison", "compare", "owner", "stored_names", "wanted_names"]

VALUE, ENTRIES, SENT = "value", "__values", "__sent."


CHUNKS = "-chunks"
APART = ("sizes", "chunks", "counts")
"""What the tables of an aggregate or a list with many values per key are called, behind its name."""


def owner(operator: OperatorEntry, state: str) -> str | None:
    """The aggregate, or the list of a process function, that a table of its own belongs to: what becomes of it becomes of the table."""
    owned, _, kind = state.rpartition("-")
    keeps = operator.kind == "process" or operator.kind.endswith("aggregate")
    return owned if keeps and kind in APART else None


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
    for operator in manifest.operators:
        step = facts.rename.get(operator.name, operator.name)
        for state in operator.states:
            full = f"{operator.name}.{state.name}"
            of = owner(operator, state.name) or state.name
            whole = f"{operator.name}.{of}"
            if operator.name in facts.drop or whole in facts.drop:
                continue
            name = facts.rename.get(whole, f"{step}.{of}") + state.name[len(of) :]
            stored, wanted = facts.stored.get(full), facts.pipeline.wanted.get(name)
            if stored is None or wanted is None:
                continue  # nothing is held, or there is no such state: then something else was said
            before, after = _State(operator.name, state.name, wanted.grows), _State(step, name.rpartition(".")[2], wanted.grows)
            conversion = _conversion(before, after, stored, facts)
            # What is gone may be what is new under another name: that is said first.
            different = sorted(
                differences(stored, wanted, conversion), key=lambda each: ("removed", "changed", "added").index(each.what)
            )
            found.refusals += _refusals(before, after, different, stored, wanted, facts)
            if different or conversion != Conversion() or not _same(stored, wanted.values):
                found.conversions[f"{step}/{after.state}"] = conversion
            if wanted.grows == "aggregates" and not wanted.endless:
                new = dict.fromkeys(
                    after.aggregate(each.path) for each in different if each.what == "added" and len(each.path) == 1
                )
                found.added += [(step, each) for each in new if each and (step, each) not in found.added]
    return found


def stored_names(manifest: Manifest, facts: RestoreFacts) -> list[str]:
    """Fields and aggregates of what is stored, by the names that users call them."""
    names: list[str] = []
    for operator in manifest.operators:
        for state in operator.states:
            stored = facts.stored.get(f"{operator.name}.{state.name}")
            names += _names(_State(operator.name, state.name, _grows(operator)), stored)
    return list(dict.fromkeys(names))


def wanted_names(facts: RestoreFacts) -> list[str]:
    """The same of the pipeline."""
    names: list[str] = []
    for full, wanted in facts.pipeline.wanted.items():
        step, _, state = full.rpartition(".")
        names += _names(_State(step, state, wanted.grows), wanted.values)
    return list(dict.fromkeys(names))


def _grows(operator: OperatorEntry) -> str:
    return "fields" if operator.kind == "process" else "aggregates" if operator.kind.endswith("aggregate") else ""


def _names(state: _State, columns: pa.Schema | None) -> Iterator[str]:
    return (name for path in paths(columns or ()) if (name := state.name(path)) is not None and name != state.full)


@dataclass(frozen=True, slots=True)
class _State:
    """What the columns of a state are called."""

    step: str
    state: str
    grows: str

    @property
    def full(self) -> str:
        """What a user calls it: of chunks, the state whose lists they are parts of."""
        return f"{self.step}.{self.state.removesuffix(CHUNKS) if self.grows == 'fields' else self.state}"

    def aggregate(self, path: Path) -> str | None:
        """The aggregate that a column belongs to, if there are aggregates and it is of one."""
        column = path[0].removeprefix(SENT)
        if self.grows != "aggregates" or column.startswith("__"):
            return None
        return column if path[0].startswith(SENT) else column.rpartition(".")[0]

    def name(self, path: Path) -> str | None:
        """What a user calls it; None for what is no business of users."""
        if self.grows == "aggregates":
            aggregate = self.aggregate(path)
            return None if aggregate is None else ".".join([self.step, aggregate, *path[1:]])
        if self.grows == "fields" and path[0] in (VALUE, ENTRIES):
            return ".".join([self.full, *path[1:]])
        return None


def _same(stored: pa.Schema, wanted: pa.Schema) -> bool:
    """Whether a file has just these columns; which of them may be null is not said in files."""
    return [(each.name, each.type) for each in stored] == [(each.name, each.type) for each in wanted]


def _conversion(before: _State, after: _State, stored: pa.Schema, facts: RestoreFacts) -> Conversion:
    """What the user said of this state."""
    renamed, dropped = {}, set()
    for path in paths(stored):
        name = before.name(path)
        if name is None or name == before.full:
            continue
        if name in facts.drop:
            dropped.add(path)
        elif name in facts.rename:
            renamed[_renamed(path, facts.rename[name].rpartition(".")[2], after)] = path
    return Conversion(renamed, frozenset(dropped))


def _renamed(path: Path, name: str, state: _State) -> Path:
    """Where it is now."""
    if len(path) > 1 or state.grows != "aggregates":
        return (*path[:-1], name)
    return (f"{SENT}{name}",) if path[0].startswith(SENT) else (f"{name}.{path[0].rpartition('.')[2]}",)


# --- refusals


def _refusals(
    before: _State, after: _State, different: list[Difference], stored: pa.Schema, wanted: Wanted, facts: RestoreFacts
) -> Iterator[Refuse]:
    if wanted.grows == "aggregates" and all(after.aggregate(each.path) for each in different):
        yield from _aggregates(before, after, different, wanted, facts)
        return
    for each in different:
        if each.what == "added" and each.path[0].startswith("__expires"):
            continue  # what forgets from now on has forgotten nothing yet
        if len(each.path) == 1:
            yield Refuse(
                f"state {before.full!r} has columns ({_list(stored)}) in {what(facts)} and ({_list(wanted.values)}) now",
                Fix("restore.state-columns", f"Put it back, or drop it. Write: {call(facts, drop=[before.full])}"),
            )
            return
        yield from _field(before, after, each, stored, wanted, facts)


def _field(
    before: _State, after: _State, each: Difference, stored: pa.Schema, wanted: Wanted, facts: RestoreFacts
) -> Iterator[Refuse]:
    name = ".".join([(before if each.what == "removed" else after).full, *each.path[1:]])
    found = what(facts)
    if each.what == "added":
        assert each.new is not None, "what is added is there now"
        yield Refuse(
            f"field {name!r} ({each.new.type}) is new, and nothing says what it is for values from {found}",
            Fix(
                "restore.field-added",
                f"Give it a default in its class, or declare it as T | None, or drop the state. "
                f"Write: {call(facts, drop=[before.full])}",
            ),
        )
    elif each.what == "removed":
        assert each.old is not None, "what is removed was there"
        now = [path for path in paths(wanted.values) if path[:-1] == each.path[:-1]]
        new = [after.name(path) or "" for path in now if path not in set(paths(stored))]
        yield Refuse(
            f"{found} has field {name!r} ({each.old.type}), and its class has no such field now. "
            f"It has: {', '.join(path[-1] for path in now)}",
            Fix("restore.field-removed", _renamed_or_removed(name, new, facts)),
        )
    else:
        assert each.old is not None, "what changed was there"
        assert each.new is not None, "and is there now"
        yield Refuse(
            f"field {name!r} is {_typed(each.old)} in {found} and {_typed(each.new)} now, which does not hold all of its values",
            Fix("restore.field-changed", f"Put it back, or let it begin with its default. Write: {call(facts, drop=[name])}"),
        )


def _aggregates(
    before: _State, after: _State, different: list[Difference], wanted: Wanted, facts: RestoreFacts
) -> Iterator[Refuse]:
    """Aggregates of a step: each is told once, however many columns it has."""
    kinds: dict[str, set[str]] = {}
    for each in different:
        aggregate = (before if each.what == "removed" else after).aggregate(each.path) or ""
        kinds.setdefault(aggregate, set()).add(each.what if len(each.path) == 1 else "changed")
    now = dict.fromkeys(after.aggregate((column,)) or "" for column in wanted.values.names if not column.startswith("__"))
    added = [f"{after.step}.{aggregate}" for aggregate, whats in kinds.items() if whats == {"added"}]
    for aggregate, whats in kinds.items():
        name, found = f"{after.step}.{aggregate}", what(facts)
        if whats == {"added"}:
            if wanted.endless and name not in facts.start_empty:
                yield Refuse(
                    f"{found} has no aggregate {name!r}, and {after.step!r} never closes: "
                    "it would be wrong for good, since it counts only from here on",
                    Fix("restore.aggregate-added", f"Say that it may. Write: {call(facts, start_empty=[name])}"),
                )
        elif whats == {"removed"}:
            old = f"{before.step}.{aggregate}"
            yield Refuse(
                f"{found} has aggregate {old!r}, and step {after.step!r} has no such aggregate now. It has: {', '.join(now)}",
                Fix("restore.aggregate-removed", _renamed_or_removed(old, added, facts)),
            )
        else:
            more = {"start_empty": [name]} if wanted.endless else {}
            told = [f"{_typed(each.old)} and is {_typed(each.new)} now" for each in different if each.old and each.new]
            yield Refuse(
                f"aggregate {name!r} is another one now: what {found} keeps of it cannot be gone on from"
                + (f" (it was {told[0]})" if told else ""),
                Fix(
                    "restore.aggregate-changed",
                    f"Put it back, or begin it anew. Write: {call(facts, drop=[f'{before.step}.{aggregate}'], **more)}",
                ),
            )


def _renamed_or_removed(name: str, new: list[str], facts: RestoreFacts) -> str:
    removed = call(facts, drop=[name])
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
