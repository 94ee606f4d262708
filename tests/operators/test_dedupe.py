"""drop_duplicates against a loop over the rows in the order they came."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

import penstock as pen
from operators.two_inputs import CUTS, PARALLELISMS, Row, S, Step, counted, run, scripts
from penstock import sources

RELAXED: dict[str, Any] = {"deadline": None, "derandomize": True, "suppress_health_check": list(HealthCheck)}


def reference(script: list[Step], within: int) -> tuple[list[Row], list[Row], int]:
    """Rows that pass, late rows, and how many were dropped."""
    now, seen, passed, late, dropped = -(2**63), dict[Any, int](), [], [], 0
    for what, value in script:
        if what == "watermark":
            now = value  # that keys are forgotten makes no difference: rows that could tell are late by then
        elif what == "l":
            if value["at"] + within <= now:
                late.append(value)
            elif value["k"] in seen and value["at"] <= seen[value["k"]] + within:
                dropped += 1
            else:
                seen[value["k"]] = value["at"]
                passed.append(value)
    return passed, late, dropped


@pytest.mark.parametrize("within", [0, 3 * S, 10 * S])
def test_the_first_row_of_a_key_passes_until_the_key_is_forgotten(within: int) -> None:
    def build(left: pen.Stream, right: pen.Stream, to: Any) -> None:
        first = left.drop_duplicates("k", within=f"{within}us", name="seen")
        first.write(to("out"))
        first.late.write(to("late"))
        right.write(to("right"))

    @settings(max_examples=40, **RELAXED)
    @given(scripts(), CUTS, PARALLELISMS)
    def check(script: list[Step], cuts: list[int], parallelisms: tuple[int, ...]) -> None:
        ran = run(build, script, cuts, parallelisms)
        passed, late, dropped = reference(script, within)
        assert counted(ran.rows()) == counted(passed)
        assert counted(ran.rows("late")) == counted(late)
        assert ran.counters["drop_duplicates seen.dropped"] == dropped
        assert ran.counters["kept"] == 0

    check()


def test_without_an_end_a_key_is_remembered_for_ever() -> None:
    def build(left: pen.Stream, right: pen.Stream, to: Any) -> None:
        left.drop_duplicates("k", name="seen").write(to("out"))
        right.write(to("right"))

    @settings(max_examples=20, **RELAXED)
    @given(scripts(), CUTS, PARALLELISMS)
    def check(script: list[Step], cuts: list[int], parallelisms: tuple[int, ...]) -> None:
        ran = run(build, script, cuts, parallelisms, timed=False)
        rows = [row for what, row in script if what == "l"]
        expected = [row for n, row in enumerate(rows) if row["k"] not in [r["k"] for r in rows[:n]]]
        assert counted(ran.rows()) == counted(expected)
        assert ran.counters["kept"] == len(expected)

    check()


def test_what_cannot_be_deduplicated_is_refused_with_the_fix() -> None:
    p = pen.Pipeline("test")
    stream = p.read(sources.memory([], schema="k string, x double", name="in"))
    with pytest.raises(pen.PlanError, match="with_watermark"):
        stream.drop_duplicates("k", within="1h", name="seen")
    with pytest.raises(pen.PlanError, match=r"Write: .drop_duplicates\('k', name=\"drop-duplicates\"\)"):
        stream.drop_duplicates("k")
    with pytest.raises(pen.PlanError, match="cannot be a key"):
        stream.drop_duplicates(name="all")
    with pytest.raises(pen.PlanError, match="needs rows that are sent once"):
        stream.key_by("k").aggregate(n=pen.count(), name="n").drop_duplicates("k", name="seen")
