"""join_asof against a search through all versions."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

import penstock as pen
from operators.two_inputs import CUTS, PARALLELISMS, Build, Row, S, Step, counted, plain, run, scripts

RELAXED: dict[str, Any] = {"deadline": None, "derandomize": True, "suppress_health_check": list(HealthCheck)}


def reference(script: list[Step], tolerance: int | None, how: str, until: int = 2**63 - 1) -> list[Row]:
    now, lefts, rights, sent = -(2**63), [], [], []
    for what, value in script:
        if what == "watermark":
            now = value
        elif what in ("l", "r") and value["at"] > now:
            (lefts if what == "l" else rights).append(value)
    for a in lefts:
        if a["at"] > until and a["k"] is not None:
            continue
        seen = [b for b in rights if a["k"] is not None and b["k"] == a["k"] and b["at"] <= a["at"]]
        seen = [b for b in seen if tolerance is None or a["at"] - b["at"] <= tolerance]
        # Python's max gives the first of equals; the last one that came is wanted.
        version = max(reversed(seen), key=lambda b: b["at"], default=None)
        if version or how == "left":
            sent.append({**a, "v_right": version and version["v"], "at_right": version and version["at"], "time": a["at"]})
    return sent


def join(**options: Any) -> Build:
    def build(left: pen.Stream, right: pen.Stream, to: Any) -> None:
        priced = left.join_asof(right, on="k", name="priced", **options)
        priced.with_columns(time=pen.event_time()).write(to("out"))
        priced.late.write(to("late"))
        priced.late_right.write(to("late-right"))

    return build


@pytest.mark.parametrize("how", ["left", "inner"])
@pytest.mark.parametrize("tolerance", [None, 0, 3 * S])
def test_each_row_gets_the_last_version_at_or_before_its_time(tolerance: int | None, how: str) -> None:
    options = {"how": how} if tolerance is None else {"how": how, "tolerance": f"{tolerance}us"}

    @settings(max_examples=40, **RELAXED)
    @given(scripts(), CUTS, PARALLELISMS)
    def check(script: list[Step], cuts: list[int], parallelisms: tuple[int, ...]) -> None:
        ran = run(join(**options), script, cuts, parallelisms)
        assert counted(ran.rows()) == counted(reference(script, tolerance, how))
        places = [number for number, (what, _) in enumerate(script) if what == "watermark"]
        for place, (time, marks) in zip(places, ran.marks):
            sent = [plain(row) for row in ran.sinks["out"].rows[: marks["out"]]]
            assert counted(sent) == counted(reference(script[: place + 1], tolerance, how, time))
        versions = {row["k"] for what, row in script if what == "r" and row["k"] is not None}
        assert ran.counters["kept"] == 0 if tolerance is not None else ran.counters["kept"] <= len(versions)

    check()


def test_late_rows_of_both_sides_are_set_aside() -> None:
    script: list[Step] = [
        ("r", {"k": "a", "v": 1, "at": 5 * S}),
        ("watermark", 6 * S),
        ("r", {"k": "a", "v": 2, "at": 6 * S}),
        ("l", {"k": "a", "v": 3, "at": 6 * S}),
        ("l", {"k": "a", "v": 4, "at": 7 * S}),
    ]
    ran = run(join(), script)
    assert [(row["v"], row["v_right"]) for row in ran.rows()] == [(4, 1)]
    assert [row["v"] for row in ran.rows("late")] == [3]
    assert [row["v"] for row in ran.rows("late-right")] == [2]


def test_many_rows_of_one_moment_are_taken_together(monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock.state import timers

    monkeypatch.setattr(timers, "BATCH_ROWS", 2)
    script: list[Step] = [(side, {"k": key, "v": n, "at": n // 2 * S}) for n in range(6) for key in "abc" for side in "lr"]
    ran = run(join(tolerance="1s"), script, [4])
    assert counted(ran.rows()) == counted(reference(script, S, "left"))


def test_what_cannot_be_joined_is_refused_with_the_fix() -> None:
    p = pen.Pipeline("test")
    from operators.test_joins import two_streams

    left, right = two_streams(p)
    with pytest.raises(pen.PlanError, match='name="k-join-asof"'):
        left.join_asof(right, on="k")
    with pytest.raises(pen.PlanError, match="how='left', or how='inner'"):
        left.join_asof(right, on="k", how="full", name="x")
    with pytest.raises(pen.PlanError, match="no age"):
        left.join_asof(right, on="k", tolerance="-1s", name="x")
