"""The peers that must be fetched, at a size that takes seconds: they count the same events. Run by `make bench-quick`, not by
`make test`, which fetches nothing.
"""

from __future__ import annotations

import pytest

from benchmarks import bytewaxpeer, flinkpeer, install, loadpeers, nested, nestedpeer, values
from benchmarks.load import Point
from benchmarks.loadjobs import LOADS
from benchmarks.workload import Input, write_json

ROWS = 40_000


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> Input:
    folder = tmp_path_factory.mktemp("events")
    write_json(folder, 4, ROWS // 4)
    return Input(ROWS, folder)


@pytest.fixture(scope="module", autouse=True)
def fetched() -> None:
    try:
        install.flink()
        install.bytewax()
        install.decoders()
    except install.Unavailable as problem:
        pytest.skip(str(problem))


@pytest.mark.slow
@pytest.mark.parametrize("case", ["generated", "memory", "files"])
@pytest.mark.parametrize("system", flinkpeer.SYSTEMS)
def test_flink_counts_the_same_events(system: str, case: str, events: Input) -> None:
    (run,) = flinkpeer.run(system, case, events, events, runs=1, snapshot_every="50ms")
    assert run.verified, run.note
    assert run.commits[-1][1] == ROWS
    assert run.memory > 0


@pytest.mark.slow
def test_flink_measures_every_row_of_the_latency_case() -> None:
    found = flinkpeer.latency(2_000, 4.0, warm_s=2.0)
    assert found["verified"], found["note"]
    assert found["measured"] == 4_000
    assert found["commits"] >= 2
    assert 0 <= found["p50_ms"] <= found["p99_ms"] <= found["p999_ms"] <= found["max_ms"]


@pytest.mark.slow
def test_bytewax_counts_the_same_events(events: Input) -> None:
    run = bytewaxpeer.run(events)
    assert run.verified, run.note
    assert run.memory > 0


@pytest.mark.slow
def test_duckdb_counts_the_values_of_the_same_rows() -> None:
    assert list(values.duckdb([8_000, 16_000])) == [8_000, 16_000]


def test_all_decoders_find_the_same_payloads_in_nested_json() -> None:
    try:
        install.decoders()
    except install.Unavailable as problem:
        pytest.skip(str(problem))
    result = nested.run(1, 0.01)
    assert result["verified"], result["note"]
    assert set(result["figures"]) == {"Penstock, dataclasses", "Penstock, all nullable", *nestedpeer.SYSTEMS}


@pytest.mark.slow
def test_flink_runs_every_pipeline_of_the_load_sweep() -> None:
    points = [Point(pipeline, "1000") for pipeline in LOADS]
    for found in loadpeers.flink("0ms", points, 1.0, 1.5):
        assert found["verified"], (found["pipeline"], found["note"])
        assert found["cores"] > 0
        assert found["rows_s"] > 0
