"""Functions of the user's call `sys.exit()`: of a row, of a batch, in a source. All three in one runner, named by the argument."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import penstock as pen
from penstock import sinks, sources


def each(row: pen.Row) -> int:
    sys.exit(3)


def batch(rows: Any) -> Any:
    raise GeneratorExit


def made(index: int) -> Any:
    sys.exit("no more")


def rows(name: str) -> Any:
    return pen.Pipeline(name).read(sources.memory([{"n": 1}], schema="n bigint"))


RUNNERS: dict[str, Callable[[], Any]] = {
    "local": lambda: pen.Local(restarts=0),
    "micro-batch": lambda: pen.MicroBatch(parallelism=1, restarts=0),
    "continuous": lambda: pen.Continuous(parallelism=1, restarts=0),
}
PIPELINES: dict[str, Callable[[], pen.Pipeline]] = {
    "row": lambda: rows("row").map(each).write(sinks.memory("row")),
    "batch": lambda: rows("batch").map_batches(batch, schema="n bigint").write(sinks.memory("batch")),
    "source": lambda: (
        pen.Pipeline("source").read(sources.generate(made, schema="n bigint", rows=1)).write(sinks.memory("source"))
    ),
}


if __name__ == "__main__":
    for kind, pipeline in PIPELINES.items():
        try:
            pipeline().run(RUNNERS[sys.argv[1]]())
        except pen.JobError as error:
            print(f"{kind}: {error}", flush=True)
