"""The load sweep, at a size that takes seconds and without Spark: its schedule, its arithmetic, its tables and its checks."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks import load, loadfeed, loadjobs, loadpeers, loadsource, plots, report
from benchmarks.load import Point, Sample
from benchmarks.loadjobs import LOADS, Written
from benchmarks.loadsource import US, Schedule

import penstock as pen
from penstock.connectors.connector import Began, SourceContext


def test_rows_are_due_at_the_start_and_then_at_the_rate() -> None:
    schedule = Schedule(10, 2, 3)
    assert [schedule.due(at) for at in (-1.0, 0.0, 0.05, 0.1, 2.0)] == [0, 1, 1, 2, 21]
    for elapsed in (0.0, 0.1, 0.55, 3.3):
        assert schedule.due(elapsed) == sum(schedule.due_of(split, elapsed) for split in range(loadsource.SPLITS))
    assert Schedule(0, 2, 3).due(4) == 0
    assert Schedule(1000, 2, 3).event_us(np.array([0, 1, 7])).tolist() == [loadsource.BASE_US + each for each in (0, 1000, 7000)]


@pytest.mark.parametrize(("rate", "wanted"), [(100.0, 26), (0.0, 0), (None, 50)])
def test_a_reader_hands_out_what_is_due_and_ends_with_its_schedule(rate: float | None, wanted: int, tmp_path: Path) -> None:
    source = loadsource.Steady(
        "rows", loadjobs.schema("key"), lambda number, _: {"key": number}, Schedule(rate, 0.5, 0.5), tmp_path
    )
    began = Began(0, None)
    reader = source.open("1", None, SourceContext("rows", tmp_path, ("key",), began))
    start_us = loadsource.started(tmp_path)
    assert start_us is not None
    began.now_us = start_us + US // 2
    chunk = reader.poll(50)
    keys = chunk.batch.column("key").to_pylist() if chunk is not None and chunk.batch is not None else []
    assert keys == [2 * number + 1 for number in range(min(25, wanted) if rate else wanted)]
    assert load.read_of(tmp_path) == {"rows": [0, len(keys)]}
    due_us = None if rate is None else start_us + (US if rate == 0 else (2 * len(keys) + 1) * US // 100)
    assert reader.due_at() == due_us, "the next row, or the end of the schedule"
    began.now_us = start_us + US
    ended = reader.poll(50)
    assert ended is not None
    assert (ended.ended, ended.position) == (True, len(keys)), "what is due at the end is nobody's any more"
    again = source.open("0", None, SourceContext("rows", tmp_path, ("key",), began))
    assert loadsource.started(tmp_path) == start_us, "the second reader does not begin anew"
    ended = again.poll(1)
    assert ended is not None
    assert ended.ended


@pytest.mark.parametrize("pipeline", LOADS)
def test_each_pipeline_writes_what_its_check_wants(pipeline: str, tmp_path: Path) -> None:
    schedule = Schedule(2_000, 0.3, 0.7)
    found = load.one(LOADS[pipeline], schedule, tmp_path, pen.Local(parallelism=2, snapshot_every="100ms"))
    assert found["verified"], found["note"]
    assert found["cores"] > 0
    assert found["epochs_s"] > 0
    assert found["rows_s"] > 0
    written, read = Written.to(tmp_path), load.read_of(tmp_path)
    if LOADS[pipeline].fed:
        read = {"lines": [loadfeed.fed(tmp_path)]}
    assert LOADS[pipeline].wrong(schedule, written, read) == ""
    more = {name: [end + loadjobs.VALUES for end in ends] for name, ends in read.items()}
    assert LOADS[pipeline].wrong(schedule, written, more) != "", "what is missing is noticed"
    if LOADS[pipeline].timed:
        assert 0 < found["p50_ms"] <= found["p99_ms"] < 10_000
        assert found["p50_ms"] < found["committed_p50_ms"]


def test_first_rows_and_sessions_are_those_that_one_finds_row_by_row() -> None:
    schedule = Schedule(400, 0, 12)
    number = np.arange(4_800)
    last: dict[int, int] = {}
    first = 0
    for value, at in zip((number % loadjobs.VALUES).tolist(), schedule.event_us(number).tolist()):
        if value not in last or at > last[value] + loadjobs.WITHIN_S * US:
            first, last[value] = first + 1, at
    assert loadjobs.first_of(schedule, [2_400, 2_400]) == first == 2_800
    assert loadjobs.sessions_of(Schedule(100_000, 0, 1), np.arange(100_042)) == loadjobs.MANY
    assert loadjobs.sessions_of(Schedule(10_000, 0, 1), np.arange(100_042)) == 100_042


def test_cores_are_processor_time_between_the_samples() -> None:
    used = [{"driver": 90.0, "java": 10.0}, {"driver": 90.5, "java": 10.5}, {"driver": 91.0, "java": 11.0, "workers": 1.0}]
    looks = [(10 * US, 7, 950, 5), (12 * US, 9, 1_950, 9), (14 * US, 11, 4_900, 6)]
    samples = [Sample(at_us, each, *others) for (at_us, *others), each in zip(looks, used)]
    found = load.summary(samples, Schedule(1_000, 1, 4), 9 * US)
    assert found.pop("parts") == {"driver": 0.25, "java": 0.25, "workers": 0.25}
    assert found == {"cores": 0.75, "epochs_s": 1.0, "rows_s": 988, "memory": 9, "waiting": [51, 101]}
    assert "waiting" not in load.summary(samples, Schedule(None, 1, 4), 9 * US)


def test_rows_are_late_from_when_they_are_due_to_when_they_are_counted_and_committed() -> None:
    # Row i has key i % 100 and is due at i / 100 s. Key 3: rows 3, 103 and 203; the second update counts two of them.
    noted = np.array([[3, 1, 1_040_000, 1_900_000], [3, 3, 3_031_000, 3_900_000]])
    found = load.lateness(noted, Schedule(100, 1, 5), US)
    assert found == {"p50_ms": 501, "p99_ms": 991, "committed_p50_ms": 1370, "committed_p99_ms": 1860}
    assert load.lateness(noted, Schedule(None, 1, 5), US) == {}
    assert load.lateness(noted[:0], Schedule(100, 1, 5), US) == {}


def test_what_is_not_named_is_as_the_table_has_it() -> None:
    usual = load.chosen("full", "continuous")
    assert Point("count", "flood") in usual
    assert load.chosen("full", "continuous", ["count"], ["10"]) == [Point("count", "10")]
    assert load.chosen("full", "continuous", ["count"]) == [each for each in usual if each.pipeline == "count"]
    assert {each.rate for each in load.chosen("full", "continuous", None, ["100"])} == {"100"}
    assert load.chosen("full", "local", ["files"], ["0", "flood"]) == [Point("files", "0")], "files are not flooded"
    assert load.chosen("quick", "local", ["function"], ["1000", "0"]) == [Point("function", "0"), Point("function", "1000")]


def test_the_table_asks_for_nothing_that_cannot_be_run() -> None:
    for size, table in load.CHOICE.items():
        for pipeline, systems in table.items():
            assert pipeline in LOADS
            for system, rates in systems.items():
                assert system in load.SYSTEMS
                assert set(rates) <= set(load.RATES)
                assert (pipeline, system) not in load.CANNOT, (size, pipeline, system)
                assert not [rate for rate in rates if (pipeline, system, rate) in load.NOT_AT]
    for (pipeline, system), reason in load.CANNOT.items():
        assert load.chosen("full", system, [pipeline]) == []
        assert load.left_out([pipeline], None, [system]) == [f"{pipeline} on {system}: {reason}"]
    (reason,) = load.left_out(["files"], ["flood", "10"], ["local"])
    assert reason == "files on local at flood: they appear on a schedule"
    assert load.left_out(None, None, load.SYSTEMS) == [], "nobody asked for it by name"
    points = [len(load.chosen("full", system)) for system in load.SYSTEMS]
    assert sum(points) * 11 < 12 * 60 + 60, "a point takes about eleven seconds"


def test_what_flink_says_becomes_a_point() -> None:
    said: dict[str, Any] = {"read": [150, 150, 0, 0], "late": {"p50_ms": 50.0}, "sums": {}, "counts": {"counts": [3] * 100}}
    said["samples"] = [[2 * US, 5.0, 2, 200, 7], [3 * US, 5.25, 3, 300, 8]]
    found = loadpeers.of_flink(said, Point("count", "100"), 2, 1)
    assert found["verified"], found["note"]
    assert (found["cores"], found["rows_s"], found["waiting"], found["p50_ms"]) == (0.25, 100, [1, 1], 50.0)
    assert not loadpeers.of_flink({**said, "read": [150, 151, 0, 0]}, Point("count", "100"), 2, 1)["verified"]
    assert "p50_ms" not in loadpeers.of_flink(said, Point("count", "flood"), 2, 1)


def some_loads() -> list[dict[str, Any]]:
    slow = {"pipeline": "count", "rate": "1000", "cores": 0.25, "epochs_s": 1.0, "rows_s": 1000, "memory": 1 << 20, "note": ""}
    slow |= {"waiting": [0, 2], "p50_ms": 1.5, "p99_ms": 3.0, "committed_p50_ms": 500, "committed_p99_ms": 1001.0}
    flood = {**{k: v for k, v in slow.items() if not k.endswith("_ms") and k != "waiting"}, "rate": "flood", "cores": 2.0}
    behind = {**slow, "rate": "100000", "waiting": [0, 300_000], "cores": 1.75}
    systems = {"continuous": [slow, flood], "flink": [behind, flood]}
    return [{"case": "load", "system": system, "loads": found, "verified": True, "note": ""} for system, found in systems.items()]


def test_the_table_has_a_row_per_rate_and_a_column_per_system() -> None:
    lines = report.loads(some_loads())
    assert lines[0] == "| pipeline | rows/s | Penstock Continuous | Flink |"
    assert lines[2:5] == [
        "| count | 1,000 | 0.25 |  |",
        "| count | 100,000 |  | 1.75 (behind) |",
        "| count | flood | 2.00 (0.00M rows/s) | 2.00 (0.00M rows/s) |",
    ]
    assert "| count | 1,000 | Penstock Continuous | 1.5 ms | 3.0 ms | 500 ms | 1,001 ms | 1.00 | 1 MiB |" in lines
    text = report.markdown(some_loads(), command="", took_s=1, load=0)
    assert "## Cores at real rates" in text
    assert report.headline(some_loads()[0]) == "2 points, 0.25 to 2.00 cores"
    assert report.load_cell({**some_loads()[0]["loads"][0], "epochs_s": 0.2}) == "0.25 (0.20 snapshots/s)"


def test_the_picture_has_a_dot_for_each_point_within_its_panel() -> None:
    drawn = plots.draw(some_loads())
    assert list(drawn) == ["load.svg"]
    root = ElementTree.fromstring(drawn["load.svg"])
    dots = [shape for shape in root if shape.tag.endswith("circle")]
    assert len(dots) == 4
    height = float(root.attrib["height"])
    assert all(0 < float(dot.get("cx", 0)) < plots.WIDTH and 0 < float(dot.get("cy", 0)) < height for dot in dots)
