"""Advertising events of the shape of the Yahoo Streaming Benchmark, for demos and benchmarks.

Every value is a hash of the row's number, so any row can be computed alone, in any order, on any machine. Texts come
from small pools by index, as dictionaries: nothing is formatted or copied per row.

1. 1,000 ads belong to 100 campaigns, ten each (`campaign_of`, `campaigns`). Kinds of events are equally likely.
2. Event time advances by 1 ms every `rows_per_ms` rows and starts at 2026-01-01. `disorder_ms` sets each row back by
   up to so much.
3. Only the columns asked for are computed.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from datetime import UTC, datetime
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = ["AD_EVENT", "ad_events", "campaign_of", "campaigns"]

ADS = 1_000
ADS_PER_CAMPAIGN = 10
START_US = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp()) * 1_000_000

AD_EVENT = pa.schema(
    [
        pa.field("user_id", pa.string(), nullable=False),
        pa.field("page_id", pa.string(), nullable=False),
        pa.field("ad_id", pa.string(), nullable=False),
        pa.field("ad_type", pa.string(), nullable=False),
        pa.field("event_type", pa.string(), nullable=False),
        pa.field("at", pa.timestamp("us", "UTC"), nullable=False),
        pa.field("ip_address", pa.string(), nullable=False),
    ]
)

Index = npt.NDArray[np.int64]
Bits = npt.NDArray[np.uint64]

# Each column draws from its own bits: (which hash, which half of it).
_DRAWS = {
    "ad_id": (0, 0),
    "event_type": (0, 32),
    "user_id": (1, 0),
    "page_id": (1, 32),
    "ad_type": (2, 0),
    "ip_address": (2, 32),
    "at": (3, 0),
}


def ad_events(
    index: Index,
    seed: int,
    columns: Sequence[str] | None = None,
    *,
    rows_per_ms: int = 100,
    disorder_ms: int = 0,
) -> dict[str, pa.Array]:
    """The events numbered `index`: a `make` for `sources.generate`.

    >>> ad_events(np.arange(2), 0, ["event_type"])["event_type"].to_pylist()
    ['purchase', 'click']
    """
    hashes: dict[int, Bits] = {}

    def draw(column: str, below: int) -> npt.NDArray[np.int64]:
        number, shift = _DRAWS[column]
        if number not in hashes:
            hashes[number] = _mix(index, seed * 4 + number)
        half = hashes[number] >> np.uint64(shift) if shift else hashes[number] & np.uint64(0xFFFFFFFF)
        half *= np.uint64(below)
        half >>= np.uint64(32)
        return half.view(np.int64)

    made: dict[str, pa.Array] = {}
    for column in AD_EVENT.names if columns is None else columns:
        if column == "at":
            at = index * 1_000 // rows_per_ms
            at += START_US
            if disorder_ms:
                at -= draw("at", disorder_ms * 1_000 + 1)
            made[column] = pa.array(at).view(pa.timestamp("us", "UTC"))
        else:
            pool = _pool(column)
            numbers = pa.array(draw(column, len(pool)).astype(np.int32))
            made[column] = pa.DictionaryArray.from_arrays(numbers, pool, safe=False)
    return made


def campaign_of(ad: str) -> str:
    """The campaign an ad belongs to."""
    return _campaigns_by_ad()[ad]


def campaigns() -> pa.Table:
    """All ads with their campaigns: columns ad_id and campaign_id."""
    found = _campaigns_by_ad()
    return pa.table({"ad_id": list(found), "campaign_id": list(found.values())})


@functools.cache
def _campaigns_by_ad() -> dict[str, str]:
    ads = _pool("ad_id").to_pylist()
    return {ad: _uuid("campaign", number // ADS_PER_CAMPAIGN) for number, ad in enumerate(ads)}


@functools.cache
def _pool(column: str) -> pa.Array:
    match column:
        case "event_type":
            texts = ["view", "click", "purchase"]
        case "ad_type":
            texts = ["banner", "modal", "sponsored-search", "mail", "mobile"]
        case "ip_address":
            texts = [f"10.0.{number // 256}.{number % 256}" for number in range(1_024)]
        case "ad_id":
            texts = [_uuid("ad", number) for number in range(ADS)]
        case _:
            texts = [_uuid(column, number) for number in range(1_000)]
    return pa.array(texts, pa.string())


def _uuid(kind: str, number: int) -> str:
    low, high = _mix(np.array([number, number + (1 << 40)]), sum(kind.encode()))
    return str(UUID(int=(int(high) << 64) | int(low), version=4))


def _mix(index: Index, seed: int) -> Bits:
    """splitmix64 of each number: 64 bits that look independent."""
    with np.errstate(over="ignore"):
        bits = index.view(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        bits += np.uint64((seed * 0xD1342543DE82EF95 + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF)
        bits ^= bits >> np.uint64(30)
        bits *= np.uint64(0xBF58476D1CE4E5B9)
        bits ^= bits >> np.uint64(27)
        bits *= np.uint64(0x94D049BB133111EB)
        bits ^= bits >> np.uint64(31)
    return bits
