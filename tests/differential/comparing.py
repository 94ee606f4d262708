"""Both sides of a comparison: a form's rows as Penstock computes them, and as Spark does, many forms in one job.

Spark ends a job at the first row that raises. `TryEval`, the expression inside of its own try_ functions, turns an error into null;
around a struct of the value it tells an error (no struct) from a null (a struct of null), row by row.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from differential.forms import Form
from differential.generators import column
from differential.intended import ERROR, INTENDED
from penstock.expr import evaluate, parse
from penstock.schema import type_name

MOST_TRIED = 40_000
CHUNK = 30  # forms in one job of Spark's


@dataclass
class Outcome:
    """What one side says: a value for each row, and which rows are errors."""

    values: pa.Array
    bad: pa.Array


@dataclass
class Sample:
    """The rows of a form, and what Penstock says of them."""

    form: Form
    columns: list[pa.Array]
    ours: Outcome


def sample(form: Form, rows: int, errors: int, seed: int) -> Sample:
    """`rows` random rows for which Penstock has a value, and up to `errors` for which it has none."""
    chosen = random.Random(f"{seed} {form}")
    kept: list[pa.RecordBatch] = []
    good = bad = tried = 0
    while good < rows and tried < MOST_TRIED:
        count = min(max(200, (rows - good) * 2), 8_000)
        batch = pa.record_batch([column(kind, count, chosen) for kind in form.types], names=form.names)
        wrong = penstock(form, batch).bad.to_numpy(zero_copy_only=False)
        tried += count
        indexes = []
        for index, is_wrong in enumerate(wrong):
            if is_wrong and bad < errors:
                bad += 1
            elif is_wrong or good == rows:
                continue
            else:
                good += 1
            indexes.append(index)
        kept.append(batch.take(pa.array(indexes, pa.int64())))
    batch = pa.Table.from_batches(kept).combine_chunks().to_batches()[0]
    return Sample(form, batch.columns, penstock(form, batch))


def penstock(form: Form, batch: pa.RecordBatch) -> Outcome:
    """What Penstock says."""
    found = evaluate(parse(form.text.format(*form.names)), batch)
    values = found.values.dictionary_decode() if pa.types.is_dictionary(found.values.type) else found.values
    none = pa.array([False] * batch.num_rows)
    return Outcome(values, none if found.errors is None else found.errors)


def spark_answers(spark: Any, samples: list[Sample]) -> list[Outcome | str]:
    """What Spark says of the rows of several forms, in one job; a text where it refuses the form."""
    from pyspark.sql import functions as F

    # What stands twice in an expression, as the value of `between` does, would be computed before it, where an error is not caught.
    spark.conf.set("spark.sql.subexpressionElimination.enabled", "false")
    spark.conf.set("spark.sql.alwaysInlineCommonExpr", "true")
    rows = max(len(each.columns[0]) for each in samples)
    arrays, names, cast = [], [], []
    for each in samples:
        for index, array in enumerate(each.columns):
            name = each.form.names[index]
            arrays.append(pa.concat_arrays([array, pa.nulls(rows - len(array), array.type)]))
            names.append(name)
            is_local = pa.types.is_timestamp(array.type) and array.type.tz is None
            cast.append(F.expr(f"cast({name} as timestamp_ntz)").alias(name) if is_local else F.col(name))
    frame = spark.createDataFrame(pa.table(arrays, names=names)).select(*cast)
    selected, kinds, refused = [], {}, {}
    for number, each in enumerate(samples):
        text = each.form.spark or each.form.text
        attempt = _attempt(spark, text.format(*each.form.names)).alias(f"r{number}")
        try:
            kinds[number] = frame.select(attempt).schema[0].dataType
            selected.append(attempt)
        except Exception as error:
            refused[number] = str(error).splitlines()[0]
    answer = frame.select(*selected).toArrow() if selected else pa.table({})
    found: list[Outcome | str] = []
    for number, each in enumerate(samples):
        if number in refused:
            found.append(refused[number])
            continue
        wrapped = values_of(answer, f"r{number}", kinds[number]).slice(0, len(each.columns[0]))
        values = pc.struct_field(wrapped, "v")
        found.append(Outcome(values, pc.is_null(wrapped)))
    return found


def values_of(answer: pa.Table, name: str, kind: Any) -> pa.Array:
    """A column of Spark's answer, of the type that Spark says: as Arrow, a timestamp_ntz comes with a zone."""
    column = answer.column(name).combine_chunks()
    column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return column.cast(_without_zones(column.type)) if "timestamp_ntz" in kind.simpleString() else column


def _without_zones(found: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(found):
        return pa.timestamp("us")
    if pa.types.is_list(found):
        return pa.list_(_without_zones(found.value_type))
    if pa.types.is_struct(found):
        return pa.struct([field.with_type(_without_zones(field.type)) for field in found])
    return found


def plainly_refused(spark: Any, each: Sample) -> bool:
    """Whether a job of Spark's ends with an error at a row that raises here, without anything around the expression."""
    index = pc.index(each.ours.bad, pa.scalar(True)).as_py()
    frame = spark.createDataFrame(pa.table([array.slice(index, 1) for array in each.columns], names=each.form.names))
    try:
        frame.selectExpr((each.form.spark or each.form.text).format(*each.form.names)).collect()
    except Exception:
        return True
    return False


def _attempt(spark: Any, text: str) -> Any:
    from pyspark.sql import functions as F
    from pyspark.sql.classic.column import Column

    java = spark._jvm.org.apache.spark.sql
    value = java.classic.ExpressionUtils.expression(F.expr(text)._jc)
    # Arrow refuses a struct that is null where its field never is.
    nullable = Column(java.classic.ExpressionUtils.column(java.catalyst.expressions.KnownNullable(value)))
    inner = java.classic.ExpressionUtils.expression(F.struct(nullable.alias("v"))._jc)
    return Column(java.classic.ExpressionUtils.column(java.catalyst.expressions.TryEval(inner)))


def difference(form: Form, each: Sample, theirs: Outcome | str) -> str | None:
    """What is different, in one text, with some of the rows that show it; None if nothing is."""
    if isinstance(theirs, str):
        return f"{form}: Spark refuses it: {theirs}"
    ours = each.ours
    if type_text(ours.values.type) != type_text(theirs.values.type):
        return f"{form}: {type_text(ours.values.type)}, and in Spark {type_text(theirs.values.type)}"
    left, right = plain(ours.values), plain(theirs.values)
    if left.equals(right) and ours.bad.equals(theirs.bad):
        return None
    explain = [INTENDED[intent].explains for intent in form.intents]
    shown, wrong = [], 0
    for index in range(len(left)):
        failed = [bool(outcome.bad[index].as_py()) for outcome in (ours, theirs)]
        if failed[0] == failed[1] and (failed[0] or left.slice(index, 1).equals(right.slice(index, 1))):
            continue
        inputs = [_python(array[index]) for array in each.columns]
        said = [ERROR if bad else _python(outcome.values[index]) for bad, outcome in zip(failed, (ours, theirs), strict=True)]
        if any(explains(inputs, *said) for explains in explain):
            continue
        wrong += 1
        if len(shown) < 6:
            shown.append(f"    ({', '.join(map(repr, inputs))}) is {said[0]!r}, in Spark {said[1]!r}")
    return "\n".join([f"{form}: {wrong} of {len(left)} rows", *shown]) if wrong else None


def type_text(found: pa.DataType) -> str:
    """A type without what may be null."""
    return type_name(found).replace(" not null", "")


def _python(value: Any) -> Any:
    try:
        return value.as_py()
    except (ValueError, OverflowError):  # beyond the years of Python
        return value.cast(pa.int64() if pa.types.is_timestamp(value.type) else pa.int32()).as_py()


def plain(array: pa.Array) -> pa.Array:
    """The same values such that equal ones are equal for Arrow: NaN is one value, 0.0 and -0.0 are two, times are integers."""
    found = array.type
    if pa.types.is_floating(found):
        nan = pc.is_nan(array)
        wide = array.cast(pa.float64())
        bits = pa.array(wide.fill_null(0.0).to_numpy().view("int64"))
        return pc.if_else(
            pc.is_null(array), pa.scalar(None, pa.int64()), pc.if_else(pc.fill_null(nan, False), pa.scalar(1, pa.int64()), bits)
        )
    if pa.types.is_timestamp(found) or pa.types.is_duration(found):
        return array.cast(pa.int64())
    if pa.types.is_date(found):
        return array.cast(pa.int32())
    if pa.types.is_list(found):
        return pa.ListArray.from_arrays(array.offsets, plain(array.values), mask=array.is_null())
    if pa.types.is_map(found):
        entries = pa.StructArray.from_arrays([plain(array.keys), plain(array.items)], names=["k", "v"])
        return pa.ListArray.from_arrays(array.offsets, entries, mask=array.is_null())
    if pa.types.is_struct(found):
        children = [plain(pc.struct_field(array, [index])) for index in range(found.num_fields)]
        mask = array.is_null()
        return pa.StructArray.from_arrays(children, names=[field.name for field in found], mask=mask)
    return array
