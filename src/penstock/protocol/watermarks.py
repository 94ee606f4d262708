"""The least of several clocks: how far event time is, where it comes from several places.

Used for the channels of an edge, the inputs of an operator and the splits of a source: the same rules hold everywhere.

1. The minimum never goes back.
2. An idle clock holds nobody back; it counts again as soon as it speaks.
3. A clock that has not spoken yet holds the minimum where it is (it never lowers it).
4. If all clocks are idle, or there is none, the minimum stays and `idle` is true (once settled).
5. An ended clock holds nobody back. Only when all have ended is the minimum TIME_MAX: an idle one may still speak.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

from penstock.protocol.messages import TIME_MAX, TIME_MIN

Id = TypeVar("Id", bound=Hashable)


class Minimum(Generic[Id]):
    """The least of the clocks named by `ids`."""

    __slots__ = ("_idle", "_times", "idle", "time")

    def __init__(self, ids: Iterable[Id] = (), time: int = TIME_MIN) -> None:
        self._times: dict[Id, int] = dict.fromkeys(ids, TIME_MIN)
        self._idle: set[Id] = set()
        self.time = time
        self.idle = False

    def add(self, id: Id, time: int = TIME_MIN, *, idle: bool = False) -> None:
        """Count one more clock. Call `settle` once all are added, or the first would run ahead of the others."""
        assert id not in self._times, f"{id!r} is counted already"
        self._times[id] = time
        if idle:
            self._idle.add(id)

    def note(self, id: Id, time: int) -> None:
        """Clock `id` is at `time`, and so is active. Call `settle` once all that have news were noted."""
        if time > self._times[id]:
            self._times[id] = time
        self._idle.discard(id)

    def advance(self, id: Id, time: int) -> bool:
        """Clock `id` is at `time`, and so is active. True if the minimum or idleness changed."""
        self.note(id, time)
        return self.settle()

    def wake(self, id: Id) -> bool:
        """Clock `id` has spoken without saying a time."""
        self._idle.discard(id)
        return self.settle()

    def rest(self, id: Id) -> bool:
        """Clock `id` is idle."""
        assert id in self._times, f"{id!r} is not counted"
        self._idle.add(id)
        return self.settle()

    def end(self, id: Id) -> bool:
        """Clock `id` has no more to say."""
        return self.advance(id, TIME_MAX)

    def of(self, id: Id) -> int:
        """What clock `id` last said."""
        return self._times[id]

    def is_idle(self, id: Id) -> bool:
        """Whether clock `id` is idle."""
        return id in self._idle

    def clone(self) -> Minimum[Id]:
        """An independent copy."""
        copy: Minimum[Id] = Minimum()
        copy._times, copy._idle = dict(self._times), set(self._idle)
        copy.time, copy.idle = self.time, self.idle
        return copy

    def key(self) -> tuple[object, ...]:
        """Equal for equal states."""
        return (self.time, self.idle, tuple(self._times.items()), tuple(id for id in self._times if id in self._idle))

    def settle(self) -> bool:
        """Bring the minimum up to date. True if it or idleness changed."""
        before = (self.time, self.idle)
        live = [time for id, time in self._times.items() if id not in self._idle and time < TIME_MAX]
        over = bool(self._times) and all(time == TIME_MAX for time in self._times.values())
        self.idle = not live and not over
        if live:
            self.time = max(self.time, min(live))
        elif over:
            self.time = TIME_MAX
        return (self.time, self.idle) != before
