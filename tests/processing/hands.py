"""Rows fed by hand through one process function, for tests of single things."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa

import penstock as pen
from penstock.protocol.messages import TimeReached
from runtime.rig import Collect, Cut, Hand, Rig, table
from unplaced import unplaced

S = 1_000_000
SCHEMA = pa.schema([("k", pa.string()), ("n", pa.int64()), ("at", pa.timestamp("us", tz="UTC"))])
Rows = list[tuple[str | None, int | None, int]]  # key, number, seconds


class Feed:
    """A step `it` over rows (k, n, at), and over a second input if there is one: "keyed" or "broadcast"."""

    def __init__(
        self,
        build: pen.ProcessFunction | Callable[[pen.KeyedStream], pen.Stream],
        *,
        parallelism: int = 1,
        second: str | None = None,
        on_error: str = "dead-letter",
        timed: bool = True,
        **options: Any,
    ) -> None:
        p = pen.Pipeline("test", on_error=on_error)
        inputs = [p.read(Hand(name=name, schema=SCHEMA)) for name in ("left", "right")[: 2 if second else 1]]
        keyed = [(each.with_watermark("at", delay="0s") if timed else each).key_by("k") for each in inputs]
        if not isinstance(build, pen.ProcessFunction):
            made = build(keyed[0])
        elif second is None:
            made = keyed[0].process(build, name="it", **options)
        else:
            other = keyed[1] if second == "keyed" else inputs[1].broadcast()
            made = keyed[0].connect(other).process(build, name="it", **options)
        self.sinks = {"main": Collect("main"), "dead": Collect("dead")}
        made.write(self.sinks["main"])
        if isinstance(build, pen.ProcessFunction):
            for name, value in vars(type(build)).items():
                if isinstance(value, pen.Output):
                    made.side(name).write(self.sinks.setdefault(name, Collect(name)))
        if on_error == "dead-letter":
            p.dead_letters.write(self.sinks["dead"])
        self.plan = p.plan()
        self.rig = Rig(self.plan, parallelism, own_time=True)
        self.position, self.epoch = 0, 0

    def rows(self, *rows: tuple[str | None, int | None, int], to: str = "left") -> Feed:
        """Rows in one batch."""
        self.position += len(rows)
        batch = table([{"k": k, "n": n, "at": at * S} for k, n, at in rows], SCHEMA)
        self.rig.feed(batch, self.position, source=to)
        return self

    def watermark(self, seconds: int) -> Feed:
        self.rig.watermark(seconds * S)
        return self

    def tick(self, seconds: int) -> Feed:
        for task in self.rig.tasks.values():
            if task.clocked:
                self.rig.tell(task, TimeReached(seconds * S))
        return self

    def restore(self, parallelism: int = 1) -> Feed:
        """New tasks from a snapshot."""
        self.rig = Rig(self.plan, parallelism, cut=self.cut(), files=self.rig.files, own_time=True)
        return self

    def cut(self) -> Cut:
        self.epoch += 1
        return self.rig.barrier(self.epoch)

    def end(self) -> Feed:
        self.rig.end()
        return self

    def sent(self, sink: str = "main") -> list[Any]:
        """What came since the last look: rows as tuples, or single values."""
        rows: list[Mapping[str, Any]] = list(self.sinks[sink].rows)
        self.sinks[sink].rows.clear()
        return [next(iter(row.values())) if len(row) == 1 else tuple(row.values()) for row in rows]

    def dead(self) -> list[str]:
        """Errors of dead letters since the last look."""
        errors = [unplaced(row["error"]) for row in self.sinks["dead"].rows]
        self.sinks["dead"].rows.clear()
        return errors
