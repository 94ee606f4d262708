"""top against sorting all rows."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import penstock as pen
from operators.test_joins import windows_of
from operators.two_inputs import CUTS, PARALLELISMS, Build, Row, S, Step, counted, run, scripts
from penstock import sinks, sources

RELAXED: dict[str, Any] = {"deadline": None, "derandomize": True, "suppress_health_check": list(HealthCheck)}


def best(rows: list[Row], count: int, ascending: bool) -> list[Row]:
    """By number modulo 5 (3 is null), then time, then as they came."""

    def order(place: int) -> tuple[Any, ...]:
        value = rows[place]["v"] % 5
        return value == 3, value if ascending else -value, rows[place]["at"], place

    return [{**rows[place], "rank": rank + 1} for rank, place in enumerate(sorted(range(len(rows)), key=order)[:count])]


ORDER = pen.when(pen.col("v") % 5 == 3, None).otherwise(pen.col("v") % 5)


def of_windows(keyed: bool, window: Any, count: int, ascending: bool) -> Build:
    def build(left: pen.Stream, right: pen.Stream, to: Any) -> None:
        stream = left.key_by("k") if keyed else left
        found = stream.window(window).top(count, by=ORDER, ascending=ascending, name="best")
        found.with_columns(time=pen.event_time()).write(to("out"))
        found.late.write(to("late"))
        right.write(to("right"))

    return build


@pytest.mark.parametrize("keyed", [True, False])
def test_each_window_sends_its_best_rows_when_it_closes(keyed: bool) -> None:
    @settings(max_examples=40, **RELAXED)
    @given(scripts(), CUTS, PARALLELISMS, st.sampled_from([(5, 5), (10, 5), (7, 3)]), st.integers(1, 3), st.booleans())
    def check(
        script: list[Step], cuts: list[int], parallelisms: tuple[int, ...], shape: tuple[int, int], count: int, ascending: bool
    ) -> None:
        size, every = shape[0] * S, shape[1] * S
        window = pen.tumbling(f"{size}us") if size == every else pen.sliding(f"{size}us", every=f"{every}us")
        ran = run(of_windows(keyed, window, count, ascending), script, cuts, parallelisms)
        now, late, placed = -(2**63), [], dict[Any, list[Row]]()
        for what, row in script:
            if what == "watermark":
                now = row
            elif what == "l":
                open_ = [start for start in windows_of(row["at"], size, every) if start + size - 1 > now]
                if not open_:
                    late.append(row)
                for start in open_:
                    placed.setdefault((row["k"] if keyed else None, start), []).append(row)
        expected = [
            {**row, "time": start + size - 1} for (_, start), rows in placed.items() for row in best(rows, count, ascending)
        ]
        assert counted(ran.rows()) == counted(expected)
        assert counted(ran.rows("late")) == counted(late)
        assert ran.counters["kept"] == 0

    check()


def test_a_running_top_holds_the_best_rows_so_far() -> None:
    def build(left: pen.Stream, right: pen.Stream, to: Any) -> None:
        found = left.key_by("k").top(2, by=ORDER, name="best")
        assert (found._node.changes, found._node.keys) == ("update", ("k", "rank"))
        found.write(to("out"))
        right.write(to("right"))

    @settings(max_examples=40, **RELAXED)
    @given(scripts(), CUTS, PARALLELISMS)
    def check(script: list[Step], cuts: list[int], parallelisms: tuple[int, ...]) -> None:
        ran = run(build, script, cuts, parallelisms)
        places = [number for number, (what, _) in enumerate(script) if what == "watermark"]
        for place, (_, marks) in [*zip(places, ran.marks), (len(script), ran.marks[-1])]:
            held = {(row["k"], row["rank"]): row for row in ran.rows()[: marks["out"]]}
            rows = [row for what, row in script[: place + 1] if what == "l"]
            expected = [row for key in {r["k"] for r in rows} for row in best([r for r in rows if r["k"] == key], 2, False)]
            assert counted(list(held.values())) == counted(expected)

    check()


def test_a_row_whose_order_cannot_be_told_is_a_dead_letter() -> None:
    p = pen.Pipeline("test", on_error="dead-letter")
    out, dead = sinks.memory("top-out"), sinks.memory("top-dead")
    rows = [{"k": "a", "n": 0}, {"k": "a", "n": 5}, {"k": "a", "n": 2}]
    p.read(sources.memory(rows, schema="k string, n bigint")).key_by("k").top(1, by="10 / n", name="best").write(out)
    p.dead_letters.write(dead)
    p.run(pen.Local())
    assert out.rows() == [{"k": "a", "n": 2, "rank": 1}]
    assert [row["step"] for row in dead.rows()] == ["best"]


def test_the_best_of_counts_by_window_as_in_the_guide() -> None:
    def build(left: pen.Stream, right: pen.Stream, to: Any) -> None:
        counts = left.key_by("k").window(pen.tumbling("5s")).aggregate(n=pen.count(), name="counts")
        counts.window(pen.tumbling("5s")).top(1, by="n", name="trending").select("k", "n", "rank", "window_start").write(
            to("out")
        )
        right.write(to("right"))

    script: list[Step] = [("l", {"k": key, "v": n, "at": n * S}) for n, key in enumerate("aabccabb")]
    assert run(build, script).rows() == [
        {"k": "a", "n": 2, "rank": 1, "window_start": 0},
        {"k": "b", "n": 2, "rank": 1, "window_start": 5 * S},
    ]


def test_what_has_no_top_is_refused_with_the_fix() -> None:
    from operators.test_joins import two_streams

    stream, _ = two_streams(pen.Pipeline("test"))
    with pytest.raises(pen.PlanError, match='top\\(3, by="v", name="k-top"\\)'):
        stream.key_by("k").top(3, by="v")
    with pytest.raises(pen.PlanError, match="no number of rows"):
        stream.key_by("k").top(0, by="v", name="t")
    with pytest.raises(pen.PlanError, match="not there yet"):
        stream.window(pen.session("1m")).top(3, by="v", name="t")
    with pytest.raises(pen.PlanError, match="Leave lateness"):
        stream.window(pen.tumbling("1m"), lateness="1m", emit="update").top(3, by="v", name="t")
    with pytest.raises(pen.PlanError, match="top_k"):
        stream.key_by("k").window(pen.running(), emit="retract").aggregate(n=pen.count(), name="n").key_by("n").top(
            3, by="n", name="t"
        )


def test_of_several_columns_each_has_its_direction() -> None:
    rows = [(3, 1, "a"), (5, 2, "b"), (5, 1, "c"), (None, 0, "d"), (5, None, "e"), (3, 0, "f")]
    made = [{"price": price, "at": at, "name": name} for price, at, name in rows]

    def named(count: int, **options: Any) -> list[str]:
        out = sinks.memory("top-several")
        out.clear()
        source = sources.memory(made, schema="price bigint, at bigint, name string", batch=2)
        pen.Pipeline("top-several").read(source).top(count, name="best", **options).write(out).run(pen.Local(restarts=0))
        return [row["name"] for row in sorted(out.rows(), key=lambda row: row["rank"])]

    assert named(10, by=["price", "at"]) == ["b", "c", "e", "a", "f", "d"]
    assert named(10, by=["price", "at"], ascending=[False, True]) == ["c", "b", "e", "f", "a", "d"]
    assert named(2, by=("price", pen.col("at")), ascending=True) == ["f", "a"]
    assert named(3, by=["name"], ascending=[True]) == ["a", "b", "c"]
    assert named(10, by=["price", "at asc"]) == ["c", "b", "e", "f", "a", "d"]
    assert named(2, by=["price asc", "at ASC"]) == ["f", "a"]
    assert named(3, by="name asc") == ["a", "b", "c"]
    assert named(2, by="name desc") == ["f", "e"]
    assert named(2, by="name as asc") == ["f", "e"]


def test_state_of_a_top_by_one_column_is_as_it_was_before_there_could_be_several() -> None:
    source = sources.memory([{"k": "a", "v": 1}], schema="k string, v bigint")
    stream = pen.Pipeline("top-one").read(source).key_by("k").top(2, by="v", name="best")
    node: Any = stream._node
    assert node.params() == {"count": 2, "by": "v", "ascending": False}
    assert [f.name for f in node.states()[1].values] == ["row.v", "__order", "__time"]
