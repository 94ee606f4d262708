"""The items with the most bids of the last hour, every minute: windows of windows.

Bids are counted per item in windows that overlap. Each count knows the end of its window, so keyed by that end the counts of one
window meet again, and the best of them are its hot items:

    penstock run examples/hot_items.py --runner local
    penstock run examples/hot_items.py --set rows=50_000 --set out=out/hot-items

Results are JSON lines: `out/hot-items/epoch=*/part-*`.
"""

from datetime import UTC, datetime

import numpy as np
import pyarrow as pa

import penstock as pen
from penstock import sinks, sources

FIRST = datetime(2026, 1, 1, tzinfo=UTC)


def bids(index: np.ndarray, seed: int) -> dict[str, pa.Array]:
    """Ten bids a second. Every third one is for whichever of 40 items is in demand in that quarter of an hour."""
    seconds = index // 10
    item = np.where(index % 3 == 0, seconds // 900 % 40, (index * 7919 + seed) % 40)
    at = np.datetime64(FIRST.replace(tzinfo=None), "us") + seconds.astype("timedelta64[s]")
    return {"item": pa.array(item), "at": pa.array(at, pa.timestamp("us", "UTC"))}


def pipeline(rows: int = 100_000, out: str = "out/hot-items", best: int = 3) -> pen.Pipeline:
    """The pipeline; its parameters are what `--set` can set.

    Args:
        rows: how many bids to make up.
        out: the folder to write to.
        best: how many items of each window.
    """
    counts = (
        pen.Pipeline("hot-items")
        .read(sources.generate(bids, schema="item bigint, at timestamp", rows=rows, name="bids"))
        .with_watermark("at", delay="5s")
        .key_by("item")
        .window(pen.sliding("1h", every="1m"))
        .aggregate(bids=pen.count(), name="counts")  # item, window_start, window_end, bids
    )
    # A count is sent when its window closes, and its event time is the last moment of that. So all counts of one window lie in the
    # same minute, and that minute ends with the window.
    return (
        counts.key_by("window_end")
        .window(pen.tumbling("1m"))
        .top(best, by=["bids", "item"], ascending=[False, True], name="hottest")
        .select("window_end", "rank", "item", "bids")
        .write(sinks.files(out, format="json"))
    )


if __name__ == "__main__":
    pipeline().run()
