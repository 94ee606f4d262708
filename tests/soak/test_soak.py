"""The soak itself: that it can tell right from wrong, counts what is read again, finds what is left, and delivers what it plans."""

from __future__ import annotations

import json
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.connectors.connector import Began, SourceContext
from penstock.runners.faults import POINTS
from soak import inventory, oracle, plan, soak
from soak.driver import TALLY_S
from soak.harness import Kill, Result
from soak.life import Life
from soak.reads import Reads
from soak.report import Verdict, summary
from soak.source import SCHEMA, SPLITS, Numbers, columns, rows_in_split

TALLY_US = TALLY_S * 1_000_000


def write_answer(out: Path, rows: int, seed: int) -> None:
    """The expected answer as committed files, each sink in two epochs."""
    counts = sorted(oracle.expected_counts(rows, seed).items())
    totals = sorted(oracle.expected_totals(rows, seed, TALLY_US).items())
    raw = sorted(oracle.expected_raw(rows, seed, 5).items())
    for epoch in (1, 2):
        for sink in ("counts", "totals", "raw"):
            (out / sink / f"epoch={epoch}").mkdir(parents=True)
        lines = [
            json.dumps({"key": k, "window_start": f"{pa.scalar(at, pa.timestamp('us'))}Z", "rows": n, "total": total})
            for (k, at), (n, total) in counts[epoch - 1 :: 2]
        ]
        (out / "counts" / f"epoch={epoch}" / "part-a-0.json").write_text("\n".join(lines) + "\n")
        lines = [
            json.dumps({"key": k, "upto": f"{pa.scalar(at, pa.timestamp('us'))}Z", "rows": n, "total": total})
            for (k, at), (n, total) in totals[epoch - 1 :: 2]
        ]
        (out / "totals" / f"epoch={epoch}" / "part-a-0.json").write_text("\n".join(lines) + "\n")
        half = raw[epoch - 1 :: 2]
        table = pa.table({"n": [n for n, _ in half], "key": [k for _, (k, _) in half], "value": [v for _, (_, v) in half]})
        pq.write_table(table, out / "raw" / f"epoch={epoch}" / "part-a-0.parquet")


def test_the_oracle_counts_like_a_loop() -> None:
    rows: Counter[tuple[int, int]] = Counter()
    made = columns(pa.array(range(3000)).to_numpy(), 7)
    for key, at in zip(made["key"].tolist(), made["at"].tolist()):
        rows[key, at // 1_000_000 * 1_000_000] += 1
    assert {key: n for key, (n, _) in oracle.expected_counts(3000, 7).items()} == rows
    assert sum(total for _, total in oracle.expected_counts(3000, 7).values()) == made["value"].sum()


def test_the_oracle_adds_up_like_a_loop() -> None:
    made = columns(pa.array(range(20000)).to_numpy(), 7)
    rows = sorted(zip(made["at"].tolist(), made["key"].tolist(), made["value"].tolist()))
    for (key, upto), (n, total) in list(oracle.expected_totals(20000, 7, TALLY_US).items())[::7]:
        passed = [value for at, k, value in rows if k == key and at <= upto]
        assert (n, total) == (len(passed), sum(passed))


def test_the_oracle_accepts_the_answer_and_nothing_else(tmp_path: Path) -> None:
    write_answer(tmp_path, 4000, 7)
    assert oracle.check(tmp_path, 4000, 7, 5, TALLY_US) == []
    assert any("missing" in what for what in oracle.check(tmp_path, 4001, 7, 5, TALLY_US))
    assert any("wrong" in what for what in oracle.check(tmp_path, 4000, 8, 5, TALLY_US))
    folder = tmp_path / "raw" / "epoch=2"
    (folder / "part-b-0.parquet").write_bytes((folder / "part-a-0.parquet").read_bytes())
    assert oracle.check(tmp_path, 4000, 7, 5, TALLY_US) == ["raw: 400 twice, such as 5"]


def test_splits_hold_every_row_once_and_note_what_they_give(tmp_path: Path) -> None:
    (tmp_path / "reads").mkdir()
    (tmp_path / "end").write_text("1000")
    source = Numbers("numbers", str(tmp_path), 1e6, 3)
    context = SourceContext("numbers", tmp_path, tuple(SCHEMA.names), Began(0, 0, 10_000_000))
    found: list[int] = []
    for split in source.splits():
        reader = source.open(split, None, context)
        while not (chunk := reader.poll(64)).ended:  # type: ignore[union-attr]
            found += chunk.batch.column("n").to_pylist()  # type: ignore[union-attr]
        found += chunk.batch.column("n").to_pylist() if chunk and chunk.batch else []
        reader.close()
    assert sorted(found) == list(range(1000))
    reads = Reads(tmp_path / "reads")
    assert reads.readers(0.0) == {os.getpid()}
    assert sum(note.rows for note in reads.notes) == 1000
    assert reads.highest() == {split: rows_in_split(1000, split) for split in range(SPLITS)}
    assert reads.rows() >= 1000


def test_rows_replayed_are_those_read_before_the_kill(tmp_path: Path) -> None:
    second = 1_000_000_000
    (tmp_path / "11").write_text(f"{1 * second} 0 0 100\n{2 * second} 0 100 50\n{2 * second} 1 0 10\n")
    (tmp_path / "12").write_text(f"{4 * second} 0 80 40\n{5 * second} 0 120 40\n{6 * second} 1 10 5\n")
    (tmp_path / "13").write_text(f"{4 * second} 0 0 1\n")  # a driver's look
    reads = Reads(tmp_path, drivers={13})
    assert reads.replayed(3.0, 4.5) == 40
    assert reads.replayed(3.0, 9.0) == 70  # of 80 to 160 those below 150
    assert reads.replayed(3.0, 9.0, since=2.5) == 0  # whoever was hit had read nothing
    assert reads.replayed(6.5, 9.0) == 0


def test_processes_and_ports_are_found_by_their_token() -> None:
    code = (
        "import socket, time; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True); time.sleep(60)"
    )
    environment = {**os.environ, inventory.TOKEN: "test-token"}
    with subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        port = int(child.stdout.readline())
        assert [each.pid for each in inventory.processes("test-token")] == [child.pid]
        assert inventory.listening({child.pid}) == {("0100007F", port)}
        child.kill()
        child.wait()
    assert inventory.processes("test-token") == []
    assert port not in {open_port for _, open_port, _ in inventory.listeners()}


def test_a_port_of_somebody_else_is_not_ours() -> None:
    with socket.create_server(("127.0.0.1", 0)):
        assert inventory.listening({os.getppid()}) & inventory.listening({os.getpid()}) == set()


def test_what_is_left_in_folders_is_named(tmp_path: Path) -> None:
    job, sink, tmp = tmp_path / "job", tmp_path / "sink", tmp_path / "tmp"
    for folder in (job / "state", job / "log", sink / "_staging" / "abc", tmp / "home", tmp / "spark-1"):
        folder.mkdir(parents=True)
    (job / "log" / "1.json").write_text('{"path":"state/00000001-0001-0000000001-a.arrow"}')
    (job / "state" / "00000001-0001-0000000001-a.arrow").touch()
    assert inventory.unreferenced(job, [sink]) == []
    assert inventory.temporary(tmp, killed=True) == []
    assert inventory.temporary(tmp, killed=False) == ["spark-1"]
    (tmp / "penstock-x").touch()
    left = [job / "state" / "00000001-0001-0000000002-b.arrow", sink / "_staging" / "abc" / "open-1", job / "log" / "2.json.tmp"]
    for path in left:
        path.touch()
    assert {*map(str, left)} <= set(inventory.unreferenced(job, [sink]))
    assert inventory.temporary(tmp, killed=True) == ["penstock-x"]


def test_the_plan_reaches_every_point_twice_and_every_kind_often_enough() -> None:
    steps = [step for job in plan.full() for step in job.steps]
    at = Counter(step.point for step in steps)
    assert all(at[point] >= 2 for point in POINTS), at
    kills = Counter(step.kind for step in steps) + Counter("worker" for step in steps if step.point == plan.RESTORE)
    assert kills["worker"] >= 24
    assert kills["executor"] >= 8
    assert kills["driver"] >= 10
    assert kills["zombie"] + kills["zombie driver"] >= 8
    assert sum(job.kills for job in plan.full()) == kills.total() >= 50
    assert {(job.runner, job.master) for job in plan.full()} == {
        (runner, master) for runner in ("continuous", "microbatch") for master in (plan.LOCAL, plan.CLUSTER)
    }
    assert any(job.conf.get("spark.speculation") == "true" for job in plan.full())


@pytest.mark.parametrize("kills", [1, 3, 50, 120])
def test_a_plan_of_any_size_has_just_so_many_kills(kills: int) -> None:
    jobs = list(plan.rounds(plan.full(), kills, random.Random(1)))
    assert sum(job.kills for job in jobs) == kills
    assert jobs == list(plan.rounds(plan.full(), kills, random.Random(1)))


def test_a_run_is_judged_by_its_kills_and_its_leftovers() -> None:
    (job,) = plan.choose(plan.full(), runner="continuous", master="local", kinds={"zombie"})
    kill = Kill(0.0, job.name, job.runner, job.master, "zombie", 1, "random", 3, "1/1", "1/2", 2.0, 100)
    good = Result(job, [kill] * 3)
    assert soak.judge([good]) == Verdict()
    assert "exactly once: yes, nothing left behind: yes" in summary([good], Verdict(), 1.0)
    assert soak.judge([replace(good, kills=[kill] * 2)]).wrong == ("2 kills were delivered, 3 were planned",)
    assert soak.judge([replace(good, wrong=["a row twice"])]).wrong == ("continuous: a row twice",)
    assert "cost any row" in soak.judge([replace(good, kills=[kill, kill, replace(kill, replayed=0)])]).wrong[0]
    assert not soak.judge([]).good


def test_what_is_left_behind_says_nothing_about_rows() -> None:
    (job,) = plan.choose(plan.full(), runner="continuous", master="local", kinds={"zombie"})
    kill = Kill(0.0, job.name, job.runner, job.master, "zombie", 1, "random", 3, "1/1", "1/2", 2.0, 100)
    result = Result(job, [kill] * 3, left=["after the end: temporary penstock-x"])
    verdict = soak.judge([result])
    assert verdict == Verdict(left=("continuous: after the end: temporary penstock-x",))
    assert not verdict.good
    told = summary([result], verdict, 1.0)
    assert "LEFT: continuous: after the end: temporary penstock-x" in told
    assert "exactly once: yes, nothing left behind: no" in told


def test_what_is_named_after_a_process_carries_its_number_and_no_drawn_name_does(tmp_path: Path) -> None:
    for name in ("penstock-558", "other-5581", ".7aa55311-ad27-49ee-8bcb-edc8ae558a9c.sock"):
        (tmp_path / name).touch()
    assert inventory.named_after({558}, (str(tmp_path),)) == [str(tmp_path / "penstock-558")]


def test_a_socket_that_spark_left_after_a_zombie_driver_is_named_as_sparks(request: pytest.FixtureRequest) -> None:
    (job,) = plan.choose(plan.full(), runner="continuous", master="local", kinds={"zombie"})
    folder = Path(tempfile.mkdtemp())  # the path of a socket has at most a hundred bytes: `tmp_path` is too long
    request.addfinalizer(lambda: shutil.rmtree(folder))
    path = folder / ".0b9f6d2e-7f0e-4a86-9d4b-0f1f6c3b2a11.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        assert not inventory.is_sparks_socket(path), "somebody listens: a process is left, and that is ours to find"
    assert inventory.temporary(folder, killed=False) == [path.name]
    assert inventory.is_sparks_socket(path)
    result = Result(job, [], sparks=[f"after zombie driver 7: temporary {path.name}"])
    assert soak.judge([result]).left == ()
    assert f"left by Spark, and of no account: continuous: after zombie driver 7: temporary {path.name}" in summary(
        [result], Verdict(), 1.0
    )


def test_nothing_of_ours_has_the_name_of_a_socket_of_sparks(tmp_path: Path) -> None:
    plain = tmp_path / ".0b9f6d2e-7f0e-4a86-9d4b-0f1f6c3b2a11.sock"
    plain.touch()
    assert not inventory.is_sparks_socket(plain), "a file is no socket"
    for name in ("control-0b9f6d2e.sock", "penstock-control-x", ".0b9f.sock", "0b9f6d2e-7f0e-4a86-9d4b-0f1f6c3b2a11.sock"):
        assert not inventory.SPARKS_SOCKET.fullmatch(name)


def test_a_driver_is_buried_when_its_files_are_gone_and_not_before(tmp_path: Path) -> None:
    life = Life.__new__(Life)
    life.tmp, life.token, life.pid, life.ports = tmp_path / "tmp", "nobody-has-this-token", os.getpid(), set()
    life._jvm = None
    life.tmp.mkdir()
    slow = life.tmp / "spark-1"
    slow.touch()
    threading.Timer(0.3, slow.unlink).start()
    assert life._temporary(killed=False) == []


@pytest.mark.spark
def test_three_workers_are_killed_and_nothing_is_lost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = [
        "--kills",
        "3",
        "--runner",
        "continuous",
        "--master",
        "local",
        "--kinds",
        "worker",
        "--folder",
        str(tmp_path / "soak"),
    ]
    code = soak.main(given)
    told = capsys.readouterr().out
    assert code == 0, told
    lines = [json.loads(line) for line in (tmp_path / "soak" / "kills.jsonl").read_text().splitlines()]
    assert len(lines) == 3
    assert all(line["recovered_s"] > 0 and line["before"] != line["after"] for line in lines)
    assert "exactly once: yes" in told
