"""The process that runs one job of the soak, and dies for it: `python -m soak.driver --folder F --runner continuous`.

It runs one pipeline over `source.Numbers` with all that must survive a kill: state and timers (counts by key and window, to JSON
files), a process function with rows that wait for their turn (running totals, to JSON files), and a sink without state (every fifth
row, to Parquet files). A user's function in it takes some time over each row, so that kills find somebody at work.

Each change of the job's state is a line of JSON on stdout::

    {"at": 1794742800.1, "state": "running", "epoch": 7, "term": 1, "attempt": 2, "published": 5, "replayed": 412, …}

Started again with the same folder it goes on from the last checkpoint. Exit code 0: the input has ended and all is committed.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

import penstock as pen
from penstock import sinks
from penstock.errors import PenstockError
from penstock.runners import microbatch
from penstock.runners.job import Job
from penstock.runners.spark.session import CONF, sockets
from soak.source import SCHEMA, Numbers

NAME = "soak"
RATE = 2000.0
ROW_S = 0.0003  # for the user's function to think about a row
RAW_EVERY = 5
TALLY_S = 5
LOOK_S = 0.02


def ponder(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A user's function that takes its time."""
    time.sleep(batch.num_rows * ROW_S)
    return batch


@dataclass(slots=True)
class Number:
    """What `Tally` reads of a row."""

    key: int
    value: int


@dataclass(slots=True)
class Total:
    """The rows and the sum of a key up to a time."""

    key: int
    upto: datetime
    rows: int
    total: int


class Tally(pen.ProcessFunction):
    """The running total of each key, sent at every full five seconds of event time after which it had changed."""

    rows = pen.ValueState(int, default=0)
    total = pen.ValueState(int, default=0)

    def on_row(self, row: Number, ctx: pen.Context) -> None:
        """Count."""
        self.rows.set(self.rows.get() + 1)
        self.total.set(self.total.get() + row.value)
        second = int(ctx.event_time.timestamp()) // TALLY_S * TALLY_S + TALLY_S
        ctx.set_timer("tally", at=datetime.fromtimestamp(second, UTC))

    def on_timer(self, timer: pen.Timer, ctx: pen.Context) -> Iterator[Total]:
        """Tell."""
        yield Total(ctx.key, timer.at, self.rows.get(), self.total.get())


def pipeline(folder: Path, rate: float, seed: int) -> pen.Pipeline:
    """Counts by key and second, running totals, and every fifth row."""
    p = pen.Pipeline(NAME)
    rows = p.read(Numbers("numbers", str(folder), rate, seed)).map_batches(ponder, schema=SCHEMA).with_watermark("at", delay="1s")
    (
        rows.key_by("key")
        .window(pen.tumbling("1s"))
        .aggregate(rows=pen.count(), total="sum(value)", name="counts")
        .write(sinks.files(folder / "out" / "counts", format="json"), name="counts")
    )
    totals = rows.key_by("key").process(Tally(), name="tally", order="event-time")
    totals.write(sinks.files(folder / "out" / "totals", format="json"), name="totals")
    rows.filter(f"n % {RAW_EVERY} = 0").select("n", "key", "value").write(sinks.files(folder / "out" / "raw"), name="raw")
    return p


def session(master: str, conf: dict[str, str]) -> Any:
    """A Spark that leaves everything it makes in this process's own temporary folder."""
    from pyspark.sql import SparkSession

    tmp = os.environ["TMPDIR"]
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    java = f"-XX:-UsePerfData -Djava.io.tmpdir={tmp}"
    own = {
        "spark.local.dir": tmp,
        "spark.sql.warehouse.dir": f"{tmp}/warehouse",
        "spark.driver.extraJavaOptions": java,
        "spark.executor.extraJavaOptions": java,
        "spark.executor.memory": "512m",
        # So that a worker of a failed attempt is left to itself, and a stopped one lives to be woken.
        "spark.python.task.killTimeout": "10s",
    }
    if master.startswith("local-cluster"):
        own["spark.authenticate.secret"] = secrets.token_hex(16)  # made by Spark itself only within one process
    else:
        own |= sockets()  # clusters have TCP, most of them
    builder = SparkSession.builder.appName("soak").master(master)
    for key, value in {**CONF, **own, **conf}.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def watch(job: Job) -> None:
    """Tell what changes until the job has ended."""
    told: tuple[Any, ...] = ()
    while True:
        done = job.done
        status, conductor = job.status(), job.conductor
        server = getattr(getattr(conductor, "_attempts", None), "server", None)
        workers = sorted(server.processes()) if server is not None else []
        news = (status.state, status.epoch, status.term, status.attempt, workers)
        if news != told or done:
            told = news
            line = dict(zip(("state", "epoch", "term", "attempt", "workers"), news))
            line |= {
                "at": time.time(),
                "published": conductor.epochs_published,
                "replayed": conductor.replayed,
                "error": status.error,
            }
            print(json.dumps(line), flush=True)
        if done:
            return
        time.sleep(LOOK_S)


def main() -> int:
    """Run the job to its end."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--folder", type=Path, required=True)
    options.add_argument("--runner", choices=["continuous", "microbatch"], required=True)
    options.add_argument("--master", default="local[8]")
    options.add_argument("--conf", action="append", default=[], help="key=value, for Spark")
    options.add_argument("--rate", type=float, default=RATE)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--epoch-timeout", type=float, help="seconds until a micro-batch that hangs is given up")
    given = options.parse_args()
    if given.epoch_timeout:
        microbatch.EPOCH_TIMEOUT = int(given.epoch_timeout * 1e6)
    spark = session(given.master, dict(each.split("=", 1) for each in given.conf))
    kind: Any = pen.Continuous if given.runner == "continuous" else pen.MicroBatch
    runner = kind(spark, parallelism=2, storage=given.folder / "store", snapshot_every="300ms", backoff="100ms")
    job = pipeline(given.folder, given.rate, given.seed).start(runner)
    watch(job)
    try:
        job.wait()
    except PenstockError as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        spark.stop()
    return 0 if job.status().state == "finished" else 1


if __name__ == "__main__":
    sys.exit(main())
