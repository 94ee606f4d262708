"""A process function that uses everything there is, against a model in plain Python, however rows are cut into batches, and with
new tasks restored in the middle at another parallelism."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from processing.everything import Ran, Step, expected, run, scripts
from processing.model import Model, S

RELAXED: dict[str, Any] = {"deadline": None, "derandomize": True, "suppress_health_check": list(HealthCheck)}
CUTS = st.lists(st.integers(0, 9), min_size=1, max_size=12)
PARALLELISMS = st.sampled_from([(1,), (1, 1), (1, 2), (2, 1), (1, 2, 3, 1)])


def by_output(model: Model) -> dict[Any, dict[str, list[tuple[str, int]]]]:
    found: dict[Any, dict[str, list[tuple[str, int]]]] = {}
    for key, sent in model.sent.items():
        for output, text, time in sent:
            found.setdefault(key, {}).setdefault(output, []).append((text, time))
    return found


def check(ran: Ran, model: Model) -> None:
    sent = {key: dict(outputs) for key, outputs in ran.sent.items()}
    assert sent == by_output(model)
    assert ran.dead == model.dead
    assert Counter(ran.late) == Counter(model.late)
    assert ran.kept == 0, "timers that fired, and rows that waited, leave nothing behind"


@settings(max_examples=40, **RELAXED)
@given(scripts(), CUTS, PARALLELISMS)
def test_rows_as_they_come_do_what_the_model_does(script: list[Step], cuts: list[int], parallelisms: tuple[int, ...]) -> None:
    ran = run(script, cuts, parallelisms)
    check(ran, expected(script, ordered=False))
    assert ran.drawn == run(script, []).drawn, "random numbers do not depend on batches or restores"


@settings(max_examples=40, **RELAXED)
@given(scripts(), CUTS, PARALLELISMS)
def test_rows_in_order_of_time_do_what_the_model_does(script: list[Step], cuts: list[int], parallelisms: tuple[int, ...]) -> None:
    script = [*script, ("watermark", 1000 * S)]  # all that rows and timers set has fired before the end
    check(run(script, cuts, parallelisms, "event-time"), expected(script, ordered=True))


@pytest.mark.parametrize("backend", ["rocksdb"], indirect=True)
@settings(max_examples=8, **RELAXED)
@given(scripts(), CUTS, PARALLELISMS, st.booleans())
def test_with_a_working_copy_in_rocksdb_it_is_the_same(
    backend: None, script: list[Step], cuts: list[int], parallelisms: tuple[int, ...], ordered: bool
) -> None:
    script = [*script, ("watermark", 1000 * S)]
    check(run(script, cuts, parallelisms, "event-time" if ordered else None), expected(script, ordered=ordered))


@settings(max_examples=20, **RELAXED)
@given(scripts(), CUTS)
def test_in_order_of_time_it_does_not_matter_how_far_the_watermark_was(script: list[Step], cuts: list[int]) -> None:
    rows = [step for step in script if step[0] == "row"]
    end = [("watermark", 1000 * S)]
    steps: list[Step] = [("tick", 0)]
    for number, row in enumerate(sorted(rows, key=lambda step: step[1]["at"])):
        steps += [("watermark", row[1]["at"] - 1 - number % 2), row]
    one, many = (run([*each, *end], cuts, order="event-time") for each in ([("tick", 0), *rows], steps))
    assert {k: {o: plain(sent) for o, sent in v.items()} for k, v in one.sent.items()} == {
        k: {o: plain(sent) for o, sent in v.items()} for k, v in many.sent.items()
    }


def plain(sent: list[tuple[str, int]]) -> list[tuple[str, int]]:
    return [(text.partition(" watermark")[0], time) for text, time in sent]
