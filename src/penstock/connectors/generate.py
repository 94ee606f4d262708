"""Rows computed from their number: endless or not, as fast as possible or at a steady rate, and always the same.

`make(index, seed)` gets the numbers of the rows wanted, as an array, and returns their columns. It is a pure function of them, so a
position is just a count, and reading from it again gives the same rows. A function of one row is taken as well: it gets one number and
returns a row, and costs a call of Python for each.

1. Row i of split s has the number `i * splits + s`: together the splits hold 0, 1, 2, … once each.
2. If `make` takes a parameter `columns`, it is told which columns are used and need not compute the others. Texts of which there
   are few it may give as an Arrow dictionary: each text once, and a number per row.
3. `rate` is rows per second over all splits, by the clock since the reader opened. What is due is given out; nothing
   is ever waited for. After a restart the rate starts anew: time in which nothing ran is not made up for.
4. Which of the two a function is, its first parameter says: `int` means one number, another annotation the array. Without an
   annotation a function of nothing but `index` gets one number, any other the array.
5. The seed is for a parameter called `seed`, or else for the second one, unless that has a default: `lambda n, k=k: …`, as it is
   written in a loop, is a function of nothing but `index`.
"""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.connectors.connector import Began, Chunk, Json, Reader, Source, SourceContext
from penstock.connectors.memory import as_dict, column_of
from penstock.errors import ConfigError, Fix, FunctionError, RowError, brief
from penstock.exact import exactly
from penstock.names import check_name
from penstock.schema import to_schema

__all__ = ["Generate", "Make", "generate"]

ONE_ROW = Fix("generate.one_row", "To get one number at a time, and return one row, write: def make(index: int, seed: int)")

Make = Callable[..., Mapping[str, Any] | pa.RecordBatch]


@dataclass(frozen=True)
class Generate(Source):
    """Rows 0 to `rows` (None: without end) of `make`."""

    name: str
    schema: pa.Schema
    make: Make
    rows: int | None
    rate: float | None
    lanes: int
    seed: int
    bounded: bool = field(init=False)
    replayable: bool = field(init=False, default=True)

    @property
    def calling(self) -> Calling:
        """How `make` is called."""
        return Calling.of(self.make)

    def __post_init__(self) -> None:
        object.__setattr__(self, "bounded", self.rows is not None)

    def splits(self) -> tuple[str, ...]:
        return tuple(str(lane) for lane in range(self.lanes))

    def open(self, split: str, position: Json, context: SourceContext) -> Reader:
        return _GenerateReader(self, int(split), position or 0, context)

    def describe(self) -> str:
        return "generated, replayable"


def generate(
    make: Make,
    *,
    schema: Any,
    rows: int | None = None,
    rate: float | None = None,
    splits: int = 2,
    seed: int = 0,
    name: str = "generate",
) -> Generate:
    """See `penstock.sources.generate`."""
    if splits < 1:
        raise ConfigError(f"splits={splits}: expected at least 1")
    if rows is not None and rows < 0:
        raise ConfigError(f"rows={rows}: expected 0 or more, or None for no end")
    if rate is not None and rate <= 0:
        raise ConfigError(f"rate={rate}: expected rows per second, or None for as fast as possible")
    return Generate(check_name(name, "a source"), to_schema(schema), make, rows, rate, splits, seed)


class _GenerateReader(Reader):
    prompt = True

    def __init__(self, source: Generate, lane: int, position: int, context: SourceContext) -> None:
        self.source = source
        self.lane = lane
        self.position = position
        self.began = context.began or Began(time.time_ns() // 1000, position)
        columns = context.columns
        self.schema = pa.schema([source.schema.field(name) for name in columns])
        self.calling = source.calling
        self.seed, self.extra = self.calling.behind_index(source.seed, columns)
        rows = source.rows
        self.end = None if rows is None else max(0, (rows - lane + source.lanes - 1) // source.lanes)
        self.told_end = False

    def poll(self, rows_max: int) -> Chunk | None:
        count = self._ready(rows_max)
        if count == 0 and not self._over:
            return None
        batch = self._make(count) if count else None
        self.position += count
        self.told_end = self._over
        return Chunk(batch, self.position, ended=self.told_end)

    def backlog(self) -> bool:
        return not self.told_end if self._over else self._ready(1) > 0

    def due_at(self) -> int | None:
        if self._over or self.source.rate is None:
            return None
        made = self.position + 1 - (self.began.position or 0)
        return self.began.at_us + math.ceil(made * self.source.lanes / self.source.rate * 1e6)

    @property
    def _over(self) -> bool:
        """Whether all rows are made: more than all, if there were more when the position was taken."""
        return self.end is not None and self.position >= self.end

    def _ready(self, rows_max: int) -> int:
        count = rows_max
        if self.end is not None:
            count = min(count, self.end - self.position)
        if self.source.rate is not None:
            now_us = time.time_ns() // 1000 if self.began.now_us is None else self.began.now_us
            due = int((now_us - self.began.at_us) / 1e6 * self.source.rate / self.source.lanes)
            count = min(count, due - (self.position - (self.began.position or 0)))
        return max(count, 0)

    def _make(self, count: int) -> pa.RecordBatch:
        lanes = self.source.lanes
        first = self.position * lanes + self.lane
        index = np.arange(first, first + count * lanes, lanes, dtype=np.int64)
        made = self._rows(index) if self.calling.by_row else self._columns(index)
        if not self.schema.names:  # only the number of rows is wanted
            return pa.record_batch({"row": index}).select([])
        have = made.schema.names if isinstance(made, pa.RecordBatch) else list(made)
        arrays = []
        for each in self.schema:
            if each.name not in have:
                raise ConfigError(f"source {self.source.name!r}: make gave no column {each.name!r}, but {', '.join(have)}")
            fix = None if self.calling.annotated else ONE_ROW
            arrays.append(_array(made[each.name], each, count, self.source.name, fix))
        fields = [each.with_type(array.type) for each, array in zip(self.schema, arrays)]
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))

    def _columns(self, index: np.ndarray[Any, Any]) -> Mapping[str, Any] | pa.RecordBatch:
        source, calling = self.source, self.calling
        try:
            made = source.make(index, *self.seed, **self.extra)
        except Exception as error:
            if calling.annotated:
                raise
            # Whatever it is: a function of one number does not know what to do with an array.
            raise FunctionError(
                f"source {source.name!r}: make was called with an array of {len(index)} numbers, and raised"
                f" {type(error).__name__}: {error}",
                fix=ONE_ROW,
            ) from error
        if not isinstance(made, pa.RecordBatch) and not hasattr(made, "keys"):
            raise RowError(
                f"source {source.name!r}: make was called with an array of {len(index)} numbers, and returned {type(made).__name__}"
                " instead of a column for each name",
                fix=None if calling.annotated else ONE_ROW,
            )
        return made

    def _rows(self, index: np.ndarray[Any, Any]) -> Mapping[str, Any]:
        source = self.source
        rows = [as_dict(source.make(number, *self.seed, **self.extra), source.schema) for number in index.tolist()]
        return {each.name: column_of([row.get(each.name) for row in rows], each, source.name, index) for each in self.schema}


@dataclass(frozen=True, slots=True)
class Calling:
    """What a function wants to be called with: one number or an array of them, the seed or not, and the columns or not."""

    by_row: bool
    annotated: bool
    seeded: bool
    named: frozenset[str]  # of `seed` and `columns` those that it gets by name

    @classmethod
    def of(cls, make: Callable[..., Any]) -> Calling:
        """By its signature; a function that has none gets array and seed."""
        try:
            parameters = inspect.signature(make).parameters
        except (TypeError, ValueError):
            return cls(False, False, True, frozenset())
        places = [p for p in parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        first, second = [*(p for p in places if p.name != "columns"), None, None][:2]
        named = {p.name for p in parameters.values() if p is not first and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
        several = any(p.kind is p.VAR_POSITIONAL for p in parameters.values())
        seeded = "seed" in named or several or (second is not None and (second.default is second.empty or second.name == "seed"))
        annotated = first is not None and first.annotation is not first.empty
        by_row = first.annotation in (int, "int") if first is not None and annotated else not seeded
        return cls(by_row, annotated, seeded, frozenset(named & {"seed", "columns"}))

    def behind_index(self, seed: int, columns: tuple[str, ...]) -> tuple[tuple[int, ...], dict[str, Any]]:
        """What it is called with besides `index`: in order, and by name."""
        by_name = {"seed": seed, "columns": columns}
        return (seed,) if self.seeded and "seed" not in self.named else (), {name: by_name[name] for name in self.named}


def _array(values: Any, each: pa.Field, count: int, name: str, fix: Fix | None) -> pa.Array:
    if not _is_column(values):
        raise ConfigError(
            f"source {name!r}: make was called with an array of {count} numbers, and gave one value as column {each.name!r}:"
            f" {brief(values)}. Expected: an array or a list of {count} values",
            fix=fix,
        )
    try:
        array = values if isinstance(values, pa.Array) else pa.array(values)
        encoded = pa.types.is_dictionary(array.type) and array.type.value_type == each.type
        if array.type != each.type and not encoded:
            array = exactly(array, each.type)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise ConfigError(f"source {name!r}: column {each.name!r} is not {each.type}: {error}") from error
    if len(array) != count:
        raise ConfigError(
            f"source {name!r}: column {each.name!r} has {len(array)} values for {count} rows. "
            f"make gives one value for each number in `index`"
        )
    if array.null_count and not each.nullable:
        raise ConfigError(f"source {name!r}: column {each.name!r} is not null, and make gave nulls")
    return array


def _is_column(values: Any) -> bool:
    """Whether it holds values of rows. Text and records have parts as well, but they are one value each."""
    if isinstance(values, str | bytes | bytearray | Mapping | pa.Scalar) or getattr(values, "ndim", 1) == 0:
        return False
    return hasattr(values, "__iter__") or hasattr(values, "__arrow_c_array__")
