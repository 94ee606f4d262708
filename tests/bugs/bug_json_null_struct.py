"""A record that may be None, read from JSON, Parquet and memory, with a function, an aggregate or a file behind it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

import penstock as pen
from penstock import sinks, sources


@dataclass
class Bid:
    auction: int
    price: int


@dataclass
class Event:
    kind: int
    bid: Bid | None


EVENTS = [Event(0, None), Event(1, Bid(7, 1))]
DDL = "kind bigint, bid struct<auction: bigint, price: bigint>"
FOLDER = Path(tempfile.mkdtemp())


def job(label: str, source: Any, build: Callable[[pen.Stream], pen.Stream]) -> None:
    out = sinks.memory("out")
    out.clear()
    try:
        build(pen.Pipeline("j").read(source)).write(out).run(pen.Local(restarts=0))
        print(f"{label} -> {out.rows()}")
    except Exception as error:
        print(f"{label} -> FAILS: {type(error).__name__} {error}")


def kept(stream: pen.Stream) -> pen.Stream:
    return stream.filter(lambda event: event.kind >= 0).select("kind", a="bid.auction")


def last(stream: pen.Stream) -> pen.Stream:
    return stream.key_by("kind").aggregate(b=pen.col("bid").last(), name="x")


def as_event(row: pen.Row) -> Event:
    return Event(row.value, None if row.value == 1 else Bid(7, 1))


def main() -> None:
    (FOLDER / "a.json").write_text('{"kind": 0}\n{"kind": 1, "bid": {"auction": 7, "price": 1}}\n')
    memory = sources.memory(EVENTS)
    pq.write_table(memory.table, FOLDER / "a.parquet")
    json, parquet = sources.files(FOLDER / "a.json", schema=Event), sources.files(FOLDER / "a.parquet")
    job("JSON, expressions only", json, lambda s: s.select("kind", a="bid.auction"))
    job("JSON, filter(function)", json, kept)
    job("JSON, map(function)", json, lambda s: s.map(lambda event: event.kind, schema=int))
    job("JSON, key_by + aggregate of the record", json, last)
    job("JSON with DDL, filter(function)", sources.files(FOLDER / "a.json", schema=DDL), kept)
    job("memory, filter(function)", memory, kept)
    job("memory, key_by + last of the record", memory, last)
    job("memory, map to a record", sources.memory([1, 2], schema=int), lambda s: kept(s.map(as_event)))
    job("Parquet, filter(function)", parquet, kept)
    job("Parquet, key_by + aggregate of the record", parquet, last)
    files = sinks.files(FOLDER / "out")
    pen.Pipeline("files").read(json).select("kind", bid=pen.when(pen.col("kind") < 9, pen.col("bid"))).write(files).run(
        pen.Local()
    )
    print(f"JSON to Parquet -> {pq.read_table(FOLDER / 'out' / 'epoch=1').to_pylist()}")


if __name__ == "__main__":
    main()
