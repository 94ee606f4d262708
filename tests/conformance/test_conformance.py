"""Every case on every runner: straight, and through one chain of restores; `make conformance` runs the full matrix."""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import penstock as pen
from conformance import cases, contract, data, source
from conformance.cases import CASES, Case
from conformance.harness import Leg, run_chain
from penstock.testing import Simulated

SPARK_RUNNERS = ("micro-batch", "continuous", "batch")
RUNNERS = ("local", "simulated", *SPARK_RUNNERS)
FULL = os.environ.get("PENSTOCK_CONFORMANCE") == "full"


@pytest.fixture
def make_runner(request: pytest.FixtureRequest) -> Any:
    """Makes runners by name; Spark starts with the first that needs it."""

    def make(name: str, *, parallelism: int, storage: str, last: bool, **options: Any) -> Any:
        common = {"parallelism": parallelism, "storage": storage, "snapshot_every": "200ms", **options}
        if name == "local":
            return pen.Local(**common)
        if name == "simulated":
            return Simulated(seed=parallelism, **common)
        spark = request.getfixturevalue("spark")
        from pyspark import cloudpickle

        for module in (cases, contract, source, data):
            cloudpickle.register_pickle_by_value(module)
        if name == "batch":
            return pen.Batch(spark, parallelism=parallelism, storage=storage, finish=last)
        return {"micro-batch": pen.MicroBatch, "continuous": pen.Continuous}[name](spark, **common)

    return make


def ids(value: Any) -> str:
    if isinstance(value, Case):
        return value.name
    if isinstance(value, Leg):
        return f"{value.runner}-{value.parallelism}"
    return (
        "-".join(f"{leg.runner}{leg.parallelism}{leg.state or ''}" for leg in value)
        if isinstance(value, list | tuple)
        else str(value)
    )


def marked(legs: list[Leg]) -> Any:
    marks = [pytest.mark.spark] if any(leg.runner in SPARK_RUNNERS for leg in legs) else []
    return pytest.param(legs, id=ids(legs), marks=marks)


STRAIGHT = [marked([Leg(runner, 2)]) for runner in RUNNERS]
CHAIN = [
    marked([Leg("local", 1), Leg("simulated", 3), Leg("local", 2)]),
    marked([Leg("micro-batch", 2), Leg("continuous", 3), Leg("micro-batch", 1), Leg("local", 2)]),
]
PARALLELISMS = [(1, 2), (2, 3), (3, 1)]
MATRIX = [
    *(marked([Leg(r, p), Leg(r, q), Leg(r, p)]) for r in RUNNERS if r != "batch" for p, q in PARALLELISMS),
    *(
        marked([Leg(r, p, "savepoint"), Leg(r, q, "savepoint"), Leg(r, p)])
        for r in ("local", "micro-batch", "continuous")
        for p, q in [(2, 3)]
    ),
    marked([Leg("continuous", 2), Leg("micro-batch", 3), Leg("continuous", 1), Leg("local", 3)]),
    marked(
        [Leg("local", 2, "savepoint"), Leg("continuous", 3, "savepoint"), Leg("micro-batch", 2, "savepoint"), Leg("local", 1)]
    ),
    marked([Leg("continuous", 2, "savepoint"), Leg("batch", 3)]),
    marked([Leg("micro-batch", 2, "savepoint"), Leg("batch", 1)]),
    marked([Leg("batch", 2), Leg("continuous", 3), Leg("local", 1)]),
    marked([Leg("batch", 3, "savepoint"), Leg("micro-batch", 2), Leg("local", 1)]),
]


@pytest.mark.parametrize("legs", STRAIGHT)
@pytest.mark.parametrize("case", CASES, ids=ids)
def test_a_pipeline_gives_the_same_answer_on_every_runner(case: Case, legs: list[Leg], make_runner: Any, tmp_path: Path) -> None:
    run_chain(case, legs, make_runner, tmp_path)


@pytest.mark.parametrize("legs", CHAIN)
@pytest.mark.parametrize("case", CASES, ids=ids)
def test_a_pipeline_survives_a_chain_of_restores(case: Case, legs: list[Leg], make_runner: Any, tmp_path: Path) -> None:
    run_chain(case, legs, make_runner, tmp_path)


ROCKS = "rocksdb"
BACKENDS = [
    marked([Leg("local", 2, state=ROCKS)]),
    marked(
        [Leg("local", 1, state=ROCKS), Leg("simulated", 3), Leg("local", 2, "savepoint", ROCKS), Leg("simulated", 1, state=ROCKS)]
    ),
    marked([Leg("continuous", 2, state=ROCKS), Leg("continuous", 3), Leg("continuous", 1, state=ROCKS), Leg("micro-batch", 2)]),
]
# What is special about each: plain numbers, lists, rows of any type in many tables, a table behind another state, every kind of
# state. Workers differ in nothing of that.
BACKEND_CASES = [case for case in CASES if FULL or case.name in ("windows", "sessions", "joins", "async", "states")]
BACKEND_CHAINS = [
    pytest.param(case, *chain.values, id=f"{case.name}-{chain.id}", marks=chain.marks)
    for case in BACKEND_CASES
    for chain in BACKENDS
    if FULL or case.name == "windows" or (not chain.marks and (case.name != "states" or chain is BACKENDS[0]))  # many tables
]


@pytest.mark.parametrize(("case", "legs"), BACKEND_CHAINS)
def test_a_pipeline_may_change_its_state_backend_at_each_restore(
    case: Case, legs: list[Leg], make_runner: Any, tmp_path: Path
) -> None:
    fast = "/dev/shm" if Path("/dev/shm").is_dir() else None  # opening a database waits for the disk several times
    with tempfile.TemporaryDirectory(dir=fast) as place:
        rocks = pen.RocksDB(cache="16MB", path=place)
        run_chain(case, [replace(leg, state=rocks) if leg.state else leg for leg in legs], make_runner, tmp_path / "chain")
        assert list(Path(place).iterdir()) == [], "a working copy was left behind"


if FULL:

    @pytest.mark.parametrize("legs", MATRIX)
    @pytest.mark.parametrize("case", CASES, ids=ids)
    def test_the_full_matrix_of_restores(case: Case, legs: list[Leg], make_runner: Any, tmp_path: Path) -> None:
        run_chain(case, legs, make_runner, tmp_path)
