"""A union of records read from JSON: with `T | None` and required fields inside, it is read as fast as with all nullable."""

from __future__ import annotations

import json
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import penstock as pen
from penstock import sinks, sources

ROWS = 40_000
TRIES = 3


@dataclass
class Person:
    id: int
    name: str


@dataclass
class Bid:
    auction: int
    price: int


@dataclass
class Event:
    kind: int
    person: Person | None
    bid: Bid | None


PLAIN = "kind bigint, person struct<id: bigint, name: string>, bid struct<auction: bigint, price: bigint>"
STRICT = PLAIN.replace("id: bigint", "id: bigint not null").replace("auction: bigint", "auction: bigint not null")


def line(number: int, *, null: bool) -> str:
    is_bid = number % 2
    record = {
        "kind": is_bid,
        "person": None if is_bid else {"id": number, "name": "x"},
        "bid": {"auction": number, "price": 1} if is_bid else None,
    }
    return json.dumps({name: value for name, value in record.items() if null or value is not None})


def read(path: Path, schema: Any) -> tuple[list[dict[str, Any]], float]:
    out = sinks.memory("out")
    out.clear()
    began = time.process_time()
    pen.Pipeline("j").read(sources.files(path, schema=schema)).select(b="bid.auction", p="person.id").write(out).run(pen.Local())
    return out.rows(), time.process_time() - began


def compare(label: str, path: Path, schema: Any) -> None:
    """The best of some tries of each, in turn, since the machine may be busy."""
    both = [(read(path, PLAIN), read(path, schema)) for _ in range(TRIES)]
    plain, other = min(seconds for (_, seconds), _ in both), min(seconds for _, (_, seconds) in both)
    (expected, _), (rows, _) = both[0]
    bids, persons = sum(row["b"] is not None for row in rows), sum(row["p"] is not None for row in rows)
    print(f"{label}: {len(rows)} rows, {bids} bids, {persons} persons, {'the same' if rows == expected else 'OTHERS'}")
    print(f"{label}: {'as fast' if other < 2 * plain + 0.1 else f'SLOWER, {other:.2f} s beside {plain:.2f} s'}")


def main() -> None:
    folder = Path(tempfile.mkdtemp())
    for null, how in ((False, "left out"), (True, "null")):
        path = folder / f"{how.replace(' ', '-')}.json"
        path.write_text("".join(line(number, null=null) + "\n" for number in range(ROWS)))
        compare(f"dataclasses, {how}", path, Event)
        compare(f'"not null" inside, {how}', path, STRICT)


if __name__ == "__main__":
    main()
