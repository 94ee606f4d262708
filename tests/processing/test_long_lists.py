"""Lists that are too long for their key's row: whatever is done to them gives what plain Python gives, and costs what is added."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import penstock as pen
from operators import test_split_merge as split_merge
from penstock import sinks, sources
from penstock.errors import RowError
from penstock.operators import values
from penstock.operators.values import ValueStore
from penstock.processing.states import Keys, collection
from penstock.state.table import KeyedTable
from processing import test_many as many
from processing import test_model as everything
from processing.hands import Feed
from processing.states import Bench

RELAXED: dict[str, Any] = {"deadline": None, "derandomize": True, "suppress_health_check": list(HealthCheck)}
KEYS = ("a", "b", None)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few items are many: a list of three stands apart, and chunks of two are full."""
    monkeypatch.setattr(collection, "INLINE", 2)
    monkeypatch.setattr(values, "CHUNK_MIN", 2)


@dataclass
class Item:
    n: int
    tags: list[str]
    counts: dict[str, int]
    more: float | None = None


def item(n: int) -> Item:
    return Item(n, [f"t{n}"] * (n % 3), {str(n): n} if n % 2 else {}, None if n % 5 else n / 2)


# -- against plain Python

Command = tuple[str, int]
Row = tuple[Any, list[Command]]


class Obeying(pen.ProcessFunction):
    """Does what the row says that its number names."""

    items = pen.ListState(Item)
    texts = pen.ListState(str | None)

    def __init__(self, script: list[Row]) -> None:
        self.script = script

    def on_row(self, row: pen.Row, ctx: pen.Context) -> Iterator[str]:
        for what, n in self.script[row.n][1]:
            match what:
                case "append":
                    self.items.append(item(n))
                    self.texts.append(str(n) if n % 3 else None)
                case "extend":
                    self.items.extend(item(n + i) for i in range(n))
                    self.texts.extend([str(n)] * n)
                case "set":
                    self.items.set(item(i) for i in range(n))
                    self.texts.set(str(i) for i in range(n))
                case "cut":
                    self.items.set(self.items.get()[-n:])
                case "clear":
                    self.items.clear()
                case "get":
                    yield json.dumps([ctx.key, row.n, self.items.get(), list(self.texts)], default=vars)
                case "len":
                    yield json.dumps([ctx.key, row.n, len(self.items), self.items.exists, len(self.texts)])
                case "raise":
                    raise ValueError("as told")
                case "misfit":
                    yield n  # type: ignore[misc]


def expected(script: list[Row]) -> tuple[dict[Any, list[str]], int]:
    """What is told of each key, in order, and how many rows fail."""
    lists: dict[Any, tuple[list[Item], list[str | None]]] = defaultdict(lambda: ([], []))
    told, failed = defaultdict(list), 0
    for number, (key, commands) in enumerate(script):
        items, texts = (list(each) for each in lists[key])
        sent = []
        for what, n in commands:
            match what:
                case "append":
                    items.append(item(n))
                    texts.append(str(n) if n % 3 else None)
                case "extend":
                    items += [item(n + i) for i in range(n)]
                    texts += [str(n)] * n
                case "set":
                    items, texts = [item(i) for i in range(n)], [str(i) for i in range(n)]
                case "cut":
                    items = items[-n:]
                case "clear":
                    items = []
                case "get":
                    sent.append(json.dumps([key, number, items, texts], default=vars))
                case "len":
                    sent.append(json.dumps([key, number, len(items), bool(items), len(texts)]))
        if any(what in ("raise", "misfit") for what, _ in commands):
            failed += 1
        else:
            lists[key] = items, texts
            told[key] += sent
    return dict(told), failed


def scripts(sizes: list[int]) -> Any:
    size = st.sampled_from(sizes)
    command = st.one_of(
        *[st.tuples(st.just("append"), st.integers(0, 9))] * 3,
        st.tuples(st.just("extend"), size),
        st.tuples(st.sampled_from(["set", "cut"]), size.map(lambda n: max(n, 1))),
        *[st.tuples(st.sampled_from(["get", "len"]), st.just(0))] * 2,
        st.tuples(st.sampled_from(["clear", "raise", "misfit"]), st.just(0)),
    )
    row = st.tuples(st.sampled_from(KEYS), st.lists(command, min_size=1, max_size=3))
    last: list[Row] = [(key, [("get", 0), ("len", 0)]) for key in KEYS]
    return st.lists(row, min_size=1, max_size=24).map(lambda rows: [*rows, *last])


def check(script: list[Row], cuts: list[int]) -> None:
    feed, at, used = Feed(Obeying(script)), 0, 0
    while at < len(script):
        size = cuts[used % len(cuts)]
        feed.rows(*((key, at + i, 0) for i, (key, _) in enumerate(script[at : at + size])))
        at, used = at + size, used + 1
        if used % 3 == 0:
            feed.restore(1 + used % 2)
    told = defaultdict(list)
    for text in feed.sent():
        told[json.loads(text)[0]].append(text)
    answers, failed = expected(script)
    assert dict(told) == {key: texts for key, texts in answers.items() if texts}
    assert len(feed.dead()) == failed


CUTS = st.lists(st.integers(1, 12), min_size=1, max_size=5)


@settings(max_examples=40, **RELAXED)
@given(script=scripts([0, 1, 2, 3, 5]), cuts=CUTS)
def test_short_lists_that_count_as_long_do_what_python_does(few: None, script: list[Row], cuts: list[int]) -> None:
    check(script, cuts)


@settings(max_examples=20, **RELAXED)
@given(script=scripts([0, 1, 60, 70, 200, 300]), cuts=CUTS)
def test_long_lists_do_what_python_does(script: list[Row], cuts: list[int]) -> None:
    check(script, cuts)


@settings(max_examples=3, **RELAXED)
@given(script=scripts([0, 1, 2, 3, 5]), cuts=CUTS)
def test_they_do_so_in_both_backends(backend: None, few: None, script: list[Row], cuts: list[int]) -> None:
    check(script, cuts)


def test_whole_batches_do_what_their_rows_do(few: None) -> None:
    @settings(max_examples=12, **RELAXED)
    @given(rows=many.ROWS, cuts=st.lists(st.integers(1, 12), min_size=1, max_size=6))
    def check(rows: Any, cuts: list[int]) -> None:
        assert many.told(many.ByBatch(), rows, cuts, schema="value string") == many.told(many.ByRow(), rows, cuts)

    check()


def test_among_all_states_and_timers_they_do_what_the_model_does(few: None) -> None:
    everything.test_rows_as_they_come_do_what_the_model_does()
    everything.test_rows_in_order_of_time_do_what_the_model_does()


def test_cutting_rows_and_rescaling_change_nothing(few: None) -> None:
    kind = split_merge.KINDS["process"]

    @settings(max_examples=12, **RELAXED)
    @given(split_merge.scripts(kind.timed), st.lists(st.integers(0, 59), min_size=1, max_size=40))
    def check(script: list[Any], numbers: list[int]) -> None:
        found = split_merge.run(kind, script, split_merge.Cutting(numbers), (1, 2, 1))
        split_merge.compare(kind, found, split_merge.run(kind, script))

    check()


# -- what it costs


class Work:
    """What is read from tables and written to them: rows, and bytes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.counts: Counter[str] = Counter()
        get_many, put_many = KeyedTable.get_many, KeyedTable.put_many

        def get(table: KeyedTable, keys: pa.RecordBatch, hashes: Any = None) -> Any:
            found, rows = get_many(table, keys, hashes)
            self.counts.update(reads=keys.num_rows, bytes=keys.nbytes + rows.nbytes)
            return found, rows

        def put(table: KeyedTable, keys: pa.RecordBatch, rows: pa.RecordBatch, hashes: Any = None) -> None:
            self.counts.update(writes=keys.num_rows, bytes=keys.nbytes + rows.nbytes)
            put_many(table, keys, rows, hashes)

        monkeypatch.setattr(KeyedTable, "get_many", get)
        monkeypatch.setattr(KeyedTable, "put_many", put)

    def of(self, what: Any) -> Counter[str]:
        self.counts.clear()
        what()
        return Counter(self.counts)


def filled(size: int) -> Bench:
    """A list of so many items at the key a, in chunks as they come."""
    bench = Bench(pen.ListState(int))
    for start in range(0, size, 100):
        bench.at(0).extend(range(start, start + 100))
        bench.batch()
    return bench


@pytest.mark.parametrize("how", ["append", "append_many"])
def test_an_append_costs_the_same_however_long_the_list_is(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def appended(bench: Bench) -> None:
        for n in range(300):  # so the last chunk has all sizes
            if how == "append":
                bench.at(0).append(n)
            else:
                bench.state.append_many(bench.keys("a"), [n])
            bench.batch()

    short, long = filled(100), filled(100_000)
    work = Work(monkeypatch)
    few, many = work.of(lambda: appended(short)), work.of(lambda: appended(long))
    for what in ("reads", "writes", "bytes"):
        assert few[what] / 2 <= many[what] <= 2 * few[what], f"{what}: {few[what]} at 100, {many[what]} at 100,000"


def test_the_length_of_a_list_is_known_without_its_items(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = filled(100_000)
    work = Work(monkeypatch)
    assert work.of(lambda: len(bench.at(0)))["bytes"] < 1_000
    assert len(bench.at(0)) == 100_000
    assert work.of(lambda: bench.at(0).get())["bytes"] > 800_000


def test_lists_that_are_asked_for_one_by_one_are_read_together(monkeypatch: pytest.MonkeyPatch) -> None:
    names = tuple(f"k{n}" for n in range(200))
    bench = Bench(pen.ListState(int), keys=names)
    for at in range(200):
        bench.at(at).set(range(at, at + 100))
    bench.batch()
    calls = 0
    lists = ValueStore.lists

    def counted(store: ValueStore, keys: pa.RecordBatch) -> Any:
        nonlocal calls
        calls += 1
        return lists(store, keys)

    monkeypatch.setattr(ValueStore, "lists", counted)
    order = [*range(0, 200, 2), *range(1, 200, 2)]
    assert [bench.at(at).get()[0] for at in order] == order
    assert calls <= 20, "and not 200"


def test_a_longer_list_is_not_read_for_another_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = filled(10_000)
    bench.at(1).set(range(100))
    bench.batch()
    work = Work(monkeypatch)
    assert work.of(lambda: bench.at(1).get())["bytes"] < 4_000
    assert bench.at(0).get()[-1] == 9_999


def test_a_row_for_a_key_with_a_long_list_writes_little_into_the_next_snapshot() -> None:
    bench = filled(40_000)

    def frozen(epoch: int) -> int:
        return sum(run.nbytes for table in bench.tables.values() for run in table.freeze(epoch).runs)

    whole = frozen(1)
    bench.at(0).append(1)
    bench.batch()
    more = frozen(2) - whole
    assert 0 < more < whole / 20, f"{more} bytes for one item, and {whole} for all"


def test_what_a_list_had_apart_is_gone_with_it(few: None) -> None:
    bench = Bench(pen.ListState(int))
    for change in (
        lambda: bench.at(0).clear(),
        lambda: bench.at(0).set([1]),
        lambda: bench.at(0).set([]),
        lambda: bench.state.clear_many(bench.keys("a", "b", "a")),
        lambda: bench.state.set_many(bench.keys("a"), [[7]]),
    ):
        bench.at(0).set(range(9))
        bench.batch()
        assert rows_of(bench, "chunks")
        change()
        bench.batch()
        assert (rows_of(bench, "sizes"), rows_of(bench, "chunks")) == (0, 0)


def rows_of(bench: Bench, table: str) -> int:
    return sum(batch.num_rows for batch in bench.tables[f"it-{table}"].scan())


# -- what is found in rows


def row(bench: Bench, key: str, items: list[int]) -> None:
    """As a checkpoint has it whose rows hold all of a list, or values that a state starts from."""
    lists = pa.array([items], bench.tables["it"].spec.values.field(0).type)
    bench.tables["it"].put_many(bench.keys(key).columns, pa.record_batch({"value": lists}))


@pytest.mark.parametrize("disk", [False, True], ids=["memory", "disk"])
def test_a_long_list_in_its_row_moves_when_it_is_first_added_to(disk: bool) -> None:
    bench = Bench(pen.ListState(int))
    row(bench, "a", list(range(1_000)))
    bench.batch(disk)
    assert (len(bench.at(0)), bench.at(0).get()) == (1_000, list(range(1_000)))
    bench.batch(disk)
    assert rows_of(bench, "chunks") == 0, "it was only read"
    bench.at(0).append(1_000)
    bench.batch(disk)
    assert (len(bench.at(0)), bench.at(0).get()) == (1_001, list(range(1_001)))
    assert rows_of(bench, "chunks") == 1
    assert [batch.column("value").to_pylist() for batch in bench.tables["it"].scan()] == [[[]]], "its row says: look apart"


def test_an_empty_list_in_a_row_with_nothing_apart_is_no_list() -> None:
    bench = Bench(pen.ListState(int))
    row(bench, "a", [])
    assert (bench.at(0).exists, len(bench.at(0)), bench.at(0).get()) == (False, 0, [])
    assert bench.state.get_many(bench.keys("a", "b")).to_pylist() == [[], []]
    bench.at(0).append(1)
    bench.batch()
    assert bench.at(0).get() == [1]


def test_a_list_that_forgets_stays_one_value() -> None:
    bench = Bench(pen.ListState(int, ttl="10us"))
    bench.at(0).extend(range(1_000))
    bench.batch(disk=True)
    assert list(bench.tables) == ["it"]
    assert len(bench.at(0)) == 1_000
    bench.scope.moment = 10
    assert bench.at(0).get() == []


def test_a_row_that_fails_leaves_no_trace_in_a_long_list(few: None) -> None:
    bench = Bench(pen.ListState(int))
    bench.at(0).extend(range(10))
    bench.batch()
    bench.at(0).append(10)
    bench.scope.journal.clear()
    with pytest.raises(RowError):
        bench.at(0).extend([11, "x"])
    bench.at(0).set([1])
    bench.at(0).append(2)
    bench.at(0).clear()
    bench.at(1).extend(range(5))
    bench.scope.undo()
    bench.batch()
    assert (bench.at(0).get(), bench.at(1).exists) == (list(range(11)), False)
    assert rows_of(bench, "sizes") == 1


def test_a_key_that_stands_there_twice_has_its_long_list_twice(few: None) -> None:
    bench = Bench(pen.ListState(int))
    bench.state.append_many(Keys(pa.record_batch({"k": ["a", "b", "a", "a", "a"]})), [1, 2, 3, 4, 5])
    assert bench.state.get_many(bench.keys("a", "c", "b", "a")).to_pylist() == [[1, 3, 4, 5], [], [2], [1, 3, 4, 5]]


# -- in jobs


class Growing(pen.ProcessFunction):
    items = pen.ListState(int)

    def on_row(self, row: pen.Row, ctx: pen.Context) -> str:
        self.items.append(row.v)
        return f"{row.k} {len(self.items)} {sum(self.items)}"


def growing(name: str, start: int, stop: int, **options: Any) -> pen.Pipeline:
    p = pen.Pipeline(name)

    def rows(index: Any, seed: int) -> dict[str, Any]:
        return {"k": (index + start) % 3, "v": index + start}

    read = p.read(sources.generate(rows, schema="k bigint, v bigint", rate=1_000_000, rows=stop - start, splits=1))
    out = sinks.memory(f"long-lists-{name}")
    out.clear()
    return read.key_by("k").process(Growing(), name="growing", schema=str, **options).write(out, name="out")


def last(name: str) -> set[str]:
    """What was told of each key last."""
    return set({row["value"].split()[0]: row["value"] for row in sinks.memory(f"long-lists-{name}").rows()}.values())


def sums(stop: int) -> set[str]:
    return {f"{k} {len(range(k, stop, 3))} {sum(range(k, stop, 3))}" for k in range(3)}


def test_another_job_starts_from_long_lists_at_another_parallelism(tmp_path: Path) -> None:
    growing("left", 0, 1_200).run(pen.Local(storage=tmp_path, parallelism=2, snapshot_every="10ms"))
    assert last("left") == sums(1_200)
    saved = pen.from_savepoint(tmp_path / "left", step="growing", state="items")
    growing("heir", 1_200, 2_000, initial={"items": saved}).run(pen.Local(parallelism=3))
    assert last("heir") == sums(2_000)


def test_long_lists_may_be_given_to_start_from() -> None:
    given = [{"k": k, "value": list(range(k, 600, 3))} for k in range(3)]
    growing("given", 600, 900, initial={"items": given}).run(pen.Local(parallelism=2))
    assert last("given") == sums(900)


@pytest.mark.parametrize("said", [{"drop": ["growing.items-chunks"]}, {"rename": {"growing.items-sizes": "growing.sizes"}}])
def test_the_tables_of_a_list_go_with_it_whatever_is_said_of_them(said: dict[str, Any], tmp_path: Path) -> None:
    growing("parts", 0, 600).run(pen.Local(storage=tmp_path))
    growing("parts", 0, 900).run(pen.Local(storage=tmp_path, parallelism=2), restore=pen.Restore("latest", **said))
    assert last("parts") == sums(900)
