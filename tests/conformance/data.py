"""The rows every conformance case reads: plain Python, made from a seed. Imports nothing of Penstock, and is read by the oracle
too.

Each split is a list of rows in the order they are read. Event times grow by about 0.1 s a row; rows are up to `DISORDER_S` out
of order, which is less than the delay the pipelines allow, so none of them is late. Rows beyond that exist only where a case
asks for them.
"""

from __future__ import annotations

import random
from decimal import Decimal
from typing import Any

START_US = 1_767_225_600_000_000  # 2026-01-01 00:00:00 UTC
DISORDER_S = 3.0
DELAY_S = 5
KEYS = 40
WORDS = ("barrier", "stream", "epoch", "task", "water", "mark")

Row = dict[str, Any]


def make(seed: int, *, splits: int = 3, rows: int = 1500, late_every: int = 0) -> dict[str, list[Row]]:
    """The rows of each split. `late_every`: every so many rows one that is far beyond the delay."""
    rng = random.Random(seed)
    return {f"s{number}": make_split(rng, number, rows, late_every) for number in range(splits)}


def make_split(rng: random.Random, number: int, rows: int, late_every: int) -> list[Row]:
    made = []
    for i in range(rows):
        seconds = i * 0.1 - rng.random() * DISORDER_S
        if late_every and i and i % late_every == 0:
            seconds = max(0.0, i * 0.1 - 60 - rng.random() * 10)
        value = rng.randrange(-500, 500)
        made.append(
            {
                "id": f"{number}-{i}",
                "k": f"key-{rng.randrange(KEYS)}",
                "v": None if rng.random() < 0.05 else value,
                "x": value / 8,
                "flag": rng.random() < 0.5,
                "small": rng.randrange(4),
                "price": str(Decimal(rng.randrange(100_000)) / 100),
                "maybe": None if rng.random() < 0.2 else f"m{rng.randrange(3)}",
                "text": " ".join(rng.choice(WORDS) for _ in range(rng.randrange(4))),
                "at": START_US + int(seconds * 1e6),
            }
        )
    return made


def everything(splits: dict[str, list[Row]]) -> list[Row]:
    """All rows of all splits."""
    return [row for split in splits.values() for row in split]
