"""A bit flips in any file that a killed job left behind: the next start shows the right rows, or refuses and names the file.

The job is killed while its fourth epoch is published and not yet committed. Then it has everything a start reads or publishes: the
journal of what it received, its log, state, rows that wait in the job's folder, parts of files, epochs that were gathered, and marks.
`PENSTOCK_FLIPS` bits of each kind of file are flipped, one at a time.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pv
import pyarrow.parquet as pq
import pytest

import penstock as pen
from penstock import sinks, sources
from penstock.connectors.connector import SourceContext
from penstock.connectors.journal import JournalWriter
from penstock.errors import PenstockError

FLIPS = int(os.environ.get("PENSTOCK_FLIPS", "4"))
ROWS = 400
SLOW_S = "PENSTOCK_TEST_SLOW_S"
KINDS = {
    "journal": "store/job/journal/*/*.journal",
    "log": "store/job/log/*",
    "term": "store/job/terms/*",
    "head": "store/job/heads/*",
    "state": "store/job/state/*",
    "staged rows": "store/job/staging/*/*.arrow",
    "mark of what was delivered": "store/job/staging/*/delivered.json",
    "prepared part": "*/_staging/*/*-*/part-*",
    "gathered part": "rolled/_rolled/*/epoch=*/part-*",
    "mark of what was gathered": "rolled/_rolled/*/epoch=*/_epoch.json",
    "mark of what is visible": "*/epoch=*/_epoch.json",
    "lock": "store/job/lock",
    "control": "store/job/control.json",
}


def pipeline(folder: Path) -> pen.Pipeline:
    pause = float(os.environ.get(SLOW_S, "0"))

    def is_wanted(row: Any) -> bool:
        time.sleep(pause)
        return True

    def deliver(rows: pa.RecordBatchReader, epoch: Any) -> None:
        """As a receiver that remembers tokens."""
        path = folder / "delivered" / epoch.token
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(rows.read_all().to_pylist()))

    p = pen.Pipeline("job")
    rows = p.read(lines()).select("cast(value as bigint) as n", "cast(value as bigint) % 7 as k").filter(is_wanted)
    rows.write(sinks.files(folder / "plain"), name="plain")
    rows.write(sinks.files(folder / "rolled", format="csv", roll=6), name="rolled")
    rows.key_by("k").aggregate(n=pen.count(), total="sum(n)", name="totals").write(sinks.foreach_batch(deliver), name="delivered")
    return p


def lines() -> Any:
    return sources.socket("127.0.0.1", 9, connect_s=0.1, name="lines")


def run(folder: Path) -> None:
    pipeline(folder).run(pen.Local(storage=folder / "store", snapshot_every="20ms", restarts=0))


def receive(folder: Path) -> None:
    """All lines, and that there are no more."""
    writer = JournalWriter(lines().folder(SourceContext("lines", folder / "store" / "job", ("value",))))
    for first in range(0, ROWS, 10):
        writer.append(10, b"".join(b"%d\n" % n for n in range(first, first + 10)))
    writer.end()
    writer.close()


def seen(folder: Path) -> tuple[Any, ...]:
    """What readers of the sinks see: both sets of files, and the last count of each key."""
    plain = [n for path in folder.glob("plain/epoch=*/part-*") for n in pq.ParquetFile(path).read().column("n").to_pylist()]
    rolled = [n for path in folder.glob("rolled/epoch=*/part-*") for n in pv.read_csv(path).column("n").to_pylist()]
    totals: dict[int, Any] = {}
    for path in (folder / "delivered").iterdir():
        for row in json.loads(path.read_text()):
            totals[row["k"]] = max(totals.get(row["k"], (0, 0)), (row["n"], row["total"]))
    return Counter(plain), Counter(rolled), totals


ALL = Counter(range(ROWS))
RIGHT = (ALL, ALL, {k: (len(range(k, ROWS, 7)), sum(range(k, ROWS, 7))) for k in range(7)})


def start_child(folder: Path, fault: Path, what: str) -> None:
    """In a process that kills itself."""
    done = subprocess.run(
        [sys.executable, __file__, what, str(folder)],
        env={**os.environ, "PENSTOCK_FAULT_FILE": str(fault), SLOW_S: "0.002", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == -9, done.stderr


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the job left."""
    folder = tmp_path_factory.mktemp("killed")
    receive(folder)
    fault = folder / "fault"
    fault.write_text(json.dumps({"point": "commit.before", "epoch": 4, "signal": "KILL"}))
    start_child(folder, fault, "run")
    return folder


def after(killed: Path, folder: Path, damage: Callable[[Path], None]) -> None:
    shutil.copytree(killed, folder, ignore=shutil.ignore_patterns("*.sock"))
    damage(folder)
    run(folder)


def refused(killed: Path, folder: Path, damage: Callable[[Path], None]) -> str | None:
    """The words of the refusal, if it is one."""
    try:
        after(killed, folder, damage)
    except PenstockError as error:
        return str(error)
    return None


def test_without_damage_the_next_start_shows_all_rows_once(killed: Path, tmp_path: Path) -> None:
    after(killed, tmp_path / "again", lambda folder: None)
    assert seen(tmp_path / "again") == RIGHT


@pytest.mark.parametrize("kind", KINDS)
def test_a_flipped_bit_is_refused_by_the_files_name_or_changes_nothing(kind: str, killed: Path, tmp_path: Path) -> None:
    files = [path.relative_to(killed) for path in sorted(killed.glob(KINDS[kind])) if path.stat().st_size]
    if kind != "head":
        assert files, f"the job left no {kind}"
    chosen = random.Random(kind)
    for number in range(FLIPS if files else 0):
        file = chosen.choice(files)
        bit = chosen.randrange((killed / file).stat().st_size * 8)
        if number == 0 and kind == "journal":
            bit = ((killed / file).stat().st_size - 3) * 8  # of the last frame

        def flip(folder: Path, file: Path = file, bit: int = bit) -> None:
            data = bytearray((folder / file).read_bytes())
            data[bit // 8] ^= 1 << bit % 8
            (folder / file).write_bytes(data)

        refusal = refused(killed, tmp_path / str(number), flip)
        if refusal is None:
            assert seen(tmp_path / str(number)) == RIGHT, f"bit {bit} of {file}"
        else:
            assert file.name in refusal, f"bit {bit} of {file}"


def test_a_finished_job_whose_last_output_is_damaged_says_so_and_not_that_it_is_finished(tmp_path: Path) -> None:
    fault = tmp_path / "fault"
    fault.write_text(json.dumps({"point": "commit.before", "epoch": 1, "signal": "KILL"}))
    start_child(tmp_path, fault, "finish")
    (part,) = tmp_path.glob("plain/_staging/*/*/part-*")
    data = bytearray(part.read_bytes())
    data[len(data) // 2] ^= 1
    part.write_bytes(data)
    for _ in range(2):
        with pytest.raises(PenstockError, match=part.name):
            finish(tmp_path)
    assert not list(tmp_path.glob("plain/epoch=*"))


def finish(folder: Path) -> None:
    """A job of one epoch, its last."""
    p = pen.Pipeline("short")
    p.read(sources.generate(lambda index, seed: {"n": index}, schema="n bigint", rows=100)).write(sinks.files(folder / "plain"))
    p.run(pen.Local(storage=folder / "store", snapshot_every="10s", restarts=0))


def test_a_savepoint_with_a_flipped_bit_is_refused_by_the_files_name(tmp_path: Path) -> None:
    def job(store: str) -> pen.Pipeline:
        p = pen.Pipeline(store)
        rows = p.read(sources.generate(lambda index, seed: {"n": index, "k": index % 7}, schema="n bigint, k bigint", rate=5_000))
        rows.key_by("k").aggregate(n=pen.count(), name="totals").write(sinks.memory(store))
        return p

    first = job("saves").start(pen.Local(storage=tmp_path / "store"))
    while first.status().epoch < 1:
        time.sleep(0.02)
    saved = first.savepoint(tmp_path / "saved")
    first.cancel()
    chosen = random.Random("savepoint")
    for file in [path for path in sorted(saved.rglob("*")) if path.is_file()]:
        whole = file.read_bytes()
        for _ in range(FLIPS):
            damaged = bytearray(whole)
            bit = chosen.randrange(len(whole) * 8)
            damaged[bit // 8] ^= 1 << bit % 8
            file.write_bytes(damaged)
            for restore in (
                lambda: job("saves").run(pen.Local(restarts=0), restore=saved),
                lambda: pen.from_savepoint(saved, step="totals"),
            ):
                with pytest.raises(PenstockError, match=file.name.replace(".", r"\.")):
                    restore()
        file.write_bytes(whole)
    assert pen.from_savepoint(saved, step="totals").columns is not None


if __name__ == "__main__":
    {"run": run, "finish": finish}[sys.argv[1]](Path(sys.argv[2]))
