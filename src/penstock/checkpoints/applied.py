"""What was said of names at earlier starts: from the newest checkpoint, none of it is done twice.

A program keeps its `pen.Restore("latest", drop=["t.x"])` and is started again and again. Whether "t.x" is still what was to be dropped,
or what began anew then, cannot be seen in a checkpoint; so it lists what was said on the way to it (`Manifest.applied`).

1. What is said at a start counts as done there, also of names that mean nothing yet. The next checkpoint says so: a job that is killed
   before has changed nothing, and does it again.
2. From "latest", what is done is left out. If the checkpoint does not fit without it, the program has changed once more, in the same
   words, and they are meant anew: names that change, which loses nothing, where more fits so, and otherwise only what the refusal
   would have the user say. A step that was dropped once is not dropped because somebody adds an aggregate to it.
3. Whoever starts from a savepoint names what it holds: all that is said is done. The new lineage goes on with the list of the savepoint.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from penstock.checkpoints.facts import RestoreFacts
from penstock.checkpoints.manifest import AppliedEntry, Manifest

__all__ = ["done_already", "now_applied", "still_asked"]


Misfit = tuple[tuple[int, ...], set[tuple[str, str]]]
"""How badly a checkpoint fits (zeros: it does), and what the refusals ask for."""


def still_asked(manifest: Manifest, facts: RestoreFacts, misfit: Callable[[RestoreFacts], Misfit]) -> RestoreFacts:
    """What is left to do of what is asked."""
    if facts.request != "latest":
        return facts
    asked = _requests(facts, manifest.epoch)
    before = {each.request for each in manifest.applied}
    left = [each for each in asked if each.request not in before]
    for swapped in _connected([each for each in asked if each.option == "rename"]):
        worst, _ = misfit(_only(facts, left))
        more = [each for each in asked if each in left or each in swapped]
        if any(worst) and misfit(_only(facts, more))[0] < worst:
            left = more
    while True:
        found = _only(facts, left)
        _, asks = misfit(found)
        more = [each for each in asked if each in left or (each.option, each.name) in asks]
        if len(more) == len(left):
            return found
        left = more


def done_already(manifest: Manifest, facts: RestoreFacts, left: RestoreFacts) -> list[AppliedEntry]:
    """What is asked and not done, since it was done on the way to this checkpoint."""
    asked, now = ({each.request for each in _requests(some, 0)} for some in (facts, left))
    return [each for each in manifest.applied if each.request in asked - now]


def now_applied(manifest: Manifest | None, facts: RestoreFacts, left: RestoreFacts) -> tuple[AppliedEntry, ...]:
    """The list for the checkpoints that follow: `facts` as the user said them, `left` as they were carried out."""
    epoch = 0 if manifest is None else manifest.epoch
    listed = {each.request: each for each in ([] if manifest is None else manifest.applied)}
    for each in _requests(facts, epoch):
        listed.setdefault(each.request, each)
    return tuple({**listed, **{each.request: each for each in _requests(left, epoch)}}.values())


def _requests(facts: RestoreFacts, epoch: int) -> list[AppliedEntry]:
    return [
        *(AppliedEntry("rename", old, new, epoch) for old, new in facts.rename.items()),
        *(AppliedEntry("drop", name, None, epoch) for name in dict.fromkeys(facts.drop)),
        *(AppliedEntry("start_empty", name, None, epoch) for name in dict.fromkeys(facts.start_empty)),
    ]


def _only(facts: RestoreFacts, asked: Sequence[AppliedEntry]) -> RestoreFacts:
    def names(option: str) -> tuple[str, ...]:
        return tuple(each.name for each in asked if each.option == option)

    rename = {old: new for old, new in facts.rename.items() if old in names("rename")}
    return replace(facts, rename=rename, drop=names("drop"), start_empty=names("start_empty"))


def _connected(asked: Collection[AppliedEntry]) -> list[list[AppliedEntry]]:
    """Names that change places, or take the place of one that moves on: together."""
    groups: list[tuple[set[str], list[AppliedEntry]]] = []
    for each in asked:
        names = {each.name, each.new or each.name}
        apart = [group for group in groups if not group[0] & names]
        joined = [group for group in groups if group[0] & names]
        merged = (names.union(*(group[0] for group in joined)), [*(one for group in joined for one in group[1]), each])
        groups = [*apart, merged]
    return [group for _, group in groups]
