"""The demo says "exactly once: yes" only if it was put to the test and holds, and it can tell when it does not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import penstock as pen
from penstock import demo
from penstock.connectors.adevents import ad_events, campaign_of
from penstock.demo import Kill, verdict

TESTS = Path(__file__).parent
KILLED = Kill(4711, True, "")
RIGHT = {("a", 0): 3, ("a", 10): 4, ("b", 0): 5}


def shell(*args: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(TESTS.parent / "src"), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "PYTHONPATH": path, "COLUMNS": "120"}
    return subprocess.run([sys.executable, *args], capture_output=True, text=True, timeout=timeout, env=env, check=False)


def test_all_of_it_together_is_exactly_once() -> None:
    assert verdict(RIGHT, RIGHT, KILLED, 2, 1) == demo.Verdict(True)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"kill": Kill(4711, why="process 4711 is still there")}, "process 4711 is still there"),
        ({"kill": Kill()}, "no worker was killed"),
        ({"attempt": 1}, "no second attempt"),
        ({"replayed": 0}, "no row was read a second time"),
        ({"replayed": -5}, "no row was read a second time"),
        ({"failure": "sink refuses"}, "the job failed: sink refuses"),
        ({"committed": {**RIGHT, ("b", 0): 6}}, "1 of 3 counts are wrong: 0 missing, 1 too high, 0 too low"),
        ({"committed": {**RIGHT, ("b", 0): 4}}, "1 of 3 counts are wrong: 0 missing, 0 too high, 1 too low"),
        ({"committed": {("a", 0): 3, ("a", 10): 4}}, "1 of 3 counts are wrong: 1 missing"),
        ({"committed": {**RIGHT, ("c", 0): 1}}, "1 of 4 counts are wrong: 0 missing, 1 too high"),
        ({"committed": {**RIGHT, ("a", 0): 4, ("a", 10): 3}}, "2 of 3 counts are wrong"),
        ({"committed": {}, "expected": {}}, "nothing was expected"),
    ],
)
def test_anything_less_is_not(change: dict[str, object], reason: str) -> None:
    facts = {"committed": RIGHT, "expected": RIGHT, "kill": KILLED, "attempt": 2, "replayed": 100, **change}
    found = verdict(**facts)  # type: ignore[arg-type]
    assert not found.exactly_once
    assert len(found.reasons) == 1
    assert reason in found.reasons[0]


def test_the_independent_count_counts_each_view_once() -> None:
    made = ad_events(np.arange(5_000), 0, rows_per_ms=demo.rows_per_ms(1000), disorder_ms=demo.DISORDER_MS)
    columns = [made[name].to_pylist() for name in ("ad_id", "event_type", "at")]
    plain = Counter(
        (campaign_of(ad), int(at.timestamp() // 10) * 10) for ad, kind, at in zip(*columns, strict=True) if kind == "view"
    )
    assert demo.expected_views(5_000, 1000) == plain
    assert demo.expected_views(5_000, 1000, chunk=777) == plain


def test_the_pipeline_counts_the_same_on_the_local_runner(tmp_path: Path) -> None:
    demo.ad_counts(20_000, 100_000, tmp_path / "out").run(pen.Local(parallelism=2))
    assert demo.committed_in(tmp_path / "out") == demo.expected_views(20_000, 100_000)


def test_a_window_that_is_there_twice_is_seen(tmp_path: Path) -> None:
    demo.ad_counts(5_000, 100_000, tmp_path / "out").run(pen.Local())
    folder = next((tmp_path / "out").glob("epoch=*"))
    (tmp_path / "out" / "epoch=99").mkdir()
    for part in folder.glob("part-*"):
        (tmp_path / "out" / "epoch=99" / part.name).write_bytes(part.read_bytes())
    found = verdict(demo.committed_in(tmp_path / "out"), demo.expected_views(5_000, 100_000), KILLED, 2, 100)
    assert "too high" in found.reasons[0]


def test_only_own_processes_are_killed() -> None:
    assert demo.descends_from(os.getpid(), os.getpid())
    assert not demo.descends_from(1, os.getpid())
    assert not demo.descends_from(os.getppid(), os.getpid())
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert demo.descends_from(child.pid, os.getpid())
        born = demo.birth(child.pid)
        assert born is not None
        child.kill()
        child.wait()
    assert demo.birth(child.pid) != born


@pytest.mark.spark
@pytest.mark.slow
def test_a_small_demo_kills_a_worker_and_is_exactly_once() -> None:
    done = shell("-m", "penstock.cli", "demo", "--seconds", "8", "--rate", "10000")
    assert "exactly once: yes" in done.stdout, done.stdout + done.stderr
    assert "was killed (SIGKILL)" in done.stdout
    assert "attempts 2" in done.stdout
    assert done.returncode == 0


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize(("order", "answer"), [("publish-first", "yes"), ("commit-first", "no")])
def test_a_driver_that_dies_between_commit_and_publish_is_harmless_only_in_the_right_order(
    order: str, answer: str, tmp_path: Path
) -> None:
    folder = tmp_path / "demo"
    first = shell(str(TESTS / "demo_in_two_runs.py"), order, str(folder))
    assert first.returncode == -signal.SIGKILL, first.stdout + first.stderr
    second = shell(str(TESTS / "demo_in_two_runs.py"), order, str(folder))
    assert f"exactly once: {answer}" in second.stdout, second.stdout + second.stderr
    assert second.returncode == (0 if answer == "yes" else 1)
    # Either windows are there twice, or the sink notices that it shows other rows for the epoch, and the rest is missing.
    assert ("counts are wrong" in second.stdout) == (answer == "no")
