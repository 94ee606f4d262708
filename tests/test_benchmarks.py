"""The benchmarks, at a size that takes seconds: they run, they verify what they count, and they would notice a wrong count."""

from __future__ import annotations

import dataclasses
import functools
import os
import re
import resource
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from benchmarks import (
    backpressure,
    bytewaxpeer,
    flinkpeer,
    install,
    latency,
    measure,
    memorylines,
    peer,
    plots,
    processes,
    recovery,
    report,
    sampler,
    scaling,
    scattered,
    state,
    statefunctions,
    statejobs,
    statepeer,
    systems,
    traced,
    values,
    windows,
    workload,
)
from benchmarks import run as command
from benchmarks.run import CASES, FILES, FULL, NOT_QUICK, QUICK, WARM_UP, chosen

import penstock as pen
from penstock import sinks, sources
from penstock.connectors.connector import SourceContext
from penstock.expr import Accumulators
from penstock.operators.aggregate import PartialAggregate
from penstock.operators.operator import Errors

ROWS = 400_000


def local() -> pen.Runner:
    return pen.Local(parallelism=2, snapshot_every="50ms")


def test_generated_ads_are_counted_right() -> None:
    run = systems.run_penstock(local(), systems.pipeline("generated", workload.Input(ROWS, Path())), ROWS)
    assert run.verified, run.note
    assert run.commits[-1][1] == ROWS
    assert run.whole > 0


@pytest.mark.parametrize("case", ["files", "memory", "python"])
def test_ads_in_json_lines_are_counted_right(case: str, tmp_path: Path) -> None:
    written = workload.write_json(tmp_path, 4, 2_000)
    assert 230 <= written / 8_000 <= 260
    run = systems.run_penstock(local(), systems.pipeline(case, workload.Input(8_000, tmp_path)), 8_000)
    assert run.verified, run.note


def test_lines_from_memory_go_on_where_they_were_read_up_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memorylines, "BLOCK_BYTES", 2_000)  # a few lines: batches are of several blocks
    workload.write_json(tmp_path, 4, 100)
    source = memorylines.MemoryLines(tmp_path)
    context = SourceContext("lines", tmp_path, ("at",))

    def read(rows_max: int, *, reopen: bool) -> list[Any]:
        found: list[Any] = []
        reader, ended = source.open("0", None, context), False
        while not ended:
            chunk = reader.poll(rows_max)
            assert chunk is not None
            found += chunk.batch.column("at").to_pylist() if chunk.batch is not None else []
            ended = chunk.ended
            reader = source.open("0", chunk.position, context) if reopen else reader
        return found

    whole = read(1_000, reopen=False)
    assert len(whole) == len(set(whole)) == 200
    assert read(37, reopen=True) == whole


def test_what_windows_cost_is_compared() -> None:
    result = windows.run(1, 0.005)
    assert [each["name"] for each in result["comparisons"]] == [
        "overlapping windows, 1M rows/s",
        "overlapping windows, 100k rows/s",
        "open sessions",
    ]
    assert all(each["ratio"] > 0 for each in result["comparisons"])
    assert "| open sessions | 10 thousand:" in "\n".join(report.comparisons(result))


def test_a_row_of_a_key_with_many_values_is_measured_and_its_counts_are_checked() -> None:
    assert values.per_row(4_000) > 0
    assert "| 250,000 rows | 0.5" in "\n".join(report.plain({"250,000 rows": "0.5 µs per row"}))


def test_a_table_alone_is_measured() -> None:
    result = state.tables(5_000, 1)
    assert result["verified"], result["note"]
    assert sorted(result["ns_per_key"]) == [
        f"{kind} keys, {seen}" for kind in ("int64", "string") for seen in ("first seen", "seen before")
    ]


def test_a_large_table_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "FILL_KEYS", 2_000)
    monkeypatch.setattr(state, "CHANGES", ((0.01, 3), (0.1, 2)))
    result = state.large(10_000, tmp_path)
    assert result["verified"], result["note"]
    assert result["peak_bytes"] > 0
    assert result["changes"]["1.0%"]["changed"] == 100
    assert result["changes"]["10.0%"]["bytes_per_change"] == pytest.approx(29, abs=10)


def test_a_table_with_wrong_counts_is_noticed() -> None:
    table = state.KeyedTable(state.SPECS["int64"], range(128), 128)
    table.put_many(pa.record_batch({"key": [1, 2]}), pa.record_batch({"n": [1, 3]}))
    assert state.wrong_total(table, 4) == ""
    assert "add up to 4 instead of 2" in state.wrong_total(table, 2)


def test_counts_per_key_are_checked_and_watched() -> None:
    counted = statejobs.count(statejobs.Keys(1_000, 3), local())
    assert counted.note == ""
    assert counted.rows == 3_000
    assert counted.memory > 0
    assert counted.pauses_ms


def test_a_job_over_many_keys_and_what_snapshots_cost_it() -> None:
    limits = resource.getrlimit(resource.RLIMIT_DATA)
    large = statejobs.large(1_000, local())
    assert resource.getrlimit(resource.RLIMIT_DATA) == limits, "what is limited is the job, not the process that it was in"
    compared = statejobs.snapshots(1_000, rounds=2, runs=1, runner=local)
    assert large["verified"], large["note"]
    assert compared["verified"], compared["note"]
    found = [{"case": "state", "system": "job", **large}, {"case": "state", "system": "snapshots", **compared}]
    found += [{"case": "state", "system": "transform-with-state", "rates": {"transformWithState": 1_000}, "figures": {"a": "b"}}]
    text = "\n".join(report.state(found))
    assert "| transformWithState | 1,000 | 1x |" in text
    assert "| a | b |" in text


def test_a_run_with_snapshots_is_as_long_as_they_need() -> None:
    compared = statejobs.snapshots(1_000, rounds=2, runs=1, runner=local, seconds=0.5)
    assert compared["verified"], compared["note"]
    rounds = int(compared["figures"]["what; keys, rounds over them"].split()[-1])
    assert rounds > 2, "those of the warm-up take a few milliseconds"


def trace_of(rate: Callable[[int], float], seconds: int = 12, poll_us: int = 1_000) -> traced.Trace:
    """Two splits that are read at `rate` (rows per microsecond, by the time), from the beginning of second 100 on."""
    times = 100 * traced.SECOND_US + np.arange(0, seconds * traced.SECOND_US + poll_us, poll_us)
    rows = np.cumsum([0, *(rate(int(at)) * poll_us for at in times[:-1])]).astype(np.int64)
    notes = np.stack([times, rows, times - times[0]], axis=1)
    return traced.Trace([notes, notes])


def test_what_a_snapshot_costs_is_what_is_missing_after_it() -> None:
    slow = trace_of(lambda at: 10.0 * (0.5 if at % 2_000_000 < 100_000 else 1.0))
    cost = traced.Cost.of([slow, slow])
    assert cost.by_missing.share == pytest.approx(0.95, abs=1e-3), "half of the rows of a tenth of a second"
    assert cost.by_seconds.share == pytest.approx(0.95, abs=1e-3)
    assert cost.by_cpu.share == pytest.approx(0.95, abs=1e-3)
    assert (cost.without, cost.with_one) == (pytest.approx(20e6, rel=1e-3), pytest.approx(19e6, rel=1e-3))
    assert cost.by_seconds.count == cost.by_missing.count == 8, "those with a whole second on either side, not in the first two"


def test_a_machine_that_becomes_slower_is_not_what_snapshots_cost() -> None:
    cost = traced.Cost.of([trace_of(lambda at: 10.0 * 0.95 ** ((at - 100_000_000) / 1e6))])
    assert cost.by_seconds.share == pytest.approx(1.0, abs=2e-3)
    assert cost.by_missing.share == pytest.approx(1.0, abs=2e-3)


def test_parts_of_a_second_are_told_apart_only_where_rows_are_read_often() -> None:
    cost = traced.Cost.of([trace_of(lambda at: 10.0, poll_us=100_000)])
    assert cost.by_missing.count == 0
    assert cost.by_missing.text() == "cannot be told"
    assert cost.by_seconds.text() == "100.0% ± 0.0%"


def test_a_run_that_is_too_short_says_so() -> None:
    texts = traced.Cost.of([trace_of(lambda at: 10.0, seconds=2), traced.Trace([])]).figures("rows").values()
    assert "cannot be told" in texts


def test_what_snapshots_cost_ad_counts_is_told_in_the_words_of_the_other_cases() -> None:
    compared = statejobs.ad_counts(20_000, 1, local)
    assert compared["verified"], compared["note"]
    other = statejobs.snapshots(1_000, rounds=2, runs=1, runner=local)
    assert [*compared["figures"]][2:] == [*other["figures"]][2:-2]
    wrong = statejobs.compared({}, {}, ["", "one is missing", ""])
    assert (wrong["note"], wrong["verified"]) == ("one is missing", False)


@pytest.mark.parametrize("function", [statefunctions.Count, statefunctions.CountBatch])
def test_process_functions_count_right(function: Any) -> None:
    rows = [{"key": key} for key in (1, 2, 1)]
    out = sinks.memory(f"functions-{function.__name__}")
    stream = pen.Pipeline("functions").read(sources.memory(rows, schema=statefunctions.Event)).key_by("key")
    counted = stream.process(function(), name="count", schema=statefunctions.Counted)
    counted.write(out).run(pen.Local())
    found = sorted((row["key"], row["n"]) for row in out.rows())
    # A call per batch sees the two rows of a key at once: the benchmark has each key once per batch.
    assert found[-1] == (2, 1)
    assert len(found) == 3


@pytest.mark.parametrize("batch", [7, 65_536])
def test_scattered_keys_come_once_in_each_round_and_go_on_where_they_were_read_up_to(batch: int, tmp_path: Path) -> None:
    source = scattered.Scattered(1_000, 3, lanes=4, batch=batch)
    found: Counter[int] = Counter()
    for split in source.splits():
        position, ended = None, False
        while not ended:
            chunk = source.open(split, position, SourceContext("keys", tmp_path, ("key",))).poll(100)
            assert chunk is not None
            assert chunk.batch is not None
            assert chunk.batch.num_rows <= batch
            found.update(chunk.batch.column("key").to_pylist())
            position, ended = chunk.position, chunk.ended
    assert found == dict.fromkeys(range(1_000), 3)


def test_rows_are_not_folded_while_a_source_of_unfolded_ones_is_open(tmp_path: Path) -> None:
    def folded() -> int:
        """How many rows are left of three, of which two have the same key."""
        counts = Accumulators([("n", pen.count())], statejobs.SCHEMA)
        operator = PartialAggregate("counts", ["key"], None, counts, Errors("counts", "fail", pa.schema([])))
        return sum(rows.num_rows for _, rows in operator.process(pa.record_batch({"key": [1, 2, 1]}), None))

    assert folded() == 2
    reader = scattered.Unfolded(1_000, 3).open("0", None, SourceContext("keys", tmp_path, ("key",)))
    assert folded() == 3
    reader.close()
    assert folded() == 2


def test_two_tasks_are_compared_by_medians_and_with_the_run_of_one_before_them() -> None:
    def runs(*seconds: float) -> list[measure.Run]:
        return [measure.Run(100, [(each, 100)], True) for each in seconds]

    # The machine is twice as slow from the second run of two on.
    one, two = runs(4, 4, 8), runs(2, 4, 4)
    assert scaling.by_medians(two, one, "whole") == pytest.approx(1.0)
    assert scaling.run_by_run(two, one, "whole") == pytest.approx(2.0)


def test_tasks_that_know_nothing_of_each_other_count_everything_each() -> None:
    run = scaling.together(2, 20_000)
    assert run.verified, run.note
    assert run.rows == 40_000
    assert run.steady == run.whole


def test_a_key_that_was_counted_too_often_or_not_often_enough_is_noticed() -> None:
    source = scattered.Scattered(1_000, 3)
    assert source.wrong([{"done": 400, "most": 3}, {"done": 600, "most": 3}]) == ""
    assert "999 keys were counted 3 times instead of 1000" in source.wrong([{"done": 999, "most": 3}])
    assert "the highest count is 4" in source.wrong([{"done": 1_000, "most": 4}])


def small_curves(folder: Path) -> dict[str, dict[str, Any]]:
    def runner(tasks: int) -> Any:
        return pen.Local(parallelism=tasks, snapshot_every="50ms")

    return {
        "keys": scaling.curve(scaling.keys(20_000, 1, runner)),
        "exchanged": scaling.curve(scaling.exchanged(20_000, 1, runner)),
        "functions": scaling.curve(scaling.functions_over_keys(5_000, 10_000, runner)),
        "batch": scaling.curve(scaling.batches(100_000, 1, runner)),
        "channels": scaling.curve(scaling.channels(200_000, 1, runner)),
        "state": scaling.curve(scaling.states(20_000, folder)),
    }


def test_every_curve_is_checked_and_compared_with_its_first_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaling, "SNAPSHOTS", 3)
    run = functools.partial(scaling.penstock, lambda tasks: local(), workload.ad_counts)
    monkeypatch.setattr(scaling, "SYSTEMS", {"Local": (run, 20_000)})
    found = {"parallelism": scaling.curve(scaling.parallelism("Local", 1.0, 1), compared=""), **small_curves(tmp_path)}
    assert {part: len(result["points"]) for part, result in found.items()} == {
        "parallelism": 2,
        "keys": 2,  # there are no more keys than rows
        "exchanged": 2,
        "functions": 2,
        "batch": len(scaling.BATCHES),
        "channels": len(scaling.TASKS),
        "state": 3,
    }
    for result in found.values():
        assert result["verified"], result["note"]
    assert found["parallelism"]["points"][0]["figures"]["to one task, by medians"] == "1.00x, 1.00x"
    assert found["parallelism"]["points"][0]["figures"]["run by run"] == "1.00x, 1.00x"
    assert found["keys"]["points"][0]["figures"]["cost, to the first"] == "1.00x"
    sent = [point["figures"]["updates per row"] for part in ("functions", "batch", "channels") for point in found[part]["points"]]
    assert set(sent) == {"1.00"}, "points of a curve differ in nothing else"
    results = [{"case": "scaling", "system": part, **result} for part, result in found.items()]
    text = "\n".join(report.scaling(results))
    for title in report.CURVES.values():
        assert f"### {title}" in text
    assert "| 2 tasks, 4 channels |" in text
    drawn = plots.draw(results)
    assert list(drawn) == ["scaling.svg"]
    assert "64 channels" in drawn["scaling.svg"]


def test_a_wrong_point_spoils_its_curve() -> None:
    points = [
        {"name": "one", "cost": 2.0, "figures": {}, "note": ""},
        {"name": "two", "cost": 3.0, "figures": {}, "note": "lost"},
    ]
    result = scaling.curve(iter(points))
    assert not result["verified"]
    assert result["note"] == "two: lost"
    assert result["points"][1]["figures"] == {"cost, to the first": "1.50x"}


def test_recoveries_are_summed_up_beside_two_intervals_and_a_process_start() -> None:
    found = recovery.summary([recovery.Recovery(0.2, 0.7, 1.5), recovery.Recovery(0.3, 0.8, 2.5)], interval_s=1.0)
    assert found["limit_s"] == pytest.approx(2.5)
    assert found["p99_s"] == pytest.approx(2.49)
    text = report.markdown(
        [{"case": "recovery", "system": "continuous", **found, "verified": True, "note": ""}], command="", took_s=1, load=0
    )
    assert "| two intervals and a process start (p50) | 2.50 s; p99 is 100% of it |" in text


def test_rows_that_a_slow_sink_lost_doubled_or_counted_wrong_are_noticed() -> None:
    read = [np.arange(0, 10, 2), np.arange(1, 10, 2)]
    assert backpressure.wrong_rows([np.arange(9, 4, -1), np.arange(5)], read) == ""
    assert "1 are missing or wrong, 0 are there again" in backpressure.wrong_rows([np.arange(9)], read)
    assert "0 are missing or wrong, 1 are there again" in backpressure.wrong_rows([np.arange(10), np.array([3])], read)
    assert "1 are missing or wrong" in backpressure.wrong_rows([np.array([-1]), np.arange(1, 10)], read)


def test_a_slow_sink_takes_its_time_for_each_row_and_knows_their_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    now = 100.0
    monkeypatch.setattr(backpressure.time, "sleep", slept.append)
    monkeypatch.setattr(backpressure.time, "monotonic", lambda: now)
    writer = backpressure.SlowWriter(backpressure.Slow(tmp_path, row_s=0.3, fill_s=5), "uid")
    keys = backpressure.KEYS
    rows = pa.record_batch({"key": [1, 2], "n": [1, 3], "number": [1, keys + 2]})
    writer.write(rows)
    now = 106.0
    writer.write(rows)
    assert slept == pytest.approx([2 * 0.3 / backpressure.FILL_FASTER, 2 * 0.3])
    (name,) = writer.prepare(7)
    assert backpressure.committed(tmp_path) == {}, "not before it is committed"
    backpressure.SlowCommitter(tmp_path).commit(7, [name], 1)
    assert {epoch: found.tolist() for epoch, found in backpressure.committed(tmp_path).items()} == {7: [1, -1, 1, -1]}
    assert writer.prepare(8) == []


def test_checkpoints_are_counted_while_channels_are_full_and_the_last_one_is_not() -> None:
    seen = backpressure.Seen(
        triggered={1: 1.0, 2: 10.5, 3: 11.5, 4: 14.2},
        published={1: 9.0, 2: 11.0, 3: 14.0, 4: 20.0},
        in_flight={1: 900, 2: 100, 3: 300, 4: 0},
        memory=[(10.5, 50), (11.5, 70), (13.5, 75), (19.0, 90)],
    )
    found = seen.summary(10.0, 14.0, {1: 5_000, 2: 400, 3: 500, 4: 400})
    assert found == {
        "rate": 100,  # 900 rows from the second checkpoint to the last
        "checkpoints": 2,
        "gaps_s": [2.0, 3.0],
        "took_s": [0.5, 2.5],
        "in_flight_bytes": 300,
        "memory": 90,
        "memory_growth": 5,
    }


def test_a_slow_sink_is_slow_beside_one_that_keeps_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(name: str, row_s: float, seconds: float, after: str, spark: Any, **options: Any) -> dict[str, Any]:
        times = {"gaps_s": [1.0, 2.0, 3.0], "took_s": [0.5], "checkpoints": 3}
        sizes = {"in_flight_bytes": 2**20, "memory": 5 * 2**20, "memory_growth": -(2**20)}
        note = "lost" if after == "never" and row_s else ""
        return {"name": name, "row_s": row_s, "rate": round(2 / row_s) if row_s else 1_000_000, "note": note, **times, **sizes}

    monkeypatch.setattr(backpressure, "measured", measured)
    result = backpressure.run(4, aligned_too=False, spark="a session")
    assert result["verified"]
    assert [point["row_s"] for point in result["points"]] == pytest.approx([0, 0.0002])
    text = report.markdown([{"case": "backpressure", "system": "continuous", **result}], command="", took_s=1, load=0)
    figures = "2.00 s, 2.98 s, 3.00 s | 2 of 3 | 0.50 s, 0.50 s | 1.0 MiB | 5 MiB"
    assert f"| a sink that keeps up | 1,000,000 | 1x | 0.00 s | 3 | {figures} | - |" in text
    assert f"| 100 times slower, unaligned after 200ms | 10,000 | 100x | 6.55 s | 3 | {figures} | -1.0 MiB |" in text
    compared = backpressure.run(4, aligned_too=True, spark="a session")
    assert not compared["verified"]
    assert compared["note"] == "100 times slower, aligned only: lost"


def test_a_wrong_count_is_noticed() -> None:
    wanted = workload.expected(10_000)
    assert measure.difference(wanted, wanted) == ""
    key = next(iter(wanted))
    assert "1 of" in measure.difference(wanted + Counter({key: 1}), wanted)
    assert "1 of" in measure.difference(Counter({k: n for k, n in wanted.items() if k != key}), wanted)


def test_the_expected_counts_do_not_depend_on_how_they_are_cut() -> None:
    assert workload.expected(10_000) == workload.expected(10_000, chunk=777)


def test_steady_leaves_out_the_first_fifth() -> None:
    run = measure.Run(100, [(8.0, 10), (9.0, 20), (10.0, 60), (11.0, 100)], verified=True)
    assert run.whole == pytest.approx(100 / 11)
    assert run.steady == pytest.approx(80 / 2)


def test_every_row_of_the_latency_case_is_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(latency, "WARM_S", 0)
    found = latency.run(2_000, 1.0, tmp_path, local())
    assert found["verified"], found["note"]
    assert found["measured"] == 2_000
    assert 0 <= found["p50_ms"] <= found["p99_ms"] <= found["p999_ms"] <= found["max_ms"]


def test_counts_tell_which_rows_were_counted_and_how_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(latency, "WARM_S", 0)
    monkeypatch.setattr(latency, "BLOCK", 3)
    monkeypatch.setattr(latency.time, "time_ns", lambda: 10_000_000_000)
    writer = latency.RecordWriter(latency.Record(tmp_path, rate=latency.KEYS), "uid")  # a row per key and second
    writer.write(pa.record_batch({"key": [3, 4], "n": [1, 2], "due": [9_000_000, 9_500_000]}))
    writer.write(pa.record_batch({"key": [3], "n": [3], "due": [9_900_000]}))
    writer.write(pa.record_batch({"key": [5, 3], "n": [1, 4], "due": [9_600_000, 9_950_000]}))
    writer.close()
    late = latency.lateness(tmp_path, latency.KEYS).tolist()
    assert late == [1_000_000, 100_000, 1_100_000, 50_000, 500_000, 1_500_000, 400_000]


def test_latencies_of_several_runs_are_their_medians(monkeypatch: pytest.MonkeyPatch) -> None:
    said = {"measured": 5, "commits": 2, "verified": True, "note": "", "p50_ms": 1.0, "p999_ms": 9.0, "max_ms": 9.0, "memory": 7}
    runs = iter([{**said, "p99_ms": 4.0}, {**said, "p99_ms": 90.0}, {**said, "p99_ms": 3.0, "max_ms": 95.0}])
    monkeypatch.setattr(latency, "alone", lambda rate, seconds: next(runs))
    found = latency.run_system("continuous", 1_000, 1.0, 3)
    assert (found["p99_ms"], found["max_ms"], found["measured"], found["commits"]) == (4.0, 95.0, 15, 6)


def test_the_document_names_command_commit_and_ratios() -> None:
    text = report.markdown(some_results(), command="python -m benchmarks.run", took_s=60, load=0.1)
    assert "python -m benchmarks.run" in text
    assert "commit" in text
    assert "| system | events/s, whole | steady | to Structured Streaming | to Flink |" in text
    assert "| to Flink | processor time per event | memory | commits | runs | spread |" in text
    assert "| Penstock Continuous | 4.00M | 6.00M | 2.00x, 3.00x | 1.00x, 1.50x | 90 ns | 3 MiB | 12 | 1 | 0% |" in text
    assert "| 50,000 | Flink | 0.50 ms | 1.50 ms | 20.00 ms | 99.00 ms | 1,000 | 12 | 1 MiB |" in text


def some_results() -> list[dict[str, Any]]:
    run = {"rows": 10, "whole": 4e6, "steady": 6e6, "commits": 12, "verified": True, "note": "", "memory": 3 << 20, "cpu_ns": 90}
    slow = {**run, "whole": 2e6, "steady": 2e6}
    late = {"rate": 50_000, "p50_ms": 0.5, "p99_ms": 1.5, "p999_ms": 20, "max_ms": 99}
    late |= {"measured": 1_000, "commits": 12, "memory": 1 << 20}
    return [
        {"case": "files", "system": "continuous", **measure.summary([run])},
        {"case": "files", "system": "structured-streaming", **measure.summary([slow])},
        {"case": "files", "system": "flink", **measure.summary([{**run, "steady": 4e6}])},
        {"case": "latency-50k", "system": "flink", **late},
    ]


def test_the_plots_show_every_result_within_their_panel() -> None:
    drawn = plots.draw(some_results())
    assert sorted(drawn) == ["latency.svg", "throughput.svg"]
    for name, boxes, word in (("throughput.svg", 3, "4.00"), ("latency.svg", 3, "20.00 ms")):
        root = ElementTree.fromstring(drawn[name])
        shapes = [shape for shape in root if shape.tag.endswith("rect") and shape.get("class") != "panel"]
        assert len(shapes) == boxes
        assert all(float(shape.get("x", 0)) + float(shape.get("width", 0)) <= plots.WIDTH for shape in shapes)
        assert max(float(shape.get("y", 0)) for shape in root) < float(root.attrib["height"])
        assert word in [shape.text for shape in root]
    assert plots.draw([]) == {}


def test_a_published_page_shows_pictures_that_are_there_and_replaces_old_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    docs, figures = tmp_path / "docs", tmp_path / "results"
    for folder in (docs / "pictures", figures):
        folder.mkdir(parents=True)
    for name, value in (("ROOT", tmp_path), ("RESULTS", figures), ("PICTURES", docs / "pictures" / "benchmarks")):
        monkeypatch.setattr(command, name, value)
    (figures / "old.json").write_text("{}")
    point = {"name": "2 tasks", "cost": 2.0, "note": "", "figures": {"rows/s": "1"}}
    results = [*some_results(), {"case": "scaling", "system": "channels", **scaling.curve(iter([point]))}]
    command.publish(results, report.markdown(results, command="", took_s=1, load=0), 0.1)
    page = (docs / "benchmarks.md").read_text()
    shown = re.findall(r"!\[[^]]*\]\(([^)]*)\)", page)
    assert sorted(Path(name).name for name in shown) == ["latency.svg", "scaling.svg", "throughput.svg"]
    assert all((docs / name).exists() for name in shown)
    assert sorted(file.stem for file in figures.iterdir()) == sorted(CASES)


def test_what_flink_says_becomes_a_run() -> None:
    wanted = workload.expected(10_000)
    counts = [[campaign, start, views] for (campaign, start), views in wanted.items()]
    said = {"commits": [[0.5, 2_000.0], [1.0, 7_000.0], [2.5, 10_000.0]], "ended": 2.0, "cpu_s": 3.0, "counts": counts}
    run = flinkpeer.as_run(said, 10_000, memory=7)
    assert run.verified, run.note
    assert run.commits == [(0.5, 2_000), (1.0, 7_000), (2.0, 10_000)]
    assert (run.memory, run.cpu_s) == (7, 3.0)
    assert not flinkpeer.as_run({**said, "counts": counts[1:]}, 10_000, memory=7).verified


def test_what_bytewax_writes_becomes_counts_and_progress(tmp_path: Path) -> None:
    (tmp_path / "progress-0").write_text("100.0 0\n101.0 500\n")
    (tmp_path / "progress-1").write_text("100.5 0\n102.0 400\n")
    (tmp_path / "result-0").write_text("104.0 one 7 3\n")
    (tmp_path / "result-1").write_text("103.0 two 8 4\n")
    counts, ended = bytewaxpeer.results(tmp_path)
    assert counts == {("one", 7 * workload.WINDOW_US): 3, ("two", 8 * workload.WINDOW_US): 4}
    assert bytewaxpeer.progress(tmp_path, ended, 1_000) == [(0, 0), (0.5, 0), (1, 500), (2, 900), (4, 1_000)]


def test_a_peer_that_cannot_be_made_leaves_nothing_behind(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").touch()
        raise install.Unavailable("no network")

    with pytest.raises(install.Unavailable, match="no network"):
        install.made(tmp_path / "peer", fail)
    assert list(tmp_path.iterdir()) == []
    assert (install.made(tmp_path / "peer", lambda folder: (folder / "all").touch()) / "all").exists()
    assert install.made(tmp_path / "peer", fail).exists(), "what is there is not made again"


def test_what_children_use_is_counted() -> None:
    hold = "import sys; held = bytearray(200 << 20); sum(range(10_000_000)); print(); sys.stdin.read()"
    with processes.watched(os.getpid()) as used:
        alone = sum(map(processes.memory_of, processes.family(os.getpid())))
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with subprocess.Popen([sys.executable, "-c", hold], **pipes) as child:  # type: ignore[call-overload]
            child.stdout.readline()
            while used.memory <= alone + (150 << 20):
                time.sleep(0.05)
            child.stdin.close()
    assert used.memory < alone + (400 << 20)
    assert used.cpu_s > 0.05
    assert processes.memory_of(child.pid) == 0, "it is gone"


def test_what_java_has_not_finished_starting_is_not_counted() -> None:
    forked = "import os; child = os.fork(); os.write(1, b'%d\\n' % (child or os.getpid())); os.read(0, 1)"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    for name, counted in (("/usr/bin/java", False), ("python", True)):
        with subprocess.Popen([name, "-c", forked], executable=sys.executable, **pipes) as parent:  # type: ignore[call-overload]
            child = {int(parent.stdout.readline()) for _ in range(2)}.pop()
            assert (child in processes.family(parent.pid)) == counted
            parent.stdin.close()


def test_a_case_is_run_by_the_systems_it_compares() -> None:
    assert chosen(["python"], None) == [("python", "continuous"), ("python", "bytewax")]
    assert chosen(["python", "files"], ["flink"]) == [("files", "flink")]
    assert set(chosen(list(CASES), None)) > NOT_QUICK


def test_sizes_fit_what_the_peer_can_be_given() -> None:
    for sizes in (FULL, QUICK):
        assert sizes.generated_rows % (WARM_UP * peer.BATCHES) == 0
        assert sizes.rows_per_file % WARM_UP == 0
    assert FILES % peer.FILES_PER_BATCH == 0
    assert dataclasses.asdict(QUICK)["generated_rows"] < FULL.generated_rows
    assert FULL.kills >= 30, "a 99th percentile of fewer says little"


def test_samples_are_summed_up(tmp_path: Path) -> None:
    (tmp_path / "1.txt").write_text("a.main:1;b.work:2 3\na.main:1;b.rest:9 1\n")
    text = sampler.report(tmp_path)
    assert "75.0%  b.work:2" in text
    assert "100.0%  a.main" in text


@pytest.mark.spark
def test_the_peer_counts_the_same_events(spark: Any) -> None:
    own = spark.newSession()  # the peer sets what it needs
    own.conf.set("spark.sql.shuffle.partitions", "2")  # as the benchmark has it; Spark's default makes 200 tasks of each batch
    run = peer.run_generated(own, 20_000)
    assert run.verified, run.note
    assert len(run.commits) == peer.BATCHES


@pytest.mark.spark
def test_the_peer_of_state_counts_right(spark: Any) -> None:
    pytest.importorskip("google.protobuf")
    commits, counts = statepeer.count(spark, 20)
    assert len(commits) == statepeer.BATCHES
    assert counts == dict.fromkeys(range(20), statepeer.BATCHES)


@pytest.mark.spark
def test_killed_workers_cost_time_and_no_count(spark: Any) -> None:
    result = recovery.run(2, rate=20_000, interval_s=0.3, spark=spark)
    assert result["verified"], result["note"]
    assert result["replayed"] > 0
    assert [each["begun"] <= each["started"] <= each["back"] for each in result["kills"]] == [True, True]


@pytest.mark.spark
def test_a_slow_sink_does_not_keep_checkpoints_and_each_row_is_committed_once(spark: Any) -> None:
    found = backpressure.measured("slow", 5e-5, 2.5, "100ms", spark, fill_s=0)
    assert found["note"] == ""
    assert found["checkpoints"] >= 1
    assert found["in_flight_bytes"] > 0
    assert 0 < found["rate"] <= 2 / 5e-5 * 1.5
