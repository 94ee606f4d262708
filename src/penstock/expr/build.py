"""Which accumulator columns an aggregate has: the one place that knows all kinds.

Rows that stay (append) have the cheap ones. Rows that can be taken back have signed sums where those are exact, a
multiset where they are not, and a refusal that names the way out where there is neither.
"""

from __future__ import annotations

import pyarrow as pa

from penstock.errors import Fix, PlanError
from penstock.expr.aggregates import Aggregate, keeping_all
from penstock.expr.collected import Collected, Distinct, TopK
from penstock.expr.folds import Folded, folded
from penstock.expr.nodes import EVENT_TIME
from penstock.expr.remaining import multiset, quantile_slots
from penstock.expr.signed import signed
from penstock.expr.sketches import DistinctSketch, QuantileSketch
from penstock.expr.slots import Edge, Moments, Slots, is_root
from penstock.expr.udaf import UserSlots

__all__ = ["build"]

_LINEAR = ("sum", "mean", "variance", "stddev")


def build(name: str, aggregate: Aggregate, schema: pa.Schema, *, retract: bool) -> Folded | Slots:
    """The columns of `aggregate`, called after `name`."""
    if retract:
        return _retractable(name, aggregate, schema)
    options = aggregate.options
    match aggregate.kind:
        case "variance" | "stddev":
            return Moments(name, options[0], is_root(aggregate.kind))
        case "first" | "last":
            last, timed = aggregate.kind == "last", EVENT_TIME in schema.names
            return Edge(name, aggregate.input_type(schema), last=last, timed=timed, ignore_nulls=options[0])
        case "collect":
            return Collected(name, aggregate.input_type(schema))
        case "top_k":
            return TopK(name, aggregate.input_type(schema), options[0])
        case "count_distinct":
            return (
                DistinctSketch(name, aggregate.input_type(schema)) if options[0] else Distinct(name, aggregate.input_type(schema))
            )
        case "quantile":
            return QuantileSketch(name, *options[:2]) if options[2] else quantile_slots(name, aggregate)
        case "user":
            return UserSlots(name, options[0])
    return folded(name, aggregate, schema)


def _retractable(name: str, aggregate: Aggregate, schema: pa.Schema) -> Folded | Slots:
    _check_retractable(aggregate)
    if aggregate.kind == "user":
        return UserSlots(name, aggregate.options[0])
    if aggregate.kind == "quantile":
        return quantile_slots(name, aggregate)
    linear = aggregate.kind in _LINEAR and not pa.types.is_floating(aggregate.input_type(schema))
    if aggregate.kind == "count" or linear:
        return signed(name, aggregate, schema)
    return multiset(name, aggregate, schema, timed=EVENT_TIME in schema.names)


def _check_retractable(aggregate: Aggregate) -> None:
    """Raise a `PlanError` where rows cannot be taken back."""
    fix = None
    if aggregate.is_sketch:
        fix = Fix("retract.sketch", f"Since a sketch forgets its rows, {keeping_all(aggregate)}")
    elif aggregate.kind == "user" and not aggregate.options[0].retracts:
        call = aggregate.options[0]
        takes = ", ".join(("self", "acc", *call.names))
        fix = Fix("retract.user", f"Define the inverse of add in {call.name}: def retract({takes})")
    if fix is not None:
        raise PlanError(f"{aggregate.text()}: its input takes rows back, and it cannot", fix=fix)
