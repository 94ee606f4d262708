"""The join of what is there: at every moment the net of what was sent is the join of what both sides hold."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings

import penstock as pen
from operators.two_inputs import CUTS, PARALLELISMS, Build, Row, Step, counted, plain, run, scripts
from penstock import col
from penstock.operators.join_forever import ForeverJoin, net
from penstock.operators.joining import Joined, Side
from penstock.state.spec import StateSpec
from penstock.state.table import KeyedTable

RELAXED: dict[str, Any] = {"deadline": None, "derandomize": True, "suppress_health_check": list(HealthCheck)}
HOWS = ("inner", "left", "right", "full")


def joined(lefts: list[Row], rights: list[Row], how: str) -> list[Row]:
    sent = []
    for a in lefts:
        found = [b for b in rights if a["k"] is not None and b["k"] == a["k"]]
        sent += [{**a, **{f"{name}_right": b[name] for name in b if name != "k"}} for b in found]
        if not found and how in ("left", "full"):
            sent.append({**a, **{f"{name}_right": None for name in a if name != "k"}})
    for b in rights:
        if how in ("right", "full") and not any(b["k"] is not None and a["k"] == b["k"] for a in lefts):
            sent.append(dict.fromkeys(b) | {"k": b["k"]} | {f"{name}_right": b[name] for name in b if name != "k"})
    return sent


def plainly(how: str) -> Build:
    def build(left: pen.Stream, right: pen.Stream, to: Any) -> None:
        left.join(right, on="k", within="forever", how=how, name="view").write(to("out"))

    return build


def of_changes(how: str) -> Build:
    """Of each number modulo three its greatest, odd or even, and its key: rows change keys, are withdrawn, and equal others."""

    def newest(stream: pen.Stream, name: str) -> pen.Stream:
        keyed = stream.with_columns(id="v % 3", k="coalesce(k, '')").key_by("id")
        last = keyed.window(pen.running(), emit="retract").aggregate(v=col("v").max(), k=col("k").min(), name=name)
        return last.select(v="v % 2", k=pen.when(col("k") == "", None).otherwise(col("k")))

    def build(left: pen.Stream, right: pen.Stream, to: Any) -> None:
        view = newest(left, "l").join(newest(right, "r"), on="k", within="forever", how=how, name="view")
        view.write(to("out"))
        counts = view.key_by("k").window(pen.running(), emit="retract")
        counts.aggregate(n=pen.count(), top=col("v").max(), name="counts").write(to("counts"))

    return build


def held(script: list[Step]) -> tuple[list[Row], list[Row]]:
    """What the two sides hold."""
    return [r for what, r in script if what == "l"], [r for what, r in script if what == "r"]


def newest(rows: list[Row]) -> list[Row]:
    groups: dict[int, list[Row]] = {}
    for row in rows:
        groups.setdefault(row["v"] % 3, []).append(row)
    return [{"v": max(r["v"] for r in g) % 2, "k": min(r["k"] or "" for r in g) or None} for g in groups.values()]


@pytest.mark.parametrize("how", HOWS)
def test_rows_that_stay_meet_whenever_they_come(how: str) -> None:
    @settings(max_examples=30, **RELAXED)
    @given(scripts(), CUTS, PARALLELISMS)
    def check(script: list[Step], cuts: list[int], parallelisms: tuple[int, ...]) -> None:
        ran = run(plainly(how), script, cuts, parallelisms)
        assert counted(ran.rows()) == counted(joined(*held(script), how))
        assert all(("change" in row) == (how != "inner") for row in ran.rows())
        check_marks(ran, script, lambda part: joined(*held(part), how))

    check()


@pytest.mark.parametrize("how", HOWS)
def test_rows_that_are_withdrawn_take_their_results_with_them(how: str) -> None:
    @settings(max_examples=30, **RELAXED)
    @given(scripts(), CUTS, PARALLELISMS)
    def check(script: list[Step], cuts: list[int], parallelisms: tuple[int, ...]) -> None:
        ran = run(of_changes(how), script, cuts, parallelisms, timed=False)

        def expected(part: list[Step]) -> list[Row]:
            return joined(*map(newest, held(part)), how)

        assert counted(ran.rows()) == counted(expected(script))
        check_marks(ran, script, expected)
        assert ran.counters["forever_join view.unmatched"] == 0
        never_below_zero(ran.rows())
        # And an aggregate behind it is right as well.
        groups: dict[Any, list[Row]] = {}
        for row in expected(script):
            groups.setdefault(row["k"], []).append(row)
        tops = {key: max((r["v"] for r in rows if r["v"] is not None), default=None) for key, rows in groups.items()}
        assert counted(ran.rows("counts")) == counted([{"k": k, "n": len(rows), "top": tops[k]} for k, rows in groups.items()])

    check()


def check_marks(ran: Any, script: list[Step], expected: Any) -> None:
    places = [number for number, (what, _) in enumerate(script) if what == "watermark"]
    for place, (_, marks) in zip(places, ran.marks):
        sent = [plain(row) for row in ran.sinks["out"].rows[: marks["out"]]]
        assert counted(sent) == counted(expected(script[: place + 1]))


def never_below_zero(rows: list[Row]) -> None:
    """Nothing is withdrawn before it was sent."""
    total: Counter[Any] = Counter()
    for row in rows:
        key = repr({name: value for name, value in row.items() if name != "change"})
        total[key] += row["change"]
        assert total[key] >= 0


def test_a_row_is_sent_alone_until_its_first_match_and_again_after_its_last() -> None:
    script: list[Step] = [("l", {"k": "a", "v": 1, "at": 0}), ("r", {"k": "a", "v": 2, "at": 0})]
    changes = [(row["change"], row["v"], row["v_right"]) for row in run(plainly("left"), script).rows()]
    assert changes == [(1, 1, None), (-1, 1, None), (1, 1, 2)]


def test_withdrawing_what_was_never_there_is_counted_and_changes_nothing() -> None:
    rows = pa.record_batch({"row.v": [1, 1, 2], "__time": [0, 0, 0]})
    changes = net(np.array([0, 0, 1]), np.array([1, 1, -1]), rows)
    assert (changes.of.tolist(), changes.sign.tolist()) == ([0, 0, 1], [1, 1, -1])
    names = {side: Side(("k",), ("v",), (name,)) for side, name in enumerate(("v", "v_right"))}
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("v_right", pa.int64()), ("__change", pa.int8())])
    spec = [pa.field("k", pa.int64()), pa.field("__bucket", pa.int64()), pa.field("__n", pa.int64())]
    states = {}
    for side in ("left", "right"):
        count = StateSpec("n", pa.schema(spec[:2]), pa.schema([("__rows", pa.int64())]), 1)
        each = StateSpec("r", pa.schema(spec), pa.schema([("row.v", pa.int64()), ("__time", pa.int64())]), 1)
        states |= {f"{side}_buckets": KeyedTable(count, range(128), 128), f"{side}_rows": KeyedTable(each, range(128), 128)}
    join = ForeverJoin("view", Joined(("k",), (names[0], names[1]), schema), "left", states, max_parallelism=128)
    gone = pa.record_batch({"k": [1], "v": [7], "__change": pa.array([-1], pa.int8())})
    assert [rows for _, rows in join.receive(0, gone, None) if rows.num_rows] == []
    assert join.counters["unmatched"] == 1


def test_what_cannot_be_joined_for_ever_is_refused_with_the_fix() -> None:
    from operators.test_joins import two_streams

    left, right = two_streams(pen.Pipeline("test"))
    with pytest.raises(pen.PlanError, match="how='inner', or how='left', or how='right', or how='full'"):
        left.join(right, on="k", within="forever", how="semi", name="view")
    updates = left.key_by("k").aggregate(n=pen.count(), name="n")
    with pytest.raises(pen.PlanError, match='emit="retract"'):
        right.join(updates, on="k", within="forever", name="view")
