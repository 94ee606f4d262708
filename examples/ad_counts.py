"""Views per advertising campaign and ten seconds, exactly once: the Yahoo Streaming Benchmark's question.

Events are made up by default, a million of them, and the counts are written as Parquet files:

    penstock run examples/ad_counts.py --runner local
    penstock run examples/ad_counts.py --runner continuous --parallelism 2 --storage out/state --set rows=5_000_000

or `python examples/ad_counts.py`. To count your own, as JSON lines with at least ad_id, event_type and at:

    penstock run examples/ad_counts.py --set files='in/*.json'

Read the result with anything that reads Parquet: `out/ad-counts/epoch=*/part-*`.
"""

import functools
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

import penstock as pen
from penstock import sinks, sources
from penstock.connectors.adevents import AD_EVENT, ad_events, campaigns
from penstock.connectors.connector import Source


@dataclass
class AdEvent:
    """What is counted of an event; other fields of a JSON line are passed over."""

    ad_id: str
    event_type: str
    at: datetime


@functools.cache
def campaign_table() -> pa.Table:
    """Which ad belongs to which campaign: 1,000 ads, 100 campaigns."""
    return campaigns()


@pen.udf(returns="string")
def campaign_of(ads: pa.Array) -> pa.Array:
    """The campaigns of a whole column of ads at a time; null for an ad nobody knows."""
    table = campaign_table()
    return table["campaign_id"].combine_chunks().take(pc.index_in(ads, value_set=table["ad_id"].combine_chunks()))


def source(rows: int, rate: float | None, files: str | None) -> Source:
    """Made-up events, or those in files."""
    if files is not None:
        return sources.files(files, schema=AdEvent, name="ad-events")
    return sources.generate(ad_events, schema=AD_EVENT, rows=rows, rate=rate, name="ad-events")


def pipeline(
    rows: int = 1_000_000, rate: float | None = None, out: str = "out/ad-counts", files: str | None = None
) -> pen.Pipeline:
    """The pipeline; its parameters are what `--set` can set.

    Args:
        rows: how many events to make up.
        rate: how many of them per second; as fast as possible if left out.
        out: the folder to write to.
        files: JSON lines to count instead.
    """
    return (
        pen.Pipeline("ad-counts")
        .read(source(rows, rate, files))
        .with_watermark("at", delay="5s")
        .filter(pen.col("event_type") == "view")
        .with_columns(campaign_id=campaign_of(pen.col("ad_id")))
        .filter("campaign_id is not null")
        .key_by("campaign_id")
        .window(pen.tumbling("10s"))
        .aggregate(views=pen.count(), name="counts")  # campaign_id, window_start, window_end, views
        .write(sinks.files(out))
    )


if __name__ == "__main__":
    pipeline().run()
