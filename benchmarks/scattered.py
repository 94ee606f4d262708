"""Keys that come in no order, in batches of any size: what the curves of `scaling.py` count.

Row i has key `i % keys * STEP % keys`, and STEP has no divisor in common with the number of keys: every key comes once in each round,
neighbours in the stream are strangers among the keys, and nothing has to be remembered to know it.

With few keys a batch has each of them many times, and how many updates that makes is up to the engine. So another check than that of
`statejobs.Keys` is needed: in the end every key has been seen `rounds` times. Counts only grow, so exactly one update per key says
`rounds`, and none says more. A row that was lost leaves a key below it, one that was counted twice takes a key beyond.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from benchmarks.state import BATCH
from benchmarks.statejobs import SCHEMA, Keys
from penstock.connectors.connector import Chunk, Json, Reader, SourceContext
from penstock.operators.aggregate import Bools, PartialAggregate

STEP = 982_451_653


@dataclass(frozen=True)
class Scattered(Keys):
    """`rounds` times each of the keys. `lanes`: splits; `batch`: rows that a split hands out at a time."""

    name: str = "scattered"
    lanes: int = 2
    batch: int = BATCH
    joined: bool = True

    def __post_init__(self) -> None:
        assert math.gcd(STEP, self.keys) == 1, f"{self.keys} keys would not all come"
        assert self.keys * self.rounds % self.lanes == 0, "all splits have as many rows"
        assert self.keys * STEP < 1 << 63, f"{self.keys} keys are too many"

    def splits(self) -> tuple[str, ...]:
        return tuple(str(split) for split in range(self.lanes))

    def open(self, split: str, position: Json, context: SourceContext) -> Reader:
        return ScatteredReader(self, int(split), position or 0)

    def describe(self) -> str:
        return f"{self.keys} keys, scattered"

    def wrong(self, said: Sequence[Mapping[str, int]]) -> str:
        done, most = sum(each["done"] for each in said), max(each["most"] for each in said)
        if (done, most) == (self.keys, self.rounds):
            return ""
        return f"{done} keys were counted {self.rounds} times instead of {self.keys}; the highest count is {most}"


class ScatteredReader(Reader):
    """Each split has its share of the rows in one piece. So every split has all keys, however many splits there are: if it had
    every second row it would have half of the keys, and each of them twice as often in a batch.
    """

    def __init__(self, source: Scattered, split: int, position: int) -> None:
        self.source, self.position = source, position
        self.end = source.keys * source.rounds // source.lanes
        self.first = split * self.end

    def poll(self, rows_max: int) -> Chunk | None:
        count = min(self.source.batch, rows_max, self.end - self.position)
        number = np.arange(self.position, self.position + count, dtype=np.int64) + self.first
        self.position += count
        key = number % self.source.keys * STEP % self.source.keys
        return Chunk(pa.RecordBatch.from_arrays([pa.array(key)], schema=SCHEMA), self.position, ended=self.position >= self.end)


@dataclass(frozen=True)
class Unfolded(Scattered):
    """The same keys, for a count that does not fold rows in front of the exchange while a process reads them."""

    name: str = "unfolded"

    def open(self, split: str, position: Json, context: SourceContext) -> Reader:
        return UnfoldedReader(self, int(split), position or 0)


class UnfoldedReader(ScatteredReader):
    """Takes the folding out of its process, and puts it back."""

    def __init__(self, source: Scattered, split: int, position: int) -> None:
        super().__init__(source, split, position)
        PartialAggregate._folded = apart  # type: ignore[method-assign]

    def close(self) -> None:
        PartialAggregate._folded = FOLDED  # type: ignore[method-assign]


FOLDED = PartialAggregate._folded


def apart(self: PartialAggregate, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, Bools | None]:
    """Each row as a partial row of its own."""
    return self._accumulators.partial(batch, self._keys, grouped=False)
