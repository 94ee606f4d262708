"""Half of a character in a record, in what a function makes or says, in a state, a timer's name: bad rows, and the job goes on."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import penstock as pen
from penstock import sinks, sources

HALF = "\ud800"
FOLDER = Path(tempfile.mkdtemp())
ROWS = [{"a": 1, "b": "x"}, {"a": 2, "b": "half"}, {"a": 3, "b": "y"}]


def spoilt(row: pen.Row) -> str:
    return HALF if row.b == "half" else str(row.b)


def failing(row: pen.Row) -> int:
    if row.b == "half":
        raise ValueError(f"cannot read {HALF}")
    return int(row.a)


def several(row: pen.Row) -> Iterator[dict[str, Any]]:
    yield {"text": spoilt(row)}


@pen.udf
def spoilt_value(b: str) -> str:
    return HALF if b == "half" else b


class Keeps(pen.ProcessFunction):
    text = pen.ValueState(str)

    def on_row(self, row: pen.Row, ctx: pen.Context) -> Iterator[int]:
        self.text.set(spoilt(row))
        yield row.a


class Lists(pen.ProcessFunction):
    texts = pen.ListState(str)

    def on_row(self, row: pen.Row, ctx: pen.Context) -> Iterator[int]:
        self.texts.append(spoilt(row))
        yield row.a


class Maps(pen.ProcessFunction):
    counts = pen.MapState(str, int)

    def on_row(self, row: pen.Row, ctx: pen.Context) -> Iterator[int]:
        self.counts.set(spoilt(row), 1)
        yield row.a


class Wakes(pen.ProcessFunction):
    def on_row(self, row: pen.Row, ctx: pen.Context) -> Iterator[int]:
        ctx.set_timer(spoilt(row), after="1h", clock="processing")
        yield row.a

    def on_timer(self, timer: pen.Timer, ctx: pen.Context) -> Iterator[int]:
        yield from ()


def written(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for part in sorted(folder.glob("epoch=*/part-*")) for line in part.read_text().splitlines()]


def job(label: str, source: Any, build: Callable[[pen.Stream], pen.Stream] = lambda stream: stream) -> None:
    """Run it with dead letters as JSON, and say how many rows came out and which did not."""
    folder = FOLDER / label.replace(" ", "-")
    pipeline = pen.Pipeline("h", on_error="dead-letter")
    build(pipeline.read(source)).write(sinks.files(folder / "out", format="json"))
    pipeline.dead_letters.write(sinks.files(folder / "dead", format="json"))
    try:
        pipeline.run(pen.Local(restarts=0))
    except Exception as error:
        print(f"{label}: STOPPED by {type(error).__name__}: {str(error)!a}")
        return
    rows, dead = written(folder / "out"), written(folder / "dead")
    print(f"{label}: {len(rows)} rows, {len(dead)} bad: {', '.join(ascii(letter['error']) for letter in dead)}")


def main() -> None:
    lines = FOLDER / "in.json"
    lines.write_text('{"a":1,"b":"x"}\n{"a":2,"b":"\\ud800"}\n{"a":3,"b":"y"}\n')
    job("JSON", sources.files(lines, schema="a bigint, b string"))
    (FOLDER / "in.csv").write_bytes(b"a,b\n1,x\n2,\xed\xa0\x80\n3,y\n")
    job("CSV", sources.files(FOLDER / "in.csv", schema="a bigint, b string"))
    memory = sources.memory(ROWS)
    job("map", memory, lambda s: s.map(spoilt, schema=str))
    job("flat_map", memory, lambda s: s.flat_map(several, schema="text string"))
    job("error", memory, lambda s: s.map(failing, schema=int))
    job("udf", memory, lambda s: s.select("a", b=spoilt_value(pen.col("b"))))
    for function in (Keeps(), Lists(), Maps(), Wakes()):
        name = type(function).__name__.lower()
        job(name, memory, lambda s, f=function, n=name: s.key_by("a").process(f, schema=int, name=n))  # type: ignore[misc]
    try:
        sources.memory([{"b": "x"}, {"b": HALF}], schema="b string")
    except Exception as error:
        print(f"memory: {type(error).__name__}: {error.args[0]!a}")


if __name__ == "__main__":
    sys.exit(main())
