"""What values are made of when they are set, and that it does not matter whether they have been in a column since."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Annotated, Any, NamedTuple, TypedDict
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest

from penstock.errors import RowError
from penstock.processing.values import ValueType, stored_values
from penstock.schema import to_array

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@dataclass
class Item:
    name: str
    price: Decimal
    at: datetime
    tags: dict[str, int]
    note: str | None = None


class Point(NamedTuple):
    x: float
    y: float


class Options(TypedDict, total=False):
    color: str
    size: int


@dataclass
class Cart:
    items: list[Item]
    where: Point
    extra: Options | None
    seen: dict[str, list[datetime]] = field(default_factory=dict)


class Color(str, enum.Enum):  # noqa: UP042  (its str() is not its value)
    RED = "red"


ITEM = Item("pen", Decimal("1.5"), NOON, {"b": 2, "a": 1})
CART = Cart([ITEM, ITEM], Point(1, 2), {"color": "red", "size": 3}, {"x": [NOON]})

GOOD: list[tuple[Any, Any, Any]] = [
    (int, 7, 7),
    (int, np.int32(7), 7),
    (int, 2**63 - 1, 2**63 - 1),
    (int, -(2**63), -(2**63)),
    (float, 1, 1.0),
    (float, np.float32(0.5), 0.5),
    (float, Decimal("0.5"), 0.5),
    (float, math.inf, math.inf),
    (bool, True, True),
    (bool, np.bool_(True), True),
    (str, "ümlaut", "ümlaut"),
    (str, Color.RED, "red"),
    (bytes, b"\0x", b"\0x"),
    (bytes, bytearray(b"x"), b"x"),
    (date, date(2026, 1, 1), date(2026, 1, 1)),
    (datetime, NOON, NOON),
    (datetime, datetime(2026, 1, 1, 13, tzinfo=ZoneInfo("Europe/Berlin")), NOON),
    (datetime, datetime(2026, 1, 1, 17, 30, tzinfo=timezone(timedelta(hours=5, minutes=30))), NOON),
    (Decimal, Decimal("1.5"), Decimal("1.5")),
    (Decimal, 3, Decimal(3)),
    (int | None, None, None),
    (int | None, 5, 5),
    (list[int], (1, 2), [1, 2]),
    (list[int | None], [1, None], [1, None]),
    (list[list[str]], [["a"], []], [["a"], []]),
    (dict[str, float], {"b": 1, "a": 2}, {"b": 1.0, "a": 2.0}),
    (Point, Point(1, 2), Point(1.0, 2.0)),
    (Point, {"x": 1, "y": 2}, Point(1.0, 2.0)),
    (Options, {"color": "red"}, {"color": "red", "size": None}),
    (Item, ITEM, ITEM),
    (Cart, CART, CART),
    (Cart | None, None, None),
    (Annotated[int, pa.int32()], 7, 7),
    (Annotated[float, pa.float32()], 0.1, float(np.float32(0.1))),
    (Annotated[datetime, pa.timestamp("ms", tz="UTC")], NOON, NOON),
    (Annotated[datetime, pa.timestamp("us", tz="Europe/Berlin")], NOON, NOON),
    (Annotated[timedelta, pa.duration("us")], timedelta(seconds=1), timedelta(seconds=1)),
    (pa.struct([pa.field("m", pa.map_(pa.string(), pa.int64()))]), {"m": [("a", 1)]}, {"m": {"a": 1}}),
]


def made(kind: ValueType, plain: Any) -> Any:
    return plain if kind.make is None else kind.make(plain)


def types(value: Any) -> Any:
    """The types of a value and of all in it: equal values may differ in them."""
    if isinstance(value, list):
        return [types(each) for each in value]
    if isinstance(value, dict):
        return [(name, types(each)) for name, each in value.items()]
    if isinstance(value, datetime):
        return datetime, value.tzinfo
    if hasattr(value, "__dataclass_fields__"):
        return type(value), types(vars(value))
    return type(value), [types(each) for each in value] if isinstance(value, tuple) else str(value)


@pytest.mark.parametrize(("annotation", "given", "expected"), GOOD, ids=lambda v: str(v)[:40])
def test_a_value_comes_back_the_same_from_memory_and_from_a_column(annotation: Any, given: Any, expected: Any) -> None:
    kind = ValueType("it", annotation)
    plain = kind.plain(given)
    (stored,) = stored_values(to_array([plain], kind.field))
    assert made(kind, plain) == expected
    assert made(kind, stored) == expected
    assert types(made(kind, stored)) == types(made(kind, plain))
    assert kind.plain(stored) == plain, "what was read can be written again"
    assert kind.plain(made(kind, plain)) == plain


BAD: list[tuple[Any, Any, str]] = [
    (int, "7", "it: expected bigint, and found str '7'"),
    (int, True, "it: expected bigint, and found bool True"),
    (int, 1.5, "it: expected bigint, and found float 1.5"),
    (int, None, "it: expected bigint, and found None\n  To allow it, declare it as T | None"),
    (int, 2**63, "it: 9223372036854775808 does not fit into 64 bits"),
    (float, "1.5", "it: expected double, and found str '1.5'"),
    (float, True, "it: expected double, and found bool True"),
    (bool, 1, "it: expected boolean, and found int 1"),
    (str, b"x", "it: expected string, and found bytes b'x'"),
    (str, "\ud800", "it: '\\ud800' is no text that can be stored: surrogates not allowed"),
    (datetime, datetime(2026, 1, 1), "it: a datetime without time zone\n  Say its zone. Write: datetime("),
    (datetime, date(2026, 1, 1), "it: expected timestamp, and found date datetime.date(2026, 1, 1)"),
    (datetime, None, "it: expected timestamp, and found None\n  To allow it, declare it as T | None"),
    (date, NOON, "it: expected date, and found datetime"),
    (list[int], "12", "it: expected array<bigint not null>, and found str '12'"),
    (list[int], {1, 2}, "it: expected array<bigint not null>, and found set {1, 2}"),
    (list[int], [1, "x"], "it.item: expected bigint, and found str 'x'"),
    (dict[str, int], [1], "it: expected map<string, bigint not null>, and found list [1]"),
    (dict[str, int], {1: 1}, "it.key: expected string, and found int 1"),
    (dict[str, int], {"a": None}, "it.value: expected bigint, and found None\n  To allow it, declare it as T | None"),
    (Point, (1.0, 2.0), "it: expected struct<x: double not null, y: double not null>, and found tuple (1.0, 2.0)"),
    (Point, {"x": 1.0}, "it.y: expected double, and found None\n  To allow it, declare it as T | None"),
    (Point, {"x": 1.0, "y": 1.0, "z": 1.0}, "it: there is no field 'z'. Fields: x, y"),
    (Cart, {"items": [{"name": 3}]}, "it.items.item.name: expected string, and found int 3"),
]


@pytest.mark.parametrize(("annotation", "given", "text"), BAD, ids=lambda v: str(v)[:40])
def test_a_value_that_does_not_fit_is_refused(annotation: Any, given: Any, text: str) -> None:
    with pytest.raises(RowError) as raised:
        ValueType("it", annotation).plain(given)
    assert str(raised.value).startswith(text)


def test_a_decimal_with_too_many_digits_is_refused() -> None:
    with pytest.raises(RowError, match="it"):
        ValueType("it", Decimal).plain(Decimal(1).scaleb(-30))


def test_objects_are_copied_on_the_way_in_and_on_the_way_out() -> None:
    kind = ValueType("it", Cart)
    cart = Cart([Item("pen", Decimal(1), NOON, {})], Point(0, 0), None)
    plain = kind.plain(cart)
    cart.items[0].tags["new"] = 1
    cart.items.clear()
    first, second = made(kind, plain), made(kind, plain)
    first.items[0].tags["other"] = 1
    assert second.items == [Item("pen", Decimal(1), NOON, {})]
