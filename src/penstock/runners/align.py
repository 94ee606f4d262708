"""Alignment: the splits of one group stay within a drift of each other's watermark.

Where one source is an hour ahead of another, whatever joins the two must keep that hour. So a split that is further ahead of the
slowest of its group than `drift` is left alone until that one has caught up.

1. A split counts from the start: as long as it has given no time, those that have wait for it. It stops counting when it is idle
   or has ended, and counts again once it speaks. A split that waits for others is not idle, and not silent.
2. The slowest never waits, so as long as it has rows the group moves. If it has none and is not idle yet, the others wait for
   `idle_after` (for ever, if nobody gave one).
3. Each process knows its own splits as they are and those of others as last announced. Since its own are never old news, nobody
   waits for himself; what is old can only make a split wait too long, never run too far ahead.
4. A split is read in small pieces (`ROWS_MAX`), so it passes the mark by one piece at most.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping
from typing import TypeAlias

from penstock.plan.logical import AssignTime
from penstock.plan.physical import PhysicalPlan
from penstock.protocol.messages import TIME_MIN

ROWS_MAX = 4096
"""How many rows of an aligned split are read at a time."""

Slowest: TypeAlias = dict[str, int | None]
"""The least watermark of each group; None: nobody counts."""


def groups_of(plan: PhysicalPlan) -> list[str]:
    """The groups of a pipeline."""
    nodes = (op.node for stage in plan.stages for op in stage.ops)
    return sorted({node.align for node in nodes if isinstance(node, AssignTime) and node.align is not None})


class Alignment:
    """The groups of a pipeline as one process sees them.

    >>> pair = Alignment()
    >>> pair.hear("pair", "clicks", 100)
    >>> pair.hear("pair", "views", 5000)
    >>> pair.ahead("pair", 5000, drift=1000), pair.ahead("pair", 100, drift=1000)
    (True, False)
    >>> pair.leave("pair", "clicks")
    >>> pair.ahead("pair", 5000, drift=1000)
    False

    Args:
        peers: the other processes, if there are any. What they have not announced yet is the beginning of time.
    """

    def __init__(self, peers: Iterable[str] = ()) -> None:
        self._peers = frozenset(peers)
        self._own: dict[str, dict[Hashable, int]] = defaultdict(dict)
        self._least: Slowest = {}  # of our own splits
        self._others: Slowest = {}

    def hear(self, group: str, split: Hashable, time: int) -> None:
        """One of our splits is at `time`, and counts."""
        own = self._own[group]
        before = own.get(split)
        if before == time:
            return
        own[split] = time
        if before is None or before == self._least[group]:
            self._least[group] = min(own.values())

    def leave(self, group: str, split: Hashable) -> None:
        """One of our splits is idle or has ended."""
        own = self._own[group]
        if own.pop(split, None) is not None:
            self._least[group] = min(own.values(), default=None)

    def own(self, groups: Iterable[str]) -> Slowest:
        """What to tell others."""
        return {group: self._least.get(group) for group in groups}

    def announced(self, slowest: Mapping[str, Slowest]) -> None:
        """What each process told: process -> group -> time. Whoever told nothing yet may be anywhere."""
        groups = {group for told in slowest.values() for group in told}
        self._others = {group: least(slowest.get(peer, {}).get(group, TIME_MIN) for peer in self._peers) for group in groups}

    def ahead(self, group: str, time: int, drift: int) -> bool:
        """Whether a split at `time` must wait for the others."""
        others = self._others.get(group, TIME_MIN if self._peers else None)
        slowest = least((self._least.get(group), others))
        return slowest is not None and time > slowest + drift


def least(times: Iterable[int | None]) -> int | None:
    """The least of those that count."""
    return min((time for time in times if time is not None), default=None)
