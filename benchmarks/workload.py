"""The work that is measured: ad events, counted per campaign in windows of ten seconds (the Yahoo benchmark's shape).

Event number i is a function of i alone: `penstock.connectors.adevents` makes it for Penstock, `peer.py` says the same in Spark's
expressions, and `expected` here says it a third time, in numpy, and counts without any stream. All three must agree on every
campaign and window, or a run is not a result.

1. 1,000 ads in 100 campaigns, three kinds of events, 100 events per millisecond of event time.
2. Keep views, take ad and time, look up the ad's campaign, count per campaign and window.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

import penstock as pen
from benchmarks import sampler
from penstock import col, count, sinks, sources
from penstock.connectors.adevents import AD_EVENT, ad_events, campaigns
from penstock.connectors.connector import Source

WINDOW_US = 10_000_000
ROWS_PER_MS = 100
START_US = 1_767_225_600_000_000  # 2026-01-01
SINK = "ad-counts"


@dataclass(frozen=True, slots=True)
class Input:
    """The first `rows` events; `folder` has them as JSON lines, for cases that do not generate them."""

    rows: int
    folder: Path


Counts = Counter[tuple[str, int]]
"""(campaign, start of the window in microseconds since 1970) -> views."""


# What Penstock runs.


@pen.udf(returns="string")
def campaign(ads: pa.Array) -> pa.Array:
    """The campaign of each ad, for a whole column at a time."""
    sampler.start_if_wanted()
    table = lookup()
    return table.column("campaign_id").take(pc.index_in(ads, value_set=table.column("ad_id")))


@functools.cache
def lookup() -> pa.RecordBatch:
    """All ads with their campaigns, in one piece."""
    return campaigns().combine_chunks().to_batches()[0]


def ad_counts(source: Source) -> pen.Pipeline:
    """Views per campaign and window, exactly once into the sink `SINK`."""
    views = events(source).filter(col("event_type") == "view").select(campaign_id=campaign(col("ad_id")))
    return counted(views)


class Shown(NamedTuple):
    """What a function is told of an event."""

    ad_id: str
    event_type: str


def campaign_of_view(event: Shown) -> str | None:
    """The campaign, if the event is a view: one call per event."""
    return CAMPAIGN_OF[event.ad_id] if event.event_type == "view" else None


CAMPAIGN_OF: dict[str, str] = dict(zip(*(lookup().column(name).to_pylist() for name in ("ad_id", "campaign_id"))))


def ad_counts_by_function(source: Source) -> pen.Pipeline:
    """The same counts, with a Python function that is called for every event."""
    return counted(events(source).map(campaign_of_view).filter("value is not null").select(campaign_id="value"))


def events(source: Source) -> pen.Stream:
    """The source with its event time."""
    return pen.Pipeline("ad-counts").read(source, name="events").with_watermark("at", delay="0s")


def counted(views: pen.Stream) -> pen.Pipeline:
    """Rows per campaign and window."""
    counts = views.key_by("campaign_id").window(pen.tumbling("10s")).aggregate(views=count(), name="counts")
    return counts.write(sinks.memory(SINK))


def generated(rows: int | None, rate: float | None = None) -> Source:
    """Events made in the tasks that read them. Only the columns in use are computed."""
    return sources.generate(ad_events, schema=AD_EVENT, rows=rows, rate=rate, splits=2)


def json_files(folder: Path) -> Source:
    """Events read from files of JSON lines."""
    return sources.files(folder, schema=AD_EVENT, format="json", splits=SPLITS)


SPLITS = 11
"""Files are dealt to splits by the hash of their name. With so few files the number of splits decides how evenly: here ten for each
of two tasks."""


def committed() -> Counts:
    """What the sink has. A window that is there twice counts twice."""
    found: Counts = Counter()
    table = sinks.memory(SINK).table()
    if table is not None:
        starts = table.column("window_start").cast(pa.int64()).to_pylist()
        for name, start, views in zip(table.column("campaign_id").to_pylist(), starts, table.column("views").to_pylist()):
            found[name, start] += views
    return found


# What must come out.


@functools.cache
def expected(rows: int, chunk: int = 131_072) -> Counts:
    """The counts of the first events, from their numbers alone."""
    return views_in(np.arange(first, min(first + chunk, rows), dtype=np.int64) for first in range(0, rows, chunk))


def views_in(numbers: Iterable[npt.NDArray[np.int64]]) -> Counts:
    """The counts of the events with these numbers."""
    names = campaigns().column("campaign_id").to_pylist()[::10]
    found: Counts = Counter()
    for number in numbers:
        bits = splitmix64(number)
        ad = ((bits & np.uint64(0xFFFFFFFF)) * np.uint64(1000)) >> np.uint64(32)
        kind = ((bits >> np.uint64(32)) * np.uint64(3)) >> np.uint64(32)
        window = (START_US + number * 1000 // ROWS_PER_MS) // WINDOW_US - START_US // WINDOW_US
        cell = (window * len(names) + ad.view(np.int64) // 10)[np.flatnonzero(kind == 0)]
        if not len(cell):
            continue
        first = int(cell.min())
        counts = np.bincount(cell - first)
        for each in np.flatnonzero(counts).tolist():
            name, window_start = names[(first + each) % len(names)], START_US + (first + each) // len(names) * WINDOW_US
            found[name, window_start] += int(counts[each])
    return found


def splitmix64(number: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """64 bits of each row's own."""
    bits = number.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(0x9E3779B97F4A7C15)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


# Files.


def write_ads(file: Path) -> None:
    """Lines `ad,campaign`: what peers look campaigns up in."""
    file.write_text("".join(f"{ad},{of}\n" for ad, of in CAMPAIGN_OF.items()))


def write_json(folder: Path, files: int, rows_per_file: int, chunk: int = 100_000) -> int:
    """The first events as JSON lines in `files` files; the number of bytes written."""
    written = 0
    for file in range(files):
        first = file * rows_per_file
        with open(folder / f"events-{file:05d}.json", "wb") as out:
            for start in range(first, first + rows_per_file, chunk):
                stop = min(start + chunk, first + rows_per_file)
                written += out.write(json_lines(np.arange(start, stop, dtype=np.int64)))
    return written


def json_lines(number: npt.NDArray[np.int64]) -> bytes:
    """Events as lines of about 245 bytes."""
    events = ad_events(number, 0, rows_per_ms=ROWS_PER_MS)
    parts: list[object] = []
    for position, name in enumerate(AD_EVENT.names):
        quote = "" if name == "at" else '"'
        values = events[name].cast(pa.int64()).cast(pa.string()) if name == "at" else events[name].cast(pa.string())
        parts += [f'{"," if position else "{"}"{name}":{quote}', values, quote]
    lines = pc.binary_join_element_wise(*parts, "}\n", "")
    start, stop = lines.offset, lines.offset + len(lines)
    offsets = np.frombuffer(lines.buffers()[1], np.int32)
    return bytes(lines.buffers()[2][int(offsets[start]) : int(offsets[stop])])
