"""Two scripted inputs through one plan: rows of both, watermarks and barriers in a given order, cut into batches in any way, with
new tasks restored in the middle. What came out is looked at after every watermark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

import penstock as pen
from runtime.rig import Collect, Hand, Rig, table

S = 1_000_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64()), ("at", pa.timestamp("us", tz="UTC"))])

Row = dict[str, Any]
Step = tuple[str, Any]  # ("l", row), ("r", row), ("watermark", time), ("barrier", None)
Build = Callable[[pen.Stream, pen.Stream, Callable[[str], Collect]], None]


@dataclass
class Ran:
    """What came out: rows by sink, how many there were after each watermark (and at the end), and the counters."""

    sinks: dict[str, Collect]
    marks: list[tuple[int, dict[str, int]]]  # (watermark, rows by sink)
    counters: Counter[str]

    def rows(self, sink: str = "out") -> list[Row]:
        return [plain(row) for row in self.sinks[sink].rows]


def plain(row: Row) -> Row:
    """Times as microseconds."""
    return {name: micros(value) if isinstance(value, datetime) else value for name, value in row.items()}


def micros(time: datetime) -> int:
    return (time - EPOCH) // timedelta(microseconds=1)


def counted(rows: list[Row]) -> Counter[Any]:
    """Rows as a multiset; of rows that can be withdrawn, the net of it."""
    total: Counter[Any] = Counter()
    for row in rows:
        total[tuple((name, repr(value)) for name, value in sorted(row.items()) if name != "change")] += row.get("change", 1)
    return Counter({row: n for row, n in total.items() if n})


def run(build: Build, script: list[Step], cuts: list[int] = (), parallelisms: tuple[int, ...] = (1,), timed: bool = True) -> Ran:
    """One run. `cuts`: numbers that say how rows are batched; none: one by one."""
    p = pen.Pipeline("test")
    sinks: dict[str, Collect] = {}
    sides = [p.read(Hand(name=name, schema=SCHEMA)) for name in ("left", "right")]
    if timed:
        sides = [side.with_watermark("at", delay="0s") for side in sides]
    build(*sides, lambda name: sinks.setdefault(name, Collect(name)))
    plan = p.plan()
    rig = Rig(plan, parallelisms[0], own_time=True)
    ran = Ran(sinks, [], Counter())
    legs, epoch, position, used = list(parallelisms[1:]), 0, {"l": 0, "r": 0}, 0
    turns = {len(script) * (n + 1) // len(parallelisms) for n in range(len(legs))}
    waiting: list[Step] = []

    def flush() -> None:
        nonlocal used
        while waiting:
            side = waiting[0][0]
            size = (1, 1, 2, 3, 100)[cuts[used % len(cuts)] % 5] if cuts else 1
            used += 1
            count = 0
            while count < min(size, len(waiting)) and waiting[count][0] == side:
                count += 1
            batch = table([row for _, row in waiting[:count]], SCHEMA)
            del waiting[:count]
            position[side] += count
            rig.feed(batch, position[side], source={"l": "left", "r": "right"}[side])

    for number, (what, value) in enumerate(script):
        if number in turns and legs:
            flush()
            epoch += 1
            cut = rig.barrier(epoch)
            ran.counters.update(rig.counters())
            rig = Rig(plan, legs.pop(0), cut=cut, files=rig.files, own_time=True)
        if what in ("l", "r"):
            waiting.append((what, value))
            continue
        flush()
        if what == "watermark":
            rig.watermark(value)
            ran.marks.append((value, {name: len(sink.rows) for name, sink in sinks.items()}))
        else:
            epoch += 1
            rig.barrier(epoch)
    flush()
    rig.end()
    ran.marks.append((2**63 - 1, {name: len(sink.rows) for name, sink in sinks.items()}))
    rig.barrier(epoch + 1)
    ran.counters.update(rig.counters())
    ran.counters["kept"] = kept(rig)
    return ran


def kept(rig: Rig) -> int:
    """Rows of state left at the end."""
    tables = [s for t in rig.tasks.values() for op in t._ops.values() for s in op.states.values() if hasattr(s, "scan")]
    return sum(batch.num_rows for each in tables for batch in each.scan())


TIMES = st.integers(-8, 40).map(lambda n: n * S // 2) | st.sampled_from([0, -1, 1, 5 * S - 1, 5 * S, 10 * S - 1])


@st.composite
def scripts(draw: st.DrawFn, keys: tuple[str | None, ...] = (None, "a", "b"), size: int = 22) -> list[Step]:
    """Rows of both sides (numbered, so that each is told apart), watermarks that only grow, barriers."""
    steps: list[Step] = []
    now = -6 * S
    for number in range(draw(st.integers(0, size))):
        side = draw(st.sampled_from("lr"))
        steps.append((side, {"k": draw(st.sampled_from(keys)), "v": number, "at": draw(TIMES)}))
        if draw(st.integers(0, 3)) == 0:
            now += draw(st.sampled_from([1, S // 2, S, 4 * S, 5 * S - 1, 9 * S]))
            steps.append(("watermark", now))
        if draw(st.integers(0, 8)) == 0:
            steps.append(("barrier", None))
    return steps


CUTS = st.lists(st.integers(0, 4), min_size=1, max_size=12)
PARALLELISMS = st.sampled_from([(1,), (1, 1), (1, 2, 1), (2, 1), (2, 3, 2)])
