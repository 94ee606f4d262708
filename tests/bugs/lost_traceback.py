"""A function of the user's raises: as a udf, in a process function, in a sink. All three in one runner, named by the argument."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import penstock as pen
from penstock import col, sinks, sources


def helper_that_breaks(found: Any) -> int:
    return {"n": found}["boom"]  # type: ignore[no-any-return]


def double(n: int) -> int:
    return helper_that_breaks(n)


class Double(pen.ProcessFunction):
    def on_row(self, row: pen.Row, ctx: pen.Context) -> int:
        return helper_that_breaks(row)


def save(rows: Any, epoch: Any) -> None:
    raise ConnectionError("db down")


def rows(name: str) -> Any:
    return pen.Pipeline(name).read(sources.memory([{"n": 1}], schema="n bigint"))


RUNNERS: dict[str, Callable[[], Any]] = {
    "local": lambda: pen.Local(restarts=0),
    "micro-batch": lambda: pen.MicroBatch(parallelism=1, restarts=0),
    "continuous": lambda: pen.Continuous(parallelism=1, restarts=0),
}
PIPELINES: dict[str, Callable[[], pen.Pipeline]] = {
    "udf": lambda: rows("udf").select(v=pen.udf(double)(col("n"))).write(sinks.memory("udf")),
    "process": lambda: rows("process").key_by("n").process(Double(), schema="v bigint", name="f").write(sinks.memory("process")),
    "foreach": lambda: rows("foreach").write(sinks.foreach_batch(save)),
}


if __name__ == "__main__":
    for kind, pipeline in PIPELINES.items():
        job = pipeline().start(RUNNERS[sys.argv[1]]())
        try:
            job.wait()
        except pen.JobError as error:
            print(f"{kind}: {error}")
        print(f"{kind} status: {job.status().error}", flush=True)
