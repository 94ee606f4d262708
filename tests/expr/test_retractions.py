"""Rows can be taken back: every aggregate is then what the rows that remain would give."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from decimal import Decimal
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from aggregate_oracle import (
    COLUMNS,
    NUMBERS,
    SCHEMA,
    Reference,
    Row,
    batch_of,
    by_key,
    close,
    everything,
    exact,
    folded,
    known,
    order,
    results,
    row,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import PlanError
from penstock.expr import EVENT_TIME, ROWS, Accumulators, Aggregate, SumOverflow, col, count
from penstock.state.texts import column_for


def edge(name: str, last: bool, ignore_nulls: bool) -> Reference:
    """Without an order of arrival, the value decides between equal times."""

    def reference(found: list[Row]) -> Any:
        found = [one for one in found if not ignore_nulls or one[name] is not None]
        pick = max if last else min
        return pick(found, key=lambda one: (one[EVENT_TIME], order(one[name])))[name] if found else None

    return reference


def total(name: str) -> Reference:
    def reference(found: list[Row]) -> Any:
        numbers = known(name, found)
        if not numbers:
            return None
        return exact(numbers) if name == "x" else sum(numbers)

    return reference


def average(found: list[Any]) -> float | None:
    if not found:
        return None
    return exact(found) / len(found) if isinstance(found[0], float) else float(sum(map(Decimal, found)) / len(found))


def retractable() -> dict[str, tuple[Aggregate, Reference]]:
    made = everything()
    for name in COLUMNS:
        made[f"collect_{name}"] = (col(name).collect(), lambda f, c=name: sorted(known(c, f), key=order))
        for last in (False, True):
            for ignore in (False, True):
                method = getattr(col(name), "last" if last else "first")
                made[f"{'last' if last else 'first'}_{name}_{ignore}"] = (method(ignore_nulls=ignore), edge(name, last, ignore))
    for name in NUMBERS:
        made[f"sum_{name}"] = (col(name).sum(where=col(name) < 2**62), small_only(name, total(name)))
        made[f"mean_{name}"] = (col(name).mean(), lambda f, c=name: average(known(c, f)))
    made["first_where"] = (made["first_where"][0], lambda f: edge("n", False, False)([one for one in f if one["b"]]))
    made["collect_where"] = (made["collect_where"][0], lambda f: sorted(known("s", [one for one in f if one["b"]])))
    return made


def small_only(name: str, reference: Reference) -> Reference:
    return lambda found: reference([one for one in found if one[name] is not None and one[name] < 2**62])


ALL = {name: made for name, made in retractable().items() if name != "sum_n"}
ACC = Accumulators([(name, aggregate) for name, (aggregate, _) in ALL.items()], SCHEMA, retract=True)


@st.composite
def changes(draw: st.DrawFn) -> list[tuple[Row, int]]:
    """Rows that come, and rows that are there and go."""
    found: list[tuple[Row, int]] = []
    present: list[Row] = []
    for one in draw(st.lists(st.one_of(row, st.integers(0, 100)), max_size=25)):
        if isinstance(one, dict):
            present.append(one)
            found.append((one, 1))
        elif present:
            found.append((present.pop(one % len(present)), -1))
    return found


def remaining(found: list[tuple[Row, int]]) -> dict[Any, list[Row]]:
    left: list[Row] = []
    for one, sign in found:
        if sign > 0:
            left.append(one)
        else:
            del left[next(place for place, other in enumerate(left) if other is one)]
    return {key: [] for key in by_key(one for one, _ in found)} | by_key(left)


def compare(found: dict[Any, dict[str, Any]], wanted: dict[Any, list[Row]]) -> None:
    assert set(found) == set(wanted)
    for key, group in wanted.items():
        for name, (_, reference) in ALL.items():
            assert close(found[key][name], reference(group)), f"{name}: {found[key][name]!r}, expected {reference(group)!r}"


@settings(max_examples=30, deadline=None)
@given(changes(), st.lists(st.integers(0, 25), max_size=4), st.randoms())
def test_what_remains_is_what_counts(found: list[tuple[Row, int]], cuts: list[int], random: Any) -> None:
    bounds = sorted({0, len(found), *(min(cut, len(found)) for cut in cuts)})
    batches = [batch_of([one for one, _ in found[a:b]], signs=[sign for _, sign in found[a:b]]) for a, b in pairwise(bounds)]
    pieces = [ACC.partial(batch, ["k"])[0] for batch in batches] or [ACC.partial(batch_of([], signs=[]), ["k"])[0]]
    state = folded(ACC, pieces)
    compare(results(ACC, state), remaining(found))
    assert not ACC.check(state).any()
    random.shuffle(pieces)  # neither the order of merges nor their grouping matters
    while len(pieces) > 1:
        place = random.randrange(len(pieces) - 1)
        pieces[place : place + 2] = [ACC.merge(pieces[place : place + 2], ["k"])]
    compare(results(ACC, pieces[0]), remaining(found))
    left = dict(zip(pieces[0].column("k").to_pylist(), pieces[0].column(ROWS).to_pylist(), strict=True))
    assert left == {key: len(group) for key, group in remaining(found).items()}
    assert repr(ACC.clamp(state).to_pylist()) == repr(state.to_pylist())  # repr: NaN is NaN


def acc_of(*aggregates: Aggregate) -> Accumulators:
    return Accumulators([(f"r{place}", aggregate) for place, aggregate in enumerate(aggregates)], SCHEMA, retract=True)


def one(**values: Any) -> Row:
    return dict.fromkeys(SCHEMA.names) | {"k": 1, EVENT_TIME: datetime(2026, 1, 1, tzinfo=UTC)} | values


def test_the_count_of_a_retraction_alone_is_negative_and_its_insert_may_come_later() -> None:
    acc = acc_of(count(), col("n").sum(), col("s").min(), col("x").sum())
    row = one(n=5, s="a", x=0.5)
    gone = acc.partial(batch_of([row], signs=[-1]), ["k"])[0]
    assert gone.column(ROWS).to_pylist() == [-1]
    assert acc.check(gone).tolist() == [True]
    come = acc.partial(batch_of([row], signs=[1]), ["k"])[0]
    for both in (acc.merge([gone, come], ["k"]), acc.merge([come, gone], ["k"])):
        assert acc.check(both).tolist() == [False]
        assert list(results(acc, both)[1].values()) == [0, None, None, None]


@pytest.mark.parametrize(
    ("aggregate", "result"),
    [
        (count(), 0),
        (col("n").sum(), None),
        (col("n").mean(), None),
        (col("n").variance(ddof=0), None),
        (col("s").max(), None),
        (col("s").collect(), []),
        (col("s").last(), None),
        (col("s").top_k(2), []),
        (col("s").count_distinct(), 0),
        (col("x").sum(), None),
        (col("x").quantile(0.5, approx=False), None),
    ],
)
def test_what_was_taken_back_but_never_came_is_found_and_can_be_dropped(aggregate: Aggregate, result: Any) -> None:
    acc = acc_of(aggregate)
    state = acc.partial(batch_of([one(n=5, s="a", x=0.5)], signs=[-1]), ["k"])[0]
    good = acc.partial(batch_of([one(k=2, n=5, s="a", x=0.5)], signs=[1]), ["k"])[0]
    both = acc.merge([state, good], ["k"])
    assert acc.check(both).tolist() == [True, False]
    repaired = acc.clamp(both)
    assert acc.check(repaired).tolist() == [False, False]
    assert repaired.slice(1).equals(both.slice(1))
    assert results(acc, repaired)[1] == {"r0": result}
    again = acc.partial(batch_of([one(n=5, s="a", x=0.5)], signs=[1]), ["k"])[0]
    fresh = results(acc, good)[2]
    assert results(acc, acc.merge([repaired.slice(0, 1), again], ["k"]))[1] == fresh


def test_floats_leave_no_trace() -> None:
    acc = acc_of(col("x").sum(), col("x").mean(), col("x").variance(ddof=0))
    found = [(1e300, 1), (0.1, 1), (math.inf, 1), (0.1, 1), (math.nan, 1), (1e300, -1), (math.inf, -1), (math.nan, -1)]
    batch = batch_of([one(x=x) for x, _ in found], signs=[sign for _, sign in found])
    assert list(results(acc, acc.partial(batch, ["k"])[0])[1].values()) == [0.2, 0.1, 0.0]


def test_a_float_sum_beyond_all_doubles_is_infinite_and_one_that_comes_back_is_not() -> None:
    acc = acc_of(col("x").sum())
    for xs, wanted in [((1.5e308, 1.5e308), math.inf), ((1.5e308, 1.5e308, -1.5e308), 1.5e308), ((-1.5e308,) * 2, -math.inf)]:
        batch = batch_of([one(x=x) for x in xs], signs=[1] * len(xs))
        assert results(acc, acc.partial(batch, ["k"])[0])[1] == {"r0": wanted}


def test_integers_are_exact_though_their_sum_is_beyond_64_bits_for_a_while() -> None:
    acc = acc_of(col("n").sum(), col("n").variance(ddof=0))
    big = batch_of([one(n=2**63 - 1), one(n=2**63 - 1), one(n=7)], signs=[1, 1, 1])
    state = acc.partial(big, ["k"])[0]
    with pytest.raises(SumOverflow, match=r"r0\.sum"):
        acc.finish(state)
    less = acc.partial(batch_of([one(n=2**63 - 1), one(n=2**63 - 1), one(n=-(2**63)), one(n=9)], signs=[-1, -1, 1, 1]), ["k"])[0]
    less = acc.merge([less, acc.partial(batch_of([one(n=-(2**63))], signs=[-1]), ["k"])[0]], ["k"])
    assert list(results(acc, acc.merge([state, less], ["k"]))[1].values()) == [16, 1.0]


def test_decimals_of_a_variance_have_room() -> None:
    schema = SCHEMA.set(SCHEMA.get_field_index("d"), pa.field("d", pa.decimal128(38, 2)))
    acc = Accumulators([("v", col("d").variance())], schema, retract=True)
    batch = batch_of([one(d=Decimal(10**30)), one(d=Decimal(10**30 + 2))], schema, signs=[1, 1])
    assert results(acc, acc.partial(batch, ["k"])[0])[1] == {"v": 2.0}
    with pytest.raises(SumOverflow, match="33 digits"):
        acc.partial(batch_of([one(d=Decimal("1" + "0" * 35))], schema, signs=[1]), ["k"])
    fine = SCHEMA.set(SCHEMA.get_field_index("d"), pa.field("d", pa.decimal128(38, 36)))
    with pytest.raises(PlanError, match=r'33 digits(.|\n)*cast\("double"\)'):
        Accumulators([("v", col("d").variance())], fine, retract=True)


@pytest.mark.parametrize(
    ("aggregate", "message"),
    [
        (col("s").count_distinct(approx=True), r"Write: \.count_distinct\(\)"),
        (col("n").quantile(0.5), r"Write: \.quantile\(0\.5, approx=False\)"),
    ],
)
def test_sketches_refuse_and_name_the_exact_way(aggregate: Aggregate, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        acc_of(aggregate)


def test_first_needs_event_time_where_rows_can_be_taken_back() -> None:
    untimed = pa.schema([field for field in SCHEMA if field.name != EVENT_TIME])
    with pytest.raises(PlanError, match="a window of event time"):
        Accumulators([("f", col("n").first())], untimed, retract=True)


def test_bad_rows_are_left_out_whether_they_come_or_go() -> None:
    acc = acc_of(count(), (10 / col("n")).max())
    partial, errors = acc.partial(batch_of([one(n=0), one(n=2), one(n=0)], signs=[1, 1, -1]), ["k"])
    assert errors is not None
    assert errors.tolist() == [True, False, True]
    assert results(acc, partial)[1] == {"r0": 1, "r1": 5.0}
    assert partial.column(ROWS).to_pylist() == [1]


@settings(max_examples=15, deadline=None)
@given(changes())
def test_accumulators_survive_the_state(found: list[tuple[Row, int]]) -> None:
    append = Accumulators([(name, aggregate) for name, (aggregate, _) in everything().items()], SCHEMA)
    for acc, signs in ((ACC, [sign for _, sign in found]), (append, None)):
        partial = acc.partial(batch_of([one for one, _ in found], signs=signs), ["k"])[0]
        slots = np.arange(partial.num_rows)
        for field in acc.fields:
            column = column_for(field.type)
            column.grow(partial.num_rows)
            column.put(slots, partial.column(field.name))
            assert repr(column.take(slots).to_pylist()) == repr(partial.column(field.name).to_pylist()), field.name
