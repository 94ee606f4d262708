"""Where rows come from: `from penstock import sources`.

Each function returns a `Source`: a value that says what to read. Nothing is opened until the pipeline runs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa

from penstock.connectors import call as _call
from penstock.connectors import files as _files
from penstock.connectors import generate as _generate
from penstock.connectors import memory as _memory
from penstock.connectors import socket as _socket

__all__ = ["call", "files", "generate", "memory", "socket"]


def call(function: Callable[[], Any], *, schema: Any, name: str | None = None) -> _call.Call:
    """What a function returns, for tables: rows of a database or a service.

        def users() -> list[tuple[int, str]]:
            with sqlite3.connect("shop.db") as db:
                return db.execute("select id, name from users").fetchall()

        events.lookup(p.table(sources.call(users, schema="id bigint, name string"), key="id", refresh="10m"), on={"user": "id"})

    Args:
        function: returns an Arrow table, a pandas frame, or rows: dicts, dataclasses, or tuples in the order of the schema. It is
            called in the tasks, each time the table is read.
        schema: DDL, a dataclass or a `pa.Schema`.
    """
    return _call.call(function, schema=schema, name=name)


def files(
    path: str | os.PathLike[str],
    *,
    schema: Any = None,
    format: str | None = None,
    watch: Any = None,
    splits: int = 4,
    header: bool = True,
    name: str | None = None,
) -> _files.Files:
    """Rows of the files in a folder: JSON lines, CSV or Parquet, each file once.

        sources.files("in/*.json", schema="user string not null, price double, at timestamp", watch="1s")
        sources.files("campaigns.csv", schema=Campaign)
        sources.files("lake/events")                     # Parquet knows its own columns

    Put complete files in by renaming them from a name that starts with "." or "_" or ends in ".tmp": those are not
    looked at. A file may not change once it was read. A line that does not fit the schema is a bad record.

    Only the columns that the pipeline uses are decoded. A line that is no JSON at all, or has too few values, is bad whatever is
    used of it; that a value fits its column is checked for the columns in use. Of a Parquet file, row groups in which a filter right
    after `read` can keep nothing, by their statistics, are not read.

    In JSON a timestamp is ISO 8601 with a zone, or an integer in microseconds since 1970 UTC. In CSV it is ISO 8601, and
    a value cannot contain a line break.

    Args:
        path: a file, a folder, or a glob; local or mounted.
        schema: DDL, a dataclass or a `pa.Schema`. Only Parquet can do without.
        format: "json", "csv" or "parquet"; else the suffix says it (.json .jsonl .ndjson .csv .parquet).
        watch: how often to look for new files ("1s"). Without it the stream ends after the files that are there.
        splits: how many files can be read at the same time. Fixed for the life of the job.
        header: whether the first line of a CSV file holds the names of its columns.
        name: of the source; the folder's name (of a single file: its own) if left out.
    """
    return _files.files(path, schema=schema, format=format, watch=watch, splits=splits, header=header, name=name)


def generate(
    make: _generate.Make,
    *,
    schema: Any,
    rows: int | None = None,
    rate: float | None = None,
    splits: int = 2,
    seed: int = 0,
    name: str = "generate",
) -> _generate.Generate:
    """Rows computed from their numbers: the same ones every time they are read.

        def orders(index, seed):
            return {"id": index, "price": (index * 7919 + seed) % 100}

        sources.generate(orders, schema="id bigint, price bigint", rate=50_000)

    `make` gets an int64 array of row numbers and returns a column for each name (numpy or Arrow), or a RecordBatch. It
    must be a pure function of its arguments. If it takes a parameter `columns`, it is told which ones are used.

    A function of one row is slower and may be simpler: it takes nothing but a number, or says `int`, and returns a row. Parameters
    with defaults (`lambda n, k=k: …`) keep them, all but `seed`.

        sources.generate(lambda n: {"id": n, "user": "ann" if n % 2 else "bob"}, schema="id bigint, user string")

    Args:
        rows: how many in all; None for no end.
        rate: rows per second over all splits; None for as fast as possible.
        splits: how many tasks can generate at the same time. Fixed for the life of the job.
    """
    return _generate.generate(make, schema=schema, rows=rows, rate=rate, splits=splits, seed=seed, name=name)


def memory(
    rows: Iterable[Any] | pa.Table,
    *,
    schema: Any = None,
    splits: int = 1,
    batch: int = 4096,
    name: str = "memory",
) -> _memory.Memory:
    """Rows that are at hand: dicts, dataclasses, plain values for a single column, or an Arrow table.

        sources.memory([{"user": "ann", "n": 1}, {"user": "bob", "n": 2}])
        sources.memory(["to be", "or not"], schema=str)          # one column, value

    Args:
        batch: how many rows come at a time, at most.
        splits: row i is in split i % splits.
    """
    return _memory.memory(rows, schema=schema, splits=splits, batch=batch, name=name)


def socket(host: str, port: int, *, journal: bool = True, connect_s: float = 10.0, name: str | None = None) -> _socket.Socket:
    """Lines of text from a TCP server: one column, `value`.

        sources.socket("localhost", 9999)                # to try: nc -lk 9999

    With the journal each line is stored in the job directory on receipt and from then on counts exactly once. The
    server closing the connection ends the stream.

    Args:
        journal: without it nothing is stored, and what was read is gone after a failure.
        connect_s: how long to try before it is an error that the server cannot be reached.
    """
    return _socket.socket(host, port, journal=journal, connect_s=connect_s, name=name)
