"""User-defined aggregates: types from annotations or said, any batching, bad rows, and rows that can be taken back."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from aggregate_oracle import Row, batch_of, by_key, close, folded, known, results
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import PlanError
from penstock.expr import CHANGE, ROWS, Accumulators, AggregateFailed, UserAggregate, col, count

SCHEMA = pa.schema({"k": pa.int64(), "x": pa.float64(), "w": pa.int64(), "s": pa.string()})


class Sums(NamedTuple):
    logs: float
    n: int


class GeoMean(UserAggregate):
    def create(self) -> Sums:
        return Sums(0.0, 0)

    def add(self, acc: Sums, x: float) -> Sums:
        return Sums(acc.logs + math.log(x), acc.n + 1)

    def merge(self, a: Sums, b: Sums) -> Sums:
        return Sums(a.logs + b.logs, a.n + b.n)

    def result(self, acc: Sums) -> float | None:
        return math.exp(acc.logs / acc.n) if acc.n else None

    def retract(self, acc: Sums, x: float) -> Sums:
        return Sums(acc.logs - math.log(x), acc.n - 1)


class Weighted(UserAggregate):
    """Two inputs, and types said in the class."""

    state = "struct<total: double, weight: bigint>"
    returns = pa.float64()

    def create(self):  # type: ignore[no-untyped-def]
        return {"total": 0.0, "weight": 0}

    def add(self, acc, x, w):  # type: ignore[no-untyped-def]
        acc["total"] += (x or 0) * (w or 0)
        acc["weight"] += w or 0
        return acc

    def merge(self, a, b):  # type: ignore[no-untyped-def]
        return {name: a[name] + b[name] for name in a}

    def result(self, acc):  # type: ignore[no-untyped-def]
        return acc["total"] / acc["weight"] if acc["weight"] else None


class Texts(UserAggregate):
    """A list that is changed in place, and nulls that count."""

    def create(self) -> list[str]:
        return []

    def add(self, acc: list[str], s: str | None) -> list[str]:
        acc.append("-" if s is None else s)
        if s == "bad":
            raise ValueError(s)
        return acc

    def merge(self, a: list[str], b: list[str]) -> list[str]:
        return a + b

    def result(self, acc: list[str]) -> str:
        return "".join(acc)


rows = st.lists(
    st.fixed_dictionaries(
        {
            "k": st.integers(0, 2),
            "x": st.one_of(st.none(), st.integers(1, 9).map(float)),
            "w": st.one_of(st.none(), st.integers(0, 3)),
            "s": st.one_of(st.none(), st.sampled_from(["a", "b", "bad"])),
        }
    ),
    max_size=15,
)


def geometric(found: list[float]) -> float | None:
    return math.exp(sum(map(math.log, found)) / len(found)) if found else None


def weighted(found: list[Row]) -> float | None:
    weight = sum(one["w"] or 0 for one in found)
    return sum((one["x"] or 0) * (one["w"] or 0) for one in found) / weight if weight else None


@settings(max_examples=60, deadline=None)
@given(rows, st.integers(0, 15))
def test_results_are_those_of_plain_python_and_a_bad_row_counts_nowhere(found: list[Row], cut: int) -> None:
    aggregates = [("g", GeoMean()(col("x"))), ("v", Weighted()(col("x"), col("w"))), ("t", Texts()(col("s")))]
    aggregates += [("big", GeoMean()(col("x"), where=col("x") > 4)), ("n", count()), ("l", Texts()(col("s"), where=col("w") > 0))]
    acc = Accumulators(aggregates, SCHEMA)
    parts, bad = [], []
    for part in (found[:cut], found[cut:]):
        made, errors = acc.partial(batch_of(part, SCHEMA), ["k"])
        parts.append(made)
        bad += [False] * len(part) if errors is None else errors.tolist()
    assert bad == [one["s"] == "bad" for one in found]
    good = by_key(one for one in found if one["s"] != "bad")
    for merged in (acc.merge(parts, ["k"]), folded(acc, parts) if found and good else None):
        if merged is None:
            continue
        got = results(acc, merged)
        assert set(got) == set(good)
        for key, group in good.items():
            texts = ["-" if one["s"] is None else one["s"] for one in group]
            some = ["-" if one["s"] is None else one["s"] for one in group if (one["w"] or 0) > 0]
            assert close(got[key]["g"], geometric(known("x", group)))
            assert close(got[key]["big"], geometric([x for x in known("x", group) if x > 4]))
            assert close(got[key]["v"], weighted(group))
            assert (got[key]["t"], got[key]["l"], got[key]["n"]) == ("".join(texts), "".join(some), len(group))


@settings(max_examples=30, deadline=None)
@given(rows, st.lists(st.integers(0, 100), max_size=10), st.integers(0, 25))
def test_with_retract_only_what_remains_counts(found: list[Row], gone: list[int], cut: int) -> None:
    acc = Accumulators([("g", GeoMean()(col("x")))], SCHEMA, retract=True)
    left = list(found)
    taken = [left.pop(place % len(left)) for place in gone if left]
    changes = [*((one, 1) for one in found), *((one, -1) for one in taken)]
    parts = [
        acc.partial(batch_of([one for one, _ in part], SCHEMA, [sign for _, sign in part]), ["k"])[0]
        for part in (changes[:cut], changes[cut:])
    ]
    merged = acc.merge(parts, ["k"])
    wanted = {key: [] for key in by_key(found)} | by_key(left)
    for key, got in results(acc, merged).items():
        assert close(got["g"], geometric(known("x", wanted[key])))
    assert not acc.check(merged).any()


def test_without_retract_rows_cannot_be_taken_back() -> None:
    with pytest.raises(PlanError, match=r"in Texts: def retract\(self, acc, s\)"):
        Accumulators([("t", Texts()(col("s")))], SCHEMA, retract=True)


def test_a_retraction_that_fails_is_a_bad_row() -> None:
    acc = Accumulators([("g", GeoMean()(col("x"))), ("n", count())], SCHEMA, retract=True)
    batch = batch_of([{"k": 1, "x": x} for x in (2.0, -1.0, 0.0)], SCHEMA, [1, -1, 1])
    partial, errors = acc.partial(batch, ["k"])
    assert errors is not None
    assert errors.tolist() == [False, True, True]
    assert partial.column(ROWS).to_pylist() == [1]
    assert CHANGE not in partial.schema.names


def test_types_come_from_annotations_or_the_class() -> None:
    found = {name: a.field(SCHEMA, "r") for name, a in [("g", GeoMean()(col("x"))), ("t", Texts()(col("s")))]}
    assert found == {"g": pa.field("r", pa.float64(), True), "t": pa.field("r", pa.string(), False)}
    acc = Accumulators([("v", Weighted()(col("x"), col("w"))), ("g", GeoMean()(col("x")))], SCHEMA)
    struct = pa.struct({"total": pa.float64(), "weight": pa.int64()})
    assert acc.fields[0] == pa.field("v.acc", struct)
    assert acc.fields[1].name == "g.acc"


@dataclass
class Spread:
    low: int | None = None
    high: int | None = None


class Range(UserAggregate):
    """A dataclass as the accumulator, and an integer parameter that takes a wider input by cast only."""

    def create(self) -> Spread:
        return Spread()

    def add(self, acc: Spread, w: int) -> Spread:
        acc.low = w if acc.low is None else min(acc.low, w)
        acc.high = w if acc.high is None else max(acc.high, w)
        return acc

    def merge(self, a: Spread, b: Spread) -> Spread:
        for one in (b.low, b.high):
            a = a if one is None else self.add(a, one)
        return a

    def result(self, acc: Spread) -> int | None:
        return None if acc.low is None or acc.high is None else acc.high - acc.low


def test_a_dataclass_can_be_the_accumulator() -> None:
    acc = Accumulators([("r", Range()(col("w") + 1))], SCHEMA)
    parts = [acc.partial(batch_of([{"k": 1, "w": w}], SCHEMA), ["k"])[0] for w in (5, None, 2)]
    assert results(acc, acc.merge(parts, ["k"]))[1] == {"r": 3}


def test_the_text_names_the_class_and_what_it_is_of() -> None:
    assert GeoMean()(col("x") * 2, where=col("w") > 1).text() == "GeoMean(x * 2) filter (where w > 1)"
    assert GeoMean()(col("x")).columns() == {"x"}
    assert Weighted()(col("x"), col("w")).columns() == {"x", "w"}


class NoType(GeoMean):
    def create(self):  # type: ignore[no-untyped-def]
        return Counter()


class OddType(GeoMean):
    def create(self) -> Counter[str]:  # type: ignore[override]
        return Counter()


class WrongStart(GeoMean):
    state = "bigint"

    def create(self) -> Any:
        return "zero"


class Raises(GeoMean):
    def create(self) -> Sums:
        raise OSError("no start")


class Unfinished(UserAggregate):
    def create(self) -> int:
        return 0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GeoMean()(), "takes 1 expressions"),
        (lambda: GeoMean()(col("x"), col("w")), r"takes 1 expressions \(x\)"),
        (lambda: GeoMean()(col("s")).check(SCHEMA), r'GeoMean\(\) takes double as .x.*\n.*cast\("double"\)'),
        (lambda: NoType()(col("x")), "cannot tell the type of what NoType.create returns(.|\n)*state ="),
        (lambda: OddType()(col("x")), "is not a type of columns(.|\n)*state ="),
        (lambda: WrongStart()(col("x")), "WrongStart.create returned what does not fit int64"),
        (lambda: Raises()(col("x")), "Raises.create failed: OSError"),
        (lambda: Unfinished()(col("x")), "Unfinished is no aggregate yet: it needs a method add"),
    ],
)
def test_mistakes_are_found_before_the_first_row(make: Any, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        make()


class Forgets(Texts):
    def add(self, acc: list[str], s: str | None) -> list[str]:
        acc.append(s or "")
        return None  # type: ignore[return-value]


class NoMerge(GeoMean):
    def merge(self, a: Sums, b: Sums) -> Sums:
        raise KeyError("b")


class NoResult(GeoMean):
    def result(self, acc: Sums) -> float | None:
        return "x"  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("aggregate", "message"),
    [
        (Forgets()(col("s")), "Forgets.add returned None\n  Return the accumulator from add"),
        (NoMerge()(col("x")), "NoMerge.merge failed: KeyError"),
        (NoResult()(col("x")), "NoResult.result returned what does not fit double"),
    ],
)
@pytest.mark.parametrize("number", [1, 2])
def test_what_no_row_is_to_blame_for_names_class_and_method(aggregate: Any, message: str, number: int) -> None:
    acc = Accumulators([("a", aggregate)], SCHEMA)
    with pytest.raises(AggregateFailed, match=message):
        part = acc.partial(batch_of([{"k": 1, "x": 2.0, "s": "a"}] * number, SCHEMA), ["k"])[0]
        acc.finish(acc.merge([part, part], ["k"]))


@dataclass
class Bid:
    price: float
    by: str


@dataclass
class Book:
    bids: list[Bid]
    last: Bid | None


class Bids(UserAggregate):
    """Classes everywhere: in what comes, in what is kept, in what is returned."""

    def create(self) -> Book:
        return Book([], None)

    def add(self, acc: Book, bid: Bid) -> Book:
        return Book([*acc.bids, bid], bid)

    def merge(self, a: Book, b: Book) -> Book:
        return Book(sorted([*a.bids, *b.bids], key=lambda bid: bid.price), b.last or a.last)

    def result(self, acc: Book) -> list[Bid]:
        return [bid for bid in acc.bids if bid.by != "x"]


def test_an_aggregate_takes_keeps_and_returns_instances() -> None:
    kind = pa.struct([("price", pa.float64()), ("by", pa.string())])
    bids = [{"price": 2.0, "by": "a"}, {"price": 3.0, "by": "x"}, None, {"price": 1.0, "by": "b"}]
    batch = pa.record_batch({"k": pa.array([1] * 4, pa.int64()), "bid": pa.array(bids, kind)})
    acc = Accumulators([("bids", Bids()(col("bid")))], batch.schema)
    halves = pa.Table.from_batches([acc.partial(half, ["k"])[0] for half in (batch.slice(0, 2), batch.slice(2))])
    merged = acc.merge(halves.combine_chunks().to_batches()[0], ["k"])
    assert acc.finish(merged)[0].to_pylist() == [[bids[3], bids[0]]]
