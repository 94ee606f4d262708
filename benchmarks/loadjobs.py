"""The pipelines of the load sweep, and what each must have written: worked out from the numbers of the rows that were read.

1. **count**: a running count over 100 keys. It sends a result for each row, so how late rows are is measured here.
2. **aggregates**: 16 aggregates of one stream: 8 tumbling windows over 97 keys and 8 running counts over 1,000 keys.
3. **sessions**: sessions over 50,021 keys, a tumbling count over 1,000 keys, and duplicates dropped by the same 1,000.
4. **interval**: an interval join of two streams; each row has one partner, and half of the rate comes from each stream.
5. **function**: a process function over 1,000 keys: it counts in a value of state, and a timer sends the count a second later.
6. **files**: a running count over 100 keys of JSON lines, from files that appear in a watched folder ten times a second.

A **check** gets what a system has written and how far it has read, whichever system it is, and says in words what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import penstock as pen
from benchmarks.loadsource import BASE_US, SPLITS, US, Gathered, Numbers, Schedule, Steady, commits, updates
from penstock import sources

KEYS = 100
USERS, PRICES = 97, 1000
MANY, VALUES = 50_021, 1000
GAP_S, TUMBLING_S, WITHIN_S = 2, 5, 3
PAID_US = 200_000  # from an order to its payment
AGGREGATES = 8
CHUNK = 1_000_000
LINE = '{{"key": {key}, "number": {number}, "user": "user-{user}", "page": "https://example.org/pages/{key}", "price": {price}.25}}\n'
TIME = pa.timestamp("us", tz="UTC")
Read = Mapping[str, Sequence[int]]  # of each source, how many rows of each split were read


@dataclass(frozen=True, slots=True)
class Written:
    """What a system committed, by sink: of updates the last count of each key, by its number; of results `rows` and `sum`."""

    counts: Mapping[str, Sequence[int]]
    sums: Mapping[str, Mapping[str, int]]

    @classmethod
    def to(cls, folder: Path) -> Written:
        """By Penstock's sinks, to a folder."""
        counts, sums = {}, {}
        for path in folder.glob("*.commits"):
            said = commits(folder, path.stem)
            sums[path.stem] = {what: sum(each[what] for each in said) for what in ("rows", "sum")}
            noted = updates(folder, path.stem)
            last = np.zeros(int(noted[:, 0].max()) + 1 if len(noted) else 0, np.int64)
            last[noted[:, 0]] = noted[:, 1]  # those of a key are in order: the last one stays
            counts[path.stem] = last.tolist()
        return cls(counts, sums)


@dataclass(frozen=True)
class Load:
    """A pipeline of the sweep. `timed`: the sink of updates by which rows are timed."""

    build: Callable[[Schedule, Path], pen.Pipeline]
    wrong: Callable[[Schedule, Written, Read], str]
    timed: str | None = None
    fed: bool = False  # by files that another process writes


def schema(*names: str) -> pa.Schema:
    """Columns that are never null: `at` is a time, the others are numbers."""
    return pa.schema([pa.field(name, TIME if name == "at" else pa.int64(), nullable=False) for name in names])


def numbers(positions: Sequence[int]) -> Iterator[Numbers]:
    """The numbers of all rows that were read of a source, a piece at a time."""
    for split, end in enumerate(positions):
        for first in range(0, end, CHUNK):
            yield np.arange(first, min(first + CHUNK, end), dtype=np.int64) * SPLITS + split


def histogram(values: Iterable[Numbers], keys: int) -> Numbers:
    """How often each key comes."""
    total = np.zeros(keys, np.int64)
    for each in values:
        total += np.bincount(each, minlength=keys)
    return total


def wrong_counts(written: Written, sink: str, wanted: Numbers) -> str:
    """What is wrong with the last count of each key."""
    last = written.counts.get(sink, ())
    found = np.zeros(max(len(wanted), len(last)), np.int64)
    found[: len(last)] = last
    bad = int((found != np.pad(wanted, (0, len(found) - len(wanted)))).sum())
    return (
        f"{sink}: {bad} of {len(wanted)} counts differ, {found.sum()} rows were counted instead of {wanted.sum()}; "
        if bad
        else ""
    )


def wrong_sums(written: Written, sink: str, *, rows: int | None = None, total: int | None = None) -> str:
    """What is wrong with the number of results, and with the sum of their counts."""
    said = written.sums.get(sink, {})
    wanted = {"rows": rows, "sum": total}
    return "".join(
        f"{sink}: {what} {said.get(what, 0)} instead of {value}; "
        for what, value in wanted.items()
        if value is not None and said.get(what, 0) != value
    )


def count(schedule: Schedule, folder: Path) -> pen.Pipeline:
    """A running count."""
    source = Steady("rows", schema("key"), lambda number, _: {"key": number % KEYS}, schedule, folder)
    counted = pen.Pipeline("count").read(source).key_by("key").aggregate(n=pen.count(), name="counts")
    return counted.write(Gathered(folder, "counts", "key"))


def wrong_count(schedule: Schedule, written: Written, read: Read) -> str:
    """Each key has been counted as often as it came."""
    return wrong_counts(written, "counts", histogram((each % KEYS for each in numbers(read["rows"])), KEYS))


def trades(number: Numbers, schedule: Schedule) -> dict[str, Any]:
    """Rows of `aggregates`."""
    return {"user": number * 7919 % USERS, "price": number * 37 % PRICES, "at": schedule.event_us(number)}


def aggregates(schedule: Schedule, folder: Path) -> pen.Pipeline:
    """Sixteen aggregates of one stream."""
    pipeline = pen.Pipeline("aggregates")
    stream = pipeline.read(Steady("rows", schema("user", "price", "at"), trades, schedule, folder)).with_watermark(
        "at", delay="1s"
    )
    for k in range(AGGREGATES):
        windows = stream.filter(f"price > {k}").key_by("user").window(pen.tumbling(f"{k + 1}s"))
        windows.aggregate(n=pen.count(), high="max(price)", name=f"w{k}").write(Gathered(folder, f"w{k}"))
        stream.key_by("price").aggregate(n=pen.count(), name=f"r{k}").write(Gathered(folder, f"r{k}", "price"))
    return pipeline


def wrong_aggregates(schedule: Schedule, written: Written, read: Read) -> str:
    """Each window and each running count has its rows."""
    prices = histogram((each * 37 % PRICES for each in numbers(read["rows"])), PRICES)
    return "".join(
        wrong_sums(written, f"w{k}", total=int(prices[k + 1 :].sum())) + wrong_counts(written, f"r{k}", prices)
        for k in range(AGGREGATES)
    )


def visits(number: Numbers, schedule: Schedule) -> dict[str, Any]:
    """Rows of `sessions`."""
    return {"user": number * 7919 % MANY, "v": number % VALUES, "at": schedule.event_us(number)}


def sessions(schedule: Schedule, folder: Path) -> pen.Pipeline:
    """Sessions of many keys, a count in windows, and duplicates dropped."""
    pipeline = pen.Pipeline("sessions")
    stream = pipeline.read(Steady("rows", schema("user", "v", "at"), visits, schedule, folder)).with_watermark("at", delay="1s")
    by_user = stream.key_by("user").window(pen.session(f"{GAP_S}s"))
    by_user.aggregate(n=pen.count(), name="sessions").write(Gathered(folder, "sessions"))
    windows = stream.key_by("v").window(pen.tumbling(f"{TUMBLING_S}s"))
    windows.aggregate(n=pen.count(), name="windows").write(Gathered(folder, "windows"))
    stream.drop_duplicates("v", within=f"{WITHIN_S}s", name="first").write(Gathered(folder, "first"))
    return pipeline


def wrong_sessions(schedule: Schedule, written: Written, read: Read) -> str:
    """Sessions and windows have all rows, and there are as many sessions and as many first rows as there should be."""
    rows = sum(read["rows"])
    number = np.concatenate([np.zeros(0, np.int64), *numbers(read["rows"])])
    return (
        wrong_sums(written, "sessions", rows=sessions_of(schedule, number), total=rows)
        + wrong_sums(written, "windows", total=rows)
        + wrong_sums(written, "first", rows=first_of(schedule, read["rows"]))
    )


def sessions_of(schedule: Schedule, number: Numbers) -> int:
    """How many sessions rows make: one begins with each row that is a gap or more behind the row of its key before it."""
    user, at = number * 7919 % MANY, schedule.event_us(number)
    order = np.lexsort((at, user))
    user, at = user[order], at[order]
    return int(((np.diff(user, prepend=-1) != 0) | (np.diff(at, prepend=0) >= GAP_S * US)).sum())


def first_of(schedule: Schedule, positions: Sequence[int]) -> int:
    """How many rows are no duplicates of one before them. All rows of a value are in one split, in order."""
    kept = 0
    for value in range(VALUES):
        split = value % SPLITS
        at = schedule.event_us(np.arange(value, positions[split] * SPLITS, VALUES))
        row = 0
        while row < len(at):
            kept += 1
            row = int(np.searchsorted(at, at[row] + WITHIN_S * US, side="right"))
    return kept


def interval(schedule: Schedule, folder: Path) -> pen.Pipeline:
    """Orders with their payments."""
    half = half_of(schedule)
    pipeline = pen.Pipeline("interval")
    orders = pipeline.read(
        Steady("orders", schema("id", "at"), lambda number, half: {"id": number, "at": half.event_us(number)}, half, folder)
    )
    payments = pipeline.read(
        Steady(
            "payments",
            schema("of", "at"),
            lambda number, half: {"of": number, "at": half.event_us(number) + PAID_US},
            half,
            folder,
        )
    )
    both = orders.with_watermark("at", delay="1s").join(
        payments.with_watermark("at", delay="1s"), on={"id": "of"}, within=("0s", "1s"), name="paid"
    )
    both.select("id").write(Gathered(folder, "paid"))
    return pipeline


def half_of(schedule: Schedule) -> Schedule:
    """For each of two streams."""
    return Schedule(None if schedule.rate is None else schedule.rate / 2, schedule.warm_s, schedule.seconds)


def wrong_interval(schedule: Schedule, written: Written, read: Read) -> str:
    """Each order has met its payment, if both were read."""
    return wrong_sums(written, "paid", rows=sum(map(min, read["orders"], read["payments"])))


class SendLater(pen.ProcessFunction):
    """Counts rows of a key, and sends the count a second after the first of them."""

    n = pen.ValueState(int, default=0)

    def on_row(self, row: Any, ctx: pen.Context) -> None:
        before = self.n.get()
        self.n.set(before + 1)
        if before == 0:
            ctx.set_timer("send", after="1s")

    def on_timer(self, timer: pen.Timer, ctx: pen.Context) -> Iterator[dict[str, int]]:
        yield {"n": self.n.get()}
        self.n.clear()


def function(schedule: Schedule, folder: Path) -> pen.Pipeline:
    """A function of the user's, with state and timers."""
    pipeline = pen.Pipeline("function")
    source = Steady(
        "rows",
        schema("key", "at"),
        lambda number, schedule: {"key": number % VALUES, "at": schedule.event_us(number)},
        schedule,
        folder,
    )
    keyed = pipeline.read(source).with_watermark("at", delay="1s").key_by("key")
    keyed.process(SendLater(), name="later", schema="n bigint").write(Gathered(folder, "later"))
    return pipeline


def wrong_function(schedule: Schedule, written: Written, read: Read) -> str:
    """What was sent adds up to the rows."""
    return wrong_sums(written, "later", total=sum(read["rows"]))


def files(schedule: Schedule, folder: Path) -> pen.Pipeline:
    """A running count of lines from a watched folder; a file at a time, so rows come in order."""
    (folder / "in").mkdir()
    source = sources.files(folder / "in", schema="key bigint not null", format="json", watch="100ms", splits=1, name="lines")
    counted = pen.Pipeline("files").read(source).key_by("key").aggregate(n=pen.count(), name="counts")
    return counted.write(Gathered(folder, "counts", "key"))


def wrong_files(schedule: Schedule, written: Written, read: Read) -> str:
    """Each key has been counted as often as it was written; `read` says how many lines were."""
    (lines,) = read["lines"]
    return wrong_counts(written, "counts", histogram([np.arange(lines, dtype=np.int64) % KEYS], KEYS))


def line(number: int) -> str:
    """A line of `files`."""
    return LINE.format(key=number % KEYS, number=number, user=number * 7919 % MANY, price=number * 37 % PRICES)


LOADS = {
    "count": Load(count, wrong_count, timed="counts"),
    "aggregates": Load(aggregates, wrong_aggregates),
    "sessions": Load(sessions, wrong_sessions),
    "interval": Load(interval, wrong_interval),
    "function": Load(function, wrong_function),
    "files": Load(files, wrong_files, timed="counts", fed=True),
}
assert KEYS % SPLITS == VALUES % SPLITS == 0, "the rows of a key come from one split"
assert BASE_US % US == 0
