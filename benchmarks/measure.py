"""What a run is judged by: how many events a second, whole and steady, and whether every count is right.

Both sides are measured in the same way. A **commit** is the moment from which results up to some number of events can never be
lost: a published checkpoint for Penstock, the end of a batch for Structured Streaming.

1. **Whole**: all events, from the call that starts the job or query to the last commit. Starting tasks is part of it.
2. **Steady**: from the first commit that covers a fifth of the events to the last one.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.workload import Counts

LEFT_OUT = 0.2


@dataclass(frozen=True, slots=True)
class Run:
    """One measured run. `commits` are (seconds since the start, events covered)."""

    rows: int
    commits: Sequence[tuple[float, int]]
    verified: bool
    note: str = ""
    memory: int = 0  # bytes, the most that all processes had at one moment
    cpu_s: float = 0.0  # processor time of all of them

    @property
    def whole(self) -> float:
        """Events per second from the start to the last commit."""
        return self.rows / self.commits[-1][0]

    @property
    def steady(self) -> float:
        """Events per second without the first fifth."""
        since, done = next(commit for commit in self.commits if commit[1] >= LEFT_OUT * self.rows)
        until, all_done = self.commits[-1]
        return (all_done - done) / (until - since) if until > since else self.whole

    def to_json(self) -> dict[str, Any]:
        """For the results file."""
        return {
            "rows": self.rows,
            "seconds": round(self.commits[-1][0], 3),
            "commits": len(self.commits),
            "whole": round(self.whole),
            "steady": round(self.steady),
            "verified": self.verified,
            "note": self.note,
            "memory": self.memory,
            "cpu_ns": round(self.cpu_s / self.rows * 1e9),
        }


@dataclass(slots=True)
class Stopwatch:
    """Collects the commits of a run."""

    since: float = field(default_factory=time.perf_counter)
    commits: list[tuple[float, int]] = field(default_factory=list)

    def commit(self, rows: int) -> None:
        """So many events are done for good."""
        self.commits.append((time.perf_counter() - self.since, rows))


def difference(found: Counts, wanted: Counts) -> str:
    """What is wrong with the counts, in words; empty if nothing is."""
    wrong = [key for key in {*found, *wanted} if found.get(key) != wanted.get(key)]
    if not wrong:
        return ""
    return f"{len(wrong)} of {len(wanted)} counts differ ({sum(found.values())} views counted, {sum(wanted.values())} expected)"


def summary(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The medians of several runs, and how far apart the runs were."""
    whole = [run["whole"] for run in runs]
    return {
        "whole": round(statistics.median(whole)),
        "steady": round(statistics.median(run["steady"] for run in runs)),
        "spread": round((max(whole) - min(whole)) / statistics.median(whole), 3),
        "commits": min(run["commits"] for run in runs),
        "memory": max(run["memory"] for run in runs),
        "cpu_ns": round(statistics.median(run["cpu_ns"] for run in runs)),
        "verified": all(run["verified"] for run in runs),
        "runs": list(runs),
    }
