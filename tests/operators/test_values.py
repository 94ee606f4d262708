"""Keys with many values: wherever these stand, results are those of lists in the key's row, and a batch costs what it brings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import penstock as pen
from operators import test_split_merge as split_merge
from operators.test_split_merge import Cutting, Kind, compare, scripts
from penstock import col, sinks, sources, triggers
from penstock.checkpoints.storage import MemoryStore
from penstock.expr import Accumulators
from penstock.expr.listed import tables_of
from penstock.operators import keeping, values
from penstock.operators.keeping import Keeping
from penstock.runtime.assemble import RocksTable
from penstock.state.backend import RocksDB
from penstock.state.history import store
from penstock.state.spec import StateSpec
from penstock.state.table import KeyedTable
from runtime.rig import Collect

GROUPS = 8
NAMES = count()
KEYS = pa.schema([pa.field("k", pa.string()), pa.field("__window", pa.int64())])
RELAXED: dict[str, Any] = {"deadline": None, "derandomize": True, "suppress_health_check": list(HealthCheck)}
TYPES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "integers": (pa.int64(), [None, -3, 0, 1, 2, 2**62]),
    "doubles": (pa.float64(), [None, -0.0, 0.0, 1.5, float("nan"), float("-inf")]),
    "texts": (pa.string(), [None, "", "a", "b", "é", "a\0"]),
    "nested": (pa.struct([pa.field("x", pa.int32())]), [None, {"x": None}, {"x": 1}, {"x": 2}]),
    "times": (pa.timestamp("us", tz="UTC"), [None, 0, 1, 2_000_000]),
}


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few values are many: a list of three stands apart, chunks of two are full, and one idle entry is one too many."""
    monkeypatch.setattr(keeping, "INLINE", 2)
    monkeypatch.setattr(values, "CHUNK_MIN", 2)
    monkeypatch.setattr(values, "IDLE_MIN", 1)


def aggregates(type: pa.DataType, *, retract: bool) -> list[tuple[str, Any]]:
    v = col("v")
    found = [("distinct", v.count_distinct()), ("all", v.collect()), ("n", pen.count())]
    if retract:
        found += [("first", v.first()), ("last", v.last(ignore_nulls=True))]
    if retract and not pa.types.is_nested(type):
        found += [("low", v.min()), ("high", v.max()), ("top", v.top_k(2))]
    if pa.types.is_floating(type) or pa.types.is_integer(type):
        found += [("half", v.quantile([0.5, 0.9], approx=False))]
    if retract and pa.types.is_floating(type):
        found += [("sum", v.sum())]
    return found


class Tables:
    """The tables of some accumulators, which can be stored and opened again."""

    def __init__(self, accumulators: Accumulators, open_: Callable[..., KeyedTable]) -> None:
        more = [table for name, listed in accumulators.lists for table in tables_of(name, listed)]
        layouts = [("rows", [], accumulators.fields), *more]
        self.specs = {name: StateSpec(name, pa.schema([*KEYS, *keys]), pa.schema(list(held)), 1) for name, keys, held in layouts}
        self.accumulators, self.open = accumulators, open_
        self.files = MemoryStore()
        self.parts = [{name: KeyedTable(spec, range(GROUPS), GROUPS) for name, spec in self.specs.items()}]
        self.keeping = Keeping(accumulators, self.parts[0])
        self.epoch = 0

    def reopen(self) -> None:
        """As after a restore."""
        self.epoch += 1
        handles = {}
        for name, table in self.parts[0].items():
            frozen = table.freeze(self.epoch)
            handles[name] = store(frozen, self.files, lambda: f"state/{next(NAMES)}.arrow")
            table.close()
        self.parts = [
            {name: self.open(spec, range(GROUPS), GROUPS, handles[name], self.files) for name, spec in self.specs.items()}
        ]
        self.keeping = Keeping(self.accumulators, self.parts[0])

    def add(self, rows: pa.RecordBatch) -> tuple[list[list[Any]], list[bool]]:
        """Fold rows in; the results of the keys that they touch, and of which of these too much was taken back."""
        partial, _ = self.accumulators.partial(rows, KEYS.names)
        keys, table = partial.select(KEYS.names), self.parts[0]["rows"]
        found, old = table.get_many(keys)
        new = partial.select([f.name for f in self.accumulators.fields])
        merged, wrong = self.keeping.combine(keys, old, found, new)
        wrong |= self.accumulators.check(merged)
        merged = self.accumulators.clamp(merged)
        table.put_many(keys, merged)
        return [keys.to_pylist(), *(each.to_pylist() for each in self.keeping.finish(keys, merged))], wrong.tolist()

    def forget(self, keys: pa.RecordBatch) -> None:
        found, old = self.parts[0]["rows"].get_many(keys)
        at = pa.array(np.flatnonzero(found))
        self.keeping.forget(keys.take(at), old.take(at))
        self.parts[0]["rows"].delete_many(keys)


def columnar(*args: Any) -> KeyedTable:
    return KeyedTable.open(*args)


def rocksdb(*args: Any) -> KeyedTable:
    pytest.importorskip("rocksdict")
    return RocksTable.open(*args, settings=RocksDB(cache="8MB"))


def same(found: Any, expected: Any) -> bool:
    return repr(found) == repr(expected)  # NaN is NaN, and -0.0 is not 0.0


@pytest.mark.parametrize("retract", [False, True])
@pytest.mark.parametrize(("type_name", "open_"), [*((name, columnar) for name in TYPES), ("texts", rocksdb)])
def test_results_are_those_of_lists_in_the_row(
    few: None, type_name: str, retract: bool, open_: Callable[..., KeyedTable]
) -> None:
    type_, known = TYPES[type_name]
    fields = [*KEYS, pa.field("v", type_)]
    fields += [pa.field("__time", pa.timestamp("us", tz="UTC")), pa.field("__change", pa.int8())] if retract else []
    schema = pa.schema(fields)
    accumulators = Accumulators(aggregates(type_, retract=retract), schema, retract=retract)
    change = st.sampled_from([1, 1, 1, -1]) if retract else st.just(1)
    row = st.tuples(st.sampled_from("ab"), st.integers(0, 1), st.integers(0, len(known) - 1), st.integers(0, 2), change)
    step = st.lists(row, min_size=1, max_size=12) | st.sampled_from(["reopen", "forget"])

    @settings(max_examples=4 if open_ is rocksdb else 40, **RELAXED)
    @given(st.lists(step, max_size=10))
    def check(steps: list[Any]) -> None:
        ours = Tables(accumulators, open_)
        plain: dict[Any, pa.RecordBatch] = {}
        for each in steps:
            if each == "reopen":
                ours.reopen()
                continue
            if each == "forget":
                ours.forget(pa.RecordBatch.from_pylist([{"k": "a", "__window": 0}, {"k": "c", "__window": 0}], schema=KEYS))
                plain.pop(("a", 0), None)
                continue
            made = [
                {"k": k, "__window": w, "v": known[v], **({"__time": at, "__change": sign} if retract else {})}
                for k, w, v, at, sign in each
            ]
            batch = pa.RecordBatch.from_pylist(made, schema=schema)
            found, wrong = ours.add(batch)
            partial, _ = accumulators.partial(batch, KEYS.names)
            for number, key in enumerate(found[0]):
                place = tuple(key.values())
                new = partial.slice(number, 1).select([f.name for f in accumulators.fields])
                old = plain.get(place)
                nothing = pa.RecordBatch.from_arrays([pa.nulls(1, f.type) for f in new.schema], names=new.schema.names)
                merged = accumulators.combine(nothing if old is None else old, np.array([old is not None]), new)
                assert wrong[number] == accumulators.check(merged)[0]
                plain[place] = accumulators.clamp(merged)
                expected = [column.to_pylist()[0] for column in accumulators.finish(plain[place])]
                for (name, _), ours_, theirs in zip(aggregates(type_, retract=retract), found[1:], expected, strict=True):
                    assert same(ours_[number], theirs), f"{name} of {place}: {ours_[number]}, expected {theirs}"
        for table in ours.parts[0].values():
            table.close()

    check()


def one(key: str, number: list[int]) -> pa.RecordBatch:
    return pa.record_batch({"k": [key] * len(number), "__window": np.zeros(len(number), np.int64), "v": number}).cast(
        pa.schema([*KEYS, pa.field("v", pa.int64())])
    )


def test_a_row_for_a_key_with_many_values_writes_few_of_them_into_the_next_snapshot() -> None:
    schema = pa.schema([*KEYS, pa.field("v", pa.int64())])
    v = col("v")
    lists = [("distinct", v.count_distinct()), ("all", v.collect()), ("half", v.quantile(0.5, approx=False))]
    tables = Tables(Accumulators(lists, schema), columnar)
    for start in range(0, 40_000, 1_000):
        tables.add(one("a", list(range(start, start + 1_000))))

    def frozen(epoch: int) -> int:
        return sum(run.nbytes for table in tables.parts[0].values() for run in table.freeze(epoch).runs)

    whole = frozen(1)
    tables.add(one("a", [40_000]))
    more = frozen(2) - whole
    assert more < whole / 20, f"{more} bytes for one row, and {whole} for all"


def test_a_long_list_of_an_earlier_checkpoint_is_counted_on_with_its_values() -> None:
    schema = pa.schema([*KEYS, pa.field("v", pa.int64())])
    v = col("v")
    lists = [("distinct", v.count_distinct()), ("all", v.collect()), ("half", v.quantile(0.5, approx=False))]
    tables = Tables(Accumulators(lists, schema), columnar)
    for key, size in (("long", 1_000), ("short", 3)):
        partial, _ = tables.accumulators.partial(one(key, list(range(size))), KEYS.names)
        kept = partial.select([f.name for f in tables.accumulators.fields])
        tables.parts[0]["rows"].put_many(partial.select(KEYS.names), kept)
    tables.reopen()
    found, _ = tables.add(one("long", [5, 1_000]))
    assert found[1:] == [[1_001], [[*range(1_000), 5, 1_000]], [499.0]]
    found, _ = tables.add(one("short", [2, 3]))
    assert found[1:] == [[4], [[0, 1, 2, 2, 3]], [2.0]]
    _, rows = tables.parts[0]["rows"].get_many(one("long", [0]).select(KEYS.names))
    assert [column.to_pylist() for column in rows.columns] == [[None]] * 3, "its lists stand apart now"


# -- in every operator

LISTS: dict[str, Any] = {"kinds": col("i").count_distinct(), "texts": col("s").count_distinct(), "n": pen.count()}
LISTS |= {"half": col("j").quantile([0.2, 0.8], approx=False), "bad": "count(distinct 12 / j)"}


def running(p: pen.Pipeline, s: pen.Stream, to: Callable[[str], Collect]) -> None:
    s.key_by("k").aggregate(**LISTS, all=col("i").collect(), name="ever").write(to("out"))


def windows(p: pen.Pipeline, s: pen.Stream, to: Callable[[str], Collect]) -> None:
    timed = s.with_watermark("at", delay="0s").key_by("k")
    for name, shape in {"tumbling": pen.tumbling("10s"), "sliding": pen.sliding("12s", every="4s")}.items():
        timed.window(shape).aggregate(**LISTS, name=name).write(to(name))
    s.key_by("k").window(pen.sliding(rows=6, every=2)).aggregate(**LISTS, all=col("i").collect(), name="rows").write(to("rows"))


def panes(p: pen.Pipeline, s: pen.Stream, to: Callable[[str], Collect]) -> None:
    timed = s.with_watermark("at", delay="0s").key_by("k")
    for name, options in {
        "late": {"lateness": "30s", "emit": "update"},
        "retract": {"lateness": "30s", "emit": "retract", "trigger": triggers.after_watermark(early=2, late=1)},
        "delta": {"emit": "delta", "trigger": 3},
    }.items():
        timed.window(pen.sliding("12s", every="8s"), **options).aggregate(**LISTS, name=name).write(to(name))
    for name, options in {"session": {}, "sessions": {"lateness": "30s", "emit": "retract"}}.items():
        timed.window(pen.session("6s"), **options).aggregate(**LISTS, name=name).write(to(name))


def withdrawn(p: pen.Pipeline, s: pen.Stream, to: Callable[[str], Collect]) -> None:
    per_key = s.with_watermark("at", delay="0s").key_by("k", "j").window(pen.running(), emit="retract")
    counts = per_key.aggregate(n=pen.count(), s=col("s").last(), x=col("x").sum(), name="counts")
    every = {"kinds": col("n").count_distinct(), "low": col("n").min(), "x": col("x").sum(), "texts": col("s").collect()}
    counts.key_by("k").window(pen.running(), emit="retract").aggregate(**every, name="of-counts").write(to("out"))


PLANS = {
    "running": Kind(running, {"out": ("k",)}, examples=16),
    "windows": Kind(windows, timed=True, examples=16),
    "panes": Kind(panes, {"late": split_merge.W}, ("retract", "sessions"), timed=True, examples=12),
    "withdrawn": Kind(withdrawn, {}, ("out",), examples=12),
}


@pytest.mark.parametrize("name", PLANS)
def test_cutting_rows_and_rescaling_change_nothing_wherever_values_stand(
    few: None, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = PLANS[name]

    @settings(max_examples=kind.examples, **RELAXED)
    @given(
        scripts(kind.timed),
        st.lists(st.integers(0, 59), min_size=1, max_size=40),
        st.sampled_from([(1,), (1, 2, 1), (2, 3, 2)]),
    )
    def check(script: list[Any], numbers: list[int], parallelisms: tuple[int, ...]) -> None:
        found = split_merge.run(kind, script, Cutting(numbers), parallelisms)
        with monkeypatch.context() as usual:
            usual.setattr(keeping, "INLINE", 1_000_000)  # all lists in their rows, as they once were
            expected = split_merge.run(kind, script)
        compare(kind, found, expected)

    check()


def test_another_job_starts_from_lists_that_stand_apart(few: None, tmp_path: Path) -> None:
    made = [{"k": "ab"[i % 2], "v": float(i * 7 % 10)} for i in range(30)]

    def rows(name: str, rows: list[dict[str, Any]]) -> pen.Stream:
        return pen.Pipeline(name).read(sources.memory(rows, schema="k string, v double", batch=4))

    lists = {"kinds": col("v").count_distinct(), "all": col("v").collect(), "half": col("v").quantile(0.5, approx=False)}
    left = rows("left", made).key_by("k").aggregate(**lists, name="ever")
    left.write(sinks.memory("values-left")).run(pen.Local(storage=tmp_path, snapshot_every="10ms"))

    class Going(pen.ProcessFunction):
        kinds = pen.AggregatingState(col("value").count_distinct(), float)
        all = pen.AggregatingState(col("value").collect(), float)
        half = pen.AggregatingState(col("value").quantile(0.5, approx=False), float)

        def on_row(self, row: pen.Row, ctx: pen.Context) -> Iterator[str]:
            self.kinds.add(row.v)
            self.all.add(row.v)
            self.half.add(row.v)
            yield f"{row.k} {self.kinds.get()} {self.all.get()} {self.half.get()}"

    out = sinks.memory("values-going")
    out.clear()
    initial = {name: pen.from_savepoint(tmp_path / "left", step="ever", state=name) for name in lists}
    going = rows("going", [{"k": "a", "v": 100.0}]).key_by("k").process(Going(), name="going", schema=str, initial=initial)
    going.write(out).run(pen.Local(restarts=0))
    mine = [row["v"] for row in made if row["k"] == "a"] + [100.0]
    half = sorted(mine)[len(mine) // 2]
    assert [row["value"] for row in out.rows()] == [f"a {len(set(mine))} {mine} {half}"]
