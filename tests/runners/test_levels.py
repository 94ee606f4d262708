"""An epoch's levels without Spark: its shuffle is a list that is shuffled, sorted by target and given back."""

from __future__ import annotations

import datetime as dt
import pickle
import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

import penstock as pen
from penstock import sinks, sources
from penstock.connectors.connector import Began
from penstock.errors import CorruptError, FunctionError
from penstock.protocol.coordinator import torn_reads
from penstock.protocol.messages import Stamp
from penstock.runners.cut import StartPoint
from penstock.runners.spark import epochtask, frames
from penstock.runners.spark.levels import Level
from penstock.runners.spark.mail import SCHEMA
from penstock.runners.spark.orders import EpochOrder, Facts, Report, SplitOrder
from penstock.runners.spark.sign import Sign

TASKS = 3

Tamper = Callable[[list[dict[str, Any]]], list[dict[str, Any]]]


def two_levels(rows: int = 300) -> pen.Pipeline:
    made = [
        {"user": f"u{i % 11}", "n": i, "at": dt.datetime(2026, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=i)}
        for i in range(rows)
    ]
    pipeline = pen.Pipeline("levels")
    read = pipeline.read(sources.memory(made, schema="user string, n bigint, at timestamp", splits=4, batch=16))
    keyed = read.with_watermark("at", delay="5s").key_by("user")
    keyed.window(pen.tumbling("1m")).aggregate(c=pen.count(), name="totals").key_by("c").aggregate(
        users=pen.count(), name="counts"
    ).write(sinks.memory("levels"))
    return pipeline


def run(pipeline: pen.Pipeline, job_dir: Path, *, tamper: Tamper = lambda rows: rows, rows_max: int = 10_000) -> list[Report]:
    """The reports of epoch 1; `tamper` changes what travels between the first two levels."""
    plan = pipeline.plan()
    sign = Sign(job_dir, Stamp("line", 1, 1), "word", False)
    sign.put_up()
    facts = SimpleNamespace(value=("token" + str(job_dir), pickle.dumps(Facts(plan, TASKS, sign.stamp, job_dir, sign))))
    start = StartPoint()
    splits = [[SplitOrder(s, 0, Began(0, None)) for op in plan.reads for s in start.assigned(op, i, TASKS)] for i in range(TASKS)]
    order = EpochOrder(1, 0, False, rows_max, None, start.restored, splits)
    outputs = [
        b for i in range(TASKS) for b in Level(facts, order, 0)(iter([pa.record_batch({"task": pa.array([i], pa.int32())})]))
    ]
    for level in range(1, plan.levels):
        rows = pa.Table.from_batches(outputs, SCHEMA).to_pylist()
        random.Random(level).shuffle(rows)
        rows = tamper(rows) if level == 1 else rows
        outputs = []
        for i in range(TASKS):
            mine = [row for row in rows if row["target"] == i]
            batches = [pa.RecordBatch.from_pylist(mine[k : k + 5], SCHEMA) for k in range(0, len(mine), 5)]
            outputs += list(Level(facts, order, level)(iter(batches)))
    payloads = [row["payload"] for row in pa.Table.from_batches(outputs, SCHEMA).to_pylist()]
    return [Report.from_json(frames.control_of(frame)) for payload in payloads for frame in frames.Decoder().feed(payload)]


def test_every_task_acknowledges_and_names_whom_it_read(tmp_path: Path) -> None:
    pipeline = two_levels()
    reports = run(pipeline, tmp_path)
    assert sorted(report.task for report in reports) == [f"stage {s} task {i}" for s in range(3) for i in range(TASKS)]
    acks = {report.task: report.ack for report in reports if report.ack}
    assert len(acks) == 3 * TASKS
    assert torn_reads(acks) == ""
    assert all(ack.ended for ack in acks.values())
    assert all(len(ack.consumed) == TASKS for task, ack in acks.items() if not task.startswith("stage 0"))
    assert sum(report.rows for report in reports) == 300


def test_a_budget_ends_an_epoch_and_says_so(tmp_path: Path) -> None:
    reports = run(two_levels(), tmp_path, rows_max=20)
    assert {report.task for report in reports if report.more} == {"stage 0 task 0", "stage 0 task 1", "stage 0 task 2"}
    assert sum(report.rows for report in reports) == TASKS * 20
    assert not any(report.ack.ended for report in reports if report.ack)


@pytest.mark.parametrize("limit", ["READ_BYTES_MAX", "SENT_BYTES_MAX"])
def test_an_epoch_ends_where_it_would_hold_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    monkeypatch.setattr(epochtask, limit, 1)
    reports = run(two_levels(), tmp_path)
    assert {report.task for report in reports if report.more} == {"stage 0 task 0", "stage 0 task 1", "stage 0 task 2"}
    assert 0 < sum(report.rows for report in reports) <= TASKS * 16, "the first batch of each"


def lost(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    victim = next(row for row in rows if row["channel"] >= 0 and row["seq"] == 1)
    return [row for row in rows if row is not victim]


def repeated(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return rows + [row for row in rows if row["channel"] >= 0 and row["seq"] == 2][:1]


def damaged(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    victim = next(row for row in rows if row["channel"] >= 0 and row["seq"] == 1)
    flipped = bytes([*victim["payload"][:-1], victim["payload"][-1] ^ 1])
    return [{**row, "payload": flipped} if row is victim else row for row in rows]


def cut_off(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    last = max((row for row in rows if row["channel"] == 0 and row["target"] == 0), key=lambda row: row["seq"])
    return [row for row in rows if row is not last]


@pytest.mark.parametrize("tamper", [lost, repeated, damaged, cut_off])
def test_a_channel_that_is_not_whole_fails_the_epoch(tmp_path: Path, tamper: Tamper) -> None:
    reports = run(two_levels(), tmp_path, tamper=tamper)
    failed = [report for report in reports if report.say == "failed"]
    assert {report.task.rsplit(" task")[0] for report in failed} == {"stage 1"}
    assert "Decode" in failed[0].trace
    assert not any(report.task.startswith("stage 2") for report in reports)  # deeper levels did nothing


def test_an_error_reaches_the_driver_as_a_report(tmp_path: Path) -> None:
    pipeline = pen.Pipeline("bad")
    read = pipeline.read(sources.memory([{"n": 1}, {"n": 0}])).select(x="10 % n", n="n")
    read.key_by("n").aggregate(c=pen.count(), name="c").write(sinks.memory("bad"))
    reports = run(pipeline, tmp_path)
    assert {(report.say, report.fate) for report in reports if report.task == "stage 0 task 0"} == {("failed", "final")}
    assert all(report.task.startswith("stage 0") for report in reports)


@pytest.mark.parametrize(
    ("error", "fate"),
    [
        (CorruptError("a file of state was altered"), "final"),
        (OSError(5, "Input/output error"), "passing"),
        (FunctionError("a function raised"), "three-tries"),
    ],
)
def test_the_verdict_on_an_error_travels_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, fate: str
) -> None:
    def fail(self: Any, inbox: Any) -> None:
        raise error

    monkeypatch.setattr(epochtask.EpochTask, "play", fail)
    assert {report.fate for report in run(two_levels(), tmp_path)} == {fate}
