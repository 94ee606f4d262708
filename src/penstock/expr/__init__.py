"""Expressions and aggregates: what users write, what it means, and how it is computed on Arrow batches.

Read in this order: `nodes` (what was written), `promote` and `resolve` (what it means for a schema; `mending` is what to write
where types do not fit), `rowwise`, `casts`, `kernels` and `evaluate` (how it is computed, and which rows are bad). Then aggregates:
`aggregates` (what there is), `accumulators` (how they are computed in pieces), `build` (which pieces each has):
`folds`, `slots`, `sketches`, `udaf`, and for rows that can be taken back `signed` and `multiset`. `expressions` is the
part users hold; `sql` reads the same trees from text; `udf` puts Python functions into them. `comparing` tells what a condition
compares.
"""

from __future__ import annotations

from penstock.expr.accumulators import CHANGE, ROWS, Accumulators
from penstock.expr.aggregates import Aggregate, SumOverflow, count
from penstock.expr.comparing import comparisons
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
from penstock.expr.sql import parse, parse_order
from penstock.expr.sql_aggregates import parse_aggregate
from penstock.expr.udaf import AggregateFailed, UserAggregate

__all__ = [
    "CHANGE",
    "EVENT_TIME",
    "ROWS",
    "Accumulators",
    "Aggregate",
    "AggregateFailed",
    "Evaluated",
    "Evaluator",
    "Expr",
    "SumOverflow",
    "UserAggregate",
    "coalesce",
    "col",
    "comparisons",
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
    "parse_order",
    "struct",
    "udf",
    "when",
]
