"""What a job starts from, decided without reading or writing anything.

The runner gathers the facts (what was asked, what storage holds, what the pipeline is: `facts`), `decide_restore`
answers with one of five decisions, and the runner carries it out. Each refusal is a sentence with its fix
(`differences`), given before the first row is read.

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
   event time starts over, or the pipeline knows no time and has nothing that its end closes. One whose commits are
   unconfirmed is **Concluded**: they are committed, and that is all.
7. What was said of names and done on the way to the newest checkpoint is not done again (`applied`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from penstock.checkpoints.applied import done_already, now_applied, still_asked
from penstock.checkpoints.columns import Comparison, compare
from penstock.checkpoints.differences import differences, mistakes, nothing_to_change, unknown_names, unsettled
from penstock.checkpoints.facts import PipelineFacts, Refuse, RestoreFacts
from penstock.checkpoints.manifest import AppliedEntry, Manifest, SourceEntry
from penstock.checkpoints.naming import is_dropped, moved, place_of
from penstock.state.convert import Conversion

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


@dataclass(frozen=True, slots=True)
class StartEmpty:
    """Begin with nothing, in `lineage`, once the pending epochs of `settle` are committed."""

    lineage: str
    settle: Manifest | None = None
    applied: tuple[AppliedEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class Resume:
    """Go on from `manifest` in its own lineage, once its pending epochs are committed.

    `conversions`: "step/state" that was stored in other columns. `done`: what was asked and is left out, since it was done before.
    """

    manifest: Manifest
    conversions: Mapping[str, Conversion] = field(default_factory=dict)
    done: tuple[AppliedEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class ForkFrom:
    """Begin from a savepoint's `manifest` in a new `lineage`, once what `settle` has pending is committed."""

    manifest: Manifest
    lineage: str
    parent: tuple[str, int]
    settle: Manifest | None = None
    conversions: Mapping[str, Conversion] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Conclude:
    """The job had finished, perhaps but for committing what `manifest` lists as pending: do that, and end.

    `refusal` is what to say if that had been done already.
    """

    manifest: Manifest
    refusal: Refuse


Decision: TypeAlias = StartEmpty | Resume | ForkFrom | Conclude | Refuse


def decide_restore(facts: RestoreFacts) -> Decision:
    """What to start from."""
    assert facts.request in ("latest", "none", "savepoint"), f"unknown request {facts.request!r}"
    assert (facts.savepoint is not None) == (facts.request == "savepoint"), "a savepoint goes with the request for one"
    for refusal in nothing_to_change(facts):
        return refusal
    promised = facts.newest if facts.newest is not None and facts.newest.pending else None
    if promised is not None:
        for refusal in unsettled(promised, facts):
            return refusal
    over = facts.start_over_time or not facts.pipeline.closes
    if promised is not None and promised.finished and facts.request == "latest" and not over:
        return Conclude(promised, next(differences(promised, facts)))
    chosen = facts.savepoint if facts.request == "savepoint" else facts.newest
    if facts.request == "none" or chosen is None:
        return StartEmpty(facts.new_lineage, promised, now_applied(None, facts, facts))
    left = still_asked(chosen, facts, lambda some: ((fit := _Fit.of(chosen, some)).misfit, fit.asks))
    fit = _Fit.of(chosen, left)
    if any(fit.misfit):
        return (fit.mistakes or fit.refusals)[0]
    manifest = replace(
        fit.manifest,
        counted_from=(*fit.manifest.counted_from, *fit.columns.counted_from(fit.manifest)),
        applied=now_applied(chosen, facts, left),
    )
    if facts.start_over_time or (manifest.finished and over):
        manifest = _started_over(manifest)
    manifest = _asked_again(manifest)
    if facts.request == "latest":
        return Resume(manifest, fit.columns.conversions, tuple(done_already(chosen, facts, left)))
    return ForkFrom(manifest, facts.new_lineage, (chosen.lineage, chosen.epoch), promised, fit.columns.conversions)


@dataclass(frozen=True, slots=True)
class _Fit:
    """How a checkpoint fits the pipeline once it is done to it what was asked.

    Args:
        mistakes: in what was asked; then nothing else was looked at.
        refusals: names that are not there first. They alone are no reason: see `differences`.
    """

    manifest: Manifest
    columns: Comparison
    mistakes: list[Refuse] = field(default_factory=list)
    refusals: list[Refuse] = field(default_factory=list)
    unknown: int = 0

    @classmethod
    def of(cls, chosen: Manifest, facts: RestoreFacts) -> _Fit:
        """Of these options."""
        unknown = list(unknown_names(chosen, facts))
        wrong = [*(unknown if facts.request == "savepoint" else []), *mistakes(chosen, facts)]
        if wrong:
            return cls(chosen, Comparison(), wrong)
        manifest, columns = _with_options(chosen, facts), compare(chosen, facts)
        refusals = [*unknown, *differences(manifest, facts), *columns.refusals]
        return cls(manifest, columns, [], refusals, len(unknown))

    @property
    def misfit(self) -> tuple[int, int]:
        """The less the better; a mistake is worse than any number of differences."""
        return len(self.mistakes), len(self.refusals) - self.unknown

    @property
    def asks(self) -> set[tuple[str, str]]:
        """What the user is told to say."""
        return {ask for refusal in self.refusals for ask in refusal.asks}


def _with_options(manifest: Manifest, facts: RestoreFacts) -> Manifest:
    """The manifest under the names of this pipeline, without what is dropped."""
    rename, drop = facts.rename, facts.drop
    operators = []
    for operator in manifest.operators:
        if operator.name in drop:
            continue
        found = ((state, place_of(manifest, facts, operator, state.name)) for state in operator.states)
        states = [replace(state, name=place[1]) for state, place in found if place is not None]
        operators.append(replace(operator, name=rename.get(operator.name, operator.name), states=tuple(states)))
    sources: list[SourceEntry] = [
        replace(source, name=rename.get(source.name, source.name)) for source in manifest.sources if source.name not in drop
    ]
    in_flight = tuple(replace(e, step=rename.get(e.step, e.step)) for e in manifest.in_flight if e.step not in drop)
    cut = manifest.cut if in_flight else "aligned"
    counted_from = tuple(
        replace(each, step=step, aggregate=moved(rename, (each.step, each.aggregate)).removeprefix(f"{step}."))
        for each in manifest.counted_from
        for step in [rename.get(each.step, each.step)]
        if not is_dropped(facts, (each.step, each.aggregate))
    )
    changed = replace(manifest, operators=tuple(operators), sources=tuple(sources), counted_from=counted_from)
    return replace(changed, in_flight=in_flight, cut=cut)


def _asked_again(manifest: Manifest) -> Manifest:
    """With no split ended: a run asks each of them whether it has more. Rows may have come since it said no, as files do."""
    sources = tuple(
        replace(source, splits={id: replace(split, ended=False) for id, split in source.splits.items()})
        for source in manifest.sources
    )
    return replace(manifest, sources=sources)


def _started_over(manifest: Manifest) -> Manifest:
    """The same state and positions with event time unset: no floors, no watermarks."""
    operators = tuple(
        replace(operator, watermarks=(), states=tuple(replace(state, floors=()) for state in operator.states))
        for operator in manifest.operators
    )
    sources = tuple(
        replace(
            source,
            splits={id: replace(split, watermark=None) for id, split in source.splits.items()},
        )
        for source in manifest.sources
    )
    return replace(manifest, operators=operators, sources=sources, finished=False)
