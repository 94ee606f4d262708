"""Seeded simulation: exactly once under faults, repeatable, and able to fail. `make sim` runs thousands of seeds."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading

import numpy as np
import pytest

from penstock.errors import CorruptError, StorageError
from penstock.runners import faults, local
from penstock.runtime import dealing
from penstock.state import keygroups
from penstock.testing import simulator
from penstock.testing.simulator import FAULTS, Simulation, run_seeds, summarise

PAST_FAILURES = (9, 52)
"""Seeds that found something once: a crash while tidying up, and one between the last publish and its commit."""


def test_every_schedule_is_exactly_once_under_faults(capsys: pytest.CaptureFixture[str]) -> None:
    reports = list(run_seeds(range(60)))
    with capsys.disabled():
        summarise(reports, 0)
    assert all(sum(report.struck[kind] for report in reports) > 0 for kind in FAULTS)
    assert sum(report.epochs >= 3 and report.recoveries >= 1 for report in reports) >= 0.9 * len(reports)
    assert sum(report.unaligned for report in reports) >= 50, "snapshots were taken with rows in flight"
    assert sum(report.replayed for report in reports) >= 5, "and went on from"


@pytest.mark.parametrize("seed", PAST_FAILURES)
def test_seeds_that_once_failed_stay_right(seed: int) -> None:
    Simulation(seed).run()


def test_a_seed_does_the_same_under_another_hash_seed() -> None:
    def traces(hash_seed: str) -> str:
        code = "from penstock.testing.simulator import Simulation; print([Simulation(s).run().trace for s in range(6)])"
        env = {**os.environ, "PYTHONHASHSEED": hash_seed}
        return subprocess.run(
            [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True, timeout=120
        ).stdout

    assert traces("1") == traces("2")


def test_another_job_of_the_process_does_not_change_a_schedule() -> None:
    alone, done = Simulation(3).run().trace, threading.Event()

    def job() -> None:
        while not done.wait(0.001):
            faults.reach("source.read", 1)

    other = threading.Thread(target=job)
    other.start()
    try:
        assert Simulation(3).run().trace == alone
    finally:
        done.set()
        other.join()


@pytest.fixture
def salted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys hashed differently in every incarnation, as Python's own hash() would."""
    salt = itertools.count(1)
    real, current = keygroups.hash_keys, [0]

    def hash_keys(keys: object, seeds: object = None) -> np.ndarray:
        return real(keys, seeds) * np.uint64(2 * current[0] + 1)  # type: ignore[arg-type]

    begin = simulator.SimulatedJob.begin

    def begin_salted(self: simulator.SimulatedJob, stamp: object, start: object) -> None:
        current[0] = next(salt)
        begin(self, stamp, start)  # type: ignore[arg-type]

    for module in (
        keygroups,
        dealing,
        sys.modules["penstock.operators.aggregate"],
        sys.modules["penstock.state.table"].keygroups,
    ):
        monkeypatch.setattr(module, "hash_keys", hash_keys)
    monkeypatch.setattr(simulator.SimulatedJob, "begin", begin_salted)


@pytest.mark.usefixtures("salted")
def test_a_hash_that_changes_between_processes_is_caught() -> None:
    with pytest.raises(AssertionError):
        for seed in range(20):
            Simulation(seed).run()


@pytest.mark.parametrize("times", [0, 2])
def test_rows_in_flight_that_are_lost_or_doubled_are_caught(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    real = local.read_rows
    monkeypatch.setattr(local, "read_rows", lambda task: [entry for entry in real(task) for _ in range(times)])
    with pytest.raises(AssertionError, match="differ"):
        for seed in range(200):
            if simulator.patience_of(seed)[0] != "never":
                Simulation(seed).run()


def test_state_files_under_reused_names_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def same_name(term: int, attempt: int, epoch: int, uid: str) -> str:
        return f"state/{0:08d}-{0:04d}-{epoch:010d}-same.arrow"

    monkeypatch.setattr(local, "state_path", same_name)
    with pytest.raises((AssertionError, CorruptError, StorageError)):
        for seed in range(20):
            Simulation(seed).run()
