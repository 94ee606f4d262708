"""A source that polls a server, and a sink of one's own into SQLite: cancelled in the middle, and run again.

slow_http_source.py RUNNER
"""

import os
import sqlite3
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from poll_microbatch import TOTAL, Http, serve  # its source, and its server with 200 rows for each question

import penstock as pen
from penstock.connectors.connector import Committer, Sink, SinkContext, Verdict, Writer


@dataclass(frozen=True)
class Sqlite(Sink):
    """Rows of an epoch, and a mark that they are there, in one transaction."""

    path: str
    name: str = "sqlite"
    kind: str = "transactional"

    def writer(self, context: SinkContext) -> Writer:
        return SqliteWriter(context)

    def committer(self, context: SinkContext) -> Committer:
        return SqliteCommitter(self.path, context)


class SqliteWriter(Writer):
    """Rows go into a file per epoch and task attempt; the committer loads it."""

    def __init__(self, context: SinkContext) -> None:
        self.context, self.folder = context, context.job_dir / "sqlite-staging"
        self.batches: list[pa.RecordBatch] = []

    def write(self, batch: pa.RecordBatch) -> None:
        self.batches.append(batch)

    def prepare(self, epoch: int) -> Sequence[Any]:
        if not self.batches:
            return []
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{epoch}-{self.context.uid}.arrow"
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, self.batches[0].schema) as out:
            for batch in self.batches:
                out.write_batch(batch)
        self.batches = []
        return [str(path)]


class SqliteCommitter(Committer):
    """Loads an epoch's files, once."""

    def __init__(self, path: str, context: SinkContext) -> None:
        self.path, self.context = path, context
        with closing(self.connect()) as db, db:
            db.execute("create table if not exists marks(sink, lineage, epoch, primary key(sink, lineage, epoch))")
            db.execute("create table if not exists rows(id int, k text, price real)")

    def connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path)

    def commit(self, epoch: int, committables: Sequence[Any], attempt: int) -> Verdict:
        with closing(self.connect()) as db, db:
            mark = (self.context.name, self.context.lineage, epoch)
            if not db.execute("insert or ignore into marks values (?, ?, ?)", mark).rowcount:
                return Verdict.ALREADY
            for path in committables:
                rows = pa.ipc.open_file(path).read_all()
                db.executemany("insert into rows values (?, ?, ?)", zip(*rows.to_pydict().values(), strict=True))
        for path in committables:
            os.remove(path)
        return Verdict.DONE

    def committed(self) -> tuple[str, int] | None:
        with closing(self.connect()) as db:
            newest = db.execute("select lineage, epoch from marks where sink = ? order by rowid desc", (self.context.name,))
            return newest.fetchone()


def found(path: str) -> tuple[int, int]:
    """How many rows there are, and how many different ones."""
    try:
        with closing(sqlite3.connect(path)) as db:
            rows, different = db.execute("select count(*), count(distinct id) from rows").fetchone()
            return rows, different
    except sqlite3.OperationalError:  # no table yet
        return 0, 0


def main(runner: str) -> None:
    p = pen.Pipeline("custom")
    p.read(Http(serve(0.05))).filter("id % 2 = 0").write(Sqlite("custom.db"))
    made = {"local": pen.Local, "microbatch": pen.MicroBatch, "continuous": pen.Continuous}[runner]
    options: Any = {"parallelism": 2, "storage": "storage", "snapshot_every": "200ms"}

    job = p.start(made(**options))
    while not job.done and not found("custom.db")[0]:
        time.sleep(0.01)
    job.cancel()
    print(f"cancelled in the middle: {0 < found('custom.db')[0] < TOTAL // 2}", flush=True)
    p.run(made(**options))
    print("{} rows, {} different ones, of {}".format(*found("custom.db"), TOTAL // 2), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
