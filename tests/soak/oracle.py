"""The expected output, from the row numbers alone: numpy over `source.columns`, and the committed files read by glob.

No stream, no operator and no state of Penstock is used here. `check` gives the differences in words; none means that every row
was counted once.
"""

from __future__ import annotations

import glob
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from soak.source import columns

WINDOW_US = 1_000_000
EPOCH_START = datetime(1970, 1, 1, tzinfo=UTC)

Counted = dict[tuple[int, int], tuple[int, int]]  # (key, start of the window) -> rows, sum of values


def expected_counts(rows: int, seed: int) -> Counted:
    """Rows and sums by key and window."""
    made = columns(np.arange(rows, dtype=np.int64), seed)
    pairs = np.stack([made["key"], made["at"] // WINDOW_US * WINDOW_US])
    groups, where, counts = np.unique(pairs, axis=1, return_inverse=True, return_counts=True)
    totals = np.zeros(groups.shape[1], dtype=np.int64)
    np.add.at(totals, where.reshape(-1), made["value"])
    return {(int(k), int(at)): (int(n), int(total)) for (k, at), n, total in zip(groups.T, counts, totals)}


def expected_totals(rows: int, seed: int, every_us: int) -> Counted:
    """Rows and sums of a key up to each full step after which they had changed."""
    made = columns(np.arange(rows, dtype=np.int64), seed)
    found = {}
    for key in np.unique(made["key"]).tolist():
        at, value = (made[name][made["key"] == key] for name in ("at", "value"))
        for upto in np.unique(at // every_us * every_us + every_us).tolist():
            passed = at <= upto  # a timer comes after the rows of its moment
            found[key, upto] = (int(passed.sum()), int(value[passed].sum()))
    return found


def committed_totals(folder: Path) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """What the JSON files say, row by row."""
    found = []
    for path in sorted(glob.glob(f"{folder}/epoch=*/part-*.json")):
        for line in Path(path).read_text().splitlines():
            row = json.loads(line)
            found.append(((row["key"], micros(row["upto"])), (row["rows"], row["total"])))
    return found


def expected_raw(rows: int, seed: int, every: int) -> dict[int, tuple[int, int]]:
    """Every so many rows, by number."""
    made = columns(np.arange(0, rows, every, dtype=np.int64), seed)
    return dict(zip(made["n"].tolist(), zip(made["key"].tolist(), made["value"].tolist())))


def committed_counts(folder: Path) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """What the JSON files say, row by row."""
    found = []
    for path in sorted(glob.glob(f"{folder}/epoch=*/part-*.json")):
        for line in Path(path).read_text().splitlines():
            row = json.loads(line)
            found.append(((row["key"], micros(row["window_start"])), (row["rows"], row["total"])))
    return found


def committed_raw(folder: Path) -> list[tuple[int, tuple[int, int]]]:
    """What the Parquet files say, row by row."""
    found: list[tuple[int, tuple[int, int]]] = []
    for path in sorted(glob.glob(f"{folder}/epoch=*/part-*.parquet")):
        table: pa.Table = pq.ParquetFile(path).read(["n", "key", "value"])
        n, key, value = (table[name].to_pylist() for name in ("n", "key", "value"))
        found += zip(n, zip(key, value))
    return found


def micros(text: str) -> int:
    """A time as a file has it, in microseconds since 1970."""
    moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
    return (moment.replace(tzinfo=moment.tzinfo or UTC) - EPOCH_START) // timedelta(microseconds=1)


def differences(what: str, found: Iterable[tuple[Any, Any]], expected: Mapping[Any, Any]) -> list[str]:
    """How committed rows differ from the expected ones.

    >>> differences("rows", [(1, "a"), (1, "a"), (3, "c")], {1: "a", 2: "b", 3: "x"})
    ["rows: 1 twice, such as 1", "rows: 1 missing, such as 2", "rows: 1 wrong, such as 3: 'c' instead of 'x'"]
    """
    rows = list(found)
    by_key, times = dict(rows), Counter(key for key, _ in rows)
    wrong = [key for key, value in by_key.items() if key in expected and expected[key] != value]
    cases = {
        "twice": [key for key, count in times.items() if count > 1],
        "missing": [key for key in expected if key not in by_key],
        "unexpected": [key for key in by_key if key not in expected],
    }
    said = [f"{what}: {len(keys)} {case}, such as {min(keys)}" for case, keys in cases.items() if keys]
    if wrong:
        key = min(wrong)
        said.append(f"{what}: {len(wrong)} wrong, such as {key}: {by_key[key]!r} instead of {expected[key]!r}")
    return said


def check(out: Path, rows: int, seed: int, raw_every: int, tally_us: int) -> list[str]:
    """What is wrong with the committed files, in words."""
    return [
        *differences("counts", committed_counts(out / "counts"), expected_counts(rows, seed)),
        *differences("totals", committed_totals(out / "totals"), expected_totals(rows, seed, tally_us)),
        *differences("raw", committed_raw(out / "raw"), expected_raw(rows, seed, raw_every)),
    ]
