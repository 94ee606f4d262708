"""Expressions over what rows carry besides their columns: which firing of a window sent a row, and whether it is withdrawn."""

from __future__ import annotations

from penstock.api.arguments import at_line
from penstock.errors import PlanError
from penstock.expr import Expr, col, when
from penstock.plan.logical import CHANGE_COLUMN, PANE_COLUMN


def pane(what: str) -> Expr:
    """Which firing of a window sent a row: `pane("index")` (0, 1, …), `"timing"` ("early", "on_time", "late"), `"first"`, `"last"`.

    `counts.filter(pen.pane("timing") != "early")`.
    """
    info = col(PANE_COLUMN)
    parts = {
        "index": ((info - info % 16) / 16).cast("bigint"),
        "timing": when(info % 16 < 4, "early").when(info % 16 < 8, "on_time").otherwise("late"),
        "first": info % 4 >= 2,
        "last": info % 2 == 1,
    }
    return at_line(lambda: _one_of(parts, what))


def op() -> Expr:
    """Whether a row is added ("insert") or withdrawn ("delete"), in a stream whose rows can be."""
    return when(col(CHANGE_COLUMN) < 0, "delete").otherwise("insert")


def _one_of(parts: dict[str, Expr], what: str) -> Expr:
    if what not in parts:
        raise PlanError(f"pane({what!r}): a firing has {', '.join(map(repr, parts))}")
    return parts[what]
