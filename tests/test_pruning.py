"""Decoding only the columns in use changes no result, whatever the pipeline and the format."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pv
import pyarrow.parquet as pq
import pytest

import penstock as pen
from penstock import col, sinks, sources
from penstock.connectors.connector import Json, Reader, Source, SourceContext
from penstock.schema import to_schema

SCHEMA = to_schema(
    "id bigint not null, user string not null, kind string, price double, n int, at timestamp not null, note string"
)
START = datetime(2026, 11, 15, tzinfo=UTC)
ROWS = [
    {
        "id": i,
        "user": f"user-{i % 7}",
        "kind": None if i % 11 == 0 else ("view", "click", "buy")[i % 3],
        "price": i / 4,
        "n": i % 5,
        "at": START + timedelta(seconds=i),
        "note": f'say "{i}"' if i % 5 == 0 else "plain",
    }
    for i in range(200)
]


@dataclass(frozen=True)
class Whole(Source):
    """Another source, which decodes all columns whatever is asked for."""

    source: Source
    name: str = field(init=False)
    schema: pa.Schema = field(init=False)
    bounded: bool = field(init=False, default=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.source.name)
        object.__setattr__(self, "schema", self.source.schema)

    def splits(self) -> tuple[str, ...]:
        return self.source.splits()

    def open(self, split: str, position: Json, context: SourceContext) -> Reader:
        return self.source.open(split, position, replace(context, columns=tuple(self.schema.names), bounds=()))


def files(folder: Path, format: str) -> Source:
    table = pa.Table.from_pylist(ROWS, schema=SCHEMA)
    for number, part in enumerate((table.slice(0, 90), table.slice(90))):
        path = folder / f"part-{number}.{format}"
        if format == "json":
            path.write_text("".join(json.dumps(row, default=lambda at: at.isoformat()) + "\n" for row in part.to_pylist()))
        elif format == "csv":
            pv.write_csv(part, path)
        else:
            pq.write_table(part, path, row_group_size=20)
    return sources.files(folder, schema=SCHEMA, format=format, splits=2, name="events")


@dataclass
class Paid:
    user: str
    price: float


def cents(paid: Paid) -> int:
    return round(paid.price * 100)


def timed(s: pen.Stream) -> pen.Stream:
    return s.with_watermark("at", delay="300s")


PIPELINES: dict[str, tuple[tuple[str, ...], Callable[[pen.Stream], pen.Stream]]] = {
    "select": (("id", "kind"), lambda s: s.select("id", "kind")),
    "filter": (("id", "n"), lambda s: s.filter(col("n") > 2).select("id")),
    "filters": (("id", "kind", "n"), lambda s: s.filter("n > 2").filter("kind = 'view'").select("id")),
    "bounds": (("id", "user"), lambda s: s.filter("id >= 50 and id < 60").select("user")),
    "computed": (("id", "price", "n"), lambda s: s.with_columns(total="price * n").select("id", "total")),
    "fields of a class": (("user", "price"), lambda s: s.map(cents)),
    "whole rows": (tuple(SCHEMA.names), lambda s: s.map(lambda row: row.id, schema=int)),
    "split": (("id", "kind"), lambda s: s.split({"views": "kind = 'view'"}).rest.select("id")),
    "union": (("id", "user", "n"), lambda s: s.filter("n = 1").select("id", "user").union(s.select("id", "user"))),
    "window": (
        ("user", "kind", "at"),
        lambda s: (
            timed(s).filter("kind = 'view'").key_by("user").window(pen.tumbling("1m")).aggregate(n=pen.count(), name="counts")
        ),
    ),
    "sum": (
        ("user", "price", "n", "at"),
        lambda s: timed(s).key_by("user").window(pen.tumbling("1m")).aggregate(total="sum(price)", m=col("n").max(), name="sums"),
    ),
    "all rows": (("at",), lambda s: timed(s).window(pen.tumbling("1m")).aggregate(n=pen.count(), name="counts")),
    "once each": (("user",), lambda s: s.drop_duplicates("user", name="once").select("user").filter("user <> 'x'")),
}


def result(source: Source, build: Callable[[pen.Stream], pen.Stream]) -> list[dict[str, Any]]:
    sink = sinks.memory("pruned")
    sink.clear()
    build(pen.Pipeline("pruned").read(source)).write(sink).run(pen.Local(restarts=0))
    table = sink.table()
    return sorted(table.to_pylist(), key=repr) if table is not None else []


@pytest.mark.parametrize("format", ["json", "csv", "parquet"])
@pytest.mark.parametrize("name", PIPELINES)
def test_the_result_is_the_same_with_and_without_the_other_columns(tmp_path: Path, name: str, format: str) -> None:
    columns, build = PIPELINES[name]
    source = files(tmp_path, format)
    plan = build(pen.Pipeline("planned").read(source)).write(sinks.memory("planned")).plan()
    assert set(plan.reads[0].columns) == set(columns)
    pruned = result(source, build)
    assert pruned
    assert pruned == result(Whole(source), build)


def test_rows_are_counted_without_decoding_more_than_a_column(tmp_path: Path) -> None:
    found = result(files(tmp_path, "json"), lambda s: s.select(one=pen.lit(1)))
    assert found == [{"one": 1}] * len(ROWS)
