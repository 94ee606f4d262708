"""The dataflow of the peer Bytewax. It runs in an environment of its own, where there is no Penstock: see `bytewaxpeer.py`.

One call of `view` per line. Tuned: lines are read by the hundred kilobytes, and functions get them in batches. Windows are folded
without being put in order first. They wait for WAIT_S seconds of event time: every open window costs time for every row, but what
one process reads so far ahead of the other makes the other's rows late, and late rows are lost.

Reads the files of FOLDER. OUT gets what happened: `progress-<partition>` how many lines were read when, `result-<worker>` the counts.
"""

# mypy: ignore-errors
from __future__ import annotations

import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import bytewax.operators as op
import bytewax.operators.windowing as windowing
import orjson
from bytewax.dataflow import Dataflow
from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition
from bytewax.outputs import DynamicSink, StatelessSinkPartition

FOLDER, OUT = Path(os.environ["BENCHMARK_FOLDER"]), Path(os.environ["BENCHMARK_OUT"])
WAIT_S = int(os.environ["BENCHMARK_WAIT_S"])
PARTITIONS = 2
BYTES_PER_BATCH = 250_000
CAMPAIGNS = dict(line.split(",") for line in Path(os.environ["BENCHMARK_ADS"]).read_text().splitlines())


class Lines(StatefulSourcePartition):
    """Every second file, one after the other. A position is (file, offset)."""

    def __init__(self, partition: int, position: tuple[int, int] | None) -> None:
        self.partition, self.rows = partition, 0
        self.files = sorted(FOLDER.glob("*.json"))[partition::PARTITIONS]
        self.file, offset = position or (0, 0)
        self.lines = self.files[self.file].open("rb", 1 << 20)
        self.lines.seek(offset)
        self.progress = (OUT / f"progress-{partition}").open("w")

    def next_batch(self) -> list[bytes]:
        self.note()
        while not (lines := self.lines.readlines(BYTES_PER_BATCH)):
            self.file += 1
            if self.file == len(self.files):
                raise StopIteration
            self.lines = self.files[self.file].open("rb", 1 << 20)
        self.rows += len(lines)
        return lines

    def note(self) -> None:
        """Every so often how far this is, beginning with nothing."""
        if self.rows >= getattr(self, "noted", 0):
            self.noted = self.rows + 50_000
            self.progress.write(f"{time.time()} {self.rows}\n")
            self.progress.flush()

    def snapshot(self) -> tuple[int, int]:
        return self.file, self.lines.tell()


class Files(FixedPartitionedSource):
    def list_parts(self) -> list[str]:
        return [str(partition) for partition in range(PARTITIONS)]

    def build_part(self, step_id: str, for_part: str, resume_state: tuple[int, int] | None) -> Lines:
        return Lines(int(for_part), resume_state)


class Results(StatelessSinkPartition):
    def __init__(self, worker: int) -> None:
        self.out = (OUT / f"result-{worker}").open("w")

    def write_batch(self, items: list[tuple[str, int, int]]) -> None:
        for campaign, window, views in items:
            self.out.write(f"{time.time()} {campaign} {window} {views}\n")
        self.out.flush()


class ResultFiles(DynamicSink):
    def build(self, step_id: str, worker_index: int, worker_count: int) -> Results:
        return Results(worker_index)


def view(line: bytes) -> tuple[str, int] | None:
    """Campaign and time of a view."""
    event = orjson.loads(line)
    return (CAMPAIGNS[event["ad_id"]], event["at"]) if event["event_type"] == "view" else None


def views(lines: list[bytes]) -> list[tuple[str, int]]:
    return [found for line in lines if (found := view(line)) is not None]


def at(microseconds: int) -> datetime:
    return datetime.fromtimestamp(microseconds / 1e6, UTC)


flow = Dataflow("ad_counts")
found = op.flat_map_batch("views", op.input("files", flow, Files()), views)
counts = windowing.fold_window(
    "counts",
    found,
    windowing.EventClock(at, wait_for_system_duration=timedelta(seconds=WAIT_S)),
    windowing.TumblingWindower(length=timedelta(seconds=10), align_to=datetime(1970, 1, 1, tzinfo=UTC)),
    lambda: 0,
    lambda count, _: count + 1,
    lambda one, other: one + other,
    ordered=False,
)
op.output("out", op.map("rows", counts.down, lambda row: (row[0], row[1][0], row[1][1])), ResultFiles())
