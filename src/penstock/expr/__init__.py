"""Expressions and aggregates: what users write, what it means, and how it is computed on Arrow batches.

Read in this order: `nodes` (what was written), `promote` and `resolve` (what it means for a schema),
`rowwise`, `casts`, `kernels` and `evaluate` (how it is computed, and which rows are bad), `aggregates` and
`accumulators`. `expressions` is the part users hold; `sql` reads the same trees from text; `udf` puts Python
functions into them.
"""

from __future__ import annotations

from penstock.expr.accumulators import ROWS, Accumulators
from penstock.expr.aggregates import Aggregate, SumOverflow, count
from penstock.expr.evaluate import Evaluated, Evaluator, compile, evaluate
from penstock.expr.expressions import (
    Expr,
    coalesce,
    col,
    concat,
    event_time,
    greatest,
    least,
    lit,
    struct,
    udf,
    when,
)
from penstock.expr.nodes import EVENT_TIME
from penstock.expr.sql import parse, parse_aggregate

__all__ = [
    "EVENT_TIME",
    "ROWS",
    "Accumulators",
    "Aggregate",
    "Evaluated",
    "Evaluator",
    "Expr",
    "SumOverflow",
    "coalesce",
    "col",
    "compile",
    "concat",
    "count",
    "evaluate",
    "event_time",
    "greatest",
    "least",
    "lit",
    "parse",
    "parse_aggregate",
    "struct",
    "udf",
    "when",
]
