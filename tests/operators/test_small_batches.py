"""Batches of a few rows, and event time that moves with nothing due, stay cheap: a budget for each operator.

Budgets are in units of a fixed piece of numpy and Arrow work that is measured in the same moments (`benchmarks.smallbatches`), so they
mean the same on a slow machine. Each is about twice what the operator takes, of which the least of several rounds counts.
"""

from __future__ import annotations

import pytest
from benchmarks import smallbatches

TRIES = 3

ADVANCE = 0.1
"""For event time that moves with nothing due, in every operator."""

BUDGETS: dict[str, tuple[float, float]] = {
    # for a batch of one row, and of 16
    "filter": (1.7, 1.8),
    "project": (2.8, 2.8),
    "watermark": (1.2, 1.2),
    "partial aggregate": (2.2, 2.5),
    "running aggregate": (3.0, 4.0),
    "tumbling": (3.3, 7.0),
    "tumbling, a key per row": (3.0, 3.5),
    "sliding": (5.0, 21.0),
    "sessions": (64.0, 72.0),
    "panes": (42.0, 60.0),
    "count windows": (17.0, 40.0),
    "drop_duplicates": (9.5, 11.0),
    "drop_duplicates for ever": (6.0, 6.5),
    "top": (28.0, 46.0),
    "reduce": (14.0, 26.0),
    "interval join": (43.0, 60.0),
    "as-of join": (37.0, 46.0),
    "regular join": (37.0, 43.0),
    "process": (9.5, 12.5),
    "process with a timer": (19.0, 26.0),
    "write to memory": (1.3, 1.4),
    "write to files": (0.6, 0.7),
    "dealing": (1.6, 3.5),
    "task: a read": (7.0, 7.2),
}


def test_every_case_has_a_budget() -> None:
    assert {case.name for case in smallbatches.CASES} | {"dealing", "task: a read"} == set(BUDGETS)


@pytest.mark.parametrize("name", BUDGETS)
def test_a_batch_of_a_few_rows_stays_within_its_budget(name: str) -> None:
    least: dict[str, float] = {}
    for _ in range(TRIES):
        found = smallbatches.measure(name, (1, 16), rounds=3)[name]
        least = {what: min(cost.units, least.get(what, cost.units)) for what, cost in found.items()}
        if all(cost <= allowed(name, what) for what, cost in least.items()):
            return
    assert {what: round(cost, 2) for what, cost in least.items()} == {what: allowed(name, what) for what in least}, "over budget"


def test_a_watermark_that_passes_a_task_by_stays_within_its_budget() -> None:
    costs = [smallbatches.task_costs(1, rounds=3)[1].units for _ in range(TRIES)]
    assert min(costs) <= 0.5


def allowed(name: str, what: str) -> float:
    return ADVANCE if what == "advance" else BUDGETS[name][0 if what == "1" else 1]
