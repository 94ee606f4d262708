"""Penstock: Flink's guarantees, from Python, on the Spark you already run.

    import penstock as pen
    from penstock import sinks, sources

The package, in the order data flows:

    api          what the user writes: Pipeline, Stream
    expr         expressions and aggregates over columns
    plan         what it means: logical nodes, then stages joined by exchanges
    connectors   where data comes from and goes (public: sources, sinks)
    runtime      what a task is: operators, state and the protocol in one machine
    operators    what a task computes
    protocol     when a task snapshots, and what makes a snapshot count
    state        what a task remembers
    checkpoints  where snapshots live
    runners      who drives the tasks: local, micro-batch, continuous, batch, simulated
    testing      what users test with, and what Penstock is tested with

Importing this package loads neither pyspark nor a JVM nor RocksDB; runners do so when they run.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
from typing import TYPE_CHECKING, Any

from penstock.api import pipeline as _pipeline
from penstock.api.columns import op, pane
from penstock.api.keyed import running, session, sliding, tumbling
from penstock.api.pipeline import Pipeline
from penstock.api.stream import Stream
from penstock.checkpoints.saved import from_savepoint
from penstock.connectors.connector import Sink, Source
from penstock.connectors.foreach import Epoch
from penstock.errors import ConfigError, JobError, PenstockError, PlanError, RestoreError, RetriableError, RunnerError
from penstock.expr import Expr, coalesce, col, concat, count, event_time, greatest, least, lit, struct, udf, when
from penstock.expr import UserAggregate as Aggregate
from penstock.functions import Row
from penstock.policy import retry
from penstock.processing.function import Context, ProcessFunction, Timer
from penstock.processing.output import Output
from penstock.processing.states import (
    AggregatingState,
    BroadcastState,
    ListState,
    MapState,
    ReducingState,
    ValueState,
)
from penstock.runners.control import attach
from penstock.runners.job import Job
from penstock.runners.local import Local
from penstock.runners.restoring import Restore
from penstock.runners.status import Status
from penstock.state.backend import RocksDB
from penstock.windows import WindowShape

if TYPE_CHECKING:
    from penstock.runners.batch import Batch
    from penstock.runners.continuous.driver import Continuous
    from penstock.runners.microbatch import MicroBatch

__version__ = "0.1.0"

__all__ = [
    "Aggregate",
    "AggregatingState",
    "Batch",
    "BroadcastState",
    "ConfigError",
    "Context",
    "Continuous",
    "Epoch",
    "Expr",
    "Job",
    "JobError",
    "ListState",
    "Local",
    "MapState",
    "MicroBatch",
    "Output",
    "PenstockError",
    "Pipeline",
    "PlanError",
    "ProcessFunction",
    "ReducingState",
    "Restore",
    "RestoreError",
    "RetriableError",
    "RocksDB",
    "Row",
    "RunnerError",
    "Sink",
    "Source",
    "Status",
    "Stream",
    "Timer",
    "ValueState",
    "WindowShape",
    "attach",
    "coalesce",
    "col",
    "concat",
    "count",
    "event_time",
    "from_savepoint",
    "greatest",
    "least",
    "lit",
    "op",
    "pane",
    "retry",
    "running",
    "session",
    "sliding",
    "struct",
    "tumbling",
    "udf",
    "when",
]

_LATER = {
    "Batch": "penstock.runners.batch",
    "Continuous": "penstock.runners.continuous.driver",
    "MicroBatch": "penstock.runners.microbatch",
}
"""Public names that are imported when they are first used."""


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(importlib.import_module(_LATER[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def without_spark() -> bool:
    """Whether pyspark is missing. Who asks is about to choose a runner, so it is said what that means."""
    if importlib.util.find_spec("pyspark") is not None:
        return False
    logging.getLogger("penstock").warning(
        'pyspark is not installed, so this runs locally, in this process, as pen.Local(). On Spark: pip install "penstock[spark]"'
    )
    return True


def _default_runner() -> Any:
    return Local() if without_spark() else __getattr__("MicroBatch")()


_pipeline.default_runner = _default_runner
