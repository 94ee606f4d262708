"""What it costs to keep many values of few keys: exact counts of different values, beside DuckDB. One process; processor time.

    python -m benchmarks.values                 # and of the same with another Penstock: PYTHONPATH=/path/to/it/src
    python -m benchmarks.run --case values

1. Row i has key `i % 4`. In the first half of the rows every value of a key is new, in the second all of them come again. So there
   are an eighth as many values per key as rows, and a row should cost the same however many rows were there before.
2. Rows come in batches of 16,384 and a snapshot is taken every second: each batch touches all keys, and sends all counts.
3. DuckDB (one thread) makes a table of the same rows, which is not counted, and is asked once for all counts. That is a batch query,
   which says what the hashing of that many values costs at least; it keeps nothing and can be asked for nothing in between.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import tempfile
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

import penstock as pen
from benchmarks import install
from penstock import col, sinks
from penstock.connectors.connector import Chunk, Json, Reader, Source, SourceContext

SCHEMA = pa.schema([pa.field("key", pa.int64(), nullable=False), pa.field("v", pa.int64(), nullable=False)])
KEYS, BATCH = 4, 16_384
ROWS = (250_000, 500_000, 1_000_000, 2_000_000, 4_000_000)
STEP = 2_654_435_761
DUCKDB = f"""
import json, sys, time, duckdb
db = duckdb.connect()
db.execute("set threads = 1")
for rows in map(int, sys.argv[1:]):
    rows_of = f"select i % {KEYS} as key, (i % ({{rows}} // 2)) * {STEP} % 4294967296 as v from range({{rows}}) t(i)"
    db.execute(f"create or replace table r as {{rows_of}}")
    began = time.process_time()
    found = db.execute("select key, count(distinct v) from r group by key").fetchall()
    print(json.dumps([rows, time.process_time() - began, dict(found)]))
"""


@dataclass(frozen=True)
class HotKeys(Source):
    """`rows` rows of four keys."""

    rows: int
    name: str = "hot-keys"
    bounded: bool = True
    replayable: bool = True
    schema: pa.Schema = SCHEMA

    def splits(self) -> tuple[str, ...]:
        return ("0",)

    def open(self, split: str, position: Json, context: SourceContext) -> Reader:
        return HotKeysReader(self, position or 0, context.columns)

    def describe(self) -> str:
        return f"{KEYS} hot keys"


class HotKeysReader(Reader):
    def __init__(self, source: HotKeys, position: int, columns: tuple[str, ...]) -> None:
        self.source, self.position, self.columns = source, position, list(columns)

    def poll(self, rows_max: int) -> Chunk | None:
        source = self.source
        count = min(BATCH, rows_max, source.rows - self.position)
        number = np.arange(self.position, self.position + count, dtype=np.int64)
        self.position += count
        arrays = {"key": pa.array(number % KEYS), "v": pa.array(number % (source.rows // 2) * STEP % 2**32)}
        batch = pa.RecordBatch.from_arrays([arrays[name] for name in self.columns], names=self.columns)
        return Chunk(batch, self.position, ended=self.position >= source.rows)


def per_row(rows: int) -> float:
    """Processor time in µs per row, from start to end; snapshots are stored."""
    out = sinks.memory("values-benchmark")
    out.clear()
    keyed = pen.Pipeline("values").read(HotKeys(rows)).key_by("key")
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as storage:
        pipeline = keyed.aggregate(n=col("v").count_distinct(), name="counts").write(out)
        began = time.process_time()
        pipeline.run(pen.Local(parallelism=1, snapshot_every="1s", storage=storage))
        took = time.process_time() - began
    found = {row["key"]: row["n"] for row in out.rows()}
    assert found == dict.fromkeys(range(KEYS), rows // 2 // KEYS), f"counted {found}"
    return took / rows * 1e6


def duckdb(sizes: list[int]) -> dict[int, float]:
    """The same of DuckDB."""
    command = [
        str(install.decoders()),
        "-c",
        DUCKDB,
        *map(str, [sizes[0], *sizes]),
    ]  # the first is for what is set up on first use
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[1:]
    found = {}
    for rows, seconds, counts in map(json.loads, said):
        assert counts == dict.fromkeys(map(str, range(KEYS)), rows // 2 // KEYS), f"DuckDB counted {counts}"
        found[rows] = seconds / rows * 1e6
    return found


def run(runs: int, scale: float) -> dict[str, Any]:
    """µs per row by the number of rows; `scale`: how many of the rows to use."""
    sizes = [int(rows * scale) // (2 * KEYS) * 2 * KEYS for rows in ROWS]
    per_row(BATCH)  # what is imported on first use
    ours = {rows: statistics.median(per_row(rows) for _ in range(runs)) for rows in sizes}
    peer = duckdb(sizes)
    figures = {f"{rows:,} rows": f"{ours[rows]:.2f} µs per row; DuckDB, one batch query: {peer[rows]:.2f}" for rows in sizes}
    figures["4 million rows to 0.25 million, per row"] = f"{ours[sizes[-1]] / ours[sizes[0]]:.2f}x"
    return {"figures": figures, "us_per_row": ours, "duckdb_us_per_row": peer, "verified": True, "note": ""}


if __name__ == "__main__":
    for what, figure in run(3, 1.0)["figures"].items():
        print(f"{what:40} {figure}")
