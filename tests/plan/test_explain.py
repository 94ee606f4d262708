"""What explain() prints, word for word. `UPDATE_GOLDEN=1` writes the files anew; a file that is missing is a failure."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import penstock as pen
from penstock import col, sinks, sources
from runtime.rig import Collect, Hand, hand

GOLDEN = Path(__file__).parent.parent / "golden" / "plans"


def words(line: str) -> Iterator[str]:
    yield from line.split()


def save(rows: pa.RecordBatchReader, epoch: pen.Epoch) -> None:
    rows.read_all()


def larger(left: pen.Row, right: pen.Row) -> pen.Row:
    return left if left.i >= right.i else right


def word_count() -> pen.Pipeline:
    lines = pen.Pipeline("word-count").read(sources.memory(["to be"], schema=str, name="lines"))
    return lines.flat_map(words).key_by(word="value").aggregate(n=pen.count(), name="counts").write(sinks.memory("latest"))


def ad_counts() -> pen.Pipeline:
    p = pen.Pipeline("ad-counts", on_error="dead-letter", max_parallelism=64)
    views = hand(p).with_watermark("at", delay="5s", idle_after="30s").filter(col("s") == "view").with_columns(ratio="10 / j")
    views.key_by("k").window(pen.tumbling("10s", offset="2s")).aggregate(n=pen.count(), mean="avg(ratio)", name="counts").write(
        Collect()
    )
    p.dead_letters.write(sinks.memory("dead"))
    return p


def late_rows() -> pen.Pipeline:
    p = pen.Pipeline("late-rows")
    counts = (
        hand(p)
        .with_watermark("at", delay="0s")
        .key_by("k", "j")
        .window(pen.tumbling("1m"))
        .aggregate(n=pen.count(), name="counts")
    )
    counts.write(Collect())
    counts.late.select("s").write(Collect("late"))
    return p


def everything() -> pen.Pipeline:
    p = pen.Pipeline("everything")
    left, right = (p.read(Hand(name, names=("s0", "s1"))).with_watermark("at", delay="1s") for name in ("left", "right"))
    both = left.union(right).rename({"s": "text"}).drop("b")
    parts = both.split({"high": "i > 10", "low": col("i") < -10})
    parts["high"].map_batches(lambda batch: batch, schema=both.schema).write(Collect("high"))
    best = parts["low"].key_by("k").window(pen.tumbling("5s")).reduce(larger, name="best")
    totals = best.select("i").window(pen.tumbling("1h")).aggregate(total=col("i").sum(), name="totals").select("total")
    totals.union(parts.rest.select(total="i")).write(Collect("totals"))
    both.filter(lambda row: row.i == 1).key_by("k").reduce(larger, name="ever").write(sinks.foreach_batch(save), name="ever")
    return p


CASES: dict[str, Callable[[], pen.Pipeline]] = {
    "word-count": word_count,
    "ad-counts": ad_counts,
    "late-rows": late_rows,
    "everything": everything,
}


def normal(text: str) -> str:
    """Without line numbers, which would change with every edit of the tests."""
    return re.sub(r"(\w+\.py):\d+", r"\1:0", text) + "\n"


def check(name: str, text: str) -> None:
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("UPDATE_GOLDEN") == "1":
        path.write_text(text)
    assert path.exists(), f"{path} is missing. Look at the text, then write it: UPDATE_GOLDEN=1"
    assert text == path.read_text(), f"explain() says something else than {path}. If it is meant: UPDATE_GOLDEN=1"


@pytest.mark.parametrize("name", CASES)
def test_explain_prints_both_plans_and_the_guarantee(name: str) -> None:
    check(name, normal(CASES[name]().explain()))


def test_there_is_a_case_for_every_golden_file() -> None:
    assert {path.stem for path in GOLDEN.glob("*.txt")} == set(CASES) | {"runner"}


def test_explain_with_a_runner_shows_each_option_with_its_origin(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("PENSTOCK_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PENSTOCK_KEEP", "5")
    check("runner", normal(word_count().explain(pen.Local(parallelism=2, snapshot_every="200ms"))))


def test_explain_of_a_stream_ends_with_that_stream() -> None:
    p = pen.Pipeline("test")
    text = hand(p).filter("i > 0").select("k", twice="i * 2").explain()
    lines = normal(text).splitlines()
    assert [line.split("  [")[0].strip() for line in lines] == [
        "0 read hand (Hand, replayable)",
        "1 filter i > 0 <- 0",
        "2 select k, twice=i * 2 <- 1",
    ]
    assert [line.split("[")[1] for line in lines] == ["rig.py:0]", "test_explain.py:0]", "test_explain.py:0]"]


def test_explaining_changes_nothing() -> None:
    p = everything()
    assert p.explain() == p.explain()
