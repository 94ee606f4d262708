"""The table at the end of a soak."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from soak.harness import Kill, Result

HEAD = ("runner", "kind", "kills", "recovered p50", "p99", "replayed", "rows again")


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of the values do not exceed.

    >>> quantile([3.0, 1.0, 2.0, 4.0], 0.5), quantile([3.0, 1.0, 2.0, 4.0], 0.99)
    (2.0, 4.0)
    """
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def row(runner: str, kind: str, kills: Sequence[Kill]) -> tuple[str, ...]:
    """A line of the table."""
    times = [kill.recovered_s for kill in kills]
    share = sum(kill.replayed > 0 for kill in kills) / len(kills)
    again = sum(kill.replayed for kill in kills)
    return (
        runner,
        kind,
        str(len(kills)),
        f"{quantile(times, 0.5):.2f} s",
        f"{quantile(times, 0.99):.2f} s",
        f"{share:.0%}",
        str(again),
    )


@dataclass(frozen=True, slots=True)
class Verdict:
    """On a whole run, in two parts: whether every row counted once, and whether nothing was left behind that should be gone."""

    wrong: tuple[str, ...] = ()
    left: tuple[str, ...] = ()

    @property
    def good(self) -> bool:
        """Both."""
        return not self.wrong and not self.left

    def text(self) -> str:
        """Both, in words."""
        return f"exactly once: {'no' if self.wrong else 'yes'}, nothing left behind: {'no' if self.left else 'yes'}"


def summary(results: Sequence[Result], verdict: Verdict, took_s: float) -> str:
    """Kills by runner and kind, how long until the next epoch, and the verdict."""
    kills = [kill for result in results for kill in result.kills]
    rows = [HEAD]
    for pair in sorted({(kill.runner, kill.kind) for kill in kills}):
        rows.append(row(*pair, [kill for kill in kills if (kill.runner, kill.kind) == pair]))
    if kills:
        rows.append(row("all", "", kills))
    widths = [max(len(line[column]) for line in rows) for column in range(len(HEAD))]
    lines = ["", *("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in rows), ""]
    lines += [f"WRONG: {what}" for what in verdict.wrong]
    lines += [f"LEFT: {what}" for what in verdict.left]
    lines += [f"left by Spark, and of no account: {result.plan.name}: {what}" for result in results for what in result.sparks]
    total = sum(result.rows for result in results)
    lines.append(f"{len(kills)} kills, {len(results)} jobs, {total} rows, {took_s:.0f} s: {verdict.text()}")
    return "\n".join(lines)
