"""State to start from that another job left, in a savepoint or in its storage."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import penstock as pen
from conformance import data
from conformance.harness import wait_for_rows
from conformance.source import Gated
from penstock import col, sinks, sources
from penstock.errors import CorruptError, PlanError, RestoreError
from penstock.state.runfile import forget_validated
from penstock.testing import Simulated
from processing.hands import Feed

ROWS = data.make(40, splits=2, rows=80)
SEEN = [row for split in ROWS.values() for row in split[:40]]  # the other job has read half of each split
KEYS = sorted({row["k"] for row in SEEN})


@dataclass
class Event:
    id: str
    k: str
    v: int | None
    x: float
    small: int
    text: str


@dataclass
class Newest:
    id: str
    small: int


class Kept(pen.ProcessFunction):
    """What the other job keeps: some of each kind."""

    n = pen.ValueState(int, default=0)
    newest = pen.ValueState(Newest)
    ids = pen.ListState(str)
    words = pen.MapState(str, int)
    most = pen.ReducingState(max, float)
    mean = pen.AggregatingState(col("value").mean(), float)
    fresh = pen.ValueState(int, ttl="1h")
    brief = pen.ValueState(int, ttl="1d", clock="processing")
    never = pen.ValueState(int)

    def on_row(self, row: Event, ctx: pen.Context) -> None:
        self.n.set(self.n.get() + 1)
        self.newest.set(max(self.newest.get() or Newest("", 0), Newest(row.id, row.small), key=lambda newest: newest.id))
        self.ids.append(row.id)
        for word in row.text.split():
            self.words.set(word, self.words.get(word, 0) + 1)
        self.most.add(row.x)
        self.mean.add(row.x)
        self.fresh.set(self.n.get())
        self.brief.set(self.n.get())


def greater(left: pen.Row, right: pen.Row) -> pen.Row:
    return left if left.id >= right.id else right


def other(folder: Path) -> tuple[pen.Pipeline, Gated]:
    """A job with every kind of step that keeps something by key."""
    p = pen.Pipeline("other")
    source = Gated("events", ROWS, str(folder), 2)
    rows = p.read(source).with_watermark("at", delay="5s")
    rows.key_by("k").process(Kept(), name="kept").write(sinks.memory("inherited-kept"))
    results = {"n": pen.count(), "total": col("v").sum(), "low": col("x").min(), "mean": col("x").mean()}
    rows.key_by("k").aggregate(**results, name="totals").write(sinks.memory("inherited-totals"))
    rows.select("k", "id", "small").key_by("k").reduce(greater, name="newest").write(sinks.memory("inherited-newest"))
    windows = rows.key_by("k").window(pen.tumbling("5s")).aggregate(n=pen.count(), name="windows")
    windows.write(sinks.memory("inherited-windows"))
    return p, source


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A savepoint, `saved`, and the storage of the stopped job, `storage`."""
    folder = tmp_path_factory.mktemp("inherited")
    (folder / "gate").write_text("0")
    p, source = other(folder)
    job = p.start(pen.Local(parallelism=2, storage=folder / "storage", snapshot_every="50ms"))
    wait_for_rows(job, source.expected(0))
    job.savepoint(folder / "saved")
    job.stop()
    return folder


def expected(key: str) -> str:
    """What the states of one key are, in plain Python."""
    rows = [row for row in SEEN if row["k"] == key]
    newest = max(rows, key=lambda row: row["id"])
    words = [word for row in rows for word in row["text"].split()]
    mean = round(sum(row["x"] for row in rows) / len(rows), 6)
    counts = sorted((word, words.count(word)) for word in set(words))
    kept = [
        len(rows),
        newest["id"],
        newest["small"],
        sorted(row["id"] for row in rows),
        counts,
        max(row["x"] for row in rows),
        mean,
    ]
    total = [row["v"] for row in rows if row["v"] is not None]
    totals = [len(rows), sum(total) if total else None, min(row["x"] for row in rows), mean, newest["id"]]
    return str([key, *kept, *totals])


class Heir(pen.ProcessFunction):
    """Tells all it has inherited, and counts on."""

    n = pen.ValueState(int, default=0)
    newest = pen.ValueState(Newest)
    ids = pen.ListState(str)
    words = pen.MapState(str, int)
    most = pen.ReducingState(max, float)
    mean = pen.AggregatingState(col("value").mean(), float)
    count = pen.ValueState(int)
    total = pen.ValueState(int | None)
    low = pen.ReducingState(min, float)
    average = pen.AggregatingState(col("value").mean(), float)
    reduced = pen.ValueState(Newest)

    def on_row(self, row: pen.Row, ctx: pen.Context) -> str:
        newest, reduced = self.newest.get(), self.reduced.get()
        kept = [self.n.get(), newest.id, newest.small, sorted(self.ids.get()), sorted(self.words.items()), self.most.get()]
        totals = [self.count.get(), self.total.get(), self.low.get(), round(self.average.get(), 6), reduced.id]
        told = str([ctx.key, *kept, round(self.mean.get(), 6), *totals])
        self.n.set(self.n.get() + 1)
        return told


def initial(path: Path) -> dict[str, Any]:
    kept = {name: pen.from_savepoint(path, step="kept", state=name) for name in ("n", "newest", "ids", "words", "most", "mean")}
    names = {"count": "n", "total": "total", "low": "low", "average": "mean"}
    totals = {ours: pen.from_savepoint(path, step="totals", state=theirs) for ours, theirs in names.items()}
    return {**kept, **totals, "reduced": pen.from_savepoint(path, step="newest")}


@pytest.mark.parametrize("where", ["saved", "storage/other"])
@pytest.mark.parametrize("parallelism", [1, 3])
def test_every_kind_of_state_goes_on_from_what_another_job_left(where: str, parallelism: int, left: Path) -> None:
    feed = Feed(Heir(), parallelism=parallelism, initial=initial(left / where))
    assert sorted(feed.rows(*((key, 1, 0) for key in KEYS)).sent()) == sorted(map(expected, KEYS))


def test_it_is_read_once_and_a_snapshot_knows_better(left: Path, tmp_path: Path) -> None:
    shutil.copytree(left / "saved", tmp_path / "moved")
    feed = Feed(Count(), parallelism=2, initial={"n": pen.from_savepoint(tmp_path / "moved", step="kept", state="n")})
    counts = {key: sum(row["k"] == key for row in SEEN) for key in KEYS}
    assert sorted(feed.rows(*((key, 1, 0) for key in KEYS)).sent()) == sorted(f"{key} {counts[key] + 1}" for key in KEYS)
    shutil.rmtree(tmp_path / "moved")  # nobody looks there again
    feed.restore(3)
    assert sorted(feed.rows(*((key, 1, 0) for key in KEYS)).sent()) == sorted(f"{key} {counts[key] + 2}" for key in KEYS)
    assert feed.rows(("new", 1, 0)).sent() == ["new 1"]


class Count(pen.ProcessFunction):
    n = pen.ValueState(int, default=0)
    number = pen.ValueState(float)
    pair = pen.ValueState(Newest)
    mean = pen.AggregatingState(col("value").mean(), float)
    highest = pen.AggregatingState(col("value").max(), float)
    fresh = pen.ValueState(int, ttl="2h")
    brief = pen.ValueState(int, ttl="1d", clock="processing")
    unset = pen.ValueState(int)

    def on_row(self, row: pen.Row, ctx: pen.Context) -> str:
        self.n.set(self.n.get() + 1)
        return f"{ctx.key} {self.n.get()}"


class Forgetting(Count):
    def on_row(self, row: pen.Row, ctx: pen.Context) -> str:
        told = f"{self.fresh.get()} {self.brief.get()} {self.unset.get()}"
        if row.n == 2:
            self.fresh.set(0)
        return told


def test_a_value_keeps_the_time_at_which_it_is_forgotten(left: Path) -> None:
    names = {"fresh": "fresh", "brief": "brief", "unset": "never"}
    initial = {ours: pen.from_savepoint(left / "saved", step="kept", state=theirs) for ours, theirs in names.items()}
    key = KEYS[0]
    # The last row of a key to be processed, not the latest, was the last to write: look well before and after all of them.
    times = [row["at"] // 1_000_000 for row in SEEN if row["k"] == key]
    count = len(times)
    before, after, again = min(times) + 3599, max(times) + 3601, max(times) + 3602
    feed = Feed(Forgetting(), parallelism=2, initial=initial).rows((key, 1, before))
    assert feed.sent() == [f"{count} {count} None"]
    assert feed.restore().rows((key, 2, after)).sent() == [f"None {count} None"]
    assert feed.rows((key, 1, again), (key, 1, after + 7200)).sent() == [f"0 {count} None", f"None {count} None"]


def test_keys_that_are_inherited_time_out(left: Path) -> None:
    def seen(row: pen.Row | None, state: pen.ValueState[int]) -> str | None:
        return f"{state.get()} {state.timing_out}" if row is None else None

    saved = pen.from_savepoint(left / "saved", step="kept", state="n")
    feed = Feed(lambda keyed: keyed.map_with_state(seen, state=int, timeout="30s", initial=saved, name="it"), parallelism=2)
    assert feed.watermark(10).watermark(39).sent() == []
    counts = [sum(row["k"] == key for row in SEEN) for key in KEYS]
    assert sorted(feed.watermark(41).sent()) == sorted(f"{count} True" for count in counts)


# --- what is refused ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "step", "saved", "text"),
    [
        ("number", "kept", "n", "from state 'n' of step 'kept' in {path}: that holds int64, and this holds double"),
        ("n", "kept", "newest", "that holds struct<id: string not null, small: int64 not null>, and this holds int64"),
        (
            "n",
            "kept",
            "mean",
            "that is an aggregate, saved as value.sum (double), value.n (int64)\n  Declare an AggregatingState",
        ),
        ("n", "totals", "mean", "that is an aggregate, saved as value.sum (double), value.n (int64)"),
        ("mean", "kept", "most", "that is saved as value (double), and its own aggregate as value.sum (double), value.n (int64)"),
        ("highest", "totals", "low", "that is saved as value.min (double), and its own aggregate as value.max (double)"),
        (
            "n",
            "kept",
            "fresh",
            'that forgets by event time, and this never does\n  Declare both alike. Write: ttl="1h", clock="event"',
        ),
        ("brief", "kept", "fresh", "that forgets by event time, and this does so by the other clock"),
        ("n", "windows", "accumulators", "that is by k (string), __window (int64), and this is by k (string)"),
        ("n", "newest", "rows", "and this holds int64\n  Declare the state to hold a class with such fields"),
    ],
)
def test_what_does_not_fit_is_refused_where_the_pipeline_is_written(
    state: str, step: str, saved: str, text: str, left: Path
) -> None:
    with pytest.raises(PlanError) as raised:
        Feed(Count(), initial={state: pen.from_savepoint(left / "saved", step=step, state=saved)})
    assert text.format(path=left / "saved") in str(raised.value)


@pytest.mark.parametrize(
    ("where", "step", "state", "text"),
    [
        (
            "saved",
            "cept",
            "n",
            "'other') has no step 'cept'. Its steps with state: kept, totals, newest, windows. Did you mean 'kept'?",
        ),
        (
            "saved",
            "kept",
            "m",
            "step 'kept' in {path} (pipeline 'other') has no state 'm'. Its states: n, newest, ids, words, most, mean",
        ),
        ("saved", "kept", None, "step 'kept' has several states: n, newest, ids"),
        ("saved", "totals", "sum", "has no state 'sum'. Its states: n, total, low, mean"),
        ("nowhere", "kept", "n", "there is no savepoint in {path}: no savepoint.json"),
        ("storage", "kept", "n", "{path} is a storage, with a folder for each job: other\n  Give the folder of one of them"),
    ],
)
def test_what_is_not_there_is_said_with_what_is(where: str, step: str, state: str | None, text: str, left: Path) -> None:
    with pytest.raises(RestoreError) as raised:
        pen.from_savepoint(left / where, step=step, state=state)
    assert text.format(path=left / where) in str(raised.value)


@dataclass
class Numbered:
    k: str
    v: int


class Holding(pen.ProcessFunction):
    row = pen.ValueState(Numbered)
    total = pen.ValueState(int)

    def on_row(self, row: pen.Row, ctx: pen.Context) -> str:
        return f"{self.row.get()}"


def test_nulls_are_refused_where_a_state_holds_none(tmp_path: Path) -> None:
    p = pen.Pipeline("nulls")
    rows = p.read(sources.memory([{"k": "a", "v": None}, {"k": "b", "v": 1}], schema="k string, v bigint"))
    rows.key_by("k").reduce(lambda left, right: right, name="last").write(sinks.memory("inherited-nulls"))
    rows.key_by("k").aggregate(total="sum(v)", name="sums").write(sinks.memory("inherited-sums"))
    p.run(pen.Local(storage=tmp_path))
    for name, saved, column in ("row", "last", "v"), ("total", "sums", "value"):
        initial = {name: pen.from_savepoint(tmp_path / "nulls", step=saved)}
        with pytest.raises(PlanError, match=f"cannot start from .* that has a null in {column}, and this holds none"):
            Feed(Holding(), initial=initial)


def test_the_order_of_key_columns_does_not_matter(tmp_path: Path) -> None:
    def counts(name: str, rows: list[dict[str, Any]], by: tuple[str, str], **options: Any) -> list[dict[str, Any]]:
        found = sinks.memory(f"inherited-{name}")
        p = pen.Pipeline(name)
        p.read(sources.memory(rows)).key_by(*by).process(Count(), name="it", **options).write(found)
        p.run(pen.Local(parallelism=3, storage=tmp_path))
        return found.rows()

    rows = [{"a": n % 7, "b": f"{n % 5}"} for n in range(35)]
    counts("one", rows, ("a", "b"))
    after = counts("two", rows, ("b", "a"), initial={"n": pen.from_savepoint(tmp_path / "one", step="it", state="n")})
    assert sorted(row["value"] for row in after) == sorted(f"('{n % 5}', {n % 7}) 2" for n in range(35))


class Passing(pen.ProcessFunction):
    def on_row(self, row: pen.Row, ctx: pen.Context) -> int:
        return int(row.n)


def test_a_step_without_values_to_give_says_so_and_one_with_none_gives_none(tmp_path: Path, left: Path) -> None:
    p = pen.Pipeline("passing")
    p.read(sources.memory([{"n": 1}])).key_by("n").process(Passing(), name="pass").write(sinks.memory("inherited-pass"))
    p.run(pen.Local(storage=tmp_path))
    with pytest.raises(RestoreError, match=r"step 'pass' in .* keeps nothing that another step could start from"):
        pen.from_savepoint(tmp_path / "passing", step="pass")
    empty = pen.from_savepoint(left / "saved", step="kept", state="never")
    assert Feed(Count(), initial={"n": empty}).rows((KEYS[0], 1, 0)).sent() == [f"{KEYS[0]} 1"]


def test_keys_of_other_names_or_types_are_refused(left: Path) -> None:
    saved = pen.from_savepoint(left / "saved", step="kept", state="n")
    for by, ours in ("user", "user (string)"), ("n", "n (int64)"):
        stream = pen.Pipeline("x").read(sources.memory([{"user": "a", "n": 1}]))
        with pytest.raises(PlanError, match="that is by k"):
            stream.key_by(by).process(Count(), name="x", initial={"n": saved})
        with pytest.raises(PlanError) as raised:
            stream.key_by(by).process(Count(), name="x", initial={"n": saved})
        assert f"and this is by {ours}\n  Key by columns of the same names and types" in str(raised.value)


def test_files_that_are_altered_or_gone_are_refused(left: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(left / "storage" / "other", copy)
    saved = pen.from_savepoint(copy, step="kept", state="n")
    file = copy / saved.handles[0]["path"]
    bytes_ = bytearray(file.read_bytes())
    bytes_[len(bytes_) // 2] ^= 255
    file.write_bytes(bytes_)
    forget_validated()
    with pytest.raises(CorruptError):
        list(saved.read(range(128), 128))
    file.unlink()
    with pytest.raises(RestoreError, match="If its job has gone on since, take a savepoint of it, and start from that"):
        list(saved.read(range(128), 128))


# --- on every runner ----------------------------------------------------------------------------------------------------

RUNNERS = ["local", "simulated", *(pytest.param(name, marks=pytest.mark.spark) for name in ("MicroBatch", "Continuous", "Batch"))]


@pytest.mark.parametrize("runner", RUNNERS)
def test_it_starts_from_there_on_every_runner(runner: str, left: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    p = pen.Pipeline("heir", max_parallelism=100)
    rows = p.read(sources.memory([{"k": key, "n": 1} for key in [*KEYS, *KEYS, "new"]]))
    counts = rows.key_by("k").process(
        Count(), name="it", initial={"n": pen.from_savepoint(left / "saved", step="kept", state="n")}
    )
    counts.write(sinks.files(tmp_path / "out", format="json"))
    options: dict[str, Any] = {"parallelism": 2, "storage": str(tmp_path / "storage")}
    if runner == "local":
        p.run(pen.Local(**options))
    elif runner == "simulated":
        p.run(Simulated(seed=1, **options))
    else:
        from pyspark import cloudpickle

        cloudpickle.register_pickle_by_value(__import__(__name__, fromlist=["Count"]))
        p.run(getattr(pen, runner)(request.getfixturevalue("spark"), **options))
    told = [json.loads(line)["value"] for path in (tmp_path / "out").rglob("part-*") for line in path.read_text().splitlines()]
    held = {key: sum(row["k"] == key for row in SEEN) for key in KEYS}
    assert sorted(told) == sorted(["new 1", *(f"{key} {held[key] + more}" for key in KEYS for more in (1, 2))])
