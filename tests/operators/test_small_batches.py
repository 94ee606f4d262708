"""Batches of a few rows, and event time that moves with nothing due, stay cheap: a budget for each operator.

Budgets are in units of a fixed piece of numpy and Arrow work that is measured in the same moments (`benchmarks.smallbatches`), so they
mean the same on a slow machine. Each is about twice what the operator takes, of which the least of several rounds counts.
"""

from __future__ import annotations

import pytest
from benchmarks import smallbatches

TRIES = 3

ADVANCE = 0.05
"""For event time that moves with nothing due, in every operator."""

BUDGETS: dict[str, tuple[float, float]] = {
    # for a batch of one row, and of 16
    "filter": (0.9, 1.2),
    "project": (1.3, 1.4),
    "watermark": (0.3, 0.4),
    "partial aggregate": (1.2, 1.5),
    "running aggregate": (1.8, 3.1),
    "tumbling": (1.5, 3.5),
    "tumbling, a key per row": (1.7, 2.1),
    "sliding": (2.1, 10.0),
    "sessions": (27.0, 34.0),
    "panes": (20.0, 39.0),
    "count windows": (7.0, 24.0),
    "drop_duplicates": (1.8, 3.8),
    "drop_duplicates for ever": (1.3, 1.8),
    "top": (15.0, 30.0),
    "reduce": (10.0, 19.0),
    "interval join": (17.0, 29.0),
    "as-of join": (12.0, 15.0),
    "regular join": (13.0, 18.0),
    "process": (3.6, 7.0),
    "process with a timer": (8.0, 15.0),
    "write to memory": (1.3, 1.5),
    "write to files": (0.5, 0.6),
    "dealing": (0.4, 1.4),
    "task: a read": (3.6, 3.8),
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
    assert min(costs) <= 0.4


def allowed(name: str, what: str) -> float:
    return ADVANCE if what == "advance" else BUDGETS[name][0 if what == "1" else 1]
