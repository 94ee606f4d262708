"""What windows cost: sliding beside tumbling ones, and many open sessions beside few. One process, no Spark; processor time.

    python -m benchmarks.run --case windows

1. A sliding window of 60 steps beside a tumbling one of the same size, on the same rows: per row it should cost the same, since
   rows are folded into slices once. What is left is what a window costs when it closes, so it depends on how many rows there are
   between two closes: a million (a live stream near what one core can take) or a hundred thousand.
2. Sessions that stay open, a row for each key in turn: with a hundred times as many open sessions a row should cost the same.

Every run is checked: all rows must be in the results.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

import penstock as pen
from penstock import col, sinks
from penstock.connectors.connector import Chunk, Json, Reader, Source, SourceContext

SCHEMA = pa.schema(
    [
        pa.field("key", pa.int64(), nullable=False),
        pa.field("at", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("v", pa.int64(), nullable=False),
    ]
)


@dataclass(frozen=True)
class InTurn(Source):
    """Row i has key `i % keys` and is `gap_us` after the one before."""

    rows: int
    keys: int
    gap_us: float
    batch: int
    name: str = "in-turn"
    bounded: bool = True
    replayable: bool = True
    schema: pa.Schema = SCHEMA

    def splits(self) -> tuple[str, ...]:
        return ("0",)

    def open(self, split: str, position: Json, context: SourceContext) -> Reader:
        return InTurnReader(self, position or 0, context.columns)

    def describe(self) -> str:
        return f"{self.keys} keys in turn"


class InTurnReader(Reader):
    def __init__(self, source: InTurn, position: int, columns: tuple[str, ...]) -> None:
        self.source, self.position, self.columns = source, position, list(columns)

    def poll(self, rows_max: int) -> Chunk | None:
        source = self.source
        count = min(source.batch, rows_max, source.rows - self.position)
        number = np.arange(self.position, self.position + count, dtype=np.int64)
        self.position += count
        at = pa.array((number * source.gap_us).astype(np.int64)).cast(SCHEMA.field("at").type)
        arrays = {"key": pa.array(number % source.keys), "at": at, "v": pa.array(number % 7)}
        batch = pa.RecordBatch.from_arrays([arrays[name] for name in self.columns], names=self.columns)
        return Chunk(batch, self.position, ended=self.position >= source.rows)


def seconds(source: InTurn, shape: Any, *, summed: bool = False) -> float:
    """The processor time that the rows take, from start to end. `summed`: a million results are added up first, not collected."""
    out = sinks.memory("windows-benchmark")
    out.clear()
    stream = pen.Pipeline("windows").read(source).with_watermark("at", delay="0s")
    counts = stream.key_by("key").window(shape).aggregate(n=pen.count(), total=col("v").sum(), name="counts")
    if summed:
        counts = counts.select("n").window(pen.tumbling("36500d")).aggregate(n=col("n").sum(), name="all")
    pipeline = counts.select("n").write(out)
    began = time.process_time()
    pipeline.run(pen.Local(parallelism=1, snapshot_every="1h"))
    took = time.process_time() - began
    counted = sum(row["n"] for row in out.rows())
    times = getattr(shape, "size", 0) // getattr(shape, "every", getattr(shape, "size", 1)) if hasattr(shape, "every") else 1
    assert counted == source.rows * times, f"{counted} rows counted instead of {source.rows * times}"
    return took


def compare(
    name: str, left: tuple[str, InTurn, Any], right: tuple[str, InTurn, Any], runs: int, *, summed: bool = False
) -> dict[str, Any]:
    """Both in turn, several times; medians per row."""
    per_row: dict[str, list[float]] = {left[0]: [], right[0]: []}
    for _ in range(runs):
        for label, source, shape in (left, right):
            per_row[label].append(seconds(source, shape, summed=summed) / source.rows * 1e9)
    median = {label: round(statistics.median(values)) for label, values in per_row.items()}
    return {"name": name, "ns_per_row": median, "ratio": round(median[right[0]] / median[left[0]], 2), "runs": runs}


def run(runs: int, scale: float) -> dict[str, Any]:
    """Both comparisons; `scale`: how many of the rows to use."""
    few = InTurn(100_000, 100, 10.0, 65_536)
    seconds(few, pen.tumbling("1m"))  # what is imported and compiled on first use
    tumbling, sliding = pen.tumbling("1m"), pen.sliding("1m", every="1s")
    dense = InTurn(int(120_000_000 * scale), 100, 1.0, 65_536)  # 10,000 rows of a key in each slice
    sparse = InTurn(int(12_000_000 * scale), 100, 10.0, 65_536)  # 1,000
    # Sessions that never end, each key in turn; batches have each key at most once in both.
    thousands = InTurn(int(3_000_000 * scale), 10_000, 1.0, 10_000)
    million = InTurn(int(3_000_000 * scale), 1_000_000, 1.0, 10_000)
    gap = pen.session("30d")
    found = [
        compare(
            "overlapping windows, 1M rows/s", ("tumbling 1m", dense, tumbling), ("sliding 1m, every 1s", dense, sliding), runs
        ),
        compare(
            "overlapping windows, 100k rows/s", ("tumbling 1m", sparse, tumbling), ("sliding 1m, every 1s", sparse, sliding), runs
        ),
        compare("open sessions", ("10 thousand", thousands, gap), ("1 million", million, gap), runs, summed=True),
    ]
    return {"comparisons": found, "verified": True, "note": ""}


if __name__ == "__main__":
    for each in run(3, 1.0)["comparisons"]:
        print(each)
