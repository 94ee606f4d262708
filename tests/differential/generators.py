"""Random and nasty values of every type, from a seed.

A column is asked for by a type of Spark's, as in "array<string>", or by one with a mark: "string:date" are texts, most of which
look like dates. One value in ten is null, also inside of lists, maps and structs.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.schema import type_of

NULLS = 0.1
DAY = 86_400_000_000
FIRST_DAY, LAST_DAY = -719_162, 2_932_896  # 0001-01-01 and 9999-12-31


def _pool(text: str, mark: str = "|") -> list[str]:
    return text.split(mark)


SPANS = [(FIRST_DAY, LAST_DAY), (-2, 2), (18_000, 22_000)]
DAYS = [
    *(0, -1, 1, FIRST_DAY, FIRST_DAY + 1, LAST_DAY, LAST_DAY - 1),
    *(-141_427, -141_438, 11_016, -25_509, 19_782, 20_088),  # the Gregorian reform, and the days around 29 February
]
MICROS = [
    *(0, -1, 1, 999_999, -999_999, 1_000_000, -1_000_000, DAY - 1, -DAY),
    *(FIRST_DAY * DAY, LAST_DAY * DAY + DAY - 1, -62_135_596_799_999_999),
]
FLOATS = [
    *(0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.5, -2.5, 0.1, 0.3, 100.0, 1e-3, 9.999e-4, 1e7, 9999999.0, 1e22, 1e23),
    *(2.0**53, 2.0**63, -(2.0**63), float("nan"), float("inf"), float("-inf"), 5e-324, 1.7976931348623157e308),
    *(2.2250738585072014e-308, 3.4028234663852886e38, 1e-45, 127.0, 128.0, -128.5, -129.0, 32767.5, 2147483647.0),
    *(2147483648.0, 123456.789, 2e-3, 4.35, 1.005),
]

TEXTS = _pool(
    "¦ ¦a¦A¦ab¦abc¦aaa¦b¦a1b2¦  a b  ¦\t¦\n¦a\nb¦a\r\n¦a\n¦\xa0a\xa0¦\x0bx¦\x00¦\x1f1¦ß¦İ¦\u0131¦ǅ¦ŉ¦Σ"
    "¦ΟΔΟΣ¦ὈΔΥΣΣΕΎΣ¦\ufb01¦\ufb00¦e\u0301¦\u0301¦é¦É¦\U0001d4b3¦\U00010400¦\U00010428"
    "¦\U0001f469\u200d\U0001f469\u200d\U0001f467¦\u65e5\u672c\u8a9e¦\u2028¦\x85¦a,b¦a,b,,c,¦,¦,,¦a.b.c"
    "¦a|b¦a b¦null¦NULL¦x'y¦x\"y¦%¦_¦\\¦\\d¦(a)¦[¦$¦^a$¦{}¦user-12@host¦k=v;k2=v2¦2026-01-02¦12¦-0¦true"
    "¦NaN¦aXbXc¦Xa¦aX¦\ufeffa¦\ud7ff¦\uffff¦\U0010ffff",
    "¦",
)
ALPHABETS = ["ab", "abcXYZ019 ,.-_", "aA1 ß\u0301é\U0001d4b3,\n", "01", "äöüßÄÖÜ€", "ΑΒΓΣσς αβγ"]
INTEGERS = _pool(
    "0|1|-1|+7|12| 12 |\t3\n|007|-0|127|128|-129|32768|2147483647|2147483648|9223372036854775807"
    "|9223372036854775808|-9223372036854775808|| |1.5|1.|.5|1e2|0x10|1_000|\uff11\uff12|--1|+|-|1 2|\xa05"
    "|\x0b6|\x1f7|5L|12abc",
)
_NUMBERS = _pool(
    "1.25|-1.25|1e10|1E-5|1e400|-1e400|1e-400|NaN|nan|Infinity|-inf|+Infinity|inf|INF|1d|1.5f|1D|0x1p3|1e"
    "|e5|.|-.5|+.5e1|123456789.123456789|0.1|99999999.99|0.005|0.015|-0.005|-0.0|1.0f |1,5|infinit|+nan"
    "|-nan",
)
NUMBERS = [*INTEGERS, *_NUMBERS]
BOOLEANS = _pool("t|true|T|TRUE| true |y|yes|Yes|1|f|false|n|no|0|F||2|on|off|tru|\ttrue\n|\xa0true|oui")
DATES = _pool(
    "2026-01-02|2026-1-2|2026-01|2026|2026-02-30|1969-12-31|0001-01-01|9999-12-31|0000-01-01|2024-02-29"
    "|2023-02-29| 2026-01-02 |2026-01-02 |2026-01-02 12:00:00|2026-01-02T|2026-01-02Tx|2026-01-02 rubbish"
    "|2026-01-02x|26-01-02|2026-13-01|2026-00-01|2026-01-00|2026-01-32|| |rubbish|+2026-01-02|-2026-01-02"
    "|2026/01/02|20260102|12026-01-02|-0001-01-01|2026-01-|2026-|2026-001-02|2026-01-002|epoch|today"
    "|\t2026-01-02\n|\xa02026-01-02|\uff12\uff10\uff12\uff16-01-02|+99999-01-01|999999-01-01"
    "|5881580-07-11|5881580-07-12|02026-01-02|92026-01-02|10000-01-01|-0044-03-15",
)
_TIMES = _pool(
    "2026-01-02 03:04:05|2026-01-02T03:04:05Z|2026-01-02T03:04:05.123456|2026-01-02 03:04:05.1"
    "|2026-01-02 03:04:05.123456789|2026-01-02 3:4:5|2026-01-02 03:04|2026-01-02 03"
    "|2026-01-02 03:04:05+02:00|2026-01-02 03:04:05 +0200|2026-01-02 03:04:05-08|2026-01-02 03:04:05 UTC"
    "|2026-01-02 03:04:05 GMT+2|2026-01-02 03:04:05Z|2026-01-02 03:04:05 Europe/Berlin"
    "|2026-07-02 03:04:05Europe/Berlin|2026-03-29 02:30:00 Europe/Berlin"
    "|2026-10-25 02:30:00 Europe/Berlin|2026-01-02 03:04:05 Mars/Base|2026-01-02 24:00:00"
    "|2026-01-02 23:59:60|2026-01-02 03:60:00|2026-01-02 03:04:05.|2026-01-02 03:04:05 x"
    "|2026-01-02 03:04:05+18:00|2026-01-02 03:04:05+19:00|2026-01-02 03:04:05.5Z"
    "|1969-12-31 23:59:59.999999|0001-01-01 00:00:00|9999-12-31 23:59:59.999999"
    "|1883-11-18 12:00:00 America/New_York|2026-01-02T03:04:05+2|2026-01-02T03:04:05+2:3"
    "|2026-01-02t03:04:05|2026-01-02  03:04:05|2026-01-02 03:04:05  |2026-01-02 03:04:05 z"
    "|2026-01-02 03:04:05+020000|2026-01-02 03:04:05+02:00:01|2026-01-02 03:04:05UTC+01:00"
    "|2026-01-02 003:04:05|294247-01-10 04:00:54.775807|294248-01-01 00:00:00",
)
TIMES = [*DATES, *_TIMES]
FORMATTED = _pool(
    "02/01/2026|2/1/2026|31/12/9999|30/02/2026|29/02/2024|01/01/0001|1/1/2026 | 01/01/2026|2026-01-02"
    "|01-02-2026||00/01/2026|01/13/2026|01/01/26|01/01/12026|2026-01-02T03:04:05|2026-01-02t03:04:05"
    "|2026-01-02 03:04:05.5|2026-01-02 03:04:05.123456|2026-01-02 03:04:05.1234567|20260102|20261302"
    "|+20260102|20260102030405|2026-01-02 24:00:00|01/01/+12026|01/01/+2026|01/01/-2026|01/01/0000"
    "|٠١/٠١/٢٠٢٦|07.11.99|07.11.00|7.11.99|12:34|23:59:59|24:00|2026-1-2",
)

FAR = _pool(
    "92026-01-02|10000-06-01|12026-02-30|0000-12-31|-0044-03-15|202611-2|294247-01-10|2026-01-02|0001-01-01|9999-12-31|1969-07-20"
    "|33000-01-01"
)

_POOLS = {"int": INTEGERS, "number": NUMBERS, "boolean": BOOLEANS, "date": DATES, "time": TIMES, "formatted": FORMATTED}


def column(kind: str, rows: int, seed: random.Random) -> pa.Array:
    """`rows` values of a type, or of a type with a mark."""
    name, _, mark = kind.rpartition(":") if kind[-1] != ">" and ":" in kind else (kind, "", "")
    if mark == "far":
        return pa.array([_maybe(seed, lambda: seed.choice(FAR)) for _ in range(rows)], pa.string())
    if mark in _POOLS:
        return pa.array([_maybe(seed, lambda: _like(seed, mark)) for _ in range(rows)], pa.string())
    if mark == "case":
        return pa.array([_maybe(seed, lambda: _cased(seed)) for _ in range(rows)], pa.string())
    if mark == "small":
        return pa.array([_maybe(seed, lambda: seed.randint(-4, 5)) for _ in range(rows)], type_of(name))
    if mark == "moderate":
        moderate = [
            _maybe(seed, lambda: seed.choice([seed.randint(-1000, 1000), round(seed.gauss(0, 1e4), 3)])) for _ in range(rows)
        ]
        return pa.array([None if value is None else float(value) for value in moderate], type_of(name))
    if mark == "some":
        few = [_maybe(seed, lambda: seed.choice([0, 1, 2, 3, 7, -1, 5])) for _ in range(rows)]
        return pa.array(few, pa.int64()).cast(type_of(name))
    if mark == "seconds":
        whole = [_maybe(seed, lambda: _seconds(seed)) for _ in range(rows)]
        return pa.array(whole, pa.int64()).cast(type_of(name), safe=False)
    return values(type_of(name), rows, seed)


def values(found: pa.DataType, rows: int, seed: random.Random, *, nulls: bool = True) -> pa.Array:
    """`rows` values of an Arrow type."""
    is_ = pa.types
    if is_.is_list(found):
        sizes = [None if nulls and seed.random() < NULLS else seed.choice([0, 1, 2, 3, 5]) for _ in range(rows)]
        return _listed(found, sizes, values(found.value_type, sum(size or 0 for size in sizes), seed))
    if is_.is_struct(found):
        children = [values(field.type, rows, seed) for field in found]
        mask = pa.array([nulls and seed.random() < NULLS for _ in range(rows)])
        return pa.StructArray.from_arrays(children, fields=list(found), mask=mask)
    if is_.is_map(found):
        return _maps(found, rows, seed)
    make = _scalar(found, seed)
    made = [_maybe(seed, make) if nulls else make() for _ in range(rows)]
    if is_.is_date(found):
        return pa.array(made, pa.int32()).cast(found)
    if is_.is_timestamp(found):
        return pa.array(made, pa.int64()).cast(found)
    return pa.array(made, found)


def _maybe(seed: random.Random, make: Callable[[], Any]) -> Any:
    return None if seed.random() < NULLS else make()


def _listed(found: pa.DataType, sizes: list[int | None], items: pa.Array) -> pa.Array:
    offsets, end = [], 0
    for size in sizes:
        offsets.append(None if size is None else end)
        end += size or 0
    return pa.ListArray.from_arrays(pa.array([*offsets, end], pa.int32()), items, type=found)


def _known_keys(found: pa.DataType) -> list[Any]:
    """Keys that forms ask for."""
    is_ = pa.types
    if is_.is_floating(found) or is_.is_decimal(found):
        return [1.5, 0.0, float("nan")] if is_.is_floating(found) else [Decimal("1.50")]
    if is_.is_date(found):
        return [date(2026, 1, 2)]
    return ["a", "b"] if is_.is_string(found) else [True] if is_.is_boolean(found) else [1, 2]


def _maps(found: pa.DataType, rows: int, seed: random.Random) -> pa.Array:
    keys, offsets = [], [0]
    for _ in range(rows):
        own = {repr(key or 0): key for key in values(found.key_type, seed.choice([0, 1, 2, 4]), seed, nulls=False).to_pylist()}
        own |= {repr(key or 0): key for key in _known_keys(found.key_type) if seed.random() < 0.5}
        keys += list(own.values())
        offsets.append(len(keys))
    items = values(found.item_type, len(keys), seed)
    made = pa.MapArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(keys, found.key_type), items)
    null = [seed.random() < NULLS for _ in range(rows)]
    return made.cast(found).take(pa.array([None if gone else index for index, gone in enumerate(null)], pa.int64()))


def _scalar(found: pa.DataType, seed: random.Random) -> Callable[[], Any]:
    is_ = pa.types
    if is_.is_boolean(found):
        return lambda: seed.random() < 0.5
    if is_.is_integer(found):
        return lambda: _integer(found.bit_width, seed)
    if is_.is_float32(found):
        return lambda: _single(_float(seed))
    if is_.is_floating(found):
        return lambda: _float(seed)
    if is_.is_decimal(found):
        return lambda: _decimal(found, seed)
    if is_.is_string(found):
        return lambda: _string(seed)
    if is_.is_binary(found):
        return lambda: _string(seed).encode()
    if is_.is_date(found):
        return lambda: seed.choice(DAYS) if seed.random() < 0.3 else seed.randint(*seed.choice(SPANS))
    if is_.is_timestamp(found):
        return lambda: seed.choice(MICROS) if seed.random() < 0.3 else _micros(seed)
    raise AssertionError(f"no values of {found}")


def _micros(seed: random.Random) -> int:
    day = seed.randint(*seed.choice(SPANS))
    return day * DAY + seed.choice(
        [0, seed.randrange(86_400) * 1_000_000, seed.randrange(DAY), seed.randrange(86_400_000) * 1000]
    )


def _seconds(seed: random.Random) -> int:
    """Seconds since 1970; one in ten is of milliseconds, which far years are."""
    found = seed.randint(FIRST_DAY * 86400, LAST_DAY * 86400)
    return (
        found
        if seed.random() < 0.9
        else seed.choice([found * 1000, 1_767_225_600_000, LAST_DAY * 86400 + 86400, FIRST_DAY * 86400 - 1])
    )


def _integer(bits: int, seed: random.Random) -> int:
    bound = 1 << (bits - 1)
    way = seed.random()
    if way < 0.2:
        return seed.choice([0, 1, -1, 2, bound - 1, -bound, bound - 2, -bound + 1])
    return seed.randint(-20, 20) if way < 0.7 else seed.randint(-bound, bound - 1)


def _float(seed: random.Random) -> float:
    way = seed.random()
    if way < 0.35:
        return seed.choice(FLOATS)
    if way < 0.6:
        return float(seed.randint(-50, 50))
    if way < 0.8:
        return round(seed.gauss(0, 10 ** seed.randint(-6, 9)), seed.randint(0, 8))
    found: float = struct.unpack("d", seed.randbytes(8))[0]
    return found


def _single(value: float) -> float:
    with np.errstate(over="ignore"):
        return float(np.float32(value))


def _decimal(found: pa.DataType, seed: random.Random) -> Decimal:
    most = 10**found.precision - 1
    way = seed.random()
    if way < 0.2:
        unscaled = seed.choice([0, 1, -1, most, -most, 5, -5, 10**found.scale])
    else:
        unscaled = seed.randint(-most, most) if way < 0.4 else seed.randint(-1000, 1000)
    digits = tuple(map(int, str(min(most, abs(unscaled)))))
    return Decimal((int(unscaled < 0), digits, -found.scale))


def _string(seed: random.Random) -> str:
    if seed.random() < 0.5:
        return seed.choice(TEXTS)
    alphabet = seed.choice(ALPHABETS)
    return "".join(seed.choice(alphabet) for _ in range(seed.choice([1, 2, 3, 5, 12])))


def _cased(seed: random.Random) -> str:
    """Any characters that may have cases."""
    blocks = [(0x41, 0x17F), (0x180, 0x24F), (0x370, 0x3FF), (0x400, 0x52F), (0x1E00, 0x1FFF), (0x2C00, 0x2DFF)]
    blocks += [(0xA640, 0xA7BF), (0xFB00, 0xFB17), (0x10400, 0x1044F)]
    return "".join(chr(seed.randint(*seed.choice(blocks))) for _ in range(seed.choice([1, 2, 4])))


def _like(seed: random.Random, mark: str) -> str:
    """A text of a pool, sometimes with a character changed, or one made of digits."""
    text = seed.choice(_POOLS[mark])
    way = seed.random()
    if way < 0.25:
        at = seed.randint(0, len(text))
        return text[:at] + seed.choice("0123456789-+.: TZe") + text[at + seed.randint(0, 1) :]
    if way < 0.65:
        return _made(seed, mark)
    return text


def _made(seed: random.Random, mark: str) -> str:
    whole = str(_integer(seed.choice([8, 16, 32, 64]), seed))
    if mark == "int":
        return whole
    if mark == "number":
        return seed.choice(
            [whole, f"{whole}.{seed.randint(0, 999)}", repr(_float(seed)), str(_decimal(pa.decimal128(10, 3), seed))]
        )
    if mark == "boolean":
        return seed.choice(["true", "false", "TRUE", "f", "1"])
    year, month, day = seed.randint(1, 9999), seed.randint(1, 12), seed.randint(1, 28)
    date = f"{year:04}-{month:02}-{day:02}"
    if mark == "date":
        return date
    time = f"{seed.randrange(24):02}:{seed.randrange(60):02}:{seed.randrange(60):02}"
    if mark == "time":
        zone = seed.choice(["", "", "Z", "+01:00", " -07:30", " UTC", " Asia/Tokyo"])
        return f"{date}{seed.choice(' T')}{time}{seed.choice(['', '.5', f'.{seed.randrange(1_000_000):06}'])}{zone}"
    numbers = [
        f"{day:02}/{month:02}/{year:04}",
        f"{day}/{month}/{year:04}",
        f"{year:04}{month:02}{day:02}",
        f"{day:02}.{month:02}.{year % 100:02}",
    ]
    return seed.choice([*numbers, f"{date}T{time}", f"{date} {time}.{seed.randrange(999)}", time])
