"""Every aggregate beside what plain Python says of the same rows, and ways to compute it in pieces."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from penstock.expr import CHANGE, EVENT_TIME, ROWS, Accumulators, Aggregate, col, count

Row = dict[str, Any]
Reference = Callable[[list[Row]], Any]

SCHEMA = pa.schema(
    {
        "k": pa.int64(),
        "n": pa.int64(),
        "x": pa.float64(),
        "d": pa.decimal128(10, 2),
        "s": pa.string(),
        "b": pa.bool_(),
        "day": pa.date32(),
        "p": pa.struct({"a": pa.int64(), "c": pa.string()}),
        EVENT_TIME: pa.timestamp("us", "UTC"),
    }
)

values = {
    "k": st.integers(0, 3),
    "n": st.one_of(st.none(), st.integers(-20, 20), st.sampled_from([2**63 - 1, -(2**63)])),
    "x": st.one_of(st.none(), st.integers(-16, 16).map(lambda i: i / 8), st.sampled_from([math.nan, -0.0, math.inf, 0.1, 1e16])),
    "d": st.one_of(st.none(), st.integers(-500, 500).map(lambda i: Decimal(i).scaleb(-2))),
    "s": st.one_of(st.none(), st.sampled_from(["a", "b", "zz", "", "ä"])),
    "b": st.one_of(st.none(), st.booleans()),
    "day": st.one_of(st.none(), st.integers(1, 5).map(lambda i: date(2026, 1, i))),
    "p": st.one_of(st.none(), st.sampled_from([{"a": a, "c": c} for a in (0, 1) for c in ("x", None)])),
    EVENT_TIME: st.integers(0, 5).map(lambda i: datetime(2026, 1, 1, i, tzinfo=UTC)),
}
row = st.fixed_dictionaries(values)
rows = st.lists(row, max_size=25)
COLUMNS = ("n", "x", "d", "s", "b", "day", "p")
NUMBERS = ("n", "x", "d")
COMPARED = ("n", "x", "d", "s", "b", "day")


def order(value: Any) -> Any:
    """NaN is the greatest and -0.0 is below 0.0; null is below all; structs go by their text."""
    if value is None:
        return (0,)
    if isinstance(value, dict):
        return (1, repr(value))
    if isinstance(value, float):
        return (1, math.isnan(value), 0 if math.isnan(value) else value, math.copysign(1, value))
    return (1, value)


def known(name: str, found: Iterable[Row]) -> list[Any]:
    return [one[name] for one in found if one[name] is not None]


def exact(found: list[Any]) -> float:
    """The nearest double to a sum."""
    if any(isinstance(value, float) and not math.isfinite(value) for value in found):
        return sum(found)
    return float(sum(map(Fraction, found)))


def variance(found: list[Any], ddof: int) -> float | None:
    if len(found) <= ddof:
        return None
    if any(isinstance(value, float) and not math.isfinite(value) for value in found):
        return math.nan
    mean = statistics.mean(map(Fraction, found))
    return float(sum((Fraction(value) - mean) ** 2 for value in found) / (len(found) - ddof))


def root(found: float | None) -> float | None:
    return None if found is None else math.sqrt(found)


def different(found: list[Any]) -> int:
    return len({order(value + 0.0 if isinstance(value, float) else value) for value in found})


def quantile(found: list[Any], share: float) -> float | None:
    found = sorted(float(value) + 0.0 for value in found if not math.isnan(value))
    return found[max(math.ceil(share * len(found)), 1) - 1] if found else None


def edge(name: str, last: bool, ignore_nulls: bool) -> Reference:
    def reference(found: list[Row]) -> Any:
        found = [one for one in found if not ignore_nulls or one[name] is not None]
        if not found:
            return None
        if last:
            found = found[::-1]
        pick = max if last else min
        return pick(found, key=lambda one: one[EVENT_TIME])[name]

    return reference


def everything() -> dict[str, tuple[Aggregate, Reference]]:
    """Each aggregate with its reference. Where order matters, rows are in the order they came."""
    made: dict[str, tuple[Aggregate, Reference]] = {
        "rows": (count(), len),
        "rows_where": (count(where=col("b")), lambda f: sum(1 for one in f if one["b"])),
    }
    for name in NUMBERS:
        made[f"var_{name}"] = (col(name).variance(), lambda f, c=name: variance(known(c, f), 1))
        made[f"var_pop_{name}"] = (col(name).variance(ddof=0), lambda f, c=name: variance(known(c, f), 0))
        made[f"std_{name}"] = (col(name).stddev(), lambda f, c=name: root(variance(known(c, f), 1)))
        made[f"q_{name}"] = (col(name).quantile(0.5, approx=False), lambda f, c=name: quantile(known(c, f), 0.5))
        made[f"qs_{name}"] = (
            col(name).quantile([0, 0.25, 1], approx=False),
            lambda f, c=name: None if quantile(known(c, f), 0) is None else [quantile(known(c, f), q) for q in (0, 0.25, 1)],
        )
    for name in COMPARED:
        made[f"min_{name}"] = (col(name).min(), lambda f, c=name: min(known(c, f), key=order, default=None))
        made[f"max_{name}"] = (col(name).max(), lambda f, c=name: max(known(c, f), key=order, default=None))
        made[f"top_{name}"] = (col(name).top_k(2), lambda f, c=name: sorted(known(c, f), key=order, reverse=True)[:2])
    for name in COLUMNS:
        made[f"count_{name}"] = (col(name).count(), lambda f, c=name: len(known(c, f)))
        made[f"distinct_{name}"] = (col(name).count_distinct(), lambda f, c=name: different(known(c, f)))
        made[f"collect_{name}"] = (col(name).collect(), lambda f, c=name: known(c, f))
        for last in (False, True):
            for ignore in (False, True):
                method = getattr(col(name), "last" if last else "first")
                made[f"{'last' if last else 'first'}_{name}_{ignore}"] = (method(ignore_nulls=ignore), edge(name, last, ignore))
    for label, aggregate, reference in [
        ("top", col("n").top_k(3, where=col("b")), lambda f: sorted(known("n", f), reverse=True)[:3]),
        ("first", col("n").first(where=col("b")), edge("n", False, False)),
        ("collect", col("s").collect(where=col("b")), lambda f: known("s", f)),
        ("distinct", col("s").count_distinct(where=col("b")), lambda f: different(known("s", f))),
        ("var", col("d").variance(where=col("b")), lambda f: variance(known("d", f), 1)),
    ]:
        made[f"{label}_where"] = (aggregate, lambda f, r=reference: r([one for one in f if one["b"]]))
    return made


def close(found: Any, wanted: Any) -> bool:
    """Equal, with NaN equal to itself and -0.0 different from 0.0; floats up to rounding."""
    if isinstance(wanted, list) and isinstance(found, list):
        return len(found) == len(wanted) and all(map(close, found, wanted))
    if isinstance(wanted, float) and isinstance(found, float):
        if math.isnan(wanted) or math.isnan(found):
            return math.isnan(wanted) and math.isnan(found)
        same_zero = math.copysign(1, found) == math.copysign(1, wanted)
        return same_zero if found == wanted == 0 else math.isclose(found, wanted, rel_tol=1e-9, abs_tol=1e-9)
    return bool(found == wanted) and type(found) is type(wanted)


def batch_of(found: Sequence[Row], schema: pa.Schema = SCHEMA, signs: Sequence[int] | None = None) -> pa.RecordBatch:
    batch = pa.RecordBatch.from_pylist(list(found), schema=schema)
    if signs is None:
        return batch
    return batch.append_column(pa.field(CHANGE, pa.int8(), nullable=False), pa.array(signs, pa.int8()))


def folded(acc: Accumulators, pieces: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Pieces put into a state one after the other by `combine`, as an operator does it."""
    state: dict[Any, pa.RecordBatch] = {}
    fields = [field.name for field in acc.fields] + [ROWS]
    for piece in pieces:
        keys = piece.column("k").to_pylist()
        nothing = pa.RecordBatch.from_arrays([pa.nulls(1, f.type) for f in piece.select(fields).schema], names=fields)
        olds = [state.get(key, nothing).select(fields) for key in keys]
        if not keys:
            continue
        old = pa.Table.from_batches([pa.RecordBatch.from_arrays(one.columns, names=fields) for one in olds])
        old = old.combine_chunks().to_batches()[0]
        merged = acc.combine(old, np.array([key in state for key in keys]), piece.select(fields))
        whole = merged.append_column("k", pa.array(keys, pa.int64()))
        state |= {key: whole.slice(index, 1) for index, key in enumerate(keys)}
    if not state:
        return acc.partial(batch_of([]) if CHANGE not in acc_schema(acc) else batch_of([], signs=[]), ["k"])[0]
    return pa.Table.from_batches(list(state.values())).combine_chunks().to_batches()[0]


def acc_schema(acc: Accumulators) -> list[str]:
    return [CHANGE] if acc._retract else []


def results(acc: Accumulators, found: pa.RecordBatch) -> dict[Any, dict[str, Any]]:
    columns = acc.finish(found)
    names = [field.name for field in acc.results]
    for field, column in zip(acc.results, columns, strict=True):
        assert column.type == field.type, f"{field.name}: {column.type}"
        assert field.nullable or not column.null_count, f"{field.name} has a null"
    lists = zip(*(column.to_pylist() for column in columns))
    return {key: dict(zip(names, values)) for key, values in zip(found.column("k").to_pylist(), lists, strict=True)}


def by_key(found: Iterable[Row]) -> dict[Any, list[Row]]:
    groups: dict[Any, list[Row]] = {}
    for one in found:
        groups.setdefault(one["k"], []).append(one)
    return groups
