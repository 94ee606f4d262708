"""The count per key as a function of the user's: a call per row, and a call per batch."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

import penstock as pen
from benchmarks import statejobs
from benchmarks.statejobs import Keys


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


def run(keys: int, runs: int) -> dict[str, Any]:
    """Updates per second of both."""
    return compare({"a function per row": (Count, 4), "a function per batch": (CountBatch, 20)}, keys, runs)


def compare(functions: dict[str, tuple[Any, int]], keys: int, runs: int) -> dict[str, Any]:
    """Each function over all keys, several rounds of them, several times."""
    runner = statejobs.continuous("1s")
    found: dict[str, list[statejobs.Counted]] = {name: [] for name in functions}
    for _ in range(runs + 1):
        for name, (function, rounds) in functions.items():

            def pipeline(source: Any, sink: Any, function: Any = function) -> pen.Pipeline:
                return (
                    pen.Pipeline("counts")
                    .read(source)
                    .key_by("key")
                    .process(function(), name="count", schema=Counted)
                    .write(sink)
                )

            found[name].append(statejobs.count(Keys(keys, rounds), runner, pipeline=pipeline))
    counted = {name: each[1:] for name, each in found.items()}  # the first is for what is imported on first use
    rates = {f"{name}, {keys:,} keys": round(statistics.median(one.rate for one in each)) for name, each in counted.items()}
    note = "; ".join({one.note for each in found.values() for one in each if one.note})
    figures = {name: f"{rate / 1e6:.2f}M updates per second" for name, rate in rates.items()}
    return {"rates": rates, "figures": figures, "verified": not note, "note": note}
