"""One epoch as one Spark job: what runs inside `mapInArrow`, in MicroBatch and in Batch.

    ticks -> mapInArrow(level 0) -> [repartitionById(tasks, target) -> mapInArrow(level k)]* -> collect

Stages are sorted into levels by how many exchanges lie before them. Partition i of level k runs task i of every stage of that
level, from the newest checkpoint to the epoch's barrier, and is then gone. A line of levels, never a tree: Spark would run a
stage twice for two readers. What travels between levels is in `spark.mail`, a task's way through its epoch in `spark.epochtask`.

1. Spark may run a task again, and others may have read its first output. Each run draws a uid and names the uids it read; the
   coordinator refuses a mixture.
2. An error in a task is a report as well, sent to every partition: deeper levels then do nothing. Spark's own retries are for
   lost processes; what failed by itself would fail again.
"""

from __future__ import annotations

import gc
import traceback
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa

from penstock.passing import fate_of
from penstock.plan.physical import Stage
from penstock.runners.memory import keep_memory
from penstock.runners.spark import frames
from penstock.runners.spark.epochtask import EpochTask
from penstock.runners.spark.mail import FAILURES, FRAME_ROWS, Inbox, Outbox
from penstock.runners.spark.orders import EpochOrder, Facts, Report
from penstock.runtime.wiring import task_name
from penstock.state.runfile import forget_validated
from penstock.tracebacks import describe

__all__ = ["run_epoch"]


def run_epoch(ticks: Any, facts: Any, order: EpochOrder, *, levels: int, parallelism: int) -> list[Report]:
    """In the driver: run the job and hear what all tasks report.

    Args:
        ticks: a DataFrame with one row per task, its number, in a partition of its own.
        facts: a broadcast of a token that nobody else uses, and `Facts`, pickled.
    """
    rows = ticks
    for level in range(levels):
        if level:
            rows = rows.repartitionById(parallelism, "target")
        rows = rows.mapInArrow(Level(facts, order if level == 0 else replace(order, splits=()), level), FRAME_ROWS)
    reports = []
    for row in rows.select("payload").collect():
        (frame,) = frames.Decoder().feed(bytes(row[0]))
        reports.append(Report.from_json(frames.control_of(frame)))
    return reports


# --- in a Python worker -------------------------------------------------------------------------------------------------------

_facts: dict[str, Facts] = {}


def facts_of(broadcast: Any) -> Facts:
    """The attempt's facts, unpickled once per worker."""
    token, data = broadcast.value
    if token not in _facts:
        if len(_facts) >= 4:  # several jobs may share a worker
            del _facts[next(iter(_facts))]
        from pyspark.serializers import CloudPickleSerializer  # user functions travel by Spark's own means, and only so

        _facts[token] = CloudPickleSerializer().loads(data)
        forget_validated()  # a new attempt: what it restores from is read anew
        # Spark collects garbage after every task, while the next one waits. What is there now stays, and need not be looked at again.
        gc.unfreeze()
        gc.collect()
        gc.freeze()
    return _facts[token]


class Level:
    """The function of one `mapInArrow`."""

    def __init__(self, facts: Any, order: EpochOrder, level: int) -> None:
        self._facts, self._order, self._level = facts, order, level

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        keep_memory()
        facts = facts_of(self._facts)
        outbox = Outbox()
        if self._level == 0:
            (index,) = [task for batch in batches for task in batch.column(0).to_pylist()]
            inbox = Inbox(facts, 0)
        else:
            inbox = Inbox(facts, self._level)
            yield from inbox.take_in(batches)
            index = inbox.target
        if not inbox.failed:
            stages = [stage for stage in facts.plan.stages if stage.level == self._level]
            for stage in stages:
                yield from self._run(facts, stage, index, inbox, outbox)
        yield from outbox.flush()

    def _run(self, facts: Facts, stage: Stage, index: int, inbox: Inbox, outbox: Outbox) -> Iterator[pa.RecordBatch]:
        seat: EpochTask | None = None
        try:
            facts.sign.check_once()
            seat = EpochTask(facts, self._order, stage, index, outbox)
            yield from seat.play(inbox)
        except Exception as error:
            failure = Report(
                task_name(stage.id, index),
                "failed",
                error=describe(error),
                fate=fate_of(error).value,
                trace=traceback.format_exc(),
            )
            for target in range(facts.parallelism):
                outbox.report(target, FAILURES, stage.id, failure)
        finally:
            if seat is not None:
                seat.close()
