"""Streams for tests of fixes, and how code that a fix proposes is put behind one."""

from __future__ import annotations

from typing import Any

import penstock as pen
from fixes.applying import evaluate
from penstock import sinks, sources
from penstock.api.stream import Stream

SCHEMA = "id bigint not null, user string, price bigint, at timestamp"


class Streams:
    """Two streams of one pipeline, with and without event time, and some whose rows replace or withdraw earlier ones."""

    def __init__(self) -> None:
        self.p = pen.Pipeline("p")
        self.left, self.right = (self.read(name) for name in ("left", "right"))
        self.timed = self.left.with_watermark("at", delay="5s")
        self.timed_right = self.right.with_watermark("at", delay="5s")

    def read(self, name: str) -> Stream:
        return self.p.read(sources.memory([], schema=SCHEMA), name=name)

    @property
    def updates(self) -> Stream:
        """One row per user, which is replaced."""
        return self.left.key_by("user").aggregate(n=pen.count(), name="updates")

    @property
    def retractions(self) -> Stream:
        """One row per user, which is withdrawn before the next."""
        return self.left.key_by("user").window(pen.running(), emit="retract").aggregate(n=pen.count(), name="retractions")

    @property
    def sessions(self) -> Stream:
        """Results that are withdrawn and come again at another time."""
        keyed = self.timed.key_by("user")
        return keyed.window(pen.session("1m"), lateness="1m", emit="retract").aggregate(n=pen.count(), name="sessions")


def applied(stream: Any, code: str, **names: Any) -> Any:
    """`stream` with code like `.window(…)` behind it."""
    return evaluate(f"stream{code}", stream=stream, **names)


def arguments(code: str, **names: Any) -> dict[str, Any]:
    """Code like `a=1, b=2`, as keywords."""
    return evaluate(f"dict({code})", **names)  # type: ignore[no-any-return]


def planned(stream: Stream) -> Stream:
    """The stream, which ends somewhere and is planned as a whole."""
    stream.write(sinks.console()).plan()
    return stream
