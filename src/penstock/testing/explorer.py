"""Every schedule of a small world, each state visited once: what no random test can promise.

The explorer walks breadth first from the initial world through `World.successors` and stops at the first violation, which is
then also a shortest one: its list of choices is the bug report. States are remembered as 64-bit hashes of their key. The search
space is finite because each step consumes something: a row, a message, a fault.

    $ python -m penstock.testing.explorer
    $ python -m penstock.testing.explorer --full
"""

from __future__ import annotations

import argparse
import sys
import time
from array import array
from collections import deque
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b

from penstock.errors import CorruptError
from penstock.protocol import coordinator as co
from penstock.testing.parts import Scope, Violation
from penstock.testing.world import World

SCOPES = (
    Scope("plain", targets=2, rows=(1, 1), epochs=2),
    Scope("crash", rows=(1, 1), epochs=3, crashes=1),
    Scope("late", rows=(1, 0), epochs=2, crashes=1, late=1, collections=1),
    Scope("zombie", rows=(1, 0), epochs=2, zombies=1, collections=1),
    Scope("hiccup", rows=(1, 0), epochs=2, hiccups=1, crashes=1),
    Scope("rerun", targets=2, rows=(1, 0), epochs=2, reruns=1),
    Scope("overdue", rows=(1, 1), epochs=2, overdue=2),
    Scope("overdue crash", rows=(1, 0), epochs=2, overdue=1, crashes=1),
    Scope("overdue zombie", rows=(1, 0), epochs=1, overdue=1, zombies=1),
    Scope("overdue hiccup", rows=(1, 0), epochs=2, overdue=1, hiccups=1),
)
"""What `make test` explores. Each scope is small in one direction and exhaustive in another."""

FULL = (
    *SCOPES,
    Scope("wide crash", targets=2, rows=(1, 1), epochs=2, crashes=1),
    Scope("long crash", rows=(2, 2), epochs=3, crashes=1),
    Scope("two hiccups", rows=(1, 1), epochs=2, hiccups=2, crashes=1),
    Scope("crash and zombie", rows=(1, 0), epochs=2, crashes=1, zombies=1),
    Scope("overdue rows crash", rows=(1, 1), epochs=2, overdue=1, crashes=1),
    Scope("overdue long zombie", rows=(1, 0), epochs=2, overdue=1, zombies=1),
    Scope("overdue two hiccups", rows=(1, 0), epochs=2, overdue=2, hiccups=1),
    Scope("overdue order", rows=(2, 0), epochs=2, overdue=2),
)
"""What takes minutes."""


@dataclass(slots=True)
class Path:
    """How a state was reached, backwards."""

    choice: str
    before: Path | None
    length: int = 0

    def __post_init__(self) -> None:
        self.length = 1 + (self.before.length if self.before else 0)

    def choices(self) -> list[str]:
        found: list[str] = []
        at: Path | None = self
        while at is not None:
            found.append(at.choice)
            at = at.before
        return found[::-1]


@dataclass(slots=True)
class Found:
    """A violation and the shortest way to it."""

    invariant: str
    detail: str
    choices: list[str]

    def __str__(self) -> str:
        steps = "\n".join(f"{n:4}. {choice}" for n, choice in enumerate(self.choices, 1))
        return f"{self.invariant} violated after {len(self.choices)} choices\n{steps}\n      {self.detail}"


@dataclass(slots=True)
class Report:
    """What was explored."""

    scope: Scope
    states: int = 0
    transitions: int = 0
    depth: int = 0
    seconds: float = 0.0
    found: Found | None = None
    hits: set[tuple[str, str]] = field(default_factory=set)

    def __str__(self) -> str:
        counts = f"{self.states:>10,} states{self.transitions:>12,} transitions  depth {self.depth:>4}{self.seconds:>8.1f} s"
        return f"{self.scope.name:18}{counts}  {self.scope}"


class Numbers:
    """Numbers for the parts of worlds: equal parts, equal numbers."""

    def __init__(self) -> None:
        self._known: dict[Hashable, int] = {}

    def __call__(self, part: Hashable) -> int:
        return self._known.setdefault(part, len(self._known))


def explore(scope: Scope, *, deep: bool = False) -> Report:
    """Visit every state of `scope`, or stop at the first that violates an invariant.

    Args:
        deep: go down first. Finds most violations sooner, but not by the shortest way.
    """
    started = time.monotonic()
    report = Report(scope)
    first = World(scope)
    report.hits = first.hits
    numbers = Numbers()
    seen = {digest(first.key(numbers))}
    frontier: deque[tuple[World, Path | None]] = deque([(first, None)])
    while frontier and report.found is None:
        at, path = frontier.pop() if deep else frontier.popleft()
        report.depth = max(report.depth, path.length if path else 0)
        try:
            for choice, after in at.successors():
                report.transitions += 1
                known = digest(after.key(numbers))
                if known not in seen:
                    seen.add(known)
                    frontier.append((after, Path(choice, path)))
        except (AssertionError, CorruptError) as error:
            invariant = error.invariant if isinstance(error, Violation) else f"{type(error).__name__} in the core"
            report.found = Found(invariant, str(error), [*(path.choices() if path else ()), *([at.doing] if at.doing else ())])
    report.states = len(seen)
    report.seconds = time.monotonic() - started
    return report


def digest(key: tuple[int, ...]) -> int:
    """64 bits of a state."""
    return int.from_bytes(blake2b(array("q", key).tobytes(), digest_size=8).digest(), "little")


def never_hit(hits: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """The pairs of (state, event) that no schedule reached."""
    reached = set(hits)
    phases = [f"Coordinator {phase.value}" for phase in co.Phase]
    events = [event.__name__ for event in co.Event.__args__]
    tasks = [(f"Source {end}", event) for end in ("free", "free, ended") for event in ("SourcesEnded", "Trigger")]
    states = [f"{state}{ended}" for state in ("free", "aligning", "recording") for ended in ("", ", ended")]
    heard = ("Batch", "Watermark", "Idle", "Barrier", "End", "Overdue", "Overtook", "Aborted")
    tasks += [(f"Target {state}", message) for state in states for message in heard]
    for pair in [*((phase, event) for phase in phases for event in events), *tasks]:
        if pair not in reached:
            yield pair


def main(arguments: list[str] | None = None) -> int:
    """Explore and print what was found."""
    parser = argparse.ArgumentParser(description="Explore every schedule of a small world.")
    parser.add_argument("--full", action="store_true", help="the larger scopes as well (minutes)")
    parser.add_argument("--scope", help="only the scope of this name")
    options = parser.parse_args(arguments)
    hits: set[tuple[str, str]] = set()
    failed = False
    for scope in FULL if options.full or options.scope else SCOPES:
        if options.scope in (None, scope.name):
            report = explore(scope)
            hits |= report.hits
            failed = failed or report.found is not None
            print(report, flush=True)
            if report.found is not None:
                print(report.found)
    print("never hit:")
    for state, event in never_hit(hits):
        print(f"    {state}: {event}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
