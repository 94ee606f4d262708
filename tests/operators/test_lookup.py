"""Lookups in tables that are read whole: what is found, what is refused, and when a table is read again."""

from __future__ import annotations

import sqlite3
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import penstock as pen
from penstock import sinks, sources
from penstock.errors import PenstockError
from penstock.operators.lookup import Lookup, TableSource

USERS = [
    {"id": 1, "name": "ann", "city": "Bonn"},
    {"id": 2, "name": "bob", "city": None},
    {"id": None, "name": "nobody", "city": "X"},
]
NAMES = count()
KEYS = st.none() | st.integers(0, 4)


def looked_up(rows: list[dict[str, Any]], table: Any, parallelism: int = 1, **options: Any) -> list[dict[str, Any]]:
    p = pen.Pipeline("test")
    out = sinks.memory(f"lookup-{next(NAMES)}")
    events = p.read(sources.memory(rows, schema="user int, name string", name="events", splits=2))
    events.lookup(p.table(table, key="id", name="users"), on={"user": "id"}, **options).write(out)
    p.run(pen.Local(parallelism=parallelism))
    return sorted(out.rows(), key=repr)


@pytest.mark.parametrize("how", ["inner", "left"])
def test_each_row_finds_the_row_of_its_key(how: str) -> None:
    @settings(max_examples=20, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(st.lists(KEYS, max_size=8), st.integers(1, 3))
    def check(users: list[int | None], parallelism: int) -> None:
        rows = [{"user": user, "name": f"event-{n}"} for n, user in enumerate(users)]
        by_id = {row["id"]: row for row in USERS if row["id"] is not None}
        expected = []
        for row in rows:
            found = by_id.get(row["user"])
            if found or how == "left":
                more = {"name_right": found and found["name"], "city": found and found["city"]}
                expected.append(row | {name: value or None for name, value in more.items()})
        assert looked_up(rows, sources.memory(USERS, name="users"), parallelism, how=how) == sorted(expected, key=repr)

    check()


def test_a_table_may_be_given_as_rows_in_memory_or_a_frame() -> None:
    pandas = pytest.importorskip("pandas")
    rows = [{"user": 1, "name": "e"}]
    expected = [{"user": 1, "name": "e", "city": "Bonn"}]
    arrow = pa.table({"id": [1, 2], "city": ["Bonn", None]})
    assert looked_up(rows, arrow) == expected
    assert looked_up(rows, pandas.DataFrame({"id": [1, 2], "city": ["Bonn", None]})) == expected


def test_two_rows_of_one_key_are_an_error_that_names_it() -> None:
    with pytest.raises(PenstockError, match="two rows with the key id=7"):
        looked_up([{"user": 7, "name": "e"}], pa.table({"id": [7, 8, 7], "city": ["a", "b", "c"]}))


def test_only_the_columns_in_use_are_read() -> None:
    p = pen.Pipeline("test")
    events = p.read(sources.memory([{"user": 1, "name": "e"}], schema="user int, name string", name="events"))
    users = p.table(sources.memory(USERS, name="users"), key="id")
    events.lookup(users, on={"user": "id"}).select("city").write(sinks.memory(f"lookup-{next(NAMES)}"))
    plan = p.plan()
    assert [op.columns for op in plan.reads] == [("user",)]
    (node,) = [op.node for stage in plan.stages for op in stage.ops if op.kind == "lookup"]
    assert node.kept == ("city",)


def test_a_table_is_read_again_when_it_is_too_old(tmp_path: Path) -> None:
    file = tmp_path / "users.csv"
    file.touch()
    source = sources.files(str(file), format="csv", schema="id bigint, name string")
    operator = Lookup(
        "lookup",
        TableSource("users", "refresh", source, ("id",), ("name",), 60, tmp_path),
        ["u"],
        "left",
        [pa.field("name", pa.string())],
    )
    batch = pa.record_batch({"u": pa.array([1])})

    def names() -> list[Any]:
        return [value for _, rows in operator.process(batch, None) for value in rows.column("name").to_pylist()]

    def tell(now: int) -> None:
        operator.now = now
        list(operator.on_time(now))

    tell(1000)
    assert operator.wake_at is None
    file.write_text("id,name\n1,old\n")
    assert names() == ["old"]
    assert operator.wake_at == 1060
    file.write_text("id,name\n1,new\n")
    tell(1059)
    assert names() == ["old"]
    tell(1060)
    assert names() == ["new"]
    tell(2**63 - 1)  # the end of time is no time to read
    assert operator.wake_at == 1120


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda p, s: p.table(sources.memory(USERS), key="nothing"), "no column 'nothing'"),
        (lambda p, s: p.table(sources.socket("localhost", 1), key="value"), "has none"),
        (lambda p, s: p.table(7, key="id"), "bounded source"),
        (lambda p, s: p.table(sources.memory(USERS), key="id", refresh=5), 'refresh="5s"'),
        (lambda p, s: s.lookup(p.table(sources.memory(USERS), key="id"), on="user"), 'on={"user": "id"}'),
        (lambda p, s: s.lookup(p.table(sources.memory(USERS), key="id"), on={"name": "id"}), 'cast("bigint")'),
        (
            lambda p, s: s.lookup(p.table(sources.memory(USERS), key="id"), on={"user": "id"}, how="full"),
            'how="inner", or how="left"',
        ),
        (lambda p, s: s.lookup(s, on="user"), "lookup needs a table"),
    ],
)
def test_what_cannot_be_looked_up_is_refused_with_the_fix(build: Any, message: str) -> None:
    p = pen.Pipeline("test")
    stream = p.read(sources.memory([], schema="user int, name string", name="events"))
    with pytest.raises(pen.PlanError) as error:
        build(p, stream)
    assert message in str(error.value)


def test_an_update_stream_keeps_its_key_through_a_lookup() -> None:
    p = pen.Pipeline("test")
    out = sinks.memory(f"lookup-{next(NAMES)}")
    events = p.read(
        sources.memory([{"user": 1, "name": "e"}, {"user": 1, "name": "f"}], schema="user int, name string", name="events")
    )
    counts = events.key_by("user").aggregate(n=pen.count(), name="n")
    with pytest.raises(pen.PlanError, match='how="left"'):
        counts.lookup(p.table(sources.memory(USERS), key="id"), on={"user": "id"})
    counts.lookup(p.table(sources.memory(USERS), key="id"), on={"user": "id"}, how="left").write(out)
    p.run(pen.Local())
    assert out.rows() == [{"user": 1, "n": 2, "name": "ann", "city": "Bonn"}]


def test_a_table_may_come_from_a_database_through_a_function(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    with sqlite3.connect(path) as db:
        db.execute("create table users (id integer, name text)")
        db.executemany("insert into users values (?, ?)", [(1, "ann"), (2, "bob")])

    def users() -> list[tuple[int, str]]:
        with sqlite3.connect(path) as db:
            return db.execute("select id, name from users").fetchall()

    p = pen.Pipeline("test")
    out = sinks.memory(f"lookup-{next(NAMES)}")
    events = p.read(sources.memory([{"user": 2}, {"user": 3}], schema="user bigint", name="events"))
    table = p.table(sources.call(users, schema="id bigint, name string"), key="id", refresh="10m")
    events.lookup(table, on={"user": "id"}, how="left").write(out)
    p.run(pen.Local())
    assert out.rows() == [{"user": 2, "name": "bob"}, {"user": 3, "name": None}]


def test_a_function_that_fails_stops_the_job_and_is_named() -> None:
    def users() -> list[tuple[int, str]]:
        raise ConnectionError("no route to host")

    p = pen.Pipeline("test")
    events = p.read(sources.memory([{"user": 2}], schema="user bigint", name="events"))
    table = p.table(sources.call(users, schema="id bigint, name string"), key="id")
    events.lookup(table, on={"user": "id"}).write(sinks.memory(f"lookup-{next(NAMES)}"))
    with pytest.raises(pen.JobError, match="source 'users': its function failed: ConnectionError: no route to host"):
        p.run(pen.Local())


@pytest.mark.spark
def test_a_table_may_be_a_spark_data_frame(spark: Any) -> None:
    frame = spark.createDataFrame([(1, "ann"), (2, "bob")], "id bigint, name string")
    p = pen.Pipeline("test")
    out = sinks.memory(f"lookup-{next(NAMES)}")
    events = p.read(sources.memory([{"user": 2}], schema="user bigint", name="events"))
    events.lookup(p.table(frame, key="id"), on={"user": "id"}).write(out)
    p.run(pen.MicroBatch(spark, parallelism=1))
    assert out.rows() == [{"user": 2, "name": "bob"}]
