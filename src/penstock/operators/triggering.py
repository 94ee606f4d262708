"""Triggers at work: one machine for the triggers of many (key, window) pairs at once.

The state is an int64 array of `width` rows and one column per pair; an operator stores each row of it as a state column.
`compile_trigger` makes a tree of nodes like the trigger's own, in which some nodes own one row of the state:

    count        rows so far; DONE once it fired
    time         when it is due; BIG while no row has come; DONE once it fired
    each         the number of the part whose turn it is
    watermark    0; 1 once it fired on time

What an operator does, per batch:

1. `needs` says how many more rows each pair takes until it fires (0: now; BIG: rows alone will not do it).
2. Give it those rows or fewer with `add`; where `needs` is then 0, send, and tell with `fired`. Rows beyond would be counted
   to a firing that they did not cause. If firings may be merged, `period` allows to jump to the last one of the batch.
3. `due` says when to look again if neither rows nor the watermark come.

Rules:

1. `passed` (per pair: the watermark has passed the window's last moment) never goes back, except in `merge`.
2. Only what is active moves: before the watermark the early part, after the on-time firing the late part; of `each` the
   current part. What finished stays as it is; a repeated part starts anew as soon as it finishes.
3. needs == 0 if and only if due <= now: both ask whether it would fire now.
4. It may be ready when no row came since the last firing (on time; or a delay that went on while a count fired). Whether to send
   then is the operator's choice; `fired` must be told either way.
5. A finished trigger never fires again. It is the operator that sends what is left when the window closes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from penstock.operators.trigger_nodes import BIG, AllOf, AnyOf, Bools, Count, Each, Ints, Node, Repeated, Time, Watermark
from penstock.triggers import AfterAll, AfterAny, AfterCount, AfterEach, AfterTime, AfterWatermark, Repeatedly, Trigger

__all__ = ["BIG", "Machine", "compile_trigger"]


def compile_trigger(trigger: Trigger) -> Machine:
    """The machine of a trigger."""
    fresh: list[int] = []
    return Machine(_compiled(trigger, fresh), fresh)


class Machine:
    """The triggers of n pairs. `rows`, `passed` and `mask` have one entry per pair; `now` is one processing time (µs)."""

    def __init__(self, root: Node, fresh: Sequence[int]) -> None:
        self._root, self._fresh = root, list(fresh)
        self.width = len(fresh)

    def fresh(self, n: int) -> Ints:
        """The state of n windows that no row has come to."""
        return np.repeat(np.array(self._fresh, np.int64)[:, None], n, axis=1)

    def add(self, state: Ints, rows: Ints, now: int, passed: Bools) -> None:
        """So many more rows came, now. Changes the state in place."""
        self._root.add(state, rows, now, passed)

    def needs(self, state: Ints, now: int, passed: Bools) -> Ints:
        """How many more rows until it fires; 0: it is ready; BIG: rows alone will not do it."""
        return self._root.needs(state, now, passed)

    def fired(self, state: Ints, now: int, passed: Bools, mask: Bools) -> None:
        """It fired where the mask is set (it must have been ready there). Changes the state in place."""
        assert not self._root.needs(state, now, passed)[mask].any(), "only what is ready fires"
        self._root.fired(state, now, passed, mask)

    def due(self, state: Ints, passed: Bools) -> Ints:
        """The processing time at which it becomes ready if neither rows nor the watermark come; BIG if never."""
        return self._root.due(state, passed)

    def period(self, state: Ints, now: int, passed: Bools) -> Ints:
        """n, if it fires after `needs` rows and then after every n further ones, as long as neither time nor watermark move.

        Then adding needs + k * n rows at once and calling `fired` once is the same as k + 1 firings. 0 where that is not known.
        """
        return self._root.period(state, now, passed)

    def finished(self, state: Ints) -> Bools:
        """Where it will never fire again."""
        return self._root.finished(state)

    def merge(self, state: Ints, groups: Ints, n_groups: int, passed: Bools) -> Ints:
        """The state after windows became one: column i goes into column groups[i] of the result.

        `passed` is about the *merged* windows. Merge first, then `add` the rows that made the windows meet: the windows of new
        rows have no part in this, only windows that had a state. As in Beam where Beam says something:

        1. Counts add up; the earliest due time counts.
        2. What has progressed least counts: a part is finished if it is in all of them; `after_each` goes on with the earliest
           part whose turn it is in any.
        3. A merged window that the watermark has not passed will fire on time (again); what was counted for late firings is
           forgotten. If it has passed, and one of them fired on time, then this was the on-time firing.
        """
        assert len(groups) == state.shape[1], "each column goes somewhere"
        new = self.fresh(n_groups)
        self._root.merge(state, new, groups, np.ones(len(groups), np.bool_), passed)
        return new


def _compiled(trigger: Trigger, fresh: list[int]) -> Node:
    """A node per part; what a fresh state holds is appended to `fresh`, whose length is the next free row."""

    def own(value: int) -> int:
        fresh.append(value)
        return len(fresh) - 1

    def parts() -> list[Node]:
        return [_compiled(part, fresh) for part in trigger.parts]

    match trigger:
        case AfterCount(rows):
            return Count(own(0), rows)
        case AfterTime(delay):
            return Time(own(BIG), delay)
        case Repeatedly():
            return Repeated(parts())
        case AfterAny():
            return AnyOf(parts())
        case AfterAll():
            return AllOf(parts())
        case AfterEach():
            return Each(own(0), parts())
        case AfterWatermark():
            at, (*early, late) = own(0), [Repeated([part]) for part in parts()]
            return Watermark(at, early[0] if early else None, late)
    raise AssertionError(f"{trigger!r} is not a trigger")
