"""The table at the end of a soak."""

from __future__ import annotations

import math
from collections.abc import Sequence

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


def summary(results: Sequence[Result], wrong: Sequence[str], took_s: float) -> str:
    """Kills by runner and kind, how long until the next epoch, and the verdict."""
    kills = [kill for result in results for kill in result.kills]
    rows = [HEAD]
    for pair in sorted({(kill.runner, kill.kind) for kill in kills}):
        rows.append(row(*pair, [kill for kill in kills if (kill.runner, kill.kind) == pair]))
    if kills:
        rows.append(row("all", "", kills))
    widths = [max(len(line[column]) for line in rows) for column in range(len(HEAD))]
    lines = ["", *("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in rows), ""]
    lines += [f"WRONG: {what}" for what in wrong]
    total = sum(result.rows for result in results)
    lines.append(
        f"{len(kills)} kills, {len(results)} jobs, {total} rows, {took_s:.0f} s: exactly once: {'no' if wrong else 'yes'}"
    )
    return "\n".join(lines)
