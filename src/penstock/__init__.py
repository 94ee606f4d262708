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
    monitor      what people see of a running job
    testing      what users test with, and what Penstock is tested with

Importing this package loads neither pyspark nor a JVM; runners do so when they run.
"""

from __future__ import annotations

from penstock.api import pipeline as _pipeline
from penstock.api.pipeline import Pipeline
from penstock.api.stream import Stream, tumbling
from penstock.connectors.connector import Sink, Source
from penstock.connectors.foreach import Epoch
from penstock.errors import ConfigError, JobError, PenstockError, PlanError, RestoreError, RunnerError
from penstock.expr import Expr, coalesce, col, concat, count, event_time, greatest, least, lit, struct, udf, when
from penstock.functions import Row
from penstock.runners.conductor import Restore, Status
from penstock.runners.job import Job
from penstock.runners.local import Local

__version__ = "0.1.0"

__all__ = [
    "ConfigError",
    "Epoch",
    "Expr",
    "Job",
    "JobError",
    "Local",
    "PenstockError",
    "Pipeline",
    "PlanError",
    "Restore",
    "RestoreError",
    "Row",
    "RunnerError",
    "Sink",
    "Source",
    "Status",
    "Stream",
    "coalesce",
    "col",
    "concat",
    "count",
    "event_time",
    "greatest",
    "least",
    "lit",
    "struct",
    "tumbling",
    "udf",
    "when",
]
