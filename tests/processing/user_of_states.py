"""What a type checker tells a user of states, timers and outputs: each comment is what mypy --strict says of its line.

`test_typing` compares them. A line without a comment is one of which nothing is said.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple, reveal_type

import penstock as pen
from penstock import col


@dataclass
class Order:
    user: str
    price: float


class Spent(NamedTuple):
    user: str
    total: float


def larger(a: int, b: int) -> int:
    return max(a, b)


class Values(pen.ProcessFunction):
    plain = pen.ValueState(int)
    counted = pen.ValueState(int, default=0)
    rounded = pen.ValueState(float, default=0, ttl=timedelta(hours=1))
    annotated: pen.ValueState[int] = pen.ValueState(int)
    annotated_with_default: pen.ValueState[int] = pen.ValueState(int, default=0)
    order = pen.ValueState(Order, ttl="1h", clock="processing")
    orders = pen.ValueState(list[Order])
    nullable = pen.ValueState(int | None)

    def on_row(self, row: Order, ctx: pen.Context) -> None:
        reveal_type(self.plain.get())  # int | None
        reveal_type(self.counted.get())  # int
        reveal_type(self.rounded.get())  # float
        reveal_type(self.annotated.get())  # int | None
        reveal_type(self.annotated_with_default.get())  # int | None
        reveal_type(self.order.get())  # Order | None
        reveal_type(self.orders.get())  # list[Order] | None
        reveal_type(self.nullable.get())  # int | None
        self.counted.set(self.counted.get() + 1)
        self.plain.set(self.plain.get() + 1)  # error: operator
        self.plain.set("wrong")  # error: arg-type
        self.annotated.set("wrong")  # error: arg-type
        self.counted.set(None)  # error: arg-type
        self.nullable.set(None)
        self.order.set(row)


class Collections(pen.ProcessFunction):
    recent = pen.ListState(Order)
    names = pen.ListState(str | None)
    seen = pen.MapState(str, int, ttl="1d")
    limits = pen.BroadcastState(str, float)

    def on_row(self, row: Order, ctx: pen.Context) -> None:
        reveal_type(self.recent.get())  # list[Order]
        reveal_type([each.price for each in self.recent])  # list[float]
        reveal_type(self.names.get())  # list[str | None]
        self.recent.append(row)
        self.recent.append("wrong")  # error: arg-type
        self.recent.set([row, row])
        self.recent.extend(["wrong"])  # error: list-item
        reveal_type(self.seen.get("a"))  # int | None
        reveal_type(self.seen.get("a", 0))  # int
        reveal_type(self.seen.get("a", "none"))  # int | str
        reveal_type(list(self.seen.items()))  # list[tuple[str, int]]
        reveal_type(list(self.seen.keys()))  # list[str]
        reveal_type(list(self.seen.values()))  # list[int]
        self.seen.set("a", "wrong")  # error: arg-type
        self.seen.remove(1)  # error: arg-type
        reveal_type(self.limits.get("a"))  # float | None
        reveal_type(self.limits.get("a", 1.5))  # float

    def on_broadcast(self, row: Order, ctx: pen.Context) -> None:
        self.limits.set(row.user, row.price)
        self.limits.set(row.user, row.user)  # error: arg-type


class Folded(pen.ProcessFunction):
    most = pen.ReducingState(max, int)
    largest = pen.ReducingState(larger, int)
    total = pen.ReducingState(lambda a, b: a + b, float)
    mean = pen.AggregatingState(col("value").mean(), float)
    spent: pen.AggregatingState[Order, float] = pen.AggregatingState(col("price").sum(), Order)
    wrong = pen.ReducingState(larger, str)  # error: arg-type

    def on_row(self, row: Order, ctx: pen.Context) -> None:
        reveal_type(self.most.get())  # int | None
        reveal_type(self.largest.get())  # int | None
        reveal_type(self.total.get())  # float | None
        reveal_type(self.mean.get())  # Any | None
        reveal_type(self.spent.get())  # float | None
        self.most.add("wrong")  # error: arg-type
        self.mean.add(row.price)
        self.mean.add(row)  # error: arg-type
        self.spent.add(row)


class Sides(pen.ProcessFunction):
    suspects = pen.Output(Order)

    def on_row(self, row: Order, ctx: pen.Context) -> Iterator[Spent]:
        ctx.emit(row, to=self.suspects)
        ctx.emit({"user": "ann", "price": 1.0}, to=self.suspects)
        ctx.emit(Spent("ann", 1.0), to=self.suspects)  # error: misc
        ctx.emit(Spent("ann", 1.0))
        ctx.set_timer("late", after="1m")
        ctx.set_timer("late", after=timedelta(minutes=1))
        ctx.set_timer("late", after=60)  # error: arg-type
        reveal_type(ctx.event_time)  # datetime | None
        reveal_type(ctx.now)  # datetime
        yield Spent(row.user, row.price)

    def on_timer(self, timer: pen.Timer, ctx: pen.Context) -> None:
        reveal_type(timer.name)  # str
        reveal_type(timer.at)  # datetime
        reveal_type(timer.clock)  # str
