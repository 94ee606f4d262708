"""Windows against an oracle: a plain loop over rows, one at a time, that knows nothing of batches, panes, slices or state.

Random rows in any order, watermarks between them, cut into random batches, with snapshots from which new tasks go on at another
parallelism. What counts is the net result: of rows that replace each other the last, of rows that are withdrawn what remains, of
what is sent in parts the sum. And conservation: each row is in the result of its windows or in `late`, once.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import penstock as pen
from operators.test_split_merge import Cutting, pieces
from penstock import col, triggers
from runtime.rig import Collect, Rig, hand

S = 1_000_000
Row = dict[str, Any]
Window = tuple[int, int]


# --- the oracle -------------------------------------------------------------------------------------------------------


def tumbling(size: int, offset: int = 0) -> Callable[[int], list[Window]]:
    def windows(t: int) -> list[Window]:
        start = (t - offset) // size * size + offset
        return [(start, start + size)]

    return windows


def sliding(size: int, every: int) -> Callable[[int], list[Window]]:
    def windows(t: int) -> list[Window]:
        last = t // every * every
        return [(s, s + size) for s in range(last, t - size, -every)]

    return windows


def halves(t: int) -> list[Window]:
    """A shape of our own: two windows that begin together."""
    start = t // (8 * S) * 8 * S
    return [(start, start + 8 * S)] + ([(start, start + 4 * S)] if t < start + 4 * S else [])


class Halves(pen.WindowShape):
    def assign(self, at: datetime) -> list[tuple[datetime, datetime]]:
        epoch = datetime.fromisoformat("1970-01-01T00:00:00+00:00")
        micros = (at - epoch) // timedelta(microseconds=1)
        return [(epoch + timedelta(microseconds=a), epoch + timedelta(microseconds=b)) for a, b in halves(micros)]


@dataclass
class Oracle:
    """What should be there after each row."""

    assign: Callable[[int], list[Window]] | None  # None: sessions
    gap: int = 0
    lateness: int = 0
    time: int = -(2**63)
    rows: dict[tuple[Any, Window], list[Row]] = field(default_factory=lambda: defaultdict(list))
    late: list[Row] = field(default_factory=list)

    def closed(self, window: Window) -> bool:
        return window[1] - 1 + self.lateness <= self.time

    def take(self, row: Row) -> None:
        if self.assign is None:
            self._session(row)
            return
        windows = [w for w in self.assign(row["at"]) if not self.closed(w)]
        for window in windows:
            self.rows[row["k"], window].append(row)
        if not windows:
            self.late.append(row)

    def _session(self, row: Row) -> None:
        start, end = row["at"], row["at"] + self.gap
        met = [w for k, w in self.rows if k == row["k"] and not self.closed(w) and w[0] < end and start < w[1]]
        window = (min([start, *(w[0] for w in met)]), max([end, *(w[1] for w in met)]))
        if self.closed(window):
            self.late.append(row)
            return
        together = [r for w in met for r in self.rows.pop((row["k"], w))]
        self.rows[row["k"], window] = sorted([*together, row], key=lambda r: r["n"])

    def result(self) -> dict[Any, Any]:
        return {(k, *w): summary(rows) for (k, w), rows in self.rows.items()}


def summary(rows: list[Row]) -> dict[str, Any]:
    values = [r["i"] for r in rows if r["i"] is not None]
    by_time = sorted(rows, key=lambda r: r["at"])
    latest = [r for r in by_time if r["at"] == by_time[-1]["at"]][-1]
    return {
        "n": len(rows),
        "total": sum(values) if values else None,
        "low": min(values, default=None),
        "high": max(values, default=None),
        "mean": statistics.fmean(values) if values else None,
        "var": statistics.variance(values) if len(values) > 1 else None,
        "first": by_time[0]["i"],
        "last": latest["i"],
        "all": sorted(values),
        "top": sorted(values, reverse=True)[:2],
        "kinds": len(set(values)),
        "known": len(values),
    }


AGGREGATES: dict[str, Any] = {
    "n": pen.count(),
    "total": col("i").sum(),
    "low": col("i").min(),
    "high": col("i").max(),
    "mean": col("i").mean(),
    "var": col("i").variance(),
    "first": col("i").first(),
    "last": col("i").last(),
    "all": col("i").collect(),
    "top": col("i").top_k(2),
    "kinds": col("i").count_distinct(),
    "known": col("i").count(),
}


# --- what is run ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shape:
    shape: Any
    oracle: Callable[[], Oracle]


SHAPES = {
    "tumbling": Shape(pen.tumbling("5s", offset="2s"), lambda: Oracle(tumbling(5 * S, 2 * S))),
    "sliding": Shape(pen.sliding("6s", every="4s"), lambda: Oracle(sliding(6 * S, 4 * S))),
    "session": Shape(pen.session("3s"), lambda: Oracle(None, 3 * S)),
    "custom": Shape(Halves(), lambda: Oracle(halves)),
}
WAYS: dict[str, dict[str, Any]] = {
    "append": {},
    "append late": {"lateness": "7s", "emit": "append"},
    "update": {"lateness": "7s", "emit": "update"},
    "update early": {"lateness": "7s", "emit": "update", "trigger": triggers.after_watermark(early=2, late=2)},
    "retract": {"lateness": "7s", "emit": "retract"},
    "retract early": {"lateness": "7s", "emit": "retract", "trigger": triggers.after_watermark(early=3)},
    "update threes": {"emit": "update", "trigger": 3},
}

ROWS = st.fixed_dictionaries(
    {
        "k": st.sampled_from([None, "a", "b"]),
        "i": st.none() | st.integers(-9, 9),
        "at": st.integers(-20, 30).map(lambda n: n * S // 2) | st.sampled_from([-1, 2 * S - 1, 7 * S - 1, 7 * S, 8 * S - 1]),
    }
)
STEPS = st.lists(st.tuples(ROWS, st.none() | st.integers(-12, 30).map(lambda n: n * S // 2 - n % 2)), max_size=14)


def run(
    build: Callable[[pen.Stream], pen.Stream], steps: list[Any], numbers: list[int], parallelisms: list[int]
) -> dict[str, Any]:
    """Rows and watermarks through tasks that are replaced now and then; what the sinks got."""
    sinks = {name: Collect(name) for name in ("out", "late")}
    p = pen.Pipeline("oracle")
    result = build(hand(p))
    result.write(sinks["out"])
    if hasattr(result._node, "window"):
        result.late.write(sinks["late"])
    plan, cutting = p.plan(), Cutting(numbers)
    rig, legs = Rig(plan, parallelisms[0], own_time=True), parallelisms[1:]
    waiting: list[Row] = []
    time, epoch, position = -(2**63), 0, 0
    for number, (row, mark) in enumerate(steps):
        waiting.append(row)
        moves = mark is not None and mark > time
        if not moves and cutting.next(3):
            continue
        for batch in pieces(waiting, cutting):
            position += batch.num_rows
            rig.feed(batch, position)
        waiting = []
        if moves:
            time = mark
            rig.watermark(mark)
        if legs and number >= len(steps) // 2:
            epoch += 1
            rig = Rig(plan, legs.pop(0), cut=rig.barrier(epoch), files=rig.files, own_time=True)
            if time > -(2**63):
                rig.watermark(time)  # as a source would say again
    for batch in pieces(waiting, cutting):
        rig.feed(batch, position)
    rig.end()
    rig.barrier(epoch + 1)
    return {name: sink.rows for name, sink in sinks.items()}


def expected(oracle: Oracle, steps: list[Any]) -> Oracle:
    for number, (row, mark) in enumerate(steps):
        oracle.take({**row, "n": number})
        if mark is not None and mark > oracle.time:
            oracle.time = mark
    return oracle


def micros(value: datetime) -> int:
    return round(value.timestamp()) * S + value.microsecond if value.microsecond == 0 else round(value.timestamp() * S)


def net(rows: list[Row], emit: str, two_bounds: bool) -> dict[Any, Any]:
    """What the rows amount to, by key and window."""
    if emit == "retract":
        total: Counter[str] = Counter()
        whole = {}
        for row in rows:
            plain = {name: value for name, value in row.items() if name != "change"}
            total[repr(plain)] += row["change"]
            whole[repr(plain)] = plain
        assert set(total.values()) <= {0, 1}, "nothing is withdrawn that was not there"
        rows = [whole[text] for text, n in total.items() if n]
        found = {(r["k"], micros(r["window_start"]), micros(r["window_end"])): r for r in rows}
        assert len(found) == len(rows), "one row per key and window"
        return found
    kept: dict[Any, Row] = {}
    for row in rows:
        key = (row["k"], row["window_start"], row["window_end"] if two_bounds else None)
        if row.get("change", 1) < 0:
            kept.pop(key, None)
        else:
            assert emit == "update" or key not in kept, "sent once"
            kept[key] = row
    return {(r["k"], micros(r["window_start"]), micros(r["window_end"])): r for r in kept.values()}


def check(found: dict[Any, Any], wanted: dict[Any, Any]) -> None:
    assert set(found) == set(wanted)
    for key, row in wanted.items():
        for name, value in row.items():
            ours = found[key][name]
            if name == "all":
                assert sorted(ours) == value, (key, name)
            elif isinstance(value, float):
                assert math.isclose(ours, value, rel_tol=1e-9, abs_tol=1e-9), (key, name)
            else:
                assert ours == value, (key, name)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_net_result_is_that_of_a_plain_loop(shape: str, way: str) -> None:
    options = WAYS[way]

    def build(stream: pen.Stream) -> pen.Stream:
        keyed = stream.with_watermark("at", delay="0s").key_by("k")
        return keyed.window(SHAPES[shape].shape, **options).aggregate(**AGGREGATES, name="stats")

    @settings(max_examples=16, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(STEPS, st.lists(st.integers(0, 59), min_size=1, max_size=20), st.sampled_from([[1], [1, 2], [2, 1], [3, 2]]))
    def example(steps: list[Any], numbers: list[int], parallelisms: list[int]) -> None:
        oracle = SHAPES[shape].oracle()
        oracle.lateness = 7 * S if "lateness" in options else 0
        wanted = expected(oracle, steps)
        sent = run(build, steps, numbers, list(parallelisms))
        check(net(sent["out"], options.get("emit", "append"), shape == "custom"), wanted.result())
        late = [(r["k"], r["i"], micros(r["at"])) for r in sent["late"]]
        assert Counter(late) == Counter((r["k"], r["i"], r["at"]) for r in wanted.late), "each row once, here or there"

    example()


@pytest.mark.parametrize("shape", SHAPES)
def test_parts_add_up_to_the_whole(shape: str) -> None:
    def build(stream: pen.Stream) -> pen.Stream:
        keyed = stream.with_watermark("at", delay="0s").key_by("k")
        window = keyed.window(SHAPES[shape].shape, lateness="7s", trigger=triggers.after_watermark(early=2, late=2), emit="delta")
        return window.aggregate(n=pen.count(), total=col("i").sum(), name="stats")

    @settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(STEPS, st.lists(st.integers(0, 59), min_size=1, max_size=20), st.sampled_from([[1], [1, 2], [3, 2]]))
    def example(steps: list[Any], numbers: list[int], parallelisms: list[int]) -> None:
        oracle = SHAPES[shape].oracle()
        oracle.lateness = 7 * S
        wanted = expected(oracle, steps)
        sent = run(build, steps, numbers, list(parallelisms))
        parts: dict[Any, list[int]] = defaultdict(lambda: [0, 0])
        for row in sent["out"]:
            key = row["k"] if shape == "session" else (row["k"], micros(row["window_start"]), micros(row["window_end"]))
            parts[key][0] += row["n"]
            parts[key][1] += row["total"] or 0
        whole: dict[Any, list[int]] = defaultdict(lambda: [0, 0])
        for key, row in wanted.result().items():
            # A session may have sent a part before it grew: its parts carry the bounds it had then.
            whole[key[0] if shape == "session" else key][0] += row["n"]
            whole[key[0] if shape == "session" else key][1] += row["total"] or 0
        assert dict(parts) == dict(whole)
        assert len(sent["late"]) == len(wanted.late)

    example()


def test_retractions_stay_right_through_two_aggregates() -> None:
    def build(stream: pen.Stream) -> pen.Stream:
        per_key = (
            stream.with_watermark("at", delay="0s")
            .key_by("k")
            .window(pen.tumbling("5s"), lateness="7s", trigger=triggers.after_watermark(early=1), emit="retract")
            .aggregate(n=pen.count(), total=col("i").sum(), name="per-key")
        )
        per_count = (
            per_key.key_by("n")
            .window(pen.running(), emit="retract")
            .aggregate(
                windows=pen.count(),
                total=col("total").sum(),
                high=col("total").max(),
                spread=col("total").variance(),
                totals=col("total").collect(),
                name="per-count",
            )
        )
        return (
            per_count.key_by("windows")
            .window(pen.running(), emit="retract")
            .aggregate(counts=pen.count(), total=col("total").sum(), low=col("high").min(), name="per-windows")
        )

    @settings(max_examples=30, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(STEPS, st.lists(st.integers(0, 59), min_size=1, max_size=20), st.sampled_from([[1], [1, 2], [3, 2]]))
    def example(steps: list[Any], numbers: list[int], parallelisms: list[int]) -> None:
        wanted = expected(Oracle(tumbling(5 * S), lateness=7 * S), steps).result()
        per_count: dict[int, list[Any]] = defaultdict(list)
        for row in wanted.values():
            per_count[row["n"]].append(row["total"])
        per_windows: dict[int, list[Any]] = defaultdict(list)
        for totals in per_count.values():
            known = [t for t in totals if t is not None]
            per_windows[len(totals)].append((sum(known) if known else None, max(known, default=None)))
        final = Counter(
            (
                windows,
                len(pairs),
                sum(t for t, _ in pairs if t is not None) if any(t is not None for t, _ in pairs) else None,
                min((h for _, h in pairs if h is not None), default=None),
            )
            for windows, pairs in per_windows.items()
        )
        left: Counter[Any] = Counter()
        for row in run(build, steps, numbers, list(parallelisms))["out"]:
            left[row["windows"], row["counts"], row["total"], row["low"]] += row["change"]
        assert {row: n for row, n in left.items() if n} == dict(final)

    example()


def plus(left: pen.Row, right: pen.Row) -> pen.Row:
    return left.replace(i=(left.i or 0) + (right.i or 0))


def minus(left: pen.Row, right: pen.Row) -> pen.Row:
    return left.replace(i=(left.i or 0) - (right.i or 0))


@settings(max_examples=50, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(STEPS, st.lists(st.integers(0, 59), min_size=1, max_size=20), st.sampled_from([[1], [1, 2], [3, 2]]), st.booleans())
def test_a_window_made_from_the_one_before_is_the_same(
    steps: list[Any], numbers: list[int], parallelisms: list[int], undone: bool
) -> None:
    def build(stream: pen.Stream) -> pen.Stream:
        keyed = stream.with_watermark("at", delay="0s").select("k", "i").key_by("k")
        inverse = minus if undone else None
        return keyed.reduce_by_window(plus, "6s", every="2s", inverse=inverse, name="sums")

    wanted = expected(Oracle(sliding(6 * S, 2 * S)), steps).result()
    found = {(r["k"], micros(r["window_start"])): r["i"] or 0 for r in run(build, steps, numbers, list(parallelisms))["out"]}
    assert found == {(k, start): row["total"] or 0 for (k, start, _), row in wanted.items()}


@settings(max_examples=30, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(STEPS, st.lists(st.integers(0, 59), min_size=1, max_size=20), st.sampled_from([[1], [1, 2], [3, 2]]))
def test_retractions_stay_right_through_aggregates_and_a_join(
    steps: list[Any], numbers: list[int], parallelisms: list[int]
) -> None:
    def build(stream: pen.Stream) -> pen.Stream:
        timed = stream.with_watermark("at", delay="0s")
        counts = timed.key_by("k", "i").window(pen.running(), emit="retract").aggregate(n=pen.count(), name="counts")
        per_count = counts.key_by("k", "n").window(pen.running(), emit="retract")
        many = per_count.aggregate(values=pen.count(), low=col("i").min(), name="many")
        last = timed.key_by("k").window(pen.running(), emit="retract").aggregate(last=col("i").last(), name="last")
        both = many.join(last, on="k", within="forever", name="both")
        return (
            both.key_by("last")
            .window(pen.running(), emit="retract")
            .aggregate(rows=pen.count(), values=col("values").sum(), high=col("n").max(), name="final")
        )

    rows = [row for row, _ in steps]
    counts = Counter((row["k"], row["i"]) for row in rows)
    many: dict[Any, list[Any]] = defaultdict(list)
    for (k, i), n in counts.items():
        many[k, n].append(i)
    last: dict[Any, Any] = {}
    for row in sorted(rows, key=lambda r: r["at"]):  # stable: of rows at one time the last
        last[row["k"]] = row["i"]
    groups: dict[Any, list[Any]] = defaultdict(list)
    for (k, n), values in many.items():
        if k is not None:  # null keys never match
            groups[last[k]].append((n, len(values)))
    wanted = Counter((key, len(parts), sum(v for _, v in parts), max(n for n, _ in parts)) for key, parts in groups.items())
    left: Counter[Any] = Counter()
    for row in run(build, steps, numbers, list(parallelisms))["out"]:
        left[row["last"], row["rows"], row["values"], row["high"]] += row["change"]
    assert {row: n for row, n in left.items() if n} == dict(wanted)
