"""Decodes lines of nested JSON with a peer and says how long that took: run by the Python that has the peers, without Penstock.

    python nestedpeer.py SYSTEM FILE TIMES

One thread, processor time, the whole file into columns of Arrow (msgspec: into instances of its classes, which is what it is for).
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Decode = Callable[[], Any]
Check = Callable[[Any], tuple[int, int, int]]
"""Lines, lines with a payload, and the sum of their sizes."""


def duckdb(path: Path) -> tuple[Decode, Check]:
    """Into a table of Arrow."""
    import duckdb as peer

    connection: Any = peer.connect()
    connection.execute("set threads = 1")
    columns = (
        "{type: 'VARCHAR', actor: 'STRUCT(login VARCHAR)', repo: 'STRUCT(name VARCHAR)', created_at: 'TIMESTAMP', "
        "payload: 'STRUCT(size BIGINT)'}"
    )
    text = f"select * from read_json('{path}', format = 'newline_delimited', columns = {columns})"
    return lambda: connection.execute(text).to_arrow_table(), _check_arrow


def polars(path: Path) -> tuple[Decode, Check]:
    """Times stay text: the reader takes none with a zone."""
    import polars as peer

    block = path.read_bytes()
    schema: Any = {
        "type": peer.String,
        "actor": peer.Struct({"login": peer.String}),
        "repo": peer.Struct({"name": peer.String}),
        "created_at": peer.String,
        "payload": peer.Struct({"size": peer.Int64}),
    }
    return lambda: peer.read_ndjson(block, schema=schema).to_arrow(), _check_arrow


def msgspec(path: Path) -> tuple[Decode, Check]:
    """Into instances."""
    import datetime

    import msgspec as peer

    block = path.read_bytes()
    actor = peer.defstruct("Actor", [("login", str)])
    repo = peer.defstruct("Repo", [("name", str)])
    payload: Any = peer.defstruct("Payload", [("size", int)])
    fields = [
        ("type", str),
        ("actor", actor),
        ("repo", repo),
        ("created_at", datetime.datetime),
        ("payload", payload | None, None),
    ]
    event = peer.defstruct("Event", fields)
    decoder = peer.json.Decoder(event)

    def check(events: Any) -> tuple[int, int, int]:
        found = [each.payload.size for each in events if each.payload is not None]
        return len(events), len(found), sum(found)

    return lambda: decoder.decode_lines(block), check


def _check_arrow(table: Any) -> tuple[int, int, int]:
    found = [payload["size"] for payload in table.column("payload").to_pylist() if payload and payload["size"] is not None]
    return table.num_rows, len(found), sum(found)


SYSTEMS: dict[str, Callable[[Path], tuple[Decode, Check]]] = {"DuckDB": duckdb, "polars": polars, "msgspec": msgspec}


def best(decode: Decode, times: int) -> float:
    """The least processor time of some tries."""
    found = []
    for _ in range(times):
        began = time.process_time()
        decode()
        found.append(time.process_time() - began)
    return min(found)


if __name__ == "__main__":
    decode, check = SYSTEMS[sys.argv[1]](Path(sys.argv[2]))
    print(json.dumps({"checked": check(decode()), "seconds": best(decode, int(sys.argv[3]))}))
