"""Keyed state: how fast, how much, and what a snapshot costs; beside Spark's `transformWithState` from Python.

    python -m benchmarks.run --case state

1. **tables**: a table alone, in one thread: a count per key, `get_many` and `put_many` of batches of 64 thousand keys.
2. **large**: a table of ten million keys in a process that may have 4 GiB, its runs in files. Some keys change between two
   snapshots; how long the task's own thread stands still for one (`freeze` and `stored`), and how much is written. Beside it a
   table that holds those keys only: a snapshot should cost what changed, not what is there.
3. **job**, **snapshots**: a pipeline that counts per key, see `statejobs.py`; and what snapshots cost it, and others.
4. **functions**: the same count by functions of the user's, in both backends, see `statefunctions.py`.
5. **transform-with-state**: the peer, see `statepeer.py`.

What is counted is checked in every part.
"""

from __future__ import annotations

import resource
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.checkpoints.storage import Store, open_store
from penstock.state.history import store
from penstock.state.runfile import Handle, forget_validated
from penstock.state.spec import StateSpec
from penstock.state.table import KeyedTable

PARTS = ("tables", "large", "job", "snapshots", "functions", "transform-with-state")
MEMORY_MAX = 4 << 30
BATCH = 65_536
GROUPS = 128
COUNTS = pa.schema([("n", pa.int64())])
SPECS = {
    "int64": StateSpec("counts", pa.schema([("key", pa.int64())]), COUNTS),
    "string": StateSpec("counts", pa.schema([("key", pa.string())]), COUNTS),
}
FILL_KEYS = 1_000_000  # new keys per snapshot while a large table is filled
CHANGES = ((0.001, 100), (0.01, 20), (0.1, 5))  # how many of the keys change per snapshot, and how many snapshots

SNAPSHOTS_S = 22.0  # of a run with a snapshot every other second: ten of them, whatever the machine's hour is like
ADS_S = 27.0  # as long, but by the rate of a warm-up of some seconds, of which the first are slow

Numbers = npt.NDArray[np.int64]


def run(part: str, *, runs: int, scale: float) -> dict[str, Any]:
    """One part; `scale`: how much of everything."""
    from benchmarks import statefunctions, statejobs, statepeer

    match part:
        case "tables":
            return tables(int(1_000_000 * scale), runs)
        case "large":
            with limited_memory(), tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
                return large(int(10_000_000 * scale), Path(folder))
        case "job":
            return statejobs.large(int(10_000_000 * scale))
        case "snapshots":
            return joined(
                statejobs.ad_counts(int(400_000_000 * scale), runs, seconds=ADS_S * scale),
                statefunctions.snapshots(int(1_000_000 * scale), runs, seconds=SNAPSHOTS_S * scale),
                statejobs.snapshots(int(1_000_000 * scale), rounds=60, runs=runs, seconds=SNAPSHOTS_S * scale),
            )
        case "functions":
            return statefunctions.run(int(1_000_000 * scale), min(runs, 2))
        case _:
            return statepeer.run(int(9_000 * scale))


def joined(*results: dict[str, Any]) -> dict[str, Any]:
    """Results of the same kind as one."""
    return {
        "rates": {name: rate for each in results for name, rate in each["rates"].items()},
        "figures": {
            f"{number}. {what}": text for number, each in enumerate(results, 1) for what, text in each["figures"].items()
        },
        "verified": all(each["verified"] for each in results),
        "note": "; ".join(each["note"] for each in results if each["note"]),
        "results": list(results),
    }


# A table alone.


def tables(keys: int, runs: int) -> dict[str, Any]:
    """Nanoseconds of processor time per key, for keys never seen before and for the same keys in another order."""
    cost: dict[str, list[float]] = {}
    note = ""
    for _ in range(runs):
        for kind, spec in SPECS.items():
            table = KeyedTable(spec, range(GROUPS), GROUPS)
            for name, seed in (("first seen", 1), ("seen before", 2)):
                batches = list(key_batches(np.random.default_rng(seed).permutation(keys), kind))
                began = time.process_time()
                for batch in batches:
                    count_up(table, batch)
                cost.setdefault(f"{kind} keys, {name}", []).append((time.process_time() - began) / keys * 1e9)
            note = note or wrong_total(table, 2 * keys)
    median = {name: round(statistics.median(values)) for name, values in cost.items()}
    figures = {f"{name}: get and put": f"{ns} ns per key" for name, ns in median.items()}
    # Two tasks have a table each.
    rates = {f"a table alone, two tasks, {name}": round(2e9 / ns) for name, ns in median.items()}
    return {"ns_per_key": median, "rates": rates, "figures": figures, "verified": not note, "note": note}


def key_batches(numbers: Numbers, kind: str) -> Iterator[pa.RecordBatch]:
    """The keys of these numbers, as they are or as strings of ten bytes."""
    for start in range(0, len(numbers), BATCH):
        part = pa.array(numbers[start : start + BATCH])
        if kind == "string":
            part = pc.binary_join_element_wise("k", pc.utf8_lpad(part.cast(pa.string()), 9, "0"), "")
        yield pa.record_batch({"key": part})


def count_up(table: KeyedTable, keys: pa.RecordBatch) -> None:
    """One more for each key."""
    _, old = table.get_many(keys)
    table.put_many(keys, pa.record_batch({"n": pc.add(old.column(0).fill_null(0), 1)}))


def wrong_total(table: KeyedTable, wanted: int) -> str:
    """What is wrong with the counts, in words; empty if nothing is."""
    total = sum(pc.sum(batch.column("n")).as_py() for batch in table.scan())
    return "" if total == wanted else f"the counts add up to {total} instead of {wanted}"


# A large table.


def large(keys: int, folder: Path) -> dict[str, Any]:
    """A table of so many keys and its snapshots."""
    random = np.random.default_rng(3)
    with watched_memory() as memory:
        table = Stored(open_store(folder / "large"))
        everything = random.permutation(keys)
        filled = [table.change(everything[start : start + FILL_KEYS]) for start in range(0, keys, FILL_KEYS)]
        changes = {}
        for share, epochs in CHANGES:
            count = int(keys * share)
            changes[f"{share:.1%}"] = summary([table.change(random.choice(keys, count, replace=False)) for _ in range(epochs)])
        restored, restore_s = table.restored()
        note = wrong_total(restored, table.counted)
    small = Stored(open_store(folder / "small"))
    share, epochs = CHANGES[0]
    few = np.arange(int(keys * share))
    beside = summary([small.change(random.permutation(few)) for _ in range(epochs)])
    first = changes[f"{share:.1%}"]
    figures = {
        "keys": f"{keys:,}",
        "memory, most at a time (limit 4 GiB)": f"{memory.peak / 2**20:,.0f} MiB",
        "pause while it was filled, a million new keys per snapshot": f"{max(each.pause_ms for each in filled):.1f} ms at most",
        **{
            f"{name} of the keys changed: pause p50, p99; written per changed key, with compaction": (
                f"{each['pause_p50_ms']:.1f} ms, {each['pause_p99_ms']:.1f} ms; {each['bytes_per_change']:.0f} bytes, "
                f"{each['bytes_written_per_change']:.0f} bytes"
            )
            for name, each in changes.items()
        },
        f"a table of {len(few):,} keys, all changed: pause p50, p99": (
            f"{beside['pause_p50_ms']:.1f} ms, {beside['pause_p99_ms']:.1f} ms"
        ),
        "the same number of changes, large table to small one": (
            f"p50 {first['pause_p50_ms'] / beside['pause_p50_ms']:.1f}x, p99 {first['pause_p99_ms'] / beside['pause_p99_ms']:.1f}x"
        ),
        "restored, every file checked": f"{restore_s:.1f} s",
    }
    found = {"keys": keys, "peak_bytes": memory.peak, "changes": changes, "small": beside, "restore_s": restore_s}
    return {**found, "rates": {}, "figures": figures, "verified": not note, "note": note}


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What one cost."""

    changed: int
    pause_ms: float  # in the task's own thread
    store_ms: float  # beside it
    bytes: int  # of what changed
    written: int  # with what compaction wrote


class Stored:
    """A table with its files: what a task and its writer do with them, one after the other."""

    def __init__(self, files: Store) -> None:
        self.table = KeyedTable(SPECS["int64"], range(GROUPS), GROUPS)
        self.files, self.counted, self.epoch, self.written = files, 0, 0, 0
        self.handles: list[Handle] = []

    def change(self, numbers: Numbers) -> Snapshot:
        """Count these keys up, and take a snapshot."""
        for batch in key_batches(numbers, "int64"):
            count_up(self.table, batch)
        self.counted += len(numbers)
        self.epoch += 1
        before = self.written
        times = [time.perf_counter()]
        frozen = self.table.freeze(self.epoch)
        times.append(time.perf_counter())
        old, self.handles = self.handles, store(frozen, self, self.name)
        times.append(time.perf_counter())
        self.table.stored(frozen, self.handles)
        times.append(time.perf_counter())
        freeze, stored, told = np.diff(times) * 1e3
        for handle in set(old) - set(self.handles):
            self.files.delete(handle.path)
        return Snapshot(len(numbers), freeze + told, stored, frozen.runs[0].nbytes, self.written - before)

    def restored(self) -> tuple[KeyedTable, float]:
        """The table from its files, and how long that took."""
        forget_validated()
        began = time.perf_counter()
        table = KeyedTable.open(self.table.spec, self.table.groups, GROUPS, self.handles, self.files)
        table.get_many(next(key_batches(np.arange(1), "int64")))
        return table, time.perf_counter() - began

    # The files, with what was written added up.

    def name(self) -> str:
        return f"{self.epoch}-{self.written}.arrow"

    def write(self, path: str, *pieces: pa.Buffer, read_soon: bool = True) -> None:
        self.written += sum(piece.size for piece in pieces)
        self.files.write(path, *pieces, read_soon=read_soon)

    def open(self, path: str) -> pa.Buffer:
        return self.files.open(path)


def summary(snapshots: list[Snapshot]) -> dict[str, Any]:
    """Several snapshots of as many changes each."""
    changed = sum(each.changed for each in snapshots)
    p50, p99 = np.percentile([each.pause_ms for each in snapshots], [50, 99]).round(2).tolist()
    return {
        "changed": snapshots[0].changed,
        "snapshots": len(snapshots),
        "pause_p50_ms": p50,
        "pause_p99_ms": p99,
        "store_max_ms": round(max(each.store_ms for each in snapshots)),
        "bytes_per_change": round(sum(each.bytes for each in snapshots) / changed, 1),
        "bytes_written_per_change": round(sum(each.written for each in snapshots) / changed, 1),
    }


# Memory.


@dataclass(slots=True)
class Memory:
    """The most a process had."""

    peak: int = 0
    over: threading.Event = field(default_factory=threading.Event)


@contextmanager
def watched_memory() -> Iterator[Memory]:
    """Look every 20 ms how much memory of its own this process has. What is mapped from files is not its own."""
    memory = Memory()

    def watch() -> None:
        while not memory.over.wait(0.02):
            memory.peak = max(memory.peak, memory_now())

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield memory
    finally:
        memory.over.set()
        thread.join()
        memory.peak = max(memory.peak, memory_now())


def memory_now() -> int:
    """Bytes of anonymous memory that are in use."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon")), 0)


@contextmanager
def limited_memory() -> Iterator[None]:
    """A process that asks for more memory of its own than `MEMORY_MAX` does not get it."""
    before = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_MAX, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)
