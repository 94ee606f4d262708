"""A job whose pipeline has changed goes on from its newest checkpoint as the error says: the fixes that it proposes work."""

from __future__ import annotations

import time
from typing import Any

import penstock as pen
from penstock import sinks, sources


def counts(step: str, rows: int | None = None) -> pen.Pipeline:
    """Numbers counted by a step of this name."""
    numbers = sources.generate(
        lambda i, seed: {"k": i % 3, "at": i * 1000}, schema="k bigint, at timestamp", rate=1000, rows=rows
    )
    timed = pen.Pipeline("j").read(numbers).with_watermark("at", delay="1s")
    stream = timed.key_by("k").aggregate(s=pen.count(), name=step)
    return stream.write(sinks.memory("x"))


def go(label: str, pipeline: pen.Pipeline, storage: str, **options: Any) -> None:
    """Start, look after a moment, and stop."""
    try:
        job = pipeline.start(pen.Local(storage=storage, snapshot_every="100ms"), **options)
        time.sleep(0.5)
        state = job.status().state
        job.stop()
        print(label, "-> ok", state)
    except pen.PenstockError as error:
        print(label, "->", type(error).__name__, error)


go("1 first run", counts("old"), "one")
go("2 step renamed", counts("new"), "one")
go("3 renamed, as told", counts("new"), "one", restore=pen.Restore("latest", rename={"old": "new"}))
go("3b the same again", counts("new"), "one", restore=pen.Restore("latest", rename={"old": "new"}))
go("4 another name", counts("newest"), "one")
go("5 dropped, as told", counts("newest"), "one", restore=pen.Restore("latest", drop=["new"]))
counts("a", rows=50).run(pen.Local(storage="two"))
go("6 finished", counts("a", rows=99_999), "two")
go("7 as told", counts("a", rows=99_999), "two", restore=pen.Restore("latest", start_over_time=True))
