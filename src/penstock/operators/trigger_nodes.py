"""The parts that triggers are made of, for many (key, window) pairs at once. `triggering.py` says what the methods mean.

A node works on its own rows of the state and leaves the rest to its parts. Where a node is finished, `needs` and `due` are BIG.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

BIG = 2**63 - 1
"""More rows than ever come; a time that never comes."""
DONE = READY = -(2**63)
"""In the state of a count or a time: it has fired, for good. As a due time: it is ready without waiting."""


class Node:
    """A trigger or a part of one."""

    cycle = 0
    """Rows from a fresh start until it finishes in one firing, at most and at least, if time stands still; 0 if unknown."""
    counts = False
    """Whether rows alone can make it ready."""

    def add(self, state: Ints, rows: Ints, now: int, passed: Bools) -> None:
        raise NotImplementedError

    def needs(self, state: Ints, now: int, passed: Bools) -> Ints:
        raise NotImplementedError

    def due(self, state: Ints, passed: Bools) -> Ints:
        raise NotImplementedError

    def fired(self, state: Ints, now: int, passed: Bools, mask: Bools) -> None:
        raise NotImplementedError

    def reset(self, state: Ints, mask: Bools) -> None:
        raise NotImplementedError

    def finished(self, state: Ints) -> Bools:
        raise NotImplementedError

    def period(self, state: Ints, now: int, passed: Bools) -> Ints:
        return np.zeros(state.shape[1], np.int64)

    def merge(self, old: Ints, new: Ints, groups: Ints, chosen: Bools, passed: Bools) -> None:
        """Merge the chosen columns into `new`, which is fresh."""
        raise NotImplementedError


class Count(Node):
    """Ready when so many rows have come; `state[at]` is how many."""

    counts = True

    def __init__(self, at: int, rows: int) -> None:
        self._at, self._rows, self.cycle = at, rows, rows

    def add(self, state: Ints, rows: Ints, now: int, passed: Bools) -> None:
        count = state[self._at]
        np.add(count, rows, out=count, where=count != DONE)

    def needs(self, state: Ints, now: int, passed: Bools) -> Ints:
        count = state[self._at]
        return np.where(count == DONE, BIG, np.maximum(self._rows - np.maximum(count, 0), 0))

    def due(self, state: Ints, passed: Bools) -> Ints:
        return np.where(state[self._at] >= self._rows, READY, BIG)

    def fired(self, state: Ints, now: int, passed: Bools, mask: Bools) -> None:
        state[self._at][mask] = DONE

    def reset(self, state: Ints, mask: Bools) -> None:
        state[self._at][mask] = 0

    def finished(self, state: Ints) -> Bools:
        done: Bools = state[self._at] == DONE
        return done

    def merge(self, old: Ints, new: Ints, groups: Ints, chosen: Bools, passed: Bools) -> None:
        chosen = _least(self.finished(old), groups, new.shape[1], chosen)
        np.add.at(new[self._at], groups[chosen], old[self._at][chosen])


class Time(Node):
    """Ready so long after the first row; `state[at]` is when."""

    def __init__(self, at: int, delay: int) -> None:
        self._at, self._delay = at, delay

    def add(self, state: Ints, rows: Ints, now: int, passed: Bools) -> None:
        state[self._at][(rows > 0) & (state[self._at] == BIG)] = now + self._delay

    def needs(self, state: Ints, now: int, passed: Bools) -> Ints:
        return np.where(self.due(state, passed) <= now, 0, BIG)

    def due(self, state: Ints, passed: Bools) -> Ints:
        return np.where(state[self._at] == DONE, BIG, state[self._at])

    def fired(self, state: Ints, now: int, passed: Bools, mask: Bools) -> None:
        state[self._at][mask] = DONE

    def reset(self, state: Ints, mask: Bools) -> None:
        state[self._at][mask] = BIG

    def finished(self, state: Ints) -> Bools:
        done: Bools = state[self._at] == DONE
        return done

    def merge(self, old: Ints, new: Ints, groups: Ints, chosen: Bools, passed: Bools) -> None:
        chosen = _least(self.finished(old), groups, new.shape[1], chosen)
        np.minimum.at(new[self._at], groups[chosen], old[self._at][chosen])


class AnyOf(Node):
    """Ready when one part is. The parts that are ready fire; it is finished when one of them is."""

    def __init__(self, parts: Sequence[Node]) -> None:
        self._parts = parts
        self.counts = any(part.counts for part in parts)
        if all(part.cycle or isinstance(part, Time) for part in parts):
            self.cycle = min((part.cycle for part in parts if part.cycle), default=0)

    def add(self, state: Ints, rows: Ints, now: int, passed: Bools) -> None:
        for part in self._parts:
            part.add(state, rows, now, passed)

    def needs(self, state: Ints, now: int, passed: Bools) -> Ints:
        least = np.minimum.reduce([part.needs(state, now, passed) for part in self._parts])
        return np.where(self.finished(state), BIG, least)

    def due(self, state: Ints, passed: Bools) -> Ints:
        first = np.minimum.reduce([part.due(state, passed) for part in self._parts])
        return np.where(self.finished(state), BIG, first)

    def fired(self, state: Ints, now: int, passed: Bools, mask: Bools) -> None:
        for part in self._parts:
            part.fired(state, now, passed, mask & (part.needs(state, now, passed) == 0))

    def reset(self, state: Ints, mask: Bools) -> None:
        for part in self._parts:
            part.reset(state, mask)

    def finished(self, state: Ints) -> Bools:
        done: Bools = np.logical_or.reduce([part.finished(state) for part in self._parts])
        return done

    def period(self, state: Ints, now: int, passed: Bools) -> Ints:
        """That of the one part that counts rows, where no other is about to fire."""
        if sum(part.counts for part in self._parts) != 1:
            return super().period(state, now, passed)
        counting = next(part for part in self._parts if part.counts)
        others = [part.needs(state, now, passed) == 0 for part in self._parts if part is not counting]
        unknown = np.logical_or.reduce([self.finished(state), *others])
        return np.where(unknown, 0, counting.period(state, now, passed))

    def merge(self, old: Ints, new: Ints, groups: Ints, chosen: Bools, passed: Bools) -> None:
        chosen = _least(self.finished(old), groups, new.shape[1], chosen)
        for part in self._parts:
            part.merge(old, new, groups, chosen, passed)


class Repeated(AnyOf):
    """A single part, which starts anew whenever it finishes."""

    def __init__(self, parts: Sequence[Node]) -> None:
        super().__init__(parts)
        self.cycle = 0  # it never finishes

    def fired(self, state: Ints, now: int, passed: Bools, mask: Bools) -> None:
        (part,) = self._parts
        part.fired(state, now, passed, mask)
        part.reset(state, mask & part.finished(state))

    def finished(self, state: Ints) -> Bools:
        return np.zeros(state.shape[1], np.bool_)

    def period(self, state: Ints, now: int, passed: Bools) -> Ints:
        (part,) = self._parts
        return np.full(state.shape[1], part.cycle, np.int64) if part.cycle else part.period(state, now, passed)


class AllOf(AnyOf):
    """Ready when all parts are, or are finished; finished when all are."""

    def __init__(self, parts: Sequence[Node]) -> None:
        super().__init__(parts)
        self.cycle = max(part.cycle for part in parts) if all(part.cycle for part in parts) else 0

    def needs(self, state: Ints, now: int, passed: Bools) -> Ints:
        each = [np.where(part.finished(state), 0, part.needs(state, now, passed)) for part in self._parts]
        return np.where(self.finished(state), BIG, np.maximum.reduce(each))

    def due(self, state: Ints, passed: Bools) -> Ints:
        each = [np.where(part.finished(state), READY, part.due(state, passed)) for part in self._parts]
        return np.where(self.finished(state), BIG, np.maximum.reduce(each))

    def finished(self, state: Ints) -> Bools:
        done: Bools = np.logical_and.reduce([part.finished(state) for part in self._parts])
        return done

    def period(self, state: Ints, now: int, passed: Bools) -> Ints:
        return Node.period(self, state, now, passed)


class Each(Node):
    """One part after the other; `state[at]` is whose turn it is."""

    def __init__(self, at: int, parts: Sequence[Node]) -> None:
        self._at, self._parts = at, parts
        self.counts = any(part.counts for part in parts)

    def _current(self, state: Ints, otherwise: int, of: Callable[[Node], Ints]) -> Ints:
        out = np.full(state.shape[1], otherwise, np.int64)
        for turn, part in enumerate(self._parts):
            out = np.where(state[self._at] == turn, of(part), out)
        return out

    def add(self, state: Ints, rows: Ints, now: int, passed: Bools) -> None:
        for turn, part in enumerate(self._parts):
            part.add(state, np.where(state[self._at] == turn, rows, 0), now, passed)

    def needs(self, state: Ints, now: int, passed: Bools) -> Ints:
        return self._current(state, BIG, lambda part: part.needs(state, now, passed))

    def due(self, state: Ints, passed: Bools) -> Ints:
        return self._current(state, BIG, lambda part: part.due(state, passed))

    def fired(self, state: Ints, now: int, passed: Bools, mask: Bools) -> None:
        turns = state[self._at].copy()  # one firing moves on by one part
        for turn, part in enumerate(self._parts):
            here = mask & (turns == turn)
            part.fired(state, now, passed, here)
            state[self._at][here & part.finished(state)] += 1

    def reset(self, state: Ints, mask: Bools) -> None:
        state[self._at][mask] = 0
        for part in self._parts:
            part.reset(state, mask)

    def finished(self, state: Ints) -> Bools:
        done: Bools = state[self._at] == len(self._parts)
        return done

    def period(self, state: Ints, now: int, passed: Bools) -> Ints:
        last = state[self._at] == len(self._parts) - 1
        return np.where(last, self._parts[-1].period(state, now, passed), 0)

    def merge(self, old: Ints, new: Ints, groups: Ints, chosen: Bools, passed: Bools) -> None:
        turns = np.full(new.shape[1], BIG, np.int64)
        np.minimum.at(turns, groups[chosen], old[self._at][chosen])
        new[self._at] = np.where(turns == BIG, 0, turns)
        behind = chosen & (old[self._at] == turns[groups])
        for turn, part in enumerate(self._parts):
            part.merge(old, new, groups, behind & (old[self._at] == turn), passed)


class Watermark(Node):
    """Early firings, the one on time, late firings; `state[at]` is 1 once it fired on time."""

    counts = True

    def __init__(self, at: int, early: Node | None, late: Node) -> None:
        self._at, self._early, self._late = at, early, late

    def _now(self, state: Ints, passed: Bools, early: Callable[[Node], Ints], without: int, ready: int, late: Ints) -> Ints:
        before = early(self._early) if self._early else without
        return np.where(passed, np.where(state[self._at] == 0, ready, late), before)

    def add(self, state: Ints, rows: Ints, now: int, passed: Bools) -> None:
        if self._early:
            self._early.add(state, np.where(passed, 0, rows), now, passed)
        self._late.add(state, np.where(passed & (state[self._at] == 1), rows, 0), now, passed)

    def needs(self, state: Ints, now: int, passed: Bools) -> Ints:
        late = self._late.needs(state, now, passed)
        return self._now(state, passed, lambda early: early.needs(state, now, passed), BIG, 0, late)

    def due(self, state: Ints, passed: Bools) -> Ints:
        return self._now(state, passed, lambda early: early.due(state, passed), BIG, READY, self._late.due(state, passed))

    def fired(self, state: Ints, now: int, passed: Bools, mask: Bools) -> None:
        on_time = mask & passed & (state[self._at] == 0)
        self._late.fired(state, now, passed, mask & passed & ~on_time)
        if self._early:
            self._early.fired(state, now, passed, mask & ~passed)
        state[self._at][on_time] = 1

    def reset(self, state: Ints, mask: Bools) -> None:
        state[self._at][mask] = 0
        for part in (self._early, self._late):
            if part:
                part.reset(state, mask)

    def finished(self, state: Ints) -> Bools:
        return np.zeros(state.shape[1], np.bool_)

    def period(self, state: Ints, now: int, passed: Bools) -> Ints:
        late = self._late.period(state, now, passed)
        return self._now(state, passed, lambda early: early.period(state, now, passed), 0, 0, late)

    def merge(self, old: Ints, new: Ints, groups: Ints, chosen: Bools, passed: Bools) -> None:
        fired = chosen & (old[self._at] == 1)
        new[self._at][groups[fired]] = 1
        new[self._at][~passed] = 0
        if self._early:
            self._early.merge(old, new, groups, chosen & ~fired, passed)
        self._late.merge(old, new, groups, fired & passed[groups], passed)


def _least(finished: Bools, groups: Ints, n_groups: int, chosen: Bools) -> Bools:
    """Which of the chosen columns count: in each group those not finished; if all are, one of them."""
    live = chosen & ~finished
    has_live = np.zeros(n_groups, np.bool_)
    has_live[groups[live]] = True
    rest = np.flatnonzero(chosen & ~has_live[groups])
    live[rest[np.unique(groups[rest], return_index=True)[1]]] = True
    return live
