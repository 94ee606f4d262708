"""A function that takes a list without nulls, or a record with required fields, of a column whose parts may be null."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import penstock as pen
from penstock import col, sinks, sources


@dataclass
class Bid:
    price: int


@dataclass
class Tagged:
    a: list[str]


def required(a: list[str]) -> int:
    return len(a)


def items(a: list[str | None]) -> int:
    return len(a)


def anything(a: list[str | None] | None) -> int:
    return len(a or [])


def numbers(a: list[int]) -> int:
    return len(a)


def price(b: Bid) -> int:
    return b.price


def tags(row: Tagged) -> int:
    return len(row.a)


BUILDS: dict[str, Callable[[pen.Stream], pen.Stream]] = {
    "udf list[str]": lambda p: p.select(n=pen.udf(required)(col("a"))),
    "udf list[str], cast": lambda p: p.select(n=pen.udf(required)(col("a").cast("array<string not null>"))),
    "udf list[str | None]": lambda p: p.select(n=pen.udf(items)(col("a"))),
    "udf list[str | None] | None": lambda p: p.select(n=pen.udf(anything)(col("a"))),
    "udf record": lambda p: p.select(n=pen.udf(price)(col("b"))),
    "udf record, cast": lambda p: p.select(n=pen.udf(price)(col("b").cast("struct<price: bigint not null>"))),
    "map(dataclass list[str])": lambda p: p.map(tags),
    "udf list[int]": lambda p: p.select(n=pen.udf(numbers)(col("a"))),
    "udf list[int], cast as the message says": lambda p: p.select(
        n=pen.udf(numbers)(col("a").cast("array<bigint not null>")),
    ),
}


def main() -> None:
    source = sources.memory([{"a": ["1", "2"], "b": {"price": 3}}], schema="a array<string>, b struct<price: bigint>")
    for label, build in BUILDS.items():
        out = sinks.memory("out")
        out.clear()
        try:
            build(pen.Pipeline("p").read(source)).write(out).run(pen.Local(restarts=0))
            print(f"{label} -> {[list(row.values()) for row in out.rows()]}")
        except Exception as error:
            print(f"{label} -> {type(error).__name__} {error}")


if __name__ == "__main__":
    main()
