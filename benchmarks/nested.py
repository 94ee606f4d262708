"""What it costs to decode nested JSON, with the schema as dataclasses: records that may be None, with required fields inside.

    python -m benchmarks.run --case json

The lines are events of a code host, of which half have a payload with a list in it; five fields are wanted, three of them inside
records. One core, processor time, from bytes in memory to columns. The peers have an environment of their own; all must find the
same payloads.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import tempfile
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks import install, nestedpeer
from penstock.connectors.jsonlines import JsonLines
from penstock.connectors.lines import BLOCK_BYTES
from penstock.schema import to_schema

LINES = 400_000
PLAIN = "type string, actor struct<login: string>, repo struct<name: string>, created_at timestamp, payload struct<size: bigint>"


@dataclass
class Actor:
    """Whose event it is."""

    login: str


@dataclass
class Repo:
    """Where it happened."""

    name: str


@dataclass
class Payload:
    """What half of the events have."""

    size: int


@dataclass
class Event:
    """The fields that are wanted."""

    type: str
    actor: Actor
    repo: Repo
    created_at: datetime
    payload: Payload | None


def run(runs: int, scale: float) -> dict[str, Any]:
    """Lines per second and core of each decoder."""
    with tempfile.TemporaryDirectory(prefix="penstock-json-") as folder:
        path = Path(folder, "events.json")
        count = int(LINES * scale)
        path.write_bytes(b"".join(lines(count)))
        found = {"Penstock, dataclasses": ours(path, Event, runs), "Penstock, all nullable": ours(path, PLAIN, runs)}
        found |= {name: peer(name, path, runs) for name in nestedpeer.SYSTEMS}
        size = path.stat().st_size
    expected = next(iter(found.values()))["checked"]
    wrong = [name for name, result in found.items() if result["checked"] != expected or result["checked"][0] != count]
    figures = {
        name: f"{count / result['seconds'] / 1e6:.2f}M lines/s, {size / result['seconds'] / 1e6:.0f} MB/s"
        for name, result in found.items()
    }
    return {"figures": figures, "verified": not wrong, "note": f"other payloads: {', '.join(wrong)}" if wrong else ""}


def ours(path: Path, schema: Any, runs: int) -> dict[str, Any]:
    """In blocks, as `sources.files` reads them."""
    blocks = list(blocks_of(path.read_bytes()))

    def decode() -> list[Any]:
        decoder = JsonLines(to_schema(schema))
        return [decoder.many(block) for block in blocks]

    checked, sizes = 0, []
    for batch in decode():
        checked += batch.num_rows
        sizes += [payload["size"] for payload in batch.column("payload").to_pylist() if payload is not None]
    return {"checked": [checked, len(sizes), sum(sizes)], "seconds": nestedpeer.best(decode, runs)}


def peer(name: str, path: Path, runs: int) -> dict[str, Any]:
    """In a process that has it; with one thread, since processor time of several says nothing of a core."""
    command = [str(install.decoders()), nestedpeer.__file__, name, str(path), str(runs)]
    done = subprocess.run(command, env={**os.environ, "POLARS_MAX_THREADS": "1"}, stdout=subprocess.PIPE, check=True, text=True)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def blocks_of(text: bytes) -> Any:
    """Whole lines, about a block of them at a time."""
    start = 0
    while start < len(text):
        end = text.rfind(b"\n", start, start + BLOCK_BYTES) + 1
        yield text[start:end]
        start = end


def lines(count: int) -> list[bytes]:
    """Always the same."""
    draw = random.Random(1)
    return [json.dumps(event(number, draw)).encode() + b"\n" for number in range(count)]


def event(number: int, draw: random.Random) -> dict[str, Any]:
    """Some 290 bytes."""
    made: dict[str, Any] = {
        "id": str(number),
        "type": draw.choice(["PushEvent", "WatchEvent", "IssuesEvent"]),
        "actor": {"id": draw.randrange(10**6), "login": f"user{draw.randrange(10**5)}", "url": "https://api.example/users/x"},
        "repo": {"id": draw.randrange(10**6), "name": f"o/r{draw.randrange(10**4)}"},
        "public": True,
        "created_at": f"2026-01-01T{number // 3600 % 24:02}:{number // 60 % 60:02}:{number % 60:02}Z",
    }
    if draw.random() < 0.5:
        commits = [{"sha": f"{draw.getrandbits(160):040x}", "message": 'fix "quoted" thing é'} for _ in range(draw.randrange(3))]
        made["payload"] = {"size": draw.randrange(10), "commits": commits}
    return made
