"""The count per key as a function of the user's: a call per row, and a call per batch."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

import penstock as pen
from benchmarks import statejobs
from benchmarks.statejobs import Keys
from penstock.connectors.connector import Sink, Source


class Event(NamedTuple):
    """What comes in."""

    key: int


class Counted(NamedTuple):
    """What goes out."""

    key: int
    n: int


class Count(pen.ProcessFunction):
    """A call per row."""

    n = pen.ValueState(int, default=0)

    def on_row(self, row: Event, ctx: pen.Context) -> Iterator[Counted]:
        n = self.n.get() + 1
        self.n.set(n)
        yield Counted(row.key, n)


class CountBatch(pen.ProcessFunction):
    """A call per batch."""

    n = pen.ValueState(int, default=0)

    def on_batch(self, keys: Any, batch: pa.RecordBatch, ctx: pen.Context) -> pa.RecordBatch:
        n = pc.add(self.n.get_many(keys), 1)
        self.n.set_many(keys, n)
        return pa.record_batch({"key": batch.column("key"), "n": n})


def counting(function: type[pen.ProcessFunction]) -> Callable[[Source, Sink], pen.Pipeline]:
    """A pipeline that counts by this function."""

    def pipeline(source: Source, sink: Sink) -> pen.Pipeline:
        stream = pen.Pipeline("counts").read(source).key_by("key")
        return stream.process(function(), name="count", schema=Counted).write(sink)

    return pipeline


def run(keys: int, runs: int) -> dict[str, Any]:
    """Updates per second of both, and of the first in the other backend."""
    kinds = {
        "a function per row": (Count, 3, "columnar"),
        "a function per row, RocksDB": (Count, 3, "rocksdb"),
        "a function per batch": (CountBatch, 16, "columnar"),
    }
    return compare(kinds, keys, runs)


def compare(kinds: Mapping[str, tuple[type[pen.ProcessFunction], int, str]], keys: int, runs: int) -> dict[str, Any]:
    """Each kind (function, rounds over all keys, backend) several times, in turn."""
    found: dict[str, list[statejobs.Counted]] = {name: [] for name in kinds}
    for _ in range(runs + 1):
        for name, (function, rounds, state) in kinds.items():
            runner = statejobs.continuous("1s", state)
            found[name].append(statejobs.count(Keys(keys, rounds), runner, pipeline=counting(function)))
    counted = {name: each[1:] for name, each in found.items()}  # the first is for what is imported on first use
    rates = {f"{name}, {keys:,} keys": round(statistics.median(one.rate for one in each)) for name, each in counted.items()}
    note = "; ".join({one.note for each in found.values() for one in each if one.note})
    figures = {name: f"{rate / 1e6:.2f}M updates per second" for name, rate in rates.items()}
    return {"rates": rates, "figures": figures, "verified": not note, "note": note}


def snapshots(keys: int, runs: int, seconds: float | None = None) -> dict[str, Any]:
    """What snapshots cost the function per row."""
    return statejobs.snapshots(keys, 2, runs, pipeline=counting(Count), what="a function per row", seconds=seconds)
